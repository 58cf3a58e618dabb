use bytes::Bytes;
use ebb_core::backing::{self, DirtyWork, FlushStep, Listed, Listing, PageStep, Scope, keys};
use ebb_core::extent::{Fill, Source};
use ebb_core::partition::{Applied, Effect, Partition};
use ebb_model::*;
use std::collections::{BTreeMap, BTreeSet};

/// One byte per choice; shrinks to the first alternative.
pub struct Dice {
    bytes: [u8; 8],
    at: usize,
}

impl Dice {
    pub fn new(bytes: [u8; 8]) -> Dice {
        Dice { bytes, at: 0 }
    }

    fn below(&mut self, count: usize) -> usize {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(byte) % count.max(1)
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> Option<T> {
        choices.get(self.below(choices.len())).cloned()
    }
}

#[derive(Clone, Debug)]
struct Stored {
    etag: String,
    body: Vec<u8>,
    tag: Option<Tag>,
}

/// Which write an object came from, as the tags of real objects say it.
#[derive(Clone, Debug)]
struct Tag {
    attempt: u64,
    /// Of the content; `None` for a copy.
    version: Option<Version>,
}

/// Something that the node has asked of the bucket, step by step.
#[derive(Clone, Debug)]
enum Flight {
    Put { ino: Ino, key: String, replaces: Option<String>, attempt: u64 },
    Copy { ino: Ino, from: String, to: String, etag: String, attempt: u64 },
    Settle { ino: Ino, key: String, done: Stored },
    Delete { key: String, etag: Option<String>, done: bool },
    Page { dir: Ino, key: String, marker: Option<String>, merge: bool },
    PageDone { dir: Ino, version: Version, etag: String },
    Listed { dir: Ino, epoch: u64, entries: Vec<Listed>, page: Option<DirectoryPage>, first: bool, progress: LoadProgress },
}

pub struct World {
    partition: Partition,
    incarnation: u16,
    time: i64,
    sequence: u64,
    bucket: BTreeMap<String, Stored>,
    etags: u64,
    stores: BTreeMap<Ino, Vec<u8>>,
    truth: BTreeMap<Ino, Vec<u8>>,
    flights: Vec<Flight>,
    /// Attempt that the log has for each upload under way.
    begun: BTreeMap<Ino, u64>,
    attempts: u64,
}

const SESSION: SessionId = SessionId(1);

fn names() -> Vec<Name> {
    let long = [b'n'; 250];
    let all: [&[u8]; 10] = [b"a", b"b", b"c", b"x", b"\xff\xfe", b"a.ebb%object", b"d", b".ebb%q", b".ebb", &long];
    all.iter().map(|name| Name::new(name).unwrap()).collect()
}

fn root_record() -> InstalledRecord {
    let time = Time::from_secs(5);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    InstalledRecord { mode: 0o755, nlink: 2, uid: 7, gid: 8, atime, mtime, ctime, btime, xattrs: vec![], links: vec![] }
}

impl World {
    pub fn new(foreign: bool) -> World {
        let mut world = World {
            partition: Partition::new(Incarnation(1), root_record(), true),
            incarnation: 1,
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
            let keys = ["a/b/c", "d", "d!", "d/a", "d/x", "p//q", "p/../r", ".ebb%zz", "x/1", "x/2", "x/3", "x/4", "b/", "c"];
            for key in keys {
                world.store(key, key.as_bytes().to_vec(), None);
            }
        }
        world.apply(Command::SessionOpen { session: SESSION, client: "test".into(), replaces: None });
        world
    }

    pub fn step(&mut self, mut dice: Dice) {
        self.time += 1;
        match dice.below(20) {
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
            _ => self.crash(),
        }
    }

