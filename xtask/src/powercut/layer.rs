//! A mounted [`Disk`] for real processes, which can lose power while they use it.

use super::disk::{Disk, Id, Lost, Stat};
use crate::Outcome;
use bytes::Bytes;
use ebb_fuse::*;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::oneshot;

/// A mounted disk.
pub struct Layer {
    point: PathBuf,
    power: Arc<Mutex<Power>>,
    serving: Option<Serving>,
}

struct Power {
    disk: Disk,
    /// Without power, no request gets an answer.
    off: bool,
}

struct Serving {
    end: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), String>>,
}

impl Layer {
    /// `platter` does not exist yet; `point` is a directory.
    pub fn new(platter: &Path, point: &Path) -> Outcome<Layer> {
        let power = Arc::new(Mutex::new(Power { disk: Disk::new(platter)?, off: false }));
        let mut layer = Layer { point: point.to_owned(), power, serving: None };
        layer.switch_on()?;
        Ok(layer)
    }

    /// Cuts the power: from now on no request has an effect or an answer.
    pub fn switch_off(&self) {
        self.lock().off = true;
    }

    /// Unmounts. Pending requests fail; the processes that wait for them must be dead already,
    /// since a killed process does not end before its request does.
    pub fn take_away(&mut self) -> Outcome<()> {
        let Some(Serving { end, thread }) = self.serving.take() else { return Ok(()) };
        // It may have ended by itself; the reason is returned below.
        end.send(()).ok();
        Ok(thread.join().map_err(|_| "the layer panicked")??)
    }

    /// Drops what was not forced, and mounts the rest.
    pub fn come_back(&mut self, seed: u64) -> Outcome<Lost> {
        let lost = self.lock().disk.cut(seed)?;
        self.lock().off = false;
        self.switch_on()?;
        Ok(lost)
    }

    /// Copies the files to a plain directory for inspection.
    pub fn lay_out(&self, tree: &Path) -> io::Result<()> {
        self.lock().disk.lay_out(tree)
    }

    fn switch_on(&mut self) -> Outcome<()> {
        let (end, ended) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let (point, power) = (self.point.clone(), self.power.clone());
        let thread = thread::Builder::new()
            .name("layer".into())
            .spawn(move || serve(&point, power, tell, ended))?;
        if told.recv().is_err() {
            thread.join().map_err(|_| "the layer panicked")??;
            return Err("the layer ended at once".into());
        }
        self.serving = Some(Serving { end, thread });
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Power> {
        lock(&self.power)
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        // Errors have been reported already.
        self.take_away().ok();
    }
}

fn lock(power: &Mutex<Power>) -> MutexGuard<'_, Power> {
    power.lock().expect("nobody panics who has the disk")
}

/// Serves until it is told to end; signals `tell` when the mount is usable.
fn serve(
    point: &Path,
    power: Arc<Mutex<Power>>,
    tell: mpsc::Sender<()>,
    ended: oneshot::Receiver<()>,
) -> Result<(), String> {
    let options = MountOptions { source: "powercut".into(), ..MountOptions::default() };
    let mount = Mount::new(point, &options).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let session = Session::start(mount).await.map_err(|error| error.to_string())?;
        let fs = Service { power, listed: RefCell::default(), last: RefCell::default() };
        tell.send(()).map_err(|_| "nobody waits for the layer")?;
        tokio::select! {
            served = session.serve(&fs, pending(), Duration::ZERO) => served.map(drop).map_err(|error| error.to_string()),
            // Dropping pending requests ends the connection.
            _ = ended => Ok(()),
        }
    })
}

struct Service {
    power: Arc<Mutex<Power>>,
    /// Contents of open directories at the time of their open.
    listed: RefCell<BTreeMap<Handle, Vec<(OsString, Id)>>>,
    last: RefCell<Handle>,
}

/// No other process changes anything.
const TTL: Duration = Duration::from_secs(3600);

impl Service {
    /// Runs `act` while there is power, otherwise never answers.
    async fn with<T>(&self, act: impl FnOnce(&mut Disk) -> io::Result<T>) -> Result<T, Errno> {
        let done = {
            let mut power = lock(&self.power);
            if power.off { None } else { Some(act(&mut power.disk)) }
        };
        match done {
            Some(result) => {
                result.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
            }
            None => pending().await,
        }
    }

    async fn entry(
        &self,
        act: impl FnOnce(&mut Disk) -> io::Result<Id>,
    ) -> Result<EntryReply, Errno> {
        self.with(|disk| act(disk).and_then(|id| entry(disk, id))).await
    }
}

