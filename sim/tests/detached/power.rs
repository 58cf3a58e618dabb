//! The node's machine loses power; clients elsewhere live on.

use super::*;
use ebb_sim::{FaultPlan, NetFaults, Rate, SECTOR_BYTES, Slowness};
use futures_util::future::{Either, join, select};
use std::pin::pin;

async fn expect_something_to_lose(client: &Client, seed: u64) {
    let AdminReply::Status(status) = client.admin(AdminRequest::Status).await.unwrap() else {
        panic!("a status was asked for")
    };
    assert!(status.durable_index < status.log_index, "seed {seed}: there is something to lose");
}

async fn in_trash(client: &Client) -> usize {
    match client
        .admin(AdminRequest::ListTrash { path: vec![], from: TrashPoint::default() })
        .await
        .unwrap()
    {
        AdminReply::Trash { entries, next: None } => entries.len(),
        other => panic!("{other:?}"),
    }
}

/// A client's operations are acknowledged and not forced; the node's machine loses power. The
/// client lives, and replays everything with the same inode ids.
#[test]
fn replay_restores_operations_lost_in_a_power_cut() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let done = world.run(async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let writer = client.clone();
            let made = process.call(async move {
                let mut made = Vec::new();
                for file in 0..FILES {
                    made.push(make(&writer, file).await);
                }
                expect_something_to_lose(&writer, seed).await;
                made
            });
            let made = made.await.expect("the client lives");
            world.machine("server").power_cut();
            serve(&world).await;
            process
                .call(async move { check(&client, &made).await })
                .await
                .expect("the client lives");
        });
        done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Situation: a full disk has cut a write short, and a power cut takes back its record, with its
/// bytes or without them. Expectation: its client repeats as many bytes as it was told, though the
/// disk has room by then.
#[test]
fn short_write_is_replayed_with_its_length() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let disk = world.machine("server").disk("node");
            let (writer, full) = (client.clone(), disk.clone());
            let written = process.call(async move {
                let ino = make(&writer, 0).await.0;
                // A block with a gap on the disk.
                for (at, byte) in [(40_000, 2), (0, 1)] {
                    let piece = Bytes::from(vec![byte; 4096]);
                    writer.write(&Caller::ROOT, ino, at, piece, false).await.unwrap();
                }
                writer.sync_fs().await.unwrap();
                full.set_capacity(full.used_bytes() + 2 * SECTOR_BYTES);
                let all = Bytes::from(vec![3; 44_096]);
                let written = writer.write(&Caller::ROOT, ino, 0, all, false).await.unwrap();
                expect_something_to_lose(&writer, seed).await;
                (ino, written.len_bytes)
            });
            let (ino, written_bytes) = written.await.expect("the client lives");
            assert!((1..40_000).contains(&written_bytes), "{written_bytes} bytes");
            world.machine("server").power_cut();
            disk.set_capacity(1 << 30);
            serve(&world).await;
            let mut expected = vec![0; 44_096];
            expected[40_000..].fill(2);
            expected[..written_bytes].fill(3);
            let read = process.call(async move { client.read(ino, 0, 44_096).await });
            assert!(read.await.expect("the client lives").unwrap() == expected, "seed {seed}");
        });
    }
}

/// A file is written; another one is forced, and with it the log, but not the first one's bytes.
/// Afterwards the slots of the session carry other operations. The power is cut once or, before the
/// client has reattached, twice: the second run has forced the state that it recovered.
#[test]
fn bytes_come_back_though_their_operations_are_long_forgotten() {
    for seed in 0..SEEDS {
        for cuts in 1..=2 {
            let world = World::new(seed);
            run(seed, &world, async {
                serve(&world).await;
                let (process, client) = attach(&world, "desk").await;
                let writer = client.clone();
                let made = process.call(async move {
                    let mut made = Vec::new();
                    for file in 0..FILES {
                        made.push(make(&writer, file).await);
                    }
                    writer.fsync(made[FILES - 1].0).await.unwrap();
                    made
                });
                let made = made.await.expect("the client lives");
                world.net().partition("desk", "server");
                for _ in 0..cuts {
                    world.machine("server").power_cut();
                    serve(&world).await;
                    world.sleep(Duration::from_secs(3)).await;
                }
                world.net().heal();
                process
                    .call(async move { check(&client, &made).await })
                    .await
                    .expect("the client lives");
            });
        }
    }
}

