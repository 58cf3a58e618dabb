use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Where tasks wait for a condition on state that lies beside it. Whoever changes that
/// state calls [`Gate::changed`].
#[derive(Default)]
pub(crate) struct Gate {
    waiting: RefCell<Vec<Waker>>,
}

impl Gate {
    pub(crate) fn changed(&self) {
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    pub(crate) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| match look() {
            Some(found) => Poll::Ready(found),
            None => {
                let mut waiting = self.waiting.borrow_mut();
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }
}
