//! Forces acknowledged operations, so that they survive a power cut.
//!
//! Order: bytes of store files, then the record of it, then the log. When one file is forced, the
//! log is forced at the same time. Acknowledged operations are forced once every commit interval,
//! by fsync and by syncfs. While clients have yet to come back, bytes are forced all the same, but
//! without a record of it: `repeat`.

use crate::Node;
use crate::admin::troubles::Subject;
use ebb_model::*;
use ebb_ports::{DiskError, PortFuture};
use futures_util::future::join;

impl Node {
    /// Forces everything that was answered so far, and tells clients that they need not keep it any
    /// longer. Fetched bytes can be fetched again: no caller waits until they are forced.
    pub(crate) async fn force_all(&self) -> Result<LogIndex, RpcError> {
        self.force(SyncScope::Written).await
    }

    pub(crate) async fn force(&self, scope: SyncScope) -> Result<LogIndex, RpcError> {
        let (upto, position) = (self.replica.written(), self.replica.written_position());
        let all_back = !self.attachments.awaits_any();
        match self.waiting("the node's disk", self.store.sync(scope)).await {
            Ok(any) => {
                self.trouble("unforced", None);
                self.unforced_writers.retain(|ino| self.store.has_unforced_writes(ino));
                if (any || scope == SyncScope::All) && all_back {
                    let told =
                        self.commit_local(LocalCommand::Synced { scope, upto: position }).await;
                    if let Err(error) = told {
                        // A full disk may have room for it once something is removed.
                        self.force_log().await?;
                        return Err(error);
                    }
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
            if self.replica.own_node().is_some() {
                self.all_forced(upto).await?;
            }
            self.safe.set(upto);
            self.attachments.notify_others(None, &Notice::Durable { durable: upto });
        }
        Ok(self.safe.get())
    }

    /// In a replicated volume, the bytes of all commands up to `upto` that are on this node's disk
    /// are forced. Forces those on other disks, and tells all replicas.
    async fn all_forced(&self, upto: LogIndex) -> Result<(), RpcError> {
        if self.replica.view_without_backing().nodes().unforced().is_empty() {
            return Ok(());
        }
        Box::pin(self.force_elsewhere()).await?;
        let forced = Command::Nodes(NodesCommand::Forced { upto });
        self.replica.propose(|_| Ok(forced)).await.map(drop)
    }

    /// Forces the bytes of one file and every operation answered so far. Returns the index up to
    /// which clients need not keep operations: bytes of other files may not be safe yet.
    pub(crate) async fn fsync(&self, ino: Ino) -> Result<LogIndex, RpcError> {
        if Planted::SkippedFsync.is_on() {
            return Ok(self.safe.get());
        }
        self.doubt_exposed(Some(ino));
        let upto = self.replica.written_position();
        let all_back = !self.attachments.awaits_any();
        let sync = async {
            let synced = self
                .waiting("the node's disk", self.store.sync(SyncScope::File(ino)))
                .await
                .map_err(|error| {
                    self.tell_of_unforced(&error);
                    RpcError::Refused(FsError::Io)
                })?;
            if synced && all_back {
                let scope = SyncScope::File(ino);
                match self.commit_local(LocalCommand::Synced { scope, upto }).await {
                    Ok(()) => {}
                    // The files are forced all the same.
                    Err(RpcError::Refused(FsError::NoSpace)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        // The log may have commands for bytes that are not forced, as it has for other files. The
        // record that these are forced comes before all later ones, and may be forced with them:
        // after a power cut before it they are compared.
        let (synced, forced) = match self.store.has_cuts() {
            true => (sync.await, self.force_commands().await),
            false => join(sync, self.force_commands()).await,
        };
        synced.and(forced.map(drop))?;
        // Small files go with the next force.
        if self.store.has_pending_file_frees() {
            self.remove_doomed().await;
        }
        Ok(self.safe.get())
    }

    /// Forces every command so far, without the bytes that commands refer to, and removes files and
    /// ranges that are of no use any more.
    pub(crate) fn force_log(&self) -> PortFuture<'_, Result<LogIndex, RpcError>> {
        // In a box, or the future of every command would be as large.
        Box::pin(async {
            let durable = self.force_commands().await?;
            self.remove_doomed().await;
            Ok(durable)
        })
    }

    async fn remove_doomed(&self) {
        let has_files = |pack| self.replica.view().extents().packed_in(pack).next().is_some();
        let forced = match Planted::RemovedBeforeForced.is_on() {
            true => self.replica.written_position(),
            false => self.replica.settled_position(),
        };
        match self.waiting("the node's disk", self.store.free_pending(forced, has_files)).await {
            Ok(true) => self.trouble("removal", None),
            Ok(false) => {}
            // The space comes back with the next start, which removes unknown files.
            Err(error) => self.trouble(
                "removal",
                Some(format!("a file of the cache could not be removed: {error}")),
            ),
        }
    }

    async fn force_commands(&self) -> Result<LogIndex, RpcError> {
        // Otherwise bytes that were cut off could come back under the commands logged by now. A
        // file where that fails is not forced any more.
        if let Err(error) = self.waiting("the node's disk", self.store.sync_cuts()).await {
            self.tell_of_unforced(&error);
        }
        self.waiting("the log to be forced", self.replica.settle()).await
    }

    /// The failed files are remembered until they are gone or the node starts anew.
    fn tell_of_unforced(&self, error: &DiskError) {
        let failed = self.store.failed();
        if failed.is_empty() {
            self.trouble(
                "unforced",
                Some(format!("cached data could not be forced to disk: {error}")),
            );
        }
        for (ino, error) in failed {
            self.trouble(
                Subject::Unforced(ino),
                Some(format!("what inode {ino} has could not be forced to disk: {error}")),
            );
        }
    }
}
