//! Requests of clients and their replies: the same types within a process and over the wire
//! (`docs/protocol/rpc.md`).
//!
//! Laws:
//! - A mutation executes once per `tx`, however often the client sends it.
//! - An acknowledged mutation survives the death of every process. It survives a power cut of the
//!   node once its log index is `<= durable`.

use crate::*;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A request of a client, or of an administrative command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// First request of a connection.
    Attach {
        volume: String,
        client: String,
        previous: Option<SessionId>,
        read_only: bool,
        /// The expected volume: name and address alone are ambiguous after a change of nodes.
        /// `None` accepts any volume.
        cluster: Option<ClusterId>,
    },
    Detach {
        session: SessionId,
    },
    /// Renews the session.
    Renew {
        session: SessionId,
    },
    /// Gives up the right to cache, after the client has dropped its caches (see
    /// [`Notice::DropCaches`]).
    CachesDropped {
        session: SessionId,
    },

    Lookup {
        parent: Ino,
        name: Name,
    },
    GetAttr {
        ino: Ino,
    },
    ReadLink {
        ino: Ino,
    },
    ReadDir {
        dir: Ino,
        after: Cookie,
        limit: u32,
    },
    GetXattr {
        ino: Ino,
        name: Bytes,
    },
    ListXattr {
        ino: Ino,
    },
    Access {
        caller: Caller,
        ino: Ino,
        access: Access,
    },
    /// Reports the volume, or the quota root at or above the inode.
    StatFs {
        ino: Ino,
    },

    /// Declares that the session has the inode open, so the inode outlives its last name.
    Open {
        session: SessionId,
        ino: Ino,
    },
    /// Undoes `count` opens; a larger count than there are undoes all.
    Close {
        session: SessionId,
        ino: Ino,
        count: u32,
    },
    Read {
        ino: Ino,
        offset: u64,
        len_bytes: u32,
    },

    Mutate(Box<Mutate>),
    /// Makes the inode's data and every operation of the session durable.
    Fsync {
        session: SessionId,
        ino: Ino,
    },
    /// Makes everything durable.
    SyncFs {
        session: SessionId,
    },

    Admin(AdminRequest),

    /// SEEK_DATA and SEEK_HOLE of lseek(2).
    Seek {
        ino: Ino,
        offset: u64,
        to: Seek,
    },

    /// Locks or unlocks, once per `tx`; its slots are a table of their own ([`LOCK_SLOTS`]). With
    /// `wait` a conflicting request is queued. A repeated request with the same wait reports its
    /// progress.
    Lock {
        tx: TxId,
        ask: LockAsk,
        wait: Option<LockWait>,
    },
    /// Ends a wait if it exists.
    EndWait {
        session: SessionId,
        wait: u64,
    },
    /// F_GETLK: the first lock that conflicts, without locking.
    TestLock {
        session: SessionId,
        ino: Ino,
        owner: LockOwner,
        lock: RangeLock,
    },
    /// Reclaims the locks of an owner after a node restart, which loses locks. Valid only for a
    /// session that the node expects back, with at most [`LOCKS_RECLAIMED_AT_ONCE`] ranges.
    Reclaim {
        session: SessionId,
        ino: Ino,
        owner: LockOwner,
        pid: u32,
        locks: Vec<RangeLock>,
    },
    /// The client has declared every open. Any other open of the session was being closed when the
    /// node, or the client's former process, died.
    OpensDeclared {
        session: SessionId,
    },
    /// The reply to [`Notice::ReferenceQuery`]: of the queried inodes, the client still references
    /// these.
    ReferenceQueryReply {
        session: SessionId,
        query: u64,
        referenced: Vec<Ino>,
    },
    /// A successor process takes over the session of a dead one. Waits of the dead process end. Of
    /// its opens only those count that the successor declares before [`Request::OpensDeclared`].
    ResumeSession {
        session: SessionId,
    },
    /// Returns the leases of one [`Notice::Recall`], or with `None` all, after the client has
    /// dropped its caches of them.
    LeasesReturned {
        session: SessionId,
        recall: Option<u64>,
    },
}

