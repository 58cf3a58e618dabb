use crate::volume::*;
use bytes::Bytes;
use ebb_core::namespace::{Namespace, NamespaceItem};
use ebb_model::*;
use std::collections::BTreeSet;

/// Ids are drawn in order and never twice, also after a removal (C-17).
#[test]
fn ids_are_the_smallest_unused_and_never_reused() {
    let mut volume = Volume::new();
    let first = volume.file(Ino::ROOT, "a");
    assert_eq!(first, Ino::new(IdEpoch(1), Slot(0), 1));
    volume.unlink(&Caller::ROOT, Ino::ROOT, "a", &[]).unwrap();
    assert_eq!(volume.file(Ino::ROOT, "a"), Ino::new(IdEpoch(1), Slot(0), 2));
}

/// Ids drawn for one command differ, and leave the counters alone until the command is applied.
/// Skipped counters stay free for the ids that clients bring again after a power cut.
#[test]
fn ids_of_one_command_are_drawn_from_their_slots() {
    let volume = Volume::new();
    let id = |slot, counter| Some(Ino::new(IdEpoch(1), Slot(slot), counter));
    let mut ids = volume.namespace.draw_ids(0);
    let drawn = [0, 9, 0, 9, 8].map(|slot| ids.draw(Slot(slot)));
    assert_eq!(drawn, [id(0, 1), id(9, 1), id(0, 2), id(9, 2), id(8, 1)]);
    let mut ids = volume.namespace.draw_ids(100);
    assert_eq!([0, 0, 9].map(|slot| ids.draw(Slot(slot))), [id(0, 101), id(0, 102), id(9, 101)]);
    assert_eq!(volume.namespace.next_ino(Slot(9)), id(9, 1));
}

/// A node without an unused id proposes none, and the partition refuses it.
#[test]
fn without_an_id_nothing_is_made() {
    let mut volume = Volume::new();
    let made = volume.run(&Caller::ROOT, make(Ino::ROOT, "f", Ino::NONE));
    assert_eq!(made, Err(FsError::NoSpace));
}

/// A slot without unused counters falls back to the next one.
#[test]
fn a_full_slot_passes_on_to_the_next() {
    let mut volume = Volume::new();
    let last = Ino::new(IdEpoch(1), Slot(0), u32::MAX - 1);
    let made = volume.run(&Caller::ROOT, make(Ino::ROOT, "last", last));
    assert!(made.is_ok());
    assert_eq!(
        volume.namespace.next_ino(Ino::ROOT.slot()).unwrap(),
        Ino::new(IdEpoch(1), Slot(1), 1)
    );
    assert_eq!(
        volume.namespace.next_ino(Ino::new(IdEpoch(0), Slot(u16::MAX), 1).slot()).unwrap(),
        Ino::new(IdEpoch(1), Slot(u16::MAX), 1)
    );
}

/// Situation: two take-overs have ranges of one epoch. Danger: the later one takes ids of the
/// earlier one for its own, for removed, or draws them again. Expectation: it draws from its own
/// range, installs inodes of the earlier one under their ids, and knows nothing of those it has not
/// loaded.
#[test]
fn ids_of_an_earlier_take_over_are_neither_drawn_nor_over() {
    let range = |from, upto| IdRange { epoch: IdEpoch(5), from, upto };
    let id = |counter| Ino::new(IdEpoch(5), Slot(0), counter);
    let mut volume = Volume::of(range(100, 200));
    assert_eq!(volume.file(Ino::ROOT, "own"), id(100));
    let mut make_with =
        |child: &str, ino| volume.run(&Caller::ROOT, make(Ino::ROOT, child, ino)).map(drop);
    assert_eq!(make_with("earlier", id(99)), Ok(()));
    assert_eq!(make_with("earlier epoch", Ino::new(IdEpoch(4), Slot(0), 5000)), Ok(()));
    assert_eq!(make_with("later", id(200)), Err(FsError::Invalid));
    assert_eq!(make_with("later epoch", Ino::new(IdEpoch(6), Slot(0), 1)), Err(FsError::Invalid));
    assert_eq!(volume.namespace.next_ino(Slot(0)), Some(id(101)));
    volume.unlink(&Caller::ROOT, Ino::ROOT, "own", &[]).unwrap();
    let is_over = |ino| volume.namespace.is_over(ino);
    assert!(is_over(id(100)) && !is_over(id(98)) && !is_over(id(101)) && !is_over(id(300)));
}

