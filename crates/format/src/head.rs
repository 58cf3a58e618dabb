//! The object `.ebb/head`: the node that serves a volume (`docs/format/bucket.md`). The text is
//! JSON, so that operators can read it with the store's own tools.
//!
//! Laws:
//! - `incarnation` grows with every take-over, `beat` with every renewal within one.
//! - `(node, run)` identifies one process: only that process renews the head.

use crate::json;
use crate::{Format, FormatError};
use bytes::Bytes;
use ebb_model::{ClusterId, Incarnation, Time};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    pub cluster: ClusterId,
    /// Number of take-overs of the volume so far.
    pub incarnation: Incarnation,
    /// Id of the owner's data directory: a restarted node recognises its own head.
    pub node: u128,
    /// Random id of one run of the owner's process. It distinguishes a lost reply of this process
    /// from a copy of its data directory.
    pub run: u64,
    /// Host, process and data directory of the owner, for operators.
    pub owner: String,
    /// `ebb://host:port/volume` of the owner's listener for other mounts; empty without a listener.
    pub address: String,
    /// Wall-clock time of the take-over, whole seconds.
    pub started: Time,
    /// Term of the lease: the owner renews well within it; after it another node can take over.
    pub term_secs: u32,
    /// Number of renewals.
    pub beat: u64,
    /// The owner has flushed everything and stopped: any node can take over at once.
    pub released: bool,
    /// URL of each member bucket, in the order of the members' directories.
    pub members: Vec<String>,
}

pub fn encode(head: &Head) -> Bytes {
    let content = Content {
        format: FORMAT,
        cluster: head.cluster.to_string(),
        incarnation: head.incarnation.0,
        node: format!("{:032x}", head.node),
        run: format!("{:016x}", head.run),
        owner: head.owner.clone(),
        address: head.address.clone(),
        started_secs: head.started.secs,
        term_secs: head.term_secs,
        beat: head.beat,
        released: head.released,
        members: head.members.clone(),
    };
    json::seal(&content)
}

/// Skips unknown members of the JSON object: an incompatible version has another `format`.
pub fn decode(bytes: &[u8]) -> Result<Head, FormatError> {
    let content: Content = json::unseal(Format::Head, FORMAT, bytes)?;
    let Some(cluster) = ClusterId::parse(&content.cluster) else {
        return Err(FormatError::Invalid {
            format: Format::Head,
            offset: 0,
            what: format!("{:?} is no cluster id", content.cluster),
        });
    };
    Ok(Head {
        cluster,
        node: json::from_hex(Format::Head, "node id", &content.node, 32)?,
        run: json::from_hex(Format::Head, "run id", &content.run, 16)? as u64,
        incarnation: Incarnation(content.incarnation),
        owner: content.owner,
        address: content.address,
        started: Time::from_secs(content.started_secs),
        term_secs: content.term_secs,
        beat: content.beat,
        released: content.released,
        members: content.members,
    })
}

const FORMAT: u8 = 1;

#[derive(Serialize, Deserialize)]
pub(crate) struct Content {
    format: u8,
    cluster: String,
    incarnation: u16,
    node: String,
    run: String,
    owner: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    address: String,
    started_secs: i64,
    term_secs: u32,
    beat: u64,
    released: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    members: Vec<String>,
}
