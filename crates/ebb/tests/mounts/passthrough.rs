//! Passthrough reads on mounts whose node is another process of this machine.

use crate::detached::serve;
use crate::native::{LEN, content, is_read_from, read};
use crate::place::{Place, until};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

/// A node with a file, and two mounts of its volume.
struct Shared {
    place: Place,
    node: usize,
    address: String,
}

impl Shared {
    fn new() -> Shared {
        let mut place = Place::new();
        let (node, address) = serve(&mut place, "127.0.0.1:0");
        let shared = Shared { place, node, address };
        for (mountpoint, data) in [("mnt", "client"), ("mnt2", "client2")] {
            shared.mount(mountpoint, data);
        }
        fs::write(shared.path("mnt/file"), content(LEN)).unwrap();
        shared
    }

    fn mount(&self, mountpoint: &str, data: &str) {
        self.place
            .ebb(&["mount", &format!("ebb://{}/volume", self.address), mountpoint, "--data", data])
            .good();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    fn store(&self) -> PathBuf {
        let explained = self.place.ebb(&["explain", "mnt/file", "--json"]).good().json();
        self.path("node").join(explained["store_file"].as_str().expect("something of it is cached"))
    }

    fn is_native(&self, file: &File) -> bool {
        is_read_from(&self.store(), file)
    }

    fn open_natively(&self, name: &str) -> File {
        for _ in 0..100 {
            let file = File::open(self.path(name)).unwrap();
            if self.is_native(&file) {
                return file;
            }
            drop(file);
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{name} is not read natively");
    }

    fn evicted(&self) -> u64 {
        self.place.ebb(&["evict", "mnt2/file", "--json"]).good().json()["bytes"].as_u64().unwrap()
    }

    /// Has the bucket have everything, so that nothing but its readers keeps the file here.
    fn flush(&self) {
        self.place.ebb(&["flush", "mnt2"]).good();
    }

    fn restart_node(&mut self, signal: i32) {
        self.place.signal(self.node, signal);
        let address = self.address.clone();
        self.node = serve(&mut self.place, &address).0;
    }

    fn end(mut self) {
        for mountpoint in ["mnt", "mnt2"] {
            self.place.umount_at(mountpoint);
        }
        self.place.ebb(&["fsck", &self.address]).good();
        assert_eq!(self.place.signal(self.node, libc::SIGTERM), 0);
    }
}

/// A mapping of a whole file, which is not truncated.
fn map(file: &File) -> *mut libc::c_void {
    let (protection, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, protection, how, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at
}

/// A passthrough reader sees writes, truncations and extensions by another mount at once.
#[test]
fn passthrough_reader_sees_changes_by_another_mount() {
    let shared = Shared::new();
    let (one, two) = (shared.open_natively("mnt/file"), shared.open_natively("mnt2/file"));
    assert!(read(&one) == content(LEN) && read(&two) == content(LEN));
    let writer = OpenOptions::new().write(true).open(shared.path("mnt2/file")).unwrap();
    let mut expected = content(LEN);
    for (at, bytes) in
        [(100, &b"here"[..]), (LEN - 2, b"over the end"), (LEN + 100_000, b"far behind it")]
    {
        writer.write_all_at(bytes, at as u64).unwrap();
        expected.resize(expected.len().max(at + bytes.len()), 0);
        expected[at..at + bytes.len()].copy_from_slice(bytes);
        assert!(read(&one) == expected && read(&two) == expected, "after a write at {at}");
    }
    for len in [200_000, 250_000] {
        writer.set_len(len).unwrap();
        expected.resize(len as usize, 0);
        assert!(read(&one) == expected && read(&two) == expected, "{len} bytes long");
    }
    // An open file stays usable.
    fs::remove_file(shared.path("mnt2/file")).unwrap();
    assert!(read(&one) == expected);
    drop((one, two, writer));
    shared.end();
}

/// Stores through a mapping of such a file are visible everywhere, and reach the bucket.
#[test]
fn passthrough_stores_show_on_other_mounts() {
    let shared = Shared::new();
    let reader = shared.open_natively("mnt/file");
    let both = OpenOptions::new().read(true).write(true).open(shared.path("mnt/file")).unwrap();
    let mapping = map(&both);
    // SAFETY: the byte is within the mapping.
    unsafe {
        *mapping.cast::<u8>().add(12_345) = b'!';
        assert_eq!(libc::munmap(mapping, LEN), 0);
    }
    let mut expected = content(LEN);
    expected[12_345] = b'!';
    assert!(read(&reader) == expected);
    assert!(fs::read(shared.path("mnt2/file")).unwrap() == expected);
    drop((reader, both));
    shared.flush();
    assert!(fs::read(shared.path("backing/file")).unwrap() == expected);
    shared.end();
}

/// Situation: the node dies, or ends cleanly, while a mount reads a file by passthrough, and
/// another node serves. Danger: that one does not know the reader, evicts the file, and changes
/// another one.
#[test]
fn passthrough_file_is_kept_by_the_next_node() {
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let mut shared = Shared::new();
        shared.flush();
        let file = shared.open_natively("mnt/file");
        shared.restart_node(signal);
        assert!(read(&file) == content(LEN));
        assert_eq!(shared.evicted(), 0);
        let writer = OpenOptions::new().write(true).open(shared.path("mnt2/file")).unwrap();
        writer.write_all_at(b"longer", LEN as u64).unwrap();
        let expected = [&content(LEN)[..], b"longer"].concat();
        assert!(read(&file) == expected);
        writer.set_len(10).unwrap();
        assert!(read(&file) == expected[..10]);
        drop((file, writer));
        shared.end();
    }
}

/// Situation: the daemon of a mount dies that reads a file by passthrough, and another one takes
/// over. Expectation: the file stays cached as long as it is open.
#[test]
fn passthrough_file_stays_when_the_daemon_dies() {
    let shared = Shared::new();
    shared.flush();
    let file = shared.open_natively("mnt/file");
    shared.place.kill_daemon("mnt");
    assert!(read(&file) == content(LEN));
    assert_eq!(shared.evicted(), 0);
    fs::metadata(shared.path("mnt/file")).unwrap();
    let writer = OpenOptions::new().write(true).open(shared.path("mnt2/file")).unwrap();
    writer.set_len(1000).unwrap();
    assert!(read(&file) == content(LEN)[..1000]);
    drop((file, writer));
    shared.flush();
    until("it is evicted", || shared.evicted() > 0);
    shared.end();
}

/// Situation: the node restarts with a copy of its data directory while a mount reads a file by
/// passthrough. Danger: new opens get the abandoned store file. Expectation: ESTALE until the
/// earlier opens are closed.
#[test]
fn passthrough_open_of_abandoned_store_file_is_stale() {
    let mut shared = Shared::new();
    let file = shared.open_natively("mnt/file");
    shared.place.signal(shared.node, libc::SIGTERM);
    shared.place.program("cp", &["-a", "node", "copy"]).good();
    fs::remove_dir_all(shared.path("node")).unwrap();
    fs::rename(shared.path("copy"), shared.path("node")).unwrap();
    let address = shared.address.clone();
    shared.node = serve(&mut shared.place, &address).0;
    assert!(read(&file) == content(LEN));
    let opened = || File::open(shared.path("mnt/file"));
    until("it is refused", || {
        opened().is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE))
    });
    fs::write(shared.path("mnt2/file"), "new").unwrap();
    drop(file);
    until("it is opened", || opened().is_ok());
    assert_eq!(fs::read(shared.path("mnt/file")).unwrap(), b"new");
    shared.end();
}

