use crate::volume::*;
use FsError::*;
use bytes::Bytes;
use ebb_core::namespace::{Change, Namespace, Operation, QUOTA};
use ebb_model::*;

const NONE: QuotaLimits = QuotaLimits { bytes: None, inodes: None };

fn bytes(limit: u64) -> QuotaLimits {
    QuotaLimits { bytes: Some(limit), ..NONE }
}

fn inodes(limit: u64) -> QuotaLimits {
    QuotaLimits { inodes: Some(limit), ..NONE }
}

impl Volume {
    fn limit(&mut self, dir: Ino, limits: impl Into<Option<QuotaLimits>>) -> Result<(), FsError> {
        let stamp = self.stamp();
        let done = self.namespace.set_quota(dir, limits.into(), stamp, &mut Vec::new());
        assert_eq!(self.namespace.check(), Vec::<String>::new());
        done
    }

    fn used(&self, root: Ino) -> (u64, u64) {
        let (_, used) = self.namespace.quota(root).expect("it is a quota root");
        (used.bytes, used.inodes)
    }

    fn write(&mut self, ino: Ino, offset: u64, len_bytes: u64) -> Result<u64, FsError> {
        let write = Mutation::Write { ino, offset, len_bytes, drop_set_id: false };
        self.run(&Caller::ROOT, write)
            .map(|(attr, _)| attr.expect("a write answers with attributes").size_bytes)
    }

    fn truncate(&mut self, ino: Ino, size: u64) -> Result<Attr, FsError> {
        self.set(&Caller::ROOT, ino, SetAttr { size_bytes: Some(size), ..SetAttr::default() })
    }
}

/// Lengths count, to the byte. Overwriting is free, truncation frees space.
#[test]
fn bytes_are_lengths() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    volume.limit(dir, bytes(1000)).unwrap();
    let (a, b) = (volume.file(dir, "a"), volume.file(dir, "b"));
    assert_eq!(volume.write(a, 0, 600), Ok(600));
    assert_eq!(volume.write(b, 0, 401), Err(QuotaExceeded));
    assert_eq!(volume.write(b, 300, 100), Ok(400));
    assert_eq!(volume.used(dir), (1000, 2));
    assert_eq!(volume.write(a, 100, 500), Ok(600));
    assert_eq!(volume.write(a, 600, 1), Err(QuotaExceeded));
    assert_eq!(volume.truncate(a, 601), Err(QuotaExceeded));
    let longer = |keep_size| Mutation::Fallocate {
        ino: a,
        offset: 0,
        len_bytes: 700,
        what: Allocation::Reserve,
        keep_size,
        edges: vec![],
        drop_set_id: false,
    };
    assert_eq!(volume.run(&Caller::ROOT, longer(false)).unwrap_err(), QuotaExceeded);
    volume.run(&Caller::ROOT, longer(true)).expect("nothing is set aside, and so nothing counts");
    volume.truncate(b, 0).unwrap();
    volume.run(&Caller::ROOT, longer(false)).unwrap();
    assert_eq!(volume.used(dir), (700, 2));
}

/// Each inode counts once. Other errors have precedence over EDQUOT, as `mkdir -p` in a full
/// directory expects.
#[test]
fn quota_counts_each_inode_once() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    volume.limit(dir, inodes(4)).unwrap();
    let file = volume.file(dir, "file");
    volume.dir(dir, "dir");
    volume.symlink(dir, "symlink");
    volume.fifo(dir, "fifo");
    for (name, expected) in [("more", QuotaExceeded), ("dir", Exists)] {
        assert_eq!(
            volume.make(&Caller::ROOT, dir, name, 0o755, Make::Directory).unwrap_err(),
            expected
        );
    }
    assert_eq!(volume.make(&ALICE, dir, "more", 0o755, Make::Directory).unwrap_err(), AccessDenied);
    let ino = volume.namespace.next_ino(dir.slot()).unwrap();
    let tmpfile = Mutation::Tmpfile { parent: dir, ino, mode: 0o600, holder: SESSION };
    assert_eq!(volume.run(&Caller::ROOT, tmpfile).unwrap_err(), QuotaExceeded);
    volume.link(file, dir, "link").expect("another name is no other inode");
    assert_eq!(volume.used(dir), (0, 4));
    volume.unlink(&Caller::ROOT, dir, "file", &[]).unwrap();
    assert_eq!(volume.used(dir), (0, 4));
    volume.unlink(&Caller::ROOT, dir, "link", &[]).unwrap();
    volume.file(dir, "more");
}

