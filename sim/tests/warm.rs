//! Warmup: the named files are in the cache afterwards, through all faults.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Eviction, Options};
use ebb_ports::Capabilities;
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Process, Rate, SimBucket, Slowness, World};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Longer than an outage of the store.
const LONG: Duration = Duration::from_secs(600);

fn content(file: u64, len_bytes: u64) -> Bytes {
    (0..len_bytes).map(|at| (at / 4096 * 31 + file * 7 + at % 251) as u8).collect()
}

/// An object of another program.
fn put(world: &World, key: &str, body: Bytes) {
    let usual = world.machine("outside").process("others").bucket(&world.bucket()).capabilities();
    world
        .bucket()
        .set_capabilities(Capabilities { max_put_bytes: usual.max_object_bytes, ..usual });
    world.bucket().put_as_outsider(key, body, vec![]).unwrap();
    world.bucket().set_capabilities(usual);
}

async fn open(
    world: &World,
    name: &str,
    bucket: &SimBucket,
    options: &Options,
) -> (Process, Client) {
    for attempt in 0.. {
        let process = world.machine("a").process_on(&format!("{name}{attempt}"), "data");
        if let Some(Ok(node)) = rig::open(&process, bucket, options).await
            && let Some(Ok(client)) = rig::attach_embedded(&process, &node).await
        {
            return (process, client);
        }
        assert!(attempt < 100, "it never opens");
        process.kill();
        world.sleep(Duration::from_secs(2)).await;
    }
    unreachable!()
}

fn options(cache_bytes: u64) -> Options {
    // Nothing is dirty, and there is no read-ahead.
    Options {
        owner: "warm".into(),
        embedded: true,
        cache_bytes,
        read_ahead_bytes: 0,
        ..Options::default()
    }
}

async fn find(client: &Client, name: &str) -> Result<Attr, FsError> {
    client.lookup(Ino::ROOT, &Name::new(name.as_bytes()).unwrap()).await
}

async fn warm(client: &Client, name: &str) -> Result<u64, FsError> {
    warm_inode(client, find(client, name).await?).await
}

async fn warm_inode(client: &Client, attr: Attr) -> Result<u64, FsError> {
    let mut came = 0;
    for piece in 0..attr.size_bytes.div_ceil(CHUNK_BYTES) {
        let request = AdminRequest::Warm {
            ino: attr.ino,
            offset: piece * CHUNK_BYTES,
            len_bytes: CHUNK_BYTES,
        };
        match client.admin(request).await? {
            AdminReply::Warmed { bytes } => came += bytes,
            other => panic!("{other:?}"),
        }
    }
    Ok(came)
}

