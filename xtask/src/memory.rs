//! Memory of daemon and supervisor of an embedded mount together (PSS), idle and at peak load. A
//! value above its limit is an error.

use crate::rig::{Rig, Shape};
use crate::work::{archives, unpack};
use crate::{Outcome, tool};
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FILES: usize = 5_000;
const SPARSE_BYTES: u64 = 100 << 30;
const PIECES: u64 = 1_000;

/// Limit of an idle mount.
const IDLE_BYTES: u64 = 60 << 20;

/// `buffer-memory`.
const BUFFER_BYTES: u64 = 256 << 20;

/// `--metadata-memory`, for this many bytes per entry.
const METADATA_BYTES: u64 = 64 << 20;
const ENTRY_BYTES: u64 = 192;

/// Sampling interval.
const PACE: Duration = Duration::from_millis(100);

pub fn run(entries: u64, release: bool) -> Outcome<()> {
    let binaries = tool::build(&["ebb", "ebb-s3-server"], release)?;
    // Uploads are deferred: the test would send 100 GiB of zeros.
    let (mut rig, most) = bounded(&["--flush-interval", "1d"], entries, &binaries)?;
    rig.mount("")?;
    let top = rig.mountpoint();
    row(&rig, IDLE_BYTES, "idle", || {
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    })?;
    row(&rig, most, &format!("write {FILES} files of 4 KiB"), || many_files(&top.join("files")))?;
    row(&rig, most, "a sparse file of 100 GiB, 1,000 pieces of 64 KiB", || {
        sparse_file(&top.join("sparse"))
    })?;
    let archives = archives()?;
    row(&rig, most, &format!("unpack {} archives of sources", archives.len()), || {
        fs::create_dir(top.join("sources"))?;
        archives.iter().try_for_each(|archive| unpack(archive, &top.join("sources")))
    })?;
    row(&rig, most, &format!("make {entries} files in one directory"), || {
        make_entries(&top.join("entries"), libc::S_IFREG, entries)
    })?;
    row(&rig, most, "list it", || list(&top.join("entries"), entries))?;
    println!("{}", tool::output(&mut rig.ebb(&["status", &top.display().to_string()]))?);
    drop(rig);
    sent(entries, &binaries)
}

/// Names without objects go to the bucket in pieces of the directory page, and are loaded from it.
fn sent(entries: u64, binaries: &Path) -> Outcome<()> {
    let (mut rig, most) = bounded(&[], entries, binaries)?;
    rig.mount("")?;
    let top = rig.mountpoint();
    let names = top.join("names");
    row(
        &rig,
        most,
        &format!("make {entries} FIFOs in one directory, which are sent meanwhile"),
        || make_entries(&names, libc::S_IFIFO, entries),
    )?;
    row(&rig, most, "flush it", || rig.flush())?;
    row(&rig, most, "make one more, and flush it", || {
        make(&names, libc::S_IFIFO, entries)?;
        rig.flush()
    })?;
    rig.umount()?;
    rig.drop_cache()?;
    rig.mount("")?;
    row(&rig, most, "look for one name, with nothing but the bucket", || {
        fs::symlink_metadata(path(&names, entries / 2))?;
        Ok(())
    })?;
    row(&rig, most, "list it", || list(&names, entries + 1))
}

/// A mount with these memory limits, and their sum.
fn bounded(flags: &[&str], entries: u64, binaries: &Path) -> Outcome<(Rig, u64)> {
    let metadata = METADATA_BYTES + entries * ENTRY_BYTES;
    let metadata_flag = format!("--metadata-memory={metadata}");
    let flags = [flags, &[metadata_flag.as_str()]].concat();
    let mut rig = Rig::new(Shape::EmbeddedS3, binaries)?.with(&flags);
    rig.set_advanced(&format!("buffer-memory = {BUFFER_BYTES}\n"))?;
    Ok((rig, IDLE_BYTES + BUFFER_BYTES + metadata))
}

fn list(dir: &Path, entries: u64) -> Outcome<()> {
    let listed = fs::read_dir(dir)?.count() as u64;
    if listed == entries {
        Ok(())
    } else {
        Err(format!("{listed} of {entries} entries are listed").into())
    }
}

/// Fails if the memory ever exceeds `may`.
fn row(rig: &Rig, may: u64, what: &str, work: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
    let (over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // A process that just ended cannot be sampled.
                most.fetch_max(rig.proportional_bytes().unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(PACE);
            }
        });
        let worked = work();
        over.store(true, Ordering::Relaxed);
        worked
    })?;
    let took = began.elapsed();
    let now = rig.proportional_bytes()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let most = most.into_inner().max(now);
    println!(
        "{:>9.1} of {:>6.0} MiB at most, {:>9.1} afterwards, {:>7.1} s  {what}",
        mib(most),
        mib(may),
        mib(now),
        took.as_secs_f64()
    );
    if most > may {
        Err(format!("{what}: {:.1} MiB, and {:.1} are allowed", mib(most), mib(may)).into())
    } else {
        Ok(())
    }
}

fn many_files(top: &Path) -> Outcome<()> {
    for dir in 0..FILES / 100 {
        let dir = top.join(dir.to_string());
        fs::create_dir_all(&dir)?;
        for file in 0..100 {
            fs::write(dir.join(file.to_string()), [7; 4096])?;
        }
    }
    Ok(())
}

fn sparse_file(path: &Path) -> Outcome<()> {
    let file = File::create(path)?;
    file.set_len(SPARSE_BYTES)?;
    for piece in 0..PIECES {
        file.write_all_at(&[9; 64 << 10], piece * (SPARSE_BYTES / PIECES))?;
    }
    file.sync_all()?;
    drop(file);
    Ok(fs::remove_file(path)?)
}

fn make_entries(top: &Path, kind: libc::mode_t, entries: u64) -> Outcome<()> {
    fs::create_dir(top)?;
    (0..entries).try_for_each(|entry| make(top, kind, entry))
}

fn make(top: &Path, kind: libc::mode_t, entry: u64) -> Outcome<()> {
    let path = CString::new(path(top, entry).into_os_string().into_encoded_bytes())?;
    // SAFETY: the path is NUL-terminated and outlives the call.
    if unsafe { libc::mknod(path.as_ptr(), kind | 0o644, 0) } != 0 {
        return Err(format!("entry {entry}: {}", std::io::Error::last_os_error()).into());
    }
    Ok(())
}

fn path(top: &Path, entry: u64) -> PathBuf {
    top.join(format!("{entry:021}"))
}
