//! Store faults on real processes: work continues from the cache, no data is lost, and all dirty
//! data reaches the bucket after the fault.
//!
//! For each fault: work with a healthy store, then with the fault, then flush; all files are
//! compared with the acknowledged state, from the cache and from the bucket alone, and no stray
//! object or upload may be left. Meanwhile other threads read files that only the bucket has, and
//! list all directories: an error is allowed, wrong bytes are not. While the fault lasts and the
//! mount is idle, the node must report the trouble and must not loop.

mod files;
mod proxy;

use crate::finding::at;
use crate::rig::{Rig, Shape};
use crate::rng::Rng;
use crate::workload::{Crew, Mix};
use crate::{Outcome, name_of, tool};
use clap::ValueEnum;
use files::{Cold, Others};
use proxy::{Proxy, Request, Seen};
use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Requests fail with 500 and have no effect.
    InternalError,
    /// Many requests fail with 503 SlowDown.
    SlowDown,
    /// Requests take effect, and the connection ends without a reply.
    LostAnswers,
    /// Requests take effect, and no reply comes until the fault is over.
    Silence,
    /// Uploads take effect long after their connection has ended.
    LateEffects,
    /// Bodies of objects are truncated.
    Truncated,
    /// One bit of a file's body is flipped.
    Garbled,
    /// Listings show the state before the fault.
    StaleListings,
    /// Unfinished uploads vanish.
    LostUploads,
    /// The credentials have expired.
    ExpiredToken,
    /// The clocks differ too much.
    ClockSkew,
    /// Changes are forbidden.
    ReadOnly,
    /// The store does not answer.
    Gone,
    /// The store ignores conditions of changes, from the start.
    Unconditional,
    /// The store rejects requests with conditions.
    ConditionsRefused,
}

impl Fault {
    fn concerns(self, request: &Request) -> bool {
        match self {
            Fault::ReadOnly => request.is_change(),
            Fault::LateEffects => request.is_effect(),
            Fault::Truncated | Fault::Garbled => request.is_download(),
            Fault::StaleListings => request.is_listing(),
            Fault::LostUploads => request.is_of_upload(),
            Fault::Unconditional | Fault::ConditionsRefused => request.is_conditional_change(),
            _ => true,
        }
    }

    /// Hardly any request succeeds: the node can only retry, and must report it.
    fn lasts(self) -> bool {
        matches!(
            self,
            Fault::SlowDown
                | Fault::ExpiredToken
                | Fault::ClockSkew
                | Fault::ReadOnly
                | Fault::Gone
        )
    }

    /// The store's behaviour after the fault.
    fn afterwards(self) -> Option<Fault> {
        matches!(self, Fault::Unconditional | Fault::ConditionsRefused).then_some(self)
    }

    /// Share of the affected requests.
    fn percent(self) -> u64 {
        match self {
            Fault::InternalError
            | Fault::LostAnswers
            | Fault::LateEffects
            | Fault::Truncated
            | Fault::LostUploads => 50,
            Fault::Garbled => 20,
            Fault::SlowDown => 90,
            Fault::Silence => 20,
            _ => 100,
        }
    }
}

/// Limit after a fault until all dirty data is in the bucket, garbage is removed, and no trouble is
/// reported.
const DRAIN: Duration = Duration::from_secs(120);

/// More requests per second of a fault, beyond one per operation, are a hot loop.
const MOST_REQUESTS_PER_SEC: u64 = 1000;

/// How long the mount stays idle during a fault.
const QUIET: Duration = Duration::from_secs(3);

/// A larger share of one core while the mount is idle is a hot loop. Usual is 0.01.
const MOST_CORE: f64 = 0.5;

/// Limit until a fault has affected a request, or is reported.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polling interval.
const PACE: Duration = Duration::from_millis(200);

pub fn run(faults: &[Fault], seconds: u64, seed: u64, release: bool) -> Outcome<()> {
    let binaries = tool::build(&["ebb", "ebb-s3-server"], release)?;
    println!("| Fault | Requests spoiled | Acknowledged meanwhile | Reads failed | Drained in |");
    println!("|---|---|---|---|---|");
    let mut all_said = Vec::new();
    for fault in faults {
        let mut rig = Rig::new(Shape::EmbeddedS3, &binaries)?;
        match under(*fault, &mut rig, Duration::from_secs(seconds), seed) {
            Ok(Report { row, said }) => {
                println!("{row}");
                all_said.push(said);
            }
            Err(error) => {
                rig.keep();
                return Err(format!(
                    "{}, seed {seed}: {error}\nleft to look at: {}",
                    name_of(*fault),
                    rig.dir.display()
                )
                .into());
            }
        }
    }
    println!(
        "\nNothing was lost, wrong or left over. What the node took and said while a fault lasted \
         and nobody used it:"
    );
    all_said.iter().for_each(|said| println!("{said}"));
    Ok(())
}

