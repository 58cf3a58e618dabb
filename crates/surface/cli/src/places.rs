//! Locations on this machine: data directories, and records of mounts and their daemons.
//!
//! A mount's record is a small JSON file in the run directory, named by the mount point. It
//! contains the address of the daemon's node. A daemon that has written everything to the bucket
//! removes its record; otherwise it notes the remainder in it. A record without such a note and
//! without a daemon is left by a crash.

use crate::args::Consistency;
use ebb_model::{Ino, Status};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountRecord {
    /// Absolute, free of symbolic links.
    pub mountpoint: PathBuf,
    pub source: String,
    pub daemon: Process,
    /// Starts another daemon if that one dies.
    #[serde(default)]
    pub supervisor: Option<Process>,
    /// Another daemon can take over the open files and the requests in progress.
    #[serde(default, rename = "succeedable")]
    pub allow_handover: bool,
    /// `host:port` or `unix:/path` of the node that serves it.
    pub control: String,
    /// How connections to that node are secured.
    #[serde(default)]
    pub tls: Option<PathBuf>,
    #[serde(default)]
    pub insecure: bool,
    /// The socket at which the mount serves its counters, over HTTP.
    #[serde(default)]
    pub counters: Option<PathBuf>,
    /// The directory of the volume that is mounted, by its name then; empty for the volume's root.
    pub subdirectory: PathBuf,
    /// The directory of the volume that is mounted, where it is not its root.
    #[serde(default)]
    pub root: Option<Ino>,
    /// The node lives in the daemon, and so does the data that has not reached the bucket.
    pub embedded: bool,
    pub data_dir: PathBuf,
    /// `st_dev` of files on the mount: finds the processes that keep it once it is out of sight.
    #[serde(default)]
    pub device: Option<u64>,
    /// The node rejects changes, even where the kernel would pass them on.
    #[serde(default)]
    pub read_only: bool,
    #[serde(default)]
    pub consistency: Consistency,
    /// The mount is gone and nobody uses it any more. The daemon still writes the rest of the data
    /// directory to the bucket, which another daemon can do as well.
    #[serde(default)]
    pub ending: bool,
    /// Set by a daemon that ends with work left.
    pub left: Option<Left>,
}

impl MountRecord {
    /// A daemon serves it, or is about to take over from one that has died.
    pub fn is_served(&self) -> bool {
        self.daemon.is_alive() || self.supervisor.is_some_and(|supervisor| supervisor.is_alive())
    }

    /// The command that mounts this again. Further options of the original command are not
    /// recorded.
    pub fn again(&self) -> String {
        format!(
            "ebb mount {} {} --data {}",
            self.source,
            self.mountpoint.display(),
            self.data_dir.display()
        )
    }

    /// The same mount, by the same daemon or one that has taken over from it, or the other way
    /// round.
    pub fn is_of(&self, other: &MountRecord) -> bool {
        self.daemon == other.daemon
            || self.supervisor.is_some() && self.supervisor == other.supervisor
    }
}

/// Changes that had not reached the bucket when a daemon ended. They are safe in the data
/// directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Left {
    pub files: u64,
    pub bytes: u64,
    pub deletes: u64,
    pub why: String,
}

impl Left {
    /// The changes that a node reports as unwritten, if there are any.
    pub fn of(status: &Status, why: &str) -> Option<Left> {
        let left = Left {
            files: status.dirty_files,
            bytes: status.dirty_bytes,
            deletes: status.pending_deletes,
            why: why.into(),
        };
        (left.files + left.deletes > 0).then_some(left)
    }
}

/// A process, distinguished from a later one with the same id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks from boot to its start, from /proc.
    started: u64,
}

impl Process {
    pub fn this() -> Process {
        let pid = std::process::id();
        Process { pid, started: start_of(pid).unwrap_or(0) }
    }

    /// `None` if there is none.
    pub fn of(pid: u32) -> Option<Process> {
        Some(Process { pid, started: start_of(pid)? })
    }

    pub fn is_alive(&self) -> bool {
        start_of(self.pid) == Some(self.started)
    }

    /// The first thread of the process has ended; others may still run.
    pub fn first_thread_has_ended(pid: u32) -> bool {
        stat_of(pid).is_some_and(|(state, _)| is_over(state))
    }
}

