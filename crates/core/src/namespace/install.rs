//! Names and data from the bucket. An install records names that existed before; it is not a
//! mutation of a client.

use super::entry::hash_of;
use super::trash::TRASHED;
use super::{Change, Dentry, Entry, Inode, Link, Namespace, Operation};
use ebb_model::*;

impl Namespace {
    /// Adds a name from the bucket, and its inode unless another name has added it already. An
    /// existing name is newer and stays. Returns false if nothing was added.
    pub fn install(
        &mut self,
        parent: Ino,
        found: &Installed,
        owner: (u32, u32),
        stamp: Stamp,
    ) -> bool {
        let Installed { name, ino, what, record } = found;
        let Ok(dir) = self.directory(parent) else { return false };
        if self.dentry(parent, name).is_some() {
            return false;
        }
        let kind = what.kind();
        let at_own_key = matches!(what, InstalledKind::Object { key: None, .. });
        let primary = match record.as_ref().and_then(|record| record.links.first()) {
            Some((primary_parent, primary_name)) => {
                (*primary_parent, primary_name) == (parent, name)
            }
            None => at_own_key,
        };
        let (known, counted_in) = (self.inode(*ino), self.counts_in(*ino));
        let is_new = known.is_none();
        let mut inode = match known {
            None if !self.may_be_made(*ino) => return false,
            None => {
                let mut inode =
                    installed_inode(*ino, what, record.as_ref(), (owner, dir.policy), stamp);
                if inode.is_trashed() && !self.is_trash(parent) {
                    inode.xattrs.remove(TRASHED);
                }
                self.note_drawn(*ino);
                inode
            }
            Some(inode)
                if kind == FileKind::Directory
                    || inode.attr.kind != kind
                    || inode.attr.nlink == 0 =>
            {
                return false;
            }
            Some(inode) => inode,
        };
        let link = self.insert_dentry(parent, name, *ino, kind);
        if kind == FileKind::Directory {
            self.change_inode(parent, |dir| {
                dir.attr.nlink += u32::from(name.as_bytes() != TRASH);
                dir.attr.version = dir.attr.version.max(stamp.version);
            });
        }
        self.add_link(&mut inode, link, primary);
        if kind != FileKind::Directory {
            inode.attr.nlink = inode.attr.nlink.max(inode.names);
        }
        self.put_inode(&inode);
        if is_new {
            self.count_in(*ino);
        } else {
            self.count_renamed(*ino, counted_in);
        }
        true
    }

    /// Whether a new inode can be installed under a new name, as a file.
    pub fn is_vacant(&self, parent: Ino, name: &Name, ino: Ino) -> bool {
        // Also requires that no other name has the same hash.
        self.may_be_made(ino)
            && self.inode(ino).is_none()
            && !self.hashes.contains_key(&(parent, hash_of(name)))
    }

    /// Equivalent to [`Namespace::install`] of each file in order, for files without a record. All
    /// must be [vacant](Namespace::is_vacant), with distinct names and inode ids.
    pub fn install_files(
        &mut self,
        parent: Ino,
        files: &[&Installed],
        owner: (u32, u32),
        stamp: Stamp,
    ) {
        let (before, policy) = self.change_inode(parent, |dir| {
            let before = dir.last_cookie.0;
            dir.last_cookie.0 += files.len() as u64;
            (before, dir.policy)
        });
        let placed: Vec<(Cookie, &Installed)> =
            (before + 1..).map(Cookie).zip(files.iter().copied()).collect();
        let mut hashed: Vec<(u32, Cookie)> =
            placed.iter().map(|(cookie, file)| (hash_of(&file.name), *cookie)).collect();
        hashed.sort_unstable();
        let of_one_hash = hashed.chunk_by(|(one, _), (other, _)| one == other);
        self.hashes.extend(
            of_one_hash
                .map(|all| ((parent, all[0].0), all.iter().map(|(_, cookie)| *cookie).collect())),
        );
        let entry = |file: &Installed| Entry {
            name: file.name.clone(),
            ino: file.ino,
            kind: FileKind::Regular,
        };
        self.dentries.extend(placed.iter().map(|(cookie, file)| ((parent, *cookie), entry(file))));
        let inode = |(cookie, file): &(Cookie, &Installed)| {
            let inode = installed_inode(file.ino, &file.what, None, (owner, policy), stamp);
            Inode { first: Some(Link { parent, cookie: *cookie }), names: 1, ..inode }
        };
        let inodes: Vec<Inode> = placed.iter().map(inode).collect();
        inodes.iter().for_each(|inode| self.note_drawn(inode.attr.ino));
        self.count_in_at_once(parent, &inodes);
        self.inodes.extend(inodes.into_iter().map(|inode| (inode.attr.ino, inode)));
    }

    /// Whether names can be looked up in it.
    pub fn is_directory(&self, dir: Ino) -> bool {
        self.directory(dir).is_ok()
    }

