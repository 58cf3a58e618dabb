//! Reads of a leader: one round of heartbeats serves all reads that came before it.

use crate::output::ReadId;

/// Law: a read is in at most one round, and rounds are one at a time.
#[derive(Default)]
pub(crate) struct Reads {
    waiting: Vec<ReadId>,
    /// Number of the round under way, and the reads that it serves.
    round: Option<(u64, Vec<ReadId>)>,
    last_round: u64,
}

impl Reads {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.round.is_none()
    }

    pub(crate) fn ask(&mut self, read: ReadId) {
        self.waiting.push(read);
    }

    /// Begins a round for all waiting reads, and returns its number, if there is something to do.
    pub(crate) fn start_round(&mut self) -> Option<u64> {
        if self.waiting.is_empty() || self.round.is_some() {
            return None;
        }
        self.last_round += 1;
        self.round = Some((self.last_round, std::mem::take(&mut self.waiting)));
        Some(self.last_round)
    }

    /// The reads of a round that a majority has confirmed.
    pub(crate) fn end_round(&mut self, number: Option<u64>) -> Vec<ReadId> {
        let ended = self.round.take_if(|(round, _)| Some(*round) == number);
        ended.map(|(_, reads)| reads).unwrap_or_default()
    }

    /// All reads, with the lead.
    pub(crate) fn lose(&mut self) -> Vec<ReadId> {
        let mut lost = std::mem::take(&mut self.waiting);
        lost.extend(self.round.take().into_iter().flat_map(|(_, reads)| reads));
        lost
    }
}
