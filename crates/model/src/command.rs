//! Commands: the records of a partition's log.
//!
//! Laws:
//! - The same commands applied to the same state yield the same state and the same replies, on
//!   every replica and after every restart. So a command carries all external input: time,
//!   identity, choices of the leader.
//! - Variant numbers and fields never change (`docs/format/log.md` numbers them); new variants are
//!   appended.
//! - A command that does not fit the state has no effect; for a refused mutation the session table
//!   records the refusal.
//!
//! The paper's prototype has 72 variants (O-66).

use crate::{
    AclClass, Allocation, BLOCK_BYTES, Caller, Cookie, FileKind, Ino, LogIndex, Name, NodeId,
    PackRange, Position, QuotaLimits, RenameMode, Replay, SessionId, SetAttr, Time, TrashTarget,
    TxId, Version, XattrMode,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One kind of transaction for all changes: mutations of clients, cached bytes, and the state of
/// the bucket, and the list of nodes (O-64).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// A client attaches. `replaces` is its session from before a restart, which ends.
    SessionOpen { session: SessionId, client: String, replaces: Option<SessionId> },
    /// A client detaches or expires: its open references end, and orphan inodes without a reference
    /// are removed.
    SessionClose { session: SessionId },
    /// One mutation by a client, executed exactly once per `tx` (O-63).
    Client { tx: TxId, caller: Caller, stamp: Stamp, mutation: Mutation },
    /// `session` has closed its last descriptor of an unlinked inode.
    Release { session: SessionId, ino: Ino },
    /// Changes of store files.
    Extent(LocalCommand),
    /// Changes of the bucket.
    Backing(BackingCommand),
    /// Like `Client`, for a mutation that was acknowledged before a power cut lost it. Quotas do
    /// not limit it again: it was within them at the first execution. The space for it can come
    /// from a lost change that no client repeats.
    Repeated { tx: TxId, caller: Caller, stamp: Stamp, mutation: Mutation },
    /// Makes a directory a quota root, changes its limits, or removes them. Ignored if the
    /// directory cannot be a quota root.
    Quota { dir: Ino, limits: Option<QuotaLimits>, stamp: Stamp },
    /// Like `Found`, in logs of older versions: of as many blocks as there are `sums`.
    Stored { ino: Ino, first: u64, sums: Vec<u32>, stamp: Stamp },
    /// Like `Client` or `Repeated`, for an unlink, rmdir or rename: an inode that loses its last
    /// name moves to the trash.
    Discard {
        tx: TxId,
        caller: Caller,
        stamp: Stamp,
        mutation: Mutation,
        trash: TrashTarget,
        repeated: bool,
    },
    /// Moves an inode from the trash to `name` in the directory `to`. Ignored if it cannot be
    /// moved.
    Restore { ino: Ino, to: Ino, name: Name, stamp: Stamp },
    /// Removes an inode from the trash; it is freed after the last of `holders` closes it. Ignored
    /// if it is not in the trash.
    Purge { ino: Ino, holders: Vec<SessionId>, stamp: Stamp },
    /// The volume's head reserves the counters of inode ids below `upto`, in every slot.
    ReserveIds { upto: u32 },
    /// `count` blocks of a file with writable mappings were found changed, from block `first` on.
    /// Ignored if the file is gone.
    Found { ino: Ino, first: u64, count: u64, stamp: Stamp },
    /// A client has brought back bytes of its write that a power cut had taken. It changes nothing;
    /// a force that covers it covers the bytes.
    BytesRepeated { ino: Ino },
    /// Changes of the nodes of the volume.
    Nodes(NodesCommand),
}

/// A change of the nodes of a volume, or of what they have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodesCommand {
    /// The node serves, or listens elsewhere now: `address` is its `host:port`.
    Serves { node: NodeId, address: String },
    /// The node serves no longer. Ignored while it has bytes that no other has.
    Removed { node: NodeId },
    /// The node leads from here on: bytes written from now on are on its disk.
    Leads { node: NodeId },
    /// The node that leads has got all dirty bytes of the file, and forced them.
    Brought { ino: Ino },
    /// All bytes that commands up to `upto` have written survive a power cut of their holders.
    Forced { upto: LogIndex },
}

