//! `ebb umount`: the mount is removed, then dirty data is written to the bucket, then the daemon
//! ends.

use crate::ask::{NodeAddress, node_status};
use crate::failure::Failure;
use crate::output::Shown;
use crate::progress::Progress;
use crate::{busy, output};
use ebb_cli::args;
use ebb_cli::places::{self, Left, MountRecord, RunDir};
use ebb_cli::units::Bytes;
use ebb_fuse::Mount;
use ebb_model::Status;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between checks of the daemon.
const POLL: Duration = Duration::from_millis(20);

/// After this time a message names the processes that keep a daemon from ending.
const PATIENCE: Duration = Duration::from_secs(3);

/// Checks of the daemon per status request to its node.
const POLLS_PER_STATUS: u32 = 10;

pub async fn run(args: args::Umount) -> Result<(), Failure> {
    let about = |error: io::Error| Failure::of(args.mountpoint.shown(), error);
    let run_dir = RunDir::of_user()
        .map_err(|error| Failure::of("the run directory cannot be used", error))?;
    let mountpoint = mountpoint(&args.mountpoint).map_err(about)?;
    let record = run_dir.read(&mountpoint).map_err(about)?;
    let device = Mount::device_at(&mountpoint).map_err(about)?;
    let status = match record
        .as_ref()
        .filter(|record| record.embedded && record.read_only && record.is_served())
    {
        // While the daemon still answers. The status does not change: nothing is written, neither
        // there nor to the bucket.
        Some(record) => Some(node_status(&NodeAddress::of(record, &args::Tls::default())).await),
        None => None,
    };
    let outcome = match record {
        None if device.is_none() => {
            return Err(Failure::Usage(format!("{} is no mount of ebb", args.mountpoint.shown())));
        }
        None => {
            take_away(mountpoint.clone(), device, args.lazy).await?;
            Outcome::Unknown
        }
        Some(record) if record.is_served() => {
            take_away(mountpoint.clone(), device, args.lazy).await?;
            let outcome = match args.no_wait {
                true => Outcome::Waiting(record),
                false => wait(record, device, &run_dir).await.map_err(about)?,
            };
            match status {
                Some(status) => outcome.of_what_only_reads(status.ok()),
                None => outcome,
            }
        }
        Some(record) => {
            // Nobody serves it: accesses fail already.
            take_away(mountpoint.clone(), device, true).await?;
            run_dir.remove(&record).map_err(about)?;
            match record.left.clone() {
                Some(left) => Outcome::Left(record, left),
                None => Outcome::Died(record),
            }
        }
    };
    outcome.tell(&mountpoint, args.output)
}

/// The mount point as the record and the kernel name it, for the path that the user gave.
pub fn mountpoint(given: &Path) -> io::Result<PathBuf> {
    let beside = places::real_mountpoint(given)?;
    match Mount::is_at(&beside)? {
        true => Ok(beside),
        // The last name may be a symbolic link.
        false => given.canonicalize().or(Ok(beside)),
    }
}

/// Unmounts the file system there, if there is one. Unmounting waits for the daemon to write dirty
/// pages, so another thread does it.
async fn take_away(mountpoint: PathBuf, device: Option<u64>, lazy: bool) -> Result<(), Failure> {
    let Some(device) = device else { return Ok(()) };
    let shown = mountpoint.clone();
    let removed = tokio::task::spawn_blocking(move || match Mount::remove(&mountpoint, lazy) {
        Err(error)
            if error.raw_os_error() == Some(libc::EBUSY) || error.to_string().contains("busy") =>
        {
            let users = busy::users(device);
            let by =
                if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) };
            Err(format!("in use{by}: close what is open there, or unmount with --lazy"))
        }
        other => other.map_err(|error| error.to_string()),
    });
    match removed.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(Failure::of(shown.shown(), why)),
        Err(error) => Err(Failure::of(shown.shown(), error)),
    }
}

/// Waits until the daemon has ended, showing its remaining writes.
async fn wait(record: MountRecord, device: Option<u64>, run_dir: &RunDir) -> io::Result<Outcome> {
    let mut progress = Progress::new("umount");
    let mut polls = 0;
    let mut unsaid = device;
    let began = Instant::now();
    while record.is_served() {
        polls += 1;
        if began.elapsed() >= PATIENCE
            && let Some(device) = unsaid.take()
        {
            busy::keepers(&record.mountpoint, device)
                .await
                .iter()
                .for_each(|kept| output::say(format!("umount: {kept}")));
        }
        if polls % POLLS_PER_STATUS == 0
            && record.embedded
            // The daemon may be another one by now.
            && let Some(now) = run_dir.read(&record.mountpoint)?.filter(|now| now.is_of(&record))
            && let Ok(status) = node_status(&NodeAddress::of(&now, &args::Tls::default())).await
        {
            progress.update(&status);
        }
        tokio::time::sleep(POLL).await;
    }
    let now = run_dir.read(&record.mountpoint)?.filter(|now| now.is_of(&record));
    let Some(now) = now else { return Ok(Outcome::Clean(record)) };
    run_dir.remove(&now)?;
    Ok(match now.left.clone() {
        Some(left) => Outcome::Left(now, left),
        None => Outcome::Died(now),
    })
}

