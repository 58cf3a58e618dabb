//! Flushes to the bucket, step by step.

use super::world::{Dice, Flight, SESSION, Stored, Tag, World};
use ebb_core::backing::{DirtyWork, Drafted, FlushStep, PageStep, keys};
use ebb_model::*;
use std::collections::{BTreeSet, VecDeque};

/// Low, so directories with a few names have pages in pieces.
const PIECE_ENTRIES: usize = 2;
/// Low, so several records carry the pieces.
pub const RECORD_PIECES: usize = 2;

impl World {
    pub fn store(&mut self, key: &str, body: Vec<u8>, tag: Option<Tag>) -> Stored {
        self.etags += 1;
        let stored = Stored { etag: format!("e{}", self.etags), body, tag };
        self.bucket.insert(key.into(), stored.clone());
        stored
    }

    pub fn begin_flush(&mut self, dice: &mut Dice) {
        let work: Vec<DirtyWork> =
            self.state.backing().dirty_work().map(|(_, work)| work).collect();
        if let Some(work) = dice.of(&work) {
            self.begin(work);
        }
    }

    pub fn begin(&mut self, work: DirtyWork) {
        self.attempts += 1;
        let attempt = self.attempts;
        if let DirtyWork::Page(dir) = work {
            self.tell_pieces(dir);
        }
        let (backing, namespace) = (self.state.backing(), self.state.namespace());
        match work {
            DirtyWork::File(ino) => match backing.flush_step(namespace, ino) {
                FlushStep::Put { key, replaces } => {
                    self.announce(ino, &key, attempt);
                    self.flights.push(Flight::Put { ino, key, replaces, attempt });
                }
                FlushStep::Move { from, to, etag } => {
                    self.announce(ino, &to, attempt);
                    self.flights.push(Flight::Copy { ino, from, to, etag, attempt });
                }
                FlushStep::Evict { occupant, from, to, etag } => {
                    self.announce(occupant, &to, attempt);
                    self.flights.push(Flight::Copy { ino: occupant, from, to, etag, attempt });
                }
                FlushStep::AwaitDelete { key } => self.delete(&key),
                FlushStep::AwaitUpload { .. } | FlushStep::MakeWay { .. } | FlushStep::Nothing => {}
            },
            DirtyWork::Page(dir) => match backing.page_step(namespace, dir) {
                PageStep::Write { key, marker, merge } => {
                    self.announce(dir, &key, attempt);
                    self.flights.push(Flight::Page { dir, key, marker, merge });
                }
                PageStep::AwaitDelete { key } => self.delete(&key),
                PageStep::AwaitUpload | PageStep::Nothing => {}
            },
        }
    }

    fn excludes(&self, key: &str) -> bool {
        let below = format!("{key}/");
        let is_below = |other: &String| {
            !key.ends_with('/') && other.starts_with(&below)
                || key.starts_with(&format!("{other}/"))
        };
        !self.nests && self.bucket.keys().any(is_below)
    }

    /// The bucket has rejected a put to `key`.
    fn make_way(&mut self, ino: Ino, key: &str) {
        self.log(BackingCommand::UploadAborted { ino });
        self.attempts += 1;
        let attempt = self.attempts;
        match self.state.backing().resolve_key_conflict(self.state.namespace(), ino, key) {
            Some(FlushStep::Evict { occupant, from, to, etag }) => {
                self.announce(occupant, &to, attempt);
                self.flights.push(Flight::Copy { ino: occupant, from, to, etag, attempt });
            }
            Some(FlushStep::MakeWay { dir }) => {
                while self.load_next(dir) {}
                self.log(BackingCommand::MakeWay { dir });
            }
            Some(FlushStep::AwaitDelete { key }) => self.delete(&key),
            Some(FlushStep::AwaitUpload { .. }) | None => {}
            Some(step) => panic!("{step:?} makes no way"),
        }
    }

    pub fn announce(&mut self, ino: Ino, key: &str, attempt: u64) {
        self.log(BackingCommand::UploadBegun { ino, key: key.into(), upload: None });
        self.begun.insert(ino, attempt);
    }

