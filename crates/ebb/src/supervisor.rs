//! The process that keeps a mount, in the background or in the foreground (O-6, decision 10). It
//! holds the kernel's connection and the memory of the requests in progress, starts the daemon, and
//! starts another one if that dies. It has no node, no runtime, and opens nothing on the mount.
//!
//! Laws:
//! - The daemon hands the connection over once the mount is made, and reports when nobody needs to
//!   serve the mount any more. A daemon that ends in between without such a report is replaced.
//! - A daemon that ended by itself has reported everything: only one that was killed is replaced,
//!   or one that could not take over.
//! - A daemon has ended once its first thread has and all its descriptors are closed. One of its
//!   threads may still wait inside the kernel, for an answer that only the next daemon can give.
//! - A request to this process to end is passed on to the daemon.
//! - SIGHUP replaces the daemon by the binary now at the path, or by the previous one if that
//!   cannot take over. Sent by a terminal that is gone, it requests the end.
//! - In the foreground the daemon does not outlive this process, which is the one that users watch.

use crate::failure::Failure;
use crate::log;
use crate::service;
use crate::supervisor_link::{self, DaemonEvent};
use ebb_cli::places::Process;
use ebb_client::HandoverState;
use ebb_os::{OsClock, OsSharedMemory};
use ebb_ports::Clock;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::Level;

/// The log of the daemon, in the environment of the supervisor.
pub const LOG: &str = "EBB_SUPERVISOR_LOG";

/// The process that a daemon in the foreground dies with, in its environment.
const FOREGROUND: &str = "EBB_SUPERVISOR_FOREGROUND";

/// The mount point, for a daemon that takes over: the path itself already leads to the mount.
pub const MOUNTPOINT: &str = "EBB_SUPERVISOR_MOUNTPOINT";

/// The data directory, for a daemon that takes over: choosing it again could wait for the mount.
pub const DATA_DIR: &str = "EBB_SUPERVISOR_DATA_DIR";

/// The name of the handover state's memory in proc(5).
const ESTATE: &[u8] = b"/memfd:ebb";

/// Limit of files and directories that are open on a mount at one time. It exceeds the default
/// limit of a process; only open files take memory.
const OPEN_FILES: usize = 1 << 20;

/// A daemon that has lived this long died of another cause than the previous one.
const LONG_RUN: Duration = Duration::from_secs(10);

/// Daemons in a row that are killed within that time before the mount is given up.
const SHORT_RUNS: u32 = 16;

/// How long daemons may fail to take over, as they do where the bucket is away.
const WITHOUT_SERVICE: Duration = Duration::from_secs(600);

/// Daemons in a row with a short life that are replaced at once, because applications wait. After
/// that the machine is spared.
const AT_ONCE: u32 = 8;

/// Before a daemon that is not started at once; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Between the end of a process's descriptors and its own.
const LAST_BREATH: Duration = Duration::from_millis(1);

/// How soon a fenced mount that is served is looked at again.
const NEXT_LOOK: Duration = Duration::from_secs(1);

/// How long to wait for that. After it only a thread is left of the process, inside the kernel,
/// which waits for the successor.
const LAST_BREATHS: Duration = Duration::from_millis(200);

/// How a mount was requested.
pub enum Mode {
    /// In the background; all messages go to this log.
    Background(PathBuf),
    /// The command waits for the end; all messages go to standard error.
    Foreground { level: Level, mountpoint: PathBuf, data_dir: PathBuf },
}

impl Mode {
    /// The mode of this process, if it was started as a supervisor in the background.
    pub fn inherited() -> Option<Mode> {
        env::var_os(LOG).filter(|path| !path.is_empty()).map(|path| Mode::Background(path.into()))
    }
}

/// Whether this process is the daemon of a command in the foreground, with which it dies.
pub fn is_in_foreground() -> Result<bool, Failure> {
    let Some(command) = env::var(FOREGROUND).ok().and_then(|pid| pid.parse().ok()) else {
        return Ok(false);
    };
    // Repeated, because the kernel forgets it if the binary has capabilities of its own.
    die_with(command)
        .map(|()| true)
        .map_err(|error| Failure::of("the command in the foreground", error))
}

