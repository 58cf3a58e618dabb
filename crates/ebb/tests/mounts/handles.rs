//! Handles of name_to_handle_at(2), as file servers on top use them.

use crate::place::Place;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[repr(C)]
struct Handle {
    len: u32,
    kind: i32,
    bytes: [u8; 128],
}

fn handle(path: &Path) -> Handle {
    let mut handle = Handle { len: 128, kind: 0, bytes: [0; 128] };
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut mount = 0;
    // SAFETY: the path ends in NUL, and the handle has the stated capacity.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &mut handle,
            &mut mount,
            0,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    handle
}

fn open(mount: &File, handle: &Handle) -> Result<String, i32> {
    // SAFETY: the descriptor is open, and the handle is one that the kernel gave.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            handle,
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap());
    }
    let mut content = String::new();
    // SAFETY: the kernel has just given the descriptor.
    unsafe { File::from_raw_fd(fd as i32) }.read_to_string(&mut content).unwrap();
    Ok(content)
}

/// A file handle is valid as long as its file exists, through evictions of the kernel, remounts and
/// renames, and never for another file.
#[test]
fn they_are_good_as_long_as_their_file() {
    let place = Place::new();
    place.mount();
    fs::create_dir(place.path("mnt/dir")).unwrap();
    let files: Vec<_> = (0..3).map(|n| place.path(&format!("mnt/dir/{n}"))).collect();
    for file in &files {
        fs::write(file, file.file_name().unwrap().as_bytes()).unwrap();
    }
    let handles: Vec<_> = files.iter().map(|file| handle(file)).collect();
    place.umount();
    place.mount();
    let mount = File::open(place.path("mnt")).unwrap();
    for (n, handle) in handles.iter().enumerate() {
        assert_eq!(open(&mount, handle), Ok(n.to_string()));
    }
    fs::rename(&files[0], place.path("mnt/moved")).unwrap();
    fs::remove_file(&files[1]).unwrap();
    fs::write(&files[1], "another").unwrap();
    assert_eq!(open(&mount, &handles[0]), Ok("0".into()));
    assert_eq!(open(&mount, &handles[1]), Err(libc::ESTALE));
    drop(mount);
    place.umount();
    place.mount();
    let mount = File::open(place.path("mnt")).unwrap();
    assert_eq!(open(&mount, &handles[0]), Ok("0".into()));
    assert_eq!(open(&mount, &handles[1]), Err(libc::ESTALE));
    assert_eq!(open(&mount, &handles[2]), Ok("2".into()));
    drop(mount);
    place.umount();
}
