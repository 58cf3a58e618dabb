//! Reads of data that only the bucket has.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_ports::Capabilities;
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, DiskFaults, FaultPlan, Rate, Slowness, World};
use futures_util::future::join;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const MIB: usize = 1 << 20;
const LEN_BYTES: usize = 2 * MIB;

fn content(file: u64) -> Bytes {
    (0..LEN_BYTES as u64).map(|at| (at / BLOCK_BYTES * 31 + file * 7 + at % 251) as u8).collect()
}

/// Runs `work` with a client of a node that has objects of 2 MiB in its bucket.
fn reading<F: Future<Output = ()> + 'static>(
    seed: u64,
    objects: u64,
    work: impl FnOnce(Rc<World>, Rc<Client>) -> F,
) {
    let world = Rc::new(World::new(seed));
    let usual = world.machine("a").process("asks").bucket(&world.bucket()).capabilities();
    world
        .bucket()
        .set_capabilities(Capabilities { max_put_bytes: usual.max_object_bytes, ..usual });
    (0..objects).for_each(|file| {
        drop(world.bucket().put_as_outsider(&file.to_string(), content(file), vec![]).unwrap())
    });
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let options = Options { owner: "reading".into(), embedded: true, ..Options::default() };
        let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        process.call(work(world.clone(), client)).await.expect("the process lives");
    });
    done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
}

async fn ino(client: &Client, file: u64) -> Ino {
    client.lookup(Ino::ROOT, &Name::new(file.to_string().as_bytes()).unwrap()).await.unwrap().ino
}

async fn set_len(client: &Client, ino: Ino, len_bytes: usize) {
    let set = SetAttr { size_bytes: Some(len_bytes as u64), ..SetAttr::default() };
    client.setattr(&Caller::ROOT, ino, set).await.unwrap();
}

fn slow_disk(rate: Rate, limit: Duration) -> FaultPlan {
    FaultPlan {
        disk: DiskFaults { slow: Slowness { rate, limit }, ..DiskFaults::default() },
        ..FaultPlan::default()
    }
}

/// Situation: the node's disk is slow. Danger: a read waits until its data is in the cache.
/// Expectation: data is delivered as it arrives, also to concurrent reads of a range of it, and is
/// cached later.
#[test]
fn fetched_data_is_returned_before_it_is_cached() {
    reading(1, 1, |world, client| async move {
        let (ino, content) = (ino(&client, 0).await, content(0));
        world.set_faults(slow_disk(Rate::ALWAYS, Duration::from_secs(100)));
        let began = world.now();
        for (at, len) in [(0, MIB / 2), (MIB / 4 + 5, MIB / 2), (MIB - 100, MIB)] {
            assert!(client.read(ino, at as u64, len).await.unwrap() == content[at..at + len]);
        }
        assert!(world.now() - began < Duration::from_secs(2), "{:?}", world.now() - began);
        world.set_faults(FaultPlan::default());
        world.sleep(Duration::from_secs(600)).await;
        world.bucket().vanish_for(Duration::from_secs(3600));
        assert!(client.read(ino, 0, MIB / 2).await.unwrap() == content[..MIB / 2]);
    });
}

/// Situation: fetched data waits to be cached on a slow disk, while the file is written, truncated
/// and extended. Danger: reads return the older data. Expectation: a read after a change returns
/// the change.
#[test]
fn fetched_data_does_not_hide_later_changes() {
    const FILES: u64 = 20;
    for seed in 1..21 {
        reading(seed, FILES, |world, client| async move {
            let rng = world.rng("changes");
            world.set_faults(slow_disk(Rate::one_in(2), Duration::from_millis(300)));
            for file in 0..FILES {
                let (ino, mut model) = (ino(&client, file).await, content(file).to_vec());
                let at = rng.below(MIB as u64) as usize;
                let from = at + rng.below(MIB as u64 - 5000) as usize;
                // It need not see the change.
                let before = async { client.read(ino, at as u64, MIB).await.unwrap() };
                let change = async {
                    world.sleep(Duration::from_millis(rng.below(200))).await;
                    let is_write = rng.below(2) == 0;
                    if is_write {
                        client
                            .write(&Caller::ROOT, ino, from as u64, vec![99; 5000].into(), false)
                            .await
                            .unwrap();
                    } else {
                        set_len(&client, ino, from).await;
                        set_len(&client, ino, LEN_BYTES).await;
                    }
                    is_write
                };
                let (_, was_write) = join(before, change).await;
                model[from..if was_write { from + 5000 } else { LEN_BYTES }].fill(if was_write {
                    99
                } else {
                    0
                });
                let read = client.read(ino, at as u64, MIB).await.unwrap();
                assert!(read == model[at..at + MIB], "file {file}, write {was_write}");
            }
        });
    }
}

