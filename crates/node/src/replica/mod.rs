//! The replica of a partition on this node: its state and the log that makes it last.
//!
//! With one voter a proposal is written, applied and answered. In a replicated volume it is a
//! proposal to the group ([`quorum`]): the node that leads applies it ahead of its commit, and
//! answers wait for that. Proposals take turns, so the ids, versions and holders that a leader
//! chooses for a command are chosen on the very state that the command is applied to.

mod quorum;

pub(crate) use quorum::{
    Part, Quorum, QuorumOptions, Undecided, UndecidedRecord, Work, decode_record,
};

use crate::uncommitted::Uncommitted;
use ebb_core::state::{Applied, State};
use ebb_format::record::{GroupId, Term};
use ebb_journal::{Entry, Log, LogError, SnapshotAt};
use ebb_model::{
    BackingCommand, Command, FsError, Ino, Installed, LocalCommand, LogIndex, Position, RpcError,
    Version,
};
use ebb_ports::Spawn;
use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::lock::{Mutex, MutexGuard, OwnedMutexGuard};
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone)]
pub struct Replica {
    voter: Rc<Voter>,
    /// Shared with the proposal that holds it.
    turn: Arc<Mutex<()>>,
    spawn: Rc<dyn Spawn>,
}

struct Voter {
    state: RefCell<State>,
    applied: Cell<AppliedUpto>,
    log: Log,
    uncommitted: RefCell<Uncommitted>,
    /// Of a replicated volume.
    quorum: OnceCell<Quorum>,
}

/// The log up to the last record that the state has followed.
#[derive(Clone, Copy, Default)]
pub(crate) struct AppliedUpto {
    pub position: Position,
    /// The local group's last command.
    pub local: LogIndex,
    /// Of the group's last entry.
    pub term: Term,
}

impl Replica {
    /// A replica whose state has followed all of the log.
    pub fn new(state: State, log: Log, spawn: Rc<dyn Spawn>) -> Replica {
        let frontier = log.written_frontier();
        let (position, local) = (frontier.position, frontier.index(GroupId::LOCAL));
        let upto = AppliedUpto { position, local, term: Term(0) };
        Replica::behind(state, upto, log, spawn)
    }

    /// A replica whose state has followed the log up to a record.
    pub fn behind(state: State, upto: AppliedUpto, log: Log, spawn: Rc<dyn Spawn>) -> Replica {
        Replica {
            voter: Rc::new(Voter {
                state: RefCell::new(state),
                applied: Cell::new(upto),
                log,
                uncommitted: RefCell::default(),
                quorum: OnceCell::new(),
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
        match self.quorum() {
            None => self.voter.log.written(GroupId::PARTITION),
            Some(_) => self.view_without_backing().applied(),
        }
    }

    /// Index of the last command that survives a power cut: of this node, or in a replicated volume
    /// of all nodes.
    pub fn durable(&self) -> LogIndex {
        match self.quorum() {
            None => self.voter.log.durable(GroupId::PARTITION),
            Some(quorum) => quorum.committed(),
        }
    }

    /// Position of the last command of any group that survives the end of the process.
    pub fn written_position(&self) -> Position {
        self.voter.log.written_position()
    }

    /// All commands up to here survive a power cut, and none of them can be taken back.
    pub fn settled_position(&self) -> Position {
        let forced = self.voter.log.durable_position();
        match self.quorum().and_then(Quorum::first_undecided) {
            Some(first) => forced.min(Position(first.0 - 1)),
            None => forced,
        }
    }

    /// Makes all commands so far survive a power cut. Returns the index of the last one that does.
    pub async fn settle(&self) -> Result<LogIndex, RpcError> {
        let upto = self.written();
        let forced = self.voter.log.force().await.map_err(refusal)?;
        match self.quorum() {
            None => Ok(forced.index(GroupId::PARTITION)),
            Some(quorum) => quorum.wait_committed(upto).await,
        }
    }

    /// The moment of the present state, of the local group and of the partition.
    pub fn snapshot_at(&self) -> (SnapshotAt, SnapshotAt) {
        let (state, upto) = (self.view(), self.voter.applied.get());
        let (position, term) = (upto.position, self.quorum().map(|_| upto.term));
        let version = Version(0);
        let local = SnapshotAt { index: upto.local, position, version, term: None };
        let (index, version) = (state.applied(), state.version());
        (local, SnapshotAt { index, position, version, term })
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
        if let Some(quorum) = self.quorum() {
            quorum.expect_lead()?;
        }
        let proposal = choose(&self.view())?.into();
        let mut writing = Box::pin(self.voter.clone().write(proposal, turn));
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

impl Voter {
    async fn write(
        self: Rc<Self>,
        proposal: Proposal,
        turn: OwnedMutexGuard<()>,
    ) -> Result<Written, RpcError> {
        if self.quorum.get().is_some() {
            return self.write_replicated(proposal, turn).await;
        }
        let Proposal { local, command } = proposal;
        let command_entry =
            command.as_ref().map(|command| Entry::Command(GroupId::PARTITION, command));
        let entries: SmallVec<[Entry; 3]> =
            local.iter().map(Entry::Local).chain(command_entry).collect();
        let upto = self.log.append(&entries).await.map_err(refusal)?;
        drop(entries);
        let index = upto.index(GroupId::PARTITION);
        let upto = AppliedUpto {
            position: upto.position,
            local: upto.index(GroupId::LOCAL),
            term: Term(0),
        };
        Ok(Written { voter: self, local, command, index, upto, is_applied: false, _turn: turn })
    }

    /// Lets the state follow logged commands, the last one at the position `upto`.
    fn apply(
        &self,
        upto: AppliedUpto,
        local: &[LocalCommand],
        command: Option<(LogIndex, &Command)>,
    ) -> Applied {
        let applied = self.state.borrow_mut().apply_logged(upto.position, local, command);
        self.applied.set(upto);
        let Some((index, command)) = command else { return applied };
        let changed = applied.touched.iter().chain(applied.names.iter().map(|(dir, _)| dir));
        // Ids that are given to entries of the bucket are nowhere else.
        let found: &[Installed] = match command {
            Command::Backing(BackingCommand::Install { entries, .. }) => entries,
            _ => &[],
        };
        let changed = changed.copied().chain(found.iter().map(|entry| entry.ino));
        let durable = match self.quorum.get() {
            None => self.log.durable(GroupId::PARTITION),
            Some(quorum) => quorum.committed(),
        };
        self.uncommitted.borrow_mut().changed(index, changed, durable);
        applied
    }
}

/// A command that is in the log and not in the state. No other is chosen before it is applied.
struct Written {
    voter: Rc<Voter>,
    local: Vec<LocalCommand>,
    command: Option<Command>,
    /// The partition's last command.
    index: LogIndex,
    upto: AppliedUpto,
    is_applied: bool,
    _turn: OwnedMutexGuard<()>,
}

impl Written {
    fn apply(mut self) -> (LogIndex, Applied) {
        (self.index, self.apply_once())
    }

    fn apply_once(&mut self) -> Applied {
        self.is_applied = true;
        let command = self.command.as_ref().map(|command| (self.index, command));
        self.voter.apply(self.upto, &self.local, command)
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
