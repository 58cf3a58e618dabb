//! `ebb fsck --bucket` of a running node, and of the data directory that it leaves.

use super::*;
use ebb_core::backing::page_key;

/// No finding for a sound volume, flushed or not.
#[test]
fn fsck_of_a_sound_volume_finds_nothing() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        let (dir, a) = mount.tree().await;
        let report = mount.fsck().await;
        assert_eq!((told(&report), &report.others), (vec![], &vec![]));
        assert_eq!((report.objects, report.pages, report.waiting, report.undecided), (5, 4, 0, 0));

        // Nothing of this has reached the bucket.
        let root = Caller::ROOT;
        mount
            .client
            .rename(&root, Ino::ROOT, &name("d"), Ino::ROOT, &name("moved"), RenameMode::Replace)
            .await
            .unwrap();
        mount.file(dir, "new", 3).await;
        mount.client.write(&root, a, 5, content(9), false).await.unwrap();
        mount.client.unlink(&root, Ino::ROOT, &name("also-b")).await.unwrap();
        for report in [mount.fsck().await, mount.fsck_dead(&world, &bucket).await] {
            assert_eq!((told(&report), &report.others), (vec![], &vec![]));
            assert!(report.waiting >= 4, "{report:?}");
        }
    });
}

/// Exactly the planted damage is reported, by a node and for its data directory.
#[test]
fn fsck_names_damage_planted_in_the_bucket() {
    type Plant = fn(&SimBucket, Ino);
    let plants: [(Plant, &str); 8] = [
        (
            |bucket, _| bucket.delete_as_outsider("a"),
            "/a (inode A): its object a is gone from the bucket; all of it is cached here",
        ),
        (
            |bucket, _| bucket.delete_as_outsider("d/b"),
            "/d/b (inode B): its object d/b is gone from the bucket; all of it is cached here",
        ),
        (
            |bucket, dir| bucket.delete_as_outsider(&page_key(dir)),
            "/d (inode DIR): its page PAGE, with what no object can say, is gone from the bucket",
        ),
        (
            |bucket, dir| put(bucket, &page_key(dir), "no page"),
            "/d (inode DIR): its page PAGE, with what no object can say, cannot be read",
        ),
        (
            |bucket, dir| {
                put(bucket, &page_key(dir), bucket.objects()[&page_key(Ino::ROOT)].body.clone())
            },
            "/d (inode DIR): its page PAGE, with what no object can say, is not the one that was \
             written last",
        ),
        (
            |bucket, _| put(bucket, ".ebb/d/1000000000099", "left"),
            ".ebb/d/1000000000099 is in the bucket and nothing refers to it",
        ),
        (
            |bucket, _| put(bucket, ".ebb/tmp/1000000000003", "left"),
            ".ebb/tmp/1000000000003 is in the bucket and nothing refers to it",
        ),
        (
            |bucket, _| put(bucket, ".ebb/notes", "mine"),
            ".ebb/notes is where only ebb writes, and is nothing that ebb writes",
        ),
    ];
    for (plant, expected) in plants {
        let world = World::new(1);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let (dir, a) = mount.tree().await;
            let b = mount.ino(dir, "b").await;
            plant(&bucket, dir);
            let expected = expected.replace("PAGE", &page_key(dir));
            let expected = expected.replace("inode A", &format!("inode {a}"));
            let expected = expected.replace("inode B", &format!("inode {b}"));
            let expected = expected.replace("inode DIR", &format!("inode {dir}"));
            for report in [mount.fsck().await, mount.fsck_dead(&world, &bucket).await] {
                let found = told(&report);
                assert!(
                    found.len() == 1 && found[0].starts_with(&expected),
                    "{expected}: {report:?}"
                );
                assert_eq!(report.others, Vec::<String>::new());
            }
        });
    }
}

/// Changes by other programs are reported, and not as damage.
#[test]
fn fsck_lists_outside_changes_separately() {
    for revalidate in [None, Some(Duration::from_secs(60))] {
        let world = World::new(1);
        let bucket = world.bucket();
        run(&world, async {
            let mount =
                Mount::with(&world, "a", &bucket, Options { revalidate, ..Options::default() })
                    .await;
            let (_, a) = mount.tree().await;
            put(&bucket, "a", "another");
            put(&bucket, "d/added", "new");
            put(&bucket, "new-dir/file", "new");
            bucket.delete_as_outsider("d/b");
            let report = mount.fsck().await;
            let mut others: Vec<&str> = report.others.iter().map(String::as_str).collect();
            others.sort_unstable();
            let replaced = format!("/a (inode {a}): its object a was replaced by others");
            let expected = [&replaced[..], "d/added was put into the bucket by others"];
            // Takes effect only where the bucket is revalidated. Inodes with two names stay.
            match told(&report)[..] {
                [gone] => assert!(gone.contains("its object d/b is gone"), "{report:?}"),
                _ => panic!("{report:?}"),
            }
            assert_eq!(others, expected);
            bucket.delete_as_outsider("a");
            let report = mount.fsck().await;
            let removed = format!("/a (inode {a}): its object a was removed by others");
            let is_told = |what: &String| *what == removed;
            assert_eq!(report.others.iter().any(is_told), revalidate.is_some(), "{report:?}");
            assert_eq!(told(&report).len(), if revalidate.is_some() { 1 } else { 2 }, "{report:?}");
        });
    }
}