/// Situation: another program replaces an object while it is read in several requests. Danger: a
/// read mixes both versions. Expectation: all bytes are of one version.
#[test]
fn read_in_several_requests_returns_one_object() {
    const FILES: u64 = 20;
    for seed in 1..21 {
        reading(seed, FILES, |world, client| async move {
            let rng = world.rng("changes");
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(300) };
            world.set_faults(FaultPlan {
                bucket: BucketFaults { slow, ..BucketFaults::default() },
                ..FaultPlan::default()
            });
            for file in 0..FILES {
                let ino = ino(&client, file).await;
                let read = async { client.read(ino, 0, MIB).await.unwrap() };
                let replaced = async {
                    world.sleep(Duration::from_millis(rng.below(300))).await;
                    world
                        .bucket()
                        .put_as_outsider(&file.to_string(), content(file + 100), vec![])
                        .unwrap();
                };
                let (read, ()) = join(read, replaced).await;
                assert!(
                    read == content(file)[..MIB] || read == content(file + 100)[..MIB],
                    "file {file}"
                );
            }
        });
    }
}

/// Situation: a file is truncated, and rolled back to its object while the rest of it is fetched.
/// Danger: the cached data ends at the truncated length, in the middle of a block. Expectation: the
/// whole object is readable.
#[test]
fn roll_back_during_a_fetch_shows_the_whole_object() {
    for seed in 1..21 {
        reading(seed, 1, |world, client| async move {
            let (ino, rng) = (ino(&client, 0).await, world.rng("rolls back"));
            set_len(&client, ino, 40_000).await;
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(300) };
            world.set_faults(FaultPlan {
                bucket: BucketFaults { slow, ..BucketFaults::default() },
                ..FaultPlan::default()
            });
            let read = async { client.read(ino, 0, MIB).await.unwrap() };
            let back = async {
                world.sleep(Duration::from_millis(rng.below(100))).await;
                let path = vec![Name::new(b"0").unwrap()];
                client.admin(AdminRequest::RollBack { path }).await.unwrap();
            };
            join(read, back).await;
            assert!(client.read(ino, 0, MIB).await.unwrap() == content(0)[..MIB]);
            world.sleep(Duration::from_secs(10)).await;
            assert!(client.read(ino, 0, MIB).await.unwrap() == content(0)[..MIB]);
        });
    }
}

/// Reads files of 2 MiB one after the other from a distant bucket; returns the duration and the
/// number of downloads.
fn read_in_turn(files: &[u64], len_bytes: usize) -> (Duration, u64) {
    let result = Rc::new(Cell::new((Duration::ZERO, 0)));
    let (told, files) = (result.clone(), files.to_vec());
    reading(1, 100, move |world, client| async move {
        ino(&client, 0).await;
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(200) };
        world.set_faults(FaultPlan {
            bucket: BucketFaults { slow, ..BucketFaults::default() },
            ..FaultPlan::default()
        });
        let began = world.now();
        for file in files {
            let (ino, content) = (ino(&client, file).await, content(file));
            for at in (0..len_bytes).step_by(MIB / 4) {
                assert!(
                    client.read(ino, at as u64, MIB / 4).await.unwrap()
                        == content[at..at + MIB / 4]
                );
            }
        }
        let took = world.now() - began;
        world.sleep(Duration::from_secs(60)).await;
        told.set((took, world.bucket().requests()["get"]));
    });
    result.get()
}

/// Sequential reads of all files of a directory trigger read-ahead; reads in another order do not;
/// and of files of which only the beginning is read, no more is fetched.
#[test]
fn readahead_covers_files_read_in_directory_order() {
    // In the order in which the bucket lists them.
    let mut in_order: Vec<u64> = (0..100).collect();
    in_order.sort_by_key(u64::to_string);
    let anyhow: Vec<u64> = in_order.iter().map(|file| file * 37 % 100).collect();
    let (took, requests) = read_in_turn(&in_order, LEN_BYTES);
    let (waited, apart) = read_in_turn(&anyhow, LEN_BYTES);
    assert!(took * 5 < waited, "{took:?}, and {waited:?} in any order");
    assert!(
        requests < apart,
        "one request for each file suffices: {requests}, {apart} in any order"
    );
    let (took, requests) = read_in_turn(&in_order, MIB / 4);
    let (waited, apart) = read_in_turn(&anyhow, MIB / 4);
    assert!(took * 5 < waited, "beginnings: {took:?}, and {waited:?} in any order");
    assert_eq!(requests, apart, "one for each beginning");
}

/// Situation: a program reads files of 2 MiB of a directory in order, and stops. Danger: each
/// extension of the window fetches the maximum of every file, at a cost. Expectation: no more than
/// one window is fetched beyond the last file read.
#[test]
fn no_more_is_read_ahead_of_files_in_turn_than_is_stated() {
    let mut in_order: Vec<u64> = (0..100).collect();
    in_order.sort_by_key(u64::to_string);
    let most_ahead = Options::default().read_ahead_bytes / LEN_BYTES as u64;
    let (_, requests) = read_in_turn(&in_order[..30], LEN_BYTES);
    // Each of the first three takes several requests.
    assert!((30 + most_ahead / 2..=30 + most_ahead + 3 * 8).contains(&requests), "{requests}");
}
