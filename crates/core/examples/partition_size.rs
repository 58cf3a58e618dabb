//! Memory and time per file of a partition: `cargo run --release -p ebb-core --example
//! partition_size [FILES]`.
//!
//! Creates files like an application: 1000 per directory with names of 21 characters and 4 KiB
//! each. Then lists, looks up and removes them in another order.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // It measures.

use ebb_core::backing::{Interpreted, Listed, Listing, Scope};
use ebb_core::partition::Partition;
use ebb_core::state::State;
use ebb_model::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const FILES_PER_DIRECTORY: u64 = 1000;
const KEYS_PER_PART: u64 = 1000;

struct Counting;

static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        ALLOCATED_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The core has no clock; the example asks the system.
#[allow(clippy::disallowed_methods, reason = "an example measures")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

fn main() {
    let files: u64 = std::env::args()
        .nth(1)
        .map_or(1_000_000, |files| files.parse().expect("a number of files"));
    let start = ALLOCATED_BYTES.load(Relaxed);
    let mut volume = Volume::new();
    let mut dirs = Vec::new();

    report("create and write", files, || {
        for number in 0..files {
            if number % FILES_PER_DIRECTORY == 0 {
                dirs.push(volume.make(Ino::ROOT, number, Make::Directory));
            }
            let ino = volume.make(dirs[dirs.len() - 1], number, Make::Regular);
            volume.run(Mutation::Write { ino, offset: 0, len_bytes: 4096, drop_set_id: false });
        }
    });
    let held = ALLOCATED_BYTES.load(Relaxed) - start;
    let counted = volume.state.memory_bytes() as usize;
    println!(
        "memory: {:.0} bytes per file as asked of the allocator, {:.0} of them counted, {:.0} \
         resident",
        per(held, files),
        per(counted, files),
        per(resident_bytes(), files)
    );

    report("lookup", files, || {
        for number in (0..files).map(|number| number * 7919 % files) {
            let dir = dirs[(number / FILES_PER_DIRECTORY) as usize];
            volume.state.namespace().lookup(dir, &name(number)).expect("it was made");
        }
    });
    report("list with attributes", files, || {
        for dir in &dirs {
            let (_, end) = volume
                .state
                .namespace()
                .read_dir(*dir, Cookie::START, usize::MAX)
                .expect("it is a directory");
            assert!(end);
        }
    });
    report("check", files, || assert_eq!(volume.state.check(), Vec::<String>::new()));
    let snapshot = volume.state.clone();
    report("snapshot", files, || assert!(snapshot.partition().items().count() as u64 > files));
    report("unlink beside a snapshot", files, || {
        for number in (0..files).map(|number| number * 7919 % files) {
            let parent = dirs[(number / FILES_PER_DIRECTORY) as usize];
            volume.run(Mutation::Unlink { parent, name: name(number), holders: vec![] });
        }
    });
    assert_eq!(volume.state.namespace().len(), dirs.len() + 1);
    assert!(snapshot.namespace().len() as u64 > files);

    let mut volume = Volume::of_a_bucket();
    let parts: Vec<_> = (0..files.div_ceil(KEYS_PER_PART)).map(listed).collect();
    report("interpret and install a listing", files, || {
        parts.iter().for_each(|part| volume.install(part))
    });
    assert_eq!(volume.state.namespace().len() as u64, parts.len() as u64 * KEYS_PER_PART + 1);
    println!(
        "memory: {:.0} bytes per name counted",
        per(volume.state.memory_bytes() as usize, files)
    );
}

/// In the order of a bucket's listing.
fn listed(part: u64) -> Vec<Listed> {
    let object = |number| Listed::Object {
        key: format!("object-{number:012}"),
        etag: format!("\"{:032x}\"", u128::from(number) * 0x9e37_79b9_7f4a_7c15),
        len_bytes: 4096,
        modified: Time::from_secs(1_800_000_000),
    };
    (part * KEYS_PER_PART..(part + 1) * KEYS_PER_PART).map(object).collect()
}

