//! Mounting and unmounting.

use crate::abi::init;
use crate::mountinfo::{self, DeviceId, Mounted};
use crate::request_size::RequestSize;
use crate::{
    AccessRule, AccessTimes, Consistency, MountOptions, MountOptionsError, Negotiated, fusermount,
};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use thiserror::Error;
use tracing::{debug, warn};

#[derive(Debug, Error)]
pub enum MountError {
    #[error("mount point {0} does not exist")]
    Missing(PathBuf),
    #[error("mount point {0} is not a directory")]
    NotDirectory(PathBuf),
    #[error("an ebb file system is mounted at {0} already")]
    AlreadyMounted(PathBuf),
    #[error(
        "{point} holds a dead mount of type {kind}, which is not ours to remove; unmount it first"
    )]
    DeadMount { point: PathBuf, kind: String },
    #[error(
        "{point} is a mount of user {owner} (type {kind}), which nobody else may enter: choose \
         another mount point, or have it unmounted by that user or by root"
    )]
    OthersMount { point: PathBuf, owner: u32, kind: String },
    #[error("the file system at {0} does not answer")]
    NotAnswering(PathBuf),
    #[error("mount point {point} cannot be used: {source}")]
    Unusable { point: PathBuf, source: io::Error },
    #[error("/dev/fuse cannot be opened: {0}; {wants}", wants = what_the_device_wants(.0))]
    NoDevice(io::Error),
    #[error("mounting needs root, or fusermount3, which cannot be run: {0}")]
    NoHelper(io::Error),
    #[error("fusermount3 refused: {0}")]
    HelperFailed(String),
    #[error("the kernel refused to mount: {0}{wants}", wants = what_it_wants(.0))]
    Refused(io::Error),
}

fn what_the_device_wants(refusal: &io::Error) -> &'static str {
    match refusal.raw_os_error() {
        Some(libc::EACCES) => {
            "this user may not read and write it: change its mode (crw-rw-rw- is usual), or add \
             the user to its group"
        }
        Some(libc::EPERM) => {
            "this container or service may not use devices like it: pass it on (--device /dev/fuse)"
        }
        _ => "load the module (modprobe fuse), or pass the device to this container",
    }
}

/// Root of a container is often not enough.
fn what_it_wants(refusal: &io::Error) -> &'static str {
    match refusal.raw_os_error() {
        Some(libc::EPERM) => {
            "; it wants root with CAP_SYS_ADMIN, which a container has to be given"
        }
        _ => "",
    }
}

