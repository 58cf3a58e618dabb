//! A machine that loses power and boots again, from the view of its processes.
//!
//! A node distinguishes a power cut from a process death by the boot id. Therefore the test runs in
//! its own mount namespace, in which a file replaces the kernel's boot id.

use crate::rng::Rng;
use crate::{Outcome, mounts};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The replacement of the kernel's boot id, for this process and its children.
pub struct Boot {
    file: PathBuf,
}

impl Boot {
    /// Call before other threads exist: they would keep the original namespace.
    pub fn first(dir: &Path, binaries: &Path, rng: &mut Rng) -> Outcome<Boot> {
        let why = |error| format!("a mount namespace is needed, which is root's to make: {error}");
        // SAFETY: unshare takes plain integers.
        cvt(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map_err(why)?;
        mount(None, Path::new("/"), libc::MS_REC | libc::MS_PRIVATE).map_err(why)?;
        let needed = [
            dir.canonicalize()?,
            binaries.canonicalize()?,
            std::env::current_dir()?,
            "/run/ebb".into(),
        ];
        let_go(&needed).map_err(|error| format!("the machine's other mounts: {error}"))?;
        let boot = Boot { file: dir.join("boot_id") };
        boot.again(rng)?;
        mount(Some(&boot.file), Path::new(BOOT_ID), libc::MS_BIND).map_err(why)?;
        Ok(boot)
    }

    /// Boots the machine again.
    pub fn again(&self, rng: &mut Rng) -> Outcome<()> {
        let id = (u128::from(rng.draw()) << 64) | u128::from(rng.draw());
        let hex = format!("{id:032x}");
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        Ok(fs::write(&self.file, parts.join("-") + "\n")?)
    }
}

/// Unmounts the machine's other mounts in this namespace: a copy here would keep their devices busy
/// after their owner has unmounted them.
fn let_go(needed: &[PathBuf]) -> Outcome<()> {
    for point in mounts::of(std::process::id())?.iter().rev() {
        if SYSTEM.iter().any(|system| point.starts_with(system))
            || needed.iter().any(|path| path.starts_with(point))
        {
            continue;
        }
        match detach(point) {
            // Hidden by another mount, or already unmounted with it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => {}
            detached => detached?,
        }
    }
    Ok(())
}

/// Kept, with all mounts below.
const SYSTEM: [&str; 3] = ["/dev", "/proc", "/sys"];

fn mount(source: Option<&Path>, target: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let string = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let source = source.map(string).transpose()?;
    let target = string(target)?;
    let source = source.as_ref().map_or(std::ptr::null(), |source| source.as_ptr());
    // SAFETY: the strings end in NUL and outlive the call; type and data are unused for these
    // flags.
    cvt(unsafe { libc::mount(source, target.as_ptr(), std::ptr::null(), flags, std::ptr::null()) })
}

fn detach(point: &Path) -> io::Result<()> {
    let point = CString::new(point.as_os_str().as_bytes())?;
    // SAFETY: the string ends in NUL and outlives the call.
    cvt(unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) })
}

fn cvt(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
