//! A replicated group beside the local one. Consensus is played by a model that voids entries,
//! installs snapshots, and takes snapshots with checkpoints.

use crate::disk::{Fault, TestDisk, port};
use crate::world::{Random, Tasks, command, frames, local, options, pause, run};
use ebb_format::record::{self, Decoded, GroupId, LINE_BYTES, Position, Term};
use ebb_format::segment::SEGMENT_HEADER_BYTES;
use ebb_journal::{
    Entry, Log, LogError, Logged, LoggedCommand, Options, ReceivedAt, Recovery, Replicated,
    SnapshotAt, SnapshotFrames, Start,
};
use ebb_model::{Command, LocalCommand, LogIndex, Version};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const LOCAL: GroupId = GroupId::LOCAL;
const GROUP: GroupId = GroupId::PARTITION;

/// A record as the caller knows it. Its content is the tag, and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    tag: u64,
    len: usize,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Local,
    Command(u64, u64),
    Step(u64, u64),
    Installed(u64, u64),
    /// The base of a checkpoint.
    Kept(u64, u64),
    Promise,
}
use What::{Installed, Kept, Promise, Step};

/// The state of the replica after some records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Replica {
    promise: Option<u64>,
    base: (u64, u64),
    /// Index, term and tag of the entries behind the base.
    entries: Vec<(u64, u64, u64)>,
}

impl Replica {
    fn after<'a>(records: impl IntoIterator<Item = &'a Known>) -> Replica {
        let mut replica = Replica::default();
        for Known { tag, what, .. } in records {
            match *what {
                What::Local => {}
                What::Command(index, term) | Step(index, term) => {
                    replica.entries.retain(|entry| entry.0 < index);
                    replica.entries.push((index, term, *tag));
                }
                Installed(index, term) => {
                    replica.entries.clear();
                    replica.base = (index, term);
                }
                Kept(index, term) => {
                    replica.entries.retain(|entry| entry.0 > index);
                    replica.base = (index, term);
                }
                Promise => replica.promise = Some(*tag),
            }
        }
        replica
    }

    fn last(&self) -> (u64, u64) {
        self.entries.last().map_or(self.base, |(index, term, _)| (*index, *term))
    }

    fn term_of(&self, index: u64) -> u64 {
        let entry = self.entries.iter().find(|entry| entry.0 == index);
        entry.map_or(self.base.1, |(_, term, _)| *term)
    }
}

#[derive(Default)]
struct Oracle {
    /// The records that count, in the order of their positions, and those that may be under way.
    history: RefCell<Vec<Known>>,
    written: Cell<usize>,
    forced: Cell<usize>,
    next_tag: Cell<u64>,
    power_cut: Cell<bool>,
    /// Entries up to here are forced and stay.
    committed: Cell<u64>,
    /// The group's snapshot that was taken last, and is durable.
    snapshot: Cell<(u64, u64)>,
    term: Cell<u64>,
    voided: Cell<u64>,
    installed: Cell<u64>,
    checkpoints: Cell<u64>,
    unfinished: Cell<u64>,
}

impl Oracle {
    fn known(&self, what: What, len: usize) -> Known {
        let tag = self.next_tag.replace(self.next_tag.get() + 1);
        Known { tag, len, what }
    }

    fn replica(&self) -> Replica {
        Replica::after(&self.history.borrow()[..self.written.get()])
    }

    async fn append(&self, log: &Log, records: &[Known]) -> Result<(), LogError> {
        let contents: Vec<Content> = records.iter().map(Content::of).collect();
        let entries: Vec<Entry<'_>> =
            records.iter().zip(&contents).map(|(known, content)| content.entry(known)).collect();
        self.history.borrow_mut().extend(records);
        let frontier = log.append(&entries).await?;
        self.written.set(self.history.borrow().len());
        self.check_end(log);
        assert_eq!(frontier.index(GROUP), log.written(GROUP));
        Ok(())
    }

    fn check_end(&self, log: &Log) {
        let (index, term) = self.replica().last();
        assert_eq!(log.written(GROUP), LogIndex(index));
        if log.is_replicated(GROUP) {
            assert_eq!(log.term(GROUP), Term(term));
        }
        let is_local = |known: &&Known| known.what == What::Local;
        let history = self.history.borrow();
        let locals = history[..self.written.get()].iter().filter(is_local).count() as u64;
        assert_eq!(log.written(LOCAL), LogIndex(locals));
    }