/// Time and version of a mutation. The leader chooses both; replay keeps them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stamp {
    pub time: Time,
    pub version: Version,
}

/// A change that a client requests. The leader chooses the inode ids of new inodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mutation {
    /// create(2), mkdir(2), mknod(2) and symlink(2), which differ only in `what`. The umask is
    /// already applied to `mode` where it has an effect.
    Make {
        parent: Ino,
        name: Name,
        ino: Ino,
        mode: u16,
        what: Make,
    },
    Link {
        ino: Ino,
        parent: Ino,
        name: Name,
    },
    /// `holders`: sessions that have the inode open, chosen by the leader.
    Unlink {
        parent: Ino,
        name: Name,
        holders: Vec<SessionId>,
    },
    Rmdir {
        parent: Ino,
        name: Name,
        holders: Vec<SessionId>,
    },
    /// `holders`: sessions that have the replaced inode open.
    Rename {
        from: Ino,
        name: Name,
        to: Ino,
        new_name: Name,
        mode: RenameMode,
        holders: Vec<SessionId>,
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
    /// Like `Write`, in logs of older versions.
    WriteWhole {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        sums: Vec<u32>,
        drop_set_id: bool,
    },
    /// `edges`: partly zeroed blocks, which already hold their new bytes in the store file. Fully
    /// zeroed blocks become holes.
    Fallocate {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        what: Allocation,
        keep_size: bool,
        edges: Vec<u64>,
        drop_set_id: bool,
    },
    /// An unnamed regular file that `holder` has open and can link to a name.
    Tmpfile {
        parent: Ino,
        ino: Ino,
        mode: u16,
        holder: SessionId,
    },
    /// `value` in the format of the system calls; an empty value removes the ACL. `drop_set_gid`:
    /// an access ACL clears set-gid, since the caller is neither privileged nor in the file's
    /// group.
    SetAcl {
        ino: Ino,
        class: AclClass,
        value: Bytes,
        drop_set_gid: bool,
    },
    /// Like `Write`, in logs of older versions.
    WriteSummed {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        sums: Vec<Option<u32>>,
        drop_set_id: bool,
    },
    /// Like `Write`, in logs of older versions.
    WritePacked {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        sums: Vec<Option<u32>>,
        drop_set_id: bool,
        range: PackRange,
    },
    /// Bytes that are on a node's disk already: the log records only their range (O-67). The
    /// node's [`LocalCommand::Staged`] precedes it.
    Write {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        drop_set_id: bool,
    },
    /// A `SetAttr` that truncates the file within a block of which a node has the bytes: the block
    /// becomes dirty. Without such a node it stays clean, and its bytes are those of the object.
    Truncate {
        ino: Ino,
        set: SetAttr,
    },
}

impl Mutation {
    /// The bytes that it writes: for a cut, zeros up to the end of its block.
    pub fn written_bytes(&self) -> Option<(Ino, Range<u64>)> {
        match self {
            Mutation::SetAttr { ino, set: SetAttr { size_bytes: Some(size), .. } }
            | Mutation::Truncate { ino, set: SetAttr { size_bytes: Some(size), .. } } => {
                Some((*ino, *size..size.next_multiple_of(BLOCK_BYTES)))
            }
            Mutation::Fallocate { ino, offset, len_bytes, what: Allocation::Zero, .. } => {
                Some((*ino, *offset..offset.saturating_add(*len_bytes)))
            }
            _ => self.span().map(|(ino, offset, len_bytes)| (ino, offset..offset + len_bytes)),
        }
    }

    /// File, offset and length of a write.
    pub fn span(&self) -> Option<(Ino, u64, u64)> {
        match *self {
            Mutation::Write { ino, offset, len_bytes, .. }
            | Mutation::WriteWhole { ino, offset, len_bytes, .. }
            | Mutation::WriteSummed { ino, offset, len_bytes, .. }
            | Mutation::WritePacked { ino, offset, len_bytes, .. } => {
                Some((ino, offset, len_bytes))
            }
            _ => None,
        }
    }

