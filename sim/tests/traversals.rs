//! Who looks into directories that only the bucket has.

use bytes::Bytes;
use ebb_client::{Client, Page};
use ebb_model::*;
use ebb_node::Options;
use ebb_ports::Condition;
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Rate, Rng, Slowness, World};
use std::time::Duration;

/// Does this with a volume of which nothing is known, over a store that has an object for each of these keys, and takes up to
/// 100 ms for an answer. Gives how long that took, and how many listings.
fn with_keys<T>(keys: impl IntoIterator<Item = String>, work: impl AsyncFn(&World, &Client) -> T) -> (T, Duration, u64) {
    let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(100) };
    let faults = FaultPlan { bucket: BucketFaults { slow, ..BucketFaults::default() }, ..FaultPlan::default() };
    let world = World::with_faults(1, faults);
    let bucket = world.bucket();
    let done = world.run(async {
        let outside = world.machine("outside").process("others").bucket(&bucket);
        for key in keys {
            outside.put(&key, Bytes::from(key.clone()), Condition::Always, vec![]).await.unwrap();
        }
        let process = world.machine("a").process("node");
        let options = Options { volume: "ebb".into(), embedded: true, ..Options::default() };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        let listings = || bucket.requests().get("list").copied().unwrap_or(0);
        let (began, before) = (world.now(), listings());
        let done = work(&world, &client).await;
        let took = world.now() - began;
        // What nobody waits for comes, too.
        world.sleep(Duration::from_secs(5)).await;
        (done, took, listings() - before)
    });
    done.unwrap()
}

/// All files and directories below one, in the order of find(1).
async fn find(client: &Client, top: Ino) -> usize {
    let (mut found, mut left) = (0, vec![top]);
    while let Some(dir) = left.pop() {
        let (mut after, mut below) = (Cookie::START, Vec::new());
        loop {
            let Page { entries, end } = client.readdir(dir, after, 100).await.unwrap();
            found += entries.len();
            after = entries.last().map_or(after, |(entry, _)| entry.cookie);
            below.extend(entries.into_iter().filter(|(entry, _)| entry.kind == FileKind::Directory).map(|(entry, _)| entry.ino));
            if end {
                break;
            }
        }
        left.extend(below.into_iter().rev());
    }
    found
}

async fn dir(client: &Client, name: &str) -> Ino {
    client.lookup(Ino::ROOT, &Name::new(name.as_bytes()).unwrap()).await.unwrap().ino
}

/// Situation: find(1) on what only the bucket has. Danger: each of 200 directories waits for the one before. Expectation: they come
/// several at one time, however deep they are.
#[test]
fn who_looks_into_all_directories_does_not_wait_for_each() {
    let flat = (0..200).map(|at| format!("{at:03}/file"));
    let deep = (0..10).flat_map(|at| (0..19).map(move |below| format!("{at}/{below:02}/file")));
    for (keys, entries) in [(flat.collect::<Vec<_>>(), 400), (deep.collect(), 390)] {
        let (found, took, listings) = with_keys(keys, async |_, client| find(client, Ino::ROOT).await);
        assert_eq!(found, entries);
        assert!(took < Duration::from_millis(200 * 50 / 4), "{took:?}");
        assert!(listings <= 210, "{listings}");
    }
}

/// As git(1) and rsync(1) do, who know the names.
#[test]
fn who_asks_for_names_in_all_directories_does_not_wait_for_each() {
    let (_, took, _) = with_keys((0..200).map(|at| format!("{at:03}/file")), async |_, client| {
        for at in 0..200 {
            let dir = dir(client, &format!("{at:03}")).await;
            client.lookup(dir, &Name::new(&b"file"[..]).unwrap()).await.unwrap();
        }
    });
    assert!(took < Duration::from_millis(200 * 50 / 4), "{took:?}");
}

/// Danger: each directory that anybody looks into has others listed, which cost money.
#[test]
fn who_looks_into_directories_anywhere_is_not_run_ahead_of() {
    let ((), _, listings) = with_keys((0..400).map(|at| format!("{at:03}/file")), async |_, client| {
        let rng = Rng::new(7);
        for _ in 0..40 {
            let dir = dir(client, &format!("{:03}", rng.below(400))).await;
            client.lookup(dir, &Name::new(&b"file"[..]).unwrap()).await.unwrap();
        }
    });
    assert!(listings < 50, "{listings}");
}

/// Situation: find(1) on one of many directories. Expectation: of the others nothing is listed.
#[test]
fn what_is_elsewhere_is_not_listed() {
    let keys = (0..50).flat_map(|at| (0..10).map(move |below| format!("{at:02}/{below}/file")));
    let (found, _, listings) = with_keys(keys, async |_, client| find(client, dir(client, "20").await).await);
    assert_eq!(found, 20);
    // The root, the directory, and those in it.
    assert!(listings <= 1 + 1 + 10 + 1, "{listings}");
}
