//! The node, its log, its disk and its bucket.

use super::staging::staged;
use bytes::Bytes;
use ebb_core::backing::{Listed, PageChanges};
use ebb_core::extent::{Effect, ExtentItem};
use ebb_core::namespace::policy::{POLICY, value_of};
use ebb_core::partition::Partition;
use ebb_core::state::{Applied, State};
use ebb_model::*;
use std::collections::{BTreeMap, VecDeque};

/// One byte per choice; shrinks to the first alternative.
pub struct Dice {
    bytes: [u8; 8],
    at: usize,
}

impl Dice {
    pub fn new(bytes: [u8; 8]) -> Dice {
        Dice { bytes, at: 0 }
    }

    pub fn below(&mut self, count: usize) -> usize {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(byte) % count.max(1)
    }

    pub fn of<T: Clone>(&mut self, choices: &[T]) -> Option<T> {
        choices.get(self.below(choices.len())).cloned()
    }
}

#[derive(Clone, Debug)]
pub struct Stored {
    pub etag: String,
    pub body: Vec<u8>,
    pub tag: Option<Tag>,
}

/// The write that an object came from, as in the tags of real objects.
#[derive(Clone, Debug)]
pub struct Tag {
    pub attempt: u64,
    /// Version of the bytes; `None` for a copy.
    pub version: Option<Version>,
}

/// A request of the node to the bucket, in steps.
#[derive(Clone, Debug)]
pub enum Flight {
    Put {
        ino: Ino,
        key: String,
        replaces: Option<String>,
        attempt: u64,
    },
    Copy {
        ino: Ino,
        from: String,
        to: String,
        etag: String,
        attempt: u64,
    },
    Settle {
        ino: Ino,
        key: String,
        done: Stored,
    },
    Delete {
        key: String,
        etag: Option<String>,
        done: bool,
    },
    Page {
        dir: Ino,
        key: String,
        marker: Option<String>,
        merge: bool,
    },
    /// All pieces have been written.
    Head {
        dir: Ino,
        key: String,
        version: Version,
        head: PageHead,
        parts: PageChanges,
    },
    PageDone {
        told: VecDeque<BackingCommand>,
    },
    Listed {
        dir: Ino,
        epoch: u64,
        entries: Vec<Listed>,
        page: Option<PageHead>,
        first: bool,
        progress: LoadProgress,
    },
    ListedAgain {
        dir: Ino,
        epoch: u64,
        entries: Vec<Listed>,
    },
}

pub struct World {
    /// Whether the bucket can hold an object at a key and another one below it.
    pub nests: bool,
    pub state: State,
    pub time: i64,
    pub sequence: u64,
    pub bucket: BTreeMap<String, Stored>,
    pub etags: u64,
    pub stores: BTreeMap<Ino, Vec<u8>>,
    pub truth: BTreeMap<Ino, Vec<u8>>,
    pub flights: Vec<Flight>,
    /// The logged attempt of each upload in progress.
    pub begun: BTreeMap<Ino, u64>,
    pub attempts: u64,
}

pub const SESSION: SessionId = SessionId(1);

pub fn names() -> Vec<Name> {
    let long = [b'n'; 250];
    let all: [&[u8]; 10] =
        [b"a", b"b", b"c", b"x", b"\xff\xfe", b"a.ebb%object", b"d", b".ebb%q", b".ebb", &long];
    all.iter().map(|name| Name::new(name).unwrap()).collect()
}

pub fn root_record() -> InstalledRecord {
    let time = Time::from_secs(5);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    InstalledRecord {
        mode: 0o755,
        nlink: 2,
        uid: 7,
        gid: 8,
        atime,
        mtime,
        ctime,
        btime,
        // Inherited by everything.
        xattrs: vec![(Bytes::from_static(POLICY), value_of(PolicyId(3)))],
        links: vec![],
    }
}

impl World {
    pub fn new(foreign: bool) -> World {
        World::over(foreign, true)
    }

