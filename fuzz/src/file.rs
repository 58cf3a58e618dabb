//! A file without a name, for parsers that read by path.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{LazyLock, Mutex, PoisonError};

static FILE: LazyLock<Mutex<File>> =
    LazyLock::new(|| Mutex::new(tempfile::tempfile().expect("there is room for a file")));

/// Calls `read` with the path of a file with these bytes.
pub fn holding<T>(content: &[u8], read: impl FnOnce(&str) -> T) -> T {
    let file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    file.set_len(0).and_then(|()| file.write_all_at(content, 0)).expect("there is room for a file");
    read(&format!("/proc/self/fd/{}", file.as_raw_fd()))
}