/// Runs daemons until one of them ends for good, and returns its exit status.
pub fn run(mode: Mode, report: Option<RawFd>) -> Result<u8, Failure> {
    let status = watch(mode, report)?;
    // The exit status that shells show for a killed process.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn watch(mode: Mode, report: Option<RawFd>) -> Result<ExitStatus, Failure> {
    let failed = |error: io::Error| Failure::of("the supervisor", error);
    match &mode {
        Mode::Background(path) => log::to_reopened(Level::INFO, path.clone()),
        Mode::Foreground { level, .. } => log::to_stderr(*level),
    }
    let directory = env::current_dir().unwrap_or_else(|_| "/".into());
    env::set_current_dir("/").map_err(failed)?;
    let signals = Signals::block().map_err(failed)?;
    let handover = OsSharedMemory::make(HandoverState::words_for(OPEN_FILES)).map_err(failed)?;
    let words = OsSharedMemory::of(handover.as_fd()).map_err(failed)?;
    let mut supervisor = Supervisor {
        mode,
        directory,
        signals,
        handover,
        words,
        fenced: None,
        dropping: Vec::new(),
        remains: Vec::new(),
        device: None,
        ending: false,
        told_to_end: None,
        binary: Binary::OfNow,
    };
    let mut report = report;
    let mut runs = DaemonRuns { killed: 0, failed: 0, served: Instant::now() };
    loop {
        let began = Instant::now();
        let run = supervisor.live(report.take()).map_err(failed)?;
        if supervisor.is_over(&run) {
            if run.status.signal().is_some() && supervisor.told_to_end.is_none() {
                tracing::error!(status = %run.status, "the daemon has died, and nobody takes \
                    over");
            }
            return Ok(run.status);
        }
        let is_new = supervisor.binary == Binary::OfNow && replacement().is_some();
        match runs.after(&run, began.elapsed(), is_new) {
            Next::Upgraded => {
                tracing::info!("the daemon makes way for another");
                supervisor.binary = Binary::OfNow;
            }
            Next::OfBefore => {
                tracing::error!(status = %run.status, "what the binary is now cannot take over: \
                    it is left to the one of before");
                supervisor.binary = Binary::OfBefore;
            }
            Next::Another(pause) => {
                tracing::error!(status = %run.status, "the daemon has died: another one takes \
                    over, and who uses the mount waits for it");
                std::thread::sleep(pause);
            }
            Next::GivenUp(why) => {
                tracing::error!(status = %run.status, "{why}: the mount is given up, and who uses \
                    it gets errors");
                return Ok(run.status);
            }
        }
    }
}

/// Daemons with a short life in a row.
struct DaemonRuns {
    /// Killed by signals, their own crashes included.
    killed: u32,
    /// Could not take over, and reported that.
    failed: u32,
    served: Instant,
}

/// The action after a daemon's end.
#[derive(PartialEq, Eq, Debug)]
enum Next {
    /// Another one, for which it made way.
    Upgraded,
    /// Start the previous binary, as its replacement cannot take over.
    OfBefore,
    /// Start another daemon, after this pause.
    Another(Duration),
    /// No further daemon, and the reason.
    GivenUp(String),
}

impl DaemonRuns {
    /// After one more, of a binary that `is_new` or not.
    fn after(&mut self, run: &DaemonRun, lived: Duration, is_new: bool) -> Next {
        if lived >= LONG_RUN && run.served {
            (self.killed, self.failed) = (0, 0);
        }
        if run.served {
            self.served = Instant::now();
        }
        if run.upgraded {
            return Next::Upgraded;
        }
        if !run.served && is_new {
            return Next::OfBefore;
        }
        match run.status.signal() {
            Some(_) => self.killed += 1,
            None => self.failed += 1,
        }
        if self.killed >= SHORT_RUNS {
            return Next::GivenUp(format!(
                "{SHORT_RUNS} daemons in a row have died within {} s",
                LONG_RUN.as_secs()
            ));
        }
        if !run.served && self.served.elapsed() >= WITHOUT_SERVICE {
            return Next::GivenUp(format!(
                "for {} s no daemon could take over",
                WITHOUT_SERVICE.as_secs()
            ));
        }
        let doublings = (self.killed + self.failed).checked_sub(AT_ONCE);
        Next::Another(doublings.map_or(Duration::ZERO, |doublings| {
            FIRST_PAUSE.saturating_mul(2u32.saturating_pow(doublings)).min(LONGEST_PAUSE)
        }))
    }
}

