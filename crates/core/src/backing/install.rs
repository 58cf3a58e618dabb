//! Installs names from the bucket into the namespace.

use super::observe::{below, first_name};
use super::page::recorded_names;
use super::*;
use crate::content::ContentMut;
use crate::namespace::Change;

/// Names of a directory found in the bucket.
pub(super) struct InstallBatch<'a> {
    pub dir: Ino,
    pub prefix: String,
    pub entries: &'a [Installed],
    pub hidden: &'a [String],
    pub owner: (u32, u32),
    pub stamp: Stamp,
}

impl Backing {
    /// The directory's prefix, if the directory can take names and its epoch is unchanged.
    pub(super) fn prefix_to_load(
        &self,
        namespace: &Namespace,
        dir: Ino,
        epoch: u64,
    ) -> Option<String> {
        let is_current = self.is_open(dir) && self.load_epoch(dir) == Some(epoch);
        if is_current { self.prefix_of(namespace, dir) } else { None }
    }

    pub(super) fn install(
        &mut self,
        namespace: &mut Namespace,
        content: &mut ContentMut,
        batch: &InstallBatch,
        progress: &LoadProgress,
        changes: &mut Vec<Change>,
    ) -> Vec<Ino> {
        let InstallBatch { dir, ref prefix, entries, hidden, stamp, .. } = *batch;
        let names_before = namespace.last_cookie(dir);
        let mut missing = false;
        let recorded = recorded_names(entries);
        let takes_names = namespace.is_directory(dir);
        let mut plain: Vec<&Installed> = Vec::new();
        for entry in entries {
            let is_next = takes_names
                && plain.last().is_none_or(|last| last.name < entry.name && last.ino < entry.ino);
            if is_next && self.is_plain(namespace, batch, entry, &recorded) {
                plain.push(entry);
                continue;
            }
            self.install_plain(namespace, content, batch, std::mem::take(&mut plain));
            missing |= !self.install_entry(namespace, content, batch, entry, &recorded);
        }
        self.install_plain(namespace, content, batch, plain);
        // Clients that have listed a complete directory must see the new names.
        let grown = self.is_complete(dir) && namespace.last_cookie(dir) != names_before;
        if grown {
            namespace.listing_changed(dir, stamp);
        }
        for segment in hidden {
            // A page written after a backup can hide a segment that exists here.
            let child = keys::name_of(segment).and_then(|name| namespace.dentry(dir, &name));
            let is_here = child
                .and_then(|child| self.prefix_of(namespace, child.ino))
                .is_some_and(|own| own == format!("{prefix}{segment}/"));
            if !is_here && !self.former.contains_key(&(dir, segment.clone())) {
                self.hidden.insert(&(dir, segment.clone()), &());
            }
        }
        match progress {
            // A name that was not installed may be missing: the directory stays open.
            _ if missing => {}
            LoadProgress::Unchanged => {}
            LoadProgress::UpTo(last) => self.change_dir(dir, |dir| match &mut dir.load {
                Load::UpTo(before) if *before >= *last => {}
                load => *load = Load::UpTo(last.clone()),
            }),
            LoadProgress::Complete => self.complete(namespace, dir, changes),
        }
        if grown { vec![dir] } else { Vec::new() }
    }

    fn complete(&mut self, namespace: &mut Namespace, dir: Ino, changes: &mut Vec<Change>) {
        self.change_dir(dir, |dir| {
            dir.load = Load::Complete;
            dir.epoch += 1;
        });
        for name in below(&self.removed, dir, first_name()) {
            self.removed.remove(&name);
        }
        for segment in below(&self.former, dir, String::new()) {
            self.former.remove(&segment);
        }
        let lost: Vec<_> =
            self.unresolved_links.iter().filter(|(_, parent, _)| *parent == dir).collect();
        for (ino, _, name) in lost {
            self.name_lost(namespace, ino, dir, &name, changes);
        }
    }

    /// A record lists a name that does not exist.
    pub(super) fn name_lost(
        &mut self,
        namespace: &mut Namespace,
        ino: Ino,
        dir: Ino,
        name: &Name,
        changes: &mut Vec<Change>,
    ) {
        if self.unresolved_links.remove(ino, dir, name) {
            namespace.lose_unresolved_link(ino, changes);
        }
    }

    /// Whether name, object and inode are all new, and another writer created the object.
    fn is_plain(
        &self,
        namespace: &Namespace,
        batch: &InstallBatch,
        entry: &Installed,
        recorded: &BTreeMap<Ino, &[(Ino, Name)]>,
    ) -> bool {
        let InstallBatch { dir, ref prefix, .. } = *batch;
        let Installed { name, ino, what: InstalledKind::Object { key: None, .. }, record: None } =
            entry
        else {
            return false;
        };
        let place = keys::own_key(prefix, name, *ino);
        let is_claimed = || {
            let sent = self.uploads.values().any(|upload| upload.claims(&place));
            sent || self.explicit_keys.contains_key(&place)
                || self.deletes.contains_key(&place)
                || keys::long_of(&place).is_some()
        };
        let is_removed =
            || is_reserved(dir, name) || self.removed.contains_key(&(dir, name.clone()));
        namespace.is_vacant(dir, name, *ino)
            && !recorded.contains_key(ino)
            && !self.marked.contains(ino)
            && !is_removed()
            && !is_claimed()
    }

