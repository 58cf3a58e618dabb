//! ACLs: validity, effect on the mode, inheritance, and granted access. Random ACLs are tested with
//! the oracle.

use crate::volume::*;
use FsError::*;
use bytes::Bytes;
use ebb_model::AclClass::{Access as AccessAcl, Default as DefaultAcl};
use ebb_model::*;

const CAROL: Caller = Caller { uid: 1002, gid: 1002, groups: Vec::new(), checked: false };

/// `u::7 u:1000:6 g::5 m::7 o::0`: tag, id and permissions.
fn acl(text: &str) -> Bytes {
    let mut value = vec![2, 0, 0, 0];
    for entry in text.split_whitespace() {
        let mut parts = entry.split(':');
        let (tag, who) = (parts.next().unwrap(), parts.next().unwrap());
        let permissions: u16 = parts.next().unwrap().parse().unwrap();
        let tag: u16 = match (tag, who) {
            ("u", "") => 1,
            ("u", _) => 2,
            ("g", "") => 4,
            ("g", _) => 8,
            ("m", _) => 16,
            _ => 32,
        };
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(who.parse().unwrap_or(u32::MAX).to_le_bytes());
    }
    value.into()
}

fn set(
    volume: &mut Volume,
    caller: &Caller,
    ino: Ino,
    class: AclClass,
    value: &Bytes,
) -> Result<u16, FsError> {
    let mutation = Mutation::SetAcl { ino, class, value: value.clone(), drop_set_gid: false };
    volume.run(caller, mutation).map(|(attr, _)| attr.expect("the inode is there").mode)
}

fn get(volume: &Volume, ino: Ino, class: AclClass) -> Result<Bytes, FsError> {
    volume.namespace.get_xattr(ino, class.name())
}

fn root_set(volume: &mut Volume, ino: Ino, class: AclClass, text: &str) -> u16 {
    set(volume, &Caller::ROOT, ino, class, &acl(text)).unwrap()
}

#[test]
fn acl_set_refuses_invalid_values() {
    let mut volume = Volume::new();
    let (file, dir, link) =
        (volume.file(Ino::ROOT, "f"), volume.dir(Ino::ROOT, "d"), volume.symlink(Ino::ROOT, "l"));
    let raw = |bytes: &'static [u8]| Bytes::from_static(bytes);
    for (value, refusal) in [
        (raw(b"\x02"), Invalid),
        (raw(b"\x01\0\0\0"), NotSupported),
        (raw(b"\x02\0\0\0\x01"), Invalid),
        (acl("u::7"), Invalid),
        (acl("u::7 o::7 g::7"), Invalid),
        (acl("u::7 u::7 g::7 o::7"), Invalid),
        (acl("u::7 u:1:7 g::7 o::7"), Invalid),
        (acl("u::7 g::7 g:1:7 o::7"), Invalid),
        (acl("u::7 g::7 m::7 m::7 o::7"), Invalid),
        (acl("u::8 g::7 o::7"), Invalid),
        (acl(&format!("u::7 u:{}:7 g::7 m::7 o::7", u32::MAX)), Invalid),
        (Bytes::from(vec![0; MAX_XATTR_VALUE_BYTES + 1]), ValueTooLarge),
    ] {
        assert_eq!(
            set(&mut volume, &Caller::ROOT, file, AccessAcl, &value),
            Err(refusal),
            "{value:?}"
        );
        assert_eq!(
            set(&mut volume, &Caller::ROOT, dir, DefaultAcl, &value),
            Err(refusal),
            "{value:?}"
        );
    }
    let fine = acl("u::7 u:1:7 g::7 m::7 o::7");
    assert_eq!(set(&mut volume, &Caller::ROOT, link, AccessAcl, &fine), Err(NotSupported));
    assert_eq!(get(&volume, link, AccessAcl), Err(NotSupported));
    assert_eq!(set(&mut volume, &Caller::ROOT, file, DefaultAcl, &fine), Err(AccessDenied));
    assert!(
        set(&mut volume, &Caller::ROOT, file, DefaultAcl, &Bytes::new()).is_ok(),
        "there is none to remove"
    );
    assert_eq!(set(&mut volume, &ALICE, file, AccessAcl, &fine), Err(NotPermitted));
    // It cannot be set as an ordinary attribute.
    let name = Bytes::from_static(AccessAcl.name());
    let attribute = Mutation::SetXattr { ino: file, name, value: fine, mode: XattrMode::Set };
    assert_eq!(volume.run(&Caller::ROOT, attribute), Err(NotSupported));
}

