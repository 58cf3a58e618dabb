//! Large files on their way to the bucket, several at a time and while they change.

mod copies;
mod early;
mod late;
mod whole;

use bytes::Bytes;
use ebb_client::{Client, ClientPorts, LocalLink, Options as ClientOptions};
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::{BucketFaults, DiskFaults, FaultPlan, Process, Rate, SimBucket, Slowness, World};
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Each request to the bucket takes up to a second.
fn slow_world(seed: u64) -> (World, SimBucket, Process) {
    let world = World::new(seed);
    let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(1) };
    world.set_faults(FaultPlan {
        bucket: BucketFaults { slow, ..BucketFaults::default() },
        ..FaultPlan::default()
    });
    let (bucket, process) = (world.bucket(), world.machine("a").process("node"));
    (world, bucket, process)
}

async fn start(process: Process, bucket: Rc<dyn ebb_ports::Bucket>) -> (Rc<Node>, Client) {
    start_with(process, bucket, Options::default()).await
}

async fn start_with(
    process: Process,
    bucket: Rc<dyn ebb_ports::Bucket>,
    options: Options,
) -> (Rc<Node>, Client) {
    start_flushing(
        process,
        bucket,
        Options { flush_interval: Duration::from_secs(3600), ..options },
    )
    .await
}

async fn start_flushing(
    process: Process,
    bucket: Rc<dyn ebb_ports::Bucket>,
    options: Options,
) -> (Rc<Node>, Client) {
    let options = Options { embedded: true, owner: "uploads".into(), ..options };
    let node = Node::open(process.ports.clone(), Some(bucket), options).await.unwrap();
    let (handle, notices) = (node.clone(), node.clone());
    let link = LocalLink::new(
        move |request| handle.handle(request),
        move |session| {
            let node = notices.clone();
            Box::pin(async move { node.next_notice(session).await })
        },
    );
    let client = Client::attach(
        Rc::new(link),
        ClientPorts::from(&process.ports),
        ClientOptions::new("ebb", "uploads"),
    )
    .await
    .unwrap();
    (node, client)
}

async fn end(node: Rc<Node>, client: Client) {
    client.detach(Duration::from_secs(5)).await.unwrap();
    node.stop(true).await.unwrap();
}

async fn make(client: &Client, file: &str, mib: usize) -> Ino {
    make_in(client, Ino::ROOT, file, mib).await
}

async fn make_in(client: &Client, dir: Ino, file: &str, mib: usize) -> Ino {
    let made =
        client.make(&Caller::ROOT, dir, &name(file), 0o600, Make::Regular, false).await.unwrap();
    for at in 0..mib {
        client
            .write(
                &Caller::ROOT,
                made.ino,
                (at * MIB) as u64,
                Bytes::from(vec![at as u8; MIB]),
                false,
            )
            .await
            .unwrap();
    }
    made.ino
}

/// Situation: each part of a large file takes a while, and together they exceed the request timeout
/// many times. Danger: a flush, and with it an unmount, gives up though part after part is
/// uploaded. Expectation: it ends with the last part.
#[test]
fn a_flush_waits_as_long_as_parts_arrive() {
    let world = World::new(1);
    let bucket = world.bucket();
    let process = world.machine("a").process("node");
    let port = process.bucket(&bucket);
    let (inner, clock) = (process.clone(), process.ports.clock.clone());
    let made = world.run(process.call(async move {
        let options = Options {
            part_bytes: 1 << 20,
            bucket_timeout: Duration::from_secs(10),
            head_term: Duration::from_secs(300),
            ..Options::default()
        };
        let (node, client) = start_with(inner, port, options).await;
        make(&client, "file", 60).await;
        (node, client)
    }));
    let (node, client) = made.unwrap().unwrap();
    let slow = Slowness { rate: Rate(1_000_000), limit: Duration::from_secs(8) };
    world.set_faults(FaultPlan {
        bucket: BucketFaults { slow, ..BucketFaults::default() },
        ..FaultPlan::default()
    });
    let done = world.run(process.call(async move {
        let began = clock.monotonic();
        client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        assert!(
            clock.monotonic() - began > Duration::from_secs(25),
            "{:?}",
            clock.monotonic() - began
        );
        end(node, client).await;
    }));
    done.unwrap().unwrap();
    assert_eq!(bucket.objects()["file"].body.len(), 60 * MIB);
}

