//! Compares a node's record of the bucket with the bucket itself, a part at a time and without
//! blocking other work. Each difference is checked again by itself with the bucket. It counts only
//! if the state records the same before and after that check.
//!
//! - Directories with all names known are listed, a thousand names at a time.
//! - In other directories each known object is requested by itself.
//! - Pages are read. Content is not: an object with the written tag and length is the written
//!   object.

use crate::buckets::ask::MAX_DAMAGED;
use crate::names::listings::LIST_LIMIT;
use crate::names::pages::{LARGE_PAGE_BYTES, decode_piece};
use ebb_core::backing::{
    ExpectedObject, ExpectedPage, Owner, Reserved, Standing, page_key, piece_key,
};
use ebb_core::state::State;
use ebb_format::page;
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, ListEntry, ListPage, ListRequest, PortFuture, Ports};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use std::cell::Ref;
use std::collections::BTreeSet;
use std::time::Duration;

/// Directories of one part.
const DIRECTORIES: usize = 64;

/// How many of these directories are compared at one time.
const DIRECTORIES_AT_ONCE: usize = 4;

/// Objects of one directory, or of the reserved area, that are requested at one time.
const OBJECTS_AT_ONCE: usize = 4;

/// External objects in one directory are named up to this number, and counted beyond it.
const MAX_ADDED: usize = 16;

/// The two sides of a comparison: a state, and the bucket that it describes.
pub struct Comparison<'a> {
    pub state: &'a dyn Fn() -> Ref<'a, State>,
    pub bucket: &'a dyn Bucket,
    pub ports: &'a Ports,
    /// How long a request is repeated to a bucket that does not answer.
    pub patience: Duration,
    /// External removals are found and applied at the next use of the file.
    pub revalidates: bool,
}