    /// Everything is flushed and the cache is lost: what the bucket alone gives must be the same.
    pub fn restart_from_bucket(&mut self) {
        self.load_all();
        let before = self.dump();
        self.drain();
        assert_eq!(before, self.dump(), "flushing changed what is seen");
        self.check_no_leak();
        let root = match self.page_at(Ino::ROOT) {
            Some(page) => page.record,
            None => root_record(),
        };
        self.incarnation += 1;
        self.partition = Partition::new(Incarnation(self.incarnation), root, true);
        self.sequence = 0;
        self.stores.clear();
        self.truth.clear();
        self.begun.clear();
        self.apply(Command::SessionOpen { session: SESSION, client: "test".into(), replaces: None });
        let cold = self.partition.clone();
        let truth = self.truth.clone();
        self.load_all();
        let after = self.dump();
        let keys = || self.bucket.keys().map(|key| key.replace(&"n".repeat(250), "N")).collect::<Vec<_>>();
        for path in before.keys().chain(after.keys()) {
            let there = (before.contains_key(path), after.contains_key(path));
            assert_eq!(there, (true, true), "{} before and after, over {:?}", path.escape_ascii(), keys());
        }
        for (path, entry) in &before {
            assert_eq!(Some(entry), after.get(path), "at {}", path.escape_ascii());
        }
        assert!(self.partition.backing().is_settled(), "loading makes nothing dirty");
        // The next life begins with nothing loaded.
        self.partition = cold;
        self.truth = truth;
    }

