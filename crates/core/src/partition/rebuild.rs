//! Rebuilds a partition from a backup and the current contents of the bucket (decision 14).
//!
//! Laws:
//! - Names and attributes come from the backup; bytes come from the bucket.
//! - Every file whose bytes differ from the backup's is reported as a loss.
//! - Inode ids of the node since the backup are never reused: the new ids are above them.

use super::{Inconsistent, Partition};
use crate::backing::{Listed, Listing, Loss, Object, Scope, keys};
use crate::content::ContentMut;
use crate::namespace::Ids;
use ebb_model::*;
use std::collections::{BTreeMap, BTreeSet};

/// Input besides the backup.
pub struct Remains<'a> {
    /// All objects in the bucket, by key.
    pub objects: &'a BTreeMap<String, Object>,
    /// Objects that hold a file's bytes under another key than in the backup.
    pub moved: &'a BTreeMap<Ino, String>,
    /// Ids of the new owner of the volume, above all of the backup's.
    pub ids: IdRange,
    /// Draws the slot of a new directory.
    pub new_slot: &'a dyn Fn() -> Slot,
    /// User and group of names that other writers put into the bucket.
    pub owner: (u32, u32),
    pub now: Time,
}

/// Result of [`Partition::rebuilt`].
pub struct Rebuilt {
    pub partition: Partition,
    /// Keys of objects that belong to no file of the backup.
    pub others: Vec<String>,
    /// Files whose bytes differ from the backup's.
    pub losses: BTreeMap<Ino, Loss>,
}

impl Partition {
    /// Restores names and attributes from the backup, bytes from the bucket, and adds names that
    /// the bucket gained since. The log starts empty: `applied` becomes 0.
    ///
    /// All sessions end; clients cannot resume them.
    pub fn rebuilt(mut self, remains: &Remains) -> Result<Rebuilt, Inconsistent> {
        // Ids that the node assigned after the backup must not be assigned again.
        self.namespace.ids = Ids::begin(remains.ids);
        let sessions: Vec<SessionId> = self.sessions.iter().map(|(session, _)| session).collect();
        sessions.into_iter().for_each(|session| self.follow(Command::SessionClose { session }));
        let uploads: Vec<Ino> = self.backing.uploads().map(|(ino, _)| ino).collect();
        uploads
            .into_iter()
            .for_each(|ino| self.follow(Command::Backing(BackingCommand::UploadAborted { ino })));
        let stamp = self.stamp(remains);
        self.version = stamp.version;
        let Partition { backing, namespace, content, .. } = &mut self;
        // No node has extents.
        let changes = &mut Vec::new();
        let content = &mut ContentMut::new(content, changes);
        backing.follow_prefixes(namespace, remains.objects, stamp.time);
        backing.keep_deletes(remains.objects);
        let losses =
            backing.rebuild_files(namespace, content, remains.objects, remains.moved, stamp);
        backing.rebuild_directories(namespace, remains.objects, stamp.time);
        let others = self.unclaimed(remains.objects);
        self.find_names(remains);
        self.applied = LogIndex(0);
        let problems = self.check();
        if problems.is_empty() {
            Ok(Rebuilt { partition: self, others, losses })
        } else {
            Err(Inconsistent { problems })
        }
    }

    fn unclaimed(&self, objects: &BTreeMap<String, Object>) -> Vec<String> {
        let claimed: BTreeSet<String> = self
            .backing
            .files()
            .filter_map(|ino| self.backing.object_key(&self.namespace, ino))
            .collect();
        let is_page = |key: &str| [".ebb/d/", ".ebb/e/"].iter().any(|pages| key.starts_with(pages));
        let is_file =
            |key: &&String| !key.ends_with('/') && !is_page(key) && !keys::is_of_the_volume(key);
        let is_free =
            |key: &&String| !claimed.contains(*key) && !self.backing.is_to_be_deleted(key);
        objects.keys().filter(is_file).filter(is_free).cloned().collect()
    }

    fn stamp(&self, remains: &Remains) -> Stamp {
        Stamp { time: remains.now, version: self.next_version() }
    }

    fn follow(&mut self, command: Command) {
        self.apply(LogIndex(self.applied.0 + 1), &command);
    }

    /// Installs new names of the bucket in directories that were completely loaded, and the
    /// subtrees of new directories.
    fn find_names(&mut self, remains: &Remains) {
        let mut todo: Vec<Ino> =
            self.backing.directories(Ino(0)).filter(|dir| self.backing.is_complete(*dir)).collect();
        while let Some(dir) = todo.pop() {
            let Some((prefix, epoch)) = self.backing.begin_listing(&self.namespace, dir) else {
                continue;
            };
            let listed = listed_below(&prefix, remains.objects);
            let listing =
                Listing { dir, entries: &listed, page: None, scope: Scope::Next, after: None };
            let mut draw = self.namespace.draw_ids(0);
            let found = self.backing.interpret(&self.namespace, &listing, |kind| {
                let slot = match kind {
                    FileKind::Directory => (remains.new_slot)(),
                    _ => dir.slot(),
                };
                draw.draw(slot).unwrap_or(Ino::NONE)
            });
            let made: Vec<Ino> = found.entries.iter().map(|entry| entry.ino).collect();
            let (progress, stamp) = (LoadProgress::Complete, self.stamp(remains));
            let (entries, hidden, owner) = (found.entries, found.hidden, remains.owner);
            self.follow(Command::Backing(BackingCommand::Install {
                dir,
                epoch,
                entries,
                hidden,
                owner,
                progress,
                stamp,
            }));
            todo.extend(made.into_iter().filter(|ino| self.backing.is_untouched(*ino)));
        }
    }
}

/// Groups keys like a bucket's listing by directory.
fn listed_below(prefix: &str, objects: &BTreeMap<String, Object>) -> Vec<Listed> {
    let mut listed = Vec::new();
    let mut from = prefix.to_owned();
    while let Some((key, object)) =
        objects.range(from..).next().filter(|(key, _)| key.starts_with(prefix))
    {
        match key[prefix.len()..].find('/') {
            Some(at) => {
                let below = &key[..prefix.len() + at];
                listed.push(Listed::Prefix { key: format!("{below}/") });
                // The first key after the prefix `below/`: `0` is the character after `/`.
                from = format!("{below}0");
            }
            None => {
                let Object { etag, len_bytes, modified } = object.clone();
                listed.push(Listed::Object { key: key.clone(), etag, len_bytes, modified });
                from = format!("{key}\0");
            }
        }
    }
    listed
}
