//! The client's operation log: mutations that the node has answered and could lose in a power cut,
//! kept until they are durable.
//!
//! Laws:
//! - An operation is in the journal from its answer until the node reports its index as durable.
//! - `lost` holds the operations to repeat, in the order of the log that may have lost them. While
//!   a replay runs, everything in `answered` precedes them in that order.
//! - No new mutation is sent while `lost` is not empty.

use crate::gate::Gate;
use crate::handover::HandoverState;
use ebb_model::{Caller, ClientMutation, FsError, LogIndex, Mutated, Replay, TxId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) tx: TxId,
    pub(crate) caller: Caller,
    pub(crate) mutation: ClientMutation,
    /// The operation changed bytes of a file on which this client held locks.
    pub(crate) locked: bool,
    pub(crate) replay: Replay,
    /// Its index in the log.
    pub(crate) index: LogIndex,
    /// The operation is kept until this index is durable: its own, or a later one if its bytes had
    /// to be repeated.
    pub(crate) kept_until: LogIndex,
}

#[derive(Default)]
pub(crate) struct Journal {
    state: RefCell<State>,
    /// Changes when operations leave.
    pub(crate) room: Gate,
    pub(crate) forcing: Cell<bool>,
    /// Of the last force.
    pub(crate) force_error: Cell<Option<FsError>>,
    /// An earlier process may have got answers that are not durable yet.
    of_before: Cell<bool>,
    /// The memory that records whether such an answer exists.
    handover: Option<Rc<HandoverState>>,
}

#[derive(Default)]
struct State {
    answered: BTreeMap<LogIndex, Operation>,
    lost: VecDeque<Operation>,
    /// The first of `lost` has been sent and has no answer yet.
    first_sent: bool,
    bytes: usize,
    durable: LogIndex,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    Plenty,
    /// A force is due, but no operation has to wait for it.
    Half,
    Full,
}

impl Journal {
    pub(crate) fn new(handover: Option<Rc<HandoverState>>) -> Journal {
        let of_before =
            Cell::new(handover.as_ref().is_some_and(|handover| handover.served().undurable));
        Journal { of_before, handover, ..Journal::default() }
    }

    /// Every answer to an earlier process is durable.
    pub(crate) fn begin(&self) {
        self.of_before.set(false);
        self.leave(&self.state.borrow());
    }

    fn leave(&self, state: &State) {
        if let Some(handover) = &self.handover {
            handover.set_undurable(
                self.of_before.get() || !state.answered.is_empty() || !state.lost.is_empty(),
            );
        }
    }

    pub(crate) fn keep(&self, operation: Operation) {
        let mut state = self.state.borrow_mut();
        if operation.kept_until > state.durable {
            state.bytes += size(&operation);
            if let Some(replaced) = state.answered.insert(operation.index, operation) {
                state.bytes -= size(&replaced);
            }
        }
        self.leave(&state);
    }

    /// A durable operation stays durable: the node recovers at least up to it.
    pub(crate) fn durable(&self, durable: LogIndex) {
        let mut state = self.state.borrow_mut();
        state.durable = state.durable.max(durable);
        let first_kept = LogIndex(state.durable.0.saturating_add(1));
        let durable = state.durable;
        let rest = state.answered.split_off(&first_kept);
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::replace(&mut state.answered, rest)
            .into_values()
            .partition(|operation| operation.kept_until <= durable);
        state.bytes -= gone.iter().map(size).sum::<usize>();
        state.answered.extend(kept.into_iter().map(|operation| (operation.index, operation)));
        self.leave(&state);
        drop(state);
        self.room.changed();
    }

    pub(crate) fn room(&self) -> Room {
        let state = self.state.borrow();
        let full = |of: usize| {
            state.answered.len() >= KEPT_OPERATIONS / of || state.bytes >= KEPT_BYTES / of
        };
        match (full(1), full(2)) {
            (true, _) => Room::Full,
            (_, true) => Room::Half,
            _ => Room::Plenty,
        }
    }

    /// The node has restarted: everything may be lost.
    pub(crate) fn rewind(&self) {
        let mut state = self.state.borrow_mut();
        let mut lost: VecDeque<Operation> =
            std::mem::take(&mut state.answered).into_values().collect();
        lost.append(&mut state.lost);
        state.lost = lost;
    }

