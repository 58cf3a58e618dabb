//! Requests of clients and their replies: the same types in one process and over the
//! wire (`docs/protocol/rpc.md`).

use crate::*;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// First request of a connection.
    Attach {
        volume: String,
        client: String,
        previous: Option<SessionId>,
        read_only: bool,
        /// The volume that is meant, for a name and an address say less: those that another
        /// node had may be its own by now. `None` takes what is there.
        cluster: Option<ClusterId>,
    },
    Detach {
        session: SessionId,
    },
    /// Renews the session.
    Renew {
        session: SessionId,
    },
    /// Ends the client's right to cache after it has dropped what it had (see
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
    /// Of the volume, or of the quota root that the inode is at or below.
    StatFs {
        ino: Ino,
    },

    /// Declares that the session has the inode open, so that it outlives its last name.
    Open {
        session: SessionId,
        ino: Ino,
    },
    /// Takes back as many opens; more than there are take all.
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
    /// Forces the inode's data and every operation of the session.
    Fsync {
        session: SessionId,
        ino: Ino,
    },
    /// Forces everything.
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

    /// A lock is asked for or given up, once per `tx`, whose slots are a table of their own
    /// ([`LOCK_SLOTS`]). With `wait` it is waited for where it cannot be had at once; asking
    /// again with the same wait asks how that stands.
    Lock {
        tx: TxId,
        ask: LockAsk,
        wait: Option<LockWait>,
    },
    /// Ends a wait, if there is such a one.
    EndWait {
        session: SessionId,
        wait: u64,
    },
    /// F_GETLK: the first lock in the way of one that is not taken.
    TestLock {
        session: SessionId,
        ino: Ino,
        owner: LockOwner,
        lock: RangeLock,
    },
    /// What an owner held when a node started anew, which forgets locks. Only of a session that
    /// is awaited; of at most [`LOCKS_RECLAIMED_AT_ONCE`] pieces.
    Reclaim {
        session: SessionId,
        ino: Ino,
        owner: LockOwner,
        pid: u32,
        locks: Vec<RangeLock>,
    },
    /// The client has told all that it has open. Of everything else the close was under way when
    /// the node, or the process before the client, died.
    OpensDeclared {
        session: SessionId,
    },
    /// The answer to [`Notice::ReferenceQuery`]: of the inodes asked for, these are held as before.
    ReferenceQueryReply {
        session: SessionId,
        query: u64,
        referenced: Vec<Ino>,
    },
    /// Another process has the session, for the one that had it has died. What that waited for is
    /// over, and of what it had open only that counts which is opened again before
    /// [`Request::OpensDeclared`].
    ResumeSession {
        session: SessionId,
    },
}

impl Request {
    /// The session that it is made for. An attach only begins one.
    pub fn session(&self) -> Option<SessionId> {
        match *self {
            Request::Detach { session }
            | Request::Renew { session }
            | Request::ResumeSession { session }
            | Request::OpensDeclared { session }
            | Request::CachesDropped { session }
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

    /// By which it is counted.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Attach { .. } => "attach",
            Request::Detach { .. } => "detach",
            Request::Renew { .. } => "renew",
            Request::ResumeSession { .. } => "resume-session",
            Request::OpensDeclared { .. } => "opens-declared",
            Request::CachesDropped { .. } => "caches-dropped",
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

    /// The inode that it is about, or the directory whose names.
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
            | Request::ReferenceQueryReply { .. }
            | Request::SyncFs { .. }
            | Request::Admin(_)
            | Request::Lock { .. }
            | Request::EndWait { .. } => None,
        }
    }

    /// Its answer tells of inodes that the client need not have known.
    pub fn finds(&self) -> bool {
        matches!(self, Request::Lookup { .. } | Request::GetAttr { .. } | Request::ReadDir { .. })
    }

    /// Bytes of files that it carries.
    pub fn data_bytes(&self) -> u64 {
        let Request::Mutate(mutate) = self else { return 0 };
        mutate.mutation.data().map_or(0, |data| data.len() as u64)
    }
}

/// A mutation as it is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mutate {
    pub tx: TxId,
    pub caller: Caller,
    pub mutation: ClientMutation,
    /// The client sends again what a node had answered and may have lost in a power cut.
    pub replay: Option<Replay>,
}

