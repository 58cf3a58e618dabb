//! Messages between the nodes of a replicated volume. Each travels as the header of an
//! [`ebb_format::rpc::Message::Peer`]; bytes of files and of snapshots follow it.

use ebb_consensus::{DirectoryId, Origin, Packet, ReplicaId, RunId, SnapshotRequest};
use ebb_model::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum PeerMessage {
    /// The first message of a connection.
    Hello(Hello),
    Packet(Box<Packet>),
    Ask(Ask),
    Answer(Result<Answer, RpcError>),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// `None` of a node that is about to join.
    pub cluster: Option<ClusterId>,
    pub origin: Origin,
    /// `host:port` at which the sender listens.
    pub address: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Whether the connection still stands.
    Ping,
    /// The sender of the hello becomes a node of the volume.
    Join,
    /// The node of this id leaves, if no file has bytes on it alone.
    Remove {
        node: NodeId,
    },
    /// A snapshot comes, in pieces: the bytes of its file.
    SnapshotBegin {
        request: SnapshotRequest,
    },
    SnapshotPiece,
    SnapshotEnd,
    /// Dirty bytes that the receiver has, once its state has all commands up to `at`.
    Held {
        ino: Ino,
        blocks: Range<u64>,
        at: LogIndex,
    },
    /// Forces everything that the receiver has written, once its state has all commands up to `at`.
    Force {
        at: LogIndex,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Joined(Joined),
    /// Of each block, in order. The bytes follow.
    Held {
        sums: Vec<Option<u32>>,
    },
    /// Everything is forced that this run of the receiver has. Of the files `doubtful` a power cut
    /// before the run may have taken bytes.
    Forced {
        run: RunId,
        doubtful: Vec<Ino>,
    },
}

/// Facts that a new node needs of its volume.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Joined {
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    /// The name under which all nodes of the volume own the head of the bucket.
    pub head: u128,
    pub backing: String,
    pub volume: String,
    pub replica: ReplicaId,
    pub nodes: Vec<(NodeId, String)>,
}

/// A node's own ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Own {
    pub node: NodeId,
    pub directory: DirectoryId,
}