    async fn force(&self, log: &Log, random: &Random) {
        let written = self.written.get();
        log.force().await.expect("nothing fails");
        self.forced.set(self.forced.get().max(written));
        let forced = Replica::after(&self.history.borrow()[..written]);
        let (floor, last) = (self.committed.get().max(forced.base.0), forced.last().0);
        self.committed.set(floor + random.below(last - floor + 1));
    }

    /// Entries, some of which void others, with promises and local commands between them.
    async fn entries(&self, log: &Log, random: &Random) {
        let replica = self.replica();
        let (mut index, mut term) = replica.last();
        let floor = self.committed.get().max(replica.base.0);
        if random.below(5) == 0 && index > floor {
            index = floor + random.below(index - floor);
            let before = replica.term_of(index);
            // A leader's log can have a lower term there than the void entries have.
            term = before + random.below(self.term.get() + 2 - before);
            self.voided.set(self.voided.get() + 1);
        }
        let mut batch = Vec::new();
        for _ in 0..1 + random.below(5) {
            let len = if random.below(12) == 0 { 2000 } else { random.below(300) } as usize;
            term += u64::from(random.below(8) == 0);
            match random.below(8) {
                0 => batch.push(self.known(Promise, len)),
                1 | 2 => batch.push(self.known(What::Local, len)),
                3 => {
                    index += 1;
                    batch.push(self.known(Step(index, term), len));
                }
                _ => {
                    index += 1;
                    batch.push(self.known(What::Command(index, term), len));
                }
            }
        }
        self.term.set(self.term.get().max(term));
        self.append(log, &batch).await.expect("there is space");
    }

    /// Installs a snapshot ahead of the log, or of entries that others have instead.
    async fn install(&self, log: &Log, random: &Random) {
        let replica = self.replica();
        let index = self.committed.get().max(replica.base.0) + 1 + random.below(20);
        let term = self.term.get() + 1;
        self.term.set(term);
        let at = ReceivedAt { term: Term(term), index: LogIndex(index), version: Version(index) };
        self.unfinished.set(self.unfinished.get() + 1);
        log.install_snapshot(GROUP, at, frames(&[index, term]).into_iter())
            .await
            .expect("there is space");
        for _ in 0..random.below(4) {
            pause().await;
        }
        let batch = [self.known(Promise, 20), self.known(Installed(index, term), 40)];
        self.append(log, &batch).await.expect("there is space");
        self.unfinished.set(self.unfinished.get() - 1);
        self.installed.set(self.installed.get() + 1);
        let mut opened = log.open_snapshot(GROUP).await.expect("it is whole").expect("it is there");
        assert_eq!(content(&mut opened).await, [index, term]);
    }

    /// A snapshot of both groups, and a checkpoint.
    async fn snapshot(&self, log: &Log) {
        let (position, replica) = (log.written_position(), self.replica());
        let (written, version) = (self.written.get(), Version(0));
        let index = log.written(LOCAL);
        let at = SnapshotAt { index, position, version, term: None };
        log.snapshot(LOCAL, at, frames(&[index.0]).into_iter()).await.expect("nothing fails");
        self.forced.set(self.forced.get().max(written));
        // All entries up to the committed one are forced, and so is the base.
        let index = self.committed.get().max(replica.base.0);
        let term = replica.term_of(index);
        if index > replica.base.0 {
            let at = SnapshotAt {
                index: LogIndex(index),
                position,
                version: Version(index),
                term: Some(Term(term)),
            };
            log.snapshot(GROUP, at, frames(&[index, term]).into_iter())
                .await
                .expect("nothing fails");
        }
        self.committed.set(index);
        self.snapshot.set((index, term));
        self.checkpoint(log, (index, term)).await;
    }

