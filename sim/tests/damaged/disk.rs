//! Data that is damaged or unreadable on the node's disk.

use super::*;

/// Situation: blocks that no program reads are damaged on the node's disk. Expectation: the scrub
/// finds them; those in the bucket are dropped and fetched at the next read; the others are
/// reported.
#[test]
fn scrub_finds_damage_of_unread_blocks() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        let clean = mount.cold("clean", &content(0)).await;
        assert_eq!(mount.read(clean, 0, content(0).len()).await, Ok(content(0)));
        mount.client.fsync(clean).await.unwrap();
        let name = Name::new(b"dirty").unwrap();
        let dirty = mount
            .client
            .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
            .await
            .unwrap()
            .ino;
        mount.write(dirty, &content(1)).await;
        mount.client.fsync(dirty).await.unwrap();
        world.sleep(2 * SCRUB).await;
        let scrub = mount.status().await.scrub;
        assert!(
            scrub.blocks >= 8
                && scrub.round_ended.is_some()
                && (scrub.dropped, scrub.damaged) == (0, 0),
            "{scrub:?}"
        );

        let disk = world.machine("a").disk("node");
        for ino in [clean, dirty] {
            assert_eq!(disk.flip(&rig::store_file(&bucket, ino), BLOCK_BYTES + 7, 4), Ok(true));
        }
        world.sleep(2 * SCRUB).await;
        let status = mount.status().await;
        assert!(status.scrub.dropped == 1 && status.scrub.damaged >= 1, "{:?}", status.scrub);
        assert!(
            status
                .troubles
                .iter()
                .any(|trouble| trouble.what.contains(&format!("inode {dirty} is damaged"))),
            "{:?}",
            status.troubles
        );
        assert_eq!(mount.read(clean, 0, content(0).len()).await, Ok(content(0)));
        assert_eq!(mount.read(dirty, BLOCK, BLOCK).await, Err(FsError::Io));
        assert_eq!(mount.read(dirty, 0, BLOCK).await.unwrap(), content(1)[..BLOCK]);
    });
}

/// Situation: files grow in small writes, and a bit of one flips before its upload. Danger: without
/// a checksum it is uploaded as it is. Expectation: it is detected, reported, neither uploaded nor
/// appended to, also after restarts; other files are intact.
#[test]
fn damage_of_files_grown_in_small_writes_is_found() {
    for (seed, piece, len) in
        [(1, 100, 5_000), (2, 5_000, 60_000), (3, 4_096, 100_000), (4, 60_000, 300_000), (5, 1, 17)]
    {
        let world = World::new(seed);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let content = |of: usize| {
                Bytes::from(
                    (0..len).map(|at| (at * at / 251 + of * 101) as u8).collect::<Vec<u8>>(),
                )
            };
            let mut files = Vec::new();
            for of in 0..3 {
                let name = Name::new(format!("file{of}").as_bytes()).unwrap();
                let ino = mount
                    .client
                    .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                    .await
                    .unwrap()
                    .ino;
                for at in (0..len).step_by(piece) {
                    let part = content(of).slice(at..len.min(at + piece));
                    mount.client.write(&Caller::ROOT, ino, at as u64, part, false).await.unwrap();
                }
                mount.client.fsync(ino).await.unwrap();
                files.push(ino);
            }
            let rotten = files[1];
            let (path, start) = mount.find(&content(1)).await;
            assert_eq!(
                world.machine("a").disk("node").flip(&path, start + len as u64 - 3, 4),
                Ok(true)
            );
            let of_rest = async |mount: &Mount| {
                for of in [0, 2] {
                    assert_eq!(mount.read(files[of], 0, len).await, Ok(content(of)), "seed {seed}");
                }
                let append = mount
                    .client
                    .write(&Caller::ROOT, rotten, len as u64, Bytes::from_static(b"more"), false)
                    .await;
                assert_eq!(append.map(drop), Err(FsError::Io), "seed {seed}");
                assert_eq!(mount.read(rotten, len - 10, 10).await, Err(FsError::Io), "seed {seed}");
                assert!(
                    mount
                        .troubles()
                        .await
                        .iter()
                        .any(|what| what.contains(&format!("inode {rotten} is damaged")))
                );
            };
            world.sleep(2 * SCRUB).await;
            of_rest(&mount).await;
            world.machine("a").power_cut();
            let mount = Mount::new(&world, "a", &bucket).await;
            of_rest(&mount).await;
            mount.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap_err();
            assert_eq!(
                bucket
                    .objects()
                    .into_keys()
                    .filter(|key| key.starts_with("file"))
                    .collect::<Vec<_>>(),
                ["file0", "file2"]
            );
        });
    }
}

