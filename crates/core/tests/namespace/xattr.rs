use crate::volume::*;
use FsError::*;
use bytes::Bytes;
use ebb_model::*;

fn set(
    volume: &mut Volume,
    caller: &Caller,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<(), FsError> {
    let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
    volume.run(caller, Mutation::SetXattr { ino, name, value, mode }).map(|_| ())
}

fn remove(
    volume: &mut Volume,
    caller: &Caller,
    ino: Ino,
    name: &'static [u8],
) -> Result<(), FsError> {
    volume.run(caller, Mutation::RemoveXattr { ino, name: Bytes::from_static(name) }).map(|_| ())
}

#[test]
fn an_attribute_is_created_replaced_and_removed() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    let root = Caller::ROOT;
    assert_eq!(
        set(&mut volume, &root, file, b"user.a", b"1", XattrMode::Replace),
        Err(NoAttribute)
    );
    assert_eq!(set(&mut volume, &root, file, b"user.a", b"1", XattrMode::Create), Ok(()));
    assert_eq!(set(&mut volume, &root, file, b"user.a", b"2", XattrMode::Create), Err(Exists));
    assert_eq!(set(&mut volume, &root, file, b"user.a", b"", XattrMode::Replace), Ok(()));
    assert_eq!(
        (volume.namespace.get_xattr(file, b"user.a"), volume.attr(file).ctime),
        (Ok(Bytes::new()), volume.now())
    );
    assert_eq!(volume.namespace.list_xattr(file), Ok(vec![Bytes::from_static(b"user.a")]));
    assert_eq!(volume.namespace.get_xattr(file, b"user.b"), Err(NoAttribute));
    assert_eq!(volume.namespace.get_xattr(file, b"system.other"), Err(NotSupported));
    assert_eq!(remove(&mut volume, &root, file, b"user.a"), Ok(()));
    assert_eq!(remove(&mut volume, &root, file, b"user.a"), Err(NoAttribute));
}

/// Unprivileged users can set `user.` on files and directories that they can write, and on sticky
/// directories only as their owners.
#[test]
fn classes_have_owners() {
    let mut volume = Volume::new();
    let file = volume.make(&ALICE, Ino::ROOT, "f", 0o644, Make::Regular).unwrap();
    let sticky = volume.dir(Ino::ROOT, "tmp");
    volume.chmod(sticky, 0o1777);
    let (link, fifo) = (volume.symlink(Ino::ROOT, "l"), volume.fifo(Ino::ROOT, "p"));
    let mut try_set = |caller: &Caller, ino, name: &[u8]| {
        set(&mut volume, caller, ino, name, b"v", XattrMode::Set)
    };
    assert_eq!(try_set(&ALICE, file, b"user.a"), Ok(()));
    assert_eq!(try_set(&BOB, file, b"user.a"), Err(AccessDenied));
    assert_eq!(try_set(&ALICE, sticky, b"user.a"), Err(NotPermitted));
    assert_eq!(try_set(&Caller::ROOT, link, b"user.a"), Err(NotPermitted));
    assert_eq!(try_set(&Caller::ROOT, fifo, b"user.a"), Err(NotPermitted));
    for class in [&b"trusted.a"[..], b"security.a"] {
        assert_eq!(try_set(&ALICE, file, class), Err(NotPermitted));
        assert_eq!(try_set(&Caller::ROOT, link, class), Ok(()));
    }
    for (name, refusal) in [
        (&b"system.posix_acl_access"[..], NotSupported),
        (b"other.a", NotSupported),
        (b"user.", Invalid),
        (b"user.a\0", Invalid),
        (b"", Range),
    ] {
        assert_eq!(try_set(&Caller::ROOT, file, name), Err(refusal));
    }
}

/// Names, values and the list of names have the limits of Linux.
#[test]
fn attributes_are_bounded() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    let root = Caller::ROOT;
    let name = |number: usize| format!("user.{number:0>250}").into_bytes();
    assert_eq!(
        set(&mut volume, &root, file, &[name(0), vec![b'x']].concat(), b"", XattrMode::Set),
        Err(Range)
    );
    assert_eq!(
        set(&mut volume, &root, file, &name(0), &vec![0; MAX_XATTR_VALUE_BYTES], XattrMode::Set),
        Ok(())
    );
    assert_eq!(
        set(
            &mut volume,
            &root,
            file,
            &name(0),
            &vec![0; MAX_XATTR_VALUE_BYTES + 1],
            XattrMode::Set
        ),
        Err(ValueTooLarge)
    );
    let room = MAX_XATTR_LIST_BYTES / (MAX_XATTR_NAME_BYTES + 1);
    for number in 1..room {
        assert_eq!(set(&mut volume, &root, file, &name(number), b"", XattrMode::Set), Ok(()));
    }
    assert_eq!(set(&mut volume, &root, file, &name(room), b"", XattrMode::Set), Err(NoSpace));
    assert_eq!(set(&mut volume, &root, file, &name(0), b"", XattrMode::Set), Ok(()));
}
