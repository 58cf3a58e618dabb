//! The limit of open file descriptors: the maximum that the system allows, minus a reserve for
//! administrative connections.

use std::fs::File;
use std::io;

/// Reserve for connections that are accepted when all other descriptors are in use.
const KEPT: u64 = 16;

/// Upper bound: child processes inherit the limit, and some close every descriptor below it.
const MOST: u64 = 1 << 20;

/// Raises the limit. A low hard limit shrinks the reserve.
pub(crate) fn raise() -> io::Result<()> {
    let limit = limit()?;
    let most = limit.rlim_max.min(MOST);
    set(libc::rlimit { rlim_cur: most - KEPT.min(most / 4), ..limit })
}

/// Runs `work` with the reserve available.
pub(crate) fn beyond<T>(work: impl FnOnce() -> T) -> T {
    let usual = limit().ok().filter(|usual| {
        set(libc::rlimit { rlim_cur: (usual.rlim_cur + KEPT).min(usual.rlim_max), ..*usual })
            .is_ok()
    });
    let result = work();
    if let Some(Err(error)) = usual.map(set) {
        tracing::warn!("the limit of descriptors cannot be set: {error}");
    }
    result
}

/// The error that opening a descriptor returns now, if any. `short`: the caller has just seen
/// EMFILE.
pub(crate) fn shortage(short: bool) -> Option<String> {
    let short = if short {
        Some(io::Error::from_raw_os_error(libc::EMFILE))
    } else {
        File::open("/dev/null").err()
    };
    short.map(|error| error.to_string())
}

fn limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid to write to.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: `limit` is valid to read.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