struct Supervisor {
    mode: Mode,
    /// The working directory of the command: its arguments may be relative to it.
    directory: PathBuf,
    signals: Signals,
    handover: OwnedFd,
    words: OsSharedMemory,
    /// The kernel's connection, as long as the mount needs a daemon.
    device: Option<OwnedFd>,
    /// The end of the caching term for which the kernel's caches were dropped last.
    fenced: Option<(Duration, bool)>,
    /// Threads that drop the caches. They wait for pages that are being read while nobody serves.
    dropping: Vec<JoinHandle<()>>,
    /// Daemons that have died but for a thread which waits for the same inside the kernel.
    remains: Vec<Child>,
    /// Nobody needs to serve the mount any more.
    ending: bool,
    /// The signal that requested the end.
    told_to_end: Option<i32>,
    binary: Binary,
}

/// The binary that daemons are started from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Binary {
    /// The file now at the path of this process's binary.
    OfNow,
    /// The binary of this process.
    OfBefore,
}

/// The events that a daemon has reported.
#[derive(Default)]
struct ReceivedEvents {
    hears: bool,
    serves: bool,
}

/// The life and the end of a daemon.
struct DaemonRun {
    status: ExitStatus,
    served: bool,
    /// The daemon was killed to be replaced.
    upgraded: bool,
}

impl Supervisor {
    /// While nobody serves the mount: makes the kernel drop its caches once other mounts may change
    /// the volume. While a daemon serves it, and may be stopped, the attributes that it has under
    /// leases; names end by themselves. Returns when to look again.
    fn fence(&mut self, is_served: bool) -> Option<Duration> {
        let (Some(device), Some(sure_until)) =
            (&self.device, HandoverState::sure_until_in(&self.words))
        else {
            return None;
        };
        let left = sure_until.saturating_sub(OsClock.monotonic());
        if !left.is_zero() {
            return Some(left);
        }
        let next = is_served.then_some(NEXT_LOOK);
        if self.fenced == Some((sure_until, is_served)) {
            return next;
        }
        self.fenced = Some((sure_until, is_served));
        tracing::warn!(
            "the node has not heard of the mount for too long: what the kernel has cached of it is \
             dropped"
        );
        let inodes = HandoverState::inodes_in(&self.words);
        let dropping = device.try_clone().and_then(|device| {
            std::thread::Builder::new().name("ebb-fence".into()).spawn(move || match is_served {
                true => ebb_fuse::drop_attributes(&device, &inodes),
                false => ebb_fuse::drop_everything(&device, &inodes),
            })
        });
        match dropping {
            Ok(dropping) => {
                self.dropping.retain(|dropping| !dropping.is_finished());
                self.dropping.push(dropping);
            }
            Err(error) => tracing::error!(%error, "the kernel keeps what it should drop"),
        }
        next
    }

    fn is_over(&self, run: &DaemonRun) -> bool {
        let by_itself = run.status.signal().is_none();
        self.ending
            || self.device.is_none()
            || by_itself && (run.served || self.told_to_end.is_some())
    }

    fn live(&mut self, report: Option<RawFd>) -> io::Result<DaemonRun> {
        // Perhaps no daemon can be started.
        self.fence(false);
        let started = UnixStream::pair()
            .and_then(|(words, theirs)| Ok((words, self.start(&theirs, report)?)));
        let (words, mut daemon) = match started {
            // For example for lack of memory, which the previous daemon may have died of.
            Err(error) if self.device.is_some() => {
                tracing::error!(%error, "no daemon can be started");
                return Ok(DaemonRun {
                    status: ExitStatus::from_raw(1 << 8),
                    served: false,
                    upgraded: false,
                });
            }
            started => started?,
        };
        if let Some(report) = report {
            // The daemon has it, and the reader of the pipe must see when the daemon ends.
            // SAFETY: the descriptor came with the environment, and nobody else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(report) });
        }
        words.set_nonblocking(true)?;
        let (mut heard, mut upgraded) = (ReceivedEvents::default(), false);
        let mut silent: Option<Instant> = None;
        let status = loop {
            let timeout = self.fence(heard.serves);
            let gone_silent = wait(&[self.signals.fd.as_raw_fd(), words.as_raw_fd()], timeout)?;
            // Events that it reported before it ended come first.
            self.hear(&words, &daemon, &mut heard)?;
            for signal in self.signals.take()? {
                match signal {
                    libc::SIGCHLD => {
                        self.remains.retain_mut(|daemon| matches!(daemon.try_wait(), Ok(None)))
                    }
                    // A daemon that has not reported yet was started from the current binary, or
                    // nearly so.
                    libc::SIGHUP
                        if heard.serves
                            && self.device.is_some()
                            && !self.ending
                            && self.told_to_end.is_none() =>
                    {
                        match HandoverState::unfit_in(&self.words) {
                            None => {
                                upgraded = true;
                                pass_on(&daemon, libc::SIGKILL);
                            }
                            Some(why) => tracing::error!(
                                why,
                                "nobody can take over from the daemon: it stays"
                            ),
                        }
                    }
                    libc::SIGHUP => {}
                    end => {
                        service::stopping();
                        self.told_to_end = Some(end);
                        // Before there is a mount anything that ends it is right.
                        if heard.hears || self.device.is_none() {
                            pass_on(&daemon, end);
                        }
                    }
                }
            }
            if let Some(status) = daemon.try_wait()? {
                // Once more: the daemon may have reported events in between.
                self.hear(&words, &daemon, &mut heard)?;
                break status;
            }
            if gone_silent {
                // The daemon is about to end.
                if silent.get_or_insert_with(Instant::now).elapsed() >= LAST_BREATHS
                    && Process::first_thread_has_ended(daemon.id())
                {
                    self.remains.push(daemon);
                    break ExitStatus::from_raw(libc::SIGKILL);
                }
                std::thread::sleep(LAST_BREATH);
            }
        };
        let served = heard.serves;
        Ok(DaemonRun { status, served, upgraded: upgraded && self.device.is_some() })
    }

