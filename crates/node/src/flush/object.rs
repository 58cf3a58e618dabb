//! What is done to the object of a file: written, moved, deleted.

use super::transact::FlushError;
use crate::Node;
use ebb_core::backing::{FlushStep, keys};
use ebb_core::partition::Partition;
use ebb_model::*;
use ebb_ports::{BucketError, ETag};
use std::cell::Cell;
use std::rc::Rc;

impl Node {
    /// Brings the object of one file to where and what it is to be.
    pub(super) async fn flush_file(self: &Rc<Self>, ino: Ino) -> Result<(), FlushError> {
        self.see_all_names(ino).await?;
        let next = |state: &Partition| state.backing().flush_step(state.namespace(), ino);
        let step = next(&self.replica.view());
        let planned = |state: &Partition| next(state) == step;
        let (ino, key, ended) = match &step {
            FlushStep::Put { key, replaces } => (ino, key, self.put_file(ino, key, replaces.clone().map(ETag)).await),
            FlushStep::Move { from, to, etag } => (ino, to, self.move_object(ino, (from, to, &ETag(etag.clone())), planned).await),
            FlushStep::Evict { occupant, from, to, etag } => {
                // Pages that tell of it must say where it is from then on.
                self.see_all_names(*occupant).await?;
                (*occupant, to, self.move_object(*occupant, (from, to, &ETag(etag.clone())), planned).await)
            }
            FlushStep::AwaitDelete { .. } | FlushStep::AwaitUpload { .. } | FlushStep::MakeWay { .. } | FlushStep::Nothing => {
                return Err(FlushError::Later);
            }
        };
        match ended {
            Err(FlushError::Bucket(nested @ BucketError::Nested { .. })) => self.make_way(ino, key, nested).await,
            ended => ended,
        }
    }

    /// Does what must be done before the store takes anything at `key` for `ino`, which it has refused because of
    /// what is at keys above it or below.
    pub(super) async fn make_way(self: &Rc<Self>, ino: Ino, key: &str, nested: BucketError) -> Result<(), FlushError> {
        let next = |state: &Partition| state.backing().way_to(state.namespace(), ino, key);
        let step = next(&self.replica.view());
        match &step {
            Some(FlushStep::Evict { occupant, from, to, etag }) => {
                self.see_all_names(*occupant).await?;
                self.move_object(*occupant, (from, to, &ETag(etag.clone())), |state| next(state) == step).await
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

    /// Copies an object to another key of its file, which is its home from then on.
    async fn move_object(
        self: &Rc<Self>,
        ino: Ino,
        (from, to, etag): (&str, &str, &ETag),
        planned: impl FnOnce(&Partition) -> bool,
    ) -> Result<(), FlushError> {
        self.begin(ino, to, planned).await?;
        // An earlier copy of the same may stand there.
        let moved = match self.keep_other(to, Some(etag)).await {
            Ok(()) => {
                let doubt = Cell::new(false);
                match self.ask_until_clear(to, &doubt, || self.bucket().copy(from, to, Some(etag))).await {
                    Ok(_) if doubt.get() => {
                        let moved = self.after_late_effects(to).await;
                        // What is large is copied in parts.
                        self.abort_unheard(to, None).await.and(moved)
                    }
                    moved => moved,
                }
            }
            Err(error) => Err(error),
        };
        match moved {
            Ok(etag) => {
                self.end(BackingCommand::Moved { ino, key: to.into(), etag: etag.0 }).await?;
                self.is_sound(to, &(0..u64::MAX));
                self.flusher.count(0);
                Ok(())
            }
            // Only a node that stops leaves it at that: the next start finds out.
            Err(error @ BucketError::Unknown { .. }) => Err(error.into()),
            Err(error) => {
                self.give_up(ino).await?;
                if matches!(error, BucketError::Precondition { .. } | BucketError::NotFound { .. }) {
                    self.object_changed(ino, from, etag, error.clone()).await?;
                }
                Err(error.into())
            }
        }
    }

    pub(super) async fn delete(&self, key: &str, etag: Option<&ETag>) -> Result<(), FlushError> {
        self.await_late_effects(key)?;
        // Or a power cut could bring back a name whose object is gone.
        self.force_log().await?;
        match self.insist(key, || self.bucket().delete(key, etag)).await {
            Ok(()) | Err(BucketError::NotFound { .. }) => self.gone.note(key, self.ports.clock.monotonic()),
            // Somebody else has put something there since: it is theirs.
            Err(BucketError::Precondition { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.end(BackingCommand::Deleted { key: key.into() }).await?;
        self.is_sound(key, &(0..u64::MAX));
        Ok(())
    }

    /// Somebody else's object stands where one of ours is to be: it is kept beside, under a
    /// name that says so (O-55). `mine` may be replaced. What others have made of an object of ours has our tag still.
    pub(crate) async fn keep_other(&self, key: &str, mine: Option<&ETag>) -> Result<(), BucketError> {
        let head = |key: String| async move {
            match self.bucket_retry("head", &key, 0, || self.bucket().head(&key)).await {
                Ok(meta) => Ok(Some(meta.etag)),
                Err(BucketError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(found) = head(key.to_owned()).await?.filter(|found| Some(found) != mine) else { return Ok(()) };
        for number in 1..=MAX_ASIDE {
            let aside = keys::aside(key, ebb_format::crc32c(found.0.as_bytes()), number);
            match head(aside.clone()).await? {
                Some(there) if there == found => return Ok(()),
                // Of another conflict, or others have changed it.
                Some(_) => continue,
                None => {}
            }
            tracing::warn!(key, aside, "somebody else has written the object: their version is kept beside");
            return self.insist(&aside, || self.bucket().copy(key, &aside, Some(&found))).await.map(drop);
        }
        Err(BucketError::Unavailable { what: format!("{key} has {MAX_ASIDE} versions of others beside it"), retry_after: None })
    }
}

/// Versions of others with one tag that are kept beside one key.
const MAX_ASIDE: u32 = 100;
