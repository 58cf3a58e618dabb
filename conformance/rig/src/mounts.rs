//! Mount points.

use std::fs;
use std::io;
use std::path::PathBuf;

/// All mount points in a process's namespace; upper mounts follow lower ones. Empty for a process
/// that has ended.
pub fn of(pid: u32) -> io::Result<Vec<PathBuf>> {
    let mounts = match fs::read_to_string(format!("/proc/{pid}/mountinfo")) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => {
            String::new()
        }
        mounts => mounts?,
    };
    Ok(mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(MOUNT_POINT))
        .map(PathBuf::from)
        .collect())
}

/// Field 5 of a line of proc_pid_mountinfo(5).
const MOUNT_POINT: usize = 4;
