//! Requests of a node that has ended, which take effect after the next one has begun.

use super::{asked, end, make, name, start, start_with};
use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_ports::Capabilities;
use ebb_sim::{BucketFaults, FaultPlan, Process, Rate, SimBucket, World};
use std::rc::Rc;
use std::time::Duration;

/// Requests take effect up to 8 s late.
pub(crate) fn late() -> FaultPlan {
    let bucket = BucketFaults {
        late: Rate::ALWAYS,
        late_limit: Duration::from_secs(8),
        ..BucketFaults::default()
    };
    FaultPlan { bucket, ..FaultPlan::default() }
}

/// Flushes, and dies when the first request of a kind has been sent.
pub(crate) async fn die_flushing(
    world: &World,
    bucket: &SimBucket,
    process: &Process,
    client: Client,
    what: &str,
    faults: FaultPlan,
) {
    let before = bucket.requests().get(what).copied().unwrap_or(0);
    world.set_faults(faults);
    let dying =
        process.call(async move { client.admin(AdminRequest::Flush { path: vec![] }).await });
    let killing = async {
        asked(world, bucket, what, before + 1).await;
        world.sleep(Duration::from_millis(50)).await;
        process.kill();
        world.set_faults(FaultPlan::default());
    };
    let (died, ()) = futures_util::future::join(dying, killing).await;
    assert!(died.is_none(), "it dies in the midst of it");
}

pub(crate) fn files_in(bucket: &SimBucket) -> Vec<String> {
    bucket.objects().into_keys().filter(|key| !key.starts_with(".ebb/")).collect()
}

/// Situation: a node dies with an upload in flight, which takes effect only after the next start,
/// when the file is gone or renamed. Danger: no inode claims the key, so the object counts as
/// another program's, and a removed file is back.
#[test]
fn late_upload_of_a_dead_node_is_recognised() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Then {
        Removed,
        Renamed,
        Kept,
    }
    let cases = [Then::Removed, Then::Renamed, Then::Kept]
        .into_iter()
        .flat_map(|then| [(then, false), (then, true)]);
    for (seed, (then, replaces)) in
        (0..8).flat_map(|seed| cases.clone().map(move |case| (seed, case)))
    {
        let world = World::new(seed);
        let bucket = world.bucket();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let prepared = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            let ino = make(&client, "file", 0).await;
            client.write(&Caller::ROOT, ino, 0, Bytes::from_static(b"first"), false).await.unwrap();
            if replaces {
                client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
                client
                    .write(&Caller::ROOT, ino, 0, Bytes::from_static(b"again"), false)
                    .await
                    .unwrap();
            }
            (node, client)
        }));
        let (_node, client) = prepared.unwrap().expect("the process lives");
        world.run(die_flushing(&world, &bucket, &process, client, "put", late())).unwrap();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let done = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            let root = Caller::ROOT;
            match then {
                Then::Removed => {
                    client.unlink(&root, Ino::ROOT, &name("file")).await.map(drop).unwrap()
                }
                Then::Renamed => client
                    .rename(
                        &root,
                        Ino::ROOT,
                        &name("file"),
                        Ino::ROOT,
                        &name("moved"),
                        RenameMode::Replace,
                    )
                    .await
                    .map(drop)
                    .unwrap(),
                Then::Kept => {}
            };
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            let AdminReply::Fsck(report) = client.admin(AdminRequest::Fsck).await.unwrap() else {
                panic!("another answer")
            };
            assert_eq!(
                (report.problems, report.others, report.waiting),
                (vec![], vec![], 0),
                "seed {seed}, {then:?}"
            );
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        let expected = match then {
            Then::Removed => vec![],
            Then::Renamed => vec!["moved"],
            Then::Kept => vec!["file"],
        };
        assert_eq!(files_in(&bucket), expected, "seed {seed}, {then:?}, {replaces}");
        let content = bucket
            .objects()
            .remove(expected.first().copied().unwrap_or_default())
            .map(|object| object.body[0]);
        assert_eq!(
            content,
            expected.first().map(|_| if replaces { b'a' } else { b'f' }),
            "seed {seed}, {then:?}"
        );
    }
}