/// Situation: all reserved counters of a slot are used. Danger: a counter that the head does not
/// reserve is drawn, and another node draws it too. Expectation: ids come from other slots, then
/// none is left; a new reservation continues in the first slot. A lowered mark keeps the used ids.
#[test]
fn counters_are_drawn_up_to_the_reserved_mark() {
    let mut volume = Volume::of(IdRange { epoch: IdEpoch(1), from: 10, upto: 12 });
    let id = |slot, counter| Some(Ino::new(IdEpoch(1), Slot(slot), counter));
    let next = |volume: &Volume, slot| volume.namespace.next_ino(Slot(slot));
    volume.file(Ino::ROOT, "a");
    volume.file(Ino::ROOT, "b");
    assert_eq!([next(&volume, 0), next(&volume, u16::MAX)], [id(1, 10), id(u16::MAX, 10)]);
    let mut ids = volume.namespace.draw_ids(0);
    let of_others: BTreeSet<Ino> = std::iter::from_fn(|| ids.draw(Slot(0))).collect();
    assert_eq!(of_others.len(), 2 * 65_535);
    assert!(of_others.iter().all(|ino| ino.slot() != Slot(0) && (10..12).contains(&ino.counter())));
    assert_eq!(volume.namespace.draw_ids(2).draw(Slot(3)), None);

    volume.namespace.reserve_ids(20);
    assert_eq!((next(&volume, 0), volume.namespace.end_of_used_ids()), (id(0, 12), 12));
    volume.namespace.reserve_ids(11);
    assert_eq!(volume.namespace.id_range().upto, 12);
    assert_eq!(volume.namespace.check(), Vec::<String>::new());
}

/// A snapshot of release 0.1.0 has an incarnation, whose ids were those of one epoch.
#[test]
fn a_snapshot_of_release_0_1_0_has_a_whole_epoch() {
    let mut volume = Volume::new();
    volume.file(Ino::ROOT, "a");
    let items = volume.namespace.items().map(|item| match item {
        NamespaceItem::Ids(range) => NamespaceItem::Epoch(range.epoch),
        item => item,
    });
    let restored = Namespace::from_items(items).unwrap();
    assert_eq!(restored.id_range(), IdRange::whole(IdEpoch(1)));
    assert_eq!(restored.next_ino(Slot(0)), volume.namespace.next_ino(Slot(0)));
}

/// After a restart a client repeats acknowledged mutations with their ids: in any order, also below
/// the next counter and of an earlier epoch. An id that no node can have assigned is refused.
#[test]
fn a_replay_keeps_its_id() {
    let mut volume = Volume::new();
    let id = |epoch, counter| Ino::new(IdEpoch(epoch), Slot(0), counter);
    for (name, ino) in [("later", id(1, 9)), ("earlier", id(1, 5)), ("older", id(0, 7))] {
        assert!(volume.run(&Caller::ROOT, make(Ino::ROOT, name, ino)).is_ok());
    }
    assert_eq!(volume.namespace.next_ino(Ino::ROOT.slot()).unwrap(), id(1, 10));
    assert_eq!(volume.run(&Caller::ROOT, make(Ino::ROOT, "again", id(1, 5))), Err(FsError::Exists));
    for never in [id(2, 1), id(1, 0), id(1, u32::MAX)] {
        assert_eq!(
            volume.run(&Caller::ROOT, make(Ino::ROOT, "never", never)),
            Err(FsError::Invalid)
        );
    }
}