impl<'a> Comparison<'a> {
    fn state(&self) -> Ref<'a, State> {
        (self.state)()
    }

    pub async fn part(&self, from: FsckPoint) -> Result<FsckBatch, BucketError> {
        match from {
            FsckPoint::Directories { from } => self.directories(from).await,
            FsckPoint::Reserved { after } => self.reserved(after).await,
        }
    }

    async fn directories(&self, from: Ino) -> Result<FsckBatch, BucketError> {
        let (dirs, done, total, mut report) = {
            let state = self.state();
            let dirs: Vec<Ino> = state.backing().directories(from).take(DIRECTORIES).collect();
            let before = state.backing().directories(Ino(0)).take_while(|dir| *dir < from).count();
            let waiting = if from == Ino(0) { waiting(&state) } else { 0 };
            (
                dirs,
                before,
                state.backing().directory_count(),
                FsckReport { waiting, ..FsckReport::default() },
            )
        };
        let parts =
            stream::iter(&dirs).map(|dir| self.directory(*dir)).buffered(DIRECTORIES_AT_ONCE);
        report.add(sum(parts).await?);
        let next = match dirs.last().filter(|_| dirs.len() == DIRECTORIES) {
            Some(last) => FsckPoint::Directories { from: Ino(last.0 + 1) },
            None => {
                let nameless = {
                    let state = self.state();
                    state.backing().expected_orphan_objects(state.namespace())
                };
                report.add(self.objects(nameless).await?);
                FsckPoint::Reserved { after: String::new() }
            }
        };
        Ok(FsckBatch {
            report,
            done: (done + dirs.len()) as u64,
            total: total as u64,
            next: Some(next),
        })
    }

    async fn directory(&self, dir: Ino) -> Result<FsckReport, BucketError> {
        let mut report = FsckReport::default();
        let mut proved = BTreeSet::new();
        let mut added = Vec::new();
        let listed_below = {
            let state = self.state();
            state.backing().listed_below(state.namespace(), dir)
        };
        if let Some(prefix) = listed_below {
            let mut after = None;
            loop {
                let page = self
                    .list(ListRequest {
                        prefix: prefix.clone(),
                        by_directory: true,
                        after,
                        limit: LIST_LIMIT,
                    })
                    .await?;
                after = page.entries.last().filter(|_| page.more).map(|last| last.key().to_owned());
                let state = self.state();
                for entry in page.entries {
                    let ListEntry::Object { key, etag, len_bytes, .. } = entry else { continue };
                    match state.backing().owner_listed(state.namespace(), dir, &key) {
                        Owner::File(ino) => {
                            let there = ExpectedObject { ino, key, etag: etag.0, len_bytes };
                            if state
                                .backing()
                                .expected_object(state.namespace(), ino)
                                .is_some_and(|claimed| claimed == there)
                            {
                                proved.insert(ino);
                            }
                        }
                        Owner::Nobody => added.push(key),
                        Owner::Waiting | Owner::Unnameable => {}
                    }
                }
                if after.is_none() {
                    break;
                }
            }
        }
        report.objects += proved.len() as u64;
        let unverified = {
            let state = self.state();
            state.backing().expected_objects_in(state.namespace(), dir, &proved)
        };
        report.add(self.objects(unverified).await?);
        report.others.extend(self.added(dir, added).await?);
        report.add(self.page(dir).await?);
        Ok(report)
    }

    /// Requests each of these objects by itself.
    async fn objects(&self, claimed: Vec<ExpectedObject>) -> Result<FsckReport, BucketError> {
        sum(stream::iter(claimed).map(|claimed| self.object(claimed)).buffered(OBJECTS_AT_ONCE))
            .await
    }

    async fn object(&self, claimed: ExpectedObject) -> Result<FsckReport, BucketError> {
        let mut report = FsckReport::default();
        let found = match self.ask(0, || self.bucket.head(&claimed.key)).await {
            Ok(meta) => Some((meta.etag.0, meta.len_bytes)),
            Err(BucketError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let state = self.state();
        if state.backing().expected_object(state.namespace(), claimed.ino).as_ref()
            != Some(&claimed)
        {
            return Ok(report);
        }
        let ExpectedObject { ino, key, etag, len_bytes } = &claimed;
        let (file, key) = (super::named(&state, *ino), shown_path(key.as_bytes()));
        match found {
            Some((found, len)) if found == *etag && len == *len_bytes => report.objects += 1,
            Some((found, len)) if found == *etag => {
                report.problem(format!(
                    "{file}: its object {key} has {len} bytes, and {len_bytes} \
                    were written under the same tag {etag}"
                ));
            }
            Some(_) => {
                report.others.push(format!("{file}: its object {key} was replaced by others"))
            }
            None if self.revalidates && is_taken_on(&state, *ino) => {
                report.others.push(format!("{file}: its object {key} was removed by others"));
            }
            None => {
                let is_whole = state.backing().is_whole(state.namespace(), state.extents(), *ino);
                let what = format!(
                    "{file}: its object {key} is gone from the bucket; {}",
                    what_is_here(&state, *ino)
                );
                report.problems.push(Problem {
                    what,
                    remedy: is_whole.then_some(Remedy::SendAgain { ino: *ino }),
                });
            }
        }
        Ok(report)
    }

    /// Objects without a name in the directory, if that is still so.
    async fn added(&self, dir: Ino, keys: Vec<String>) -> Result<Vec<String>, BucketError> {
        let beyond = keys.len().saturating_sub(MAX_ADDED);
        let asked = stream::iter(keys.into_iter().take(MAX_ADDED)).map(|key| async move {
            let found = match self.ask(0, || self.bucket.head(&key)).await {
                Ok(_) => true,
                Err(BucketError::NotFound { .. }) => false,
                Err(error) => return Err(error),
            };
            let state = self.state();
            let is_added = found
                && state.backing().owner_listed(state.namespace(), dir, &key) == Owner::Nobody;
            Ok(is_added.then(|| {
                format!("{} was put into the bucket by others", shown_path(key.as_bytes()))
            }))
        });
        let mut told: Vec<String> = asked
            .buffered(OBJECTS_AT_ONCE)
            .try_filter_map(|told| std::future::ready(Ok(told)))
            .try_collect()
            .await?;
        if beyond > 0 {
            told.push(format!(
                "{}: {beyond} more objects were put there by others",
                super::named(&self.state(), dir)
            ));
        }
        Ok(told)
    }

    pub async fn page(&self, dir: Ino) -> Result<FsckReport, BucketError> {
        let mut report = FsckReport::default();
        let Some(claimed) = self.state().backing().expected_page(dir) else { return Ok(report) };
        let found = self.read_page(dir).await?;
        let state = self.state();
        if state.backing().expected_page(dir).as_ref() != Some(&claimed) {
            return Ok(report);
        }
        let ExpectedPage { etag, is_dirty } = claimed;
        let (dir_is, key) = (super::named(&state, dir), page_key(dir));
        let wrong = match (found, etag) {
            (None, Some(_)) if !is_dirty => "is gone from the bucket".to_owned(),
            (None, _) => return Ok(report),
            (Some((_, Err(damage))), _) => format!("cannot be read: {damage}"),
            // An interrupted write may have been carried out.
            (Some((found, Ok(_))), Some(etag)) if found != etag && !is_dirty => {
                "is not the one that was written last".to_owned()
            }
            (Some((_, Ok(there))), _) => match state
                .backing()
                .page_differs(state.namespace(), dir, &there)
                .filter(|_| !is_dirty)
            {
                Some(difference) => difference,
                None => {
                    report.pages += 1;
                    return Ok(report);
                }
            },
        };
        let what = format!("{dir_is}: its page {key}, with what no object can say, {wrong}");
        let remedy = state.backing().is_complete(dir).then_some(Remedy::SendAgain { ino: dir });
        report.problems.push(Problem { what, remedy });
        Ok(report)
    }

    /// Tag and content of a directory's page. A page that was damaged in transit is fetched again.
    async fn read_page(
        &self,
        dir: Ino,
    ) -> Result<Option<(String, Result<DirectoryPage, String>)>, BucketError> {
        let key = page_key(dir);
        let mut attempt = 1;
        loop {
            let object =
                match self.ask(LARGE_PAGE_BYTES, || self.bucket.get(&key, None, None)).await {
                    Ok(object) => object,
                    Err(BucketError::NotFound { .. }) => return Ok(None),
                    Err(error) => return Err(error),
                };
            let etag = object.meta.etag.0;
            let decoded = match page::decode(&object.body) {
                Ok(head) => self.put_together(dir, head).await?,
                Err(error) => Err(error.to_string()),
            };
            if decoded.is_ok() || attempt == MAX_DAMAGED {
                return Ok(Some((etag, decoded)));
            }
            attempt += 1;
        }
    }

    /// A page with the entries of all its pieces.
    async fn put_together(
        &self,
        dir: Ino,
        head: PageHead,
    ) -> Result<Result<DirectoryPage, String>, BucketError> {
        let mut page = head.page;
        for piece in &head.pieces {
            let key = piece_key(dir, piece.id);
            let entries =
                match self.ask(LARGE_PAGE_BYTES, || self.bucket.get(&key, None, None)).await {
                    Ok(object) => decode_piece(dir, piece, &object)
                        .map_err(|damage| format!("{key}: {}", damage.what)),
                    Err(BucketError::NotFound { .. }) => Err(format!("its piece {key} is gone")),
                    Err(error) => return Err(error),
                };
            match entries {
                Ok(entries) => page.entries.extend(entries),
                Err(what) => return Ok(Err(what)),
            }
        }
        Ok(Ok(page))
    }

    async fn reserved(&self, after: String) -> Result<FsckBatch, BucketError> {
        let total = self.state().backing().directory_count() as u64;
        let after = (!after.is_empty()).then_some(after);
        let page = self
            .list(ListRequest {
                prefix: ".ebb/".into(),
                by_directory: false,
                after,
                limit: LIST_LIMIT,
            })
            .await?;
        let next = page
            .entries
            .last()
            .filter(|_| page.more)
            .map(|last| FsckPoint::Reserved { after: last.key().to_owned() });
        let mut report = FsckReport::default();
        let mut unverified = Vec::new();
        {
            let state = self.state();
            let is_loaded = state.backing().is_loaded();
            for entry in &page.entries {
                match state.backing().reserved(state.namespace(), entry.key(), is_loaded) {
                    Reserved::Referenced => {}
                    Reserved::Undecided => report.undecided += 1,
                    Reserved::Unreferenced | Reserved::Foreign => {
                        unverified.push(entry.key().to_owned())
                    }
                }
            }
        }
        let parts =
            stream::iter(unverified).map(|key| self.reserved_key(key)).buffered(OBJECTS_AT_ONCE);
        report.add(sum(parts).await?);
        Ok(FsckBatch { report, done: total, total, next })
    }

    async fn reserved_key(&self, key: String) -> Result<FsckReport, BucketError> {
        let mut report = FsckReport::default();
        let etag = match self.ask(0, || self.bucket.head(&key)).await {
            Ok(meta) => meta.etag.0,
            Err(BucketError::NotFound { .. }) => return Ok(report),
            Err(error) => return Err(error),
        };
        let state = self.state();
        let shown = shown_path(key.as_bytes());
        match state.backing().reserved(state.namespace(), &key, state.backing().is_loaded()) {
            Reserved::Referenced => {}
            Reserved::Undecided => report.undecided += 1,
            Reserved::Unreferenced => {
                report.repairable(
                    format!("{shown} is in the bucket and nothing refers to it"),
                    Remedy::Delete { key, etag },
                );
            }
            Reserved::Foreign => report.problem(format!(
                "{shown} is where only ebb writes, and is nothing that ebb writes"
            )),
        }
        Ok(report)
    }

    async fn list(&self, request: ListRequest) -> Result<ListPage, BucketError> {
        self.ask(0, || self.bucket.list(request.clone())).await
    }

    async fn ask<T>(
        &self,
        body_bytes: u64,
        ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        crate::buckets::ask::ask(self.ports, self.patience, body_bytes, ask).await
    }
}

async fn sum(
    parts: impl Stream<Item = Result<FsckReport, BucketError>>,
) -> Result<FsckReport, BucketError> {
    let add = |mut sum: FsckReport, part| {
        sum.add(part);
        std::future::ready(Ok(sum))
    };
    parts.try_fold(FsckReport::default(), add).await
}

/// The number of files and pages that the bucket does not have yet.
fn waiting(state: &State) -> u64 {
    let dirt = state.backing().dirt();
    dirt.files + dirt.pages + dirt.deletes
}

/// A file with a missing object is removed at its next use, where the bucket is asked again.
fn is_taken_on(state: &State, ino: Ino) -> bool {
    let place = state.namespace().primary_name(ino);
    let standing =
        place.and_then(|(dir, name)| state.backing().standing(state.namespace(), dir, &name));
    matches!(standing, Some(Standing::Object { .. }))
}

/// How much of a file is on the node, as text.
fn what_is_here(state: &State, ino: Ino) -> String {
    let size_bytes = state.namespace().attr(ino).map_or(0, |attr| attr.size_bytes);
    if state.lacks_dirty(ino) {
        return "its newest bytes are on another node".into();
    }
    match super::repair::missing(state, ino) {
        0 => "all of it is cached here".into(),
        missing => format!(
            "{missing} of its {size_bytes} bytes are nowhere else: restore the object, or remove \
             the file"
        ),
    }
}