impl Request {
    /// The session of the request. An attach only begins one.
    pub fn session(&self) -> Option<SessionId> {
        match *self {
            Request::Detach { session }
            | Request::Renew { session }
            | Request::ResumeSession { session }
            | Request::OpensDeclared { session }
            | Request::CachesDropped { session }
            | Request::LeasesReturned { session, .. }
            | Request::ReferenceQueryReply { session, .. }
            | Request::Open { session, .. }
            | Request::Close { session, .. }
            | Request::Fsync { session, .. }
            | Request::SyncFs { session }
            | Request::EndWait { session, .. }
            | Request::TestLock { session, .. }
            | Request::Reclaim { session, .. } => Some(session),
            Request::Mutate(ref mutate) => Some(mutate.tx.session),
            Request::Lock { tx, .. } => Some(tx.session),
            _ => None,
        }
    }

    /// Name in statistics.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Attach { .. } => "attach",
            Request::Detach { .. } => "detach",
            Request::Renew { .. } => "renew",
            Request::ResumeSession { .. } => "resume-session",
            Request::OpensDeclared { .. } => "opens-declared",
            Request::CachesDropped { .. } => "caches-dropped",
            Request::LeasesReturned { .. } => "leases-returned",
            Request::ReferenceQueryReply { .. } => "reference-query-reply",
            Request::Lookup { .. } => "lookup",
            Request::GetAttr { .. } => "get-attr",
            Request::ReadLink { .. } => "read-link",
            Request::ReadDir { .. } => "read-dir",
            Request::GetXattr { .. } => "get-xattr",
            Request::ListXattr { .. } => "list-xattr",
            Request::Access { .. } => "access",
            Request::StatFs { .. } => "stat-fs",
            Request::Open { .. } => "open",
            Request::Close { .. } => "close",
            Request::Read { .. } => "read",
            Request::Mutate(mutate) => mutate.mutation.name(),
            Request::Fsync { .. } => "fsync",
            Request::SyncFs { .. } => "sync-fs",
            Request::Admin(_) => "admin",
            Request::Seek { .. } => "seek",
            Request::Lock { .. } => "lock",
            Request::EndWait { .. } => "end-wait",
            Request::TestLock { .. } => "test-lock",
            Request::Reclaim { .. } => "reclaim",
        }
    }

    /// Whether it keeps the session or its leases: it waits for no other request.
    pub fn keeps_session(&self) -> bool {
        matches!(
            self,
            Request::Attach { .. }
                | Request::Renew { .. }
                | Request::CachesDropped { .. }
                | Request::LeasesReturned { .. }
                | Request::Detach { .. }
        )
    }

    /// The inode that the request concerns, or the directory of its names.
    pub fn subject(&self) -> Option<Ino> {
        match *self {
            Request::Lookup { parent: ino, .. }
            | Request::GetAttr { ino }
            | Request::ReadLink { ino }
            | Request::ReadDir { dir: ino, .. }
            | Request::GetXattr { ino, .. }
            | Request::ListXattr { ino }
            | Request::Access { ino, .. }
            | Request::StatFs { ino }
            | Request::Open { ino, .. }
            | Request::Close { ino, .. }
            | Request::Read { ino, .. }
            | Request::Fsync { ino, .. }
            | Request::Seek { ino, .. }
            | Request::TestLock { ino, .. }
            | Request::Reclaim { ino, .. } => Some(ino),
            Request::Mutate(ref mutate) => {
                mutate.mutation.inode().or_else(|| mutate.mutation.directories().next())
            }
            Request::Attach { .. }
            | Request::Detach { .. }
            | Request::Renew { .. }
            | Request::ResumeSession { .. }
            | Request::OpensDeclared { .. }
            | Request::CachesDropped { .. }
            | Request::LeasesReturned { .. }
            | Request::ReferenceQueryReply { .. }
            | Request::SyncFs { .. }
            | Request::Admin(_)
            | Request::Lock { .. }
            | Request::EndWait { .. } => None,
        }
    }

    /// Whether the reply can name inodes that the client has not seen yet.
    pub fn finds(&self) -> bool {
        matches!(self, Request::Lookup { .. } | Request::GetAttr { .. } | Request::ReadDir { .. })
    }

    /// Bytes of file data in the request.
    pub fn data_bytes(&self) -> u64 {
        let Request::Mutate(mutate) = self else { return 0 };
        mutate.mutation.data().map_or(0, |data| data.len() as u64)
    }
}

