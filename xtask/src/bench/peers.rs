//! Other file systems on this machine, each mounted for as long as a run lasts.

use super::curl::{self, Request};
use super::moosefs::Cluster;
use super::place::Column;
use super::put_aside;
use crate::rig::Store;
use crate::{Outcome, mounts, tool};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long one may take to mount, to unmount, or to send what it has.
const PATIENCE: Duration = Duration::from_secs(120);

const POLL: Duration = Duration::from_millis(50);

/// Where the programs of peers are.
pub struct Programs {
    path: OsString,
}

impl Programs {
    /// In `bin` of this directory, and where the system has them.
    pub fn new(directory: &Path) -> Programs {
        let mut path = directory.join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path.push(":/usr/sbin:/sbin");
        Programs { path }
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // Over loopback there is nothing to be certified, and rclone does not start with it.
        command.env("PATH", &self.path).env_remove("AWS_CA_BUNDLE").stdin(Stdio::null());
        command
    }

    /// The version of a peer; an error if a program that it needs is missing.
    pub fn version(&self, column: Column) -> Outcome<String> {
        let (programs, flag): (&[&str], &str) = match column {
            Column::S3fs => (&["s3fs"], "--version"),
            Column::Rclone => (&["rclone"], "--version"),
            Column::MooseFs => (&["mfsmaster", "mfschunkserver", "mfsmount", "nsenter", "ip"], "-v"),
            _ => return Err("it is no peer".into()),
        };
        let there = |program: &str| std::env::split_paths(&self.path).any(|directory| directory.join(program).exists());
        if let Some(missing) = programs.iter().find(|program| !there(program)) {
            return Err(format!("{missing} is not installed").into());
        }
        let said = self.command(programs[0]).arg(flag).output()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
        Ok(version(&said).ok_or("it does not tell its version")?.to_owned())
    }
}

