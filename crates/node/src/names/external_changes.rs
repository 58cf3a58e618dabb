//! External changes of the bucket are applied where they are met (O-55): an object that differs
//! from the one that its file was read from, or is gone, and a directory without any object left.

use crate::Node;
use crate::admin::troubles::Subject;
use crate::buckets::ask::bucket_refusal;
use ebb_core::backing::Standing;
use ebb_core::state::State;
use ebb_model::*;
use ebb_ports::{BucketError, ETag, ObjectMeta};
use ebb_store::Mode;
use futures_util::future::select;
use std::rc::Rc;
use std::time::Duration;

/// How often a task that found an object changed looks whether an upload has ended.
const UPLOAD_POLL: Duration = Duration::from_millis(100);

impl Node {
    /// Requests the object that stands for a name in the bucket.
    pub(crate) async fn confirm(self: &Rc<Self>, dir: Ino, name: &Name) -> Result<(), RpcError> {
        let known = {
            let state = self.replica.view();
            state.backing().standing(state.namespace(), dir, name)
        };
        match known {
            Some(Standing::Object { ino, key, etag }) => {
                self.confirm_object((dir, name), ino, &key, &etag).await
            }
            Some(Standing::Prefix { dir: below, prefix }) => {
                self.confirm_prefix((dir, name), below, prefix).await
            }
            None => Ok(()),
        }
    }

    async fn confirm_object(
        self: &Rc<Self>,
        (dir, name): (Ino, &Name),
        ino: Ino,
        key: &str,
        etag: &str,
    ) -> Result<(), RpcError> {
        let known = Standing::Object { ino, key: key.into(), etag: etag.into() };
        let stands = |state: &State| {
            state.backing().standing(state.namespace(), dir, name).as_ref() == Some(&known)
        };
        // Nothing is written to the file while its object is requested.
        let _guard = self.data.latches().hold(ino, Mode::Exclusive).await;
        if !stands(&self.replica.view()) {
            return Ok(());
        }
        let found = match self
            .in_time(self.bucket_read("head", key, 0, || self.buckets.bucket().head(key)))
            .await
        {
            Ok(meta) if meta.etag.0 == etag => return Ok(()),
            Ok(meta) => Some(meta),
            // A restore has found no bytes of the file. It stays, so that reads report the loss.
            Err(RpcError::Refused(FsError::NotFound))
                if self.replica.view().backing().is_lost(ino) =>
            {
                return Ok(());
            }
            Err(RpcError::Refused(FsError::NotFound)) => None,
            Err(error) => return Err(error),
        };
        tracing::info!(key, "the object was replaced or removed by somebody else");
        if found.is_none() {
            // What is cached of it becomes the only copy.
            self.force(SyncScope::All).await?;
        }
        self.take_on_object(ino, key, stands, |state, stamp| match found {
            Some(meta) => replaced(ino, meta, stamp),
            None => vanished(state, dir, name, stamp),
        })
        .await
    }

    /// An external program has made the directory. It is removed once there is nothing below its
    /// prefix.
    async fn confirm_prefix(
        self: &Rc<Self>,
        (dir, name): (Ino, &Name),
        below: Ino,
        prefix: String,
    ) -> Result<(), RpcError> {
        if !self.in_time(self.probe(vec![prefix.clone()])).await?.is_empty() {
            return Ok(());
        }
        self.complete(below).await?;
        Box::pin(self.list_again(below)).await?;
        tracing::info!(prefix, "everything below was removed by somebody else");
        let stands =
            |state: &State| state.backing().is_deserted(state.namespace(), dir, name, &prefix);
        self.take_on(stands, |state, stamp| vanished(state, dir, name, stamp)).await
    }

