//! The object `.ebb/head`: the node that serves a volume (`docs/format/bucket.md`). The text is
//! JSON, so that operators can read it with the store's own tools.
//!
//! Laws:
//! - `incarnation` grows with every take-over, `beat` with every renewal within one.
//! - All inode ids of the volume are below `ids`; those of the owner are below it before they are
//!   used.
//! - `(node, run)` identifies one process: only that process renews the head.

use crate::json;
use crate::{Format, FormatError};
use bytes::Bytes;
use ebb_model::{ClusterId, IdEpoch, IdMark, Incarnation, Ino, Time};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    pub cluster: ClusterId,
    /// Number of take-overs of the volume so far.
    pub incarnation: Incarnation,
    /// Inode ids that can have been used: the next owner's are above them.
    pub ids: IdMark,
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
        id_epoch: Some(head.ids.epoch.0),
        ids_reserved: Some(head.ids.below),
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
    let content: Content = json::unseal(Format::Head, FORMAT_0_1_0..=FORMAT, bytes)?;
    let Some(cluster) = ClusterId::parse(&content.cluster) else {
        return Err(FormatError::Invalid {
            format: Format::Head,
            offset: 0,
            what: format!("{:?} is no cluster id", content.cluster),
        });
    };
    let ids = match (content.id_epoch, content.ids_reserved) {
        (Some(epoch), Some(below)) if content.format == FORMAT => {
            IdMark { epoch: IdEpoch(epoch), below }
        }
        // Each incarnation of release 0.1.0 had the ids of one epoch.
        (None, None) if content.format == FORMAT_0_1_0 && content.incarnation <= MAX_0_1_0 => {
            let epoch = IdEpoch((content.incarnation as u16).saturating_add(1));
            IdMark { epoch, below: Ino::FIRST_COUNTER }
        }
        _ => {
            return Err(FormatError::Invalid {
                format: Format::Head,
                offset: 0,
                what: "the reserved inode ids are missing, or of another format".into(),
            });
        }
    };
    Ok(Head {
        cluster,
        node: json::from_hex(Format::Head, "node id", &content.node, 32)?,
        run: json::from_hex(Format::Head, "run id", &content.run, 16)? as u64,
        incarnation: Incarnation(content.incarnation),
        ids,
        owner: content.owner,
        address: content.address,
        started: Time::from_secs(content.started_secs),
        term_secs: content.term_secs,
        beat: content.beat,
        released: content.released,
        members: content.members,
    })
}

const FORMAT: u8 = 2;

/// Without the reserved ids.
const FORMAT_0_1_0: u8 = 1;

/// The last incarnation of release 0.1.0.
const MAX_0_1_0: u64 = u16::MAX as u64;

#[derive(Serialize, Deserialize)]
pub(crate) struct Content {
    format: u8,
    cluster: String,
    incarnation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id_epoch: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ids_reserved: Option<u32>,
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
