//! The namespace as a sequence of items, for snapshots (C-12).

use super::quota::{Count, Quotas};
use super::{Dentry, Inode, Namespace};
use crate::tree::Tree;
use ebb_model::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NamespaceItem {
    Incarnation(Incarnation),
    Counter {
        slot: Slot,
        next: u32,
    },
    Inode(Box<Inode>),
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
    /// What counts in a quota root.
    Quota {
        root: Ino,
        count: Count,
    },
    /// An inode without a loaded name counts in this root and those above it.
    Stray {
        ino: Ino,
        root: Ino,
    },
}

/// Items that no namespace has: the snapshot is not what was written, or a rule is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inconsistent {
    /// Each a broken law, in words; never empty.
    pub problems: Vec<String>,
}

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the namespace is inconsistent: {}", self.problems.join("; "))
    }
}

impl std::error::Error for Inconsistent {}

impl Namespace {
    /// Everything, in an order that depends on nothing but the state.
    pub fn items(&self) -> impl Iterator<Item = NamespaceItem> {
        let counters = self.counters.iter().map(|(slot, next)| NamespaceItem::Counter { slot: *slot, next: *next });
        let inodes = self.inodes.iter().map(|(_, inode)| NamespaceItem::Inode(Box::new(inode.clone())));
        let dentries = self.dentries.iter().map(|((parent, name), dentry)| NamespaceItem::Dentry {
            parent: *parent,
            name: name.clone(),
            dentry: *dentry,
        });
        let orphans = self.orphans.iter().map(|(ino, holders)| NamespaceItem::Orphan { ino: *ino, holders: holders.clone() });
        let linkable = self.linkable.iter().map(|ino| NamespaceItem::Linkable { ino: *ino });
        std::iter::once(NamespaceItem::Incarnation(self.incarnation))
            .chain(counters)
            .chain(inodes)
            .chain(dentries)
            .chain(orphans)
            .chain(linkable)
            .chain(self.quota_items())
    }

    /// What [`Namespace::items`] gave, in any order.
    pub fn from_items(items: impl IntoIterator<Item = NamespaceItem>) -> Result<Namespace, Inconsistent> {
        let mut namespace = Namespace {
            inodes: Tree::new(),
            dentries: Tree::new(),
            order: Tree::new(),
            orphans: BTreeMap::new(),
            linkable: BTreeSet::new(),
            incarnation: Incarnation(0),
            counters: BTreeMap::new(),
            quotas: Quotas::default(),
        };
        let mut incarnations = 0;
        for item in items {
            let repeats = match item {
                NamespaceItem::Incarnation(incarnation) => {
                    namespace.incarnation = incarnation;
                    incarnations += 1;
                    false
                }
                NamespaceItem::Counter { slot, next } => namespace.counters.insert(slot, next).is_some(),
                NamespaceItem::Inode(inode) => namespace.inodes.insert(inode.attr.ino, *inode).is_some(),
                NamespaceItem::Dentry { parent, name, dentry } => {
                    let again = namespace.order.insert((parent, dentry.cookie), name.clone()).is_some();
                    namespace.dentries.insert((parent, name), dentry).is_some() || again
                }
                NamespaceItem::Orphan { ino, holders } => namespace.orphans.insert(ino, holders).is_some(),
                NamespaceItem::Linkable { ino } => !namespace.linkable.insert(ino),
                NamespaceItem::Quota { root, count } => namespace.quotas.restore_root(root, count),
                NamespaceItem::Stray { ino, root } => namespace.quotas.restore_stray(ino, root),
            };
            if repeats {
                return Err(Inconsistent { problems: vec!["an item is there twice".into()] });
            }
        }
        namespace.quotas.restore_volume(&namespace.inodes);
        let mut problems = namespace.check();
        if incarnations != 1 {
            problems.push(format!("there are {incarnations} incarnations"));
        }
        if problems.is_empty() { Ok(namespace) } else { Err(Inconsistent { problems }) }
    }
}