    /// Handles all events that the daemon has reported since the last call.
    fn hear(
        &mut self,
        words: &UnixStream,
        daemon: &Child,
        heard: &mut ReceivedEvents,
    ) -> io::Result<()> {
        while let Some((word, device)) = hear(words)? {
            match word {
                DaemonEvent::Hears => {
                    heard.hears = true;
                    if let Some(signal) = self.told_to_end {
                        pass_on(daemon, signal);
                    }
                }
                DaemonEvent::Ready => service::ready(),
                DaemonEvent::Serves => {
                    heard.serves = true;
                    self.device = device.or(self.device.take());
                }
                DaemonEvent::Ends => (self.ending, self.device) = (true, None),
            }
        }
        Ok(())
    }

    /// The directory of the command, for a daemon that takes over unless that is on a mount that
    /// may be without a daemon.
    fn directory(&self) -> &Path {
        if self.device.is_none() {
            return &self.directory;
        }
        let on_mount =
            self.directory.ancestors().any(|at| ebb_fuse::Mount::is_at(at).unwrap_or(true));
        if on_mount || !self.directory.is_dir() { Path::new("/") } else { &self.directory }
    }

    /// Starts this very command as a daemon.
    fn start(&self, words: &UnixStream, report: Option<RawFd>) -> io::Result<Child> {
        let mut inherited: Vec<(&str, RawFd)> = vec![
            (supervisor_link::WORDS, words.as_raw_fd()),
            (supervisor_link::ESTATE, self.handover.as_raw_fd()),
        ];
        inherited.extend(
            self.device.as_ref().map(|device| (supervisor_link::DEVICE, device.as_raw_fd())),
        );
        inherited.extend(report.map(|report| (crate::daemon::REPORT, report)));
        let mut command = Command::new(match self.binary {
            Binary::OfNow => replacement().unwrap_or_else(own),
            Binary::OfBefore => own(),
        });
        let mut args = env::args_os();
        command.arg0(args.next().unwrap_or_else(|| OsString::from("ebb"))).args(args);
        command
            .current_dir(self.directory())
            .env_remove(LOG)
            .env_remove(crate::daemon::REPORT)
            .env_remove(supervisor_link::DEVICE)
            .env_remove("NOTIFY_SOCKET")
            .env(supervisor_link::SUPERVISOR, std::process::id().to_string());
        command.envs(inherited.iter().map(|(name, fd)| (name, fd.to_string())));
        command.stdin(Stdio::null());
        let dies_with = match &self.mode {
            Mode::Background(path) => {
                match log::open(path) {
                    Ok(log) => command.stdout(log.try_clone()?).stderr(log),
                    // For example on a full disk. Without the directory there is nothing to serve
                    // from.
                    Err(_) if path.parent().is_some_and(Path::is_dir) => {
                        command.stdout(Stdio::null()).stderr(Stdio::null())
                    }
                    Err(error) => return Err(error),
                };
                None
            }
            Mode::Foreground { mountpoint, data_dir, .. } => {
                command.env(MOUNTPOINT, mountpoint).env(DATA_DIR, data_dir);
                command.env(FOREGROUND, std::process::id().to_string());
                Some(std::process::id())
            }
        };
        // SAFETY: between fork and exec only these system calls are made.
        unsafe {
            command.pre_exec(move || {
                for (_, fd) in &inherited {
                    if libc::fcntl(*fd, libc::F_SETFD, 0) == -1 {
                        return Err(io::Error::last_os_error());
                    }
                }
                if let Some(supervisor) = dies_with {
                    die_with(supervisor)?;
                }
                unblock()
            });
        }
        command.spawn()
    }
}

