use crate::volume::*;
use FsError::*;
use bytes::Bytes;
use ebb_core::namespace::Change;
use ebb_model::*;

fn write(ino: Ino, offset: u64, len_bytes: u64, drop_set_id: bool) -> Mutation {
    Mutation::Write { ino, offset, len_bytes, drop_set_id }
}

#[test]
fn a_write_extends_and_touches() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    let (attr, changes) = volume.run(&Caller::ROOT, write(file, 100, 50, false)).unwrap();
    let attr = attr.unwrap();
    assert_eq!((attr.size_bytes, attr.mtime, attr.ctime), (150, volume.now(), volume.now()));
    assert!(matches!(&changes[..], [Change::Written { offset: 100, len_bytes: 50, .. }]));
    let (attr, _) = volume.run(&Caller::ROOT, write(file, 0, 10, false)).unwrap();
    assert_eq!(attr.unwrap().size_bytes, 150);
    let before = volume.attr(file);
    assert_eq!(volume.run(&Caller::ROOT, write(file, 500, 0, true)), Ok((Some(before), vec![])));
}

/// Impossible writes are refused, also if offset and length overflow.
#[test]
fn writes_stay_within_limits_and_kinds() {
    let mut volume = Volume::new();
    let (file, dir, fifo) =
        (volume.file(Ino::ROOT, "f"), volume.dir(Ino::ROOT, "d"), volume.fifo(Ino::ROOT, "p"));
    let mut refused = |ino, offset, len_bytes| {
        volume.run(&Caller::ROOT, write(ino, offset, len_bytes, false)).unwrap_err()
    };
    assert_eq!(refused(file, MAX_FILE_BYTES, 1), TooLarge);
    assert_eq!(refused(file, u64::MAX, 2), TooLarge);
    assert_eq!(
        (refused(dir, 0, 1), refused(fifo, 0, 1), refused(Ino(99), 0, 1)),
        (IsDirectory, Invalid, Stale)
    );
    assert!(volume.run(&Caller::ROOT, write(file, MAX_FILE_BYTES - 1, 1, false)).is_ok());
}

/// Overwriting a program drops privileges: set-id if the writer is unprivileged, capabilities
/// always. The mode does not restrict an open descriptor.
#[test]
fn a_write_drops_privileges() {
    let mut volume = Volume::new();
    let file = volume.make(&ALICE, Ino::ROOT, "f", 0o6555, Make::Regular).unwrap();
    let set = Mutation::SetXattr {
        ino: file,
        name: Bytes::from_static(b"security.capability"),
        value: Bytes::from_static(b"x"),
        mode: XattrMode::Set,
    };
    volume.run(&Caller::ROOT, set.clone()).unwrap();
    let (attr, changes) = volume.run(&Caller::ROOT, write(file, 0, 1, false)).unwrap();
    assert_eq!((attr.unwrap().mode, volume.namespace.list_xattr(file)), (0o6555, Ok(vec![])));
    assert!(matches!(&changes[..], [Change::Written { .. }, Change::Touched { .. }]));
    let (attr, _) = volume.run(&ALICE, write(file, 0, 1, false)).unwrap();
    assert_eq!(attr.unwrap().mode, 0o555);
    volume.chmod(file, 0o6555);
    let (attr, _) = volume.run(&Caller::ROOT, write(file, 0, 1, true)).unwrap();
    assert_eq!(attr.unwrap().mode, 0o555);
    // Set-gid of a file that is not executable is not a privilege, and stays if a member of its
    // group writes.
    for (caller, mode) in [
        (ALICE, 0o2666),
        (Caller { checked: true, ..ALICE }, 0o2666),
        (Caller { checked: true, ..BOB }, 0o666),
    ] {
        volume.chmod(file, 0o2666);
        let (attr, _) = volume.run(&caller, write(file, 0, 1, true)).unwrap();
        assert_eq!(attr.unwrap().mode, mode, "{caller:?}");
    }
}
