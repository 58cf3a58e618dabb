//! Applies commands of the log to the backing.

use super::install::InstallBatch;
use super::*;
use crate::content::ContentMut;
use crate::namespace::Change;
use std::ops::Range;

impl Backing {
    /// Returns the inodes with stale caches. `now` is the partition's last version.
    pub(crate) fn apply(
        &mut self,
        now: Version,
        command: &BackingCommand,
        namespace: &mut Namespace,
        content: &mut ContentMut,
        changes: &mut Vec<Change>,
    ) -> Vec<Ino> {
        if !self.backed {
            return Vec::new();
        }
        match command {
            BackingCommand::Install { dir, epoch, entries, hidden, owner, progress, stamp } => {
                let Some(prefix) = self.prefix_to_load(namespace, *dir, *epoch) else {
                    return Vec::new();
                };
                let batch = InstallBatch {
                    dir: *dir,
                    prefix,
                    entries,
                    hidden,
                    owner: *owner,
                    stamp: *stamp,
                };
                return self.install(namespace, content, &batch, progress, changes);
            }
            BackingCommand::UploadBegun { ino, key, upload } => {
                self.upload_begun(namespace, content, *ino, key, upload.as_ref(), now)
            }
            BackingCommand::UploadAborted { ino } => {
                self.uploads.remove(ino);
                content.upload_aborted(*ino);
                self.pieces_aborted(*ino);
            }
            BackingCommand::UploadLate { ino } => {
                if let Some(upload) = self.uploads.get_mut(ino) {
                    upload.late = true;
                }
            }
            BackingCommand::Uploaded { ino, key, etag, len_bytes, version }
            | BackingCommand::UploadedMapped { ino, key, etag, len_bytes, version, .. } => {
                let changed = match command {
                    BackingCommand::UploadedMapped { changed, .. } => ranges(changed),
                    _ => Vec::new(),
                };
                let is_late = self.uploads.remove(ino).is_some_and(|upload| upload.late);
                let version = if is_late { Version(0) } else { *version };
                let object = BackingObject { key: None, etag: etag.clone(), len_bytes: *len_bytes };
                if self.settle(namespace, *ino, key, object, Some(version)) {
                    content.uploaded(*ino, etag, *len_bytes, version, changed);
                }
            }
            BackingCommand::Moved { ino, key, etag } => {
                self.uploads.remove(ino);
                let len_bytes = self
                    .files
                    .get(ino)
                    .and_then(|file| file.object)
                    .map_or(0, |object| object.len_bytes);
                if self.settle(
                    namespace,
                    *ino,
                    key,
                    BackingObject { key: None, etag: etag.clone(), len_bytes },
                    None,
                ) {
                    content.upload_aborted(*ino);
                    content.moved(*ino, etag);
                }
            }
            BackingCommand::Deleted { key } => {
                self.deletes.remove(key);
            }
            BackingCommand::PageWritten { dir, etag, .. } => {
                self.whole_page_written(*dir);
                self.page_written(*dir, etag);
            }
            BackingCommand::PiecesFound { dir, pieces, end, now } => {
                self.pieces_found(namespace, *dir, pieces, end.as_ref(), *now)
            }
            BackingCommand::PiecesBegun { dir, ids } => self.pieces_begun(*dir, ids),
            BackingCommand::PiecesReplaced { dir, gone, pieces } => {
                self.pieces_replaced(*dir, gone, pieces)
            }
            BackingCommand::PiecesWritten { dir, etag, .. } => {
                self.pieces_written(*dir);
                self.page_written(*dir, etag);
            }
            BackingCommand::Unredirect { dir } => self.give_up_redirect(namespace, *dir, false),
            BackingCommand::MakeWay { dir } => self.give_up_redirect(namespace, *dir, true),
            BackingCommand::Replaced { ino, etag, len_bytes, modified, stamp } => {
                return self.replaced(
                    namespace,
                    content,
                    *ino,
                    etag,
                    (*len_bytes, *modified),
                    *stamp,
                );
            }
            BackingCommand::Vanished { parent, name, stamp } => {
                self.vanished(namespace, content, (*parent, name), &[], *stamp, changes)
            }
            BackingCommand::VanishedKept { parent, name, kept, stamp } => {
                self.vanished(namespace, content, (*parent, name), kept, *stamp, changes)
            }
            BackingCommand::Revalidating { dir } => self.revalidating(namespace, *dir),
            BackingCommand::SendAgain { ino, stamp } => {
                self.send_again(namespace, content, *ino, *stamp)
            }
            BackingCommand::Forget { dir, inos } => {
                let forgotten = self.forget(namespace, content.view(), *dir, inos, changes);
                return if forgotten { vec![*dir] } else { Vec::new() };
            }
            BackingCommand::RolledBack { ino, etag, len_bytes, modified, stamp } => {
                return self.rolled_back(
                    namespace,
                    content,
                    *ino,
                    etag,
                    (*len_bytes, *modified),
                    *stamp,
                );
            }
        }
        Vec::new()
    }

