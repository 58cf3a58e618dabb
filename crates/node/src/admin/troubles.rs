//! The current troubles and their beginnings, for `ebb status` and the log.

use crate::Node;
use crate::buckets::ask::{LONGEST_PAUSE, REFUSAL_INTERVAL};
use ebb_core::backing::Reserved;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::discriminant;
use std::ops::{Range, RangeBounds};
use std::time::Duration;

/// The most troubles of one kind that are reported singly; the rest is counted. A failing disk or
/// bucket causes one for every file.
const MAX_TOLD: usize = 64;

/// The most troubles of one kind that are kept, and logged. Any further ones are not recorded.
const MAX_KEPT: usize = 4096;

/// A failure that persists is retried, and reported again, within half of this.
const REST: Duration = LONGEST_PAUSE.saturating_mul(2);

/// The subject of a trouble.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// The node, its disk, or one of its buckets.
    Node(String),
    /// A block on the node's disk, as it was last written.
    Block { ino: Ino, block: u64, version: Version },
    /// Bytes of a file that could not be forced.
    Unforced(Ino),
    /// A file with bytes on another node alone, which cannot be had from there.
    Elsewhere(Ino),
    /// A file that the node's disk cannot read or write.
    Disk(Ino),
    /// A file that loses its fetched bytes again.
    Fetched(Ino),
    /// A file with a missing object, which had this tag.
    NoObject { ino: Ino, etag: String },
    /// An object's bytes from `at` up to `end` differ from the written ones.
    Content { key: String, at: u64, end: u64 },
    /// A `get`, `head` or `list` that the store refuses: of an object, or of the keys below a
    /// prefix.
    Refusal { key: String, request: String },
    /// A directory that cannot be listed.
    Listing(Ino),
    /// A renamed directory that keeps its redirect, as it cannot be listed.
    Redirect(Ino),
    /// A piece of a directory's page that is not there.
    Piece { dir: Ino, piece: u64 },
    /// A directory with a page that cannot be written.
    Page(Ino),
}

impl<T: AsRef<str> + ?Sized> From<&T> for Subject {
    fn from(name: &T) -> Subject {
        Subject::Node(name.as_ref().to_owned())
    }
}

struct Lasting {
    trouble: Trouble,
    /// When it was last reported, by the monotonic clock.
    reported: Duration,
}

#[derive(Default)]
pub struct Troubles {
    table: RefCell<BTreeMap<Subject, Lasting>>,
}

impl Troubles {
    /// Sets or ends a trouble. The time of its first report is kept for as long as it lasts.
    pub fn set(&self, subject: Subject, what: Option<String>, wall: Time, reported: Duration) {
        let mut table = self.table.borrow_mut();
        let Some(what) = what else {
            if let Some(over) = table.remove(&subject) {
                tracing::info!(what = over.trouble.what, "over");
            }
            return;
        };
        if let Some(lasting) = table.get_mut(&subject) {
            (lasting.trouble.what, lasting.reported) = (what, reported);
            return;
        }
        let kind = discriminant(&subject);
        let others = if table.len() + 1 < MAX_KEPT {
            0
        } else {
            table.keys().filter(|other| discriminant(*other) == kind).count()
        };
        if others >= MAX_KEPT {
            return;
        }
        tracing::warn!(what, "trouble");
        if others + 1 == MAX_KEPT {
            tracing::warn!("more of this kind is not logged until some of it is over");
        }
        table.insert(subject, Lasting { trouble: Trouble { since: wall, what }, reported });
    }

    /// Ends those of these subjects that are over. `is_over` gets the time of each one's last
    /// report.
    pub fn end(
        &self,
        subjects: impl RangeBounds<Subject>,
        is_over: impl Fn(&Subject, Duration) -> bool,
    ) {
        let mut table = self.table.borrow_mut();
        for (_, over) in
            table.extract_if(subjects, |subject, lasting| is_over(subject, lasting.reported))
        {
            tracing::info!(what = over.trouble.what, "over");
        }
    }

