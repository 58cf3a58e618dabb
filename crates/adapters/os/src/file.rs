//! Open files of the disk port.

use crate::disk::{blocking, failed};
use bytes::Bytes;
use ebb_ports::{DiskError, DiskFile, PortFuture};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Once};

/// Writes from this length on go to the blocking pool: copying 2 MiB into the page cache takes over
/// 1 ms, which would stall every other task. Single application writes are shorter, and a hop would
/// delay them by two thread switches.
const ASIDE_FROM_BYTES: usize = 2 << 20;

/// Writeback starts for each completed range of this length, so a long sequence of writes does not
/// reach the disk at once at the next sync.
const WRITTEN_BEHIND_BYTES: u64 = 8 << 20;

/// An open file of a data directory.
pub struct OsFile {
    path: PathBuf,
    /// Shared with jobs on the blocking pool, which can outlive the caller.
    file: Arc<File>,
}

impl OsFile {
    pub(crate) fn new(path: PathBuf, file: File) -> OsFile {
        OsFile { path, file: Arc::new(file) }
    }

    /// Starts writeback of the ranges that end between `from` and `to`, without waiting. The next
    /// sync reports any failure.
    fn write_behind(&self, from: u64, to: u64) {
        let (begin, end) = (
            from / WRITTEN_BEHIND_BYTES * WRITTEN_BEHIND_BYTES,
            to / WRITTEN_BEHIND_BYTES * WRITTEN_BEHIND_BYTES,
        );
        if begin < end {
            let file = Arc::clone(&self.file);
            // SAFETY: sync_file_range takes no memory, and the descriptor is open.
            let begin_writing = move || unsafe {
                libc::sync_file_range(
                    file.as_raw_fd(),
                    begin as i64,
                    (end - begin) as i64,
                    libc::SYNC_FILE_RANGE_WRITE,
                )
            };
            drop(tokio::task::spawn_blocking(begin_writing));
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DiskError> {
        let file = Arc::clone(&self.file);
        blocking(self.path.clone(), move || work(&file)).await
    }
}

impl DiskFile for OsFile {
    fn read_at(&self, offset: u64, len: usize) -> PortFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(async move {
            // The buffer is not zeroed first: that would be half the cost of a read of cached
            // bytes.
            let mut buffer = Vec::with_capacity(len);
            let whole = read_cached(&self.file, offset, len, &mut buffer)
                .map_err(|error| failed(&self.path, error))?;
            if !whole {
                buffer = self.blocking(move |file| read_rest(file, offset, len, buffer)).await?;
            }
            if buffer.len() < len / 2 {
                buffer.shrink_to_fit();
            }
            Ok(buffer.into())
        })
    }

    fn write_at(&self, offset: u64, data: Bytes) -> PortFuture<'_, Result<(), DiskError>> {
        // `write_all_at` continues short writes and retries interrupted ones.
        Box::pin(async move {
            if data.len() >= ASIDE_FROM_BYTES {
                return self.blocking(move |file| file.write_all_at(&data, offset)).await;
            }
            self.file.write_all_at(&data, offset).map_err(|error| failed(&self.path, error))?;
            self.write_behind(offset, offset + data.len() as u64);
            Ok(())
        })
    }

    fn sync_data(&self) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(self.blocking(File::sync_data))
    }

    fn set_len(&self, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(self.blocking(move |file| file.set_len(len)))
    }

    fn len(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        Box::pin(async {
            self.file
                .metadata()
                .map(|metadata| metadata.len())
                .map_err(|error| failed(&self.path, error))
        })
    }

    fn punch(&self, offset: u64, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(self.blocking(move |file| punch(file, offset, len)))
    }

    fn is_held(&self) -> Option<bool> {
        is_held(&self.file)
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        self.file.try_clone().ok().map(OwnedFd::from)
    }
}

/// Reads the cached prefix of `len` bytes without waiting for the device. Returns whether the read
/// is complete: `len` bytes, or up to the end of the file.
fn read_cached(file: &File, offset: u64, len: usize, buffer: &mut Vec<u8>) -> io::Result<bool> {
    while buffer.len() < len {
        let error = match read_more(file, offset, len, buffer, libc::RWF_NOWAIT) {
            Ok(0) => return Ok(true),
            Ok(_) => continue,
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // Not cached, or the file system or kernel does not support RWF_NOWAIT.
            Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(false),
            _ => return Err(error),
        }
    }
    Ok(true)
}

/// Reads until the buffer has `len` bytes or the file ends.
fn read_rest(file: &File, offset: u64, len: usize, mut buffer: Vec<u8>) -> io::Result<Vec<u8>> {
    while buffer.len() < len {
        match read_more(file, offset, len, &mut buffer, 0) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(buffer)
}

/// Appends some of the missing bytes of the `len` bytes at `offset`. Returns their count; 0 at the
/// end of the file.
fn read_more(
    file: &File,
    offset: u64,
    len: usize,
    buffer: &mut Vec<u8>,
    flags: libc::c_int,
) -> io::Result<usize> {
    let at = signed(offset + buffer.len() as u64)?;
    let wanted = len - buffer.len();
    buffer.reserve_exact(wanted);
    let iov =
        libc::iovec { iov_base: buffer.spare_capacity_mut().as_mut_ptr().cast(), iov_len: wanted };
    // SAFETY: `iov` describes the spare capacity of the buffer, at least `wanted` bytes.
    let got = unsafe { libc::preadv2(file.as_raw_fd(), &iov, 1, at, flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has initialised the first `got` bytes of the spare capacity.
    unsafe { buffer.set_len(buffer.len() + got) };
    Ok(got)
}

fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    // The kernel rejects an empty range with EINVAL; here it is a no-op.
    if len == 0 {
        return Ok(());
    }
    let (offset, len) = (signed(offset)?, signed(len)?);
    loop {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: fallocate takes no memory, and the descriptor is open.
        if unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Tries to take a kernel file lease (F_SETLEASE, F_WRLCK). The kernel grants it only if no other
/// open file description or mapping of the file exists.
fn is_held(file: &File) -> Option<bool> {
    // An open by another process during the lease sends SIGIO to this process, which would end it.
    static DEAF: Once = Once::new();
    DEAF.call_once(|| {
        // SAFETY: ignoring a signal runs no handler.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    });
    // SAFETY: fcntl takes plain integers, and the descriptor is open.
    let set = |lease: libc::c_int| match unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    match set(libc::F_WRLCK) {
        Ok(()) => set(libc::F_UNLCK).ok().map(|()| false),
        Err(error) => (error.raw_os_error() == Some(libc::EAGAIN)).then_some(true),
    }
}

fn signed(offset: u64) -> io::Result<i64> {
    i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}
