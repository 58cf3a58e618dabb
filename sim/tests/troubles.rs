//! Troubles in `ebb status`: reported as long as they last, with their beginning, and together with
//! all others.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::volume::rig;
use ebb_sim::{DiskOperation, Process, SimBucket, World};
use std::rc::Rc;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Longer than anything is left alone.
const REST: Duration = Duration::from_secs(60);

struct Mount {
    process: Process,
    client: Client,
    _node: Rc<Node>,
}

impl Mount {
    async fn new(world: &World, bucket: &SimBucket, options: Options) -> Mount {
        let process = world.machine("a").process("node");
        let options = Options { owner: "troubles".into(), embedded: true, ..options };
        let node = rig::open(&process, bucket, &options).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        Mount { process, client, _node: node }
    }

    async fn make(&self, name: &str) -> Ino {
        self.client
            .make(&Caller::ROOT, Ino::ROOT, &named(name), 0o644, Make::Regular, true)
            .await
            .unwrap()
            .ino
    }

    async fn write(&self, ino: Ino, mib: usize) -> Result<(), FsError> {
        for at in 0..mib {
            let data = Bytes::from(vec![at as u8 + 1; MIB]);
            self.client.write(&Caller::ROOT, ino, (at * MIB) as u64, data, false).await?;
        }
        Ok(())
    }

    async fn unlink(&self, name: &str) {
        self.client.unlink(&Caller::ROOT, Ino::ROOT, &named(name)).await.unwrap();
    }

    /// A file that only the bucket has, and no client has loaded.
    async fn cold(&self, name: &str) -> Ino {
        let ino = self.make(name).await;
        self.client.write(&Caller::ROOT, ino, 0, Bytes::from(vec![7; 1000]), false).await.unwrap();
        self.flush(&[]).await.unwrap();
        self.client.close(ino);
        self.client
            .admin(AdminRequest::Evict { path: vec![], from: (Ino(0), 0), limit_bytes: u64::MAX })
            .await
            .unwrap();
        ino
    }

    async fn flush(&self, path: &[Name]) -> Result<(), RpcError> {
        self.client
            .admin(AdminRequest::Flush { path: path.to_vec() })
            .await
            .map(drop)
            .map_err(RpcError::Refused)
    }

    async fn explain(&self, name: &str) -> Explained {
        match self.client.admin(AdminRequest::Explain { path: vec![named(name)] }).await {
            Ok(AdminReply::Explained(explained)) => *explained,
            other => panic!("{other:?}"),
        }
    }

    async fn troubles(&self) -> Vec<Trouble> {
        match self.client.admin(AdminRequest::Status).await {
            Ok(AdminReply::Status(status)) => status.troubles,
            other => panic!("{other:?}"),
        }
    }

    /// The trouble with this text.
    async fn trouble(&self, what: &str) -> Trouble {
        let troubles = self.troubles().await;
        let mut found: Vec<Trouble> =
            troubles.iter().filter(|trouble| trouble.what.contains(what)).cloned().collect();
        assert_eq!(found.len(), 1, "{what:?} in {troubles:?}");
        found.remove(0)
    }
}

fn named(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

fn run(world: &World, scene: impl Future<Output = ()>) {
    world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
}

fn by_hand() -> Options {
    Options {
        flush_interval: Duration::from_secs(3600 * 24),
        scrub_interval: None,
        ..Options::default()
    }
}

/// Situation: 320 blocks are damaged that the bucket does not have, then the bucket is away.
/// Expectation: both are reported; the damage ends when each block is overwritten or removed with
/// its file.
#[test]
fn damage_of_many_blocks_hides_nothing_and_ends_with_them() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, &bucket, by_hand()).await;
        let ino = mount.make("file").await;
        mount.write(ino, 20).await.unwrap();
        mount.client.fsync(ino).await.unwrap();
        let disk = world.machine("a").disk("node");
        for block in 0..320 {
            disk.flip(&rig::store_file(&bucket, ino), block * BLOCK_BYTES + 5, 1).unwrap();
            assert_eq!(mount.client.read(ino, block * BLOCK_BYTES, 10).await, Err(FsError::Io));
        }
        mount.make("other").await;
        bucket.vanish_for(Duration::from_secs(1200));
        mount.flush(&[named("other")]).await.unwrap_err();
        mount.trouble("does not take what is written").await;
        mount.trouble("and 256 more of this kind").await;
        mount.trouble(&format!("block 7 of inode {ino} is damaged")).await;
        assert_eq!(mount.explain("file").await.damaged_runs[7], (7 * BLOCK_BYTES, BLOCK_BYTES));

        mount.write(ino, 1).await.unwrap();
        let troubles = mount.troubles().await;
        assert!(
            !troubles.iter().any(|trouble| trouble.what.contains("block 7 of")),
            "{troubles:?}"
        );
        mount.trouble("and 240 more of this kind").await;
        mount.unlink("file").await;
        mount.client.close(ino);
        world.sleep(REST).await;
        let troubles = mount.troubles().await;
        let is_of_block = |trouble: &Trouble| {
            trouble.what.starts_with("block") || trouble.what.contains("of this kind")
        };
        assert!(!troubles.iter().any(is_of_block), "{troubles:?}");
        world.sleep(Duration::from_secs(1200)).await;
        mount.flush(&[]).await.unwrap();
        assert_eq!(mount.troubles().await, []);
    });
}