/// Situation: an upload of a dead node took effect late, when its file had changed; then the file
/// is uploaded again, and the node dies meanwhile. The file is removed before or after that.
/// Danger: the earlier object counts as the last upload, and the last upload as another program's:
/// a removed file is back.
#[test]
fn late_upload_is_not_taken_for_a_later_one() {
    for (seed, removed_before) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.give_own_tags();
        let prepare = |fills: bool| {
            let process = world.machine("a").process_on("node", "data");
            let (port, inner) = (process.bucket(&bucket), process.clone());
            let prepared = world.run(process.call(async move {
                let (node, client) = start(inner.clone(), port).await;
                match fills {
                    true => fill(&client, "file").await,
                    // The late object is known by then.
                    false => inner.ports.clock.sleep(Duration::from_secs(12)).await,
                }
                (node, client)
            }));
            (process, prepared.unwrap().expect("the process lives"))
        };
        let (process, (_node, client)) = prepare(true);
        world.run(die_flushing(&world, &bucket, &process, client, "put", late())).unwrap();
        let (process, (_node, client)) = prepare(false);
        let (sent, remover, inner) = (bucket.requests()["put"], client.clone(), process.clone());
        let removing = async {
            asked(&world, &bucket, "put", sent + 1).await;
            if removed_before {
                let removed = inner.call(async move {
                    remover.unlink(&Caller::ROOT, Ino::ROOT, &name("file")).await
                });
                removed.await.expect("the process lives").map(drop).unwrap();
            }
        };
        let dying = die_flushing(&world, &bucket, &process, client, "put", late());
        world.run(futures_util::future::join(dying, removing)).unwrap();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let done = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            if !removed_before {
                client.unlink(&Caller::ROOT, Ino::ROOT, &name("file")).await.map(drop).unwrap();
            }
            flush(&client).await;
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        assert_eq!(
            files_in(&bucket),
            Vec::<String>::new(),
            "seed {seed}, removed before the end {removed_before}"
        );
    }
}

/// As before, for a copy of another program's object: it has no tag of ebb, and its source is gone
/// before it appears.
#[test]
fn a_copy_that_a_dead_node_has_asked_for_may_come_late() {
    for (seed, removed) in (0..16).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = World::new(seed);
        let bucket = world.bucket();
        if seed % 4 >= 2 {
            bucket.give_own_tags();
        }
        bucket.put_as_outsider("old", vec![7; 1000], vec![]).unwrap();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let prepared = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
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
            (node, client)
        }));
        let (_node, client) = prepared.unwrap().expect("the process lives");
        world.run(die_flushing(&world, &bucket, &process, client, "copy", late())).unwrap();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let done = world.run(process.call(async move {
            let (node, client) = start(inner.clone(), port).await;
            inner.ports.clock.sleep(Duration::from_secs(seed / 2)).await;
            if removed {
                client.unlink(&Caller::ROOT, Ino::ROOT, &name("new")).await.unwrap();
            }
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        let expected: &[&str] = if removed { &[] } else { &["new"] };
        assert_eq!(files_in(&bucket), expected, "seed {seed}");
    }
}

/// Situation: a power cut during the upload of an unforced file; it starts twice, and the upload
/// takes effect in between. Danger: the second start takes the file for the upload, after the first
/// one has shown something else.
#[test]
fn late_upload_does_not_change_data_already_read() {
    let mut lost = 0;
    for seed in 0..24 {
        let world = World::new(seed);
        let bucket = world.bucket();
        let machine = world.machine("a");
        let options =
            || Options { commit_interval: Duration::from_secs(3600), ..Options::default() };
        let process = machine.process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let prepared = world.run(process.call(async move {
            let (node, client) = start_with(inner, port, options()).await;
            let ino = make(&client, "file", 0).await;
            client
                .write(&Caller::ROOT, ino, 0, Bytes::from(vec![b'a'; 5000]), false)
                .await
                .unwrap();
            (node, client)
        }));
        let (_node, client) = prepared.unwrap().expect("the process lives");
        world.run(die_flushing(&world, &bucket, &process, client, "put", late())).unwrap();
        machine.power_cut();
        let mut seen = Vec::new();
        for _ in 0..3 {
            let process = machine.process_on("node", "data");
            let (port, inner) = (process.bucket(&bucket), process.clone());
            let read = world.run(process.call(async move {
                let (_node, client) = start_with(inner.clone(), port, options()).await;
                let file = client.lookup(Ino::ROOT, &name("file")).await.unwrap();
                let before = client.read(file.ino, 0, 10_000).await.unwrap();
                inner.ports.clock.sleep(Duration::from_secs(5)).await;
                (before, client.read(file.ino, 0, 10_000).await.unwrap())
            }));
            let (before, after) = read.unwrap().expect("the process lives");
            process.kill();
            seen.extend([before, after]);
        }
        assert!(
            seen.windows(2).all(|two| two[0] == two[1]),
            "seed {seed}: the file has changed by itself"
        );
        lost += u32::from(seen[0] != vec![b'a'; 5000]);
    }
    assert!(lost > 0, "no power cut took the bytes");
}

/// A repeated request of a node, and its successor's opposite action.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Asked {
    WrittenFile,
    MovedFile,
    RemovedFile,
    Marker,
    Pieces,
}

