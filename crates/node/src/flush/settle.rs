//! What became of uploads that were under way when the node last stopped: the bucket is asked.

use crate::Node;
use crate::buckets::ask::{Backoff, bucket_refusal};
use ebb_format::object::ObjectOf;
use ebb_model::*;
use ebb_ports::{BucketError, ETag, ObjectMeta, UploadId};
use futures_util::future::join_all;
use std::rc::Rc;

impl Node {
    /// Finds out how what was being written ended when the node last stopped (O-70). What is there by now is not sent once
    /// more, which the paper does (O-76). What the bucket does not show yet may still come: it is given, for [`Node::settle_late`].
    pub(crate) async fn settle_uploads(self: &Rc<Self>) -> Result<Vec<(Ino, String)>, RpcError> {
        let under_way: Vec<(Ino, String, Option<String>)> = {
            let state = self.replica.view();
            state.backing().uploads().map(|(ino, upload)| (ino, upload.key.clone(), upload.upload.clone())).collect()
        };
        let mut late = Vec::new();
        for (ino, key, upload) in under_way {
            if let Some(upload) = upload.map(UploadId) {
                self.insist(&key, || self.bucket().upload_abort(&key, &upload)).await.map_err(|error| bucket_refusal(&error))?;
            }
            let end = self.end_to_be_seen(ino, &key).await?.filter(|end| self.is_news(end));
            if end.is_none() {
                late.push((ino, key));
            }
            self.log_end(end.unwrap_or(BackingCommand::UploadLate { ino })).await?;
        }
        if !late.is_empty() {
            // Before anybody reads what is here.
            self.force_log().await?;
        }
        Ok(late)
    }

    /// Whoever has waited so long has seen all that may come. Until then these keys stay claimed: what came to one
    /// that nobody claims would be another's.
    pub(crate) async fn settle_late(self: Rc<Self>, late: Vec<(Ino, String)>) {
        self.outlast_late_effects().await;
        // A bucket that does not answer keeps no other waiting.
        join_all(late.iter().map(|(ino, key)| self.settle_until_seen(*ino, key))).await;
    }

    async fn settle_until_seen(self: &Rc<Self>, ino: Ino, key: &str) {
        let mut backoff = Backoff::default();
        let is_unheard = self.replica.view().backing().upload(ino).is_some_and(|upload| upload.upload.is_none());
        if is_unheard && self.abort_unheard(key, None).await.is_err() {
            return;
        }
        while !self.is_stopping() {
            match self.end_to_be_seen(ino, key).await {
                Ok(end) => {
                    // Never sent, or somebody else's: what is dirty is sent again.
                    let ended = self.end(end.unwrap_or(BackingCommand::UploadAborted { ino })).await;
                    if let Err(error) = ended {
                        tracing::error!(key, %error, "what became of an upload of before could not be logged");
                    }
                    return self.flusher.progress.raise();
                }
                Err(error) => {
                    let what = format!("it cannot be seen what became of {key} when the node last stopped: {error}");
                    self.trouble(&self.subject("bucket writes", self.side_of_key(key)), Some(what));
                    backoff.wait(&self.ports, None).await;
                }
            }
        }
    }

    /// How a write to `key` ended of which nobody has heard, if that can be seen.
    async fn end_to_be_seen(self: &Rc<Self>, ino: Ino, key: &str) -> Result<Option<BackingCommand>, RpcError> {
        let meta = match self.bucket_retry("head", key, 0, || self.bucket().head(key)).await {
            Ok(meta) => meta,
            Err(BucketError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(bucket_refusal(&error)),
        };
        let version = self.version_in(&meta, ino);
        // A copy of what others wrote has no tag of ours.
        let is_copy = version.is_none() && self.is_copy_of_home(ino, (key, &meta)).await?;
        let ObjectMeta { etag: ETag(etag), len_bytes, .. } = meta;
        let key = key.into();
        Ok(match version {
            Some(version) => Some(BackingCommand::Uploaded { ino, key, etag, len_bytes, version }),
            None if is_copy => Some(BackingCommand::Moved { ino, key, etag }),
            None => None,
        })
    }

    /// Of a file that is being moved. What has to be read for it waits until the node serves.
    async fn is_copy_of_home(&self, ino: Ino, (key, there): (&str, &ObjectMeta)) -> Result<bool, RpcError> {
        let moved = self.replica.view().backing().upload(ino).and_then(|upload| Some((upload.from.clone()?, upload.late)));
        let Some((from, late)) = moved else { return Ok(false) };
        if from == there.etag.0 || !late {
            return Ok(from == there.etag.0);
        }
        let home = self.home_of(ino).filter(|(_, etag, _)| etag.0 == from).map(|(home, ..)| home);
        // Of a file that has been removed since.
        let Some(home) = home.or_else(|| self.replica.view().backing().deleted_with(&from)) else { return Ok(false) };
        let compared = match self.bucket_retry("head", &home, 0, || self.bucket().head(&home)).await {
            Ok(source) if source.etag.0 == from => self.is_copy((&home, &source), (key, there)).await,
            Ok(_) | Err(BucketError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        };
        compared.map_err(|error| bucket_refusal(&error))
    }

    /// The object is not the one that was there before what has ended so.
    fn is_news(&self, end: &BackingCommand) -> bool {
        let (BackingCommand::Uploaded { ino, key, etag, .. } | BackingCommand::Moved { ino, key, etag }) = end else { return false };
        let was_there = self.home_of(*ino).is_some_and(|(home, tag, _)| home == *key && tag.0 == *etag);
        !was_there && !self.replica.view().backing().is_to_be_deleted(key)
    }

    /// The version that the object holds of this file. Of an earlier incarnation it is older
    /// than everything here: versions of several cannot be compared, and what was sent by
    /// another node's log says nothing about what this one has to send.
    fn version_in(&self, meta: &ObjectMeta, ino: Ino) -> Option<Version> {
        let object = ObjectOf::decode(&meta.tags).filter(|object| (object.cluster, object.ino) == (self.cluster, ino))?;
        Some(if object.incarnation == self.incarnation { object.version } else { Version(0) })
    }
}