    pub fn reason(&self, subject: &Subject) -> Option<String> {
        self.table.borrow().get(subject).map(|lasting| lasting.trouble.what.clone())
    }

    pub fn has(&self, subject: &Subject) -> bool {
        self.table.borrow().contains_key(subject)
    }

    /// Ranges of an object that differ from the written ones.
    pub fn contents(&self, key: &str) -> Vec<Range<u64>> {
        let content = |at| Subject::Content { key: key.into(), at, end: at };
        let table = self.table.borrow();
        let contents =
            table.range(content(0)..=content(u64::MAX)).filter_map(|(subject, _)| match subject {
                Subject::Content { at, end, .. } => Some(*at..*end),
                _ => None,
            });
        contents.collect()
    }

    /// The refused request that was repeated longest ago, if that was before this time. It counts
    /// as repeated.
    pub fn take_refusal_of(&self, before: Duration) -> Option<(String, String)> {
        let mut table = self.table.borrow_mut();
        let (subject, lasting) = table
            .iter_mut()
            .filter(|(subject, lasting)| {
                matches!(subject, Subject::Refusal { .. }) && lasting.reported < before
            })
            .min_by_key(|(_, lasting)| lasting.reported)?;
        lasting.reported = before + REFUSAL_INTERVAL;
        match subject {
            Subject::Refusal { key, request } => Some((request.clone(), key.clone())),
            _ => None,
        }
    }

    /// Why the store refuses requests about this object.
    pub fn refusals(&self, key: &str) -> Vec<String> {
        let of = |request: &str| Subject::Refusal { key: key.into(), request: request.into() };
        let table = self.table.borrow();
        // The names of requests sort before "m": the last one begins with "l".
        table.range(of("")..of("m")).map(|(_, lasting)| lasting.trouble.what.clone()).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.table.borrow().is_empty()
    }

    /// Blocks of a file that were found damaged, with the versions that were damaged.
    fn blocks(&self, ino: Ino) -> Vec<(u64, Version)> {
        let block = |block, version| Subject::Block { ino, block, version };
        let table = self.table.borrow();
        let blocks = table
            .range(block(0, Version(0))..=block(u64::MAX, Version(u64::MAX)))
            .filter_map(|(subject, _)| match subject {
                Subject::Block { block, version, .. } => Some((*block, *version)),
                _ => None,
            });
        blocks.collect()
    }

    pub fn list(&self) -> Vec<Trouble> {
        let table = self.table.borrow();
        let all: Vec<(&Subject, &Trouble)> =
            table.iter().map(|(subject, lasting)| (subject, &lasting.trouble)).collect();
        let kinds = all.chunk_by(|(one, _), (other, _)| discriminant(*one) == discriminant(*other));
        kinds.flat_map(|kind| told(kind.iter().map(|(_, trouble)| *trouble))).collect()
    }
}

/// Troubles of one kind as they are reported.
pub fn told<'a>(mut troubles: impl Iterator<Item = &'a Trouble>) -> Vec<Trouble> {
    let mut told: Vec<Trouble> = troubles.by_ref().take(MAX_TOLD).cloned().collect();
    let rest: Vec<Time> = troubles.map(|trouble| trouble.since).collect();
    told.extend(rest.iter().min().map(|since| Trouble {
        since: *since,
        what: format!("and {} more of this kind", rest.len()),
    }));
    told
}

impl Node {
    /// Records that a trouble has begun, or has ended.
    pub(crate) fn trouble(&self, subject: impl Into<Subject>, what: Option<String>) {
        if what.is_some() || !self.instruments.troubles.is_empty() {
            self.instruments.troubles.set(
                subject.into(),
                what,
                self.ports.clock.wall(),
                self.ports.clock.monotonic(),
            );
        }
    }

