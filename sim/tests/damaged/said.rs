//! Checksums of objects in their metadata.

use super::*;

/// Situation: a large file is written to during its upload. Expectation: the checksums of its
/// object are correct, which the simulated bucket verifies; after the last write, the object has
/// some.
#[test]
fn object_checksums_are_correct_for_changing_files() {
    for seed in 0..12 {
        let world = World::new(seed);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let (ino, content) = large(&mount, 17).await;
            let rng = world.rng("writes");
            let mut flushed = Box::pin(mount.client.admin(AdminRequest::Flush { path: vec![] }));
            for _ in 0..40 {
                let at = rng.below(content.len() as u64);
                let some = Bytes::from(vec![rng.below(256) as u8; 1 + rng.below(200_000) as usize]);
                mount.client.write(&Caller::ROOT, ino, at, some, false).await.unwrap();
                flushed = match select(
                    flushed,
                    Box::pin(world.sleep(Duration::from_millis(rng.below(30)))),
                )
                .await
                {
                    Either::Left(_) => {
                        Box::pin(mount.client.admin(AdminRequest::Flush { path: vec![] }))
                    }
                    Either::Right((_, flushed)) => flushed,
                };
            }
            flushed.await.unwrap();
            mount.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            let object = &bucket.objects()["large"];
            assert!(
                object.body == mount.read(ino, 0, object.body.len()).await.unwrap(),
                "seed {seed}"
            );
            mount.write(ino, &content).await;
            mount.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            let object = &bucket.objects()["large"];
            let says = Sums::decode(&object.meta.tags, object.meta.len_bytes).unwrap();
            assert!(says.spans_of(0..object.meta.len_bytes).count() > 100, "seed {seed}");
        });
    }
}

/// Situation: a file is overwritten in place, before and after its first upload. Danger: the blocks
/// lose their checksums, and damage in transit from the bucket is read. Expectation: its object has
/// checksums of all spans.
#[test]
fn object_checksums_cover_overwritten_blocks() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        let (ino, content) = large(&mount, 12).await;
        let mut content = content.to_vec();
        for block in [0, 7, 80] {
            let at = block * BLOCK + 1000;
            content[at..at + 10].fill(block as u8);
            mount
                .client
                .write(&Caller::ROOT, ino, at as u64, vec![block as u8; 10].into(), false)
                .await
                .unwrap();
            if block > 0 {
                mount.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
                let object = &bucket.objects()["large"];
                assert!(object.body == content);
                assert!(
                    Sums::decode(&object.meta.tags, object.meta.len_bytes).unwrap().are_all_known(),
                    "block {block}"
                );
            }
        }
    });
}

/// Situation: one block of a large file is constantly overwritten in place. Danger: the object then
/// has no checksums of the other spans.
#[test]
fn object_checksums_cover_the_rest_of_a_busy_file() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        let (ino, content) = large(&mount, 12).await;
        mount.write(ino, &content).await;
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(50) };
        world.set_faults(FaultPlan {
            bucket: BucketFaults { slow, ..BucketFaults::default() },
            ..FaultPlan::default()
        });
        let is_sent = Cell::new(false);
        let write = async || {
            mount
                .client
                .write(&Caller::ROOT, ino, 5 * BLOCK as u64 + 7, vec![8; 10].into(), false)
                .await
                .map(drop)
        };
        write().await.unwrap();
        let writes = async {
            while !is_sent.get() {
                world.sleep(Duration::from_millis(10)).await;
                write().await.unwrap();
            }
        };
        let flush = async {
            mount.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            is_sent.set(true);
        };
        join(writes, flush).await;
        let object = &bucket.objects()["large"];
        let says = Sums::decode(&object.meta.tags, object.meta.len_bytes).expect("some are known");
        let spans: Vec<_> =
            says.spans_of(0..u64::MAX).map(|(span, _)| span.start as usize / BLOCK).collect();
        assert_eq!(
            spans,
            (0..object.body.len().div_ceil(BLOCK)).filter(|block| *block != 5).collect::<Vec<_>>()
        );
    });
}

/// Situation: an object of another program has no checksums; a block of it was damaged in transit
/// and is cached undetected, and another range of the file is changed. Danger: the new object
/// states the checksum of the damaged block, while the store copies the intact one: EIO for ever.
/// Expectation: it states no checksum of bytes that came from the bucket.
#[test]
fn object_checksums_omit_unverified_bytes() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        let usual = mount.process.bucket(&bucket).capabilities();
        bucket.set_capabilities(Capabilities { max_put_bytes: 64 << 20, ..usual });
        let content: Bytes = vec![7; 40 * MIB].into();
        bucket.put_as_outsider("theirs", content.clone(), vec![]).unwrap();
        let ino = mount.client.lookup(Ino::ROOT, &Name::new(b"theirs").unwrap()).await.unwrap().ino;
        bucket.rot("theirs", 5);
        assert_eq!(mount.read(ino, 0, 8).await.unwrap()[..], [7, 7, 7, 7, 7, 6, 7, 7]);
        bucket.rot("theirs", 5);
        for block in 1..8 {
            mount.read(ino, block * BLOCK, 8).await.unwrap();
        }
        mount
            .client
            .write(&Caller::ROOT, ino, 30 << 20, vec![8; 4 * BLOCK].into(), false)
            .await
            .unwrap();
        mount.flush_and_evict().await;
        let object = &bucket.objects()["theirs"];
        let says = Sums::decode(&object.meta.tags, object.meta.len_bytes).unwrap();
        assert_eq!(
            says.spans_of(0..object.meta.len_bytes).map(|(span, _)| span.start).collect::<Vec<_>>(),
            [30 << 20]
        );
        for at in (0..content.len()).step_by(MIB) {
            let read = mount.read(ino, at, MIB).await;
            assert!(read.is_ok_and(|read| read == object.body[at..at + MIB]), "{at}");
        }
        assert_eq!(object.body[..BLOCK], content[..BLOCK], "it was copied in the store");
    });
}