    pub fn begin_delete(&mut self, dice: &mut Dice) {
        let keys: Vec<String> =
            self.state.backing().deletes().map(|(key, _)| key.to_string()).collect();
        if let Some(key) = dice.of(&keys) {
            self.delete(&key);
        }
    }

    /// At most one delete per key at a time.
    pub fn delete(&mut self, key: &str) {
        let under_way = self
            .flights
            .iter()
            .any(|flight| matches!(flight, Flight::Delete { key: other, .. } if other == key));
        if self.state.backing().awaits_head(key) {
            return;
        }
        let pending =
            self.state.backing().deletes().find(|(other, _)| *other == key).map(|(_, etag)| etag);
        if let (false, Some(etag)) = (under_way, pending) {
            self.flights.push(Flight::Delete { key: key.into(), etag, done: false });
        }
    }

    pub fn advance(&mut self, at: usize) {
        let flight = self.flights.swap_remove(at);
        match flight {
            Flight::Put { ino, key, replaces, attempt } => {
                if self.state.namespace().inode(ino).is_none() {
                    return self.log(BackingCommand::UploadAborted { ino });
                }
                if self.excludes(&key) {
                    return self.make_way(ino, &key);
                }
                let body = self.read(ino);
                assert_eq!(
                    replaces.as_ref(),
                    self.bucket.get(&key).map(|object| &object.etag),
                    "the object that a put to {key} replaces"
                );
                let version = Version(self.state.next_version().0 - 1);
                let done = self.store(&key, body, Some(Tag { attempt, version: Some(version) }));
                self.flights.push(Flight::Settle { ino, key, done });
            }
            Flight::Copy { ino, from, to, etag, attempt } => {
                if self.state.namespace().inode(ino).is_none() {
                    return self.log(BackingCommand::UploadAborted { ino });
                }
                if self.excludes(&to) {
                    return self.make_way(ino, &to);
                }
                let source = self
                    .bucket
                    .get(&from)
                    .unwrap_or_else(|| panic!("{from} is not there to be moved"))
                    .clone();
                assert_eq!(source.etag, etag);
                assert!(!self.bucket.contains_key(&to), "a move overwrites {to}");
                let done = self.store(&to, source.body, Some(Tag { attempt, version: None }));
                self.flights.push(Flight::Settle { ino, key: to, done });
            }
            Flight::Settle { ino, key, done } => self.settle(ino, key, &done),
            Flight::Delete { key, etag, done: false } => {
                if etag.is_none()
                    || self
                        .bucket
                        .get(&key)
                        .is_some_and(|object| Some(&object.etag) == etag.as_ref())
                {
                    self.bucket.remove(&key);
                }
                self.flights.push(Flight::Delete { key, etag, done: true });
            }
            Flight::Delete { key, done: true, .. } => self.log(BackingCommand::Deleted { key }),
            Flight::Page { dir, key, marker, merge } => {
                let old = if merge { self.head_at(dir) } else { None };
                let state = self.state.clone();
                let (backing, namespace) = (state.backing(), state.namespace());
                if let Some(marker) = marker.as_ref().filter(|marker| self.excludes(marker)) {
                    return self.make_way(dir, marker);
                }
                let Some(mut draft) = backing.draft_page(namespace, dir, PIECE_ENTRIES) else {
                    return self.log(BackingCommand::UploadAborted { ino: dir });
                };
                if let Some(old) = &old {
                    backing.keep_unseen(namespace, &mut draft, &old.page.entries);
                    for piece in draft.needs(old).into_iter().cloned().collect::<Vec<_>>() {
                        backing.keep_unseen(namespace, &mut draft, &self.piece_at(dir, &piece));
                    }
                }
                if let Some(marker) = marker {
                    self.store(&marker, Vec::new(), None);
                }
                loop {
                    match backing.draft_on(namespace, &mut draft, 1) {
                        Drafted::More => {}
                        Drafted::Piece(first, entries) => {
                            self.etags += 1;
                            let id = self.etags;
                            assert!(
                                entries.len() <= PIECE_ENTRIES
                                    && entries.windows(2).all(|pair| pair[0].name < pair[1].name)
                            );
                            self.log(BackingCommand::PiecesBegun { dir, ids: vec![id] });
                            self.store(
                                &keys::piece_key(dir, id),
                                postcard::to_stdvec(&entries).unwrap(),
                                None,
                            );
                            draft.wrote(PagePiece { first, id, entries: entries.len() as u32 });
                        }
                        Drafted::All => break,
                    }
                }
                let Some((head, parts)) = backing.finish_page(namespace, draft, old.as_ref())
                else {
                    return self.log(BackingCommand::UploadAborted { ino: dir });
                };
                assert!(head.page.entries.windows(2).all(|pair| pair[0].name < pair[1].name));
                assert!(head.pieces.windows(2).all(|pair| pair[0].first < pair[1].first));
                let version = Version(state.next_version().0 - 1);
                self.flights.push(Flight::Head { dir, key, version, head, parts });
            }
            Flight::Head { dir, key, version, head, parts } => {
                let etag = self.store(&key, postcard::to_stdvec(&head).unwrap(), None).etag;
                let mut told = VecDeque::new();
                if head.pieces.is_empty() {
                    told.push_back(BackingCommand::PageWritten { dir, version, etag });
                } else {
                    told.extend(parts.replaced(dir, RECORD_PIECES));
                    told.push_back(BackingCommand::PiecesWritten { dir, version, etag });
                }
                self.flights.push(Flight::PageDone { told });
            }
            Flight::PageDone { mut told } => {
                if let Some(next) = told.pop_front() {
                    self.log(next);
                    self.flights.push(Flight::PageDone { told });
                }
            }
            Flight::Listed { .. } => self.install(&flight),
            Flight::ListedAgain { dir, epoch, entries } => self.revalidate(dir, epoch, &entries),
        }
    }

