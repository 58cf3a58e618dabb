//! `./demo --cluster`: a volume on three nodes, whose leader is killed while three mounts write.

use ebb_rig::scratch::Scratch;
use ebb_rig::{Outcome, tool};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

const NODES: usize = 3;

/// Phases of the workload: before the kill, without the killed node, and with it again.
const BEFORE: Duration = Duration::from_secs(8);
const WITHOUT: Duration = Duration::from_secs(12);
const AFTER: Duration = Duration::from_secs(8);

/// Time limit of a node to start, and of the nodes to agree.
const PATIENCE: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(100);

/// Between two files of a mount, so that the output of the demo stays small.
const PAUSE: Duration = Duration::from_millis(10);

struct Cluster {
    dir: Scratch,
    binaries: PathBuf,
    addresses: Vec<String>,
    nodes: Vec<Option<Child>>,
}

/// A file that a mount has written.
struct Written {
    mount: usize,
    number: u32,
}

/// The longest operation of all mounts, and failed ones.
#[derive(Default)]
struct Longest {
    took: Duration,
    began: Duration,
    what: String,
    failed: u32,
}

pub fn run(binaries: &Path) -> Outcome<()> {
    let bound = (0..NODES).map(|_| TcpListener::bind("127.0.0.1:0"));
    let bound = bound.collect::<Result<Vec<_>, _>>()?;
    let addresses = bound.iter().map(|it| it.local_addr().map(|address| address.to_string()));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    drop(bound);
    let dir = Scratch::new("cluster")?;
    fs::create_dir(dir.join("backing"))?;
    let nodes = (0..NODES).map(|_| None).collect();
    let mut cluster = Cluster { dir, binaries: binaries.to_owned(), addresses, nodes };
    let outcome = cluster.story();
    let cleaned = cluster.clean_up();
    outcome.and(cleaned)
}

impl Cluster {
    fn story(&mut self) -> Outcome<()> {
        super::step("start three nodes", || {
            (0..NODES).try_for_each(|at| self.start(at))?;
            self.until("every node votes", |nodes| {
                nodes.len() == NODES && nodes.iter().all(|node| node["votes"] == true)
            })?;
            Ok(format!("{} over a directory", self.volume()))
        })?;
        super::step("mount it three times", || {
            for at in 0..NODES {
                fs::create_dir(self.mountpoint(at))?;
                let client = self.dir.join(format!("client{at}")).display().to_string();
                let point = self.mountpoint(at).display().to_string();
                let volume = self.volume();
                tool::run(
                    self.ebb(&["mount", &volume, &point, "--data", &client])
                        .stdout(Stdio::null())
                        .stderr(Stdio::null()),
                )?;
            }
            Ok(String::new())
        })?;
        let (files, longest) = self.work()?;
        super::step("wait until all nodes have all", || {
            self.until("every node is up to date", |nodes| {
                nodes.len() == NODES && nodes.iter().all(|node| node["behind_entries"] == 0)
            })?;
            Ok(tool::output(&mut self.ebb(&["node", "list", &self.volume()]))?
                .lines()
                .map(|line| format!("\n    {line}"))
                .collect())
        })?;
        super::step("compare every byte on each mount", || self.compare(&files))?;
        super::step("flush, compare the bucket", || {
            let point = self.mountpoint(0).display().to_string();
            tool::output(&mut self.ebb(&["flush", &point]))?;
            for file in &files {
                expect(&self.dir.join("backing").join(file.name()), file)?;
            }
            Ok(format!("{} objects", files.len()))
        })?;
        println!("\n{} files that were being written gave EIO", longest.failed);
        println!(
            "the longest of all operations took {:.3} s: {}, begun {:.1} s after the start; the \
             leader was killed at {:.1} s",
            longest.took.as_secs_f64(),
            longest.what,
            longest.began.as_secs_f64(),
            BEFORE.as_secs_f64()
        );
        Ok(())
    }

    /// Three mounts write, while the leader is killed and started again.
    fn work(&mut self) -> Outcome<(Vec<Written>, Longest)> {
        let (written, longest) = (Mutex::new(Vec::new()), Mutex::new(Longest::default()));
        let points: Vec<PathBuf> = (0..NODES).map(|at| self.mountpoint(at)).collect();
        let is_over = AtomicBool::new(false);
        let began = Instant::now();
        thread::scope(|scope| {
            let writers: Vec<_> = points
                .iter()
                .enumerate()
                .map(|(mount, point)| {
                    let (written, longest, is_over) = (&written, &longest, &is_over);
                    scope.spawn(move || write(mount, point, began, is_over, written, longest))
                })
                .collect();
            let killed = self.kill_and_restart(|| lock(&written).len());
            is_over.store(true, Ordering::Release);
            for writer in writers {
                writer.join().map_err(|_| "a writer panicked")??;
            }
            killed
        })?;
        let files = std::mem::take(&mut *lock(&written));
        let longest = std::mem::take(&mut *lock(&longest));
        Ok((files, longest))
    }

    fn kill_and_restart(&mut self, written: impl Fn() -> usize) -> Outcome<()> {
        super::step("write on all mounts", || {
            sleep(BEFORE);
            Ok(format!("{} files", written()))
        })?;
        let mut killed = 0;
        super::step("SIGKILL to the leader, carry on", || {
            killed = self.leader()?;
            let before = written();
            let node = self.nodes[killed].take();
            let mut node = node.ok_or("the leader does not run")?;
            node.kill()?;
            node.wait()?;
            sleep(WITHOUT);
            let leader = self.leader()?;
            let more = written() - before;
            Ok(format!("node {} led, node {} leads; {more} more files", killed + 1, leader + 1))
        })?;
        super::step("start it again, carry on", || {
            let before = written();
            self.start(killed)?;
            sleep(AFTER);
            Ok(format!("{} more files", written() - before))
        })
    }