impl Asked {
    const ALL: [Asked; 5] =
        [Asked::WrittenFile, Asked::MovedFile, Asked::RemovedFile, Asked::Marker, Asked::Pieces];

    fn request(self) -> &'static str {
        match self {
            Asked::WrittenFile | Asked::Marker | Asked::Pieces => "put",
            Asked::MovedFile => "copy",
            Asked::RemovedFile => "delete",
        }
    }

    async fn prepare(self, client: &Client) {
        let root = Caller::ROOT;
        match self {
            Asked::WrittenFile => fill(client, "file").await,
            Asked::MovedFile => {
                fill(client, "file").await;
                flush(client).await;
                let renamed = client
                    .rename(
                        &root,
                        Ino::ROOT,
                        &name("file"),
                        Ino::ROOT,
                        &name("moved"),
                        RenameMode::Replace,
                    )
                    .await;
                renamed.map(drop).unwrap();
            }
            Asked::RemovedFile => {
                fill(client, "file").await;
                flush(client).await;
                client.unlink(&root, Ino::ROOT, &name("file")).await.unwrap();
            }
            Asked::Marker => {
                client
                    .make(&root, Ino::ROOT, &name("dir"), 0o755, Make::Directory, false)
                    .await
                    .unwrap();
            }
            Asked::Pieces => {
                for at in 0..LINKS {
                    let target = Make::Symlink { target: Bytes::from_static(b"nowhere") };
                    client
                        .make(&root, Ino::ROOT, &name(&format!("link{at}")), 0o777, target, false)
                        .await
                        .unwrap();
                }
            }
        }
    }

    /// Returns the remaining files.
    async fn undo(self, client: &Client) -> &'static [&'static str] {
        let root = Caller::ROOT;
        match self {
            Asked::WrittenFile => {
                client.unlink(&root, Ino::ROOT, &name("file")).await.map(drop).unwrap()
            }
            Asked::MovedFile => {
                client.unlink(&root, Ino::ROOT, &name("moved")).await.map(drop).unwrap()
            }
            Asked::RemovedFile => {
                fill(client, "file").await;
                return &["file"];
            }
            Asked::Marker => client.rmdir(&root, Ino::ROOT, &name("dir")).await.map(drop).unwrap(),
            Asked::Pieces => {
                for at in 0..LINKS {
                    client.unlink(&root, Ino::ROOT, &name(&format!("link{at}"))).await.unwrap();
                }
            }
        }
        &[]
    }
}

