//! Random numbers and an executor for the log's tests.

use crate::disk::{TestDisk, port};
use ebb_format::segment::VolumeId;
use ebb_journal::{Log, LogError, MIN_SEGMENT_BYTES, Options, Recovery, Start};
use ebb_model::*;
use ebb_ports::{PortFuture, Spawn};
use std::cell::{Cell, RefCell};
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

pub fn tag(command: &Command) -> u64 {
    match command {
        Command::SessionOpen { session, .. } => session.0,
        other => panic!("never appended: {other:?}"),
    }
}

/// The state that a node gets back.
#[derive(Debug)]
pub struct Recovered {
    pub start: Start,
    pub tags: Vec<u64>,
    pub snapshot: Option<LogIndex>,
    pub damaged: Option<LogError>,
}

/// Frames of a snapshot of these commands.
pub fn frames(tags: &[u64]) -> Vec<Vec<u8>> {
    tags.chunks(7).map(|some| some.iter().flat_map(|tag| tag.to_le_bytes()).collect()).collect()
}

pub async fn recover(disk: &Rc<TestDisk>, tasks: &Rc<Tasks>) -> Result<(Log, Recovered), LogError> {
    let (log, recovery) = Log::recover(port(disk), tasks.clone(), options()).await?;
    let Recovery { start, snapshot, mut commands, damaged, .. } = recovery;
    let mut tags = Vec::new();
    let mut index = None;
    if let Some(mut snapshot) = snapshot {
        while let Some(frame) = snapshot.next().await? {
            tags.extend(
                frame.chunks(8).map(|tag| u64::from_le_bytes(tag.try_into().expect("whole tags"))),
            );
        }
        index = Some(snapshot.header().index);
        assert_eq!(index, Some(LogIndex(tags.len() as u64)));
    }
    while let Some((index, command)) = commands.next().await? {
        assert_eq!(index.0, tags.len() as u64 + 1, "indices have no gaps");
        tags.push(tag(&command));
    }
    assert_eq!(log.written(), LogIndex(tags.len() as u64));
    Ok((log, Recovered { start, tags, snapshot: index, damaged }))
}
