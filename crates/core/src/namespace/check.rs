//! Invariant check of a namespace, for fsck, snapshots, simulation and tests.

use super::{Entry, FIRST_COOKIE, Link, Namespace};
use crate::tree::remembered_wrongly;
use ebb_model::*;
use std::collections::{BTreeMap, BTreeSet};

/// Limit of reported problems; a bug in one rule breaks its law for every file.
const MAX_PROBLEMS: usize = 100;

impl Namespace {
    /// Descriptions of broken laws. Empty unless there is a bug or the snapshot was modified.
    pub fn check(&self) -> Vec<String> {
        let mut problems = remembered_wrongly([
            ("inodes", self.inodes.is_recent_so()),
            ("dentries", self.dentries.is_recent_so()),
            ("hashes", self.hashes.is_recent_so()),
            ("links", self.links.is_recent_so()),
        ]);
        if self.inode(Ino::ROOT).is_none_or(|root| root.attr.kind != FileKind::Directory) {
            problems.push("there is no root directory".into());
            return problems;
        }
        let broken = self
            .check_names()
            .chain(self.check_inodes())
            .chain(self.check_ids())
            .chain(self.check_links())
            .chain(self.check_orphans());
        problems.extend(broken.take(MAX_PROBLEMS));
        // In a graph with cycles the walk to the root may not end.
        if problems.is_empty() {
            problems.extend(self.check_quotas().take(MAX_PROBLEMS));
        }
        problems
    }

    fn check_names(&self) -> impl Iterator<Item = String> {
        let hashed: usize = self.hashes.iter().map(|(_, cookies)| cookies.len()).sum();
        let hashes = (hashed != self.dentries.len())
            .then(|| format!("{} dentries have {hashed} hashed names", self.dentries.len()));
        let dentries = self.dentries.iter().filter_map(
            move |((parent, cookie), Entry { name, ino, kind })| {
                let link = Link { parent, cookie };
                let dir = self.inode(parent).filter(|dir| dir.attr.kind == FileKind::Directory);
                let problem =
                    if self.dentry(parent, &name).is_none_or(|dentry| dentry.cookie != cookie) {
                        "is not the one that its name leads to"
                    } else if dir.is_none() {
                        "is in no directory"
                    } else if dir
                        .is_some_and(|dir| cookie > dir.last_cookie || cookie < FIRST_COOKIE)
                    {
                        "has a cookie that its directory has not assigned"
                    } else if self.inode(ino).is_none_or(|inode| {
                        inode.attr.kind != kind || !self.knows_link(&inode, link)
                    }) {
                        "refers to an inode without that link"
                    } else {
                        return None;
                    };
                Some(format!("dentry {name} of {parent} {problem}"))
            },
        );
        hashes.into_iter().chain(dentries)
    }

    fn check_ids(&self) -> impl Iterator<Item = String> {
        let IdRange { from, upto, .. } = self.ids.range;
        let is_range = Ino::FIRST_COUNTER <= from && from <= upto;
        let reversed = (!is_range).then(|| format!("ids from {from} up to {upto} are no range"));
        let beyond = self.ids.next.iter().filter(move |(_, next)| **next > upto);
        let beyond = beyond.map(|(slot, next)| {
            format!("counters of slot {} below {next} are used, and not reserved", slot.0)
        });
        reversed.into_iter().chain(beyond)
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
            expect(
                self.may_be_made(ino) && self.ids.is_used(ino),
                "has an id that can be assigned again",
            );
            let links: BTreeSet<Link> = self.links(&inode).collect();
            expect(
                links.iter().all(|link| self.refers(*link, ino)),
                "has a link to a dentry that does not refer to it",
            );
            expect(
                links.len() == inode.names as usize,
                "has a repeated link, or miscounts its links",
            );
            expect(
                (inode.attr.kind == FileKind::Symlink) != inode.target.is_empty(),
                "exactly the symbolic links must have a target",
            );
            let size = inode.attr.size_bytes;
            expect(
                inode.attr.kind != FileKind::Symlink || size == inode.target.len() as u64,
                "has the size of another target",
            );
            let is_kept =
                inode.first.is_some_and(|link| self.is_trash(link.parent)) && inode.names == 1;
            expect(is_kept || !inode.is_trashed(), "is marked as in the trash, and is not there");
            expect(inode.acls_are_sound(), "has an ACL that its kind or mode does not allow");
            expect(
                self.orphans.contains_key(&ino) == (inode.attr.nlink == 0),
                "exactly the inodes without a name must be orphans",
            );
            if inode.attr.kind == FileKind::Directory {
                let loaded = subdirectories.get(&ino).copied().unwrap_or(0);
                expect(
                    inode.attr.nlink == 0 || inode.attr.nlink == 2 + loaded,
                    "nlink is not 2 plus the subdirectories",
                );
                expect(
                    inode.attr.nlink > 0 || self.is_empty_directory(ino),
                    "was removed with names in it",
                );
                let names = u32::from(ino != Ino::ROOT && inode.attr.nlink > 0);
                expect(inode.names == names, "a directory has one name, the root none");
                expect(
                    inode.attr.nlink == 0 || self.is_rooted(ino, &mut rooted),
                    "is not below the root",
                );
            } else {
                expect(inode.attr.nlink >= inode.names, "nlink is below the number of names");
            }
            problems
        })
    }

    fn check_links(&self) -> impl Iterator<Item = String> {
        let further: usize =
            self.inodes.iter().map(|(_, inode)| inode.names.saturating_sub(1) as usize).sum();
        (further != self.links.len())
            .then(|| {
                format!("inodes have {further} further links, and {} are kept", self.links.len())
            })
            .into_iter()
    }

    fn check_orphans(&self) -> impl Iterator<Item = String> {
        let linkable = self.linkable.iter().filter_map(|ino| {
            let file = self.inode(*ino).is_some_and(|inode| inode.attr.kind == FileKind::Regular);
            (!file || !self.orphans.contains_key(ino))
                .then(|| format!("{ino} is linkable and not an unnamed file"))
        });
        let orphans = self.orphans.iter().filter_map(|(ino, holders)| {
            if self.inode(*ino).is_none_or(|inode| inode.attr.nlink != 0) {
                Some(format!("orphan {ino} is not an inode without a name"))
            } else if holders.is_empty() {
                Some(format!("orphan {ino} has no holder"))
            } else {
                None
            }
        });
        orphans.chain(linkable)
    }

    fn refers(&self, link: Link, ino: Ino) -> bool {
        self.entry(link.parent, link.cookie).is_some_and(|entry| entry.ino == ino)
    }

    fn count_subdirectories(&self) -> BTreeMap<Ino, u32> {
        let mut counts = BTreeMap::new();
        for ((parent, _), entry) in self.dentries.iter() {
            if entry.kind == FileKind::Directory && entry.name.as_bytes() != TRASH {
                *counts.entry(parent).or_default() += 1;
            }
        }
        counts
    }

    /// Whether the parents of `dir` end at the root; `rooted` caches directories for which they do.
    fn is_rooted(&self, dir: Ino, rooted: &mut BTreeSet<Ino>) -> bool {
        let mut way = BTreeSet::new();
        let mut at = dir;
        while !rooted.contains(&at) {
            match self.primary_link(at) {
                Some(link) if way.insert(at) => at = link.parent,
                _ => return false,
            }
        }
        rooted.append(&mut way);
        true
    }
}
