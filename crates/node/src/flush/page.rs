//! Pages: the attributes of a directory and its names that no object can carry (decision 2).

use super::transact::FlushError;
use super::upload::MAX_CONFLICTS;
use crate::Node;
use crate::admin::troubles::Subject;
use bytes::Bytes;
use ebb_core::backing::{Drafted, PageStep, piece_key};
use ebb_format::{FormatError, page};
use ebb_model::*;
use ebb_ports::{BucketError, Condition, ETag};
use futures_util::future::join_all;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Children that are looked at before other tasks get a turn: a few milliseconds.
const STEP_ENTRIES: usize = 1000;

const STEP_PAUSE: Duration = Duration::from_millis(1);

/// A page is not written again for so many times the duration of its last write: all names are
/// looked through, even for a small change.
const REST: u32 = 20;

/// The page that a directory's unknown names are taken from, if there is one.
type There = Option<(Rc<page::Head>, ETag)>;

impl Node {
    /// Writes the attributes of a directory and its names that no object can carry.
    pub(super) async fn flush_page(self: &Rc<Self>, dir: Ino) -> Result<(), FlushError> {
        let step = {
            let state = self.replica.view();
            state.backing().page_step(state.namespace(), dir)
        };
        let (key, marker, merge) = match step {
            PageStep::Write { key, marker, merge } => (key, marker, merge),
            PageStep::AwaitDelete { .. } | PageStep::AwaitUpload | PageStep::Nothing => {
                return Err(FlushError::Later);
            }
        };
        let old = match merge {
            true => Some(self.head_of(dir, Some(&key)).await?),
            false => None,
        };
        // The marker of an earlier directory of that name that was removed.
        marker.as_deref().map_or(Ok(()), |marker| self.await_late_effects(marker))?;
        let step = PageStep::Write { key: key.clone(), marker: marker.clone(), merge };
        self.log_upload_begun(dir, &key, |state| {
            state.backing().page_step(state.namespace(), dir) == step
        })
        .await?;
        let written = self.put_page(dir, &key, marker.as_deref(), old.as_ref()).await;
        // Later loads read the page anew: it has more names than before.
        self.names.forget_page(dir);
        match written {
            Ok(told) => {
                for command in told {
                    self.log_upload_ended(command).await?;
                }
                Ok(())
            }
            Err(error @ FlushError::Bucket(BucketError::Unknown { .. })) => Err(error),
            Err(error) => {
                self.log_upload_aborted(dir).await?;
                match (error, marker) {
                    (FlushError::Bucket(nested @ BucketError::Nested { .. }), Some(marker)) => {
                        self.make_way(dir, &marker, nested).await
                    }
                    (error, _) => Err(error),
                }
            }
        }
    }

    async fn put_page(
        &self,
        dir: Ino,
        key: &str,
        marker: Option<&str>,
        old: Option<&There>,
    ) -> Result<Vec<BackingCommand>, FlushError> {
        if let Some(marker) = marker {
            self.put_marker(marker).await?;
        }
        let began = self.ports.clock.monotonic();
        let head_there = old.and_then(|old| old.as_ref()).map(|(head, _)| &**head);
        let (names, backing, version) = {
            let state = self.replica.view();
            (state.namespace().clone(), state.backing().clone(), state.version())
        };
        // Removed since: its page is deleted by another step.
        let Some(mut draft) = backing.draft_page(&names, dir, self.options.page_piece_entries)
        else {
            return Err(FlushError::Later);
        };
        if let Some(old) = head_there {
            backing.keep_unseen(&names, &mut draft, &old.page.entries);
            for piece in draft.needs(old) {
                // No other node writes it: the flush is retried with the page that is there then.
                let Some(entries) = self.piece(dir, old, piece).await? else {
                    return Err(FlushError::Later);
                };
                backing.keep_unseen(&names, &mut draft, &entries);
            }
        }
        let mut pieces = Vec::new();
        loop {
            match backing.draft_on(&names, &mut draft, STEP_ENTRIES) {
                Drafted::More => self.ports.clock.sleep(STEP_PAUSE).await,
                Drafted::Piece(first, entries) => {
                    let id = self.ports.entropy.next_u64();
                    draft.wrote(PagePiece { first, id, entries: entries.len() as u32 });
                    let body = page::encode_piece(&page::Piece { dir, id, entries })
                        .map_err(|error| self.not_encoded(dir, &error))?;
                    pieces.push((id, body));
                    if pieces.len() >= self.options.flush_parallel {
                        self.put_pieces(dir, std::mem::take(&mut pieces)).await?;
                    }
                    self.ports.clock.sleep(STEP_PAUSE).await;
                }
                Drafted::All => break,
            }
        }
        self.put_pieces(dir, pieces).await?;
        let Some((head, parts)) = backing.finish_page(&names, draft, head_there) else {
            return Err(FlushError::Later);
        };
        let body = page::encode(&head).map_err(|error| self.not_encoded(dir, &error))?;
        self.force_log().await?;
        let etag = match old {
            // The page that it was merged with must still be there.
            Some(there) => match self
                .replace_page(key, there.as_ref().map(|(_, etag)| etag.clone()), body, 1)
                .await
            {
                Err(BucketError::Precondition { .. } | BucketError::NotFound { .. }) => {
                    return Err(FlushError::Later);
                }
                ended => ended?,
            },
            None => {
                let tag =
                    self.replica.view().backing().page_tag(dir).map(|tag| ETag(tag.to_owned()));
                self.replace_page(key, tag, body, MAX_CONFLICTS).await?
            }
        };
        let now = self.ports.clock.monotonic();
        self.flusher
            .cooldowns
            .begin(dir, now + self.options.flush_interval.max((now - began) * REST));
        let ETag(etag) = etag;
        if head.pieces.is_empty() {
            return Ok(vec![BackingCommand::PageWritten { dir, version, etag }]);
        }
        let mut told = parts.replaced(dir, self.options.record_pieces);
        told.push(BackingCommand::PiecesWritten { dir, version, etag });
        Ok(told)
    }

