//! Revalidation: lists a complete directory again to find changes of other writers (O-55).
//!
//! New names arrive by [`BackingCommand::Install`], as from the first listing. An object that
//! changed or disappeared is first requested on its own, since a listing can be older than changes
//! made here: [`Backing::contradicted`] returns such names.

use super::*;
use crate::tree::Value;
use std::collections::BTreeSet;

/// The object or prefix that the bucket must hold for a name, unless another writer changed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The file has no outstanding change and no upload.
    Object { ino: Ino, key: String, etag: String },
    /// Another writer created the directory, and no record of it exists.
    Prefix { dir: Ino, prefix: String },
}

/// How the namespace shows what was listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shows {
    /// It has it, or another place for it, or knows that it is about to go.
    Otherwise,
    /// Nothing has the name any more that was in the way.
    NotYet,
    /// It has no name, or something else has that.
    Nowhere,
}

impl Standing {
    fn ino(&self) -> Ino {
        match self {
            Standing::Object { ino, .. } | Standing::Prefix { dir: ino, .. } => *ino,
        }
    }
}

impl Backing {
    pub(super) fn revalidating(&mut self, namespace: &Namespace, dir: Ino) {
        // If a listing can add names already, removals have been recorded since it began.
        let Some(prefix) = self.prefix_of(namespace, dir).filter(|_| !self.is_open(dir)) else {
            return;
        };
        self.change_dir(dir, |dir| {
            dir.load = Load::Revalidating;
            dir.epoch += 1;
        });
        self.keep_out_claimed(dir, &prefix);
    }

    /// Call before a listing that can add names to a complete directory. It can contain objects
    /// that are being moved or deleted now, with claims that end before the listing arrives: mark
    /// their names as removed.
    pub(super) fn keep_out_claimed(&mut self, dir: Ino, prefix: &str) {
        let uploads = self
            .uploads
            .values()
            .flat_map(|upload| upload.marker.iter().chain([&upload.key]))
            .cloned();
        let claimed = keys_below(&self.deletes, prefix)
            .chain(keys_below(&self.explicit_keys, prefix))
            .chain(keys_below(&self.redirects, prefix));
        let segments = claimed
            .chain(uploads)
            .filter_map(|key| key.strip_prefix(prefix)?.split('/').next().map(str::to_owned));
        let names: BTreeSet<Name> = segments
            .filter_map(|segment| keys::name_of(&segment))
            .filter(|name| !is_reserved(dir, name))
            .collect();
        for name in names {
            self.removed.insert(&(dir, name), &());
        }
    }

    /// The prefix to list, and the epoch of the listing. `None` unless the directory is being
    /// revalidated.
    pub fn revalidation_plan(&self, namespace: &Namespace, dir: Ino) -> Option<(String, u64)> {
        let state = self.dirs.get(&dir).filter(|dir| dir.load == Load::Revalidating)?;
        Some((self.prefix_of(namespace, dir)?, state.epoch))
    }

    /// A listing requested in another epoch is ignored.
    pub fn load_epoch(&self, dir: Ino) -> Option<u64> {
        self.dirs.get(&dir).map(|dir| dir.epoch)
    }

    /// The inode of a listing's entry, if the entry matches the namespace.
    pub fn agrees(&self, namespace: &Namespace, listed: &Listed) -> Option<Ino> {
        match listed {
            Listed::Prefix { key } => self.dir_at(namespace, key),
            Listed::Object { key, etag, .. } => {
                let ino = self.owner(namespace, key)?;
                (self.files.get(&ino)?.object?.etag == *etag).then_some(ino)
            }
        }
    }