/// Files together larger than the upload buffers, each of which takes a share: no upload waits for
/// buffers that another one never returns.
#[test]
fn large_files_do_not_wait_for_each_other() {
    let world = World::new(1);
    let bucket = world.bucket();
    let process = world.machine("a").process("node");
    let port = process.bucket(&bucket);
    let inner = process.clone();
    let done = world.run(process.call(async move {
        let (node, client) = start(inner, port).await;
        for file in 0..5 {
            make(&client, &format!("file{file}"), 40).await;
        }
        client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        end(node, client).await;
    }));
    done.unwrap().unwrap();
    for file in 0..5 {
        let object = &bucket.objects()[&format!("file{file}")];
        assert_eq!(object.body.len(), 40 * MIB);
        assert!(
            (0..40).all(|at| object.body[at * MIB..(at + 1) * MIB]
                .iter()
                .all(|byte| *byte == at as u8))
        );
    }
}

/// Situation: small upload buffers; of two files one is constantly truncated and written, until its
/// writers must wait, and copied to the other. Danger: its upload, which blocks writes, waits for
/// buffers of the other upload, which waits for the copy, which waits for a writer. Expectation:
/// both are uploaded in the end.
#[test]
fn an_upload_that_makes_writers_wait_waits_for_no_other() {
    for seed in 0..4 {
        let (world, bucket, process) = slow_world(seed);
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let done = world.run(process.call(async move {
            let (node, client) = start_with(
                inner.clone(),
                port,
                Options { buffer_bytes: 32 << 20, ..Options::default() },
            )
            .await;
            let (copy, busy) = (make(&client, "copy", 40).await, make(&client, "busy", 40).await);
            let root = Caller::ROOT;
            let flush = async { client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap() };
            let cut = async {
                for round in 0..30 {
                    let size_bytes = Some((40 * MIB - 1 - round) as u64);
                    client
                        .setattr(&root, busy, SetAttr { size_bytes, ..SetAttr::default() })
                        .await
                        .unwrap();
                    inner.ports.clock.sleep(Duration::from_millis(700)).await;
                }
            };
            let copies = async {
                for round in 0..30 {
                    let at = (round * MIB) as u64;
                    client.copy(&root, (busy, at), (copy, at), MIB as u64, false).await.unwrap();
                    inner.ports.clock.sleep(Duration::from_millis(300)).await;
                }
            };
            futures_util::future::join3(flush, cut, copies).await;
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            end(node, client).await;
        }));
        done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).unwrap();
        let sizes = ["busy", "copy"].map(|file| bucket.objects()[file].body.len());
        assert_eq!(sizes, [40 * MIB - 30, 40 * MIB], "seed {seed}");
    }
}

/// Situation: a file is truncated and rewritten while the next part of its upload waits for a
/// buffer, twice. Danger: the bytes then differ from the announced checksum and count as damage.
/// Expectation: the upload begins again, without a trouble.
#[test]
fn change_while_a_part_waits_for_memory_is_no_damage() {
    for pause_ms in [400, 800] {
        let (world, bucket, process) = slow_world(pause_ms);
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let done = world.run(process.call(async move {
            let options = Options {
                buffer_bytes: 8 << 20,
                part_bytes: 2 << 20,
                early_bytes: 0,
                ..Options::default()
            };
            let (node, client) = start_with(inner.clone(), port, options).await;
            let (ino, clock, over) =
                (make(&client, "file", 20).await, inner.ports.clock.clone(), Cell::new(false));
            let change = async {
                for round in 0..8_u8 {
                    clock.sleep(Duration::from_millis(pause_ms)).await;
                    let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
                    client.setattr(&Caller::ROOT, ino, cut).await.unwrap();
                    for at in 0..20 {
                        client
                            .write(
                                &Caller::ROOT,
                                ino,
                                at * MIB as u64,
                                Bytes::from(vec![round + 100; MIB]),
                                false,
                            )
                            .await
                            .unwrap();
                    }
                }
                client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
                over.set(true);
            };
            let flush = async { client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap() };
            let look = async {
                while !over.get() {
                    clock.sleep(Duration::from_millis(20)).await;
                    let Ok(AdminReply::Status(status)) = client.admin(AdminRequest::Status).await
                    else {
                        panic!("no status")
                    };
                    assert_eq!(status.troubles, [], "{pause_ms} ms");
                }
            };
            futures_util::future::join3(flush, change, look).await;
            end(node, client).await;
        }));
        done.unwrap_or_else(|failure| panic!("{pause_ms} ms: {failure}")).unwrap();
        assert_eq!(bucket.objects()["file"].body[..], vec![107; 20 * MIB]);
    }
}

