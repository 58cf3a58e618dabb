//! Successive deaths of a node, each before any force.

use bytes::Bytes;
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::volume::rig::attach_embedded;
use ebb_sim::{DiskFaults, DiskOperation, FaultPlan, Process, Rate, Slowness, World};
use std::collections::BTreeSet;
use std::time::Duration;

/// Danger: the work of a start is logged, and the next start repeats it on top.
#[test]
fn a_start_leaves_no_more_behind_than_the_one_before() {
    let world = World::new(1);
    let bucket = world.bucket();
    let mut recovered = Vec::new();
    for life in 0..8 {
        let process = world.machine("a").process_on("node", "data");
        let (port, ports) = (process.bucket(&bucket), process.ports.clone());
        let at = world.run(async {
            let options = Options { volume: "ebb".into(), embedded: true, ..Options::default() };
            let node = process
                .call(async move { Node::open(ports, Some(port), options).await.unwrap() })
                .await
                .unwrap();
            let client = attach_embedded(&process, &node).await.unwrap().unwrap();
            let written = process.call(async move {
                if life == 0 {
                    let name = Name::new(b"file").unwrap();
                    let file = client
                        .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, true)
                        .await
                        .unwrap();
                    for block in 0..50 {
                        let data = Bytes::from(vec![7; BLOCK_BYTES as usize]);
                        client
                            .write(&Caller::ROOT, file.ino, 2 * block * BLOCK_BYTES, data, false)
                            .await
                            .unwrap();
                    }
                }
                client.admin(AdminRequest::Status).await
            });
            written.await.unwrap().unwrap()
        });
        let AdminReply::Status(status) = at.unwrap() else { panic!("a status was asked for") };
        recovered.push(status.log_index.0);
        process.kill();
    }
    let grown: Vec<u64> = recovered[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        grown.windows(2).all(|pair| pair[1] <= pair[0]),
        "the log grows faster with every start: {recovered:?}"
    );
}

/// Danger: a volume that grows is written whole again and again, each time as a longer snapshot.
#[test]
fn snapshots_become_rarer_as_a_volume_grows() {
    let world = World::new(1);
    let bucket = world.bucket();
    let machine = world.machine("a");
    let process = machine.process_on("node", "data");
    let (port, ports) = (process.bucket(&bucket), process.ports.clone());
    let snapshots = world.run(async {
        let options = Options {
            volume: "ebb".into(),
            embedded: true,
            snapshot_operations: 100,
            ..Options::default()
        };
        let options = Options { flush_interval: Duration::from_secs(3600), ..options };
        let node = process
            .call(async move { Node::open(ports, Some(port), options).await.unwrap() })
            .await
            .unwrap();
        let client = attach_embedded(&process, &node).await.unwrap().unwrap();
        let disk = process.ports.disk.clone();
        let mut snapshots = BTreeSet::new();
        for entry in 0..4000 {
            let name = Name::new(entry.to_string().as_bytes()).unwrap();
            client
                .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                .await
                .unwrap();
            if entry % 100 == 99 {
                world.sleep(Duration::from_secs(3)).await;
                snapshots.extend(disk.list("snapshot").await.unwrap());
            }
        }
        snapshots
    });
    let count = snapshots.unwrap().len();
    assert!(
        (5..20).contains(&count),
        "{count} snapshots of 4,000 inodes, made a hundred at a time"
    );
}

