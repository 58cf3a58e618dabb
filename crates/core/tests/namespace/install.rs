use crate::volume::*;
use ebb_core::namespace::Change;
use ebb_model::*;

fn object(key: Option<&str>) -> InstalledKind {
    InstalledKind::Object {
        key: key.map(String::from),
        etag: "e".into(),
        len_bytes: 42,
        modified: Time::from_secs(500),
    }
}

fn directory() -> InstalledKind {
    InstalledKind::Directory { prefix: None, page: false }
}

fn record(nlink: u32, links: &[(Ino, &str)]) -> Option<InstalledRecord> {
    let links = links.iter().map(|(parent, child)| (*parent, name(child))).collect();
    Some(InstalledRecord { mode: 0o600, nlink, uid: 5, gid: 6, links, ..root_record() })
}

/// Owner of names without a record, independent of the owner of the root.
const OWNER: (u32, u32) = (7, 8);

impl Volume {
    fn install(
        &mut self,
        parent: Ino,
        child: &str,
        ino: Ino,
        what: InstalledKind,
        record: Option<InstalledRecord>,
    ) -> bool {
        let stamp = self.stamp();
        let added = self.namespace.install(
            parent,
            &Installed { name: name(child), ino, what, record },
            OWNER,
            stamp,
        );
        assert_eq!(self.namespace.check(), Vec::<String>::new());
        added
    }

    fn next(&self) -> Ino {
        self.namespace.next_ino(Ino::ROOT.slot()).unwrap()
    }
}

/// Objects of other writers belong to the owner of the volume.
#[test]
fn objects_without_a_record_get_default_attributes() {
    let mut volume = Volume::new();
    volume.chown(Ino::ROOT, &ALICE);
    let before = volume.attr(Ino::ROOT);
    let file = volume.next();
    assert!(volume.install(Ino::ROOT, "f", file, object(None), None));
    let attr = volume.attr(file);
    assert_eq!(
        (attr.mode, attr.uid, attr.gid, attr.size_bytes, attr.nlink),
        (0o644, OWNER.0, OWNER.1, 42, 1)
    );
    assert_eq!((attr.mtime, attr.version), (Time::from_secs(500), Version(volume.clock)));
    assert_eq!(volume.attr(Ino::ROOT), before);
    let dir = volume.next();
    assert!(dir > file);
    assert!(volume.install(Ino::ROOT, "d", dir, directory(), None));
    assert_eq!(
        (volume.attr(dir).mode, volume.attr(dir).nlink, volume.attr(Ino::ROOT).nlink),
        (0o755, 2, 3)
    );
    assert_eq!(volume.attr(Ino::ROOT).mtime, before.mtime);
}

#[test]
fn records_install_attributes_that_objects_lack() {
    let mut volume = Volume::new();
    let (file, link) = (volume.next(), Ino::new(IdEpoch(0), Slot(4), 9));
    assert!(volume.install(Ino::ROOT, "f", file, object(None), record(1, &[])));
    assert_eq!(
        (volume.attr(file).mode, volume.attr(file).uid, volume.attr(file).gid),
        (0o600, 5, 6)
    );
    let what = InstalledKind::Recorded(Make::Symlink { target: "t".into() });
    assert!(volume.install(Ino::ROOT, "l", link, what, record(1, &[])));
    assert_eq!(
        (volume.attr(link).size_bytes, volume.namespace.read_link(link)),
        (1, Ok("t".into()))
    );
}

/// A file with three names of which one is loaded: removing that one leaves the inode with the
/// others, which become its names when they are loaded.
#[test]
fn names_that_are_not_loaded_keep_an_inode() {
    let mut volume = Volume::new();
    let file = volume.next();
    let names = [(Ino::ROOT, "a"), (Ino::ROOT, "b"), (Ino::ROOT, "c")];
    assert!(volume.install(Ino::ROOT, "b", file, object(Some("a")), record(3, &names)));
    assert_eq!(volume.attr(file).nlink, 3);
    let changes = volume.unlink(&Caller::ROOT, Ino::ROOT, "b", &[]).unwrap();
    assert!(matches!(&changes[..], [Change::Unlinked { .. }]));
    assert_eq!((volume.attr(file).nlink, volume.path(file)), (2, None));
    assert!(volume.install(Ino::ROOT, "c", file, object(Some("a")), record(3, &names)));
    assert!(volume.install(Ino::ROOT, "a", file, object(None), record(3, &names)));
    assert_eq!((volume.attr(file).nlink, volume.path(file).unwrap()), (2, "/a".into()));
    volume.unlink(&Caller::ROOT, Ino::ROOT, "a", &[]).unwrap();
    let changes = volume.unlink(&Caller::ROOT, Ino::ROOT, "c", &[]).unwrap();
    assert!(matches!(&changes[..], [Change::Unlinked { .. }, Change::Gone { .. }]));
}

