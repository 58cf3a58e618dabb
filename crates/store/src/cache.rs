//! The order in which clean chunks are evicted, and the turn of the tasks that make room.

use ebb_core::byte_map::ByteMap;
use ebb_core::cache::{self, Eviction};
use ebb_model::{BLOCK_BYTES, CHUNK_BYTES, Ino};
use futures_util::lock::{Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::ops::Range;

const BLOCKS_PER_CHUNK: u64 = CHUNK_BYTES / BLOCK_BYTES;

pub struct Cache {
    order: RefCell<cache::Cache>,
    evicting: Mutex<()>,
    /// The size of the last write that was refused for want of room.
    refused_bytes: Cell<u64>,
    /// The budget is less than the configured one, for the disk had no room for more when the node
    /// started.
    is_disk_small: bool,
}

impl Cache {
    pub fn new(eviction: Eviction, read_ahead_bytes: u64, is_disk_small: bool) -> Cache {
        let least_burst_bytes = read_ahead_bytes.saturating_add(2 * CHUNK_BYTES);
        Cache {
            order: RefCell::new(cache::Cache::new(eviction, least_burst_bytes)),
            evicting: Mutex::default(),
            refused_bytes: Cell::default(),
            is_disk_small,
        }
    }

    pub fn forget(&self, ino: Ino) {
        self.order.borrow_mut().remove(ino);
    }

    /// These bytes were requested by name, with `ebb warmup`.
    pub fn prefer(&self, ino: Ino, range: &Range<u64>) {
        let mut order = self.order.borrow_mut();
        for chunk in chunks(range) {
            order.prefer((ino, chunk));
        }
    }

    pub fn touch(&self, ino: Ino, range: &Range<u64>) {
        let mut order = self.order.borrow_mut();
        for chunk in chunks(range) {
            order.touch((ino, chunk));
        }
    }

    /// Adds every clean chunk after a start.
    pub fn fill(&self, extents: ByteMap) {
        let mut order = self.order.borrow_mut();
        for chunk in extents.chunks() {
            if chunk.resident_bytes > chunk.dirty_bytes {
                order.insert((chunk.ino, chunk.chunk), chunk.resident_bytes - chunk.dirty_bytes);
            }
        }
    }

    /// Blocks have become clean or come in clean: they can be evicted.
    pub fn note_clean(&self, extents: ByteMap, ino: Ino, blocks: Range<u64>) {
        let mut order = self.order.borrow_mut();
        for chunk in blocks.start / BLOCKS_PER_CHUNK..blocks.end.div_ceil(BLOCKS_PER_CHUNK) {
            let clean = extents.chunk_blocks(ino, chunk).filter(|(_, block)| !block.dirty);
            let clean_bytes = clean.map(|(block, _)| extents.block_bytes(ino, block)).sum();
            if clean_bytes > 0 {
                order.insert((ino, chunk), clean_bytes);
            }
        }
    }

    /// The next chunks to evict for so many bytes. They leave the order.
    pub fn victims(&self, bytes: u64) -> Vec<(Ino, u64)> {
        self.order.borrow_mut().victims(bytes)
    }

    pub fn remove_chunk(&self, ino: Ino, chunk: u64) {
        self.order.borrow_mut().remove_chunk((ino, chunk));
    }

    /// The turn of one task to evict: concurrent tasks would evict more than they need together.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        self.evicting.lock().await
    }

    /// A write of so many bytes was refused for want of room.
    pub fn refused(&self, bytes: u64) {
        self.refused_bytes.set(bytes);
    }

    pub fn refused_bytes(&self) -> u64 {
        self.refused_bytes.get()
    }

    pub fn is_disk_small(&self) -> bool {
        self.is_disk_small
    }
}

fn chunks(range: &Range<u64>) -> Range<u64> {
    range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES)
}
