//! Several concurrent clients.

use super::*;
use futures_util::future::{join, select};
use std::pin::pin;

/// Two clients write one file in turn, while connections break again and again. Expectation: each
/// sees the other's last acknowledged write (O-53), and no write is executed twice.
#[test]
fn clients_see_each_other_while_connections_break() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let done = world.run(async {
            serve(&world).await;
            let (left, writer) = attach(&world, "left").await;
            let (right, reader) = attach(&world, "right").await;
            let maker = writer.clone();
            let (ino, _) =
                left.call(async move { make(&maker, 0).await }).await.expect("the client lives");
            let mut size = writer.getattr(ino).await.unwrap().size_bytes;
            for turn in 0..20u8 {
                let (process, client, other) = if turn % 2 == 0 {
                    (&left, &writer, "right")
                } else {
                    (&right, &reader, "left")
                };
                let appending = client.clone();
                let appended = process.call(async move {
                    appending.append(&Caller::ROOT, ino, Bytes::from(vec![turn; 100]), false).await
                });
                if turn % 3 == 0 {
                    world.net().reset(if turn % 2 == 0 { "left" } else { "right" }, "server");
                }
                let written = appended.await.expect("the client lives").unwrap();
                assert_eq!(written.offset, size, "turn {turn}: appended once, at the end");
                size += 100;
                let (process, client) = if other == "left" {
                    (&left, writer.clone())
                } else {
                    (&right, reader.clone())
                };
                let seen = process
                    .call(async move { client.read(ino, size - 100, 200).await })
                    .await
                    .expect("the client lives")
                    .unwrap();
                assert_eq!(seen, vec![turn; 100], "turn {turn}: the other client reads it at once");
                world.sleep(Duration::from_millis(50)).await;
            }
        });
        done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// A client unlinks a file that it has open. Another client's open by inode id fails, since the
/// inode is going away; the first client keeps the file until it closes it.
#[test]
fn unlinked_inode_is_usable_only_through_earlier_opens() {
    let world = World::new(1);
    run(1, &world, async {
        serve(&world).await;
        let (left, holder) = attach(&world, "left").await;
        let (right, other) = attach(&world, "right").await;
        let client = holder.clone();
        let (ino, content) = left
            .call(async move {
                let made = make(&client, 1).await;
                client.open(made.0).await.unwrap();
                client.unlink(&Caller::ROOT, Ino::ROOT, &name(1)).await.unwrap();
                made
            })
            .await
            .expect("the client lives");
        let opened =
            right.call(async move { other.open(ino).await }).await.expect("the client lives");
        assert_eq!(opened, Err(FsError::Stale));
        let read = left.call(async move {
            // Opened again by the client that has it open.
            holder.open(ino).await.unwrap();
            let read = holder.read(ino, 0, 1000).await;
            holder.close(ino);
            holder.close(ino);
            read
        });
        assert_eq!(read.await.expect("the client lives"), Ok(content));
    });
}

/// Situation: a client creates and opens a file; another one removes it while the record is still
/// on its way to a slow disk. Danger: the removal comes between creation and open, and the inode is
/// reclaimed (seeds 3857, 4827, 6493, 8029, 12517 and 15485 of the volumes). Expectation: the
/// creator keeps the file open.
#[test]
fn a_file_that_is_made_open_is_open_before_others_remove_it() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let slow = DiskFaults {
            slow: Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(20) },
            ..DiskFaults::default()
        };
        run(seed, &world, async {
            serve(&world).await;
            let (left, maker) = attach(&world, "left").await;
            let (right, remover) = attach(&world, "right").await;
            world.set_faults(FaultPlan { disk: slow, ..FaultPlan::default() });
            for file in 0..FILES {
                let (maker, remover, clock) =
                    (maker.clone(), remover.clone(), right.ports.clock.clone());
                let making = left.call(async move {
                    let made = maker
                        .make(&Caller::ROOT, Ino::ROOT, &name(file), 0o600, Make::Regular, true)
                        .await
                        .unwrap();
                    maker.read(made.ino, 0, 1).await
                });
                let removing = right.call(async move {
                    while remover.unlink(&Caller::ROOT, Ino::ROOT, &name(file)).await.is_err() {
                        clock.sleep(Duration::from_millis(1)).await;
                    }
                });
                let (read, removed) = futures_util::future::join(making, removing).await;
                removed.expect("the client lives");
                assert_eq!(
                    read.expect("the client lives"),
                    Ok(Bytes::new()),
                    "seed {seed}, file {file}"
                );
            }
        });
    }
}