/// Mode and ACL agree, whichever of them is set.
#[test]
fn the_mode_and_an_acl_agree() {
    let mut volume = Volume::new();
    let file = volume.make(&ALICE, Ino::ROOT, "f", 0o4640, Make::Regular).unwrap();
    assert_eq!(root_set(&mut volume, file, AccessAcl, "u::7 g::5 o::4"), 0o4754);
    assert_eq!(get(&volume, file, AccessAcl), Err(NoAttribute), "the mode represents it");
    assert_eq!(
        root_set(&mut volume, file, AccessAcl, "u::6 u:1001:7 g::5 g:7:1 m::3 o::1"),
        0o4631
    );
    volume.chmod(file, 0o760);
    assert_eq!(get(&volume, file, AccessAcl), Ok(acl("u::7 u:1001:7 g::5 g:7:1 m::6 o::0")));
    assert_eq!(volume.namespace.list_xattr(file), Ok(vec![Bytes::from_static(AccessAcl.name())]));
    // Removing it leaves the mode, and the former mask becomes the group's bits.
    assert_eq!(set(&mut volume, &ALICE, file, AccessAcl, &Bytes::new()), Ok(0o760));
    let before = volume.attr(file);
    assert_eq!(set(&mut volume, &ALICE, file, AccessAcl, &Bytes::new()), Ok(0o760));
    assert_eq!(volume.attr(file), before, "nothing has changed, not even ctime");
    // A mask alone is more than a mode can represent.
    assert_eq!(root_set(&mut volume, file, AccessAcl, "u::7 g::7 m::5 o::5"), 0o755);
    assert!(get(&volume, file, AccessAcl).is_ok());
}

#[test]
fn acl_set_by_a_non_member_removes_set_gid() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    let chown = SetAttr { uid: Some(ALICE.uid), gid: Some(500), ..SetAttr::default() };
    volume.set(&Caller::ROOT, file, chown).unwrap();
    let value = acl("u::7 g::5 o::5");
    let cases = [
        (ALICE, false, 0o755),
        (Caller { groups: vec![500], ..ALICE }, false, 0o2755),
        (Caller { checked: true, ..ALICE }, false, 0o2755),
        (Caller { checked: true, ..ALICE }, true, 0o755),
    ];
    for (caller, drop_set_gid, mode) in cases {
        volume.chmod(file, 0o2700);
        let mutation =
            Mutation::SetAcl { ino: file, class: AccessAcl, value: value.clone(), drop_set_gid };
        assert_eq!(volume.run(&caller, mutation).unwrap().0.unwrap().mode, mode, "{caller:?}");
    }
}

#[test]
fn a_default_acl_is_inherited() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let umask = |mode| NewMode { mode, umask: 0o027 };
    assert_eq!(volume.namespace.made_mode(dir, umask(0o2666)), 0o2640);
    root_set(&mut volume, dir, DefaultAcl, "u::7 u:1001:7 g::5 m::7 o::5");
    assert_eq!(volume.namespace.made_mode(dir, umask(0o2666)), 0o2666, "in place of the umask");
    let file = volume.make(&Caller::ROOT, dir, "f", 0o640, Make::Regular).unwrap();
    assert_eq!(volume.attr(file).mode, 0o640);
    assert_eq!(get(&volume, file, AccessAcl), Ok(acl("u::6 u:1001:7 g::5 m::4 o::0")));
    assert_eq!(get(&volume, file, DefaultAcl), Err(NoAttribute));
    let below = volume.make(&Caller::ROOT, dir, "d", 0o777, Make::Directory).unwrap();
    assert_eq!(
        (volume.attr(below).mode, get(&volume, below, DefaultAcl)),
        (0o775, get(&volume, dir, DefaultAcl))
    );
    let link = volume.symlink(dir, "l");
    assert_eq!((volume.attr(link).mode, volume.namespace.list_xattr(link)), (0o777, Ok(vec![])));
    // A minimal ACL leaves only the mode.
    root_set(&mut volume, dir, DefaultAcl, "u::7 g::4 o::0");
    let plain = volume.make(&Caller::ROOT, dir, "p", 0o666, Make::Regular).unwrap();
    assert_eq!((volume.attr(plain).mode, volume.namespace.list_xattr(plain)), (0o640, Ok(vec![])));
}

