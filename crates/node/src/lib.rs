//! The server: drives the core through the ports.
//!
//! A [`Node`] serves one volume. Requests of its clients come in through [`Node::handle`], in the
//! same process or over the wire; flows to and from the bucket run beside them. Rules live in the
//! core. This crate decides when to apply them, and performs the resulting effects.

mod admin;
mod buckets;
mod clients;
mod data;
mod effects;
mod flush;
mod force;
mod identity;
mod life;
mod names;
mod options;
mod readahead;
mod recover;
mod replica;
mod replication;
mod snapshot;
mod uncommitted;

pub use admin::backup::{
    BackupError, ENCRYPTION, Of, backup, discard_backup, fetch_backup, find_backup,
};
pub use admin::fsck::{FsckError, Readable, fsck, serves};
pub use admin::restore::{Outlook, Restoring, TakingOver};
pub use buckets::{head, side_by_side};
pub use clients::wire;
pub use ebb_core::backing::Loss;
pub use ebb_core::cache::Eviction;
pub use life::Stopped;
pub use options::Options;
pub use recover::OpenError;
pub use replication::{Host, HostOptions};

use admin::Instruments;
use admin::troubles::Subject;
use buckets::Buckets;
use clients::attachments::Attachments;
use clients::barrier::UnforcedWriters;
use clients::leases::Leases;
use data::Data;
use ebb_consensus::RunId;
use ebb_core::extent::{Effect, Unforced};
use ebb_core::locks::LockTable;
use ebb_core::state::{Applied, State};
use ebb_journal::LogError;
use ebb_model::*;
use ebb_ports::{DiskError, Ports};
use ebb_store::Store;
use effects::EffectError;
use flush::Flusher;
use futures_util::future::{Either, select};
use names::Names;
use readahead::Readahead;
use replica::Replica;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::{Rc, Weak};

/// The identity of this run of the node. It does not change.
pub(crate) struct Run {
    cluster: ClusterId,
    incarnation: Incarnation,
    /// Distinguishes this run of the node from others.
    id: u64,
    /// Index of the log when this run began.
    recovered: LogIndex,
}

pub struct Node {
    ports: Ports,
    options: Options,
    buckets: Buckets,
    replica: Replica,
    /// Shared with the host of a replicated volume, as the replica is.
    store: Rc<Store>,
    attachments: Attachments,
    leases: Leases,
    /// Locks that clients have taken, in this run.
    locks: RefCell<LockTable>,
    names: Names,
    readahead: Readahead,
    data: Data,
    flusher: Flusher,
    instruments: Instruments,
    /// Mutations that have no answer yet, and whether each can be replayed only if it is not
    /// answered.
    under_way: RefCell<BTreeMap<TxId, bool>>,
    run: Run,
    /// Writes of earlier runs that a power cut may have taken, for clients that have yet to come
    /// back and replay them.
    unforced: RefCell<Unforced>,
    unforced_writers: UnforcedWriters,
    /// Operations answered up to here survive a power cut with all their bytes.
    safe: Cell<LogIndex>,
    /// Position of the last snapshot.
    snapshot_at: Cell<Position>,
    stopping: Cell<bool>,
    /// Runs of other nodes that have dirty bytes, as far as this one has heard of them.
    holder_runs: RefCell<BTreeMap<NodeId, RunId>>,
    /// Of a replicated volume.
    host: RefCell<Option<Weak<Host>>>,
}

impl Node {
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    pub fn volume(&self) -> &str {
        &self.options.volume
    }

    /// Where other mounts find this node; empty if they cannot.
    pub fn address(&self) -> &str {
        &self.options.address
    }

