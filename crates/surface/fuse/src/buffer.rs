//! Memory for messages of the kernel.

use bytes::Bytes;
use ebb_model::MAX_IO_BYTES;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Reusable message buffers. A buffer that a WRITE mostly fills becomes the payload itself, and
/// returns when its last slice is dropped, on any thread.
#[derive(Clone, Default)]
pub(crate) struct BufferPool {
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl BufferPool {
    pub fn take(&self) -> Buffer {
        let memory = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Buffer {
            memory: memory.unwrap_or_else(|| vec![0; BUFFER_BYTES].into()),
            pool: self.clone(),
        }
    }
}

pub(crate) struct Buffer {
    /// Empty only after its return to the pool.
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

/// Shares the message in the first `len` bytes with its payload if it fills most of the buffer, and
/// replaces the buffer. So a retained payload uses at most about twice its counted bytes.
pub(crate) fn share(buffer: &mut Buffer, len: usize) -> Option<Bytes> {
    if len < SHARED_FROM_BYTES {
        return None;
    }
    let another = buffer.pool.take();
    Some(Bytes::from_owner(std::mem::replace(buffer, another)).slice(..len))
}

/// A request of the largest size with room for its header and arguments.
const BUFFER_BYTES: usize = MAX_IO_BYTES + 4096;

/// Buffers kept for reuse: as many large writes as one thread keeps in the air; fresh
/// memory costs as much in page faults as copying the payload would.
const KEPT_BUFFERS: usize = 8;

/// Messages from this size on are handed on where they lie: the two largest powers of two that are
/// written, with their headers.
const SHARED_FROM_BYTES: usize = MAX_IO_BYTES / 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Situation: many writes of one length are retained. Danger: each retains its whole buffer.
    /// Expectation: together they use at most twice their counted bytes, plus a header each.
    #[test]
    fn retained_buffers_use_no_more_than_counted() {
        let pool = BufferPool::default();
        for len in [1, 32 << 10, 128 << 10, SHARED_FROM_BYTES - 1, SHARED_FROM_BYTES, BUFFER_BYTES]
        {
            let mut buffer = pool.take();
            let at = buffer.bytes(0..1).as_ptr();
            buffer.as_mut()[len - 1] = 7;
            let shared = share(&mut buffer, len);
            let kept_bytes = if buffer.bytes(0..1).as_ptr() == at { len } else { BUFFER_BYTES };
            assert!(kept_bytes <= 2 * len + 4096, "{len}");
            match shared {
                Some(message) => {
                    assert!(message.len() == len && message[len - 1] == 7 && message.as_ptr() == at)
                }
                None => assert_eq!(kept_bytes, len),
            }
        }
    }
}
