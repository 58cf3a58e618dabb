use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Lets tasks wait for a condition on state that lies outside the gate. Code that changes the state
/// must call [`Gate::changed`].
#[derive(Default)]
pub(crate) struct Gate {
    /// One waker for each wait, by its number, so that a wait that is polled often or dropped
    /// leaves nothing behind.
    waiting: RefCell<BTreeMap<u64, Waker>>,
    next_place: Cell<u64>,
}

impl Gate {
    pub(crate) fn changed(&self) {
        for waker in self.waiting.take().into_values() {
            waker.wake();
        }
    }

    pub(crate) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let place =
            Waiting { gate: self, number: self.next_place.replace(self.next_place.get() + 1) };
        poll_fn(|context| match look() {
            Some(found) => Poll::Ready(found),
            None => {
                self.waiting.borrow_mut().insert(place.number, context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

struct Waiting<'a> {
    gate: &'a Gate,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.gate.waiting.borrow_mut().remove(&self.number);
    }
}
