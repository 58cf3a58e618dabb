//! Commands: the records of a partition's log. Applying the same commands to the same
//! state gives the same state and the same answers on every replica and after every
//! restart, so a command carries everything that is not in the state: time, identity, choice.
//! The paper's prototype has 72 variants of them (O-66); `docs/format/log.md` numbers these.

use crate::{
    AclClass, Allocation, Caller, Cookie, FileKind, Ino, LogIndex, Name, PackRange, QuotaLimits,
    RenameMode, Replay, SessionId, SetAttr, Time, TrashTarget, TxId, Version, XattrMode,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One kind of transaction for all that changes: what clients ask for, what is cached, what is sent
/// to the bucket (O-64). Of lists of nodes, and of data that moves between nodes, there is nothing
/// to tell yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// A client attaches. `replaces` is its session of before a restart, which ends.
    SessionOpen { session: SessionId, client: String, replaces: Option<SessionId> },
    /// A client detaches or has expired: its holds end, unlinked inodes held by nobody go.
    SessionClose { session: SessionId },
    /// One mutation by a client, executed exactly once per `tx` (O-63).
    Client { tx: TxId, caller: Caller, stamp: Stamp, mutation: Mutation },
    /// The last descriptor of `session` on an unlinked inode is closed.
    Release { session: SessionId, ino: Ino },
    /// What is in the node's store files.
    Extent(ExtentCommand),
    /// What is in the bucket.
    Backing(BackingCommand),
    /// As `Client`, of a mutation that was answered before a power cut took it. What it grew was
    /// within the quotas then and is not measured by them again: what made room for it may have
    /// been nobody's mutation, which nobody repeats.
    Repeated { tx: TxId, caller: Caller, stamp: Stamp, mutation: Mutation },
    /// A directory becomes a quota root, gets other limits, or is one no longer. Ignored where
    /// it cannot be.
    Quota { dir: Ino, limits: Option<QuotaLimits>, stamp: Stamp },
    /// Blocks of an exposed file are found to hold other bytes than was known: `sums` are their
    /// checksums, from block `first` on. Ignored where the file is gone.
    Stored { ino: Ino, first: u64, sums: Vec<u32>, stamp: Stamp },
    /// As `Client`, or as `Repeated`, of an unlink, rmdir or rename: what loses its last name by it
    /// goes to the trash.
    Discard {
        tx: TxId,
        caller: Caller,
        stamp: Stamp,
        mutation: Mutation,
        trash: TrashTarget,
        repeated: bool,
    },
    /// What is in the trash is `name` in the directory `to` from now on. Ignored where it cannot
    /// be.
    Restore { ino: Ino, to: Ino, name: Name, stamp: Stamp },
    /// What is in the trash goes, once none of `holders` has it open any more. Ignored where it is
    /// not there.
    Purge { ino: Ino, holders: Vec<SessionId>, stamp: Stamp },
}

/// Time and version of a mutation, chosen by the leader, kept by replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stamp {
    pub time: Time,
    pub version: Version,
}

/// A change that a client asks for. Inode ids of new inodes are chosen by the leader.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mutation {
    /// `create`, `mkdir`, `mknod` and `symlink` differ only in what is made. `mode` has the
    /// umask applied where it counts.
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
    /// As `Write`, in logs of older versions: `sums` are of the blocks that are covered whole.
    WriteWhole {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        sums: Vec<u32>,
        drop_set_id: bool,
    },
    /// `edges`: blocks that are zeroed in part, and hold in the store file what they are to
    /// hold. Blocks that are zeroed whole become holes.
    Fallocate {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        what: Allocation,
        keep_size: bool,
        edges: Vec<u64>,
        drop_set_id: bool,
    },
    /// A regular file without a name, which `holder` has open and may give one.
    Tmpfile {
        parent: Ino,
        ino: Ino,
        mode: u16,
        holder: SessionId,
    },
    /// `value` as system calls pass it; an empty one removes the ACL. `drop_set_gid`: an access
    /// ACL takes set-gid away, as the caller is neither of the file's group nor privileged.
    SetAcl {
        ino: Ino,
        class: AclClass,
        value: Bytes,
        drop_set_gid: bool,
    },
    /// Bytes that are in the store file already: the log has only their place (O-67). `sums`: the
    /// checksums of the blocks that are touched, in order, of those that are known as a whole.
    Write {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        sums: Vec<Option<u32>>,
        drop_set_id: bool,
    },
    /// As `Write`, of a file of which no block is here: from now on it is in `range` of a pack
    /// file. A range that it had is vacated.
    WritePacked {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        sums: Vec<Option<u32>>,
        drop_set_id: bool,
        range: PackRange,
    },
}

