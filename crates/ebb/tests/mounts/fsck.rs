//! `ebb fsck`: findings in the bucket and in the data directory, and exit statuses.

use crate::place::{Place, until};
use ebb_bucket::BucketSettings;
use std::fs;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;

/// Does something to the bucket as another tool would.
fn as_outsider<T>(place: &Place, work: impl AsyncFnOnce(&dyn ebb_ports::Bucket) -> T) -> T {
    let mut settings = BucketSettings::default();
    if place.url().starts_with("s3") {
        let known = |name| Some(place.variable(name).to_owned());
        settings.endpoint = known("EBB_ENDPOINT");
        settings.access_key = known("AWS_ACCESS_KEY_ID");
        settings.secret_key = known("AWS_SECRET_ACCESS_KEY");
    }
    wait(async { work(&*ebb_bucket::open(place.url(), &settings).await.unwrap()).await })
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

/// Situation: a directory without access, one with read access only, and one that is not of ebb.
/// Expectation: the first and the last are reported as such, the second is checked.
#[test]
fn fsck_checks_read_only_data_directory() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.umount();
    let (ebb, data) = (env!("CARGO_BIN_EXE_ebb"), place.text("data"));
    let read_only = |command: &str| {
        let script = format!(
            "mount --bind {data} {data} && mount -o remount,bind,ro {data} && exec {ebb} {command}"
        );
        place.program("unshare", &["-m", "sh", "-c", &script])
    };
    let found = read_only("fsck data").good();
    assert!(found.out.contains("no problem"), "{found:?}");
    let mount = format!("mount {} mnt --data data --foreground", place.url());
    let refused = read_only(&mount);
    assert!(refused.status == 1 && refused.err.contains("Read-only file system"), "{refused:?}");
    place.ebb(&["fsck", "backing"]).refused(2, "is on no mount of ebb, nor is it a data directory");

    fs::create_dir(place.path("run")).unwrap();
    fs::set_permissions(place.path("run"), fs::Permissions::from_mode(0o777)).unwrap();
    let run = format!("XDG_RUNTIME_DIR={}", place.text("run"));
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "env", &run, ebb];
    let as_nobody = |args: &[&str]| place.program("setpriv", &[&nobody, args].concat());
    as_nobody(&["fsck", "data"]).refused(8, "Permission denied");
    place.mount();
    let whose = "is on a mount of ebb that another user has made";
    as_nobody(&["fsck", "mnt"]).refused(2, whose);
    as_nobody(&["status", "mnt"]).refused(2, whose);
    place.umount();
}

/// Situation: an object and a page are missing in the bucket, an unknown object is below `.ebb/`,
/// and another program has added a file. Expectation: a running node, and a check of its data
/// directory, report exactly that.
#[test]
fn the_bucket_is_compared() {
    for place in [Place::new(), Place::over_s3()] {
        place.mount();
        fs::create_dir(place.path("mnt/d")).unwrap();
        for name in ["a", "b", "d/c"] {
            fs::write(place.path("mnt").join(name), name).unwrap();
        }
        place.ebb(&["flush", "mnt"]).good();
        let found = place.ebb(&["fsck", "mnt", "--bucket", "--json"]).good().json();
        assert_eq!(
            (&found["objects"], &found["pages"], &found["waiting"]),
            (&3.into(), &2.into(), &0.into()),
            "{found}"
        );
        assert!(
            place
                .ebb(&["fsck", "mnt", "--bucket"])
                .good()
                .out
                .contains("3 objects and 2 pages in the bucket checked: no problem")
        );

        let page = page_of(&place, "mnt/d");
        as_outsider(&place, async |bucket| {
            bucket.head(&page).await.unwrap();
            bucket.delete(&page, None).await.unwrap();
            bucket.delete("a", None).await.unwrap();
            for key in ["added", ".ebb/d/1000000000099"] {
                bucket.put(key, "x".into(), ebb_ports::Condition::Always, vec![]).await.unwrap();
            }
        });
        assert_eq!(
            place.ebb(&["fsck", "mnt"]).good().status,
            0,
            "the bucket is not looked at unasked"
        );
        let check = |path: &str| {
            let found = place.ebb(&["fsck", path, "--bucket"]);
            assert_eq!(found.status, 4, "{found:?}");
            let problems = found.out.lines().filter(|line| line.starts_with("PROBLEM ")).count();
            assert_eq!(problems, 3, "{found:?}");
            for expected in [
                "its object a is gone from the bucket; all of it is cached here",
                &format!("its page {page}, with what no object can say, is gone from the bucket"),
                ".ebb/d/1000000000099 is in the bucket and nothing refers to it",
                "changed by others: added was put into the bucket by others",
            ] {
                assert!(found.out.contains(expected), "{expected}: {found:?}");
            }
        };
        check("mnt");
        place.kill("mnt");
        check("data");
        place.mount();
        place.umount();
    }
}