/// The node restarts while a client waits for the reply to an open of such an inode. Expectation:
/// the open fails, and a later sync reports no further error.
#[test]
fn an_open_that_is_refused_leaves_no_error_behind() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let node = serve(&world).await;
            let (left, holder) = attach(&world, "left").await;
            let (right, other) = attach(&world, "right").await;
            let client = holder.clone();
            let held = left.call(async move {
                let (ino, _) = make(&client, 1).await;
                client.open(ino).await.unwrap();
                client.unlink(&Caller::ROOT, Ino::ROOT, &name(1)).await.unwrap();
                ino
            });
            let ino = held.await.expect("the client lives");
            node.kill();
            let client = other.clone();
            let opened = right.call(async move { client.open(ino).await });
            serve(&world).await;
            assert_eq!(opened.await.expect("the client lives"), Err(FsError::Stale), "seed {seed}");
            let synced =
                right.call(async move { other.sync_fs().await }).await.expect("the client lives");
            assert_eq!(synced, Ok(()), "seed {seed}");
            drop(holder);
        });
    }
}

/// Situation: a client that has a file open detaches, and while that is forced another one removes
/// the file. Danger: the file is kept for the detached client, which never closes it.
#[test]
fn detaching_client_gets_no_orphan_inode() {
    for (seed, pause) in
        (0..SEEDS).flat_map(|seed| (0..30).map(move |ms| (seed, Duration::from_millis(10 * ms))))
    {
        let world = World::new(seed);
        run(seed, &world, async {
            let node = serve_one(&world, options()).await;
            let (left, holder) = attach(&world, "left").await;
            let (right, remover) = attach(&world, "right").await;
            let client = holder.clone();
            let made = left.call(async move {
                let (ino, _) = make(&client, 1).await;
                client.open(ino).await.unwrap();
                client.sync_fs().await.unwrap();
            });
            made.await.expect("the client lives");
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(200) };
            world.set_faults(FaultPlan {
                disk: DiskFaults { slow, ..DiskFaults::default() },
                ..FaultPlan::default()
            });
            let leaving = left.call(async move { holder.detach(PATIENCE).await });
            let client = remover.clone();
            let removing = async {
                world.sleep(pause).await;
                right
                    .call(async move {
                        client.unlink(&Caller::ROOT, Ino::ROOT, &name(1)).await.map(drop)
                    })
                    .await
            };
            assert_eq!(
                join(leaving, removing).await,
                (Some(Ok(())), Some(Ok(()))),
                "seed {seed}, {pause:?}"
            );
            world.set_faults(FaultPlan::default());
            right
                .call(async move { remover.detach(PATIENCE).await })
                .await
                .expect("the client lives")
                .unwrap();
            assert_eq!(
                stop(node).await,
                Ok(Stopped::Released),
                "seed {seed}, {pause:?}: something stays"
            );
        });
    }
}

/// Situation: a client opens a file that is gone, and before the reply arrives it closes that
/// inode, which is not open. Danger: the close drops the state that the open waits on, and the open
/// fails with another error.
#[test]
fn a_close_takes_nothing_from_an_open_under_way() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let opened = process.call(async move {
                let (ino, _) = make(&client, 1).await;
                client.unlink(&Caller::ROOT, Ino::ROOT, &name(1)).await.unwrap();
                let closing = async { client.close(ino) };
                join(client.open(ino), closing).await.0
            });
            assert_eq!(opened.await.expect("the client lives"), Err(FsError::Stale), "seed {seed}");
        });
    }
}

/// A client vanishes, and the node's disk is full when its session expires. Expectation: the
/// session stays until its end can be logged; then its open files are reclaimed; no client is
/// admitted before that.
#[test]
fn a_session_that_cannot_be_closed_is_closed_later() {
    let world = World::new(1);
    run(1, &world, async {
        let node =
            Options { session_term: Duration::from_secs(10), segment_bytes: 16 << 10, ..options() };
        let server = serve_with(&world, node).await;
        let (left, holder) = attach(&world, "left").await;
        let (right, other) = attach(&world, "right").await;
        let held = left.call(async move {
            let (ino, _) = make(&holder, 1).await;
            holder.open(ino).await.unwrap();
            holder.unlink(&Caller::ROOT, Ino::ROOT, &name(1)).await.unwrap();
            ino
        });
        let ino = held.await.expect("the client lives");
        left.kill();
        let disk = world.machine("server").disk("node");
        disk.set_capacity(0);
        let filler = other.clone();
        let filled = right.call(async move {
            loop {
                let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
                if let Err(error) = filler.setattr(&Caller::ROOT, Ino::ROOT, set).await {
                    return error;
                }
            }
        });
        assert_eq!(filled.await.expect("the client lives"), FsError::NoSpace);
        world.sleep(Duration::from_secs(30)).await;
        let client = other.clone();
        assert!(
            right
                .call(async move { client.getattr(ino).await })
                .await
                .expect("the client lives")
                .is_ok()
        );
        disk.set_capacity(1 << 30);
        world.sleep(Duration::from_secs(5)).await;
        let gone =
            right.call(async move { other.getattr(ino).await }).await.expect("the client lives");
        assert_eq!(gone.map(|attr| attr.nlink), Err(FsError::Stale));
        assert!(server.is_alive());
    });
}