    pub fn settle(&mut self, ino: Ino, key: String, done: &Stored) {
        let etag = done.etag.clone();
        self.log(match done.tag.as_ref().unwrap().version {
            Some(version) => BackingCommand::Uploaded {
                ino,
                key,
                etag,
                len_bytes: done.body.len() as u64,
                version,
            },
            None => BackingCommand::Moved { ino, key, etag },
        });
    }

    pub fn drain(&mut self) {
        for _ in 0..200 {
            let orphans: Vec<Ino> = self.state.namespace().orphans().map(|(ino, _)| ino).collect();
            for ino in orphans {
                self.apply(Command::Release { session: SESSION, ino });
            }
            while !self.flights.is_empty() {
                self.advance(0);
            }
            if self.state.backing().is_settled() {
                return;
            }
            let work: Vec<DirtyWork> =
                self.state.backing().dirty_work().map(|(_, work)| work).collect();
            for work in work {
                self.begin(work);
            }
            let deletes: Vec<String> =
                self.state.backing().deletes().map(|(key, _)| key.to_string()).collect();
            for key in deletes {
                self.delete(&key);
            }
        }
        let work: Vec<_> = self.state.backing().dirty_work().collect();
        panic!(
            "flushing does not end: {work:?} {:?}",
            self.state.backing().deletes().collect::<Vec<_>>()
        );
    }

    /// Every object backs a file, or is a directory's marker, its page or a piece of it.
    pub fn check_no_leak(&self) {
        let (backing, namespace) = (self.state.backing(), self.state.namespace());
        let mut owned = BTreeSet::new();
        for (_, _, ino) in self.dentries() {
            owned.extend(backing.object_key(namespace, ino));
        }
        let trashed = self.trashed();
        owned.extend(trashed.iter().filter_map(|entry| backing.object_key(namespace, entry.ino)));
        let hidden = trashed.iter().map(|entry| entry.ino).chain(namespace.trash_of(Ino::ROOT));
        for dir in self.directories().into_iter().chain(hidden) {
            owned.extend(backing.prefix_of(namespace, dir));
            owned.insert(keys::page_key(dir));
            let head = self.head_at(dir);
            owned.extend(
                head.iter()
                    .flat_map(|head| &head.pieces)
                    .map(|piece| keys::piece_key(dir, piece.id)),
            );
        }
        let leaked: Vec<_> = self.bucket.keys().filter(|key| !owned.contains(*key)).collect();
        assert!(leaked.is_empty(), "unclaimed: {leaked:?}");
    }
}
