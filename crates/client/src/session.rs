//! The session slots, through which every mutation goes.

use crate::handover::HandoverState;
use crate::pool::{Lease, Pool};
use ebb_model::{Planted, SESSION_SLOTS, SessionId, TxId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The client's side of one session's table at the node. A slot carries one mutation at a time. It
/// is free again only when the outcome is known and the caller has it.
pub(crate) struct Slots {
    session: SessionId,
    free: Rc<Pool<u16>>,
    /// A mutation that brings bytes needs one of these too. It can wait at the node until there is
    /// space, and the mutations that free space must not wait behind it.
    for_bytes: Rc<Pool<()>>,
    /// The last sequence number issued, by slot.
    sequences: RefCell<Vec<u64>>,
    /// The memory that records these numbers too.
    handover: Option<Rc<HandoverState>>,
}

/// The right to one mutation.
pub(crate) struct Ticket {
    pub(crate) tx: TxId,
    pub(crate) slots: Rc<Slots>,
    _slot: Lease<u16>,
    _for_bytes: Option<Lease<()>>,
}

impl Slots {
    pub(crate) fn new(session: SessionId) -> Slots {
        Slots::after(session, 0)
    }

    /// For a session that has used sequence numbers up to this one.
    pub(crate) fn after(session: SessionId, sequence: u64) -> Slots {
        let lowest_first = (0..SESSION_SLOTS).rev().collect();
        let sequences = RefCell::new(vec![sequence; usize::from(SESSION_SLOTS)]);
        let for_bytes = Pool::new(vec![(); SLOTS_FOR_BYTES]);
        Slots { session, free: Pool::new(lowest_first), for_bytes, sequences, handover: None }
    }

    /// The slots of the handover state, with the requests without an answer that hold some of them.
    pub(crate) fn left(
        session: SessionId,
        handover: Rc<HandoverState>,
    ) -> (Rc<Slots>, BTreeMap<u64, Rc<Requested>>) {
        let left: Vec<(u64, Option<u64>)> =
            (0..SESSION_SLOTS).map(|slot| handover.slot(slot)).collect();
        let free =
            (0..SESSION_SLOTS).rev().filter(|slot| left[usize::from(*slot)].1.is_none()).collect();
        let sequences = RefCell::new(left.iter().map(|(sequence, _)| *sequence).collect());
        let requests = left.iter().filter(|(_, request)| request.is_some()).count();
        // Each of these may bring bytes.
        let mut may_bring = requests.min(SLOTS_FOR_BYTES);
        let for_bytes = Pool::new(vec![(); SLOTS_FOR_BYTES - may_bring]);
        let slots = Rc::new(Slots {
            session,
            free: Pool::new(free),
            for_bytes,
            sequences,
            handover: Some(handover),
        });
        let mut asked = BTreeMap::new();
        for (slot, (sequence, request)) in (0..SESSION_SLOTS).zip(left) {
            let Some(request) = request else { continue };
            let for_bytes = (may_bring > 0).then(|| slots.for_bytes.grant(()));
            may_bring = may_bring.saturating_sub(1);
            let tx = TxId { session, slot, sequence };
            let ticket = Ticket {
                tx,
                slots: slots.clone(),
                _slot: slots.free.grant(slot),
                _for_bytes: for_bytes,
            };
            asked.insert(request, Rc::new(Requested::again(request, ticket)));
        }
        (slots, asked)
    }

    /// Waits for a slot, in order. `None` once the session has ended.
    pub(crate) async fn ticket(
        self: &Rc<Slots>,
        request: Option<u64>,
        brings_bytes: bool,
    ) -> Option<Ticket> {
        let for_bytes = if brings_bytes { Some(self.for_bytes.acquire().await?) } else { None };
        let slot = match Planted::SlotReused.is_on() {
            true => self.free.grant(0),
            false => self.free.acquire().await?,
        };
        let tx = self.next(slot.item()?, request);
        Some(Ticket { tx, slots: self.clone(), _slot: slot, _for_bytes: for_bytes })
    }

    /// An id for operations that are sent one after the other before any mutation with a ticket.
    pub(crate) fn for_replay(&self) -> TxId {
        self.next(0, None)
    }

    pub(crate) fn end(&self) {
        self.free.close();
        self.for_bytes.close();
    }

    pub(crate) fn next(&self, slot: u16, request: Option<u64>) -> TxId {
        let mut sequences = self.sequences.borrow_mut();
        let sequence = &mut sequences[usize::from(slot)];
        *sequence += 1;
        if let Some(handover) = &self.handover {
            handover.give_out(slot, *sequence, request);
        }
        TxId { session: self.session, slot, sequence: *sequence }
    }
}

/// A request of the user that may be repeated to a successor of this process. It asks for one
/// change, and for the same one until that is not refused.
pub(crate) struct Requested {
    request: u64,
    ticket: RefCell<Option<Ticket>>,
    stage: Cell<Stage>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// This process has asked for nothing yet.
    Begun,
    /// An earlier process asked for the change: it must be asked for under the same id.
    Again,
    Refused,
    Done,
}

impl Requested {
    pub(crate) fn new(request: u64) -> Requested {
        Requested { request, ticket: RefCell::default(), stage: Cell::new(Stage::Begun) }
    }

    fn again(request: u64, ticket: Ticket) -> Requested {
        Requested { request, ticket: RefCell::new(Some(ticket)), stage: Cell::new(Stage::Again) }
    }

    /// The right to the request's change, if the request has a slot already.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        assert!(self.stage.get() != Stage::Done, "a request makes one change");
        let mut ticket = self.ticket.take()?;
        if self.stage.get() != Stage::Again || Planted::HeirForgetsRequests.is_on() {
            ticket.tx = ticket.slots.next(ticket.tx.slot, Some(self.request));
        }
        Some(ticket)
    }

    /// An earlier process asked for the change, and its outcome is not known yet.
    pub(crate) fn is_of_before(&self) -> bool {
        self.stage.get() == Stage::Again
    }

    /// The request is not repeated.
    pub(crate) fn gone(&self) {
        self.stage.set(Stage::Done);
    }

    /// The request is not repeated, though the node may not have answered it.
    pub(crate) fn is_answered(&self) {
        if self.is_of_before() {
            self.stage.set(Stage::Refused);
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.request
    }

    /// Keeps the slot until the request has its answer.
    pub(crate) fn settled(&self, ticket: Ticket, done: bool) {
        self.stage.set(if done { Stage::Done } else { Stage::Refused });
        self.ticket.replace(Some(ticket));
    }
}

impl Drop for Requested {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        // A request that may still be repeated is left to the next process, in case this one could
        // not take over.
        if let (Some(handover), false) = (&ticket.slots.handover, self.is_of_before()) {
            handover.free(ticket.tx.slot);
        }
    }
}

/// Slots that mutations with bytes can have at one time.
pub const SLOTS_FOR_BYTES: usize = SESSION_SLOTS as usize - 16;
