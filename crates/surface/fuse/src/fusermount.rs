//! `fusermount3`, the set-user-id helper for unprivileged mounts.

use crate::passing::receive_with_fd;
use crate::{AccessTimes, MountError, MountOptions};
use std::env;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

const HELPER: &str = "fusermount3";

pub(crate) fn expect_there() -> Result<(), MountError> {
    // The default path of execvp(3).
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let is_there = env::split_paths(&path).any(|dir| dir.join(HELPER).is_file());
    is_there.then_some(()).ok_or_else(|| MountError::NoHelper(io::ErrorKind::NotFound.into()))
}

/// Mounts, and returns the device that the helper opened.
pub(crate) fn mount(point: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::Refused)?;
    inherit(&theirs).map_err(MountError::Refused)?;
    let mut helper = Command::new(HELPER);
    helper.arg("-o").arg(option_list(options)).arg("--").arg(point);
    helper.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = helper.spawn().map_err(MountError::NoHelper)?;
    drop(theirs);
    // The socket closes when the helper ends, so this ends in any case.
    let received = receive_fd(&ours);
    let output = child.wait_with_output().map_err(MountError::NoHelper)?;
    match received {
        Ok(Some(device)) if output.status.success() => Ok(device),
        Err(failure) if output.status.success() => Err(MountError::Refused(failure)),
        _ => Err(MountError::HelperFailed(String::from_utf8_lossy(&output.stderr).trim().into())),
    }
}

pub(crate) fn unmount(point: &Path, lazy: bool) -> io::Result<()> {
    let mut helper = Command::new(HELPER);
    helper.arg("-u").args(lazy.then_some("-z")).arg("--").arg(point);
    let output = helper.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string())),
    }
}

fn option_list(options: &MountOptions) -> String {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={source},subtype=ebb,max_read={}", options.max_read_bytes);
    let switches = [
        (options.read_only, "ro"),
        (options.allow_other, "allow_other"),
        (options.default_permissions, "default_permissions"),
        (options.suid, "suid"),
        (options.dev, "dev"),
        (!options.exec, "noexec"),
        (options.access.times == AccessTimes::Kept, "noatime"),
    ];
    for (_, name) in switches.into_iter().filter(|(on, _)| *on) {
        list.push(',');
        list.push_str(name);
    }
    list
}

/// The helper finds its end of the socket by number.
fn inherit(socket: &UnixStream) -> io::Result<()> {
    // SAFETY: changes one flag of a descriptor that is open.
    match unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFD, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The descriptor that comes with one byte; `None` if the other end closes without it.
fn receive_fd(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    loop {
        match receive_with_fd(socket.as_fd(), &mut IoSliceMut::new(&mut [0])) {
            Err(failure) if failure.kind() == io::ErrorKind::Interrupted => {}
            received => return received.map(Option::flatten),
        }
    }
}