struct Volume {
    state: State,
    sequence: u64,
}

const SESSION: SessionId = SessionId(1);

impl Volume {
    fn new() -> Volume {
        let mut volume = Volume {
            state: State::of(Partition::new(IdRange::whole(IdEpoch(1)), root_record(), false)),
            sequence: 0,
        };
        volume.apply(&Command::SessionOpen {
            session: SESSION,
            client: "example".into(),
            replaces: None,
        });
        volume
    }

    fn of_a_bucket() -> Volume {
        Volume {
            state: State::of(Partition::new(IdRange::whole(IdEpoch(1)), root_record(), true)),
            sequence: 0,
        }
    }

    fn install(&mut self, entries: &[Listed]) {
        let (dir, backing, namespace) = (Ino::ROOT, self.state.backing(), self.state.namespace());
        let listing = Listing { dir, entries, page: None, scope: Scope::Next, after: None };
        let mut draw = namespace.draw_ids(0);
        let Interpreted { entries, hidden, .. } = backing
            .interpret(namespace, &listing, |_| draw.draw(dir.slot()).expect("an id is left"));
        let stamp =
            Stamp { time: Time::from_secs(1_800_000_000), version: self.state.next_version() };
        let (epoch, owner, progress) = (0, (0, 0), LoadProgress::Unchanged);
        self.apply(&Command::Backing(BackingCommand::Install {
            dir,
            epoch,
            entries,
            hidden,
            owner,
            progress,
            stamp,
        }));
    }

    fn make(&mut self, parent: Ino, number: u64, what: Make) -> Ino {
        let slot = match what {
            // As random as in a node.
            Make::Directory => Slot((number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16),
            _ => parent.slot(),
        };
        let ino = self.state.namespace().next_ino(slot).expect("an id is left");
        self.run(Mutation::Make { parent, name: name(number), ino, mode: 0o755, what });
        ino
    }

    fn run(&mut self, mutation: Mutation) {
        self.sequence += 1;
        let tx = TxId { session: SESSION, slot: 0, sequence: self.sequence };
        // As if 10,000 operations arrived per second.
        let time = Time {
            secs: 1_800_000_000 + (self.sequence / 10_000) as i64,
            nanos: (self.sequence % 10_000) as u32 * 100_003 % 1_000_000_000,
        };
        let stamp = Stamp { time, version: self.state.next_version() };
        if let Mutation::Write { ino, .. } = mutation {
            let (version, sums) = (stamp.version, vec![Some(self.sequence as u32)]);
            let staged = LocalCommand::Staged { ino, version, first: 0, sums, range: None };
            self.state.stage(&staged);
        }
        self.apply(&Command::Client { tx, caller: Caller::ROOT, stamp, mutation });
    }

    fn apply(&mut self, command: &Command) {
        let next = LogIndex(self.state.applied().0 + 1);
        let answer = self.state.apply(next, command).answer;
        assert!(answer.is_none_or(|answer| answer.is_ok()), "nothing stands against it");
    }
}

fn root_record() -> InstalledRecord {
    let time = Time::from_secs(0);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    InstalledRecord {
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        atime,
        mtime,
        ctime,
        btime,
        xattrs: vec![],
        links: vec![],
    }
}

/// Scattered like real names: a directory is not filled in order.
fn name(number: u64) -> Name {
    Name::new(format!("{:016x}.file", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).as_bytes())
        .expect("a good name")
}

fn report(what: &str, files: u64, work: impl FnOnce()) {
    let start = now();
    work();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{what}: {:.2} s, {:.0} thousand per second",
        seconds,
        files as f64 / seconds / 1000.0
    );
}

fn per(bytes: usize, files: u64) -> f64 {
    bytes as f64 / files as f64
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) * 1024
}