    fn page_written(&mut self, dir: Ino, etag: &str) {
        let begun = self.uploads.remove(&dir).is_some();
        self.change_dir(dir, |dir| {
            dir.page = Some(etag.into());
            if begun && dir.dirty.as_ref().is_some_and(|dirty| !dirty.again) {
                dir.dirty = None;
            }
        });
    }

    fn upload_begun(
        &mut self,
        namespace: &Namespace,
        content: &mut ContentMut,
        ino: Ino,
        key: &str,
        upload: Option<&String>,
        now: Version,
    ) {
        let marker = self.marker(namespace, ino);
        let from = self
            .backing_object(namespace, ino)
            .filter(|(object, _)| object != key)
            .map(|(_, object)| object.etag);
        // An upload that gets its id later keeps its first version.
        let since = self.uploads.get(&ino).map_or(now, |begun| begun.since);
        self.uploads.insert(
            ino,
            Upload {
                key: key.into(),
                upload: upload.cloned(),
                since,
                marker: marker.clone(),
                from,
                late: false,
            },
        );
        if Planted::DeletedBeforeMoved.is_on()
            && let Some((old, home)) = self.backing_object(namespace, ino)
            && old != key
        {
            self.deletes.insert(&old, &Some(home.etag));
        }
        if self.files.contains_key(&ino) {
            content.upload_begun(ino, now);
        }
        self.pieces_sent(ino);
        self.change_dir(ino, |dir| {
            dir.stored = true;
            dir.marked |= marker.is_some();
            if let Some(dirty) = &mut dir.dirty {
                dirty.again = false;
            }
        });
    }

    /// The object of `ino` is at `key`, with bytes up to `version`, or only moved if `None`.
    /// Returns false if the file was removed, so the object is deleted.
    fn settle(
        &mut self,
        namespace: &Namespace,
        ino: Ino,
        key: &str,
        object: BackingObject,
        version: Option<Version>,
    ) -> bool {
        let etag = object.etag.clone();
        if !self.files.contains_key(&ino)
            || version.is_none() && self.object_key(namespace, ino).is_none()
        {
            self.deletes.insert(&key.into(), &Some(etag));
            return false;
        }
        if let Some((old, old_home)) = self.backing_object(namespace, ino)
            && old != key
        {
            self.deletes.insert(&old, &Some(old_home.etag));
        }
        // If the file changed during the upload, the last change is the age of the remaining dirt.
        let changed = namespace.inode(ino).map_or(Time::default(), |inode| inode.attr.ctime);
        // `set_object_key` needs the explicit key to remove it from the index.
        self.change_file(ino, |file| {
            let key = file.object.take().and_then(|object| object.key);
            file.object = Some(BackingObject { key, ..object });
            if let (Some(dirty), Some(version)) = (&mut file.dirty, version) {
                match dirty.content <= Some(version) {
                    true => dirty.content = None,
                    // All changes up to `version` are in the object.
                    false => dirty.since = changed,
                }
            }
        });
        let since =
            self.files.get(&ino).and_then(|file| file.dirty).map_or(changed, |dirty| dirty.since);
        self.set_object_key(namespace, ino, key.into(), Some(since));
        self.record(namespace, ino, since);
        true
    }