/// An unlinked file is closed, and the power is cut before the node receives that. The next run
/// reads in its log that the client has the file open, and learns from the client that it does not.
#[test]
fn unlinked_file_closed_during_a_power_cut_is_reclaimed() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let maker = client.clone();
            let made = process.call(async move {
                let name = Name::new(b"nameless").unwrap();
                let made = maker
                    .make(&Caller::ROOT, Ino::ROOT, &name, 0o600, Make::Regular, true)
                    .await
                    .unwrap();
                maker.unlink(&Caller::ROOT, Ino::ROOT, &name).await.unwrap();
                maker.sync_fs().await.unwrap();
                made.ino
            });
            let ino = made.await.expect("the client lives");
            world.net().partition("desk", "server");
            let closer = client.clone();
            process.call(async move { closer.close(ino) }).await.expect("the client lives");
            world.machine("server").power_cut();
            serve(&world).await;
            world.net().heal();
            let found = process.call(async move {
                client.sync_fs().await.unwrap();
                client.getattr(ino).await
            });
            assert_eq!(found.await.expect("the client lives"), Err(FsError::Stale), "seed {seed}");
        });
    }
}

/// Files are removed into the trash, and the power is cut before that is forced. The client replays
/// the removals: the files are in the trash again, not deleted.
#[test]
fn replayed_removal_moves_into_the_trash_again() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let remover = client.clone();
            let removed = process.call(async move {
                let mut made = Vec::new();
                for file in 0..FILES {
                    made.push(make(&remover, file).await);
                }
                let keep = (Bytes::from_static(KEEP), Bytes::from_static(b"86400"));
                remover
                    .setxattr(&Caller::ROOT, Ino::ROOT, keep.0, keep.1, XattrMode::Set)
                    .await
                    .unwrap();
                remover.sync_fs().await.unwrap();
                let entries =
                    remover.readdir(Ino::ROOT, Cookie::START, 1000).await.unwrap().entries;
                for (entry, _) in entries {
                    remover.unlink(&Caller::ROOT, Ino::ROOT, &entry.name).await.unwrap();
                }
                made.len()
            });
            let removed = removed.await.expect("the client lives");
            world.machine("server").power_cut();
            serve(&world).await;
            let kept = process.call(async move {
                assert!(
                    client
                        .readdir(Ino::ROOT, Cookie::START, 1000)
                        .await
                        .unwrap()
                        .entries
                        .is_empty(),
                    "seed {seed}"
                );
                in_trash(&client).await
            });
            assert_eq!(kept.await.expect("the client lives"), removed, "seed {seed}");
        });
    }
}

/// Files are moved over others, which go to the trash, and leave whiteouts, and new files are made;
/// the power is cut before that is forced. The client replays: moved files, whiteouts, new files
/// and the trash never share an inode id.
#[test]
fn whiteouts_come_back_under_their_ids() {
    const REPLACED: usize = 100;
    const MADE: usize = 200;
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let mover = client.clone();
            let moved = process.call(async move {
                let keep = (Bytes::from_static(KEEP), Bytes::from_static(b"86400"));
                mover
                    .setxattr(&Caller::ROOT, Ino::ROOT, keep.0, keep.1, XattrMode::Set)
                    .await
                    .unwrap();
                let mut moved = Vec::new();
                for file in 0..FILES {
                    let (ino, _) = make(&mover, file).await;
                    make(&mover, REPLACED + file).await;
                    if file == 0 {
                        mover.sync_fs().await.unwrap();
                    }
                    let mode = RenameMode::Whiteout { keep_target: false, ino: None };
                    mover
                        .rename(
                            &Caller::ROOT,
                            Ino::ROOT,
                            &name(file),
                            Ino::ROOT,
                            &name(REPLACED + file),
                            mode,
                        )
                        .await
                        .unwrap();
                    moved.push((ino, mover.lookup(Ino::ROOT, &name(file)).await.unwrap().ino));
                    make(&mover, MADE + file).await;
                }
                expect_something_to_lose(&mover, seed).await;
                moved
            });
            let moved = moved.await.expect("the client lives");
            world.machine("server").power_cut();
            serve(&world).await;
            let kept = process.call(async move {
                for (file, (ino, whiteout)) in moved.into_iter().enumerate() {
                    assert_eq!(
                        client.lookup(Ino::ROOT, &name(REPLACED + file)).await.unwrap().ino,
                        ino,
                        "seed {seed}"
                    );
                    let attr = client.lookup(Ino::ROOT, &name(file)).await.unwrap();
                    assert_eq!(
                        (attr.ino, attr.kind, attr.rdev),
                        (whiteout, FileKind::CharDevice, 0),
                        "seed {seed}"
                    );
                    client.lookup(Ino::ROOT, &name(MADE + file)).await.unwrap();
                }
                in_trash(&client).await
            });
            assert_eq!(kept.await.expect("the client lives"), FILES, "seed {seed}");
        });
    }
}

