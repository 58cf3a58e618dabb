//! Making what was acknowledged survive a power cut.
//!
//! Order: bytes of store files, then the record that says so, then the log. What was
//! acknowledged is forced once every commit interval, by fsync and by syncfs.

use crate::Node;
use crate::replica::refusal;
use ebb_model::*;

impl Node {
    /// Forces everything that was answered so far.
    pub(crate) async fn force_all(&self) -> Result<LogIndex, RpcError> {
        let upto = self.replica.log().written();
        match self.store.sync(None).await {
            Ok(false) => {}
            Ok(true) => {
                self.commit(Command::Extent(ExtentCommand::Synced { ino: None, upto })).await?;
            }
            Err(error) => {
                self.trouble("disk", Some(format!("cached data could not be forced to disk: {error}")));
                self.force_log().await?;
                return Err(RpcError::Refused(FsError::Io));
            }
        }
        self.force_log().await
    }

    /// Forces the bytes of one file and every operation answered so far.
    pub(crate) async fn fsync(&self, ino: Ino) -> Result<LogIndex, RpcError> {
        let upto = self.replica.log().written();
        let synced = self.store.sync(Some(ino)).await.map_err(|error| {
            tracing::error!(%ino, %error, "fsync failed");
            RpcError::Refused(FsError::Io)
        })?;
        if synced {
            self.commit(Command::Extent(ExtentCommand::Synced { ino: Some(ino), upto })).await?;
        }
        self.force_log().await
    }

    pub(crate) async fn force_log(&self) -> Result<LogIndex, RpcError> {
        let durable = self.replica.log().force().await.map_err(refusal)?;
        self.attachments.notify_others(None, &Notice::Durable { durable });
        if let Err(error) = self.store.drop_doomed(durable).await {
            // The space comes back with the next start, which removes what nobody knows.
            self.trouble("disk", Some(format!("a file of the cache could not be removed: {error}")));
        }
        Ok(durable)
    }
}