#[derive(Debug, Error)]
pub enum RemountError {
    #[error("no ebb file system is mounted at {0}")]
    NotMounted(PathBuf),
    #[error(transparent)]
    Options(#[from] MountOptionsError),
    #[error("the kernel refused: {0}")]
    Refused(#[from] io::Error),
}

/// A connection that is mounted and not yet served: accesses to the mount wait.
pub struct Mount {
    // Declared first to be closed first: without a server, unmounting does not wait.
    pub(crate) device: OwnedFd,
    pub(crate) point: MountPoint,
    pub(crate) read_ahead_bytes: u32,
    /// Flags of INIT that only some mounts request.
    pub(crate) wants: u64,
    pub(crate) size: RequestSize,
}

impl Mount {
    /// Mounts at an existing directory. A dead mount of ours that is in the way, left by a
    /// process that was killed, is removed.
    pub fn new(point: &Path, options: &MountOptions) -> Result<Mount, MountError> {
        let path = clear(point)?;
        let size = RequestSize::of_this_kernel();
        let device = match is_root() {
            true => mount_directly(&path, options)?,
            false => fusermount::mount(&path, options)?,
        };
        let settled = set_nonblocking(&device).and_then(|()| mountinfo::topmost(&path));
        let id = match settled {
            Ok(Some(Mounted { device, kind, .. })) if kind == KIND => device,
            other => {
                drop(device);
                detach(&path, libc::MNT_DETACH).map_err(MountError::Refused)?;
                return Err(MountError::Refused(
                    other.err().unwrap_or_else(|| io::ErrorKind::NotFound.into()),
                ));
            }
        };
        let point = MountPoint { place: Place { path, id } };
        let mut wants =
            if options.shared_locks { init::POSIX_LOCKS | init::FLOCK_LOCKS } else { 0 };
        if options.passthrough {
            wants |= init::PASSTHROUGH;
        }
        // Only the kernel can check permissions of an idmapped mount, and a mount of a single user
        // has no other users to map.
        if options.allow_other && options.default_permissions && options.squash.is_none() {
            wants |= init::ALLOW_IDMAP;
        }
        // Pages are dropped only by our notifications: coherence is decided here.
        if options.consistency == Consistency::Strong {
            wants |= init::EXPLICIT_INVAL_DATA;
        }
        Ok(Mount { device, point, read_ahead_bytes: options.read_ahead_bytes, wants, size })
    }

    pub fn path(&self) -> &Path {
        &self.point.place.path
    }

    /// The mount point's path, free of symbolic links, once a mount can be put there: the first
    /// checks of [`Mount::new`], for callers with much work before it.
    pub fn prepare(point: &Path) -> Result<PathBuf, MountError> {
        clear(point)
    }

    /// Refuses if [`Mount::new`] would certainly refuse this process, at any mount point.
    pub fn expect_allowed() -> Result<(), MountError> {
        match (is_root(), open_device()) {
            (true, _) if !has_sys_admin() => {
                Err(MountError::Refused(io::Error::from_raw_os_error(libc::EPERM)))
            }
            (true, device) => device.map(drop),
            // The helper opens the device as the calling user, or receives it from elsewhere.
            (false, Err(MountError::NoDevice(error)))
                if error.kind() == io::ErrorKind::PermissionDenied =>
            {
                Err(MountError::NoDevice(error))
            }
            (false, _) => fusermount::expect_there(),
        }
    }

    /// Whether a mount of ours is there, dead or alive. `point` is free of symbolic links.
    pub fn is_at(point: &Path) -> io::Result<bool> {
        Ok(Mount::device_at(point)?.is_some())
    }

    /// `st_dev` of files on our mount there.
    pub fn device_at(point: &Path) -> io::Result<Option<u64>> {
        let mounted = mountinfo::topmost(point)?.filter(|mounted| mounted.kind == KIND);
        Ok(mounted.map(|mounted| mounted.device.st_dev()))
    }

    /// Whether it is mounted in the mount namespace of a process.
    pub fn is_seen_by(pid: u32, st_dev: u64) -> bool {
        mountinfo::as_seen_by(&pid.to_string(), DeviceId::of_stat(st_dev))
            .is_ok_and(|seen| !seen.is_empty())
    }

    /// Whether a file or directory is on a mount of ours, made by any user: one that other users
    /// may not enter does not even return its type.
    pub fn has(path: &Path) -> io::Result<bool> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(mountinfo::of_device(DeviceId::of_stat(metadata.dev()))?
                .iter()
                .any(|mounted| mounted.kind == KIND)),
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && Mount::is_at(&std::path::absolute(path)?)? =>
            {
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Changes the options of a mount of ours that can be changed: `ro`, `suid`, `dev`, `exec` and
    /// their opposites. Others are accepted and stay as they are. `point` is free of symbolic
    /// links. Before a mount becomes read-only its dirty pages are written out.
    pub fn remount(point: &Path, list: &str) -> Result<(), RemountError> {
        let mounted = mountinfo::topmost(point)?.filter(|mounted| mounted.kind == KIND);
        let mounted = mounted.ok_or_else(|| RemountError::NotMounted(point.into()))?;
        let has = |option: &str| mounted.options.split(',').any(|set| set == option);
        let mut options = MountOptions {
            suid: !has("nosuid"),
            dev: !has("nodev"),
            exec: !has("noexec"),
            ..MountOptions::default()
        };
        options.read_only = has("ro");
        options.apply(list)?;
        let times = match () {
            () if has("noatime") => AccessTimes::Kept,
            () if has("relatime") => AccessTimes::Relative,
            () => AccessTimes::Strict,
        };
        options.access = AccessRule { times, directories: !has("nodiratime") };
        let flags = libc::MS_REMOUNT
            | flags(&options)
            | if has("nosymfollow") { libc::MS_NOSYMFOLLOW } else { 0 };
        let target = CString::new(point.as_os_str().as_bytes()).map_err(io::Error::from)?;
        // SAFETY: the one string ends in NUL and outlives the call; a remount reads no other.
        let result = unsafe {
            libc::mount(
                std::ptr::null(),
                target.as_ptr(),
                std::ptr::null(),
                flags,
                std::ptr::null(),
            )
        };
        Ok(cvt(result)?)
    }

    /// Removes a mount on behalf of its user. While it is in use that fails with EBUSY, or with
    /// `lazy` puts it out of sight until its last user has gone.
    pub fn remove(point: &Path, lazy: bool) -> io::Result<()> {
        if let Some(owner) = another_owner(point)? {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("user {owner} has mounted it: unmount it as that user, or as root"),
            ));
        }
        // SAFETY: geteuid cannot fail and touches no memory.
        match unsafe { libc::geteuid() } {
            0 => umount(point, if lazy { libc::MNT_DETACH } else { 0 }),
            _ => fusermount::unmount(point, lazy),
        }
    }
}

/// A mount whose process has died, for [`crate::Session::take_over`].
pub struct LeftMount {
    // Declared first to be closed first.
    pub(crate) device: OwnedFd,
    pub(crate) point: MountPoint,
    pub(crate) negotiated: Negotiated,
}

impl LeftMount {
    /// `path` and `place` are those of the mount as it was made ([`crate::Session::place`]).
    pub fn new(device: OwnedFd, path: PathBuf, place: u64, negotiated: Negotiated) -> LeftMount {
        LeftMount {
            device,
            point: MountPoint { place: Place { path, id: DeviceId::of_number(place) } },
            negotiated,
        }
    }
}

/// Removes the mount when dropped, if nobody has yet.
pub(crate) struct MountPoint {
    pub place: Place,
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Err(failure) = self.place.cut_off() {
            warn!(path = %self.place.path.display(), %failure, "the mount is left behind");
        }
    }
}