/// A client reattaches, and the power is cut before the reply. It does not wait for that reply
/// until its session expires.
#[test]
fn a_client_that_comes_back_into_a_power_cut_keeps_its_session() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(1) };
            world.set_faults(FaultPlan {
                net: NetFaults { slow, ..NetFaults::default() },
                ..FaultPlan::default()
            });
            world.net().reset("desk", "server");
            world.sleep(world.rng("cut").duration(Duration::ZERO, Duration::from_secs(3))).await;
            world.machine("server").power_cut();
            world.set_faults(FaultPlan::default());
            serve(&world).await;
            let began = world.now();
            process.call(async move { make(&client, 1).await }).await.expect("the client lives");
            let took = world.now() - began;
            assert!(took < options().session_term / 2, "seed {seed}: {took:?}");
        });
    }
}

/// A write is executed and its reply lost; another client reads it and overwrites it. The node
/// restarts, and the first client repeats its write. Expectation: it is not executed again, and the
/// later write stays.
#[test]
fn repeated_write_does_not_overwrite_a_later_one() {
    let before = |byte: u8| Bytes::from(vec![byte; 1000]);
    for seed in 0..SEEDS {
        for power_cut in [false, true] {
            let world = World::new(seed);
            run(seed, &world, async {
                let node = serve(&world).await;
                let (left, early) = attach(&world, "left").await;
                let (right, late) = attach(&world, "right").await;
                let maker = late.clone();
                let (ino, _) = right
                    .call(async move { make(&maker, 1).await })
                    .await
                    .expect("the client lives");
                world.net().partition_one_way("server", "left");
                let writer = early.clone();
                let first = left.call(async move {
                    writer.write(&Caller::ROOT, ino, 0, before(1), false).await
                });
                let writer = late.clone();
                let second = right.call(async move {
                    while writer.read(ino, 0, 1000).await.unwrap() != before(1) {}
                    writer.write(&Caller::ROOT, ino, 100, before(2), false).await.unwrap();
                });
                second.await.expect("the client lives");
                if power_cut {
                    world.machine("server").power_cut();
                } else {
                    node.kill();
                }
                world.net().heal();
                serve(&world).await;
                assert!(first.await.expect("the client lives").is_ok());
                let read = left
                    .call(async move { early.read(ino, 0, 2000).await })
                    .await
                    .expect("the client lives")
                    .unwrap();
                assert_eq!(read, [&before(1)[..100], &before(2)[..]].concat(), "seed {seed}");
                // Until here it repeats its bytes after the power cut.
                drop(late);
            });
        }
    }
}

/// Situation: a client removes a file, another one on the same machine sees that it is gone, the
/// power is cut before that is forced, and the first client dies, so no client replays the removal.
/// Danger: the file exists again. (Seed 9817 of volumes.)
#[test]
fn removal_seen_by_another_client_is_durable() {
    for seed in 0..SEEDS {
        for asks_by_removing in [false, true] {
            let world = World::new(seed);
            run(seed, &world, async {
                serve(&world).await;
                let (left, remover) = attach(&world, "left").await;
                let (right, observer) = attach(&world, "right").await;
                let maker = observer.clone();
                right.call(async move { make(&maker, 1).await }).await.expect("the client lives");
                let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(1) };
                world.set_faults(FaultPlan {
                    disk: DiskFaults { slow, ..DiskFaults::default() },
                    ..FaultPlan::default()
                });
                let removing = left
                    .call(async move { remover.unlink(&Caller::ROOT, Ino::ROOT, &name(1)).await });
                let asking = observer.clone();
                let wait = world.rng("wait").duration(Duration::ZERO, Duration::from_secs(2));
                let clock = right.ports.clock.clone();
                let told = right.call(async move {
                    clock.sleep(wait).await;
                    while asking.lookup(Ino::ROOT, &name(1)).await.is_ok() && !asks_by_removing {}
                    match asks_by_removing {
                        true => asking.unlink(&Caller::ROOT, Ino::ROOT, &name(1)).await,
                        false => Err(FsError::NotFound),
                    }
                });
                let cut = async {
                    let told = told.await.expect("the client lives");
                    world.machine("server").power_cut();
                    left.kill();
                    told
                };
                let (told, _) = join(cut, removing).await;
                world.set_faults(FaultPlan::default());
                serve(&world).await;
                if told == Err(FsError::NotFound) {
                    let found = right.call(async move {
                        observer.lookup(Ino::ROOT, &name(1)).await.map(|attr| attr.ino)
                    });
                    assert_eq!(
                        found.await.expect("the client lives"),
                        Err(FsError::NotFound),
                        "seed {seed}"
                    );
                }
            });
        }
    }
}

