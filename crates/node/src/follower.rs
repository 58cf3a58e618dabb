//! A replica that follows the leader of a partition: it logs the committed commands on its own
//! disk, applies them, and performs their effects there.
//!
//! Laws:
//! - After each command its partition equals that of every other replica at the same index.
//! - A file that is gone, or the end that was cut off, is not on its disk once the command is
//!   forced there. What a crash has kept on the disk goes with the next start.
//! - Of the bytes on its disk it trusts none that a power cut can have taken: they go, since others
//!   have them.

use crate::OpenError;
use crate::data::packs::location;
use crate::effects::{self, EffectError};
use crate::recover::{Replayed, drop_strays, make_holes, replay};
use crate::replica::refusal;
use crate::snapshot::{items, write};
use bytes::Bytes;
use ebb_core::partition::{Partition, SnapshotItem};
use ebb_core::state::{Applied, State};
use ebb_format::record::GroupId;
use ebb_format::segment::VolumeId;
use ebb_journal::{Entry, Frontier, Log, LogError, Options, SnapshotAt, SnapshotFrames};
use ebb_model::*;
use ebb_ports::{DiskError, Ports};
use ebb_store::Store;
use std::cell::{Ref, RefCell};
use thiserror::Error;

#[derive(Clone, PartialEq, Debug, Error)]
pub enum FollowerError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the follower's log: {0}")]
    Log(#[from] LogError),
    #[error("the follower's disk: {0}")]
    Disk(#[from] DiskError),
    #[error("the follower's log takes no more commands: {0}")]
    Refused(#[from] RpcError),
    #[error("a follower cannot begin behind command {index}", index = .index.0)]
    Late { index: LogIndex },
    #[error(
        "command {index} of the leader comes behind command {last} of the follower",
        index = .index.0,
        last = .last.0
    )]
    Gap { index: LogIndex, last: LogIndex },
}

/// A replica on its own disk.
pub struct Follower {
    log: Log,
    store: Store,
    state: RefCell<State>,
    /// The log up to the last command that is applied.
    applied: RefCell<Frontier>,
}

impl Follower {
    /// Goes on from what is on the disk, or begins with the partition's first snapshot. A later one
    /// needs a record of where the log begins, which comes with consensus.
    pub async fn open(
        ports: &Ports,
        cluster: ClusterId,
        leader: impl AsyncFnOnce() -> Result<SnapshotFrames, LogError>,
    ) -> Result<Follower, FollowerError> {
        let options = Options {
            volume: VolumeId(cluster.0),
            incarnation: Incarnation(1),
            segment_bytes: ebb_journal::DEFAULT_SEGMENT_BYTES,
        };
        let (log, recovery) =
            Log::recover(ports.disk.clone(), ports.spawn.clone(), options).await?;
        let is_fresh = recovery.is_empty();
        let replayed = match is_fresh {
            true => {
                let snapshot = leader().await?;
                if snapshot.header().index > LogIndex(0) {
                    return Err(FollowerError::Late { index: snapshot.header().index });
                }
                let items: Vec<SnapshotItem> = items(snapshot).await?;
                Replayed::of(State::of(Partition::from_items(items).map_err(OpenError::from)?))
            }
            false => replay(recovery, State::check_copies).await?,
        };
        let store = Store::open(ports.disk.clone(), cluster).await?;
        let applied = RefCell::new(log.written_frontier());
        let Replayed { state, unverified, holes, cuts, .. } = replayed;
        let follower = Follower { log, store, state: RefCell::new(state), applied };
        if is_fresh {
            follower.write_snapshot().await?;
        }
        let cuts = cuts.into_iter().map(|(ino, len)| (location(&follower.view(), ino), len));
        follower.store.not_forced_cuts(cuts);
        // Nothing counts as forced yet that a power cut may have taken.
        follower.force_log().await?;
        drop_strays(&follower.store, || follower.view()).await?;
        follower.store.sync_names().await?;
        make_holes(&follower.store, || follower.view(), holes).await?;
        for (ino, runs) in unverified {
            for run in runs {
                let (first, count) = (run.start, run.end - run.start);
                follower.log_local(LocalCommand::Unsynced { ino, first, count }).await?;
            }
        }
        follower.force().await?;
        Ok(follower)
    }