/// Situation: the node's disk is full for half an hour, with write attempts all the time. Then
/// space is freed, without writes. Expectation: the trouble has the right beginning, and ends when
/// there is space.
#[test]
fn a_full_disk_is_full_since_it_is_until_it_is_not() {
    let world = World::new(2);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, &bucket, by_hand()).await;
        let ino = mount.make("file").await;
        mount.write(ino, 1).await.unwrap();
        let disk = world.machine("a").disk("node");
        disk.set_capacity(disk.used_bytes() + MIB as u64 / 2);
        let mut since = None;
        for minute in 0..30u64 {
            let data = Bytes::from(vec![1; MIB]);
            let written = mount
                .client
                .write(&Caller::ROOT, ino, (1 + minute) * MIB as u64, data, false)
                .await;
            assert_eq!(written.map(drop), Err(FsError::NoSpace));
            let told = mount.trouble("the node's disk is full").await.since;
            assert_eq!(*since.get_or_insert(told), told);
            world.sleep(REST).await;
        }
        disk.set_capacity(1 << 30);
        world.sleep(REST).await;
        assert_eq!(mount.troubles().await, []);
    });
}

/// Situation: the dirty limit is reached while the bucket is away. Then some dirty files are
/// removed. Expectation: the trouble is reported from the first rejected write until there is room,
/// also without further writes.
#[test]
fn dirty_limit_trouble_lasts_until_there_is_room() {
    let world = World::new(3);
    let bucket = world.bucket();
    run(&world, async {
        let options = Options {
            dirty_bytes: 2 * MIB as u64,
            space_timeout: Duration::from_secs(10),
            ..Options::default()
        };
        let mount = Mount::new(&world, &bucket, options).await;
        let full = mount.make("full").await;
        let more = mount.make("more").await;
        bucket.vanish_for(Duration::from_secs(24 * 3600));
        mount.write(full, 2).await.unwrap();
        assert_eq!(mount.write(more, 1).await, Err(FsError::NoSpace));
        let since = mount.trouble("which is all that is allowed").await.since;
        world.sleep(REST).await;
        assert_eq!(mount.write(more, 1).await, Err(FsError::NoSpace));
        assert_eq!(mount.trouble("which is all that is allowed").await.since, since);
        mount.unlink("full").await;
        mount.client.close(full);
        let troubles = mount.troubles().await;
        assert!(
            !troubles.iter().any(|trouble| trouble.what.contains("all that is allowed")),
            "{troubles:?}"
        );
    });
}

/// Situation: the node's disk has less space than the dirty limit, and the bucket is away.
/// Expectation: the report names the disk as the reason of the limit.
#[test]
fn a_disk_that_is_small_is_said_to_be() {
    let world = World::new(4);
    let bucket = world.bucket();
    run(&world, async {
        world.machine("a").disk("node").set_capacity(64 * MIB as u64);
        let mount = Mount::new(
            &world,
            &bucket,
            Options { space_timeout: Duration::from_secs(10), ..Options::default() },
        )
        .await;
        let file = mount.make("file").await;
        bucket.vanish_for(Duration::from_secs(24 * 3600));
        assert_eq!(mount.write(file, 60).await, Err(FsError::NoSpace));
        mount
            .trouble(
                "MiB are cached, which is all that is allowed, for the disk of the data \
            directory had no room for more",
            )
            .await;
    });
}

