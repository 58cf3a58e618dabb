//! Files that are sent while they grow.

use super::{MIB, end, make, name, start_with};
use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_ports::Capabilities;
use ebb_sim::{Process, SimBucket, World};
use std::time::Duration;

fn options() -> Options {
    Options { part_bytes: 1 << 20, early_bytes: 4 << 20, ..Options::default() }
}

/// A world whose bucket takes parts of these sizes.
fn world(seed: u64) -> (World, SimBucket) {
    let world = World::new(seed);
    let bucket = world.bucket();
    let usual = world.machine("outside").process("others").bucket(&bucket).capabilities();
    bucket.set_capabilities(Capabilities { max_put_bytes: 64 << 20, ..usual });
    (world, bucket)
}

fn early(bucket: &SimBucket) -> usize {
    bucket.objects().keys().filter(|key| key.starts_with(".ebb/early/")).count()
}

fn sent(bucket: &SimBucket, what: &str) -> u64 {
    bucket.requests().get(what).copied().unwrap_or(0)
}

async fn flush(client: &Client) {
    client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
}

async fn until_early(process: &Process, bucket: &SimBucket, parts: usize) {
    while early(bucket) != parts {
        process.ports.clock.sleep(Duration::from_millis(10)).await;
    }
}

/// A writer at full speed keeps the processors for a second.
#[test]
fn early_parts_skip_fresh_data() {
    let (world, bucket) = world(2);
    let process = world.machine("a").process("node");
    let (port, inner, there) = (process.bucket(&bucket), process.clone(), bucket.clone());
    let done = world.run(process.call(async move {
        let (node, client) = start_with(inner.clone(), port, options()).await;
        let began = inner.ports.clock.monotonic();
        make(&client, "file", 20).await;
        while inner.ports.clock.monotonic() < began + Duration::from_millis(900) {
            assert_eq!(early(&there), 0);
            inner.ports.clock.sleep(Duration::from_millis(10)).await;
        }
        until_early(&inner, &there, 20).await;
        end(node, client).await;
    }));
    done.expect("nobody ends the node");
}

/// A file of 20 MiB in parts of 1 MiB, all uploaded before the file is due: the store assembles the
/// object from them alone. Then some are overwritten, completely and partly, one is punched, and
/// the tail is truncated: their early parts are useless. A rename meanwhile changes the key.
#[test]
fn early_parts_are_used_if_unchanged() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Then {
        Nothing,
        Renamed,
        Overwritten,
        Punched,
        Cut,
        CutAndGrown,
        WrittenAnew,
    }
    let cases = [
        (Then::Nothing, 20),
        (Then::Renamed, 20),
        // Neighbours in the same 16 MiB that lost their checksums get them back.
        (Then::Overwritten, 18),
        (Then::Punched, 19),
        (Then::Cut, 17),
        (Then::CutAndGrown, 17),
        (Then::WrittenAnew, 20),
    ];
    for (then, copied) in cases {
        let (world, bucket) = world(1);
        let process = world.machine("a").process("node");
        let (port, inner, seen) = (process.bucket(&bucket), process.clone(), bucket.clone());
        let there = bucket.clone();
        let done = world.run(process.call(async move {
            let (node, client) = start_with(inner.clone(), port, options()).await;
            let root = &Caller::ROOT;
            let ino = make(&client, "file", 20).await;
            until_early(&inner, &there, 20).await;
            let write = |at: usize, len: usize, byte| {
                let (client, data) = (&client, Bytes::from(vec![byte; len]));
                async move { client.write(root, ino, at as u64, data, false).await.unwrap() }
            };
            match then {
                Then::Nothing | Then::WrittenAnew => {}
                Then::Renamed => {
                    client
                        .rename(
                            root,
                            Ino::ROOT,
                            &name("file"),
                            Ino::ROOT,
                            &name("moved"),
                            RenameMode::Replace,
                        )
                        .await
                        .map(drop)
                        .unwrap();
                }
                Then::Overwritten => {
                    write(17 * MIB, MIB, 0xaa).await;
                    write(18 * MIB + 100, 10, 0xbb).await;
                }
                Then::Punched => {
                    let span = (7 * MIB as u64, 1 << 16);
                    client
                        .fallocate(root, ino, span, Allocation::Zero, true, false)
                        .await
                        .map(drop)
                        .unwrap();
                }
                Then::Cut | Then::CutAndGrown => {
                    let cut =
                        SetAttr { size_bytes: Some(17 * MIB as u64 + 1), ..SetAttr::default() };
                    client.setattr(root, ino, cut).await.unwrap();
                    if then == Then::CutAndGrown {
                        write(20 * MIB - 1, 1, 0xcc).await;
                    }
                }
            }
            if then == Then::WrittenAnew {
                client
                    .setattr(root, ino, SetAttr { size_bytes: Some(0), ..SetAttr::default() })
                    .await
                    .unwrap();
                until_early(&inner, &there, 0).await;
                for at in 0..20 {
                    write(at * MIB, MIB, 0xdd).await;
                }
                until_early(&inner, &there, 20).await;
            }
            let expected = client.read(ino, 0, 20 * MIB).await.unwrap();
            let before = (
                sent(&there, "put"),
                sent(&there, "upload_part"),
                sent(&there, "upload_part_copy"),
            );
            flush(&client).await;
            let copies = sent(&there, "upload_part_copy") - before.2;
            assert_eq!(copies, copied, "{then:?}");
            until_early(&inner, &there, 0).await;
            end(node, client).await;
            expected
        }));
        let expected = done.unwrap_or_else(|failure| panic!("{then:?}: {failure}")).unwrap();
        let key = if then == Then::Renamed { "moved" } else { "file" };
        assert!(seen.objects()[key].body == expected, "{then:?}");
        assert_eq!(early(&seen), 0);
    }
}

