//! A slow line to the store, which all that is sent shares.

use bytes::Bytes;
use ebb_model::*;
use ebb_node::Options;
use ebb_ports::Capabilities;
use ebb_sim::World;
use ebb_sim::volume::rig;
use futures_util::future::join;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const FILES: u64 = 4;
const FILE_BYTES: u64 = 8 * MIB;

/// Situation: four files are to be sent in parts of 1 MiB over a line of 256 KiB/s. Danger: all parts are sent at once and share the
/// line, so that none of them arrives before its request is given up, and all are sent again, for ever. Expectation: fewer
/// are sent at one time, and everything arrives in little more time than the line takes.
#[test]
fn what_shares_a_slow_line_arrives() {
    let world = World::new(1);
    let bucket = world.bucket();
    let usual = world.machine("outside").process("others").bucket(&bucket).capabilities();
    bucket.set_capabilities(Capabilities { max_put_bytes: MIB, min_part_bytes: MIB, ..usual });
    bucket.set_uplink(256 << 10);
    let took = world.run(async {
        let process = world.machine("a").process("node");
        let options = Options { volume: "ebb".into(), embedded: true, part_bytes: MIB, ..Options::default() };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        for file in 0..FILES {
            let name = Name::new(file.to_string().as_bytes()).unwrap();
            let ino = client.make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false).await.unwrap().ino;
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
        let (flushed, (sent_bytes, dirty_bytes)) = join(client.admin(AdminRequest::Flush { path: vec![] }), halfway).await;
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
        let expected: Vec<u8> = (0..FILE_BYTES / MIB).flat_map(|at| vec![(file * 10 + at) as u8; MIB as usize]).collect();
        assert!(objects[&file.to_string()].body == expected, "{file}");
    }
}
