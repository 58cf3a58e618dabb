//! Pages: what is written of a directory and the names in it because no object can say it.

use super::follow::below;
use super::*;
use std::collections::{BTreeMap, BTreeSet};

impl Backing {
    /// The page as it is to be written. `old` is the page in the bucket where
    /// [`PageStep::Write`] asks for it: what it says of names that have not been seen yet stays.
    pub fn page(&self, namespace: &Namespace, dir: Ino, old: Option<&DirectoryPage>) -> Option<DirectoryPage> {
        let inode = namespace.inode(dir)?;
        let parent = inode.first.and_then(|link| Some((link.parent, namespace.name_at(link)?)));
        let prefix = self.prefix_of(namespace, dir)?;
        let mut entries = BTreeMap::new();
        let mut told = BTreeSet::new();
        for (name, child) in namespace.children(dir) {
            if let Some(entry) = self.entry(namespace, &prefix, &name, child, &mut told) {
                entries.insert(name, entry);
            }
        }
        if let Some(old) = old.filter(|_| !self.is_complete(dir)) {
            let names = names_told(&old.entries);
            let unseen =
                |entry: &&Installed| namespace.dentry(dir, &entry.name).is_none() && !self.removed.contains_key(&(dir, entry.name.clone()));
            for entry in old.entries.iter().filter(unseen) {
                let names = names.get(&entry.ino).filter(|_| told.insert(entry.ino));
                entries.insert(entry.name.clone(), telling(entry.clone(), names));
            }
        }
        let mut hidden: Vec<String> = below(&self.hidden, dir, String::new()).into_iter().map(|(_, segment)| segment).collect();
        if let Some(old) = old.filter(|_| self.dirs.get(&dir).is_some_and(|dir| dir.load == Load::Unknown)) {
            hidden.extend(old.hidden.iter().filter(|segment| !self.former.contains_key(&(dir, segment.to_string()))).cloned());
            hidden.sort_unstable();
            hidden.dedup();
        }
        let record = self.installed_record(namespace, dir, usize::MAX)?;
        Some(DirectoryPage { dir, parent, record, hidden, entries: entries.into_values().collect() })
    }

    /// `None` for what an object or prefix says well enough, or will say once it is there.
    /// `told` are inodes of which another entry tells all names.
    fn entry(&self, namespace: &Namespace, prefix: &str, name: &Name, child: Dentry, told: &mut BTreeSet<Ino>) -> Option<Installed> {
        let Dentry { ino, kind, .. } = child;
        let inode = namespace.inode(ino)?;
        let listed = format!("{prefix}{}", keys::segment_of(name));
        let what = match kind {
            FileKind::Regular => {
                let file = self.files.get(&ino)?;
                let (key, home) = self.home(namespace, ino)?;
                if !file.recorded && key == listed {
                    return None;
                }
                let key = (key != listed).then_some(key);
                InstalledKind::Object { key, etag: home.etag, len_bytes: home.len_bytes, modified: inode.attr.mtime }
            }
            FileKind::Directory => {
                let state = self.dirs.get(&ino)?;
                let prefix = self.prefix_of(namespace, ino)?;
                let prefix = (prefix != listed + "/").then_some(prefix);
                if !state.recorded && prefix.is_none() {
                    return None;
                }
                InstalledKind::Directory { prefix, page: state.has_page() }
            }
            FileKind::Symlink => InstalledKind::Recorded(Make::Symlink { target: inode.target }),
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                InstalledKind::Recorded(Make::Special { kind, rdev: inode.attr.rdev })
            }
        };
        let most_links = if told.insert(ino) { usize::MAX } else { 1 };
        Some(Installed { name: name.clone(), ino, what, record: self.installed_record(namespace, ino, most_links) })
    }

    fn installed_record(&self, namespace: &Namespace, ino: Ino, most_links: usize) -> Option<InstalledRecord> {
        let inode = namespace.inode(ino)?;
        let attr = &inode.attr;
        let seen = namespace.links(&inode).filter_map(|link| Some((link.parent, namespace.name_at(link)?)));
        // Of names that are not all known the primary one is at the home, not here.
        let unseen = self.unseen_names(ino);
        let has_several = unseen.len() + inode.names as usize > 1;
        let links = unseen.iter().cloned().chain(seen).take(if has_several { most_links } else { 0 }).collect();
        Some(InstalledRecord {
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
            xattrs: inode.xattrs.clone().into_iter().collect(),
            links,
        })
    }
}

/// All names of the inodes that have several, as one entry of each tells them: were they in every
/// entry, a page would have as many of them as the square of what it is about. The other entries
/// have the primary name alone.
pub(super) fn names_told(entries: &[Installed]) -> BTreeMap<Ino, &[(Ino, Name)]> {
    let mut told = BTreeMap::new();
    for entry in entries {
        if let Some(record) = entry.record.as_ref().filter(|record| record.links.len() > 1) {
            told.entry(entry.ino).or_insert(&record.links[..]);
        }
    }
    told
}

/// The entry of an inode with several names gets all of them, or is left with the primary one.
pub(super) fn telling(mut entry: Installed, names: Option<&&[(Ino, Name)]>) -> Installed {
    if let Some(record) = entry.record.as_mut().filter(|record| !record.links.is_empty()) {
        match names {
            Some(names) => record.links = names.to_vec(),
            None => record.links.truncate(1),
        }
    }
    entry
}
