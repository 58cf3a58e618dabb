//! What a node does beside answering, and how it ends.

use crate::Node;
use crate::bucket::Backoff;
use ebb_model::*;
use ebb_ports::BucketError;
use std::rc::Rc;
use std::time::Duration;

/// How often sessions are looked at.
const EXPIRY_POLL: Duration = Duration::from_secs(1);

/// How a node has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// Everything is in the bucket, and the volume is free for anybody to serve.
    Released,
    /// What is dirty is safe in the data directory, and the volume stays this node's.
    Kept { dirty_files: u64 },
}

impl Node {
    pub(crate) fn start(self: &Rc<Self>) {
        let spawn = &self.ports.spawn;
        spawn.spawn(Box::pin(self.clone().force_for_ever()));
        spawn.spawn(Box::pin(self.clone().expire_for_ever()));
        spawn.spawn(Box::pin(self.clone().snapshot_for_ever()));
        if self.tenure.is_some() {
            spawn.spawn(Box::pin(self.clone().renew_for_ever()));
            spawn.spawn(Box::pin(self.clone().flush_for_ever()));
        }
    }

    /// Forces what was acknowledged, once every commit interval.
    async fn force_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            self.ports.clock.sleep(self.options.commit_interval).await;
            if self.safe.get() < self.replica.log().written() {
                let forced = self.force_all().await;
                self.trouble(
                    "force",
                    forced.err().map(|error| format!("what was acknowledged cannot be made safe from a power cut: {error}")),
                );
            }
        }
    }

    async fn expire_for_ever(self: Rc<Self>) {
        let mut looked = self.ports.clock.monotonic();
        while !self.is_stopping() {
            self.ports.clock.sleep(EXPIRY_POLL).await;
            // While this process stood still nobody could be heard.
            let now = self.ports.clock.monotonic();
            let paused = now.saturating_sub(looked + EXPIRY_POLL);
            looked = now;
            if paused > EXPIRY_POLL {
                self.attachments.postpone(paused);
            }
            if !self.options.embedded {
                self.expire_sessions().await;
            }
        }
    }

    async fn snapshot_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            self.ports.clock.sleep(EXPIRY_POLL).await;
            if self.replica.log().written().0 - self.snapshot_at.get().0 < self.options.snapshot_operations {
                continue;
            }
            let written = self.write_snapshot().await;
            self.trouble("snapshot", written.err().map(|error| format!("the log cannot be shortened: {error}")));
        }
    }

    /// Keeps the head of the volume, or learns that it is lost.
    async fn renew_for_ever(self: Rc<Self>) {
        let Some(tenure) = &self.tenure else { return };
        let mut backoff = Backoff::default();
        while !self.is_stopping() {
            match tenure.renew().await {
                Ok(()) => {
                    backoff = Backoff::default();
                    self.ports.clock.sleep(tenure.term() / 3).await;
                }
                Err(BucketError::Precondition { .. }) => {
                    self.trouble("tenure", Some(format!("the volume was taken over by {}", tenure.lost_to().unwrap_or_default())));
                    self.attachments.notify_others(None, &Notice::Leaving);
                    return;
                }
                Err(error) => {
                    self.trouble("head", Some(format!("the head of the volume cannot be renewed: {error}")));
                    let pause = backoff.pause(self.ports.entropy.next_u64(), None);
                    self.ports.clock.sleep(pause).await;
                    continue;
                }
            }
            self.trouble("head", None);
        }
    }

    /// Ends the node. With `flush` everything dirty is written to the bucket first, for as
    /// long as that makes progress; either way nothing acknowledged is lost.
    pub async fn stop(self: &Rc<Self>, flush: bool) -> Result<Stopped, RpcError> {
        self.attachments.notify_others(None, &Notice::Leaving);
        let flushed = match &self.tenure {
            Some(tenure) if flush && tenure.holds() => self.flush_below(Ino::ROOT).await,
            _ => Ok((0, 0)),
        };
        if let Err(error) = &flushed {
            tracing::warn!(%error, "not everything reached the bucket");
        }
        self.stopping.set(true);
        // What is still under way may yet change something, which must not come behind the release.
        while !self.under_way.borrow().is_empty() {
            self.ports.clock.sleep(EXPIRY_POLL / 100).await;
        }
        self.write_snapshot().await?;
        // Objects of files that are open and have no name are not deleted yet: to the next
        // node they would be files again.
        let settled = self.replica.view().backing().is_settled() && self.replica.view().namespace().orphans().next().is_none();
        let dirty_files = self.replica.view().backing().dirt().files;
        match &self.tenure {
            Some(tenure) if settled => match tenure.release().await {
                Ok(()) => Ok(Stopped::Released),
                Err(error) => {
                    tracing::warn!(%error, "the volume could not be released: the next node waits for its term to end");
                    Ok(Stopped::Kept { dirty_files })
                }
            },
            _ => Ok(Stopped::Kept { dirty_files }),
        }
    }
}
