//! Sending the content of a file: one request below a chunk (O-77), parts above (O-75).

use super::object_checksums::{ChecksumMismatch, ObjectChecksums, UploadVerifier};
use super::preserve::Kept;
use super::transact::FlushError;
use crate::Node;
use crate::buckets::ask::Backoff;
use crate::buckets::borders::BucketIndex;
use bytes::{Bytes, BytesMut};
use ebb_core::backing::FlushStep;
use ebb_core::backing::keys::EARLY;
use ebb_core::byte_map::{ByteOrigin, Segment};
use ebb_format::object::{ObjectOf, object_tag, object_tags};
use ebb_format::sums::{self, Sums};
use ebb_model::*;
use ebb_ports::{BucketError, Condition, ETag, ObjectMeta, ObjectTags, PartTag, Piece, UploadId};
use ebb_store::{Mode, Room};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::cell::{Cell, RefCell};
use std::future::ready;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Kept free at least for bytes that are appended to a file that is about to be sent.
const SLACK_BYTES: u64 = 1 << 20;

/// Attempts to keep a changing file's upload whole before its writers are made to wait.
const ATTEMPTS_WITHOUT_WAITING: usize = 2;

/// The content of an upload: the file as it was at one version.
pub(super) struct Content {
    pub version: Version,
    pub size_bytes: u64,
    tags: ObjectTags,
}

/// The source of a part's bytes.
enum Part<'a> {
    /// Read here, with their memory.
    Read(Bytes, Room<'a>),
    /// In an object that the bucket can copy from.
    Stored(Piece),
}

/// The outcome of an attempt to send a file in parts.
enum Attempt {
    Whole(Content, ETag),
    /// The file has changed too much to be sent at one version.
    Broken,
    /// Nothing was sent: the file no longer agrees with the object's checksums.
    Outdated,
    /// Some bytes to be sent differ from the object's checksums.
    ChecksumMismatch(Range<u64>),
}

/// How a guarded write is known to have succeeded.
enum Sent {
    Answered(ETag),
    /// The answer was lost, and the sent object is there. Parts that the store clears away after it
    /// has answered may be left.
    Found(ETag),
}

impl Sent {
    fn etag(self) -> ETag {
        match self {
            Sent::Answered(etag) | Sent::Found(etag) => etag,
        }
    }
}

impl Content {
    /// The object has the sent content.
    fn is_in(&self, object: &ObjectMeta) -> bool {
        object.len_bytes == self.size_bytes && object_tag(&object.tags) == object_tag(&self.tags)
    }

    fn say(&mut self, sums: &Sums) {
        let value = sums.encode(&self.tags);
        self.tags.push((sums::TAG.into(), value));
    }
}

impl Node {
    /// Puts the content of a file to `key`, replacing the object `replaces` or none.
    pub(crate) async fn put_file(
        self: &Rc<Self>,
        ino: Ino,
        key: &str,
        replaces: Option<ETag>,
    ) -> Result<(), FlushError> {
        self.bring(ino).await?;
        let size = self.replica.view().namespace().attr(ino).map_err(RpcError::from)?.size_bytes;
        let limits = self.buckets.bucket().capabilities();
        if size > limits.max_object_bytes {
            let what = format!("{size} bytes are more than the store takes as one object");
            return Err(BucketError::Refused { what }.into());
        }
        let began = self.ports.clock.monotonic();
        let step = FlushStep::Put {
            key: key.into(),
            replaces: replaces.as_ref().map(|etag| etag.0.clone()),
        };
        self.log_upload_begun(ino, key, |state| {
            state.backing().flush_step(state.namespace(), ino) == step
        })
        .await?;
        let sent = if size < CHUNK_BYTES && size <= limits.max_put_bytes {
            self.put_whole(ino, key, replaces).await
        } else {
            self.put_parts(ino, key, replaces).await
        };
        match sent {
            Ok((Content { mut version, size_bytes: len_bytes, .. }, etag)) => {
                if Planted::EarlyClean.is_on() {
                    version = self.replica.view().version();
                }
                self.sum_sent(ino, len_bytes, version).await;
                self.log_upload_ended(BackingCommand::Uploaded {
                    ino,
                    key: key.into(),
                    etag: etag.0,
                    len_bytes,
                    version,
                })
                .await?;
                self.flusher.has_ended(ino);
                self.flusher.forget_failed(ino);
                self.data.note_clean(&self.replica.view(), ino, 0..len_bytes.div_ceil(BLOCK_BYTES));
                self.flusher.early.forget(ino, len_bytes);
                self.flusher.count(len_bytes);
                self.is_sound(key, &(0..u64::MAX));
                self.start_cooldown(ino, began, version);
                Ok(())
            }
            // Only a stopping node leaves the outcome unknown: the next start settles it.
            Err(error @ FlushError::Bucket(BucketError::Unknown { .. })) => Err(error),
            Err(error) => {
                self.log_upload_aborted(ino).await?;
                self.flusher.has_ended(ino);
                // If the file's absent bytes are in an object that has been replaced, the next
                // cycle sends the file as it is then.
                if let FlushError::Bucket(
                    cause @ (BucketError::Precondition { .. } | BucketError::NotFound { .. }),
                ) = &error
                    && let Some((key, etag, _)) = self.object_of(ino)
                    && self.object_changed(ino, &key, &etag, cause.clone()).await.is_ok()
                {
                    return Err(FlushError::Later);
                }
                Err(error)
            }
        }
    }

