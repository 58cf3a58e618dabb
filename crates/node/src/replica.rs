//! The replica of a partition on this node: its state and the log that makes it last.
//!
//! With one voter a proposal is written, applied and answered; a Raft group will stand in the same
//! place and answer once the record is committed. Proposals take turns, so the ids, versions and
//! holders that a leader chooses for a command are chosen on the very state that the command is
//! applied to.

use crate::uncommitted::Uncommitted;
use ebb_core::state::{Applied, State};
use ebb_format::record::GroupId;
use ebb_journal::{Entry, Frontier, Log, LogError, SnapshotAt};
use ebb_model::{
    BackingCommand, Command, FsError, Ino, Installed, LocalCommand, LogIndex, Position, RpcError,
    Version,
};
use ebb_ports::Spawn;
use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::lock::{Mutex, MutexGuard, OwnedMutexGuard};
use smallvec::SmallVec;
use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub struct Replica {
    voter: Rc<Voter>,
    /// Shared with the proposal that holds it.
    turn: Arc<Mutex<()>>,
    spawn: Rc<dyn Spawn>,
}

struct Voter {
    state: RefCell<State>,
    /// The log up to the last command that is applied.
    applied: RefCell<Frontier>,
    log: Log,
    uncommitted: RefCell<Uncommitted>,
}

impl Replica {
    pub fn new(state: State, log: Log, spawn: Rc<dyn Spawn>) -> Replica {
        Replica {
            voter: Rc::new(Voter {
                state: RefCell::new(state),
                applied: RefCell::new(log.written_frontier()),
                log,
                uncommitted: RefCell::default(),
            }),
            turn: Arc::default(),
            spawn,
        }
    }

    /// The present state. Must not be held across an await.
    pub fn view(&self) -> Ref<'_, State> {
        self.apply_deferred();
        self.view_without_backing()
    }

    /// As [`Replica::view`], without deferred backing updates: `backing()` and the extents of
    /// removed files may be stale. Used between a command and its answer.
    pub fn view_without_backing(&self) -> Ref<'_, State> {
        self.voter.state.borrow()
    }

    /// Applies the deferred part of the last command, after its answer. Otherwise the next
    /// [`Replica::view`] does it, and its caller waits.
    pub fn apply_deferred(&self) {
        if self.view_without_backing().has_deferred() {
            self.voter.state.borrow_mut().apply_deferred();
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

    /// Position of the last command of any group that survives the end of the process.
    pub fn written_position(&self) -> Position {
        self.voter.log.written_position()
    }

    /// The moment of the present state, of the local group and of the partition.
    pub fn snapshot_at(&self) -> (SnapshotAt, SnapshotAt) {
        let (state, upto) = (self.view(), self.voter.applied.borrow());
        let position = upto.position;
        let local = SnapshotAt {
            index: upto.index(GroupId::LOCAL),
            position,
            version: Version(0),
            term: None,
        };
        (
            local,
            SnapshotAt { index: state.applied(), position, version: state.version(), term: None },
        )
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

    /// Logs and applies what `choose` makes of the state, or makes nothing. It
    /// survives the death of the process from here on, and a power cut once the log is forced. It
    /// is applied also if the caller has gone. A caller that still waits goes on in the same step
    /// in which it is applied, before any other task sees the state.
    pub async fn propose<P: Into<Proposal>>(
        &self,
        choose: impl FnOnce(&State) -> Result<P, RpcError>,
    ) -> Result<(LogIndex, Applied), RpcError> {
        let turn = self.turn.clone().lock_owned().await;
        let Proposal { local, command } = choose(&self.view())?.into();
        let voter = self.voter.clone();
        let mut writing = Box::pin(async move {
            let command_entry =
                command.as_ref().map(|command| Entry::Command(GroupId::PARTITION, command));
            let entries: SmallVec<[Entry; 3]> =
                local.iter().map(Entry::Local).chain(command_entry).collect();
            let upto = voter.log.append(&entries).await.map_err(refusal)?;
            drop(entries);
            Ok(Written { voter, local, command, upto, is_applied: false, _turn: turn })
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

/// What one turn logs: commands of this node, one of the partition, or both.
pub struct Proposal {
    local: Vec<LocalCommand>,
    command: Option<Command>,
}

impl Proposal {
    /// A command of the partition, and what it means for this node's disk.
    pub fn of_both(local: Vec<LocalCommand>, command: Command) -> Proposal {
        Proposal { local, command: Some(command) }
    }
}

impl From<Command> for Proposal {
    fn from(command: Command) -> Proposal {
        Proposal { local: Vec::new(), command: Some(command) }
    }
}

impl From<LocalCommand> for Proposal {
    fn from(local: LocalCommand) -> Proposal {
        Proposal { local: vec![local], command: None }
    }
}

/// A command that is in the log and not in the state. No other is chosen before it is applied.
struct Written {
    voter: Rc<Voter>,
    local: Vec<LocalCommand>,
    command: Option<Command>,
    upto: Frontier,
    is_applied: bool,
    _turn: OwnedMutexGuard<()>,
}

impl Written {
    fn apply(mut self) -> (LogIndex, Applied) {
        (self.upto.index(GroupId::PARTITION), self.apply_once())
    }

    fn apply_once(&mut self) -> Applied {
        self.is_applied = true;
        let index = self.upto.index(GroupId::PARTITION);
        let applied = self.voter.state.borrow_mut().apply_logged(
            self.upto.position,
            &self.local,
            self.command.as_ref().map(|command| (index, command)),
        );
        self.voter.applied.replace(self.upto.clone());
        let changed = applied.touched.iter().chain(applied.names.iter().map(|(dir, _)| dir));
        // Ids that are given to entries of the bucket are nowhere else.
        let found: &[Installed] = match &self.command {
            Some(Command::Backing(BackingCommand::Install { entries, .. })) => entries,
            _ => &[],
        };
        let changed = changed.copied().chain(found.iter().map(|entry| entry.ino));
        let durable = self.voter.log.durable(GroupId::PARTITION);
        self.voter.uncommitted.borrow_mut().changed(index, changed, durable);
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
