//! The choices of the seed for a run.

use super::rig::{Medium, VOLUME};
use super::workload::{Pace, numbered_name};
use crate::oracle::{Permitted, Tree};
use crate::{BucketFaults, FaultPlan, Rate, Rng, SimBucket};
use bytes::Bytes;
use ebb_core::backing::page_key;
use ebb_format::page;
use ebb_model::{DirectoryPage, Ino, InstalledRecord, KEEP, PACK_BYTES, PACKED_BYTES, Time};
use ebb_node::head::TakeOver;
use ebb_node::{Eviction, Options};
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Plan {
    pub faults: FaultPlan,
    pub options: Options,
    pub workers: u64,
    pub pace: Pace,
    pub medium: Medium,
    /// The bucket is not empty at the beginning.
    found: bool,
    /// Everything that is removed is kept.
    keeps: bool,
    /// The quota of the root allows so many inodes.
    pub inode_limit: Option<u64>,
    /// The bucket has a place for an object at a key and one below it.
    nests: bool,
    /// No two objects of the bucket have the same tag.
    own_tags: bool,
    guards: Guards,
    parts: Parts,
    /// Long objects are copied in parts.
    copies_in_parts: bool,
    /// Entries that the bucket lists at one time.
    most_listed: usize,
}

/// Conditions that the bucket looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Guards {
    All,
    /// Not those of deletes, nor those of the targets of copies.
    Puts,
    None,
}

/// The handling of parts of uploads by the bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Parts {
    Copied,
    /// It says so before.
    NotCopied,
    Refused,
    /// Until somebody takes them away.
    Kept,
}

/// Objects that others have put into the bucket before.
const FOUND: [(&str, &[u8]); 4] =
    [("a", b"found"), ("d/a", b"below"), ("d/b/c", b"deep"), ("e/a/b/c", b"deeper")];

/// Files of the large directory.
const NUMBERED: u64 = 300;