/// A set-gid directory passes on its group, and to directories also the bit. A program does not
/// become set-gid of a group that its creator is not in.
#[test]
fn set_gid_directories_hand_down_their_group() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    volume.chown(dir, &BOB);
    volume.chmod(dir, 0o2777);
    let sub = volume.make(&ALICE, dir, "sub", 0o6755, Make::Directory).unwrap();
    assert_eq!((volume.attr(sub).gid, volume.attr(sub).mode), (BOB.gid, 0o2755));
    let program = volume.make(&ALICE, dir, "program", 0o2755, Make::Regular).unwrap();
    assert_eq!((volume.attr(program).gid, volume.attr(program).mode), (BOB.gid, 0o755));
    let data = volume.make(&ALICE, dir, "data", 0o2644, Make::Regular).unwrap();
    assert_eq!(volume.attr(data).mode, 0o2644);
    let member = Caller { groups: vec![BOB.gid], ..ALICE };
    let trusted = volume.make(&member, dir, "trusted", 0o2755, Make::Regular).unwrap();
    assert_eq!(volume.attr(trusted).mode, 0o2755);
}

/// mkdir updates the parent's times and link count; the new directory is empty and has two links.
#[test]
fn mkdir_counts_in_its_parent() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let (root, made) = (volume.attr(Ino::ROOT), volume.attr(dir));
    assert_eq!(
        (root.nlink, root.mtime, root.ctime, root.atime),
        (3, volume.now(), volume.now(), Time::from_secs(0))
    );
    assert_eq!(
        (made.nlink, made.btime, made.version, root.version),
        (2, volume.now(), Version(1), Version(1))
    );
}

/// A process keeps its removed working directory and can create nothing in it.
#[test]
fn nothing_is_made_in_a_removed_directory() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    volume.rmdir(&Caller::ROOT, Ino::ROOT, "d", &[SESSION]).unwrap();
    assert_eq!(volume.make(&Caller::ROOT, dir, "f", 0o644, Make::Regular), Err(FsError::NotFound));
    assert_eq!(volume.namespace.lookup(dir, &name("f")), Err(FsError::NotFound));
    assert_eq!(volume.names(dir), []);
    assert_eq!(volume.attr(dir).nlink, 0);
}

/// Invalid requests are refused: device nodes by unprivileged users, kinds that are not special,
/// invalid symlink targets.
#[test]
fn odd_inodes_are_refused() {
    let mut volume = Volume::new();
    let mut refused =
        |caller: &Caller, what| volume.make(caller, Ino::ROOT, "x", 0o644, what).unwrap_err();
    let special = |kind| Make::Special { kind, rdev: 5 };
    assert_eq!(refused(&ALICE, special(FileKind::BlockDevice)), FsError::NotPermitted);
    assert_eq!(refused(&Caller::ROOT, special(FileKind::Regular)), FsError::Invalid);
    let symlink = |target| Make::Symlink { target };
    assert_eq!(refused(&ALICE, symlink(Bytes::new())), FsError::NotFound);
    assert_eq!(
        refused(&ALICE, symlink(Bytes::from(vec![b'x'; MAX_SYMLINK_BYTES + 1]))),
        FsError::NameTooLong
    );
    assert_eq!(refused(&ALICE, symlink(Bytes::from_static(b"a\0b"))), FsError::Invalid);
    let longest = volume
        .make(&ALICE, Ino::ROOT, "x", 0, symlink(Bytes::from(vec![b'x'; MAX_SYMLINK_BYTES])))
        .unwrap();
    assert_eq!(
        (volume.attr(longest).size_bytes, volume.attr(longest).mode),
        (MAX_SYMLINK_BYTES as u64, 0o777)
    );
}

/// EEXIST has precedence for a caller that can search and not write; a caller that cannot search
/// gets EACCES.
#[test]
fn existence_is_told_before_lack_of_write_permission() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    volume.file(dir, "f");
    assert_eq!(volume.make(&ALICE, dir, "f", 0o644, Make::Regular), Err(FsError::Exists));
    assert_eq!(volume.make(&ALICE, dir, "g", 0o644, Make::Regular), Err(FsError::AccessDenied));
    volume.chmod(dir, 0o744);
    assert_eq!(volume.make(&ALICE, dir, "f", 0o644, Make::Regular), Err(FsError::AccessDenied));
}

fn make(parent: Ino, child: &str, ino: Ino) -> Mutation {
    Mutation::Make { parent, name: name(child), ino, mode: 0o644, what: Make::Regular }
}
