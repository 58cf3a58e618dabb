//! Values of every variant that a format can carry. The same code makes the golden
//! samples (one fixed seed) and the random values of the property tests.

use bytes::Bytes;
use ebb_format::record::Payload;
use ebb_format::rpc::{Message, RequestId};
use ebb_model::*;

/// Names every variant. A variant that is added without a name does not compile; one
/// that is named without a sample fails `golden::every_variant_has_a_sample`.
macro_rules! names {
    ($name:ident, $all:ident, $type:ty { $($pattern:pat => $text:literal,)+ }) => {
        pub const $all: &[&str] = &[$($text),+];
        pub fn $name(value: &$type) -> &'static str {
            match value { $($pattern => $text),+ }
        }
    };
}

names!(payload_name, PAYLOADS, Payload {
    Payload::Forced { .. } => "forced",
    Payload::Start { .. } => "start",
    Payload::Command(Command::SessionOpen { replaces: None, .. }) => "session-open",
    Payload::Command(Command::SessionOpen { replaces: Some(_), .. }) => "session-open-again",
    Payload::Command(Command::SessionClose { .. }) => "session-close",
    Payload::Command(Command::Release { .. }) => "release",
    Payload::Command(Command::Client { mutation: Mutation::Make { what: Make::Regular, .. }, .. }) => "make-regular",
    Payload::Command(Command::Client { mutation: Mutation::Make { what: Make::Directory, .. }, .. }) => "make-directory",
    Payload::Command(Command::Client { mutation: Mutation::Make { what: Make::Symlink { .. }, .. }, .. }) => "make-symlink",
    Payload::Command(Command::Client { mutation: Mutation::Make { what: Make::Special { .. }, .. }, .. }) => "make-special",
    Payload::Command(Command::Client { mutation: Mutation::Link { .. }, .. }) => "link",
    Payload::Command(Command::Client { mutation: Mutation::Unlink { .. }, .. }) => "unlink",
    Payload::Command(Command::Client { mutation: Mutation::Rmdir { .. }, .. }) => "rmdir",
    Payload::Command(Command::Client { mutation: Mutation::Rename { mode: RenameMode::Replace, .. }, .. }) => "rename-replace",
    Payload::Command(Command::Client { mutation: Mutation::Rename { mode: RenameMode::KeepTarget, .. }, .. }) => "rename-keep",
    Payload::Command(Command::Client { mutation: Mutation::Rename { mode: RenameMode::Exchange, .. }, .. }) => "rename-exchange",
    Payload::Command(Command::Client { mutation: Mutation::Rename { mode: RenameMode::Whiteout { .. }, .. }, .. }) => "rename-whiteout",
    Payload::Command(Command::Client { mutation: Mutation::SetAttr { .. }, .. }) => "set-attr",
    Payload::Command(Command::Client { mutation: Mutation::SetXattr { mode: XattrMode::Set, .. }, .. }) => "set-xattr",
    Payload::Command(Command::Client { mutation: Mutation::SetXattr { mode: XattrMode::Create, .. }, .. }) => "set-xattr-create",
    Payload::Command(Command::Client { mutation: Mutation::SetXattr { mode: XattrMode::Replace, .. }, .. }) => "set-xattr-replace",
    Payload::Command(Command::Client { mutation: Mutation::RemoveXattr { .. }, .. }) => "remove-xattr",
    Payload::Command(Command::Client { mutation: Mutation::Write { .. }, .. }) => "write",
    Payload::Command(Command::Client { mutation: Mutation::WriteWhole { .. }, .. }) => "write-whole",
    Payload::Command(Command::Client { mutation: Mutation::WritePacked { .. }, .. }) => "write-packed",
    Payload::Command(Command::Client { mutation: Mutation::Fallocate { what: Allocation::Reserve, .. }, .. }) => "fallocate-reserve",
    Payload::Command(Command::Client { mutation: Mutation::Fallocate { what: Allocation::Zero, .. }, .. }) => "fallocate-zero",
    Payload::Command(Command::Client { mutation: Mutation::Tmpfile { .. }, .. }) => "tmpfile",
    Payload::Command(Command::Client { mutation: Mutation::SetAcl { class: AclClass::Access, .. }, .. }) => "set-acl-access",
    Payload::Command(Command::Client { mutation: Mutation::SetAcl { class: AclClass::Default, .. }, .. }) => "set-acl-default",
    Payload::Command(Command::Extent(ExtentCommand::Present { .. })) => "present",
    Payload::Command(Command::Extent(ExtentCommand::Absent { .. })) => "absent",
    Payload::Command(Command::Extent(ExtentCommand::Synced { .. })) => "synced",
    Payload::Command(Command::Extent(ExtentCommand::Summed { .. })) => "summed",
    Payload::Command(Command::Extent(ExtentCommand::Unsynced { .. })) => "unsynced",
    Payload::Command(Command::Extent(ExtentCommand::Packed { .. })) => "packed",
    Payload::Command(Command::Extent(ExtentCommand::Exposed { exposed: true, .. })) => "exposed",
    Payload::Command(Command::Extent(ExtentCommand::Exposed { exposed: false, .. })) => "exposed-no-longer",
    Payload::Command(Command::Stored { .. }) => "stored",
    Payload::Command(Command::Backing(BackingCommand::Install { progress: LoadProgress::Unchanged, .. })) => "install",
    Payload::Command(Command::Backing(BackingCommand::Install { progress: LoadProgress::UpTo(_), .. })) => "install-up-to",
    Payload::Command(Command::Backing(BackingCommand::Install { progress: LoadProgress::Complete, .. })) => "install-complete",
    Payload::Command(Command::Backing(BackingCommand::UploadBegun { .. })) => "upload-begun",
    Payload::Command(Command::Backing(BackingCommand::UploadAborted { .. })) => "upload-aborted",
    Payload::Command(Command::Backing(BackingCommand::Uploaded { .. })) => "uploaded",
    Payload::Command(Command::Backing(BackingCommand::Moved { .. })) => "moved",
    Payload::Command(Command::Backing(BackingCommand::Deleted { .. })) => "deleted",
    Payload::Command(Command::Backing(BackingCommand::PageWritten { .. })) => "page-written",
    Payload::Command(Command::Backing(BackingCommand::Unredirect { .. })) => "unredirect",
    Payload::Command(Command::Backing(BackingCommand::Replaced { .. })) => "replaced",
    Payload::Command(Command::Backing(BackingCommand::Vanished { .. })) => "vanished",
    Payload::Command(Command::Backing(BackingCommand::Revalidating { .. })) => "revalidating",
    Payload::Command(Command::Backing(BackingCommand::SendAgain { .. })) => "send-again",
    Payload::Command(Command::Backing(BackingCommand::RolledBack { .. })) => "rolled-back",
    Payload::Command(Command::Backing(BackingCommand::Forget { .. })) => "forget",
    Payload::Command(Command::Backing(BackingCommand::PiecesFound { .. })) => "pieces-found",
    Payload::Command(Command::Backing(BackingCommand::PiecesBegun { .. })) => "pieces-begun",
    Payload::Command(Command::Backing(BackingCommand::PiecesReplaced { .. })) => "pieces-replaced",
    Payload::Command(Command::Backing(BackingCommand::PiecesWritten { .. })) => "pieces-written",
    Payload::Command(Command::Backing(BackingCommand::UploadLate { .. })) => "upload-late",
    Payload::Command(Command::Backing(BackingCommand::MakeWay { .. })) => "make-way",
    Payload::Command(Command::Repeated { .. }) => "repeated",
    Payload::Command(Command::Quota { limits: Some(_), .. }) => "quota",
    Payload::Command(Command::Quota { limits: None, .. }) => "quota-ends",
    Payload::Command(Command::Discard { .. }) => "discard",
    Payload::Command(Command::Restore { .. }) => "restore",
    Payload::Command(Command::Purge { .. }) => "purge",
});

