//! The file `replica` of a data directory: its ids in a replicated volume
//! (`docs/format/data-directory.md`).

use crate::json;
use crate::{Format, FormatError};
use bytes::Bytes;
use ebb_model::NodeId;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replica {
    pub node: NodeId,
    /// Drawn at random with the log.
    pub directory: u128,
    pub stage: Stage,
}

/// How far a data directory has become part of its volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The ids are drawn. Whether the group knows them is in the log.
    Drawn,
    /// The group has this replica for it, and the log is empty.
    Joined { replica: u64 },
    /// The log has records of the group: without its log the directory is of no use.
    Begun,
}

const FORMAT: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Content {
    format: u8,
    node: String,
    directory: String,
    /// Of a replica that has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replica: Option<u64>,
    begun: bool,
}

pub fn encode(replica: &Replica) -> Bytes {
    let Replica { node, directory, stage } = replica;
    let joined = match stage {
        Stage::Joined { replica } => Some(*replica),
        Stage::Drawn | Stage::Begun => None,
    };
    json::seal(&Content {
        format: FORMAT,
        node: node.to_string(),
        directory: format!("{directory:032x}"),
        replica: joined,
        begun: *stage == Stage::Begun,
    })
}

pub fn decode(bytes: &[u8]) -> Result<Replica, FormatError> {
    let format = Format::Identity;
    let content: Content = json::unseal(format, FORMAT..=FORMAT, bytes)?;
    let node = json::from_hex(format, "node id", &content.node, 16)?;
    let directory = json::from_hex(format, "directory id", &content.directory, 32)?;
    let stage = match content.replica {
        _ if content.begun => Stage::Begun,
        Some(replica) => Stage::Joined { replica },
        None => Stage::Drawn,
    };
    Ok(Replica { node: NodeId(node as u64), directory, stage })
}
