//! Copies within the bucket with a lost reply, and objects of other programs at their target keys.

use super::late::{die_flushing, files_in, fill, flush, flush_anew, late};
use super::{asked, end, make, make_in, name, start};
use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Node;
use ebb_ports::Capabilities;
use ebb_sim::{BucketFaults, FaultPlan, Process, Rate, SimBucket, World};
use futures_util::future::{join, join_all};
use std::rc::Rc;
use std::time::Duration;

async fn rename(client: &Client, from: &str, to: &str) {
    client
        .rename(&Caller::ROOT, Ino::ROOT, &name(from), Ino::ROOT, &name(to), RenameMode::Replace)
        .await
        .map(drop)
        .unwrap();
}

fn put_large(bucket: &SimBucket, process: &Process, key: &str, body: Bytes) {
    let usual = process.bucket(bucket).capabilities();
    bucket.set_capabilities(Capabilities { max_put_bytes: 1 << 30, ..usual });
    bucket.put_as_outsider(key, body, vec![]).unwrap();
    bucket.set_capabilities(usual);
}

/// The entry that is renamed from `old` to `new`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Renamed {
    /// An object of another program.
    Others,
    /// A file of a MiB.
    File,
    /// A directory that takes the name of another one, which moves away. A `file` of 1 MiB created
    /// in it is uploaded to its old key, and copied once the other directory's objects have moved.
    Parent,
}

/// A node that has renamed something, and is not done with it.
fn renamed(world: &World, bucket: &SimBucket, what: Renamed) -> (Process, Rc<Node>, Client) {
    let process = world.machine("a").process_on("node", "data");
    let (port, inner) = (process.bucket(bucket), process.clone());
    let prepared = world.run(process.call(async move {
        let (node, client) = start(inner, port).await;
        let dirs = match what {
            Renamed::Others => None,
            Renamed::File => {
                make(&client, "old", 1).await;
                None
            }
            Renamed::Parent => {
                let made = ["old", "new"].map(async |dir| {
                    let made = client
                        .make(&Caller::ROOT, Ino::ROOT, &name(dir), 0o700, Make::Directory, false)
                        .await
                        .unwrap();
                    make_in(&client, made.ino, "first", 0).await;
                    made.ino
                });
                Some(join_all(made).await)
            }
        };
        flush(&client).await;
        client.lookup(Ino::ROOT, &name("old")).await.unwrap();
        if dirs.is_some() {
            rename(&client, "new", "other").await;
        }
        rename(&client, "old", "new").await;
        if let Some(dirs) = &dirs {
            make_in(&client, dirs[0], "file", 1).await;
        }
        (node, client)
    }));
    let (node, client) = prepared.unwrap().expect("the process lives");
    (process, node, client)
}

/// Situation: the reply to a copy of another program's object is lost, and copies get ETags of
/// their own. The object is long, or the store forbids everything now and then. Danger: the copy
/// counts as another program's, and is kept beside the file.
#[test]
fn a_copy_that_nobody_heard_of_is_known() {
    for (seed, (len_mib, forbidden)) in (0..24)
        .flat_map(|seed| [(seed, (66, false)), (seed, (5, true))])
        .filter(|(seed, case)| case.1 || *seed < 2)
    {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.give_own_tags();
        let body = Bytes::from(vec![7; len_mib << 20]);
        put_large(&bucket, &world.machine("b").process("other"), "old", body.clone());
        let (process, node, client) = renamed(&world, &bucket, Renamed::Others);
        let losing = BucketFaults { lost_answer: Rate::ALWAYS, ..BucketFaults::default() };
        world.set_faults(FaultPlan { bucket: losing, ..FaultPlan::default() });
        let flushing = process.call(async move {
            flush(&client).await;
            (node, client)
        });
        let clearing = async {
            asked(&world, &bucket, "copy", 1).await;
            world.sleep(Duration::from_millis(50)).await;
            let rate = if forbidden { Rate::one_in(3) } else { Rate::NEVER };
            let refusing = BucketFaults {
                forbidden: rate,
                outage_limit: Duration::from_secs(1),
                ..BucketFaults::default()
            };
            world.set_faults(FaultPlan { bucket: refusing, ..FaultPlan::default() });
            world.sleep(Duration::from_secs(60)).await;
            world.set_faults(FaultPlan::default());
        };
        let (flushed, ()) = world.run(join(flushing, clearing)).unwrap();
        let (node, client) = flushed.expect("the process lives");
        world.run(process.call(end(node, client))).unwrap().unwrap();
        assert_eq!(files_in(&bucket), ["new"], "seed {seed}, {len_mib} MiB");
        assert_eq!(bucket.objects()["new"].body, body);
    }
}

