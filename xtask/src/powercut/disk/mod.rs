//! A disk that loses power: a tree of files that records which bytes and names were forced.
//!
//! Each inode's bytes are in one file of a host directory; names are kept in memory. Forced changes
//! survive; for all others, the seed decides per sector which ones a power cut leaves, within
//! everything that POSIX allows a file system on a volatile cache. Modes and times always survive.

mod bytes;
mod fate;
mod names;
#[cfg(test)]
mod tests;

use crate::rng::Rng;
use bytes::Cached;
use fate::Fate;
use names::Names;
pub use names::{Id, Key};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The unit that a device keeps or loses as a whole.
pub const SECTOR_BYTES: u64 = 512;

pub const ROOT: Id = 1;

pub struct Disk {
    /// A file for each inode.
    dir: PathBuf,
    names: Names,
    nodes: BTreeMap<Id, Node>,
    last: Id,
    /// Changes so far.
    time: u64,
}

enum Node {
    Dir { mode: u16 },
    File { bytes: Cached, mode: u16 },
}

/// Unforced changes at a power cut, and losses.
#[derive(Clone, Copy, Default, Debug)]
pub struct Lost {
    /// Unforced changes of bytes and lengths.
    pub writes: u64,
    /// Sectors that differ from their last change.
    pub sectors: u64,
    pub lengths: u64,
    /// Unforced changes of names.
    pub names: u64,
    pub names_lost: u64,
}

impl std::ops::AddAssign for Lost {
    fn add_assign(&mut self, more: Lost) {
        self.writes += more.writes;
        self.sectors += more.sectors;
        self.lengths += more.lengths;
        self.names += more.names;
        self.names_lost += more.names_lost;
    }
}

/// Attributes for stat(2).
pub enum Stat {
    Dir { mode: u16 },
    File { mode: u16, metadata: fs::Metadata },
}

impl Disk {
    /// An empty disk, in a directory that does not exist yet.
    pub fn new(dir: &Path) -> io::Result<Disk> {
        fs::create_dir(dir)?;
        let nodes = BTreeMap::from([(ROOT, Node::Dir { mode: 0o755 })]);
        Ok(Disk { dir: dir.to_owned(), names: Names::default(), nodes, last: ROOT, time: 0 })
    }

    pub fn look_up(&self, dir: Id, name: &OsStr) -> io::Result<Id> {
        self.names.get(dir, name).ok_or_else(|| errno(libc::ENOENT))
    }

    pub fn list(&self, dir: Id) -> Vec<(OsString, Id)> {
        self.names.list(dir)
    }

    pub fn stat(&self, id: Id) -> io::Result<Stat> {
        match self.node(id)? {
            Node::Dir { mode } => Ok(Stat::Dir { mode: *mode }),
            Node::File { bytes, mode } => {
                Ok(Stat::File { mode: *mode, metadata: bytes.file().metadata()? })
            }
        }
    }

    pub fn make_dir(&mut self, dir: Id, name: &OsStr, mode: u16) -> io::Result<Id> {
        self.make(dir, name, |_| Ok(Node::Dir { mode }))
    }

    pub fn make_file(&mut self, dir: Id, name: &OsStr, mode: u16) -> io::Result<Id> {
        self.make(dir, name, |path| {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
            Ok(Node::File { bytes: Cached::new(file), mode })
        })
    }

    fn make(
        &mut self,
        dir: Id,
        name: &OsStr,
        node: impl FnOnce(PathBuf) -> io::Result<Node>,
    ) -> io::Result<Id> {
        if self.names.get(dir, name).is_some() {
            return Err(errno(libc::EEXIST));
        }
        let id = self.last + 1;
        self.nodes.insert(id, node(self.path(id))?);
        self.last = id;
        let time = self.tick();
        self.names.change(time, vec![((dir, name.to_owned()), Some(id))]);
        Ok(id)
    }

    /// An open file stays usable, and its name may reappear after a power cut.
    pub fn remove_file(&mut self, dir: Id, name: &OsStr) -> io::Result<()> {
        if self.is_dir(self.look_up(dir, name)?)? {
            return Err(errno(libc::EISDIR));
        }
        self.remove(dir, name);
        Ok(())
    }

    pub fn remove_dir(&mut self, dir: Id, name: &OsStr) -> io::Result<()> {
        let id = self.look_up(dir, name)?;
        if !self.is_dir(id)? {
            return Err(errno(libc::ENOTDIR));
        }
        if !self.names.list(id).is_empty() {
            return Err(errno(libc::ENOTEMPTY));
        }
        self.remove(dir, name);
        Ok(())
    }

    fn remove(&mut self, dir: Id, name: &OsStr) {
        let time = self.tick();
        self.names.change(time, vec![((dir, name.to_owned()), None)]);
    }

