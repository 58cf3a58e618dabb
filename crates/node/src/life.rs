//! A node's background tasks, and its shutdown.

use crate::Node;
use crate::buckets::ask::Backoff;
use crate::buckets::borders::BucketIndex;
use crate::buckets::head::HeadLease;
use crate::buckets::id_ranges;
use crate::buckets::members;
use crate::flush::FlushReport;
use ebb_model::*;
use ebb_ports::BucketError;
use std::rc::Rc;
use std::time::Duration;

/// How often fetched bytes are forced. No client waits for that: bytes that a crash finds not
/// forced are fetched again.
const FETCHED_INTERVAL: Duration = Duration::from_secs(5);

/// A snapshot is written when the log has 1 / this as many operations as there are inodes, at
/// least.
const SNAPSHOT_SHARE: u64 = 4;

/// How often sessions are checked for expiry.
const EXPIRY_POLL: Duration = Duration::from_secs(1);

/// The outcome of stopping a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// Everything is in the bucket, and any node can serve the volume.
    Released,
    /// Dirty bytes are safe in the data directory, and the volume stays this node's.
    Kept { dirty_files: u64 },
}

impl Node {
    /// `late`: writes to the bucket from before the start that may still take effect.
    pub(crate) fn start(self: &Rc<Self>, late: Vec<(Ino, String)>) {
        let spawn = &self.ports.spawn;
        if !late.is_empty() {
            spawn.spawn(Box::pin(self.clone().settle_late(late)));
        }
        spawn.spawn(Box::pin(self.clone().force_for_ever()));
        spawn.spawn(Box::pin(self.clone().force_fetched_for_ever()));
        spawn.spawn(Box::pin(self.clone().expire_for_ever()));
        spawn.spawn(Box::pin(self.clone().snapshot_for_ever()));
        spawn.spawn(Box::pin(self.clone().count_for_ever()));
        spawn.spawn(Box::pin(self.clone().bound_metadata_for_ever()));
        spawn.spawn(Box::pin(self.clone().scrub_for_ever()));
        spawn.spawn(Box::pin(self.clone().compact_for_ever()));
        if !self.read_only() {
            spawn.spawn(Box::pin(self.clone().find_stores_for_ever()));
            spawn.spawn(Box::pin(self.clone().empty_for_ever()));
        }
        if let Some(head_lease) = self.buckets.head_lease() {
            spawn.spawn(Box::pin(self.clone().renew_for_ever(head_lease.clone())));
            for (at, member) in self.buckets.members().iter().enumerate() {
                if let Some(head_lease) = member.head_lease() {
                    spawn.spawn(Box::pin(
                        self.clone().renew_member_for_ever(at, head_lease.clone()),
                    ));
                }
            }
            for bucket_index in self.buckets.bucket_indexes() {
                spawn.spawn(Box::pin(self.clone().flush_for_ever(bucket_index)));
            }
            spawn.spawn(Box::pin(self.clone().send_early_for_ever()));
        }
    }