/// What [`Mutation`] is before the leader has chosen ids and holders.
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
    /// Writes at the end of the file, wherever that is by then (O_APPEND).
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
    /// copy_file_range(2): at most [`MAX_IO_BYTES`], and no more than `from` has. The bytes
    /// survive a power cut when it is answered over the wire, for what was copied cannot be
    /// told from what was written to `from` since, and so is never asked for again.
    Copy {
        from: Ino,
        from_offset: u64,
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        drop_set_id: bool,
    },
    /// A regular file without a name, open by the session (O_TMPFILE).
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
    /// By which it is counted.
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

    /// What it makes is open as by [`Request::Open`].
    pub fn opens(&self) -> bool {
        matches!(self, ClientMutation::Make { open: true, .. } | ClientMutation::Tmpfile { .. })
    }

    /// It makes an inode, or a name of one, and its answer tells of it.
    pub fn names(&self) -> bool {
        matches!(
            self,
            ClientMutation::Make { .. }
                | ClientMutation::Link { .. }
                | ClientMutation::Tmpfile { .. }
        )
    }

    /// The inode that it changes by its id: not one that it finds or makes under a name.
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

    /// The directories whose names it is about.
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

    /// Bytes of a file that it carries.
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

    /// The node may have to make room for it, which can take long.
    pub fn brings_bytes(&self) -> bool {
        use ClientMutation::*;
        matches!(self, Write { .. } | Append { .. } | Fallocate { .. } | Copy { .. })
    }

    /// The file whose bytes or length it changes.
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

/// What the node had chosen for an operation that it answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replay {
    pub stamp: Stamp,
    /// Of the inode made.
    pub ino: Option<Ino>,
    /// Where the bytes of an append went.
    pub offset: Option<u64>,
    /// How many bytes were written, which can be fewer than asked.
    pub len_bytes: Option<u64>,
}

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
    /// With what it shows, and a power cut can take with it.
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
        /// A client on the node's machine may be lent its store file.
        lends: bool,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    pub session: SessionId,
    /// Of the volume: what the client comes back with.
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    /// Drawn at random when the node started. If it is not the one that the client knows,
    /// everything that it was answered and that was not durable may be lost, and is to be
    /// replayed under its transaction ids: the session table tells what is lost. What the
    /// node was told of opens is to be told again, before replay and after it, and locks are to be
    /// reclaimed.
    pub start: u64,
    /// The session is a new one: `previous` was unknown or has expired, its holds are gone.
    pub fresh: bool,
    /// Last index of the node's log when it started, before it wrote anything. What an
    /// earlier start answered with a later index is lost for certain, and may be replayed
    /// even under a fresh session.
    pub recovered: LogIndex,
    /// No other client is attached: names, attributes and pages may be cached without term
    /// until [`Notice::DropCaches`].
    pub sole: bool,
    /// Who is alone asks again for names and attributes after this time, since others may
    /// change the bucket (O-55); 0: not before it is told to.
    pub cache_term_ms: u32,
    pub read_only: bool,
    pub session_term_ms: u32,
}

/// The answer to a mutation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mutated {
    /// Of the inode made, linked, changed or written; of unlink, rmdir and rename that of what is
    /// no more, if anything is.
    pub attr: Option<Attr>,
    /// Where the log has it; a later one where bytes had to be repeated after a restart, which
    /// the client keeps until that one is durable.
    pub index: LogIndex,
    pub replay: Replay,
}

/// A mutation of the same session that was made before the one that is answered, and is not
/// durable. A client that has no answer to it yet repeats it all the same before the answered one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Preceding {
    pub tx: TxId,
    pub index: LogIndex,
    pub replay: Replay,
}

/// What a node tells a client unasked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// All operations up to `durable` survive a power cut of the node.
    Durable { durable: LogIndex },
    /// Another client wants to attach. Drop every cached name, attribute and page, cache
    /// nothing from now on, and answer with [`Request::CachesDropped`].
    DropCaches,
    /// The content or attributes of the inode changed by another hand; drop what is cached.
    Invalidate { ino: Ino },
    /// The node stops serving: finish, then attach again.
    Leaving,
    /// A wait for a lock has come to an end: ask again how it stands.
    Lock { wait: u64 },
    /// The node wants to forget these inodes. Give them up, and say with
    /// [`Request::ReferenceQueryReply`] which are held all the same.
    ReferenceQuery { query: u64, inos: Vec<Ino> },
    /// By no client's hand the name refers to something else now, or to nothing; drop what is
    /// cached of it.
    Relinked { dir: Ino, name: Name },
}

