//! The replica of a partition on this node: its state and the log that makes it last.
//!
//! With one voter a proposal is written, applied and answered; a Raft group will stand in
//! the same place and answer once the record is committed. Proposals take turns, so what
//! a leader chooses for a command (ids, versions, holders) is chosen on the very state
//! that the command is applied to.

use crate::log::{Log, LogError};
use ebb_core::partition::{Applied, Partition};
use ebb_model::{Command, FsError, LogIndex, RpcError};
use futures_util::lock::{Mutex, MutexGuard};
use std::cell::{Ref, RefCell};

pub struct Replica {
    partition: RefCell<Partition>,
    log: Log,
    turn: Mutex<()>,
}

impl Replica {
    pub fn new(partition: Partition, log: Log) -> Replica {
        Replica { partition: RefCell::new(partition), log, turn: Mutex::new(()) }
    }

    /// The state now. Not to be held across an await.
    pub fn view(&self) -> Ref<'_, Partition> {
        self.partition.borrow()
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Waits until no command lies between its choice and the state; none does for as long
    /// as the guard is held.
    pub async fn settled(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Logs and applies the command that `choose` makes of the state, or makes none.
    /// The command survives the death of the process from here on, and a power cut once
    /// the log is forced.
    pub async fn propose(&self, choose: impl FnOnce(&Partition) -> Result<Command, RpcError>) -> Result<(LogIndex, Applied), RpcError> {
        let _turn = self.turn.lock().await;
        let command = choose(&self.partition.borrow())?;
        let index = self.log.append(&command).await.map_err(refusal)?;
        let applied = self.partition.borrow_mut().apply(index, &command);
        Ok((index, applied))
    }
}

/// What a client is told of a log that does not take its command.
pub fn refusal(error: LogError) -> RpcError {
    match error {
        LogError::NoSpace => RpcError::Refused(FsError::NoSpace),
        error => {
            tracing::error!(%error, "the log failed");
            RpcError::Refused(FsError::Io)
        }
    }
}
