//! A bucket that misbehaves, on real processes: work goes on from the cache, nothing is lost,
//! and everything drains when the bucket is well again.
//!
//! For each fault: work with the bucket well, then with the fault, then flush; everything is
//! compared with what was acknowledged, from the cache and from the bucket alone, and no
//! object or upload may be left that belongs to nothing. Meanwhile files that only the bucket
//! has are read and all directories listed: an error is allowed, wrong bytes are not.

mod files;
mod proxy;

use crate::rig::{Rig, Shape};
use crate::rng::Rng;
use crate::workload::{Crew, Mix};
use crate::{Outcome, tool};
use clap::ValueEnum;
use files::{Cold, Large};
use proxy::{Proxy, Request, Seen};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Requests fail with 500 and have no effect.
    InternalError,
    /// A storm of 503 SlowDown.
    SlowDown,
    /// Requests have their effect, and the connection ends without an answer.
    LostAnswers,
    /// Requests have their effect, and no answer comes until the fault is over.
    Silence,
    /// Uploads take effect long after their connection has ended.
    LateEffects,
    /// Bodies of objects end early.
    Truncated,
    /// A bit of the bodies of files is another one.
    Garbled,
    /// Listings are as they were before the fault.
    StaleListings,
    /// Uploads that have begun are gone.
    LostUploads,
    /// The credentials have expired.
    ExpiredToken,
    /// The clocks differ too much.
    ClockSkew,
    /// Changes are forbidden.
    ReadOnly,
    /// Nobody answers.
    Gone,
}

impl Fault {
    fn concerns(self, request: &Request) -> bool {
        match self {
            Fault::ReadOnly => request.is_change(),
            Fault::LateEffects => request.is_effect(),
            Fault::Truncated | Fault::Garbled => request.is_download(),
            Fault::StaleListings => request.is_listing(),
            Fault::LostUploads => request.is_of_upload(),
            _ => true,
        }
    }

