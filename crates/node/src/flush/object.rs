//! Operations on the object of a file: write, move, delete.

use super::transact::FlushError;
use crate::Node;
use ebb_core::backing::{FlushStep, keys};
use ebb_core::state::State;
use ebb_format::object::object_tag;
use ebb_model::*;
use ebb_ports::{BucketError, Condition, ETag, ObjectMeta};
use futures_util::future::try_join;
use std::cell::Cell;
use std::rc::Rc;

impl Node {
    /// Brings the object of one file to its intended key and content.
    pub(super) async fn flush_file(self: &Rc<Self>, ino: Ino) -> Result<(), FlushError> {
        if self.lacks_bytes(ino) {
            return Err(FlushError::Later);
        }
        self.see_all_names(ino).await?;
        let next = |state: &State| state.backing().flush_step(state.namespace(), ino);
        let step = next(&self.replica.view());
        let planned = |state: &State| next(state) == step;
        let (ino, key, ended) = match &step {
            FlushStep::Put { key, replaces } => {
                (ino, key, self.put_file(ino, key, replaces.clone().map(ETag)).await)
            }
            FlushStep::Move { from, to, etag } => {
                (ino, to, self.move_object(ino, (from, to, &ETag(etag.clone())), planned).await)
            }
            FlushStep::Evict { occupant, from, to, etag } => {
                // Pages with its attributes must first record its new key.
                self.see_all_names(*occupant).await?;
                (
                    *occupant,
                    to,
                    self.move_object(*occupant, (from, to, &ETag(etag.clone())), planned).await,
                )
            }
            FlushStep::AwaitDelete { .. }
            | FlushStep::AwaitUpload { .. }
            | FlushStep::MakeWay { .. }
            | FlushStep::Nothing => {
                return Err(FlushError::Later);
            }
        };
        match ended {
            Err(FlushError::Bucket(nested @ BucketError::Nested { .. })) => {
                self.make_way(ino, key, nested).await
            }
            ended => ended,
        }
    }

    /// Does the steps needed before the store accepts `key` for `ino`: it has refused the key
    /// because of objects at keys above or below it.
    pub(super) async fn make_way(
        self: &Rc<Self>,
        ino: Ino,
        key: &str,
        nested: BucketError,
    ) -> Result<(), FlushError> {
        let next =
            |state: &State| state.backing().resolve_key_conflict(state.namespace(), ino, key);
        let step = next(&self.replica.view());
        match &step {
            Some(FlushStep::Evict { occupant, from, to, etag }) => {
                self.see_all_names(*occupant).await?;
                self.move_object(*occupant, (from, to, &ETag(etag.clone())), |state| {
                    next(state) == step
                })
                .await
            }
            Some(FlushStep::MakeWay { dir }) => {
                self.complete(*dir).await?;
                self.commit(Command::Backing(BackingCommand::MakeWay { dir: *dir })).await?;
                Err(FlushError::Later)
            }
            Some(_) => Err(FlushError::Later),
            None => Err(nested.into()),
        }
    }

    /// Copies an object to another key of its file, which becomes its home.
    async fn move_object(
        self: &Rc<Self>,
        ino: Ino,
        (from, to, etag): (&str, &str, &ETag),
        planned: impl FnOnce(&State) -> bool,
    ) -> Result<(), FlushError> {
        self.log_upload_begun(ino, to, planned).await?;
        // An earlier copy with the same content may stand there.
        let moved = match self.keep_other(to, Some(etag)).await {
            Ok(there) => self.copy_object((from, etag), to, there).await,
            Err(error) => Err(error),
        };
        match moved {
            Ok(etag) => {
                self.log_upload_ended(BackingCommand::Moved { ino, key: to.into(), etag: etag.0 })
                    .await?;
                self.is_sound(to, &(0..u64::MAX));
                self.flusher.count(0);
                Ok(())
            }
            // Only a stopping node leaves the outcome unknown: the next start settles it.
            Err(error @ BucketError::Unknown { .. }) => Err(error.into()),
            Err(error) => {
                self.log_upload_aborted(ino).await?;
                if matches!(error, BucketError::Precondition { .. } | BucketError::NotFound { .. })
                {
                    self.object_changed(ino, from, etag, error.clone()).await?;
                }
                Err(error.into())
            }
        }
    }