impl Plan {
    pub fn draw(rng: &Rng) -> Plan {
        let mut faults = FaultPlan::random(&rng.split("faults"));
        if rng.below(4) != 0 {
            faults.disk.read_error = Rate::NEVER;
            faults.disk.write_error = Rate::NEVER;
            faults.disk.sync_error = Rate::NEVER;
            faults.disk.name_error = Rate::NEVER;
        }
        let full = rng.split("full");
        if full.below(4) == 0 {
            faults.disk.full = Rate::one_in(40 + full.below(400) as u32);
            faults.disk.full_limit = full.duration(Duration::ZERO, FULL);
            faults.disk.full_room_bytes = [0, 4 << 10, 200 << 10][full.index(3)];
        }
        if rng.below(3) == 0 {
            faults.bucket = Default::default();
        }
        let stale = rng.split("stale listings");
        if stale.below(3) == 0 {
            faults.bucket.stale_listing = [Rate::one_in(2), Rate::one_in(10)][stale.index(2)];
            faults.bucket.stale_limit = stale.duration(Duration::ZERO, STALE);
        }
        let numbered = [0, 0, 0, 0, 0, NUMBERED][rng.split("numbered").index(6)];
        if numbered > 0 {
            // Each look reads every file, which takes too long where requests fail.
            let BucketFaults { stale_listing, stale_limit, .. } = faults.bucket;
            faults.bucket = BucketFaults { stale_listing, stale_limit, ..Default::default() };
        }
        // A request that takes effect later than this can undo a later change (S-18e).
        faults.bucket.late_limit = faults.bucket.late_limit.min(LATE);
        let guards =
            [Guards::None, Guards::Puts, Guards::All, Guards::All, Guards::All, Guards::All]
                [rng.split("unguarded").index(6)];
        let parts = [Parts::Copied, Parts::Copied, Parts::NotCopied, Parts::Refused, Parts::Kept]
            [rng.split("kept").index(5)];
        let options = Options {
            // Without conditions nobody can find out that a node is dead: somebody has made sure of
            // it.
            take_over: if guards == Guards::None { TakeOver::Now } else { TakeOver::IfAbandoned },
            volume: VOLUME.into(),
            owner: "simulated".into(),
            head_term: Duration::from_secs(10),
            session_term: Duration::from_secs(10),
            ack_durable: rng.below(8) == 0,
            flush_interval: Duration::from_secs(rng.below(6)),
            flush_parallel: 1 + rng.index(4),
            // Of streams of their own: seeds that found something go on finding it.
            eviction: [Eviction::S3Fifo, Eviction::Lru][rng.split("eviction").index(2)],
            part_bytes: [64 << 10, 128 << 10, 8 << 20][rng.split("parts").index(3)],
            early_bytes: [0, 128 << 10, 32 << 20][rng.split("early").index(3)],
            pack_below_bytes: [0, 8 << 10, PACKED_BYTES][rng.split("packed").index(3)],
            pack_bytes: [PACKED_BYTES, PACK_BYTES][rng.split("packs").index(2)],
            page_piece_entries: [1, 2, 8, 4096][rng.split("pieces").index(4)],
            record_pieces: [1, 2, 1024][rng.split("told").index(3)],
            cache_bytes: [1 << 30, 2 << 20, 40 << 20][rng.index(3)],
            dirty_bytes: [1 << 30, 1 << 20, 20 << 20][rng.index(3)],
            space_timeout: Duration::from_secs(20),
            bucket_timeout: Duration::from_secs(20),
            buffer_bytes: [1 << 30, 1 << 30, 1 << 30, 256 << 10][rng.split("buffers").index(4)],
            read_ahead_bytes: [0, 1 << 20, 16 << 20][rng.index(3)],
            snapshot_operations: [20, 100, 100_000][rng.index(3)],
            segment_bytes: [32 << 10, 64 << 10, 256 << 10][rng.index(3)],
            // A large directory would be listed again at each use.
            revalidate: [None, None, Some(Duration::from_secs(1)), Some(Duration::from_secs(8))]
                [rng.split("revalidate").index(4)]
            .filter(|_| numbered == 0),
            ..Options::default()
        };
        let keeps = rng.split("trash").index(4) == 0;
        let quota = rng.split("quota");
        // The trash counts too, objects of other programs count beyond the limit once they are
        // seen, and a large directory is beyond any limit.
        let can_be_limited = !keeps && numbered == 0 && options.revalidate.is_none();
        let inode_limit = (can_be_limited && quota.below(3) == 0).then(|| 2 + quota.below(16));
        Plan {
            faults,
            options,
            workers: 1 + rng.below(3),
            pace: Pace {
                operations: 5 + rng.below(40),
                pause_limit: Duration::from_millis([1, 20, 200][rng.index(3)]),
                far: [Rate::NEVER, Rate::one_in(40)][rng.index(2)],
                numbered,
            },
            medium: [Medium::Plain, Medium::Plain, Medium::Encrypted]
                [rng.split("encrypted").index(3)],
            found: rng.below(2) == 0,
            keeps,
            inode_limit,
            nests: rng.split("nested").index(3) != 0,
            own_tags: rng.split("tags").index(3) == 0,
            guards,
            parts,
            copies_in_parts: parts != Parts::Refused && rng.split("copied").index(3) == 0,
            most_listed: [1000, 1000, 3, 2][rng.split("listed").index(4)],
        }
    }

    /// Nobody is kept from the node, nor the node from its bucket, for so long that a session ends.
    pub fn keep_sessions(&mut self) {
        self.options.session_term = Duration::from_secs(60);
        self.faults.net.partition = Rate::NEVER;
        self.faults.bucket.gone = Rate::NEVER;
        self.faults.bucket.forbidden = Rate::NEVER;
    }

    /// The bucket looks at all conditions: nodes of a volume take its head from each other.
    pub fn keep_conditions(&mut self) {
        self.guards = Guards::All;
        self.options.take_over = TakeOver::IfAbandoned;
    }

    /// There is always room for bytes that clients repeat after a power cut. Otherwise they are
    /// lost, and the next sync of the file reports it.
    pub fn keep_room(&mut self) {
        self.faults.disk.full = Rate::NEVER;
    }

    /// The bucket is slow or refuses requests. A stale listing is no reason to refuse anything.
    fn bucket_fails(&self) -> bool {
        let fresh = BucketFaults {
            stale_listing: Rate::NEVER,
            stale_limit: Duration::ZERO,
            ..self.faults.bucket
        };
        fresh != BucketFaults::default()
    }

