//! Replies to the node's reference queries.

use crate::known::KernelReferences;
use crate::{Notification, Notifier, NotifyError};
use ebb_model::Ino;
use std::cell::RefCell;
use std::time::Duration;

/// The kernel drops unused inodes at once, but sends FORGET behind its pending requests.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Asks the kernel to drop unused inodes, where it supports that; otherwise it drops them under
/// memory pressure. Returns those that it still references.
pub(super) async fn give_up(
    inos: Vec<Ino>,
    root: Ino,
    known: &RefCell<KernelReferences>,
    notifier: &Notifier,
) -> Vec<Ino> {
    let is_held = |ino: &Ino| *ino == root || known.borrow().has(*ino);
    let pruned: Vec<Ino> =
        inos.iter().copied().filter(|ino| *ino != root && is_held(ino)).collect();
    if !pruned.is_empty() {
        match notifier.send(Notification::Prune { inos: pruned.clone() }).await {
            Ok(()) => {
                let mut looks = 0;
                while looks < LOOKS && pruned.iter().any(is_held) {
                    tokio::time::sleep(PAUSE).await;
                    looks += 1;
                }
            }
            Err(NotifyError::Unsupported | NotifyError::Ended) => {}
            Err(error) => tracing::error!(%error, "the kernel does not drop what it should"),
        }
    }
    inos.into_iter().filter(is_held).collect()
}
