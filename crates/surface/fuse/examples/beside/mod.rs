//! A file system of which the kernel does all it can by itself: every file is handed to it
//! (`ebb_fuse::Passthrough`). Knows one directory and the regular files in it.

use bytes::Bytes;
use ebb_fuse::*;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory beside which it is mounted.
pub struct Beside {
    directory: PathBuf,
    passthrough: Passthrough,
    files: RefCell<Files>,
}

/// Files that have been looked up. They stay known to the end.
#[derive(Default)]
struct Files {
    /// Not the numbers of the file system below, which reuses those of removed files.
    names: BTreeMap<PathBuf, Ino>,
    known: BTreeMap<Ino, KernelReferences>,
}

struct KernelReferences {
    path: PathBuf,
    open: Option<Open>,
}

struct Open {
    file: File,
    registered: Registered,
    count: usize,
}

const TTL: Duration = Duration::from_secs(60);

impl Beside {
    pub fn new(directory: PathBuf, passthrough: Passthrough) -> Beside {
        Beside { directory, passthrough, files: RefCell::default() }
    }

    fn path(&self, parent: Ino, name: &Name) -> Result<PathBuf, Errno> {
        match parent {
            Ino::ROOT => Ok(self.directory.join(std::ffi::OsStr::from_bytes(name.as_bytes()))),
            _ => Err(FsError::NotDirectory.into()),
        }
    }

    fn path_of(&self, ino: Ino) -> Result<PathBuf, Errno> {
        match ino {
            Ino::ROOT => Ok(self.directory.clone()),
            _ => self
                .files
                .borrow()
                .known
                .get(&ino)
                .map(|known| known.path.clone())
                .ok_or(FsError::Stale.into()),
        }
    }

    fn entry(&self, path: &Path) -> Result<EntryReply, Errno> {
        let meta = fs::symlink_metadata(path).map_err(errno)?;
        let mut files = self.files.borrow_mut();
        let next = Ino(Ino::ROOT.0 + 1 + files.known.len() as u64);
        let ino = *files.names.entry(path.to_owned()).or_insert(next);
        files
            .known
            .entry(ino)
            .or_insert_with(|| KernelReferences { path: path.to_owned(), open: None });
        let attr = attr(ino, &meta);
        Ok(EntryReply { attr, entry_ttl: TTL, attr_ttl: TTL })
    }

    /// A read-only descriptor is enough: the kernel opens the file anew, with the flags of each
    /// open.
    fn opened(&self, ino: Ino) -> Result<OpenReply, Errno> {
        let mut files = self.files.borrow_mut();
        let known = files.known.get_mut(&ino).ok_or(FsError::Stale)?;
        if known.open.is_none() {
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&known.path)
                .map_err(errno)?;
            let registered = self.passthrough.register(file.as_fd()).map_err(errno)?;
            known.open = Some(Open { file, registered, count: 0 });
        }
        let open = known.open.as_mut().ok_or(Errno::IO)?;
        open.count += 1;
        Ok(OpenReply { handle: Handle(0), caching: Caching::Passthrough(open.registered.id()) })
    }

    fn with_open<T>(&self, ino: Ino, act: impl FnOnce(&File) -> io::Result<T>) -> Result<T, Errno> {
        let files = self.files.borrow();
        let open =
            files.known.get(&ino).and_then(|known| known.open.as_ref()).ok_or(FsError::Stale)?;
        act(&open.file).map_err(errno)
    }
}

impl Filesystem for Beside {
    async fn lookup(&self, _: &Context, parent: Ino, name: Name) -> Result<Lookup, Errno> {
        match self.entry(&self.path(parent, &name)?) {
            Ok(entry) => Ok(Lookup::Found(entry)),
            Err(Errno::NOT_FOUND) => Ok(Lookup::Absent { ttl: TTL }),
            Err(error) => Err(error),
        }
    }

    fn forget(&self, _: Ino, _: u64) {}

    async fn getattr(&self, _: &Context, ino: Ino, _: Option<Handle>) -> Result<AttrReply, Errno> {
        let meta = fs::symlink_metadata(self.path_of(ino)?).map_err(errno)?;
        Ok(AttrReply { attr: attr(ino, &meta), ttl: TTL })
    }

    async fn setattr(
        &self,
        cx: &Context,
        ino: Ino,
        set: SetAttr,
        handle: Option<Handle>,
    ) -> Result<AttrReply, Errno> {
        if let Some(len) = set.size_bytes {
            let file = OpenOptions::new().write(true).open(self.path_of(ino)?).map_err(errno)?;
            file.set_len(len).map_err(errno)?;
        }
        self.getattr(cx, ino, handle).await
    }

    async fn readlink(&self, _: &Context, _: Ino) -> Result<Bytes, Errno> {
        Err(Errno::NOT_SUPPORTED)
    }

    async fn make(
        &self,
        _: &Context,
        _: Ino,
        _: Name,
        _: u16,
        _: Make,
    ) -> Result<EntryReply, Errno> {
        Err(Errno::NOT_SUPPORTED)
    }

    async fn unlink(&self, _: &Context, parent: Ino, name: Name) -> Result<(), Errno> {
        let path = self.path(parent, &name)?;
        fs::remove_file(&path).map_err(errno)?;
        self.files.borrow_mut().names.remove(&path);
        Ok(())
    }