    async fn checkpoint(&self, log: &Log, (index, term): (u64, u64)) {
        let records = [self.known(Promise, 30), self.known(Kept(index, term), 100)];
        let contents = records.each_ref().map(Content::of);
        let replicated = [0, 1].map(|at| match contents[at].entry(&records[at]) {
            Entry::Replicated(_, record) => record,
            _ => unreachable!("both are replicated"),
        });
        self.history.borrow_mut().extend(records);
        log.checkpoint(GROUP, &replicated).await.expect("nothing fails");
        let written = self.history.borrow().len();
        self.written.set(written);
        self.forced.set(written);
        self.checkpoints.set(self.checkpoints.get() + 1);
        self.check_end(log);
    }

    /// Compares a recovery with the promises, and goes on from there.
    async fn check(&self, log: &Log, mut recovery: Recovery, disk: &TestDisk, what: &str) {
        let mut history = self.history.borrow().clone();
        let mut returned = Vec::new();
        let mut last = Position(0);
        while let Some(logged) = recovery.entries.next().await.expect("the log is sound") {
            assert!(logged.position > last, "{what}: positions grow");
            last = logged.position;
            returned.push(known(&logged, &history, what));
        }
        let locals = |records: &[Known]| {
            let is_local = |at: &usize| records[*at].what == What::Local;
            (0..records.len()).filter(is_local).collect::<Vec<usize>>()
        };
        let local = log.written(LOCAL).0 as usize;
        let upto_local = local.checked_sub(1).map_or(0, |at| locals(&history)[at] + 1);
        let of_last = returned.last().map_or(0, |last| {
            history.iter().position(|known| known == last).expect("it was appended") + 1
        });
        let count = upto_local.max(of_last);
        assert!(count >= self.forced.get(), "{what}: {count} of {} forced", self.forced.get());
        assert!(
            self.power_cut.get() || count >= self.written.get(),
            "{what}: {count} of {} written",
            self.written.get()
        );
        if let Start::PowerCut { cut_after, .. } = recovery.start {
            assert_eq!((cut_after, log.durable_position()), (last.max(cut_after), cut_after));
        }
        history.truncate(count);
        // The local group as without replication.
        let covered =
            recovery.snapshots.get(&LOCAL).map_or(0, |snapshot| snapshot.header().index.0);
        let behind: Vec<Known> =
            locals(&history).into_iter().skip(covered as usize).map(|at| history[at]).collect();
        let is_local = |known: &&Known| known.what == What::Local;
        assert_eq!(returned.iter().filter(is_local).copied().collect::<Vec<_>>(), behind, "{what}");
        // All records of the replicated group, but for a beginning that was given up.
        let all: Vec<Known> = history.iter().filter(|known| !is_local(known)).copied().collect();
        let found: Vec<Known> = returned.iter().filter(|known| !is_local(known)).copied().collect();
        assert!(all.ends_with(&found), "{what}: {found:?} of {all:?}");
        let replica = Replica::after(&all);
        assert_eq!(Replica::after(&found), replica, "{what}: {found:?} of {all:?}");
        self.written.set(count);
        *self.history.borrow_mut() = history;
        self.check_end(log);
        // The snapshot is the newest one that counts.
        let least = self.snapshot.get().0.max(replica.base.0);
        match recovery.snapshots.get_mut(&GROUP) {
            None => assert_eq!(least, 0, "{what}"),
            Some(snapshot) => {
                let header = *snapshot.header();
                let of_header = [header.index.0, header.term.0];
                assert!(header.index.0 >= least, "{what}: {header:?} of {least}");
                assert!(header.index.0 <= replica.last().0, "{what}: {header:?}");
                assert_eq!(replica.term_of(header.index.0), header.term.0, "{what}");
                assert_eq!(content(snapshot).await, of_header, "{what}");
            }
        }
        let received = disk.paths().iter().filter(|path| path.ends_with("-received")).count();
        assert!(received <= 1, "{what}: {:?}", disk.paths());
        self.unfinished.set(0);
        self.forced.set(self.forced.get().min(count));
        self.power_cut.set(false);
    }
}

/// The content of a record.
enum Content {
    Local(LocalCommand),
    Bytes(Vec<u8>),
}

impl Content {
    fn of(known: &Known) -> Content {
        match known.what {
            What::Local => Content::Local(local(known.tag, known.len)),
            What::Command(..) => Content::Bytes(
                record::encode_command(&command(known.tag, known.len)).expect("it fits"),
            ),
            _ => {
                let mut bytes = known.tag.to_le_bytes().to_vec();
                bytes.resize(8 + known.len, 7);
                Content::Bytes(bytes)
            }
        }
    }

