//! A log that was damaged while its node was down: no node starts with it, and the error lists the
//! affected data.

use super::*;
use ebb_ports::OpenMode;
use std::collections::BTreeMap;

/// All that is in the data directory.
async fn image(world: &World) -> BTreeMap<String, Bytes> {
    let ports = world.machine("a").process_on("look", "node").ports.clone();
    let mut all = BTreeMap::new();
    for path in world.machine("a").disk("node").paths() {
        let file = ports.disk.open(&path, OpenMode::Existing).await.unwrap();
        let len = file.len().await.unwrap();
        all.insert(path, file.read_at(0, len as usize).await.unwrap());
    }
    all
}

/// Situation: a bit of the log flips unnoticed before the node dies. Danger: the node starts with
/// the records before it, or its error does not help. Expectation: every start fails with file and
/// offset, the data that was not in the bucket, and the options; nothing on the disk changes; the
/// volume continues with another data directory.
#[test]
fn start_with_a_damaged_log_is_refused_with_its_losses() {
    for cut in [false, true] {
        let world = World::new(1);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            mount.tree().await;
            let early = mount.file(Ino::ROOT, "early", 3).await;
            mount.client.fsync(early).await.unwrap();
            // The next record follows the last line that is not zeros.
            let log = &image(&world).await["log/00000001"];
            let damaged_at =
                (log.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1).next_multiple_of(64);
            let late = mount.file(Ino::ROOT, "late", 4).await;
            mount.client.fsync(late).await.unwrap();
            match cut {
                false => mount.process.kill(),
                true => world.machine("a").power_cut(),
            }
            assert_eq!(
                world.machine("a").disk("node").flip("log/00000001", damaged_at + 70, 4),
                Ok(true)
            );
            let before = image(&world).await;
            for _ in 0..2 {
                let refused = Mount::open(&world, "a", &bucket, Options::default())
                    .await
                    .err()
                    .unwrap()
                    .to_string();
                for said in [
                    &format!("log/00000001: corrupt at byte {damaged_at}")[..],
                    "by then 1 files and 1 directories, 262144 bytes",
                    "Nothing was changed: `ebb fsck DATA_DIRECTORY`",
                ] {
                    assert!(refused.contains(said), "{said}: {refused}");
                }
            }
            let report = fsck_dead(&world, &bucket).await;
            let told = told(&report);
            for said in [
                &format!("log/00000001: corrupt at byte {damaged_at}")[..],
                "Before it is command ",
                "`date -d @",
                "by then 1 files and 1 directories, 262144 bytes",
                "--data NEW_DIRECTORY`",
                "`ebb restore BACKUP NEW_DIRECTORY ",
            ] {
                assert!(told[0].contains(said), "{said}: {}", told[0]);
            }
            assert!(
                told[1..].contains(
                    &&format!("/early (inode {early}): 262144 bytes had not reached the bucket")[..]
                ),
                "{told:?}"
            );
            assert!(
                told.iter().all(|what| !what.contains("/late"))
                    && report.problems.iter().all(|problem| problem.remedy.is_none())
            );
            assert_eq!(image(&world).await, before);

            let elsewhere = Mount::new(&world, "b", &bucket).await;
            elsewhere.client.lookup(Ino::ROOT, &name("a")).await.unwrap();
            assert!(elsewhere.client.lookup(Ino::ROOT, &name("early")).await.is_err());
        });
    }
}

/// Situation: the same in the only snapshot. Expectation: the same; there is no earlier state.
#[test]
fn a_snapshot_that_rotted_unseen_is_refused() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        mount.tree().await;
        mount.process.kill();
        let snapshot = world
            .machine("a")
            .disk("node")
            .paths()
            .into_iter()
            .find(|path| path.starts_with("snapshot/00000001-"))
            .unwrap();
        assert_eq!(world.machine("a").disk("node").flip(&snapshot, 70, 4), Ok(true));
        let before = image(&world).await;
        let refused =
            Mount::open(&world, "a", &bucket, Options::default()).await.err().unwrap().to_string();
        assert!(
            refused.contains(&snapshot) && refused.contains("there is no whole snapshot"),
            "{refused}"
        );
        let report = fsck_dead(&world, &bucket).await;
        assert!(
            matches!(&told(&report)[..], [what] if what.contains(&snapshot) && what.contains("--data NEW_DIRECTORY")),
            "{report:?}"
        );
        assert_eq!(image(&world).await, before);
    });
}
