//! Dirty bytes of files on their way from the node that has them to the one that leads.
//!
//! Laws:
//! - The bytes are forced on the leader's disk before the volume says that they are there. Until
//!   then the holder keeps them.
//! - A file's bytes are not shown, changed or uploaded before all its dirty bytes are here.
//! - A holder that does not answer costs the files that it holds, and nothing else.
//! - Bytes that a holder may have lost are shown once their clients have come back or expired.

use super::messages::{Answer, Ask};
use super::peers::Answered;
use super::receive::HELD_BLOCKS;
use super::{Host, PATIENCE};
use crate::Node;
use crate::admin::troubles::Subject;
use crate::replica::Proposal;
use bytes::{Bytes, BytesMut};
use ebb_model::*;
use ebb_store::Mode;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// A holder that starts anew, as every leader does that is replaced, answers within this time.
const HOLDER_PATIENCE: Duration = Duration::from_secs(10);

/// A new leader waits no longer for a holder: it can be the one that has just died.
const NOTE_PATIENCE: Duration = Duration::from_millis(500);

/// A silent node is asked again no sooner.
const SILENCE_INTERVAL: Duration = Duration::from_millis(500);

const RETRY_INTERVAL: Duration = Duration::from_millis(100);

impl Host {
    /// Asks for dirty blocks of a file. A holder can be behind, or about to start.
    async fn ask_holder(
        &self,
        holder: NodeId,
        ino: Ino,
        blocks: Range<u64>,
        at: LogIndex,
    ) -> Result<(Vec<Option<u32>>, Bytes), RpcError> {
        let ask = Ask::Held { ino, blocks: blocks.clone(), at };
        let (answer, bytes) = self.ask_patiently(holder, ask, HOLDER_PATIENCE).await?;
        let Answer::Held { sums } = answer else { return Err(FsError::Io.into()) };
        let count = blocks.end - blocks.start;
        let is_whole = sums.len() as u64 == count && bytes.len() as u64 == count * BLOCK_BYTES;
        if is_whole { Ok((sums, bytes)) } else { Err(FsError::Io.into()) }
    }

    /// Asks a node that can be about to start, until it has an answer, or has been silent for as
    /// long as `patience`, in this question and earlier ones.
    async fn ask_patiently(&self, holder: NodeId, ask: Ask, patience: Duration) -> Answered {
        let clock = &self.ports.clock;
        let began = clock.monotonic();
        loop {
            let silence = self.silences.borrow().get(&holder).copied();
            let now = clock.monotonic();
            if silence
                .is_some_and(|it| now >= it.since + patience && now < it.asked + SILENCE_INTERVAL)
            {
                return Err(RpcError::Lost);
            }
            let within = patience.clamp(SILENCE_INTERVAL, PATIENCE);
            let answered = self.peers.ask(holder, ask.clone(), Bytes::new(), within).await;
            let now = clock.monotonic();
            let is_over = match answered {
                Err(RpcError::Lost) => {
                    let mut silences = self.silences.borrow_mut();
                    let silence =
                        silences.entry(holder).or_insert(Silence { since: began, asked: now });
                    silence.asked = now;
                    now >= silence.since + patience
                }
                Err(RpcError::Retry) => now >= began + patience,
                answered => {
                    self.silences.borrow_mut().remove(&holder);
                    return answered;
                }
            };
            if is_over {
                return answered;
            }
            clock.sleep(RETRY_INTERVAL).await;
        }
    }
}

/// A node does not answer.
#[derive(Clone, Copy)]
pub(crate) struct Silence {
    since: Duration,
    asked: Duration,
}

impl Node {
    pub(crate) fn host(&self) -> Option<Rc<Host>> {
        self.host.borrow().as_ref()?.upgrade()
    }

    /// The node that has the dirty bytes of a file, if it is another one.
    pub(crate) fn held_elsewhere(&self, ino: Ino) -> Option<NodeId> {
        let own = self.replica.own_node()?;
        let holder = self.replica.view_without_backing().nodes().holder(ino)?;
        (holder != own).then_some(holder)
    }

    /// Brings the dirty bytes of a file here, if they are on another node. The inode's latch is not
    /// held.
    pub(crate) async fn bring(&self, ino: Ino) -> Result<(), RpcError> {
        match self.held_elsewhere(ino) {
            None => Ok(()),
            Some(_) => Box::pin(self.bring_within(ino, HOLDER_PATIENCE)).await,
        }
    }