    fn entry(&self, known: &Known) -> Entry<'_> {
        let bytes = match self {
            Content::Local(command) => return Entry::Local(command),
            Content::Bytes(bytes) => bytes,
        };
        let at = |index, term| (LogIndex(index), Term(term));
        let record = match known.what {
            What::Local => unreachable!("its content is a command"),
            What::Command(index, term) => {
                let (index, term) = at(index, term);
                Replicated::Command { term, index, bytes }
            }
            Step(index, term) => {
                let (index, term) = at(index, term);
                Replicated::Step { term, index, bytes }
            }
            Installed(index, term) | Kept(index, term) => {
                let (index, term) = at(index, term);
                Replicated::Base { term, index, bytes }
            }
            Promise => Replicated::Promise(bytes),
        };
        Entry::Replicated(GROUP, record)
    }
}

/// The record of the history that was returned.
fn known(logged: &Logged, history: &[Known], what: &str) -> Known {
    let of_bytes = |bytes: &[u8]| {
        u64::from_le_bytes(*bytes.first_chunk().expect("the content begins with the tag"))
    };
    let tag = match &logged.command {
        LoggedCommand::Partition(Command::SessionOpen { session, .. }) => session.0,
        LoggedCommand::Local(LocalCommand::Present { ino, .. }) => ino.0,
        LoggedCommand::Step(bytes) | LoggedCommand::Base(bytes) | LoggedCommand::Promise(bytes) => {
            of_bytes(bytes)
        }
        other => panic!("{what}: never appended: {other:?}"),
    };
    let found = history.iter().find(|known| known.tag == tag);
    let found = *found.unwrap_or_else(|| panic!("{what}: a taken record came back: {logged:?}"));
    let (index, term) = (logged.index.0, logged.term.0);
    match (&logged.command, found.what) {
        (LoggedCommand::Local(_), What::Local) => {}
        (LoggedCommand::Partition(_), What::Command(i, t))
        | (LoggedCommand::Step(_), Step(i, t))
        | (LoggedCommand::Base(_), Installed(i, t) | Kept(i, t)) => {
            assert_eq!((i, t), (index, term), "{what}");
        }
        (LoggedCommand::Promise(_), Promise) => assert_eq!((index, term), (0, 0), "{what}"),
        other => panic!("{what}: {other:?}"),
    }
    found
}

async fn content(snapshot: &mut SnapshotFrames) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some(frame) = snapshot.next().await.expect("it is whole") {
        numbers.extend(
            frame.chunks(8).map(|some| u64::from_le_bytes(some.try_into().expect("whole numbers"))),
        );
    }
    numbers
}

async fn open(disk: &Rc<TestDisk>, tasks: &Rc<Tasks>, oracle: &Oracle, what: &str) -> Log {
    let (log, recovery) = Log::recover(port(disk), tasks.clone(), options())
        .await
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    oracle.check(&log, recovery, disk, what).await;
    log
}

async fn work(log: &Log, oracle: &Oracle, random: &Random) {
    if !log.is_replicated(GROUP) {
        oracle.begin(log).await;
    }
    for _ in 0..random.below(70) {
        match random.below(24) {
            0 => oracle.snapshot(log).await,
            1 if random.below(2) == 0 => oracle.install(log, random).await,
            2..=5 => oracle.force(log, random).await,
            6 if random.below(4) == 0 => log.begin_segment().await.expect("nothing fails"),
            7 if random.below(4) == 0 => {
                let damage = log.prove(async |bytes| bytes).await;
                assert!(damage.is_none(), "{damage}");
            }
            _ => oracle.entries(log, random).await,
        }
        pause().await;
    }
}

impl Oracle {
    /// The group begins with a snapshot.
    async fn begin(&self, log: &Log) {
        let term = self.term.get() + 1;
        self.term.set(term);
        let at = ReceivedAt { term: Term(term), index: LogIndex(1), version: Version(1) };
        log.install_snapshot(GROUP, at, frames(&[1, term]).into_iter())
            .await
            .expect("there is space");
        let batch = [self.known(Promise, 20), self.known(Installed(1, term), 40)];
        self.append(log, &batch).await.expect("there is space");
    }
}