/// Situation: reads and listings failed, then a flush succeeds, and no client reads. Expectation:
/// the bucket is no longer reported as away.
#[test]
fn a_bucket_that_answers_is_not_said_to_be_away() {
    let world = World::new(4);
    let bucket = world.bucket();
    run(&world, async {
        let bucket_timeout = Duration::from_secs(10);
        let options =
            Options { bucket_timeout, revalidate: Some(Duration::from_secs(30)), ..by_hand() };
        let mount = Mount::new(&world, &bucket, options).await;
        let cold = mount.cold("cold").await;
        bucket.vanish_for(Duration::from_secs(600));
        world.sleep(REST).await;
        assert!(mount.client.read(cold, 0, 10).await.is_err());
        mount.client.readdir(Ino::ROOT, Cookie::START, 10).await.unwrap();
        mount.trouble("is not answered by").await;
        mount.trouble("what others have changed").await;
        world.sleep(Duration::from_secs(600)).await;
        let ino = mount.make("new").await;
        mount.write(ino, 1).await.unwrap();
        mount.flush(&[]).await.unwrap();
        world.sleep(REST).await;
        assert_eq!(mount.troubles().await, []);
    });
}

/// Situation: another program has removed the object of a file. Expectation: reported until the
/// object is back, or the file is rewritten or removed.
#[test]
fn a_missing_object_is_missed_as_long_as_it_is_wanted() {
    let world = World::new(5);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, &bucket, by_hand()).await;
        for end in ["put back", "written", "removed"] {
            let ino = mount.cold(end).await;
            let object = bucket.objects().remove(end).unwrap();
            bucket.delete_as_outsider(end);
            assert_eq!(mount.client.read(ino, 0, 10).await, Err(FsError::Io));
            let what = mount.trouble("was removed from the bucket by somebody else").await.what;
            assert!(what.ends_with("nothing of it is cached"), "{what}");
            assert_eq!(mount.explain(end).await.missing, Some(MissingObject::Removed));
            match end {
                "put back" => {
                    bucket.put_as_outsider(end, object.body.clone(), vec![]).unwrap();
                    assert_eq!(mount.client.read(ino, 0, 10).await.unwrap().len(), 10);
                }
                "written" => {
                    mount.write(ino, 1).await.unwrap();
                    mount.flush(&[]).await.unwrap();
                }
                _ => mount.unlink(end).await,
            }
            assert_eq!(mount.troubles().await, [], "{end}");
        }
    });
}

/// Situation: a file cannot be forced. Expectation: reported as long as the file exists, and fsck
/// names the remedy.
#[test]
fn failed_force_trouble_lasts_until_the_file_is_removed() {
    let world = World::new(6);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, &bucket, by_hand()).await;
        let ino = mount.make("file").await;
        mount.write(ino, 1).await.unwrap();
        // The file's name and the log are forced before its bytes.
        world.machine("a").disk("node").fail_nth(DiskOperation::Sync, 3);
        assert_eq!(mount.client.fsync(ino).await, Err(FsError::Io));
        world.sleep(REST).await;
        mount.trouble(&format!("inode {ino} has could not be forced")).await;
        let explained = mount.explain("file").await;
        assert!(!explained.forced && explained.force_failed.is_some(), "{explained:?}");
        let Ok(AdminReply::Fsck(report)) = mount.client.admin(AdminRequest::Fsck).await else {
            panic!("no report")
        };
        assert!(
            report.problems.iter().any(|problem| problem.what.contains("`ebb flush`")),
            "{:?}",
            report.problems
        );
        mount.unlink("file").await;
        mount.client.close(ino);
        world.sleep(REST).await;
        assert_eq!(mount.troubles().await, []);
        assert!(mount.process.is_alive());
    });
}

/// Expectation: `ebb explain` reports the uploaded bytes of an upload, never more than the dirty
/// ones.
#[test]
fn explain_reports_uploaded_bytes() {
    let world = World::new(7);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, &bucket, by_hand()).await;
        let ino = mount.make("file").await;
        mount.write(ino, 40).await.unwrap();
        mount
            .client
            .write(&Caller::ROOT, ino, 40 * MIB as u64, Bytes::from_static(b"end"), false)
            .await
            .unwrap();
        let explained = mount.explain("file").await;
        let size = 40 * MIB as u64 + 3;
        assert_eq!(
            (explained.sent_bytes, explained.dirty_bytes, &explained.dirty_runs[..]),
            (None, size, &[(0, size)][..])
        );
        bucket.set_uplink(MIB as u64);
        let flushing = mount.flush(&[]);
        let looking = async {
            world.sleep(Duration::from_secs(35)).await;
            let sent = mount.explain("file").await.sent_bytes;
            assert!(sent.is_some_and(|sent| sent > 0 && sent < size), "{sent:?}");
        };
        let (flushed, ()) = futures_util::future::join(flushing, looking).await;
        flushed.unwrap();
        let explained = mount.explain("file").await;
        assert_eq!((explained.sent_bytes, explained.dirty_bytes), (None, 0));
    });
}
