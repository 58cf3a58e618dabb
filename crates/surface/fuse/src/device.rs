//! The connection to the kernel: `/dev/fuse` after mount(2).

use crate::abi;
use std::io::{self, IoSlice};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use zerocopy::IntoBytes;

pub(crate) struct Device {
    /// All other users hold weak references, so that dropping the device closes it. With that and
    /// the end of [`crate::notify::Telling`], which has a descriptor of its own, the connection
    /// ends.
    fd: AsyncFd<Arc<OwnedFd>>,
}

/// The result of a read of the device.
pub(crate) enum Received {
    /// A message of this length.
    Message(usize),
    /// There is no message; [`Device::readable`] waits for one.
    Nothing,
    /// The mount is gone.
    Gone,
}

impl Device {
    /// `fd` must be non-blocking.
    pub fn new(fd: OwnedFd) -> io::Result<Device> {
        // SAFETY: the Arc keeps one descriptor open, and always names the same.
        Ok(Device { fd: unsafe { AsyncFd::register_with_interest(Arc::new(fd), WAKES)? } })
    }

    pub fn shared(&self) -> Arc<OwnedFd> {
        self.fd.get_ref().clone()
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }

    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            // SAFETY: the kernel writes at most `len` bytes to the buffer, which is ours alone.
            let read = unsafe {
                libc::read(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len())
            };
            let failure = match cvt(read) {
                Ok(len) => return Ok(Received::Message(len)),
                Err(failure) => failure,
            };
            match failure.raw_os_error() {
                _ if failure.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                // The request was taken back while it was copied.
                Some(libc::ENOENT | libc::EINTR) => continue,
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(Received::Gone),
                _ => return Err(failure),
            }
        }
    }

    /// To be awaited after [`Received::Nothing`]: completes when a message has arrived since. The
    /// readiness is cleared here, and the device is read until it is empty afterwards, so no
    /// message that arrives in between is missed.
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.ready(WAKES).await.map(|mut guard| guard.clear_ready())
    }

    /// Replies to the request `unique`. The kernel takes a reply as a whole or not at all, and
    /// without waiting.
    pub fn answer(&self, error: i32, unique: u64, body: &[u8]) -> io::Result<()> {
        let len = (size_of::<abi::OutHeader>() + body.len()) as u32;
        let header = abi::OutHeader { len, error, unique };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body)];
        self.write(if body.is_empty() { &parts[..1] } else { &parts })
    }

    /// The kernel takes a message as a whole or not at all, and without waiting.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        write_message(self.fd.get_ref(), parts)
    }
}

pub(crate) fn write_message(fd: &OwnedFd, parts: &[IoSlice<'_>]) -> io::Result<()> {
    let whole: usize = parts.iter().map(|part| part.len()).sum();
    // SAFETY: an IoSlice has the layout of an iovec, and borrows the bytes that it points to.
    let written = cvt(unsafe {
        libc::writev(fd.as_raw_fd(), parts.as_ptr().cast(), parts.len() as libc::c_int)
    })?;
    assert_eq!(written, whole, "the kernel took part of a message");
    Ok(())
}

fn cvt(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// The end of the connection is reported as an error only, not as readable.
const WAKES: Interest = Interest::READABLE.add(Interest::ERROR);
