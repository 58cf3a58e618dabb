//! Pages: what is written of a directory and the names in it because no object can say it.

use super::follow::below;
use super::*;
use std::collections::BTreeMap;

impl Backing {
    /// The page as it is to be written. `old` is the page in the bucket where
    /// [`PageStep::Write`] asks for it: what it says of names that have not been seen yet stays.
    pub fn page(&self, namespace: &Namespace, dir: Ino, old: Option<&DirectoryPage>) -> Option<DirectoryPage> {
        let inode = namespace.inode(dir)?;
        let parent = inode.links.first().and_then(|link| Some((link.parent, link_name(namespace, link)?.clone())));
        let prefix = self.prefix_of(namespace, dir)?;
        let mut entries = BTreeMap::new();
        if let Some(old) = old.filter(|_| !self.is_complete(dir)) {
            let unseen =
                |entry: &&Installed| namespace.dentry(dir, &entry.name).is_none() && !self.removed.contains_key(&(dir, entry.name.clone()));
            entries.extend(old.entries.iter().filter(unseen).map(|entry| (entry.name.clone(), entry.clone())));
        }
        for (_, name) in namespace.order.range((dir, Cookie::START)..=(dir, Cookie(u64::MAX))) {
            if let Some(entry) = self.entry(namespace, dir, &prefix, name) {
                entries.insert(name.clone(), entry);
            }
        }
        let mut hidden: Vec<String> = below(&self.hidden, dir, String::new()).into_iter().map(|(_, segment)| segment).collect();
        if let Some(old) = old.filter(|_| self.dirs.get(&dir).is_some_and(|dir| dir.load == Load::Unknown)) {
            hidden.extend(old.hidden.iter().filter(|segment| !self.former.contains_key(&(dir, segment.to_string()))).cloned());
            hidden.sort_unstable();
            hidden.dedup();
        }
        let record = self.installed_record(namespace, dir)?;
        Some(DirectoryPage { dir, parent, record, hidden, entries: entries.into_values().collect() })
    }

    /// `None` for what an object or prefix says well enough, or will say once it is there.
    fn entry(&self, namespace: &Namespace, dir: Ino, prefix: &str, name: &Name) -> Option<Installed> {
        let Dentry { ino, kind, .. } = namespace.dentry(dir, name)?;
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
                InstalledKind::Object { key, etag: home.etag.clone(), len_bytes: home.len_bytes, modified: inode.attr.mtime }
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
            FileKind::Symlink => InstalledKind::Recorded(Make::Symlink { target: inode.target.clone() }),
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                InstalledKind::Recorded(Make::Special { kind, rdev: inode.attr.rdev })
            }
        };
        Some(Installed { name: name.clone(), ino, what, record: self.installed_record(namespace, ino) })
    }

    fn installed_record(&self, namespace: &Namespace, ino: Ino) -> Option<InstalledRecord> {
        let inode = namespace.inode(ino)?;
        let attr = &inode.attr;
        let seen = inode.links.iter().filter_map(|link| Some((link.parent, link_name(namespace, link)?.clone())));
        // Of names that are not all known the primary one is at the home, not here.
        let mut links: Vec<_> = self.unseen_names(ino).to_vec();
        links.extend(seen);
        if links.len() < 2 {
            links.clear();
        }
        Some(InstalledRecord {
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
            xattrs: inode.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            links,
        })
    }
}