    /// Files only, also over existing files.
    pub fn rename(&mut self, from: Key, to: Key) -> io::Result<()> {
        let id = self.look_up(from.0, &from.1)?;
        if self.is_dir(id)? {
            return Err(errno(libc::EOPNOTSUPP));
        }
        if let Some(replaced) = self.names.get(to.0, &to.1)
            && self.is_dir(replaced)?
        {
            return Err(errno(libc::EISDIR));
        }
        if from != to {
            let time = self.tick();
            self.names.change(time, vec![(from, None), (to, Some(id))]);
        }
        Ok(())
    }

    pub fn set_mode(&mut self, id: Id, new: u16) -> io::Result<()> {
        match self.node_mut(id)? {
            Node::Dir { mode } | Node::File { mode, .. } => *mode = new,
        }
        Ok(())
    }

    pub fn read(&self, id: Id, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let Node::File { bytes, .. } = self.node(id)? else { return Err(errno(libc::EISDIR)) };
        let mut data = vec![0; len];
        let mut have = 0;
        while have < len {
            match bytes.file().read_at(&mut data[have..], offset + have as u64)? {
                0 => break,
                read => have += read,
            }
        }
        data.truncate(have);
        Ok(data)
    }

    pub fn write(&mut self, id: Id, offset: u64, data: &[u8]) -> io::Result<()> {
        let time = self.tick();
        self.bytes(id)?.write(time, offset, data)
    }

    pub fn set_len(&mut self, id: Id, len: u64) -> io::Result<()> {
        let time = self.tick();
        self.bytes(id)?.set_len(time, len)
    }

    pub fn punch(&mut self, id: Id, offset: u64, len: u64) -> io::Result<()> {
        let time = self.tick();
        self.bytes(id)?.punch(time, offset, len)
    }

    pub fn reserve(&mut self, id: Id, offset: u64, len: u64) -> io::Result<()> {
        let time = self.tick();
        self.bytes(id)?.reserve(time, offset, len)
    }

    /// fsync(2): forces the bytes and the length of a file, or the names in a directory, and no
    /// name of the forced inode itself.
    pub fn force(&mut self, id: Id) -> io::Result<()> {
        match self.node_mut(id)? {
            Node::Dir { .. } => self.names.force(id),
            Node::File { bytes, .. } => bytes.force(),
        }
        Ok(())
    }

    /// Cuts the power. The survivors count as forced.
    pub fn cut(&mut self, seed: u64) -> io::Result<Lost> {
        self.settle(&mut Fate::draw(Rng(seed), self.time))
    }

    fn settle(&mut self, fate: &mut Fate) -> io::Result<Lost> {
        let mut lost = Lost::default();
        for node in self.nodes.values_mut() {
            if let Node::File { bytes, .. } = node {
                lost += bytes.settle(fate)?;
            }
        }
        self.names.settle(fate, &mut lost);
        let reached = self.names.reached();
        let gone: Vec<Id> = self.nodes.keys().copied().filter(|id| !reached.contains(id)).collect();
        for id in gone {
            if let Some(Node::File { .. }) = self.nodes.remove(&id) {
                fs::remove_file(self.path(id))?;
            }
        }
        Ok(lost)
    }

    /// Copies the files under their names into `tree`, for inspection.
    pub fn lay_out(&self, tree: &Path) -> io::Result<()> {
        self.lay_out_below(ROOT, tree)
    }

    fn lay_out_below(&self, dir: Id, at: &Path) -> io::Result<()> {
        fs::create_dir_all(at)?;
        for (name, id) in self.names.list(dir) {
            match self.node(id)? {
                Node::Dir { .. } => self.lay_out_below(id, &at.join(name))?,
                Node::File { .. } => fs::hard_link(self.path(id), at.join(name))?,
            }
        }
        Ok(())
    }

    /// Space of the underlying file system.
    pub fn space(&self) -> io::Result<libc::statvfs> {
        let dir = File::open(&self.dir)?;
        // SAFETY: statvfs is plain data, for which zeros are a value.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and `stat` valid to write to.
        match unsafe { libc::fstatvfs(dir.as_raw_fd(), &mut stat) } {
            0 => Ok(stat),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn path(&self, id: Id) -> PathBuf {
        self.dir.join(id.to_string())
    }

    fn node(&self, id: Id) -> io::Result<&Node> {
        self.nodes.get(&id).ok_or_else(|| errno(libc::ESTALE))
    }

    fn node_mut(&mut self, id: Id) -> io::Result<&mut Node> {
        self.nodes.get_mut(&id).ok_or_else(|| errno(libc::ESTALE))
    }

    fn bytes(&mut self, id: Id) -> io::Result<&mut Cached> {
        match self.node_mut(id)? {
            Node::File { bytes, .. } => Ok(bytes),
            Node::Dir { .. } => Err(errno(libc::EISDIR)),
        }
    }

    fn is_dir(&self, id: Id) -> io::Result<bool> {
        Ok(matches!(self.node(id)?, Node::Dir { .. }))
    }
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}
