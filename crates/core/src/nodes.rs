//! The nodes of a replicated volume, the one that leads, and the one that has the dirty bytes of a
//! file.
//!
//! Laws:
//! - A volume that was never led has no nodes here: its one node has everything.
//! - In a volume that is led, each file with dirty blocks has one holder, and no other file has
//!   one. All dirty blocks of the file are on the holder's disk.
//! - A file gets the node that leads as its holder when its first block becomes dirty. So only a
//!   node that is not the holder, and leads now, has to bring the bytes before it changes them.

use crate::content::{Content, ContentChange};
use crate::extent::{Unforced, UnforcedItem};
use crate::tree::{Tree, Value, pack, unpack};
use ebb_model::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Default)]
pub struct Nodes {
    /// Each with its address, `host:port`.
    addresses: BTreeMap<NodeId, String>,
    leader: Option<NodeId>,
    holders: Tree<Ino, NodeId>,
    /// Writes whose bytes a power cut of their holder can take. Their clients repeat them.
    unforced: Unforced,
}

impl Value<Ino> for NodeId {
    fn pack(&self, _: &Ino, out: &mut Vec<u8>) {
        pack(&self.0, out);
    }

    fn unpack(_: &Ino, bytes: &[u8]) -> NodeId {
        NodeId(unpack(bytes))
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodesItem {
    Node { node: NodeId, address: String },
    Leader { node: NodeId },
    Holder { ino: Ino, node: NodeId },
    Unforced(UnforcedItem),
}

impl Nodes {
    pub(crate) fn apply(&mut self, command: &NodesCommand, content: &Content) {
        match command {
            NodesCommand::Serves { node, address } => {
                self.addresses.insert(*node, address.clone());
            }
            NodesCommand::Removed { node } => {
                if self.may_remove(*node) {
                    self.addresses.remove(node);
                }
            }
            NodesCommand::Leads { node } => {
                let is_first = self.leader.is_none();
                self.leader = Some(*node);
                if is_first {
                    for ino in content.dirty_files() {
                        self.holders.insert(&ino, node);
                    }
                }
            }
            NodesCommand::Brought { ino } => {
                if let (Some(leader), true) = (self.leader, self.holders.get(ino).is_some()) {
                    self.holders.insert(ino, &leader);
                }
            }
            NodesCommand::Forced { upto } => self.unforced.synced(None, Position(upto.0)),
        }
    }

    /// Follows a change of content, which has been made.
    pub(crate) fn follow(&mut self, change: &ContentChange, content: &Content) {
        let Some(leader) = self.leader else { return };
        let ino = change.ino();
        let is_gone = matches!(change, ContentChange::Gone { .. });
        if content.dirty_count(ino) == 0 || is_gone {
            self.holders.remove(&ino);
            self.unforced.gone(ino);
        } else if self.holders.get(&ino).is_none() {
            self.holders.insert(&ino, &leader);
        }
        if let ContentChange::Cut { len_bytes, .. } = *change {
            self.unforced.superseded(ino, len_bytes..u64::MAX);
        }
    }

    /// A command at this index has been carried out, and its changes followed.
    pub(crate) fn carried_out(&mut self, index: LogIndex, command: &Command) {
        let (Command::Client { tx, stamp, mutation, .. }
        | Command::Repeated { tx, stamp, mutation, .. }) = command
        else {
            return;
        };
        if let (Some(_), Some((ino, bytes))) = (self.leader, mutation.written_bytes())
            && self.holders.get(&ino).is_some()
        {
            self.unforced.written(ino, bytes, stamp.version, Position(index.0), tx.session);
        }
    }

    pub fn unforced(&self) -> &Unforced {
        &self.unforced
    }

    /// Whether the node can leave: no file has bytes on it alone, and it does not lead.
    pub fn may_remove(&self, node: NodeId) -> bool {
        self.leader != Some(node) && !self.holders.iter().any(|(_, holder)| holder == node)
    }

    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    pub fn address(&self, node: NodeId) -> Option<&str> {
        self.addresses.get(&node).map(String::as_str)
    }

    pub fn addresses(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.addresses.iter().map(|(node, address)| (*node, address.as_str()))
    }

    /// The node that has the dirty bytes of the file; `None` if there are none, or the volume has
    /// one node.
    pub fn holder(&self, ino: Ino) -> Option<NodeId> {
        self.holders.get(&ino)
    }

    /// Files with dirty bytes, each with its holder.
    pub fn holders(&self) -> impl Iterator<Item = (Ino, NodeId)> {
        self.holders.iter()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.holders.bytes()
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = NodesItem> {
        let nodes = self.addresses.iter();
        let nodes =
            nodes.map(|(node, address)| NodesItem::Node { node: *node, address: address.clone() });
        let leader = self.leader.map(|node| NodesItem::Leader { node });
        let holders = self.holders.iter().map(|(ino, node)| NodesItem::Holder { ino, node });
        let unforced = self.unforced.items().map(NodesItem::Unforced);
        nodes.chain(leader).chain(holders).chain(unforced)
    }

    pub(crate) fn restore(&mut self, item: NodesItem) {
        match item {
            NodesItem::Unforced(item) => self.unforced.restore(item),
            NodesItem::Node { node, address } => drop(self.addresses.insert(node, address)),
            NodesItem::Leader { node } => self.leader = Some(node),
            NodesItem::Holder { ino, node } => drop(self.holders.insert(&ino, &node)),
        }
    }

    /// Descriptions of broken laws.
    pub(crate) fn check(&self, content: &Content) -> Vec<String> {
        let mut problems = Vec::new();
        if self.leader.is_some() {
            for ino in content.dirty_files().filter(|ino| self.holders.get(ino).is_none()) {
                problems.push(format!("inode {ino} has dirty blocks and no holder"));
            }
        }
        for (ino, _) in self.holders.iter().filter(|(ino, _)| content.dirty_count(*ino) == 0) {
            problems.push(format!("inode {ino} has a holder and no dirty blocks"));
        }
        problems
    }
}
