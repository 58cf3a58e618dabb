//! A command that continues in the background: it starts itself again as a process of its own
//! session, the supervisor. The supervisor's daemon reports its progress over a pipe until it is
//! usable or has failed.

use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::{log, supervisor};
use ebb_model::shown_text;
use std::env;
use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

/// The descriptor of the pipe, in the environment of the background process.
pub const REPORT: &str = "EBB_REPORT_FD";

/// Set where the command has made the data directory, which goes again if nothing is mounted.
pub const MADE: &str = "EBB_MADE_DATA";

/// Starts this very command in the background, and waits until it is usable. `tells`: shows the
/// progress while it waits. `made`: the data directory did not exist before.
pub fn start(
    log_path: &Path,
    mountpoint: &Path,
    data_dir: &Path,
    tells: bool,
    made: bool,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::of("cannot start in the background", error);
    let log = log::open(log_path).map_err(|error| Failure::of(log_path.shown(), error))?;
    let (reports, report) = io::pipe().map_err(failed)?;
    let inherited = report.as_raw_fd();
    let mut command = Command::new(env::current_exe().map_err(failed)?);
    // Under the same name, which may be that of a mount helper.
    let mut args = env::args_os();
    command
        .arg0(args.next().unwrap_or_else(|| "ebb".into()))
        .args(args)
        .env(REPORT, inherited.to_string());
    command.env(supervisor::LOG, log_path).env(supervisor::MOUNTPOINT, mountpoint);
    command.env(supervisor::DATA_DIR, data_dir);
    if made {
        command.env(MADE, "1");
    }
    // The system mounts without one, and credentials are looked for in it.
    if env::var_os("HOME").is_none()
        && let Some(home) = env::home_dir()
    {
        command.env("HOME", home);
    }
    command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
    // SAFETY: between fork and exec only these two system calls are made.
    unsafe {
        command.pre_exec(move || {
            if libc::setsid() == -1 || libc::fcntl(inherited, libc::F_SETFD, 0) == -1 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command.spawn().map_err(failed)?;
    drop(report);
    for line in BufReader::new(reports).lines() {
        let line = line.map_err(failed)?;
        match line.split_once(' ') {
            Some(("note", text)) if tells => output::say(text),
            Some(("warn", text)) => output::say(text),
            Some(("usage", text)) => return Err(Failure::Usage(text.into())),
            Some(("failed", text)) => return Err(Failure::Failed(text.into())),
            Some(("ready", text)) if tells => return output::print(&format!("{text}\n")),
            Some(("ready", _)) => return Ok(()),
            _ => {}
        }
    }
    Err(Failure::Failed(format!("the daemon ended before it was usable: see {}", log_path.shown())))
}

/// Reports to the process that waits until this one is usable.
pub enum Report {
    Pipe {
        pipe: PipeWriter,
        watch: Option<JoinHandle<()>>,
    },
    /// No process waits: everything has been reported, or the command runs in the foreground.
    Closed,
}

impl Report {
    /// The number of the pipe that this process was started with.
    pub fn descriptor() -> Option<RawFd> {
        env::var(REPORT).ok()?.parse().ok()
    }

    /// The pipe that this process was started with, if it is one in the background.
    pub fn inherited() -> Option<Report> {
        let fd = Report::descriptor()?;
        // SAFETY: both calls take and give plain integers. Only `start` sets the variable, and it
        // names a descriptor that nobody else owns.
        let owned = unsafe {
            if fd <= libc::STDERR_FILENO || libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) == -1 {
                return None;
            }
            OwnedFd::from_raw_fd(fd)
        };
        Some(Report::Pipe { pipe: PipeWriter::from(owned), watch: None })
    }

    /// Calls `told` if the waiting process ends before the mount is usable. On the threads of a
    /// `LocalSet`.
    pub fn watch(&mut self, told: impl FnOnce() + 'static) -> io::Result<()> {
        let Report::Pipe { pipe, watch } = self else { return Ok(()) };
        // SAFETY: the pipe keeps one descriptor open, and always names the same.
        let pipe = unsafe { AsyncFd::register_with_interest(pipe.try_clone()?, Interest::ERROR)? };
        *watch = Some(tokio::task::spawn_local(async move {
            if pipe.ready(Interest::ERROR).await.is_ok() {
                told();
            }
        }));
        Ok(())
    }

    pub fn note(&mut self, text: &str) {
        tracing::info!("{text}");
        // Whether the receiver still exists matters only to `ready`, which checks it.
        self.say("note", text).ok();
    }

    /// As [`Report::note`], but shown also without progress output.
    pub fn warn(&mut self, text: &str) {
        tracing::warn!("{text}");
        self.say("warn", text).ok();
    }

    /// `text` describes the usable mount. False if the process that started this one has gone: the
    /// mount is not wanted any more.
    pub fn ready(&mut self, text: &str) -> bool {
        let said = self.say("ready", text).is_ok();
        if let Report::Pipe { watch: Some(watch), .. } = std::mem::replace(self, Report::Closed) {
            watch.abort();
        }
        said
    }

    pub fn failed(&mut self, failure: &Failure) {
        let kind = if let Failure::Usage(_) = failure { "usage" } else { "failed" };
        // Without a receiver the log has it.
        self.say(kind, failure.text().unwrap_or_default()).ok();
    }

    fn say(&mut self, kind: &str, text: &str) -> io::Result<()> {
        match self {
            Report::Pipe { pipe, .. } => pipe
                .write_all(format!("{kind} {}\n", shown_text(&text.replace('\n', " "))).as_bytes()),
            Report::Closed => Ok(()),
        }
    }
}