/// A mutation request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mutate {
    pub tx: TxId,
    pub caller: Caller,
    pub mutation: ClientMutation,
    /// Set if the client repeats a mutation that a node acknowledged and may have lost in a power
    /// cut.
    pub replay: Option<Replay>,
}

/// A [`Mutation`] before the leader has chosen ids and holders.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClientMutation {
    Make {
        parent: Ino,
        name: Name,
        mode: NewMode,
        what: Make,
        open: bool,
    },
    Link {
        ino: Ino,
        parent: Ino,
        name: Name,
    },
    Unlink {
        parent: Ino,
        name: Name,
    },
    Rmdir {
        parent: Ino,
        name: Name,
    },
    Rename {
        from: Ino,
        name: Name,
        to: Ino,
        new_name: Name,
        mode: RenameMode,
    },
    SetAttr {
        ino: Ino,
        set: SetAttr,
    },
    SetXattr {
        ino: Ino,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    },
    RemoveXattr {
        ino: Ino,
        name: Bytes,
    },
    Write {
        ino: Ino,
        offset: u64,
        data: Bytes,
        drop_set_id: bool,
    },
    /// Writes at the end of the file as of its execution (O_APPEND).
    Append {
        ino: Ino,
        data: Bytes,
        drop_set_id: bool,
    },
    Fallocate {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        what: Allocation,
        keep_size: bool,
        drop_set_id: bool,
    },
    /// copy_file_range(2): at most [`MAX_IO_BYTES`], cut at the end of `from`. Over the wire the
    /// reply follows only after the bytes are durable: later writes to `from` make the copy
    /// unrepeatable, so clients never replay it.
    Copy {
        from: Ino,
        from_offset: u64,
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        drop_set_id: bool,
    },
    /// An unnamed regular file, opened by the session (O_TMPFILE).
    Tmpfile {
        parent: Ino,
        mode: NewMode,
    },
    SetAcl {
        ino: Ino,
        class: AclClass,
        value: Bytes,
        drop_set_gid: bool,
    },
}

