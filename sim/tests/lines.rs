//! A slow connection to the store, shared by all transfers of one direction.

use bytes::Bytes;
use ebb_client::Page;
use ebb_model::*;
use ebb_node::Options;
use ebb_ports::{Capabilities, Condition};
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Rate, Slowness, World};
use futures_util::future::join;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const FILES: u64 = 4;
const FILE_BYTES: u64 = 8 * MIB;

/// Situation: four files are uploaded in parts of 1 MiB over 256 KiB/s. Danger: all parts share the
/// bandwidth, each times out, and all are repeated for ever. Expectation: fewer run in parallel,
/// and all uploads finish in little more than the bandwidth requires.
#[test]
fn uploads_over_a_slow_connection_complete() {
    let world = World::new(1);
    let bucket = world.bucket();
    let usual = world.machine("outside").process("others").bucket(&bucket).capabilities();
    bucket.set_capabilities(Capabilities { max_put_bytes: MIB, min_part_bytes: MIB, ..usual });
    bucket.set_uplink(256 << 10);
    let took = world.run(async {
        let process = world.machine("a").process("node");
        let options =
            Options { volume: "ebb".into(), embedded: true, part_bytes: MIB, ..Options::default() };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        for file in 0..FILES {
            let name = Name::new(file.to_string().as_bytes()).unwrap();
            let ino = client
                .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                .await
                .unwrap()
                .ino;
            for at in 0..FILE_BYTES / MIB {
                let data = Bytes::from(vec![(file * 10 + at) as u8; MIB as usize]);
                client.write(&Caller::ROOT, ino, at * MIB, data, false).await.unwrap();
            }
        }
        let sent = async || match client.admin(AdminRequest::Status).await.unwrap() {
            AdminReply::Status(status) => (status.sent_bytes, status.dirty_bytes),
            other => panic!("{other:?}"),
        };
        let began = world.now();
        let halfway = async {
            world.sleep(Duration::from_secs(60)).await;
            sent().await
        };
        let (flushed, (sent_bytes, dirty_bytes)) =
            join(client.admin(AdminRequest::Flush { path: vec![] }), halfway).await;
        flushed.unwrap();
        assert!(sent_bytes >= MIB && dirty_bytes > sent_bytes, "{sent_bytes} of {dirty_bytes}");
        assert_eq!(sent().await, (0, 0));
        world.now() - began
    });
    let took = took.unwrap();
    let line = Duration::from_secs(FILES * FILE_BYTES / (256 << 10));
    assert!(took >= line && took < line * 3 / 2, "{took:?} where the line takes {line:?}");
    let objects = bucket.objects();
    for file in 0..FILES {
        let expected: Vec<u8> = (0..FILE_BYTES / MIB)
            .flat_map(|at| vec![(file * 10 + at) as u8; MIB as usize])
            .collect();
        assert!(objects[&file.to_string()].body == expected, "{file}");
    }
}

/// Situation: a large file is read in order over 1 MiB/s, with requests of 1 MiB by the kernel.
/// Danger: read-ahead shares the bandwidth with the requested range. Expectation: the first range
/// arrives soon, and the whole file in the time that the bandwidth requires.
#[test]
fn readahead_does_not_delay_the_reader() {
    const LEN: u64 = 64 * MIB;
    for (latency_millis, seed) in [(0, 1), (0, 2), (0, 3), (300, 1), (300, 2), (300, 3)] {
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(latency_millis) };
        let faults = FaultPlan {
            bucket: BucketFaults { slow, ..BucketFaults::default() },
            ..FaultPlan::default()
        };
        let world = World::with_faults(seed, faults);
        let bucket = world.bucket();
        let content: Vec<u8> = (0..LEN).map(|at| (at >> 8) as u8).collect();
        let (longest, took) = world
            .run(async {
                let outside = world.machine("outside").process("others").bucket(&bucket);
                bucket.set_capabilities(Capabilities {
                    max_put_bytes: LEN,
                    ..outside.capabilities()
                });
                outside
                    .put("file", Bytes::from(content.clone()), Condition::Always, vec![])
                    .await
                    .unwrap();
                bucket.set_downlink(MIB);
                let process = world.machine("a").process("node");
                let options =
                    Options { volume: "ebb".into(), embedded: true, ..Options::default() };
                let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
                let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
                let ino =
                    client.lookup(Ino::ROOT, &Name::new(&b"file"[..]).unwrap()).await.unwrap().ino;
                let (began, mut longest) = (world.now(), Duration::ZERO);
                for at in (0..LEN).step_by(MIB as usize) {
                    let asked = world.now();
                    let bytes = client.read(ino, at, MIB as usize).await.unwrap();
                    assert!(bytes == content[at as usize..(at + MIB) as usize], "{at}");
                    longest = longest.max(world.now() - asked);
                }
                (longest, world.now() - began)
            })
            .unwrap();
        assert!(longest < Duration::from_secs(5), "seed {seed}: 1 MiB came after {longest:?}");
        assert!(
            took < Duration::from_secs(LEN / MIB * 5 / 4),
            "the line was not kept busy: {took:?}"
        );
    }
}

/// Situation: a directory of 20,000 names that another program changes, over 200 KiB/s, which takes
/// a second and more per thousand names. Danger: parallel listing requests share the bandwidth and
/// all time out, so outside changes are never seen. Expectation: listing requests are sequential.
#[test]
fn parts_of_a_listing_do_not_hold_up_each_other() {
    let world = World::new(1);
    let bucket = world.bucket();
    let found = world.run(async {
        for at in 0..20_000 {
            bucket.put_as_outsider(&format!("d/{at:05}"), "content", vec![]).unwrap();
        }
        let process = world.machine("a").process("node");
        let options = Options {
            volume: "ebb".into(),
            embedded: true,
            revalidate: Some(Duration::from_secs(60)),
            ..Options::default()
        };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        bucket.set_downlink(200 << 10);
        let dir = client.lookup(Ino::ROOT, &Name::new(&b"d"[..]).unwrap()).await.unwrap().ino;
        let count = async || {
            let (mut found, mut after) = (0, Cookie::START);
            loop {
                let Page { entries, end } = client.readdir(dir, after, 100).await.unwrap();
                found += entries.len();
                match entries.last() {
                    Some((entry, _)) if !end => after = entry.cookie,
                    _ => return found,
                }
            }
        };
        let before = count().await;
        bucket.put_as_outsider("d/15000x", "content", vec![]).unwrap();
        world.sleep(Duration::from_secs(60)).await;
        (before, count().await)
    });
    assert_eq!(found.unwrap(), (20_000, 20_001));
}