impl Drop for Supervisor {
    /// Nobody serves any more. A process that waits inside the kernel for an answer keeps the
    /// connection, and so would wait for ever.
    fn drop(&mut self) {
        if self.dropping.iter().any(|dropping| !dropping.is_finished())
            && let Err(error) = ebb_fuse::cut_off(supervisor_link::place(&self.words))
        {
            tracing::error!(%error, "the mount cannot be ended: who uses it waits until it is \
                unmounted by force");
        }
    }
}

/// Kills this process when its parent dies. The parent reacts to the end of a terminal.
fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: all of them take plain integers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == -1
            || libc::signal(libc::SIGHUP, libc::SIG_IGN) == libc::SIG_ERR
        {
            return Err(io::Error::last_os_error());
        }
    }
    // It may have died before the call. A parent outside of this process's namespace is 0.
    if [parent, 0].contains(&parent_id()) { Ok(()) } else { Err(io::Error::other("it has died")) }
}

/// The path of the binary if another file has replaced the one that this process runs.
fn replacement() -> Option<PathBuf> {
    let (path, removed) = binary_of(std::process::id()).ok()?;
    (removed && path.exists()).then_some(path)
}

/// The present or former path of a process's binary, and whether it was removed from there.
pub fn binary_of(pid: u32) -> io::Result<(PathBuf, bool)> {
    let path = fs::read_link(format!("/proc/{pid}/exe"))?;
    let path = path.as_os_str().as_bytes();
    // The suffix in proc(5) for a file that was removed.
    let removed = path.strip_suffix(b" (deleted)");
    Ok((OsStr::from_bytes(removed.unwrap_or(path)).into(), removed.is_some()))
}

/// The binary that this process runs, even if its file was renamed or removed.
fn own() -> PathBuf {
    "/proc/self/exe".into()
}

/// Why no daemon could take over from this supervisor's daemon, as far as can be determined.
pub fn unfit(supervisor: u32) -> io::Result<Option<&'static str>> {
    for entry in fs::read_dir(format!("/proc/{supervisor}/fd"))? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|what| what.as_os_str().as_bytes().starts_with(ESTATE)) {
            let handover = fs::OpenOptions::new().read(true).write(true).open(&path)?;
            return Ok(HandoverState::unfit_in(&OsSharedMemory::of(handover.as_fd())?));
        }
    }
    Ok(None)
}

fn pass_on(daemon: &Child, signal: i32) {
    // SAFETY: takes plain integers. The daemon is a child that was not waited for yet.
    unsafe { libc::kill(daemon.id() as i32, signal) };
}

/// Signals that are for this process, as something to wait for.
struct Signals {
    fd: OwnedFd,
    /// False under nohup(1).
    heeds_hangups: bool,
}

impl Signals {
    fn block() -> io::Result<Signals> {
        let set = ours();
        // SAFETY: the set is valid, and nobody else owns the descriptor that comes back. SIGCHLD
        // must not be ignored: it would not arrive.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let mut before: libc::sigaction = std::mem::zeroed();
            let heeds_hangups = libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut before) == -1
                || before.sa_sigaction != libc::SIG_IGN;
            if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) == -1 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Signals { fd: OwnedFd::from_raw_fd(fd), heeds_hangups }),
            }
        }
    }

    /// The signals that have arrived.
    fn take(&self) -> io::Result<Vec<i32>> {
        let mut taken = Vec::new();
        // SAFETY: takes and gives plain integers.
        let session = unsafe { libc::getsid(0) } as u32;
        loop {
            // SAFETY: signalfd_siginfo is plain data, for which zeros are a value.
            let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
            // SAFETY: at most the size of `info` is written to it.
            let read = unsafe {
                libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size_of_val(&info))
            };
            match read {
                read if read == size_of_val(&info) as isize => {
                    // The end of a terminal is reported by the kernel, and by its shell.
                    let by_terminal =
                        info.ssi_code == libc::SI_KERNEL || session != 0 && info.ssi_pid == session;
                    match info.ssi_signo as i32 {
                        libc::SIGHUP if by_terminal => {
                            taken.extend(self.heeds_hangups.then_some(libc::SIGTERM))
                        }
                        signal => taken.push(signal),
                    }
                }
                -1 if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock => {
                    return Err(io::Error::last_os_error());
                }
                _ => return Ok(taken),
            }
        }
    }
}

