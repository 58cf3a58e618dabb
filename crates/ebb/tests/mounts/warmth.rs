//! Warmup, evict and eviction policies.

use crate::place::Place;
use crate::switch::Switch;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Each file with bytes of its own.
fn put(place: &Place, files: &[(&str, usize)]) {
    place.mount();
    for (at, (name, len)) in files.iter().enumerate() {
        let path = place.path("mnt").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![at as u8 + 1; *len]).unwrap();
    }
    place.umount();
    place.drop_cache();
}

fn cached(place: &Place) -> u64 {
    place.ebb(&["status", "mnt", "--json"]).good().json()["cached_bytes"].as_u64().unwrap()
}

/// Situation: a model is in the bucket and not cached. Expectation: `ebb warmup` fetches it once;
/// afterwards it is readable while the bucket is away.
#[test]
fn warmup_makes_files_readable_without_the_bucket() {
    let switch = Switch::default();
    let place = Place::behind(&switch);
    let files =
        [("d/large", 40 * MIB + 5), ("d/deep/er/small", 100), ("d/empty", 0), ("other", MIB)];
    put(&place, &files);
    place.mount_with(&["--revalidate", "0s"]);
    assert_eq!(cached(&place), 0);
    let below = (40 * MIB + 105) as u64;
    let first = place.ebb(&["warmup", "mnt/d", "mnt/d/large", "--json"]).good().json();
    assert_eq!(
        first,
        serde_json::json!({ "files": 3, "bytes": below, "fetched_bytes": below, "failed": [], "interrupted": false })
    );
    let second = place.ebb(&["warmup", "mnt/d", "--jobs", "1"]).good().out;
    assert_eq!(
        second,
        "3 files, 40.0 MiB: 0 B came from the bucket, 40.0 MiB were cached before\n"
    );
    switch.close();
    for (at, (name, len)) in files.iter().enumerate().take(3) {
        assert!(
            fs::read(place.path("mnt").join(name)).unwrap() == vec![at as u8 + 1; *len],
            "{name}"
        );
    }
    switch.open();
    place.umount();
}

/// Names come from lists too. An error with one of them is reported, and the others are warmed.
#[test]
fn warmup_reports_failed_names_and_warms_the_rest() {
    let place = Place::new();
    put(&place, &[("a", MIB), ("b c", MIB), ("gone", MIB)]);
    fs::write(place.path("list"), "mnt/a\nmnt/no/such\n\nmnt/gone\n").unwrap();
    place.mount();
    // Loaded, and removed by another program.
    assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 3);
    fs::remove_file(place.path("backing/gone")).unwrap();
    let done = place.ebb(&["warmup", "--list", "list", "--json"]);
    assert_eq!(done.status, 1, "{done:?}");
    let sum = done.json();
    let failed: Vec<&str> = sum["failed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|failed| failed["path"].as_str().unwrap())
        .collect();
    assert_eq!(failed, ["mnt/no/such", "mnt/gone"], "{sum}");
    assert_eq!((&sum["files"], &sum["fetched_bytes"]), (&1.into(), &MIB.into()));
    assert!(done.err.contains("mnt/no/such: no such file"), "{done:?}");

    let ebb = env!("CARGO_BIN_EXE_ebb");
    let done =
        place.program("sh", &["-c", &format!("echo 'mnt/b c' | {ebb} warmup - --json")]).good();
    assert_eq!(done.json()["fetched_bytes"], MIB);

    place.ebb(&["evict", "mnt"]).good();
    for (link, to) in [("mnt/link", "a"), ("mnt/up", "."), ("mnt/nowhere", "none")] {
        std::os::unix::fs::symlink(to, place.path(link)).unwrap();
    }
    let followed = place.ebb(&["warmup", "mnt/link", "mnt/up/b c", "--json"]).good().json();
    assert_eq!((&followed["files"], &followed["fetched_bytes"]), (&2.into(), &(2 * MIB).into()));
    place.ebb(&["warmup", "mnt/nowhere"]).refused(1, "No such file");

    place.ebb(&["warmup", "/"]).refused(2, "is on no mount");
    place.ebb(&["warmup", "mnt", "--rate", "1"]).refused(2, "at least");
    place.ebb(&["warmup", "--list", "no list"]).refused(1, "no list");
    assert_eq!(place.ebb(&["warmup"]).status, 2);
    place.umount();
}