/// What `ebb status` and its siblings ask.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AdminRequest {
    Status,
    /// Dirty files and directories, oldest first, from behind this one on.
    ListDirty {
        limit: u32,
        after: Option<DirtyPoint>,
    },
    /// Writes everything dirty at or below `path` to the bucket and waits for it.
    Flush {
        path: Vec<Name>,
    },
    /// Drops clean cached bytes at or below `path`, in the order of files and their chunks: from
    /// this chunk of this file on, until at least `limit_bytes` are free or much has been passed.
    Evict {
        path: Vec<Name>,
        from: (Ino, u64),
        limit_bytes: u64,
    },
    /// Checks every invariant of namespace, extents and claims, and reads every cached
    /// block against its checksum.
    Fsck,
    /// Where the bytes of the inode at `path` are, and what survives which failure.
    Explain {
        path: Vec<Name>,
    },
    /// Makes the directory at `path` a quota root, gives it other limits, or ends its quota. It
    /// survives a power cut when it is answered, with the quota as it is then.
    SetQuota {
        path: Vec<Name>,
        limits: Option<QuotaLimits>,
    },
    /// The quotas that hold for `path`, the innermost first.
    Quotas {
        path: Vec<Name>,
    },
    /// The quotas at and below `path`, of directories that have been looked up.
    ListQuotas {
        path: Vec<Name>,
    },
    /// What the node has counted since it started.
    Stats,
    /// The first names of inodes, at most [`MAX_PATHS`].
    Paths {
        inos: Vec<Ino>,
    },
    /// Brings in what of a range of a file is only in the bucket. Of more than [`CHUNK_BYTES`]
    /// only the first are.
    Warm {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
    },
    /// Compares a part of what the node knows with what the bucket has, from here on.
    FsckBucket {
        from: FsckPoint,
    },
    /// Puts right what a check has found. What is no longer wrong is left as it is.
    Repair {
        remedy: Remedy,
    },
    /// Makes the file at `path` what its object is: what was written to it since is lost (O-74).
    RollBack {
        path: Vec<Name>,
    },
    /// What is in the trash that was at or below `path`, from here on.
    ListTrash {
        path: Vec<Name>,
        from: TrashPoint,
    },
    /// Takes an inode out of the trash, to a path at which there is nothing, in a directory. It
    /// survives a power cut when it is answered.
    Restore {
        ino: Ino,
        to: Vec<Name>,
    },
    /// Removes what is in the trash that was at or below `path` and was removed up to `until`, from
    /// here on.
    EmptyTrash {
        path: Vec<Name>,
        until: Time,
        from: TrashPoint,
    },
    /// Writes the state as a snapshot, in the data directory, for a backup.
    Snapshot,
}

/// Of [`AdminRequest::Paths`]: so many of the longest paths that programs can use fit a frame.
pub const MAX_PATHS: usize = 128;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AdminReply {
    Status(Box<Status>),
    /// `left_out`: how many there are behind these; `next`: behind which they are, `None` at the
    /// end.
    Dirty {
        items: Vec<DirtyItem>,
        left_out: u64,
        next: Option<DirtyPoint>,
    },
    Flushed {
        files: u64,
        bytes: u64,
    },
    /// `next`: where to go on; `None` at the end.
    Evicted {
        bytes: u64,
        next: Option<(Ino, u64)>,
    },
    Fsck(FsckReport),
    Explained(Box<Explained>),
    Quotas(Vec<QuotaStatus>),
    Stats(Box<NodeStats>),
    /// From the root of the volume, in the order asked; `None` of what has no name or is not known.
    Paths(Vec<Option<Bytes>>),
    /// How many bytes came in for that.
    Warmed {
        bytes: u64,
    },
    FsckBatch(Box<FsckBatch>),
    /// Nothing is left of the problem.
    Repaired,
    /// Bytes that the file had, those of them that the bucket did not have, and bytes that it has
    /// now.
    RolledBack {
        before_bytes: u64,
        lost_bytes: u64,
        bytes: u64,
    },
    /// `next`: where to go on; `None` at the end.
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
    /// What there is now a snapshot of, up to this command or a later one.
    Snapshot {
        cluster: ClusterId,
        incarnation: Incarnation,
        index: LogIndex,
        /// Directories that are not in it with all their names: the bucket has them.
        unloaded: u64,
    },
}

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
    /// Of the node's memory.
    pub metadata_bytes: u64,
    pub metadata_limit_bytes: u64,
    pub cached_bytes: u64,
    pub cache_limit_bytes: u64,
    pub dirty_bytes: u64,
    pub dirty_files: u64,
    pub dirty_since: Option<Time>,
    /// The bucket has these bytes in parts of files that are being sent; they count as dirty until
    /// all is there.
    pub sent_bytes: u64,
    pub pending_deletes: u64,
    /// How fast the buckets may be used; `None`: as fast as it goes.
    pub download_bytes_per_sec: Option<u64>,
    pub upload_bytes_per_sec: Option<u64>,
    pub packs: PackStatus,
    pub scrub: ScrubStatus,
    /// What is on the node's disk.
    pub encrypted: bool,
    /// What is wrong now, in words, with the time since when.
    pub troubles: Vec<Trouble>,
}

