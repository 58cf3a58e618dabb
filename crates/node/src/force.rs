//! Making what was acknowledged survive a power cut.
//!
//! Order: bytes of store files, then the record that says so, then the log. What was
//! acknowledged is forced once every commit interval, by fsync and by syncfs. While clients
//! are still to come back, bytes are forced all the same, and no record says so: `repeat`.

use crate::admin::troubles::Subject;
use crate::replica::refusal;
use crate::{Node, Planted};
use ebb_model::*;
use ebb_ports::{DiskError, PortFuture};

impl Node {
    /// Forces everything that was answered so far, and tells clients that they need not keep
    /// it any longer. What was fetched can be fetched again: nobody waits until it is forced.
    pub(crate) async fn force_all(&self) -> Result<LogIndex, RpcError> {
        self.force(SyncScope::Written).await
    }

    pub(crate) async fn force(&self, scope: SyncScope) -> Result<LogIndex, RpcError> {
        let upto = self.replica.log().written();
        let all_back = !self.attachments.awaits_any();
        match self.waiting("the node's disk", self.store.sync(scope)).await {
            Ok(any) => {
                self.trouble("unforced", None);
                if (any || scope == SyncScope::All) && all_back {
                    self.commit(Command::Extent(ExtentCommand::Synced { scope, upto })).await?;
                }
            }
            Err(error) => {
                self.tell_of_unforced(&error);
                self.force_log().await?;
                return Err(RpcError::Refused(FsError::Io));
            }
        }
        self.force_log().await?;
        if upto > self.safe.get() {
            self.safe.set(upto);
            self.attachments.notify_others(None, &Notice::Durable { durable: upto });
        }
        Ok(self.safe.get())
    }

    /// Forces the bytes of one file and every operation answered so far. The answer is what
    /// clients need not keep: bytes of other files may not be safe yet.
    pub(crate) async fn fsync(&self, ino: Ino) -> Result<LogIndex, RpcError> {
        if self.has(Planted::SkippedFsync) {
            return Ok(self.safe.get());
        }
        self.doubt_exposed(Some(ino));
        let upto = self.replica.log().written();
        let all_back = !self.attachments.awaits_any();
        let synced = self.waiting("the node's disk", self.store.sync(SyncScope::File(ino))).await.map_err(|error| {
            self.tell_of_unforced(&error);
            RpcError::Refused(FsError::Io)
        })?;
        if synced && all_back {
            self.commit(Command::Extent(ExtentCommand::Synced { scope: SyncScope::File(ino), upto })).await?;
        }
        self.force_log().await?;
        Ok(self.safe.get())
    }

    /// Forces every command so far, which says nothing of the bytes that commands speak of.
    pub(crate) fn force_log(&self) -> PortFuture<'_, Result<LogIndex, RpcError>> {
        // In a box, or the future of every command would be as large.
        Box::pin(async {
            // Or what was cut off could come back under what is logged by now. Of a file of which that
            // fails nothing is forced any more.
            if let Err(error) = self.waiting("the node's disk", self.store.sync_cuts()).await {
                self.tell_of_unforced(&error);
            }
            let durable = self.waiting("the log to be forced", self.replica.log().force()).await.map_err(refusal)?;
            let has_files = |pack| self.replica.view().extents().packed_in(pack).next().is_some();
            match self.waiting("the node's disk", self.store.drop_doomed(durable, has_files)).await {
                Ok(true) => self.trouble("removal", None),
                Ok(false) => {}
                // The space comes back with the next start, which removes what nobody knows.
                Err(error) => self.trouble("removal", Some(format!("a file of the cache could not be removed: {error}"))),
            }
            Ok(durable)
        })
    }

    /// Of which files it is remembered until they are gone or the node starts anew.
    fn tell_of_unforced(&self, error: &DiskError) {
        let failed = self.store.failed();
        if failed.is_empty() {
            self.trouble("unforced", Some(format!("cached data could not be forced to disk: {error}")));
        }
        for (ino, error) in failed {
            self.trouble(Subject::Unforced(ino), Some(format!("what inode {ino} has could not be forced to disk: {error}")));
        }
    }
}