/// Which mount is meant: the path alone could name another one by now.
#[derive(Clone)]
pub(crate) struct Place {
    pub path: PathBuf,
    pub id: DeviceId,
}

impl Place {
    /// Writes out dirty pages of mappings and unmounts: at once if the mount is not in use,
    /// otherwise out of sight at once and for good when its last user has gone. The mount must be
    /// served all the time.
    pub fn unmount(&self) -> io::Result<()> {
        if !self.is_mounted()? {
            return Ok(());
        }
        match File::open(&self.path).and_then(|root| cvt(syncfs(&root))) {
            Ok(()) => {}
            Err(failure) => {
                warn!(path = %self.path.display(), %failure, "mapped pages may not have been \
                    written out")
            }
        }
        // Writing out may have taken long: another mount may be at the path now.
        if !self.is_mounted()? {
            return Ok(());
        }
        match detach(&self.path, 0) {
            Err(busy) if self.is_mounted()? => {
                debug!(path = %self.path.display(), %busy, "unmounting lazily");
                detach(&self.path, libc::MNT_DETACH)
            }
            other => other,
        }
    }

    /// Ends the connection, even while it is in use, and unmounts. Needs no serving process.
    pub fn cut_off(&self) -> io::Result<()> {
        match self.is_mounted()? {
            true => detach(&self.path, libc::MNT_FORCE | libc::MNT_DETACH),
            false => Ok(()),
        }
    }

    fn is_mounted(&self) -> io::Result<bool> {
        Ok(mountinfo::topmost(&self.path)?
            .is_some_and(|mounted| mounted.device == self.id && mounted.kind == KIND))
    }

