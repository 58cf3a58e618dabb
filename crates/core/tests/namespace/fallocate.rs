use crate::volume::*;
use FsError::*;
use ebb_core::namespace::Change;
use ebb_model::*;

fn fallocate(ino: Ino, offset: u64, len_bytes: u64, what: Allocation, keep_size: bool) -> Mutation {
    Mutation::Fallocate {
        ino,
        offset,
        len_bytes,
        what,
        keep_size,
        edges: vec![0],
        drop_set_id: false,
    }
}

/// The size grows only on request. Reported zeros end with the file's last block, which is included
/// whole, since the bytes behind the end are zeros anyway.
#[test]
fn sizes_and_zeros() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    let (attr, changes) =
        volume.run(&Caller::ROOT, fallocate(file, 0, 100_000, Allocation::Reserve, true)).unwrap();
    assert_eq!(attr.unwrap().size_bytes, 0);
    assert!(matches!(&changes[..], [Change::Touched { .. }]));

    let (attr, changes) =
        volume.run(&Caller::ROOT, fallocate(file, 10, 99_990, Allocation::Reserve, false)).unwrap();
    let attr = attr.unwrap();
    assert_eq!((attr.size_bytes, attr.mtime, attr.ctime), (100_000, volume.now(), volume.now()));
    assert!(matches!(
        &changes[..],
        [Change::Resized { old_bytes: 0, new_bytes: 100_000, .. }, Change::Touched { .. }]
    ));

    let (attr, changes) =
        volume.run(&Caller::ROOT, fallocate(file, 50, 50, Allocation::Zero, true)).unwrap();
    assert_eq!(attr.unwrap().size_bytes, 100_000);
    let [Change::Zeroed { range, edges, .. }, Change::Touched { .. }] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((range, &edges[..]), (&(50..100), &[0][..]));

    let (attr, changes) =
        volume.run(&Caller::ROOT, fallocate(file, 50, 200_000, Allocation::Zero, false)).unwrap();
    assert_eq!(attr.unwrap().size_bytes, 200_050);
    let [
        Change::Zeroed { range, .. },
        Change::Resized { old_bytes: 100_000, new_bytes: 200_050, .. },
        Change::Touched { .. },
    ] = &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!(range, &(50..2 * BLOCK_BYTES));

    let (attr, changes) =
        volume.run(&Caller::ROOT, fallocate(file, 200_050, 10, Allocation::Zero, true)).unwrap();
    assert_eq!(attr.unwrap().size_bytes, 200_050);
    assert!(matches!(&changes[..], [Change::Touched { .. }]));
}

/// EFBIG has precedence, also if offset and length overflow.
#[test]
fn limits_and_kinds() {
    let mut volume = Volume::new();
    let (file, dir, fifo) =
        (volume.file(Ino::ROOT, "f"), volume.dir(Ino::ROOT, "d"), volume.fifo(Ino::ROOT, "p"));
    let mut refused = |ino, offset, len| {
        volume.run(&Caller::ROOT, fallocate(ino, offset, len, Allocation::Zero, true)).unwrap_err()
    };
    assert_eq!(refused(file, MAX_FILE_BYTES, 1), TooLarge);
    assert_eq!(refused(file, u64::MAX, 2), TooLarge);
    assert_eq!(refused(file, 0, 0), Invalid);
    assert_eq!(
        (refused(dir, 0, 1), refused(fifo, 0, 1), refused(Ino(99), 0, 1)),
        (IsDirectory, Invalid, Stale)
    );
    assert!(
        volume
            .run(&Caller::ROOT, fallocate(file, MAX_FILE_BYTES - 1, 1, Allocation::Reserve, false))
            .is_ok()
    );
}

/// Like a write, a change by an unprivileged user clears a program's set-id bits.
#[test]
fn privileges_go() {
    let mut volume = Volume::new();
    let file = volume.make(&ALICE, Ino::ROOT, "f", 0o6555, Make::Regular).unwrap();
    let (attr, _) =
        volume.run(&Caller::ROOT, fallocate(file, 0, 1, Allocation::Reserve, true)).unwrap();
    assert_eq!(attr.unwrap().mode, 0o6555);
    let (attr, _) = volume.run(&ALICE, fallocate(file, 0, 1, Allocation::Reserve, true)).unwrap();
    assert_eq!(attr.unwrap().mode, 0o555);
}
