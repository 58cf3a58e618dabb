//! Counters of a node, compared with the requests that its bucket received.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Rate, SimBucket, Slowness, World};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// After this nothing is under way.
const QUIET: Duration = Duration::from_secs(60);

const BLOCK: usize = BLOCK_BYTES as usize;

async fn stats(client: &Client) -> NodeStats {
    match client.admin(AdminRequest::Stats).await.unwrap() {
        AdminReply::Stats(stats) => *stats,
        other => panic!("{other:?}"),
    }
}

/// Requests by kind, under the names of the simulated bucket.
fn asked(stats: &NodeStats) -> BTreeMap<String, u64> {
    stats
        .bucket
        .iter()
        .map(|counted| (counted.name.replace('-', "_"), counted.tally.time.count()))
        .collect()
}

fn seen(bucket: &SimBucket) -> BTreeMap<String, u64> {
    bucket.requests().into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect()
}

fn of<'a>(all: &'a [Counted], name: &str) -> &'a Tally {
    &all.iter().find(|counted| counted.name == name).unwrap_or_else(|| panic!("{name}")).tally
}

/// Situation: a file is read, written and flushed over a bucket that rejects every fifth request.
/// Expectation: the node counts exactly the requests that the bucket received, from its start on; a
/// rejection is an error, a missing object is none; kinds of reads are counted separately.
#[test]
fn request_counts_match_the_bucket() {
    let mut refused = 0;
    for seed in 0..20 {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.put_as_outsider("file", vec![7; 3 * BLOCK], vec![]).unwrap();
        let done = world.run(async {
            let process = world.machine("a").process("node");
            // So long that the head is not renewed during the test.
            let head_term = Duration::from_secs(100_000);
            let options = Options {
                owner: "counted".into(),
                embedded: true,
                head_term,
                ..Options::default()
            };
            let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
            let client: Rc<Client> =
                Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
            let (inner, clock) = (client.clone(), process.ports.clock.clone());
            let quiet = process.call(async move {
                // Requests in flight are not counted yet.
                clock.sleep(QUIET).await;
                stats(&inner).await
            });
            let calm = quiet.await.unwrap();
            assert_eq!(asked(&calm), seen(&bucket));
            assert!(calm.bucket.iter().all(|counted| counted.tally.errors == 0), "{calm:?}");

            let faults = BucketFaults { unavailable: Rate(200_000), ..BucketFaults::default() };
            world.set_faults(FaultPlan { bucket: faults, ..FaultPlan::default() });
            let (inner, sleeps) = (client.clone(), process.ports.clock.clone());
            let work = process.call(async move {
                let ino = inner.lookup(Ino::ROOT, &Name::new(b"file").unwrap()).await.unwrap().ino;
                for _ in 0..2 {
                    assert_eq!(inner.read(ino, 0, 3 * BLOCK).await.unwrap().len(), 3 * BLOCK);
                    // Delivered bytes are then written to the cache.
                    sleeps.sleep(QUIET).await;
                }
                inner
                    .write(&Caller::ROOT, ino, 0, Bytes::from(vec![1; 2 * BLOCK]), false)
                    .await
                    .unwrap();
                inner.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            });
            work.await.unwrap();
            world.set_faults(FaultPlan::default());
            let (inner, clock) = (client.clone(), process.ports.clock.clone());
            let quiet = process.call(async move {
                clock.sleep(QUIET).await;
                stats(&inner).await
            });
            let stats = quiet.await.unwrap();
            assert_eq!(asked(&stats), seen(&bucket));
            let whole = 3 * BLOCK as u64;
            let reads = ReadStats {
                from_cache: 1,
                from_bucket: 1,
                cache_bytes: whole,
                bucket_bytes: whole,
                zero_bytes: 0,
            };
            assert_eq!(stats.reads, reads);
            let (read, write) = (of(&stats.requests, "read"), of(&stats.requests, "write"));
            assert_eq!(
                (read.time.count(), read.bytes, write.time.count(), write.bytes),
                (2, 2 * whole, 1, 2 * BLOCK as u64)
            );
            let (get, errors) = (
                of(&stats.bucket, "get"),
                stats.bucket.iter().map(|counted| counted.tally.errors).sum::<u64>(),
            );
            assert!(get.bytes >= whole && get.time.sum() > Duration::ZERO, "{get:?}");
            (errors, stats.uptime_ms)
        });
        let (errors, uptime_ms) = done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        assert!(uptime_ms > 0);
        refused += errors;
    }
    assert!(refused > 0);
}

/// A request without an answer that is given up counts as failed.
#[test]
fn abandoned_request_counts_as_an_error() {
    let world = World::new(1);
    let bucket = world.bucket();
    bucket.put_as_outsider("file", vec![7; BLOCK], vec![]).unwrap();
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let (bucket_timeout, head_term) = (Duration::from_secs(20), Duration::from_secs(100_000));
        let options = Options {
            owner: "counted".into(),
            embedded: true,
            bucket_timeout,
            head_term,
            ..Options::default()
        };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client: Rc<Client> =
            Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        let inner = client.clone();
        let file = process
            .call(async move { inner.lookup(Ino::ROOT, &Name::new(b"file").unwrap()).await });
        let ino = file.await.unwrap().unwrap().ino;
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(100 * 3600) };
        world.set_faults(FaultPlan {
            bucket: BucketFaults { slow, ..BucketFaults::default() },
            ..FaultPlan::default()
        });
        let inner = client.clone();
        let told = process.call(async move {
            let gets = |stats: &NodeStats| {
                stats
                    .bucket
                    .iter()
                    .find(|counted| counted.name == "get")
                    .map_or(0, |get| get.tally.errors)
            };
            let before = stats(&inner).await;
            assert_eq!(inner.read(ino, 0, 1).await, Err(FsError::TimedOut));
            let after = stats(&inner).await;
            assert!(gets(&after) > gets(&before), "{after:?}");
            let read = of(&after.requests, "read");
            assert_eq!((read.time.count(), read.errors, after.reads.from_bucket), (1, 1, 1));
            assert!(read.time.most() >= bucket_timeout, "{read:?}");
        });
        told.await.unwrap();
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}