impl Mutation {
    /// Of a write the file, the offset and the number of bytes.
    pub fn span(&self) -> Option<(Ino, u64, u64)> {
        match *self {
            Mutation::Write { ino, offset, len_bytes, .. }
            | Mutation::WriteWhole { ino, offset, len_bytes, .. }
            | Mutation::WritePacked { ino, offset, len_bytes, .. } => {
                Some((ino, offset, len_bytes))
            }
            _ => None,
        }
    }

    /// What a client keeps so that it can ask for the very same again.
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

/// Which bytes are forced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SyncScope {
    All,
    File(Ino),
    /// Of all files what was written, which is nowhere else, but not what was fetched from the
    /// bucket.
    Written,
}

impl SyncScope {
    /// The only file that it is about.
    pub fn only(self) -> Option<Ino> {
        match self {
            SyncScope::File(ino) => Some(ino),
            SyncScope::All | SyncScope::Written => None,
        }
    }
}

/// Facts about store files. Each is logged after the bytes it speaks of were written, not
/// after they were forced: what a power cut may take back is found at recovery as what no
/// later `Synced` covers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExtentCommand {
    /// Blocks `first..first + sums.len()` hold the content of the object `etag`.
    Present { ino: Ino, etag: String, first: u64, sums: Vec<u32> },
    /// Clean blocks that are about to be punched; forced before they are.
    Absent { ino: Ino, first: u64, count: u64 },
    /// The bytes that records up to `upto` speak of are forced.
    Synced { scope: SyncScope, upto: LogIndex },
    /// Checksums of whole blocks that were void, computed while their content was at `version`.
    Summed { ino: Ino, version: Version, sums: Vec<(u64, u32)> },
    /// After a power cut: bytes of these blocks were written and not forced, so they may
    /// hold anything. Clean ones become absent, dirty ones lose their checksum.
    Unsynced { ino: Ino, first: u64, count: u64 },
    /// The bytes of the file are in this range of a pack file; `None`: in a store file of its own.
    /// Whatever blocks it has were copied there before.
    Packed { ino: Ino, range: Option<PackRange> },
    /// From here on, or no longer, anybody may store into the store file past the node. Forced
    /// before anybody can; logged after all bytes were forced and compared once nobody can any
    /// more. All holes of before have been made and forced.
    Exposed { ino: Ino, exposed: bool },
}

/// Facts about the bucket. Keys are relative to the volume's prefix.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BackingCommand {
    /// One page of what the bucket holds of a directory.
    /// Ignored if the directory's load epoch is no longer `epoch`.
    /// `hidden` is what the directory's page hides, `owner` user and group of what has no record.
    Install {
        dir: Ino,
        epoch: u64,
        entries: Vec<Installed>,
        hidden: Vec<String>,
        owner: (u32, u32),
        progress: LoadProgress,
        stamp: Stamp,
    },
    /// An upload of `ino` to `key` begins; `upload` is set for multipart (O-75 step 3).
    UploadBegun { ino: Ino, key: String, upload: Option<String> },
    /// The upload ended without an object: aborted, or nothing was sent.
    UploadAborted { ino: Ino },
    /// `key` now holds the content of `ino` at `version`. Blocks changed since stay dirty.
    Uploaded { ino: Ino, key: String, etag: String, len_bytes: u64, version: Version },
    /// The object of `ino` was copied to `key`, which is its home from now on.
    Moved { ino: Ino, key: String, etag: String },
    /// `key` has been deleted and is claimed no longer.
    Deleted { key: String },
    /// The directory's page in `.ebb/` says what the namespace said at `version`.
    PageWritten { dir: Ino, version: Version, etag: String },
    /// The directory gives up its redirect: its children are moved one by one.
    Unredirect { dir: Ino },
    /// The bucket holds another object than `ino`'s home said (O-55): clean blocks are void.
    Replaced { ino: Ino, etag: String, len_bytes: u64, modified: Time, stamp: Stamp },
    /// The object is gone from the bucket, by somebody else's hand.
    Vanished { parent: Ino, name: Name, stamp: Stamp },
    /// A directory whose names are all known is about to be listed again (O-55): until an
    /// install completes it, names may be added.
    Revalidating { dir: Ino },
    /// The bucket no longer has the file's object, of which nothing is absent here, or the
    /// directory's page: it is dirty again.
    SendAgain { ino: Ino, stamp: Stamp },
    /// The file is what its object is: what was written since is lost (O-74).
    RolledBack { ino: Ino, etag: String, len_bytes: u64, modified: Time, stamp: Stamp },
    /// These children of the directory leave the memory, as far as the bucket says all of them; the
    /// directory is to be loaded again. Nobody holds them.
    Forget { dir: Ino, inos: Vec<Ino> },
    /// The directory's page is in these pieces up to the name `end`, as somebody else has written
    /// them; of more than one record can hold the first are told first. Ignored where the page has
    /// been written here.
    PiecesFound { dir: Ino, pieces: Vec<PagePiece>, end: Option<Name>, now: Time },
    /// Pieces with these ids are about to be written for the directory's page.
    PiecesBegun { dir: Ino, ids: Vec<u64> },
    /// A head is in the bucket that has `pieces` in the place of those that began with `gone`. It
    /// is told in the order of names, in several records where one cannot hold it all, and counts
    /// when `PiecesWritten` follows.
    PiecesReplaced { dir: Ino, gone: Vec<Name>, pieces: Vec<PagePiece> },
    /// As `PageWritten`, of the head of a page in pieces.
    PiecesWritten { dir: Ino, version: Version, etag: String },
    /// Whoever was writing the object of `ino` has ended and nothing of it is to be seen yet: it
    /// may still come. What it brings makes nothing clean, for what is here has been read since: it
    /// is sent once more (O-76).
    UploadLate { ino: Ino },
    /// As `Unredirect`; where the directory's own place is another's, its children are moved to one
    /// that nothing else is at, above or below.
    MakeWay { dir: Ino },
}