impl ClientMutation {
    /// Name in statistics.
    pub fn name(&self) -> &'static str {
        match self {
            ClientMutation::Make { .. } => "make",
            ClientMutation::Link { .. } => "link",
            ClientMutation::Unlink { .. } => "unlink",
            ClientMutation::Rmdir { .. } => "rmdir",
            ClientMutation::Rename { .. } => "rename",
            ClientMutation::SetAttr { .. } => "set-attr",
            ClientMutation::SetXattr { .. } => "set-xattr",
            ClientMutation::RemoveXattr { .. } => "remove-xattr",
            ClientMutation::Write { .. } => "write",
            ClientMutation::Append { .. } => "append",
            ClientMutation::Fallocate { .. } => "fallocate",
            ClientMutation::Copy { .. } => "copy",
            ClientMutation::Tmpfile { .. } => "tmpfile",
            ClientMutation::SetAcl { .. } => "set-acl",
        }
    }

    /// Whether it opens the created inode like [`Request::Open`].
    pub fn opens(&self) -> bool {
        matches!(self, ClientMutation::Make { open: true, .. } | ClientMutation::Tmpfile { .. })
    }

    /// Whether it creates an inode or a name, so that its reply describes the inode.
    pub fn names(&self) -> bool {
        matches!(
            self,
            ClientMutation::Make { .. }
                | ClientMutation::Link { .. }
                | ClientMutation::Tmpfile { .. }
        )
    }

    /// The inode that it changes by id, not one that it finds or creates under a name.
    pub fn inode(&self) -> Option<Ino> {
        match *self {
            ClientMutation::Link { ino, .. }
            | ClientMutation::SetAttr { ino, .. }
            | ClientMutation::SetXattr { ino, .. }
            | ClientMutation::SetAcl { ino, .. }
            | ClientMutation::RemoveXattr { ino, .. }
            | ClientMutation::Write { ino, .. }
            | ClientMutation::Append { ino, .. }
            | ClientMutation::Fallocate { ino, .. }
            | ClientMutation::Copy { ino, .. } => Some(ino),
            ClientMutation::Make { .. }
            | ClientMutation::Tmpfile { .. }
            | ClientMutation::Unlink { .. }
            | ClientMutation::Rmdir { .. }
            | ClientMutation::Rename { .. } => None,
        }
    }

    /// The directories of the names that it changes.
    pub fn directories(&self) -> impl Iterator<Item = Ino> + use<> {
        let (first, second) = match *self {
            ClientMutation::Make { parent, .. }
            | ClientMutation::Tmpfile { parent, .. }
            | ClientMutation::Link { parent, .. }
            | ClientMutation::Unlink { parent, .. }
            | ClientMutation::Rmdir { parent, .. } => (Some(parent), None),
            ClientMutation::Rename { from, to, .. } => (Some(from), Some(to)),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// The names that it changes.
    pub fn changed_names(&self) -> impl Iterator<Item = (Ino, &Name)> {
        let (first, second) = match self {
            ClientMutation::Make { parent, name, .. }
            | ClientMutation::Link { parent, name, .. }
            | ClientMutation::Unlink { parent, name }
            | ClientMutation::Rmdir { parent, name } => (Some((*parent, name)), None),
            ClientMutation::Rename { from, name, to, new_name, .. } => {
                (Some((*from, name)), Some((*to, new_name)))
            }
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// File data in the mutation.
    pub fn data(&self) -> Option<&Bytes> {
        match self {
            ClientMutation::Write { data, .. } | ClientMutation::Append { data, .. } => Some(data),
            _ => None,
        }
    }

    pub fn data_mut(&mut self) -> Option<&mut Bytes> {
        match self {
            ClientMutation::Write { data, .. } | ClientMutation::Append { data, .. } => Some(data),
            _ => None,
        }
    }

    /// Whether the node may have to free cache space first, which can take long.
    pub fn brings_bytes(&self) -> bool {
        use ClientMutation::*;
        matches!(self, Write { .. } | Append { .. } | Fallocate { .. } | Copy { .. })
    }

    /// The file with changed bytes or length.
    pub fn rewrites(&self) -> Option<Ino> {
        match *self {
            ClientMutation::Write { ino, .. }
            | ClientMutation::Append { ino, .. }
            | ClientMutation::Copy { ino, .. }
            | ClientMutation::Fallocate { ino, .. }
            | ClientMutation::SetAttr { ino, set: SetAttr { size_bytes: Some(_), .. } } => {
                Some(ino)
            }
            _ => None,
        }
    }
}

/// The choices of the node for an acknowledged operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replay {
    pub stamp: Stamp,
    /// Id of the created inode.
    pub ino: Option<Ino>,
    /// Offset of an append.
    pub offset: Option<u64>,
    /// Number of bytes written; a short write has fewer than requested.
    pub len_bytes: Option<u64>,
}

/// A successful reply. [`RpcError`] is the failure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    Attached(Attached),
    Done,
    Attr(#[serde(with = "shown::attr")] Box<Attr>),
    Link(Bytes),
    Directory {
        #[serde(with = "shown::entries")]
        entries: Vec<(DirEntry, Attr)>,
        end: bool,
    },
    Xattr(Bytes),
    Xattrs(Vec<Bytes>),
    Stat(VolumeStat),
    Data(Bytes),
    /// With the mutations that the result depends on and that a power cut could take with it.
    Mutated(#[serde(with = "shown::mutated")] Box<Mutated>, Vec<Preceding>),
    /// All operations up to `durable` survive a power cut of the node.
    Forced {
        durable: LogIndex,
    },
    Admin(AdminReply),
    Offset(u64),
    Lock(LockAnswer),
    Conflict(Option<LockConflict>),
    Opened {
        /// Whether a client on the node's machine can get a passthrough grant for the file.
        passthrough: bool,
    },
    /// As [`Reply::Attr`], with leases of the attributes and of the name that was looked up.
    LeasedAttr(#[serde(with = "shown::attr")] Box<Attr>),
    /// There is no such name. With a lease of that.
    LeasedAbsent,
}

impl Reply {
    /// The attributes of a query's reply.
    pub fn attr(&self) -> Option<&Attr> {
        match self {
            Reply::Attr(attr) | Reply::LeasedAttr(attr) => Some(attr),
            _ => None,
        }
    }
}

/// A session and its terms.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    pub session: SessionId,
    /// Id of the volume, for the client's next attach.
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    /// Random id of the node's start. If it changed, replies that were not durable may be lost. The
    /// client then declares its opens, replays its mutations under their transaction ids (the
    /// session table detects executed ones), declares its opens again, and reclaims its locks.
    pub start: u64,
    /// The session is new: `previous` did not exist or has expired, and its references are gone.
    pub fresh: bool,
    /// Last index of the node's log at its start, before any write of this run. Replies of an
    /// earlier run with a later index are lost for certain, and clients can replay them even under
    /// a fresh session.
    pub recovered: LogIndex,
    /// No other client is attached: names, attributes and data can be cached without a term until
    /// [`Notice::DropCaches`].
    pub sole: bool,
    /// A sole client revalidates names and attributes after this time, since other writers can
    /// change the bucket (O-55); 0: only when the node requests it.
    pub cache_term_ms: u32,
    pub read_only: bool,
    pub session_term_ms: u32,
    /// Leases end this long after the node has last heard of the client; 0: it grants none.
    pub lease_term_ms: u32,
    /// `host:port` of the nodes that serve the volume, for later attaches; empty if there is one
    /// node.
    pub nodes: Vec<String>,
}

/// The reply to a mutation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mutated {
    /// Attributes of the inode created, linked, changed or written; for unlink, rmdir and rename of
    /// the inode that lost its last name, if any.
    pub attr: Option<Attr>,
    /// Log index of the mutation. It is later if bytes were written again after a restart; the
    /// client keeps the mutation until this index is durable.
    pub index: LogIndex,
    pub replay: Replay,
}

/// An earlier, not yet durable mutation of the same session. A client repeats it before the
/// answered one after a power cut, even if its own reply was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Preceding {
    pub tx: TxId,
    pub index: LogIndex,
    pub replay: Replay,
}

/// A message of a node without a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// All operations up to `durable` survive a power cut of the node.
    Durable { durable: LogIndex },
    /// Another client wants to attach. Drop every cached name, attribute and page, stop caching,
    /// and reply with [`Request::CachesDropped`].
    DropCaches,
    /// Another client or writer changed the inode's data or attributes; drop its cache.
    Invalidate { ino: Ino },
    /// The node stops: finish, then attach again.
    Leaving,
    /// A wait for a lock has ended: repeat the lock request.
    Lock { wait: u64 },
    /// The node wants to evict these inodes. Drop their caches, and reply with
    /// [`Request::ReferenceQueryReply`] with those still referenced.
    ReferenceQuery { query: u64, inos: Vec<Ino> },
    /// The name refers to another inode or to none, without a change by a client; drop its cache.
    Relinked { dir: Ino, name: Name },
    /// Another client is about to change the attributes of these inodes, and these names. Drop them
    /// from caches, and reply with [`Request::LeasesReturned`]. The change waits for it.
    Recall { recall: u64, inos: Vec<Ino>, names: Vec<(Ino, Name)> },
}

