//! The nodes of a volume: joining, voting, leaving.

use super::Host;
use super::messages::{Answer, Joined, Own};
use crate::replica::Part;
use ebb_consensus::{Change, ChangeError, Member, Role};
use ebb_model::*;
use std::rc::Rc;
use std::time::Duration;

/// Between two looks whether a node can begin to vote.
const PROMOTE_INTERVAL: Duration = Duration::from_millis(500);

impl Host {
    pub(super) fn member(&self, of: Own) -> Option<Member> {
        let status = self.quorum().status()?;
        let member = status.members.on_node(of.node).copied();
        member.filter(|member| member.directory == of.directory)
    }

    /// Lets a node join, or finds that it has joined.
    pub(super) async fn admit(&self, joining: Own, address: String) -> Result<Answer, RpcError> {
        let node = self.leading().ok_or_else(|| self.elsewhere())?;
        self.peers.learn(joining.node, &address);
        if node.replica.view().nodes().address(joining.node) != Some(&address) {
            let serves = NodesCommand::Serves { node: joining.node, address };
            node.commit(Command::Nodes(serves)).await?;
            node.force_log().await?;
        }
        let member = loop {
            if let Some(member) = self.member(joining) {
                break member;
            }
            let (node, directory) = (joining.node, joining.directory);
            let change = self.replica.change_members(Change::Add { node, directory }).await?;
            match change {
                Ok(proposed) => drop(self.quorum().wait_committed(proposed.index).await?),
                Err(ChangeError::Busy) => {}
                Err(error) => return Err(RpcError::Denied(error.to_string())),
            }
            self.ports.clock.sleep(Duration::from_millis(10)).await;
        };
        let nodes = {
            let state = node.replica.view();
            let nodes = state.nodes().addresses();
            nodes.map(|(node, address)| (node, address.to_owned())).collect()
        };
        Ok(Answer::Joined(Joined {
            cluster: self.serves.cluster,
            incarnation: self.serves.incarnation,
            head: self.head,
            backing: self.serves.backing.clone(),
            volume: self.options.volume.clone(),
            replica: member.replica,
            nodes,
        }))
    }

    /// Lets nodes vote that have caught up, as long as this node leads.
    pub(super) async fn promote_for_ever(self: Rc<Self>) {
        while matches!(self.quorum().part(), Part::Leads { .. }) {
            self.ports.clock.sleep(PROMOTE_INTERVAL).await;
            let Some(status) = self.quorum().status() else { return };
            let voters = status.members.voters().count();
            let mut members = status.members.members().iter();
            let Some(learner) = members
                .find(|member| member.role == Role::Learner)
                .filter(|_| voters < self.host_options.voters)
            else {
                continue;
            };
            match self.replica.change_members(Change::Promote(learner.replica)).await {
                Ok(Ok(_)) => tracing::info!(node = %learner.node, "a node votes"),
                Ok(Err(error)) => tracing::debug!(%error, "a node does not vote yet"),
                Err(_) => return,
            }
        }
    }

    /// Removes a node that no file needs.
    pub async fn remove(&self, node: NodeId) -> Result<(), RpcError> {
        let leading = self.leading().ok_or_else(|| self.elsewhere())?;
        let status = self.quorum().status().ok_or(RpcError::Retry)?;
        let held = self.held_files(node);
        if node == self.origin.node {
            return Err(RpcError::Denied(
                "the node that leads cannot be removed: stop it first, so that another one leads"
                    .into(),
            ));
        }
        if held > 0 {
            return Err(RpcError::Denied(format!(
                "node {node} has {held} files that are nowhere else: let them go to the bucket \
                 first (ebb flush)"
            )));
        }
        if let Some(member) = status.members.on_node(node) {
            match self.replica.change_members(Change::Remove(member.replica)).await? {
                Ok(proposed) => drop(self.quorum().wait_committed(proposed.index).await?),
                Err(ChangeError::Busy) => return Err(RpcError::Retry),
                Err(error) => return Err(RpcError::Denied(error.to_string())),
            }
        } else if leading.replica.view().nodes().address(node).is_none() {
            return Err(RpcError::Denied(format!("the volume has no node {node}")));
        }
        leading.commit(Command::Nodes(NodesCommand::Removed { node })).await?;
        leading.force_log().await.map(drop)
    }

    /// Gives a vote to a node that has none, whatever the number of voters.
    pub async fn promote(&self, node: NodeId) -> Result<(), RpcError> {
        self.leading().ok_or_else(|| self.elsewhere())?;
        let status = self.quorum().status().ok_or(RpcError::Retry)?;
        let Some(member) = status.members.on_node(node) else {
            return Err(RpcError::Denied(format!("the volume has no node {node}")));
        };
        if member.role == Role::Voter {
            return Ok(());
        }
        match self.replica.change_members(Change::Promote(member.replica)).await? {
            Ok(proposed) => self.quorum().wait_committed(proposed.index).await.map(drop),
            Err(ChangeError::Busy) => Err(RpcError::Retry),
            Err(error) => Err(RpcError::Denied(format!("node {node} cannot vote yet: {error}"))),
        }
    }

    fn held_files(&self, node: NodeId) -> u64 {
        let state = self.replica.view();
        state.nodes().holders().filter(|(_, holder)| *holder == node).count() as u64
    }

    /// All nodes of the volume, as far as this one knows.
    pub fn nodes(&self) -> Vec<NodeState> {
        let status = self.quorum().status();
        let leader = match self.quorum().part() {
            Part::Leads { .. } => Some(self.origin.node),
            Part::Follows { leader } | Part::Lost { leader } => leader,
            Part::Elected { .. } => None,
        };
        let state = self.replica.view();
        let votes = |node| {
            let member = status.as_ref().and_then(|status| status.members.on_node(node));
            member.is_some_and(|member| member.role == Role::Voter)
        };
        let behind = |node| {
            let status = status.as_ref()?;
            let replica = status.members.on_node(node)?.replica;
            let matched = status.matched.iter().find(|(of, _)| *of == replica)?.1;
            Some(status.last.0.saturating_sub(matched.0))
        };
        let shown = |(node, address): (NodeId, &str)| NodeState {
            node,
            address: address.to_owned(),
            is_leader: leader == Some(node),
            votes: votes(node),
            held_files: state.nodes().holders().filter(|(_, holder)| *holder == node).count()
                as u64,
            behind: behind(node),
        };
        state.nodes().addresses().map(shown).collect()
    }

    pub(super) fn elsewhere(&self) -> RpcError {
        RpcError::NotLeader { leader: self.leader_address() }
    }
}