    /// Blocks of a file that are known to be damaged and that the bucket does not have.
    pub(crate) fn damaged_blocks(&self, ino: Ino) -> Vec<u64> {
        let state = self.replica.view();
        let is_so = |block: u64, version| {
            state
                .extents()
                .block(ino, block)
                .is_some_and(|block| block.dirty && block.version == version)
        };
        self.instruments
            .troubles
            .blocks(ino)
            .into_iter()
            .filter(|(block, version)| is_so(*block, *version))
            .map(|(block, _)| block)
            .collect()
    }

    /// Ends troubles whose end raises no event.
    pub(crate) async fn end_troubles(&self) {
        if self.instruments.troubles.is_empty() {
            return;
        }
        let full = Subject::from("space");
        if self.instruments.troubles.has(&full) {
            let has_room = self
                .ports
                .disk
                .space()
                .await
                .is_ok_and(|space| space.free_bytes >= MAX_IO_BYTES as u64);
            let now = self.ports.clock.monotonic();
            self.instruments
                .troubles
                .end(full.clone()..=full, |_, reported| has_room && now >= reported + REST);
        }
        self.instruments.troubles.end(.., |subject, reported| self.is_over(subject, reported));
    }

    fn is_over(&self, subject: &Subject, reported: Duration) -> bool {
        let state = self.replica.view();
        let is_gone = |ino: Ino| state.namespace().inode(ino).is_none();
        match subject {
            Subject::Node(name) => self.is_over_by_name(name, reported),
            Subject::Block { ino, block, version } => {
                state.extents().block(*ino, *block).is_none_or(|block| block.version != *version)
            }
            Subject::Unforced(ino) => self.store.failure_of(*ino).is_none(),
            Subject::Elsewhere(ino) => self.held_elsewhere(*ino).is_none(),
            Subject::Disk(ino) => !state.extents().is_stored(*ino),
            Subject::Fetched(ino) => is_gone(*ino),
            Subject::NoObject { ino, etag } => {
                state.extents().object(*ino).is_none_or(|home| home.etag != *etag)
            }
            Subject::Content { key, .. } if key.starts_with(".ebb/") => {
                state.backing().reserved(state.namespace(), key, state.backing().is_loaded())
                    == Reserved::Unreferenced
            }
            Subject::Content { key, .. } => state.backing().owner(state.namespace(), key).is_none(),
            Subject::Refusal { request, .. } if request == "list" => false,
            Subject::Refusal { key, .. } if key.starts_with(".ebb/") => {
                state.backing().reserved(state.namespace(), key, state.backing().is_loaded())
                    == Reserved::Unreferenced
            }
            Subject::Refusal { key, .. } => state.backing().owner(state.namespace(), key).is_none(),
            Subject::Listing(dir) | Subject::Piece { dir, .. } => {
                is_gone(*dir) || state.backing().is_complete(*dir)
            }
            Subject::Redirect(dir) => !self.is_unlistable(*dir),
            Subject::Page(dir) => !state.backing().is_dirty(*dir),
        }
    }

    fn is_over_by_name(&self, name: &str, reported: Duration) -> bool {
        if name == "room" {
            return self.has_room_again();
        }
        let (rested, now) = (reported + REST, self.ports.clock.monotonic());
        let is = |what: &str, bucket_index| *name == self.buckets.subject(what, bucket_index);
        // A successful write also shows that the bucket can be reached. A successful read does not
        // show that it accepts writes.
        self.buckets.bucket_indexes().any(|bucket_index| {
            let answers = self.buckets.answers(bucket_index);
            is("bucket reads", bucket_index) && answers.any.get() > rested
                || is("bucket writes", bucket_index)
                    && (answers.writes.get() > rested || self.replica.view().backing().is_settled())
        }) || name == "revalidation"
            && now >= self.names.revalidation_rests_until()
            && self
                .buckets
                .bucket_indexes()
                .all(|bucket_index| self.buckets.answers(bucket_index).any.get() > reported)
    }
}

#[cfg(test)]
mod tests;
