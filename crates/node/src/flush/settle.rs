//! Settles uploads that were under way when the node last stopped, by asking the bucket.

use crate::Node;
use crate::buckets::ask::{Backoff, bucket_refusal};
use ebb_core::backing::Upload;
use ebb_format::object::ObjectOf;
use ebb_model::*;
use ebb_ports::{BucketError, ETag, ObjectMeta, UploadId};
use futures_util::future::join_all;
use std::rc::Rc;

impl Node {
    /// Finds the outcome of the writes that were under way when the node last stopped (O-70). An
    /// object that has arrived is not sent once more, which the paper does (O-76). A write that the
    /// bucket does not show yet may still come: it is returned, for [`Node::settle_late`].
    pub(crate) async fn settle_uploads(self: &Rc<Self>) -> Result<Vec<(Ino, String)>, RpcError> {
        let under_way: Vec<(Ino, Upload)> = {
            let state = self.replica.view();
            state.backing().uploads().map(|(ino, upload)| (ino, upload.clone())).collect()
        };
        if !under_way.is_empty() && !self.buckets.bucket().capabilities().conditional_put {
            // An earlier request could arrive after a later one.
            self.outlast_late_effects().await;
        }
        let mut late = Vec::new();
        for (ino, begun) in under_way {
            let aborted = match begun.upload.clone().map(UploadId) {
                Some(upload) => {
                    self.call_until_answered(&begun.key, || {
                        self.buckets.bucket().upload_abort(&begun.key, &upload)
                    })
                    .await
                }
                None => Ok(()),
            };
            // A refused request is repeated with the late ones.
            let is_over = match aborted {
                Ok(()) | Err(BucketError::NotFound { .. }) => true,
                Err(error @ BucketError::Unknown { .. }) => return Err(bucket_refusal(&error)),
                Err(_) => false,
            };
            let there = self.there(&begun.key).await.map_err(|error| bucket_refusal(&error))?;
            let end = match there.filter(|there| is_over && !self.was_there(ino, &begun.key, there))
            {
                Some(there) => self
                    .early_end(ino, &begun, &there)
                    .await
                    .map_err(|error| bucket_refusal(&error))?,
                None => None,
            };
            if end.is_none() {
                late.push((ino, begun.key));
            }
            self.try_log_upload_ended(end.unwrap_or(BackingCommand::UploadLate { ino })).await?;
        }
        if !late.is_empty() {
            // Before any client reads the settled state.
            self.force_log().await?;
        }
        Ok(late)
    }

    /// After so long a wait all late writes have arrived. Until then these keys stay claimed: a
    /// late write to an unclaimed key would count as external.
    pub(crate) async fn settle_late(self: Rc<Self>, late: Vec<(Ino, String)>) {
        self.outlast_late_effects().await;
        // A bucket that does not answer delays no other.
        join_all(late.iter().map(|(ino, key)| self.settle_until_seen(*ino, key))).await;
    }

    async fn settle_until_seen(self: &Rc<Self>, ino: Ino, key: &str) {
        let mut backoff = Backoff::default();
        let Some(begun) = self.replica.view().backing().upload(ino).cloned() else { return };
        let ended = match begun.upload.clone().map(UploadId) {
            Some(upload) => self.abort(key, &upload).await,
            None => self.abort_unanswered(key, None).await,
        };
        if ended.is_err() {
            return;
        }
        while !self.is_stopping() {
            match self.end_to_be_seen(ino, &begun).await {
                Ok(end) => {
                    // Never sent, or an external object: the dirty blocks are sent again.
                    let ended = self
                        .log_upload_ended(end.unwrap_or(BackingCommand::UploadAborted { ino }))
                        .await;
                    if let Err(error) = ended {
                        tracing::error!(key, %error, "what became of an upload of before could not \
                            be logged");
                    }
                    return self.flusher.progress.raise();
                }
                Err(error) => {
                    let what = format!(
                        "it cannot be seen what became of {key} when the node last stopped: {error}"
                    );
                    self.trouble(
                        &self.buckets.subject("bucket writes", self.buckets.bucket_of_key(key)),
                        Some(what),
                    );
                    backoff.wait(&self.ports, None).await;
                }
            }
        }
    }