struct Report {
    row: String,
    said: String,
}

fn under(fault: Fault, rig: &mut Rig, duration: Duration, seed: u64) -> Outcome<Report> {
    let mut rng = Rng(seed);
    let proxy = mount_behind_proxy(fault, rig, rng.draw())?;
    let root = rig.mountpoint();
    let cold = Cold::make(rig, &mut rng)?;
    let crew = Crew::new(&root, Mix::Plain, &mut rng)?;

    let before = crew.done();
    let at_work = crew.start();
    thread::sleep(Duration::from_secs(1));
    let early = troubles(rig)?;
    if !early.is_empty() {
        return Err(format!("said to be wrong before the fault: {}", told(&early)).into());
    }
    let seen_before = if fault.afterwards().is_some() { Seen::default() } else { proxy.seen() };
    let began = wall_secs()?;
    proxy.set(Some(fault));
    let others = Others::start(&root, &cold, Rng(rng.draw()));
    thread::sleep(duration);
    let spoils = Instant::now();
    while proxy.seen().spoiled == 0 && spoils.elapsed() < PATIENCE {
        thread::sleep(PACE);
    }
    let worked = spoils.elapsed() + duration;
    let mut crew = at_work.stop()?;
    let seen = proxy.seen();
    let (failed_reads, large) = others.stop()?;
    if let Some(failed) = crew.failed() {
        return Err(format!("work did not go on from the cache: {failed}").into());
    }
    if seen.spoiled == 0 {
        return Err("nothing was spoiled: the fault tries nothing".into());
    }
    let requests = seen.requests - seen_before.requests;
    if requests > MOST_REQUESTS_PER_SEC * worked.as_secs().max(1) + (crew.done() - before) {
        return Err(format!("{requests} requests during the fault").into());
    }
    let said = quietly(fault, rig, began)?;
    proxy.set(fault.afterwards());

    let drained = drain(rig)?;
    let mut verify = || crew.verify().and_then(|()| cold.verify()).and_then(|()| large.verify());
    verify()?;
    rig.fsck()?;
    rig.umount()?;
    rig.drop_cache()?;
    rig.mount("")?;
    verify().map_err(at("from the bucket alone"))?;
    wait_for_the_rest_to_go(rig, &proxy)?;
    rig.fsck_bucket()?;
    rig.umount()?;
    let done = crew.done() - before;
    let row = format!(
        "| {} | {} of {requests} | {done} | {failed_reads} | {:.1} s |",
        name_of(fault),
        seen.spoiled - seen_before.spoiled,
        drained.as_secs_f64()
    );
    Ok(Report { row, said })
}

/// The store behaves as it will after the fault.
fn mount_behind_proxy(fault: Fault, rig: &mut Rig, seed: u64) -> Outcome<Proxy> {
    let endpoint = rig.store.endpoint().ok_or("there is no endpoint")?;
    let (proxy, endpoint) = Proxy::before(endpoint, seed)?;
    rig.store.set_endpoint(endpoint);
    rig.store.environment.push(("EBB_FLUSH_INTERVAL", "300ms".into()));
    rig.set_advanced("bucket-timeout = 3\n")?;
    if fault == Fault::StaleListings {
        // Otherwise no directory is listed twice.
        rig.store.environment.extend([("EBB_REVALIDATE", "1s".into())]);
    }
    proxy.set(fault.afterwards());
    if fault.afterwards().is_some() {
        if rig.mount("").is_ok() {
            return Err("it was mounted though the bucket cannot say who else serves it".into());
        }
        rig.set_flags(&["--take-over=now"]);
    }
    rig.mount("")?;
    Ok(proxy)
}

