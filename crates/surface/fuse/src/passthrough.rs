//! Passthrough: the kernel reads, writes and maps a backing file without requests to the session
//! (FUSE_PASSTHROUGH).
//!
//! Kernel's law: while an inode is open by passthrough, every open of it must name the same
//! registration; while it is open in any other way, none may. A violating open fails with EIO.

use crate::abi;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Weak;

/// Hands files of this machine to the kernel, for one connection.
#[derive(Clone)]
pub struct Passthrough {
    device: Weak<OwnedFd>,
}

/// A registered backing file, until this is dropped. Opens that named it keep it, and so do
/// mappings, independent of this value and of the file's name.
pub struct Registered {
    device: Weak<OwnedFd>,
    id: PassthroughId,
}

/// Names a [`Registered`] file in an answer to OPEN or CREATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PassthroughId(pub(crate) i32);

impl Passthrough {
    pub(crate) fn new(device: Weak<OwnedFd>) -> Passthrough {
        Passthrough { device }
    }

    /// Needs CAP_SYS_ADMIN, and a file on a file system that is not stacked on another. The kernel
    /// reopens it with this process's credentials and each open's flags.
    pub fn register(&self, file: BorrowedFd<'_>) -> io::Result<Registered> {
        let device = self.device.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let map = abi::BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the request reads one structure of this layout, which outlives the call.
        let id = unsafe { libc::ioctl(device.as_raw_fd(), abi::DEV_IOC_BACKING_OPEN, &map) };
        match id {
            ..=0 => Err(io::Error::last_os_error()),
            id => Ok(Registered { device: self.device.clone(), id: PassthroughId(id) }),
        }
    }
}

impl Passthrough {
    /// A registration by an earlier process of the connection, by its number.
    pub(crate) fn left(&self, id: i32) -> Registered {
        Registered { device: self.device.clone(), id: PassthroughId(id) }
    }
}

impl Registered {
    pub fn id(&self) -> PassthroughId {
        self.id
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // All registrations end with the connection.
        let Some(device) = self.device.upgrade() else { return };
        if let Err(failure) = close(device.as_raw_fd(), self.id) {
            tracing::error!(%failure, "the kernel does not know a file that was registered with \
                it");
        }
    }
}

fn close(device: RawFd, PassthroughId(id): PassthroughId) -> io::Result<()> {
    // SAFETY: the request reads one number, which outlives the call.
    match unsafe { libc::ioctl(device, abi::DEV_IOC_BACKING_CLOSE, &id) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