    pub(super) async fn delete(&self, key: &str, etag: Option<&ETag>) -> Result<(), FlushError> {
        self.await_late_effects(key)?;
        // Otherwise a power cut could bring back a name whose object is gone.
        if !Planted::DeleteNotForced.is_on() {
            self.force_log().await?;
        }
        let etag = etag.filter(|_| !Planted::DeleteUnguarded.is_on());
        match self.call_until_answered(key, || self.buckets.bucket().delete(key, etag)).await {
            Ok(()) | Err(BucketError::NotFound { .. }) => {
                self.names.deleted(key, self.ports.clock.monotonic())
            }
            // An external program has put an object there since: that one stays.
            Err(BucketError::Precondition { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.log_upload_ended(BackingCommand::Deleted { key: key.into() }).await?;
        self.is_sound(key, &(0..u64::MAX));
        Ok(())
    }

    async fn copy_object(
        &self,
        (from, etag): (&str, &ETag),
        to: &str,
        guard: Condition,
    ) -> Result<ETag, BucketError> {
        let (is_unknown, guard) =
            (Cell::new(false), self.buckets.bucket().capabilities().guard(guard));
        let heard = self
            .ask_until_clear(to, &is_unknown, || {
                self.buckets.bucket().copy(from, to, Some(etag), guard.clone())
            })
            .await;
        let (leaves_upload, heard) = match heard {
            Err(BucketError::Unended { why }) => (true, Err(*why)),
            heard => (false, heard),
        };
        match heard {
            Err(error @ BucketError::Unknown { .. }) => return Err(error),
            heard if is_unknown.get() => return self.seen_copy((from, etag), to, heard).await,
            _ if leaves_upload => self.abort_unanswered(to, None).await?,
            _ => {}
        }
        heard
    }

    /// The outcome of a copy with an unheard answer: an earlier attempt may have made it, and the
    /// object there may now be an external one.
    async fn seen_copy(
        &self,
        (from, etag): (&str, &ETag),
        to: &str,
        heard: Result<ETag, BucketError>,
    ) -> Result<ETag, BucketError> {
        self.outlast_unknown_outcomes(to).await;
        // Large objects are copied in parts.
        self.abort_unanswered(to, None).await?;
        let is_made = async |there: &ObjectMeta| match self.buckets.bucket().head(from).await {
            _ if there.etag == *etag => Ok(true),
            Ok(source) if source.etag == *etag => self.is_copy((from, &source), (to, there)).await,
            Ok(_) => Ok(false),
            Err(error) => Err(error),
        };
        match self.persist(to, || self.buckets.bucket().head(to)).await {
            Ok(there) if heard.as_ref() == Ok(&there.etag) => heard,
            Ok(there) => match self.persist(from, || Box::pin(is_made(&there))).await {
                Ok(true) => Ok(there.etag),
                Err(unclear @ BucketError::Unknown { .. }) => Err(unclear),
                Ok(false) | Err(_) => {
                    Err(heard.err().unwrap_or(BucketError::Precondition { key: to.into() }))
                }
            },
            Err(gone @ BucketError::NotFound { .. }) => Err(heard.err().unwrap_or(gone)),
            Err(error) => Err(error),
        }
    }

    /// Whether an object is the store's copy of another one. On some stores a copy has the tag of
    /// its source, on others one of its own.
    pub(super) async fn is_copy(
        &self,
        (from, source): (&str, &ObjectMeta),
        (to, there): (&str, &ObjectMeta),
    ) -> Result<bool, BucketError> {
        if source.etag == there.etag {
            return Ok(true);
        }
        if source.len_bytes != there.len_bytes
            || object_tag(&source.tags) != object_tag(&there.tags)
        {
            return Ok(false);
        }
        if object_tag(&there.tags).is_some() {
            return Ok(true);
        }
        // An external program wrote it. An object that would take long to compare is copied once
        // more.
        if there.len_bytes > MAX_COMPARED_BYTES {
            return Ok(false);
        }
        let mut at = 0;
        while at < there.len_bytes {
            let range = at..there.len_bytes.min(at + COMPARED_BYTES);
            let bytes_of = async |key: &str, etag: &ETag| {
                let ask = || self.buckets.bucket().get(key, Some(range.clone()), Some(etag));
                self.bucket_retry("get", key, range.end - range.start, ask)
                    .await
                    .map(|object| object.body)
            };
            let (expected, found) =
                try_join(bytes_of(from, &source.etag), bytes_of(to, &there.etag)).await?;
            if expected != found {
                return Ok(false);
            }
            at = range.end;
        }
        Ok(true)
    }

    /// At the key of one of our objects an external object may stand: it is kept beside, under a
    /// name that says so (O-55). `mine` may be replaced. Returns the condition that guards the next
    /// write against another external object. An object of ours that was changed by others still
    /// has our tag.
    pub(crate) async fn keep_other(
        &self,
        key: &str,
        mine: Option<&ETag>,
    ) -> Result<Condition, BucketError> {
        let Some(found) = self.there(key).await? else { return Ok(Condition::Absent) };
        if Some(&found.etag) != mine && !Planted::OtherReplaced.is_on() {
            self.keep_beside(key, &found).await?;
        }
        Ok(Condition::Match(found.etag))
    }

    async fn keep_beside(&self, key: &str, found: &ObjectMeta) -> Result<(), BucketError> {
        for number in 1..=MAX_ASIDE {
            let aside =
                &keys::conflict_key(key, ebb_format::crc32c(found.etag.0.as_bytes()), number);
            if let Some(there) = self.there(aside).await? {
                if self.is_copy((key, found), (aside, &there)).await? {
                    return self.abort_unanswered(aside, None).await;
                }
                // The object is of another conflict, or was changed externally.
                continue;
            }
            tracing::warn!(
                key,
                aside,
                "somebody else has written the object: their version is kept beside"
            );
            // An earlier run may have begun to copy it in parts.
            self.abort_unanswered(aside, None).await?;
            return self.copy_object((key, &found.etag), aside, Condition::Absent).await.map(drop);
        }
        Err(BucketError::Unavailable {
            what: format!("{key} has {MAX_ASIDE} versions of others beside it"),
            retry_after: None,
        })
    }

    pub(super) async fn there(&self, key: &str) -> Result<Option<ObjectMeta>, BucketError> {
        match self.bucket_retry("head", key, 0, || self.buckets.bucket().head(key)).await {
            Ok(meta) => Ok(Some(meta)),
            Err(BucketError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The longest external objects that are compared byte for byte, and the bytes compared at one
/// time.
const MAX_COMPARED_BYTES: u64 = 1 << 30;
const COMPARED_BYTES: u64 = 4 << 20;

/// External versions with one tag that are kept beside one key.
const MAX_ASIDE: u32 = 100;