impl Command {
    /// The stamp of a command that changes inodes.
    pub fn stamp(&self) -> Option<Stamp> {
        match self {
            Command::Client { stamp, .. }
            | Command::Repeated { stamp, .. }
            | Command::Quota { stamp, .. }
            | Command::Stored { stamp, .. }
            | Command::Discard { stamp, .. }
            | Command::Restore { stamp, .. }
            | Command::Purge { stamp, .. } => Some(*stamp),
            Command::Backing(command) => command.stamp(),
            Command::SessionOpen { .. }
            | Command::SessionClose { .. }
            | Command::Release { .. }
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
    /// From the directory's page; `None` where only the object or prefix is known.
    pub record: Option<InstalledRecord>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum InstalledKind {
    /// `key` is set where the object is not at the path's own key, as for all but one of
    /// the names of an inode.
    Object { key: Option<String>, etag: String, len_bytes: u64, modified: Time },
    /// `prefix` is set where the directory's objects are not below the path's own key.
    Directory { prefix: Option<String>, page: bool },
    /// Kinds without an object: symbolic links, special files.
    Recorded(Make),
}

/// Attributes that objects cannot say, as the directory's page has them.
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
    /// Every name of an inode that has several (directory and name), primary first; empty
    /// for an inode with one. An inode is changed only when all its names are known.
    pub links: Vec<(Ino, Name)>,
}

/// What objects cannot say about a directory and the names in it, stored as `.ebb/d/<inode>`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectoryPage {
    pub dir: Ino,
    /// Where the directory is, so that it can be found from its inode id; `None` for the root.
    pub parent: Option<(Ino, Name)>,
    /// Of the directory itself.
    pub record: InstalledRecord,
    /// Segments below the directory's prefix that are another directory's redirect.
    pub hidden: Vec<String>,
    /// Sorted by name, no name twice.
    pub entries: Vec<Installed>,
}

/// One range of a page's entries in an object of its own, `.ebb/e/<inode>-<id>`: names from `first`
/// to that of the next piece.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PagePiece {
    pub first: Name,
    pub id: u64,
    pub entries: u32,
}

/// The object at a page's key. Without pieces it has all entries, else none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageHead {
    pub page: DirectoryPage,
    /// In the order of names; the first one begins with the least name that there can be.
    pub pieces: Vec<PagePiece>,
    /// Of a page in pieces: names in order whose objects have not followed them to their own keys.
    /// They are to be known before any other name is.
    pub moved: Vec<Name>,
}

impl From<DirectoryPage> for PageHead {
    fn from(page: DirectoryPage) -> PageHead {
        PageHead { page, pieces: Vec::new(), moved: Vec::new() }
    }
}

impl PageHead {
    /// In which of its pieces a name is.
    pub fn piece_of(&self, name: &Name) -> Option<&PagePiece> {
        self.pieces[..self.pieces.partition_point(|piece| piece.first <= *name)].last()
    }
}

/// What is in the object of a piece.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceBody {
    pub dir: Ino,
    pub id: u64,
    /// Sorted by name, no name twice.
    pub entries: Vec<Installed>,
}

/// How much of a directory's names the namespace holds after an install.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LoadProgress {
    /// As before: single names were looked up.
    Unchanged,
    /// All keys up to and with this one.
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