    /// The same for a client that repeats its writes. It waits no longer than a moment for a holder
    /// that has just died: if that has its bytes, nothing needs to be repeated, and if it has lost
    /// them, it says so when it is back.
    pub(crate) async fn bring_to_repeat(&self, ino: Ino) -> Result<(), RpcError> {
        match self.held_elsewhere(ino) {
            None => Ok(()),
            Some(holder) => {
                let brought = Box::pin(self.bring_within(ino, NOTE_PATIENCE)).await;
                if brought.is_err() {
                    // What it has lost is not repeated yet, whatever was known of it before.
                    self.holder_runs.borrow_mut().remove(&holder);
                }
                brought
            }
        }
    }

    async fn bring_within(&self, ino: Ino, patience: Duration) -> Result<(), RpcError> {
        let _guard = self.data.latches().hold(ino, Mode::Exclusive).await;
        let Some(holder) = self.held_elsewhere(ino) else { return Ok(()) };
        let Some(host) = self.host() else { return Ok(()) };
        let brought = match self.force_at(&host, holder, patience).await {
            Ok(()) => self.bring_from(&host, holder, ino).await,
            Err(error) => Err(error),
        };
        let subject = Subject::Elsewhere(ino);
        match &brought {
            Ok(()) => self.trouble(subject, None),
            Err(error) => {
                let address = host.address_of(holder).unwrap_or_default();
                self.trouble(
                    subject,
                    Some(format!(
                        "bytes of inode {ino} are on node {holder} ({address}) alone, and cannot \
                         be had from there: {error}"
                    )),
                );
            }
        }
        brought.map_err(|error| match error {
            RpcError::Lost | RpcError::Retry => RpcError::Refused(FsError::Io),
            error => error,
        })
    }

    async fn bring_from(&self, host: &Host, holder: NodeId, ino: Ino) -> Result<(), RpcError> {
        // The holder has followed the commands that the wanted blocks are of.
        let at = self.settle_for_holder().await?;
        let size = self.file_size(ino)?;
        let runs = match Planted::BroughtNothing.is_on() {
            true => Vec::new(),
            false => self.runs_of_one_version(ino),
        };
        let mut staged = Vec::new();
        // One place for all: what is written here is not known as the file's before the end.
        let end = runs.last().map_or(0, |(run, _)| run.end * BLOCK_BYTES).min(size);
        let room = self.make_room(ino, end).await?;
        for (run, version) in runs {
            for first in run.clone().step_by(HELD_BLOCKS as usize) {
                let blocks = first..run.end.min(first + HELD_BLOCKS);
                let (sums, bytes) = host.ask_holder(holder, ino, blocks.clone(), at).await?;
                let Some((sums, bytes)) = checked(size, &blocks, &sums, bytes) else {
                    tracing::error!(%ino, ?blocks, "bytes came that are not those written");
                    return Err(FsError::Io.into());
                };
                let start = first * BLOCK_BYTES;
                let end = (blocks.end * BLOCK_BYTES).min(size);
                if start < end {
                    let bytes = bytes.slice(..(end - start) as usize);
                    self.store
                        .write(&room, start, bytes)
                        .await
                        .map_err(|error| self.disk_failed(ino, error))?;
                }
                staged.push(LocalCommand::Staged { ino, version, first, sums, range: None });
            }
        }
        self.store
            .sync(SyncScope::File(ino))
            .await
            .map_err(|error| self.disk_failed(ino, error))?;
        let brought = Command::Nodes(NodesCommand::Brought { ino });
        let (_, applied) = self.replica.propose(|_| Ok(Proposal::of_both(staged, brought))).await?;
        self.perform_effects(applied, None).await?;
        self.force_log().await.map(drop)
    }

    async fn settle_for_holder(&self) -> Result<LogIndex, RpcError> {
        self.force_log().await
    }