/// Requests of `ebb status` and the other administrative commands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AdminRequest {
    Status,
    /// Dirty files and directories, oldest first, after the position `after`.
    ListDirty {
        limit: u32,
        after: Option<DirtyPoint>,
    },
    /// Writes everything dirty at or below `path` to the bucket and waits for it.
    Flush {
        path: Vec<Name>,
    },
    /// Evicts clean cached bytes at or below `path`, in order of inode and chunk from `from` on,
    /// until at least `limit_bytes` are free or the batch is full.
    Evict {
        path: Vec<Name>,
        from: (Ino, u64),
        limit_bytes: u64,
    },
    /// Checks every invariant of namespace, extents and claims, and verifies every cached block
    /// against its checksum.
    Fsck,
    /// Location of the bytes of the inode at `path`, and the failures that they survive.
    Explain {
        path: Vec<Name>,
    },
    /// Makes the directory at `path` a quota root, changes its limits, or removes its quota. The
    /// reply follows only after the change and the counted usage are durable.
    SetQuota {
        path: Vec<Name>,
        limits: Option<QuotaLimits>,
    },
    /// The quotas that apply to `path`, innermost first.
    Quotas {
        path: Vec<Name>,
    },
    /// The quotas at and below `path` of loaded directories.
    ListQuotas {
        path: Vec<Name>,
    },
    /// Counters of the node since its start.
    Stats,
    /// The first names of inodes, at most [`MAX_PATHS`].
    Paths {
        inos: Vec<Ino>,
    },
    /// Fetches the absent bytes of a range of a file; at most [`CHUNK_BYTES`] per request.
    Warm {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
    },
    /// Compares one batch of the node's state with the bucket, from this position on.
    FsckBucket {
        from: FsckPoint,
    },
    /// Repairs a problem that a check has found; a problem that no longer exists is skipped.
    Repair {
        remedy: Remedy,
    },
    /// Resets the file at `path` to its object: later writes are lost (O-74).
    RollBack {
        path: Vec<Name>,
    },
    /// Entries of the trash that were at or below `path`, from this position on.
    ListTrash {
        path: Vec<Name>,
        from: TrashPoint,
    },
    /// Moves an inode from the trash to a free path in an existing directory. The reply follows
    /// only after the change is durable.
    Restore {
        ino: Ino,
        to: Vec<Name>,
    },
    /// Removes trash entries that were at or below `path` and were removed until `until`, from this
    /// position on.
    EmptyTrash {
        path: Vec<Name>,
        until: Time,
        from: TrashPoint,
    },
    /// Writes the state as a snapshot to the data directory, for a backup.
    Snapshot,
    /// Looks anew at what the bucket has of a directory and the names in it, or of a file, however
    /// lately that was done.
    Refresh {
        ino: Ino,
    },
    /// The nodes of the volume; none of a volume that is not replicated.
    ListNodes,
    /// Removes a node that neither leads nor has the only copy of a file's bytes.
    RemoveNode {
        node: NodeId,
    },
    /// Gives a vote to a node that has none.
    PromoteNode {
        node: NodeId,
    },
}