    pub fn over(foreign: bool, nests: bool) -> World {
        let mut world = World {
            nests,
            state: State::of(Partition::new(IdRange::whole(IdEpoch(1)), root_record(), true)),
            time: 100,
            sequence: 0,
            bucket: BTreeMap::new(),
            etags: 0,
            stores: BTreeMap::new(),
            truth: BTreeMap::new(),
            flights: Vec::new(),
            begun: BTreeMap::new(),
            attempts: 0,
        };
        if foreign {
            let keys = [
                "a/b/c", "d", "d!", "d/a", "d/x", "p//q", "p/../r", ".ebb%zz", "x/1", "x/2", "x/3",
                "x/4", "b/", "c",
            ];
            for key in keys.into_iter().filter(|key| nests || *key != "d") {
                world.store(key, key.as_bytes().to_vec(), None);
            }
        }
        world.apply(Command::SessionOpen {
            session: SESSION,
            client: "test".into(),
            replaces: None,
        });
        world
    }

    pub fn step(&mut self, mut dice: Dice) {
        self.time += 1;
        match dice.below(25) {
            0..=7 => self.mutation(&mut dice),
            8..=10 => self.begin_flush(&mut dice),
            11..=14 => {
                if !self.flights.is_empty() {
                    let at = dice.below(self.flights.len());
                    self.advance(at);
                }
            }
            15 => self.begin_delete(&mut dice),
            16 => self.begin_load(&mut dice),
            17 => self.evict(&mut dice),
            18 => self.unredirect(&mut dice),
            19 => self.set_quota(&mut dice),
            20 | 21 => self.empty_trash(&mut dice),
            22 | 23 => self.forget(&mut dice),
            _ => self.crash(),
        }
    }

    /// Flushes everything and drops the cache: the bucket alone must yield the same tree.
    pub fn restart_from_bucket(&mut self) {
        self.load_all();
        let before = self.dump();
        let counted = self.counted();
        self.drain();
        assert_eq!(before, self.dump(), "flushing changed the tree");
        self.check_no_leak();
        let root = match self.head_at(Ino::ROOT) {
            Some(head) => head.page.record,
            None => root_record(),
        };
        // As after a release: the next node draws ids from the highest used counter on.
        let namespace = self.state.namespace();
        let ids = IdRange { from: namespace.end_of_used_ids(), ..namespace.id_range() };
        self.state = State::of(Partition::new(ids, root, true));
        self.sequence = 0;
        self.stores.clear();
        self.truth.clear();
        self.begun.clear();
        self.apply(Command::SessionOpen {
            session: SESSION,
            client: "test".into(),
            replaces: None,
        });
        let cold = self.state.clone();
        let truth = self.truth.clone();
        self.load_all();
        let after = self.dump();
        let keys =
            || self.bucket.keys().map(|key| key.replace(&"n".repeat(250), "N")).collect::<Vec<_>>();
        for path in before.keys().chain(after.keys()) {
            let there = (before.contains_key(path), after.contains_key(path));
            assert_eq!(
                there,
                (true, true),
                "{} before and after, over {:?}",
                path.escape_ascii(),
                keys()
            );
        }
        for (path, entry) in &before {
            assert_eq!(Some(entry), after.get(path), "at {}", path.escape_ascii());
        }
        if let Some(counted) = counted {
            assert_eq!(Some(counted), self.counted(), "quotas count the loaded tree");
        }
        assert!(self.state.backing().is_settled(), "loading makes nothing dirty");
        // The next run begins with nothing loaded.
        self.state = cold;
        self.truth = truth;
    }