/// Situation: a bit of the log or of its snapshot flips while files are written that the bucket
/// does not have; then the power fails. Danger: the start is refused, and all of that is lost.
/// Expectation: the scrub detects and replaces it before; nothing is lost or left to repair.
#[test]
fn scrub_replaces_a_damaged_log() {
    for seed in 0..12 {
        let world = World::new(seed);
        let bucket = world.bucket();
        run(&world, async {
            let rng = world.rng("rot");
            let mount = Mount::new(&world, "a", &bucket).await;
            let mut files = Vec::new();
            let make = async |files: &mut Vec<(Name, Bytes)>| {
                let name = Name::new(format!("file{}", files.len()).as_bytes()).unwrap();
                let ino = mount
                    .client
                    .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                    .await
                    .unwrap()
                    .ino;
                mount.write(ino, &content(files.len())).await;
                mount.client.fsync(ino).await.unwrap();
                files.push((name, content(files.len())));
            };
            for _ in 0..10 {
                make(&mut files).await;
            }
            let disk = world.machine("a").disk("node");
            let at_rest =
                |path: &&String| path.starts_with("log/0") || path.starts_with("snapshot/0");
            for prefix in ["log/0", "snapshot/0"] {
                let path = disk.paths().into_iter().find(|path| path.starts_with(prefix)).unwrap();
                let before: Vec<String> = disk.paths().iter().filter(at_rest).cloned().collect();
                let used = mount.used(&path).await;
                assert_eq!(
                    disk.flip(&path, rng.below(used), 1 << rng.below(8)),
                    Ok(true),
                    "seed {seed}"
                );
                for _ in 0..rng.below(3) {
                    make(&mut files).await;
                }
                world.sleep(2 * SCRUB + Duration::from_secs(5)).await;
                let after: Vec<String> = disk.paths().iter().filter(at_rest).cloned().collect();
                assert!(after != before || prefix == "snapshot/0", "seed {seed}: {after:?}");
                assert_eq!(mount.troubles().await, Vec::<String>::new());
                assert_eq!(rig::fsck(&mount.client).await.unwrap().problems, vec![], "seed {seed}");
            }
            make(&mut files).await;
            world.machine("a").power_cut();

            let mount = Mount::new(&world, "a", &bucket).await;
            for (name, content) in files {
                let ino = mount.client.lookup(Ino::ROOT, &name).await.unwrap().ino;
                assert_eq!(mount.read(ino, 0, content.len()).await, Ok(content), "seed {seed}");
            }
            assert_eq!(rig::fsck(&mount.client).await.unwrap().problems, vec![], "seed {seed}");
        });
    }
}

/// Situation: the log is damaged, and the disk is full or fails, so that no snapshot can be
/// written. Expectation: `status` names the damage and the data at risk until it is replaced.
#[test]
fn a_rotten_log_that_cannot_be_replaced_is_named() {
    for full in [true, false] {
        let world = World::new(1);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let name = Name::new(b"file").unwrap();
            let ino = mount
                .client
                .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                .await
                .unwrap()
                .ino;
            mount.write(ino, &content(0)).await;
            mount.client.fsync(ino).await.unwrap();
            let disk = world.machine("a").disk("node");
            assert_eq!(disk.flip("log/00000001", 4096 + 70, 4), Ok(true));
            match full {
                true => disk.set_capacity(0),
                false => world.set_faults(FaultPlan {
                    disk: DiskFaults { name_error: Rate::ALWAYS, ..DiskFaults::default() },
                    ..FaultPlan::default()
                }),
            }
            world.sleep(2 * SCRUB + Duration::from_secs(5)).await;
            let troubles = mount.troubles().await;
            for said in [
                "log/00000001",
                "A new snapshot cannot be written",
                "1 files and 1 directories, 262144 bytes of files",
            ] {
                assert!(troubles.iter().any(|what| what.contains(said)), "{said}: {troubles:?}");
            }
            disk.set_capacity(64 << 30);
            world.set_faults(FaultPlan::default());
            world.sleep(2 * SCRUB).await;
            assert_eq!(mount.troubles().await, Vec::<String>::new());
            world.machine("a").power_cut();
            let mount = Mount::new(&world, "a", &bucket).await;
            assert_eq!(mount.read(ino, 0, content(0).len()).await, Ok(content(0)));
        });
    }
}