    /// Best effort: needs root and a mounted sysfs.
    pub fn set_read_ahead(&self, bytes: u32) {
        let DeviceId { major, minor } = self.id;
        let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(failure) = std::fs::write(&setting, (bytes / 1024).to_string()) {
            debug!(setting, %failure, "the kernel's read-ahead stays as it is");
        }
    }
}

/// Ends the connection of the mount that has this [place](crate::Session::place), even while
/// requests wait for an answer, and unmounts it.
pub fn cut_off(place: u64) -> io::Result<()> {
    let mounts = mountinfo::of_device(DeviceId::of_number(place))?;
    mounts
        .iter()
        .filter(|mounted| mounted.kind == KIND)
        .try_for_each(|mounted| detach(&mounted.point, libc::MNT_FORCE | libc::MNT_DETACH))
}

/// Returns the mount point's path, free of symbolic links, once a mount can be put there.
fn clear(point: &Path) -> Result<PathBuf, MountError> {
    let unusable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => MountError::Missing(point.into()),
        _ => MountError::Unusable { point: point.into(), source },
    };
    for _ in 0..DEAD_MOUNTS {
        match probe(point)? {
            Ok(found) if !found.is_dir => return Err(MountError::NotDirectory(point.into())),
            Ok(found) => {
                let mounted = mountinfo::topmost(&found.path).map_err(unusable)?;
                return match mounted {
                    Some(Mounted { kind, .. }) if kind == KIND => {
                        Err(MountError::AlreadyMounted(found.path))
                    }
                    _ => Ok(found.path),
                };
            }
            Err(failure)
                if matches!(failure.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)) =>
            {
                let path = beside_dead(point).map_err(unusable)?;
                let kind = mountinfo::topmost(&path)
                    .map_err(unusable)?
                    .map(|mounted| mounted.kind)
                    .unwrap_or_default();
                if kind != KIND {
                    return Err(MountError::DeadMount { point: path, kind });
                }
                warn!(path = %path.display(), "removing a dead mount, left by a process that was \
                    killed");
                if let Some(owner) = another_owner(&path).map_err(unusable)? {
                    return Err(MountError::OthersMount { point: path, owner, kind });
                }
                detach(&path, libc::MNT_DETACH).map_err(unusable)?;
            }
            Err(failure) => {
                let path = std::path::absolute(point).map_err(unusable)?;
                let mounted = mountinfo::topmost(&path).map_err(unusable)?;
                let owner = another_owner(&path).map_err(unusable)?;
                return Err(match (mounted, owner) {
                    (Some(Mounted { kind, .. }), Some(owner)) => {
                        MountError::OthersMount { point: path, owner, kind }
                    }
                    _ => unusable(failure),
                });
            }
        }
    }
    Err(MountError::DeadMount { point: point.into(), kind: KIND.into() })
}

/// The user that has mounted the file system there, if this process may not act for that user.
fn another_owner(point: &Path) -> io::Result<Option<u32>> {
    let owner = mountinfo::topmost(point)?.and_then(|mounted| mounted.owner);
    // SAFETY: getuid cannot fail and touches no memory.
    Ok(owner.filter(|owner| !is_root() && *owner != unsafe { libc::getuid() }))
}

struct Found {
    path: PathBuf,
    is_dir: bool,
}

/// Examines the mount point from a thread of its own, because a file system mounted there may hang
/// for ever; then the thread is abandoned.
fn probe(point: &Path) -> Result<io::Result<Found>, MountError> {
    let (answer, answered) = mpsc::channel();
    let path = point.to_owned();
    std::thread::spawn(move || {
        let found = ask(&path).and_then(|()| std::fs::metadata(&path)).and_then(|meta| {
            Ok(Found { path: std::fs::canonicalize(&path)?, is_dir: meta.is_dir() })
        });
        // The receiver may have stopped waiting.
        answer.send(found).ok();
    });
    answered.recv_timeout(PROBE_PATIENCE).map_err(|_| MountError::NotAnswering(point.into()))
}

