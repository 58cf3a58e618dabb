//! The disk port over a local directory.

use crate::file::OsFile;
use ebb_ports::{Disk, DiskError, DiskFile, DiskSpace, OpenMode, PortFuture};
use std::cell::RefCell;
use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A data directory of this machine.
///
/// Measurements decided which calls run on the caller's thread and which on the blocking pool
/// (ext4, warm cache). A hop to the pool and back costs 26 µs. Opening a file costs 8 µs, creating
/// a file or a directory 35 to 38 µs, writing 4 KiB into the page cache 5 µs, reading it back 1 µs:
/// these run on the caller's thread. Calls that can wait for the device or free the blocks of a
/// large file (88 ms for 256 MiB) go to the pool: sync, remove, rename over, truncate, punch, list,
/// large writes, and reads of uncached bytes.
pub struct OsDisk {
    /// Absolute, so a later change of the working directory has no effect.
    root: PathBuf,
    boot_id: u128,
    /// Holds the flock(2) lock while it is open.
    lock: RefCell<Option<File>>,
}

impl OsDisk {
    /// Creates the directory with mode 0700 if it is missing and makes its name durable: otherwise
    /// a power cut could lose the directory with all bytes that were forced in it.
    pub fn open(data_dir: &Path) -> Result<OsDisk, DiskError> {
        let at = |error| failed(data_dir, error);
        make_durably(data_dir).map_err(at)?;
        let root = fs::canonicalize(data_dir).map_err(at)?;
        Ok(OsDisk { root, boot_id: read_boot_id()?, lock: RefCell::new(None) })
    }

    fn file_path(&self, path: &str) -> Result<PathBuf, DiskError> {
        let inside =
            !path.contains('\0') && path.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if inside {
            Ok(self.root.join(path))
        } else {
            Err(DiskError::Failed {
                path: path.into(),
                what: "not a path inside the data directory".into(),
            })
        }
    }

    /// The empty path is the data directory itself.
    fn dir_path(&self, path: &str) -> Result<PathBuf, DiskError> {
        if path.is_empty() { Ok(self.root.clone()) } else { self.file_path(path) }
    }

    fn lock_now(&self) -> Result<(), DiskError> {
        let path = self.root.join(LOCK_FILE);
        let at = |error| failed(&path, error);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        // On a read-only disk, inspection needs no write access.
        let is_only_read = opened.as_ref().is_err_and(is_read_only_disk);
        let mut file = if is_only_read { File::open(&path) } else { opened }.map_err(at)?;
        // SAFETY: flock takes no memory, and the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            return Err(if error.kind() == io::ErrorKind::WouldBlock {
                DiskError::InUse { owner: owner(&mut file) }
            } else {
                at(error)
            });
        }
        if is_replaced(&file, &path).map_err(at)? {
            return Err(DiskError::InUse { owner: owner(&mut file) });
        }
        if !is_only_read {
            file.set_len(0).map_err(at)?;
            writeln!(file, "{}", std::process::id()).map_err(at)?;
        }
        *self.lock.borrow_mut() = Some(file);
        Ok(())
    }
}

impl Disk for OsDisk {
    fn open(
        &self,
        path: &str,
        mode: OpenMode,
    ) -> PortFuture<'_, Result<Rc<dyn DiskFile>, DiskError>> {
        let path = self.file_path(path);
        Box::pin(async move { open_file(path?, mode) })
    }

    fn rename(&self, from: &str, to: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let paths = self.file_path(from).and_then(|from| Ok((from, self.file_path(to)?)));
        Box::pin(async {
            let (from, to) = paths?;
            blocking(from.clone(), move || fs::rename(&from, &to)).await
        })
    }

    fn remove(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let path = self.file_path(path);
        Box::pin(async {
            let path = path?;
            blocking(path.clone(), move || fs::remove_file(&path)).await
        })
    }

    fn create_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let path = self.file_path(path);
        Box::pin(async {
            let path = path?;
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(|error| failed(&path, error))
        })
    }

    fn list(&self, path: &str) -> PortFuture<'_, Result<Vec<String>, DiskError>> {
        let is_root = path.is_empty();
        let path = self.dir_path(path);
        Box::pin(async move {
            let path = path?;
            let mut names = blocking(path.clone(), move || names_in(&path)).await?;
            names.retain(|name| !(is_root && name == LOCK_FILE));
            names.sort();
            Ok(names)
        })
    }

    fn sync_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let path = self.dir_path(path);
        Box::pin(async {
            let path = path?;
            blocking(path.clone(), move || File::open(&path)?.sync_all()).await
        })
    }

    fn space(&self) -> PortFuture<'_, Result<DiskSpace, DiskError>> {
        Box::pin(async {
            let root = self.root.clone();
            blocking(root.clone(), move || space_of(&root)).await
        })
    }

    fn longest_file(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        Box::pin(async {
            let path = self.root.join(PROBE);
            blocking(path.clone(), move || longest_at(&path)).await
        })
    }

    fn lock(&self) -> Result<(), DiskError> {
        if self.lock.borrow().is_some() { Ok(()) } else { self.lock_now() }
    }

    fn boot_id(&self) -> u128 {
        self.boot_id
    }
}

/// Creates a directory and its missing parents, and forces each name before the next is created. So
/// after a crash at most the last existing name is not durable.
fn make_durably(dir: &Path) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    let there = missing.last().map_or(Some(&*dir), |first| first.parent());
    if let Some(parent) = there.and_then(Path::parent) {
        match sync_dir_now(parent) {
            // A user without read permission on the parent did not create the directory either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    for dir in missing.into_iter().rev() {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        dir.parent().map_or(Ok(()), sync_dir_now)?;
    }
    if dir.is_dir() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOTDIR)) }
}

