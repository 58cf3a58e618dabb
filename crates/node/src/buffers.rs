//! Memory for bytes of files on their way between bucket and store files. Each way has a share of its own of what
//! may be taken at one time, so that none waits for another (O-97).

use crate::signal::Signal;
use std::cell::Cell;

pub struct Buffers {
    limit_bytes: u64,
    /// Pieces at one time.
    most: usize,
    taken: Cell<Taken>,
    freed: Signal,
}

#[derive(Clone, Copy, Default)]
struct Taken {
    bytes: u64,
    pieces: usize,
}

/// Given back when dropped.
pub struct Room<'a> {
    buffers: &'a Buffers,
    bytes: u64,
}

impl Buffers {
    pub fn new(limit_bytes: u64, most: usize) -> Buffers {
        Buffers { limit_bytes, most, taken: Cell::default(), freed: Signal::default() }
    }

    pub async fn take(&self, bytes: u64) -> Room<'_> {
        while !self.has_room(bytes) {
            self.freed.wait().await;
        }
        let Taken { bytes: before, pieces } = self.taken.get();
        self.taken.set(Taken { bytes: before + bytes, pieces: pieces + 1 });
        Room { buffers: self, bytes }
    }

    /// One piece always has, whatever its size.
    fn has_room(&self, more: u64) -> bool {
        let Taken { bytes, pieces } = self.taken.get();
        pieces == 0 || pieces < self.most && bytes + more <= self.limit_bytes
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let Taken { bytes, pieces } = self.buffers.taken.get();
        self.buffers.taken.set(Taken { bytes: bytes - self.bytes, pieces: pieces - 1 });
        self.buffers.freed.raise();
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
    fn what_is_larger_than_all_there_is_has_its_turn() {
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
    fn pieces_are_counted() {
        let buffers = Buffers::new(10, 2);
        let _two = (take(&buffers, 1).unwrap(), take(&buffers, 1).unwrap());
        assert!(take(&buffers, 1).is_none());
    }
}
