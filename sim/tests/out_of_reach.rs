//! Objects that exist and cannot be read.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Rate, Slowness, World};
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = BLOCK_BYTES as usize;

/// The bucket fails every conditional read, although the object is unchanged. Expectation: a read
/// fails after a bounded number of requests; a write that needs no bytes of the object succeeds.
#[test]
fn conditional_read_that_never_succeeds_is_an_error() {
    let world = World::new(1);
    let bucket = world.bucket();
    bucket.put_as_outsider("file", vec![7; 2 * BLOCK], vec![]).unwrap();
    bucket.weaken_tags(true);
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let options = Options { owner: "reach".into(), embedded: true, ..Options::default() };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client: Rc<Client> =
            Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        let inner = client.clone();
        let file = process
            .call(async move { inner.lookup(Ino::ROOT, &Name::new(b"file").unwrap()).await });
        let ino = file.await.unwrap().unwrap().ino;
        let root = Caller::ROOT;

        let mut before = bucket.requests().get("get").copied().unwrap_or(0);
        let mut gets = || {
            let after = bucket.requests().get("get").copied().unwrap_or(0);
            let asked = after - before;
            before = after;
            asked
        };
        let inner = client.clone();
        let read = process.call(async move { inner.read(ino, 0, 1).await });
        assert_eq!(read.await.unwrap(), Err(FsError::Io));
        assert!(gets() < 200);
        let inner = client.clone();
        let written = process.call(async move {
            inner.write(&root, ino, 5, Bytes::from_static(b"x"), false).await.map(drop)
        });
        assert_eq!(written.await.unwrap(), Err(FsError::Io));
        assert!(gets() < 200);
        let (inner, root) = (client.clone(), Caller::ROOT);
        let zeroed = process.call(async move {
            inner.fallocate(&root, ino, (5, 10), Allocation::Zero, true, false).await.map(drop)
        });
        assert_eq!(zeroed.await.unwrap(), Err(FsError::Io));
        assert!(gets() < 200);
        let (inner, root) = (client.clone(), Caller::ROOT);
        let whole = process.call(async move {
            inner.write(&root, ino, 0, Bytes::from(vec![8; BLOCK]), false).await?;
            inner.read(ino, 0, BLOCK).await
        });
        assert_eq!(whole.await.unwrap(), Ok(Bytes::from(vec![8; BLOCK])));

        // Reported for as long as it lasts.
        let troubles = || async {
            let inner = client.clone();
            match process
                .call(async move { inner.admin(AdminRequest::Status).await })
                .await
                .unwrap()
            {
                Ok(AdminReply::Status(status)) => status.troubles.len(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(troubles().await, 1);
        bucket.weaken_tags(false);
        let inner = client.clone();
        let read = process.call(async move { inner.read(ino, BLOCK as u64, 1).await });
        assert_eq!(read.await.unwrap(), Ok(Bytes::from_static(&[7])));
        assert_eq!(troubles().await, 0);
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The bucket takes hours for every reply. Expectation: a read fails at its stated timeout, not
/// when the reply arrives.
#[test]
fn a_bucket_that_answers_after_hours_is_waited_for_as_long_as_stated() {
    let world = World::new(2);
    let bucket = world.bucket();
    bucket.put_as_outsider("file", vec![7; 2 * BLOCK], vec![]).unwrap();
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let (bucket_timeout, head_term) = (Duration::from_secs(20), Duration::from_secs(100_000));
        let options = Options {
            owner: "reach".into(),
            embedded: true,
            bucket_timeout,
            head_term,
            ..Options::default()
        };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client: Rc<Client> =
            Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        let inner = client.clone();
        let file = process
            .call(async move { inner.lookup(Ino::ROOT, &Name::new(b"file").unwrap()).await });
        let ino = file.await.unwrap().unwrap().ino;
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(100 * 3600) };
        world.set_faults(FaultPlan {
            bucket: BucketFaults { slow, ..BucketFaults::default() },
            ..FaultPlan::default()
        });

        let began = world.now();
        let inner = client.clone();
        let read = process.call(async move { inner.read(ino, 0, 1).await });
        assert_eq!(read.await.unwrap(), Err(FsError::TimedOut));
        // The timeout, plus the transfer time of a range over a slow connection.
        assert!(world.now() - began < Duration::from_secs(40), "{:?}", world.now() - began);
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: the bucket is away for an hour, in which files are written and overwritten. Danger:
/// writers wait, requests are retried without pause, status does not tell the beginning, or the
/// oldest file is uploaded last. Expectation: none of this.
#[test]
fn a_bucket_that_was_away_for_an_hour_gets_everything_oldest_first() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (world, files) = (World::new(6), 40u64);
    let bucket = world.bucket();
    let process = world.machine("a").process("node");
    let options =
        Options { owner: "reach".into(), embedded: true, flush_parallel: 1, ..Options::default() };
    let status = async |client: &Rc<Client>| {
        let inner = client.clone();
        match process
            .call(async move { inner.admin(AdminRequest::Status).await })
            .await
            .unwrap()
            .unwrap()
        {
            AdminReply::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    };
    let requests = || bucket.requests().values().sum::<u64>();
    let names: Vec<String> = (0..files).map(|at| format!("{:02}", at * 37 % files)).collect();
    let scene = async {
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client: Rc<Client> =
            Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        let (inner, away, clock, names) =
            (client.clone(), bucket.clone(), process.ports.clock.clone(), names.clone());
        let left = process.call(async move {
            inner.readdir(Ino::ROOT, Cookie::START, 1).await.unwrap();
            away.vanish_for(HOUR);
            let (began, left) = (clock.monotonic(), clock.wall());
            for name in names {
                let name = Name::new(name.as_bytes()).unwrap();
                let ino = inner
                    .make(&Caller::ROOT, Ino::ROOT, &name, 0o600, Make::Regular, false)
                    .await
                    .unwrap()
                    .ino;
                inner
                    .write(&Caller::ROOT, ino, 0, Bytes::from(vec![7; 10_000]), false)
                    .await
                    .unwrap();
                clock.sleep(Duration::from_secs(60)).await;
            }
            assert!(
                clock.monotonic() - began < Duration::from_secs(60 * files + 1),
                "nobody waits for it"
            );
            left
        });
        let left = left.await.unwrap();
        let told = status(&client).await.troubles;
        let since = told.iter().map(|trouble| trouble.since).min().expect("it is said");
        assert!((0..120).contains(&(since.secs - left.secs)), "{told:?}");
        (node, client)
    };
    let before = requests();
    let (_node, client) = world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
    world
        .run_for(HOUR - Duration::from_secs(60 * files))
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(requests() - before < 2 * HOUR.as_secs(), "{} requests", requests() - before);
    world.run_for(Duration::from_secs(120)).unwrap_or_else(|failure| panic!("{failure}"));
    let told = world.run(status(&client)).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(told.troubles.is_empty() && told.dirty_bytes == 0, "{told:?}");
    let sent = bucket
        .history()
        .into_iter()
        .filter(|change| change.etag.is_some())
        .map(|change| change.key);
    assert_eq!(sent.filter(|key| key.len() == 2).collect::<Vec<_>>(), names);
}

/// The bucket forbids an upload. Expectation: status names the key as long as the file exists and
/// is dirty, and no longer than that.
#[test]
fn refused_upload_is_reported_until_done_or_removed() {
    let world = World::new(3);
    let bucket = world.bucket();
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let options = Options {
            owner: "reach".into(),
            embedded: true,
            flush_interval: Duration::ZERO,
            ..Options::default()
        };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client: Rc<Client> =
            Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        let (inner, forbidding, clock) =
            (client.clone(), bucket.clone(), process.ports.clock.clone());
        let work = process.call(async move {
            let root = Caller::ROOT;
            let name = |text: &str| Name::new(text.as_bytes()).unwrap();
            let told = async || {
                let AdminReply::Status(status) = inner.admin(AdminRequest::Status).await.unwrap()
                else {
                    panic!("another answer")
                };
                status
                    .troubles
                    .into_iter()
                    .map(|trouble| trouble.what)
                    .filter(|what| what.contains("cannot be written"))
                    .collect::<Vec<_>>()
            };
            inner
                .make(&root, Ino::ROOT, &name("before"), 0o600, Make::Regular, false)
                .await
                .unwrap();
            inner.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            forbidding.forbid_for(Duration::from_secs(60));
            for file in ["gone", "moved", "stays"] {
                inner
                    .make(&root, Ino::ROOT, &name(file), 0o600, Make::Regular, false)
                    .await
                    .unwrap();
            }
            clock.sleep(Duration::from_secs(5)).await;
            let first = told().await;
            assert!(
                ["/gone", "/moved", "/stays"]
                    .iter()
                    .all(|file| first.iter().any(|what| what.starts_with(file))),
                "{first:?}"
            );
            inner.unlink(&root, Ino::ROOT, &name("gone")).await.unwrap();
            inner
                .rename(
                    &root,
                    Ino::ROOT,
                    &name("moved"),
                    Ino::ROOT,
                    &name("elsewhere"),
                    RenameMode::Replace,
                )
                .await
                .unwrap();
            let then = told().await;
            assert!(!then.iter().any(|what| what.starts_with("/gone")), "{then:?}");
            clock.sleep(Duration::from_secs(60)).await;
            inner.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            assert_eq!(told().await, Vec::<String>::new());
        });
        work.await.unwrap();
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: a read fails because the bucket does not answer; afterwards the bucket answers again,
/// but no request needs it. Danger: status reports the outage for ever. Expectation: it reports it
/// from the read until the head is renewed.
#[test]
fn a_bucket_that_answers_again_is_no_trouble_though_nobody_asks() {
    let world = World::new(4);
    let bucket = world.bucket();
    bucket.put_as_outsider("file", vec![7; BLOCK], vec![]).unwrap();
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let (bucket_timeout, head_term) = (Duration::from_secs(20), Duration::from_secs(30));
        let options = Options {
            owner: "reach".into(),
            embedded: true,
            bucket_timeout,
            head_term,
            ..Options::default()
        };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client: Rc<Client> =
            Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        let (inner, clock) = (client.clone(), process.ports.clock.clone());
        let lookup = process
            .call(async move { inner.lookup(Ino::ROOT, &Name::new(b"file").unwrap()).await });
        let ino = lookup.await.unwrap().unwrap().ino;
        let broken = BucketFaults { unavailable: Rate::ALWAYS, ..BucketFaults::default() };
        world.set_faults(FaultPlan { bucket: broken, ..FaultPlan::default() });
        let (inner, before) = (client.clone(), clock.wall());
        let read = process.call(async move { inner.read(ino, 0, 1).await });
        assert_eq!(read.await.unwrap(), Err(FsError::TimedOut));
        let troubles = || async {
            let inner = client.clone();
            match process
                .call(async move { inner.admin(AdminRequest::Status).await })
                .await
                .unwrap()
            {
                Ok(AdminReply::Status(status)) => status.troubles,
                other => panic!("{other:?}"),
            }
        };
        let told = troubles().await;
        assert!(
            told.iter().any(|trouble| trouble.what.starts_with("get is not answered")),
            "{told:?}"
        );
        assert!(
            told.iter().all(|trouble| (before..=clock.wall()).contains(&trouble.since)),
            "{told:?}"
        );
        world.set_faults(FaultPlan::default());
        clock.sleep(2 * head_term).await;
        assert_eq!(troubles().await, []);
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}