    /// The marker may exist already.
    async fn put_marker(&self, marker: &str) -> Result<(), BucketError> {
        let guard = self.buckets.bucket().capabilities().guard(Condition::Absent);
        if guard == Condition::Always && self.there(marker).await?.is_some() {
            return Ok(());
        }
        match self
            .call_until_answered(marker, || {
                self.buckets.bucket().put(marker, Bytes::new(), guard.clone(), Vec::new())
            })
            .await
        {
            Ok(_) | Err(BucketError::Precondition { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Puts pieces that no head names yet. Their ids are logged before, so that an interrupted
    /// write is known.
    async fn put_pieces(&self, dir: Ino, pieces: Vec<(u64, Bytes)>) -> Result<(), FlushError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let ids = pieces.iter().map(|(id, _)| *id).collect();
        self.commit(Command::Backing(BackingCommand::PiecesBegun { dir, ids })).await?;
        self.force_log().await?;
        let puts = pieces.into_iter().map(|(id, body)| async move {
            let key = piece_key(dir, id);
            // No other task writes there, and a repetition writes the same.
            self.call_until_answered(&key, || {
                self.buckets.bucket().put(&key, body.clone(), Condition::Always, Vec::new())
            })
            .await
        });
        // All of them are completed, also after one has failed.
        for ended in join_all(puts).await {
            ended?;
        }
        Ok(())
    }

    fn not_encoded(&self, dir: Ino, error: &FormatError) -> FlushError {
        self.trouble(
            Subject::Page(dir),
            Some(format!("the page of directory {dir} cannot be encoded: {error}")),
        );
        FlushError::Node(FsError::Io.into())
    }

    /// A page replaces the page that it was made from and no later one: a request that arrives long
    /// after it, or its node, was given up undoes nothing.
    async fn replace_page(
        &self,
        key: &str,
        mut there: Option<ETag>,
        body: Bytes,
        attempts: usize,
    ) -> Result<ETag, BucketError> {
        for _ in 0..attempts {
            let guard = self
                .buckets
                .bucket()
                .capabilities()
                .guard(there.map_or(Condition::Absent, Condition::Match));
            let is_unknown = Cell::new(false);
            match self
                .ask_until_clear(key, &is_unknown, || {
                    self.buckets.bucket().put(key, body.clone(), guard.clone(), Vec::new())
                })
                .await
            {
                // An attempt with a lost answer may come late, and make the page anew.
                Ok(_) if guard == Condition::Always && is_unknown.get() => {
                    self.outlast_unknown_outcomes(key).await;
                    return Ok(self.persist(key, || self.buckets.bucket().head(key)).await?.etag);
                }
                Err(what @ (BucketError::Precondition { .. } | BucketError::NotFound { .. }))
                    if attempts == 1 =>
                {
                    return Err(what);
                }
                Err(BucketError::Precondition { .. } | BucketError::NotFound { .. }) => {}
                ended => return ended,
            }
            there = match self.persist(key, || self.buckets.bucket().head(key)).await {
                Ok(meta) => Some(meta.etag),
                Err(BucketError::NotFound { .. }) => None,
                Err(error) => return Err(error),
            };
        }
        Err(BucketError::Unavailable {
            what: format!("{key} is being written by somebody else all the time"),
            retry_after: None,
        })
    }
}
