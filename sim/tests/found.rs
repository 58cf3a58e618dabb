//! Seeds of volumes that once broke a promise, or the oracle's rules of it, and are no scenario of
//! their own. What a seed draws has grown since the older of them: they may tell another story by
//! now than they did then.

use ebb_sim::volume::run;

/// The bucket forbade the abort of an upload, which was then forgotten and its parts kept.
#[test]
fn an_upload_whose_abort_is_forbidden_is_not_forgotten() {
    run(298).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A node ended because of its disk, and others read the bytes of a copy under way: what may be
/// seen of it when a node dies of a signal (S-4e) may be seen then too.
#[test]
fn bytes_of_a_copy_are_seen_before_the_node_ends_of_its_disk() {
    run(40569).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A process died while it moved a file out of its pack file; the next one held the bytes there for
/// forced (`power.rs`).
#[test]
fn bytes_in_a_pack_file_are_forced_though_their_store_file_is_removed() {
    run(1616).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A file was removed, a power cut took that, and while the node was away somebody asked to open
/// it: when the making of the file was repeated it counted as open, and so its removal left it
/// there.
#[test]
fn who_waits_for_an_open_has_not_got_it_before_what_was_answered() {
    run(93597).unwrap_or_else(|broken| panic!("{broken}"));
}

/// What a power cut had left of a file was filled up with zeros, which the next power cut took, and
/// was missing then.
#[test]
fn what_is_filled_up_after_a_power_cut_is_forced() {
    run(93484).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A file moved out of its pack while a part of it was zeroed: what the bucket has of the rest was
/// forced before that, and not where it was then. A power cut took it, and zeros were sent in its
/// place.
#[test]
fn what_is_zeroed_in_part_is_forced_where_it_is_by_then() {
    run(121208).unwrap_or_else(|broken| panic!("{broken}"));
}

/// The log failed after a file was cut, and before that was forced; what was appended then went
/// over bytes that the next power cut brought back.
#[test]
fn what_a_failed_log_has_cut_off_is_not_written_over() {
    run(226784).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A start removed a pack file that the log knew nothing of, the next one made another of that
/// name, and a power cut brought the old one back, with bytes of another file.
#[test]
fn what_was_removed_does_not_come_back_under_a_name_that_is_used_again() {
    run(224156).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A file that nobody had open was removed while a part of it was being zeroed; a power cut took
/// the removal, and the zeros were there: what a mount writes to it has open.
#[test]
fn zeros_of_a_removed_file_are_there_if_the_removal_is_lost() {
    run(230436).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A mount ended while somebody waited for bytes of a removed file, which nobody had open from then
/// on.
#[test]
fn who_waits_for_a_removed_file_when_its_mount_ends_has_lost_it() {
    run(336558).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A record of the log was there though its write had failed; what the append that it spoke of had
/// written was cut off, and missing at the next start.
#[test]
fn what_a_failed_log_may_have_is_not_cut_off() {
    run(402664).unwrap_or_else(|broken| panic!("{broken}"));
}

/// A file in a pack was cut to nothing and made longer: what was behind its end was cleared before
/// the cut was forced, and a power cut brought back the file with zeros.
#[test]
fn what_was_cut_off_is_cleared_once_that_is_forced() {
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

/// What a dead node had sent came when the next one had given up waiting for it, and a removed file
/// was back (`uploads/late.rs`: `what_a_dead_node_has_sent_may_come_late`).
#[test]
fn what_a_dead_node_has_sent_keeps_its_key() {
    run(13056).unwrap_or_else(|broken| panic!("{broken}"));
}

/// What a dead node had asked for twice came when the next one had deleted it, and objects were
/// back (`uploads/late.rs`).
#[test]
fn objects_do_not_come_back_that_a_dead_node_has_asked_for() {
    for seed in [1476, 1798, 13532, 13984, 14372, 16556] {
        run(seed).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

/// Both broke before refusals and what access(2) tells were forced, and have not since; what they
/// broke was not written down.
#[test]
fn two_seeds_stay_whole_that_broke() {
    for seed in [3353, 13319] {
        run(seed).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

/// Drafts of what sends large files while they grow left parts of them in the bucket.
#[test]
fn parts_that_were_sent_early_do_not_stay() {
    for seed in [250125, 251540] {
        run(seed).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

/// Blocks that were written over in place were sent without a checksum, and read as they came.
/// Since then they have one, and the bucket damages nothing else on the way (`damaged/said.rs`:
/// `what_is_written_over_in_place_has_its_checksums`).
#[test]
fn what_was_written_over_is_not_read_damaged() {
    run(718170).unwrap_or_else(|broken| panic!("{broken}"));
}