/// Situation: a bit of a file has flipped on the node's disk, whether the bucket has the file or
/// not, and another range of the same block is overwritten, punched, or truncated, or the whole
/// file is replaced. Danger: the damaged bytes get a new checksum together with the new ones.
/// Expectation: data in the bucket is fetched first; data that only the node had is EIO until all
/// of it is replaced.
#[test]
fn damaged_block_is_never_changed_in_part() {
    let changes = |is_sent, len| {
        ["write", "append", "hole", "cut", "replace"].map(|change| (is_sent, len, change))
    };
    let cases = [(true, 50_000), (true, 300_000), (false, 50_000), (false, 300_000)].into_iter();
    let cases = cases
        .flat_map(|(is_sent, len)| changes(is_sent, len))
        .flat_map(|case| [(case, false), (case, true)]);
    for ((is_sent, len, change), is_compared) in cases {
        let case = format!("{change} of {len}, {is_sent}, {is_compared}");
        let world = World::new(len as u64);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let mut model: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let name = Name::new(b"file").unwrap();
            let ino = mount
                .client
                .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                .await
                .unwrap()
                .ino;
            mount.write(ino, &model.clone().into()).await;
            mount.client.fsync(ino).await.unwrap();
            if is_sent {
                mount.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            }
            // Or this run has not compared it yet.
            let mount = match is_compared {
                true => mount,
                false => {
                    world.machine("a").power_cut();
                    Mount::new(&world, "a", &bucket).await
                }
            };
            let last = (len - 1) / BLOCK * BLOCK;
            let (path, start) = mount.find(&model).await;
            assert_eq!(
                world.machine("a").disk("node").flip(&path, start + last as u64 + 100, 4),
                Ok(true),
                "{case}"
            );

            let client = &mount.client;
            let (cut, hole) = (
                SetAttr { size_bytes: Some(last as u64 + 200), ..SetAttr::default() },
                (last as u64 + 300, 400),
            );
            let write = async |at: usize, data: Vec<u8>| {
                client.write(&Caller::ROOT, ino, at as u64, data.into(), false).await.map(drop)
            };
            let changed = match change {
                "write" => write(last + 200, vec![1; 50]).await,
                "append" => write(len, vec![1; 50]).await,
                "hole" => client
                    .fallocate(&Caller::ROOT, ino, hole, Allocation::Zero, true, false)
                    .await
                    .map(drop),
                "cut" => client.setattr(&Caller::ROOT, ino, cut).await.map(drop),
                _ => write(0, vec![1; len]).await,
            };
            if is_compared && !is_sent && change == "append" {
                // The change keeps the checksum, so a read detects the damage of a verified
                // block.
                assert_eq!(changed.is_err(), len == 50_000, "{case}");
                assert_eq!(mount.read(ino, last, 10).await, Err(FsError::Io), "{case}");
                return;
            }
            if !is_sent && change != "replace" {
                assert_eq!(changed, Err(FsError::Io), "{case}");
                assert_eq!(mount.read(ino, last, 10).await, Err(FsError::Io), "{case}");
                assert!(
                    mount
                        .troubles()
                        .await
                        .iter()
                        .any(|what| what.contains("is damaged on the node's disk")),
                    "{case}"
                );
                return;
            }
            assert_eq!(changed, Ok(()), "{case}");
            match change {
                "write" => model[last + 200..last + 250].fill(1),
                "append" => model.extend([1; 50]),
                "hole" => model[last + 300..last + 700].fill(0),
                "cut" => model.truncate(last + 200),
                _ => model.fill(1),
            }
            assert!(
                mount.read(ino, 0, model.len()).await.is_ok_and(|read| read == model),
                "{case}"
            );
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            assert!(bucket.objects()["file"].body == model, "{case}");
            assert_eq!(mount.troubles().await, Vec::<String>::new(), "{case}");
        });
    }
}

