//! A place for one test: storage, mount point and data directory, gone when the test ends,
//! however it ends.

use crate::switch::Switch;
use ebb_cli::places::{MountRecord, Process, RunDir};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No command of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A library preloaded before the C library.
const FAILING_DISK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int fd) {
    const char *flag = getenv("EBB_TEST_FAILS");
    if (flag && access(flag, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return real(fd);
}
"#;

pub struct Place {
    pub dir: PathBuf,
    /// Besides the environment of the test.
    environment: Vec<(&'static str, String)>,
    url: String,
    children: Vec<Child>,
}

/// The result of a command.
#[derive(Debug)]
pub struct Done {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    #[track_caller]
    pub fn good(self) -> Done {
        assert_eq!(self.status, 0, "{self:?}");
        self
    }

    /// Failed with this status and one line that begins with `ebb: ` and holds `text`.
    #[track_caller]
    pub fn refused(self, status: i32, text: &str) -> Done {
        let last = self.err.trim_end().lines().last().unwrap_or_default();
        let one_line = last.starts_with("ebb: ")
            && last.contains(text)
            && !self.err.contains("panicked")
            && !self.err.contains("backtrace");
        assert!(self.status == status && one_line, "expected {status} and {text:?}: {self:?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Place {
    /// Over a directory of this machine.
    pub fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("ebb-test-{}-{count}", std::process::id()));
        for name in ["mnt", "mnt2", "backing"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let url = format!("file://{}", dir.join("backing").display());
        Place { dir, environment: Vec::new(), url, children: Vec::new() }
    }

    /// Over an S3 server in this process.
    pub fn over_s3() -> Place {
        Place::over(ebb_s3_server::start().unwrap())
    }

    /// Over one that can go away.
    pub fn behind(switch: &Switch) -> Place {
        Place::over(switch.before(&ebb_s3_server::start().unwrap()))
    }

    /// Commands started from here on use this server.
    pub fn turn_to(&mut self, server: &str) {
        for (_, endpoint) in self.environment.iter_mut().filter(|(name, _)| *name == "EBB_ENDPOINT")
        {
            *endpoint = server.into();
        }
    }

    /// Over the S3 server at this endpoint.
    pub fn over(endpoint: String) -> Place {
        let mut place = Place::new();
        place.environment = vec![
            ("EBB_ENDPOINT", endpoint),
            ("AWS_ACCESS_KEY_ID", ebb_s3_server::ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", ebb_s3_server::SECRET_KEY.into()),
        ];
        place.url = format!("s3://{}/prefix", ebb_s3_server::BUCKET);
        place
    }

    /// From now on forcing files fails for commands that are started, as long as `disk fails` is
    /// there.
    pub fn fail_forcing(&mut self) {
        let (source, library) = (self.path("failing.c"), self.path("failing.so"));
        fs::write(&source, FAILING_DISK).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .status()
            .unwrap();
        assert!(built.success());
        self.environment.push(("EBB_TEST_FAILS", self.text("disk fails")));
        self.environment.push(("LD_PRELOAD", library.display().to_string()));
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// A variable of the commands' environment.
    pub fn variable(&self, name: &str) -> &str {
        &self.environment.iter().find(|(known, _)| *known == name).expect("the place has it").1
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The directory of the store files of the data directory's only volume.
    pub fn store(&self) -> PathBuf {
        let mut volumes = fs::read_dir(self.path("data/store")).unwrap();
        let store = volumes.next().expect("a volume has been served").unwrap().path();
        assert!(volumes.next().is_none());
        store
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        self.prepared(env!("CARGO_BIN_EXE_ebb"), &self.with_advanced(args))
    }

    /// Tests name advanced settings like flags. They go into a configuration file, behind the
    /// content of the command's own file.
    fn with_advanced(&self, args: &[impl AsRef<OsStr>]) -> Vec<OsString> {
        let mut args = args.iter().map(|arg| arg.as_ref().to_owned());
        let (mut kept, mut settings) = (Vec::new(), BTreeMap::<String, String>::new());
        while let Some(arg) = args.next() {
            let text = arg.to_string_lossy().into_owned();
            let (flag, value) = match text.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned())),
                None => (text.as_str(), None),
            };
            let is_node =
                kept.first().is_some_and(|command| command == "mount" || command == "serve");
            match flag.strip_prefix("--").filter(|key| is_node && ADVANCED.contains(key)) {
                None => kept.push(arg),
                Some(key) => {
                    let next = || args.next().unwrap().into_string().unwrap();
                    let value = value.unwrap_or_else(next);
                    let set = settings.entry(key.to_owned()).or_default();
                    *set = if set.is_empty() { value } else { format!("{set},{value}") };
                }
            }
        }
        if settings.is_empty() {
            return kept;
        }
        static FILES: AtomicU64 = AtomicU64::new(0);
        let file = self.path(&format!("advanced-{}.toml", FILES.fetch_add(1, Ordering::Relaxed)));
        let at = kept.iter().position(|arg| arg == "--config");
        let own = at.map(|at| fs::read_to_string(self.dir.join(&kept[at + 1])).unwrap());
        let lines = settings.iter().map(|(key, value)| format!("{key} = \"{value}\"\n"));
        let text = own.unwrap_or_default() + "\n[advanced]\n" + &lines.collect::<String>();
        fs::write(&file, text).unwrap();
        match at {
            Some(at) => kept[at + 1] = file.into(),
            None => kept.extend(["--config".into(), file.into()]),
        }
        kept
    }

    fn prepared(&self, program: impl AsRef<OsStr>, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(program);
        command.args(args).envs(self.environment.iter().cloned()).current_dir(&self.dir);
        command
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn ebb(&self, args: &[impl AsRef<OsStr>]) -> Done {
        wait(self.command(args).spawn().unwrap())
    }

    /// Another program, in the same environment as `ebb`.
    pub fn program(&self, program: impl AsRef<OsStr>, args: &[impl AsRef<OsStr>]) -> Done {
        wait(self.prepared(program, args).spawn().unwrap())
    }

    /// Starts a long-running command, and returns it with its first line, which names the served
    /// volume.
    pub fn start(&mut self, args: &[&str]) -> (usize, String) {
        let child = self.start_silent(args);
        let mut line = String::new();
        let mut byte = [0];
        let out = self.children[child].stdout.as_mut().unwrap();
        while out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0] as char);
        }
        (child, line)
    }

    /// Starts a long-running command that prints nothing.
    pub fn start_silent(&mut self, args: &[&str]) -> usize {
        let log = fs::File::create(self.path("started.log")).unwrap();
        let child = self.command(args).stderr(log).spawn().unwrap();
        self.children.push(child);
        self.children.len() - 1
    }

    /// One that was started otherwise.
    pub fn adopt(&mut self, child: Child) -> usize {
        self.children.push(child);
        self.children.len() - 1
    }

    pub fn pid(&self, child: usize) -> u32 {
        self.children[child].id()
    }

    /// Ends a started command, and returns its exit status.
    pub fn signal(&mut self, child: usize, signal: i32) -> i32 {
        kill(self.pid(child), signal);
        self.ended(child)
    }

    /// A started command does something of its own with a signal.
    pub fn hears(&self, child: usize, signal: i32) -> bool {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.children[child].id())).unwrap();
        let caught =
            status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("proc(5) has it");
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (signal - 1)) != 0
    }

    /// Ends a started command, and returns its exit status and output.
    pub fn output(&mut self, child: usize, signal: i32) -> (i32, String) {
        let status = self.signal(child, signal);
        let mut out = String::new();
        self.children[child].stdout.as_mut().unwrap().read_to_string(&mut out).unwrap();
        (status, out)
    }

    /// Waits for a started command to end by itself, and returns its exit status.
    pub fn ended(&mut self, child: usize) -> i32 {
        let began = Instant::now();
        loop {
            match self.children[child].try_wait().unwrap() {
                Some(status) => return status.code().unwrap_or(-1),
                None => assert!(began.elapsed() < PATIENCE, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub fn mount(&self) {
        self.mount_with(&[]);
    }

    #[track_caller]
    pub fn mount_with(&self, more: &[&str]) {
        let args = [&["mount", self.url(), "mnt", "--data", "data"], more].concat();
        self.ebb(&args).good();
    }

    #[track_caller]
    pub fn umount(&self) -> Done {
        self.umount_at("mnt")
    }

    /// Other tests of this process start programs at the same time, which inherit all open
    /// descriptors until they exec.
    #[track_caller]
    pub fn umount_at(&self, mountpoint: &str) -> Done {
        let began = Instant::now();
        loop {
            let done = self.ebb(&["umount", mountpoint]);
            if !done.err.contains("in use: close what is open there") || began.elapsed() > PATIENCE
            {
                return done.good();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn record(&self, mountpoint: &str) -> MountRecord {
        self.find_record(mountpoint).expect("the mount has a record")
    }

    pub fn find_record(&self, mountpoint: &str) -> Option<MountRecord> {
        RunDir::of_user().unwrap().read(&self.path(mountpoint)).unwrap()
    }

    /// SIGKILL, and waits until the process has gone, and the supervisor that would start another
    /// one.
    pub fn kill(&self, mountpoint: &str) {
        let record = self.record(mountpoint);
        if let Some(supervisor) = record.supervisor.filter(|supervisor| supervisor.is_alive()) {
            kill(supervisor.pid, libc::SIGKILL);
        }
        self.kill_daemon(mountpoint);
    }

    /// SIGKILL to the daemon alone, and waits until nothing is left of it.
    pub fn kill_daemon(&self, mountpoint: &str) {
        let daemon = self.record(mountpoint).daemon;
        kill(daemon.pid, libc::SIGKILL);
        let began = Instant::now();
        while Path::new("/proc").join(daemon.pid.to_string()).exists() {
            assert!(began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn is_mounted(&self, mountpoint: &str) -> bool {
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .contains(&format!(" {} ", self.text(mountpoint)))
    }

    /// Forgets everything that is not in the bucket.
    pub fn drop_cache(&self) {
        fs::remove_dir_all(self.path("data")).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for mountpoint in ["mnt", "mnt2"] {
            let Ok(Some(record)) =
                RunDir::of_user().and_then(|run| run.read(&self.path(mountpoint)))
            else {
                continue;
            };
            for process in
                record.supervisor.into_iter().chain([record.daemon]).filter(Process::is_alive)
            {
                kill(process.pid, libc::SIGKILL);
            }
            let point =
                std::ffi::CString::new(self.path(mountpoint).into_os_string().into_encoded_bytes())
                    .unwrap();
            // A process does not end while its notification waits for a page that is being read.
            // SAFETY: the path ends with a zero byte.
            unsafe { libc::umount2(point.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
            self.ebb(&["umount", "--lazy", "--no-wait", mountpoint]);
        }
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let below = mounts.lines().filter_map(|mount| mount.split(' ').nth(4));
        for other in below.filter(|point| Path::new(point).starts_with(&self.dir)) {
            let point = std::ffi::CString::new(other).expect("a line has no zero byte");
            // SAFETY: the path ends with a zero byte.
            unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
        }
        fs::remove_dir_all(&self.dir).ok();
    }
}

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: kill takes plain integers.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "process {pid} is gone");
}

/// Sets the flag when dropped, also by a panic: otherwise threads that run until then would never
/// end.
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The settings that are no flags.
const ADVANCED: [&str; 20] = [
    "anonymous-gid",
    "anonymous-uid",
    "bucket-timeout",
    "buffer-memory",
    "commit-interval",
    "early-upload",
    "eviction",
    "flush-jobs",
    "gid",
    "head-term",
    "map-gid",
    "map-uid",
    "pack-below",
    "scrub-interval",
    "scrub-rate",
    "session-term",
    "slow-operation",
    "space-timeout",
    "squash",
    "uid",
];

/// A stopped process. It continues also if a test fails: otherwise its mount would keep the test
/// from ending.
pub struct Held(u32);

impl Held {
    pub fn stop(pid: u32) -> Held {
        kill(pid, libc::SIGSTOP);
        Held(pid)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: takes plain integers. It may have been killed.
        unsafe { libc::kill(self.0 as i32, libc::SIGCONT) };
    }
}

#[track_caller]
pub fn wait(mut child: Child) -> Done {
    let began = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() > PATIENCE => {
                child.kill().unwrap();
                panic!("a command has not ended: {:?}", child.wait_with_output());
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut done =
        Done { status: status.code().unwrap_or(-1), out: String::new(), err: String::new() };
    child.stdout.take().unwrap().read_to_string(&mut done.out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut done.err).unwrap();
    done
}

/// Until it is so, or too late.
#[track_caller]
pub fn until(what: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
