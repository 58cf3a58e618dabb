//! Back-pressure: the amount of dirty and cached data at which writers wait.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_ports::Capabilities;
use ebb_sim::volume::rig;
use ebb_sim::{DiskFaults, DiskOperation, FaultPlan, Rate, Slowness, World};
use futures_util::future::{Either, join, join_all, select};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const ROOT: Caller = Caller::ROOT;

/// Runs `work` with a client of a node with a dirty limit of 1 MiB, a wait of ten seconds, and a
/// cache of 8 MiB.
fn with_room_for_one<F: Future<Output = ()> + 'static>(
    seed: u64,
    work: impl FnOnce(Rc<World>, Rc<Client>) -> F,
) {
    with_room_for(seed, MIB, work);
}

fn with_room_for<F: Future<Output = ()> + 'static>(
    seed: u64,
    dirty_bytes: u64,
    work: impl FnOnce(Rc<World>, Rc<Client>) -> F,
) {
    let world = Rc::new(World::new(seed));
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let options = options(dirty_bytes);
        let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        process.call(work(world.clone(), client)).await.expect("the process lives");
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}

fn options(dirty_bytes: u64) -> Options {
    let space_timeout = Duration::from_secs(10);
    Options {
        owner: "room".into(),
        embedded: true,
        dirty_bytes,
        cache_bytes: 8 * MIB,
        space_timeout,
        ..Options::default()
    }
}

async fn fill(client: &Client, ino: Ino, mib: u64) -> Result<(), FsError> {
    for at in 0..mib {
        client.write(&ROOT, ino, at * MIB, Bytes::from(vec![7; MIB as usize]), false).await?;
    }
    Ok(())
}

async fn make(client: &Client, name: &str) -> Ino {
    let name = Name::new(name.as_bytes()).unwrap();
    client.make(&ROOT, Ino::ROOT, &name, 0o600, Make::Regular, true).await.unwrap().ino
}