const LINKS: usize = 8;

pub(crate) async fn fill(client: &Client, file: &str) {
    let ino = make(client, file, 0).await;
    client.write(&Caller::ROOT, ino, 0, Bytes::from_static(b"content"), false).await.unwrap();
}

/// The next run of a node flushes and ends.
pub(crate) fn flush_anew(world: &World, bucket: &SimBucket) {
    let process = world.machine("a").process_on("node", "data");
    let (port, inner) = (process.bucket(bucket), process.clone());
    let done = world.run(process.call(async move {
        let (node, client) = start(inner, port).await;
        flush(&client).await;
        end(node, client).await;
    }));
    done.unwrap().unwrap();
}

pub(crate) async fn flush(client: &Client) {
    client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
}

/// Situation: the reply to a request is lost, and it is repeated successfully; then the node ends,
/// and the first attempt takes effect after the next node has undone it. Danger: a removed object
/// is back, or a new one is gone. Expectation: the next node undoes nothing before all earlier
/// requests have ended, and a stopping node waits for its own.
#[test]
fn late_first_attempt_of_an_ended_node_changes_nothing() {
    let cases = Asked::ALL.into_iter().flat_map(|asked| [(asked, false), (asked, true)]);
    for (seed, (what, killed)) in
        (0..4).flat_map(|seed| cases.clone().map(move |case| (seed, case)))
    {
        let case = format!("seed {seed}, {what:?}, {}", if killed { "killed" } else { "stopped" });
        let world = World::new(seed);
        let bucket = world.bucket();
        let options = || Options { page_piece_entries: 2, ..Options::default() };
        let process = world.machine("a").process_on("node", "data");
        let usual = process.bucket(&bucket).capabilities();
        bucket.set_capabilities(Capabilities { conditional_delete: false, ..usual });
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let prepared = world.run(process.call(async move {
            let (node, client) = start_with(inner, port, options()).await;
            what.prepare(&client).await;
            (node, client)
        }));
        let (node, client) = prepared.unwrap().expect("the process lives");
        let before = bucket.requests().get(what.request()).copied().unwrap_or(0);
        let flushing = process.call(async move {
            flush(&client).await;
            if !killed {
                end(node, client).await;
            }
        });
        let calming = async {
            asked(&world, &bucket, what.request(), before + 1).await;
            // Before the request reaches the store.
            world.set_faults(late());
            world.sleep(Duration::from_millis(50)).await;
            world.set_faults(FaultPlan::default());
            if killed {
                world.sleep(Duration::from_millis(200 * (1 + seed % 3))).await;
                process.kill();
            }
        };
        world.run(futures_util::future::join(flushing, calming)).unwrap();
        process.kill();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let done = world.run(process.call(async move {
            let (node, client) = start_with(inner, port, options()).await;
            let expected = what.undo(&client).await;
            flush(&client).await;
            end(node, client).await;
            expected
        }));
        let expected = done.unwrap().unwrap();
        process.kill();
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        assert_eq!(files_in(&bucket), expected, "{case}");
        let process = world.machine("b").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let checked = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            let AdminReply::Fsck(report) = client.admin(AdminRequest::Fsck).await.unwrap() else {
                panic!("another answer")
            };
            end(node, client).await;
            (report.problems, report.others)
        }));
        assert_eq!(checked.unwrap().unwrap(), (vec![], vec![]), "{case}");
    }
}

