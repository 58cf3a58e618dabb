//! Proof of the laws of a namespace, for fsck, snapshots, simulation and tests.

use super::{FIRST_COOKIE, Inode, Link, Namespace};
use ebb_model::*;
use std::collections::{BTreeMap, BTreeSet};

/// Broken laws that are reported; a wrong rule breaks them for every file.
const MAX_PROBLEMS: usize = 100;

/// Links that are looked through one by one.
const FEW_LINKS: usize = 64;

impl Namespace {
    /// Broken laws, in words; none unless there is a bug or a snapshot was tampered with.
    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.inode(Ino::ROOT).is_none_or(|root| root.attr.kind != FileKind::Directory) {
            problems.push("there is no root directory".into());
            return problems;
        }
        let broken = self.check_names().chain(self.check_inodes()).chain(self.check_orphans());
        problems.extend(broken.take(MAX_PROBLEMS));
        // In what is no tree the way up may have no end.
        if problems.is_empty() {
            problems.extend(self.check_quotas().take(MAX_PROBLEMS));
        }
        problems
    }

    fn check_names(&self) -> impl Iterator<Item = String> {
        let streams = (self.order.len() != self.dentries.len())
            .then(|| format!("{} dentries have {} places in directory streams", self.dentries.len(), self.order.len()));
        let mut many = BTreeMap::<Ino, BTreeSet<Link>>::new();
        let mut knows = move |inode: &Inode, link: &Link| match inode.links.len() {
            ..=FEW_LINKS => inode.links.contains(link),
            _ => many.entry(inode.attr.ino).or_insert_with(|| inode.links.iter().copied().collect()).contains(link),
        };
        let dentries = self.dentries.iter().filter_map(move |((parent, name), dentry)| {
            let link = Link { parent: *parent, cookie: dentry.cookie };
            let problem = if self.order.get(&(*parent, dentry.cookie)) != Some(name) {
                "is not at its place in the directory stream"
            } else if self.inode(*parent).is_none_or(|dir| dir.attr.kind != FileKind::Directory) {
                "is in no directory"
            } else if self.inode(*parent).is_some_and(|dir| dentry.cookie > dir.last_cookie || dentry.cookie < FIRST_COOKIE) {
                "has a cookie that its directory has not given out"
            } else if self.inode(dentry.ino).is_none_or(|inode| inode.attr.kind != dentry.kind || !knows(inode, &link)) {
                "refers to an inode that does not know of it"
            } else {
                return None;
            };
            Some(format!("dentry {name} of {parent} {problem}"))
        });
        streams.into_iter().chain(dentries)
    }

    fn check_inodes(&self) -> impl Iterator<Item = String> {
        let subdirectories = self.count_subdirectories();
        let mut rooted = BTreeSet::from([Ino::ROOT]);
        self.inodes.iter().flat_map(move |(ino, inode)| {
            let mut problems = Vec::new();
            let mut expect = |holds: bool, law: &str| {
                if !holds {
                    problems.push(format!("inode {ino}: {law}"));
                }
            };
            expect(inode.attr.ino == *ino, "is stored under another id");
            expect(self.may_be_made(*ino) && self.is_counted(*ino), "has an id that may be given out again");
            expect(inode.links.iter().all(|link| self.refers(*link, *ino)), "knows of a dentry that does not refer to it");
            let distinct: BTreeSet<_> = inode.links.iter().map(|link| (link.parent, link.cookie)).collect();
            expect(distinct.len() == inode.links.len(), "knows of a dentry twice");
            expect((inode.attr.kind == FileKind::Symlink) != inode.target.is_empty(), "a symbolic link and nothing else has a target");
            let size = inode.attr.size_bytes;
            expect(inode.attr.kind != FileKind::Symlink || size == inode.target.len() as u64, "has the size of another target");
            expect(inode.acls_are_sound(), "has an ACL that its kind or mode does not allow");
            expect(self.orphans.contains_key(ino) == (inode.attr.nlink == 0), "an inode without a name and nothing else is an orphan");
            if inode.attr.kind == FileKind::Directory {
                let loaded = subdirectories.get(ino).copied().unwrap_or(0);
                expect(inode.attr.nlink == 0 || inode.attr.nlink == 2 + loaded, "nlink is not 2 plus the subdirectories");
                expect(inode.attr.nlink > 0 || self.is_empty_directory(*ino), "was removed with names in it");
                let names = usize::from(*ino != Ino::ROOT && inode.attr.nlink > 0);
                expect(inode.links.len() == names, "a directory has one name, the root none");
                expect(inode.attr.nlink == 0 || self.is_rooted(*ino, &mut rooted), "is not below the root");
            } else {
                expect(inode.attr.nlink as usize >= inode.links.len(), "nlink is below the number of names");
            }
            problems
        })
    }

    fn check_orphans(&self) -> impl Iterator<Item = String> {
        let linkable = self.linkable.iter().filter_map(|ino| {
            let file = self.inode(*ino).is_some_and(|inode| inode.attr.kind == FileKind::Regular);
            (!file || !self.orphans.contains_key(ino)).then(|| format!("{ino} may get a name and is no file without one"))
        });
        let orphans = self.orphans.iter().filter_map(|(ino, holders)| {
            if self.inode(*ino).is_none_or(|inode| inode.attr.nlink != 0) {
                Some(format!("orphan {ino} is not an inode without a name"))
            } else if holders.is_empty() {
                Some(format!("orphan {ino} is held by nobody"))
            } else {
                None
            }
        });
        orphans.chain(linkable)
    }

    fn refers(&self, link: Link, ino: Ino) -> bool {
        let name = self.order.get(&(link.parent, link.cookie));
        name.and_then(|name| self.dentry(link.parent, name)).is_some_and(|dentry| dentry.ino == ino)
    }

    fn is_counted(&self, ino: Ino) -> bool {
        ino.incarnation() != self.incarnation || self.counters.get(&ino.slot()).is_some_and(|next| ino.counter() < *next)
    }

    fn count_subdirectories(&self) -> BTreeMap<Ino, u32> {
        let mut counts = BTreeMap::new();
        for ((parent, _), dentry) in self.dentries.iter() {
            if dentry.kind == FileKind::Directory {
                *counts.entry(*parent).or_default() += 1;
            }
        }
        counts
    }

    /// Whether the way up ends at the root; `rooted` are directories of which that is known.
    fn is_rooted(&self, dir: Ino, rooted: &mut BTreeSet<Ino>) -> bool {
        let mut way = BTreeSet::new();
        let mut at = dir;
        while !rooted.contains(&at) {
            let parent = self.inode(at).and_then(|inode: &Inode| inode.links.first()).map(|link| link.parent);
            match parent {
                Some(parent) if way.insert(at) => at = parent,
                _ => return false,
            }
        }
        rooted.append(&mut way);
        true
    }
}