/// A kernel that keeps cached pages between opens drops them after another program stored into the
/// file by passthrough and closed it.
#[test]
fn open_shows_earlier_passthrough_stores() {
    let shared = Shared::new();
    shared.place.umount_at("mnt2");
    let volume = format!("ebb://{}/volume", shared.address);
    let other = [
        "mount",
        &volume,
        "mnt2",
        "--data",
        "client2",
        "--consistency",
        "close-to-open",
        "--passthrough",
        "off",
    ];
    shared.place.ebb(&other).good();
    let reader = shared.open_natively("mnt/file");
    let both = OpenOptions::new().read(true).write(true).open(shared.path("mnt/file")).unwrap();
    let mut expected = content(LEN);
    for at in [5, 100_000, LEN - 1] {
        assert!(fs::read(shared.path("mnt2/file")).unwrap() == expected);
        let mapping = map(&both);
        // SAFETY: within the mapping.
        unsafe {
            *mapping.cast::<u8>().add(at) ^= 1;
            assert_eq!(libc::munmap(mapping, LEN), 0);
        }
        drop(both.try_clone().unwrap());
        expected[at] ^= 1;
        assert!(fs::read(shared.path("mnt2/file")).unwrap() == expected, "{at}");
    }
    drop((reader, both));
    shared.end();
}

/// A mount with passthrough off reads everything through the node.
#[test]
fn passthrough_off_reads_through_the_node() {
    let shared = Shared::new();
    shared.flush();
    shared.place.umount_at("mnt");
    let volume = format!("ebb://{}/volume", shared.address);
    shared.place.ebb(&["mount", &volume, "mnt", "--data", "client", "--passthrough", "off"]).good();
    for _ in 0..3 {
        let file = File::open(shared.path("mnt/file")).unwrap();
        assert!(read(&file) == content(LEN) && !shared.is_native(&file));
    }
    shared.end();
}