/// Measures the CPU use of an idle node during a fault that began at `began`, and checks its
/// report.
fn quietly(fault: Fault, rig: &Rig, began: i64) -> Outcome<String> {
    let (start, taken) = (Instant::now(), rig.processor_time()?);
    thread::sleep(QUIET);
    let core = (rig.processor_time()? - taken).as_secs_f64() / start.elapsed().as_secs_f64();
    let mut troubles = troubles(rig)?;
    while fault.lasts() && troubles.is_empty() {
        if start.elapsed() > PATIENCE {
            return Err("`ebb status` says nothing of it".into());
        }
        thread::sleep(PACE);
        troubles = self::troubles(rig)?;
    }
    let now = wall_secs()?;
    if let Some(Trouble { since, what }) =
        troubles.iter().find(|trouble| !(began..=now).contains(&trouble.since))
    {
        return Err(format!(
            "the fault lasts since {began}, and at {now} this is said to be wrong \
            since {since}: {what}"
        )
        .into());
    }
    if core > MOST_CORE {
        return Err(format!("{core:.2} of a core are taken though nobody uses the mount").into());
    }
    Ok(format!("{}: {core:.2} of a core; {}", name_of(fault), told(&troubles)))
}

fn wall_secs() -> Outcome<i64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().try_into()?)
}

/// One trouble of `ebb status`, and its beginning in seconds since 1970.
struct Trouble {
    since: i64,
    what: String,
}

/// The first trouble, and the number of others.
fn told(troubles: &[Trouble]) -> String {
    match troubles {
        [] => "nothing".into(),
        [one] => one.what.clone(),
        [first, more @ ..] => format!("{}; and {} more", first.what, more.len()),
    }
}

fn troubles(rig: &Rig) -> Outcome<Vec<Trouble>> {
    let status =
        tool::output(&mut rig.ebb(&["status", &rig.mountpoint().display().to_string(), "--json"]))?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let troubles = status["troubles"].as_array().ok_or("the status says nothing of troubles")?;
    let trouble = |one: &serde_json::Value| {
        Some(Trouble { since: one["since_secs"].as_i64()?, what: one["what"].as_str()?.to_owned() })
    };
    troubles
        .iter()
        .map(|one| trouble(one).ok_or_else(|| format!("no trouble: {one}").into()))
        .collect()
}

/// Time until no data is dirty. A trouble may be reported a little longer, until the next attempt
/// succeeds.
fn drain(rig: &Rig) -> Outcome<Duration> {
    let began = Instant::now();
    while let Err(error) = rig.flush() {
        if began.elapsed() > DRAIN {
            return Err(format!("not drained after {DRAIN:?}: {error}").into());
        }
        thread::sleep(Duration::from_millis(100));
    }
    let drained = began.elapsed();
    let mut left = troubles(rig)?;
    while !left.is_empty() && began.elapsed() < DRAIN {
        thread::sleep(PACE);
        left = troubles(rig)?;
    }
    if left.is_empty() {
        Ok(drained)
    } else {
        Err(format!("still said to be wrong when drained: {}", told(&left)).into())
    }
}

fn wait_for_the_rest_to_go(rig: &Rig, proxy: &Proxy) -> Outcome<()> {
    let began = Instant::now();
    while let Err(left) = left_over(rig, &proxy.seen()) {
        if began.elapsed() > DRAIN {
            return Err(left);
        }
        thread::sleep(PACE);
    }
    Ok(())
}

/// Every object belongs to a file, a directory or the volume, and no upload is open. `ebb fsck`
/// checks the objects below `.ebb/d/` and `.ebb/e/`.
fn left_over(rig: &Rig, seen: &Seen) -> Outcome<()> {
    let prefix =
        rig.store.url.splitn(4, '/').nth(3).map(|prefix| format!("{prefix}/")).unwrap_or_default();
    let names = rig.tree()?.into_iter().map(|(path, kind)| {
        let end = if kind.is_dir() { "/" } else { "" };
        format!("{}{end}", path.display())
    });
    let names: BTreeSet<String> = names.collect();
    let is_of_the_volume = |key: &str| {
        key == ".ebb/head" || [".ebb/d/", ".ebb/e/"].iter().any(|below| key.starts_with(below))
    };
    let objects = seen.objects.iter().filter_map(|key| key.strip_prefix(&prefix));
    let orphans: Vec<&str> =
        objects.filter(|key| !names.contains(*key) && !is_of_the_volume(key)).collect();
    if !orphans.is_empty() {
        return Err(format!("objects that belong to nothing: {}", orphans.join(", ")).into());
    }
    if seen.uploads.is_empty() {
        Ok(())
    } else {
        Err(format!("uploads that are still open: {:?}", seen.uploads).into())
    }
}
