//! `ebb fsck`: what it finds in the bucket and in the data directory, and its exit status.

use crate::place::Place;
use ebb_bucket::BucketSettings;
use std::fs;
use std::future::Future;

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

/// Situation: an object and a page have gone from the bucket, something nobody knows is where ebb alone
/// writes, and somebody has added a file. Expectation: a node that runs, and the data directory that it
/// leaves, say just that.
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
        assert_eq!((&found["objects"], &found["pages"], &found["waiting"]), (&3.into(), &2.into(), &0.into()), "{found}");
        assert!(place.ebb(&["fsck", "mnt", "--bucket"]).good().out.contains("3 objects and 2 pages in the bucket checked: no problem"));

        as_outsider(&place, async |bucket| {
            let page = ".ebb/d/1000000000002";
            bucket.head(page).await.unwrap();
            bucket.delete(page, None).await.unwrap();
            bucket.delete("a", None).await.unwrap();
            for key in ["added", ".ebb/d/1000000000099"] {
                bucket.put(key, "x".into(), ebb_ports::Condition::Always, vec![]).await.unwrap();
            }
        });
        assert_eq!(place.ebb(&["fsck", "mnt"]).good().status, 0, "the bucket is not looked at unasked");
        let check = |path: &str| {
            let found = place.ebb(&["fsck", path, "--bucket"]);
            assert_eq!(found.status, 4, "{found:?}");
            let problems = found.out.lines().filter(|line| line.starts_with("PROBLEM ")).count();
            assert_eq!(problems, 3, "{found:?}");
            for expected in [
                "its object a is gone from the bucket; all of it is cached here",
                "its page .ebb/d/1000000000002, with what no object can say, is gone from the bucket",
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

/// What cannot be compared is no finding: the exit status tells them apart.
#[test]
fn what_cannot_be_compared_is_said() {
    let place = Place::over_s3();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.umount();
    place.ebb(&["fsck", "data", "--bucket"]).good();
    place.ebb(&["fsck", "data", "--bucket", "--endpoint", "http://127.0.0.1:1"]).refused(8, "cannot be reached");
    place.ebb(&["mount", place.url(), "mnt2", "--data", "data2"]).good();
    place.ebb(&["umount", "mnt2"]).good();
    place.ebb(&["fsck", "data", "--bucket"]).refused(8, "was served by");
    place.ebb(&["mount", place.url(), "mnt2", "--data", "data3", "--take-over", "never"]).good();
    place.ebb(&["fsck", "mnt2"]).good();
    place.ebb(&["fsck", "mnt2", "--bucket"]).refused(8, "only reads the bucket");
    place.ebb(&["umount", "mnt2"]).good();
}