fn end(disk: &TestDisk, oracle: &Oracle, is_power_cut: bool) {
    match is_power_cut {
        false => disk.kill(),
        true => {
            disk.power_cut();
            oracle.power_cut.set(true);
        }
    }
}

/// Situation: entries, voids, promises, bases, snapshots and checkpoints in any order, and kills
/// and power cuts at any operation. Danger: a promise or an entry is lost with a segment, a void
/// entry comes back, or an end of the group is wrong after a cut. Expectation: as in
/// [`Oracle::check`].
#[test]
fn replicated_group_survives_many_lives() {
    let (mut voided, mut installed, mut checkpoints, mut unfinished) = (0, 0, 0, 0);
    for seed in 0..400 {
        let random = Random::new(seed);
        let (disk, oracle) = (TestDisk::new(seed), Oracle::default());
        for life in 0..12 {
            let what = format!("seed {seed}, life {life}");
            let tasks = Rc::new(Tasks::default());
            if random.below(4) != 0 {
                disk.set_fault(Fault::Die(disk.operations() + 1 + random.below(400)));
            }
            run(&disk, &tasks, async {
                let log = open(&disk, &tasks, &oracle, &what).await;
                work(&log, &oracle, &random).await;
            });
            unfinished += oracle.unfinished.get();
            end(&disk, &oracle, random.below(2) == 0);
        }
        voided += oracle.voided.get();
        installed += oracle.installed.get();
        checkpoints += oracle.checkpoints.get();
    }
    assert!(voided > 2000 && installed > 500 && checkpoints > 1000 && unfinished > 10);
}

/// A script that voids entries, installs snapshots and takes checkpoints, with segments of each
/// kind between them.
async fn script(log: &Log, oracle: &Oracle, random: &Random) {
    if !log.is_replicated(GROUP) {
        oracle.begin(log).await;
    }
    for part in 0..3 {
        for _ in 0..12 {
            oracle.entries(log, random).await;
        }
        oracle.force(log, random).await;
        oracle.entries(log, random).await;
        if part == 1 {
            oracle.install(log, random).await;
        }
        oracle.snapshot(log).await;
    }
    oracle.entries(log, random).await;
}

/// Situation: the process or the machine stops at the n-th operation of a script: between a
/// snapshot and its checkpoint, between an installed snapshot and its base, between the records of
/// a checkpoint and their force, or while segments are given up. It stops again in the recovery.
/// Expectation: as in [`Oracle::check`], each time.
#[test]
fn any_operation_of_a_checkpoint_may_be_the_last() {
    let live = |disk: &Rc<TestDisk>, oracle: &Oracle, what: &str, seed: u64| {
        let tasks = Rc::new(Tasks::default());
        run(disk, &tasks, async {
            let log = open(disk, &tasks, oracle, what).await;
            script(&log, oracle, &Random::new(seed)).await;
        })
    };
    let disk = TestDisk::new(0);
    live(&disk, &Oracle::default(), "undisturbed", 0).expect("nobody dies");
    let length = disk.operations();
    assert!(length > 150, "{length}");
    for is_power_cut in [false, true] {
        for last in 1..=length {
            let what = format!("stopped at operation {last}, power cut: {is_power_cut}");
            let (disk, oracle) = (TestDisk::new(last), Oracle::default());
            disk.set_fault(Fault::Die(last));
            live(&disk, &oracle, &what, 0);
            end(&disk, &oracle, is_power_cut);
            disk.set_fault(Fault::Die(disk.operations() + 1 + last % 23));
            live(&disk, &oracle, &what, 1);
            end(&disk, &oracle, last % 2 == 0);
            live(&disk, &oracle, &what, 2).expect("nobody dies");
        }
    }
}

fn segments(disk: &TestDisk) -> Vec<String> {
    disk.paths().into_iter().filter(|path| path.starts_with("log/0")).collect()
}