names!(message_name, MESSAGES, Message {
    Message::Request { request: Request::Attach { .. }, .. } => "attach",
    Message::Request { request: Request::Detach { .. }, .. } => "detach",
    Message::Request { request: Request::Renew { .. }, .. } => "renew",
    Message::Request { request: Request::Shared { .. }, .. } => "shared",
    Message::Request { request: Request::TakeUp { .. }, .. } => "take-up",
    Message::Request { request: Request::Told { .. }, .. } => "told",
    Message::Request { request: Request::Recalled { .. }, .. } => "recalled",
    Message::Request { request: Request::Lookup { .. }, .. } => "lookup",
    Message::Request { request: Request::GetAttr { .. }, .. } => "get-attr",
    Message::Request { request: Request::ReadLink { .. }, .. } => "read-link",
    Message::Request { request: Request::ReadDir { .. }, .. } => "read-dir",
    Message::Request { request: Request::GetXattr { .. }, .. } => "get-xattr",
    Message::Request { request: Request::ListXattr { .. }, .. } => "list-xattr",
    Message::Request { request: Request::Access { .. }, .. } => "access",
    Message::Request { request: Request::StatFs { .. }, .. } => "stat-fs",
    Message::Request { request: Request::Open { .. }, .. } => "open",
    Message::Request { request: Request::Close { .. }, .. } => "close",
    Message::Request { request: Request::Read { .. }, .. } => "read",
    Message::Request { request: Request::Fsync { .. }, .. } => "fsync",
    Message::Request { request: Request::SyncFs { .. }, .. } => "sync-fs",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Make { .. }, .. }, .. } => "mutate-make",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Link { .. }, .. }, .. } => "mutate-link",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Unlink { .. }, .. }, .. } => "mutate-unlink",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Rmdir { .. }, .. }, .. } => "mutate-rmdir",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Rename { .. }, .. }, .. } => "mutate-rename",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::SetAttr { .. }, .. }, .. } => "mutate-set-attr",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::SetXattr { .. }, .. }, .. } => "mutate-set-xattr",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::RemoveXattr { .. }, .. }, .. } => "mutate-remove-xattr",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Write { .. }, .. }, .. } => "mutate-write",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Append { .. }, .. }, .. } => "mutate-append",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Fallocate { .. }, .. }, .. } => "mutate-fallocate",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Copy { .. }, .. }, .. } => "mutate-copy",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::Tmpfile { .. }, .. }, .. } => "mutate-tmpfile",
    Message::Request { request: Request::Seek { to: Seek::Data, .. }, .. } => "seek-data",
    Message::Request { request: Request::Seek { to: Seek::Hole, .. }, .. } => "seek-hole",
    Message::Request { request: Request::Mutate { mutation: ClientMutation::SetAcl { .. }, .. }, .. } => "mutate-set-acl",
    Message::Request { request: Request::Lock { wait: None, .. }, .. } => "lock",
    Message::Request { request: Request::Lock { wait: Some(_), .. }, .. } => "lock-waiting",
    Message::Request { request: Request::EndWait { .. }, .. } => "end-wait",
    Message::Request { request: Request::TestLock { .. }, .. } => "test-lock",
    Message::Request { request: Request::Reclaim { .. }, .. } => "reclaim",
    Message::Request { request: Request::Admin(AdminRequest::Status), .. } => "status",
    Message::Request { request: Request::Admin(AdminRequest::ListDirty { .. }), .. } => "list-dirty",
    Message::Request { request: Request::Admin(AdminRequest::Flush { .. }), .. } => "flush",
    Message::Request { request: Request::Admin(AdminRequest::Evict { .. }), .. } => "evict",
    Message::Request { request: Request::Admin(AdminRequest::Fsck), .. } => "fsck",
    Message::Request { request: Request::Admin(AdminRequest::Explain { .. }), .. } => "explain",
    Message::Request { request: Request::Admin(AdminRequest::SetQuota { limits: Some(_), .. }), .. } => "set-quota",
    Message::Request { request: Request::Admin(AdminRequest::SetQuota { limits: None, .. }), .. } => "end-quota",
    Message::Request { request: Request::Admin(AdminRequest::Quotas { .. }), .. } => "quotas",
    Message::Request { request: Request::Admin(AdminRequest::ListQuotas { .. }), .. } => "list-quotas",
    Message::Request { request: Request::Admin(AdminRequest::Stats), .. } => "stats",
    Message::Request { request: Request::Admin(AdminRequest::Paths { .. }), .. } => "paths",
    Message::Request { request: Request::Admin(AdminRequest::Warm { .. }), .. } => "warm",
    Message::Request { request: Request::Admin(AdminRequest::FsckBucket { from: FsckPoint::Directories { .. } }), .. } => "fsck-directories",
    Message::Request { request: Request::Admin(AdminRequest::FsckBucket { from: FsckPoint::Reserved { .. } }), .. } => "fsck-reserved",
    Message::Request { request: Request::Admin(AdminRequest::Mend { .. }), .. } => "mend",
    Message::Request { request: Request::Admin(AdminRequest::Snapshot), .. } => "snapshot",
    Message::Request { request: Request::Admin(AdminRequest::RollBack { .. }), .. } => "roll-back",
    Message::Request { request: Request::Admin(AdminRequest::ListTrash { .. }), .. } => "list-trash",
    Message::Request { request: Request::Admin(AdminRequest::Restore { .. }), .. } => "restore",
    Message::Request { request: Request::Admin(AdminRequest::EmptyTrash { .. }), .. } => "empty-trash",
    Message::Reply { reply: Reply::Attached(_), .. } => "reply-attached",
    Message::Reply { reply: Reply::Done, .. } => "reply-done",
    Message::Reply { reply: Reply::Attr(_), .. } => "reply-attr",
    Message::Reply { reply: Reply::Link(_), .. } => "reply-link",
    Message::Reply { reply: Reply::Directory { .. }, .. } => "reply-directory",
    Message::Reply { reply: Reply::Xattr(_), .. } => "reply-xattr",
    Message::Reply { reply: Reply::Xattrs(_), .. } => "reply-xattrs",
    Message::Reply { reply: Reply::Stat(_), .. } => "reply-stat",
    Message::Reply { reply: Reply::Data(_), .. } => "reply-data",
    Message::Reply { reply: Reply::Mutated(..), .. } => "reply-mutated",
    Message::Reply { reply: Reply::Forced { .. }, .. } => "reply-forced",
    Message::Reply { reply: Reply::Admin(AdminReply::Status(_)), .. } => "reply-status",
    Message::Reply { reply: Reply::Admin(AdminReply::Dirty { .. }), .. } => "reply-dirty",
    Message::Reply { reply: Reply::Admin(AdminReply::Flushed { .. }), .. } => "reply-flushed",
    Message::Reply { reply: Reply::Admin(AdminReply::Evicted { .. }), .. } => "reply-evicted",
    Message::Reply { reply: Reply::Admin(AdminReply::Fsck(_)), .. } => "reply-fsck",
    Message::Reply { reply: Reply::Admin(AdminReply::Explained(_)), .. } => "reply-explained",
    Message::Reply { reply: Reply::Admin(AdminReply::Quotas(_)), .. } => "reply-quotas",
    Message::Reply { reply: Reply::Admin(AdminReply::Stats(_)), .. } => "reply-stats",
    Message::Reply { reply: Reply::Admin(AdminReply::Paths(_)), .. } => "reply-paths",
    Message::Reply { reply: Reply::Admin(AdminReply::Warmed { .. }), .. } => "reply-warmed",
    Message::Reply { reply: Reply::Admin(AdminReply::FsckPart(_)), .. } => "reply-fsck-part",
    Message::Reply { reply: Reply::Admin(AdminReply::Mended), .. } => "reply-mended",
    Message::Reply { reply: Reply::Admin(AdminReply::Snapshot { .. }), .. } => "reply-snapshot",
    Message::Reply { reply: Reply::Admin(AdminReply::RolledBack { .. }), .. } => "reply-rolled-back",
    Message::Reply { reply: Reply::Admin(AdminReply::Trash { .. }), .. } => "reply-trash",
    Message::Reply { reply: Reply::Admin(AdminReply::Restored), .. } => "reply-restored",
    Message::Reply { reply: Reply::Admin(AdminReply::Emptied { .. }), .. } => "reply-emptied",
    Message::Reply { reply: Reply::Offset(_), .. } => "reply-offset",
    Message::Reply { reply: Reply::Lock(LockAnswer::Granted), .. } => "reply-lock-granted",
    Message::Reply { reply: Reply::Lock(LockAnswer::Waiting), .. } => "reply-lock-waiting",
    Message::Reply { reply: Reply::Conflict(None), .. } => "reply-no-conflict",
    Message::Reply { reply: Reply::Conflict(Some(_)), .. } => "reply-conflict",
    Message::Reply { reply: Reply::Opened { .. }, .. } => "reply-opened",
    Message::Error { error: RpcError::Refused(FsError::NotFound), .. } => "error-not-found",
    Message::Error { error: RpcError::Refused(FsError::Exists), .. } => "error-exists",
    Message::Error { error: RpcError::Refused(FsError::NotDirectory), .. } => "error-not-directory",
    Message::Error { error: RpcError::Refused(FsError::IsDirectory), .. } => "error-is-directory",
    Message::Error { error: RpcError::Refused(FsError::NotEmpty), .. } => "error-not-empty",
    Message::Error { error: RpcError::Refused(FsError::AccessDenied), .. } => "error-access-denied",
    Message::Error { error: RpcError::Refused(FsError::NotPermitted), .. } => "error-not-permitted",
    Message::Error { error: RpcError::Refused(FsError::Invalid), .. } => "error-invalid",
    Message::Error { error: RpcError::Refused(FsError::NameTooLong), .. } => "error-name-too-long",
    Message::Error { error: RpcError::Refused(FsError::TooManyLinks), .. } => "error-too-many-links",
    Message::Error { error: RpcError::Refused(FsError::TooLarge), .. } => "error-too-large",
    Message::Error { error: RpcError::Refused(FsError::NoAttribute), .. } => "error-no-attribute",
    Message::Error { error: RpcError::Refused(FsError::ValueTooLarge), .. } => "error-value-too-large",
    Message::Error { error: RpcError::Refused(FsError::Range), .. } => "error-range",
    Message::Error { error: RpcError::Refused(FsError::NoSpace), .. } => "error-no-space",
    Message::Error { error: RpcError::Refused(FsError::ReadOnly), .. } => "error-read-only",
    Message::Error { error: RpcError::Refused(FsError::NotSupported), .. } => "error-not-supported",
    Message::Error { error: RpcError::Refused(FsError::CrossDevice), .. } => "error-cross-device",
    Message::Error { error: RpcError::Refused(FsError::Busy), .. } => "error-busy",
    Message::Error { error: RpcError::Refused(FsError::Stale), .. } => "error-stale",
    Message::Error { error: RpcError::Refused(FsError::Io), .. } => "error-io",
    Message::Error { error: RpcError::Refused(FsError::TimedOut), .. } => "error-timed-out",
    Message::Error { error: RpcError::Refused(FsError::NoData), .. } => "error-no-data",
    Message::Error { error: RpcError::Refused(FsError::WouldBlock), .. } => "error-would-block",
    Message::Error { error: RpcError::Refused(FsError::Deadlock), .. } => "error-deadlock",
    Message::Error { error: RpcError::Refused(FsError::NoLocks), .. } => "error-no-locks",
    Message::Error { error: RpcError::Refused(FsError::Interrupted), .. } => "error-interrupted",
    Message::Error { error: RpcError::Refused(FsError::QuotaExceeded), .. } => "error-quota-exceeded",
    Message::Error { error: RpcError::Refused(FsError::NoMemory), .. } => "error-no-memory",
    Message::Error { error: RpcError::SessionExpired, .. } => "error-session-expired",
    Message::Error { error: RpcError::Misordered, .. } => "error-misordered",
    Message::Error { error: RpcError::Overloaded, .. } => "error-overloaded",
    Message::Error { error: RpcError::NotServing(_), .. } => "error-not-serving",
    Message::Error { error: RpcError::Denied(_), .. } => "error-denied",
    Message::Error { error: RpcError::Lost, .. } => "error-lost",
    Message::Notice(Notice::Durable { .. }) => "notice-durable",
    Message::Notice(Notice::Share) => "notice-share",
    Message::Notice(Notice::Invalidate { .. }) => "notice-invalidate",
    Message::Notice(Notice::Leaving) => "notice-leaving",
    Message::Notice(Notice::Lock { .. }) => "notice-lock",
    Message::Notice(Notice::Recall { .. }) => "notice-recall",
    Message::Notice(Notice::Relinked { .. }) => "notice-relinked",
});

