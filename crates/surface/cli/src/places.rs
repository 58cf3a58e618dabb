//! Where things are on this machine: data directories, and who serves which mount.
//!
//! A mount's record is a small JSON file under the run directory, named by the mount
//! point. It says where the daemon can be asked; a record whose daemon is gone is stale
//! and removed by whoever finds it.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountRecord {
    pub mountpoint: PathBuf,
    pub source: String,
    pub pid: u32,
    /// `host:port` or `unix:/path` of the node that serves it.
    pub control: String,
}

/// Below it each source has a data directory of its own.
pub fn data_root() -> PathBuf {
    if is_root() {
        return "/var/lib/ebb".into();
    }
    env_dir("XDG_DATA_HOME").unwrap_or_else(|| home().join(".local/share")).join("ebb")
}

fn run_root() -> PathBuf {
    if is_root() {
        return "/run/ebb".into();
    }
    env_dir("XDG_RUNTIME_DIR").unwrap_or_else(std::env::temp_dir).join("ebb")
}

/// The default data directory of a source: its name, readable and unique.
pub fn data_dir(source: &str) -> PathBuf {
    data_root().join(escape(source.as_bytes()))
}

pub fn write_record(record: &MountRecord) -> io::Result<()> {
    let root = run_root();
    fs::create_dir_all(&root)?;
    let draft = root.join(format!(".{}.new", std::process::id()));
    fs::write(&draft, serde_json::to_vec_pretty(record)?)?;
    fs::rename(draft, record_path(&record.mountpoint))
}

pub fn remove_record(mountpoint: &Path) -> io::Result<()> {
    match fs::remove_file(record_path(mountpoint)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The record of the mount that `path` is on, with the rest of the path below it. The path
/// itself is not touched: its mount may not answer.
pub fn find_record(path: &Path) -> io::Result<Option<(MountRecord, PathBuf)>> {
    let path = std::path::absolute(path)?;
    for at in path.ancestors() {
        let text = match fs::read(record_path(at)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let record: MountRecord = serde_json::from_slice(&text)?;
        let below = path.strip_prefix(at).unwrap_or(Path::new("")).to_owned();
        return Ok(Some((record, below)));
    }
    Ok(None)
}

fn record_path(mountpoint: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    run_root().join(escape(mountpoint.as_os_str().as_bytes()) + ".json")
}

/// A file name for any text: letters, digits, `.` and `-` are themselves, everything else
/// is `_` and two hexadecimal digits.
fn escape(text: &[u8]) -> String {
    let mut name = String::new();
    for &byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => name.push(byte as char),
            b'.' if !name.is_empty() => name.push('.'),
            _ => name.push_str(&format!("_{byte:02x}")),
        }
    }
    name
}

fn env_dir(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn home() -> PathBuf {
    env_dir("HOME").unwrap_or_else(|| "/".into())
}

fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
