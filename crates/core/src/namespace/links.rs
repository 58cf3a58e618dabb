//! The names of an inode, oldest first. The first one is primary: it determines the key of the
//! object. An inode stores its first link itself; the further links of the few inodes with several
//! are here.

use super::{Inode, Link, Namespace};
use crate::tree::{Tree, values};
use ebb_model::*;

/// Laws: `by_age` and `ages` hold the same links; they hold every link of an inode except its
/// first.
#[derive(Clone, Default)]
pub(crate) struct Links {
    by_age: Tree<(Ino, u64), Link>,
    ages: Tree<(Ino, Ino, Cookie), u64>,
}

values!(Link);

/// Age of the first link added here: in the middle of the range, since older links can be added
/// later.
const MIDDLE_AGE: u64 = 1 << 63;

impl Links {
    fn insert(&mut self, ino: Ino, age: u64, link: Link) {
        self.by_age.insert(&(ino, age), &link);
        self.ages.insert(&(ino, link.parent, link.cookie), &age);
    }

    fn remove(&mut self, ino: Ino, link: Link) -> Option<u64> {
        let age = self.ages.remove(&(ino, link.parent, link.cookie))?;
        self.by_age.remove(&(ino, age));
        Some(age)
    }

    fn of(&self, ino: Ino) -> impl Iterator<Item = (u64, Link)> {
        self.by_age.range((ino, 0)..=(ino, u64::MAX)).map(|((_, age), link)| (age, link))
    }

    /// The first directory `>= from` that has one of the inode's further links.
    fn parent_from(&self, ino: Ino, from: Ino) -> Option<Ino> {
        let mut links =
            self.ages.range((ino, from, Cookie::START)..=(ino, Ino(u64::MAX), Cookie(u64::MAX)));
        links.next().map(|((_, parent, _), _)| parent)
    }

    pub fn memory_bytes(&self) -> usize {
        self.by_age.bytes() + self.ages.bytes()
    }

    pub fn is_recent_so(&self) -> bool {
        self.by_age.is_recent_so() && self.ages.is_recent_so()
    }

    pub fn len(&self) -> usize {
        self.by_age.len()
    }

    fn knows(&self, ino: Ino, link: Link) -> bool {
        let age = self.ages.get(&(ino, link.parent, link.cookie));
        age.is_some_and(|age| self.by_age.get(&(ino, age)) == Some(link))
    }
}

impl Namespace {
    /// All links of an inode, primary first, then by age.
    pub fn links(&self, inode: &Inode) -> impl Iterator<Item = Link> {
        let further = (inode.names > 1).then(|| self.links.of(inode.attr.ino));
        inode.first.into_iter().chain(further.into_iter().flatten().map(|(_, link)| link))
    }

    /// The directories of the inode's names.
    pub fn parents(&self, inode: &Inode) -> impl Iterator<Item = Ino> {
        let ino = inode.attr.ino;
        let first = inode.first.map(|link| link.parent);
        let further = if inode.names > 1 { self.links.parent_from(ino, Ino(0)) } else { None };
        let further = std::iter::successors(further, move |parent| {
            self.links.parent_from(ino, Ino(parent.0.checked_add(1)?))
        });
        first.into_iter().chain(further.filter(move |parent| Some(*parent) != first))
    }

    pub(super) fn knows_link(&self, inode: &Inode, link: Link) -> bool {
        inode.first == Some(link) || inode.names > 1 && self.links.knows(inode.attr.ino, link)
    }

    /// Adds a link, as the youngest or as the primary one.
    pub(super) fn add_link(&mut self, inode: &mut Inode, link: Link, primary: bool) {
        let ino = inode.attr.ino;
        inode.names += 1;
        match inode.first {
            None => inode.first = Some(link),
            Some(first) if primary => {
                let oldest = self.links.of(ino).next().map_or(MIDDLE_AGE, |(age, _)| age);
                self.links.insert(ino, oldest - 1, first);
                inode.first = Some(link);
            }
            Some(_) => {
                inode.last_age = inode.last_age.max(MIDDLE_AGE - 1) + 1;
                self.links.insert(ino, inode.last_age, link);
            }
        }
    }

    /// Removes a link. Returns whether it was the primary one.
    pub(super) fn drop_link(&mut self, inode: &mut Inode, link: Link) -> bool {
        let ino = inode.attr.ino;
        inode.names -= 1;
        let primary = inode.first == Some(link);
        if primary {
            inode.first = self.links.of(ino).next().map(|(_, link)| link);
        }
        if let Some(further) = if primary { inode.first } else { Some(link) } {
            self.links.remove(ino, further).expect("a dentry is a link of its inode");
        }
        if inode.names <= 1 {
            inode.last_age = 0;
        }
        primary
    }

    /// Replaces a link and keeps its age. Returns whether it is the primary one.
    pub(super) fn move_link(&mut self, inode: &mut Inode, from: Link, to: Link) -> bool {
        let primary = inode.first == Some(from);
        if primary {
            inode.first = Some(to);
        } else {
            let age =
                self.links.remove(inode.attr.ino, from).expect("a dentry is a link of its inode");
            self.links.insert(inode.attr.ino, age, to);
        }
        primary
    }
}
