//! Seeds of volumes that once violated a guarantee, or the oracle's model of it, and have no
//! scenario of their own. Draws were added since the older ones, so a seed may now run another
//! history.

use ebb_sim::volume::run;

/// The bucket forbade the abort of an upload, which was then forgotten and its parts kept.
#[test]
fn upload_with_a_forbidden_abort_is_not_forgotten() {
    run(298).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A node ended because of its disk, and another client read bytes of a copy in flight: S-4e
/// permits that after a death by a signal, and so here.
#[test]
fn bytes_of_a_copy_are_seen_before_the_node_ends_of_its_disk() {
    run(40569).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A process died while it moved a file out of its pack file; the next one took the bytes there for
/// forced (`power.rs`).
#[test]
fn bytes_in_a_pack_file_are_forced_though_their_store_file_is_removed() {
    run(1616).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A power cut lost a file's removal, and a client opened the file while the node was away: the
/// replayed creation counted as open, and the removal then left the file.
#[test]
fn pending_open_does_not_count_before_the_replay() {
    run(93597).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A file's lost range was filled with zeros after a power cut; the next power cut lost the zeros,
/// and the range was then missing.
#[test]
fn zero_fill_after_a_power_cut_is_forced() {
    run(93484).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A file moved out of its pack while a range of it was zeroed: the rest, which the bucket has, was
/// forced before the move, at the old location. A power cut lost it, and zeros were uploaded in its
/// place.
#[test]
fn partly_zeroed_file_is_forced_at_its_new_location() {
    run(121208).unwrap_or_else(|broken| panic!("{broken}"));
}

/// The log failed after a truncation and before its force; later appended bytes overwrote those
/// that the next power cut brought back.
#[test]
fn truncated_bytes_are_not_overwritten_after_a_failed_log() {
    run(226784).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A start removed a pack file that the log knew nothing of, the next one made another of that
/// name, and a power cut brought the old one back, with bytes of another file.
#[test]
fn removed_pack_file_does_not_return_under_a_reused_name() {
    run(224156).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A file without open handles was removed while a range of it was being zeroed; a power cut lost
/// the removal, and the zeros were present: a mount has each file open that it writes to.
#[test]
fn zeros_of_a_removed_file_are_there_if_the_removal_is_lost() {
    run(230436).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A mount ended while a read of an unlinked file was pending, which no client had open afterwards.
#[test]
fn pending_read_of_an_unlinked_file_ends_with_its_mount() {
    run(336558).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A record survived in the log although its write had failed; the bytes of its append were cut
/// off, and missing at the next start.
#[test]
fn appended_bytes_stay_if_a_failed_log_may_have_them() {
    run(402664).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A file in a pack was truncated to zero and extended: the bytes beyond its end were cleared
/// before the truncation was forced, and a power cut brought back the file with zeros.
#[test]
fn truncated_bytes_are_cleared_after_the_force() {
    run(402241).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A first start failed behind the record of a sync, and no later one would read its log, which had
/// no snapshot (`restarts.rs`: `a_first_start_that_fails_does_not_matter`).
#[test]
fn a_node_starts_after_a_first_start_that_failed() {
    for seed in [4112, 6118] {
        run(seed).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

/// An upload of a dead node took effect after its successor had stopped waiting for it, and a
/// removed file was back (`uploads/late.rs`: `late_upload_of_a_dead_node_is_recognised`).
#[test]
fn upload_of_a_dead_node_keeps_its_key() {
    run(13056).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A repeated request of a dead node took effect after its successor's delete, and objects were
/// back (`uploads/late.rs`).
#[test]
fn objects_do_not_come_back_that_a_dead_node_has_asked_for() {
    for seed in [1476, 1798, 13532, 13984, 14372, 16556] {
        run(seed).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

/// Both failed before rejections and access(2) results were forced, and have not since; the
/// violated guarantee was not recorded.
#[test]
fn two_seeds_stay_whole_that_broke() {
    for seed in [3353, 13319] {
        run(seed).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

/// Early drafts of uploads of growing files left parts in the bucket.
#[test]
fn parts_that_were_sent_early_do_not_stay() {
    for seed in [250125, 251540] {
        run(seed).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

/// Blocks overwritten in place were uploaded without a checksum, and read unverified. They have one
/// now, and the bucket damages no other data in transit (`damaged/said.rs`:
/// `object_checksums_cover_overwritten_blocks`).
#[test]
fn overwritten_blocks_are_not_read_damaged() {
    run(718170).unwrap_or_else(|broken| panic!("{broken}"));
}