/// Situation: a process dies with files that the bucket does not have, small ones in a pack and
/// others. Their bytes are removed before the next start, or truncated, or a bit flips. Danger:
/// zeros are read instead, and uploaded over the object. Expectation: reads fail, `status` and fsck
/// name the files, and nothing of them is uploaded.
#[test]
fn missing_bytes_after_a_crash_are_reported() {
    for what in ["gone", "cut short", "flipped"] {
        let world = World::new(1);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let sizes: &[usize] = if what == "flipped" {
                &[2 * BLOCK, 200_000]
            } else {
                &[700, 2 * BLOCK + 1, 200_000]
            };
            let mut files = Vec::new();
            for (number, size) in sizes.iter().enumerate() {
                let name = Name::new(format!("{number}").as_bytes()).unwrap();
                let ino = mount
                    .client
                    .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                    .await
                    .unwrap()
                    .ino;
                mount.write(ino, &content(number).repeat(20)[..*size].to_vec().into()).await;
                files.push(ino);
            }
            mount.process.kill();
            let held = world.machine("a").disk("node").paths().into_iter();
            let held: Vec<String> = held
                .filter(|path| path.starts_with("store/") || path.starts_with("packs/"))
                .collect();
            assert!(held.len() >= 2, "{held:?}");
            let vandal = world.machine("a").process_on("vandal", "node");
            for path in held {
                match what {
                    "gone" => vandal.ports.disk.remove(&path).await.unwrap(),
                    "cut short" => vandal
                        .ports
                        .disk
                        .open(&path, OpenMode::Existing)
                        .await
                        .unwrap()
                        .set_len(0)
                        .await
                        .unwrap(),
                    _ => {
                        let file = vandal.ports.disk.open(&path, OpenMode::Existing).await.unwrap();
                        let byte = file.read_at(BLOCK_BYTES + 7, 1).await.unwrap();
                        file.write_at(BLOCK_BYTES + 7, vec![byte[0] ^ 4].into()).await.unwrap();
                    }
                }
            }

            let mount = Mount::new(&world, "a", &bucket).await;
            for ino in &files {
                let size = mount.client.getattr(*ino).await.unwrap().size_bytes as usize;
                assert_eq!(
                    mount.client.read(*ino, 0, size).await,
                    Err(FsError::Io),
                    "{what}: inode {ino}"
                );
            }
            // A write beside it does not make it whole.
            let offset = if what == "flipped" { BLOCK_BYTES } else { 0 };
            let written = mount
                .client
                .write(&Caller::ROOT, files[0], offset, Bytes::from_static(b"beside"), false)
                .await;
            assert_eq!(written.map(drop), Err(FsError::Io), "{what}");
            let troubles = mount.troubles().await;
            let report = rig::fsck(&mount.client).await.unwrap();
            for ino in &files {
                assert!(
                    troubles.iter().any(|trouble| trouble.contains(&format!("of inode {ino} is"))),
                    "{what}: {troubles:?}"
                );
                assert!(
                    report
                        .problems
                        .iter()
                        .any(|problem| problem.what.contains(&format!("inode {ino}"))),
                    "{what}: {report:?}"
                );
            }
            assert!(mount.client.admin(AdminRequest::Flush { path: vec![] }).await.is_err());
            let put: Vec<String> =
                bucket.objects().into_keys().filter(|key| !key.starts_with(".ebb/")).collect();
            assert_eq!(put, Vec::<String>::new(), "{what}");
        });
    }
}

/// Situation: as before, with a file of so many blocks that the record about them exceeds the limit
/// of a record. Danger: no start gets past that. Expectation: the volume starts, the file is EIO,
/// and the others are intact.
#[test]
fn a_large_file_that_is_missing_keeps_nobody_from_the_others() {
    const BLOCKS: u64 = 3_000;
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let small = Options { segment_bytes: 16 << 10, ..options(Options::default().part_bytes) };
        let mount = Mount::with(&world, "a", &bucket, small.clone()).await;
        let make = async |name: &[u8]| {
            let name = Name::new(name).unwrap();
            mount
                .client
                .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                .await
                .unwrap()
                .ino
        };
        let (sparse, other) = (make(b"sparse").await, make(b"other").await);
        let set = SetAttr { size_bytes: Some(BLOCKS * BLOCK_BYTES), ..SetAttr::default() };
        mount.client.setattr(&Caller::ROOT, sparse, set).await.unwrap();
        for block in 0..BLOCKS {
            mount
                .client
                .write(&Caller::ROOT, sparse, block * BLOCK_BYTES, Bytes::from_static(b"x"), false)
                .await
                .unwrap();
        }
        mount.write(other, &content(0)).await;
        mount.process.kill();
        let vandal = world.machine("a").process_on("vandal", "node");
        vandal.ports.disk.remove(&rig::store_file(&bucket, sparse)).await.unwrap();

        let mount = Mount::with(&world, "a", &bucket, small).await;
        for block in [0, BLOCKS / 2, BLOCKS - 1] {
            assert_eq!(
                mount.read(sparse, block as usize * BLOCK, 1).await,
                Err(FsError::Io),
                "block {block}"
            );
        }
        assert_eq!(mount.read(other, 0, content(0).len()).await, Ok(content(0)));
    });
}

