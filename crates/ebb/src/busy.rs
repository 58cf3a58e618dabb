//! Who uses a mount, as far as /proc tells, for the message that it is busy.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// More are not listed.
const LISTED: usize = 3;

/// Processes with an open file or their working directory on the mount: `bash (123)`.
pub fn users(mountpoint: &Path) -> Vec<String> {
    let Ok(device) = fs::metadata(mountpoint).map(|meta| meta.dev()) else { return Vec::new() };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| uses(*pid, device)).take(LISTED).map(name).collect()
}

/// Processes that have gone, or belong to somebody else, count as not using it.
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
