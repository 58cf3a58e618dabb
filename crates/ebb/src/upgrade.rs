//! `ebb upgrade`: replaces a mount's daemon by the current binary at its path.
//!
//! To the mount it is a death like any other (decision 10): there is one way to take over.

use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::supervisor;
use crate::umount::mountpoint;
use ebb_cli::args;
use ebb_cli::places::{MountRecord, Process, RunDir};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Interval between checks of the mount.
const POLL: Duration = Duration::from_millis(20);

/// How long a daemon may take to take over.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn run(args: args::Upgrade) -> Result<(), Failure> {
    let run_dir = RunDir::of_user()
        .map_err(|error| Failure::of("the run directory cannot be used", error))?;
    let records = args
        .mountpoints
        .iter()
        .map(|given| record(&run_dir, given))
        .collect::<Result<Vec<MountRecord>, Failure>>()?;
    let mut upgraded = Vec::new();
    for record in &records {
        upgraded.push(upgrade(&run_dir, record)?);
    }
    if args.output.json {
        let shown = |(record, version, paused): &(MountRecord, String, Duration)| {
            json!({
                "mountpoint": record.mountpoint.to_string_lossy(),
                "daemon": record.daemon.pid,
                "version": version,
                "paused_ms": paused.as_millis() as u64,
            })
        };
        return output::json(&json!(upgraded.iter().map(shown).collect::<Vec<_>>()));
    }
    for (record, version, paused) in upgraded {
        let (shown, pid, paused) =
            (record.mountpoint.shown(), record.daemon.pid, paused.as_millis());
        output::print(&format!(
            "{shown} is served by process {pid}, {version}, after a pause of {paused} ms\n"
        ))?;
    }
    Ok(())
}

fn record(run_dir: &RunDir, given: &Path) -> Result<MountRecord, Failure> {
    let about = |error| Failure::of(given.shown(), error);
    let found = run_dir.read(&mountpoint(given).map_err(about)?).map_err(about)?;
    found
        .filter(MountRecord::is_served)
        .ok_or_else(|| Failure::Usage(format!("{} is no mount of ebb", given.shown())))
}

/// Returns the record of the new daemon, its version, and for how long nobody served.
fn upgrade(
    run_dir: &RunDir,
    record: &MountRecord,
) -> Result<(MountRecord, String, Duration), Failure> {
    let shown = record.mountpoint.shown();
    let Some(supervisor) = record.supervisor.filter(Process::is_alive) else {
        return Err(Failure::Failed(format!(
            "{shown} cannot be upgraded while it is mounted: its daemon (process {}) has no \
             supervisor",
            record.daemon.pid
        )));
    };
    if !record.allow_handover {
        return Err(Failure::Failed(format!(
            "{shown} cannot be upgraded while it is mounted: nobody can take it over from its \
             daemon"
        )));
    }
    if let Some(why) = supervisor::unfit(supervisor.pid)
        .map_err(|error| Failure::of("what the mount's daemon leaves", error))?
    {
        return Err(Failure::Failed(format!(
            "{shown} cannot be upgraded while it is mounted: {why}"
        )));
    }
    if !record.embedded {
        force(&record.mountpoint).map_err(|why| {
            Failure::Failed(format!("{shown} cannot be upgraded while it is mounted: {why}"))
        })?;
    }
    let (binary, _) = supervisor::binary_of(supervisor.pid)
        .map_err(|error| Failure::of("the binary of the mount", error))?;
    let version = version(&binary)?;
    let began = Instant::now();
    // SAFETY: takes plain integers. If it has just ended, that is found out below.
    unsafe { libc::kill(supervisor.pid as i32, libc::SIGHUP) };
    while supervisor.is_alive() && began.elapsed() < PATIENCE {
        std::thread::sleep(POLL);
        let now = run_dir.read(&record.mountpoint).map_err(|error| Failure::of(&shown, error))?;
        let Some(now) = now.filter(|now| now.is_of(record) && now.daemon != record.daemon) else {
            continue;
        };
        let paused = began.elapsed();
        return match is_of(now.daemon, &binary) {
            true => Ok((now, version, paused)),
            false => Err(Failure::Failed(format!(
                "{} could not take over {shown}, which is served by the binary of before: its log \
                 says why",
                binary.shown()
            ))),
        };
    }
    Err(Failure::Failed(format!("nobody has taken {shown} over: the log says why")))
}

/// Makes the mount's node force all acknowledged changes. If the node restarts later, only the
/// daemon that got the acknowledgements could send the changes again.
fn force(mountpoint: &Path) -> Result<(), String> {
    let (done, outcome) = mpsc::channel();
    let mountpoint = mountpoint.to_owned();
    std::thread::spawn(move || {
        done.send(fs::File::open(mountpoint).and_then(|directory| directory.sync_all()))
    });
    match outcome.recv_timeout(PATIENCE) {
        Ok(forced) => forced
            .map_err(|error| format!("its node could not force what it has answered: {error}")),
        Err(_) => Err("its node does not answer".into()),
    }
}

fn is_of(process: Process, binary: &Path) -> bool {
    fs::read_link(format!("/proc/{}/exe", process.pid)).is_ok_and(|path| path == binary)
}

/// Shows that it runs at all.
fn version(binary: &Path) -> Result<String, Failure> {
    let failed =
        |why: String| Failure::Failed(format!("{} cannot take over: {why}", binary.shown()));
    let output =
        Command::new(binary).arg("version").output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(failed(output.status.to_string())),
    }
}
