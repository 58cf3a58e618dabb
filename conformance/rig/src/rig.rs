//! A real mount with its storage, node and daemon, which are removed on drop.

use crate::finding::Finding;
use crate::scratch::Scratch;
use crate::{Outcome, name_of, tool};
use clap::ValueEnum;
use ebb_cli::places::{MountRecord, Process, RunDir};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    EmbeddedDir,
    EmbeddedS3,
    DetachedDir,
    DetachedS3,
}

impl Shape {
    pub fn is_embedded(self) -> bool {
        matches!(self, Shape::EmbeddedDir | Shape::EmbeddedS3)
    }

    pub fn is_s3(self) -> bool {
        matches!(self, Shape::EmbeddedS3 | Shape::DetachedS3)
    }
}

/// Storage of one run.
pub struct Store {
    pub url: String,
    /// Settings for `ebb`, S3 tools and curl.
    pub environment: Vec<(&'static str, String)>,
    server: Option<Child>,
}

impl Store {
    /// The project's S3 server, or the one that EBB_S3_ENDPOINT names (bucket EBB_S3_BUCKET, by
    /// default `bucket`; credentials from the environment).
    fn s3(binaries: &Path, prefix: &str, fill: u64) -> Outcome<Store> {
        if let Ok(endpoint) = std::env::var("EBB_S3_ENDPOINT") {
            let bucket = std::env::var("EBB_S3_BUCKET").unwrap_or_else(|_| "bucket".into());
            return Ok(Store {
                url: format!("s3://{bucket}/{prefix}"),
                environment: vec![("EBB_ENDPOINT", endpoint)],
                server: None,
            });
        }
        let mut server = Command::new(binaries.join("ebb-s3-server"));
        server.args(["--fill", prefix, &fill.to_string()]);
        let mut server =
            server.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut endpoint = String::new();
        let out = server.stdout.take().ok_or("the server has no output")?;
        BufReader::new(out).read_line(&mut endpoint)?;
        let environment = vec![
            ("EBB_ENDPOINT", endpoint.trim().to_owned()),
            ("AWS_ACCESS_KEY_ID", "test-access".into()),
            ("AWS_SECRET_ACCESS_KEY", "test-secret".into()),
            ("AWS_REGION", "us-east-1".into()),
        ];
        Ok(Store { url: format!("s3://bucket/{prefix}"), environment, server: Some(server) })
    }

    /// Storage that exists outside this run.
    pub fn of(url: String, environment: Vec<(&'static str, String)>) -> Store {
        Store { url, environment, server: None }
    }

    pub fn server_pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// The next mount uses this endpoint.
    pub fn set_endpoint(&mut self, endpoint: String) {
        self.environment.retain(|(name, _)| *name != "EBB_ENDPOINT");
        self.environment.push(("EBB_ENDPOINT", endpoint));
    }

    pub fn endpoint(&self) -> Option<&str> {
        self.variable("EBB_ENDPOINT")
    }

    /// A variable of its environment.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(there, _)| *there == name).map(|(_, value)| value.as_str())
    }
}

pub struct Rig {
    pub shape: Shape,
    pub store: Store,
    /// Holds all files of this run.
    pub dir: Scratch,
    binaries: PathBuf,
    /// The node's data directory.
    data: PathBuf,
    flags: Vec<String>,
    node: Option<Child>,
    port: u16,
}

/// A starting node, with its child processes.
pub struct Starting(Child);

impl Starting {
    pub fn kill(&self) -> Outcome<()> {
        tool::signal_group(self.0.id(), libc::SIGKILL)
    }