/// When a process started; `None` if there is none, or only a zombie, which may never be reaped.
fn start_of(pid: u32) -> Option<u64> {
    let (state, started) = stat_of(pid)?;
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |threads| threads.count());
    (!is_over(state) || threads() > 1).then_some(started)
}

/// State and start of a process's first thread, which can have ended before the others.
fn stat_of(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name is in brackets and may hold anything, brackets among it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(STARTED_AFTER_STATE)?.parse().ok()?))
}

fn is_over(state: char) -> bool {
    matches!(state, 'Z' | 'X')
}

/// `starttime` is field 22 of proc_pid_stat(5), `state` is field 3.
const STARTED_AFTER_STATE: usize = 18;

/// Below it each source has a data directory of its own.
pub fn data_root() -> PathBuf {
    if is_root() {
        return "/var/lib/ebb".into();
    }
    env_dir("XDG_DATA_HOME").unwrap_or_else(|| home().join(".local/share")).join("ebb")
}

/// The default data directory of a source: its name, readable and unique.
pub fn data_dir(source: &str) -> PathBuf {
    data_root().join(file_name(source.as_bytes()))
}

/// Data directories that were made by default, each with the source that it was made for, as that
/// was spelled. Of sources with long names only the directory is left.
pub fn data_dirs() -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(data_root()).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let source = source_of(entry.file_name().to_str()?)?;
        Some((entry.path(), source))
    });
    named.collect()
}

fn loans_of(run: u64) -> String {
    format!("{run:016x}.loans.sock")
}

/// Records and sockets of the daemons of one user.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// The user's own. It is created if it is missing; a directory of another user is refused.
    pub fn of_user() -> io::Result<RunDir> {
        let path = if is_root() {
            "/run/ebb".into()
        } else {
            match env_dir("XDG_RUNTIME_DIR") {
                Some(dir) => dir.join("ebb"),
                None => std::env::temp_dir().join(format!("ebb-{}", user_id())),
            }
        };
        RunDir::at(path)
    }

    pub fn at(path: PathBuf) -> io::Result<RunDir> {
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        if fs::symlink_metadata(&path)?.uid() != user_id() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{} belongs to somebody else", path.display()),
            ));
        }
        Ok(RunDir { path })
    }

    /// The socket at which a daemon of this process listens. Short, as a socket's path must be.
    pub fn socket(&self) -> PathBuf {
        self.path.join(format!("{}.sock", std::process::id()))
    }

    /// The socket at which this process's mount serves its counters.
    pub fn counters_socket(&self) -> PathBuf {
        self.path.join(format!("{}.counters.sock", std::process::id()))
    }

    /// The socket for passthrough grants of a node in this process; clients know it by the node's
    /// run.
    pub fn loans_socket(&self, run: u64) -> PathBuf {
        self.path.join(format!("{}.{}", std::process::id(), loans_of(run)))
    }

    /// The socket for passthrough grants of the node with that run, if it is on this machine.
    pub fn lender(&self, run: u64) -> io::Result<Option<PathBuf>> {
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name =
                path.file_name().and_then(OsStr::to_str).and_then(|name| name.split_once('.'));
            if name.is_some_and(|(_, what)| what == loans_of(run)) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Removes the sockets of daemons that were killed.
    pub fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name =
                path.file_name().and_then(OsStr::to_str).and_then(|name| name.split('.').next());
            let pid = name.and_then(|pid| pid.parse().ok());
            // Or it is of a process that is not seen from here.
            let is_heard = || UnixStream::connect(&path).is_ok();
            let dead = path.extension() == Some("sock".as_ref())
                && pid.is_some_and(|pid| start_of(pid).is_none())
                && !is_heard();
            if dead && let Err(error) = fs::remove_file(&path) {
                // Another daemon that starts now may have been faster.
                tracing::debug!("{}: {error}", path.display());
            }
        }
        Ok(())
    }

    pub fn write(&self, record: &MountRecord) -> io::Result<()> {
        let draft = self.path.join(format!(".{}.new", std::process::id()));
        fs::write(&draft, serde_json::to_vec_pretty(record)?)?;
        fs::rename(draft, self.record_path(&record.mountpoint))
    }

    /// Writes the record, unless another daemon has put its own there.
    pub fn update(&self, record: &MountRecord) -> io::Result<()> {
        match self.read(&record.mountpoint)? {
            Some(there) if !there.is_of(record) => Ok(()),
            _ => self.write(record),
        }
    }

    /// Removes the record, unless another daemon has put its own there.
    pub fn remove(&self, record: &MountRecord) -> io::Result<()> {
        match self.read(&record.mountpoint)? {
            Some(there) if there.is_of(record) => {
                fs::remove_file(self.record_path(&record.mountpoint))
            }
            _ => Ok(()),
        }
    }

    pub fn read(&self, mountpoint: &Path) -> io::Result<Option<MountRecord>> {
        match fs::read(self.record_path(mountpoint)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All records that can be read: others appear and vanish at any time.
    pub fn records(&self) -> io::Result<Vec<MountRecord>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let text =
                if path.extension() == Some("json".as_ref()) { fs::read(&path).ok() } else { None };
            records.extend(text.and_then(|text| serde_json::from_slice(&text).ok()));
        }
        Ok(records)
    }

    /// The record of the mount that `path` is on, with the rest of the path below it. As long as
    /// the path is plain, no file on the mount is accessed: the mount may not answer.
    pub fn find(&self, path: &Path) -> io::Result<Option<(MountRecord, PathBuf)>> {
        if !path.components().any(|part| part == Component::ParentDir)
            && let Some(found) = self.find_plain(&std::path::absolute(path)?)?
        {
            return Ok(Some(found));
        }
        match fs::canonicalize(path) {
            Ok(real) => self.find_plain(&real),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn find_plain(&self, path: &Path) -> io::Result<Option<(MountRecord, PathBuf)>> {
        for at in path.ancestors() {
            if let Some(record) = self.read(at)? {
                let below = path.strip_prefix(at).unwrap_or(Path::new("")).to_owned();
                return Ok(Some((record, below)));
            }
        }
        Ok(None)
    }

    fn record_path(&self, mountpoint: &Path) -> PathBuf {
        self.path.join(file_name(mountpoint.as_os_str().as_bytes()) + ".json")
    }
}

/// The real path of a mount point whose file system may be dead: only its parent is asked.
pub fn real_mountpoint(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if name != OsStr::new("..") => {
            Ok(parent.canonicalize()?.join(name))
        }
        _ => path.canonicalize(),
    }
}

