//! Invariant check of the backing, for fsck, snapshots, simulation and tests.

use super::*;
use crate::content::Content;
use crate::namespace::Link;
use crate::tree::remembered_wrongly;
use std::collections::BTreeMap;

impl Backing {
    /// Descriptions of broken laws.
    pub fn check(&self, namespace: &Namespace, content: &Content) -> Vec<String> {
        let mut problems = remembered_wrongly([
            ("backed files", self.files.is_recent_so()),
            ("backed directories", self.dirs.is_recent_so()),
            ("deletes", self.deletes.is_recent_so()),
            ("homes", self.explicit_keys.is_recent_so()),
            ("redirects", self.redirects.is_recent_so()),
            ("hidden", self.hidden.is_recent_so()),
            ("former", self.former.is_recent_so()),
            ("removed", self.removed.is_recent_so()),
            ("queue", self.queue.is_recent_so()),
        ]);
        if !self.backed {
            if self.items().count() > 1 {
                problems.push("the volume has no bucket, and backing is not empty".into());
            }
            return problems;
        }
        self.check_claims(namespace, &mut problems);
        self.check_files(namespace, content, &mut problems);
        self.check_directories(namespace, &mut problems);
        self.check_pieces(&mut problems);
        problems
    }

    /// Every key has one owner.
    fn check_claims(&self, namespace: &Namespace, problems: &mut Vec<String>) {
        let mut owners = BTreeMap::new();
        for (ino, _) in self.files.iter() {
            if let Some(key) = self.object_key(namespace, ino) {
                if let Some(other) = owners.insert(key.clone(), ino) {
                    problems.push(format!("{key} is the object of {other} and of {ino}"));
                }
                if self.deletes.contains_key(&key) {
                    problems.push(format!("{key} is pending deletion and the object of {ino}"));
                }
            }
        }
        for (&ino, upload) in &self.uploads {
            if self.deletes.contains_key(&upload.key)
                && namespace.inode(ino).is_some_and(|inode| inode.attr.nlink > 0)
            {
                let at_object = self.object_key(namespace, ino).as_ref() == Some(&upload.key);
                if at_object {
                    problems.push(format!(
                        "{} is pending deletion and being written for {ino}",
                        upload.key
                    ));
                }
            }
            if owners.get(&upload.key).is_some_and(|owner| *owner != ino) {
                problems.push(format!(
                    "{} is being written for {ino} and backs another file",
                    upload.key
                ));
            }
        }
        let mut prefixes = BTreeMap::new();
        for (dir, state) in self.dirs.iter() {
            let Some(prefix) = self.prefix_of(namespace, dir) else {
                problems.push(format!("directory {dir} is nowhere"));
                continue;
            };
            if let Some(other) = prefixes.insert(prefix.clone(), dir) {
                problems.push(format!("{prefix} is the prefix of {other} and of {dir}"));
            }
            if state.prefix.is_some() && self.own_prefix(namespace, dir) == state.prefix {
                problems.push(format!("directory {dir} has a redirect to the prefix of its path"));
            }
        }
        let explicit = self.files.iter().filter_map(|(ino, file)| Some((file.object?.key?, ino)));
        if !explicit.collect::<BTreeMap<_, _>>().into_iter().eq(self.explicit_keys.iter()) {
            problems.push("the index of explicit keys is wrong".into());
        }
        let redirects = self.dirs.iter().filter_map(|(ino, dir)| Some((dir.prefix?, ino)));
        if !redirects.collect::<BTreeMap<_, _>>().into_iter().eq(self.redirects.iter()) {
            problems.push("the index of redirects is wrong".into());
        }
        let files =
            self.files.iter().filter_map(|(ino, file)| Some((file.dirty?.since, false, ino)));
        let pages = self.dirs.iter().filter_map(|(ino, dir)| Some((dir.dirty?.since, true, ino)));
        let mut turns: Vec<Turn> = files.chain(pages).collect();
        turns.sort_unstable();
        if !turns.into_iter().eq(self.queue.iter().map(|(turn, ())| turn)) {
            problems.push("the queue of dirty files and pages is wrong".into());
        }
    }

    fn check_files(&self, namespace: &Namespace, content: &Content, problems: &mut Vec<String>) {
        for (ino, file) in self.files.iter() {
            let Some(inode) = namespace.inode(ino) else {
                problems.push(format!("file {ino} is in backing and does not exist"));
                continue;
            };
            if inode.attr.kind != FileKind::Regular {
                problems.push(format!("{ino} is not a file"));
            }
            let etag = file.object.as_ref().map(|object| &object.etag);
            if etag != content.object(ino).map(|object| object.etag).as_ref() {
                problems.push(format!("file {ino}: backing and content record different objects"));
            }
            if content.object(ino).is_some_and(|object| object.valid_bytes > inode.attr.size_bytes)
            {
                problems.push(format!("file {ino}: the valid part of its object exceeds its size"));
            }
            let named = inode.first.is_some();
            let is_queued = file.dirty.as_ref().is_some_and(|dirty| dirty.content.is_some());
            if named && !is_queued && (content.dirty_count(ino) > 0 || file.object.is_none()) {
                problems.push(format!("file {ino} has dirty bytes and is not queued"));
            }
            if !named && file.dirty.is_some() {
                problems.push(format!("file {ino} has no name and is queued"));
            }
            let explicit = file.object.as_ref().is_some_and(|object| object.key.is_some());
            if explicit && self.key_of(namespace, ino) == self.object_key(namespace, ino) {
                problems.push(format!("file {ino} has an explicit key equal to that of its path"));
            }
            if file.dirty.as_ref().is_some_and(|dirty| {
                dirty.moving && !explicit || !dirty.moving && dirty.content.is_none()
            }) {
                problems.push(format!("file {ino} is dirty for no reason"));
            }
        }
        for (ino, inode) in namespace.inodes.iter() {
            let (known, what) = match inode.attr.kind {
                FileKind::Regular => (self.files.contains_key(&ino), "file"),
                FileKind::Directory => {
                    (self.dirs.contains_key(&ino) == (inode.attr.nlink > 0), "directory")
                }
                _ => (true, ""),
            };
            if !known {
                problems.push(format!("{what} {ino} is in the namespace and not in backing"));
            }
        }
    }

    fn check_directories(&self, namespace: &Namespace, problems: &mut Vec<String>) {
        for (ino, dir) in self.dirs.iter() {
            if let Some(Link { parent, .. }) = namespace.primary_link(ino)
                && (dir.recorded || dir.has_page() || dir.prefix.is_some())
                && !self
                    .dirs
                    .get(&parent)
                    .is_some_and(|parent| parent.recorded && parent.has_page())
            {
                problems.push(format!("directory {ino} is recorded, its parent {parent} is not"));
            }
            if dir.has_page() && !dir.recorded {
                problems.push(format!("directory {ino} has a page and no record"));
            }
        }
        for ((dir, name), ()) in self.removed.iter() {
            if !self.is_open(dir) {
                problems.push(format!("{name} is kept as removed from the complete {dir}"));
            }
        }
        for ((dir, segment), ()) in self.former.iter() {
            if !self.is_open(dir) || self.hidden.contains_key(&(dir, segment.clone())) {
                problems.push(format!("{segment} is kept as formerly hidden in {dir}"));
            }
        }
        for ino in self.unresolved_links.inodes() {
            if namespace.inode(ino).is_none_or(|inode| inode.names == 0) {
                problems.push(format!("{ino} has unresolved links and no name"));
            }
        }
    }
}
