//! The destination of log lines: standard error, which for a daemon is a file of bounded length.

use crate::output;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

/// A log file that has grown to this is put aside as `ebb.log.1`, in place of the one before.
const LONGEST_BYTES: u64 = 16 << 20;

pub fn to_stderr(level: Level) {
    start(level, io::stderr);
}

/// Standard output and error are `path` already.
pub fn to_file(level: Level, path: PathBuf) {
    let written = fs::metadata(&path).map_or(0, |meta| meta.len());
    let file = LogFile { path, written: Mutex::new(written) };
    start(level, file);
}

/// Each line goes to the file that has the path at that time: another process rotates the log.
pub fn to_reopened(level: Level, path: PathBuf) {
    start(level, Reopened { path });
}

/// A line that cannot be written is lost: a report on standard error, which may be on the same full
/// disk, would be a panic.
fn start(level: Level, writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_writer(writer)
        .init();
}

struct Reopened {
    path: PathBuf,
}

impl<'a> MakeWriter<'a> for Reopened {
    type Writer = &'a Reopened;

    fn make_writer(&'a self) -> &'a Reopened {
        self
    }
}

impl Write for &Reopened {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        open(&self.path)?.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a log file, for its owner's eyes.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// A broken invariant must not be survived by half: the log holds everything acknowledged,
/// and the next start reads it.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        output::say(format!("ebb: this is a bug, the process ends here: {panic}"));
        std::process::abort();
    }));
}

struct LogFile {
    path: PathBuf,
    written: Mutex<u64>,
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = &'a LogFile;

    fn make_writer(&'a self) -> &'a LogFile {
        self
    }
}

impl Write for &LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        // If rotation fails, as on a full disk, the file grows until it succeeds.
        if *written + line.len() as u64 > LONGEST_BYTES && self.put_aside().is_ok() {
            *written = 0;
        }
        io::stderr().write_all(line)?;
        *written += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogFile {
    fn put_aside(&self) -> io::Result<()> {
        match fs::rename(&self.path, self.path.with_extension("log.1")) {
            // Put aside before, or removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done?,
        }
        let fresh = open(&self.path)?;
        for standard in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
            // SAFETY: `fresh` is open, and the standard descriptors are this process's own.
            if unsafe { libc::dup2(fresh.as_raw_fd(), standard) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}
