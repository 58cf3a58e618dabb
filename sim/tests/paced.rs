//! Rate limits of uploads and downloads.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_ports::Capabilities;
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Rate, World};
use std::rc::Rc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

const MAX_LATENCY: Duration = Duration::from_secs(2);

fn content(len_bytes: u64) -> Bytes {
    (0..len_bytes).map(|at| (at % 251) as u8).collect()
}

/// Runs `work` with a client of a node that has these objects in its bucket, and may move 2 MiB in
/// a second each way. By chance one request fails for all of its time in 1 of 24 seeds.
fn slowly<F: Future<Output = ()> + 'static>(
    faults: BucketFaults,
    objects: &[(&str, u64)],
    work: impl FnOnce(Rc<World>, Rc<Client>) -> F,
) {
    let world = Rc::new(World::new(2));
    let outside = world.machine("outside").process("others").bucket(&world.bucket()).capabilities();
    world
        .bucket()
        .set_capabilities(Capabilities { max_put_bytes: outside.max_object_bytes, ..outside });
    for (key, len_bytes) in objects {
        world.bucket().put_as_outsider(key, content(*len_bytes), vec![]).unwrap();
    }
    world.set_faults(FaultPlan { bucket: faults, ..FaultPlan::default() });
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let rate = Some(2 * MIB);
        let options = Options {
            owner: "paced".into(),
            embedded: true,
            // Both end long before a file is transferred.
            head_term: Duration::from_secs(3),
            bucket_timeout: Duration::from_secs(10),
            flush_interval: Duration::from_secs(100_000),
            download_bytes_per_sec: rate,
            upload_bytes_per_sec: rate,
            ..Options::default()
        };
        let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        process.call(work(world.clone(), client)).await.expect("the process lives");
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}

async fn find(client: &Client, name: &str) -> Ino {
    client.lookup(Ino::ROOT, &Name::new(name.as_bytes()).unwrap()).await.unwrap().ino
}

async fn troubles(client: &Client) -> Vec<String> {
    match client.admin(AdminRequest::Status).await.unwrap() {
        AdminReply::Status(status) => {
            status.troubles.into_iter().map(|trouble| trouble.what).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Situation: first read of a file of 64 MiB, all of it requested at once, which takes three times
/// the request timeout. Danger: requests time out in the queue, small ones wait behind all of them,
/// the head is lost. Expectation: it takes the time of the rate limit, nothing fails, and a small
/// file waits for one large body only.
#[test]
fn downloads_keep_to_their_rate() {
    slowly(
        BucketFaults::default(),
        &[("large", 64 * MIB), ("small", 100)],
        |world, client| async move {
            let (large, small) = (find(&client, "large").await, find(&client, "small").await);
            let began = world.now();
            let pieces = (0..4).map(|piece| {
                client.admin(AdminRequest::Warm {
                    ino: large,
                    offset: piece * CHUNK_BYTES,
                    len_bytes: CHUNK_BYTES,
                })
            });
            let all = futures_util::future::join_all(pieces);
            let other = async {
                world.sleep(Duration::from_secs(1)).await;
                let asked = world.now();
                assert_eq!(client.read(small, 0, 100).await.unwrap(), content(100));
                // 8 MiB are under way.
                assert!(
                    world.now() - asked < Duration::from_secs(4) + MAX_LATENCY,
                    "{:?}",
                    world.now() - asked
                );
            };
            let (pieces, ()) = futures_util::future::join(all, other).await;
            assert!(
                pieces.iter().all(|piece| *piece == Ok(AdminReply::Warmed { bytes: CHUNK_BYTES })),
                "{pieces:?}"
            );
            let took = world.now() - began;
            // The last body is complete at the beginning of its share of time.
            assert!(
                took >= Duration::from_secs(28) && took < Duration::from_secs(32) + MAX_LATENCY,
                "{took:?}"
            );
            assert!(
                client.read(large, 63 * MIB, MIB as usize).await.unwrap()
                    == content(64 * MIB)[63 << 20..]
            );
            assert_eq!(troubles(&client).await, Vec::<String>::new());
        },
    );
}

/// The same for uploads. A flush waits as long as the rate limit requires.
#[test]
fn uploads_keep_to_their_rate() {
    slowly(BucketFaults::default(), &[], |world, client| async move {
        let name = Name::new(b"large").unwrap();
        let ino = client
            .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
            .await
            .unwrap()
            .ino;
        for at in 0..64 {
            client.write(&Caller::ROOT, ino, at * MIB, content(MIB), false).await.unwrap();
        }
        let began = world.now();
        client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        let took = world.now() - began;
        assert!(
            took >= Duration::from_secs(28) && took < Duration::from_secs(34) + MAX_LATENCY,
            "{took:?}"
        );
        assert_eq!(world.bucket().objects()["large"].body.len() as u64, 64 * MIB);
        assert_eq!(troubles(&client).await, Vec::<String>::new());
    });
}

/// The store fails every fourth request: failed transfers do not count, and all data arrives.
#[test]
fn failures_do_not_block_the_way() {
    let faults = BucketFaults { unavailable: Rate::one_in(4), ..Default::default() };
    slowly(faults, &[("large", 16 * MIB)], |world, client| async move {
        let large = find(&client, "large").await;
        let began = world.now();
        for at in 0..16 {
            assert!(
                client.read(large, at * MIB, MIB as usize).await.unwrap()
                    == content(16 * MIB)[(at << 20) as usize..][..1 << 20]
            );
        }
        assert!(world.now() - began < Duration::from_secs(20), "{:?}", world.now() - began);
    });
}