    /// Waits until all of them have ended.
    pub fn wait(mut self) -> Outcome<()> {
        self.0.wait()?;
        let began = Instant::now();
        while self.has_members()? {
            if began.elapsed() > PATIENCE {
                return Err(format!("process group {} survives SIGKILL", self.0.id()).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether a process of the group still runs; zombies do not count.
    fn has_members(&self) -> Outcome<bool> {
        let group = self.0.id().to_string();
        for entry in fs::read_dir("/proc")? {
            // Empty for a process that ends during the read.
            let stat = fs::read_to_string(entry?.path().join("stat")).unwrap_or_default();
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            let (state, of) = (fields.next(), fields.nth(1));
            if of == Some(&group) && !matches!(state, Some("Z" | "X")) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Exit status of `ebb fsck` for unrepaired findings.
const FSCK_FOUND: i32 = 4;

/// Time limit of a command.
const PATIENCE: Duration = Duration::from_secs(120);

impl Rig {
    pub fn new(shape: Shape, binaries: &Path) -> Outcome<Rig> {
        Rig::filled(shape, binaries, 0)
    }

    /// With this many objects in the S3 server, 100,000 per directory.
    pub fn filled(shape: Shape, binaries: &Path, fill: u64) -> Outcome<Rig> {
        Rig::made(Scratch::new(&name_of(shape))?, shape, binaries, fill)
    }

    /// With a name of its own, beside another one of the shape.
    pub fn named(shape: Shape, name: &str, binaries: &Path) -> Outcome<Rig> {
        Rig::made(Scratch::new(name)?, shape, binaries, 0)
    }

    fn made(dir: Scratch, shape: Shape, binaries: &Path, fill: u64) -> Outcome<Rig> {
        let store = if shape.is_s3() {
            Store::s3(binaries, &format!("run-{}", std::process::id()), fill)?
        } else {
            let backing = dir.join("backing");
            fs::create_dir(&backing)?;
            Store::of(format!("file://{}", backing.display()), Vec::new())
        };
        Rig::within(dir, shape, store, binaries)
    }

    /// Over existing storage.
    pub fn over(shape: Shape, name: &str, store: Store, binaries: &Path) -> Outcome<Rig> {
        Rig::within(Scratch::new(name)?, shape, store, binaries)
    }

    fn within(dir: Scratch, shape: Shape, store: Store, binaries: &Path) -> Outcome<Rig> {
        fs::create_dir(dir.join("mnt"))?;
        let data = dir.join("data");
        let mut rig = Rig {
            shape,
            store,
            dir,
            binaries: binaries.to_owned(),
            data,
            flags: Vec::new(),
            node: None,
            port: 0,
        };
        if !shape.is_embedded() {
            // A killed mount delays the next one for this long.
            rig.set_advanced("session-term = 3\n")?;
        }
        Ok(rig)
    }

    /// With these flags for the node.
    pub fn with(mut self, flags: &[&str]) -> Rig {
        self.set_flags(flags);
        self
    }

    /// From the next start of the node on.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Sets advanced settings of the node, in lines of a configuration file, from its next start
    /// on.
    pub fn set_advanced(&mut self, settings: &str) -> Outcome<()> {
        let file = self.dir.join("ebb.toml");
        fs::write(&file, format!("[advanced]\n{settings}"))?;
        self.store.environment.retain(|(name, _)| *name != "EBB_CONFIG");
        self.store.environment.push(("EBB_CONFIG", file.display().to_string()));
        Ok(())
    }

    /// With this data directory for the node.
    pub fn with_data(mut self, data: PathBuf) -> Rig {
        self.data = data;
        self
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// `ebb` with these arguments and the storage's environment.
    pub fn ebb(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.binaries.join("ebb"));
        command.args(args).envs(self.store.environment.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Starts the processes that do not run yet; returns the time until the mount answered.
    pub fn mount(&mut self, options: &str) -> Outcome<Duration> {
        let began = Instant::now();
        let data = self.data().display().to_string();
        let point = self.mountpoint().display().to_string();
        if self.shape.is_embedded() {
            let url = self.store.url.clone();
            tool::run(
                self.ebb(&["mount", &url, &point, "--data", &data, "-o", options])
                    .args(&self.flags),
            )?;
        } else {
            if self.node.is_none() {
                self.serve()?;
            }
            let url = format!("ebb://127.0.0.1:{}/volume", self.port);
            let client = self.dir.join("client").display().to_string();
            tool::run(
                self.ebb(&["mount", &url, &point, "--data", &client, "-o", options])
                    .stderr(Stdio::null()),
            )?;
        }
        Ok(began.elapsed())
    }

    /// Starts the node of a detached mount on its previous port.
    pub fn serve(&mut self) -> Outcome<()> {
        let mut node = self.serving()?.spawn()?;
        let mut line = String::new();
        BufReader::new(node.stdout.take().ok_or("the node has no output")?).read_line(&mut line)?;
        let port = line
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split('/').next())
            .and_then(|port| port.parse().ok());
        self.node = Some(node);
        self.port = port.ok_or_else(|| {
            format!("the node did not start: {}", self.dir.join("node.log").display())
        })?;
        Ok(())
    }

    fn serving(&self) -> Outcome<Command> {
        let data = self.data().display().to_string();
        let listen = format!("127.0.0.1:{}", self.port);
        let url = self.store.url.clone();
        let mut command = self.ebb(&[
            "serve",
            "--data",
            &data,
            "--backing",
            &url,
            "--name",
            "volume",
            "--listen",
            &listen,
        ]);
        command.args(&self.flags).stdout(Stdio::piped()).stderr(self.log()?);
        Ok(command)
    }

    fn log(&self) -> Outcome<fs::File> {
        Ok(fs::OpenOptions::new().create(true).append(true).open(self.dir.join("node.log"))?)
    }

    /// Starts the node's processes without waiting until they answer, so that they can be killed
    /// during the start.
    pub fn begin(&self) -> Outcome<Starting> {
        let mut command = match self.shape.is_embedded() {
            true => {
                let (data, point) =
                    (self.data().display().to_string(), self.mountpoint().display().to_string());
                let mut command =
                    self.ebb(&["mount", &self.store.url, &point, "--data", &data, "--foreground"]);
                command.args(&self.flags).stdout(Stdio::null()).stderr(self.log()?);
                command
            }
            false => self.serving()?,
        };
        Ok(Starting(command.process_group(0).spawn()?))
    }

    /// Kills the process with the unflushed state: the node, or a mount with its node.
    pub fn kill_node(&mut self) -> Outcome<()> {
        self.kill_node_and(|| Ok(()))
    }

    /// As [`Rig::kill_node`]; runs `then` between the signal and the wait for the process.
    pub fn kill_node_and(&mut self, then: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        match self.node.take() {
            Some(mut node) => {
                node.kill()?;
                then()?;
                node.wait()?;
                Ok(())
            }
            None => self.kill_mount_and(then),
        }
    }

    pub fn kill_mount(&self) -> Outcome<()> {
        self.kill_mount_and(|| Ok(()))
    }

    /// Sends a signal to the daemon of the mount alone; returns its process id.
    pub fn signal_daemon(&self, signal: i32) -> Outcome<u32> {
        let daemon = self.daemon().ok_or("there is no daemon")?;
        tool::signal(daemon.pid, signal)?;
        Ok(daemon.pid)
    }

    /// Kills the supervisor too, so that no new daemon changes the disk before it is inspected.
    fn kill_mount_and(&self, then: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        let record = self.record().ok_or("there is no daemon to kill")?;
        if let Some(supervisor) = record.supervisor.filter(|supervisor| supervisor.is_alive()) {
            tool::signal(supervisor.pid, libc::SIGKILL)?;
        }
        let daemon = record.daemon;
        tool::signal(daemon.pid, libc::SIGKILL)?;
        then()?;
        let began = Instant::now();
        while daemon.is_alive() {
            if began.elapsed() > PATIENCE {
                return Err(format!("process {} survives SIGKILL", daemon.pid).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns when the bucket has everything.
    pub fn flush(&self) -> Outcome<()> {
        tool::output(&mut self.ebb(&["flush", &self.mountpoint().display().to_string()])).map(drop)
    }

    /// Returns a [`Finding`] for every problem that `ebb fsck` reports.
    pub fn fsck(&self) -> Outcome<()> {
        self.fsck_with(&[]).map(drop)
    }

    /// As [`Rig::fsck`], and checks the bucket. Loads all directories first, so that no object
    /// stays undecided.
    pub fn fsck_bucket(&self) -> Outcome<()> {
        self.tree()?;
        let report: serde_json::Value =
            serde_json::from_str(&self.fsck_with(&["--bucket", "--json"])?)?;
        match report["undecided"].as_u64() {
            Some(0) => Ok(()),
            _ => Err(Finding(format!(
                "it cannot be said whose everything in the bucket is: {report}"
            ))
            .into()),
        }
    }

    fn fsck_with(&self, flags: &[&str]) -> Outcome<String> {
        let point = self.mountpoint().display().to_string();
        let output = self.ebb(&["fsck", &point]).args(flags).output()?;
        let text = String::from_utf8(output.stdout)?;
        match output.status.code() {
            Some(0) => Ok(text),
            Some(FSCK_FOUND) => Err(Finding(format!("ebb fsck: {text}")).into()),
            _ => Err(format!(
                "ebb fsck: {}: {text}{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            )
            .into()),
        }
    }

    /// All entries below the mount point, with directories before their entries.
    pub fn tree(&self) -> Outcome<Vec<(PathBuf, fs::FileType)>> {
        let root = self.mountpoint();
        let (mut all, mut todo) = (Vec::new(), vec![root.clone()]);
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    todo.push(entry.path());
                }
                all.push((entry.path().strip_prefix(&root)?.to_owned(), kind));
            }
        }
        Ok(all)
    }

    /// Resident memory of the mount's process.
    pub fn resident_bytes(&self) -> Outcome<u64> {
        let daemon = self.daemon().ok_or("there is no daemon")?;
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid))?;
        kib(&status, "VmRSS:")
    }

    /// Processor time of the mount's process, over all cores.
    pub fn processor_time(&self) -> Outcome<Duration> {
        let daemon = self.daemon().ok_or("there is no daemon")?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.pid))?;
        // utime and stime are fields 14 and 15; field 2 may contain blanks.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(str::parse::<u64>).sum::<Result<_, _>>()?;
        // SAFETY: takes a plain integer.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }

    /// Memory of the mount's processes, with shared pages split between their users (PSS).
    pub fn proportional_bytes(&self) -> Outcome<u64> {
        let record = self.record().ok_or("there is no daemon")?;
        let mut sum = 0;
        for process in [Some(record.daemon), record.supervisor].into_iter().flatten() {
            let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid))?;
            sum += kib(&rollup, "Pss:")?;
        }
        Ok(sum)
    }

    fn daemon(&self) -> Option<Process> {
        Some(self.record()?.daemon)
    }

    fn record(&self) -> Option<MountRecord> {
        let point = self.mountpoint().canonicalize().unwrap_or_else(|_| self.mountpoint());
        let (record, _) = RunDir::of_user().ok()?.find(&point).ok()??;
        Some(record)
    }

    pub fn umount(&mut self) -> Outcome<()> {
        let point = self.mountpoint().display().to_string();
        tool::output(&mut self.ebb(&["umount", &point]))?;
        if let Some(mut node) = self.node.take() {
            tool::signal(node.id(), libc::SIGTERM)?;
            let status = node.wait()?;
            if !status.success() {
                return Err(format!(
                    "the node did not end well: {status}; {}",
                    self.dir.join("node.log").display()
                )
                .into());
            }
        }
        Ok(())
    }

    /// Removes all state that is not in the bucket. Call only while nothing is mounted.
    pub fn drop_cache(&self) -> Outcome<()> {
        Ok(fs::remove_dir_all(self.data())?)
    }

    /// Keeps everything on drop.
    pub fn keep(&mut self) {
        self.dir.keep();
    }
}

impl Drop for Rig {
    /// Best effort, and each step independent of the others: this also runs after a failure.
    fn drop(&mut self) {
        if self.dir.is_kept() {
            return;
        }
        let point = self.mountpoint();
        if self.daemon().is_some() {
            self.kill_mount().ok();
            self.ebb(&["umount", "--lazy", "--no-wait", &point.display().to_string()])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .ok();
        }
        for child in self.node.iter_mut().chain(self.store.server.iter_mut()) {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// A KiB field of a proc(5) file, in bytes.
fn kib(text: &str, name: &str) -> Outcome<u64> {
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).ok_or("the kernel does not say")?;
    let kib: u64 = line.trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}