names!(kind_name, KINDS, FileKind {
    FileKind::Regular => "regular",
    FileKind::Directory => "directory",
    FileKind::Symlink => "symlink",
    FileKind::CharDevice => "char-device",
    FileKind::BlockDevice => "block-device",
    FileKind::Fifo => "fifo",
    FileKind::Socket => "socket",
});

names!(installed_name, INSTALLED, InstalledKind {
    InstalledKind::Object { key: None, .. } => "object",
    InstalledKind::Object { key: Some(_), .. } => "object-elsewhere",
    InstalledKind::Directory { prefix: None, .. } => "directory",
    InstalledKind::Directory { prefix: Some(_), .. } => "directory-elsewhere",
    InstalledKind::Recorded(_) => "recorded",
});

pub const ALL_KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::CharDevice,
    FileKind::BlockDevice,
    FileKind::Fifo,
    FileKind::Socket,
];

/// Numbers, texts and values drawn from a seed (splitmix64).
pub struct Draw(pub u64);

impl Draw {
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let x = x ^ (x >> 31);
        // All magnitudes alike, so that every length of varint is met.
        x >> (x % 64)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.u64() % limit
    }

    pub fn u32(&mut self) -> u32 {
        self.u64() as u32
    }

    fn u16(&mut self) -> u16 {
        self.u64() as u16
    }

    pub fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    pub fn bytes(&mut self) -> Bytes {
        let len = self.below(40);
        (0..len).map(|_| self.below(256) as u8).collect::<Vec<u8>>().into()
    }

    pub fn text(&mut self) -> String {
        let len = self.below(20);
        (0..len).map(|_| char::from_u32(self.below(0x500) as u32 + 0x20).unwrap_or('?')).collect()
    }

    pub fn name(&mut self) -> Name {
        let len = 1 + self.below(30);
        let bytes: Vec<u8> = (0..len).map(|_| [b'a', b'Z', b'.', b'-', b' ', 0xff, b'\n', b'7'][self.below(8) as usize]).collect();
        Name::new(&bytes).unwrap_or_else(|_| Name::new(b"x").expect("x is a name"))
    }

    pub fn option<T>(&mut self, value: impl FnOnce(&mut Draw) -> T) -> Option<T> {
        self.flag().then(|| value(self))
    }

    pub fn list<T>(&mut self, mut value: impl FnMut(&mut Draw) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| value(self)).collect()
    }

    fn lock_piece(&mut self) -> LockPiece {
        let (start, len) = (self.u64() >> 2, self.u64() >> 2);
        let mode = if self.flag() { LockMode::Shared } else { LockMode::Exclusive };
        LockPiece { range: LockRange::new(start, start + len).expect("it is a range"), mode }
    }

    fn lock_ask(&mut self, ino: Ino) -> LockAsk {
        let LockPiece { range, mode } = self.lock_piece();
        let (owner, mode) = (LockOwner::Fcntl(self.u64()), if self.flag() { Some(mode) } else { None });
        LockAsk { ino, owner, range, mode, keep: self.flag(), pid: self.u32() }
    }

    fn time(&mut self) -> Time {
        Time { secs: self.u64() as i64, nanos: self.below(1_000_000_000) as u32 }
    }

    pub fn ino(&mut self) -> Ino {
        Ino(self.u64())
    }

    fn session(&mut self) -> SessionId {
        SessionId(self.u64())
    }

    fn sessions(&mut self) -> Vec<SessionId> {
        self.list(Draw::session)
    }

    fn version(&mut self) -> Version {
        Version(self.u64())
    }

    fn index(&mut self) -> LogIndex {
        LogIndex(self.u64())
    }

    fn stamp(&mut self) -> Stamp {
        Stamp { time: self.time(), version: self.version() }
    }

    fn caller(&mut self) -> Caller {
        Caller { uid: self.u32(), gid: self.u32(), groups: self.list(Draw::u32), checked: self.flag() }
    }

    fn tx(&mut self) -> TxId {
        TxId { session: self.session(), slot: self.u16(), sequence: self.u64() }
    }

    fn kind(&mut self) -> FileKind {
        ALL_KINDS[self.below(7) as usize]
    }

    fn set_time(&mut self) -> SetTime {
        match self.below(3) {
            0 => SetTime::Now,
            1 => SetTime::To(self.time()),
            _ => SetTime::Reading,
        }
    }

    fn set_attr(&mut self) -> SetAttr {
        SetAttr {
            mode: self.option(Draw::u16),
            uid: self.option(Draw::u32),
            gid: self.option(Draw::u32),
            size_bytes: self.option(Draw::u64),
            atime: self.option(Draw::set_time),
            mtime: self.option(Draw::set_time),
            drop_set_id: self.flag(),
        }
    }

    fn attr(&mut self) -> Attr {
        Attr {
            ino: self.ino(),
            kind: self.kind(),
            mode: self.u16(),
            nlink: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            rdev: self.u32(),
            size_bytes: self.u64(),
            hole_bytes: self.u64(),
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
            btime: self.time(),
            version: self.version(),
        }
    }

    fn replay(&mut self) -> Replay {
        Replay { stamp: self.stamp(), ino: self.option(Draw::ino), offset: self.option(Draw::u64), len_bytes: self.option(Draw::u64) }
    }

    fn page_piece(&mut self) -> PagePiece {
        PagePiece { first: self.name(), id: self.u64(), entries: self.u32() }
    }

    pub fn record(&mut self) -> InstalledRecord {
        InstalledRecord {
            mode: self.u16(),
            nlink: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
            btime: self.time(),
            xattrs: self.list(|draw| (draw.bytes(), draw.bytes())),
            links: self.list(|draw| (draw.ino(), draw.name())),
        }
    }

    pub fn makes(&mut self) -> Vec<Make> {
        let mut makes = vec![Make::Regular, Make::Directory, Make::Symlink { target: self.bytes() }];
        makes.extend(ALL_KINDS.map(|kind| Make::Special { kind, rdev: self.u32() }));
        makes
    }

    pub fn installed_kinds(&mut self) -> Vec<InstalledKind> {
        let object = |draw: &mut Draw, key| InstalledKind::Object { key, etag: draw.text(), len_bytes: draw.u64(), modified: draw.time() };
        let mut kinds = vec![object(self, None)];
        let key = self.text();
        kinds.push(object(self, Some(key)));
        kinds.push(InstalledKind::Directory { prefix: None, page: self.flag() });
        kinds.push(InstalledKind::Directory { prefix: Some(self.text()), page: self.flag() });
        kinds.extend(self.makes().into_iter().map(InstalledKind::Recorded));
        kinds
    }

    pub fn installed(&mut self, what: InstalledKind) -> Installed {
        Installed { name: self.name(), ino: self.ino(), what, record: self.option(Draw::record) }
    }

    fn install(&mut self, progress: LoadProgress) -> BackingCommand {
        let entries = self.installed_kinds().into_iter().map(|what| self.installed(what)).collect();
        let hidden = vec![self.text()];
        BackingCommand::Install {
            dir: self.ino(),
            epoch: self.u64(),
            entries,
            hidden,
            owner: (self.u32(), self.u32()),
            progress,
            stamp: self.stamp(),
        }
    }

    fn mutations(&mut self) -> Vec<Mutation> {
        let mut all = Vec::new();
        for what in self.makes() {
            all.push(Mutation::Make { parent: self.ino(), name: self.name(), ino: self.ino(), mode: self.u16(), what });
        }
        let whiteout = RenameMode::Whiteout { keep_target: self.flag(), ino: Some(self.ino()) };
        for mode in [RenameMode::Replace, RenameMode::KeepTarget, RenameMode::Exchange, whiteout] {
            let (from, to) = (self.ino(), self.ino());
            all.push(Mutation::Rename { from, name: self.name(), to, new_name: self.name(), mode, holders: self.sessions() });
        }
        for mode in [XattrMode::Set, XattrMode::Create, XattrMode::Replace] {
            all.push(Mutation::SetXattr { ino: self.ino(), name: self.bytes(), value: self.bytes(), mode });
        }
        all.extend([
            Mutation::Link { ino: self.ino(), parent: self.ino(), name: self.name() },
            Mutation::Unlink { parent: self.ino(), name: self.name(), holders: self.sessions() },
            Mutation::Rmdir { parent: self.ino(), name: self.name(), holders: self.sessions() },
            Mutation::SetAttr { ino: self.ino(), set: self.set_attr() },
            Mutation::RemoveXattr { ino: self.ino(), name: self.bytes() },
            Mutation::WriteWhole {
                ino: self.ino(),
                offset: self.u64(),
                len_bytes: self.u64(),
                sums: self.list(Draw::u32),
                drop_set_id: self.flag(),
            },
        ]);
        all.push(Mutation::Tmpfile { parent: self.ino(), ino: self.ino(), mode: self.u16(), holder: self.session() });
        for what in [Allocation::Reserve, Allocation::Zero] {
            all.push(Mutation::Fallocate {
                ino: self.ino(),
                offset: self.u64(),
                len_bytes: self.u64(),
                what,
                keep_size: self.flag(),
                edges: self.list(Draw::u64),
                drop_set_id: self.flag(),
            });
        }
        for class in [AclClass::Access, AclClass::Default] {
            all.push(Mutation::SetAcl { ino: self.ino(), class, value: self.bytes(), drop_set_gid: self.flag() });
        }
        all.push(Mutation::Write {
            ino: self.ino(),
            offset: self.u64(),
            len_bytes: self.u64(),
            sums: self.list(|draw| draw.flag().then(|| draw.u32())),
            drop_set_id: self.flag(),
        });
        all.push(Mutation::WritePacked {
            ino: self.ino(),
            offset: self.u64(),
            len_bytes: self.u64(),
            sums: self.list(|draw| draw.flag().then(|| draw.u32())),
            drop_set_id: self.flag(),
            range: self.pack_range(),
        });
        all
    }

    fn commands(&mut self) -> Vec<Command> {
        let mut all = vec![
            Command::SessionOpen { session: self.session(), client: self.text(), replaces: None },
            Command::SessionOpen { session: self.session(), client: self.text(), replaces: Some(self.session()) },
            Command::SessionClose { session: self.session() },
            Command::Release { session: self.session(), ino: self.ino() },
        ];
        for mutation in self.mutations() {
            all.push(Command::Client { tx: self.tx(), caller: self.caller(), stamp: self.stamp(), mutation });
        }
        let extent = [
            ExtentCommand::Present { ino: self.ino(), etag: self.text(), first: self.u64(), sums: self.list(Draw::u32) },
            ExtentCommand::Absent { ino: self.ino(), first: self.u64(), count: self.u64() },
            ExtentCommand::Synced { scope: SyncScope::File(self.ino()), upto: self.index() },
            ExtentCommand::Synced { scope: SyncScope::All, upto: self.index() },
            ExtentCommand::Synced { scope: SyncScope::Written, upto: self.index() },
            ExtentCommand::Summed { ino: self.ino(), version: self.version(), sums: self.list(|draw| (draw.u64(), draw.u32())) },
            ExtentCommand::Unsynced { ino: self.ino(), first: self.u64(), count: self.u64() },
            ExtentCommand::Packed { ino: self.ino(), range: Some(self.pack_range()) },
            ExtentCommand::Packed { ino: self.ino(), range: None },
        ];
        all.extend(extent.map(Command::Extent));
        let up_to = LoadProgress::UpTo(self.text());
        let (ino, dir) = (self.ino(), self.ino());
        let backing = [
            self.install(LoadProgress::Unchanged),
            self.install(up_to),
            self.install(LoadProgress::Complete),
            BackingCommand::UploadBegun { ino, key: self.text(), upload: None },
            BackingCommand::UploadBegun { ino, key: self.text(), upload: Some(self.text()) },
            BackingCommand::UploadAborted { ino },
            BackingCommand::Uploaded { ino, key: self.text(), etag: self.text(), len_bytes: self.u64(), version: self.version() },
            BackingCommand::Moved { ino, key: self.text(), etag: self.text() },
            BackingCommand::Deleted { key: self.text() },
            BackingCommand::PageWritten { dir, version: self.version(), etag: self.text() },
            BackingCommand::Unredirect { dir },
            BackingCommand::Replaced { ino, etag: self.text(), len_bytes: self.u64(), modified: self.time(), stamp: self.stamp() },
            BackingCommand::Vanished { parent: dir, name: self.name(), stamp: self.stamp() },
            BackingCommand::Revalidating { dir },
            BackingCommand::SendAgain { ino, stamp: self.stamp() },
            BackingCommand::RolledBack { ino, etag: self.text(), len_bytes: self.u64(), modified: self.time(), stamp: self.stamp() },
            BackingCommand::Forget { dir, inos: self.list(Draw::ino) },
            BackingCommand::PiecesFound { dir, pieces: self.list(Draw::page_piece), end: None, now: self.time() },
            BackingCommand::PiecesFound { dir, pieces: self.list(Draw::page_piece), end: Some(self.name()), now: self.time() },
            BackingCommand::PiecesBegun { dir, ids: self.list(Draw::u64) },
            BackingCommand::PiecesReplaced { dir, gone: self.list(Draw::name), pieces: self.list(Draw::page_piece) },
            BackingCommand::PiecesWritten { dir, version: self.version(), etag: self.text() },
            BackingCommand::UploadLate { ino },
            BackingCommand::MakeWay { dir },
        ];
        all.extend(backing.map(Command::Backing));
        let mutation = Mutation::Link { ino: self.ino(), parent: self.ino(), name: self.name() };
        all.push(Command::Repeated { tx: self.tx(), caller: self.caller(), stamp: self.stamp(), mutation });
        all.push(Command::Quota { dir, limits: Some(self.quota_limits()), stamp: self.stamp() });
        all.push(Command::Quota { dir, limits: None, stamp: self.stamp() });
        all.push(Command::Stored { ino, first: self.u64(), sums: self.list(Draw::u32), stamp: self.stamp() });
        all.push(Command::Extent(ExtentCommand::Exposed { ino, exposed: true }));
        all.push(Command::Extent(ExtentCommand::Exposed { ino, exposed: false }));
        let mutation = Mutation::Unlink { parent: self.ino(), name: self.name(), holders: self.sessions() };
        let trash = TrashPlace { top: self.ino(), ino: self.ino(), keep_secs: self.u64() };
        let repeated = self.flag();
        all.push(Command::Discard { tx: self.tx(), caller: self.caller(), stamp: self.stamp(), mutation, trash, repeated });
        all.push(Command::Restore { ino, to: dir, name: self.name(), stamp: self.stamp() });
        all.push(Command::Purge { ino, holders: self.sessions(), stamp: self.stamp() });
        all
    }

    /// At least one of every kind of log payload.
    pub fn payloads(&mut self) -> Vec<Payload> {
        let boot_id = u128::from(self.u64()) << 64 | u128::from(self.u64());
        let mut all = vec![
            Payload::Forced { upto: self.index() },
            Payload::Start { boot_id, incarnation: Incarnation(self.u16()), forced: self.index() },
        ];
        all.extend(self.commands().into_iter().map(Payload::Command));
        all
    }

    fn client_mutations(&mut self) -> Vec<ClientMutation> {
        let mut all = Vec::new();
        for what in self.makes() {
            let mode = NewMode { mode: self.u16(), umask: self.u16() };
            all.push(ClientMutation::Make { parent: self.ino(), name: self.name(), mode, what, open: self.flag() });
        }
        let whiteout = RenameMode::Whiteout { keep_target: self.flag(), ino: None };
        for mode in [RenameMode::Replace, RenameMode::KeepTarget, RenameMode::Exchange, whiteout] {
            all.push(ClientMutation::Rename { from: self.ino(), name: self.name(), to: self.ino(), new_name: self.name(), mode });
        }
        for mode in [XattrMode::Set, XattrMode::Create, XattrMode::Replace] {
            all.push(ClientMutation::SetXattr { ino: self.ino(), name: self.bytes(), value: self.bytes(), mode });
        }
        all.extend([
            ClientMutation::Link { ino: self.ino(), parent: self.ino(), name: self.name() },
            ClientMutation::Unlink { parent: self.ino(), name: self.name() },
            ClientMutation::Rmdir { parent: self.ino(), name: self.name() },
            ClientMutation::SetAttr { ino: self.ino(), set: self.set_attr() },
            ClientMutation::RemoveXattr { ino: self.ino(), name: self.bytes() },
            ClientMutation::Write { ino: self.ino(), offset: self.u64(), data: self.bytes(), drop_set_id: self.flag() },
            ClientMutation::Append { ino: self.ino(), data: self.bytes(), drop_set_id: self.flag() },
        ]);
        all.extend([
            ClientMutation::Copy {
                from: self.ino(),
                from_offset: self.u64(),
                ino: self.ino(),
                offset: self.u64(),
                len_bytes: self.u64(),
                drop_set_id: self.flag(),
            },
            ClientMutation::Tmpfile { parent: self.ino(), mode: NewMode { mode: self.u16(), umask: self.u16() } },
        ]);
        for what in [Allocation::Reserve, Allocation::Zero] {
            all.push(ClientMutation::Fallocate {
                ino: self.ino(),
                offset: self.u64(),
                len_bytes: self.u64(),
                what,
                keep_size: self.flag(),
                drop_set_id: self.flag(),
            });
        }
        for class in [AclClass::Access, AclClass::Default] {
            all.push(ClientMutation::SetAcl { ino: self.ino(), class, value: self.bytes(), drop_set_gid: self.flag() });
        }
        all
    }

    fn requests(&mut self) -> Vec<Request> {
        let (ino, session) = (self.ino(), self.session());
        let mut all = vec![
            Request::Attach { volume: self.text(), client: self.text(), previous: None, read_only: self.flag(), cluster: None },
            Request::Attach {
                volume: self.text(),
                client: self.text(),
                previous: Some(session),
                read_only: self.flag(),
                cluster: Some(self.cluster()),
            },
            Request::Detach { session },
            Request::Renew { session },
            Request::Shared { session },
            Request::TakeUp { session },
            Request::Told { session },
            Request::Recalled { session, recall: self.u64(), held: self.list(Draw::ino) },
            Request::Lookup { parent: ino, name: self.name() },
            Request::GetAttr { ino },
            Request::ReadLink { ino },
            Request::ReadDir { dir: ino, after: Cookie(self.u64()), limit: self.u32() },
            Request::GetXattr { ino, name: self.bytes() },
            Request::ListXattr { ino },
            Request::Access { caller: self.caller(), ino, access: Access::READ | Access::EXECUTE },
            Request::StatFs { ino },
            Request::Open { session, ino },
            Request::Close { session, ino, count: self.u32() },
            Request::Read { ino, offset: self.u64(), len_bytes: self.u32() },
            Request::Fsync { session, ino },
            Request::SyncFs { session },
            Request::Admin(AdminRequest::Status),
            Request::Admin(AdminRequest::ListDirty { limit: self.u32(), after: self.option(Draw::dirty_point) }),
            Request::Admin(AdminRequest::Flush { path: self.list(Draw::name) }),
            Request::Admin(AdminRequest::Evict { path: self.list(Draw::name), from: (ino, self.u64()), limit_bytes: self.u64() }),
            Request::Admin(AdminRequest::Fsck),
            Request::Seek { ino, offset: self.u64(), to: Seek::Data },
            Request::Seek { ino, offset: self.u64(), to: Seek::Hole },
            Request::Admin(AdminRequest::Explain { path: self.list(Draw::name) }),
            Request::Lock { tx: self.tx(), ask: self.lock_ask(ino), wait: None },
            Request::Lock { tx: self.tx(), ask: self.lock_ask(ino), wait: Some(LockWait { id: self.u64(), detect: self.flag() }) },
            Request::EndWait { session, wait: self.u64() },
            Request::TestLock { session, ino, owner: LockOwner::Fcntl(self.u64()), piece: self.lock_piece() },
            Request::Reclaim { session, ino, owner: LockOwner::Flock(self.u64()), pid: self.u32(), pieces: self.list(Draw::lock_piece) },
        ];
        for mutation in self.client_mutations() {
            all.push(Request::Mutate { tx: self.tx(), caller: self.caller(), mutation, replay: self.option(Draw::replay) });
        }
        all.extend([
            Request::Admin(AdminRequest::SetQuota { path: self.list(Draw::name), limits: Some(self.quota_limits()) }),
            Request::Admin(AdminRequest::SetQuota { path: self.list(Draw::name), limits: None }),
            Request::Admin(AdminRequest::Quotas { path: self.list(Draw::name) }),
            Request::Admin(AdminRequest::ListQuotas { path: self.list(Draw::name) }),
            Request::Admin(AdminRequest::Stats),
            Request::Admin(AdminRequest::Paths { inos: self.list(Draw::ino) }),
            Request::Admin(AdminRequest::Warm { ino, offset: self.u64(), len_bytes: self.u64() }),
            Request::Admin(AdminRequest::FsckBucket { from: FsckPoint::Directories { from: ino } }),
            Request::Admin(AdminRequest::FsckBucket { from: FsckPoint::Reserved { after: self.text() } }),
            Request::Admin(AdminRequest::Mend { remedy: Remedy::Refetch { ino, block: self.u64() } }),
            Request::Admin(AdminRequest::RollBack { path: self.list(Draw::name) }),
            Request::Admin(AdminRequest::ListTrash { path: self.list(Draw::name), from: self.trash_point() }),
            Request::Admin(AdminRequest::Restore { ino, to: self.list(Draw::name) }),
            Request::Admin(AdminRequest::EmptyTrash { path: self.list(Draw::name), until: self.time(), from: self.trash_point() }),
            Request::Admin(AdminRequest::Snapshot),
        ]);
        all
    }

    fn status(&mut self) -> Status {
        Status {
            volume: self.text(),
            backing: self.text(),
            version: self.text(),
            incarnation: Incarnation(self.u16()),
            read_only: self.flag(),
            sessions: self.list(|draw| SessionStatus { session: draw.session(), client: draw.text(), open_files: draw.u64() }),
            inodes: self.u64(),
            log_index: self.index(),
            durable_index: self.index(),
            metadata_bytes: self.u64(),
            metadata_limit_bytes: self.u64(),
            cached_bytes: self.u64(),
            cache_limit_bytes: self.u64(),
            dirty_bytes: self.u64(),
            dirty_files: self.u64(),
            dirty_since: self.option(Draw::time),
            sent_bytes: self.u64(),
            pending_deletes: self.u64(),
            download_bytes_per_sec: self.option(Draw::u64),
            upload_bytes_per_sec: self.option(Draw::u64),
            packs: PackStatus { packs: self.u64(), files: self.u64(), used_bytes: self.u64() },
            scrub: ScrubStatus { blocks: self.u64(), dropped: self.u64(), damaged: self.u64(), round_ended: self.option(Draw::time) },
            encrypted: self.flag(),
            troubles: self.list(|draw| Trouble { since: draw.time(), what: draw.text() }),
        }
    }

    fn pack_range(&mut self) -> PackRange {
        PackRange { pack: PackId(self.u64()), start: self.u64(), len_bytes: self.u64() }
    }

    fn cluster(&mut self) -> ClusterId {
        ClusterId(u128::from(self.u64()) << 64 | u128::from(self.u64()))
    }

    fn explained(&mut self) -> Explained {
        Explained {
            path: self.bytes(),
            ino: self.ino(),
            kind: self.kind(),
            size_bytes: self.u64(),
            store_file: self.option(|draw| (draw.text(), draw.u64())),
            cached_bytes: self.u64(),
            dirty_bytes: self.u64(),
            dirty_runs: self.list(|draw| (draw.u64(), draw.u64())),
            damaged_runs: self.list(|draw| (draw.u64(), draw.u64())),
            dirty_since: self.option(Draw::time),
            sent_bytes: self.option(Draw::u64),
            page_since: self.option(Draw::time),
            pages: self.list(|draw| ExplainedPage {
                key: draw.text(),
                there: draw.flag(),
                etag: draw.option(Draw::text),
                since: draw.option(Draw::time),
            }),
            log: self.text(),
            forced: self.flag(),
            force_failed: self.option(Draw::text),
            unforced_operations: self.u64(),
            bucket: self.option(Draw::text),
            object: self.option(|draw| ExplainedObject { key: draw.text(), etag: draw.text(), len_bytes: draw.u64() }),
            missing: self.option(|draw| if draw.flag() { MissingObject::Lost } else { MissingObject::Removed }),
            open: self.flag(),
            quota: self.option(Draw::quota_status),
            pinned_by: self.option(Draw::bytes),
            exposed: self.flag(),
            kept: self.option(|draw| (draw.bytes(), draw.u64())),
        }
    }

    fn trash_point(&mut self) -> TrashPoint {
        TrashPoint { side: self.u32(), after: self.u64() }
    }

    fn trash_entry(&mut self) -> TrashEntry {
        let trashed = Trashed { path: self.bytes(), at: self.time(), until_secs: self.time().secs, uid: self.u32() };
        TrashEntry { ino: self.ino(), kind: FileKind::Fifo, size_bytes: self.u64(), trashed }
    }

    fn quota_limits(&mut self) -> QuotaLimits {
        QuotaLimits { bytes: self.option(Draw::u64), inodes: self.option(Draw::u64) }
    }

    fn quota_status(&mut self) -> QuotaStatus {
        QuotaStatus {
            path: self.bytes(),
            ino: self.ino(),
            limits: self.quota_limits(),
            used: Usage { bytes: self.u64(), inodes: self.u64() },
            counted: self.flag(),
        }
    }

    fn dirty_point(&mut self) -> DirtyPoint {
        DirtyPoint { since: self.time(), is_dir: self.flag(), ino: self.ino() }
    }

    fn dirty_item(&mut self) -> DirtyItem {
        DirtyItem { path: self.bytes(), ino: self.ino(), since: self.time(), dirty_bytes: self.u64() }
    }

    fn dir_entry(&mut self) -> (DirEntry, Attr) {
        (DirEntry { name: self.name(), ino: self.ino(), kind: self.kind(), cookie: Cookie(self.u64()) }, self.attr())
    }

    fn replies(&mut self) -> Vec<Reply> {
        vec![
            Reply::Attached(Attached {
                session: self.session(),
                cluster: self.cluster(),
                incarnation: Incarnation(self.u16()),
                fresh: self.flag(),
                recovered: self.index(),
                start: self.u64(),
                sole: self.flag(),
                cache_term_ms: self.u32(),
                read_only: self.flag(),
                session_term_ms: self.u32(),
            }),
            Reply::Done,
            Reply::Attr(self.attr()),
            Reply::Link(self.bytes()),
            Reply::Directory { entries: self.list(Draw::dir_entry), end: self.flag() },
            Reply::Xattr(self.bytes()),
            Reply::Xattrs(self.list(Draw::bytes)),
            Reply::Stat(VolumeStat {
                total_bytes: self.u64(),
                free_bytes: self.u64(),
                available_bytes: self.u64(),
                files: self.u64(),
                free_files: self.u64(),
            }),
            Reply::Data(self.bytes()),
            Reply::Mutated(
                Mutated { attr: self.option(Draw::attr), index: self.index(), replay: self.replay() },
                self.list(|draw| Preceding { tx: draw.tx(), index: draw.index(), replay: draw.replay() }),
            ),
            Reply::Forced { durable: self.index() },
            Reply::Admin(AdminReply::Status(Box::new(self.status()))),
            Reply::Admin(AdminReply::Dirty {
                items: self.list(Draw::dirty_item),
                left_out: self.u64(),
                next: self.option(Draw::dirty_point),
            }),
            Reply::Admin(AdminReply::Flushed { files: self.u64(), bytes: self.u64() }),
            Reply::Admin(AdminReply::Evicted { bytes: self.u64(), next: self.option(|draw| (draw.ino(), draw.u64())) }),
            Reply::Admin(AdminReply::Fsck(self.fsck_report())),
            Reply::Offset(self.u64()),
            Reply::Admin(AdminReply::Explained(Box::new(self.explained()))),
            Reply::Lock(LockAnswer::Granted),
            Reply::Lock(LockAnswer::Waiting),
            Reply::Opened { lends: self.flag() },
            Reply::Conflict(None),
            Reply::Conflict(Some(LockConflict { piece: self.lock_piece(), pid: self.u32() })),
            Reply::Admin(AdminReply::Quotas(self.list(Draw::quota_status))),
            Reply::Admin(AdminReply::Stats(NodeStats {
                uptime_ms: self.u64(),
                requests: self.list(Draw::counted),
                reads: ReadStats {
                    from_cache: self.u64(),
                    from_bucket: self.u64(),
                    cache_bytes: self.u64(),
                    bucket_bytes: self.u64(),
                    zero_bytes: self.u64(),
                },
                bucket: self.list(Draw::counted),
            })),
            Reply::Admin(AdminReply::Paths(vec![None, Some(self.bytes())])),
            Reply::Admin(AdminReply::Warmed { bytes: self.u64() }),
            Reply::Admin(AdminReply::FsckPart(FsckPart {
                report: self.fsck_report(),
                done: self.u64(),
                total: self.u64(),
                next: self.option(|draw| FsckPoint::Directories { from: draw.ino() }),
            })),
            Reply::Admin(AdminReply::Mended),
            Reply::Admin(AdminReply::RolledBack { before_bytes: self.u64(), lost_bytes: self.u64(), bytes: self.u64() }),
            Reply::Admin(AdminReply::Trash { entries: self.list(Draw::trash_entry), next: self.option(Draw::trash_point) }),
            Reply::Admin(AdminReply::Restored),
            Reply::Admin(AdminReply::Emptied { entries: self.u64(), bytes: self.u64(), next: self.option(Draw::trash_point) }),
            Reply::Admin(AdminReply::Snapshot {
                cluster: self.cluster(),
                incarnation: Incarnation(self.u16()),
                index: self.index(),
                unloaded: self.u64(),
            }),
        ]
    }

    fn fsck_report(&mut self) -> FsckReport {
        FsckReport {
            inodes: self.u64(),
            blocks: self.u64(),
            objects: self.u64(),
            pages: self.u64(),
            waiting: self.u64(),
            undecided: self.u64(),
            problems: self.list(Draw::problem),
            others: self.list(Draw::text),
        }
    }

    fn problem(&mut self) -> Problem {
        let remedy = match self.u64() % 6 {
            0 => None,
            1 => Some(Remedy::Refetch { ino: self.ino(), block: self.u64() }),
            2 => Some(Remedy::SendAgain { ino: self.ino() }),
            3 => Some(Remedy::Delete { key: self.text(), etag: self.text() }),
            4 => Some(Remedy::Remove { path: self.text() }),
            _ => Some(Remedy::Snapshot),
        };
        Problem { what: self.text(), remedy }
    }

    fn counted(&mut self) -> Counted {
        let mut tally = Tally::default();
        for _ in 0..3 {
            tally.record(std::time::Duration::from_nanos(self.u64()), self.flag(), u64::from(self.u32()));
        }
        Counted { name: self.text(), tally }
    }

    fn errors(&mut self) -> Vec<RpcError> {
        use FsError::*;
        let mut all: Vec<RpcError> = [
            NotFound,
            Exists,
            NotDirectory,
            IsDirectory,
            NotEmpty,
            AccessDenied,
            NotPermitted,
            Invalid,
            NameTooLong,
            TooManyLinks,
            TooLarge,
            NoAttribute,
            ValueTooLarge,
            Range,
            NoSpace,
            ReadOnly,
            NotSupported,
            CrossDevice,
            Busy,
            Stale,
            Io,
            TimedOut,
            NoData,
            WouldBlock,
            Deadlock,
            NoLocks,
            Interrupted,
            QuotaExceeded,
            NoMemory,
        ]
        .map(RpcError::Refused)
        .into();
        all.extend([RpcError::SessionExpired, RpcError::Misordered, RpcError::Overloaded, RpcError::Lost]);
        all.extend([RpcError::NotServing(self.text()), RpcError::Denied(self.text())]);
        all
    }

    /// At least one of every kind of message.
    pub fn messages(&mut self) -> Vec<Message> {
        let mut all = Vec::new();
        for request in self.requests() {
            all.push(Message::Request { id: RequestId(self.u64().max(1)), request });
        }
        for reply in self.replies() {
            all.push(Message::Reply { id: RequestId(self.u64()), reply });
        }
        for error in self.errors() {
            all.push(Message::Error { id: RequestId(self.u64()), error });
        }
        let notices = [
            Notice::Durable { durable: self.index() },
            Notice::Share,
            Notice::Invalidate { ino: self.ino() },
            Notice::Leaving,
            Notice::Lock { wait: self.u64() },
            Notice::Recall { recall: self.u64(), inos: self.list(Draw::ino) },
            Notice::Relinked { dir: self.ino(), name: self.name() },
        ];
        all.extend(notices.map(Message::Notice));
        all
    }
}