enum Outcome {
    /// Everything is where it belongs.
    Clean(MountRecord),
    /// Nothing was to be written, and there is something that the bucket has not.
    Kept(MountRecord, Left),
    /// The daemon continues by itself.
    Waiting(MountRecord),
    /// The daemon has ended with work left.
    Left(MountRecord, Left),
    /// The daemon ended without a note in its record.
    Died(MountRecord),
    /// Nothing is known of the daemon.
    Unknown,
}

impl Outcome {
    /// For a mount whose node writes nothing, with the node's status of its data directory.
    fn of_what_only_reads(self, status: Option<Status>) -> Outcome {
        let left = |status| {
            Left::of(&status, "it was mounted without taking over, and nothing was written")
        };
        match (self, status) {
            (Outcome::Clean(record) | Outcome::Waiting(record), Some(status)) => match left(status)
            {
                Some(left) => Outcome::Kept(record, left),
                None => Outcome::Clean(record),
            },
            (Outcome::Clean(_), None) => Outcome::Unknown,
            (outcome, _) => outcome,
        }
    }

    fn tell(self, mountpoint: &Path, output: args::Output) -> Result<(), Failure> {
        let (flushed, record, left) = match &self {
            Outcome::Clean(record) if record.embedded => (Some(true), Some(record), None),
            Outcome::Clean(record) => (None, Some(record), None),
            Outcome::Left(record, left) | Outcome::Kept(record, left) => {
                (Some(false), Some(record), Some(left))
            }
            Outcome::Died(record) => (Some(false), Some(record), None),
            Outcome::Waiting(record) => (None, Some(record), None),
            Outcome::Unknown => (None, None, None),
        };
        let good = !matches!(self, Outcome::Left(..) | Outcome::Died(_));
        if output.json {
            output::json(&json!({
                "mountpoint": mountpoint.to_string_lossy(),
                "unmounted": true,
                "flushed": flushed,
                "data_dir": record.map(|record| record.data_dir.to_string_lossy()),
                "left": left.map(|left| json!({ "files": left.files, "bytes": left.bytes, "deletes": left.deletes, "why": left.why })),
            }))?;
            return if good { Ok(()) } else { Err(Failure::NotGood) };
        }
        let shown = mountpoint.shown();
        let go_on = |record: &MountRecord| {
            format!("`{}` goes on with it, with the other flags that it had", record.again())
        };
        match self {
            Outcome::Clean(record) if record.embedded => {
                output::print(&format!("{shown} is unmounted, everything is in the bucket\n"))
            }
            Outcome::Clean(record) => output::print(&format!(
                "{shown} is unmounted, everything is safe at {}, which writes it to the bucket\n",
                record.control
            )),
            Outcome::Kept(_, left) => {
                let deletes = if left.deletes > 0 {
                    format!(" and {} deletions", left.deletes)
                } else {
                    String::new()
                };
                output::print(&format!(
                    "{shown} is unmounted; {} files ({}){deletes} of its data directory have not \
                     reached the bucket, and nothing was written\n",
                    left.files,
                    Bytes(left.bytes)
                ))
            }
            Outcome::Waiting(record) => output::print(&format!(
                "{shown} is unmounted, process {} writes the rest to the bucket\n",
                record.daemon.pid
            )),
            Outcome::Unknown => {
                output::print(&format!("{shown} is unmounted; nothing is known of its daemon\n"))
            }
            Outcome::Left(record, left) if record.embedded => Err(Failure::Failed(format!(
                "{shown} is unmounted, but {} files and {} deletions have not reached the bucket \
                 ({}). They are safe in {}: {}",
                left.files,
                left.deletes,
                left.why,
                record.data_dir.shown(),
                go_on(&record)
            ))),
            Outcome::Left(_, left) => {
                Err(Failure::Failed(format!("{shown} is unmounted, but {}", left.why)))
            }
            Outcome::Died(record) if record.embedded => Err(Failure::Failed(format!(
                "the daemon of {shown} had died, its mount is cleared away. What has not reached \
                 the bucket is safe in {}: {}",
                record.data_dir.shown(),
                go_on(&record)
            ))),
            Outcome::Died(record) => Err(Failure::Failed(format!(
                "the daemon of {shown} had died, its mount is cleared away; its data is with {}",
                record.control
            ))),
        }
    }
}