    async fn rmdir(&self, _: &Context, _: Ino, _: Name) -> Result<(), Errno> {
        Err(Errno::NOT_SUPPORTED)
    }

    async fn rename(
        &self,
        _: &Context,
        _: Ino,
        _: Name,
        _: Ino,
        _: Name,
        _: RenameMode,
    ) -> Result<(), Errno> {
        Err(Errno::NOT_SUPPORTED)
    }

    async fn link(&self, _: &Context, _: Ino, _: Ino, _: Name) -> Result<EntryReply, Errno> {
        Err(Errno::NOT_SUPPORTED)
    }

    async fn open(&self, _: &Context, ino: Ino, _: OpenFlags) -> Result<OpenReply, Errno> {
        self.opened(ino)
    }

    async fn create(
        &self,
        _: &Context,
        parent: Ino,
        name: Name,
        _: u16,
        flags: OpenFlags,
    ) -> Result<(EntryReply, OpenReply), Errno> {
        let path = self.path(parent, &name)?;
        let mut how = OpenOptions::new();
        how.write(true).create(true).create_new(flags.excludes()).truncate(false);
        how.open(&path).map_err(errno)?;
        let entry = self.entry(&path)?;
        let opened = self.opened(entry.attr.ino)?;
        Ok((entry, opened))
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
        let mut bytes = vec![0; len_bytes as usize];
        let len = self.with_open(ino, |file| file.read_at(&mut bytes, offset))?;
        bytes.truncate(len);
        Ok(bytes.into())
    }

    async fn write(
        &self,
        _: &Context,
        _: Ino,
        _: Handle,
        _: u64,
        _: Bytes,
        _: WriteMode,
    ) -> Result<u32, Errno> {
        // Writes go to the file itself.
        Err(Errno::NOT_SUPPORTED)
    }

    async fn flush(&self, _: &Context, _: Ino, _: Handle, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    async fn release(&self, _: &Context, ino: Ino, _: Handle, _: OpenFlags) -> Result<(), Errno> {
        if let Some(known) = self.files.borrow_mut().known.get_mut(&ino)
            && let Some(open) = &mut known.open
        {
            open.count -= 1;
            if open.count == 0 {
                known.open = None;
            }
        }
        Ok(())
    }

    async fn fsync(&self, _: &Context, ino: Ino, _: Handle, data_only: bool) -> Result<(), Errno> {
        self.with_open(ino, |file| if data_only { file.sync_data() } else { file.sync_all() })
    }

    async fn statfs(&self, _: &Context, _: Ino) -> Result<VolumeStat, Errno> {
        Ok(VolumeStat {
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            available_bytes: 1 << 39,
            files: 1 << 20,
            free_files: 1 << 19,
        })
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
        Err(FsError::NoAttribute.into())
    }

    async fn listxattr(&self, _: &Context, _: Ino) -> Result<Vec<Bytes>, Errno> {
        Ok(Vec::new())
    }

    async fn removexattr(&self, _: &Context, _: Ino, _: Bytes) -> Result<(), Errno> {
        Err(FsError::NoAttribute.into())
    }

    async fn opendir(&self, _: &Context, _: Ino, _: OpenFlags) -> Result<OpenReply, Errno> {
        Ok(OpenReply::default())
    }

    async fn readdir(
        &self,
        _: &Context,
        _: Ino,
        _: Handle,
        after: Cookie,
        entries: &mut DirBuffer,
    ) -> Result<(), Errno> {
        let mut listed: Vec<_> = fs::read_dir(&self.directory).map_err(errno)?.flatten().collect();
        listed.sort_by_key(|entry| entry.file_name());
        for (place, listed) in listed.iter().enumerate().skip(after.0 as usize) {
            let Ok(name) = Name::new(listed.file_name().as_bytes()) else { continue };
            let Ok(entry) = self.entry(&listed.path()) else { continue };
            if entries.push(&name, Cookie(place as u64 + 1), &entry) == Pushed::Full {
                break;
            }
        }
        Ok(())
    }

    async fn releasedir(&self, _: &Context, _: Ino, _: Handle) -> Result<(), Errno> {
        Ok(())
    }

    async fn fsyncdir(&self, _: &Context, _: Ino, _: Handle, _: bool) -> Result<(), Errno> {
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(errno)
    }

    async fn access(&self, _: &Context, _: Ino, _: Access) -> Result<(), Errno> {
        Ok(())
    }
}

fn attr(ino: Ino, meta: &Metadata) -> Attr {
    let time = |secs, nanos: i64| Time { secs, nanos: nanos as u32 };
    let mtime = time(meta.mtime(), meta.mtime_nsec());
    Attr {
        ino,
        kind: if meta.is_dir() { FileKind::Directory } else { FileKind::Regular },
        mode: (meta.mode() & 0o7777) as u16,
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: 0,
        size_bytes: meta.size(),
        hole_bytes: meta.size().saturating_sub(meta.blocks() * 512),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime,
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        btime: mtime,
        version: Version::default(),
    }
}

fn errno(error: io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::NotFound => Errno::NOT_FOUND,
        io::ErrorKind::AlreadyExists => FsError::Exists.into(),
        _ => Errno::IO,
    }
}
