use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Turns in the order of their requests. A plain lock goes to any waiter that is there when it
/// becomes free. A stream of appends could keep a force waiting for ever, and one busy caller of
/// force all others, though its syncs cover them.
#[derive(Default)]
pub(super) struct Turns {
    taken: Cell<bool>,
    waiting: RefCell<VecDeque<oneshot::Sender<Turn>>>,
}

/// Passed on when it is dropped, also on its way to a waiter that has gone.
pub(super) struct Turn(Rc<Turns>);

impl Turns {
    pub async fn turn(self: &Rc<Self>) -> Turn {
        if !self.taken.replace(true) {
            return Turn(self.clone());
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut().push_back(sender);
        receiver.await.expect("a turn is passed to everybody who waits")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.0.waiting.borrow_mut().pop_front();
        match next {
            // Without a waiter there, the turn comes back and is dropped, which passes it on.
            Some(next) => drop(next.send(Turn(self.0.clone()))),
            None => self.0.taken.set(false),
        }
    }
}
