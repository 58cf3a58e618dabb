use crate::volume::*;
use FsError::*;
use bytes::Bytes;
use ebb_core::namespace::Change;
use ebb_model::*;

fn alices(volume: &mut Volume, mode: u16) -> Ino {
    volume.make(&ALICE, Ino::ROOT, "f", mode, Make::Regular).expect("the root is writable for all")
}

const NOTHING: SetAttr = SetAttr {
    mode: None,
    uid: None,
    gid: None,
    size_bytes: None,
    atime: None,
    mtime: None,
    drop_set_id: false,
};

/// Truncation to the current size changes the times, as on Linux, and no bytes.
#[test]
fn truncating_to_the_same_size_touches_the_times() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    let (attr, changes) = volume
        .run(
            &Caller::ROOT,
            Mutation::SetAttr { ino: file, set: SetAttr { size_bytes: Some(0), ..NOTHING } },
        )
        .unwrap();
    let attr = attr.unwrap();
    assert_eq!((attr.mtime, attr.ctime), (volume.now(), volume.now()));
    assert!(matches!(&changes[..], [Change::Touched { .. }]));
    let (_, changes) = volume
        .run(
            &Caller::ROOT,
            Mutation::SetAttr { ino: file, set: SetAttr { size_bytes: Some(5), ..NOTHING } },
        )
        .unwrap();
    assert!(matches!(&changes[..], [Change::Resized { old_bytes: 0, new_bytes: 5, .. }]));
}

#[test]
fn only_regular_files_have_a_size_to_set() {
    let mut volume = Volume::new();
    let (dir, fifo, link) =
        (volume.dir(Ino::ROOT, "d"), volume.fifo(Ino::ROOT, "p"), volume.symlink(Ino::ROOT, "l"));
    let file = alices(&mut volume, 0o600);
    let size = |size| SetAttr { size_bytes: Some(size), ..NOTHING };
    assert_eq!(volume.set(&Caller::ROOT, dir, size(0)), Err(IsDirectory));
    assert_eq!(volume.set(&Caller::ROOT, fifo, size(0)), Err(Invalid));
    assert_eq!(volume.set(&Caller::ROOT, link, size(0)), Err(Invalid));
    assert_eq!(volume.set(&ALICE, file, size(MAX_FILE_BYTES + 1)), Err(TooLarge));
    assert_eq!(volume.set(&BOB, file, size(MAX_FILE_BYTES + 1)), Err(AccessDenied));
    assert_eq!(volume.set(&ALICE, file, size(MAX_FILE_BYTES)).unwrap().size_bytes, MAX_FILE_BYTES);
}

/// An empty request changes nothing; setting the owner to its current value counts as a change.
#[test]
fn ctime_changes_when_a_field_is_given() {
    let mut volume = Volume::new();
    let file = alices(&mut volume, 0o4755);
    let before = volume.attr(file);
    assert_eq!(volume.set(&BOB, file, NOTHING).unwrap(), before);
    let dropped =
        volume.set(&Caller::ROOT, file, SetAttr { drop_set_id: true, ..NOTHING }).unwrap();
    assert_eq!((dropped.mode, dropped.ctime), (0o755, volume.now()));
    let time = volume.now();
    assert_eq!(
        volume.set(&Caller::ROOT, file, SetAttr { drop_set_id: true, ..NOTHING }).unwrap().ctime,
        time
    );
    let owned = volume.set(&ALICE, file, SetAttr { uid: Some(ALICE.uid), ..NOTHING }).unwrap();
    assert_eq!((owned.ctime, owned.mtime), (volume.now(), before.mtime));
}

/// A change of owner clears set-uid, and set-gid of an executable file; not set-gid of a directory,
/// which is not a privilege.
#[test]
fn a_change_of_owner_drops_privileges() {
    let mut volume = Volume::new();
    let file = alices(&mut volume, 0o6711);
    let set = SetAttr { gid: Some(ALICE.gid), ..NOTHING };
    assert_eq!(volume.set(&ALICE, file, set).unwrap().mode, 0o711);
    volume.chmod(file, 0o6644);
    assert_eq!(volume.set(&Caller::ROOT, file, set).unwrap().mode, 0o2644);
    let dir = volume.dir(Ino::ROOT, "d");
    volume.chmod(dir, 0o2755);
    let name = Bytes::from_static(b"security.capability");
    let set = Mutation::SetXattr {
        ino: dir,
        name: name.clone(),
        value: Bytes::from_static(b"x"),
        mode: XattrMode::Set,
    };
    volume.run(&Caller::ROOT, set).unwrap();
    assert_eq!(
        volume
            .set(&Caller::ROOT, dir, SetAttr { gid: Some(9), drop_set_id: true, ..NOTHING })
            .unwrap()
            .mode,
        0o2755
    );
    assert_eq!(volume.namespace.list_xattr(dir), Ok(vec![name]));
}

