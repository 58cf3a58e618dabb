//! Records of mounts: found from any path on the mount, and never confused.

use ebb_cli::args::Consistency;
use ebb_cli::places::{self, MountRecord, Process, RunDir};
use std::fs;
use std::path::{Path, PathBuf};

struct Place {
    dir: tempfile::TempDir,
    run: RunDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::at(dir.path().join("run")).unwrap();
        Place { dir, run }
    }

    fn record(&self, name: &str) -> MountRecord {
        let mountpoint = self.dir.path().canonicalize().unwrap().join(name);
        fs::create_dir_all(&mountpoint).unwrap();
        let record = MountRecord {
            mountpoint,
            source: "s3://bucket".into(),
            daemon: Process::this(),
            supervisor: None,
            allow_handover: false,
            tls: None,
            insecure: false,
            counters: None,
            control: "unix:/run/x".into(),
            subdirectory: PathBuf::new(),
            root: None,
            embedded: true,
            data_dir: "/data".into(),
            device: None,
            read_only: false,
            consistency: Consistency::CloseToOpen,
            ending: false,
            left: None,
        };
        self.run.write(&record).unwrap();
        record
    }
}

#[test]
fn a_path_on_a_mount_leads_to_its_record() {
    let place = Place::new();
    let outer = place.record("m");
    let inner = place.record("m/inner");
    let at = |path: &str| place.run.find(&place.dir.path().join(path)).unwrap();
    assert_eq!(at("m"), Some((outer.clone(), "".into())));
    assert_eq!(at("m/a/b"), Some((outer.clone(), "a/b".into())), "what is below need not exist");
    assert_eq!(at("m/inner/c"), Some((inner, "c".into())), "the nearest mount counts");
    assert_eq!(at("m/inner/../x"), None, "a path with .. must exist");
    fs::write(outer.mountpoint.join("x"), "").unwrap();
    assert_eq!(at("m/inner/../x"), Some((outer.clone(), "x".into())));
    std::os::unix::fs::symlink(&outer.mountpoint, place.dir.path().join("link")).unwrap();
    assert_eq!(at("link/x"), Some((outer, "x".into())));
    assert_eq!(at("elsewhere"), None);
}

/// Situation: a daemon was killed, another one mounted at the same directory, and the end of the
/// first is noticed late. Danger: the record of the running one is removed.
#[test]
fn only_the_own_record_is_removed() {
    let place = Place::new();
    let ours = place.record("m");
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let stat = serde_json::to_value(Process::this()).unwrap();
    let dead: Process =
        serde_json::from_value(serde_json::json!({ "pid": child.id(), "started": stat["started"].as_u64().unwrap() + 1_000_000 })).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!dead.is_alive());
    assert!(ours.daemon.is_alive());
    place.run.remove(&MountRecord { daemon: dead, ..ours.clone() }).unwrap();
    assert_eq!(place.run.read(&ours.mountpoint).unwrap(), Some(ours.clone()));
    place.run.remove(&ours).unwrap();
    assert_eq!(place.run.read(&ours.mountpoint).unwrap(), None);
    place.run.remove(&ours).unwrap();
}

#[test]
fn every_source_has_a_directory_of_its_own() {
    let long = |end: &str| format!("s3://bucket/{}{end}", "p/".repeat(2000));
    let sources = ["s3://a/b", "s3://a_2fb", "file:///a/b", "file:///a.b", &long("x"), &long("y")];
    let names: std::collections::BTreeSet<PathBuf> =
        sources.iter().map(|source| places::data_dir(source)).collect();
    assert_eq!(names.len(), sources.len());
    for name in names {
        assert!(name.file_name().unwrap().len() <= 250);
    }
}

#[test]
fn the_mount_point_itself_is_not_asked() {
    let place = Place::new();
    let real = places::real_mountpoint(&place.dir.path().join("missing")).unwrap();
    assert_eq!(real.file_name(), Some("missing".as_ref()));
    assert_eq!(places::real_mountpoint(Path::new("/")).unwrap(), Path::new("/"));
}

#[test]
fn sockets_of_the_dead_are_swept_away() {
    let place = Place::new();
    let ours = place.run.socket();
    // Ids end at 2^22.
    let dead = ours.with_file_name("99999999.sock");
    let foreign = ours.with_file_name("other");
    for path in [&ours, &dead, &foreign] {
        fs::write(path, "").unwrap();
    }
    place.run.sweep().unwrap();
    assert!(ours.exists() && foreign.exists() && !dead.exists());
}

/// A daemon that has died is as good as alive where another one is about to take over, and the
/// record is theirs together.
#[test]
fn record_outlives_a_daemon_while_its_supervisor_lives() {
    let place = Place::new();
    let record = place.record("m");
    let mut ended = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let dead = Process::of(ended.id()).unwrap();
    ended.kill().unwrap();
    ended.wait().unwrap();
    let alive = Some(Process::this());
    let orphaned = MountRecord { daemon: dead, ..record.clone() };
    let replaced = MountRecord { daemon: dead, supervisor: alive, ..record.clone() };
    assert!(record.is_served() && !orphaned.is_served() && replaced.is_served());
    let by_successor = MountRecord { supervisor: alive, ..record.clone() };
    assert!(by_successor.is_of(&replaced) && !record.is_of(&orphaned));
    place.run.write(&by_successor).unwrap();
    place.run.update(&orphaned).unwrap();
    assert_eq!(place.run.read(&record.mountpoint).unwrap(), Some(by_successor));
    place.run.remove(&replaced).unwrap();
    assert_eq!(place.run.read(&record.mountpoint).unwrap(), None);
}