    /// A file that has changed during its upload is not sent again at once. Otherwise a large file
    /// with constant appends would be sent whole all the time.
    fn start_cooldown(&self, ino: Ino, began: Duration, version: Version) {
        let is_changed = {
            let state = self.replica.view();
            matches!(state.backing().flush_step(state.namespace(), ino), FlushStep::Put { .. })
        };
        if is_changed {
            let now = self.ports.clock.monotonic();
            self.flusher.cooldowns.begin(ino, now + (now - began));
            self.flusher.superseded_at.borrow_mut().insert(ino, version);
        }
    }

    async fn put_whole(
        self: &Rc<Self>,
        ino: Ino,
        key: &str,
        replaces: Option<ETag>,
    ) -> Result<(Content, ETag), FlushError> {
        // A file with appends has grown further when it is read.
        let size = self.content(ino)?.size_bytes;
        let most = (size + size / 4 + SLACK_BYTES).min(CHUNK_BYTES - 1);
        let _room = self.flusher.buffers(self.buckets.bucket_of_key(key)).take(most).await;
        let (content, body) = {
            let _guard = match Planted::UploadNotLatched.is_on() {
                true => None,
                false => Some(self.data.latches().hold(ino, Mode::Shared).await),
            };
            let mut content = self.content(ino)?;
            if content.size_bytes > most {
                // Grown since: the next cycle decides anew.
                return Err(FlushError::Later);
            }
            self.flusher.sends(ino, content.version);
            let body = self.read_for_upload(ino, 0..content.size_bytes, content.size_bytes).await?;
            if let Some(sums) = Sums::of(&body) {
                content.say(&sums);
            }
            (content, body)
        };
        self.force_for_upload(ino).await?;
        let put = |condition| {
            self.buckets.bucket().put(key, body.clone(), condition, content.tags.clone())
        };
        let etag = self.guarded(key, replaces, &content, put).await?.etag();
        Ok((content, etag))
    }

    async fn put_parts(
        self: &Rc<Self>,
        ino: Ino,
        key: &str,
        replaces: Option<ETag>,
    ) -> Result<(Content, ETag), FlushError> {
        let (mut broken, mut outdated, mut untrue) = (0, 0, false);
        loop {
            // Begun before its id is logged: while the log has no id, uploads of the key are
            // searched.
            let mut content = self.content(ino)?;
            // For a file that is written to all the time the checksums cover less with each
            // attempt.
            let checksums = match outdated {
                0 => self.compute_checksums(ino, content.size_bytes).await?,
                1 => self.known_checksums(ino, content.size_bytes).await,
                _ => None,
            };
            if let Some(ObjectChecksums { sums, .. }) = &checksums {
                content.say(sums);
            }
            let tags = content.tags;
            if broken > 0 || outdated > 0 || untrue {
                self.note_upload(ino, key, None).await?;
            }
            let is_unknown = Cell::new(false);
            let begun = self
                .ask_until_clear(key, &is_unknown, || {
                    self.buckets.bucket().upload_begin(key, tags.clone())
                })
                .await;
            if is_unknown.get() && !matches!(begun, Err(BucketError::Unknown { .. })) {
                self.outlast_unknown_outcomes(key).await;
                self.abort_unanswered(key, begun.as_ref().ok()).await?;
            }
            let upload = begun?;
            match self
                .put_parts_of(
                    ino,
                    key,
                    &replaces,
                    &upload,
                    (tags, checksums),
                    broken >= ATTEMPTS_WITHOUT_WAITING,
                )
                .await
            {
                Ok(Attempt::Whole(content, etag)) => return Ok((content, etag)),
                Ok(Attempt::Broken) => broken += 1,
                Ok(Attempt::Outdated) => outdated += 1,
                Ok(Attempt::ChecksumMismatch(_)) if !untrue => untrue = true,
                Ok(Attempt::ChecksumMismatch(span)) => {
                    self.abort(key, &upload).await?;
                    let what = format!(
                        "bytes {} to {} of what is to be {key} are not what was written",
                        span.start, span.end
                    );
                    return Err(BucketError::Corrupt { what }.into());
                }
                Err(error @ FlushError::Bucket(BucketError::Unknown { .. })) => return Err(error),
                Err(error) => {
                    self.abort(key, &upload).await?;
                    return Err(error);
                }
            }
            self.abort(key, &upload).await?;
        }
    }

