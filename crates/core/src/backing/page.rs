//! Pages: what is written of a directory and the names in it because no object can say it.

use super::follow::below;
use super::*;
use crate::namespace::{Inode, Link};
use std::collections::{BTreeMap, BTreeSet};

/// A page while it is put together. Of a large directory that is done piece by piece, all of one state.
pub struct PageDraft {
    dir: Ino,
    prefix: String,
    /// Behind which child the next piece begins.
    after: Cookie,
    entries: BTreeMap<Name, Installed>,
    /// Inodes of which an entry tells all names.
    told: BTreeSet<Ino>,
}

impl Backing {
    /// The page as it is to be written. `old` is the page in the bucket where
    /// [`PageStep::Write`] asks for it: what it says of names that have not been seen yet stays.
    pub fn page(&self, namespace: &Namespace, dir: Ino, old: Option<&DirectoryPage>) -> Option<DirectoryPage> {
        let mut draft = self.draft_page(namespace, dir)?;
        self.add_to_page(namespace, &mut draft, usize::MAX);
        self.finish_page(namespace, draft, old)
    }

    /// A page without entries; `None` for a directory that is not in the tree.
    pub fn draft_page(&self, namespace: &Namespace, dir: Ino) -> Option<PageDraft> {
        let prefix = self.prefix_of(namespace, dir)?;
        Some(PageDraft { dir, prefix, after: Cookie::START, entries: BTreeMap::new(), told: BTreeSet::new() })
    }

    /// Adds what is to be said of the next children; says whether there are more.
    pub fn add_to_page(&self, namespace: &Namespace, draft: &mut PageDraft, most: usize) -> bool {
        let mut added = 0;
        for (name, child) in namespace.children_after(draft.dir, draft.after).take(most) {
            added += 1;
            draft.after = child.cookie;
            if let Some(entry) = self.entry(namespace, draft, &name, child) {
                draft.entries.insert(name, entry);
            }
        }
        added == most
    }

    /// The page of a draft that has all children, on the state that these were added of.
    pub fn finish_page(&self, namespace: &Namespace, draft: PageDraft, old: Option<&DirectoryPage>) -> Option<DirectoryPage> {
        let PageDraft { dir, mut entries, mut told, .. } = draft;
        let inode = namespace.inode(dir)?;
        let parent = inode.first.and_then(|link| Some((link.parent, namespace.name_at(link)?)));
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
        let record = self.installed_record(namespace, inode, usize::MAX);
        Some(DirectoryPage { dir, parent, record, hidden, entries: entries.into_values().collect() })
    }

    /// `None` for what an object or prefix says well enough, or will say once it is there.
    fn entry(&self, namespace: &Namespace, draft: &mut PageDraft, name: &Name, child: Dentry) -> Option<Installed> {
        let Dentry { ino, kind, cookie } = child;
        let inode = namespace.inode(ino)?;
        let listed = format!("{}{}", draft.prefix, keys::segment_of(name));
        let what = match kind {
            FileKind::Regular => {
                let FileBacking { home, recorded, .. } = self.files.get(&ino)?;
                let home = home?;
                let is_primary = inode.first == Some(Link { parent: draft.dir, cookie });
                let key = match home.key {
                    Some(key) => key,
                    None if is_primary => keys::own_key(&draft.prefix, name, ino),
                    None => self.key_of(namespace, ino)?,
                };
                if !recorded && key == listed {
                    return None;
                }
                let key = (key != listed).then_some(key);
                InstalledKind::Object { key, etag: home.etag, len_bytes: home.len_bytes, modified: inode.attr.mtime }
            }
            FileKind::Directory => {
                let state = self.dirs.get(&ino)?;
                let page = state.has_page();
                let prefix = state.prefix.unwrap_or_else(|| keys::own_prefix(&draft.prefix, name, ino));
                let prefix = (prefix != listed + "/").then_some(prefix);
                if !state.recorded && prefix.is_none() {
                    return None;
                }
                InstalledKind::Directory { prefix, page }
            }
            FileKind::Symlink => InstalledKind::Recorded(Make::Symlink { target: inode.target.clone() }),
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                InstalledKind::Recorded(Make::Special { kind, rdev: inode.attr.rdev })
            }
        };
        let most_links = if draft.told.insert(ino) { usize::MAX } else { 1 };
        Some(Installed { name: name.clone(), ino, what, record: Some(self.installed_record(namespace, inode, most_links)) })
    }

    fn installed_record(&self, namespace: &Namespace, inode: Inode, most_links: usize) -> InstalledRecord {
        let attr = &inode.attr;
        let seen = namespace.links(&inode).filter_map(|link| Some((link.parent, namespace.name_at(link)?)));
        // Of names that are not all known the primary one is at the home, not here.
        let unseen = self.unseen_names(attr.ino);
        let has_several = unseen.len() + inode.names as usize > 1;
        let links = unseen.iter().cloned().chain(seen).take(if has_several { most_links } else { 0 }).collect();
        InstalledRecord {
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
            links,
            xattrs: inode.xattrs.into_iter().collect(),
        }
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