/// Situation: the reply to the beginning of an upload is lost, or the node dies before it has
/// logged it. Danger: its parts, or the upload alone, stay at a cost, since its id is unknown; and
/// uploads cannot be listed while the bucket forbids everything (seed 14338 of volumes).
/// Expectation: it is aborted, by this node or by the next one.
#[test]
fn an_upload_that_was_begun_for_nobody_is_ended() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Then {
        Nothing,
        Forbidden,
        KilledAfterMs(u64),
    }
    let all = [
        Then::Nothing,
        Then::Forbidden,
        Then::KilledAfterMs(0),
        Then::KilledAfterMs(60),
        Then::KilledAfterMs(10_500),
    ];
    for (seed, then) in (0..6).flat_map(|seed| all.map(|then| (seed, then))) {
        let case = format!("seed {seed}, {then:?}");
        let world = World::new(seed);
        let bucket = world.bucket();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let flushing = process.call(async move {
            let (node, client) = start(inner, port).await;
            make(&client, "large", 17).await;
            flush(&client).await;
            end(node, client).await;
        });
        let losing = async {
            asked(&world, &bucket, "upload_begin", 1).await;
            // Before the request reaches the store.
            world.set_faults(late());
            world.sleep(Duration::from_millis(50)).await;
            world.set_faults(FaultPlan::default());
            match then {
                Then::Nothing => {}
                Then::Forbidden => {
                    world.sleep(Duration::from_secs(1)).await;
                    let forbidden = BucketFaults {
                        forbidden: Rate::ALWAYS,
                        outage_limit: Duration::from_secs(1),
                        ..BucketFaults::default()
                    };
                    world.set_faults(FaultPlan { bucket: forbidden, ..FaultPlan::default() });
                    world.sleep(Duration::from_secs(12)).await;
                    world.set_faults(FaultPlan::default());
                }
                Then::KilledAfterMs(after) => {
                    world.sleep(Duration::from_millis(after)).await;
                    process.kill();
                }
            }
        };
        world.run(futures_util::future::join(flushing, losing)).unwrap();
        process.kill();
        flush_anew(&world, &bucket);
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        assert_eq!(bucket.unfinished_uploads(), [], "{case}");
        assert_eq!(bucket.objects()["large"].body.len(), 17 << 20, "{case}");
    }
}

/// Situation: as before, and the store permits everything except aborts. Danger: the file, and
/// every later upload, waits for that for ever, or the next start does.
#[test]
fn forbidden_aborts_do_not_block_uploads() {
    for (seed, killed) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.forbid_aborts();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let flushing = process.call(async move {
            let (node, client) = start(inner, port).await;
            make(&client, "large", 17).await;
            flush(&client).await;
            end(node, client).await;
        });
        let losing = async {
            asked(&world, &bucket, "upload_begin", 1).await;
            if killed {
                // Its id is in the log by then.
                asked(&world, &bucket, "upload_part", 1).await;
                return process.kill();
            }
            world.set_faults(late());
            world.sleep(Duration::from_millis(50)).await;
            world.set_faults(FaultPlan::default());
        };
        let (flushed, ()) = world.run(futures_util::future::join(flushing, losing)).unwrap();
        assert_eq!(flushed.is_none(), killed);
        process.kill();
        flush_anew(&world, &bucket);
        assert_eq!(bucket.objects()["large"].body.len(), 17 << 20, "seed {seed}, killed {killed}");
    }
}

/// Situation: a bucket turns read-only while a large file is sent there, and later it may be
/// changed again. Danger: the upload that could not be completed, and could not be ended, is
/// forgotten, and paid for.
#[test]
fn a_bucket_that_turns_read_only_keeps_no_upload() {
    for (seed, ends) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = World::new(seed);
        let bucket = world.bucket();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let flushing = process.call(async move {
            let (node, client) = start(inner, port).await;
            make(&client, "large", 17).await;
            // It may report the prohibition.
            let _ = client.admin(AdminRequest::Flush { path: vec![] }).await;
            if ends {
                end(node, client).await;
            } else {
                node.ports().clock.sleep(Duration::from_secs(60)).await;
                flush(&client).await;
            }
        });
        let forbidding = async {
            asked(&world, &bucket, "upload_part", 2).await;
            bucket.forbid_changes(true);
            world.sleep(Duration::from_secs(30)).await;
            if !ends {
                bucket.forbid_changes(false);
            }
        };
        let (flushed, ()) = world.run(futures_util::future::join(flushing, forbidding)).unwrap();
        flushed.expect("the process lives");
        process.kill();
        bucket.forbid_changes(false);
        flush_anew(&world, &bucket);
        assert_eq!(bucket.unfinished_uploads(), [], "seed {seed}, the node ends: {ends}");
        assert_eq!(
            bucket.objects()["large"].body.len(),
            17 << 20,
            "seed {seed}, the node ends: {ends}"
        );
    }
}