    /// Of the requests that it concerns.
    fn percent(self) -> u64 {
        match self {
            Fault::InternalError | Fault::LostAnswers | Fault::LateEffects | Fault::Truncated | Fault::LostUploads => 50,
            Fault::Garbled => 20,
            Fault::SlowDown => 90,
            Fault::Silence => 20,
            _ => 100,
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// After a fault everything reaches the bucket within this time.
const DRAIN: Duration = Duration::from_secs(120);

/// More requests than this per second of a fault, and one for each operation, are a hot loop.
const MOST_REQUESTS_PER_SEC: u64 = 1000;

pub fn run(faults: &[Fault], seconds: u64, seed: u64, release: bool) -> Outcome<()> {
    let binaries = tool::build(&["ebb", "ebb-s3-server"], release)?;
    println!("| Fault | Acknowledged meanwhile | Reads failed | Requests, spoiled | Drained in | Said by status |");
    println!("|---|---|---|---|---|---|");
    for fault in faults {
        let mut rig = Rig::new(Shape::EmbeddedS3, &binaries)?;
        match under(*fault, &mut rig, Duration::from_secs(seconds), seed) {
            Ok(row) => println!("{row}"),
            Err(error) => {
                rig.keep();
                return Err(format!("{}, seed {seed}: {error}\nleft to look at: {}", fault.name(), rig.dir.display()).into());
            }
        }
    }
    println!("\nNothing was lost, wrong or left over.");
    Ok(())
}

fn under(fault: Fault, rig: &mut Rig, duration: Duration, seed: u64) -> Outcome<String> {
    let mut rng = Rng(seed);
    let endpoint = rig.store.endpoint().ok_or("there is no endpoint")?;
    let (proxy, endpoint) = Proxy::before(endpoint, rng.draw())?;
    rig.store.set_endpoint(endpoint);
    rig.store.environment.extend([("EBB_FLUSH_INTERVAL", "300ms".into()), ("EBB_BUCKET_TIMEOUT", "3s".into())]);
    if fault == Fault::StaleListings {
        // Otherwise nothing is listed twice.
        rig.store.environment.extend([("EBB_REVALIDATE", "1s".into())]);
    }
    rig.mount("")?;
    let root = rig.mountpoint();
    let cold = Cold::make(rig, &mut rng)?;
    let crew = Crew::new(&root, Mix::Plain, &mut rng)?;

    let stop = Arc::new(AtomicBool::new(false));
    let before = crew.done();
    let at_work = crew.start();
    thread::sleep(Duration::from_secs(1));
    let seen_before = proxy.seen();
    proxy.set(Some(fault));
    let reading = {
        let cold = cold.clone();
        spawn(&stop, move |stop| cold.read_until(stop))
    };
    let writing = {
        let (large, rng) = (Large::at(&root), Rng(rng.draw()));
        spawn(&stop, move |stop| large.write_until(rng, stop))
    };
    let listing = {
        let root = root.clone();
        spawn(&stop, move |stop| files::list_until(&root, stop))
    };
    thread::sleep(duration);
    let troubles = troubles(rig)?;
    stop.store(true, Ordering::Relaxed);
    let mut crew = at_work.stop()?;
    let seen = proxy.seen();
    proxy.set(None);
    let failed_reads = reading.join().map_err(|_| "the reader panicked")?.map_err(|error| format!("a file of the bucket: {error}"))?;
    let large = writing.join().map_err(|_| "the writer panicked")?.map_err(|error| format!("the large file: {error}"))?;
    listing.join().map_err(|_| "who lists panicked")?;
    if let Some(failed) = crew.failed() {
        return Err(format!("work did not go on from the cache: {failed}").into());
    }
    let requests = seen.requests - seen_before.requests;
    if requests > MOST_REQUESTS_PER_SEC * duration.as_secs().max(1) + (crew.done() - before) {
        return Err(format!("{requests} requests during the fault").into());
    }

    let drained = drain(rig)?;
    crew.verify()?;
    cold.verify()?;
    large.verify()?;
    tool::output(&mut rig.ebb(&["fsck", &root.display().to_string()]))?;
    rig.umount()?;
    rig.drop_cache()?;
    rig.mount("")?;
    crew.verify().map_err(|error| format!("from the bucket alone: {error}"))?;
    cold.verify().map_err(|error| format!("from the bucket alone: {error}"))?;
    large.verify().map_err(|error| format!("from the bucket alone: {error}"))?;
    left_over(&root, &proxy.seen(), &rig.store.url)?;
    rig.umount()?;
    let done = crew.done() - before;
    Ok(format!(
        "| {} | {done} | {failed_reads} | {requests}, {} | {:.1} s | {} |",
        fault.name(),
        seen.spoiled,
        drained.as_secs_f64(),
        told(&troubles)
    ))
}

/// The first of what is wrong, and how much else is.
fn told(troubles: &[String]) -> String {
    match troubles {
        [] => "nothing".into(),
        [one] => one.clone(),
        [first, more @ ..] => format!("{first}; and {} more", more.len()),
    }
}

fn spawn<T: Send + 'static>(stop: &Arc<AtomicBool>, work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> JoinHandle<T> {
    let stop = stop.clone();
    thread::spawn(move || work(&stop))
}

/// What `ebb status` says is wrong.
fn troubles(rig: &Rig) -> Outcome<Vec<String>> {
    let status = tool::output(&mut rig.ebb(&["status", &rig.mountpoint().display().to_string(), "--json"]))?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let troubles = status["troubles"].as_array().ok_or("the status says nothing of troubles")?;
    Ok(troubles.iter().filter_map(|trouble| trouble["what"].as_str()).map(|what| what.replace('|', "/")).collect())
}

/// How long until nothing is dirty any more.
fn drain(rig: &Rig) -> Outcome<Duration> {
    let began = Instant::now();
    let root = rig.mountpoint().display().to_string();
    while let Err(error) = tool::output(&mut rig.ebb(&["flush", &root])) {
        if began.elapsed() > DRAIN {
            return Err(format!("not drained after {DRAIN:?}: {error}").into());
        }
        thread::sleep(Duration::from_millis(100));
    }
    let left = troubles(rig)?;
    if left.is_empty() { Ok(began.elapsed()) } else { Err(format!("still said to be wrong when drained: {}", told(&left)).into()) }
}

/// Every object is a file's, and no upload is open.
fn left_over(root: &Path, seen: &Seen, url: &str) -> Outcome<()> {
    let prefix = url.splitn(4, '/').nth(3).map(|prefix| format!("{prefix}/")).unwrap_or_default();
    let mut files = BTreeSet::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                todo.push(entry.path());
            } else {
                files.insert(entry.path().strip_prefix(root)?.to_string_lossy().into_owned());
            }
        }
    }
    let objects =
        seen.objects.iter().filter_map(|key| key.strip_prefix(&prefix)).filter(|key| !key.starts_with(".ebb/") && !key.ends_with('/'));
    let orphans: Vec<&str> = objects.filter(|key| !files.contains(*key)).collect();
    if !orphans.is_empty() {
        return Err(format!("objects that are no files: {}", orphans.join(", ")).into());
    }
    if seen.uploads.is_empty() { Ok(()) } else { Err(format!("uploads that are still open: {:?}", seen.uploads).into()) }
}