    /// The log is another one: takes everything out, and indices begin again.
    pub(crate) fn clear(&self) -> Vec<Operation> {
        self.rewind();
        let mut state = self.state.borrow_mut();
        state.first_sent = false;
        state.bytes = 0;
        state.durable = LogIndex(0);
        let cleared = state.lost.drain(..).collect();
        self.leave(&state);
        drop(state);
        self.room.changed();
        cleared
    }

    /// The session of the lost operations has ended. Operations above `recovered` were certainly
    /// not executed by the present log, and get new ids. The others are removed and returned,
    /// because their outcome cannot be determined any more.
    pub(crate) fn renumber(
        &self,
        recovered: LogIndex,
        mut next: impl FnMut() -> TxId,
    ) -> Vec<Operation> {
        let mut state = self.state.borrow_mut();
        let mut unanswered = std::mem::take(&mut state.first_sent);
        let (certain, doubtful): (VecDeque<Operation>, VecDeque<Operation>) =
            std::mem::take(&mut state.lost)
                .into_iter()
                .partition(|o| !std::mem::take(&mut unanswered) && o.index > recovered);
        state.bytes -= doubtful.iter().map(size).sum::<usize>();
        state.lost = certain;
        for operation in &mut state.lost {
            operation.tx = next();
        }
        self.leave(&state);
        drop(state);
        self.room.changed();
        doubtful.into()
    }

    /// Removes and returns the lost operations that must not be repeated.
    pub(crate) fn withdraw(&self, condition: impl Fn(&Operation) -> bool) -> Vec<Operation> {
        let mut state = self.state.borrow_mut();
        let (withdrawn, lost): (VecDeque<Operation>, VecDeque<Operation>) =
            std::mem::take(&mut state.lost).into_iter().partition(condition);
        state.lost = lost;
        state.bytes -= withdrawn.iter().map(size).sum::<usize>();
        self.leave(&state);
        drop(state);
        self.room.changed();
        withdrawn.into()
    }

    /// The next operation to send.
    pub(crate) fn first_lost(&self) -> Option<Operation> {
        let mut state = self.state.borrow_mut();
        let first = state.lost.front().cloned();
        state.first_sent = first.is_some();
        first
    }

    pub(crate) fn lost(&self) -> usize {
        self.state.borrow().lost.len()
    }

    /// The first lost operation is done, by a node whose log reached `recovered` at its start. It
    /// was executed again, or had survived. `done` is `None` if the slot has carried a later
    /// mutation since; then nothing of this one is missing.
    pub(crate) fn first_done(&self, recovered: LogIndex, done: Option<&Mutated>) {
        let Some(mut operation) = self.take_first() else { return };
        if let Some(mutated) = done {
            operation.kept_until = mutated.index;
            if operation.index > recovered {
                (operation.index, operation.replay) = (mutated.index, mutated.replay);
            }
        }
        self.keep(operation);
    }

    /// The node refused the first lost operation.
    pub(crate) fn first_refused(&self) {
        self.take_first();
        self.leave(&self.state.borrow());
        self.room.changed();
    }

    fn take_first(&self) -> Option<Operation> {
        let mut state = self.state.borrow_mut();
        state.first_sent = false;
        let operation = state.lost.pop_front()?;
        state.bytes -= size(&operation);
        Some(operation)
    }
}

fn size(operation: &Operation) -> usize {
    use ClientMutation::*;
    let data = match &operation.mutation {
        Write { data, .. } | Append { data, .. } => data.len(),
        SetXattr { name, value, .. } => name.len() + value.len(),
        SetAcl { value, .. } => value.len(),
        Make { .. }
        | Link { .. }
        | Unlink { .. }
        | Rmdir { .. }
        | Rename { .. }
        | SetAttr { .. }
        | RemoveXattr { .. }
        | Fallocate { .. }
        | Copy { .. }
        | Tmpfile { .. } => 0,
    };
    data + OPERATION_BYTES
}

/// Most operations kept. A node forces every second, so this bound is reached only at rates where
/// one force for this number of operations costs nothing.
pub const KEPT_OPERATIONS: usize = 16 << 10;

/// Most bytes of operations kept. Operations in progress can exceed it.
pub const KEPT_BYTES: usize = 64 << 20;

/// The size of an operation beside its data: names of ordinary length, groups, ids.
const OPERATION_BYTES: usize = 512;