    /// Logs and forces which upload must be ended if this node does not.
    async fn note_upload(
        &self,
        ino: Ino,
        key: &str,
        upload: Option<&UploadId>,
    ) -> Result<(), RpcError> {
        let upload = upload.map(|upload| upload.0.clone());
        self.commit(Command::Backing(BackingCommand::UploadBegun { ino, key: key.into(), upload }))
            .await?;
        self.force_log().await.map(drop)
    }

    /// `waits`: writers wait until everything is read.
    async fn put_parts_of(
        self: &Rc<Self>,
        ino: Ino,
        key: &str,
        replaces: &Option<ETag>,
        upload: &UploadId,
        (tags, checksums): (ObjectTags, Option<ObjectChecksums>),
        waits: bool,
    ) -> Result<Attempt, FlushError> {
        self.note_upload(ino, key, Some(upload)).await?;
        // No write is half done when the version to send is taken.
        let guard = self.data.latches().hold(ino, Mode::Shared).await;
        let content = Content { tags, ..self.content(ino)? };
        if content.size_bytes == 0 {
            return Err(FlushError::Later);
        }
        let checksums = match checksums
            .map(|checksums| self.revalidated_checksums(ino, content.size_bytes, checksums))
        {
            Some(None) => return Ok(Attempt::Outdated),
            checksums => checksums.flatten(),
        };
        self.flusher.sends(ino, content.version);
        self.flusher.preserved.begin(ino, content.size_bytes, checksums.is_some());
        self.flusher.uploaded_bytes.borrow_mut().remove(&ino);
        let frozen = waits.then_some(guard);
        let untrue = RefCell::default();
        let sent = self
            .send_parts(ino, key, upload, &content, (checksums.as_ref(), &untrue), frozen.is_some())
            .await;
        drop(frozen);
        let whole = !self.flusher.preserved.is_broken(ino);
        self.flusher.preserved.end(ino);
        if let Some(span) = untrue.take() {
            return Ok(Attempt::ChecksumMismatch(span));
        }
        let parts = match sent {
            Err(FlushError::Later) if !whole => return Ok(Attempt::Broken),
            sent => sent?,
        };
        if !whole {
            return Ok(Attempt::Broken);
        }
        self.force_for_upload(ino).await?;
        let complete = |condition| {
            self.buckets.bucket().upload_complete(key, upload, parts.clone(), condition)
        };
        let sent = self.guarded(key, replaces.clone(), &content, complete).await?;
        if let Sent::Found(_) = &sent {
            self.abort(key, upload).await?;
        }
        Ok(Attempt::Whole(content, sent.etag()))
    }