/// Situation: the delete of a removed directory's marker gets no reply, is repeated, and the first
/// attempt takes effect late; meanwhile a directory of that name is created again. Danger: its
/// marker is deleted, and with it the directory, for clients that see only keys.
#[test]
fn a_late_deletion_takes_no_new_marker() {
    for seed in 0..60 {
        let world = World::new(seed);
        let bucket = world.bucket();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let late = BucketFaults {
            late: Rate::one_in(3),
            late_limit: Duration::from_secs(8),
            ..BucketFaults::default()
        };
        world.set_faults(FaultPlan { bucket: late, ..FaultPlan::default() });
        let done = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            let make = async || {
                client
                    .make(&Caller::ROOT, Ino::ROOT, &name("dir"), 0o755, Make::Directory, false)
                    .await
                    .unwrap()
            };
            let flush = async || client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            make().await;
            flush().await;
            client.rmdir(&Caller::ROOT, Ino::ROOT, &name("dir")).await.unwrap();
            flush().await;
            make().await;
            flush().await;
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        assert!(bucket.objects().contains_key("dir/"), "seed {seed}");
    }
}

/// Situation: the reply to an upload is lost, and the store rejects its repetition, as a full one
/// does; the first attempt takes effect late, when the file may be gone. Danger: the object counts
/// as another program's, and is kept beside the file, or for ever.
#[test]
fn late_upload_after_a_refused_repetition_is_not_foreign() {
    let cases = [false, true].into_iter().flat_map(|removed| [(removed, false), (removed, true)]);
    for (seed, (removed, replaces)) in
        (0..6).flat_map(|seed| cases.clone().map(move |case| (seed, case)))
    {
        let world = World::new(seed);
        let bucket = world.bucket();
        let process = world.machine("a").process_on("node", "data");
        let usual = process.bucket(&bucket).capabilities();
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let prepared = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            fill(&client, "file").await;
            if replaces {
                flush(&client).await;
                let ino = client.lookup(Ino::ROOT, &name("file")).await.unwrap().ino;
                client
                    .write(&Caller::ROOT, ino, 0, Bytes::from_static(b"again"), false)
                    .await
                    .unwrap();
            }
            (node, Rc::new(client))
        }));
        let (node, client) = prepared.unwrap().expect("the process lives");
        let before = bucket.requests().get("put").copied().unwrap_or(0);
        let flushing = {
            let client = client.clone();
            // It may report the store's rejection.
            process.call(async move {
                client.admin(AdminRequest::Flush { path: vec![] }).await.map(drop).ok()
            })
        };
        let refusing = async {
            asked(&world, &bucket, "put", before + 1).await;
            world.set_faults(late());
            world.sleep(Duration::from_millis(50)).await;
            world.set_faults(FaultPlan::default());
            bucket.set_capabilities(Capabilities { max_put_bytes: 1, ..usual });
            world.sleep(Duration::from_secs(1)).await;
            bucket.set_capabilities(usual);
        };
        world.run(futures_util::future::join(flushing, refusing)).unwrap();
        let done = world.run(process.call(async move {
            if removed {
                client.unlink(&Caller::ROOT, Ino::ROOT, &name("file")).await.map(drop).unwrap();
            }
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            end(node, Rc::into_inner(client).expect("nobody else has it")).await;
        }));
        done.unwrap().unwrap();
        process.kill();
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        let expected = if removed { vec![] } else { vec!["file".to_owned()] };
        assert_eq!(
            files_in(&bucket),
            expected,
            "seed {seed}, removed {removed}, replaces {replaces}"
        );
    }
}