/// The files that small files share.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PackStatus {
    pub packs: u64,
    /// Small files in them, and the bytes that these take.
    pub files: u64,
    pub used_bytes: u64,
}

/// What comparing cached blocks with their checksums has come to, since the node started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Read.
    pub blocks: u64,
    /// Damaged, and dropped because the bucket has them.
    pub dropped: u64,
    /// Damaged or unreadable, and nowhere else.
    pub damaged: u64,
    /// When everything had last been read.
    pub round_ended: Option<Time>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    pub session: SessionId,
    pub client: String,
    pub open_files: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trouble {
    pub since: Time,
    pub what: String,
}

/// One file or directory in the order in which they became dirty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirtyPoint {
    pub since: Time,
    pub is_dir: bool,
    pub ino: Ino,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirtyItem {
    /// From the root of the volume, not necessarily UTF-8. Empty for an inode without a name.
    pub path: Bytes,
    pub ino: Ino,
    pub since: Time,
    pub dirty_bytes: u64,
}

/// What a node knows of one inode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Explained {
    /// Its first name, from the root of the volume.
    pub path: Bytes,
    pub ino: Ino,
    pub kind: FileKind,
    pub size_bytes: u64,
    /// In the node's data directory, and where in it the file begins. `None` if no bytes of it are
    /// there.
    pub store_file: Option<(String, u64)>,
    /// What the store file has, and what of it the bucket does not have.
    pub cached_bytes: u64,
    pub dirty_bytes: u64,
    /// Where the dirty bytes are, as offset and length: the first runs of them.
    pub dirty_runs: Vec<(u64, u64)>,
    /// Those of them that are known to be damaged, and so nowhere.
    pub damaged_runs: Vec<(u64, u64)>,
    /// Since when the bucket lacks bytes of it, or has them at another place.
    pub dirty_since: Option<Time>,
    /// How many bytes of it the bucket has taken by now, while it is being sent.
    pub sent_bytes: Option<u64>,
    /// Since when the page of its directory, which records its names and attributes in the
    /// bucket, is to be written.
    pub page_since: Option<Time>,
    /// The pages of its directories, and, of a directory, its own behind them: the first of them.
    pub pages: Vec<ExplainedPage>,
    /// In the node's data directory: names, attributes, and which bytes are where.
    pub log: String,
    /// Its bytes are forced to the node's disk.
    pub forced: bool,
    /// Why they could not be, the last time.
    pub force_failed: Option<String>,
    /// Operations on the volume that a power cut of the node may still take.
    pub unforced_operations: u64,
    /// The bucket that its path leads to. `None` for a volume without one.
    pub bucket: Option<String>,
    pub object: Option<ExplainedObject>,
    /// Why there is no such object, as far as is known.
    pub missing: Option<MissingObject>,
    /// Somebody has it open: what a kernel has of it and has not written back yet is not known
    /// here.
    pub open: bool,
    /// The innermost that it counts in.
    pub quota: Option<QuotaStatus>,
    /// The nearest that keeps it in the cache, itself or a directory that it is below, from the
    /// root of the volume.
    pub pinned_by: Option<Bytes>,
    /// Somebody has it in a way to store into it past the node, or had and the node has not looked
    /// since: what of it is dirty is found at intervals.
    pub exposed: bool,
    /// For how many seconds it is kept in the trash once it is removed, and the directory that says
    /// so, from the root of the volume.
    pub kept: Option<(Bytes, u64)>,
}

/// How it stands with one quota.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// Of its root, from the root of the volume.
    pub path: Bytes,
    pub ino: Ino,
    pub limits: QuotaLimits,
    pub used: Usage,
    /// Everything below is known. Until then more is being loaded from the bucket, and counted
    /// as it comes.
    pub counted: bool,
}

/// What the bucket has of names and attributes in one directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainedPage {
    pub key: String,
    /// The bucket may have it.
    pub there: bool,
    /// Of the one that was written last, or read.
    pub etag: Option<String>,
    /// Since when it is to be written.
    pub since: Option<Time>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MissingObject {
    /// Others have removed it.
    Removed,
    /// A node was lost with all that it should have.
    Lost,
}

/// The object that has a file's clean bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainedObject {
    pub key: String,
    pub etag: String,
    /// Of the object.
    pub len_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are moved from layer to layer. Up to so many bytes that needs no call of a function;
    /// what is larger is in a box.
    #[test]
    fn requests_and_replies_are_small() {
        const MOVED_AT_ONCE_BYTES: usize = 128;
        let bytes = (size_of::<Request>(), size_of::<Result<Reply, RpcError>>());
        assert!(bytes.0 <= MOVED_AT_ONCE_BYTES && bytes.1 <= MOVED_AT_ONCE_BYTES, "{bytes:?}");
    }
}
