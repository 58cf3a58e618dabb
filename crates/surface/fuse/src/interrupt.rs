//! Signals to the callers of requests that wait.
//!
//! The kernel sends INTERRUPT for a request once after each time that the request is read, and one
//! thread processes both in that order. So the request is already known here, or has been answered,
//! or was read by a previous process: then it comes again, and another INTERRUPT after it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::oneshot;

/// Requests in flight that can be interrupted, by `unique`.
#[derive(Clone, Default)]
pub(crate) struct Interrupts {
    waiting: Rc<RefCell<BTreeMap<u64, oneshot::Sender<()>>>>,
}

impl Interrupts {
    pub fn expect(&self, unique: u64) -> Interruption {
        let (signal, signalled) = oneshot::channel();
        self.waiting.borrow_mut().insert(unique, signal);
        Interruption { interrupts: self.clone(), unique, signalled }
    }

    pub fn interrupt(&self, unique: u64) {
        if let Some(waiting) = self.waiting.borrow_mut().remove(&unique) {
            // The waiting request may have just been answered.
            let (Ok(()) | Err(())) = waiting.send(());
        }
    }
}

/// Completes when the caller of a request has got a signal and waits no longer.
pub struct Interruption {
    interrupts: Interrupts,
    unique: u64,
    signalled: oneshot::Receiver<()>,
}

impl Interruption {
    pub async fn signalled(&mut self) {
        if (&mut self.signalled).await.is_err() {
            // No sender is left.
            std::future::pending().await
        }
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        self.interrupts.waiting.borrow_mut().remove(&self.unique);
    }
}