#[test]
fn acl_decides_access() {
    let mut volume = Volume::new();
    let file = volume.make(&ALICE, Ino::ROOT, "f", 0o644, Make::Regular).unwrap();
    let in_groups = |groups: &[u32]| Caller { groups: groups.to_vec(), ..CAROL };
    let (none, r, w, rw) = (0, Access::READ.0, Access::WRITE.0, (Access::READ | Access::WRITE).0);
    // The ACL, the caller, and the granted ones of read and write.
    let table = [
        ("u::6 u:1001:6 g::0 m::6 o::0", BOB, rw),
        ("u::6 u:1001:6 g::0 m::4 o::0", BOB, r),
        ("u::6 u:1001:0 g::6 m::6 o::6", BOB, none),
        ("u::4 u:1000:6 g::6 m::6 o::6", ALICE, r),
        ("u::6 u:1001:6 g::0 m::6 o::4", CAROL, r),
        ("u::6 g::0 g:7:6 m::6 o::0", in_groups(&[7]), rw),
        ("u::6 g::0 g:7:6 m::2 o::6", in_groups(&[7]), w),
        ("u::6 g::4 g:7:2 m::6 o::6", in_groups(&[1000, 7]), r | w),
        ("u::6 g::0 g:7:0 m::6 o::6", in_groups(&[1000, 7]), none),
        // Linux does not consult an ACL with an empty mask.
        ("u::6 u:1001:6 g::6 m::0 o::4", BOB, r),
        ("u::0 u:0:0 g::0 m::6 o::0", Caller { checked: false, ..Caller::ROOT }, rw),
    ];
    for (text, caller, granted) in table {
        root_set(&mut volume, file, AccessAcl, text);
        for asked in [Access::READ, Access::WRITE] {
            let answer = volume.namespace.access(&caller, file, asked);
            assert_eq!(
                answer.is_ok(),
                granted & asked.0 != 0,
                "{text} for {caller:?} asking {asked:?}"
            );
        }
    }
    // No single group entry grants both.
    root_set(&mut volume, file, AccessAcl, "u::6 g::4 g:7:2 m::6 o::6");
    assert_eq!(
        volume.namespace.access(&in_groups(&[1000, 7]), file, Access::READ | Access::WRITE),
        Err(AccessDenied)
    );
}

/// Situation: a directory page contains an ACL that no namespace can have, by another writer or a
/// bug. Danger: the group bits, which were a mask, admit the whole group.
#[test]
fn acl_invalid_in_a_page_grants_nothing() {
    let time = Time::from_secs(1);
    let record = |mode, xattrs: &[(AclClass, Bytes)]| InstalledRecord {
        mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        xattrs: xattrs
            .iter()
            .map(|(class, value)| (Bytes::from_static(class.name()), value.clone()))
            .collect(),
        links: vec![],
    };
    let mut volume = Volume::new();
    let mut install = |name: &str, what: Make, record: InstalledRecord| {
        let ino = volume.namespace.next_ino(Ino::ROOT.slot()).unwrap();
        let name = Name::new(name.as_bytes()).unwrap();
        let found =
            Installed { name, ino, what: InstalledKind::Recorded(what), record: Some(record) };
        assert!(volume.namespace.install(
            Ino::ROOT,
            &found,
            (0, 0),
            Stamp { time, version: Version(9) }
        ));
        assert_eq!(volume.namespace.check(), Vec::<String>::new());
        (volume.attr(ino).mode, volume.namespace.list_xattr(ino).unwrap().len())
    };
    let fifo = || Make::Special { kind: FileKind::Fifo, rdev: 0 };
    let named = acl("u::7 u:1:7 g::0 m::7 o::7");
    assert_eq!(install("good", fifo(), record(0o640, &[(AccessAcl, named.clone())])), (0o640, 1));
    assert_eq!(
        install(
            "broken",
            fifo(),
            record(0o664, &[(AccessAcl, Bytes::from_static(b"\x02\0\0\0\x07"))])
        ),
        (0o604, 0)
    );
    assert_eq!(
        install("no directory", fifo(), record(0o640, &[(DefaultAcl, named.clone())])),
        (0o640, 0)
    );
    let link = Make::Symlink { target: Bytes::from_static(b"to") };
    assert_eq!(install("link", link, record(0o777, &[(AccessAcl, named)])), (0o777, 0));
}
