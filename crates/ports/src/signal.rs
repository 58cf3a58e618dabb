//! Wakes tasks that wait for a change.

use futures_channel::oneshot;
use std::cell::RefCell;

#[derive(Default)]
pub struct Signal {
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

impl Signal {
    /// Completes at the first [`Signal::raise`] after this call, not after the first poll.
    pub fn wait(&self) -> impl Future<Output = ()> + use<> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|waiter| !waiter.is_canceled());
        waiting.push(sender);
        async move {
            // The signal went away with its owner: there is nothing left to wait for.
            let (Ok(()) | Err(oneshot::Canceled)) = receiver.await;
        }
    }

    pub fn raise(&self) {
        for waiter in self.waiting.borrow_mut().drain(..) {
            // A waiter that has gone away needs no waking.
            let (Ok(()) | Err(())) = waiter.send(());
        }
    }
}
