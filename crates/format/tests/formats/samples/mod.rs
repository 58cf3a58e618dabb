//! Values of every variant that a format can carry. The same code makes the golden samples (one
//! fixed seed) and the random values of the property tests.

mod commands;
mod messages;
mod names;

pub use names::*;

use bytes::Bytes;
use ebb_model::*;

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
        // All magnitudes are equally likely, so every length of a varint occurs.
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
        let bytes: Vec<u8> = (0..len)
            .map(|_| [b'a', b'Z', b'.', b'-', b' ', 0xff, b'\n', b'7'][self.below(8) as usize])
            .collect();
        Name::new(&bytes).unwrap_or_else(|_| Name::new(b"x").expect("x is a name"))
    }

    pub fn option<T>(&mut self, value: impl FnOnce(&mut Draw) -> T) -> Option<T> {
        self.flag().then(|| value(self))
    }

    pub fn list<T>(&mut self, mut value: impl FnMut(&mut Draw) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| value(self)).collect()
    }

    fn range_lock(&mut self) -> RangeLock {
        let (start, len) = (self.u64() >> 2, self.u64() >> 2);
        let mode = if self.flag() { LockMode::Shared } else { LockMode::Exclusive };
        RangeLock { range: LockRange::new(start, start + len).expect("it is a range"), mode }
    }

    fn lock_ask(&mut self, ino: Ino) -> LockAsk {
        let RangeLock { range, mode } = self.range_lock();
        let (owner, mode) =
            (LockOwner::Fcntl(self.u64()), if self.flag() { Some(mode) } else { None });
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

    fn position(&mut self) -> Position {
        Position(self.u64())
    }

    fn index(&mut self) -> LogIndex {
        LogIndex(self.u64())
    }

    fn stamp(&mut self) -> Stamp {
        Stamp { time: self.time(), version: self.version() }
    }

    fn caller(&mut self) -> Caller {
        Caller {
            uid: self.u32(),
            gid: self.u32(),
            groups: self.list(Draw::u32),
            checked: self.flag(),
        }
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
        Replay {
            stamp: self.stamp(),
            ino: self.option(Draw::ino),
            offset: self.option(Draw::u64),
            len_bytes: self.option(Draw::u64),
        }
    }

    fn pack_range(&mut self) -> PackRange {
        PackRange { pack: PackId(self.u64()), start: self.u64(), len_bytes: self.u64() }
    }

    fn quota_limits(&mut self) -> QuotaLimits {
        QuotaLimits { bytes: self.option(Draw::u64), inodes: self.option(Draw::u64) }
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
        let mut makes =
            vec![Make::Regular, Make::Directory, Make::Symlink { target: self.bytes() }];
        makes.extend(ALL_KINDS.map(|kind| Make::Special { kind, rdev: self.u32() }));
        makes
    }

    pub fn installed_kinds(&mut self) -> Vec<InstalledKind> {
        let object = |draw: &mut Draw, key| InstalledKind::Object {
            key,
            etag: draw.text(),
            len_bytes: draw.u64(),
            modified: draw.time(),
        };
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
}
