//! A guard process for each command. The command runs as a child, since a process that is ended by
//! a signal cannot clean up: the guard ends all processes of the run, unmounts its mounts, and
//! removes its directories.

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

/// Environment variable of all processes of a run: the guard's process id.
const MARK: &str = "EBB_XTASK_GUARD";

/// The received signal, or 0.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// Time limit for processes to end after SIGKILL.
const PATIENCE: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(20);

/// Whether this process runs below a guard.
pub fn is_above() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Runs this command again below this guard; returns its exit status.
pub fn run() -> Outcome<ExitCode> {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler does nothing but store to an atomic.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
    let guard = std::process::id().to_string();
    let mut command = Command::new(std::env::current_exe()?);
    // In a group of its own, so that signals of a terminal reach only the guard.
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
    // It must start no further processes. It may have ended.
    tool::signal(pid, libc::SIGSTOP).ok();
    // A process that waits for a FUSE reply does not die, and killed processes may wait for each
    // other, so unmount first. Best effort: an unprivileged mount ends with its server.
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
        // Some end before the signal.
        left.into_iter().for_each(|process| drop(tool::signal(process, libc::SIGKILL)));
        run.try_wait()?;
        sleep(POLL);
    }
    // Innermost mounts first.
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

/// Running processes with the mark.
fn marked(mark: &str) -> Outcome<Vec<u32>> {
    let has_mark = |pid: &u32| {
        // Empty for a process that ends during the read.
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
