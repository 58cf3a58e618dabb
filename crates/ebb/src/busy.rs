//! Processes that use a mount, from /proc, for the message that it is busy or has not ended yet.

use crate::output::Shown;
use ebb_fuse::Mount;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Files that processes have open may be on a file system that does not answer.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// Limit of listed processes.
const LISTED: usize = 3;

/// Processes with an open file or their working directory on the mount: `bash (123)`.
pub fn users(device: u64) -> Vec<String> {
    processes().filter(|pid| uses(*pid, device)).take(LISTED).map(name).collect()
}

/// Sentences about the processes that keep a removed mount from ending. Empty if they cannot be
/// determined soon.
pub async fn keepers(mountpoint: &Path, device: u64) -> Vec<String> {
    let looking = tokio::task::spawn_blocking(move || {
        (users(device).join(", "), elsewhere(device).join(", "))
    });
    let Ok(Ok((users, elsewhere))) = tokio::time::timeout(LONGEST_LOOK, looking).await else {
        return Vec::new();
    };
    let by_users = (!users.is_empty()).then(|| format!("closed by {users}"));
    let by_others = (!elsewhere.is_empty())
        .then(|| format!("gone from the mount namespace of {elsewhere} too (a container?)"));
    let told =
        |until| format!("{} is taken away, and served until it is {until}", mountpoint.shown());
    by_users.into_iter().chain(by_others).map(told).collect()
}

/// A process of each other mount namespace, a container's for example, in which it is mounted too.
fn elsewhere(device: u64) -> Vec<String> {
    let mut seen: BTreeSet<_> = namespace("self").into_iter().collect();
    let is_new =
        |pid: &u32| namespace(&pid.to_string()).is_some_and(|namespace| seen.insert(namespace));
    processes()
        .filter(is_new)
        .filter(|pid| Mount::is_seen_by(*pid, device))
        .take(LISTED)
        .map(name)
        .collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn namespace(process: &str) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// Processes that have ended, or belong to another user, count as not using it.
fn uses(pid: u32, device: u64) -> bool {
    let on_it = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.dev() == device);
    let process = Path::new("/proc").join(pid.to_string());
    if on_it(&process.join("cwd")) || on_it(&process.join("root")) {
        return true;
    }
    let Ok(open) = fs::read_dir(process.join("fd")) else { return false };
    open.filter_map(Result::ok).any(|entry| on_it(&entry.path()))
}

fn name(pid: u32) -> String {
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} ({pid})", command.trim())
}
