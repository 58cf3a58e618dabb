//! Mounts for tests: served by a thread, gone when the test ends, however it ends.

use crate::memfs::{MemFs, Settings, Tree};
use ebb_fuse::*;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Whether this machine can mount at all.
pub fn can_mount() -> bool {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => true,
        Err(failure) => {
            println!("skipped: /dev/fuse cannot be opened: {failure}");
            false
        }
    }
}

/// An empty directory that is unmounted and removed at the end.
pub struct Point(pub PathBuf);

impl Point {
    pub fn new() -> Point {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ebb-fuse-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Point(path)
    }

    pub fn umount(&self, flags: i32) -> std::io::Result<()> {
        let path = CString::new(self.0.as_os_str().as_bytes()).unwrap();
        match unsafe { libc::umount2(path.as_ptr(), flags) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    pub fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(&format!(" {} ", self.0.display()))
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        while self.is_mounted() && self.umount(libc::MNT_FORCE | libc::MNT_DETACH).is_ok() {}
        fs::remove_dir(&self.0).ok();
    }
}

pub struct Mounted {
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<Result<Ended, SessionError>>>,
    pub notifier: Notifier,
    tree: Arc<Mutex<Tree>>,
    pub point: Point,
}

impl Mounted {
    pub fn new(settings: Settings) -> Mounted {
        Mounted::at(Point::new(), settings, "dev,suid", Duration::from_secs(5))
    }

    pub fn at(point: Point, settings: Settings, options: &str, patience: Duration) -> Mounted {
        let mount = Mount::new(&point.0, &options.parse().unwrap()).unwrap();
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let session = Session::start(mount).await?;
                let fs = MemFs::new(settings);
                ready.send((session.notifier(), fs.tree())).unwrap();
                let stopped = async { stopped.await.unwrap_or_default() };
                session.serve(&fs, stopped, patience).await
            })
        });
        let (notifier, tree) = started.recv().unwrap();
        Mounted { stop: Some(stop), server: Some(server), notifier, tree, point }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.point.0.join(name)
    }

    pub fn root(&self) -> &Path {
        &self.point.0
    }

    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap()
    }

    pub fn notify(&self, notification: Notification) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.notifier.send(notification)).unwrap();
    }

    pub fn signal_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits for the end of the session.
    pub fn ended(&mut self) -> Ended {
        self.server.take().unwrap().join().unwrap().unwrap()
    }

    pub fn stop(&mut self) -> Ended {
        self.signal_stop();
        self.ended()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(server) = self.server.take() else { return };
        // A failing test may still have files open there, and may not be root.
        drop(self.stop.take());
        self.point.umount(libc::MNT_FORCE | libc::MNT_DETACH).ok();
        server.join().ok();
    }
}