fn ours() -> libc::sigset_t {
    // SAFETY: a set is plain data, and is made by sigemptyset.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

fn unblock() -> io::Result<()> {
    // SAFETY: the set is valid.
    match unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &ours(), std::ptr::null_mut()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Waits until one of these descriptors is readable. True if the other side of the last one is
/// closed.
fn wait(fds: &[RawFd], timeout: Option<Duration>) -> io::Result<bool> {
    let timeout_ms = timeout
        .map_or(-1, |timeout| timeout.as_millis().saturating_add(1).try_into().unwrap_or(i32::MAX));
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the count matches the entries, which are valid to write to.
    match unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) } {
        -1 if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => {
            Err(io::Error::last_os_error())
        }
        _ => Ok(polled.last().is_some_and(|last| last.revents & libc::POLLHUP != 0)),
    }
}

/// The daemon's next event, with the descriptor that comes with it.
fn hear(words: &UnixStream) -> io::Result<Option<(DaemonEvent, Option<OwnedFd>)>> {
    let mut byte = [0u8];
    let mut part = IoSliceMut::new(&mut byte);
    match ebb_fuse::receive_with_fd(words.as_fd(), &mut part) {
        Ok(Some(device)) => Ok(DaemonEvent::of(byte[0]).map(|word| (word, device))),
        Ok(None) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        // The daemon died with unread data.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(raw: i32, served: bool) -> DaemonRun {
        DaemonRun { status: ExitStatus::from_raw(raw), served, upgraded: false }
    }

    fn long_ago() -> Instant {
        Instant::now().checked_sub(WITHOUT_SERVICE).unwrap()
    }

    /// Daemons that are killed soon are replaced at once at first, then later and later, and not
    /// for ever.
    #[test]
    fn daemons_in_a_row_that_die_soon() {
        let mut runs = DaemonRuns { killed: 0, failed: 0, served: Instant::now() };
        let mut pauses = Vec::new();
        while let Next::Another(pause) =
            runs.after(&run(libc::SIGKILL, true), Duration::from_secs(1), false)
        {
            pauses.push(pause.as_millis() as u64);
        }
        assert_eq!(pauses, [0, 0, 0, 0, 0, 0, 0, 50, 100, 200, 400, 800, 1600, 2000, 2000]);
        let mut runs = DaemonRuns { killed: SHORT_RUNS - 1, failed: 0, served: Instant::now() };
        assert_eq!(
            runs.after(&run(libc::SIGKILL, true), LONG_RUN, false),
            Next::Another(Duration::ZERO)
        );
    }

    /// A daemon that cannot take over reports that, and a later one may be able to. It does not
    /// count as killed.
    #[test]
    fn daemons_that_cannot_take_over() {
        let mut runs = DaemonRuns { killed: 0, failed: 0, served: Instant::now() };
        let failed = run(1 << 8, false);
        for _ in 0..1000 {
            assert!(matches!(runs.after(&failed, Duration::from_secs(1), false), Next::Another(_)));
        }
        assert_eq!(
            runs.after(&failed, Duration::from_secs(1), false),
            Next::Another(LONGEST_PAUSE)
        );
        runs.served = long_ago();
        assert!(matches!(runs.after(&failed, Duration::from_secs(1), false), Next::GivenUp(_)));
    }

    /// Situation: a daemon that has served for long makes way for another one, which cannot take
    /// over at once, nor can the previous binary. Danger: all that time counts as time without
    /// service. Expectation: they are tried for as long as others.
    #[test]
    fn daemons_that_cannot_take_over_from_one_that_made_way() {
        let mut runs = DaemonRuns { killed: 0, failed: 0, served: long_ago() };
        let upgraded = DaemonRun { upgraded: true, ..run(libc::SIGKILL, true) };
        assert_eq!(runs.after(&upgraded, LONG_RUN, true), Next::Upgraded);
        assert_eq!(runs.after(&run(1 << 8, false), Duration::from_secs(1), true), Next::OfBefore);
        assert_eq!(
            runs.after(&run(1 << 8, false), Duration::from_secs(1), false),
            Next::Another(Duration::ZERO)
        );
    }
}