    fn compare(&self, files: &[Written]) -> Outcome<String> {
        let mut bytes = 0;
        for at in 0..NODES {
            for file in files {
                bytes += expect(&self.mountpoint(at).join(file.name()), file)?;
            }
        }
        Ok(format!("{} files, {} MiB", files.len(), bytes >> 20))
    }

    fn start(&mut self, at: usize) -> Outcome<()> {
        let backing = format!("file://{}", self.dir.join("backing").display());
        let data = self.dir.join(format!("node{at}")).display().to_string();
        let mut args = vec!["serve", "--backing", &backing, "--name", "home", "--voters", "3"];
        args.extend(["--data", &data, "--listen", &self.addresses[at]]);
        if at > 0 {
            args.extend(["--join", &self.addresses[0]]);
        }
        let log = self.dir.join(format!("node{at}.log"));
        let log = File::options().create(true).append(true).open(log)?;
        let mut node = self.ebb(&args).stdout(Stdio::piped()).stderr(log).spawn()?;
        let mut line = String::new();
        let out = node.stdout.take().ok_or("the node has no output")?;
        BufReader::new(out).read_line(&mut line)?;
        self.nodes[at] = Some(node);
        if line.is_empty() {
            let log = fs::read_to_string(self.dir.join(format!("node{at}.log")))?;
            return Err(format!("node {} did not start:\n{log}", at + 1).into());
        }
        Ok(())
    }

    fn ebb(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.binaries.join("ebb"));
        command.args(args).stdin(Stdio::null());
        command
    }

    fn volume(&self) -> String {
        format!("ebb://{}/home", self.addresses.join(","))
    }

    fn mountpoint(&self, at: usize) -> PathBuf {
        self.dir.join(format!("mnt{at}"))
    }

    fn list(&self) -> Outcome<Vec<Value>> {
        let text = tool::output(&mut self.ebb(&["node", "list", &self.volume(), "--json"]))?;
        Ok(serde_json::from_str(&text)?)
    }

    fn leader(&self) -> Outcome<usize> {
        let nodes = self.list()?;
        let leader = nodes.iter().find(|node| node["leader"] == true);
        let address = leader.and_then(|node| node["address"].as_str()).ok_or("no node leads")?;
        Ok(self.addresses.iter().position(|known| known == address).ok_or("an unknown address")?)
    }

    fn until(&self, what: &str, holds: impl Fn(&[Value]) -> bool) -> Outcome<()> {
        let began = Instant::now();
        loop {
            let nodes = self.list();
            if nodes.as_ref().is_ok_and(|nodes| holds(nodes)) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("never: {what}: {nodes:?}").into());
            }
            sleep(POLL);
        }
    }

    fn clean_up(&mut self) -> Outcome<()> {
        for at in 0..NODES {
            let point = self.mountpoint(at).display().to_string();
            // After a failure there may be no mount.
            let mut command = self.ebb(&["umount", "--no-wait", &point]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        }
        for mut node in self.nodes.iter_mut().filter_map(Option::take) {
            node.kill()?;
            node.wait()?;
        }
        Ok(())
    }
}

impl Written {
    fn name(&self) -> String {
        format!("mount{}/{:06}", self.mount, self.number)
    }

    /// Every file has its own bytes: up to 64 KiB of a linear congruential generator.
    fn content(&self) -> Vec<u8> {
        let mut state = u64::from(self.number) << 8 | self.mount as u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        let len = usize::from(next()) * 256;
        (0..len).map(|_| next()).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Writes and forces files on one mount under draft names, and renames them.
fn write(
    mount: usize,
    point: &Path,
    began: Instant,
    is_over: &AtomicBool,
    written: &Mutex<Vec<Written>>,
    longest: &Mutex<Longest>,
) -> Result<(), String> {
    let timed = |what: String, run: &dyn Fn() -> std::io::Result<()>| {
        let at = began.elapsed();
        let outcome = run();
        let took = began.elapsed() - at;
        let mut longest = lock(longest);
        if took > longest.took {
            let failed = longest.failed;
            *longest = Longest { took, began: at, what, failed };
        }
        outcome
    };
    let dir = point.join(format!("mount{mount}"));
    let told = |error: std::io::Error| format!("mount{mount}: {error}");
    timed(format!("mkdir of mount{mount}"), &|| fs::create_dir(&dir)).map_err(told)?;
    for number in 0.. {
        if is_over.load(Ordering::Acquire) {
            break;
        }
        let file = Written { mount, number };
        let (draft, name) = (dir.join(format!("draft{number}")), point.join(file.name()));
        let content = file.content();
        let write = || {
            let mut file = File::create(&draft)?;
            file.write_all(&content)?;
            file.sync_all()
        };
        match timed(format!("write and fsync of {}", file.name()), &write) {
            Ok(()) => {}
            // The bytes are on the killed node alone. The program writes them elsewhere.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                lock(longest).failed += 1;
                continue;
            }
            Err(error) => return Err(told(error)),
        }
        timed(format!("rename of {}", file.name()), &|| fs::rename(&draft, &name)).map_err(told)?;
        lock(written).push(file);
        sleep(PAUSE);
    }
    Ok(())
}

/// Returns the number of bytes.
fn expect(path: &Path, file: &Written) -> Outcome<usize> {
    let found = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if found != file.content() {
        return Err(format!("{} has other bytes than were written", path.display()).into());
    }
    Ok(found.len())
}
