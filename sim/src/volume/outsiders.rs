//! Other programs that change the bucket while the volume is used (S-15), and clients that read
//! these changes. Both keep to one directory that no other client touches, so the oracle of the
//! volume does not know it.
//!
//! Law: every read returns bytes of one version of the object, and that version was in the bucket
//! within the revalidation interval before the read.

use super::plan::Plan;
use super::rig::OTHERS;
use crate::oracle::Permitted;
use crate::{Executor, Rng, SimBucket, World};
use ebb_client::Client;
use ebb_core::backing::page_key;
use ebb_model::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

#[derive(Clone)]
pub struct Outsiders {
    shared: Rc<Shared>,
}

struct Shared {
    bucket: SimBucket,
    executor: Executor,
    permitted: Permitted,
    /// A version replaced longer ago than this before a read is not shown any more; `None`: the
    /// bucket fails at times, and cached versions are shown for as long as that takes (S-15f).
    patience: Option<Duration>,
    files: RefCell<BTreeMap<String, Vec<Version>>>,
    /// Versions are numbered over all files.
    versions: Cell<u8>,
    /// The directory, once a client has looked it up: ebb keeps its times in a page.
    dir: Cell<Option<Ino>>,
    is_over: Cell<bool>,
    problems: RefCell<Vec<String>>,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    since: Duration,
    /// Number and length, or no object.
    body: Option<(u8, u64)>,
}

/// Replaced at times, never deleted.
const STAYING: [&str; 3] = ["s0", "s1", "s2"];
/// Also deleted.
const PASSING: [&str; 2] = ["p0", "p1"];

impl Outsiders {
    /// Puts the first objects, and changes them until [`Outsiders::stop`].
    pub fn begin(world: &World, plan: &Plan, rng: &Rng) -> Option<Outsiders> {
        let interval = plan.options.revalidate?;
        let outsiders = Outsiders {
            shared: Rc::new(Shared {
                bucket: world.bucket(),
                executor: world.executor().clone(),
                permitted: plan.permitted(),
                patience: plan.staleness().map(|stale| interval + stale),
                files: RefCell::default(),
                versions: Cell::new(0),
                dir: Cell::default(),
                is_over: Cell::new(false),
                problems: RefCell::default(),
            }),
        };
        let rng = rng.split("outsiders");
        STAYING.iter().for_each(|name| outsiders.put(name, &rng));
        let (work, executor) = (outsiders.clone(), world.executor());
        executor.spawn(executor.world(), Box::pin(async move { work.work(rng).await }));
        Some(outsiders)
    }

    pub fn stop(&self) {
        self.shared.is_over.set(true);
    }

    pub fn problems(&self) -> Vec<String> {
        self.shared.problems.borrow().clone()
    }