    /// Parts are read one after the other and sent side by side. Parts already read are sent while
    /// the next one waits for memory. Otherwise several uploads would wait for each other's memory.
    async fn send_parts(
        self: &Rc<Self>,
        ino: Ino,
        key: &str,
        upload: &UploadId,
        content: &Content,
        (checksums, untrue): (Option<&ObjectChecksums>, &RefCell<Option<Range<u64>>>),
        frozen: bool,
    ) -> Result<Vec<PartTag>, FlushError> {
        let size = content.size_bytes;
        let part_bytes = self.part_bytes(size);
        let numbers = 1..=size.div_ceil(part_bytes) as u32;
        let proof = RefCell::new(UploadVerifier::of(checksums));
        let proof = &proof;
        let read = stream::iter(numbers)
            .take_while(|_| ready(!self.flusher.preserved.is_broken(ino)))
            .then(|number| async move {
                let start = u64::from(number - 1) * part_bytes;
                let range = start..(start + part_bytes).min(size);
                let bytes = range.end - range.start;
                if let Some(piece) = self.stored(ino, key, &range).await {
                    if proof.borrow_mut().stored(&range).is_err() {
                        self.flusher.preserved.break_off(ino);
                        return Err(FlushError::Later);
                    }
                    self.flusher.preserved.advance(ino, range.end / BLOCK_BYTES);
                    return Ok((number, range, Part::Stored(piece)));
                }
                let buffers = self.flusher.buffers(self.buckets.bucket_of_key(key));
                // Tasks that have memory may wait for the file that is kept as it is.
                let room = if frozen { buffers.exceed(bytes) } else { buffers.take(bytes).await };
                let _guard = match frozen {
                    true => None,
                    false => Some(self.data.latches().hold(ino, Mode::Shared).await),
                };
                let body = self.read_for_upload(ino, range.clone(), size).await?;
                // Given up during the wait: the bytes read are of a later state of the file.
                if self.flusher.preserved.is_broken(ino) {
                    return Err(FlushError::Later);
                }
                let proven = proof.borrow_mut().read(&range, &body);
                if let Err(cause) = proven {
                    self.flusher.preserved.break_off(ino);
                    if let ChecksumMismatch::Other(span) = cause {
                        tracing::warn!(
                            key,
                            ?span,
                            "what was read to be sent is not what the object \
                        says, and is read once more"
                        );
                        self.drop_fetched(ino, &span).await?;
                        untrue.replace(Some(span));
                    }
                    return Err(FlushError::Later);
                }
                self.flusher.preserved.advance(ino, range.end / BLOCK_BYTES);
                Ok::<_, FlushError>((number, range, Part::Read(body, room)))
            });
        let sent = read.map_ok(|(number, range, part)| async move {
            let sent = match part {
                Part::Stored(piece) if piece.key.starts_with(EARLY) => {
                    match self.copy_early(key, upload, number, &piece).await {
                        Some(part) => part,
                        None => {
                            // The next attempt reads all parts here.
                            self.flusher.early.forget(ino, u64::MAX);
                            self.flusher.preserved.break_off(ino);
                            return Err(FlushError::Later);
                        }
                    }
                }
                Part::Stored(piece) => self.copy_part(key, upload, number, piece).await?,
                Part::Read(body, _room) => {
                    self.send_part(key, || {
                        self.buckets.bucket().upload_part(key, upload, number, body.clone())
                    })
                    .await?
                }
            };
            *self.flusher.uploaded_bytes.borrow_mut().entry(ino).or_default() +=
                range.end - range.start;
            Ok(sent)
        });
        sent.try_buffered(PARTS_AT_ONCE).try_collect().await
    }