    /// The present state. Must not be held across an await.
    pub fn view(&self) -> Ref<'_, State> {
        self.state.borrow()
    }

    /// The files on its disk.
    pub fn files(&self) -> Vec<Ino> {
        self.store.list()
    }

    /// Bytes of a file as its disk has them.
    pub async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Bytes, FollowerError> {
        let location = location(&self.view(), ino);
        Ok(self.store.read(&location, offset, len).await?)
    }

    /// Logs and applies the leader's next command, and performs its effects. One call at a time.
    pub async fn follow(&self, index: LogIndex, command: &Command) -> Result<(), FollowerError> {
        let last = self.view().applied();
        if index.0 != last.0 + 1 {
            return Err(FollowerError::Gap { index, last });
        }
        let entry = Entry::Command(GroupId::PARTITION, command);
        let upto = self.log.append(&[entry]).await?;
        let applied =
            self.state.borrow_mut().apply_logged(upto.position, &[], Some((index, command)));
        self.state.borrow_mut().apply_deferred();
        self.applied.replace(upto);
        self.perform(applied).await
    }

    /// Keeps a copy of complete blocks of a file's object, from block `first` on.
    pub async fn keep(
        &self,
        ino: Ino,
        etag: &str,
        first: u64,
        blocks: Bytes,
    ) -> Result<(), FollowerError> {
        // A file that was evicted and is back has its id again: its removal comes first.
        if self.store.has_pending_frees() {
            self.force().await?;
        }
        let sums = blocks.chunks(BLOCK_BYTES as usize).map(ebb_format::crc32c).collect();
        let location = location(&self.view(), ino);
        self.store.fill(&location, first * BLOCK_BYTES, blocks).await?;
        self.log_local(LocalCommand::Present { ino, etag: etag.into(), first, sums }).await
    }

    /// Forces everything that was followed and kept so far, and the effects of it.
    pub async fn force(&self) -> Result<(), FollowerError> {
        let (scope, upto) = (SyncScope::All, self.log.written_position());
        if self.store.sync(scope).await? {
            self.log_local(LocalCommand::Synced { scope, upto }).await?;
        }
        self.force_log().await?;
        let is_used = |pack| self.view().extents().packed_in(pack).next().is_some();
        self.store.free_pending(self.log.durable_position(), is_used).await?;
        Ok(())
    }

    /// Writes the state as a snapshot, so that the log before it can be dropped.
    pub async fn write_snapshot(&self) -> Result<(), FollowerError> {
        let (local, shared, state) = {
            let (state, upto) = (self.view().clone(), self.applied.borrow());
            let (position, version) = (upto.position, state.version());
            let index = upto.index(GroupId::LOCAL);
            let local = SnapshotAt { index, position, version: Version(0), term: None };
            (local, SnapshotAt { index: state.applied(), position, version, term: None }, state)
        };
        self.store.sync(SyncScope::All).await?;
        self.force_log().await?;
        Ok(write(&self.log, (local, shared), &state).await?)
    }

    async fn log_local(&self, command: LocalCommand) -> Result<(), FollowerError> {
        let upto = self.log.append(&[Entry::Local(&command)]).await?;
        let applied = self.state.borrow_mut().apply_logged(upto.position, &[command], None);
        self.applied.replace(upto);
        self.perform(applied).await
    }

    async fn perform(&self, applied: Applied) -> Result<(), FollowerError> {
        if Planted::EffectsLeft.is_on() {
            return Ok(());
        }
        for effect in applied.effects {
            let force = || -> ebb_ports::PortFuture<'_, Result<(), RpcError>> {
                Box::pin(async { self.force_log().await.map_err(refusal) })
            };
            let place = |ino| location(&self.view(), ino);
            let at = self.log.written_position();
            match effects::perform(&self.store, place, force, &effect, at).await {
                Ok(()) => {}
                Err(EffectError::Log(error)) => return Err(error.into()),
                Err(EffectError::Cut(_, error) | EffectError::Hole(_, error)) => {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    async fn force_log(&self) -> Result<(), LogError> {
        // Otherwise bytes that were cut off could come back under the commands logged by now.
        self.store.sync_cuts().await?;
        self.log.force().await.map(drop)
    }
}
