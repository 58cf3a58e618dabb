//! Taking over the data directory from a daemon that is about to end: its mount is gone, as after
//! umount(8), and it still writes to the bucket. `umount` and `mount` can follow each other then.

use crate::busy;
use crate::daemon::Report;
use crate::failure::Failure;
use crate::output::Shown;
use crate::signals::Signals;
use ebb_cli::places::{MountRecord, RunDir};
use ebb_fuse::Mount;
use ebb_ports::{Disk, DiskError};
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval between checks.
const POLL: Duration = Duration::from_millis(20);

/// After this time the successor writes the rest.
const PATIENCE: Duration = Duration::from_secs(2);

/// After this time a message names the processes that keep the previous mount.
const PATIENCE_WITH_KEEPERS: Duration = Duration::from_secs(4);

/// How long a process may take to end when it has no work left, also on a busy machine.
const PATIENCE_TO_END: Duration = Duration::from_secs(10);

/// How long it may take to end after the signal, and to close files that were still open when its
/// mount was removed.
const LAST_PATIENCE: Duration = Duration::from_secs(60);

pub async fn lock(
    disk: &dyn Disk,
    data_dir: &Path,
    report: &mut Report,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let began = Instant::now();
    let mut unknown_since = began;
    let mut told = None;
    let mut kept = None;
    loop {
        let refused = match disk.lock() {
            Ok(()) => return Ok(()),
            Err(error @ DiskError::InUse { .. }) => match &kept {
                Some(kept) => Failure::of(data_dir.shown(), format!("{error}: {kept}")),
                None => Failure::of(data_dir.shown(), error),
            },
            Err(error) => return Err(Failure::of(data_dir.shown(), error)),
        };
        let waited = began.elapsed();
        match owner(data_dir) {
            Owner::Unknown if unknown_since.elapsed() < PATIENCE_TO_END => {}
            Owner::Leaving(record) if waited < LAST_PATIENCE => {
                unknown_since = Instant::now();
                let (pid, ending) = (record.daemon.pid, record.ending);
                if !ending && waited > PATIENCE_WITH_KEEPERS && kept.is_none() {
                    let why = keepers(&record).await;
                    report.note(&why);
                    kept = Some(why);
                }
                if ending && waited > PATIENCE && told != Some(pid) {
                    report.note(&format!(
                        "process {pid} leaves to this mount what has not reached the bucket yet"
                    ));
                    // SAFETY: kill takes plain integers. If the process has just ended, nothing is
                    // left to do.
                    unsafe { libc::kill(pid as i32, libc::SIGTERM) };
                    told = Some(pid);
                }
            }
            _ => return Err(refused),
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = signals.next() => return Err(Failure::Failed("interrupted".into())),
        }
    }
}

/// Why a mount that is out of sight has not ended, in one line.
async fn keepers(record: &MountRecord) -> String {
    let waits = format!(
        "process {} still serves {}, which is taken away",
        record.daemon.pid,
        record.mountpoint.shown()
    );
    let Some(device) = record.device else { return waits };
    let keepers = busy::keepers(&record.mountpoint, device).await;
    if keepers.is_empty() { waits } else { keepers.join("; ") }
}

/// The state of the process that uses a data directory.
enum Owner {
    /// The process serves a mount.
    Mounted,
    /// The mount is out of sight; if its record says that it is ending, it is not in use either.
    Leaving(Box<MountRecord>),
    /// No mount is recorded: it is about to be made, the process is about to end, or it serves
    /// other mounts only.
    Unknown,
}

/// Records that cannot be read are ignored.
fn owner(data_dir: &Path) -> Owner {
    let records = RunDir::of_user().and_then(|run_dir| run_dir.records()).unwrap_or_default();
    match records.into_iter().find(|record| record.data_dir == data_dir && record.is_served()) {
        None => Owner::Unknown,
        Some(record)
            if record.ending || Mount::is_at(&record.mountpoint).is_ok_and(|mounted| !mounted) =>
        {
            Owner::Leaving(record.into())
        }
        // For example a killed one in the foreground: its daemon dies too.
        Some(record) if record.supervisor.is_some_and(|supervisor| !supervisor.is_alive()) => {
            Owner::Unknown
        }
        Some(_) => Owner::Mounted,
    }
}
