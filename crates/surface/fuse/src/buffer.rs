//! Memory for messages of the kernel.

use bytes::Bytes;
use ebb_model::MAX_IO_BYTES;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Whole-message buffers, reused. One that carries a large WRITE is handed on as the
/// payload itself and comes back when the last piece of it is dropped, on any thread.
#[derive(Clone, Default)]
pub(crate) struct BufferPool {
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl BufferPool {
    pub fn take(&self) -> Buffer {
        let memory = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Buffer { memory: memory.unwrap_or_else(|| vec![0; BUFFER_BYTES].into()), pool: self.clone() }
    }
}

pub(crate) struct Buffer {
    /// Empty only after it has gone back to the pool.
    memory: Box<[u8]>,
    pool: BufferPool,
}

impl Buffer {
    pub fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.memory[range]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT_BUFFERS {
            free.push(std::mem::take(&mut self.memory));
        }
    }
}

/// The first `len` bytes of a message, shared with its payload.
pub(crate) fn share(buffer: Buffer, len: usize) -> Bytes {
    Bytes::from_owner(buffer).slice(..len)
}

/// A request of the largest size with room for its header and arguments.
const BUFFER_BYTES: usize = MAX_IO_BYTES + 4096;

/// Buffers kept for reuse: as many large writes as one thread keeps in the air; fresh
/// memory costs as much in page faults as copying the payload would.
const KEPT_BUFFERS: usize = 16;

/// Payloads from this size on are handed on where they lie; copying less is cheaper.
pub(crate) const SHARED_FROM_BYTES: usize = 32 << 10;