/// Unused early parts are deleted: of a removed file, also once the store permits it again; of a
/// node that died; and where the bucket cannot assemble parts after all, or has lost them.
#[test]
fn early_parts_are_deleted_if_unused() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Why {
        Removed,
        Forbidden,
        Died,
        Refused,
        Gone,
    }
    for why in [Why::Removed, Why::Forbidden, Why::Died, Why::Refused, Why::Gone] {
        let (world, bucket) = world(1);
        let process = world.machine("a").process_on("node", "data");
        let (port, inner, there) = (process.bucket(&bucket), process.clone(), bucket.clone());
        let lives = process.call(async move {
            let (node, client) = start_with(inner.clone(), port, options()).await;
            make(&client, "file", 20).await;
            until_early(&inner, &there, 20).await;
            match why {
                Why::Removed => {
                    client.unlink(&Caller::ROOT, Ino::ROOT, &name("file")).await.map(drop).unwrap()
                }
                Why::Forbidden => {
                    there.forbid_for(Duration::from_secs(5));
                    client.unlink(&Caller::ROOT, Ino::ROOT, &name("file")).await.map(drop).unwrap();
                    inner.ports.clock.sleep(Duration::from_secs(4)).await;
                    assert_eq!(early(&there), 20);
                }
                Why::Died => return,
                Why::Refused => there.refuse_part_copies(),
                Why::Gone => there.delete_as_outsider(
                    there.objects().keys().rfind(|key| key.starts_with(".ebb/early/")).unwrap(),
                ),
            }
            flush(&client).await;
            until_early(&inner, &there, 0).await;
            end(node, client).await;
        });
        world.run(lives).unwrap_or_else(|failure| panic!("{why:?}: {failure}")).unwrap();
        if why == Why::Died {
            process.kill();
            assert_eq!(early(&bucket), 20);
            let process = world.machine("a").process_on("node", "data");
            let (port, inner) = (process.bucket(&bucket), process.clone());
            let next = process.call(async move {
                let (node, client) = start_with(inner, port, options()).await;
                flush(&client).await;
                end(node, client).await;
            });
            world.run(next).unwrap_or_else(|failure| panic!("{why:?}: {failure}")).unwrap();
        }
        assert_eq!(early(&bucket), 0, "{why:?}");
        assert_eq!(
            bucket.objects().contains_key("file"),
            !matches!(why, Why::Removed | Why::Forbidden),
            "{why:?}"
        );
    }
}

/// A file is removed while its parts are on a slow connection. Danger: the end of the node waits
/// for their transfer, 40 s for four parts.
#[test]
fn early_parts_of_a_removed_file_do_not_delay_the_end() {
    let (world, bucket) = world(1);
    bucket.set_uplink(100 << 10);
    let process = world.machine("a").process("node");
    let (port, inner) = (process.bucket(&bucket), process.clone());
    let clock = process.ports.clock.clone();
    let done = world.run(process.call(async move {
        let (node, client) = start_with(inner.clone(), port, options()).await;
        make(&client, "file", 20).await;
        clock.sleep(Duration::from_secs(1)).await;
        client.unlink(&Caller::ROOT, Ino::ROOT, &name("file")).await.map(drop).unwrap();
        let began = clock.monotonic();
        end(node, client).await;
        let took = clock.monotonic() - began;
        assert!(took < Duration::from_secs(20), "{took:?}");
    }));
    done.unwrap().unwrap();
}