/// The first word that is one.
fn version(said: &str) -> Option<&str> {
    let mut words = said.split_whitespace().map(|word| word.trim_start_matches(['v', 'V']));
    words.find(|word| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.'))
}

/// One that is mounted.
pub struct Peer {
    column: Column,
    /// What it has on this machine.
    directory: PathBuf,
    endpoint: String,
    environment: Vec<(&'static str, String)>,
    /// `BUCKET/PREFIX`, beside the volume of ebb.
    root: String,
    cluster: Option<Cluster>,
    mount: Option<Child>,
}

impl Peer {
    pub fn start(column: Column, programs: &Programs, directory: &Path, store: &Store) -> Outcome<Peer> {
        for part in ["mnt", "cache"] {
            fs::create_dir_all(directory.join(part))?;
        }
        let url = format!("{}-{column:?}", store.url);
        if column == Column::S3fs {
            // It mounts no prefix that has no object.
            let nothing = directory.join("nothing");
            fs::write(&nothing, "")?;
            curl::run_below(store, &url, vec![vec![Request::put("", &nothing)]])?;
        }
        let cluster = match column {
            Column::MooseFs => Some(Cluster::start(programs, &directory.join("cluster"))?),
            _ => None,
        };
        let mut peer = Peer {
            column,
            directory: directory.to_owned(),
            endpoint: store.endpoint().ok_or("the store has no endpoint")?.to_owned(),
            environment: store.environment.clone(),
            root: url.trim_start_matches("s3://").to_owned(),
            cluster,
            mount: None,
        };
        peer.mount(programs)?;
        Ok(peer)
    }

    pub fn column(&self) -> Column {
        self.column
    }

    pub fn point(&self) -> PathBuf {
        self.directory.join("mnt")
    }

    fn cache(&self) -> PathBuf {
        self.directory.join("cache")
    }

    /// Mounted anew with nothing in the cache that it has on this machine.
    pub fn begin_cold(&mut self, programs: &Programs) -> Outcome<()> {
        self.umount()?;
        put_aside(&self.cache())?;
        fs::create_dir(self.cache())?;
        self.mount(programs)
    }

    /// Its processes stop. What they do though nobody asks them for anything is not the others' to be measured with.
    pub fn halt(&self) -> Outcome<()> {
        self.signal(libc::SIGSTOP)
    }

    /// They go on; returns when it can be written to.
    pub fn go_on(&self) -> Outcome<()> {
        self.signal(libc::SIGCONT)?;
        let trial = self.point().join("trial");
        wait(|| Ok(fs::write(&trial, "of a cluster all have to find each other").is_ok()), "it does not go on")?;
        Ok(fs::remove_file(trial)?)
    }

    fn signal(&self, signal: libc::c_int) -> Outcome<()> {
        let servers = self.cluster.iter().flat_map(Cluster::servers);
        servers.chain(&self.mount).try_for_each(|process| tool::signal(process.id(), signal))
    }

    /// Waits until the bucket has everything.
    pub fn settle(&self) -> Outcome<()> {
        let notes = self.cache().join("vfsMeta");
        match self.column {
            Column::Rclone => wait(|| Ok(!any_dirty(&notes)?), "rclone does not send what it has"),
            _ => Ok(()),
        }
    }

    fn mount(&mut self, programs: &Programs) -> Outcome<()> {
        let (began, point) = (Instant::now(), self.point());
        while !is_mounted(&point)? {
            let ended = self.mount.as_mut().map(Child::try_wait).transpose()?.flatten().is_some();
            // The servers of a cluster take a while until they can be asked.
            let may_start = self.mount.is_none() || self.cluster.is_some();
            if ended {
                self.mount = None;
            }
            let running = self.mount.is_some();
            if began.elapsed() > PATIENCE || !(running || may_start) {
                return Err(format!("it does not mount; {}", self.said()).into());
            }
            if !running {
                self.mount = Some(self.mounting(programs)?.spawn()?);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// In the foreground.
    fn mounting(&self, programs: &Programs) -> Outcome<Command> {
        let (cache, point, endpoint) = (self.cache().display().to_string(), self.point(), &self.endpoint);
        let mut command = match (self.column, &self.cluster) {
            (Column::MooseFs, Some(cluster)) => cluster.mounting(programs, &point),
            (Column::S3fs, _) => {
                let (bucket, prefix) = self.root.split_once('/').ok_or("there is no prefix")?;
                let options = format!("url={endpoint},use_path_request_style,endpoint=us-east-1,listobjectsv2,tmpdir={cache}");
                let mut command = programs.command("s3fs");
                command.arg(format!("{bucket}:/{prefix}")).arg(&point).args(["-f", "-o", &options]);
                command
            }
            _ => {
                let options = "provider=Other,env_auth=true,region=us-east-1,force_path_style=true,list_version=2,no_check_bucket=true";
                let mut command = programs.command("rclone");
                command.arg("mount").arg(format!(":s3,{options},endpoint='{endpoint}':{}", self.root)).arg(&point);
                command.args(["--vfs-cache-mode", "full", "--vfs-write-back", "0s", "--cache-dir", &cache]);
                command.env("RCLONE_CONFIG", "/dev/null");
                command
            }
        };
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log())?;
        command.envs(self.environment.iter().cloned()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    fn umount(&mut self) -> Outcome<()> {
        let point = self.point();
        let unmounted = || {
            let mut umount = Command::new("umount");
            umount.arg(&point).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
            Ok(!is_mounted(&point)?)
        };
        wait(unmounted, "it does not unmount")?;
        let mount = &mut self.mount;
        wait(|| Ok(mount.as_mut().map_or(Ok(None), Child::try_wait)?.is_some()), "its process does not end")?;
        self.mount = None;
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The last that it has said.
    fn said(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().last().unwrap_or("it says nothing").to_owned()
    }
}

impl Drop for Peer {
    /// Best effort: this runs when something has gone wrong as well.
    fn drop(&mut self) {
        self.signal(libc::SIGCONT).ok();
        if let Some(mut mount) = self.mount.take() {
            Command::new("umount").arg("--lazy").arg(self.point()).stderr(Stdio::null()).status().ok();
            mount.kill().ok();
            mount.wait().ok();
        }
    }
}

/// Whether rclone's notes of its cache name a file that is not sent.
fn any_dirty(notes: &Path) -> Outcome<bool> {
    if !notes.is_dir() {
        return Ok(false);
    }
    for entry in fs::read_dir(notes)? {
        let path = entry?.path();
        let dirty = match path.is_dir() {
            true => any_dirty(&path)?,
            // It may just have been removed.
            false => fs::read_to_string(&path).is_ok_and(|note| note.contains("\"Dirty\": true")),
        };
        if dirty {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_mounted(point: &Path) -> Outcome<bool> {
    Ok(mounts::of(std::process::id())?.iter().any(|mounted| mounted == point))
}

fn wait(mut done: impl FnMut() -> Outcome<bool>, otherwise: &str) -> Outcome<()> {
    let began = Instant::now();
    while !done()? {
        if began.elapsed() > PATIENCE {
            return Err(otherwise.into());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        let said = [
            "Amazon Simple Storage Service File System V1.90 (commit:x)",
            "rclone v1.60.1-DEV\n- os/version: 12",
            "version: 3.0.117-1 ; build: 1341",
        ];
        assert_eq!(said.map(version), [Some("1.90"), Some("1.60.1-DEV"), Some("3.0.117-1")]);
        assert_eq!(version("usage: 3 arguments"), None);
    }

    #[test]
    fn a_note_anywhere_says_that_something_is_not_sent() {
        let root = Scratch::new("notes").unwrap();
        let deep = root.join("a/b");
        fs::create_dir_all(&deep).unwrap();
        let note = |dirty: bool| fs::write(deep.join("file"), format!("{{\n\t\"Dirty\": {dirty}\n}}")).unwrap();
        note(true);
        assert!(any_dirty(&root).unwrap());
        note(false);
        assert!(!any_dirty(&root).unwrap() && !any_dirty(&root.join("none")).unwrap());
    }
}