    /// Drawn at random when it was opened: [`ebb_model::Attached::start`].
    pub fn run(&self) -> u64 {
        self.run.id
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Completes when the disk has failed under acknowledged operations. Only a recovery can tell
    /// then which of them are there: the supervisor of a node for other machines ends it and starts
    /// it again, and clients replay the missing ones.
    pub async fn failure(&self) -> LogError {
        match select(pin!(self.replica.log().failure()), pin!(self.store.failure())).await {
            Either::Left((error, _)) => error,
            Either::Right((error, _)) => LogError::Disk(error),
        }
    }

    /// Whether [`Node::failure`] has completed.
    fn has_failed(&self) -> bool {
        self.replica.log().failed().is_some() || self.store.has_failed()
    }

    /// Runs work deferred past the reply. Called when no client waits.
    pub fn apply_deferred(self: &Rc<Self>) {
        self.replica.apply_deferred();
        self.look_for_walks();
    }

    /// Logs and applies a command of the node's own, and performs its effects.
    async fn commit(&self, command: Command) -> Result<LogIndex, RpcError> {
        let (index, applied) = self.replica.propose(|_| Ok(command)).await?;
        self.perform_effects(applied, None).await?;
        Ok(index)
    }

    /// Logs and applies a command about this node's disk, and performs its effects.
    async fn commit_local(&self, command: LocalCommand) -> Result<(), RpcError> {
        let (_, applied) = self.replica.propose(|_| Ok(command)).await?;
        self.perform_effects(applied, None).await
    }

    /// Performs the effects of an applied command: on store files and on caches of other clients.
    async fn perform_effects(
        &self,
        applied: Applied,
        author: Option<SessionId>,
    ) -> Result<(), RpcError> {
        let makes_holes =
            applied.effects.iter().any(|effect| matches!(effect, Effect::Punch { .. }));
        let _pending = makes_holes.then(|| self.data.begin_holes());
        if author.is_none() {
            self.recall_changed(&applied.touched, &applied.names);
        }
        for ino in applied.touched {
            self.attachments.notify_others(author, &Notice::Invalidate { ino });
        }
        for (dir, name) in applied.names {
            self.attachments.notify_others(author, &Notice::Relinked { dir, name });
        }
        for effect in applied.effects {
            if let Effect::Drop { ino } = effect {
                self.data.forget(ino);
                self.readahead.forget(ino);
                self.flusher.has_ended(ino);
                self.flusher.forget_failed(ino);
            }
            let at = self.replica.written_position();
            let done = effects::perform(
                &self.store,
                |ino| self.location(ino),
                || self.force_log(),
                &effect,
                at,
            );
            match done.await {
                Err(EffectError::Log(error)) => return Err(error),
                Err(EffectError::Cut(ino, error)) => return Err(self.disk_failed(ino, error)),
                Err(EffectError::Hole(ino, error)) if self.is_seen(ino) => {
                    return Err(self.disk_failed(ino, error));
                }
                Err(EffectError::Hole(_, error)) => self.trouble(
                    "holes",
                    Some(format!("the space of a hole could not be given back: {error}")),
                ),
                Ok(()) if matches!(effect, Effect::Punch { .. }) => self.trouble("holes", None),
                Ok(()) => {}
            }
        }
        self.flusher.wake();
        Ok(())
    }

    /// An inode may be removed while bytes are on their way into its store file, which is then
    /// created anew. Called after writing, with the inode's latch held exclusively.
    fn drop_if_gone(&self, ino: Ino) {
        if self.replica.view().namespace().inode(ino).is_none() {
            self.store.free_file_after(ino, self.replica.written_position());
        }
    }

    /// The error that a request gets when the node's disk fails; the trouble is recorded.
    fn disk_failed(&self, ino: Ino, error: DiskError) -> RpcError {
        match error {
            DiskError::NoSpace => {
                self.trouble("space", Some("the node's disk is full".into()));
                RpcError::Refused(FsError::NoSpace)
            }
            error => {
                self.trouble(
                    Subject::Disk(ino),
                    Some(format!(
                        "the node's disk failed where it has bytes of inode {ino}: {error}"
                    )),
                );
                RpcError::Refused(FsError::Io)
            }
        }
    }

    /// Logs the command that `choose` makes of the state, with the time and the version that it is
    /// given, and performs its effects.
    async fn commit_stamped(
        &self,
        choose: impl FnOnce(&State, Stamp) -> Result<Command, RpcError>,
    ) -> Result<(), RpcError> {
        let time = self.ports.clock.wall();
        let proposed = self
            .replica
            .propose(|state| choose(state, Stamp { time, version: state.next_version() }));
        let (_, applied) = proposed.await?;
        self.perform_effects(applied, None).await
    }

    /// Refuses if this node must not change the volume.
    fn expect_writable(&self) -> Result<(), RpcError> {
        match self.buckets.lost_to() {
            _ if self.read_only() => Err(FsError::ReadOnly.into()),
            Some(owner) => {
                Err(RpcError::NotServing(format!("the volume was taken over by {owner}")))
            }
            None => Ok(()),
        }
    }

    /// The same, and all operations acknowledged to clients before a restart are back.
    fn expect_changeable(&self) -> Result<(), RpcError> {
        self.expect_writable()?;
        if self.attachments.awaits_sole() { Err(RpcError::Retry) } else { Ok(()) }
    }

    fn expect_running(&self) -> Result<(), RpcError> {
        if self.is_stopping() {
            Err(RpcError::NotServing("the node is stopping".into()))
        } else {
            Ok(())
        }
    }

    /// The slot for a new inode in `parent`: a random one for a directory, so that a volume can be
    /// split by slots.
    fn slot_of_new(&self, parent: Ino, kind: FileKind) -> Slot {
        match kind {
            FileKind::Directory => random_slot(&*self.ports.entropy),
            _ => parent.slot(),
        }
    }

    fn read_only(&self) -> bool {
        self.options.read_only
    }
}

fn random_slot(entropy: &dyn ebb_ports::Entropy) -> Slot {
    Slot(entropy.next_u64() as u16)
}

/// A random number of 128 bits.
fn random_u128(entropy: &dyn ebb_ports::Entropy) -> u128 {
    u128::from(entropy.next_u64()) << 64 | u128::from(entropy.next_u64())
}
