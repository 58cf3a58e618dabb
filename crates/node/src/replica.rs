//! The replica of a partition on this node: its state and the log that makes it last.
//!
//! With one voter a proposal is written, applied and answered; a Raft group will stand in the same
//! place and answer once the record is committed. Proposals take turns, so the ids, versions and
//! holders that a leader chooses for a command are chosen on the very state that the command is
//! applied to.

use crate::uncommitted::Uncommitted;
use ebb_core::partition::{Applied, Partition};
use ebb_format::record::{GroupId, Position};
use ebb_journal::{Entry, Log, LogError, SnapshotAt};
use ebb_model::{BackingCommand, Command, FsError, Ino, Installed, LogIndex, RpcError};
use ebb_ports::Spawn;
use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::lock::{Mutex, MutexGuard, OwnedMutexGuard};
use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub struct Replica {
    voter: Rc<Voter>,
    /// Shared with the proposal that holds it.
    turn: Arc<Mutex<()>>,
    spawn: Rc<dyn Spawn>,
}

struct Voter {
    partition: RefCell<Partition>,
    /// Of the last command that is applied.
    applied_at: Cell<Position>,
    log: Log,
    uncommitted: RefCell<Uncommitted>,
}

impl Replica {
    pub fn new(partition: Partition, log: Log, spawn: Rc<dyn Spawn>) -> Replica {
        Replica {
            voter: Rc::new(Voter {
                partition: RefCell::new(partition),
                applied_at: Cell::new(log.written_position()),
                log,
                uncommitted: RefCell::default(),
            }),
            turn: Arc::default(),
            spawn,
        }
    }

    /// The present state. Must not be held across an await.
    pub fn view(&self) -> Ref<'_, Partition> {
        self.apply_deferred();
        self.view_without_backing()
    }

    /// As [`Replica::view`], without deferred backing updates: `backing()` and the extents of
    /// removed files may be stale. Used between a command and its answer.
    pub fn view_without_backing(&self) -> Ref<'_, Partition> {
        self.voter.partition.borrow()
    }

    /// Applies the deferred part of the last command, after its answer. Otherwise the next
    /// [`Replica::view`] does it, and its caller waits.
    pub fn apply_deferred(&self) {
        if self.view_without_backing().has_deferred() {
            self.voter.partition.borrow_mut().apply_deferred();
        }
    }

    pub fn log(&self) -> &Log {
        &self.voter.log
    }

    /// Index of the last command that survives the end of the process.
    pub fn written(&self) -> LogIndex {
        self.voter.log.written(GroupId::PARTITION)
    }

    /// Index of the last command that survives a power cut.
    pub fn durable(&self) -> LogIndex {
        self.voter.log.durable(GroupId::PARTITION)
    }

    /// The moment of the present state.
    pub fn snapshot_at(&self) -> SnapshotAt {
        let state = self.view();
        let position = self.voter.applied_at.get();
        SnapshotAt { index: state.applied(), position, version: state.version() }
    }

    /// Whether a power cut could take back a change of one of these objects.
    pub fn shows_uncommitted(&self, objects: impl IntoIterator<Item = Ino>) -> bool {
        let uncommitted = self.voter.uncommitted.borrow();
        let durable = self.durable();
        objects.into_iter().any(|ino| uncommitted.last_change(ino) > durable)
    }

    /// Waits until no command is between its choice and the state; none is for as long as the guard
    /// is held.
    pub async fn settled(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Logs and applies the command that `choose` makes of the state, or makes none. The command
    /// survives the death of the process from here on, and a power cut once the log is forced. It
    /// is applied also if the caller has gone. A caller that still waits goes on in the same step
    /// in which it is applied, before any other task sees the state.
    pub async fn propose(
        &self,
        choose: impl FnOnce(&Partition) -> Result<Command, RpcError>,
    ) -> Result<(LogIndex, Applied), RpcError> {
        let turn = self.turn.clone().lock_owned().await;
        let command = choose(&self.view())?;
        let voter = self.voter.clone();
        let mut writing = Box::pin(async move {
            let entry = Entry::Command(GroupId::PARTITION, &command);
            let logged = voter.log.append(&[entry]).await.map_err(refusal)?;
            let (index, position) = (logged.index(GroupId::PARTITION), logged.position);
            Ok(Written { voter, index, position, command, is_applied: false, _turn: turn })
        });
        let written = match (&mut writing).now_or_never() {
            Some(written) => written,
            None => {
                let (tell, told) = oneshot::channel();
                self.spawn.spawn(Box::pin(async move {
                    // The caller may have gone.
                    let _ = tell.send(writing.await);
                }));
                told.await.unwrap_or(Err(RpcError::Refused(FsError::Io)))
            }
        };
        Ok(written?.apply())
    }
}

/// A command that is in the log and not in the state. No other is chosen before it is applied.
struct Written {
    voter: Rc<Voter>,
    index: LogIndex,
    position: Position,
    command: Command,
    is_applied: bool,
    _turn: OwnedMutexGuard<()>,
}

impl Written {
    fn apply(mut self) -> (LogIndex, Applied) {
        (self.index, self.apply_once())
    }

    fn apply_once(&mut self) -> Applied {
        self.is_applied = true;
        let applied = self.voter.partition.borrow_mut().apply_namespace(self.index, &self.command);
        self.voter.applied_at.set(self.position);
        let changed = applied.touched.iter().chain(applied.names.iter().map(|(dir, _)| dir));
        // Ids that are given to entries of the bucket are nowhere else.
        let found: &[Installed] = match &self.command {
            Command::Backing(BackingCommand::Install { entries, .. }) => entries,
            _ => &[],
        };
        let changed = changed.copied().chain(found.iter().map(|entry| entry.ino));
        let durable = self.voter.log.durable(GroupId::PARTITION);
        self.voter.uncommitted.borrow_mut().changed(self.index, changed, durable);
        applied
    }
}

impl Drop for Written {
    /// The caller has gone.
    fn drop(&mut self) {
        if !self.is_applied {
            self.apply_once();
        }
    }
}

/// The error that a client gets when the log does not take its command.
pub fn refusal(error: LogError) -> RpcError {
    match error {
        LogError::NoSpace => RpcError::Refused(FsError::NoSpace),
        error => {
            tracing::error!(%error, "the log failed");
            RpcError::Refused(FsError::Io)
        }
    }
}