/// During a file's upload another file takes its name, or the name is removed. Expectation: in the
/// end the bucket equals the volume.
#[test]
fn names_change_while_files_are_sent() {
    for pause_ms in (0..40).step_by(4) {
        let world = World::new(pause_ms);
        let bucket = world.bucket();
        let process = world.machine("a").process("node");
        let port = process.bucket(&bucket);
        let inner = process.clone();
        let done = world.run(process.call(async move {
            let root = Caller::ROOT;
            let (node, client) = start(inner.clone(), port).await;
            make(&client, "large", 17).await;
            make(&client, "other", 1).await;
            make(&client, "gone", 17).await;
            let flush = Box::pin(client.admin(AdminRequest::Flush { path: vec![] }));
            let change = async {
                inner.ports.clock.sleep(Duration::from_millis(pause_ms)).await;
                client
                    .rename(
                        &root,
                        Ino::ROOT,
                        &name("large"),
                        Ino::ROOT,
                        &name("moved"),
                        RenameMode::Replace,
                    )
                    .await
                    .unwrap();
                client
                    .rename(
                        &root,
                        Ino::ROOT,
                        &name("other"),
                        Ino::ROOT,
                        &name("large"),
                        RenameMode::Replace,
                    )
                    .await
                    .unwrap();
                client.unlink(&root, Ino::ROOT, &name("gone")).await.unwrap();
                make(&client, "gone", 2).await;
            };
            futures_util::future::join(flush, change).await.0.unwrap();
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            let AdminReply::Fsck(report) = client.admin(AdminRequest::Fsck).await.unwrap() else {
                panic!("another answer")
            };
            assert_eq!(report.problems, vec![]);
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        let objects = bucket.objects();
        let sizes: Vec<(&str, usize)> = objects
            .iter()
            .filter(|(key, _)| !key.starts_with(".ebb/"))
            .map(|(key, object)| (key.as_str(), object.body.len() / MIB))
            .collect();
        assert_eq!(sizes, [("gone", 2), ("large", 1), ("moved", 17)], "after {pause_ms} ms");
    }
}

/// Waits until so many requests of a kind have been sent.
async fn asked(world: &World, bucket: &SimBucket, what: &str, times: u64) {
    while bucket.requests().get(what).is_none_or(|sent| *sent < times) {
        world.sleep(Duration::from_millis(1)).await;
    }
}

/// The reply to a completion is lost, in a store that keeps the parts until they are deleted: the
/// check that finds the object complete deletes them, instead of the next start.
#[test]
fn completion_with_a_lost_reply_leaves_no_parts() {
    for seed in 0..8 {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.keep_parts();
        let process = world.machine("a").process("node");
        let port = process.bucket(&bucket);
        let inner = process.clone();
        let flushed = process.call(async move {
            let (node, client) = start(inner, port).await;
            make(&client, "large", 17).await;
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            (node, client)
        });
        let losing = async {
            asked(&world, &bucket, "upload_part", 1).await;
            let lost = BucketFaults { lost_answer: Rate::ALWAYS, ..Default::default() };
            world.set_faults(FaultPlan { bucket: lost, ..FaultPlan::default() });
            world.sleep(Duration::from_secs(1)).await;
            world.set_faults(FaultPlan::default());
            asked(&world, &bucket, "upload_complete", 1).await;
            world.set_faults(FaultPlan { bucket: lost, ..FaultPlan::default() });
            world.sleep(Duration::from_millis(seed * 300)).await;
            // Replies to those deletes are lost, too (seed 955028 of volumes).
            let refusing = BucketFaults { unavailable: Rate::one_in(2), ..Default::default() };
            world.set_faults(FaultPlan { bucket: refusing, ..FaultPlan::default() });
            world.sleep(Duration::from_secs(60)).await;
            world.set_faults(FaultPlan::default());
        };
        let (done, ()) = world.run(futures_util::future::join(flushed, losing)).unwrap();
        let (node, client) = done.expect("the process lives");
        assert_eq!(bucket.objects()["large"].body.len(), 17 * MIB, "seed {seed}");
        assert_eq!(bucket.unfinished_uploads(), [], "seed {seed}");
        world.run(process.call(end(node, client))).unwrap().unwrap();
    }
}

/// A file is written during its upload. The uploaded bytes stay cached: reads and writes within
/// them need no download.
#[test]
fn uploaded_bytes_stay_cached_while_the_file_is_written() {
    for pause_ms in (0..2000).step_by(100) {
        let (world, bucket, process) = slow_world(pause_ms);
        let (port, inner, asked) = (process.bucket(&bucket), process.clone(), bucket.clone());
        let done = world.run(process.call(async move {
            let (node, client) = start(inner.clone(), port).await;
            let ino = make(&client, "file", 2).await;
            let before = asked.requests();
            let flush = Box::pin(client.admin(AdminRequest::Flush { path: vec![] }));
            let change = async {
                inner.ports.clock.sleep(Duration::from_millis(pause_ms)).await;
                client
                    .write(&Caller::ROOT, ino, 10, Bytes::from_static(b"x"), false)
                    .await
                    .unwrap();
            };
            futures_util::future::join(flush, change).await.0.unwrap();
            let at = MIB as u64 + 100;
            client.write(&Caller::ROOT, ino, at, Bytes::from_static(b"y"), false).await.unwrap();
            assert_eq!(
                client.read(ino, at - 1, 3).await.unwrap(),
                Bytes::from_static(&[1, b'y', 1])
            );
            assert_eq!(asked.requests().get("get"), before.get("get"), "after {pause_ms} ms");
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        let object = &bucket.objects()["file"];
        assert_eq!((object.body[10], object.body[MIB + 100]), (b'x', b'y'));
    }
}

/// A file of another program is renamed, and the node dies after the copy of its object and before
/// the reply. The copy has no tag of ebb, and is recognised all the same, also if the file was
/// removed by then.
#[test]
fn a_copy_that_a_dead_node_has_made_is_known() {
    for (seed, removed) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = World::new(seed);
        let bucket = world.bucket();
        if seed % 2 == 1 {
            bucket.give_own_tags();
        }
        bucket.put_as_outsider("old", vec![7; 1000], vec![]).unwrap();
        let process = world.machine("a").process("node");
        let port = process.bucket(&bucket);
        let inner = process.clone();
        let renamed = Rc::new(RefCell::new(None));
        let shared = renamed.clone();
        let flushing = process.call(async move {
            let (_node, client) = start(inner, port).await;
            let client = Rc::new(client);
            shared.replace(Some(client.clone()));
            client.lookup(Ino::ROOT, &name("old")).await.unwrap();
            client
                .rename(
                    &Caller::ROOT,
                    Ino::ROOT,
                    &name("old"),
                    Ino::ROOT,
                    &name("new"),
                    RenameMode::Replace,
                )
                .await
                .unwrap();
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        });
        let killing = async {
            while !bucket.objects().contains_key("new") {
                world.sleep(Duration::from_micros(100)).await;
            }
            if removed {
                let client = renamed.take().unwrap();
                process
                    .call(
                        async move { client.unlink(&Caller::ROOT, Ino::ROOT, &name("new")).await },
                    )
                    .await
                    .unwrap()
                    .unwrap();
            }
            process.kill();
        };
        let (flushed, ()) = world.run(futures_util::future::join(flushing, killing)).unwrap();
        assert!(flushed.is_none(), "seed {seed}: it dies in the midst of it");
        let process = world.machine("a").process("node");
        let port = process.bucket(&bucket);
        let inner = process.clone();
        let done = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            if !removed {
                client.unlink(&Caller::ROOT, Ino::ROOT, &name("new")).await.unwrap();
            }
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        let left: Vec<String> =
            bucket.objects().into_keys().filter(|key| !key.starts_with(".ebb/")).collect();
        assert_eq!(left, Vec::<String>::new(), "seed {seed}");
    }
}

/// The object exists, the reply was lost, and then the bucket forbids everything for a while. The
/// outcome is requested until it is known; otherwise the object would be unowned once the file is
/// renamed.
#[test]
fn a_lost_answer_is_asked_for_while_the_bucket_forbids_it() {
    for seed in 0..8 {
        let world = Rc::new(World::new(seed));
        let bucket = world.bucket();
        let process = world.machine("a").process("node");
        let port = process.bucket(&bucket);
        let (inner, outer, seen) = (process.clone(), world.clone(), bucket.clone());
        let done = world.run(process.call(async move {
            let (node, client) = start(inner.clone(), port).await;
            make(&client, "file", 1).await;
            outer.set_faults(FaultPlan {
                bucket: BucketFaults { lost_answer: Rate::one_in(2), ..BucketFaults::default() },
                ..FaultPlan::default()
            });
            let flush = Box::pin(client.admin(AdminRequest::Flush { path: vec![] }));
            let change = async {
                while !seen.objects().contains_key("file") {
                    inner.ports.clock.sleep(Duration::from_millis(1)).await;
                }
                outer.set_faults(FaultPlan::default());
                seen.forbid_for(Duration::from_secs(60));
                inner.ports.clock.sleep(Duration::from_secs(30)).await;
                client
                    .rename(
                        &Caller::ROOT,
                        Ino::ROOT,
                        &name("file"),
                        Ino::ROOT,
                        &name("moved"),
                        RenameMode::Replace,
                    )
                    .await
                    .unwrap();
            };
            let (Ok(_) | Err(_)) = futures_util::future::join(flush, change).await.0;
            inner.ports.clock.sleep(Duration::from_secs(60)).await;
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        let objects = bucket.objects();
        let keys: Vec<&str> =
            objects.keys().map(String::as_str).filter(|key| !key.starts_with(".ebb/")).collect();
        assert_eq!(keys, ["moved"], "seed {seed}");
    }
}

/// Number of requests of one kind since `before`.
fn since(bucket: &SimBucket, before: &BTreeMap<&'static str, u64>, what: &str) -> u64 {
    let count = |requests: &BTreeMap<&'static str, u64>| requests.get(what).copied().unwrap_or(0);
    count(&bucket.requests()) - count(before)
}

/// Situation: a large file is in the bucket and not cached. One range is written, it is appended
/// to, and renamed. Expectation: unchanged ranges are neither downloaded nor uploaded, and the
/// object equals the file.
#[test]
fn parts_that_have_not_changed_are_copied_within_the_bucket() {
    let world = World::new(1);
    let bucket = world.bucket();
    let process = world.machine("a").process("node");
    let port = process.bucket(&bucket);
    let (inner, asked) = (process.clone(), bucket.clone());
    let done = world.run(process.call(async move {
        let root = Caller::ROOT;
        let (node, client) = start(inner, port).await;
        let flush =
            async || drop(client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap());
        let ino = make(&client, "file", 40).await;
        flush().await;
        let evict = AdminRequest::Evict { path: vec![], from: (Ino(0), 0), limit_bytes: u64::MAX };
        client.admin(evict).await.unwrap();
        let before = asked.requests();
        client.write(&root, ino, 20 * MIB as u64, Bytes::from(vec![99; MIB]), false).await.unwrap();
        client.write(&root, ino, 40 * MIB as u64, Bytes::from(vec![40; MIB]), false).await.unwrap();
        client
            .rename(&root, Ino::ROOT, &name("file"), Ino::ROOT, &name("moved"), RenameMode::Replace)
            .await
            .unwrap();
        flush().await;
        assert_eq!(since(&asked, &before, "upload_part_copy"), 4, "of six parts");
        assert_eq!(since(&asked, &before, "upload_part"), 2);
        assert!(
            since(&asked, &before, "get") <= 7,
            "seven blocks of 1 MiB were to be fetched, of the part that has changed"
        );
        end(node, client).await;
    }));
    done.unwrap().unwrap();
    let object = &bucket.objects()["moved"];
    assert_eq!(object.body.len(), 41 * MIB);
    let expected = |at: usize| if at == 20 { 99 } else { at as u8 };
    assert!(
        (0..41).all(|at| object.body[at * MIB..(at + 1) * MIB]
            .iter()
            .all(|byte| *byte == expected(at)))
    );
}

/// Situation: a large file that is not cached is uploaded after a change of one byte, and
/// overwritten meanwhile. Danger: the upload is aborted for bytes that are no longer available, in
/// the end while its writers wait. Expectation: overwritten ranges are copied from the object that
/// has them, and the upload completes as it began.
#[test]
fn overwritten_ranges_of_an_upload_are_copied_from_the_bucket() {
    for refuses in [false, true] {
        let world = Rc::new(World::new(1));
        let bucket = world.bucket();
        if refuses {
            bucket.refuse_part_copies();
        }
        let process = world.machine("a").process("node");
        let port = process.bucket(&bucket);
        let (inner, outer, asks) = (process.clone(), world.clone(), bucket.clone());
        let done = world.run(process.call(async move {
            let (root, flush) = (Caller::ROOT, AdminRequest::Flush { path: vec![] });
            let (node, client) = start(inner, port).await;
            let ino = make(&client, "file", 40).await;
            client.admin(flush.clone()).await.unwrap();
            // The bucket's limits are detected here.
            client.write(&root, ino, 1, Bytes::from_static(b"x"), false).await.unwrap();
            client.admin(flush.clone()).await.unwrap();
            let evict =
                AdminRequest::Evict { path: vec![], from: (Ino(0), 0), limit_bytes: u64::MAX };
            client.admin(evict).await.unwrap();
            client.write(&root, ino, 0, Bytes::from_static(b"y"), false).await.unwrap();
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(2) };
            outer.set_faults(FaultPlan {
                bucket: BucketFaults { slow, ..Default::default() },
                ..FaultPlan::default()
            });
            let (before, old) = (asks.requests(), asks.objects()["file"].meta.etag.clone());
            let change = async {
                asked(&outer, &asks, "upload_begin", before["upload_begin"] + 1).await;
                outer.sleep(Duration::from_secs(3)).await;
                for at in (3..40).rev().step_by(4) {
                    let block = Bytes::from(vec![77; BLOCK_BYTES as usize]);
                    client.write(&root, ino, (at * MIB) as u64, block, false).await.unwrap();
                }
                while asks.objects()["file"].meta.etag == old {
                    outer.sleep(Duration::from_millis(1)).await;
                }
                asks.objects()["file"].body.clone()
            };
            let (flushed, sent) =
                futures_util::future::join(client.admin(flush.clone()), change).await;
            flushed.unwrap();
            assert!(
                sent.starts_with(b"yx")
                    && (1..40).all(|at| sent[at * MIB..(at + 1) * MIB]
                        .iter()
                        .all(|byte| *byte == at as u8))
            );
            assert_eq!(since(&asks, &before, "upload_abort"), 0);
            assert_eq!(
                since(&asks, &before, "upload_begin"),
                2,
                "as it was, and with what was overwritten"
            );
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        let object = &bucket.objects()["file"].body;
        assert!((3..40).step_by(4).all(|at| {
            object[at * MIB..at * MIB + BLOCK_BYTES as usize].iter().all(|byte| *byte == 77)
        }));
    }
}

/// A store without the capability to copy parts: they are downloaded and uploaded.
#[test]
fn a_bucket_that_copies_no_parts_is_sent_them() {
    let world = World::new(1);
    let bucket = world.bucket();
    bucket.refuse_part_copies();
    let process = world.machine("a").process("node");
    let port = process.bucket(&bucket);
    let (inner, asked) = (process.clone(), bucket.clone());
    let done = world.run(process.call(async move {
        let (node, client) = start(inner, port).await;
        let ino = make(&client, "file", 20).await;
        client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        for (at, byte) in [(0, 50), (1, 51)] {
            let before = asked.requests();
            client
                .write(&Caller::ROOT, ino, (at * MIB) as u64, Bytes::from(vec![byte; MIB]), false)
                .await
                .unwrap();
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            assert!(since(&asked, &before, "upload_part") >= 3, "the file has three parts");
            let copies = since(&asked, &before, "upload_part_copy");
            assert!(if at == 0 { copies > 0 } else { copies == 0 }, "it is not asked again");
        }
        end(node, client).await;
    }));
    done.unwrap().unwrap();
    assert_eq!(bucket.unfinished_uploads(), []);
    let object = &bucket.objects()["file"];
    let expected = |at: usize| [50, 51].get(at).copied().unwrap_or(at as u8);
    assert!(
        (0..20).all(|at| object.body[at * MIB..(at + 1) * MIB]
            .iter()
            .all(|byte| *byte == expected(at)))
    );
}

/// A log file that is constantly appended to. Expectation: it is not constantly uploaded, and the
/// bucket is behind by no more than a flush interval plus the upload.
#[test]
fn a_file_that_grows_all_the_time_is_sent_once_in_a_flush_interval() {
    const SECONDS: u64 = 60;
    let world = Rc::new(World::new(1));
    let process = world.machine("a").process("node");
    let (inner, outer) = (process.clone(), world.clone());
    let done = world.run(process.call(async move {
        let bucket = outer.bucket();
        let options = Options { flush_interval: Duration::from_secs(5), ..Options::default() };
        let (node, client) = start_flushing(inner.clone(), inner.bucket(&bucket), options).await;
        let ino = make(&client, "log", 0).await;
        let times =
            || bucket.history().iter().filter(|mutation| mutation.key == "log").count() as u64;
        let mut len = 0;
        for step in 0..SECONDS * 100 {
            client.write(&Caller::ROOT, ino, len, Bytes::from(vec![1; 100]), false).await.unwrap();
            len += 100;
            inner.ports.clock.sleep(Duration::from_millis(10)).await;
            // 100 bytes per 10 ms: after the first upload the bucket has the file of 12 s ago.
            let behind =
                len - bucket.objects().get("log").map_or(0, |object| object.body.len() as u64);
            assert!(behind <= 12 * 10_000 + 100, "{behind} bytes behind after {step} steps");
            if step % 100 == 0 {
                let listed =
                    client.admin(AdminRequest::ListDirty { limit: 10, after: None }).await.unwrap();
                let AdminReply::Dirty { items: dirty, .. } = listed else { panic!() };
                let now = inner.ports.clock.wall();
                let mut log = dirty.iter().filter(|item| item.ino == ino);
                assert!(log.all(|item| now.secs - item.since.secs <= 12), "{dirty:?} at {now:?}");
            }
        }
        assert!((SECONDS / 12..=SECONDS / 5 + 1).contains(&times()), "{}", times());
        end(node, client).await;
    }));
    done.unwrap_or_else(|failure| panic!("{failure}")).unwrap();
}

/// Situation: a client constantly appends to a file and creates files beside it, while others
/// flush. Danger: some data is always dirty, and the flush never ends, or fails. Expectation: it
/// ends once everything is uploaded that was dirty when it began.
#[test]
fn a_flush_ends_though_there_is_always_more() {
    for seed in 0..4 {
        let world = Rc::new(World::new(seed));
        let process = world.machine("a").process("node");
        let (inner, outer) = (process.clone(), world.clone());
        let done = world.run(process.call(async move {
            let bucket = outer.bucket();
            let (node, client) = start(inner.clone(), inner.bucket(&bucket)).await;
            let (ino, len) = (make(&client, "log", 0).await, Cell::new(0usize));
            let work = async {
                for step in 0.. {
                    client
                        .write(
                            &Caller::ROOT,
                            ino,
                            len.get() as u64,
                            Bytes::from(vec![1; 100]),
                            false,
                        )
                        .await
                        .unwrap();
                    len.set(len.get() + 100);
                    if step % 10 == 0 {
                        make(&client, &format!("file {step}"), 0).await;
                    }
                    inner.ports.clock.sleep(Duration::from_millis(1)).await;
                }
            };
            let flushes = async {
                for _ in 0..5 {
                    inner.ports.clock.sleep(Duration::from_secs(1)).await;
                    let (before, began) = (len.get(), inner.ports.clock.monotonic());
                    client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
                    let took = inner.ports.clock.monotonic() - began;
                    assert!(took < Duration::from_secs(5), "{took:?}");
                    assert!(bucket.objects()["log"].body.len() >= before, "seed {seed}");
                }
            };
            select(Box::pin(work), Box::pin(flushes)).await;
            end(node, client).await;
        }));
        done.unwrap_or_else(|failure| panic!("{failure}")).unwrap();
    }
}

/// Situation: a file whose checksums a death has invalidated is uploaded, and the bucket rejects a
/// part while checksums of another part are being logged, so the upload is aborted. Danger: no task
/// waits for these records, so it stays unknown whether they are in the log, which then accepts no
/// others.
#[test]
fn an_upload_that_is_given_up_does_not_end_the_log() {
    for seed in 0..16 {
        let world = World::new(seed);
        let bucket = world.bucket();
        let options = || Options {
            part_bytes: 64 << 10,
            flush_interval: Duration::from_millis(100),
            ..Options::default()
        };
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let prepared = world.run(process.call(async move {
            let (node, client) = start_with(inner, port, options()).await;
            let ino = make(&client, "file", 0).await;
            client
                .write(&Caller::ROOT, ino, 0, Bytes::from(vec![1; 1 << 20]), false)
                .await
                .unwrap();
            (node, client, ino)
        }));
        let (_node, _client, ino) = prepared.unwrap().expect("the process lives");
        process.kill();
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(20) };
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let opened = world.run(process.call(start_flushing(inner, port, options())));
        let (_node, client) = opened.unwrap().expect("the process lives");
        world.set_faults(FaultPlan {
            disk: DiskFaults { slow, ..DiskFaults::default() },
            bucket: BucketFaults {
                unavailable: Rate::one_in(2),
                throttled: Rate::one_in(2),
                ..BucketFaults::default()
            },
            ..FaultPlan::default()
        });
        let clock = process.ports.clock.clone();
        let done = world.run(process.call(async move {
            for at in 0..100 {
                clock.sleep(Duration::from_millis(50)).await;
                let written = client
                    .write(&Caller::ROOT, ino, at * 7919, Bytes::from(vec![2; 3000]), false)
                    .await;
                assert!(written.is_ok(), "seed {seed}: {written:?}");
            }
        }));
        done.unwrap().unwrap();
    }
}

/// Situation: a large file is written and forced after its upload has begun, so that the upload's
/// tag is older than the uploaded bytes; once uploaded, it is overwritten, and a power cut loses
/// that and the end of the upload. Danger: blocks overwritten in place are dirty again with the
/// earlier checksum: in the bucket, and unreadable. (Seed 9096 of volumes.)
#[test]
fn uploaded_blocks_are_overwritten_only_after_a_durable_upload_end() {
    const OLD: u8 = b'o';
    const SENT: u8 = b's';
    const NEW: u8 = b'n';
    const ANSWERED: Duration = Duration::from_millis(20);
    for seed in 0..8 {
        let world = Rc::new(World::new(seed));
        let bucket = world.bucket();
        let machine = world.machine("a");
        let options = || Options {
            commit_interval: Duration::from_secs(3600),
            part_bytes: 64 << 10,
            ..Options::default()
        };
        let process = machine.process_on("node", "data");
        let (port, inner, outer, asks) =
            (process.bucket(&bucket), process.clone(), world.clone(), bucket.clone());
        let overwritten = world.run(process.call(async move {
            let (_node, client) = start_with(inner, port, options()).await;
            let ino = make(&client, "file", 0).await;
            let write = async |with: u8, len: usize| {
                client
                    .write(&Caller::ROOT, ino, 0, Bytes::from(vec![with; len]), false)
                    .await
                    .unwrap();
            };
            write(OLD, MIB).await;
            client.fsync(ino).await.unwrap();
            // While this one is on its way nothing forces the log.
            make(&client, "larger", 16).await;
            let change = async {
                asked(&outer, &asks, "upload_begin", 1).await;
                write(SENT, BLOCK_BYTES as usize).await;
                client.fsync(ino).await.unwrap();
                while !asks.objects().contains_key("file") {
                    outer.sleep(Duration::from_millis(1)).await;
                }
                outer.sleep(ANSWERED).await;
                write(NEW, BLOCK_BYTES as usize).await;
            };
            let flush = Box::pin(client.admin(AdminRequest::Flush { path: vec![] }));
            assert!(
                matches!(select(flush, Box::pin(change)).await, Either::Right(_)),
                "seed {seed}: it was sent too soon"
            );
            ino
        }));
        let ino = overwritten.unwrap().expect("the process lives");
        assert!(
            bucket.objects()["file"].body.starts_with(&[SENT]),
            "seed {seed}: it was sent as it was written"
        );
        machine.power_cut();
        let process = machine.process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let read = world.run(process.call(async move {
            let (_node, client) = start_with(inner, port, options()).await;
            client.read(ino, 0, BLOCK_BYTES as usize).await
        }));
        let read = read
            .unwrap()
            .expect("the process lives")
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(read.iter().all(|byte| [SENT, NEW].contains(byte)), "seed {seed}: {:?}", read[0]);
    }
}