/// Situation: the node's disk fails all reads. Expectation: data in the bucket is read from there.
#[test]
fn unreadable_disk_data_comes_from_the_bucket() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        let (large, small) = (
            mount.cold("large", &content(0)).await,
            mount.cold("small", &content(1).slice(..40_000)).await,
        );
        for (ino, content) in [(large, content(0)), (small, content(1).slice(..40_000))] {
            assert_eq!(mount.read(ino, 0, content.len()).await, Ok(content.clone()));
            let unreadable = DiskFaults { read_error: Rate::ALWAYS, ..DiskFaults::default() };
            world.set_faults(FaultPlan { disk: unreadable, ..FaultPlan::default() });
            assert_eq!(mount.read(ino, 0, content.len()).await, Ok(content));
            world.set_faults(FaultPlan::default());
        }
        assert_eq!(mount.troubles().await, Vec::<String>::new());
    });
}

/// Situation: a sector of the node's disk is unreadable, in a block that the bucket has, beside one
/// that it has not; or in one of a small file that must move to grow. Danger: every read of the
/// block fails for ever, and the file is not uploaded. Expectation: the block is fetched again on
/// demand and by a repair; data that only the node had is EIO.
#[test]
fn bad_sector_of_clean_data_is_fetched_again() {
    for how in ["read", "repair", "flush", "append", "move", "dirty"] {
        let world = World::new(1);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let len = if how == "move" { 100_000 } else { content(0).len() };
            let mut model = content(0)[..len].to_vec();
            let ino = mount.cold("file", &model.clone().into()).await;
            let next = mount.cold("next", &Bytes::from_static(b"next")).await;
            assert_eq!(mount.read(ino, 0, len).await, Ok(model.clone().into()));
            assert_eq!(mount.read(next, 0, 4).await, Ok(Bytes::from_static(b"next")));
            let write = async |at: usize, data: &[u8]| {
                mount
                    .client
                    .write(&Caller::ROOT, ino, at as u64, Bytes::copy_from_slice(data), false)
                    .await
                    .unwrap();
            };
            if how == "flush" || how == "dirty" {
                write(10, b"dirty").await;
                model[10..15].copy_from_slice(b"dirty");
            }
            mount.client.fsync(ino).await.unwrap();
            let (path, start) = mount.find(&model).await;
            let bad = match how {
                "append" => len as u64 - 1,
                "move" | "dirty" => 1000,
                _ => BLOCK_BYTES + 5000,
            };
            let at = start + bad;
            world.machine("a").disk("node").spoil(&path, at..at + 1).unwrap();
            match how {
                "repair" => {
                    let report = rig::fsck(&mount.client).await.unwrap();
                    let [problem] = &report.problems[..] else { panic!("{report:?}") };
                    assert!(problem.what.contains("block 1 cannot be read"), "{problem:?}");
                    mount
                        .client
                        .admin(AdminRequest::Repair { remedy: problem.remedy.clone().unwrap() })
                        .await
                        .unwrap();
                }
                "append" | "move" => {
                    // More than its range has room for.
                    write(len, &[7; 5_000]).await;
                    model.extend([7; 5_000]);
                }
                "dirty" => {
                    assert_eq!(mount.read(ino, 0, len).await, Err(FsError::Io));
                    assert!(
                        mount.troubles().await.iter().any(|what| what.contains("block 0 of inode"))
                    );
                    return;
                }
                _ => {}
            }
            if how != "read" {
                mount.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
                assert!(bucket.objects()["file"].body == model, "{how}: other bytes in the bucket");
            }
            assert!(
                mount.read(ino, 0, model.len()).await.is_ok_and(|read| read == model),
                "{how}: other bytes"
            );
            world.sleep(Duration::from_secs(10)).await;
            assert_eq!(rig::fsck(&mount.client).await.unwrap().problems, vec![], "{how}");
            assert_eq!(mount.troubles().await, Vec::<String>::new(), "{how}");
        });
    }
}