/// An inner quota counts in the outer one, and each refuses on its own.
#[test]
fn quotas_in_each_other() {
    let mut volume = Volume::new();
    let outer = volume.dir(Ino::ROOT, "outer");
    let inner = volume.dir(outer, "inner");
    let deep = volume.dir(inner, "deep");
    let (near, far) = (volume.file(outer, "near"), volume.file(deep, "far"));
    volume.write(far, 0, 10).unwrap();
    volume.limit(inner, bytes(100)).unwrap();
    volume.limit(outer, bytes(150)).unwrap();
    assert_eq!((volume.used(inner), volume.used(outer)), ((10, 2), (10, 4)));
    assert_eq!(volume.write(far, 0, 101), Err(QuotaExceeded));
    volume.write(far, 0, 100).unwrap();
    volume.write(near, 0, 50).unwrap();
    volume.truncate(far, 90).unwrap();
    volume.write(near, 0, 60).unwrap();
    assert_eq!(
        volume.write(far, 0, 91),
        Err(QuotaExceeded),
        "the inner one has room and the outer has none"
    );
    assert_eq!(volume.namespace.quota_room(Some(inner), |_| 0), Some(0));
    volume.limit(inner, None).unwrap();
    assert_eq!(volume.namespace.quota(inner), None);
    assert_eq!(volume.used(outer), (150, 4));
    volume.limit(Ino::ROOT, inodes(10)).unwrap();
    assert_eq!(
        (volume.used(Ino::ROOT), volume.namespace.usage()),
        ((150, 5), Usage { bytes: 150, inodes: 5 })
    );
}

/// A rename or link between roots would move counts: it is refused, as between file systems, and
/// programs copy instead. Within one root it is allowed, and a root itself can move there.
#[test]
fn nothing_leads_across() {
    let mut volume = Volume::new();
    let (a, b) = (volume.dir(Ino::ROOT, "a"), volume.dir(Ino::ROOT, "b"));
    let below = volume.dir(a, "below");
    let file = volume.file(a, "file");
    volume.limit(a, bytes(1000)).unwrap();
    for to in [b, Ino::ROOT] {
        assert_eq!(volume.rename((a, "file"), (to, "x"), RenameMode::Replace), Err(CrossDevice));
        assert_eq!(volume.link(file, to, "x"), Err(CrossDevice));
    }
    volume.file(b, "other");
    assert_eq!(volume.rename((a, "file"), (b, "other"), RenameMode::Exchange), Err(CrossDevice));
    assert_eq!(volume.rename((b, "other"), (below, "x"), RenameMode::Replace), Err(CrossDevice));
    volume.rename((a, "file"), (below, "file"), RenameMode::Replace).unwrap();
    volume.link(file, a, "link").unwrap();
    volume
        .rename((Ino::ROOT, "a"), (b, "moved"), RenameMode::Replace)
        .expect("both sides count nowhere");
    assert_eq!(volume.used(a), (0, 2));
    let ino = volume.namespace.next_ino(a.slot()).unwrap();
    volume
        .run(&Caller::ROOT, Mutation::Tmpfile { parent: a, ino, mode: 0o600, holder: SESSION })
        .unwrap();
    assert_eq!(volume.link(ino, b, "named"), Err(CrossDevice));
    volume.link(ino, below, "named").unwrap();
    assert_eq!(volume.used(a), (0, 3));
}

/// An orphan counts until it is closed, also after its root ended: then in the next one above.
#[test]
fn open_files_count_without_a_name() {
    let mut volume = Volume::new();
    let outer = volume.dir(Ino::ROOT, "outer");
    let inner = volume.dir(outer, "inner");
    volume.limit(outer, bytes(100)).unwrap();
    volume.limit(inner, bytes(100)).unwrap();
    let file = volume.file(inner, "file");
    volume.write(file, 0, 60).unwrap();
    volume.unlink(&Caller::ROOT, inner, "file", &[SESSION]).unwrap();
    assert_eq!((volume.used(inner), volume.used(outer)), ((60, 1), (60, 2)));
    volume.write(file, 0, 70).unwrap();
    volume.rmdir(&Caller::ROOT, outer, "inner", &[SESSION]).unwrap();
    assert_eq!(volume.namespace.quota(inner), None);
    assert_eq!(volume.used(outer), (70, 2));
    assert_eq!(volume.write(file, 0, 101), Err(QuotaExceeded));
    let restored = Namespace::from_items(volume.namespace.items()).unwrap();
    assert!(restored.items().eq(volume.namespace.items()));
    volume.namespace.release_all(SESSION, &mut Vec::new());
    assert_eq!((volume.used(outer), volume.namespace.check()), ((0, 0), vec![]));
}