    /// `in_any_case`: use a private prefix if the path's is in use.
    pub(super) fn give_up_redirect(&mut self, namespace: &Namespace, dir: Ino, in_any_case: bool) {
        let Some((prefix, is_taken)) = self.redirect_to_give_up(namespace, dir) else { return };
        if is_taken && !in_any_case {
            return;
        }
        let now = namespace.inode(dir).map_or(Time::default(), |inode| inode.attr.ctime);
        let children: Vec<Dentry> = namespace.children(dir).map(|(_, child)| child).collect();
        let homes: Vec<_> = children
            .iter()
            .map(|child| (child.ino, self.object_key(namespace, child.ino)))
            .collect();
        let prefixes: Vec<_> = children
            .iter()
            .filter(|child| self.dirs.get(&child.ino).is_some_and(|dir| dir.prefix.is_none()))
            .filter_map(|child| Some((child.ino, self.prefix_of(namespace, child.ino)?)))
            .collect();
        self.unredirect(namespace, dir, &prefix, now);
        if is_taken {
            self.redirect(dir, keys::private_prefix(dir));
        }
        self.leave_prefix(namespace, dir, &prefix, now);
        if self.dirs.get(&dir).is_some_and(|dir| dir.marked) {
            self.deletes.insert(&prefix, &None);
            self.change_dir(dir, |dir| dir.marked = false);
        }
        for (child, prefix) in prefixes {
            if self.own_prefix(namespace, child).as_ref() != Some(&prefix) {
                self.redirect(child, prefix.clone());
                self.hide(namespace, &prefix, now);
            }
        }
        for (child, object) in homes {
            if let Some(object) = object {
                self.set_object_key(namespace, child, object, Some(now));
            }
            self.record(namespace, child, now);
        }
        self.directory_changed(namespace, dir, now);
    }

    fn replaced(
        &mut self,
        namespace: &mut Namespace,
        content: &mut ContentMut,
        ino: Ino,
        etag: &str,
        (len_bytes, modified): (u64, Time),
        stamp: Stamp,
    ) -> Vec<Ino> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        let changed_here = file.dirty.as_ref().is_some_and(|dirty| dirty.content.is_some())
            && !Planted::OutsiderWins.is_on();
        // An upload in progress is based on the former object; its end determines the result.
        if file.object.is_none() || self.uploads.contains_key(&ino) {
            return Vec::new();
        }
        self.change_file(ino, |file| {
            if let Some(object) = &mut file.object {
                object.etag = etag.into();
                object.len_bytes = len_bytes;
            }
        });
        content.replaced(ino, etag, len_bytes, changed_here);
        if !changed_here {
            namespace.replace_content(ino, len_bytes, modified, stamp);
        }
        vec![ino]
    }

    fn vanished(
        &mut self,
        namespace: &mut Namespace,
        content: &mut ContentMut,
        (parent, name): (Ino, &Name),
        kept: &[(u64, u64)],
        stamp: Stamp,
        changes: &mut Vec<Change>,
    ) {
        let recorded: Vec<Ino> = self
            .unresolved_links
            .iter()
            .filter(|(_, dir, recorded)| (*dir, recorded) == (parent, name))
            .map(|(ino, ..)| ino)
            .collect();
        if !recorded.is_empty() {
            for ino in recorded {
                self.name_lost(namespace, ino, parent, name, changes);
            }
            // The name now belongs to another inode, which the command does not concern.
            return;
        }
        let Some(dentry) = namespace.dentry(parent, name) else { return };
        let changed_here = self
            .files
            .get(&dentry.ino)
            .and_then(|file| file.dirty)
            .is_some_and(|dirty| dirty.content.is_some());
        if let Some(key) = self.explicit_key(dentry.ino) {
            self.explicit_keys.remove(&key);
        }
        self.change_file(dentry.ino, |file| {
            file.object = None;
            file.dirty = file
                .dirty
                .take()
                .filter(|dirty| dirty.content.is_some())
                .map(|dirty| Dirty { content: Some(stamp.version), moving: false, ..dirty });
        });
        // Before the object goes: they are its blocks, and from now on nowhere else.
        content.dirtied(dentry.ino, ranges(kept), stamp.version);
        content.forget_object(dentry.ino);
        self.change_dir(dentry.ino, |dir| dir.marked = false);
        // Bytes written here and not sent yet outlive the object.
        if !changed_here {
            namespace.remove_installed(parent, name, stamp, changes);
        }
    }
}

/// Runs of blocks in a command.
fn ranges(runs: &[(u64, u64)]) -> Vec<Range<u64>> {
    runs.iter().map(|&(first, end)| first..end).collect()
}