/// Loaded state is newer than the bucket; contradicting entries are skipped.
#[test]
fn install_does_not_overwrite_loaded_state() {
    let mut volume = Volume::new();
    let (file, dir) = (volume.file(Ino::ROOT, "f"), volume.dir(Ino::ROOT, "d"));
    volume.file(Ino::ROOT, "open");
    let open = volume.namespace.dentry(Ino::ROOT, &name("open")).unwrap().ino;
    volume.unlink(&Caller::ROOT, Ino::ROOT, "open", &[SESSION]).unwrap();
    let fresh = volume.next();
    assert!(!volume.install(Ino::ROOT, "f", fresh, object(None), None));
    assert!(!volume.install(file, "x", fresh, object(None), None));
    assert!(!volume.install(Ino(999), "x", fresh, object(None), None));
    assert!(!volume.install(Ino::ROOT, "x", dir, directory(), None));
    assert!(!volume.install(dir, "x", Ino::ROOT, directory(), None));
    assert!(!volume.install(
        Ino::ROOT,
        "x",
        file,
        InstalledKind::Recorded(Make::Special { kind: FileKind::Fifo, rdev: 0 }),
        None
    ));
    assert!(!volume.install(Ino::ROOT, "x", open, object(None), None));
    assert!(!volume.install(Ino::ROOT, "x", Ino::new(IdEpoch(9), Slot(0), 1), object(None), None));
    assert_eq!(volume.attr(file).size_bytes, 0);
    assert_eq!(volume.next(), fresh);
}

/// Another writer changes and deletes objects in the bucket.
#[test]
fn outside_changes_are_followed() {
    let mut volume = Volume::new();
    let (dir, file) = (volume.dir(Ino::ROOT, "d"), volume.file(Ino::ROOT, "f"));
    volume.file(dir, "inside");
    let stamp = volume.stamp();
    volume.namespace.replace_content(file, 99, Time::from_secs(77), stamp);
    volume.namespace.replace_content(dir, 99, Time::from_secs(77), stamp);
    volume.namespace.replace_content(Ino(999), 99, Time::from_secs(77), stamp);
    let attr = volume.attr(file);
    assert_eq!(
        (attr.size_bytes, attr.mtime, attr.version),
        (99, Time::from_secs(77), stamp.version)
    );
    assert_ne!(volume.attr(dir).size_bytes, 99);
    let mut changes = Vec::new();
    let stamp = volume.stamp();
    assert!(!volume.namespace.remove_installed(Ino::ROOT, &name("d"), stamp, &mut changes));
    assert!(!volume.namespace.remove_installed(Ino::ROOT, &name("none"), stamp, &mut changes));
    assert_eq!(changes, []);
    assert!(volume.namespace.remove_installed(dir, &name("inside"), stamp, &mut changes));
    assert!(volume.namespace.remove_installed(Ino::ROOT, &name("d"), stamp, &mut changes));
    assert_eq!(changes.len(), 4);
    assert_eq!(volume.names(Ino::ROOT), [("f".into(), file)]);
    assert_eq!(volume.namespace.check(), Vec::<String>::new());
}

/// A record lists a second name, another writer removes the first one, and the second one does not
/// exist: the inode has no name left and is removed.
#[test]
fn the_loss_of_the_last_unseen_name_takes_the_inode_along() {
    let mut volume = Volume::new();
    let file = volume.next();
    let names = [(Ino::ROOT, "a"), (Ino::ROOT, "b")];
    assert!(volume.install(Ino::ROOT, "a", file, object(None), record(2, &names)));
    let mut changes = Vec::new();
    let stamp = volume.stamp();
    assert!(volume.namespace.remove_installed(Ino::ROOT, &name("a"), stamp, &mut changes));
    assert_eq!(volume.attr(file).nlink, 1);
    changes.clear();
    volume.namespace.lose_unresolved_link(file, &mut changes);
    assert!(matches!(&changes[..], [Change::Gone { ino, .. }] if *ino == file), "{changes:?}");
    assert_eq!(volume.namespace.check(), Vec::<String>::new());
    let (dir, named) = (volume.dir(Ino::ROOT, "d"), volume.file(Ino::ROOT, "f"));
    for ino in [dir, named, file] {
        volume.namespace.lose_unresolved_link(ino, &mut changes);
    }
    assert_eq!((changes.len(), volume.attr(named).nlink, volume.attr(dir).nlink), (1, 1, 2));
}
