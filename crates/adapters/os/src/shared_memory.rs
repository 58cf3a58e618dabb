//! Shared memory over memfd_create(2).

use ebb_ports::SharedMemory;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that processes share through a descriptor. It lives as long as any process holds the
/// descriptor or a mapping.
pub struct OsSharedMemory {
    words: NonNull<AtomicU64>,
    count: usize,
}

impl OsSharedMemory {
    /// Creates zeroed shared memory; only touched pages of it take up memory. The descriptor is
    /// close-on-exec.
    pub fn make(count: usize) -> io::Result<OwnedFd> {
        // SAFETY: the name ends in NUL; no other code owns the returned descriptor.
        let file = unsafe {
            match libc::memfd_create(c"ebb".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) {
                -1 => return Err(io::Error::last_os_error()),
                file => File::from_raw_fd(file),
            }
        };
        file.set_len((count * WORD_BYTES) as u64)?;
        // The seals forbid truncation, which would leave a mapping without memory below it.
        // SAFETY: takes plain integers.
        match unsafe {
            libc::fcntl(
                file.as_raw_fd(),
                libc::F_ADD_SEALS,
                libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
            )
        } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(file.into()),
        }
    }

    /// Maps memory that [`OsSharedMemory::make`] created.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<OsSharedMemory> {
        let file = File::from(file.try_clone_to_owned()?);
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        // SAFETY: takes plain integers.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals == -1 || seals & libc::F_SEAL_SHRINK == 0 || len < WORD_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (protection, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a mapping at an address that the kernel chooses replaces no other one; the file
        // is as long as the mapping and cannot shrink.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, how, file.as_raw_fd(), 0) };
        match NonNull::new(mapped.cast()) {
            Some(words) if mapped != libc::MAP_FAILED => {
                Ok(OsSharedMemory { words, count: len / WORD_BYTES })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.count, "word {at} of {}", self.count);
        // SAFETY: within the mapping, which is aligned and lives as long as `self`.
        unsafe { self.words.add(at).as_ref() }
    }
}

impl SharedMemory for OsSharedMemory {
    fn count(&self) -> usize {
        self.count
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    fn store(&self, at: usize, word: u64) {
        self.word(at).store(word, Ordering::Release);
    }
}

impl Drop for OsSharedMemory {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly the mapping that `of` created.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.count * WORD_BYTES) };
    }
}

const WORD_BYTES: usize = size_of::<u64>();

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn shared_memory_is_shared_by_its_descriptor() {
        let file = OsSharedMemory::make(100).unwrap();
        let (one, other) =
            (OsSharedMemory::of(file.as_fd()).unwrap(), OsSharedMemory::of(file.as_fd()).unwrap());
        assert_eq!((one.count(), one.load(99)), (100, 0));
        one.store(99, 7);
        drop(one);
        drop(file);
        assert_eq!(other.load(99), 7);
    }

    /// A file that can shrink under the mapping would end the process with SIGBUS.
    #[test]
    fn shared_memory_refuses_files_that_can_shrink() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(800).unwrap();
        assert!(OsSharedMemory::of(file.as_fd()).is_err());
        assert!(OsSharedMemory::of(OsSharedMemory::make(0).unwrap().as_fd()).is_err());
    }
}