    fn apply(&mut self, command: Command) -> Applied {
        let index = LogIndex(self.partition.applied().0 + 1);
        let applied = self.partition.apply(index, &command);
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
            }
        }
        let problems = self.partition.check();
        assert!(problems.is_empty(), "after {command:?}: {problems:#?}");
        applied
    }

    fn log(&mut self, command: BackingCommand) {
        self.apply(Command::Backing(command));
    }

    fn stamp(&self) -> Stamp {
        Stamp { time: Time::from_secs(self.time), version: self.partition.next_version() }
    }

    // Mutations.

    fn mutation(&mut self, dice: &mut Dice) {
        let dirs = self.directories();
        let names = names();
        let dir = dice.of(&dirs).unwrap();
        let name = dice.of(&names).unwrap();
        let holders = if dice.below(4) == 0 { vec![SESSION] } else { vec![] };
        let (there, there_name) = match dice.of(&self.dentries()) {
            Some((parent, name, _)) => (parent, name),
            None => (dir, name.clone()),
        };
        let entry = self.partition.namespace().dentry(there, &there_name);
        let mode = [0o644, 0o600, 0o755][dice.below(3)];
        let make = |world: &World, what| {
            let ino = world.partition.namespace().next_ino(dir);
            Mutation::Make { parent: dir, name: name.clone(), ino, mode, what }
        };
        let mutation = match dice.below(16) {
            0 | 1 => make(self, Make::Regular),
            2 | 3 => make(self, Make::Directory),
            4 => make(self, Make::Symlink { target: Bytes::from_static(b"to/\xff") }),
            5 => make(self, Make::Special { kind: FileKind::Fifo, rdev: 0 }),
            6 => match entry {
                Some(entry) => Mutation::Link { ino: entry.ino, parent: dir, name },
                None => return,
            },
            7 => Mutation::Unlink { parent: there, name: there_name, holders },
            8 => Mutation::Rmdir { parent: there, name: there_name, holders },
            9 | 10 => {
                let mode = RenameMode::Replace;
                Mutation::Rename { from: there, name: there_name, to: dir, new_name: name, mode, holders }
            }
            11 => match dice.of(&self.dentries()) {
                Some((to, new_name, _)) => {
                    Mutation::Rename { from: there, name: there_name, to, new_name, mode: RenameMode::Exchange, holders }
                }
                None => return,
            },
            12 => match entry {
                Some(entry) => {
                    let set = SetAttr { mode: Some(mode), mtime: Some(SetTime::To(Time { secs: 9, nanos: 9 })), ..SetAttr::default() };
                    Mutation::SetAttr { ino: entry.ino, set }
                }
                None => Mutation::SetAttr { ino: Ino::ROOT, set: SetAttr { mode: Some(mode), ..SetAttr::default() } },
            },
            13 => match entry {
                Some(entry) => {
                    let (name, value) = (Bytes::from_static(b"user.k"), Bytes::from(vec![dice.below(256) as u8]));
                    Mutation::SetXattr { ino: entry.ino, name, value, mode: XattrMode::Set }
                }
                None => return,
            },
            14 => {
                let orphans: Vec<Ino> = self.partition.namespace().orphans().map(|(ino, _)| ino).collect();
                if let Some(ino) = dice.of(&orphans) {
                    self.apply(Command::Release { session: SESSION, ino });
                }
                return;
            }
            _ => match entry.filter(|entry| entry.kind == FileKind::Regular) {
                Some(entry) if dice.below(3) == 0 => {
                    let size = dice.below(30) as u64;
                    Mutation::SetAttr { ino: entry.ino, set: SetAttr { size_bytes: Some(size), ..SetAttr::default() } }
                }
                Some(entry) => return self.write(entry.ino, dice.below(25), dice.below(9) + 1),
                None => return,
            },
        };
        self.mutate(mutation);
    }

    /// Looks names up first and completes what must be complete, as a node does.
    fn mutate(&mut self, mutation: Mutation) -> bool {
        match &mutation {
            Mutation::Make { parent, name, .. } | Mutation::Link { parent, name, .. } => self.resolve(*parent, name),
            Mutation::Rename { to, new_name, .. } => self.resolve(*to, new_name),
            _ => {}
        }
        for _ in 0..3 {
            self.sequence += 1;
            let tx = TxId { session: SESSION, slot: 0, sequence: self.sequence };
            let stamp = self.stamp();
            let command = Command::Client { tx, caller: Caller::ROOT, stamp, mutation: mutation.clone() };
            match self.apply(command).answer.expect("a client's command is answered") {
                Ok(_) => {
                    if let Mutation::SetAttr { ino, set: SetAttr { size_bytes: Some(size), .. } } = &mutation {
                        self.truth.entry(*ino).or_default().resize(*size as usize, 0);
                    }
                    return true;
                }
                Err(RpcError::Refused(FsError::Busy)) => self.prepare(&mutation),
                Err(_) => return false,
            }
        }
        panic!("{mutation:?} stays refused as busy");
    }

    fn prepare(&mut self, mutation: &Mutation) {
        let find = |dir: &Ino, name: &Name| self.partition.namespace().dentry(*dir, name).map(|dentry| dentry.ino);
        let inos: Vec<Option<Ino>> = match mutation {
            Mutation::Make { .. } => vec![],
            Mutation::Link { ino, .. } => vec![Some(*ino)],
            Mutation::Unlink { parent, name, .. } | Mutation::Rmdir { parent, name, .. } => vec![find(parent, name)],
            Mutation::Rename { from, name, to, new_name, .. } => vec![find(from, name), find(to, new_name)],
            Mutation::SetAttr { ino, .. } | Mutation::Write { ino, .. } => vec![Some(*ino)],
            Mutation::SetXattr { ino, .. } | Mutation::RemoveXattr { ino, .. } => vec![Some(*ino)],
        };
        for ino in inos.into_iter().flatten() {
            while self.load_next(ino) {}
            for (dir, name) in self.partition.backing().unseen_names(ino).to_vec() {
                self.reach(dir);
                self.resolve(dir, &name);
                if self.partition.namespace().dentry(dir, &name).is_none() {
                    panic!("{name} of {ino} in {dir} is on record and not there");
                }
            }
        }
    }

    /// Looks up a directory of which only the inode id is known.
    fn reach(&mut self, dir: Ino) {
        if self.partition.namespace().inode(dir).is_none() {
            let (parent, name) = self.page_at(dir).expect("a directory on record has a page").parent.unwrap();
            self.reach(parent);
            self.resolve(parent, &name);
        }
    }

    fn write(&mut self, ino: Ino, offset: usize, len: usize) {
        for fill in self.partition.extents().missing_for_write(ino, offset as u64, len as u64) {
            self.fill(ino, fill);
        }
        let data = vec![self.time as u8; len];
        let mutation = Mutation::Write { ino, offset: offset as u64, len_bytes: len as u64, sums: vec![], drop_set_id: false };
        // The bytes are in the store file before the record.
        let before = self.stores.get(&ino).cloned();
        put(self.stores.entry(ino).or_default(), offset, &data);
        if self.mutate(mutation) {
            put(self.truth.entry(ino).or_default(), offset, &data);
        } else if let Some(before) = before {
            self.stores.insert(ino, before);
        }
    }

    fn fill(&mut self, ino: Ino, fill: Fill) {
        let from_home = if fill.home_bytes > 0 {
            let object = self.home(ino);
            object.body[..(fill.home_bytes as usize).min(object.body.len())].to_vec()
        } else {
            Vec::new()
        };
        self.stores.insert(ino, from_home);
    }

    fn home(&self, ino: Ino) -> &Stored {
        let key = self.partition.backing().home_key(self.partition.namespace(), ino).expect("bytes of an object have one");
        let object = self.bucket.get(&key).unwrap_or_else(|| panic!("the object of {ino} is not at {key}"));
        assert_eq!(self.partition.extents().home(ino).unwrap().etag, object.etag, "the object at {key} is another");
        object
    }

    fn read(&self, ino: Ino) -> Vec<u8> {
        let size = self.partition.namespace().inode(ino).unwrap().attr.size_bytes;
        let mut content = vec![0; size as usize];
        for segment in self.partition.extents().plan_read(ino, 0..size, size) {
            let range = segment.range.start as usize..segment.range.end as usize;
            match segment.source {
                Source::Zero => {}
                Source::Remote => content[range.clone()].copy_from_slice(&self.home(ino).body[range]),
                Source::Local => {
                    let store = &self.stores[&ino];
                    let end = range.end.min(store.len()).max(range.start);
                    content[range.start..end].copy_from_slice(&store[range.start..end]);
                }
            }
        }
        content
    }

    // Loads.

    fn load_all(&mut self) {
        self.flights.retain(|flight| !matches!(flight, Flight::Listed { .. }));
        for _ in 0..100 {
            let mut loaded = false;
            for dir in self.directories() {
                loaded |= self.load_next(dir);
            }
            if !loaded {
                return;
            }
        }
        panic!("loading does not end");
    }

    fn load_next(&mut self, dir: Ino) -> bool {
        let flight = self.list(dir);
        if let Some(flight) = &flight {
            self.install(flight);
        }
        flight.is_some()
    }

    fn begin_load(&mut self, dice: &mut Dice) {
        let Some(dir) = dice.of(&self.directories()) else { return };
        if dice.below(2) == 0 {
            let name = dice.of(&names()).unwrap();
            self.resolve(dir, &name);
        } else if let Some(flight) = self.list(dir) {
            self.flights.push(flight);
        }
    }

    fn list(&self, dir: Ino) -> Option<Flight> {
        let plan = self.partition.backing().load_plan(self.partition.namespace(), dir)?;
        let (mut entries, more) = self.list_keys(&plan.prefix, plan.after.as_deref(), 3);
        let progress = match entries.last() {
            Some(last) if more => LoadProgress::UpTo(last.key().into()),
            _ => LoadProgress::Complete,
        };
        for prefix in backing::to_probe(&entries) {
            entries.extend(self.probe(&prefix));
        }
        let page = plan.page_key.and_then(|_| self.page_at(dir));
        Some(Flight::Listed { dir, epoch: plan.epoch, entries, page, first: plan.after.is_none(), progress })
    }

    fn probe(&self, prefix: &str) -> Option<Listed> {
        let found = self.bucket.range(prefix.to_string()..).next().is_some_and(|(key, _)| key.starts_with(prefix));
        found.then(|| Listed::Prefix { key: prefix.into() })
    }

    fn list_keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> (Vec<Listed>, bool) {
        let mut listed = BTreeMap::new();
        for (key, object) in self.bucket.range(prefix.to_string()..).take_while(|(key, _)| key.starts_with(prefix)) {
            let entry = match key[prefix.len()..].find('/') {
                Some(at) => Listed::Prefix { key: key[..prefix.len() + at + 1].into() },
                None => self.object(key, object),
            };
            if after.is_none_or(|after| entry.key() > after) {
                listed.insert(entry.key().to_string(), entry);
            }
        }
        let more = listed.len() > limit;
        (listed.into_values().take(limit).collect(), more)
    }

    fn object(&self, key: &str, object: &Stored) -> Listed {
        let modified = Time::from_secs(3);
        Listed::Object { key: key.into(), etag: object.etag.clone(), len_bytes: object.body.len() as u64, modified }
    }

    fn resolve(&mut self, dir: Ino, name: &Name) {
        let namespace = self.partition.namespace();
        if !matches!(namespace.lookup(dir, name), Err(FsError::NotFound)) {
            return;
        }
        let Some(plan) = self.partition.backing().lookup_plan(namespace, dir, name) else { return };
        let objects = plan.objects.iter().filter_map(|key| Some(self.object(key, self.bucket.get(key)?)));
        let entries: Vec<Listed> = objects.chain(plan.prefixes.iter().filter_map(|prefix| self.probe(prefix))).collect();
        let page = plan.page_key.and_then(|_| self.page_at(dir));
        self.install_found(dir, plan.epoch, &entries, page.as_ref(), Scope::Name(name), LoadProgress::Unchanged);
    }

    fn install(&mut self, flight: &Flight) {
        let Flight::Listed { dir, epoch, entries, page, first, progress } = flight else { return };
        let scope = if *first { Scope::First } else { Scope::Next };
        self.install_found(*dir, *epoch, entries, page.as_ref(), scope, progress.clone());
    }

    fn install_found(
        &mut self,
        dir: Ino,
        epoch: u64,
        entries: &[Listed],
        page: Option<&DirectoryPage>,
        scope: Scope,
        progress: LoadProgress,
    ) {
        let namespace = self.partition.namespace();
        let mut next = namespace.next_ino(dir);
        let draw = || {
            let drawn = next;
            next = Ino(next.0 + 1);
            drawn
        };
        let found = self.partition.backing().interpret(namespace, &Listing { dir, entries, page, scope }, draw);
        let stamp = Stamp { time: Time::from_secs(4), version: self.partition.next_version() };
        let inos: Vec<Ino> = found.entries.iter().map(|entry| entry.ino).collect();
        self.log(BackingCommand::Install { dir, epoch, entries: found.entries, hidden: found.hidden, progress, stamp });
        for ino in inos {
            if !self.truth.contains_key(&ino) && self.partition.backing().file(ino).is_some() {
                self.truth.insert(ino, self.home(ino).body.clone());
            }
        }
    }

    fn page_at(&self, dir: Ino) -> Option<DirectoryPage> {
        let object = self.bucket.get(&keys::page_key(dir))?;
        Some(postcard::from_bytes(&object.body).expect("a page is a page"))
    }

    // Flushing.

    fn store(&mut self, key: &str, body: Vec<u8>, tag: Option<Tag>) -> Stored {
        self.etags += 1;
        let stored = Stored { etag: format!("e{}", self.etags), body, tag };
        self.bucket.insert(key.into(), stored.clone());
        stored
    }

    fn begin_flush(&mut self, dice: &mut Dice) {
        let work: Vec<DirtyWork> = self.partition.backing().dirty_work().map(|(_, work)| work).collect();
        if let Some(work) = dice.of(&work) {
            self.begin(work);
        }
    }

    fn begin(&mut self, work: DirtyWork) {
        self.attempts += 1;
        let attempt = self.attempts;
        let (backing, namespace) = (self.partition.backing(), self.partition.namespace());
        match work {
            DirtyWork::File(ino) => match backing.flush_step(namespace, ino) {
                FlushStep::Put { key, replaces } => {
                    self.announce(ino, &key, attempt);
                    self.flights.push(Flight::Put { ino, key, replaces, attempt });
                }
                FlushStep::Move { from, to, etag } => {
                    self.announce(ino, &to, attempt);
                    self.flights.push(Flight::Copy { ino, from, to, etag, attempt });
                }
                FlushStep::Evict { occupant, from, to, etag } => {
                    self.announce(occupant, &to, attempt);
                    self.flights.push(Flight::Copy { ino: occupant, from, to, etag, attempt });
                }
                FlushStep::AwaitDelete { key } => self.delete(&key),
                FlushStep::AwaitUpload { .. } | FlushStep::Nothing => {}
            },
            DirtyWork::Page(dir) => match backing.page_step(namespace, dir) {
                PageStep::Write { key, marker, merge } => {
                    self.announce(dir, &key, attempt);
                    self.flights.push(Flight::Page { dir, key, marker, merge });
                }
                PageStep::AwaitDelete { key } => self.delete(&key),
                PageStep::AwaitUpload | PageStep::Nothing => {}
            },
        }
    }

    fn announce(&mut self, ino: Ino, key: &str, attempt: u64) {
        self.log(BackingCommand::UploadBegun { ino, key: key.into(), upload: None });
        self.begun.insert(ino, attempt);
    }

    fn begin_delete(&mut self, dice: &mut Dice) {
        let keys: Vec<String> = self.partition.backing().deletes().map(|(key, _)| key.to_string()).collect();
        if let Some(key) = dice.of(&keys) {
            self.delete(&key);
        }
    }

    /// One at a time for each key.
    fn delete(&mut self, key: &str) {
        let under_way = self.flights.iter().any(|flight| matches!(flight, Flight::Delete { key: other, .. } if other == key));
        let pending = self.partition.backing().deletes().find(|(other, _)| *other == key).map(|(_, etag)| etag.map(String::from));
        if let (false, Some(etag)) = (under_way, pending) {
            self.flights.push(Flight::Delete { key: key.into(), etag, done: false });
        }
    }

    fn advance(&mut self, at: usize) {
        let flight = self.flights.swap_remove(at);
        match flight {
            Flight::Put { ino, key, replaces, attempt } => {
                if self.partition.namespace().inode(ino).is_none() {
                    return self.log(BackingCommand::UploadAborted { ino });
                }
                let body = self.read(ino);
                assert_eq!(replaces.as_ref(), self.bucket.get(&key).map(|object| &object.etag), "what a put to {key} replaces");
                let version = Version(self.partition.next_version().0 - 1);
                let done = self.store(&key, body, Some(Tag { attempt, version: Some(version) }));
                self.flights.push(Flight::Settle { ino, key, done });
            }
            Flight::Copy { ino, from, to, etag, attempt } => {
                if self.partition.namespace().inode(ino).is_none() {
                    return self.log(BackingCommand::UploadAborted { ino });
                }
                let source = self.bucket.get(&from).unwrap_or_else(|| panic!("{from} is not there to be moved")).clone();
                assert_eq!(source.etag, etag);
                assert!(!self.bucket.contains_key(&to), "a move overwrites {to}");
                let done = self.store(&to, source.body, Some(Tag { attempt, version: None }));
                self.flights.push(Flight::Settle { ino, key: to, done });
            }
            Flight::Settle { ino, key, done } => self.settle(ino, key, &done),
            Flight::Delete { key, etag, done: false } => {
                if etag.is_none() || self.bucket.get(&key).is_some_and(|object| Some(&object.etag) == etag.as_ref()) {
                    self.bucket.remove(&key);
                }
                self.flights.push(Flight::Delete { key, etag, done: true });
            }
            Flight::Delete { key, done: true, .. } => self.log(BackingCommand::Deleted { key }),
            Flight::Page { dir, key, marker, merge } => {
                let old = if merge { self.page_at(dir) } else { None };
                let Some(page) = self.partition.backing().page(self.partition.namespace(), dir, old.as_ref()) else {
                    return self.log(BackingCommand::UploadAborted { ino: dir });
                };
                assert!(page.entries.windows(2).all(|pair| pair[0].name < pair[1].name));
                if let Some(marker) = marker {
                    self.store(&marker, Vec::new(), None);
                }
                let etag = self.store(&key, postcard::to_stdvec(&page).unwrap(), None).etag;
                let version = Version(self.partition.next_version().0 - 1);
                self.flights.push(Flight::PageDone { dir, version, etag });
            }
            Flight::PageDone { dir, version, etag } => self.log(BackingCommand::PageWritten { dir, version, etag }),
            Flight::Listed { .. } => self.install(&flight),
        }
    }

    fn settle(&mut self, ino: Ino, key: String, done: &Stored) {
        let etag = done.etag.clone();
        self.log(match done.tag.as_ref().unwrap().version {
            Some(version) => BackingCommand::Uploaded { ino, key, etag, len_bytes: done.body.len() as u64, version },
            None => BackingCommand::Moved { ino, key, etag },
        });
    }

    /// Clean blocks leave the store file, which then holds anything there.
    fn evict(&mut self, dice: &mut Dice) {
        let files: Vec<Ino> = self.stores.keys().copied().collect();
        let Some(ino) = dice.of(&files) else { return };
        if self.partition.extents().clean_runs(ino, 0) == [0..1] {
            self.apply(Command::Extent(ExtentCommand::Absent { ino, first: 0, count: 1 }));
            self.stores.insert(ino, vec![0xee; 64]);
        }
    }

    fn unredirect(&mut self, dice: &mut Dice) {
        if let Some(dir) = dice.of(&self.directories()) {
            self.log(BackingCommand::Unredirect { dir });
        }
    }

    /// The process dies: what was asked of the bucket may or may not have happened, and
    /// nothing but the log is left to know it.
    fn crash(&mut self) {
        self.flights.clear();
        let restored = Partition::from_items(self.partition.items()).expect("a snapshot can be read");
        assert!(restored.items().eq(self.partition.items()), "a snapshot is the same state");
        self.partition = restored;
        let uploads: Vec<_> = self.partition.backing().uploads().map(|(ino, upload)| (ino, upload.clone())).collect();
        for (ino, upload) in uploads {
            let attempt = self.begun[&ino];
            let object = self.bucket.get(&upload.key).cloned();
            match object.filter(|object| object.tag.as_ref().is_some_and(|tag| tag.attempt == attempt)) {
                Some(done) => self.settle(ino, upload.key, &done),
                None => self.log(BackingCommand::UploadAborted { ino }),
            }
        }
    }

    fn drain(&mut self) {
        for _ in 0..200 {
            let orphans: Vec<Ino> = self.partition.namespace().orphans().map(|(ino, _)| ino).collect();
            for ino in orphans {
                self.apply(Command::Release { session: SESSION, ino });
            }
            while !self.flights.is_empty() {
                self.advance(0);
            }
            if self.partition.backing().is_settled() {
                return;
            }
            let work: Vec<DirtyWork> = self.partition.backing().dirty_work().map(|(_, work)| work).collect();
            for work in work {
                self.begin(work);
            }
            let deletes: Vec<String> = self.partition.backing().deletes().map(|(key, _)| key.to_string()).collect();
            for key in deletes {
                self.delete(&key);
            }
        }
        let work: Vec<_> = self.partition.backing().dirty_work().collect();
        panic!("flushing does not end: {work:?} {:?}", self.partition.backing().deletes().collect::<Vec<_>>());
    }

    /// Every object is a file's, a directory's marker or its page.
    fn check_no_leak(&self) {
        let (backing, namespace) = (self.partition.backing(), self.partition.namespace());
        let mut owned = BTreeSet::new();
        for (_, _, ino) in self.dentries() {
            owned.extend(backing.home_key(namespace, ino));
        }
        for dir in self.directories() {
            owned.extend(backing.prefix_of(namespace, dir));
            owned.insert(keys::page_key(dir));
        }
        let leaked: Vec<_> = self.bucket.keys().filter(|key| !owned.contains(*key)).collect();
        assert!(leaked.is_empty(), "nobody's: {leaked:?}");
    }

    // What is seen.

    fn directories(&self) -> Vec<Ino> {
        let mut dirs = vec![Ino::ROOT];
        let mut at = 0;
        while let Some(dir) = dirs.get(at) {
            let entries = self.partition.namespace().read_dir(*dir, Cookie::START, usize::MAX).unwrap().0;
            dirs.extend(entries.iter().filter(|(entry, _)| entry.kind == FileKind::Directory).map(|(entry, _)| entry.ino));
            at += 1;
        }
        dirs
    }

    fn dentries(&self) -> Vec<(Ino, Name, Ino)> {
        let entries = |dir: Ino| self.partition.namespace().read_dir(dir, Cookie::START, usize::MAX).unwrap().0;
        self.directories()
            .into_iter()
            .flat_map(|dir| entries(dir).into_iter().map(move |(entry, _)| (dir, entry.name, entry.ino)))
            .collect()
    }

    fn dump(&self) -> BTreeMap<Vec<u8>, Seen> {
        let mut seen = BTreeMap::new();
        let mut groups = BTreeMap::new();
        self.dump_below(Ino::ROOT, b"", &mut seen, &mut groups);
        let root = self.partition.namespace().inode(Ino::ROOT).unwrap().attr.clone();
        seen.insert(
            b"/".to_vec(),
            Seen { attr: comparable(root), xattrs: vec![], target: Bytes::new(), content: vec![], group: b"/".to_vec() },
        );
        seen
    }

    fn dump_below(&self, dir: Ino, path: &[u8], seen: &mut BTreeMap<Vec<u8>, Seen>, groups: &mut BTreeMap<Ino, Vec<u8>>) {
        let namespace = self.partition.namespace();
        let mut entries = namespace.read_dir(dir, Cookie::START, usize::MAX).unwrap().0;
        entries.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        for (entry, attr) in entries {
            let path = [path, b"/", entry.name.as_bytes()].concat();
            let inode = namespace.inode(entry.ino).unwrap();
            let mut content = vec![];
            if entry.kind == FileKind::Regular {
                content = self.read(entry.ino);
                let truth = self.truth.get(&entry.ino).cloned().unwrap_or_default();
                assert_eq!(content, truth, "content of {}", path.escape_ascii());
            }
            let group = groups.entry(entry.ino).or_insert_with(|| path.clone()).clone();
            let xattrs = inode.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            seen.insert(path.clone(), Seen { attr: comparable(attr), xattrs, target: inode.target.clone(), content, group });
            if entry.kind == FileKind::Directory {
                self.dump_below(entry.ino, &path, seen, groups);
            }
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    attr: Attr,
    xattrs: Vec<(Bytes, Bytes)>,
    target: Bytes,
    content: Vec<u8>,
    /// The first path of the inode: tells which names are links of each other.
    group: Vec<u8>,
}

/// Without what a node that starts anew may give anew.
fn comparable(attr: Attr) -> Attr {
    Attr { ino: Ino(0), version: Version(0), ..attr }
}

fn put(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if bytes.len() < offset + data.len() {
        bytes.resize(offset + data.len(), 0);
    }
    bytes[offset..offset + data.len()].copy_from_slice(data);
}
