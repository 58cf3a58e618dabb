use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Items that are leased one at a time each. Waiting tasks get them in the order in which they
/// came.
pub(crate) struct Pool<T> {
    state: RefCell<State<T>>,
}

struct State<T> {
    free: Vec<T>,
    waiting: VecDeque<oneshot::Sender<Lease<T>>>,
    closed: bool,
}

/// Returns the item to the pool when it is dropped.
pub(crate) struct Lease<T> {
    item: Option<T>,
    pool: Rc<Pool<T>>,
}

impl<T> Pool<T> {
    /// Leases the last of `free` first.
    pub(crate) fn new(free: Vec<T>) -> Rc<Pool<T>> {
        Rc::new(Pool {
            state: RefCell::new(State { free, waiting: VecDeque::new(), closed: false }),
        })
    }

    /// `None` once the pool is closed.
    pub(crate) async fn acquire(self: &Rc<Pool<T>>) -> Option<Lease<T>> {
        let granted = {
            let mut state = self.state.borrow_mut();
            if state.closed {
                return None;
            }
            match state.free.pop() {
                Some(item) => return Some(Lease { item: Some(item), pool: self.clone() }),
                None => {
                    let (sender, receiver) = oneshot::channel();
                    state.waiting.push_back(sender);
                    receiver
                }
            }
        };
        granted.await.ok()
    }

    /// Leases an item that was not in the pool. The pool gets it when it is returned.
    pub(crate) fn grant(self: &Rc<Pool<T>>, item: T) -> Lease<T> {
        Lease { item: Some(item), pool: self.clone() }
    }

    /// Ends all waits. Leased items stay leased.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.state.borrow_mut();
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }

    fn give_back(self: &Rc<Pool<T>>, item: T) {
        let mut lease = Lease { item: Some(item), pool: self.clone() };
        loop {
            let next = self.state.borrow_mut().waiting.pop_front();
            match next {
                Some(sender) => match sender.send(lease) {
                    Ok(()) => return,
                    // The waiting task has gone.
                    Err(back) => lease = back,
                },
                None => break,
            }
        }
        if let Some(item) = lease.item.take() {
            self.state.borrow_mut().free.push(item);
        }
    }
}

impl<T: Copy> Lease<T> {
    pub(crate) fn item(&self) -> Option<T> {
        self.item
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            self.pool.clone().give_back(item);
        }
    }
}