/// Lost data is reported with its size.
#[test]
fn fsck_reports_lost_data_with_its_size() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        let (_, a) = mount.tree().await;
        mount.evict().await;
        bucket.delete_as_outsider("a");
        let report = mount.fsck().await;
        let expected = format!(
            "/a (inode {a}): its object a is gone from the bucket; {len} of its {len} bytes are \
             nowhere else: restore the object, or remove the file",
            len = content(0).len()
        );
        assert_eq!(told(&report), [expected]);
    });
}

/// The root's page is written before the root is listed, in which another program made directories:
/// their number is not a reason for the page. (Seed 220797 of volumes.)
#[test]
fn directories_of_others_do_not_belie_the_page_of_the_root() {
    let world = World::new(1);
    run(&world, async {
        let bucket = world.bucket();
        put(&bucket, "d/theirs", "theirs");
        let mount = Mount::new(&world, "a", &bucket).await;
        let (key, value) = (Bytes::from_static(b"user.mine"), Bytes::from_static(b"mine"));
        mount.client.setxattr(&Caller::ROOT, Ino::ROOT, key, value, XattrMode::Set).await.unwrap();
        mount.flush().await;
        mount.client.readdir(Ino::ROOT, Cookie::START, 100).await.unwrap();
        let report = mount.fsck().await;
        assert_eq!(report.problems, [], "{report:?}");
    });
}

/// A node that has not loaded all directories cannot attribute every object below `.ebb/`.
#[test]
fn fsck_does_not_judge_unloaded_directories() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let first = Mount::new(&world, "a", &bucket).await;
        first.tree().await;
        first.node.stop(true).await.unwrap();
        let second = Mount::new(&world, "b", &bucket).await;
        second.client.lookup(Ino::ROOT, &name("a")).await.unwrap();
        put(&bucket, ".ebb/d/1000000000099", "left");
        let report = second.fsck().await;
        assert_eq!((told(&report), report.undecided), (vec![], 6), "{report:?}");
        rig::walk(&second.client).await.unwrap();
        let report = second.fsck().await;
        assert_eq!(
            (told(&report), report.undecided),
            (vec![".ebb/d/1000000000099 is in the bucket and nothing refers to it"], 0)
        );
    });
}

/// Another node has served the bucket since: nothing is decidable, and the node that lost the head
/// reports the reason.
#[test]
fn a_bucket_that_was_taken_over_is_not_compared() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let first = Mount::new(&world, "a", &bucket).await;
        first.tree().await;
        first.process.kill();
        let second = Mount::new(&world, "b", &bucket).await;
        let process = world.machine("a").process("node");
        let (ports, port) = (process.ports.clone(), process.bucket(&bucket));
        let checked = process
            .call(async move { ebb_node::fsck(ports, Some(port), |_, _| {}).await })
            .await
            .unwrap();
        assert!(
            matches!(&checked, Err(ebb_node::FsckError::Superseded { owner, .. }) if owner == "b"),
            "{checked:?}"
        );
        assert_eq!(told(&second.fsck().await), Vec::<&str>::new());
    });
}

/// A check of a busy node has no findings, at any moment.
#[test]
fn a_busy_node_is_checked() {
    for seed in 0..20 {
        let world = World::new(seed);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            mount.tree().await;
            let client = mount.client.clone();
            let work = async {
                let root = Caller::ROOT;
                for round in 0..30usize {
                    let text = format!("f{}", round % 5);
                    let ino = match client.lookup(Ino::ROOT, &name(&text)).await {
                        Ok(attr) => attr.ino,
                        Err(_) => {
                            client
                                .make(&root, Ino::ROOT, &name(&text), 0o600, Make::Regular, false)
                                .await
                                .unwrap()
                                .ino
                        }
                    };
                    client.write(&root, ino, 0, content(round), false).await.unwrap();
                    if round % 7 == 3 {
                        client.unlink(&root, Ino::ROOT, &name(&text)).await.unwrap();
                    }
                    if round % 7 == 5 {
                        let to = name(format!("g{round}"));
                        client
                            .rename(
                                &root,
                                Ino::ROOT,
                                &name(&text),
                                Ino::ROOT,
                                &to,
                                RenameMode::Replace,
                            )
                            .await
                            .unwrap();
                    }
                    mount.flush().await;
                }
            };
            let check = async {
                for _ in 0..30 {
                    let report = mount.fsck().await;
                    assert_eq!((told(&report), &report.others), (vec![], &vec![]));
                }
            };
            futures_util::future::join(work, check).await;
        });
    }
}