/// Situation: a copy waits for the bucket, its client dies, and its session ends meanwhile. Danger:
/// the bytes arrive, overwrite those of the file, and then the copy is rejected. Expectation: the
/// file is unchanged.
#[test]
fn copy_of_a_dead_client_overwrites_nothing() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let node = Options { session_term: Duration::from_secs(5), ..options() };
            serve_with(&world, node).await;
            let (left, dying) = attach(&world, "left").await;
            let (right, other) = attach(&world, "right").await;
            let prepared = left.call(async move {
                let (source, _) = make(&dying, 20).await;
                dying.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
                dying
                    .admin(AdminRequest::Evict {
                        path: vec![],
                        from: (Ino(0), 0),
                        limit_bytes: u64::MAX,
                    })
                    .await
                    .unwrap();
                let (target, content) = make(&dying, 3).await;
                (dying, source, target, content)
            });
            let (dying, source, target, content) = prepared.await.expect("the client lives");
            world.bucket().vanish_for(Duration::from_secs(20));
            let asked = left.call(async move {
                dying.copy(&Caller::ROOT, (source, 0), (target, 10), 100, false).await
            });
            select(pin!(asked), pin!(world.sleep(Duration::from_secs(1)))).await;
            left.kill();
            world.sleep(Duration::from_secs(60)).await;
            let seen = right
                .call(async move { other.read(target, 0, 1000).await })
                .await
                .expect("the client lives");
            assert_eq!(seen, Ok(content));
        });
    }
}

/// Situation: a client dies, and its session expires while the slow disk has its write pending.
/// Expectation: the write happens completely or not at all (O-80).
#[test]
fn session_end_waits_for_a_write_in_progress() {
    for seed in 0..40 {
        let world = World::new(seed);
        run(seed, &world, async {
            let node = Options { session_term: Duration::from_secs(5), ..options() };
            serve_with(&world, node).await;
            let (left, dying) = attach(&world, "left").await;
            let (right, other) = attach(&world, "right").await;
            let made = left.call(async move {
                let (target, content) = make(&dying, 3).await;
                dying.fsync(target).await.unwrap();
                let version = dying.getattr(target).await.unwrap().version;
                (dying, target, content, version)
            });
            let (dying, target, old, version) = made.await.expect("the client lives");
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(8) };
            world.set_faults(FaultPlan {
                disk: DiskFaults { slow, ..DiskFaults::default() },
                ..FaultPlan::default()
            });
            let asked = left.call(async move {
                dying.write(&Caller::ROOT, target, 5, Bytes::from_static(b"new"), false).await
            });
            select(pin!(asked), pin!(world.sleep(Duration::from_secs(1)))).await;
            left.kill();
            world.sleep(Duration::from_secs(120)).await;
            world.set_faults(FaultPlan::default());
            world.sleep(Duration::from_secs(60)).await;
            let seen = right.call(async move {
                (other.getattr(target).await.unwrap(), other.read(target, 0, 1000).await.unwrap())
            });
            let (attr, seen) = seen.await.expect("the client lives");
            let mut expected = old.to_vec();
            if attr.version > version {
                expected[5..8].copy_from_slice(b"new");
            }
            assert_eq!(seen, expected, "seed {seed}");
        });
    }
}

/// A client leaves, and the power is cut. The next one does not wait for it.
#[test]
fn nobody_waits_after_a_power_cut_for_a_client_that_had_left() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let left = process.call(async move {
                make(&client, 1).await;
                client.detach(Duration::from_secs(60)).await
            });
            assert_eq!(left.await.expect("the client lives"), Ok(()), "seed {seed}");
            world.machine("server").power_cut();
            serve(&world).await;
            let began = world.now();
            let (process, client) = attach(&world, "other").await;
            process.call(async move { make(&client, 2).await }).await.expect("the client lives");
            let took = world.now() - began;
            assert!(took < Duration::from_secs(2), "seed {seed}: {took:?}");
        });
    }
}
