//! The session table: every mutation executes exactly once (O-62, O-63).
//!
//! As in NFSv4.1 a session has a bounded number of slots, each with one outstanding mutation. A
//! slot stores its last sequence and the reply. A client without a reply sends the same sequence
//! again and gets the stored reply.
//!
//! Laws:
//! - A sequence executes at most once; the sequences of a slot only grow.
//! - Sequences can have gaps, unlike in NFS. A client reuses a slot only after it has the outcome
//!   of the last mutation. So a gap is a mutation that was never sent, or a refusal that a power
//!   cut lost and that must not be repeated.
//! - Only the last reply of a slot exists: an earlier sequence is `Misordered`.

use ebb_model::{LogIndex, Mutated, Planted, Preceding, RpcError, SESSION_SLOTS, SessionId, TxId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All sessions of a partition. Commands alone change it.
#[derive(Clone, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sessions {
    table: BTreeMap<SessionId, Session>,
}

/// One client, from attach to detach or expiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub client: String,
    slots: BTreeMap<u16, SessionSlot>,
}

impl Session {
    /// The last reply of each slot.
    pub fn answers(&self) -> impl Iterator<Item = &Result<Mutated, RpcError>> {
        self.slots.values().map(|slot| &slot.answer)
    }
}

/// The last executed mutation of a slot, and its reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SessionSlot {
    sequence: u64,
    answer: Result<Mutated, RpcError>,
}

/// Result of checking a transaction id against its slot.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    New,
    /// Executed before, with this reply.
    Done(Result<Mutated, RpcError>),
    /// A sequence before the slot's last one, or a slot out of range.
    Misordered,
    Unknown,
}

impl Sessions {
    /// Begins a session with empty slots.
    pub fn open(&mut self, id: SessionId, client: String) {
        self.table.insert(id, Session { client, slots: BTreeMap::new() });
    }

    /// Restores a session from a snapshot.
    pub fn restore(&mut self, id: SessionId, session: Session) {
        self.table.insert(id, session);
    }

    /// Ends a session and drops its replies.
    pub fn close(&mut self, id: SessionId) {
        self.table.remove(&id);
    }

    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.table.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.table.iter().map(|(id, session)| (*id, session))
    }

    /// Checks a transaction id against its slot. Sequences begin with 1.
    pub fn check(&self, tx: TxId) -> Verdict {
        let Some(session) = self.table.get(&tx.session) else { return Verdict::Unknown };
        if tx.slot >= SESSION_SLOTS {
            return Verdict::Misordered;
        }
        let last = session.slots.get(&tx.slot);
        let sequence = last.map_or(0, |slot| slot.sequence);
        match last {
            Some(_) if tx.sequence == sequence && Planted::RepeatExecuted.is_on() => Verdict::New,
            Some(slot) if tx.sequence == sequence => Verdict::Done(slot.answer.clone()),
            _ if tx.sequence > sequence => Verdict::New,
            _ => Verdict::Misordered,
        }
    }

    /// The last mutations of the session's slots with a log index in `durable < index < before`,
    /// where `before` is the parameter `index`.
    pub fn preceding(
        &self,
        session: SessionId,
        durable: LogIndex,
        index: LogIndex,
    ) -> Vec<Preceding> {
        let slots = self.table.get(&session).into_iter().flat_map(|session| &session.slots);
        let made = slots.filter_map(|(slot, last)| {
            let Mutated { index, replay, .. } = *last.answer.as_ref().ok()?;
            Some(Preceding {
                tx: TxId { session, slot: *slot, sequence: last.sequence },
                index,
                replay,
            })
        });
        made.filter(|made| durable < made.index && made.index < index).collect()
    }

    /// Stores the reply to a mutation for which [`Sessions::check`] returned `New`.
    pub fn record(&mut self, tx: TxId, answer: Result<Mutated, RpcError>) {
        if let Some(session) = self.table.get_mut(&tx.session) {
            session.slots.insert(tx.slot, SessionSlot { sequence: tx.sequence, answer });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::{FsError, Replay, Stamp, Time, Version};

    fn tx(slot: u16, sequence: u64) -> TxId {
        TxId { session: SessionId(7), slot, sequence }
    }

    /// A reply is lost and the client repeats the sequence: it gets the first reply. An earlier
    /// sequence is refused, and so is an unknown session. A sequence after a lost refusal is new.
    #[test]
    fn a_slot_executes_each_sequence_once_and_never_goes_back() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.check(tx(0, 1)), Verdict::Unknown);
        sessions.open(SessionId(7), "test".into());
        assert_eq!(sessions.check(tx(0, 0)), Verdict::Misordered);
        assert_eq!(sessions.check(tx(0, 1)), Verdict::New);
        let answer = Err(RpcError::Refused(FsError::Exists));
        sessions.record(tx(0, 1), answer.clone());
        assert_eq!(sessions.check(tx(0, 1)), Verdict::Done(answer));
        assert_eq!(sessions.check(tx(0, 2)), Verdict::New);
        sessions.record(tx(0, 4), Err(RpcError::Refused(FsError::Exists)));
        assert_eq!(sessions.check(tx(0, 3)), Verdict::Misordered);
        assert_eq!(sessions.check(tx(0, 1)), Verdict::Misordered);
        assert_eq!(sessions.check(tx(1, 1)), Verdict::New);
        assert_eq!(sessions.check(tx(SESSION_SLOTS, 1)), Verdict::Misordered);
        sessions.close(SessionId(7));
        assert_eq!(sessions.check(tx(0, 2)), Verdict::Unknown);
    }

    /// `preceding` excludes durable, later and refused mutations, and those of other sessions.
    #[test]
    fn preceding_omits_durable_later_and_refused_mutations() {
        let stamp = Stamp { time: Time { secs: 1, nanos: 0 }, version: Version(1) };
        let replay = Replay { stamp, ino: None, offset: None, len_bytes: None };
        let made = |index| Ok(Mutated { attr: None, index: LogIndex(index), replay });
        let mut sessions = Sessions::default();
        for session in [7, 8] {
            sessions.open(SessionId(session), "test".into());
        }
        for slot in 0..5 {
            sessions.record(tx(slot, 3), made(10 + u64::from(slot)));
        }
        sessions.record(tx(5, 3), Err(RpcError::Refused(FsError::Exists)));
        sessions.record(TxId { session: SessionId(8), slot: 0, sequence: 3 }, made(12));
        let preceding = |slot: u16| Preceding {
            tx: tx(slot, 3),
            index: LogIndex(10 + u64::from(slot)),
            replay,
        };
        assert_eq!(
            sessions.preceding(SessionId(7), LogIndex(11), LogIndex(14)),
            [preceding(2), preceding(3)]
        );
        assert_eq!(sessions.preceding(SessionId(9), LogIndex(11), LogIndex(14)), []);
    }
}