/// Situation: a replicated group takes snapshots and checkpoints over and over, with restarts.
/// Danger: segments are needed for ever, for a promise, or for entries that are void or that a
/// snapshot has. Expectation: few segments. Without a checkpoint, all of them stay.
#[test]
fn checkpoints_bound_the_log() {
    for is_checkpointed in [true, false] {
        let (disk, oracle, random) = (TestDisk::new(1), Oracle::default(), Random::new(1));
        let mut most = 0;
        for life in 0..6 {
            let tasks = Rc::new(Tasks::default());
            run(&disk, &tasks, async {
                let log = open(&disk, &tasks, &oracle, &format!("life {life}")).await;
                if life == 0 {
                    oracle.begin(&log).await;
                }
                for _ in 0..20 {
                    for _ in 0..8 {
                        oracle.entries(&log, &random).await;
                    }
                    oracle.force(&log, &random).await;
                    oracle.committed.set(oracle.replica().last().0);
                    match is_checkpointed {
                        true => oracle.snapshot(&log).await,
                        false => {
                            let position = log.written_position();
                            let index = log.written(LOCAL);
                            let at =
                                SnapshotAt { index, position, version: Version(0), term: None };
                            let frames = frames(&[index.0]);
                            log.snapshot(LOCAL, at, frames.into_iter())
                                .await
                                .expect("it is forced");
                        }
                    }
                    most = most.max(segments(&disk).len());
                }
                assert!(log.prove(async |bytes| bytes).await.is_none());
            })
            .expect("nobody dies");
            end(&disk, &oracle, life % 2 == 0);
        }
        assert_eq!(most <= 4, is_checkpointed, "{most} segments");
    }
}

/// The versions of the records in the log.
fn versions(disk: &TestDisk) -> Vec<Vec<u8>> {
    let of_segment = |path: &String| {
        let bytes = disk.content(path);
        let (mut at, mut versions) = (SEGMENT_HEADER_BYTES, Vec::new());
        while let Decoded::Record(record) = record::decode(&bytes[at..]) {
            versions.push(bytes[at + 53]);
            at += record.consumed;
        }
        versions
    };
    segments(disk).iter().map(of_segment).filter(|versions| !versions.is_empty()).collect()
}

/// Situation: a release that knows version 2 of records opens the log. Danger: it reads past a
/// promise, or refuses a log that has no replicated group. Expectation: without such a group all
/// records have version 2. With one, each later segment begins with a record of version 3.
#[test]
fn older_release_stops_at_a_replicated_group() {
    let (disk, oracle, random) = (TestDisk::new(1), Oracle::default(), Random::new(1));
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let log = open(&disk, &tasks, &oracle, "begin").await;
        let (command, own) = (command(1, 1000), local(2, 1000));
        for _ in 0..12 {
            let entries = [Entry::Command(GROUP, &command), Entry::Local(&own)];
            log.append(&entries).await.expect("there is space");
        }
        log.force().await.expect("nothing fails");
        assert!(versions(&disk).len() > 1);
        assert!(versions(&disk).concat().iter().all(|version| *version == 2));
    })
    .expect("nobody dies");
    let (disk, oracle) = (TestDisk::new(1), Oracle::default());
    run(&disk, &tasks, async {
        let log = open(&disk, &tasks, &oracle, "begin").await;
        oracle.begin(&log).await;
        for _ in 0..60 {
            oracle.entries(&log, &random).await;
        }
        let versions = versions(&disk);
        assert!(versions.len() > 2 && versions[0].contains(&3));
        assert!(versions[1..].iter().all(|versions| versions[0] == 3));
    })
    .expect("nobody dies");
    // And this release stops at a kind that is reserved for the next one.
    let path = &segments(&disk)[0];
    let at = SEGMENT_HEADER_BYTES;
    let mut bytes = disk.content(path);
    bytes[at + 52] = 7;
    let crc = ebb_format::crc32c(&bytes[at + 4..at + LINE_BYTES]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    disk.put(path, &bytes);
    run(&disk, &tasks, async {
        let refused = Log::recover(port(&disk), tasks.clone(), options()).await.map(drop);
        assert!(matches!(refused, Err(LogError::Version { .. })), "{refused:?}");
    })
    .expect("nobody dies");
}