/// A file with names on both sides of a later border counts at its oldest name, and moves when that
/// is removed.
#[test]
fn the_oldest_name_counts() {
    let mut volume = Volume::new();
    let (a, b) = (volume.dir(Ino::ROOT, "a"), volume.dir(Ino::ROOT, "b"));
    let file = volume.file(a, "first");
    volume.link(file, b, "second").unwrap();
    volume.write(file, 0, 500).unwrap();
    volume.limit(a, bytes(1000)).unwrap();
    volume.limit(b, bytes(100)).unwrap();
    assert_eq!((volume.used(a), volume.used(b)), ((500, 1), (0, 0)));
    volume.rename((b, "second"), (b, "renamed"), RenameMode::Replace).unwrap();
    assert_eq!(volume.link(file, b, "third"), Err(CrossDevice));
    volume.unlink(&Caller::ROOT, a, "first", &[]).unwrap();
    assert_eq!((volume.used(a), volume.used(b)), ((0, 0), (500, 1)));
    assert_eq!(volume.write(file, 500, 1), Err(QuotaExceeded), "no growth above the limit");
    volume.write(file, 0, 500).unwrap();
    volume.truncate(file, 10).unwrap();
    assert_eq!(volume.write(file, 0, 100), Ok(100));
}

/// A limit below the usage is accepted and refuses only growth. Refused are: no limits, limits of a
/// non-directory, removal of a missing quota.
#[test]
fn quota_set_accepts_any_limit_of_a_directory() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let file = volume.file(dir, "f");
    volume.write(file, 0, 500).unwrap();
    let before = volume.attr(dir);
    volume.limit(dir, QuotaLimits { bytes: Some(100), inodes: Some(0) }).unwrap();
    assert_eq!((volume.attr(dir).ctime, volume.attr(dir).mtime), (volume.now(), before.mtime));
    assert_eq!(volume.used(dir), (500, 1));
    volume.write(file, 0, 500).unwrap();
    volume.rename((dir, "f"), (dir, "g"), RenameMode::Replace).unwrap();
    assert_eq!(volume.write(file, 0, 501), Err(QuotaExceeded));
    assert_eq!(volume.limit(dir, NONE), Err(Invalid));
    assert_eq!(
        (volume.limit(file, bytes(1)), volume.limit(file, None)),
        (Err(NotDirectory), Err(NotDirectory))
    );
    assert_eq!(
        (volume.limit(Ino::ROOT, None), volume.limit(Ino(99), bytes(1))),
        (Err(NoAttribute), Err(Stale))
    );
    volume.limit(dir, None).unwrap();
    volume.write(file, 0, 501).unwrap();
    assert_eq!(volume.limit(dir, None), Err(NoAttribute));
}

/// Applications can neither see nor set the attribute of the limits; its bytes match the format
/// page.
#[test]
fn the_attribute() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    volume.limit(dir, QuotaLimits { bytes: Some(0x1234), inodes: None }).unwrap();
    let value = volume.namespace.inode(dir).unwrap().xattrs[QUOTA].clone();
    assert_eq!(value[..], [&[1, 0x34, 0x12, 0, 0, 0, 0, 0, 0][..], &[0xff; 8]].concat());
    assert_eq!(volume.namespace.list_xattr(dir), Ok(vec![]));
    assert_eq!(volume.namespace.get_xattr(dir, QUOTA), Err(NotSupported));
    let (ino, name) = (dir, Bytes::from_static(QUOTA));
    let set = Mutation::SetXattr { ino, name: name.clone(), value, mode: XattrMode::Set };
    assert_eq!(volume.run(&Caller::ROOT, set).unwrap_err(), NotSupported);
    assert_eq!(
        volume.run(&Caller::ROOT, Mutation::RemoveXattr { ino, name }).unwrap_err(),
        NotSupported
    );
}

