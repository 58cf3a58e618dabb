use crate::volume::*;
use ebb_core::namespace::{Namespace, NamespaceItem};
use ebb_model::*;

fn busy_volume() -> Volume {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let file = volume.file(dir, "f");
    volume.link(file, Ino::ROOT, "g").unwrap();
    volume.symlink(dir, "l");
    volume.file(Ino::ROOT, "open");
    let stamp = volume.stamp();
    let limits = Some(QuotaLimits { bytes: Some(1), inodes: None });
    volume.namespace.set_quota(Ino::ROOT, limits, stamp, &mut Vec::new()).unwrap();
    volume.unlink(&Caller::ROOT, Ino::ROOT, "open", &[SESSION]).unwrap();
    volume
}

/// A snapshot restores the same namespace, also through its encoding, and after the original has
/// changed.
#[test]
fn a_snapshot_gives_back_the_namespace() {
    let mut volume = busy_volume();
    let snapshot = volume.namespace.clone();
    let items: Vec<NamespaceItem> = snapshot.items().collect();
    volume.rename((Ino::ROOT, "g"), (Ino::ROOT, "h"), RenameMode::Replace).unwrap();
    volume.rename((Ino::ROOT, "d"), (Ino::ROOT, "e"), RenameMode::Replace).unwrap();
    assert!(snapshot.items().eq(items.iter().cloned()));
    let bytes = postcard::to_stdvec(&items).unwrap();
    let read: Vec<NamespaceItem> = postcard::from_bytes(&bytes).unwrap();
    let restored = Namespace::from_items(read.into_iter().rev()).unwrap();
    assert!(restored.items().eq(items));
    assert_eq!(
        restored.next_ino(Ino::ROOT.slot()).unwrap(),
        volume.namespace.next_ino(Ino::ROOT.slot()).unwrap()
    );
}

/// Any single missing or repeated item is detected.
#[test]
fn no_item_can_be_lost_or_doubled() {
    let items: Vec<NamespaceItem> = busy_volume().namespace.items().collect();
    for at in 0..items.len() {
        let without = items
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at)
            .map(|(_, item)| item.clone());
        let Err(inconsistent) = Namespace::from_items(without) else {
            panic!("the loss of {:?} went unnoticed", items[at])
        };
        assert!(!inconsistent.problems.is_empty());
        let doubled = items.iter().chain([&items[at]]).cloned();
        assert!(Namespace::from_items(doubled).is_err());
    }
}

/// Contradicting items are refused, with the broken law.
#[test]
fn contradictions_are_refused() {
    let broken = |breaking: fn(&mut NamespaceItem)| {
        let mut items: Vec<NamespaceItem> = busy_volume().namespace.items().collect();
        items.iter_mut().for_each(breaking);
        Namespace::from_items(items).err().expect("the items are inconsistent").to_string()
    };
    let nlink = broken(|item| {
        if let NamespaceItem::Inode(inode) = item {
            inode.attr.nlink += 1;
        }
    });
    assert!(nlink.contains("nlink is not 2 plus the subdirectories"), "{nlink}");
    let kind = broken(|item| {
        if let NamespaceItem::Dentry { dentry, .. } = item {
            dentry.kind = FileKind::Socket;
        }
    });
    assert!(kind.contains("refers to an inode without that link"), "{kind}");
    let counter = broken(|item| {
        if let NamespaceItem::Counter { next, .. } = item {
            *next = 2;
        }
    });
    assert!(counter.contains("can be assigned again"), "{counter}");
    let cookie = broken(|item| {
        if let NamespaceItem::Inode(inode) = item {
            inode.last_cookie = Cookie(0);
        }
    });
    assert!(cookie.contains("has not assigned"), "{cookie}");
    let mode = broken(|item| {
        if let NamespaceItem::Inode(inode) = item {
            inode.attr.mode = u16::MAX;
        }
    });
    assert!(mode.contains("has an invalid mode"), "{mode}");
    let twice = broken(|item| {
        if let NamespaceItem::Inode(inode) = item {
            let again = inode.links.clone();
            inode.links.extend(again);
        }
    });
    assert!(twice.contains("has a repeated link"), "{twice}");
}

/// Two directories that contain each other are not in the tree.
#[test]
fn cycles_are_found() {
    let mut volume = Volume::new();
    let a = volume.dir(Ino::ROOT, "a");
    let b = volume.dir(a, "b");
    let items = volume.namespace.items().map(|item| match item {
        NamespaceItem::Dentry { parent, name, dentry } if parent == Ino::ROOT => {
            NamespaceItem::Dentry { parent: b, name, dentry }
        }
        NamespaceItem::Inode(mut inode) => {
            match inode.attr.ino {
                ino if ino == a => inode.links[0].parent = b,
                ino if ino == b => (inode.attr.nlink, inode.last_cookie) = (3, Cookie(9)),
                _ => inode.attr.nlink = 2,
            }
            NamespaceItem::Inode(inode)
        }
        other => other,
    });
    let inconsistent = Namespace::from_items(items).err().expect("a cycle is no tree");
    assert!(
        inconsistent.problems.iter().all(|problem| problem.contains("is not below the root")),
        "{inconsistent}"
    );
    assert_eq!(inconsistent.problems.len(), 2);
}