/// More than the cache size would evict itself.
#[test]
fn warmup_beyond_the_cache_size_is_refused() {
    let place = Place::new();
    put(&place, &[("a", 12 * MIB), ("b", 12 * MIB)]);
    place.mount_with(&["--cache-size", "16M"]);
    place.ebb(&["warmup", "mnt"]).refused(1, "24 MiB in the cache, which holds 16 MiB");
    assert_eq!(cached(&place), 0);
    place.ebb(&["warmup", "mnt/b"]).good();
    assert_eq!(cached(&place), 12 * MIB as u64);
    place.umount();
}

/// The rate limit holds, an interrupt ends the work at once with a summary, and the same command
/// continues from there.
#[test]
fn a_warmup_is_slow_on_demand_and_can_be_interrupted() {
    let place = Place::new();
    put(&place, &[("file", 24 * MIB), ("small", 1)]);
    place.mount();
    let ebb = env!("CARGO_BIN_EXE_ebb");
    let began = Instant::now();
    let args = [
        "--preserve-status",
        "-s",
        "INT",
        "3",
        ebb,
        "warmup",
        "mnt/small",
        "mnt/file",
        "--rate",
        "2M",
        "--json",
    ];
    let done = place.program("timeout", &args);
    let took = began.elapsed();
    assert!(took > Duration::from_millis(2900) && took < Duration::from_secs(6), "{took:?}");
    assert_eq!(done.status, 1, "{done:?}");
    assert!(done.err.contains("interrupted"), "{done:?}");
    let done = done.json();
    assert_eq!((&done["files"], &done["interrupted"]), (&1.into(), &true.into()), "{done}");
    let fetched = done["fetched_bytes"].as_u64().unwrap() - 1;
    // One range at once, and one each second.
    assert!(fetched >= 2 * MIB as u64 && fetched <= 10 * MIB as u64, "{fetched}");
    // Transfers in flight complete.
    let rest = place.ebb(&["warmup", "mnt/file", "--json"]).good().json();
    let came = fetched + rest["fetched_bytes"].as_u64().unwrap();
    assert!(
        came <= 24 * MIB as u64 && came >= 20 * MIB as u64 && rest["bytes"] == 24 * MIB,
        "{fetched} {rest}"
    );
    place.umount();
}

/// `ebb evict` drops data below a path, within its rate limit, and nothing else.
#[test]
fn an_eviction_is_slow_on_demand() {
    let place = Place::new();
    put(&place, &[("d/a", 20 * MIB), ("d/b", 20 * MIB), ("kept", MIB)]);
    place.mount();
    place.ebb(&["warmup", "mnt"]).good();
    let began = Instant::now();
    let evicted = place.ebb(&["evict", "mnt/d", "--rate", "16M", "--json"]).good().json();
    assert_eq!(evicted, serde_json::json!({ "bytes": 40 * MIB }));
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(cached(&place), MIB as u64);
    assert_eq!(place.ebb(&["evict", "mnt/d"]).good().out, "0 B dropped from the cache\n");
    place.umount();
}

/// A file of four times the cache is read once while another one is in use. Under S3-FIFO the other
/// one stays cached, under LRU it does not.
#[test]
fn eviction_by_s3_fifo_survives_a_scan() {
    for (eviction, stays) in [("s3-fifo", true), ("lru", false)] {
        let place = Place::new();
        put(&place, &[("used", 16 * MIB), ("scanned", 256 * MIB)]);
        place.mount_with(&["--cache-size", "64M", "--eviction", eviction, "--read-ahead", "4M"]);
        place.ebb(&["warmup", "mnt/used"]).good();
        read_all(&place.path("mnt/scanned"));
        let explained = place.ebb(&["explain", "mnt/used", "--json"]).good().json();
        assert_eq!(explained["cached_bytes"] == 16 * MIB, stays, "{eviction}: {explained}");
        assert!(cached(&place) <= 64 * MIB as u64);
        place.umount();
    }
}