/// An incomplete check has an exit status of its own.
#[test]
fn fsck_reports_an_incomplete_check() {
    let place = Place::over_s3();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.umount();
    place.ebb(&["fsck", "data", "--bucket"]).good();
    place
        .ebb(&["fsck", "data", "--bucket", "--endpoint", "http://127.0.0.1:1"])
        .refused(8, "cannot be reached");
    place.ebb(&["mount", place.url(), "mnt2", "--data", "data2"]).good();
    place.umount_at("mnt2");
    place.ebb(&["fsck", "data", "--bucket"]).refused(8, "was served by");
    place.ebb(&["mount", place.url(), "mnt2", "--data", "data3", "--take-over", "never"]).good();
    place.ebb(&["fsck", "mnt2"]).good();
    place.ebb(&["fsck", "mnt2", "--bucket"]).refused(8, "only reads the bucket");
    place.umount_at("mnt2");
}

/// Situation: an object, a page and a cached block are damaged, and an unknown object is below
/// `.ebb/`. Expectation: nothing happens without consent; afterwards everything is repaired, the
/// exit status shows it, and a later check is clean.
#[test]
fn fsck_repairs_problems_with_a_remedy() {
    for place in [Place::new(), Place::over_s3()] {
        place.mount();
        fs::create_dir(place.path("mnt/d")).unwrap();
        for name in ["a", "d/b"] {
            fs::write(place.path("mnt").join(name), vec![7; 1 << 20]).unwrap();
        }
        place.ebb(&["flush", "mnt"]).good();
        let page = page_of(&place, "mnt/d");
        as_outsider(&place, async |bucket| {
            bucket.delete(&page, None).await.unwrap();
            bucket.delete("a", None).await.unwrap();
            bucket
                .put(".ebb/d/1000000000099", "x".into(), ebb_ports::Condition::Always, vec![])
                .await
                .unwrap();
        });
        rot(&place, "mnt/d/b");
        let check = |more: &[&str]| place.ebb(&[&["fsck", "mnt", "--bucket"], more].concat());
        assert_eq!(check(&[]).status, 4);
        let found = check(&["--repair"]);
        assert_eq!(found.status, 4, "{found:?}");
        assert!(
            found.err.contains("nothing is done without --yes")
                && found.out.matches("--repair ").count() == 4,
            "{found:?}"
        );
        assert_eq!(check(&[]).out.lines().filter(|line| line.starts_with("PROBLEM ")).count(), 4);

        let repaired = check(&["--repair", "--yes"]);
        assert_eq!(repaired.status, 1, "{repaired:?}");
        assert!(
            repaired.err.matches("\nrepaired: ").count()
                + usize::from(repaired.err.starts_with("repaired: "))
                == 4,
            "{repaired:?}"
        );
        check(&[]).good();
        assert_eq!(
            check(&["--repair", "--yes"]).good().status,
            0,
            "there is nothing left to repair"
        );
        place.umount();
        place.ebb(&["fsck", "data", "--bucket"]).good();
        place.ebb(&["fsck", "data", "--repair"]).refused(2, "mount it, and repair the mount");
        place.ebb(&["fsck", "data", "--online"]).refused(2, "in no daemon's use");
        place.drop_cache();
        place.mount();
        for name in ["a", "d/b"] {
            assert_eq!(fs::read(place.path("mnt").join(name)).unwrap(), vec![7; 1 << 20]);
        }
        place.umount();
    }
}