    /// How a write with an unknown outcome ended, as far as the bucket shows it once none of its
    /// requests can still arrive.
    async fn end_to_be_seen(
        self: &Rc<Self>,
        ino: Ino,
        begun: &Upload,
    ) -> Result<Option<BackingCommand>, BucketError> {
        let Some(there) = self.there(&begun.key).await? else { return Ok(None) };
        if let Some(end) = self.end_of_put(ino, begun, &there) {
            return Ok(Some(end));
        }
        let moved = self.is_copy_of_home(ino, begun, &there).await?;
        Ok(moved.then(|| BackingCommand::Moved { ino, key: begun.key.clone(), etag: there.etag.0 }))
    }

    /// The object may be the file's state before that upload began.
    fn was_there(&self, ino: Ino, key: &str, there: &ObjectMeta) -> bool {
        let is_home =
            self.object_of(ino).is_some_and(|(home, etag, _)| home == key && etag == there.etag);
        is_home || self.replica.view().backing().is_to_be_deleted(key)
    }

    /// How a write ended whose object is there, unless that is a copy: a copy in parts may have
    /// been begun earlier, as an upload without a recorded id that is still to come. The file is
    /// whole at its old key, and no client waits for this to be settled.
    async fn early_end(
        self: &Rc<Self>,
        ino: Ino,
        begun: &Upload,
        there: &ObjectMeta,
    ) -> Result<Option<BackingCommand>, BucketError> {
        let end = self.end_of_put(ino, begun, there);
        let may_come_twice = end.is_some()
            && begun.upload.is_none()
            && self.is_copy_of_home(ino, begun, there).await?;
        Ok(end.filter(|_| !may_come_twice))
    }

    /// The end of a put, if the object has the file's content since that put began, or later. An
    /// older object that was changed externally is not one.
    fn end_of_put(&self, ino: Ino, begun: &Upload, there: &ObjectMeta) -> Option<BackingCommand> {
        let version = self.version_in(ino, there).filter(|version| *version >= begun.since)?;
        let ObjectMeta { etag: ETag(etag), len_bytes, .. } = there.clone();
        Some(BackingCommand::Uploaded { ino, key: begun.key.clone(), etag, len_bytes, version })
    }

    /// The version of the file that this node has sent as that object.
    fn version_in(&self, ino: Ino, there: &ObjectMeta) -> Option<Version> {
        let sent = ObjectOf::decode(&there.tags)?;
        ((sent.cluster, sent.ino, sent.incarnation)
            == (self.run.cluster, ino, self.run.incarnation))
            .then_some(sent.version)
    }

    /// Whether the object is the copy of a file that was being moved.
    async fn is_copy_of_home(
        &self,
        ino: Ino,
        begun: &Upload,
        there: &ObjectMeta,
    ) -> Result<bool, BucketError> {
        let Some(from) = &begun.from else { return Ok(false) };
        if *from == there.etag.0 {
            return Ok(true);
        }
        let (home, len_bytes) = {
            let state = self.replica.view();
            match state
                .backing()
                .backing_object(state.namespace(), ino)
                .filter(|(_, home)| home.etag == *from)
            {
                Some((key, home)) => (key, Some(home.len_bytes)),
                // The file has been removed since.
                None => match state.backing().deleted_with(from) {
                    Some(key) => (key, None),
                    None => return Ok(false),
                },
            }
        };
        match self.there(&home).await? {
            Some(source) if source.etag.0 == *from => {
                self.is_copy((&home, &source), (&begun.key, there)).await
            }
            Some(_) => Ok(false),
            // Its old object was removed externally.
            None => Ok(self.version_in(ino, there).is_some() && len_bytes == Some(there.len_bytes)),
        }
    }
}