    /// Forces acknowledged operations once every commit interval, and removes files that are of no
    /// use any more.
    async fn force_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            self.ports.clock.sleep(self.options.commit_interval).await;
            if Planted::IntervalForgotten.is_on() {
                continue;
            }
            let is_due = self.safe.get() < self.replica.written()
                || self.replica.settled_position() < self.replica.written_position();
            if is_due || self.store.has_pending_frees() {
                let forced = self.force_all().await;
                self.trouble(
                    "force",
                    forced.err().map(|error| {
                        format!(
                            "what was acknowledged cannot be made safe from a power cut: {error}"
                        )
                    }),
                );
            }
        }
    }

    /// Forces fetched bytes now and then, by itself: a caller that waits for written bytes does not
    /// wait for them.
    async fn force_fetched_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            self.ports.clock.sleep(FETCHED_INTERVAL).await;
            if self.store.has_fetched()
                && let Err(error) = self.force(SyncScope::All).await
            {
                tracing::warn!(%error, "what was fetched is to be fetched again after a crash");
            }
        }
    }

    async fn expire_for_ever(self: Rc<Self>) {
        let mut looked = self.ports.clock.monotonic();
        while !self.is_stopping() {
            self.ports.clock.sleep(EXPIRY_POLL).await;
            // While this process stood still no client could be heard.
            let now = self.ports.clock.monotonic();
            let paused = now.saturating_sub(looked + EXPIRY_POLL);
            looked = now;
            if paused > EXPIRY_POLL {
                self.attachments.postpone(paused);
            }
            if !self.options.embedded {
                self.expire_sessions().await;
            }
            self.end_troubles().await;
            if !self.instruments.troubles().is_empty() {
                let node = self.clone();
                self.ports.spawn.spawn(Box::pin(async move { node.repeat_refused().await }));
            }
        }
    }

    async fn snapshot_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            self.ports.clock.sleep(EXPIRY_POLL).await;
            // With many inodes a snapshot is long: a log that is a fraction of it costs less than
            // the next one.
            let least = (self.replica.view().namespace().len() as u64 / SNAPSHOT_SHARE)
                .max(self.options.snapshot_operations);
            // A write has two records.
            let logged = (self.replica.written_position().0 - self.snapshot_at.get().0) / 2;
            let short = logged < least;
            // A snapshot does not record which bytes clients have yet to replay.
            if short || self.attachments.awaits_any() {
                continue;
            }
            self.unforced.borrow_mut().clear();
            let written = self.write_snapshot().await;
            self.trouble(
                "snapshot",
                written.err().map(|error| format!("the log cannot be shortened: {error}")),
            );
        }
    }

    /// Keeps the head of the volume, or learns that it is lost.
    async fn renew_for_ever(self: Rc<Self>, head_lease: Rc<HeadLease>) {
        self.renew_while_held(&head_lease, BucketIndex::ROOT, "head", "the head of the volume")
            .await;
        if let Some(owner) = head_lease.lost_to() {
            self.trouble("head lease", Some(format!("the volume was taken over by {owner}")));
            self.attachments.notify_others(None, &Notice::Leaving);
        }
    }

    /// Keeps the head of a member. If it is lost the volume continues without writing there.
    async fn renew_member_for_ever(self: Rc<Self>, at: usize, head_lease: Rc<HeadLease>) {
        let member = self.buckets.members()[at].describe();
        let subject = self.buckets.subject("head", BucketIndex(at + 1));
        self.renew_while_held(
            &head_lease,
            BucketIndex(at + 1),
            &subject,
            &format!("the head of {member}"),
        )
        .await;
        if let Some(owner) = head_lease.lost_to() {
            let what = format!(
                "{member} was taken over by {owner}: nothing more is written there until the \
                 volume is mounted anew"
            );
            self.trouble(&subject, Some(what));
        }
    }

    async fn renew_while_held(
        &self,
        head_lease: &HeadLease,
        bucket_index: BucketIndex,
        subject: &str,
        what: &str,
    ) {
        let mut backoff = Backoff::default();
        let has_ids = bucket_index == BucketIndex::ROOT;
        while !self.is_stopping() {
            if has_ids {
                let state = self.replica.view();
                let (range, used) =
                    (state.namespace().id_range(), state.namespace().end_of_used_ids());
                head_lease.want_ids(id_ranges::wanted(range, used));
            }
            match head_lease.renew().await {
                Ok(()) => {
                    self.trouble(subject, None);
                    // A full disk refuses the record: the next renewal repeats it.
                    if has_ids && let Err(error) = self.note_reserved_ids(head_lease).await {
                        tracing::warn!(%error, "reserved inode ids cannot be used yet");
                    }
                    self.buckets.answers(bucket_index).any.set(self.ports.clock.monotonic());
                    backoff = Backoff::default();
                    self.ports.clock.sleep(head_lease.rest()).await;
                }
                Err(BucketError::Precondition { .. }) => return,
                Err(error) => {
                    self.trouble(subject, Some(format!("{what} cannot be renewed: {error}")));
                    backoff.wait(&self.ports, None).await;
                }
            }
        }
    }

    /// Logs the mark of the head, if it changes the ids that the node can draw.
    pub(crate) async fn note_reserved_ids(&self, head_lease: &HeadLease) -> Result<(), RpcError> {
        let upto = head_lease.ids().below;
        if self.replica.view().namespace().id_range().upto == upto {
            return Ok(());
        }
        let proposed = self
            .replica
            .propose(|_| match self.is_stopping() {
                // The release lowers the mark: nothing may raise it again.
                true => Err(RpcError::Retry),
                false => Ok(Command::ReserveIds { upto }),
            })
            .await;
        proposed.map(drop)
    }

    /// Gives back the ids that are not used, and returns the counter from which on that holds.
    /// Durable before the head has it: another node draws from it on.
    async fn give_back_ids(&self) -> Result<u32, RpcError> {
        self.replica
            .propose(|state| {
                let namespace = state.namespace();
                let upto = id_ranges::kept(namespace.id_range(), namespace.end_of_used_ids());
                Ok(Command::ReserveIds { upto })
            })
            .await?;
        self.force_log().await?;
        Ok(self.replica.view().namespace().id_range().upto)
    }

    /// Ends the node. With `flush` everything dirty is written to the bucket first, for as
    /// long as that makes progress; either way nothing acknowledged is lost.
    pub async fn stop(self: &Rc<Self>, flush: bool) -> Result<Stopped, RpcError> {
        self.attachments.notify_others(None, &Notice::Leaving);
        let flushed = match self.buckets.head_lease() {
            Some(head_lease) if flush && head_lease.holds() && !self.attachments.awaits_any() => {
                self.flush_below(Ino::ROOT).await
            }
            _ => Ok(FlushReport::default()),
        };
        if let Err(error) = &flushed {
            tracing::warn!(%error, "not everything reached the bucket");
        }
        self.stopping.set(true);
        // A mutation under way may still change something, which must not come behind the release.
        while !self.under_way.borrow().is_empty() || self.flusher.is_sending_early() {
            self.ports.clock.sleep(EXPIRY_POLL / 100).await;
        }
        drop(self.replica.settled().await);
        if self.attachments.awaits_any() {
            self.force_log().await?;
            return Ok(Stopped::Kept { dirty_files: self.replica.view().backing().dirt().files });
        }
        self.write_snapshot().await?;
        if self.is_settled() {
            self.outlast_late_effects().await;
            self.clear_early_at_last().await;
        }
        let dirty_files = self.replica.view().backing().dirt().files;
        match self.buckets.head_lease() {
            Some(head_lease) if self.is_settled() => {
                let ids = self.give_back_ids().await;
                let ids = ids.inspect_err(|error| {
                    tracing::warn!(%error, "unused inode ids stay reserved");
                });
                match self.release(head_lease, ids.ok()).await {
                    Ok(()) => Ok(Stopped::Released),
                    Err(error) => {
                        tracing::warn!(%error, "the volume could not be released: the next node \
                            waits for its term to end");
                        Ok(Stopped::Kept { dirty_files })
                    }
                }
            }
            _ => Ok(Stopped::Kept { dirty_files }),
        }
    }

    /// Nothing here is of use to another node. Objects of files that are open and have no name are
    /// not deleted yet: to the next node they would be files again. Only this node can find the
    /// bytes stored into exposed files.
    fn is_settled(&self) -> bool {
        let state = self.replica.view();
        state.backing().is_settled()
            && self.renamed_due(Ino::ROOT).is_empty()
            && state.namespace().orphans().next().is_none()
            && state.extents().exposed().next().is_none()
    }

    /// Gives back the members too, whether or not that succeeds. From the counter `ids` on, no id
    /// is used; unknown if it is `None`.
    async fn release(&self, head_lease: &HeadLease, ids: Option<u32>) -> Result<(), BucketError> {
        members::release(self.buckets.members()).await;
        head_lease.release(ids).await
    }
}