/// Situation: a client has listed a directory with objects of another program, and the node loses
/// power. Danger: only the node's log held the inode ids that the client was given, so the client's
/// open files and directories do not exist any more. (Seed 113 of volumes, once the workload set
/// ACLs.)
#[test]
fn inode_ids_of_listed_objects_survive_a_power_cut() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            for key in ["d/a", "d/b/c", "e"] {
                world
                    .bucket()
                    .put_as_outsider(key, &b"theirs"[..], vec![])
                    .expect("outsiders meet no faults");
            }
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let reader = client.clone();
            let seen = process.call(async move {
                let dir = reader.lookup(Ino::ROOT, &Name::new(b"d").unwrap()).await.unwrap().ino;
                let page = reader.readdir(dir, Cookie::START, 100).await.unwrap();
                let mut inos: Vec<Ino> = page.entries.iter().map(|(entry, _)| entry.ino).collect();
                inos.push(dir);
                inos
            });
            let seen = seen.await.expect("the client lives");
            assert_eq!(seen.len(), 3);
            world.machine("server").power_cut();
            serve(&world).await;
            let look = async move {
                for ino in seen {
                    client
                        .getattr(ino)
                        .await
                        .unwrap_or_else(|error| panic!("seed {seed}: {ino}: {error}"));
                }
            };
            process.call(look).await.expect("the client lives");
        });
    }
}

/// The volume has reached its limit of dirty bytes when its power is cut, and the limit is lower
/// afterwards. Expectation: the client's replay, which had its room before, does not wait for a
/// flush, which would wait for it.
#[test]
fn replay_at_the_dirty_limit_does_not_wait() {
    const MIB: u64 = 1 << 20;
    let limited = |dirty_bytes| Options { dirty_bytes, ..options() };
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            serve_with(&world, limited(4 * MIB)).await;
            let (process, client) = attach(&world, "desk").await;
            let maker = client.clone();
            let (ino, _) =
                process.call(async move { make(&maker, 0).await }).await.expect("the client lives");
            let away = Duration::from_secs(60);
            world.bucket().vanish_for(away);
            let writer = client.clone();
            let made = process.call(async move {
                let content = |mib: u64| Bytes::from(vec![mib as u8 + 1; MIB as usize]);
                for mib in 0..4 {
                    if mib == 3 {
                        writer.fsync(ino).await.unwrap();
                    }
                    writer.write(&Caller::ROOT, ino, mib * MIB, content(mib), false).await.unwrap();
                }
                (ino, Bytes::from((0..4).flat_map(content).collect::<Vec<_>>()))
            });
            let made = made.await.expect("the client lives");
            world.machine("server").power_cut();
            world.sleep(away).await;
            serve_with(&world, limited(2 * MIB)).await;
            let back = process.call(async move {
                check(&client, std::slice::from_ref(&made)).await;
                client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            });
            let Either::Left((done, _)) =
                select(pin!(back), world.sleep(Duration::from_secs(120))).await
            else {
                panic!("the client is not served")
            };
            done.expect("the client lives");
            let object = world.bucket().objects().remove("file0").expect("it was flushed");
            assert_eq!(object.body.len() as u64, 4 * MIB);
        });
    }
}