/// Limit of [`AdminRequest::Paths`]: as many paths of the maximum length (PATH_MAX) fit a frame.
pub const MAX_PATHS: usize = 128;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AdminReply {
    Status(Box<Status>),
    /// `left_out`: number of items after these; `next`: position after the last item, `None` at the
    /// end.
    Dirty {
        items: Vec<DirtyItem>,
        left_out: u64,
        next: Option<DirtyPoint>,
    },
    /// `renamed`: directories whose objects stay at the keys that they had before a rename.
    Flushed {
        files: u64,
        bytes: u64,
        renamed: u64,
        /// What the store refuses and is still to be done.
        refused: RefusedCounts,
    },
    /// `next`: position of the next batch; `None` at the end.
    Evicted {
        bytes: u64,
        next: Option<(Ino, u64)>,
    },
    Fsck(FsckReport),
    Explained(Box<Explained>),
    Quotas(Vec<QuotaStatus>),
    Stats(Box<NodeStats>),
    /// Paths from the root of the volume, in the requested order; `None` for an inode without a
    /// name or not loaded.
    Paths(Vec<Option<Bytes>>),
    /// Number of fetched bytes.
    Warmed {
        bytes: u64,
    },
    FsckBatch(Box<FsckBatch>),
    /// The problem no longer exists.
    Repaired,
    /// Former length of the file, bytes of it that the bucket did not have, and new length.
    RolledBack {
        before_bytes: u64,
        lost_bytes: u64,
        bytes: u64,
    },
    /// `next`: position of the next batch; `None` at the end.
    Trash {
        entries: Vec<TrashEntry>,
        next: Option<TrashPoint>,
    },
    Restored,
    Emptied {
        entries: u64,
        bytes: u64,
        next: Option<TrashPoint>,
    },
    /// A snapshot that includes the command `index` is in the data directory.
    Snapshot {
        cluster: ClusterId,
        incarnation: Incarnation,
        index: LogIndex,
        /// Number of directories without all their names in the snapshot: the bucket has these.
        unloaded: u64,
    },
    /// How many names were added, gone, or lead to another object.
    Refreshed {
        changed: u64,
    },
    Nodes(Vec<NodeState>),
}

