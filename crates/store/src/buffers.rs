//! Memory for bytes of files on their way between bucket and store files. Each direction has a
//! share of its own of the permitted memory, so that none waits for another (O-97).

use ebb_ports::Signal;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

pub struct Buffers {
    limit_bytes: Cell<u64>,
    /// The most pieces at one time.
    most: usize,
    taken: Cell<Taken>,
    /// Waiters in the order of their arrival: small pieces do not overtake a large one for ever.
    queue: RefCell<BTreeSet<u64>>,
    tickets: Cell<u64>,
    changed: Signal,
}

#[derive(Clone, Copy, Default)]
struct Taken {
    bytes: u64,
    pieces: usize,
}

/// Memory that is given back when dropped.
pub struct Room<'a> {
    buffers: &'a Buffers,
    bytes: u64,
}

/// A place in the queue, left when dropped.
struct Turn<'a> {
    buffers: &'a Buffers,
    ticket: u64,
}

impl Buffers {
    pub fn new(limit_bytes: u64, most: usize) -> Buffers {
        Buffers {
            limit_bytes: Cell::new(limit_bytes),
            most,
            taken: Cell::default(),
            queue: RefCell::default(),
            tickets: Cell::default(),
            changed: Signal::default(),
        }
    }

    /// The holder of a lock that another task needs must not wait here, as memory may be held by
    /// that task: see [`Buffers::exceed`].
    pub async fn take(&self, bytes: u64) -> Room<'_> {
        let ticket = self.tickets.get();
        self.tickets.set(ticket + 1);
        self.queue.borrow_mut().insert(ticket);
        let turn = Turn { buffers: self, ticket };
        while self.queue.borrow().first() != Some(&turn.ticket) || !self.has_room(bytes) {
            self.changed.wait().await;
        }
        self.exceed(bytes)
    }

    /// Takes it at once, even beyond the limit.
    pub fn exceed(&self, bytes: u64) -> Room<'_> {
        let Taken { bytes: before, pieces } = self.taken.get();
        self.taken.set(Taken { bytes: before + bytes, pieces: pieces + 1 });
        Room { buffers: self, bytes }
    }

    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.get()
    }

    /// Memory taken beyond the new limit stays taken.
    pub fn set_limit(&self, bytes: u64) {
        self.limit_bytes.set(bytes);
        self.changed.raise();
    }

    pub fn taken_bytes(&self) -> u64 {
        self.taken.get().bytes
    }

    /// One piece always has room, also one larger than the limit.
    fn has_room(&self, more: u64) -> bool {
        let Taken { bytes, pieces } = self.taken.get();
        pieces == 0 || pieces < self.most && bytes + more <= self.limit_bytes.get()
    }
}

impl Room<'_> {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.buffers.queue.borrow_mut().remove(&self.ticket);
        self.buffers.changed.raise();
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let Taken { bytes, pieces } = self.buffers.taken.get();
        self.buffers.taken.set(Taken { bytes: bytes - self.bytes, pieces: pieces - 1 });
        self.buffers.changed.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn take(buffers: &Buffers, bytes: u64) -> Option<Room<'_>> {
        buffers.take(bytes).now_or_never()
    }

    #[test]
    fn no_more_is_taken_than_there_is() {
        let buffers = Buffers::new(10, 100);
        let first = take(&buffers, 6).unwrap();
        let second = take(&buffers, 4).unwrap();
        let mut third = Box::pin(buffers.take(5));
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        assert!((&mut third).now_or_never().is_none(), "four of five bytes are free");
        drop(first);
        assert!(third.now_or_never().is_some());
    }

    #[test]
    fn buffer_larger_than_the_limit_is_granted_alone() {
        let buffers = Buffers::new(10, 100);
        let small = take(&buffers, 1).unwrap();
        assert!(take(&buffers, 100).is_none());
        drop(small);
        let large = take(&buffers, 100).unwrap();
        assert!(take(&buffers, 0).is_none());
        drop(large);
        assert!(take(&buffers, 10).is_some());
    }

    #[test]
    fn a_large_piece_is_not_overtaken() {
        let buffers = Buffers::new(10, 100);
        let small = take(&buffers, 1).unwrap();
        let mut large = Box::pin(buffers.take(10));
        assert!((&mut large).now_or_never().is_none());
        let mut next = Box::pin(buffers.take(1));
        assert!((&mut next).now_or_never().is_none(), "who came first is first");
        drop(small);
        let large = large.now_or_never().expect("all is free");
        assert!((&mut next).now_or_never().is_none());
        drop(large);
        assert!(next.now_or_never().is_some());
    }

    #[test]
    fn buffer_wait_given_up_unblocks_the_next() {
        let buffers = Buffers::new(10, 100);
        let small = take(&buffers, 1).unwrap();
        let mut large = Box::pin(buffers.take(10));
        assert!((&mut large).now_or_never().is_none());
        let mut next = Box::pin(buffers.take(1));
        assert!((&mut next).now_or_never().is_none());
        drop(large);
        assert!(next.now_or_never().is_some());
        let _more = (small, buffers.exceed(100));
        assert!(take(&buffers, 1).is_none());
    }

    #[test]
    fn pieces_are_counted() {
        let buffers = Buffers::new(10, 2);
        let _two = (take(&buffers, 1).unwrap(), take(&buffers, 1).unwrap());
        assert!(take(&buffers, 1).is_none());
    }
}
