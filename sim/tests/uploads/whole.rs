//! The bytes of an object are those of its file at one version.

use super::{MIB, end, make, start};
use bytes::Bytes;
use ebb_model::*;
use ebb_ports::Capabilities;
use ebb_sim::oracle::Content;
use ebb_sim::{DiskFaults, FaultPlan, Rate, Slowness, World};
use futures_util::future::join;
use std::rc::Rc;
use std::time::Duration;

const OLD: u8 = b'o';
const NEW: u8 = b'n';
const OLD_BYTES: usize = MIB / 2;

/// Situation: a write overwrites and extends a file at each moment of a flush that reads it.
/// Danger: the upload takes the length from before the write, and bytes from after it.
/// Expectation: each object is the file before the write, or after it.
#[test]
fn object_of_a_file_that_is_being_written_has_one_version() {
    let mut before = 0;
    for moment in 0..40 {
        let world = Rc::new(World::new(moment));
        let bucket = world.bucket();
        bucket.keep_versions();
        let process = world.machine("a").process("node");
        // The file goes in one request.
        let usual = process.bucket(&bucket).capabilities();
        bucket.set_capabilities(Capabilities { max_put_bytes: 64 << 20, ..usual });
        let (port, inner, outer) = (process.bucket(&bucket), process.clone(), world.clone());
        let done = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            let ino = make(&client, "file", 0).await;
            let write = async |with: u8, len: usize| {
                let data = Bytes::from(vec![with; len]);
                client.write(&Caller::ROOT, ino, 0, data, false).await.unwrap();
            };
            let flush = async || {
                client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            };
            write(OLD, OLD_BYTES).await;
            // Steps of the write and of the upload meet at each moment of the other.
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(20) };
            outer.set_faults(FaultPlan {
                disk: DiskFaults { slow, ..DiskFaults::default() },
                ..FaultPlan::default()
            });
            let written = async {
                outer.sleep(Duration::from_millis(3 * moment)).await;
                write(NEW, MIB).await;
            };
            join(flush(), written).await;
            outer.set_faults(FaultPlan::default());
            flush().await;
            end(node, client).await;
        }));
        done.unwrap_or_else(|failure| panic!("moment {moment}: {failure}"))
            .expect("the process lives");
        let versions = bucket.versions_of_files();
        let [old, new] =
            [(OLD, OLD_BYTES), (NEW, MIB)].map(|(with, len)| Content::from_bytes(&vec![with; len]));
        for object in &versions {
            assert!(
                object.content == old || object.content == new,
                "moment {moment}: {} bytes that the file never was",
                object.content.size()
            );
        }
        assert_eq!(versions.last().map(|object| &object.content), Some(&new), "moment {moment}");
        before += u32::from(versions[0].content == old);
    }
    assert!((5..35).contains(&before), "{before} uploads were of the file before the write");
}
