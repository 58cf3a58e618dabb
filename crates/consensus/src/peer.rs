//! The state of a peer node: its run, the time of its last packet, and the support between both.

use crate::message::{Beat, Origin, RunId, Support};
use crate::output::Refusal;
use crate::timer::Ticks;
use ebb_model::{GroupId, Planted, Term};
use std::collections::{BTreeMap, VecDeque};

/// Laws:
/// - One run of a node at a time is heard. Another one is accepted when the present one has been
///   silent for an election time-out, by a packet that is not older than that: it echoes a beat of
///   this node. The present one is never accepted again after that.
/// - The support that is counted ends before the supporter's promise does: it counts from when the
///   beat was sent, and the promise from when it arrived.
#[derive(Default)]
pub(crate) struct Peer {
    heard: Option<(Origin, Ticks)>,
    /// Run and time of the peer's last beat, accepted or not.
    beat: Option<(RunId, Ticks)>,
    /// Runs that have been replaced, the newest last.
    retired: VecDeque<RunId>,
    /// This node's promise upon the peer's last beat.
    promise: Option<Support>,
    /// Until when the peer supports this node, per group and term.
    supported: BTreeMap<GroupId, (Term, Ticks)>,
}

/// Runs that are remembered. An older one has no packets under way any more.
const RETIRED_RUNS: usize = 16;

impl Peer {
    /// Whether the packet is of the run that is heard. Returns whether this is a sign of life after
    /// a silence, or of a new run.
    pub(crate) fn hear(
        &mut self,
        from: Origin,
        beat: Option<&Beat>,
        own: RunId,
        now: Ticks,
        patience: Ticks,
    ) -> Result<bool, Refusal> {
        self.beat = beat.map(|beat| (from.run, beat.sent_at)).or(self.beat);
        let echo = beat.and_then(|beat| beat.echo).filter(|(run, _)| *run == own);
        let is_recent = echo.is_some_and(|(_, sent_at)| sent_at <= now && now - sent_at < patience);
        let is_news = match self.heard {
            _ if self.retired.contains(&from.run) => return Err(Refusal::OtherRun),
            Some((origin, at)) if origin == from => now - at >= patience,
            Some((_, at)) if now - at < patience || !is_recent => return Err(Refusal::OtherRun),
            Some((origin, _)) => {
                if self.retired.len() == RETIRED_RUNS {
                    self.retired.pop_front();
                }
                self.retired.push_back(origin.run);
                self.promise = None;
                self.supported.clear();
                true
            }
            None => true,
        };
        self.heard = Some((from, now));
        Ok(is_news)
    }

    pub(crate) fn heard_at(&self) -> Option<Ticks> {
        self.heard.map(|(_, at)| at)
    }

    /// Records the peer's promise to the run that it names.
    pub(crate) fn supported_by(&mut self, support: Support, own: RunId, now: Ticks, length: Ticks) {
        if support.run == own {
            let is_late = Planted::SupportOutlivesPromise.is_on();
            let from = if is_late { now } else { support.sent_at.min(now) };
            let until = from + length;
            let groups = support.groups.into_iter();
            self.supported = groups.map(|(group, term)| (group, (term, until))).collect();
        }
    }

    /// Until when the peer supports this node as leader of the group in the term.
    pub(crate) fn support(&self, group: GroupId, term: Term) -> Option<Ticks> {
        let of_term = self.supported.get(&group).filter(|(supported, _)| *supported == term);
        of_term.map(|(_, until)| *until)
    }

    /// Stores the promises of the next beat to the peer.
    pub(crate) fn promise(&mut self, from: RunId, sent_at: Ticks, groups: Vec<(GroupId, Term)>) {
        self.promise = Some(Support { run: from, sent_at, groups });
    }

    pub(crate) fn beat(&self, leads: Vec<(GroupId, Term)>, now: Ticks) -> Beat {
        Beat { sent_at: now, leads, support: self.promise.clone(), echo: self.beat }
    }
}