/// Situation: a small range of a large file that only the bucket has is overwritten. Danger: the
/// new object, most of which the store copies, loses the checksums of the rest. Expectation: it
/// keeps those of the previous object, and copied damage is not read.
#[test]
fn object_checksums_survive_copies_in_the_store() {
    for copies_parts in [true, false] {
        let world = World::new(1);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let usual = mount.process.bucket(&bucket).capabilities();
            bucket.set_capabilities(Capabilities { copies_parts, ..usual });
            let (ino, content) = large(&mount, 40).await;
            let before = bucket.objects()["large"].clone();
            let spans = |object: &Object| {
                Sums::decode(&object.meta.tags, object.meta.len_bytes)
                    .unwrap()
                    .spans_of(0..u64::MAX)
                    .count()
            };
            // Some spans are fully cached and intact, some partly.
            mount.read(ino, 0, MIB).await.unwrap();
            mount.read(ino, 10 * MIB, 10).await.unwrap();
            mount
                .client
                .write(&Caller::ROOT, ino, 30 << 20, vec![8; 10].into(), false)
                .await
                .unwrap();
            if copies_parts {
                bucket.rot("large", 20 * MIB);
            }
            mount.flush_and_evict().await;
            let after = bucket.objects()["large"].clone();
            assert!(after.meta.etag != before.meta.etag);
            assert_eq!(spans(&after), spans(&before) - 2);
            if !copies_parts {
                bucket.rot("large", 20 * MIB);
            }
            for at in (0..30 * MIB).step_by(MIB) {
                match mount.read(ino, at, MIB).await {
                    Ok(read) => assert!(at != 20 * MIB && read == content[at..at + MIB], "{at}"),
                    failed => {
                        assert!(at == 20 * MIB && failed == Err(FsError::Io), "{at}: {failed:?}")
                    }
                }
            }
        });
    }
}

/// Situation: a large file that is mostly in the bucket is uploaded in parts shorter than its
/// object's spans, while it is read and written, and some downloads are damaged in transit. Danger:
/// damaged bytes are uploaded with the checksum of the original. Expectation: the checksums are
/// correct, which the simulated bucket verifies, so the object is readable.
#[test]
fn object_checksums_exclude_damage_in_transit() {
    for seed in 0..12 {
        let world = World::new(seed);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::sending(&world, "a", &bucket, 64 << 10).await;
            let usual = mount.process.bucket(&bucket).capabilities();
            bucket.set_capabilities(Capabilities { copies_parts: seed % 3 > 0, ..usual });
            let (ino, content) = large(&mount, 17).await;
            let rng = world.rng("work");
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(20) };
            world.set_faults(FaultPlan {
                bucket: BucketFaults { garbled: Rate::one_in(30), slow, ..BucketFaults::default() },
                ..FaultPlan::default()
            });
            for _ in 0..3 {
                let blocks = content.len() / BLOCK;
                mount
                    .client
                    .write(
                        &Caller::ROOT,
                        ino,
                        rng.below(content.len() as u64),
                        vec![1; 10].into(),
                        false,
                    )
                    .await
                    .unwrap();
                let work = async {
                    for _ in 0..60 {
                        world.sleep(Duration::from_millis(rng.below(100))).await;
                        let at = rng.below(blocks as u64) as usize * BLOCK;
                        // Any result is valid.
                        match rng.below(3) {
                            0 => {
                                drop(mount.read(ino, at, 1 + rng.below(BLOCK_BYTES) as usize).await)
                            }
                            1 => drop(
                                mount
                                    .client
                                    .write(
                                        &Caller::ROOT,
                                        ino,
                                        at as u64,
                                        vec![2; BLOCK].into(),
                                        false,
                                    )
                                    .await,
                            ),
                            _ => drop(
                                mount
                                    .client
                                    .write(
                                        &Caller::ROOT,
                                        ino,
                                        at as u64 + 7,
                                        vec![3; 9].into(),
                                        false,
                                    )
                                    .await,
                            ),
                        }
                    }
                };
                let flushed = mount.client.admin(AdminRequest::Flush { path: vec![] });
                drop(futures_util::future::join(flushed, work).await);
            }
            world.set_faults(FaultPlan::default());
            mount.flush_and_evict().await;
            for at in (0..content.len()).step_by(MIB) {
                assert!(mount.read(ino, at, MIB).await.is_ok(), "seed {seed}: {at}");
            }
        });
    }
}

/// Another program replaces an object and keeps its tags, as some tools do: the checksums in them
/// do not count.
#[test]
fn object_checksums_of_foreign_objects_are_ignored() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        let ino = mount.cold("file", &content(0)).await;
        let mut tags = bucket.objects()["file"].meta.tags.clone();
        tags.iter_mut().find(|(name, _)| name == "mtime").unwrap().1 = "1000000000".into();
        bucket.put_as_outsider("file", content(9), tags).unwrap();
        assert_eq!(mount.read(ino, 0, content(9).len()).await, Ok(content(9)));
        assert_eq!(mount.troubles().await, Vec::<String>::new());
    });
}