    /// The leader's choices. A client keeps them to repeat the same mutation.
    pub fn replay(&self, stamp: Stamp) -> Replay {
        let ino = match *self {
            Mutation::Make { ino, .. } | Mutation::Tmpfile { ino, .. } => Some(ino),
            Mutation::Rename { mode: RenameMode::Whiteout { ino, .. }, .. } => ino,
            _ => None,
        };
        let (offset, len_bytes) =
            self.span().map(|(_, offset, len_bytes)| (offset, len_bytes)).unzip();
        Replay { stamp, ino, offset, len_bytes }
    }
}

/// The kind of a new inode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Make {
    Regular,
    Directory,
    Symlink {
        target: Bytes,
    },
    /// FIFO, socket or device; `rdev` is 0 except for devices.
    Special {
        kind: FileKind,
        rdev: u32,
    },
}

impl Make {
    pub fn kind(&self) -> FileKind {
        match self {
            Make::Regular => FileKind::Regular,
            Make::Directory => FileKind::Directory,
            Make::Symlink { .. } => FileKind::Symlink,
            Make::Special { kind, .. } => *kind,
        }
    }
}

/// The bytes that a sync makes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SyncScope {
    All,
    File(Ino),
    /// Dirty bytes of all files, which exist nowhere else, without clean bytes fetched from the
    /// bucket.
    Written,
}

impl SyncScope {
    /// The file, if the scope is one file.
    pub fn only(self) -> Option<Ino> {
        match self {
            SyncScope::File(ino) => Some(ino),
            SyncScope::All | SyncScope::Written => None,
        }
    }
}

/// Facts about store files.
///
/// Law: a command is logged after the bytes that it describes were written, not after they were
/// forced. After a power cut recovery finds the lost bytes as those that no later `Synced` covers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LocalCommand {
    /// Blocks `first..first + sums.len()` hold the body of the object `etag`.
    Present { ino: Ino, etag: String, first: u64, sums: Vec<u32> },
    /// Clean blocks that are about to be punched. The command is forced before the punch.
    Absent { ino: Ino, first: u64, count: u64 },
    /// The bytes that records up to the position `upto` describe are durable.
    Synced { scope: SyncScope, upto: Position },
    /// Checksums of complete blocks that had none, computed from their bytes at `version`.
    Summed { ino: Ino, version: Version, sums: Vec<(u64, u32)> },
    /// After a power cut: these blocks were written and not forced, so their bytes are undefined.
    /// Clean blocks become absent, dirty ones lose their checksum.
    Unsynced { ino: Ino, first: u64, count: u64 },
    /// The file's bytes are in this range of a pack file; `None`: in a store file of its own. All
    /// cached blocks were copied there first.
    Packed { ino: Ino, range: Option<PackRange> },
    /// The file has writable mappings, or has them no longer: writes to its store file can bypass
    /// the node. Set: forced before the first mapping exists, with all earlier holes made and
    /// forced. Cleared: logged after the last mapping is gone and all bytes were forced and
    /// compared.
    Exposed { ino: Ino, exposed: bool },
    /// The blocks from `first` on are written at `version`, into the file's pack range `range` if
    /// it gets one now. `sums`: a checksum for each, `None` for one that is not completely here. It
    /// belongs to the partition's command directly behind it in the log: without that, or if that
    /// is refused, it has no effect, and the bytes of the blocks are undefined.
    Staged {
        ino: Ino,
        version: Version,
        first: u64,
        sums: Vec<Option<u32>>,
        range: Option<PackRange>,
    },
}