    /// Has the bucket copy a part from an object.
    async fn copy_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        piece: Piece,
    ) -> Result<PartTag, FlushError> {
        let copied = self
            .send_part(key, || {
                self.buckets.bucket().upload_part_copy(key, upload, number, piece.clone())
            })
            .await;
        if let Err(BucketError::Refused { what }) = &copied {
            tracing::warn!(key, what, "the bucket does not copy parts: they are sent from now on");
            self.flusher.queue(self.buckets.bucket_of_key(key)).copies_parts.set(false);
            return Err(FlushError::Later);
        }
        Ok(copied?)
    }

    /// The length of a file's parts.
    pub(super) fn part_bytes(&self, size_bytes: u64) -> u64 {
        let limits = self.buckets.bucket().capabilities();
        let even = size_bytes.div_ceil(u64::from(limits.max_parts)).next_multiple_of(BLOCK_BYTES);
        self.options.part_bytes.max(limits.min_part_bytes).next_multiple_of(BLOCK_BYTES).max(even)
    }

    /// Sends one part of many. If the store cannot be reached for a moment, only this part is
    /// repeated.
    async fn send_part<'a>(
        &'a self,
        key: &str,
        send: impl Fn() -> ebb_ports::PortFuture<'a, Result<PartTag, BucketError>>,
    ) -> Result<PartTag, BucketError> {
        let (mut backoff, mut failing) = (Backoff::default(), None);
        loop {
            let error = match self.call_until_answered(key, &send).await {
                Err(error @ BucketError::Unavailable { .. }) => error,
                sent => return sent,
            };
            let now = self.ports.clock.monotonic();
            let since = *failing.get_or_insert(now);
            let BucketError::Unavailable { retry_after, what } = &error else { return Err(error) };
            if now - since >= self.options.bucket_timeout
                || self.is_stopping()
                || self.buckets.lost_to().is_some()
            {
                return Err(error);
            }
            let bucket_index = self.buckets.bucket_of_key(key);
            self.trouble(
                &self.buckets.subject("bucket writes", bucket_index),
                Some(format!(
                    "{} does not take what is written: {what}",
                    self.buckets.describe(bucket_index)
                )),
            );
            backoff.wait(&self.ports, *retry_after).await;
        }
    }

    /// The bytes of a part as the bucket has them already, in the file's home object, or sent
    /// early. They were there when the upload began: only one upload of a file is under way.
    async fn stored(&self, ino: Ino, key: &str, range: &Range<u64>) -> Option<Piece> {
        let bucket_index = self.buckets.bucket_of_key(key);
        if !self.buckets.bucket().capabilities().copies_parts
            || !self.flusher.queue(bucket_index).copies_parts.get()
        {
            return None;
        }
        let home = self.object_of(ino).filter(|(home, ..)| {
            self.buckets.bucket_of_key(home) == bucket_index
                && self.replica.view().extents().is_as_in_object(ino, range.clone())
        });
        match home {
            Some((home, etag, _)) => Some(Piece { key: home, etag, range: range.clone() }),
            None if bucket_index == BucketIndex::ROOT => self.early_piece(ino, range).await,
            None => None,
        }
    }

    /// Sends a guarded write until its outcome is clear. If the guard does not hold, the object
    /// there is an earlier attempt of our own, or an external object, which is kept.
    async fn guarded<'a>(
        self: &'a Rc<Self>,
        key: &'a str,
        replaces: Option<ETag>,
        content: &Content,
        send: impl Fn(Condition) -> ebb_ports::PortFuture<'a, Result<ETag, BucketError>>,
    ) -> Result<Sent, BucketError> {
        // An attempt with an unknown outcome.
        let is_unknown = Cell::new(false);
        let error = match self.send_guarded(key, replaces, content, send, &is_unknown).await {
            Err(error) if is_unknown.get() && !matches!(error, BucketError::Unknown { .. }) => {
                error
            }
            ended => return ended,
        };
        // The refusal is of the last attempt: an earlier one may stand there, or still come.
        self.outlast_unknown_outcomes(key).await;
        match self.persist(key, || self.buckets.bucket().head(key)).await {
            Ok(there) if content.is_in(&there) => Ok(Sent::Found(there.etag)),
            Err(unclear @ BucketError::Unknown { .. }) => Err(unclear),
            Ok(_) | Err(_) => Err(error),
        }
    }

    async fn send_guarded<'a>(
        self: &'a Rc<Self>,
        key: &'a str,
        replaces: Option<ETag>,
        content: &Content,
        send: impl Fn(Condition) -> ebb_ports::PortFuture<'a, Result<ETag, BucketError>>,
        is_unknown: &Cell<bool>,
    ) -> Result<Sent, BucketError> {
        let limits = self.buckets.bucket().capabilities();
        let mut condition =
            limits.guard(replaces.clone().map_or(Condition::Absent, Condition::Match));
        if condition == Condition::Always {
            // Nothing guards the put: the object that it would replace is at least looked at.
            self.keep_other(key, replaces.as_ref()).await?;
        }
        for _ in 0..MAX_CONFLICTS {
            match self.ask_until_clear(key, is_unknown, || send(condition.clone())).await {
                Err(BucketError::Precondition { .. }) => {}
                // The object to be replaced is gone, or the upload: it may have been completed.
                Err(BucketError::NotFound { .. })
                    if is_unknown.get() || matches!(condition, Condition::Match(_)) => {}
                // An attempt with a lost answer may come late, and make the object anew.
                Ok(_) if condition == Condition::Always && is_unknown.get() => {
                    self.outlast_unknown_outcomes(key).await
                }
                ended => return ended.map(Sent::Answered),
            }
            let there = match self
                .ask_until_clear(key, is_unknown, || self.buckets.bucket().head(key))
                .await
            {
                Ok(meta) if is_unknown.get() && content.is_in(&meta) => {
                    return Ok(Sent::Found(meta.etag));
                }
                Ok(_) => self.keep_other(key, replaces.as_ref()).await?,
                Err(BucketError::NotFound { .. }) => Condition::Absent,
                Err(error) => return Err(error),
            };
            condition = limits.guard(there);
        }
        Err(BucketError::Unavailable {
            what: format!("{key} is being written by somebody else all the time"),
            retry_after: None,
        })
    }

    pub(super) fn content(&self, ino: Ino) -> Result<Content, FlushError> {
        let state = self.replica.view();
        // Gone since: there is nothing to send.
        let attr = state.namespace().attr(ino).map_err(|_| FlushError::Later)?;
        let version = state.version();
        let object =
            ObjectOf { cluster: self.run.cluster, ino, incarnation: self.run.incarnation, version };
        Ok(Content { version, size_bytes: attr.size_bytes, tags: object_tags(&object, &attr) })
    }

    /// Bytes of a file as they were when its upload began. The caller holds the inode's latch.
    pub(super) async fn read_for_upload(
        self: &Rc<Self>,
        ino: Ino,
        range: Range<u64>,
        size_bytes: u64,
    ) -> Result<Bytes, FlushError> {
        let plan = self.replica.view().extents().plan_read(ino, range.clone(), size_bytes);
        let exposed = self.is_exposed(ino);
        if !exposed {
            self.sum_void(ino, &plan, |_, _| true).await?;
        }
        let mut data = BytesMut::with_capacity((range.end - range.start) as usize);
        for Segment { origin, range: part } in plan {
            match origin {
                ByteOrigin::Zero | ByteOrigin::Local if exposed => {
                    data.extend_from_slice(&self.read_compared(ino, &part).await?)
                }
                ByteOrigin::Zero => data.resize(data.len() + (part.end - part.start) as usize, 0),
                ByteOrigin::Local => match self.read_local(ino, &part).await? {
                    Some(bytes) => data.extend_from_slice(&bytes),
                    // A clean block was damaged and dropped: the next cycle fetches it.
                    None => return Err(FlushError::Later),
                },
                ByteOrigin::Remote => {
                    let Some((key, etag, _)) = self.object_of(ino) else {
                        return Err(FlushError::Later);
                    };
                    data.extend_from_slice(&self.get_range(&key, part, &etag).await?);
                }
            }
        }
        // The bytes read may differ from those of its checksums.
        if self.is_exposed(ino) != exposed {
            return Err(FlushError::Later);
        }
        // Blocks overwritten since were set aside.
        let mut bytes = data;
        for block in range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES) {
            let Some(kept) = self.flusher.preserved.block(ino, block) else { continue };
            let (start, end) = (
                (block * BLOCK_BYTES).max(range.start),
                ((block + 1) * BLOCK_BYTES).min(range.end),
            );
            let into = &mut bytes[(start - range.start) as usize..(end - range.start) as usize];
            match kept {
                Kept::Bytes(kept) => into
                    .copy_from_slice(&kept[(start - block * BLOCK_BYTES) as usize..][..into.len()]),
                Kept::InObject => {
                    let Some((key, etag, valid_bytes)) = self.object_of(ino) else {
                        return Err(FlushError::Later);
                    };
                    let held = (end.min(valid_bytes).max(start) - start) as usize;
                    into[held..].fill(0);
                    if held > 0 {
                        into[..held].copy_from_slice(
                            &self.get_range(&key, start..start + held as u64, &etag).await?,
                        );
                    }
                }
            }
        }
        Ok(bytes.freeze())
    }

    /// Blocks that have lost their checksums while they were sent, for a coming write to others of
    /// their chunk, still equal the sent bytes: with their checksums they stay, as clean. But not
    /// those into which a write has failed since.
    async fn sum_sent(&self, ino: Ino, len_bytes: u64, sent: Version) {
        let _guard = self.data.latches().hold(ino, Mode::Shared).await;
        let plan = self.replica.view().extents().plan_read(ino, 0..len_bytes, len_bytes);
        let is_as_sent = |block, version| {
            version <= sent && !self.flusher.failed_blocks.borrow().contains(ino, block)
        };
        if let Err(error) = self.sum_void(ino, &plan, is_as_sent).await {
            tracing::warn!(%ino, %error, "blocks that were sent are to be fetched again");
        }
    }
}

/// Parts of one file on their way at one time.
pub(super) const PARTS_AT_ONCE: usize = 8;

/// If another writer changes the object between every look and put so often, the cycle gives up.
pub(super) const MAX_CONFLICTS: usize = 8;