/// Queries the file system itself: the kernel may answer with cached attributes of a mount whose
/// daemon has died; statfs is never cached.
fn ask(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: statfs is plain data, for which zeros are a value.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in NUL and `answer` is valid to write to.
    cvt(unsafe { libc::statfs(path.as_ptr(), &mut answer) })
}

/// The real path of a dead mount, which cannot be queried itself.
fn beside_dead(point: &Path) -> io::Result<PathBuf> {
    match (point.parent(), point.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => {
            Ok(std::env::current_dir()?.canonicalize()?.join(name))
        }
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(point.to_owned()),
    }
}

fn open_device() -> Result<File, MountError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/fuse")
        .map_err(MountError::NoDevice)
}

fn mount_directly(point: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    // SAFETY: getuid and getgid cannot fail and touch no memory.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},max_read={}",
        device.as_raw_fd(),
        options.max_read_bytes
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    let invalid = |_| MountError::Refused(io::ErrorKind::InvalidInput.into());
    let source = CString::new(options.source.as_bytes()).map_err(invalid)?;
    let target = CString::new(point.as_os_str().as_bytes()).map_err(invalid)?;
    let kind = CString::new(KIND).map_err(invalid)?;
    let data = CString::new(data).map_err(invalid)?;
    // SAFETY: all arguments are NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags(options),
            data.as_ptr().cast(),
        )
    };
    cvt(result).map_err(MountError::Refused)?;
    Ok(device.into())
}

/// Flags for mount(2).
fn flags(options: &MountOptions) -> libc::c_ulong {
    let switches = [
        (options.read_only, libc::MS_RDONLY),
        (!options.suid, libc::MS_NOSUID),
        (!options.dev, libc::MS_NODEV),
        (!options.exec, libc::MS_NOEXEC),
        // Only shown: the kernel leaves access times to the file system.
        (options.access.times == AccessTimes::Kept, libc::MS_NOATIME),
        (options.access.times == AccessTimes::Strict, libc::MS_STRICTATIME),
        (!options.access.directories, libc::MS_NODIRATIME),
    ];
    switches.into_iter().filter(|(on, _)| *on).fold(0, |flags, (_, flag)| flags | flag)
}

/// The helper knows plain and lazy unmounting only; ending the connection by force is
/// root's, and closing the device does the same.
fn detach(point: &Path, flags: i32) -> io::Result<()> {
    match is_root() {
        true => umount(point, flags),
        false => fusermount::unmount(point, flags & libc::MNT_DETACH != 0),
    }
}

fn is_root() -> bool {
    // SAFETY: geteuid cannot fail and touches no memory.
    unsafe { libc::geteuid() == 0 }
}

/// The capability that mount(2) requires. True if it cannot be determined: then mount(2) reports
/// it.
fn has_sys_admin() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_none_or(|effective| effective & SYS_ADMIN != 0)
}

fn umount(point: &Path, flags: i32) -> io::Result<()> {
    let point = CString::new(point.as_os_str().as_bytes())?;
    // SAFETY: a NUL-terminated string that outlives the call.
    cvt(unsafe { libc::umount2(point.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) })
}

fn syncfs(root: &File) -> i32 {
    // SAFETY: the descriptor is open.
    unsafe { libc::syncfs(root.as_raw_fd()) }
}

fn set_nonblocking(device: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open; both commands take and give plain integers.
    unsafe {
        let flags = libc::fcntl(device.as_raw_fd(), libc::F_GETFL);
        cvt(flags)?;
        cvt(libc::fcntl(device.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK))
    }
}

fn cvt(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The file system type: `fuse` with our subtype.
const KIND: &str = "fuse.ebb";

/// How long a file system at the mount point may take to answer `stat`.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);

/// Dead mounts that may lie on top of each other, one per crash and careless restart.
const DEAD_MOUNTS: usize = 64;