/// Facts about the bucket. Keys are relative to the volume's prefix.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BackingCommand {
    /// One batch of the names that the bucket holds for a directory. Ignored unless the directory's
    /// load epoch is `epoch`. `hidden`: segments hidden by the directory's page; `owner`: user and
    /// group of names without a record.
    Install {
        dir: Ino,
        epoch: u64,
        entries: Vec<Installed>,
        hidden: Vec<String>,
        owner: (u32, u32),
        progress: LoadProgress,
        stamp: Stamp,
    },
    /// An upload of `ino` to `key` begins; `upload` is set for a multipart upload (O-75 step 3).
    UploadBegun { ino: Ino, key: String, upload: Option<String> },
    /// The upload ended without an object: it was aborted, or no byte was sent.
    UploadAborted { ino: Ino },
    /// `key` holds the bytes of `ino` at `version`. Blocks changed after that version stay dirty.
    Uploaded { ino: Ino, key: String, etag: String, len_bytes: u64, version: Version },
    /// The object of `ino` was copied to `key`, which replaces its former key.
    Moved { ino: Ino, key: String, etag: String },
    /// `key` was deleted and its claim ends.
    Deleted { key: String },
    /// The directory's page in `.ebb/` matches the namespace at `version`.
    PageWritten { dir: Ino, version: Version, etag: String },
    /// The directory drops its redirect: its children move one by one.
    Unredirect { dir: Ino },
    /// The bucket holds another object than the one recorded for `ino` (O-55): clean blocks are
    /// void.
    Replaced { ino: Ino, etag: String, len_bytes: u64, modified: Time, stamp: Stamp },
    /// Another writer removed the object from the bucket.
    Vanished { parent: Ino, name: Name, stamp: Stamp },
    /// A completely loaded directory is about to be listed again (O-55): names can be added until
    /// an install completes it.
    Revalidating { dir: Ino },
    /// The bucket lost the file's object, of which every byte is cached, or the directory's page:
    /// it becomes dirty again.
    SendAgain { ino: Ino, stamp: Stamp },
    /// The file is reset to its object: later writes are lost (O-74).
    RolledBack { ino: Ino, etag: String, len_bytes: u64, modified: Time, stamp: Stamp },
    /// Evicts these children of a directory from memory, if they are clean in the bucket and
    /// unreferenced. The directory becomes incomplete and is loaded again on demand.
    Forget { dir: Ino, inos: Vec<Ino> },
    /// The directory's page consists of these pieces up to the name `end`, as another writer wrote
    /// them. Several records carry them in order if one is too small. Ignored if this partition has
    /// written the page.
    PiecesFound { dir: Ino, pieces: Vec<PagePiece>, end: Option<Name>, now: Time },
    /// Pieces with these ids are about to be written for the directory's page.
    PiecesBegun { dir: Ino, ids: Vec<u64> },
    /// The bucket holds a head in which `pieces` replace the pieces that began with `gone`. Several
    /// records carry them in name order if one is too small. They take effect with `PiecesWritten`.
    PiecesReplaced { dir: Ino, gone: Vec<Name>, pieces: Vec<PagePiece> },
    /// Like `PageWritten`, for the head of a page in pieces.
    PiecesWritten { dir: Ino, version: Version, etag: String },
    /// The node that uploaded the object of `ino` has ended, and its object is not visible yet but
    /// can still appear. It makes no block clean: the blocks here can differ. The file is sent
    /// again (O-76).
    UploadLate { ino: Ino },
    /// Like `Unredirect`. If another inode claims the directory's own prefix, the children move to
    /// a prefix with no key above or below it.
    MakeWay { dir: Ino },
    /// Like `Uploaded`, of a file with writable mappings: the runs `changed`, each from a block up
    /// to another, can have other bytes by now and stay dirty.
    UploadedMapped {
        ino: Ino,
        key: String,
        etag: String,
        len_bytes: u64,
        version: Version,
        changed: Vec<(u64, u64)>,
    },
    /// Like `Vanished`: a node has the bytes of the runs `kept` of clean blocks, each from a block
    /// up to another. They become dirty.
    VanishedKept { parent: Ino, name: Name, kept: Vec<(u64, u64)>, stamp: Stamp },
}

impl Command {
    /// The stamp of a command that changes inodes.
    pub fn stamp(&self) -> Option<Stamp> {
        match self {
            Command::Client { stamp, .. }
            | Command::Repeated { stamp, .. }
            | Command::Quota { stamp, .. }
            | Command::Stored { stamp, .. }
            | Command::Found { stamp, .. }
            | Command::Discard { stamp, .. }
            | Command::Restore { stamp, .. }
            | Command::Purge { stamp, .. } => Some(*stamp),
            Command::Backing(command) => command.stamp(),
            Command::SessionOpen { .. }
            | Command::SessionClose { .. }
            | Command::Release { .. }
            | Command::ReserveIds { .. }
            | Command::BytesRepeated { .. }
            | Command::Nodes(_)
            | Command::Extent(_) => None,
        }
    }
}