/// Situation: two changes of one file are pending; the node has made both when it replies to the
/// second, and that reply shows the first. The power is cut before the first reply, and takes both.
/// Danger: the client replays the second, as acknowledged, and then the first, whose reply shows
/// the second: no order of the two explains both replies. (Seed 210229 of volumes.)
#[test]
fn replay_keeps_the_order_that_replies_have_shown() {
    const BEFORE: u64 = 1 << 20;
    let shorter = SetAttr { size_bytes: Some(1), ..SetAttr::default() };
    let (private, public) = (0o600, 0o644);
    for copies in [false, true] {
        let mut shown = 0;
        for seed in 0..3 * SEEDS {
            let world = World::new(seed);
            run(seed, &world, async {
                serve(&world).await;
                let (process, client) = attach(&world, "desk").await;
                let maker = client.clone();
                let ino = process.call(async move {
                    let (ino, _) = make(&maker, 1).await;
                    maker
                        .write(&Caller::ROOT, ino, 0, Bytes::from(vec![1; BEFORE as usize]), false)
                        .await
                        .unwrap();
                    maker.sync_fs().await.unwrap();
                    ino
                });
                let ino = ino.await.expect("the client lives");
                let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(100) };
                world.set_faults(FaultPlan {
                    disk: DiskFaults { slow, ..DiskFaults::default() },
                    ..FaultPlan::default()
                });
                let first = client.clone();
                let first = process.call(async move {
                    match copies {
                        true => {
                            first
                                .copy(&Caller::ROOT, (ino, 0), (ino, BEFORE), 100, false)
                                .await
                                .unwrap()
                                .attr
                        }
                        false => first.setattr(&Caller::ROOT, ino, shorter).await.unwrap(),
                    }
                });
                let wait = world.rng("wait").duration(Duration::ZERO, Duration::from_millis(500));
                let clock = process.ports.clock.clone();
                let second = process.call(async move {
                    clock.sleep(wait).await;
                    client
                        .setattr(
                            &Caller::ROOT,
                            ino,
                            SetAttr { mode: Some(public), ..SetAttr::default() },
                        )
                        .await
                        .unwrap()
                });
                let second = async {
                    let second = second.await.expect("the client lives");
                    world.set_faults(FaultPlan::default());
                    world.machine("server").power_cut();
                    serve(&world).await;
                    second
                };
                let (first, second) = join(first, second).await;
                let (first_sees, second_sees) = (
                    first.expect("the client lives").mode & 0o777 != private,
                    second.size_bytes != BEFORE,
                );
                assert!(!first_sees || !second_sees, "seed {seed}: each shows the other");
                shown += usize::from(second_sees);
            });
        }
        assert!(shown > 0);
    }
}

/// An unlinked file is truncated and closed; the power is cut before any of that is forced. The
/// client replays all of it, in its session or, if that has expired, in a new one, with no file
/// open. Expectation: no replayed operation fails, and the file is reclaimed.
#[test]
fn replay_includes_changes_of_closed_unlinked_files() {
    for (seed, away) in
        (0..SEEDS).flat_map(|seed| [(seed, Duration::ZERO), (seed, Duration::from_secs(300))])
    {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let maker = client.clone();
            let made = process.call(async move {
                let (ino, _) = make(&maker, 1).await;
                maker.open(ino).await.unwrap();
                maker.unlink(&Caller::ROOT, Ino::ROOT, &name(1)).await.unwrap();
                let cut = SetAttr { size_bytes: Some(1), ..SetAttr::default() };
                maker.setattr(&Caller::ROOT, ino, cut).await.unwrap();
                maker.close(ino);
                expect_something_to_lose(&maker, seed).await;
                ino
            });
            let ino = made.await.expect("the client lives");
            world.machine("server").power_cut();
            world.net().partition("desk", "server");
            let node = serve_one(&world, options()).await;
            world.sleep(away).await;
            world.net().heal();
            let found = process.call(async move {
                (client.sync_fs().await, client.getattr(ino).await, client.detach(PATIENCE).await)
            });
            let expected = (Ok(()), Err(FsError::Stale), Ok(()));
            assert_eq!(
                found.await.expect("the client lives"),
                expected,
                "seed {seed}, away for {away:?}"
            );
            assert_eq!(
                stop(node).await,
                Ok(Stopped::Released),
                "seed {seed}, away for {away:?}: something stays"
            );
        });
    }
}
