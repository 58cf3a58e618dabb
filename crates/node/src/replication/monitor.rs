//! Figures of a replica for monitoring, and the planned end of a node.

use super::Host;
use crate::replica::Part;
use ebb_consensus::{Leadership, ReplicaId};
use ebb_model::{NodeId, ReplicaStats};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::time::Duration;

/// A leader that ends waits no longer for another node to lead.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(3);

/// A request to take the lead can be lost.
const HAND_OVER_RETRY: Duration = Duration::from_millis(500);

impl Host {
    pub fn stats(&self) -> ReplicaStats {
        let status = self.quorum().status();
        let term = status.as_ref().map(|status| match status.leadership {
            Leadership::Leader { term }
            | Leadership::Candidate { term }
            | Leadership::Follower { term, .. } => term.0,
        });
        ReplicaStats {
            leads: self.leading().is_some() && self.leader() == Some(self.node_id()),
            has_leader: self.leader().is_some(),
            term: term.unwrap_or_default(),
            committed: status.as_ref().map_or(0, |status| status.committed.0),
            applied: status.as_ref().map_or(0, |status| status.applied.0),
        }
    }

    /// The node that leads, as far as this one knows.
    pub fn leader(&self) -> Option<NodeId> {
        match self.quorum().part() {
            Part::Leads { .. } => Some(self.node_id()),
            Part::Follows { leader } | Part::Lost { leader } => leader,
            Part::Elected { .. } => None,
        }
    }

    /// Hands the lead over to another voter, if this node leads. Returns once it does not lead any
    /// more, or no other voter has taken the lead in time.
    pub async fn stop(&self) {
        let handing_over = async {
            while matches!(self.quorum().part(), Part::Leads { .. }) {
                let changes = self.quorum().changes();
                let Some(to) = self.most_advanced_voter() else { return };
                match self.replica.hand_over(to).await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        return tracing::warn!(%error, "the lead cannot be handed over");
                    }
                }
                // A commit is a change too.
                let retry = self.ports.clock.sleep(HAND_OVER_RETRY);
                let (Either::Left(_) | Either::Right(_)) = select(pin!(changes), retry).await;
            }
        };
        let patience = self.ports.clock.sleep(HAND_OVER_PATIENCE);
        if let Either::Right(_) = select(pin!(handing_over), patience).await {
            tracing::warn!("no other node has taken the lead in time");
        }
    }

    fn most_advanced_voter(&self) -> Option<ReplicaId> {
        let status = self.quorum().status()?;
        let voters = status.members.voters().map(|member| member.replica);
        let others = voters.filter(|replica| *replica != status.replica);
        let matched = |replica: ReplicaId| {
            status.matched.iter().find(|(of, _)| *of == replica).map(|(_, index)| *index)
        };
        others.max_by_key(|replica| matched(*replica))
    }
}