    /// Evicts an inode with exactly this name: the inverse of [`Namespace::install`].
    pub(crate) fn forget(&mut self, parent: Ino, name: &Name, child: Dentry) {
        let counted_in = self.counts_in(child.ino);
        self.remove_dentry(parent, name);
        if child.kind == FileKind::Directory {
            self.change_inode(parent, |dir| dir.attr.nlink -= 1);
        }
        if let Some(inode) = self.inodes.remove(&child.ino) {
            self.count_out(counted_in, &inode);
        }
    }

    pub fn has_more_names_than(&self, dir: Ino, count: usize) -> bool {
        self.stream(dir, Cookie::START).nth(count).is_some()
    }

    /// Cookie of the newest name.
    pub fn last_cookie(&self, dir: Ino) -> Cookie {
        self.inode(dir).map_or(Cookie::START, |inode| inode.last_cookie)
    }

    /// Another writer added names to a completely loaded directory.
    pub(crate) fn listing_changed(&mut self, dir: Ino, stamp: Stamp) {
        self.inodes.change(&dir, |inode| inode.modified(stamp));
    }

    /// Another writer replaced the object of a file (O-55). No effect on other kinds.
    pub fn replace_content(&mut self, ino: Ino, len_bytes: u64, modified: Time, stamp: Stamp) {
        if let Some(mut inode) =
            self.inode(ino).filter(|inode| inode.attr.kind == FileKind::Regular)
        {
            let old_bytes = std::mem::replace(&mut inode.attr.size_bytes, len_bytes);
            inode.changed(stamp);
            inode.attr.mtime = modified;
            self.put_inode(&inode);
            self.count_resized(ino, old_bytes);
        }
    }

    /// Another writer deleted the object of this name. Returns false if the name does not exist or
    /// is a directory with names. Clients with the inode open get ESTALE.
    pub fn remove_installed(
        &mut self,
        parent: Ino,
        name: &Name,
        stamp: Stamp,
        changes: &mut Vec<Change>,
    ) -> bool {
        let Some(lost) = self.named(parent, name) else { return false };
        if lost.kind == FileKind::Directory && !self.is_empty_directory(lost.ino) {
            return false;
        }
        self.remove(
            lost,
            &[],
            &mut Operation { caller: &Caller::ROOT, stamp, trash: None, changes },
        );
        for change in changes {
            if let Change::Unlinked { by_others, .. } = change {
                *by_others = true;
            }
        }
        true
    }

    /// A name of the inode that was never loaded does not exist in the bucket. The inode is removed
    /// with its last name.
    pub fn lose_unresolved_link(&mut self, ino: Ino, changes: &mut Vec<Change>) {
        let Some(mut inode) = self.inode(ino) else { return };
        if inode.attr.kind == FileKind::Directory || inode.attr.nlink <= inode.names {
            return;
        }
        inode.attr.nlink -= 1;
        self.put_inode(&inode);
        if inode.attr.nlink == 0 {
            self.inodes.remove(&ino);
            self.count_out_stray(&inode);
            changes.push(Change::Gone { ino, attr: inode.attr });
        }
    }
}

impl Inode {
    /// Whether a file in a directory with this policy has no attributes beyond those that a listing
    /// of the bucket provides.
    pub(crate) fn is_as_found(&self, policy: PolicyId) -> bool {
        let Attr { mode, uid, gid, atime, mtime, ctime, btime, .. } = self.attr;
        let found = default_record(FileKind::Regular, (uid, gid), mtime);
        (mode, atime, ctime, btime) == (found.mode, mtime, mtime, mtime)
            && self.xattrs.is_empty()
            && self.policy == policy
    }
}

fn installed_inode(
    ino: Ino,
    what: &InstalledKind,
    record: Option<&InstalledRecord>,
    (owner, policy): ((u32, u32), PolicyId),
    stamp: Stamp,
) -> Inode {
    let (make, len_bytes, modified) = match what {
        InstalledKind::Object { len_bytes, modified, .. } => {
            (&Make::Regular, *len_bytes, *modified)
        }
        InstalledKind::Directory { .. } => (&Make::Directory, 0, stamp.time),
        InstalledKind::Recorded(make) => (make, 0, stamp.time),
    };
    let mut inode = match record {
        Some(record) => Inode::recorded(ino, make, len_bytes, record.clone()),
        None => {
            let record = default_record(make.kind(), owner, modified);
            Inode { policy, ..Inode::recorded(ino, make, len_bytes, record) }
        }
    };
    inode.attr.version = stamp.version;
    inode
}

/// Attributes of names that other writers put into the bucket.
fn default_record(kind: FileKind, (uid, gid): (u32, u32), modified: Time) -> InstalledRecord {
    let mode = match kind {
        FileKind::Directory => 0o755,
        FileKind::Symlink => 0o777,
        _ => 0o644,
    };
    let (atime, mtime, ctime, btime) = (modified, modified, modified, modified);
    InstalledRecord {
        mode,
        nlink: 1,
        uid,
        gid,
        atime,
        mtime,
        ctime,
        btime,
        xattrs: Vec::new(),
        links: Vec::new(),
    }
}