    /// The objects now by key, with the page of their directory and its pieces.
    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        let files = self.shared.files.borrow();
        let current = files.iter().filter_map(|(name, versions)| {
            let (number, len_bytes) = versions.last()?.body?;
            Some((key(name), body(number, 0, len_bytes)))
        });
        let mut objects: BTreeMap<String, Vec<u8>> = current.collect();
        if let Some(dir) = self.shared.dir.get() {
            let page = page_key(dir);
            let pieces = format!("{}-", page.replacen("/d/", "/e/", 1));
            let all = self.shared.bucket.objects().into_iter();
            let of_dir = all.filter(|(key, _)| *key == page || key.starts_with(&pieces));
            objects.extend(of_dir.map(|(key, object)| (key, object.body.to_vec())));
        }
        objects
    }

    async fn work(&self, rng: Rng) {
        let executor = &self.shared.executor;
        let pause = [Duration::from_millis(300), Duration::from_secs(5)][rng.index(2)];
        while self.shared.versions.get() < MOST_VERSIONS {
            executor.sleep(executor.world(), rng.duration(Duration::ZERO, pause)).await;
            if self.shared.is_over.get() {
                return;
            }
            match rng.below(4) {
                0 => self.delete(PASSING[rng.index(PASSING.len())]),
                1 => self.put(PASSING[rng.index(PASSING.len())], &rng),
                _ => self.put(STAYING[rng.index(STAYING.len())], &rng),
            }
        }
    }

    fn put(&self, name: &str, rng: &Rng) {
        let number = self.shared.versions.get() + 1;
        self.shared.versions.set(number);
        // Also longer than the parts of an upload, and than one block.
        let len_bytes = rng.below([10, 5_000, 100_000, 250_000][rng.index(4)]);
        let put =
            self.shared.bucket.put_as_outsider(&key(name), body(number, 0, len_bytes), vec![]);
        put.expect("outsiders meet no faults");
        self.note(name, Some((number, len_bytes)));
    }

    fn delete(&self, name: &str) {
        self.shared.bucket.delete_as_outsider(&key(name));
        self.note(name, None);
    }

    fn note(&self, name: &str, body: Option<(u8, u64)>) {
        let since = self.shared.executor.now();
        let mut files = self.shared.files.borrow_mut();
        files.entry(name.to_owned()).or_default().push(Version { since, body });
    }

    /// Looks files up and reads pieces of them, in the process of a client.
    pub async fn read(self, client: Client, rng: Rng, leaving: Rc<Cell<bool>>) {
        let executor = &self.shared.executor;
        for _ in 0..READS {
            executor
                .sleep(executor.world(), rng.duration(Duration::ZERO, Duration::from_secs(1)))
                .await;
            let name = match rng.below(3) {
                0 => PASSING[rng.index(PASSING.len())],
                _ => STAYING[rng.index(STAYING.len())],
            };
            let offset = [0, rng.below(200_000)][rng.index(2)];
            let began = executor.now();
            let len = 1 + rng.index(250_000);
            let found = read(&client, name, offset, len).await;
            if leaving.get() {
                return;
            }
            self.judge((name, offset, len), began, found);
        }
    }

    /// In calm and longer after the last change than the interval, all current versions are seen.
    pub async fn look(self, client: Client) -> Vec<String> {
        let dir = Name::new(OTHERS.as_bytes()).expect("this can be a name");
        if let Ok(dir) = client.lookup(Ino::ROOT, &dir).await {
            self.shared.dir.set(Some(dir.ino));
        }
        for name in STAYING.iter().chain(&PASSING) {
            let began = self.shared.executor.now();
            let found = read(&client, name, 0, MAX_IO_BYTES).await;
            let versions = self.versions(name);
            let current = versions.last().and_then(|version| version.body);
            let is_current = match (&found, current) {
                (Ok(data), Some((number, len_bytes))) => *data == body(number, 0, len_bytes),
                (Err(FsError::NotFound), None) => true,
                _ => false,
            };
            if !is_current {
                self.report(name, 0, began, &found, "is not the current version");
            }
        }
        self.problems()
    }

    fn versions(&self, name: &str) -> Vec<Version> {
        self.shared.files.borrow().get(name).cloned().unwrap_or_default()
    }

    fn judge(
        &self,
        (name, offset, len): (&str, u64, usize),
        began: Duration,
        found: Result<Vec<u8>, FsError>,
    ) {
        let since = self.shared.patience.map_or(Duration::ZERO, |long| began.saturating_sub(long));
        let versions = self.versions(name);
        let mut possible: Vec<Option<(u8, u64)>> = Vec::new();
        if versions.first().is_none_or(|first| first.since > since) && PASSING.contains(&name) {
            possible.push(None);
        }
        for (at, version) in versions.iter().enumerate() {
            if versions.get(at + 1).is_none_or(|next| next.since >= since) {
                possible.push(version.body);
            }
        }
        let permitted = self.shared.permitted;
        let is_explained = match &found {
            Ok(data) => possible.iter().flatten().any(|(number, len_bytes)| {
                let len_bytes = len_bytes.saturating_sub(offset).min(len as u64);
                *data == body(*number, offset, len_bytes)
            }),
            Err(FsError::NotFound) => possible.contains(&None),
            // It was deleted or made anew between the lookup and the read.
            Err(FsError::Stale) => PASSING.contains(&name),
            // It was deleted after the lookup, and its bytes are not cached.
            Err(FsError::Io) => permitted.io || PASSING.contains(&name),
            Err(FsError::NoSpace) => permitted.room || permitted.bucket,
            Err(FsError::TimedOut | FsError::AccessDenied) => permitted.bucket,
            Err(_) => false,
        };
        if !is_explained {
            self.report(name, offset, began, &found, "is no version of the time");
        }
    }

    fn report(
        &self,
        name: &str,
        offset: u64,
        began: Duration,
        found: &Result<Vec<u8>, FsError>,
        why: &str,
    ) {
        let found = match found {
            Ok(data) => format!("{} bytes, {:?}", data.len(), numbers(data, offset)),
            Err(error) => format!("{error:?}"),
        };
        let (now, versions) = (self.shared.executor.now(), self.versions(name));
        self.shared.problems.borrow_mut().push(format!(
            "{OTHERS}/{name} read from {offset} between {began:?} and {now:?} {why}: {found}; \
             versions: {versions:?}"
        ));
    }
}

async fn read(client: &Client, name: &str, offset: u64, len: usize) -> Result<Vec<u8>, FsError> {
    let named = |name: &str| Name::new(name.as_bytes()).expect("these can be names");
    let dir = client.lookup(Ino::ROOT, &named(OTHERS)).await?;
    let file = client.lookup(dir.ino, &named(name)).await?;
    Ok(client.read(file.ino, offset, len).await?.to_vec())
}

fn key(name: &str) -> String {
    format!("{OTHERS}/{name}")
}

/// Two versions differ in every byte.
fn body(number: u8, offset: u64, len_bytes: u64) -> Vec<u8> {
    (offset..offset + len_bytes).map(|at| number.wrapping_add((at / 64) as u8)).collect()
}

/// The versions that the bytes are of, in order.
fn numbers(data: &[u8], offset: u64) -> Vec<u8> {
    let number = |(at, byte): (usize, &u8)| byte.wrapping_sub(((offset + at as u64) / 64) as u8);
    let mut numbers: Vec<u8> = data.iter().enumerate().map(number).collect();
    numbers.dedup();
    numbers
}

/// A version's number fits into a byte.
const MOST_VERSIONS: u8 = 250;

const READS: u64 = 100;
