//! Other file systems on this machine, each mounted for the duration of a run.

mod commands;
mod programs;
mod servers;

pub use programs::Programs;

use super::curl::{self, Request};
use super::place::Column;
use super::put_aside;
use crate::rig::Store;
use crate::{Outcome, mounts, tool};
use servers::Servers;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Limit for a mount, an unmount, or the upload of dirty data.
const PATIENCE: Duration = Duration::from_secs(120);

const POLL: Duration = Duration::from_millis(50);

/// A mounted peer.
pub struct Peer {
    column: Column,
    /// Its local files.
    directory: PathBuf,
    storage: Storage,
    servers: Servers,
    mount: Option<Child>,
}

/// Its prefix in the store, beside ebb's volume.
struct Storage {
    endpoint: String,
    environment: Vec<(&'static str, String)>,
    bucket: String,
    prefix: String,
}

impl Storage {
    fn new(store: &Store, url: &str) -> Outcome<Storage> {
        let endpoint = store.endpoint().ok_or("the store has no endpoint")?.to_owned();
        let (bucket, prefix) =
            url.trim_start_matches("s3://").split_once('/').ok_or("there is no prefix")?;
        Ok(Storage {
            endpoint,
            environment: store.environment.clone(),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        })
    }

    fn key(&self, name: &str) -> Outcome<&str> {
        let given = self.environment.iter().find(|(variable, _)| *variable == name);
        Ok(&given.ok_or_else(|| format!("the store has no {name}"))?.1)
    }
}

impl Peer {
    pub fn start(
        column: Column,
        programs: &Programs,
        directory: &Path,
        store: &Store,
    ) -> Outcome<Peer> {
        for part in ["mnt", "cache"] {
            fs::create_dir_all(directory.join(part))?;
        }
        let url = format!("{}-{column:?}", store.url);
        if column == Column::S3fs {
            // It refuses to mount a prefix without objects.
            let nothing = directory.join("nothing");
            fs::write(&nothing, "")?;
            curl::run_below(store, &url, vec![vec![Request::put("", &nothing)]])?;
        }
        let storage = Storage::new(store, &url)?;
        let servers = Servers::start(column, programs, directory, &storage)?;
        let mut peer =
            Peer { column, directory: directory.to_owned(), storage, servers, mount: None };
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

    /// Mounts again with an empty local cache.
    pub fn begin_cold(&mut self, programs: &Programs) -> Outcome<()> {
        self.umount()?;
        put_aside(&self.cache())?;
        fs::create_dir(self.cache())?;
        if let Servers::ZeroFs(_) = self.servers {
            // Its server holds the cache.
            self.servers = Servers::None;
            self.servers = Servers::start(self.column, programs, &self.directory, &self.storage)?;
        }
        self.mount(programs)
    }

    /// Stops its processes (SIGSTOP), so that its background work does not disturb the measurement
    /// of other places.
    pub fn halt(&self) -> Outcome<()> {
        self.signal(libc::SIGSTOP)
    }

    /// Continues its processes; returns when it accepts writes.
    pub fn go_on(&self) -> Outcome<()> {
        self.signal(libc::SIGCONT)?;
        let trial = self.point().join("trial");
        let tried = || {
            fs::write(&trial, "of a cluster all have to find each other")
                .and_then(|()| fs::remove_file(&trial))
        };
        wait(|| Ok(tried().is_ok()), "it does not go on")
    }

    fn signal(&self, signal: libc::c_int) -> Outcome<()> {
        self.servers
            .processes()
            .into_iter()
            .chain(&self.mount)
            .try_for_each(|process| tool::signal_group(process.id(), signal))
    }

    /// Waits until the bucket has everything.
    pub fn settle(&self) -> Outcome<()> {
        let notes = self.cache().join("vfsMeta");
        match self.column {
            Column::Rclone => wait(|| Ok(!any_dirty(&notes)?), "rclone does not send what it has"),
            // Syncs the whole tree.
            Column::GeeseFs => Ok(fs::File::open(self.point())?.sync_all()?),
            Column::ZeroFs => {
                // Syncs the whole volume.
                let last = self.point().join("settles");
                fs::File::create(&last)?.sync_all()?;
                Ok(fs::remove_file(&last)?)
            }
            _ => Ok(()),
        }
    }

    fn mount(&mut self, programs: &Programs) -> Outcome<()> {
        let (began, point) = (Instant::now(), self.point());
        while !is_mounted(&point)? {
            let ended = self.mount.as_mut().map(Child::try_wait).transpose()?.flatten().is_some();
            // Servers refuse requests for a while after their start.
            let may_start = self.mount.is_none() || !self.servers.processes().is_empty();
            if ended {
                self.mount = None;
            }
            let running = self.mount.is_some();
            if began.elapsed() > PATIENCE || !(running || may_start) {
                return Err(format!("it does not mount; {}", self.said()).into());
            }
            if !running {
                let log = fs::OpenOptions::new().create(true).append(true).open(self.log())?;
                let mut command = self.mounting(programs)?;
                command
                    .envs(self.storage.environment.iter().cloned())
                    .process_group(0)
                    .stdout(log.try_clone()?)
                    .stderr(log);
                self.mount = Some(command.spawn()?);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn umount(&mut self) -> Outcome<()> {
        let point = self.point();
        let unmounted = || {
            let mut umount = Command::new("umount");
            umount.arg(&point).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
            Ok(!is_mounted(&point)?)
        };
        wait(unmounted, "it does not unmount")?;
        if self.column == Column::ZeroFs {
            // Its process does not end on unmount.
            self.mount.iter().try_for_each(|process| tool::signal(process.id(), libc::SIGTERM))?;
        }
        let mount = &mut self.mount;
        wait(
            || Ok(mount.as_mut().map(Child::try_wait).transpose()? != Some(None)),
            "its process does not end",
        )?;
        self.mount = None;
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The last line of its output.
    fn said(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().last().unwrap_or("it says nothing").to_owned()
    }
}

impl Drop for Peer {
    /// Best effort: this also runs after a failure.
    fn drop(&mut self) {
        self.signal(libc::SIGCONT).ok();
        if let Some(mut mount) = self.mount.take() {
            Command::new("umount")
                .arg("--lazy")
                .arg(self.point())
                .stderr(Stdio::null())
                .status()
                .ok();
            tool::signal_group(mount.id(), libc::SIGKILL).ok();
            mount.wait().ok();
        }
    }
}

/// Reads rclone's cache metadata: true if a file is not uploaded.
fn any_dirty(notes: &Path) -> Outcome<bool> {
    if !notes.is_dir() {
        return Ok(false);
    }
    for entry in fs::read_dir(notes)? {
        let path = entry?.path();
        let dirty = match path.is_dir() {
            true => any_dirty(&path)?,
            // A file can be removed between readdir and read.
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
    fn a_note_anywhere_says_that_something_is_not_sent() {
        let root = Scratch::new("notes").unwrap();
        let deep = root.join("a/b");
        fs::create_dir_all(&deep).unwrap();
        let note = |dirty: bool| {
            fs::write(deep.join("file"), format!("{{\n\t\"Dirty\": {dirty}\n}}")).unwrap()
        };
        note(true);
        assert!(any_dirty(&root).unwrap());
        note(false);
        assert!(!any_dirty(&root).unwrap() && !any_dirty(&root.join("none")).unwrap());
    }
}