    pub fn permitted(&self) -> Permitted {
        let bucket = self.bucket_fails()
            || self.options.cache_bytes < 1 << 30
            || self.options.dirty_bytes < 1 << 30;
        Permitted {
            io: self.disk_fails(),
            bucket,
            room: self.faults.disk.full != Rate::NEVER,
            expiry: false,
            durable_answers: self.options.ack_durable,
        }
    }

    /// How much older than the revalidation interval a version can be that is shown; `None`: as old
    /// as the bucket fails.
    pub fn staleness(&self) -> Option<Duration> {
        let BucketFaults { stale_listing, stale_limit, .. } = self.faults.bucket;
        let listed = if stale_listing == Rate::NEVER { Duration::ZERO } else { stale_limit };
        (!self.bucket_fails()).then_some(AHEAD + listed)
    }

    pub fn disk_fails(&self) -> bool {
        let disk = self.faults.disk;
        [disk.read_error, disk.write_error, disk.sync_error, disk.name_error]
            .iter()
            .any(|rate| *rate != Rate::NEVER)
    }

    /// Fills the bucket, and returns the resulting volume.
    pub fn fill(&self, bucket: &SimBucket) -> Tree {
        bucket.keep_versions();
        if !self.nests {
            bucket.exclude_nested();
        }
        if self.own_tags {
            bucket.give_own_tags();
        }
        match self.guards {
            Guards::All => {}
            Guards::Puts => bucket.guard_puts_alone(),
            Guards::None => bucket.forget_conditions(),
        }
        match self.parts {
            Parts::Copied => {}
            Parts::NotCopied => bucket.say_no_part_is_copied(),
            Parts::Refused => bucket.refuse_part_copies(),
            Parts::Kept => bucket.keep_parts(),
        }
        if self.copies_in_parts {
            bucket.copy_in_parts();
        }
        bucket.list_at_most(self.most_listed);
        let mut found: Vec<(String, Vec<u8>)> = Vec::new();
        if self.found {
            found.extend(FOUND.iter().map(|(key, body)| ((*key).into(), body.to_vec())));
        }
        let numbered = (0..self.pace.numbered).map(|number| {
            (format!("many/{}", numbered_name(number)), format!("file {number}").into_bytes())
        });
        found.extend(numbered);
        for (key, body) in &found {
            bucket.put_as_outsider(key, body.clone(), vec![]).expect("outsiders meet no faults");
        }
        let tree = Tree::with_objects(found.iter().map(|(key, body)| (&key[..], &body[..])));
        let tree = match self.inode_limit {
            Some(inodes) => tree.limited(inodes),
            None => tree,
        };
        if !self.keeps {
            return tree;
        }
        let (name, value) = (Bytes::from_static(KEEP), Bytes::from_static(b"1000000000"));
        let (atime, mtime, ctime, btime) =
            (Time::default(), Time::default(), Time::default(), Time::default());
        let xattrs = vec![(name.clone(), value.clone())];
        let dirs: BTreeSet<&str> =
            found.iter().filter_map(|(key, _)| Some(key.split_once('/')?.0)).collect();
        let nlink = 2 + dirs.len() as u32;
        let record = InstalledRecord {
            mode: 0o755,
            nlink,
            uid: 0,
            gid: 0,
            atime,
            mtime,
            ctime,
            btime,
            xattrs,
            links: vec![],
        };
        let page =
            DirectoryPage { dir: Ino::ROOT, parent: None, record, hidden: vec![], entries: vec![] };
        let body = page::encode(&page.into()).expect("it is a small page").to_vec();
        bucket
            .put_as_outsider(&page_key(Ino::ROOT), body, vec![])
            .expect("outsiders meet no faults");
        tree.keeping(name, value)
    }
}

/// A listing that is fetched ahead is used for so long (S-15h), and a request takes its time.
const AHEAD: Duration = Duration::from_secs(11);

/// How old a listing can be.
const STALE: Duration = Duration::from_secs(20);

/// How long a disk can stay full.
const FULL: Duration = Duration::from_secs(60);

/// Shorter than the node waits before it does something else to the key.
pub const LATE: Duration = Duration::from_secs(8);
