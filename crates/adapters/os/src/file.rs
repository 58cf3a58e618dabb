use crate::disk::{blocking, failed};
use bytes::Bytes;
use ebb_ports::{DiskError, DiskFile, PortFuture};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// An open file of a data directory.
pub struct OsFile {
    path: PathBuf,
    /// Shared with what runs on the blocking pool, which may outlive the caller.
    file: Arc<File>,
}

impl OsFile {
    pub(crate) fn new(path: PathBuf, file: File) -> OsFile {
        OsFile { path, file: Arc::new(file) }
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&File) -> io::Result<T> + Send + 'static) -> Result<T, DiskError> {
        let file = Arc::clone(&self.file);
        blocking(self.path.clone(), move || work(&file)).await
    }
}

impl DiskFile for OsFile {
    fn read_at(&self, offset: u64, len: usize) -> PortFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(async move {
            let mut buffer = vec![0; len];
            let cached = read_cached(&self.file, offset, &mut buffer).map_err(|error| failed(&self.path, error))?;
            let (mut buffer, filled) = match cached {
                Cached::All { filled } => (buffer, filled),
                Cached::Only { filled } => {
                    self.blocking(move |file| {
                        let more = read_full(file, offset + filled as u64, &mut buffer[filled..])?;
                        Ok((buffer, filled + more))
                    })
                    .await?
                }
            };
            buffer.truncate(filled);
            if filled < len / 2 {
                buffer.shrink_to_fit();
            }
            Ok(buffer.into())
        })
    }

    fn write_at(&self, offset: u64, data: Bytes) -> PortFuture<'_, Result<(), DiskError>> {
        // Continues short writes and repeats interrupted ones.
        Box::pin(async move { self.file.write_all_at(&data, offset).map_err(|error| failed(&self.path, error)) })
    }

    fn sync_data(&self) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(self.blocking(File::sync_data))
    }

    fn set_len(&self, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(self.blocking(move |file| file.set_len(len)))
    }

    fn len(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        Box::pin(async { self.file.metadata().map(|metadata| metadata.len()).map_err(|error| failed(&self.path, error)) })
    }

    fn punch(&self, offset: u64, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(self.blocking(move |file| punch(file, offset, len)))
    }
}

enum Cached {
    /// The buffer is full, or the file ends there.
    All { filled: usize },
    /// What follows is not in the page cache.
    Only { filled: usize },
}

/// Reads what the page cache holds, without waiting for the device.
fn read_cached(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<Cached> {
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        let iov = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let at = signed(offset + filled as u64)?;
        // SAFETY: `iov` describes `rest`, which is valid to write to.
        let got = unsafe { libc::preadv2(file.as_raw_fd(), &iov, 1, at, libc::RWF_NOWAIT) };
        match got {
            0 => return Ok(Cached::All { filled }),
            1.. => filled += got as usize,
            _ => {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Not cached, or a file system or kernel that cannot tell.
                    Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(Cached::Only { filled }),
                    _ => return Err(error),
                }
            }
        }
    }
    Ok(Cached::All { filled })
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    // The kernel takes an empty range for a mistake; here it is nothing to do.
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

fn signed(offset: u64) -> io::Result<i64> {
    i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}