/// Situation: as before, where a copy has the ETag of its source; the source is replaced before the
/// repetition. Danger: the copy counts as another program's.
#[test]
fn a_copy_is_known_though_its_source_is_replaced() {
    for seed in 0..8 {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.put_as_outsider("old", vec![7; 1000], vec![]).unwrap();
        let (process, node, client) = renamed(&world, &bucket, Renamed::Others);
        let losing = BucketFaults { lost_answer: Rate::ALWAYS, ..BucketFaults::default() };
        world.set_faults(FaultPlan { bucket: losing, ..FaultPlan::default() });
        let flushing = process.call(async move {
            // It may report that the source has been replaced.
            let _ = client.admin(AdminRequest::Flush { path: vec![] }).await;
            (node, client)
        });
        let replacing = async {
            asked(&world, &bucket, "copy", 1).await;
            while !bucket.objects().contains_key("new") {
                world.sleep(Duration::from_millis(1)).await;
            }
            bucket.put_as_outsider("old", vec![8; 1000], vec![]).unwrap();
            world.set_faults(FaultPlan::default());
        };
        let (flushed, ()) = world.run(join(flushing, replacing)).unwrap();
        let (node, client) = flushed.expect("the process lives");
        let done = world.run(process.call(async move {
            flush(&client).await;
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        assert_eq!(files_in(&bucket), ["new", "old"], "seed {seed}");
        let first_bytes = ["new", "old"].map(|key| bucket.objects()[key].body[0]);
        assert_eq!(first_bytes, [7, 8], "seed {seed}");
    }
}

/// Situation: a long object is copied as a multipart upload, with a lost reply to its beginning or
/// end; it is repeated, and then the node may be killed. The source is a file, another program's
/// object, or a file without a record that its directory was renamed. Danger: an upload stays open
/// for ever, at a cost.
#[test]
fn a_copy_in_parts_leaves_no_upload() {
    let begun =
        [None, Some(100), Some(2000), Some(11_000)].map(|killed_ms| ("upload_begin", killed_ms));
    let cases = begun.into_iter().chain([("upload_complete", Some(100))]);
    let cases = cases.flat_map(|case| {
        [Renamed::Others, Renamed::File, Renamed::Parent].map(|what| (case, what))
    });
    for (seed, ((lost, killed_ms), what)) in
        (0..12).flat_map(|seed| cases.clone().map(move |case| (seed, case)))
    {
        let case = format!("seed {seed}, {lost}, killed after {killed_ms:?} ms, {what:?}");
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.copy_in_parts();
        let body = Bytes::from(vec![0; 1 << 20]);
        if what == Renamed::Others {
            put_large(&bucket, &world.machine("b").process("other"), "old", body.clone());
        }
        let (process, node, client) = renamed(&world, &bucket, what);
        let sent = u64::from(what == Renamed::Parent);
        let before = bucket.requests().get(lost).copied().unwrap_or(0) + sent;
        let flushing = process.call(async move {
            flush(&client).await;
            (node, client)
        });
        let losing = async {
            asked(&world, &bucket, lost, before + 1).await;
            world.set_faults(late());
            world.sleep(Duration::from_millis(50)).await;
            world.set_faults(FaultPlan::default());
            if let Some(after) = killed_ms {
                world.sleep(Duration::from_millis(after)).await;
                process.kill();
            }
        };
        let (_, ()) = world.run(join(flushing, losing)).unwrap();
        process.kill();
        flush_anew(&world, &bucket);
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        assert_eq!(bucket.unfinished_uploads(), [], "{case}");
        let key = if what == Renamed::Parent { "new/file" } else { "new" };
        let beside = ["new/", "new/first", "other/", "other/first"];
        let files: Vec<String> =
            files_in(&bucket).into_iter().filter(|key| !beside.contains(&key.as_str())).collect();
        assert_eq!(files, [key], "{case}");
        assert_eq!(bucket.objects()[key].body, body, "{case}");
    }
}

/// Situation: when a long object has been copied in parts, the store forbids everything for a
/// while, also the abort of that upload. Danger: it stays open for ever, since the next attempt
/// begins another one.
#[test]
fn a_copy_that_is_forbidden_leaves_no_upload() {
    for seed in 0..8 {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.copy_in_parts();
        let (process, node, client) = renamed(&world, &bucket, Renamed::File);
        let before = bucket.requests()["upload_complete"];
        let flushing = process.call(async move {
            // It may report the prohibition.
            let _ = client.admin(AdminRequest::Flush { path: vec![] }).await;
            (node, client)
        });
        let forbidding = async {
            asked(&world, &bucket, "upload_complete", before + 1).await;
            let forbidden = BucketFaults {
                forbidden: Rate::ALWAYS,
                outage_limit: Duration::from_secs(1),
                ..BucketFaults::default()
            };
            world.set_faults(FaultPlan { bucket: forbidden, ..FaultPlan::default() });
            world.sleep(Duration::from_secs(60)).await;
            world.set_faults(FaultPlan::default());
        };
        let (flushed, ()) = world.run(join(flushing, forbidding)).unwrap();
        let (node, client) = flushed.expect("the process lives");
        let done = world.run(process.call(async move {
            flush(&client).await;
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        assert_eq!(bucket.unfinished_uploads(), [], "seed {seed}");
        assert_eq!(files_in(&bucket), ["new"], "seed {seed}");
    }
}

/// Situation: the reply to the completion of a multipart copy is lost, and the store rejects
/// aborts. Danger: that counts as a rejected copy, and its object, now or later, as another
/// program's.
#[test]
fn a_copy_that_nobody_heard_of_is_known_where_nobody_may_end_uploads() {
    for seed in 0..8 {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.copy_in_parts();
        bucket.forbid_aborts();
        let (process, node, client) = renamed(&world, &bucket, Renamed::File);
        let before = bucket.requests()["upload_complete"];
        let flushing = process.call(async move {
            flush(&client).await;
            end(node, client).await;
        });
        let losing = async {
            asked(&world, &bucket, "upload_complete", before + 1).await;
            world.set_faults(late());
            world.sleep(Duration::from_millis(10)).await;
            world.set_faults(FaultPlan::default());
        };
        let (flushed, ()) = world.run(join(flushing, losing)).unwrap();
        flushed.expect("the process lives");
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        assert_eq!(files_in(&bucket), ["new"], "seed {seed}");
    }
}

/// Situation: a long object of another program is at a file's key; the reply to the upload that
/// copies it aside is lost, and then the node may be killed. Danger: that upload stays open for
/// ever.
#[test]
fn conflict_copy_leaves_no_open_upload() {
    let kills = [None, Some(1), Some(30), Some(2000)];
    for (seed, killed_ms) in (0..12).flat_map(|seed| kills.map(|killed_ms| (seed, killed_ms))) {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.copy_in_parts();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let prepared = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            fill(&client, "file").await;
            (node, client)
        }));
        let (node, client) = prepared.unwrap().expect("the process lives");
        put_large(&bucket, &process, "file", Bytes::from(vec![7; 1 << 20]));
        let flushing = process.call(async move {
            flush(&client).await;
            end(node, client).await;
        });
        let losing = async {
            asked(&world, &bucket, "upload_begin", 1).await;
            world.set_faults(late());
            world.sleep(Duration::from_millis(killed_ms.unwrap_or(50).min(50))).await;
            world.set_faults(FaultPlan::default());
            if let Some(after) = killed_ms {
                world.sleep(Duration::from_millis(after)).await;
                process.kill();
            }
        };
        let (flushed, ()) = world.run(join(flushing, losing)).unwrap();
        assert_eq!(flushed.is_none(), killed_ms.is_some());
        process.kill();
        flush_anew(&world, &bucket);
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        let case = format!("seed {seed}, killed after {killed_ms:?} ms");
        assert_eq!(bucket.unfinished_uploads(), [], "{case}");
        assert_eq!(
            bucket.objects().into_iter().filter(|(_, object)| object.body.len() == 1 << 20).count(),
            1,
            "{case}"
        );
    }
}

/// Situation: a node is killed during an upload, which is lost; before the next start another
/// program puts back the object of two versions ago. Danger: that counts as the upload, and is
/// replaced as the file's own, or deleted with the file.
#[test]
fn restored_earlier_object_is_not_taken_for_a_lost_upload() {
    for (seed, removed) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = World::new(seed);
        let bucket = world.bucket();
        if seed % 2 == 1 {
            bucket.give_own_tags();
        }
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let prepared = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            let ino = make(&client, "file", 0).await;
            client.write(&Caller::ROOT, ino, 0, Bytes::from_static(b"first"), false).await.unwrap();
            flush(&client).await;
            (node, client, ino)
        }));
        let (_node, client, ino) = prepared.unwrap().expect("the process lives");
        let first = bucket.objects()["file"].clone();
        let changed = world.run(process.call(async move {
            client.write(&Caller::ROOT, ino, 0, Bytes::from_static(b"again"), false).await.unwrap();
            flush(&client).await;
            client.write(&Caller::ROOT, ino, 0, Bytes::from_static(b"third"), false).await.unwrap();
            client
        }));
        let client = changed.unwrap().expect("the process lives");
        let losing = FaultPlan {
            bucket: BucketFaults { lost_request: Rate::ALWAYS, ..BucketFaults::default() },
            ..FaultPlan::default()
        };
        world.run(die_flushing(&world, &bucket, &process, client, "put", losing)).unwrap();
        bucket.put_as_outsider("file", first.body.clone(), first.meta.tags.clone()).unwrap();
        let process = world.machine("a").process_on("node", "data");
        let (port, inner) = (process.bucket(&bucket), process.clone());
        let done = world.run(process.call(async move {
            let (node, client) = start(inner, port).await;
            if removed {
                client.unlink(&Caller::ROOT, Ino::ROOT, &name("file")).await.map(drop).unwrap();
            }
            flush(&client).await;
            end(node, client).await;
        }));
        done.unwrap().unwrap();
        let case = format!("seed {seed}, removed {removed}");
        let bodies: Vec<Bytes> =
            files_in(&bucket).iter().map(|key| bucket.objects()[key].body.clone()).collect();
        assert!(bodies.contains(&first.body), "{case}: what others have put there is gone");
        assert_eq!(
            bodies.iter().filter(|body| *body == "third").count(),
            usize::from(!removed),
            "{case}"
        );
    }
}

/// Situation: a node is killed before it receives the reply to a copy of its object; another
/// program removes the source before the next start. Danger: the copy, which is all that is left of
/// the file, counts as another program's.
#[test]
fn a_copy_of_ours_is_known_though_its_source_is_removed() {
    for seed in 0..8 {
        let world = World::new(seed);
        let bucket = world.bucket();
        if seed % 2 == 1 {
            bucket.give_own_tags();
        }
        let (process, _node, client) = renamed(&world, &bucket, Renamed::File);
        world.run(die_flushing(&world, &bucket, &process, client, "copy", late())).unwrap();
        world.run(world.sleep(Duration::from_secs(10))).unwrap();
        bucket.delete_as_outsider("old");
        flush_anew(&world, &bucket);
        assert_eq!(files_in(&bucket), ["new"], "seed {seed}");
    }
}
