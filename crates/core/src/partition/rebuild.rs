//! A partition of which a backup is left, and the bucket as it is by now (decision 14).

use super::{Inconsistent, Partition};
use crate::backing::{Listed, Listing, Loss, Object, Scope, keys};
use ebb_model::*;
use std::collections::{BTreeMap, BTreeSet};

/// What there is besides the backup.
pub struct Remains<'a> {
    /// Everything in the bucket, by key.
    pub objects: &'a BTreeMap<String, Object>,
    /// Objects that have another key than the backup's, of files that they are the content of.
    pub moved: &'a BTreeMap<Ino, String>,
    /// Of the one who has taken over the volume: higher than the backup's.
    pub incarnation: Incarnation,
    /// Whose what others have put into the bucket is.
    pub owner: (u32, u32),
    pub now: Time,
}

pub struct Rebuilt {
    pub partition: Partition,
    /// Keys of objects that no file of the backup has.
    pub others: Vec<String>,
    /// Files whose content is not as it was.
    pub losses: BTreeMap<Ino, Loss>,
}

impl Partition {
    /// Names and attributes as they were, content as the bucket has it, and names that the bucket
    /// has got since. Nothing of it is in a log: the commands behind it begin anew.
    ///
    /// What was open is closed, and clients do not come back.
    pub fn rebuilt(mut self, remains: &Remains) -> Result<Rebuilt, Inconsistent> {
        // Ids that the node has given out since the backup are not given out again.
        self.namespace.incarnation = remains.incarnation;
        let sessions: Vec<SessionId> = self.sessions.iter().map(|(session, _)| session).collect();
        sessions.into_iter().for_each(|session| self.follow(Command::SessionClose { session }));
        let uploads: Vec<Ino> = self.backing.uploads().map(|(ino, _)| ino).collect();
        uploads
            .into_iter()
            .for_each(|ino| self.follow(Command::Backing(BackingCommand::UploadAborted { ino })));
        let stamp = self.stamp(remains);
        self.version = stamp.version;
        let Partition { backing, namespace, extents, .. } = &mut self;
        backing.follow_prefixes(namespace, remains.objects, stamp.time);
        backing.keep_deletes(remains.objects);
        let losses =
            backing.rebuild_files(namespace, extents, remains.objects, remains.moved, stamp);
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
            .filter_map(|ino| self.backing.home_key(&self.namespace, ino))
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
        // No bytes are here that effects could be for.
        self.apply(LogIndex(self.applied.0 + 1), &command);
    }

    /// What is in the bucket of directories all of whose names were known comes in, and all that is
    /// below it.
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
            let found =
                self.backing.interpret(&self.namespace, &listing, self.namespace.next_inos(dir));
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

/// As a bucket lists by directory.
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
                // The first key that is not below it: what follows `/` is `0`.
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
