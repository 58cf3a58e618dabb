//! Other load while a store misbehaves.

use crate::rig::Rig;
use crate::rng::Rng;
use crate::{Outcome, tool};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const COLD_FILES: usize = 20;
const COLD_BYTES: usize = 300_000;

/// Large enough for a multipart upload.
const LARGE_BYTES: usize = 20 << 20;

const LARGE_PAUSE: Duration = Duration::from_millis(300);
const LISTING_PAUSE: Duration = Duration::from_millis(50);

/// Threads that read, write and list beside the crew.
pub struct Others {
    stop: Arc<AtomicBool>,
    reading: JoinHandle<Result<u64, String>>,
    writing: JoinHandle<io::Result<Large>>,
    listing: JoinHandle<()>,
}

impl Others {
    pub fn start(root: &Path, cold: &Cold, rng: Rng) -> Others {
        let stop = Arc::new(AtomicBool::new(false));
        let (cold, large, root) = (cold.clone(), Large::at(root), root.to_owned());
        let reading = spawn(&stop, move |stop| cold.read_until(stop));
        let writing = spawn(&stop, move |stop| large.write_until(rng, stop));
        let listing = spawn(&stop, move |stop| list_until(&root, stop));
        Others { stop, reading, writing, listing }
    }

    /// Returns the number of failed reads, and the expected large file.
    pub fn stop(self) -> Outcome<(u64, Large)> {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self
            .reading
            .join()
            .map_err(|_| "the reader panicked")?
            .map_err(|error| format!("a file of the bucket: {error}"))?;
        let large = self
            .writing
            .join()
            .map_err(|_| "the writer panicked")?
            .map_err(|error| format!("the large file: {error}"))?;
        self.listing.join().map_err(|_| "who lists panicked")?;
        Ok((failed, large))
    }
}

fn spawn<T: Send + 'static>(
    stop: &Arc<AtomicBool>,
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
) -> JoinHandle<T> {
    let stop = stop.clone();
    thread::spawn(move || work(&stop))
}

/// Files that only the bucket has when the fault begins.
#[derive(Clone)]
pub struct Cold {
    dir: PathBuf,
    contents: Arc<Vec<Vec<u8>>>,
}

impl Cold {
    pub fn make(rig: &Rig, rng: &mut Rng) -> Outcome<Cold> {
        let dir = rig.mountpoint().join("cold");
        fs::create_dir(&dir)?;
        let contents: Vec<_> = (0..COLD_FILES)
            .map(|at| rng.bytes(if at == 0 { LARGE_BYTES } else { COLD_BYTES }))
            .collect();
        let cold = Cold { dir, contents: Arc::new(contents) };
        for (at, content) in cold.contents.iter().enumerate() {
            fs::write(cold.path(at), content)?;
        }
        let dir = cold.dir.display().to_string();
        tool::output(&mut rig.ebb(&["flush", &dir]))?;
        tool::output(&mut rig.ebb(&["evict", &dir]))?;
        // Drops the page cache.
        fs::write("/proc/sys/vm/drop_caches", "1")
            .map_err(|error| format!("the kernel's cache cannot be dropped: {error}"))?;
        Ok(cold)
    }

    fn path(&self, at: usize) -> PathBuf {
        self.dir.join(format!("file {at}"))
    }

    /// Reads in a loop; returns the number of failed reads. Wrong bytes are an error.
    fn read_until(&self, stop: &AtomicBool) -> Result<u64, String> {
        let mut failed = 0;
        for at in (0..COLD_FILES).cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            match fs::read(self.path(at)) {
                Ok(content) if content == self.contents[at] => {}
                Ok(_) => return Err(format!("file {at} is wrong")),
                Err(_) => failed += 1,
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(failed)
    }

    pub fn verify(&self) -> Outcome<()> {
        for (at, content) in self.contents.iter().enumerate() {
            if fs::read(self.path(at))? != *content {
                return Err(format!("cold file {at} is wrong").into());
            }
        }
        Ok(())
    }
}

/// A file that is overwritten as a whole in a loop.
pub struct Large {
    path: PathBuf,
    content: Vec<u8>,
}

impl Large {
    fn at(root: &Path) -> Large {
        Large { path: root.join("large"), content: Vec::new() }
    }

    fn write_until(mut self, mut rng: Rng, stop: &AtomicBool) -> io::Result<Large> {
        while !stop.load(Ordering::Relaxed) {
            self.content = rng.bytes(LARGE_BYTES);
            fs::write(&self.path, &self.content)?;
            thread::sleep(LARGE_PAUSE);
        }
        Ok(self)
    }

    pub fn verify(&self) -> Outcome<()> {
        if fs::read(&self.path)? == self.content {
            Ok(())
        } else {
            Err("the large file is wrong".into())
        }
    }
}

/// Lists every directory of the root in a loop. A listing may fail during a fault.
fn list_until(root: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for dir in fs::read_dir(root).into_iter().flatten().flatten() {
            // The entry may be a file, or a directory that cannot be listed.
            if let Ok(names) = fs::read_dir(dir.path()) {
                names.for_each(drop);
            }
        }
        thread::sleep(LISTING_PAUSE);
    }
}