/// A node of a replicated volume, as the leader knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeState {
    pub node: NodeId,
    /// `host:port`
    pub address: String,
    pub is_leader: bool,
    pub votes: bool,
    /// Files with bytes on this node alone.
    pub held_files: u64,
    /// Log entries that the leader has and this node is not known to have. `None` while the leader
    /// knows nothing of its log.
    pub behind: Option<u64>,
}

/// State of a node, for `ebb status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    pub volume: String,
    pub backing: String,
    pub version: String,
    pub incarnation: Incarnation,
    pub read_only: bool,
    pub sessions: Vec<SessionStatus>,
    pub inodes: u64,
    pub log_index: LogIndex,
    pub durable_index: LogIndex,
    /// Memory of the node for metadata.
    pub metadata_bytes: u64,
    pub metadata_limit_bytes: u64,
    pub cached_bytes: u64,
    pub cache_limit_bytes: u64,
    pub dirty_bytes: u64,
    pub dirty_files: u64,
    pub dirty_since: Option<Time>,
    /// Bytes of files under upload that the bucket holds already as parts; they count as dirty
    /// until the upload ends.
    pub sent_bytes: u64,
    pub pending_deletes: u64,
    /// Directories whose objects are at the keys that they had before a rename.
    pub renamed_dirs: u64,
    /// Rate limits of the buckets; `None` is no limit.
    pub download_bytes_per_sec: Option<u64>,
    pub upload_bytes_per_sec: Option<u64>,
    pub packs: PackStatus,
    pub scrub: ScrubStatus,
    /// Whether the data directory is encrypted.
    pub encrypted: bool,
    /// Current problems and the time since when each exists.
    pub troubles: Vec<Trouble>,
}

/// Pack files, which small files share.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PackStatus {
    pub packs: u64,
    /// Number of small files in packs, and their bytes.
    pub files: u64,
    pub used_bytes: u64,
}

/// Progress of the scrub, which compares cached blocks with their checksums, since the node's
/// start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Blocks read.
    pub blocks: u64,
    /// Damaged blocks that were dropped, since the bucket has them.
    pub dropped: u64,
    /// Damaged or unreadable blocks that exist nowhere else.
    pub damaged: u64,
    /// Time at which the last complete pass ended.
    pub round_ended: Option<Time>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    pub session: SessionId,
    pub client: String,
    pub open_files: u64,
    /// Leases of names and attributes.
    pub leases: u64,
    /// Recalls of leases that the client has not answered.
    pub recalls: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trouble {
    pub since: Time,
    pub what: String,
}

/// Position of a file or directory in the order of becoming dirty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirtyPoint {
    pub since: Time,
    pub is_dir: bool,
    pub ino: Ino,
}

/// A dirty file or directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirtyItem {
    /// From the root of the volume, not necessarily UTF-8. Empty for an inode without a name.
    pub path: Bytes,
    pub ino: Ino,
    pub since: Time,
    pub dirty_bytes: u64,
}