impl Filesystem for Service {
    async fn lookup(&self, _: &Context, parent: Ino, name: Name) -> Result<Lookup, Errno> {
        match self.entry(|disk| disk.look_up(parent.0, os(&name))).await {
            Ok(entry) => Ok(Lookup::Found(entry)),
            Err(Errno::NOT_FOUND) => Ok(Lookup::Absent { ttl: TTL }),
            Err(error) => Err(error),
        }
    }

    fn forget(&self, _: Ino, _: u64) {}

    async fn getattr(&self, _: &Context, ino: Ino, _: Option<Handle>) -> Result<AttrReply, Errno> {
        self.with(|disk| Ok(AttrReply { attr: attr(disk, ino.0)?, ttl: TTL })).await
    }

    async fn setattr(
        &self,
        _: &Context,
        ino: Ino,
        set: SetAttr,
        _: Option<Handle>,
    ) -> Result<AttrReply, Errno> {
        self.with(|disk| {
            if let Some(len) = set.size_bytes {
                disk.set_len(ino.0, len)?;
            }
            if let Some(mode) = set.mode {
                disk.set_mode(ino.0, mode)?;
            }
            Ok(AttrReply { attr: attr(disk, ino.0)?, ttl: TTL })
        })
        .await
    }

    async fn readlink(&self, _: &Context, _: Ino) -> Result<Bytes, Errno> {
        Err(Errno::INVALID)
    }

    async fn make(
        &self,
        cx: &Context,
        parent: Ino,
        name: Name,
        mode: u16,
        what: Make,
    ) -> Result<EntryReply, Errno> {
        let mode = mode & !cx.umask;
        match what {
            Make::Regular => self.entry(|disk| disk.make_file(parent.0, os(&name), mode)).await,
            Make::Directory => self.entry(|disk| disk.make_dir(parent.0, os(&name), mode)).await,
            Make::Symlink { .. } | Make::Special { .. } => Err(FsError::NotPermitted.into()),
        }
    }

    async fn unlink(&self, _: &Context, parent: Ino, name: Name) -> Result<(), Errno> {
        self.with(|disk| disk.remove_file(parent.0, os(&name))).await
    }

    async fn rmdir(&self, _: &Context, parent: Ino, name: Name) -> Result<(), Errno> {
        self.with(|disk| disk.remove_dir(parent.0, os(&name))).await
    }

    async fn rename(
        &self,
        _: &Context,
        from: Ino,
        name: Name,
        to: Ino,
        new_name: Name,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        match mode {
            RenameMode::Replace => {
                self.with(|disk| {
                    disk.rename((from.0, os(&name).into()), (to.0, os(&new_name).into()))
                })
                .await
            }
            RenameMode::KeepTarget | RenameMode::Exchange | RenameMode::Whiteout { .. } => {
                Err(Errno::INVALID)
            }
        }
    }

    async fn link(&self, _: &Context, _: Ino, _: Ino, _: Name) -> Result<EntryReply, Errno> {
        Err(FsError::NotPermitted.into())
    }

    async fn open(&self, _: &Context, _: Ino, _: OpenFlags) -> Result<OpenReply, Errno> {
        Ok(OpenReply { handle: Handle(0), caching: Caching::Keep })
    }

    async fn create(
        &self,
        cx: &Context,
        parent: Ino,
        name: Name,
        mode: u16,
        _: OpenFlags,
    ) -> Result<(EntryReply, OpenReply), Errno> {
        let entry =
            self.entry(|disk| disk.make_file(parent.0, os(&name), mode & !cx.umask)).await?;
        Ok((entry, OpenReply { handle: Handle(0), caching: Caching::Keep }))
    }

    async fn read(
        &self,
        _: &Context,
        ino: Ino,
        _: Handle,
        offset: u64,
        len_bytes: u32,
        _: bool,
    ) -> Result<Bytes, Errno> {
        Ok(self.with(|disk| disk.read(ino.0, offset, len_bytes as usize)).await?.into())
    }

    async fn write(
        &self,
        _: &Context,
        ino: Ino,
        _: Handle,
        offset: u64,
        data: Bytes,
        mode: WriteMode,
    ) -> Result<u32, Errno> {
        self.with(|disk| {
            let offset = match (mode.append, disk.stat(ino.0)?) {
                (true, Stat::File { metadata, .. }) => metadata.len(),
                _ => offset,
            };
            disk.write(ino.0, offset, &data)?;
            Ok(data.len() as u32)
        })
        .await
    }