/// The lock file was unlinked between open(2) and flock(2), with the data directory of a mount that
/// failed. Another process can lock the next file of that name.
fn is_replaced(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    let is_there = || fs::metadata(path).is_ok_and(|there| there.ino() == opened.ino());
    Ok(opened.nlink() == 0 && !is_there())
}

fn sync_dir_now(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// In the data directory, with the process id of its owner for operators. `list` hides it.
const LOCK_FILE: &str = "LOCK";

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Runs `work` on the blocking pool.
pub(crate) async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, DiskError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| failed(&path, error)),
        Err(stopped) => {
            Err(DiskError::Failed { path: path.display().to_string(), what: stopped.to_string() })
        }
    }
}

/// Maps an error of the operating system to the caller's remedy.
pub(crate) fn failed(path: &Path, error: io::Error) -> DiskError {
    let path = path.display().to_string();
    match error.raw_os_error() {
        Some(libc::ENOENT) => DiskError::NotFound { path },
        Some(libc::EEXIST) => DiskError::Exists { path },
        Some(libc::ENOSPC | libc::EDQUOT) => DiskError::NoSpace,
        // A write to a file of a read-only disk, which `open_file` opened for reading.
        Some(libc::EBADF) => {
            DiskError::Failed { path, what: io::Error::from_raw_os_error(libc::EROFS).to_string() }
        }
        _ => DiskError::Failed { path, what: error.to_string() },
    }
}

fn open_file(path: PathBuf, mode: OpenMode) -> Result<Rc<dyn DiskFile>, DiskError> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(mode == OpenMode::Create)
        .create_new(mode == OpenMode::CreateNew)
        .mode(0o600)
        .open(&path);
    // A read-only disk: open for reading; later writes fail.
    let opened = opened.or_else(|error| {
        if is_read_only_disk(&error) { File::open(&path).map_err(|_| error) } else { Err(error) }
    });
    match opened {
        Ok(file) => Ok(Rc::new(OsFile::new(path, file))),
        Err(error) => Err(failed(&path, error)),
    }
}

/// A file system that the kernel remounted read-only after an I/O error is one example.
fn is_read_only_disk(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

fn names_in(path: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries
        .map(|entry| {
            entry?.file_name().into_string().map_err(|name| {
                // ebb never creates such a name. Skipping it could hide that the directory belongs
                // to another program.
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("holds the foreign name {name:?}"),
                )
            })
        })
        .collect()
}

fn space_of(root: &Path) -> io::Result<DiskSpace> {
    let root = CString::new(root.as_os_str().as_bytes())?;
    // SAFETY: statvfs is plain data, for which zeros are a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in NUL and `stat` is valid to write to.
    if unsafe { libc::statvfs(root.as_ptr(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(DiskSpace {
        free_bytes: stat.f_bavail * stat.f_frsize,
        total_bytes: stat.f_blocks * stat.f_frsize,
    })
}

/// A file that `longest_at` creates and removes.
const PROBE: &str = "probe";

/// Linux does not report the maximum file length, so this searches for it with ftruncate(2). It
/// stays within RLIMIT_FSIZE: exceeding that would end the process with SIGXFSZ.
fn longest_at(path: &Path) -> io::Result<u64> {
    // SAFETY: rlimit is plain data, for which zeros are a value.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: `limit` is valid to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let file = File::create(path)?;
    let longest = longest_of(&file, (i64::MAX as u64).min(limit.rlim_cur));
    std::fs::remove_file(path)?;
    longest
}

fn longest_of(file: &File, most: u64) -> io::Result<u64> {
    let fits = |len| match file.set_len(len) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EFBIG | libc::EINVAL)) => Ok(false),
        Err(error) => Err(error),
    };
    if fits(most)? {
        return Ok(most);
    }
    let (mut low, mut high) = (0, most);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        *if fits(middle)? { &mut low } else { &mut high } = middle;
    }
    Ok(low)
}

/// The owner of the lock, from the lock file and /proc.
fn owner(lock: &mut File) -> String {
    let mut text = String::new();
    let pid = match lock.read_to_string(&mut text) {
        Ok(_) => text.trim().parse::<u32>().ok(),
        Err(_) => None,
    };
    // A new owner has not written its id yet.
    let Some(pid) = pid else { return "another process".into() };
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(command) => format!("process {pid} ({})", command.trim()),
        Err(_) => format!("process {pid}"),
    }
}

fn read_boot_id() -> Result<u128, DiskError> {
    let text = fs::read_to_string(BOOT_ID).map_err(|error| failed(Path::new(BOOT_ID), error))?;
    let digits: String = text.trim().split('-').collect();
    u128::from_str_radix(&digits, 16)
        .map_err(|error| DiskError::Failed { path: BOOT_ID.into(), what: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Danger: a process that opened the lock file before it was unlinked locks it afterwards, and
    /// another process locks the next file of that name: both use one data directory.
    #[test]
    fn lock_on_an_unlinked_file_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK_FILE);
        let file = File::create(&path).unwrap();
        assert!(!is_replaced(&file, &path).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(is_replaced(&file, &path).unwrap());
        let next = File::create(&path).unwrap();
        assert!(is_replaced(&file, &path).unwrap() && !is_replaced(&next, &path).unwrap());
    }
}