async fn status(client: &Client) -> Status {
    match client.admin(AdminRequest::Status).await.unwrap() {
        AdminReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

async fn dirty_bytes(client: &Client) -> u64 {
    status(client).await.dirty_bytes
}

/// Files of so many MiB each that are in the bucket, and not in the cache.
async fn in_the_bucket<const N: usize>(client: &Client, files: [(&str, u64); N]) -> [Ino; N] {
    let mut made = [Ino::ROOT; N];
    for (ino, (name, mib)) in made.iter_mut().zip(files) {
        *ino = make(client, name).await;
        fill(client, *ino, mib).await.unwrap();
    }
    client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
    client
        .admin(AdminRequest::Evict { path: vec![], from: (Ino(0), 0), limit_bytes: u64::MAX })
        .await
        .unwrap();
    made
}

async fn read(client: &Client, ino: Ino, mib: Range<u64>) {
    for at in mib {
        assert_eq!(client.read(ino, at * MIB, MIB as usize).await.unwrap().len() as u64, MIB);
    }
}

/// Files without a name, created so or unlinked while open, exceed the dirty limit, which they
/// never leave. Expectation: they do not count against it, named files wait as usual, and in the
/// cache they take space.
#[test]
fn unnamed_files_do_not_wait_for_the_bucket() {
    with_room_for_one(1, |world, client| async move {
        let bucket = world.bucket();
        let unnamed = client.tmpfile(&ROOT, Ino::ROOT, 0o600).await.unwrap().ino;
        fill(&client, unnamed, 2).await.unwrap();
        let removed = make(&client, "removed").await;
        fill(&client, removed, 1).await.unwrap();
        client.unlink(&ROOT, Ino::ROOT, &Name::new(b"removed").unwrap()).await.unwrap();
        assert_eq!(dirty_bytes(&client).await, 0);

        bucket.vanish_for(Duration::from_secs(60));
        let named = make(&client, "named").await;
        let began = world.now();
        fill(&client, named, 1).await.unwrap();
        assert!(world.now() - began < Duration::from_secs(1), "{:?}", world.now() - began);
        assert_eq!(dirty_bytes(&client).await, MIB);
        assert_eq!(
            client.write(&ROOT, named, MIB, Bytes::from_static(b"more"), false).await.map(drop),
            Err(FsError::NoSpace)
        );

        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(
            fill(&client, unnamed, 9).await,
            Err(FsError::NoSpace),
            "the cache is full of it"
        );
        client.close(unnamed);
        fill(&client, named, 2).await.unwrap();
    });
}

/// A complete file gets its name. From then on it is uploaded like any other.
#[test]
fn unnamed_file_waits_once_it_is_linked() {
    with_room_for_one(2, |world, client| async move {
        let unnamed = client.tmpfile(&ROOT, Ino::ROOT, 0o600).await.unwrap().ino;
        fill(&client, unnamed, 3).await.unwrap();
        let other = make(&client, "other").await;
        world.bucket().vanish_for(Duration::from_secs(60));
        client.link(&ROOT, unnamed, Ino::ROOT, &Name::new(b"named").unwrap()).await.unwrap();
        assert_eq!(dirty_bytes(&client).await, 3 * MIB);
        assert_eq!(fill(&client, other, 1).await, Err(FsError::NoSpace));
        world.sleep(Duration::from_secs(60)).await;
        fill(&client, other, 1).await.unwrap();
        assert_eq!(world.bucket().objects()["named"].body.len() as u64, 3 * MIB);
    });
}

/// Situation: the bucket is away, the dirty limit is reached, and a hundred more writes are
/// pending; a client removes the file that takes the space. Danger: the removal waits behind the
/// writes, which end only by timeout. Expectation: the removal completes at once, and then the
/// writes.
#[test]
fn removal_does_not_wait_behind_blocked_writers() {
    with_room_for_one(3, |world, client| async move {
        let (large, other) = (make(&client, "large").await, make(&client, "other").await);
        world.bucket().vanish_for(Duration::from_secs(60));
        fill(&client, large, 1).await.unwrap();
        client.close(large);
        let began = world.now();
        let write = async |at: u64| {
            client.write(&ROOT, other, at * 10, Bytes::from_static(b"ten bytes."), false).await
        };
        let removal = async {
            world.sleep(Duration::from_secs(1)).await;
            client.unlink(&ROOT, Ino::ROOT, &Name::new(b"large").unwrap()).await
        };
        let (removed, written) = join(removal, join_all((0..100).map(write))).await;
        removed.unwrap();
        assert!(written.into_iter().all(|written| written.is_ok()));
        assert!(world.now() - began < Duration::from_secs(2), "{:?}", world.now() - began);
    });
}

/// Situation: a file is being uploaded of which a range is only in the bucket, and the bucket stops
/// answering the download: the file is latched meanwhile. Its clean data, and that of another file,
/// fill the cache. Danger: eviction waits for the latched file, and all reads and writes wait for
/// eviction. Expectation: the other file is evicted at once, and without one a writer gets ENOSPC
/// at its timeout.
#[test]
fn eviction_does_not_wait_for_a_file_with_a_stalled_bucket() {
    with_room_for(4, 4 * MIB, |world, client| async move {
        let [sent, other] = in_the_bucket(&client, [("sent", 6), ("other", 2)]).await;
        read(&client, sent, 1..6).await;
        read(&client, other, 0..2).await;
        client
            .write(&ROOT, sent, 0, Bytes::from(vec![8; BLOCK_BYTES as usize]), false)
            .await
            .unwrap();
        let new = make(&client, "new").await;
        // It is uploaded in one request, so its data is read before the bucket receives
        // anything.
        let port = world.machine("a").process("other").bucket(&world.bucket());
        world
            .bucket()
            .set_capabilities(Capabilities { max_put_bytes: 8 * MIB, ..port.capabilities() });
        world.bucket().vanish_for(Duration::from_secs(600));
        let writes = async {
            world.sleep(Duration::from_secs(1)).await;
            let began = world.now();
            fill(&client, new, 2).await.unwrap();
            assert!(world.now() - began < Duration::from_secs(1), "{:?}", world.now() - began);
            let write = async {
                client
                    .write(&ROOT, new, 2 * MIB, Bytes::from(vec![7; MIB as usize]), false)
                    .await
                    .map(drop)
            };
            let (write, time) = (pin!(write), pin!(world.sleep(Duration::from_secs(20))));
            let Either::Left((refused, _)) = select(write, time).await else {
                panic!("it waits for longer than it may")
            };
            assert_eq!(refused, Err(FsError::NoSpace));
        };
        let flush = client.admin(AdminRequest::Flush { path: vec![] });
        let Either::Right(_) = select(pin!(flush), pin!(writes)).await else {
            panic!("the bucket is there")
        };
    });
}

/// Situation: several clients constantly read a file longer than the cache. Danger: it is never
/// evicted, since it is always in use, and the cache exceeds its limit.
#[test]
fn eviction_includes_a_file_in_constant_use() {
    with_room_for_one(5, |world, client| async move {
        let [file] = in_the_bucket(&client, [("file", 48)]).await;
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(20) };
        world.set_faults(FaultPlan {
            disk: DiskFaults { slow, ..DiskFaults::default() },
            ..FaultPlan::default()
        });
        let reader = async |first: u64| {
            let mut most = 0;
            for at in first..first + 20 {
                read(&client, file, at * 7 % 48..at * 7 % 48 + 1).await;
                most = status(&client).await.cached_bytes.max(most);
            }
            most
        };
        let most = join_all((0..32).map(|reader_at| reader(reader_at * 5)))
            .await
            .into_iter()
            .max()
            .unwrap();
        // Concurrent reads may exceed the limit by this much.
        assert!(most <= 32 * MIB, "{most} bytes were cached");
    });
}

/// Situation: clean files fill the cache, and evicting the first of them frees no space. Danger: a
/// write of another file fails, though enough other data could be evicted.
#[test]
fn a_file_that_cannot_be_evicted_is_passed_over() {
    let world = World::new(6);
    let done = world.run(async {
        let (machine, bucket) = (world.machine("a"), world.bucket());
        let start = async || {
            let process = machine.process_on("node", "data");
            let node = rig::open(&process, &bucket, &options(4 * MIB)).await.unwrap().unwrap();
            let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
            (process, client)
        };
        let (process, client) = start().await;
        for (name, mib) in [("first", 3), ("second", 4)] {
            let ino = make(&client, name).await;
            fill(&client, ino, mib).await.unwrap();
            client.fsync(ino).await.unwrap();
        }
        client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        process.kill();
        let (_process, client) = start().await;
        let new = make(&client, "new").await;
        fill(&client, new, 1).await.unwrap();
        assert_eq!(status(&client).await.cached_bytes, 8 * MIB);
        // After two writes by the log.
        machine.disk("data").fail_nth(DiskOperation::Write, 3);
        client.write(&ROOT, new, MIB, Bytes::from(vec![7; MIB as usize]), false).await.unwrap();
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}