/// Situation: the first start of a data directory meets a failing disk, is killed, or the power is
/// cut. Danger: its log has records before the first snapshot, and no later start can read it,
/// though nothing was ever acknowledged.
#[test]
fn a_first_start_that_fails_does_not_matter() {
    for seed in 0..100 {
        let world = World::new(seed);
        let bucket = world.bucket();
        let rate = Rate::one_in(20 + world.rng("rate").below(180) as u32);
        let faults = match seed % 3 {
            0 => DiskFaults {
                write_error: rate,
                sync_error: rate,
                name_error: rate,
                ..DiskFaults::default()
            },
            _ => DiskFaults {
                slow: Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(20) },
                ..DiskFaults::default()
            },
        };
        world.set_faults(FaultPlan { disk: faults, ..FaultPlan::default() });
        let open = |process: Process| {
            let (port, ports) = (process.bucket(&bucket), process.ports.clone());
            let options = Options { volume: "ebb".into(), embedded: true, ..Options::default() };
            async move {
                process
                    .call(async move { Node::open(ports, Some(port), options).await.map(drop) })
                    .await
            }
        };
        let process = world.machine("a").process_on("node", "data");
        let (dying, ended) =
            (process.clone(), world.rng("end").duration(Duration::ZERO, Duration::from_secs(1)));
        let first = open(process);
        let end = async {
            world.sleep(ended).await;
            if seed % 3 == 1 { dying.kill() } else { world.machine("a").power_cut() }
        };
        world.run(futures_util::future::join(first, end)).unwrap();
        world.set_faults(FaultPlan::default());
        let second = world.run(open(world.machine("a").process_on("node", "data"))).unwrap();
        assert_eq!(
            second.map(|opened| opened.map_err(|error| error.to_string())),
            Some(Ok(())),
            "seed {seed}"
        );
    }
}

/// Situation: the first start creates its files and ends before it has forced their names; the
/// second one builds on them, and the power is cut. Danger: a name is lost, and with it forced data
/// of the second run.
#[test]
fn names_that_a_first_start_has_not_forced_are_forced_by_the_next() {
    for (seed, nth) in (0..12).flat_map(|seed| (11..=14).map(move |nth| (seed, nth))) {
        let world = World::new(seed);
        let bucket = world.bucket();
        let open = |process: Process| {
            let (port, ports) = (process.bucket(&bucket), process.ports.clone());
            let options = Options { volume: "ebb".into(), embedded: true, ..Options::default() };
            async move {
                process
                    .call(async move { Node::open(ports, Some(port), options).await })
                    .await
                    .expect("the process lives")
            }
        };
        let start = || world.machine("a").process_on("node", "data");
        world.machine("a").disk("data").fail_nth(DiskOperation::Sync, nth);
        let first = start();
        assert!(
            world.run(open(first.clone())).unwrap().is_err(),
            "{nth} is one of its first start"
        );
        first.kill();
        let second = start();
        let made = world.run(async {
            let node = open(second.clone()).await.unwrap();
            let client = attach_embedded(&second, &node).await.unwrap().unwrap();
            let making = async move {
                let name = Name::new(b"file").unwrap();
                client
                    .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                    .await
                    .unwrap();
                client.sync_fs().await
            };
            second.call(making).await
        });
        assert_eq!(made.unwrap(), Some(Ok(())), "seed {seed}, {nth}");
        world.machine("a").power_cut();
        let third = world.run(open(start())).unwrap().map(drop);
        assert_eq!(third.map_err(|error| error.to_string()), Ok(()), "seed {seed}, {nth}");
    }
}

/// Situation: a new data directory has no space, so that the volume cannot be opened there. Danger:
/// the volume has no owner until the term is over. Expectation: another node can serve it at once.
#[test]
fn failed_open_without_space_releases_the_volume() {
    let world = World::new(1);
    let bucket = world.bucket();
    let options = Options {
        volume: "ebb".into(),
        embedded: true,
        head_term: Duration::from_secs(600),
        ..Options::default()
    };
    let open = |machine: &str| {
        let process = world.machine(machine).process("node");
        let (port, ports, options) =
            (process.bucket(&bucket), process.ports.clone(), options.clone());
        async move {
            process
                .call(async move { Node::open(ports, Some(port), options).await.map(drop) })
                .await
                .unwrap()
        }
    };
    world.machine("a").disk("node").set_capacity(8192);
    let (first, second, waited) = world
        .run(async {
            let first = open("a").await;
            let began = world.now();
            (first, open("b").await, world.now() - began)
        })
        .unwrap();
    assert!(first.is_err() && second.is_ok(), "{first:?} {second:?}");
    assert!(waited < Duration::from_secs(60), "{waited:?}");
}
