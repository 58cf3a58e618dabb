use crate::volume::*;
use FsError::*;
use bytes::Bytes;
use ebb_core::namespace::Change;
use ebb_model::*;

fn flag(
    volume: &mut Volume,
    caller: &Caller,
    ino: Ino,
    flags: InodeFlags,
) -> Result<Vec<Change>, FsError> {
    let name = Bytes::from_static(InodeFlags::ATTRIBUTE);
    volume
        .run(caller, Mutation::SetXattr { ino, name, value: flags.value(), mode: XattrMode::Set })
        .map(|(_, changes)| changes)
}

const NONE: InodeFlags = InodeFlags::IMMUTABLE.and(InodeFlags::APPEND);

/// The owner can set nodump, only root the flags that restrict changes, and no caller flags of
/// other kinds of inodes. Setting one is an ordinary change of the inode, and not visible as an
/// attribute.
#[test]
fn flags_can_be_set_by_owner_or_root() {
    let mut volume = Volume::new();
    let file = volume.make(&ALICE, Ino::ROOT, "f", 0o666, Make::Regular).unwrap();
    assert_eq!(flag(&mut volume, &BOB, file, InodeFlags::NO_DUMP), Err(NotPermitted));
    assert_eq!(flag(&mut volume, &ALICE, file, InodeFlags::IMMUTABLE), Err(NotPermitted));
    assert!(matches!(
        flag(&mut volume, &ALICE, file, InodeFlags::NO_DUMP).as_deref(),
        Ok([Change::Touched { .. }])
    ));
    assert_eq!(volume.attr(file).ctime, volume.now());
    assert_eq!(
        flag(&mut volume, &ALICE, file, InodeFlags::NO_DUMP),
        Ok(vec![]),
        "it has it already"
    );
    assert_eq!(volume.namespace.list_xattr(file), Ok(vec![]));
    assert_eq!(
        volume.namespace.get_xattr(file, InodeFlags::ATTRIBUTE),
        Ok(InodeFlags::NO_DUMP.value())
    );
    flag(&mut volume, &Caller::ROOT, file, InodeFlags::APPEND).unwrap();
    assert_eq!(flag(&mut volume, &ALICE, file, NONE), Err(NotPermitted));
    flag(&mut volume, &Caller::ROOT, file, NONE).unwrap();
    assert_eq!(volume.namespace.get_xattr(file, InodeFlags::ATTRIBUTE), Err(NoAttribute));
    let name = Bytes::from_static(InodeFlags::ATTRIBUTE);
    assert_eq!(
        volume.run(&Caller::ROOT, Mutation::RemoveXattr { ino: file, name: name.clone() }).err(),
        Some(NotSupported)
    );
    for (value, error) in [(&[0; 3][..], Invalid), (&[0x80, 0, 0, 0], NotSupported)] {
        let set = Mutation::SetXattr {
            ino: file,
            name: name.clone(),
            value: Bytes::copy_from_slice(value),
            mode: XattrMode::Set,
        };
        assert_eq!(volume.run(&Caller::ROOT, set).err(), Some(error));
    }
    let link = volume.symlink(Ino::ROOT, "l");
    assert_eq!(flag(&mut volume, &Caller::ROOT, link, InodeFlags::NO_DUMP), Err(NotSupported));
    assert_eq!(flag(&mut volume, &Caller::ROOT, Ino(99), InodeFlags::NO_DUMP), Err(Stale));
}

