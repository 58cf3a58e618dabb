//! The namespace as a sequence of items, for snapshots (C-12).

use super::ids::Ids;
use super::links::Links;
use super::packed::MODE;
use super::quota::{Count, Quotas};
use super::{Dentry, Entry, Inode, Link, Namespace};
use crate::tree::Tree;
use bytes::Bytes;
use ebb_model::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One item of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NamespaceItem {
    /// The whole epoch, in snapshots of release 0.1.0: an incarnation had the ids of one epoch.
    Epoch(IdEpoch),
    Counter {
        slot: Slot,
        next: u32,
    },
    Inode(Box<InodeItem>),
    Dentry {
        parent: Ino,
        name: Name,
        dentry: Dentry,
    },
    Orphan {
        ino: Ino,
        holders: BTreeSet<SessionId>,
    },
    Linkable {
        ino: Ino,
    },
    /// Count of a quota root.
    Quota {
        root: Ino,
        count: Count,
    },
    /// An inode without a loaded name that counts in this root and those above it.
    Stray {
        ino: Ino,
        root: Ino,
    },
    Ids(IdRange),
}

/// An inode with all its links.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InodeItem {
    pub attr: Attr,
    /// With the policy.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Target of a symbolic link.
    pub target: Bytes,
    /// The inode's names, oldest first.
    pub links: Vec<Link>,
    /// Last assigned cookie of a directory.
    pub last_cookie: Cookie,
}

/// Items that violate the laws: the snapshot was modified, or a rule has a bug.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inconsistent {
    /// Descriptions of broken laws; never empty.
    pub problems: Vec<String>,
}

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the namespace is inconsistent: {}", self.problems.join("; "))
    }
}

impl std::error::Error for Inconsistent {}

impl Namespace {
    /// All items, in an order determined by the state.
    pub fn items(&self) -> impl Iterator<Item = NamespaceItem> {
        let counters = self
            .ids
            .next
            .iter()
            .map(|(slot, next)| NamespaceItem::Counter { slot: *slot, next: *next });
        let inodes = self.inodes.iter().map(|(_, inode)| {
            let links = self.links(&inode).collect();
            let xattrs = inode.recorded_xattrs();
            let Inode { attr, target, last_cookie, .. } = inode;
            NamespaceItem::Inode(Box::new(InodeItem { attr, xattrs, target, links, last_cookie }))
        });
        let dentries = self.dentries.iter().map(|((parent, cookie), entry)| {
            let dentry = entry.at(cookie);
            NamespaceItem::Dentry { parent, name: entry.name, dentry }
        });
        let orphans = self
            .orphans
            .iter()
            .map(|(ino, holders)| NamespaceItem::Orphan { ino: *ino, holders: holders.clone() });
        let linkable = self.linkable.iter().map(|ino| NamespaceItem::Linkable { ino: *ino });
        std::iter::once(NamespaceItem::Ids(self.ids.range))
            .chain(counters)
            .chain(inodes)
            .chain(dentries)
            .chain(orphans)
            .chain(linkable)
            .chain(self.quota_items())
    }

    /// Restores a namespace from [`Namespace::items`], in any order.
    pub fn from_items(
        items: impl IntoIterator<Item = NamespaceItem>,
    ) -> Result<Namespace, Inconsistent> {
        let mut namespace = Namespace {
            inodes: Tree::new(),
            dentries: Tree::new(),
            links: Links::default(),
            hashes: Tree::new(),
            orphans: BTreeMap::new(),
            linkable: BTreeSet::new(),
            ids: Ids::begin(IdRange::whole(IdEpoch(0))),
            quotas: Quotas::default(),
        };
        let mut ranges = 0;
        for item in items {
            let repeats = match item {
                NamespaceItem::Epoch(epoch) => {
                    namespace.ids.range = IdRange::whole(epoch);
                    ranges += 1;
                    false
                }
                NamespaceItem::Ids(range) => {
                    namespace.ids.range = range;
                    ranges += 1;
                    false
                }
                NamespaceItem::Counter { slot, next } => {
                    namespace.ids.next.insert(slot, next).is_some()
                }
                NamespaceItem::Inode(inode) if inode.attr.mode & !MODE != 0 => {
                    return Err(Inconsistent {
                        problems: vec![format!("inode {}: has an invalid mode", inode.attr.ino)],
                    });
                }
                NamespaceItem::Inode(inode) => !namespace.restore_inode(*inode),
                NamespaceItem::Dentry { parent, name, dentry: Dentry { ino, kind, cookie } } => {
                    let again = namespace.dentry(parent, &name).is_some();
                    !namespace.put_entry(Link { parent, cookie }, &Entry { name, ino, kind })
                        || again
                }
                NamespaceItem::Orphan { ino, holders } => {
                    namespace.orphans.insert(ino, holders).is_some()
                }
                NamespaceItem::Linkable { ino } => !namespace.linkable.insert(ino),
                NamespaceItem::Quota { root, count } => namespace.quotas.restore_root(root, count),
                NamespaceItem::Stray { ino, root } => namespace.quotas.restore_stray(ino, root),
            };
            if repeats {
                return Err(Inconsistent { problems: vec!["an item is repeated".into()] });
            }
        }
        namespace.quotas.restore_volume(&namespace.inodes);
        let mut problems = namespace.check();
        if ranges != 1 {
            problems.push(format!("there are {ranges} ranges of ids"));
        }
        if problems.is_empty() { Ok(namespace) } else { Err(Inconsistent { problems }) }
    }

    /// Returns false if the id exists already.
    fn restore_inode(
        &mut self,
        InodeItem { attr, xattrs, target, links, last_cookie }: InodeItem,
    ) -> bool {
        let mut inode = Inode {
            attr,
            xattrs,
            policy: PolicyId::DEFAULT,
            target,
            first: None,
            names: 0,
            last_age: 0,
            last_cookie,
        };
        inode.settle_policy();
        for link in links {
            self.add_link(&mut inode, link, false);
        }
        self.inodes.insert(&inode.attr.ino, &inode)
    }
}
