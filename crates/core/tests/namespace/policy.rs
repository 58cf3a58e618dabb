use crate::volume::*;
use bytes::Bytes;
use ebb_core::namespace::policy::{POLICY, value_of};
use ebb_core::namespace::{Namespace, NamespaceItem};
use ebb_model::*;

const FAST: PolicyId = PolicyId(7);
const SAFE: PolicyId = PolicyId(70_000);

fn record(policy: PolicyId) -> InstalledRecord {
    let xattrs = vec![(Bytes::from_static(POLICY), value_of(policy))];
    InstalledRecord { xattrs, ..root_record() }
}

impl Volume {
    fn policy(&self, ino: Ino) -> PolicyId {
        self.namespace.inode(ino).unwrap().policy
    }

    fn found(
        &mut self,
        parent: Ino,
        child: &str,
        found: InstalledKind,
        of: Option<PolicyId>,
    ) -> Ino {
        let ino = self.namespace.next_ino(parent.slot()).unwrap();
        let entry = Installed { name: name(child), ino, what: found, record: of.map(record) };
        let stamp = self.stamp();
        assert!(self.namespace.install(parent, &entry, (0, 0), stamp));
        ino
    }
}

fn directory() -> InstalledKind {
    InstalledKind::Directory { prefix: None, page: false }
}

fn object() -> InstalledKind {
    InstalledKind::Object {
        key: None,
        etag: "e".into(),
        len_bytes: 1,
        modified: Time::from_secs(5),
    }
}

/// Whatever is made in a directory has its policy, whatever is found there without a record too; a
/// record has its own. A rename changes no policy. The root of most volumes has the default.
#[test]
fn policy_is_inherited_from_the_directory() {
    let mut volume = Volume::new();
    let plain = volume.file(Ino::ROOT, "plain");
    assert_eq!((volume.policy(Ino::ROOT), volume.policy(plain)), (PolicyId(0), PolicyId(0)));

    let fast = volume.found(Ino::ROOT, "fast", directory(), Some(FAST));
    let below = volume.dir(fast, "below");
    let made =
        [volume.file(below, "file"), volume.symlink(fast, "link"), volume.fifo(below, "fifo")];
    let found = [
        volume.found(below, "object", object(), None),
        volume.found(fast, "prefix", directory(), None),
    ];
    for ino in [&made[..], &found, &[fast, below]].concat() {
        assert_eq!(volume.policy(ino), FAST);
    }
    let safe = volume.found(below, "safe", object(), Some(SAFE));
    let default = volume.found(below, "default", object(), Some(PolicyId::DEFAULT));
    assert_eq!((volume.policy(safe), volume.policy(default)), (SAFE, PolicyId::DEFAULT));

    volume.rename((below, "file"), (Ino::ROOT, "moved"), RenameMode::Replace).unwrap();
    assert_eq!(volume.policy(made[0]), FAST);
}

/// Files that are found together inherit it, as each by itself would.
#[test]
fn policy_is_inherited_by_files_found_together() {
    let mut volume = Volume::new();
    let fast = volume.found(Ino::ROOT, "fast", directory(), Some(FAST));
    let ino = volume.namespace.next_ino(fast.slot()).unwrap();
    let entry = Installed { name: name("object"), ino, what: object(), record: None };
    let stamp = volume.stamp();
    volume.namespace.install_files(fast, &[&entry], (0, 0), stamp);
    assert_eq!(volume.policy(ino), FAST);
}

/// A snapshot has the policies, and nothing of the default one; neither is shown to programs.
#[test]
fn policy_is_in_snapshots_and_not_among_the_attributes() {
    let mut volume = Volume::new();
    let fast = volume.found(Ino::ROOT, "fast", directory(), Some(FAST));
    let file = volume.file(fast, "file");
    volume.file(Ino::ROOT, "plain");
    assert_eq!(volume.namespace.list_xattr(file), Ok(vec![]));
    assert_eq!(volume.namespace.get_xattr(file, POLICY), Err(FsError::NotSupported));
    let items: Vec<NamespaceItem> = volume.namespace.items().collect();
    let attributes = items.iter().filter_map(|item| match item {
        NamespaceItem::Inode(inode) => Some(inode.xattrs.len()),
        _ => None,
    });
    assert_eq!(attributes.sum::<usize>(), 2);
    let restored = Namespace::from_items(items).unwrap();
    for ino in [Ino::ROOT, fast, file] {
        assert_eq!(restored.inode(ino), volume.namespace.inode(ino));
    }
}

/// A value of another version, or of another length, counts as the default policy.
#[test]
fn unknown_policy_is_the_default() {
    for value in [&b""[..], b"\x01", b"\x02\x07\0\0\0", b"\x01\x07\0\0\0\0"] {
        let mut volume = Volume::new();
        let ino = volume.namespace.next_ino(Slot(0)).unwrap();
        let xattrs = vec![(Bytes::from_static(POLICY), Bytes::copy_from_slice(value))];
        let record = Some(InstalledRecord { xattrs, ..root_record() });
        let entry = Installed { name: name("d"), ino, what: directory(), record };
        let stamp = volume.stamp();
        assert!(volume.namespace.install(Ino::ROOT, &entry, (0, 0), stamp));
        assert_eq!(volume.policy(ino), PolicyId::DEFAULT);
    }
}