/// State of one inode in a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Explained {
    /// Its first name, from the root of the volume.
    pub path: Bytes,
    pub ino: Ino,
    pub kind: FileKind,
    pub size_bytes: u64,
    /// File in the node's data directory and the offset of byte 0 in it. `None` without cached
    /// bytes.
    pub store_file: Option<(String, u64)>,
    /// Bytes in the store file, and those of them that the bucket does not have.
    pub cached_bytes: u64,
    pub dirty_bytes: u64,
    /// The first runs of dirty bytes, as offset and length.
    pub dirty_runs: Vec<(u64, u64)>,
    /// Damaged runs among them: these bytes exist nowhere.
    pub damaged_runs: Vec<(u64, u64)>,
    /// Time since when the bucket lacks bytes of the file, or holds them at another key.
    pub dirty_since: Option<Time>,
    /// Bytes that the bucket has received in the current upload.
    pub sent_bytes: Option<u64>,
    /// Time since when the page of its directory, which records its names and attributes, is dirty.
    pub page_since: Option<Time>,
    /// The first of the pages of its parent directories; for a directory its own page follows.
    pub pages: Vec<ExplainedPage>,
    /// In the node's data directory: names, attributes and extents.
    pub log: String,
    /// Whether its bytes are durable on the node's disk.
    pub forced: bool,
    /// Error of the last failed sync.
    pub force_failed: Option<String>,
    /// Operations on the volume that a power cut of the node would lose.
    pub unforced_operations: u64,
    /// The bucket of its path. `None` for a volume without one.
    pub bucket: Option<String>,
    pub object: Option<ExplainedObject>,
    /// What the keys of a directory's objects begin with, where its path says otherwise.
    pub prefix: Option<String>,
    /// Keys in a directory that no name can be given to: how many, and the first of them.
    pub not_shown: (u64, Vec<String>),
    /// Reason for a missing object, if recorded.
    pub missing: Option<MissingObject>,
    /// A client has it open: its kernel can hold dirty data that the node has not received.
    pub open: bool,
    /// The innermost quota that counts it.
    pub quota: Option<QuotaStatus>,
    /// The nearest inode on its path with a pin, itself included, from the root of the volume.
    pub pinned_by: Option<Bytes>,
    /// Writable mappings exist, or existed since the node's last scan: the node detects dirty
    /// blocks at intervals.
    pub exposed: bool,
    /// Seconds that the trash keeps the inode after its removal, and the directory that sets it,
    /// from the root of the volume.
    pub kept: Option<(Bytes, u64)>,
    /// Why the store refuses requests about it, in the store's words.
    pub refused: Vec<String>,
}

/// Work of a flush that the store refuses.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RefusedCounts {
    /// Files and pages that it does not take.
    pub writes: u64,
    pub deletes: u64,
    /// Why, in the store's words: the first of them.
    pub reasons: Vec<String>,
}

/// Limits and usage of one quota.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// Path of the quota root, from the root of the volume.
    pub path: Bytes,
    pub ino: Ino,
    pub limits: QuotaLimits,
    pub used: Usage,
    /// Whether the whole subtree is loaded. Until then the node loads more of it from the bucket
    /// and the usage grows.
    pub counted: bool,
}

/// State of one directory page in the bucket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainedPage {
    pub key: String,
    /// Whether the bucket can have the page.
    pub there: bool,
    /// Tag of the page that was last written or read.
    pub etag: Option<String>,
    /// Time since when the page is dirty.
    pub since: Option<Time>,
}

/// Reason for a missing object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MissingObject {
    /// Another writer removed it.
    Removed,
    /// A node was lost before it wrote the object.
    Lost,
}

/// The object that holds a file's clean bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainedObject {
    pub key: String,
    pub etag: String,
    /// Length of the object.
    pub len_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests and replies move from layer to layer. Up to this size a move needs no call of
    /// memcpy; larger fields are boxed.
    #[test]
    fn requests_and_replies_are_small() {
        const MOVED_AT_ONCE_BYTES: usize = 128;
        let bytes = (size_of::<Request>(), size_of::<Result<Reply, RpcError>>());
        assert!(bytes.0 <= MOVED_AT_ONCE_BYTES && bytes.1 <= MOVED_AT_ONCE_BYTES, "{bytes:?}");
    }
}
