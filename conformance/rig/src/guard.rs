//! A command runs in a process of its own. One that is ended by a signal cleans up nothing, so this
//! process, which has started it, does: it ends everything that the run has started, unmounts what
//! is mounted in the run's directories, and removes these.

use crate::{Outcome, mounts, scratch, tool};
use ebb_cli::places::RunDir;
use ebb_fuse::Mount;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// In the environment of the run, and so of all that it starts: the guard's process.
const MARK: &str = "EBB_XTASK_GUARD";

/// The signal that has come, if one has.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// How long processes may take to end that were sent SIGKILL.
const PATIENCE: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(20);

/// Whether this process is a run, which has one.
pub fn is_above() -> bool {
    std::env::var_os(MARK).is_some()
}

/// This command again, as a run; gives the status that it has ended with.
pub fn run() -> Outcome<ExitCode> {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler does nothing but store to an atomic.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
    let guard = std::process::id().to_string();
    let mut command = Command::new(std::env::current_exe()?);
    // In a group of its own: what a terminal sends is the guard's to receive.
    command.args(std::env::args_os().skip(1)).env(MARK, &guard).process_group(0);
    // SAFETY: between fork and exec nothing is called but prctl, which takes plain integers.
    unsafe { command.pre_exec(end_with_guard) };
    let mut run = command.spawn()?;
    let signal = loop {
        match (run.try_wait()?, SIGNAL.load(Ordering::Relaxed)) {
            (Some(status), _) => match status.code() {
                Some(code) => return Ok(ExitCode::from(code as u8)),
                None => break status.signal().unwrap_or_default(),
            },
            (None, 0) => sleep(POLL),
            (None, signal) => break signal,
        }
    };
    clean_up_after(&mut run, &format!("{MARK}={guard}"))?;
    Ok(ExitCode::from(128 + signal as u8))
}

fn end_with_guard() -> io::Result<()> {
    // SAFETY: takes plain integers.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn clean_up_after(run: &mut Child, mark: &str) -> Outcome<()> {
    let pid = run.id();
    // It starts nothing any more. It may have ended.
    tool::signal(pid, libc::SIGSTOP).ok();
    // No signal ends a process that waits for an answer, and those that are ended together may wait
    // for each other. Best effort: what others than root have mounted ends with its server.
    for point in mounts::of(pid)?.iter().filter(|point| scratch::holds(point, pid)) {
        let mut command = Command::new("nsenter");
        command
            .args([
                "--target",
                &pid.to_string(),
                "--mount",
                "umount",
                "--no-canonicalize",
                "--force",
                "--lazy",
            ])
            .arg(point);
        command.stderr(Stdio::null()).status().ok();
    }
    let began = Instant::now();
    loop {
        let left = marked(mark)?;
        if left.is_empty() {
            break;
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("processes survive SIGKILL: {left:?}").into());
        }
        // Some end before they are sent it.
        left.into_iter().for_each(|process| drop(tool::signal(process, libc::SIGKILL)));
        run.try_wait()?;
        sleep(POLL);
    }
    // What lies on top comes last.
    for point in
        mounts::of(std::process::id())?.iter().rev().filter(|point| scratch::holds(point, pid))
    {
        Mount::remove(point, true).map_err(|error| format!("{}: {error}", point.display()))?;
    }
    let records = RunDir::of_user()?;
    for record in records.records()?.iter().filter(|record| scratch::holds(&record.mountpoint, pid))
    {
        records.remove(record)?;
    }
    records.sweep()?;
    scratch::remove_all(pid)
}

/// Processes that have the mark and have not ended.
fn marked(mark: &str) -> Outcome<Vec<u32>> {
    let has_mark = |pid: &u32| {
        // Of one that goes meanwhile there is nothing to read.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        found.extend(
            entry?.file_name().to_str().and_then(|name| name.parse().ok()).filter(has_mark),
        );
    }
    Ok(found)
}
