//! The file `identity`: the node and the volume of a data directory
//! (`docs/format/data-directory.md`).

use crate::json;
use crate::{Format, FormatError};
use bytes::Bytes;
use ebb_model::{ClusterId, Incarnation};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Random id, drawn when the directory is first used.
    pub node: u128,
    /// The volume whose log and files the directory holds, with the incarnation of that take-over.
    pub serves: Option<Serves>,
    /// Release 0.1.0 wrote the directory. Its log and snapshots are readable, its files have other
    /// names. Never written.
    pub is_of_0_1_0: bool,
}

impl Identity {
    pub fn of(node: u128, serves: Option<Serves>) -> Identity {
        Identity { node, serves, is_of_0_1_0: false }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Serves {
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    /// URL of the volume's backing.
    pub backing: String,
    /// URL of each member bucket, in the order of the members' directories.
    pub members: Vec<String>,
    /// Where the store was reached, for people alone: versions before this one skip it, so that it
    /// is not in the checksum.
    pub endpoint: Option<String>,
}

#[derive(Deserialize)]
struct Remark {
    #[serde(default)]
    endpoint: Option<String>,
}

const FORMAT: u8 = 2;

const FORMAT_0_1_0: u8 = 1;

/// [`Incarnation::NONE`] of release 0.1.0.
const NONE_0_1_0: u64 = u16::MAX as u64;

#[derive(Serialize, Deserialize)]
pub(crate) struct Content {
    format: u8,
    node: String,
    cluster: Option<String>,
    /// None if the volume was only read.
    incarnation: Option<u64>,
    backing: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    members: Vec<String>,
}

pub fn encode(identity: &Identity) -> Bytes {
    let serves = identity.serves.as_ref();
    let content = Content {
        format: FORMAT,
        node: format!("{:032x}", identity.node),
        cluster: serves.map(|serves| serves.cluster.to_string()),
        incarnation: serves.map_or(Some(0), |serves| {
            (serves.incarnation != Incarnation::NONE).then_some(serves.incarnation.0)
        }),
        backing: serves.map_or_else(String::new, |serves| serves.backing.clone()),
        members: serves.map_or_else(Vec::new, |serves| serves.members.clone()),
    };
    let endpoint = serves.and_then(|serves| serves.endpoint.as_deref());
    match endpoint {
        None => json::seal(&content),
        Some(endpoint) => json::remark(&json::seal(&content), "endpoint", endpoint),
    }
}

pub fn decode(bytes: &[u8]) -> Result<Identity, FormatError> {
    let format = Format::Identity;
    let content: Content = json::unseal(format, FORMAT_0_1_0..=FORMAT, bytes)?;
    let node = json::from_hex(format, "node id", &content.node, 32)?;
    let is_of_0_1_0 = content.format == FORMAT_0_1_0;
    let incarnation = match content.incarnation {
        Some(NONE_0_1_0) if is_of_0_1_0 => Incarnation::NONE,
        incarnation => incarnation.map_or(Incarnation::NONE, Incarnation),
    };
    let serves = match content.cluster {
        None => None,
        Some(text) => {
            let cluster = ClusterId::parse(&text).ok_or_else(|| FormatError::Invalid {
                format,
                offset: 0,
                what: format!("{text:?} is no cluster id"),
            })?;
            Some(Serves {
                cluster,
                incarnation,
                backing: content.backing,
                members: content.members,
                endpoint: serde_json::from_slice(bytes)
                    .ok()
                    .and_then(|Remark { endpoint }| endpoint),
            })
        }
    };
    Ok(Identity { node, serves, is_of_0_1_0 })
}