/// Situation: a group with commands becomes replicated, and a power cut takes that. Danger: the
/// group counts as replicated without a record that says so, or its terms do not grow.
/// Expectation: it goes on as before, and can become replicated again.
#[test]
fn group_becomes_replicated_behind_its_commands() {
    let (disk, tasks) = (TestDisk::new(1), Rc::new(Tasks::default()));
    let open = async || {
        let (log, recovery) =
            Log::recover(port(&disk), tasks.clone(), options()).await.expect("it is sound");
        (log, recovery)
    };
    let one = command(1, 9);
    let bytes = record::encode_command(&one).expect("it fits");
    let (term, index) = (Term(7), LogIndex(3));
    let next = Replicated::Command { term, index, bytes: &bytes };
    let batch =
        [Entry::Replicated(GROUP, Replicated::Promise(b"1")), Entry::Replicated(GROUP, next)];
    for is_forced in [false, true] {
        run(&disk, &tasks, async {
            let (log, _) = open().await;
            assert!(!log.is_replicated(GROUP));
            if !is_forced {
                log.append(&[Entry::Command(GROUP, &one)]).await.expect("there is space");
                log.append(&[Entry::Command(GROUP, &one)]).await.expect("there is space");
                log.force().await.expect("nothing fails");
            }
            log.append(&batch).await.expect("there is space");
            assert!(log.is_replicated(GROUP));
            assert_eq!((log.term(GROUP), log.written(GROUP)), (term, index));
            if is_forced {
                log.force().await.expect("nothing fails");
            }
        })
        .expect("nobody dies");
        match is_forced {
            false => disk.power_cut_late(),
            true => disk.power_cut(),
        }
        run(&disk, &tasks, async {
            let (log, mut recovery) = open().await;
            assert_eq!(log.is_replicated(GROUP), is_forced);
            let mut found = Vec::new();
            while let Some(logged) = recovery.entries.next().await.expect("it is sound") {
                found.push(logged.index.0);
            }
            match is_forced {
                false => assert_eq!((found, log.written(GROUP)), (vec![1, 2], LogIndex(2))),
                true => assert_eq!((found, log.term(GROUP)), (vec![1, 2, 0, 3], term)),
            }
        })
        .expect("nobody dies");
        disk.kill();
    }
}

/// Situation: the node has had a replica with more entries, and gets another one of the group.
/// Danger: the snapshot of the earlier replica counts as the newest, and its segments stay.
/// Expectation: the new replica's snapshot is used, and the old files go with the next checkpoint.
#[test]
fn snapshot_of_an_earlier_replica_is_not_used() {
    let (disk, oracle, random) = (TestDisk::new(3), Oracle::default(), Random::new(3));
    let tasks = Rc::new(Tasks::default());
    for life in 0..3 {
        let what = format!("life {life}");
        run(&disk, &tasks, async {
            let log = open(&disk, &tasks, &oracle, &what).await;
            if life == 0 {
                oracle.begin(&log).await;
                for _ in 0..60 {
                    oracle.entries(&log, &random).await;
                }
                oracle.force(&log, &random).await;
                oracle.snapshot(&log).await;
                assert!(oracle.snapshot.get().0 > 9);
                let (index, term) = (LogIndex(2), Term(1));
                let at = ReceivedAt { term, index, version: Version(2) };
                let frames = frames(&[2, 1]);
                log.install_snapshot(GROUP, at, frames.into_iter()).await.expect("there is space");
                let batch = [oracle.known(Promise, 9), oracle.known(Installed(2, 1), 9)];
                oracle.append(&log, &batch).await.expect("there is space");
                log.force().await.expect("nothing fails");
                oracle.forced.set(oracle.written.get());
                oracle.snapshot.set((2, 1));
                oracle.committed.set(2);
            } else {
                oracle.snapshot(&log).await;
                let of_group = |path: &&String| path.starts_with("snapshot/00000001-");
                let paths = disk.paths();
                assert_eq!(paths.iter().filter(of_group).count(), 1, "{paths:?}");
                assert!(segments(&disk).len() <= 2, "{:?}", segments(&disk));
            }
        })
        .expect("nobody dies");
        end(&disk, &oracle, life == 0);
    }
}