/// Also through descriptors that were open before, which the kernel does not check.
#[test]
fn immutable_inodes_are_not_written() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    let write = Mutation::Write { ino: file, offset: 0, len_bytes: 1, drop_set_id: false };
    let zero = |what| Mutation::Fallocate {
        ino: file,
        offset: 0,
        len_bytes: 1,
        what,
        keep_size: false,
        edges: vec![],
        drop_set_id: false,
    };
    volume.run(&Caller::ROOT, write.clone()).unwrap();
    flag(&mut volume, &Caller::ROOT, file, InodeFlags::APPEND).unwrap();
    volume.run(&Caller::ROOT, write.clone()).unwrap();
    volume.run(&Caller::ROOT, zero(Allocation::Reserve)).unwrap();
    assert_eq!(volume.run(&Caller::ROOT, zero(Allocation::Zero)).err(), Some(NotPermitted));
    let touch =
        SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    let reading = SetAttr { atime: Some(SetTime::Reading), ..SetAttr::default() };
    assert!(volume.set(&Caller::ROOT, file, touch).is_ok());
    flag(&mut volume, &Caller::ROOT, file, InodeFlags::IMMUTABLE).unwrap();
    assert_eq!(volume.run(&Caller::ROOT, write).err(), Some(NotPermitted));
    assert_eq!(volume.run(&Caller::ROOT, zero(Allocation::Reserve)).err(), Some(NotPermitted));
    assert_eq!(volume.set(&Caller::ROOT, file, touch), Err(NotPermitted));
    assert_eq!(
        volume.set(&Caller::ROOT, file, SetAttr { size_bytes: Some(0), ..SetAttr::default() }),
        Err(NotPermitted)
    );
    assert!(volume.set(&Caller::ROOT, file, reading).is_ok());
    assert!(volume.set(&Caller::ROOT, file, SetAttr::default()).is_ok());
}

/// Names neither come nor go, except that an append-only directory gains names.
#[test]
fn guarded_directories_keep_their_names() {
    let mut volume = Volume::new();
    for (guard, made) in [(InodeFlags::IMMUTABLE, Err(NotPermitted)), (InodeFlags::APPEND, Ok(()))]
    {
        let dir = volume.dir(Ino::ROOT, "d");
        let (file, inner) = (volume.file(Ino::ROOT, "f"), volume.file(dir, "inner"));
        let other = volume.file(Ino::ROOT, "other");
        flag(&mut volume, &Caller::ROOT, dir, guard).unwrap();
        flag(&mut volume, &Caller::ROOT, file, guard).unwrap();
        assert_eq!(volume.unlink(&Caller::ROOT, Ino::ROOT, "f", &[]), Err(NotPermitted));
        assert_eq!(volume.unlink(&Caller::ROOT, dir, "inner", &[]), Err(NotPermitted));
        assert_eq!(volume.link(file, Ino::ROOT, "g"), Err(NotPermitted));
        assert_eq!(volume.rmdir(&Caller::ROOT, Ino::ROOT, "d", &[]), Err(NotPermitted));
        for mode in [RenameMode::Replace, RenameMode::Exchange] {
            assert_eq!(
                volume.rename((Ino::ROOT, "f"), (Ino::ROOT, "other"), mode),
                Err(NotPermitted)
            );
            assert_eq!(
                volume.rename((Ino::ROOT, "other"), (Ino::ROOT, "f"), mode),
                Err(NotPermitted)
            );
            assert_eq!(
                volume.rename((dir, "inner"), (Ino::ROOT, "other"), mode),
                Err(NotPermitted)
            );
        }
        assert_eq!(volume.make(&Caller::ROOT, dir, "new", 0o644, Make::Regular).map(drop), made);
        assert_eq!(volume.link(other, dir, "link").map(drop), made);
        assert_eq!(
            volume.rename((Ino::ROOT, "other"), (dir, "moved"), RenameMode::Replace).map(drop),
            made
        );
        for ino in [dir, file, inner] {
            flag(&mut volume, &Caller::ROOT, ino, NONE).unwrap();
        }
        for name in ["inner", "new", "link", "moved"] {
            volume.unlink(&Caller::ROOT, dir, name, &[]).ok();
        }
        volume.rmdir(&Caller::ROOT, Ino::ROOT, "d", &[]).unwrap();
        volume.unlink(&Caller::ROOT, Ino::ROOT, "f", &[]).unwrap();
        volume.unlink(&Caller::ROOT, Ino::ROOT, "other", &[]).ok();
    }
}

/// A backup that skips a directory skips its new children.
#[test]
fn nodump_is_inherited() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    flag(&mut volume, &Caller::ROOT, dir, InodeFlags::NO_DUMP).unwrap();
    let made = [volume.file(dir, "f"), volume.dir(dir, "d")];
    for ino in made {
        assert_eq!(
            volume.namespace.get_xattr(ino, InodeFlags::ATTRIBUTE),
            Ok(InodeFlags::NO_DUMP.value())
        );
    }
    let fifo = volume.fifo(dir, "p");
    assert_eq!(volume.namespace.get_xattr(fifo, InodeFlags::ATTRIBUTE), Err(NoAttribute));
}
