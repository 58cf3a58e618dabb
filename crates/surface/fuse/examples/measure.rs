//! The cost of the session itself: an in-memory file system under the loads of
//! `docs/benchmarks.md`.
//!
//! `cargo run --release -p ebb-fuse --example measure [DIRECTORY]`: with a directory the same loads
//! run there, to compare with the file system of that directory.

#[expect(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/memfs/mod.rs"]
mod memfs;

use ebb_fuse::{Caching, Ended, Mount, MountOptions, Session};
use memfs::{MemFs, Settings};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

fn main() -> io::Result<()> {
    let load: [(&str, Load); 4] = [
        ("create, write 4 KiB, close: files/s, 1 thread", |at| creates(at, 1)),
        ("create, write 4 KiB, close: files/s, 4 threads", |at| creates(at, 4)),
        ("write 1 MiB: MB/s", writes),
        ("read, page cache empty: MB/s", reads),
    ];
    if let Some(directory) = std::env::args_os().nth(1) {
        let directory = PathBuf::from(directory);
        for (name, load) in load {
            println!("{name:50} {:12.0}", load(&directory)?);
        }
        println!("{:50} {:12.0}", "stat", stats(&directory)?);
        return Ok(());
    }
    for (name, load) in load {
        println!(
            "{name:50} {:12.0}",
            mounted(Settings { caching: Caching::Fresh, ..Settings::default() }, load)?
        );
    }
    println!("{:50} {:12.0}", "stat, TTL 60 s: calls/s", mounted(Settings::default(), stats)?);
    println!(
        "{:50} {:12.0}",
        "stat, TTL 0: calls/s",
        mounted(Settings { ttl: Duration::ZERO, ..Settings::default() }, stats)?
    );
    let direct = Settings { caching: Caching::Direct { parallel: true }, ..Settings::default() };
    println!("{:50} {:12.0}", "read 1 MiB, direct: MB/s", mounted(direct, reads)?);
    println!(
        "{:50} {:12.0}",
        "read 4 KiB, direct, 1 thread: reads/s",
        mounted(direct, small_reads)?
    );
    Ok(())
}

type Load = fn(&Path) -> io::Result<f64>;

/// The median of three runs, each on a mount of its own.
fn mounted(settings: Settings, load: Load) -> io::Result<f64> {
    let mut results = Vec::new();
    for _ in 0..3 {
        let point = std::env::temp_dir().join(format!("ebb-fuse-measure-{}", std::process::id()));
        fs::create_dir(&point)?;
        let mount = Mount::new(&point, &MountOptions::default()).map_err(io::Error::other)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let server = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let session = Session::start(mount).await.map_err(io::Error::other)?;
                let stopped = async { stopped.await.unwrap_or_default() };
                session
                    .serve(&MemFs::new(settings), stopped, Duration::from_secs(10))
                    .await
                    .map_err(io::Error::other)
            })
        });
        let result = load(&point);
        drop(stop);
        let ended = server.join().expect("the server does not panic")?;
        assert_eq!(ended, Ended::Stopped);
        fs::remove_dir(&point)?;
        results.push(result?);
    }
    results.sort_by(f64::total_cmp);
    Ok(results[1])
}

fn creates(at: &Path, threads: usize) -> io::Result<f64> {
    const FILES: usize = 10_000;
    let start = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    for i in 0..FILES {
                        File::create_new(at.join(format!("f{worker}-{i}")))?
                            .write_all(&[7; 4096])?;
                    }
                    io::Result::Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let rate = (threads * FILES) as f64 / start.elapsed().as_secs_f64();
    for worker in 0..threads {
        (0..FILES).try_for_each(|i| fs::remove_file(at.join(format!("f{worker}-{i}"))))?;
    }
    Ok(rate)
}

fn stats(at: &Path) -> io::Result<f64> {
    const CALLS: usize = 100_000;
    let path = at.join("stat");
    fs::write(&path, "x")?;
    let start = Instant::now();
    for _ in 0..CALLS {
        fs::metadata(&path)?;
    }
    let rate = CALLS as f64 / start.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

const LARGE_BYTES: usize = 512 << 20;

fn writes(at: &Path) -> io::Result<f64> {
    let path = at.join("large");
    // A first pass allocates the memory.
    fill(&path)?;
    let start = Instant::now();
    let file = OpenOptions::new().write(true).open(&path)?;
    let block = vec![3; 1 << 20];
    for i in 0..LARGE_BYTES >> 20 {
        file.write_all_at(&block, (i << 20) as u64)?;
    }
    let rate = LARGE_BYTES as f64 / 1e6 / start.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

fn reads(at: &Path) -> io::Result<f64> {
    let path = at.join("large");
    fill(&path)?;
    // The open drops the pages of the writes.
    let start = Instant::now();
    let mut file = File::open(&path)?;
    let mut block = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        match file.read(&mut block)? {
            0 => break,
            len => total += len,
        }
    }
    let rate = total as f64 / 1e6 / start.elapsed().as_secs_f64();
    assert_eq!(total, LARGE_BYTES);
    fs::remove_file(&path)?;
    Ok(rate)
}

fn small_reads(at: &Path) -> io::Result<f64> {
    const READS: u64 = 50_000;
    let path = at.join("large");
    fill(&path)?;
    let file = File::open(&path)?;
    let mut block = [0; 4096];
    let start = Instant::now();
    for i in 0..READS {
        let page = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (LARGE_BYTES as u64 / 4096);
        file.read_exact_at(&mut block, page * 4096)?;
    }
    let rate = READS as f64 / start.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

fn fill(path: &Path) -> io::Result<()> {
    let block = vec![1; 1 << 20];
    let mut file = File::create(path)?;
    (0..LARGE_BYTES >> 20).try_for_each(|_| file.write_all(&block))
}