/// Loaded inodes count, also above the limit. A quota is loaded with its directory; an undecodable
/// one, or one on a non-directory, is dropped.
#[test]
fn quota_counts_loaded_inodes() {
    let mut volume = Volume::new();
    volume.limit(Ino::ROOT, bytes(100)).unwrap();
    let value = |first: u8| Bytes::from([&[first][..], &50u64.to_le_bytes(), &[0xff; 8]].concat());
    let mut install = |parent: Ino, child: &str, what: InstalledKind, value: Bytes| {
        let ino = volume.namespace.next_ino(parent.slot()).unwrap();
        let record = InstalledRecord {
            xattrs: vec![(Bytes::from_static(QUOTA), value)],
            nlink: 1,
            ..root_record()
        };
        let found = Installed { name: name(child), ino, what, record: Some(record) };
        let stamp = volume.stamp();
        assert!(volume.namespace.install(parent, &found, (0, 0), stamp));
        assert_eq!(volume.namespace.check(), Vec::<String>::new());
        ino
    };
    let directory = || InstalledKind::Directory { prefix: None, page: false };
    let object = |len_bytes| InstalledKind::Object {
        key: None,
        etag: "e".into(),
        len_bytes,
        modified: Time::from_secs(1),
    };
    let dir = install(Ino::ROOT, "dir", directory(), value(1));
    let unknown = install(Ino::ROOT, "unknown", directory(), value(2));
    let file = install(dir, "file", object(70), value(1));
    install(dir, "other", object(60), Bytes::new());
    assert_eq!((volume.used(dir), volume.used(Ino::ROOT)), ((130, 2), (130, 4)));
    assert_eq!(volume.namespace.quota(dir).unwrap().0, bytes(50));
    assert_eq!((volume.namespace.quota(unknown), volume.namespace.quota(file)), (None, None));
    assert_eq!(volume.write(file, 70, 1), Err(QuotaExceeded));
    let stamp = volume.stamp();
    volume.namespace.replace_content(file, 10, Time::from_secs(2), stamp);
    assert_eq!((volume.used(dir), volume.used(Ino::ROOT)), ((70, 2), (70, 4)));
    let stamp = volume.stamp();
    assert!(volume.namespace.remove_installed(dir, &name("other"), stamp, &mut Vec::new()));
    assert_eq!((volume.used(dir), volume.namespace.check()), ((10, 1), vec![]));
}

/// Situation: a client repeats a mutation that a power cut lost. Danger: the space for it came from
/// a change that no client repeats, or a border that it crossed exists again, and an acknowledged
/// change is lost. Expectation: it is executed, and the counts are correct.
#[test]
fn quota_does_not_refuse_replayed_mutations() {
    let mut volume = Volume::new();
    let (a, b) = (volume.dir(Ino::ROOT, "a"), volume.dir(Ino::ROOT, "b"));
    let sub = volume.dir(a, "sub");
    let file = volume.file(sub, "f");
    volume.limit(a, bytes(100)).unwrap();
    volume.limit(b, bytes(100)).unwrap();
    let mut repeat = |mutation: Mutation| {
        let stamp = volume.stamp();
        let done = volume.namespace.repeat(
            &mutation,
            &mut Operation { caller: &Caller::ROOT, stamp, trash: None, changes: &mut Vec::new() },
        );
        assert_eq!(volume.namespace.check(), Vec::<String>::new());
        done
    };
    repeat(Mutation::Write { ino: file, offset: 0, len_bytes: 500, drop_set_id: false }).unwrap();
    let (name, new_name) = (name("sub"), name("sub"));
    repeat(Mutation::Rename {
        from: a,
        name,
        to: b,
        new_name,
        mode: RenameMode::Replace,
        holders: vec![],
    })
    .unwrap();
    assert_eq!((volume.used(a), volume.used(b)), ((0, 0), (500, 2)));
}

/// Wrong counts are detected, with the broken law.
#[test]
fn wrong_counts_are_found() {
    use ebb_core::namespace::NamespaceItem;
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let file = volume.file(dir, "f");
    volume.limit(dir, bytes(100)).unwrap();
    let broken = |breaking: &dyn Fn(NamespaceItem) -> Option<NamespaceItem>| {
        let items = volume.namespace.items().filter_map(breaking);
        Namespace::from_items(items).err().expect("the items are inconsistent").to_string()
    };
    let lost = broken(&|item| (!matches!(item, NamespaceItem::Quota { .. })).then_some(item));
    assert!(lost.contains("its quota attribute and the set of roots disagree"), "{lost}");
    let longer = broken(&|item| match item {
        NamespaceItem::Inode(mut inode) if inode.attr.ino == file => {
            inode.attr.size_bytes = 7;
            Some(NamespaceItem::Inode(inode))
        }
        other => Some(other),
    });
    assert!(longer.contains("counts"), "{longer}");
    let moved = broken(&|item| match item {
        NamespaceItem::Quota { count, .. } => Some(NamespaceItem::Quota { root: Ino::ROOT, count }),
        other => Some(other),
    });
    assert!(moved.contains("its quota attribute and the set of roots disagree"), "{moved}");
}

/// Only the directory changes, and its caches are invalidated.
#[test]
fn a_quota_is_told_of() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let stamp = volume.stamp();
    let mut changes = Vec::new();
    volume.namespace.set_quota(dir, Some(bytes(1)), stamp, &mut changes).unwrap();
    assert_eq!(changes, [Change::Touched { ino: dir, stamp }]);
}