#[test]
fn owners_change_groups_and_only_root_gives_away() {
    let mut volume = Volume::new();
    let file = alices(&mut volume, 0o666);
    let member = Caller { groups: vec![500], ..ALICE };
    let (uid, gid) =
        (|uid| SetAttr { uid: Some(uid), ..NOTHING }, |gid| SetAttr { gid: Some(gid), ..NOTHING });
    assert_eq!(volume.set(&ALICE, file, uid(BOB.uid)), Err(NotPermitted));
    assert_eq!(volume.set(&BOB, file, uid(ALICE.uid)), Err(NotPermitted));
    assert_eq!(volume.set(&BOB, file, gid(BOB.gid)), Err(NotPermitted));
    assert_eq!(volume.set(&ALICE, file, gid(500)), Err(NotPermitted));
    assert_eq!(volume.set(&member, file, gid(500)).unwrap().gid, 500);
    assert_eq!(volume.set(&ALICE, file, gid(500)).unwrap().gid, 500);
    assert_eq!(volume.set(&Caller::ROOT, file, uid(u32::MAX)), Err(Invalid));
    assert_eq!(volume.set(&Caller::ROOT, file, uid(BOB.uid)).unwrap().uid, BOB.uid);
}

/// Only owners can chmod; set-gid of a group that the owner is not in is dropped silently.
#[test]
fn chmod_is_for_owners() {
    let mut volume = Volume::new();
    let file = alices(&mut volume, 0o666);
    let mode = |mode| SetAttr { mode: Some(mode), ..NOTHING };
    assert_eq!(volume.set(&BOB, file, mode(0o600)), Err(NotPermitted));
    assert_eq!(volume.set(&ALICE, file, mode(0o6755)).unwrap().mode, 0o6755);
    volume.set(&Caller::ROOT, file, SetAttr { gid: Some(9), ..NOTHING }).unwrap();
    assert_eq!(volume.set(&ALICE, file, mode(0o6755)).unwrap().mode, 0o4755);
    assert_eq!(
        volume.set(&Caller { checked: true, ..ALICE }, file, mode(0o177777)).unwrap().mode,
        0o7777
    );
    let link = volume.symlink(Ino::ROOT, "l");
    assert_eq!(volume.set(&Caller::ROOT, link, mode(0o600)), Err(NotSupported));
}

/// A writer can `touch`; only the owner can set arbitrary times.
#[test]
fn times_are_set_by_owners_and_touched_by_writers() {
    let mut volume = Volume::new();
    let file = alices(&mut volume, 0o646);
    let times = |atime, mtime| SetAttr { atime, mtime, ..NOTHING };
    let (now, then) =
        (Some(SetTime::Now), Some(SetTime::To(Time { secs: -1, nanos: 999_999_999 })));
    let touched = volume.set(&BOB, file, times(now, now)).unwrap();
    assert_eq!((touched.atime, touched.mtime), (volume.now(), volume.now()));
    assert_eq!(volume.set(&BOB, file, times(now, None)), Err(NotPermitted));
    assert_eq!(volume.set(&BOB, file, times(then, then)), Err(NotPermitted));
    volume.chmod(file, 0o600);
    assert_eq!(volume.set(&BOB, file, times(now, now)), Err(AccessDenied));
    let set = volume.set(&ALICE, file, times(None, then)).unwrap();
    assert_eq!(
        (set.atime, set.mtime, set.ctime),
        (touched.atime, Time { secs: -1, nanos: 999_999_999 }, volume.now())
    );
    let impossible = Some(SetTime::To(Time { secs: 0, nanos: 1_000_000_000 }));
    assert_eq!(volume.set(&ALICE, file, times(impossible, None)), Err(Invalid));
}

/// If one change of a request is refused, none is applied.
#[test]
fn a_request_is_done_whole_or_not_at_all() {
    let mut volume = Volume::new();
    let file = alices(&mut volume, 0o666);
    let before = volume.attr(file);
    let set = SetAttr { size_bytes: Some(10), mode: Some(0), ..NOTHING };
    assert_eq!(volume.set(&BOB, file, set), Err(NotPermitted));
    assert_eq!(volume.attr(file), before);
    assert_eq!(volume.set(&BOB, Ino(99), set), Err(Stale));
}

/// A caller with read permission can update atime by reading; that changes no other time and
/// combines with no other change.
#[test]
fn reading_changes_the_access_time_alone() {
    let mut volume = Volume::new();
    let file = alices(&mut volume, 0o644);
    let before = volume.attr(file);
    let reading = SetAttr { atime: Some(SetTime::Reading), ..NOTHING };
    let (attr, changes) = volume.run(&BOB, Mutation::SetAttr { ino: file, set: reading }).unwrap();
    let attr = attr.unwrap();
    assert_eq!(attr, Attr { atime: volume.now(), version: attr.version, ..before });
    assert!(matches!(&changes[..], [Change::Touched { .. }]));
    volume.chmod(file, 0o600);
    assert_eq!(volume.set(&BOB, file, reading), Err(AccessDenied));
    for mixed in [
        SetAttr { mtime: Some(SetTime::Reading), ..NOTHING },
        SetAttr { mtime: Some(SetTime::Now), ..reading },
        SetAttr { mode: Some(0), ..reading },
        SetAttr { drop_set_id: true, ..reading },
    ] {
        assert_eq!(volume.set(&Caller::ROOT, file, mixed), Err(Invalid));
    }
}