/// A file name for any text: letters, digits, `.` and `-` are themselves, everything else is `_`
/// and two hexadecimal digits. A name that would be too long ends in a checksum.
fn file_name(text: &[u8]) -> String {
    let mut name = String::new();
    for &byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => name.push(byte as char),
            b'.' if !name.is_empty() => name.push('.'),
            _ => name.push_str(&format!("_{byte:02x}")),
        }
    }
    if name.len() > LONGEST_NAME {
        name.truncate(LONGEST_NAME);
        name.push_str(&format!("_-{:016x}", fnv1a(text)));
    }
    name
}

/// The inverse of [`file_name`]. `None` of a name that is no such one, or ends in a checksum.
fn source_of(name: &str) -> Option<String> {
    let mut bytes = name.bytes();
    let mut text = Vec::new();
    while let Some(byte) = bytes.next() {
        let plain = match byte {
            b'_' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        };
        text.push(plain);
    }
    (file_name(&text) == name).then(|| String::from_utf8(text).ok()).flatten()
}

/// Leaves room for the checksum and an ending within the 255 bytes of a file name.
const LONGEST_NAME: usize = 200;

/// FNV-1a, 64 bits: stable for ever, as names on disk must be.
fn fnv1a(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn env_dir(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn home() -> PathBuf {
    std::env::home_dir().unwrap_or_else(|| "/".into())
}

fn user_id() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

fn is_root() -> bool {
    user_id() == 0
}

/// A path of which the end need not be there yet, free of symbolic links.
pub fn real(path: &Path) -> PathBuf {
    let there = path
        .ancestors()
        .find_map(|at| Some((at.canonicalize().ok()?, path.strip_prefix(at).ok()?)));
    there.map_or_else(|| path.to_owned(), |(there, rest)| there.join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_directory_names_its_source() {
        for source in ["s3://b/p", "s3://b/p/", "file:///a b/\u{fc}.x", ".hidden", "a_2f"] {
            assert_eq!(source_of(&file_name(source.as_bytes())).as_deref(), Some(source));
        }
        let long = "p/".repeat(200);
        for name in [&*file_name(long.as_bytes()), "_", "_2", "_2F", "_zz", "lost+found"] {
            assert_eq!(source_of(name), None, "{name}");
        }
    }
}