/// Pinned files are fetched, and stay cached through larger reads and `ebb evict` until they are
/// unpinned.
#[test]
fn pinned_files_stay_cached() {
    let place = Place::new();
    put(&place, &[("d/model", 8 * MIB), ("scanned", 128 * MIB)]);
    place.mount_with(&["--cache-size", "32M", "--read-ahead", "4M"]);
    let pinned = place.ebb(&["pin", "mnt/d", "--json"]).good().json();
    assert_eq!(
        (&pinned["fetched_bytes"], &pinned["failed"]),
        (&(8 * MIB).into(), &serde_json::json!([]))
    );
    read_all(&place.path("mnt/scanned"));
    let explained = |path: &str| place.ebb(&["explain", path, "--json"]).good().json();
    let model = explained("mnt/d/model");
    assert_eq!(
        (&model["cached_bytes"], &model["pinned_by"]["path"]),
        (&(8 * MIB).into(), &"d".into())
    );
    place.ebb(&["evict", "mnt"]).good();
    assert_eq!(cached(&place), 8 * MIB as u64);
    place.ebb(&["pin", "mnt/scanned"]).refused(1, "128 MiB in the cache, which holds 32 MiB");
    assert!(explained("mnt/scanned")["pinned_by"].is_null());
    place.ebb(&["unpin", "mnt/d/model"]).refused(1, "is not pinned itself");
    place.ebb(&["pin", "mnt/none"]).refused(1, "none");
    place.ebb(&["unpin", "mnt/d"]).good();
    place.ebb(&["evict", "mnt"]).good();
    assert_eq!(cached(&place), 0);
    place.umount();
}

/// A rate limit applies to reads and writes of applications, and is reported.
#[test]
fn rates_are_kept() {
    let place = Place::over_s3();
    put(&place, &[("large", 32 * MIB)]);
    place
        .ebb(&["mount", place.url(), "mnt", "--data", "data", "--upload-rate", "1K"])
        .refused(2, "at least 1 MiB, or 0");
    place.mount_with(&["--download-rate", "12M", "--upload-rate", "8M", "--flush-interval", "1h"]);
    let status = place.ebb(&["status", "mnt"]).good().out;
    assert!(
        status.contains("at most 12 MiB/s from the bucket")
            && status.contains("at most 8 MiB/s to the bucket"),
        "{status}"
    );
    let began = Instant::now();
    assert!(fs::read(place.path("mnt/large")).unwrap() == vec![1; 32 * MIB]);
    // All but the last body, which is of 8 MiB at most.
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    fs::write(place.path("mnt/new"), vec![9; 24 * MIB]).unwrap();
    let began = Instant::now();
    place.ebb(&["flush", "mnt"]).good();
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    place.umount();
}

fn read_all(path: &Path) {
    std::io::copy(&mut fs::File::open(path).unwrap(), &mut std::io::sink()).unwrap();
}

/// posix_fadvise(2) reaches the node as read-ahead requests of the kernel, at most 1 MiB per call.
/// Expectation: POSIX_FADV_WILLNEED fetches data without a read.
#[test]
fn fadvise_willneed_fetches_data() {
    let switch = Switch::default();
    let place = Place::behind(&switch);
    put(&place, &[("needed", 8 * MIB)]);
    place.mount_with(&["--revalidate", "0s"]);
    let file = fs::File::open(place.path("mnt/needed")).unwrap();
    for at in 0..8 {
        let from = (at * MIB) as i64;
        // SAFETY: posix_fadvise takes no memory, and the descriptor is open.
        assert_eq!(
            unsafe {
                libc::posix_fadvise(file.as_raw_fd(), from, MIB as i64, libc::POSIX_FADV_WILLNEED)
            },
            0
        );
    }
    let began = Instant::now();
    while cached(&place) < 8 * MIB as u64 {
        assert!(began.elapsed() < Duration::from_secs(30), "{} bytes have come", cached(&place));
        std::thread::sleep(Duration::from_millis(50));
    }
    switch.close();
    assert!(fs::read(place.path("mnt/needed")).unwrap() == vec![1; 8 * MIB]);
    switch.open();
    drop(file);
    place.umount();
}