/// Situation: dirty data of a file is damaged. Expectation: no automatic repair; after a rollback
/// by name the file equals its last upload, also for programs that have it open.
#[test]
fn a_file_is_rolled_back_when_told_to() {
    let place = Place::over_s3();
    place.mount_with(&["--flush-interval", "1h"]);
    let path = place.path("mnt/file");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    place.ebb(&["flush", "mnt"]).good();
    let open = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&open, &vec![2; 2 << 20], 0).unwrap();
    open.sync_all().unwrap();
    rot(&place, "mnt/file");
    let found = place.ebb(&["fsck", "mnt", "--repair", "--yes"]);
    assert_eq!(found.status, 4, "{found:?}");
    assert!(
        found.out.contains("bytes 458752 to 524288 are lost")
            && found.out.contains("`ebb rollback`"),
        "{found:?}"
    );

    place.ebb(&["rollback", "mnt/file"]).refused(1, "nothing was done");
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 << 20);
    let rolled_back = place.ebb(&["rollback", "mnt/file", "--yes", "--json"]).good().json();
    assert_eq!(
        (&rolled_back["before_bytes"], &rolled_back["bytes"]),
        (&(2 << 20).into(), &(1 << 20).into()),
        "{rolled_back}"
    );
    until("who has it open is told", || open.metadata().unwrap().len() == 1 << 20);
    let mut seen = vec![0; 1 << 20];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut seen, 0).unwrap();
    assert!(seen == vec![1; 1 << 20]);
    place.ebb(&["fsck", "mnt", "--bucket"]).good();
    // Writes continue from there.
    std::os::unix::fs::FileExt::write_all_at(&open, b"new", 5).unwrap();
    drop(open);
    place.umount();
    place.drop_cache();
    place.mount();
    let content = fs::read(&path).unwrap();
    assert!(content.len() == 1 << 20 && &content[..9] == b"\x01\x01\x01\x01\x01new\x01");
    place.umount();
}

/// Situation: a bit of the log flips under a mount with unflushed files; it is found, or the mount
/// is killed before. Expectation: fsck of the mount reports and repairs it, and nothing is lost;
/// otherwise the next mount is rejected, and fsck of the data directory lists the data and the
/// options, with the exit status of damage.
#[test]
fn a_log_that_rots_is_repaired_in_time_or_explained() {
    let place = Place::over_s3();
    place.mount_with(&["--flush-interval", "1h"]);
    let file = fs::File::create(place.path("mnt/file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let named = rot_log(&place);
    let found = place.ebb(&["fsck", "mnt", "--repair"]);
    assert_eq!(found.status, 4, "{found:?}");
    assert!(
        found.out.contains(&named) && found.out.contains("goes on in a new segment"),
        "{found:?}"
    );
    let repaired = place.ebb(&["fsck", "mnt", "--repair", "--yes"]);
    assert_eq!(repaired.status, 1, "{repaired:?}");
    place.ebb(&["fsck", "mnt"]).good();
    drop(file);
    place.kill("mnt");
    place.mount_with(&["--flush-interval", "1h"]);
    assert_eq!(fs::read(place.path("mnt/file")).unwrap(), vec![1; 1 << 20]);

    let named = rot_log(&place);
    place.kill("mnt");
    place.ebb(&["mount", place.url(), "mnt", "--data", "data"]).refused(1, &named);
    let told = place.ebb(&["fsck", "data"]);
    assert_eq!(told.status, 4, "{told:?}");
    for said in [
        &named,
        "ebb mount s3://",
        "--data NEW_DIRECTORY",
        "ebb restore BACKUP NEW_DIRECTORY s3://",
        "NOT CLEAN",
    ] {
        assert!(told.out.contains(said), "{said}: {told:?}");
    }
    place.ebb(&["mount", place.url(), "mnt", "--data", "data2", "--take-over", "now"]).good();
    assert!(!place.path("mnt/file").exists());
    place.umount();
}

/// Flips a bit in the first record of the log; returns its reported name.
fn rot_log(place: &Place) -> String {
    let names = fs::read_dir(place.path("data/log"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let first = names.filter(|name| name.starts_with('0')).min().unwrap();
    let log = fs::OpenOptions::new().write(true).open(place.path("data/log").join(&first)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&log, b"rot", 4096 + 70).unwrap();
    format!("log/{first}: corrupt at byte 4096")
}

fn ino_of(place: &Place, path: &str) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(place.path(path)).unwrap())
}

fn page_of(place: &Place, dir: &str) -> String {
    format!(".ebb/d/{:x}", ino_of(place, dir))
}

/// Of the seventh block of a file's store file.
fn rot(place: &Place, path: &str) {
    let store = place.store().join(format!("{:016x}", ino_of(place, path)));
    let store = fs::OpenOptions::new().write(true).open(store).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&store, b"rot", 500_000).unwrap();
}
