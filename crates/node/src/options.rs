//! The options of a node. Defaults are here and nowhere else; `docs/configuration.md` lists them
//! with their flags.

use crate::buckets::head::TakeOver;
use ebb_core::cache::Eviction;
use ebb_model::{PACK_BYTES, PACKED_BYTES, SessionId};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// The name by which clients ask for the volume.
    pub volume: String,
    /// For people: host, process and data directory.
    pub owner: String,
    /// `ebb://host:port/volume` where other mounts find this node; empty if they cannot.
    pub address: String,
    /// Owner of the root directory and of objects without a record.
    pub uid: u32,
    pub gid: u32,
    pub read_only: bool,
    /// The data directory is encrypted: for people.
    pub encrypted: bool,
    /// The only client lives in the node's process: sessions from before a restart are over.
    pub embedded: bool,
    /// Except this one: the previous process has left it to the client in this one.
    pub resumes: Option<SessionId>,
    pub take_over: TakeOver,
    /// Member buckets that the volume had may be missing now.
    pub rearrange: bool,
    /// How long the head of the volume stays this node's without renewal.
    pub head_term: Duration,
    /// How long a client may be silent.
    pub session_term: Duration,
    /// How long a silent client keeps its leases.
    pub lease_term: Duration,
    /// Acknowledged operations are forced at the latest after this time.
    pub commit_interval: Duration,
    /// Force before every answer (O-69).
    pub ack_durable: bool,
    /// Dirty files go to the bucket once they are this old (O-54).
    pub flush_interval: Duration,
    /// Files that go to the bucket at one time.
    pub flush_parallel: usize,
    /// The memory limit of metadata; beyond it nothing new comes in.
    pub metadata_bytes: u64,
    /// The memory limit for bytes of files on their way to and from buckets, and to clients: see
    /// [`Options::request_buffer_bytes`].
    pub buffer_bytes: u64,
    /// Files of at least this size are uploaded while they grow, if the store can compose objects
    /// by itself; 0: none are.
    pub early_bytes: u64,
    /// The length of the parts of a large object, unless the store or the object's length needs
    /// another.
    pub part_bytes: u64,
    /// Cached bytes on the node's disk, clean and dirty.
    pub cache_bytes: u64,
    /// The order in which cached bytes are evicted.
    pub eviction: Eviction,
    /// Bytes that wait for the bucket; a writer waits once there are more.
    pub dirty_bytes: u64,
    /// A writer that waits for space this long gets ENOSPC.
    pub space_timeout: Duration,
    /// A request waits this long for a bucket that does not answer, then gets ETIMEDOUT.
    pub bucket_timeout: Duration,
    /// Limit of the bytes of objects that come from all buckets together; `None`: without limit.
    pub download_bytes_per_sec: Option<u64>,
    /// The same for bytes to the buckets.
    pub upload_bytes_per_sec: Option<u64>,
    /// External changes of the bucket are seen at the latest after this time (O-55); `None`: known
    /// names are not revalidated.
    pub revalidate: Option<Duration>,
    /// Everything cached is compared with its checksum once in this time; `None`: only bytes that
    /// are read.
    pub scrub_interval: Option<Duration>,
    /// Never faster than this.
    pub scrub_bytes_per_sec: u64,
    /// Most bytes that are read ahead of a sequential reader, one with equal steps, or one that
    /// goes from file to file.
    pub read_ahead_bytes: u64,
    /// Requests that take this long are logged; `None`: none are.
    pub slow_operation: Option<Duration>,
    /// Files below this share pack files; at most [`PACKED_BYTES`].
    pub pack_below_bytes: u64,
    /// The size of a pack file; at least [`PACKED_BYTES`], at most [`PACK_BYTES`].
    pub pack_bytes: u64,
    /// Operations after which a snapshot is written, so that a restart has no more to replay: a
    /// quarter as many as there are inodes, where that is more.
    pub snapshot_operations: u64,
    pub segment_bytes: u64,
    /// Most entries of one piece of a directory's page; a page with twice as many is in pieces.
    pub page_piece_entries: usize,
    /// The most pieces in one record of the log.
    pub record_pieces: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            volume: "ebb".into(),
            owner: String::new(),
            address: String::new(),
            uid: 0,
            gid: 0,
            read_only: false,
            encrypted: false,
            embedded: false,
            resumes: None,
            take_over: TakeOver::IfAbandoned,
            rearrange: false,
            head_term: Duration::from_secs(30),
            session_term: Duration::from_secs(60),
            lease_term: Duration::from_secs(2),
            commit_interval: Duration::from_secs(1),
            ack_durable: false,
            flush_interval: Duration::from_secs(5),
            flush_parallel: 16,
            metadata_bytes: 8 << 30,
            buffer_bytes: 1 << 30,
            early_bytes: 32 << 20,
            part_bytes: 8 << 20,
            cache_bytes: 20 << 30,
            eviction: Eviction::S3Fifo,
            dirty_bytes: 4 << 30,
            space_timeout: Duration::from_secs(60),
            bucket_timeout: Duration::from_secs(60),
            download_bytes_per_sec: None,
            upload_bytes_per_sec: None,
            revalidate: None,
            scrub_interval: Some(Duration::from_secs(7 * 24 * 3600)),
            scrub_bytes_per_sec: 32 << 20,
            read_ahead_bytes: 64 << 20,
            slow_operation: Some(Duration::from_secs(1)),
            pack_below_bytes: PACKED_BYTES,
            pack_bytes: PACK_BYTES,
            snapshot_operations: 50_000,
            segment_bytes: 16 << 20,
            page_piece_entries: 4096,
            record_pieces: 1024,
        }
    }
}

/// Shares of `buffer_bytes`.
impl Options {
    pub(crate) fn download_buffer_bytes(&self) -> u64 {
        self.buffer_bytes / 2
    }

    pub(crate) fn upload_buffer_bytes(&self) -> u64 {
        self.buffer_bytes / 4
    }

    /// The share for the requests of clients. Where writers wait for room no other request is
    /// served once they have taken it, so it is never little.
    pub fn request_buffer_bytes(&self) -> u64 {
        (self.buffer_bytes / 4).max(64 << 20)
    }
}