async fn status(client: &Client) -> Status {
    match client.admin(AdminRequest::Status).await.unwrap() {
        AdminReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Situation: files are warmed from a store that is slow, fails, damages bodies and goes away, and
/// the node is killed meanwhile, or its power cut. Expectation: repeated until nothing fails, a
/// warmup leaves all files in the cache, which survives a restart; then the store is not needed.
#[test]
fn warmup_survives_faults_and_restarts() {
    for seed in 1..=6 {
        let bucket = BucketFaults {
            unavailable: Rate::one_in(10),
            lost_request: Rate::one_in(20),
            gone: Rate::one_in(60),
            outage_limit: Duration::from_secs(5),
            slow: Slowness { rate: Rate::one_in(5), limit: Duration::from_secs(1) },
            garbled: Rate::one_in(30),
            ..Default::default()
        };
        let faults = FaultPlan { bucket, ..FaultPlan::default() };
        let world = World::new(seed);
        let files = [("one", 20 * MIB), ("other", 3 * MIB + 5), ("none", 0)];
        for (at, (key, len_bytes)) in (0..).zip(files) {
            put(&world, key, content(at, len_bytes));
        }
        let scene = async {
            let (bucket, options, rng) = (world.bucket(), options(32 * MIB), world.rng("ends"));
            for life in 0..4 {
                world.set_faults(faults);
                let (process, client) =
                    open(&world, &format!("life {life} "), &bucket, &options).await;
                process.spawn(async move {
                    for (name, _) in files {
                        // Tried again by the next life.
                        let (Ok(_) | Err(_)) = warm(&client, name).await;
                    }
                });
                world.sleep(rng.duration(Duration::ZERO, Duration::from_secs(4))).await;
                if rng.below(2) == 0 { process.kill() } else { world.machine("a").power_cut() }
            }
            let (process, client) = open(&world, "last ", &bucket, &options).await;
            for (name, _) in files {
                let warmed = || {
                    let client = client.clone();
                    process.call(async move { warm(&client, name).await })
                };
                while warmed().await.expect("the process lives").is_err() {
                    world.sleep(Duration::from_secs(1)).await;
                }
            }
            world.set_faults(FaultPlan::default());
            // Unforced cached data may be lost with the process.
            world.sleep(Duration::from_secs(10)).await;
            process.kill();
            let (process, client) = open(&world, "calm ", &bucket, &options).await;
            process
                .call(async move {
                    for (name, _) in files {
                        find(&client, name).await.unwrap();
                    }
                    bucket.vanish_for(LONG);
                    for (at, (name, len_bytes)) in (0..).zip(files) {
                        assert_eq!(warm(&client, name).await, Ok(0), "{name}");
                        let ino = find(&client, name).await.unwrap().ino;
                        assert!(
                            client.read(ino, 0, len_bytes as usize + 1).await.unwrap()
                                == content(at, len_bytes),
                            "{name}"
                        );
                    }
                })
                .await
                .unwrap();
        };
        world.run(scene).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Situation: a file is in use, and another one is warmed that exceeds the rest of the cache, or
/// the whole cache. Danger: its ranges evict each other and are fetched for ever. Expectation: with
/// each policy, each range is fetched a few times at most, the report says if it cannot stay, and
/// the cache keeps its limit.
#[test]
fn warmup_without_room_ends() {
    for eviction in [Eviction::S3Fifo, Eviction::Lru] {
        let world = World::new(1);
        put(&world, "used", content(1, 4 * MIB));
        put(&world, "large", content(2, 40 * MIB));
        let scene = async {
            for cache_mib in [12, 24] {
                let options = Options { eviction, ..options(cache_mib * MIB) };
                let process = world.machine(&format!("m{cache_mib}")).process("node");
                let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
                let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
                let bucket = world.bucket();
                let work = async move {
                    let ino = find(&client, "used").await.unwrap().ino;
                    client.read(ino, 0, MIB as usize).await.unwrap();
                    let asked = || bucket.requests().get("get").copied().unwrap_or(0);
                    let before = asked();
                    let warmed = warm(&client, "large").await;
                    assert_eq!(warmed.is_err(), cache_mib < 16, "{cache_mib}: {warmed:?}");
                    // Of 8 MiB each.
                    assert!(asked() - before <= 4 * 5, "{} requests", asked() - before);
                    let status = status(&client).await;
                    assert!(status.cached_bytes <= options.cache_bytes, "{status:?}");
                    assert_eq!(status.troubles.len(), usize::from(cache_mib < 16), "{status:?}");
                    // It is only not cached.
                    let ino = find(&client, "large").await.unwrap().ino;
                    assert!(
                        client.read(ino, 39 * MIB, MIB as usize).await.unwrap()
                            == content(2, 40 * MIB)[39 << 20..]
                    );
                };
                process.call(work).await.expect("the process lives");
                process.kill();
                world.sleep(LONG).await;
            }
        };
        world.run(scene).unwrap_or_else(|failure| panic!("{eviction:?}: {failure}"));
    }
}

/// Situation: a file below a pinned directory, and another one of several times the cache that is
/// read to its end. Expectation: the pinned one stays, also through an evict by name and a restart,
/// until it is unpinned or moved away. Danger: pinned data exceeds the cache, and reads fail.
#[test]
fn pinned_data_stays_cached() {
    for eviction in [Eviction::S3Fifo, Eviction::Lru] {
        let world = World::new(1);
        put(&world, "dir/pinned", content(1, 8 * MIB));
        put(&world, "large", content(2, 60 * MIB));
        let scene = async {
            let (bucket, options) = (world.bucket(), Options { eviction, ..options(24 * MIB) });
            let (process, client) = open(&world, "first ", &bucket, &options).await;
            process
                .call(async move {
                    let dir = find(&client, "dir").await.unwrap().ino;
                    pin(&client, dir).await;
                    let file = client.lookup(dir, &Name::new(b"pinned").unwrap()).await.unwrap();
                    assert_eq!(warm_inode(&client, file).await, Ok(8 * MIB));
                    scan(&client).await;
                    let evict = AdminRequest::Evict {
                        path: vec![],
                        from: (Ino(0), 0),
                        limit_bytes: u64::MAX,
                    };
                    client.admin(evict).await.unwrap();
                    assert_eq!(status(&client).await.cached_bytes, 8 * MIB);
                })
                .await
                .unwrap();
            world.sleep(Duration::from_secs(60)).await;
            process.kill();
            let (process, client) = open(&world, "second ", &bucket, &options).await;
            process
                .call(async move {
                    let dir = find(&client, "dir").await.unwrap().ino;
                    let name = Name::new(b"pinned").unwrap();
                    client.lookup(dir, &name).await.unwrap();
                    scan(&client).await;
                    assert_eq!(
                        (
                            explained(&client, &["dir", "pinned"]).await.cached_bytes,
                            status(&client).await.troubles
                        ),
                        (8 * MIB, vec![])
                    );
                    client
                        .rename(&Caller::ROOT, dir, &name, Ino::ROOT, &name, RenameMode::Replace)
                        .await
                        .unwrap();
                    assert_eq!(explained(&client, &["pinned"]).await.pinned_by, None);
                    let large = find(&client, "large").await.unwrap().ino;
                    pin(&client, large).await;
                    scan(&client).await;
                    assert_eq!(explained(&client, &["pinned"]).await.cached_bytes, 0);
                    let status = status(&client).await;
                    assert!(
                        status.cached_bytes <= options.cache_bytes && status.troubles.len() == 1,
                        "{status:?}"
                    );
                    client
                        .removexattr(&Caller::ROOT, large, Bytes::from_static(PIN))
                        .await
                        .unwrap();
                    scan(&client).await;
                })
                .await
                .unwrap();
        };
        world.run(scene).unwrap_or_else(|failure| panic!("{eviction:?}: {failure}"));
    }
}

async fn pin(client: &Client, ino: Ino) {
    client
        .setxattr(&Caller::ROOT, ino, Bytes::from_static(PIN), Bytes::new(), XattrMode::Set)
        .await
        .unwrap();
}

async fn explained(client: &Client, path: &[&str]) -> Explained {
    let path = path.iter().map(|name| Name::new(name.as_bytes()).unwrap()).collect();
    match client.admin(AdminRequest::Explain { path }).await.unwrap() {
        AdminReply::Explained(explained) => *explained,
        other => panic!("{other:?}"),
    }
}

/// Reads the large file to its end.
async fn scan(client: &Client) {
    let large = find(client, "large").await.unwrap();
    for at in 0..large.size_bytes / MIB {
        client.read(large.ino, at * MIB, MIB as usize).await.unwrap();
    }
}