    /// Equivalent to [`Backing::install_entry`] of each [plain](Backing::is_plain) entry in order.
    fn install_plain(
        &mut self,
        namespace: &mut Namespace,
        content: &mut ContentMut,
        batch: &InstallBatch,
        entries: Vec<&Installed>,
    ) {
        if entries.is_empty() {
            return;
        }
        namespace.install_files(batch.dir, &entries, batch.owner, batch.stamp);
        let object = |entry: &&Installed| match &entry.what {
            InstalledKind::Object { etag, len_bytes, .. } => Some((
                entry.ino,
                BackingObject { key: None, etag: etag.clone(), len_bytes: *len_bytes },
            )),
            _ => None,
        };
        let homes: Vec<_> = entries.iter().filter_map(object).collect();
        content
            .set_objects(homes.iter().map(|(ino, object)| (*ino, &*object.etag, object.len_bytes)));
        self.files.extend(homes.into_iter().map(|(ino, object)| {
            (ino, FileBacking { object: Some(object), dirty: None, recorded: false })
        }));
    }

    /// Returns false if the name is neither present nor obsolete, so it can still be missing.
    fn install_entry(
        &mut self,
        namespace: &mut Namespace,
        content: &mut ContentMut,
        batch: &InstallBatch,
        entry: &Installed,
        recorded: &BTreeMap<Ino, &[(Ino, Name)]>,
    ) -> bool {
        let InstallBatch { dir, ref prefix, owner, stamp, .. } = *batch;
        let Installed { name, ino, what, record } = entry;
        if is_reserved(dir, name)
            || self.removed.contains_key(&(dir, name.clone()))
            || namespace.dentry(dir, name).is_some()
        {
            return true;
        }
        // A loaded inode gets a further name only if its record lists that name.
        if namespace.inode(*ino).is_some() && !self.awaits(*ino, dir, name) {
            return true;
        }
        let listed = || format!("{prefix}{}", keys::segment_of(name));
        let place = match what {
            InstalledKind::Object { key, .. } => key.clone().unwrap_or_else(listed),
            InstalledKind::Directory { prefix, .. } => {
                prefix.clone().unwrap_or_else(|| listed() + "/")
            }
            InstalledKind::Recorded(_) => String::new(),
        };
        let removed = |key: &str| {
            let own = key.strip_prefix(prefix).and_then(keys::name_of);
            own.is_some_and(|own| self.removed.contains_key(&(dir, own)))
        };
        let claimed = match what {
            InstalledKind::Object { .. } if removed(&place) => true,
            InstalledKind::Object { key, .. } => {
                let owner = match key {
                    Some(_) => self.owner(namespace, &place),
                    // The namespace does not have the name.
                    None => self.explicit_keys.get(&place),
                };
                let elsewhere = owner.is_some_and(|owner| owner != *ino);
                let sent = self
                    .uploads
                    .iter()
                    .any(|(other, upload)| other != ino && upload.claims(&place));
                elsewhere || sent || self.deletes.contains_key(&place)
            }
            InstalledKind::Directory { prefix: None, .. }
                if self.is_hidden(dir, &keys::segment_of(name)) =>
            {
                true
            }
            InstalledKind::Directory { .. } => {
                self.dir_at(namespace, &place).is_some_and(|other| other != *ino)
            }
            InstalledKind::Recorded(_) => false,
        };
        if claimed {
            return true;
        }
        let explicit_key = self.object_key(namespace, *ino);
        if !namespace.install(dir, entry, owner, stamp) {
            return false;
        }
        match what {
            InstalledKind::Object { etag, len_bytes, .. } => {
                let is_new = !self.files.contains_key(ino);
                if is_new {
                    let object =
                        BackingObject { key: None, etag: etag.clone(), len_bytes: *len_bytes };
                    self.files.insert(
                        ino,
                        &FileBacking {
                            object: Some(object),
                            dirty: None,
                            recorded: record.is_some(),
                        },
                    );
                    content.set_object(*ino, etag, *len_bytes);
                }
                // A file without a record has no other name, and its object is at the key of this
                // one.
                if is_new && record.is_none() && keys::own_key(prefix, name, *ino) == place {
                    debug_assert_eq!(self.key_of(namespace, *ino).as_ref(), Some(&place));
                } else {
                    self.set_object_key(namespace, *ino, explicit_key.unwrap_or(place), None);
                }
            }
            InstalledKind::Directory { page, .. } => {
                let recorded = record.is_some() || *page;
                let state = DirBacking {
                    load: Load::Unknown,
                    recorded,
                    stored: *page,
                    marked: true,
                    ..DirBacking::native()
                };
                self.dirs.insert(ino, &state);
                if self.own_prefix(namespace, *ino).as_ref() != Some(&place) {
                    self.redirect(*ino, place);
                }
            }
            InstalledKind::Recorded(_) => {}
        }
        let of_record = record.as_ref().map_or(&[][..], |record| &record.links);
        let names = recorded.get(ino).copied().unwrap_or(of_record);
        self.note_names(namespace, *ino, names, (dir, name));
        true
    }

    /// `names` are all names of the inode; `seen` is the one being installed.
    fn note_names(
        &mut self,
        namespace: &Namespace,
        ino: Ino,
        names: &[(Ino, Name)],
        seen: (Ino, &Name),
    ) {
        self.marked.remove(&ino);
        if !self.unresolved_links.has(ino) {
            if names.is_empty() || namespace.inode(ino).is_none_or(|inode| inode.names != 1) {
                return;
            }
            self.unresolved_links.insert(ino, names);
        }
        self.unresolved_links.remove(ino, seen.0, seen.1);
    }
}