/// Situation: an entry of the longest command of consensus. Expectation: it fits a segment of the
/// usual size, with its promise, and a batch of too many of them is refused and changes nothing.
#[test]
fn longest_entry_of_consensus_fits() {
    const MAX_COMMAND_BYTES: usize = 512 << 10;
    let (disk, tasks) = (TestDisk::new(1), Rc::new(Tasks::default()));
    run(&disk, &tasks, async {
        let options = Options { segment_bytes: ebb_journal::DEFAULT_SEGMENT_BYTES, ..options() };
        let (log, _) = Log::recover(port(&disk), tasks.clone(), options).await.expect("no log yet");
        let bytes = vec![1; MAX_COMMAND_BYTES + 200];
        let step = |index| {
            let (term, index) = (Term(1), LogIndex(index));
            Entry::Replicated(GROUP, Replicated::Step { term, index, bytes: &bytes })
        };
        let promise = Entry::Replicated(GROUP, Replicated::Promise(&bytes[..100]));
        log.append(&[promise, step(1), step(2)]).await.expect("it fits");
        let many: Vec<Entry<'_>> = (3..40).map(step).collect();
        let refused = log.append(&many).await;
        assert!(matches!(refused, Err(LogError::TooLong { .. })), "{refused:?}");
        assert_eq!(log.written(GROUP), LogIndex(2));
        log.append(&many[..9]).await.expect("it fits");
    })
    .expect("nobody dies");
}

impl Oracle {
    /// Appends entries of this length, one by one.
    async fn fill(&self, log: &Log, indices: std::ops::RangeInclusive<u64>, term: u64, len: usize) {
        for index in indices {
            let entry = self.known(What::Command(index, term), len);
            self.append(log, &[entry]).await.expect("there is space");
        }
    }

    async fn force_all(&self, log: &Log) {
        log.force().await.expect("nothing fails");
        self.forced.set(self.written.get());
    }
}

/// Situation: records that were not forced void entries in the segments before, and fill segments.
/// A power cut takes them, and the entries count again. Danger: the segments of the void records
/// count as behind few entries, and a checkpoint gives up entries that its snapshot lacks.
/// Expectation: the entries stay.
#[test]
fn entries_count_again_when_their_voids_are_cut() {
    let (disk, oracle) = (TestDisk::new(1), Oracle::default());
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let log = open(&disk, &tasks, &oracle, "begin").await;
        oracle.begin(&log).await;
        oracle.fill(&log, 2..=32, 1, 300).await;
        oracle.force_all(&log).await;
        // The first of them is in the segment of the last entries.
        oracle.fill(&log, 5..=19, 2, 1500).await;
    })
    .expect("nobody dies");
    disk.power_cut_late();
    oracle.power_cut.set(true);
    for life in ["cut", "checkpointed"] {
        run(&disk, &tasks, async {
            let log = open(&disk, &tasks, &oracle, life).await;
            assert_eq!(log.written(GROUP), LogIndex(32));
            oracle.committed.set(28);
            oracle.snapshot(&log).await;
        })
        .expect("nobody dies");
        disk.kill();
    }
}

/// Situation: a record that is not forced voids all entries behind the last checkpoint's base, and
/// another group's snapshot gives up segments. Danger: the segments of the void entries go, and a
/// power cut takes the record. Expectation: the entries stay until the record is forced.
#[test]
fn void_entries_stay_until_their_void_is_forced() {
    for is_forced in [false, true] {
        let (disk, oracle) = (TestDisk::new(1), Oracle::default());
        let tasks = Rc::new(Tasks::default());
        run(&disk, &tasks, async {
            let log = open(&disk, &tasks, &oracle, "begin").await;
            oracle.begin(&log).await;
            oracle.fill(&log, 2..=60, 1, 300).await;
            oracle.force_all(&log).await;
            oracle.committed.set(20);
            oracle.snapshot(&log).await;
            let before = segments(&disk).len();
            assert!(before > 2);
            oracle.fill(&log, 21..=21, 2, 300).await;
            if is_forced {
                oracle.force_all(&log).await;
            }
            let (index, position) = (log.durable(LOCAL), log.durable_position());
            let at = SnapshotAt { index, position, version: Version(0), term: None };
            let frames = frames(&[index.0]);
            log.snapshot(LOCAL, at, frames.into_iter()).await.expect("nothing fails");
            assert_eq!(segments(&disk).len() < before, is_forced);
        })
        .expect("nobody dies");
        end(&disk, &oracle, true);
        run(&disk, &tasks, async {
            open(&disk, &tasks, &oracle, "after a power cut").await;
        })
        .expect("nobody dies");
    }
}
