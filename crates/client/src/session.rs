//! The session's slots, through which every mutation goes.

use crate::pool::{Lease, Pool};
use ebb_model::{SESSION_SLOTS, SessionId, TxId};
use std::cell::RefCell;
use std::rc::Rc;

/// The client's side of one session's table at the node. A slot carries one mutation at a
/// time, and is free again only when its outcome is known.
pub(crate) struct Slots {
    session: SessionId,
    free: Rc<Pool<u16>>,
    /// Sequence last given out, by slot.
    sequences: RefCell<Vec<u64>>,
}

/// The right to one mutation.
pub(crate) struct Ticket {
    pub(crate) tx: TxId,
    pub(crate) slots: Rc<Slots>,
    /// Returns the slot.
    _slot: Lease<u16>,
}

impl Slots {
    pub(crate) fn new(session: SessionId) -> Slots {
        let lowest_first = (0..SESSION_SLOTS).rev().collect();
        Slots { session, free: Pool::new(lowest_first), sequences: RefCell::new(vec![0; usize::from(SESSION_SLOTS)]) }
    }

    /// Waits for a slot, in order. `None` once the session has ended.
    pub(crate) async fn ticket(self: &Rc<Slots>) -> Option<Ticket> {
        let slot = self.free.acquire().await?;
        let tx = self.next(slot.item()?);
        Some(Ticket { tx, slots: self.clone(), _slot: slot })
    }

    /// An id for operations that are sent one after the other before any mutation with a ticket.
    pub(crate) fn for_replay(&self) -> TxId {
        self.next(0)
    }

    pub(crate) fn end(&self) {
        self.free.close();
    }

    fn next(&self, slot: u16) -> TxId {
        let mut sequences = self.sequences.borrow_mut();
        let sequence = &mut sequences[usize::from(slot)];
        *sequence += 1;
        TxId { session: self.session, slot, sequence: *sequence }
    }
}