    pub fn apply(&mut self, command: Command) -> Applied {
        for staged in staged(&command, None) {
            self.state.stage(&staged);
        }
        let index = LogIndex(self.state.applied().0 + 1);
        let applied = self.state.apply(index, &command);
        for effect in &applied.effects {
            match effect {
                Effect::Drop { ino } => {
                    self.stores.remove(ino);
                    self.truth.remove(ino);
                }
                Effect::Cut { ino, len_bytes } => {
                    if let Some(store) = self.stores.get_mut(ino) {
                        store.truncate(*len_bytes as usize);
                    }
                }
                Effect::Punch { ino, .. } => drop(self.stores.insert(*ino, Vec::new())),
                Effect::Vacate { .. } => unreachable!("nothing is packed here"),
            }
        }
        let problems = self.state.check();
        assert!(problems.is_empty(), "after {command:?}: {problems:#?}");
        applied
    }

    pub fn log(&mut self, command: BackingCommand) {
        self.apply(Command::Backing(command));
    }

    pub fn stamp(&self) -> Stamp {
        Stamp { time: Time::from_secs(self.time), version: self.state.next_version() }
    }

    /// Evicts clean blocks; the store file's bytes there become undefined.
    pub fn evict(&mut self, dice: &mut Dice) {
        let files: Vec<Ino> = self.stores.keys().copied().collect();
        let Some(ino) = dice.of(&files) else { return };
        if self.state.extents().block(ino, 0).is_some_and(|block| !block.dirty) {
            self.apply(Command::Extent(LocalCommand::Absent { ino, first: 0, count: 1 }));
            self.stores.insert(ino, vec![0xee; 64]);
        }
    }

    /// Low limits, so some mutations are refused, and one high limit.
    pub fn set_quota(&mut self, dice: &mut Dice) {
        let dir = dice.of(&self.directories()).unwrap();
        let bytes = [None, Some(0), Some(40), Some(1 << 40)][dice.below(4)];
        let inodes = [None, Some(3), Some(1 << 40)][dice.below(3)];
        let limits = (dice.below(4) > 0).then_some(QuotaLimits { bytes, inodes });
        self.apply(Command::Quota { dir, limits, stamp: self.stamp() });
    }

    /// Usage of every quota, by path. `None` while an orphan counts, which a restart forgets, or
    /// while an inode has names on both sides of a border, since a restart can make another one
    /// primary.
    pub fn counted(&self) -> Option<BTreeMap<Vec<Name>, (QuotaLimits, Usage)>> {
        let namespace = self.state.namespace();
        let quota = |root| Some((namespace.path_of(root)?, namespace.quota(root)?));
        let mut sides = BTreeMap::new();
        let mut names =
            self.dentries().into_iter().map(|(dir, _, ino)| (ino, namespace.quota_root(dir)));
        let is_on_one_side = names.all(|(ino, side)| *sides.entry(ino).or_insert(side) == side);
        let all_count = is_on_one_side && namespace.orphans().next().is_none();
        all_count.then(|| namespace.quota_roots().filter_map(quota).collect())
    }

    pub fn unredirect(&mut self, dice: &mut Dice) {
        if let Some(dir) = dice.of(&self.directories()) {
            self.log(BackingCommand::Unredirect { dir });
        }
    }

    /// The process dies: requests in progress may or may not take effect, and only the log
    /// survives.
    pub fn crash(&mut self) {
        self.flights.clear();
        let items = |state: &State| {
            let local: Vec<ExtentItem> = state.local().items().collect();
            (state.partition().items().collect::<Vec<_>>(), local)
        };
        let (shared, local) = items(&self.state);
        let restored = State::from_items(shared, local).expect("a snapshot can be read");
        assert!(items(&restored) == items(&self.state), "a snapshot is the same state");
        self.state = restored;
        let uploads: Vec<_> =
            self.state.backing().uploads().map(|(ino, upload)| (ino, upload.clone())).collect();
        for (ino, upload) in uploads {
            let attempt = self.begun[&ino];
            let object = self.bucket.get(&upload.key).cloned();
            match object
                .filter(|object| object.tag.as_ref().is_some_and(|tag| tag.attempt == attempt))
            {
                Some(done) => self.settle(ino, upload.key, &done),
                None => self.log(BackingCommand::UploadAborted { ino }),
            }
        }
    }
}