    /// A download failed. Where the object is no longer the one that the home names, the file takes
    /// on the new one and the waiting readers plan again.
    pub(crate) async fn object_changed(
        self: &Rc<Self>,
        ino: Ino,
        key: &str,
        etag: &ETag,
        error: BucketError,
    ) -> Result<(), RpcError> {
        if !matches!(error, BucketError::Precondition { .. } | BucketError::NotFound { .. }) {
            return Err(bucket_refusal(&error));
        }
        self.upload_ended(ino).await?;
        let _guard = self.data.latches().hold(ino, Mode::Exclusive).await;
        match self.object_of(ino) {
            // Moved or uploaded since: the home names another object or key now.
            Some((now_key, now_etag, _)) if now_key == key && now_etag == *etag => {}
            _ => return Ok(()),
        }
        let meta = match self.bucket_retry("head", key, 0, || self.buckets.bucket().head(key)).await
        {
            Ok(meta) => meta,
            Err(BucketError::NotFound { .. }) => {
                self.trouble(
                    Subject::NoObject { ino, etag: etag.0.clone() },
                    Some(self.no_object(ino, key)),
                );
                return Err(FsError::Io.into());
            }
            Err(error) => return Err(bucket_refusal(&error)),
        };
        if meta.etag == *etag {
            return Ok(());
        }
        if self.replica.view().backing().dirty(ino).is_some_and(|dirty| dirty.content.is_some()) {
            // The next upload has the bytes changed here, and the external object's for the rest.
            self.keep_other(key, Some(etag)).await.map_err(|error| bucket_refusal(&error))?;
        }
        tracing::info!(
            key,
            "the object was replaced by somebody else; its cached bytes are dropped"
        );
        self.take_on_object(ino, key, |_| true, |_, stamp| replaced(ino, meta, stamp)).await
    }

    /// Waits for the end of the upload of a file, which settles the file's object.
    pub(crate) async fn upload_ended(&self, ino: Ino) -> Result<(), RpcError> {
        let deadline = self.ports.clock.monotonic() + self.upload_patience();
        while self.replica.view().backing().upload(ino).is_some() {
            if self.ports.clock.monotonic() >= deadline {
                return Err(FsError::TimedOut.into());
            }
            let progress = Box::pin(self.flusher.progress());
            select(progress, self.ports.clock.sleep(UPLOAD_POLL)).await;
        }
        Ok(())
    }

    fn no_object(&self, ino: Ino, key: &str) -> String {
        let state = self.replica.view();
        if state.backing().is_lost(ino) {
            return format!(
                "the bytes of {key} are nowhere: a node was lost with them, and `ebb restore` has \
                 named it"
            );
        }
        let rest = match state.extents().resident_bytes_of(ino) {
            0 => "nothing of it is cached",
            _ => "what is cached of it can still be read",
        };
        format!("{key} was removed from the bucket by somebody else; {rest}")
    }

    /// Drops the cached bytes of the object that a file was read from. The file's latch is held.
    async fn take_on_object(
        self: &Rc<Self>,
        ino: Ino,
        key: &str,
        stands: impl FnOnce(&State) -> bool,
        change: impl FnOnce(&State, Stamp) -> BackingCommand,
    ) -> Result<(), RpcError> {
        self.find_stored(ino, &(0..u64::MAX)).await?;
        let before = self.replica.view().extents().resident_runs(ino, 0..u64::MAX);
        self.take_on(stands, change).await?;
        self.is_sound(key, &(0..u64::MAX));
        self.hide_dropped(ino, before).await?;
        self.refresh_granted(ino);
        Ok(())
    }

    /// Logs an external change, unless the inode was changed here since it was found.
    async fn take_on(
        &self,
        stands: impl FnOnce(&State) -> bool,
        change: impl FnOnce(&State, Stamp) -> BackingCommand,
    ) -> Result<(), RpcError> {
        let taken_on = self.commit_stamped(|state, stamp| match stands(state) {
            true => Ok(Command::Backing(change(state, stamp))),
            false => Err(FsError::Busy.into()),
        });
        match taken_on.await {
            Err(RpcError::Refused(FsError::Busy)) => Ok(()),
            taken_on => taken_on,
        }
    }
}

/// Another program removed what was at the name. Cached bytes of its object have no other copy.
pub(crate) fn vanished(state: &State, parent: Ino, name: &Name, stamp: Stamp) -> BackingCommand {
    let ino = state.namespace().lookup(parent, name).map(|attr| attr.ino);
    let kept = ino.map_or(Vec::new(), |ino| state.extents().kept_without_object(ino));
    let name = name.clone();
    match kept.is_empty() {
        true => BackingCommand::Vanished { parent, name, stamp },
        false => {
            let kept = kept.into_iter().map(|run| (run.start, run.end)).collect();
            BackingCommand::VanishedKept { parent, name, kept, stamp }
        }
    }
}

/// A file takes the content of the external object at its key.
fn replaced(ino: Ino, meta: ObjectMeta, stamp: Stamp) -> BackingCommand {
    let modified = Time::from_secs(meta.modified_secs);
    BackingCommand::Replaced { ino, etag: meta.etag.0, len_bytes: meta.len_bytes, modified, stamp }
}
