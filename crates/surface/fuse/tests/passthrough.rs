//! Passthrough files: bytes bypass the session, and overlapping opens follow the law of
//! `ebb_fuse::Passthrough`.

#[path = "../examples/beside/mod.rs"]
mod beside;

use beside::Beside;
use ebb_fuse::{Ended, Mount, MountOptions, Session};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// A mount beside a directory, removed on drop.
struct Mounted {
    below: PathBuf,
    point: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<Ended>>,
}

impl Mounted {
    /// `None` where this machine cannot do it: no /dev/fuse, no rights, no such kernel.
    fn new(name: &str) -> Option<Mounted> {
        let root =
            std::env::temp_dir().join(format!("ebb-passthrough-{name}-{}", std::process::id()));
        let (below, point) = (root.join("below"), root.join("point"));
        fs::create_dir_all(&below).unwrap();
        fs::create_dir_all(&point).unwrap();
        // SAFETY: geteuid cannot fail and touches no memory.
        if unsafe { libc::geteuid() } != 0 || !PathBuf::from("/dev/fuse").exists() {
            println!("skipped: passthrough needs root and /dev/fuse");
            return None;
        }
        let mount =
            Mount::new(&point, &MountOptions { passthrough: true, ..MountOptions::default() })
                .unwrap();
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let directory = below.clone();
        let server = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let session = Session::start(mount).await.unwrap();
                let Some(passthrough) = session.passthrough() else {
                    ready.send(false).unwrap();
                    return Ended::Stopped;
                };
                ready.send(true).unwrap();
                let stopped = async { stopped.await.unwrap_or_default() };
                session
                    .serve(&Beside::new(directory, passthrough), stopped, Duration::from_secs(5))
                    .await
                    .unwrap()
            })
        });
        let mounted = Mounted { below, point, stop: Some(stop), server: Some(server) };
        match started.recv().unwrap() {
            true => Some(mounted),
            false => {
                println!("skipped: this kernel has no passthrough");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(server) = self.server.take() {
            server.join().ok();
        }
        if let Some(root) = self.point.parent() {
            fs::remove_dir_all(root).ok();
        }
    }
}

/// The server of this mount rejects WRITE, so the bytes below came through the kernel.
#[test]
fn bytes_go_past_the_session() {
    let Some(mount) = Mounted::new("bytes") else { return };
    let (above, below) = (mount.point.join("f"), mount.below.join("f"));
    File::create(&above).unwrap().write_all(b"written above").unwrap();
    assert_eq!(fs::read(&below).unwrap(), b"written above");
    assert_eq!(fs::metadata(&above).unwrap().len(), 13);

    // Changes below are visible at once: there is one page cache.
    let mut open = File::open(&above).unwrap();
    OpenOptions::new().write(true).open(&below).unwrap().write_all_at(b"changed", 0).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "changed above");

    // SAFETY: a new mapping of a page of a file that is not truncated meanwhile.
    unsafe {
        let both = OpenOptions::new().read(true).write(true).open(&above).unwrap();
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            both.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        drop(both);
        at.cast::<u8>().write_volatile(b'C');
        assert_eq!(fs::read(&below).unwrap(), b"Changed above");
        assert_eq!(libc::munmap(at, 4096), 0);
    }
}

/// An open keeps its backing file after the end of the registration, here at the last close, and
/// after the loss of the name below. The next open gets the new file.
#[test]
fn an_open_keeps_its_file() {
    let Some(mount) = Mounted::new("keeps") else { return };
    let (above, below) = (mount.point.join("f"), mount.below.join("f"));
    fs::write(&below, "old").unwrap();
    let mut open = File::open(&above).unwrap();
    fs::remove_file(&below).unwrap();
    fs::write(&below, "new").unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");
    drop(open);
    // RELEASE is asynchronous: until it has arrived the old file is the right result.
    for _ in 0..100 {
        if fs::read_to_string(&above).unwrap() == "new" {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the old file is still handed out");
}

/// Concurrent opens of one file share one registration, in any order of closes.
#[test]
fn opens_that_overlap() {
    let Some(mount) = Mounted::new("overlap") else { return };
    let above = mount.point.join("f");
    fs::write(&above, "x").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    assert_eq!(fs::read(&above).unwrap(), b"x");
                }
            });
        }
    });
}