    async fn flush(&self, _: &Context, _: Ino, _: Handle, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    async fn release(&self, _: &Context, _: Ino, _: Handle, _: OpenFlags) -> Result<(), Errno> {
        Ok(())
    }

    async fn fsync(&self, _: &Context, ino: Ino, _: Handle, _: bool) -> Result<(), Errno> {
        self.with(|disk| disk.force(ino.0)).await
    }

    async fn statfs(&self, _: &Context, _: Ino) -> Result<VolumeStat, Errno> {
        self.with(|disk| {
            let stat = disk.space()?;
            let [total_bytes, free_bytes, available_bytes] =
                [stat.f_blocks, stat.f_bfree, stat.f_bavail].map(|blocks| blocks * stat.f_frsize);
            Ok(VolumeStat {
                total_bytes,
                free_bytes,
                available_bytes,
                files: stat.f_files,
                free_files: stat.f_ffree,
            })
        })
        .await
    }

    async fn setxattr(
        &self,
        _: &Context,
        _: Ino,
        _: Bytes,
        _: Bytes,
        _: Option<XattrMode>,
        _: bool,
    ) -> Result<(), Errno> {
        Err(Errno::NOT_SUPPORTED)
    }

    async fn getxattr(&self, _: &Context, _: Ino, _: Bytes) -> Result<Bytes, Errno> {
        Err(Errno::NOT_SUPPORTED)
    }

    async fn listxattr(&self, _: &Context, _: Ino) -> Result<Vec<Bytes>, Errno> {
        Ok(Vec::new())
    }

    async fn removexattr(&self, _: &Context, _: Ino, _: Bytes) -> Result<(), Errno> {
        Err(Errno::NOT_SUPPORTED)
    }

    async fn opendir(&self, _: &Context, ino: Ino, _: OpenFlags) -> Result<OpenReply, Errno> {
        let listed = self.with(|disk| Ok(disk.list(ino.0))).await?;
        let mut last = self.last.borrow_mut();
        last.0 += 1;
        self.listed.borrow_mut().insert(*last, listed);
        Ok(OpenReply { handle: *last, caching: Caching::Fresh })
    }

    async fn readdir(
        &self,
        _: &Context,
        _: Ino,
        handle: Handle,
        after: Cookie,
        entries: &mut DirBuffer,
    ) -> Result<(), Errno> {
        let listed = self.listed.borrow().get(&handle).cloned().ok_or(Errno::BAD_HANDLE)?;
        for (place, (name, id)) in listed.iter().enumerate().skip(after.0 as usize) {
            let name = Name::new(name.as_bytes())?;
            match self.with(|disk| entry(disk, *id)).await {
                Ok(entry) => {
                    if entries.push(&name, Cookie(place as u64 + 1), &entry) == Pushed::Full {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn releasedir(&self, _: &Context, _: Ino, handle: Handle) -> Result<(), Errno> {
        self.listed.borrow_mut().remove(&handle);
        Ok(())
    }

    async fn fsyncdir(&self, _: &Context, ino: Ino, _: Handle, _: bool) -> Result<(), Errno> {
        self.with(|disk| disk.force(ino.0)).await
    }

    async fn access(&self, _: &Context, _: Ino, _: Access) -> Result<(), Errno> {
        Ok(())
    }

    async fn fallocate(
        &self,
        _: &Context,
        ino: Ino,
        _: Handle,
        offset: u64,
        len_bytes: u64,
        mode: i32,
    ) -> Result<(), Errno> {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match mode {
            0 => self.with(|disk| disk.reserve(ino.0, offset, len_bytes)).await,
            PUNCH => self.with(|disk| disk.punch(ino.0, offset, len_bytes)).await,
            _ => Err(Errno::NOT_SUPPORTED),
        }
    }
}

fn os(name: &Name) -> &OsStr {
    OsStr::from_bytes(name.as_bytes())
}

fn entry(disk: &Disk, id: Id) -> io::Result<EntryReply> {
    Ok(EntryReply { attr: attr(disk, id)?, entry_ttl: TTL, attr_ttl: TTL })
}

fn attr(disk: &Disk, id: Id) -> io::Result<Attr> {
    let time = Time::default();
    let dir = Attr {
        ino: Ino(id),
        kind: FileKind::Directory,
        mode: 0,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes: 0,
        hole_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: Version::default(),
    };
    Ok(match disk.stat(id)? {
        Stat::Dir { mode } => Attr { mode, ..dir },
        Stat::File { mode, metadata } => {
            let mtime = Time { secs: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 };
            let ctime = Time { secs: metadata.ctime(), nanos: metadata.ctime_nsec() as u32 };
            Attr {
                kind: FileKind::Regular,
                mode,
                nlink: 1,
                size_bytes: metadata.len(),
                atime: mtime,
                mtime,
                ctime,
                btime: ctime,
                ..dir
            }
        }
    })
}
