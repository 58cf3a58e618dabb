//! Random numbers and an executor for the log's tests.

use crate::disk::{TestDisk, port};
use ebb_format::record::{GroupId, Term};
use ebb_format::segment::VolumeId;
use ebb_journal::{
    Log, LogError, LoggedCommand, MIN_SEGMENT_BYTES, Options, Recovery, SnapshotAt, Start,
};
use ebb_model::*;
use ebb_ports::{PortFuture, Spawn};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// SplitMix64.
pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub fn below(&self, limit: u64) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

pub async fn pause() {
    let mut paused = false;
    poll_fn(|_| match std::mem::replace(&mut paused, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await
}

#[derive(Default)]
pub struct Tasks(RefCell<Vec<PortFuture<'static, ()>>>);

impl Spawn for Tasks {
    fn spawn(&self, task: PortFuture<'static, ()>) {
        self.0.borrow_mut().push(task);
    }
}

/// Runs `main` and all spawned tasks until `main` ends, or the process is killed: `None`.
pub fn run<T>(disk: &TestDisk, tasks: &Tasks, main: impl Future<Output = T>) -> Option<T> {
    let mut main = pin!(main);
    let mut context = Context::from_waker(Waker::noop());
    let mut running: Vec<PortFuture<'static, ()>> = Vec::new();
    for _ in 0..10_000_000 {
        if let Poll::Ready(value) = main.as_mut().poll(&mut context) {
            return Some(value);
        }
        running.append(&mut tasks.0.borrow_mut());
        running.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        if disk.is_dead() {
            return None;
        }
    }
    panic!("nothing happens any more");
}

pub const VOLUME: VolumeId = VolumeId(77);

pub fn options() -> Options {
    Options { volume: VOLUME, incarnation: Incarnation(3), segment_bytes: MIN_SEGMENT_BYTES }
}

pub fn command(tag: u64, len: usize) -> Command {
    Command::SessionOpen { session: SessionId(tag), client: "c".repeat(len), replaces: None }
}

pub fn local(tag: u64, len: usize) -> LocalCommand {
    // Each takes four bytes.
    let sums = vec![0x0fff_ffff; len / 4];
    LocalCommand::Present { ino: Ino(tag), etag: "e".into(), first: 0, sums }
}

fn tag(command: &LoggedCommand) -> u64 {
    match command {
        LoggedCommand::Partition(Command::SessionOpen { session, .. }) => session.0,
        LoggedCommand::Local(LocalCommand::Present { ino, .. }) => ino.0,
        other => panic!("never appended: {other:?}"),
    }
}

/// The groups of these logs.
pub const GROUPS: [GroupId; 2] = [GroupId::LOCAL, GroupId::PARTITION];

/// A command by its group and tag.
pub type Tagged = (GroupId, u64);

/// The commands of one group, in order.
pub fn of_group(history: &[Tagged], group: GroupId) -> Vec<u64> {
    history.iter().filter(|(other, _)| *other == group).map(|(_, tag)| *tag).collect()
}

/// The state that a node gets back.
#[derive(Debug)]
pub struct Recovered {
    pub start: Start,
    /// The commands of each group, those in snapshots first.
    pub tags: BTreeMap<GroupId, Vec<u64>>,
    /// Those behind the snapshots, in the order of their positions.
    pub behind: Vec<Tagged>,
    /// Term and index of each of them.
    pub names: Vec<(GroupId, Term, LogIndex, u64)>,
    pub snapshots: BTreeMap<GroupId, LogIndex>,
    pub damaged: Option<LogError>,
}

impl Recovered {
    pub fn count(&self) -> u64 {
        self.tags.values().map(Vec::len).sum::<usize>() as u64
    }
}

/// Frames of a snapshot of these commands.
pub fn frames(tags: &[u64]) -> Vec<Vec<u8>> {
    tags.chunks(7).map(|some| some.iter().flat_map(|tag| tag.to_le_bytes()).collect()).collect()
}

/// Takes a snapshot of a group after all commands of the history.
pub async fn snapshot_of(
    log: &Log,
    group: GroupId,
    history: &[Tagged],
    position: ebb_format::record::Position,
) -> Result<(), LogError> {
    let tags = of_group(history, group);
    let index = LogIndex(tags.len() as u64);
    let at = SnapshotAt { index, position, version: Version(index.0), term: None };
    log.snapshot(group, at, frames(&tags).into_iter()).await
}

pub async fn recover(disk: &Rc<TestDisk>, tasks: &Rc<Tasks>) -> Result<(Log, Recovered), LogError> {
    let (log, recovery) = Log::recover(port(disk), tasks.clone(), options()).await?;
    let Recovery { start, snapshots, mut entries, damaged, .. } = recovery;
    let mut tags: BTreeMap<GroupId, Vec<u64>> = BTreeMap::new();
    let mut indices = BTreeMap::new();
    for (group, mut snapshot) in snapshots {
        let tags = tags.entry(group).or_default();
        while let Some(frame) = snapshot.next().await? {
            tags.extend(
                frame.chunks(8).map(|tag| u64::from_le_bytes(tag.try_into().expect("whole tags"))),
            );
        }
        let index = snapshot.header().index;
        assert_eq!(index, LogIndex(tags.len() as u64));
        indices.insert(group, index);
    }
    let (mut behind, mut names, mut last) = (Vec::new(), Vec::new(), Default::default());
    while let Some(logged) = entries.next().await? {
        let tags = tags.entry(logged.group).or_default();
        assert_eq!(logged.index.0, tags.len() as u64 + 1, "indices have no gaps");
        assert!(logged.position > last, "positions grow");
        last = logged.position;
        let tag = tag(&logged.command);
        tags.push(tag);
        behind.push((logged.group, tag));
        names.push((logged.group, logged.term, logged.index, tag));
    }
    for group in GROUPS {
        let count = tags.get(&group).map_or(0, Vec::len);
        assert_eq!(log.written(group), LogIndex(count as u64), "{group:?}");
    }
    Ok((log, Recovered { start, tags, behind, names, snapshots: indices, damaged }))
}