impl BackingCommand {
    /// The stamp of a command that changes inodes.
    pub fn stamp(&self) -> Option<Stamp> {
        match self {
            BackingCommand::Install { stamp, .. }
            | BackingCommand::Replaced { stamp, .. }
            | BackingCommand::Vanished { stamp, .. }
            | BackingCommand::VanishedKept { stamp, .. }
            | BackingCommand::SendAgain { stamp, .. }
            | BackingCommand::RolledBack { stamp, .. } => Some(*stamp),
            _ => None,
        }
    }
}

/// A name found in the bucket, to be installed under an inode id that the leader chose.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Installed {
    pub name: Name,
    pub ino: Ino,
    pub what: InstalledKind,
    /// From the directory's page; `None` if only the object or prefix exists.
    pub record: Option<InstalledRecord>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum InstalledKind {
    /// `key` is set if the object is not at the key of this path, as for all but one name of an
    /// inode.
    Object { key: Option<String>, etag: String, len_bytes: u64, modified: Time },
    /// `prefix` is set if the directory's objects are not below the key of its path.
    Directory { prefix: Option<String>, page: bool },
    /// Kinds without an object: symbolic links, special files.
    Recorded(Make),
}

impl InstalledKind {
    /// The kind of the inode.
    pub fn kind(&self) -> FileKind {
        match self {
            InstalledKind::Object { .. } => FileKind::Regular,
            InstalledKind::Directory { .. } => FileKind::Directory,
            InstalledKind::Recorded(make) => make.kind(),
        }
    }
}

/// Attributes that an object cannot represent, from the directory's page.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InstalledRecord {
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Time,
    pub xattrs: Vec<(Bytes, Bytes)>,
    /// All names (directory and name) of an inode with several, primary first; empty for a single
    /// name. An inode can change only after all its names are loaded.
    pub links: Vec<(Ino, Name)>,
}

/// A directory page: the attributes and names that objects cannot represent, at `.ebb/d/<inode>`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectoryPage {
    pub dir: Ino,
    /// Parent and name of the directory, so its path follows from its inode id; `None` for the
    /// root.
    pub parent: Option<(Ino, Name)>,
    /// Attributes of the directory itself.
    pub record: InstalledRecord,
    /// Segments below the directory's prefix that belong to another directory's redirect.
    pub hidden: Vec<String>,
    /// Sorted by name; each name occurs once.
    pub entries: Vec<Installed>,
}

/// One range of a page's entries in an object of its own, `.ebb/e/<inode>-<id>`: the names from
/// `first` up to the `first` of the next piece.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PagePiece {
    pub first: Name,
    pub id: u64,
    pub entries: u32,
}

/// The object at a page's key. It holds all entries, or pieces and no entries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageHead {
    pub page: DirectoryPage,
    /// Sorted by `first`; the first piece starts at the lowest possible name.
    pub pieces: Vec<PagePiece>,
    /// For a page in pieces: sorted names of files with objects that are not at the key of their
    /// path. They are loaded before any other name.
    pub moved: Vec<Name>,
}

impl From<DirectoryPage> for PageHead {
    fn from(page: DirectoryPage) -> PageHead {
        PageHead { page, pieces: Vec::new(), moved: Vec::new() }
    }
}

impl PageHead {
    /// The piece that covers a name.
    pub fn piece_of(&self, name: &Name) -> Option<&PagePiece> {
        self.pieces[..self.pieces.partition_point(|piece| piece.first <= *name)].last()
    }
}

/// The entries in the object of a piece.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceBody {
    pub dir: Ino,
    pub id: u64,
    /// Sorted by name; each name occurs once.
    pub entries: Vec<Installed>,
}

/// The share of a directory's names that the namespace holds after an install.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LoadProgress {
    /// Unchanged: single names were looked up.
    Unchanged,
    /// All keys up to and including this one.
    UpTo(String),
    Complete,
}

/// One entry of a directory stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirEntry {
    pub name: Name,
    pub ino: Ino,
    pub kind: FileKind,
    pub cookie: Cookie,
}
