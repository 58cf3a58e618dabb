//! Features that kernel and C library build on a mount by themselves.

use crate::place::Place;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Pending events, with their names.
fn events(of: &mut File) -> Vec<(u32, String)> {
    let mut bytes = [0; 16 << 10];
    let len = of.read(&mut bytes).unwrap_or(0);
    let (mut rest, mut found) = (&bytes[..len], Vec::new());
    while let Some((header, behind)) = rest.split_at_checked(size_of::<libc::inotify_event>()) {
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let (name, next) = behind.split_at(word(12) as usize);
        let name = CStr::from_bytes_until_nul(name)
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        found.push((word(4), name));
        rest = next;
    }
    found
}

/// inotify reports changes made through the mount.
#[test]
fn changes_are_told_of() {
    let place = Place::new();
    place.mount();
    let [dir, file, moved] =
        ["mnt/dir", "mnt/dir/file", "mnt/dir/moved"].map(|path| place.path(path));
    fs::create_dir(&dir).unwrap();
    // SAFETY: the call passes no memory.
    let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new, without another owner.
    let mut watch = unsafe { File::from_raw_fd(fd) };
    let all = libc::IN_CREATE
        | libc::IN_MODIFY
        | libc::IN_CLOSE_WRITE
        | libc::IN_ATTRIB
        | libc::IN_MOVE
        | libc::IN_DELETE;
    // SAFETY: the path ends with a zero byte.
    assert!(unsafe { libc::inotify_add_watch(watch.as_raw_fd(), text(&dir).as_ptr(), all) } >= 0);
    let mut written = File::create(&file).unwrap();
    written.write_all(b"content").unwrap();
    drop(written);
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(&file, &moved).unwrap();
    fs::remove_file(&moved).unwrap();
    let told = events(&mut watch);
    let expected = [
        (libc::IN_CREATE, "file"),
        (libc::IN_MODIFY, "file"),
        (libc::IN_CLOSE_WRITE, "file"),
        (libc::IN_ATTRIB, "file"),
        (libc::IN_MOVED_FROM, "file"),
        (libc::IN_MOVED_TO, "moved"),
        (libc::IN_DELETE, "moved"),
    ];
    assert_eq!(told, expected.map(|(mask, name)| (mask, name.to_owned())));
    place.umount();
}

#[test]
fn sockets_have_their_names_there() {
    let place = Place::new();
    place.mount();
    let path = place.path("mnt/socket");
    let listener = UnixListener::bind(&path).unwrap();
    UnixStream::connect(&path).unwrap().write_all(b"hello").unwrap();
    let mut heard = String::new();
    listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "hello");
    assert_eq!(UnixListener::bind(&path).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    drop(listener);
    assert_eq!(
        UnixStream::connect(&path).unwrap_err().kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    place.umount();
}

/// Pages of a mapping behind the end of the file are not there, and are once the file is longer.
#[test]
fn a_mapping_ends_with_the_file() {
    const PAGE: usize = 4096;
    let place = Place::new();
    place.mount();
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(place.path("mnt/file"))
        .unwrap();
    file.write_all_at(b"content", 0).unwrap();
    let (flags, access) = (libc::MAP_SHARED, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping, of an open file.
    let mapping =
        unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, access, flags, file.as_raw_fd(), 0) };
    assert_ne!(mapping, libc::MAP_FAILED);
    let copied = File::create(place.path("copy")).unwrap();
    // A system call touches the page and returns EFAULT where a program would get
    // SIGBUS.
    let touch = |at: usize| {
        // SAFETY: the byte is within the mapping, which the kernel reads.
        let written =
            unsafe { libc::write(copied.as_raw_fd(), mapping.cast::<u8>().add(at).cast(), 1) };
        if written == 1 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error().raw_os_error().unwrap())
        }
    };
    assert_eq!((touch(0), touch(PAGE - 1), touch(PAGE)), (Ok(()), Ok(()), Err(libc::EFAULT)));
    file.set_len(PAGE as u64 + 1).unwrap();
    assert_eq!(touch(PAGE), Ok(()));
    file.set_len(1).unwrap();
    assert_eq!((touch(0), touch(PAGE)), (Ok(()), Err(libc::EFAULT)));
    // SAFETY: the mapping from above, without another user.
    assert_eq!(unsafe { libc::munmap(mapping, 2 * PAGE) }, 0);
    drop(file);
    place.umount();
}

/// seekdir(3) continues at telldir(3)'s position, whatever was created or removed in between.
#[test]
fn a_listing_goes_on_where_it_was() {
    let place = Place::new();
    place.mount();
    let dir = place.path("mnt/dir");
    fs::create_dir(&dir).unwrap();
    let names: BTreeSet<String> = (0..500).map(|number| format!("name {number}")).collect();
    names.iter().for_each(|name| drop(File::create(dir.join(name)).unwrap()));
    // SAFETY: the path ends with a zero byte.
    let stream = unsafe { libc::opendir(text(&dir).as_ptr()) };
    assert!(!stream.is_null());
    let next = || {
        // SAFETY: the stream is open, and its entry is read before the next call.
        let entry = unsafe { libc::readdir(stream).as_ref() }?;
        // SAFETY: names end with a zero byte.
        Some(unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_str().unwrap().to_owned())
    };
    let seen: Vec<String> = (0..200).filter_map(|_| next()).collect();
    // SAFETY: the stream is open.
    let at = unsafe { libc::telldir(stream) };
    let left: Vec<String> = std::iter::from_fn(next).collect();
    seen[5..150].iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap());
    fs::remove_file(dir.join(&left[7])).unwrap();
    File::create(dir.join("new")).unwrap();
    // SAFETY: the position is one of this stream.
    unsafe { libc::seekdir(stream, at) };
    // Entries that were created or removed in between may appear or not.
    let stays = |name: &String| name != "new" && *name != left[7];
    let again: Vec<String> = std::iter::from_fn(next).filter(stays).collect();
    assert_eq!(again, left.iter().filter(|name| stays(name)).cloned().collect::<Vec<_>>());
    // SAFETY: the stream is open, and not used after that.
    assert_eq!(unsafe { libc::closedir(stream) }, 0);
    let all: BTreeSet<String> =
        seen.into_iter().chain(left).filter(|name| ![".", ".."].contains(&&name[..])).collect();
    assert_eq!(all, names);
    place.umount();
}
