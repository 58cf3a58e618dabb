//! Descriptors that travel over a socket to another process.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// As u64 for the alignment of a cmsghdr; room for exactly one descriptor.
type Control = [u64; 4];

/// Bytes, with an optional descriptor. `None` once the other end is closed.
pub fn receive_with_fd(
    socket: BorrowedFd<'_>,
    bytes: &mut IoSliceMut<'_>,
) -> io::Result<Option<Option<OwnedFd>>> {
    let mut control: Control = [0; 4];
    let mut message = message(&mut control);
    message.msg_iov = (&raw mut *bytes).cast();
    // SAFETY: `message` points to memory that lives in this frame; an IoSliceMut has the layout of
    // an iovec.
    match unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) } {
        0 => return Ok(None),
        1.. => {}
        _ => return Err(io::Error::last_os_error()),
    }
    // SAFETY: recvmsg has filled the control buffer; the header is read only if it is present
    // and announces one whole descriptor, which has no other owner.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        let whole = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_SOCKET
            || (*header).cmsg_type != libc::SCM_RIGHTS
            || ((*header).cmsg_len as usize) < whole
        {
            return Ok(Some(None));
        }
        let fd = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<RawFd>());
        Ok(Some(Some(OwnedFd::from_raw_fd(fd))))
    }
}

/// Few bytes, and a descriptor with them, which stays open here.
pub fn send_with_fd(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut control: Control = [0; 4];
    let mut part = IoSlice::new(bytes);
    let mut message = message(&mut control);
    message.msg_iov = (&raw mut part).cast();
    match fd {
        None => (message.msg_control, message.msg_controllen) = (std::ptr::null_mut(), 0),
        // SAFETY: the control buffer has room for one header and one descriptor, which are written
        // whole.
        Some(fd) => unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            std::ptr::write_unaligned(libc::CMSG_DATA(header).cast::<RawFd>(), fd.as_raw_fd());
        },
    }
    // SAFETY: `message` points to memory that lives in this frame; an IoSlice has the layout of an
    // iovec.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) } {
        sent if sent == bytes.len() as isize => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn message(control: &mut Control) -> libc::msghdr {
    // SAFETY: CMSG_SPACE computes only.
    let control_len = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    assert!(control_len <= size_of_val(control));
    // SAFETY: an all-zero msghdr is valid; the caller keeps its pointers alive.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control_len as _;
    message
}
