//! Listing a directory again that has all its names: what others have done to its objects (O-55).
//!
//! New names come by [`BackingCommand::Install`], as with the first listing. An object that is
//! another or gone is first asked for by itself, as a listing may be older than what was done
//! here since: [`Backing::contradicted`] says which.

use super::*;
use crate::tree::Value;
use std::collections::BTreeSet;

/// What the bucket must have of a name, if nobody else has changed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Nothing of the file waits to be sent or is under way.
    Object { ino: Ino, key: String, etag: String },
    /// Others have made the directory, and nothing about it is on record.
    Prefix { dir: Ino, prefix: String },
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
        // Where a listing may add names already, removals are noted since it began.
        let Some(prefix) = self.prefix_of(namespace, dir).filter(|_| !self.is_open(dir)) else {
            return;
        };
        self.change_dir(dir, |dir| {
            dir.load = Load::Revalidating;
            dir.epoch += 1;
        });
        self.keep_out_claimed(dir, &prefix);
    }

    /// A listing is about to be asked for that may add names to a directory which had all of them.
    /// What is on its way out may be in it, and claimed no longer when it is here.
    pub(super) fn keep_out_claimed(&mut self, dir: Ino, prefix: &str) {
        let uploads = self
            .uploads
            .values()
            .flat_map(|upload| upload.marker.iter().chain([&upload.key]))
            .cloned();
        let claimed = keys_below(&self.deletes, prefix)
            .chain(keys_below(&self.homes, prefix))
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

    /// The prefix that is to be listed, and the epoch that the answer belongs to. `None` unless
    /// the directory is being revalidated.
    pub fn revalidation_plan(&self, namespace: &Namespace, dir: Ino) -> Option<(String, u64)> {
        let state = self.dirs.get(&dir).filter(|dir| dir.load == Load::Revalidating)?;
        Some((self.prefix_of(namespace, dir)?, state.epoch))
    }

    /// An answer of another epoch says nothing about the directory.
    pub fn load_epoch(&self, dir: Ino) -> Option<u64> {
        self.dirs.get(&dir).map(|dir| dir.epoch)
    }

    /// Which inode an entry of a listing stands for, if it is as the namespace has it.
    pub fn agrees(&self, namespace: &Namespace, listed: &Listed) -> Option<Ino> {
        match listed {
            Listed::Prefix { key } => self.dir_at(namespace, key),
            Listed::Object { key, etag, .. } => {
                let ino = self.owner(namespace, key)?;
                (self.files.get(&ino)?.home?.etag == *etag).then_some(ino)
            }
        }
    }

    /// Names of the directory whose objects are not as the namespace has them, or not there:
    /// `agreed` are the inodes that the whole of a listing [agrees](Backing::agrees) on.
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

    /// `None` where the listing of the directory need not have anything: what it has waits to be
    /// changed, is elsewhere, or is on record besides.
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
        // What has several names is kept as long as any of them.
        let file = self.files.get(&ino).filter(|file| file.dirty.is_none())?;
        let home = file.home.filter(|home| home.key.is_none())?;
        let only = namespace.inode(ino).is_some_and(|inode| inode.attr.nlink == 1);
        only.then_some(Standing::Object { ino, key: self.key_of(namespace, ino)?, etag: home.etag })
    }

    /// Whether a directory that was found at `prefix` has nothing in it any more.
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
