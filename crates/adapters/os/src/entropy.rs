//! The entropy port over getrandom(2).

use ebb_ports::Entropy;
use std::io;

/// getrandom(2).
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn next_u64(&self) -> u64 {
        let mut bytes = [0u8; 8];
        loop {
            // SAFETY: the pointer and the length are those of `bytes`.
            let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            if got == bytes.len() as isize {
                return u64::from_ne_bytes(bytes);
            }
            // A short read happens only if a signal interrupts the call before the pool is seeded
            // at boot.
            let error = io::Error::last_os_error();
            assert!(error.kind() == io::ErrorKind::Interrupted, "getrandom: {error}");
        }
    }
}