    /// The dirty blocks of a file, in runs that were written last at one version each.
    fn runs_of_one_version(&self, ino: Ino) -> Vec<(Range<u64>, Version)> {
        let state = self.replica.view();
        let content = state.partition().content();
        let mut runs: Vec<(Range<u64>, Version)> = Vec::new();
        for block in content.dirty_runs(ino, 0..u64::MAX).into_iter().flatten() {
            let Some(version) = content.dirty_version(ino, block) else { continue };
            match runs.last_mut() {
                Some((run, last)) if run.end == block && *last == version => run.end += 1,
                _ => runs.push((block..block + 1, version)),
            }
        }
        runs
    }

    /// Notes which runs of other nodes have dirty bytes as this node begins to lead. Bytes that a
    /// power cut has taken before are repeated by their clients, which all come back now.
    pub(crate) async fn note_holders(&self) {
        let Some(host) = self.host() else { return };
        for holder in self.other_holders() {
            let ask = Ask::Force { at: self.replica.durable() };
            let forced = host.ask_patiently(holder, ask, NOTE_PATIENCE).await;
            if let Ok((Answer::Forced { run, .. }, _)) = forced {
                self.holder_runs.borrow_mut().insert(holder, run);
            }
        }
    }

    /// Fills missing bytes of files that a power cut may have taken with zeros: later losses there
    /// have another cause.
    pub(crate) async fn fill_doubtful(&self) -> Result<(), RpcError> {
        let Some(host) = self.host() else { return Ok(()) };
        let doubtful = host.doubtful();
        let void: Vec<(Ino, u64)> = {
            let state = self.replica.view();
            let void = state.extents().void_blocks();
            void.filter(|(ino, _)| doubtful.contains(ino)).collect()
        };
        for (ino, block) in void {
            let filled = self.store.fill_up(&self.location(ino), &(block..block + 1)).await;
            filled.map_err(|error| self.disk_failed(ino, error))?;
        }
        Ok(())
    }

    /// Forces the bytes on other nodes that are nowhere else. If one of them has lost bytes in a
    /// power cut that clients still have, this node ends its lead: the clients of a new lead bring
    /// them back.
    pub(crate) async fn force_elsewhere(&self) -> Result<(), RpcError> {
        let Some(host) = self.host() else { return Ok(()) };
        for holder in self.other_holders() {
            self.force_at(&host, holder, PATIENCE).await?;
        }
        Ok(())
    }

    /// Forces the bytes on one other node, which says whether it has lost some.
    async fn force_at(
        &self,
        host: &Host,
        holder: NodeId,
        patience: Duration,
    ) -> Result<(), RpcError> {
        let ask = Ask::Force { at: self.replica.durable() };
        let forced = host.ask_patiently(holder, ask, patience).await;
        let (answer, _) = forced?;
        let Answer::Forced { run, doubtful } = answer else { return Ok(()) };
        let is_known = self.holder_runs.borrow().get(&holder) == Some(&run);
        let is_unforced = |ino: &Ino| {
            let state = self.replica.view_without_backing();
            state.nodes().holder(*ino) == Some(holder)
                && state.nodes().unforced().writers(*ino).next().is_some()
        };
        if !is_known && doubtful.iter().any(is_unforced) {
            host.fail(format!("node {holder} has lost bytes that clients bring back"));
            return Err(RpcError::NotLeader { leader: None });
        }
        self.holder_runs.borrow_mut().insert(holder, run);
        Ok(())
    }

    fn other_holders(&self) -> BTreeSet<NodeId> {
        let own = self.replica.own_node();
        let state = self.replica.view_without_backing();
        state.nodes().holders().map(|(_, holder)| holder).filter(|it| Some(*it) != own).collect()
    }
}

/// The bytes up to the end of the file, and their checksums, if they are those written.
fn checked(
    size: u64,
    blocks: &Range<u64>,
    sums: &[Option<u32>],
    bytes: Bytes,
) -> Option<(Vec<Option<u32>>, Bytes)> {
    let mut bytes = BytesMut::from(bytes);
    let end = size.saturating_sub(blocks.start * BLOCK_BYTES).min(bytes.len() as u64) as usize;
    bytes[end..].fill(0);
    let mut own = Vec::with_capacity(sums.len());
    for (block, sum) in bytes.chunks(BLOCK_BYTES as usize).zip(sums) {
        let computed = ebb_format::crc32c(block);
        if sum.is_some_and(|sum| sum != computed) {
            return None;
        }
        own.push(Some(computed));
    }
    Some((own, bytes.freeze()))
}