    /// How an entry of a listing that was entered is shown.
    pub fn shows(&self, namespace: &Namespace, dir: Ino, listed: &Listed) -> Shows {
        let Some(prefix) = self.prefix_of(namespace, dir) else { return Shows::Otherwise };
        let key = listed.key();
        let Some(rest) = key.strip_prefix(&prefix) else { return Shows::Otherwise };
        let segment = rest.strip_suffix('/').unwrap_or(rest);
        let is_prefix = matches!(listed, Listed::Prefix { .. });
        let is_marker = !is_prefix && (segment.is_empty() || key.ends_with('/'));
        let is_reserved = dir == Ino::ROOT && segment == keys::RESERVED;
        let is_elsewhere = is_prefix
            && (self.is_hidden(dir, segment) || self.redirects.contains_key(&key.to_owned()));
        if is_marker || is_reserved || is_elsewhere {
            return Shows::Otherwise;
        }
        let Some(name) = keys::name_of(segment) else { return Shows::Nowhere };
        let is_leaving = self.removed.contains_key(&(dir, name.clone()))
            || self.deletes.contains_key(&key.to_owned())
            || self.uploads.values().any(|upload| upload.keys().any(|own| own.starts_with(key)));
        let is_known = match is_prefix {
            true => self.dir_at(namespace, key).is_some(),
            false => self.owner(namespace, key).is_some(),
        };
        if is_leaving || is_known {
            return Shows::Otherwise;
        }
        let name = match self.keeps_directory(namespace, dir, &name) && !is_prefix {
            true => keys::name_of_shadowed(&name),
            false => Some(name),
        };
        match name.map(|name| namespace.dentry(dir, &name)) {
            Some(None) => Shows::NotYet,
            None | Some(Some(_)) => Shows::Nowhere,
        }
    }

    /// The name is that of a directory, and stays so if the bucket has nothing of it.
    pub(super) fn keeps_directory(&self, namespace: &Namespace, dir: Ino, name: &Name) -> bool {
        namespace.dentry(dir, name).is_some_and(|child| child.kind == FileKind::Directory)
            && self.standing(namespace, dir, name).is_none()
    }

    /// Names of the directory with objects that differ from the namespace or are missing. `agreed`:
    /// inodes that the complete listing [agrees](Backing::agrees) on.
    pub fn contradicted(
        &self,
        namespace: &Namespace,
        dir: Ino,
        agreed: &BTreeSet<Ino>,
    ) -> Vec<Name> {
        let names = namespace.children(dir).map(|(name, _)| name);
        let doubtful = |name: &Name| {
            self.standing(namespace, dir, name)
                .is_some_and(|standing| !agreed.contains(&standing.ino()))
        };
        names.filter(doubtful).collect()
    }

    /// `None` if the listing need not contain the name: its object is about to change, is
    /// elsewhere, or has a record.
    pub fn standing(&self, namespace: &Namespace, dir: Ino, name: &Name) -> Option<Standing> {
        let ino = namespace.dentry(dir, name)?.ino;
        if self.uploads.contains_key(&ino) {
            return None;
        }
        if let Some(state) = self.dirs.get(&ino) {
            let found = !state.recorded && state.prefix.is_none() && state.dirty.is_none();
            return found
                .then_some(Standing::Prefix { dir: ino, prefix: self.prefix_of(namespace, ino)? });
        }
        // An inode with several names exists as long as one of them.
        let file = self.files.get(&ino).filter(|file| file.dirty.is_none())?;
        let object = file.object.filter(|object| object.key.is_none())?;
        let only = namespace.inode(ino).is_some_and(|inode| inode.attr.nlink == 1);
        only.then_some(Standing::Object {
            ino,
            key: self.key_of(namespace, ino)?,
            etag: object.etag,
        })
    }

    /// Whether a directory found at `prefix` has no names any more.
    pub fn is_deserted(&self, namespace: &Namespace, dir: Ino, name: &Name, prefix: &str) -> bool {
        let Some(Dentry { ino, .. }) = namespace.dentry(dir, name) else { return false };
        let here = self.dirs.contains_key(&ino)
            && self.is_complete(ino)
            && self.prefix_of(namespace, ino).as_deref() == Some(prefix);
        here && !self.uploads.contains_key(&ino) && !namespace.has_more_names_than(ino, 0)
    }
}

pub(super) fn keys_below<V: Value<String>>(
    tree: &Tree<String, V>,
    prefix: &str,
) -> impl Iterator<Item = String> {
    tree.range(prefix.to_owned()..)
        .map(|(key, _)| key)
        .take_while(move |key| key.starts_with(prefix))
}
