//! Who serves a volume: the object `.ebb/head` (`docs/format/bucket.md`). JSON, so that
//! people can read it with the store's own tools when something went wrong.

use crate::json;
use crate::{Format, FormatError};
use bytes::Bytes;
use ebb_model::{ClusterId, Incarnation, Time};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    pub cluster: ClusterId,
    /// Grows with every take-over.
    pub incarnation: Incarnation,
    /// The data directory of the owner: a node that restarts finds its own.
    pub node: u128,
    /// One run of the owner's process: tells its own lost answer from a copied data directory.
    pub run: u64,
    /// For people: host, process and data directory of the owner.
    pub owner: String,
    /// `ebb://host:port/volume` where the owner listens for other mounts; empty if it does not.
    pub address: String,
    /// When the owner took over, to the second.
    pub started: Time,
    /// The owner renews well within this time, or is gone.
    pub term_secs: u32,
    /// Counts renewals.
    pub beat: u64,
    /// The owner has flushed everything and gone: anybody may take over at once.
    pub released: bool,
    /// Each member bucket of the volume as people call it, in the order of their directories.
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

/// Members that are not known are skipped: a format that is not to be read by this
/// version has another `format`.
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
