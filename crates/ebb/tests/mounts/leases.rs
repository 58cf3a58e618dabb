//! Leases: kernels of several mounts answer for themselves.

use crate::place::{Held, Place, until};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Two mounts of a volume. The first has the node in its process.
fn two_mounts() -> Place {
    let place = Place::new();
    place.mount_with(&["--listen", "127.0.0.1:0"]);
    place.ebb(&["mount", place.url(), "mnt2", "--data", "data2", "--take-over", "join"]).good();
    place
}

fn umount(place: &Place) {
    place.umount_at("mnt2");
    place.umount();
}

fn length(file: &File) -> u64 {
    file.metadata().unwrap().len()
}

/// The node is stopped for a moment. Expectation: a stat of a file that was looked
/// at before needs no answer.
#[test]
fn a_second_mount_answers_from_its_cache() {
    let place = two_mounts();
    fs::write(place.path("mnt/file"), "old").unwrap();
    let file = File::open(place.path("mnt2/file")).unwrap();
    until("a stat needs no answer", || {
        assert_eq!(length(&file), 3);
        let held = Held::stop(place.record("mnt").daemon.pid);
        let looking = file.try_clone().unwrap();
        let looking = std::thread::spawn(move || length(&looking));
        std::thread::sleep(Duration::from_millis(100));
        let is_cached = looking.is_finished();
        drop(held);
        assert_eq!(looking.join().unwrap(), 3);
        is_cached
    });
    fs::write(place.path("mnt/file"), "longer").unwrap();
    assert_eq!(length(&file), 6);
    drop(file);
    umount(&place);
}

/// The daemon of a mount is stopped (rule 19). Expectation: others wait no longer than the lease
/// term, and nobody is told the old length.
#[test]
fn a_mount_whose_daemon_is_stopped_shows_nothing_old() {
    let place = two_mounts();
    fs::write(place.path("mnt/file"), "old").unwrap();
    let file = File::open(place.path("mnt2/file")).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(length(&file), 3);
    let held = Held::stop(place.record("mnt2").daemon.pid);
    let began = Instant::now();
    fs::write(place.path("mnt/file"), "longer").unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "a session term is far longer");
    let looking = std::thread::spawn(move || length(&file));
    std::thread::sleep(Duration::from_millis(300));
    drop(held);
    assert_eq!(looking.join().unwrap(), 6);
    umount(&place);
}

/// A file system mounted inside a mount, which has to go before the mount.
struct MountedInside(PathBuf);

impl MountedInside {
    fn new(at: PathBuf) -> MountedInside {
        assert!(
            Command::new("mount")
                .args(["-t", "tmpfs", "none"])
                .arg(&at)
                .status()
                .unwrap()
                .success()
        );
        MountedInside(at)
    }

    fn is_there(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == self.0))
    }
}

impl Drop for MountedInside {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(unmounted.is_ok(), "{unmounted:?}");
    }
}

/// Something is mounted on a directory of the volume, and other mounts change the names around it.
/// Danger: a kernel that drops the directory's name unmounts it.
#[test]
fn what_is_mounted_inside_stays() {
    let place = two_mounts();
    fs::create_dir(place.path("mnt/dir")).unwrap();
    let inside = MountedInside::new(place.path("mnt2/dir"));
    let held = File::open(place.path("mnt2/dir")).unwrap();
    for turn in 0..3 {
        assert!(!place.path(&format!("mnt2/{turn}")).exists());
        std::thread::sleep(Duration::from_millis(1100));
        assert!(!place.path(&format!("mnt2/{turn}")).exists());
        fs::write(place.path(&format!("mnt/{turn}")), "new").unwrap();
        assert!(place.path(&format!("mnt2/{turn}")).exists());
        fs::write(place.path("mnt2/dir/inside"), "elsewhere").unwrap();
        assert!(inside.is_there() && !place.path("mnt/dir/inside").exists(), "turn {turn}");
    }
    drop(held);
    drop(inside);
    umount(&place);
}

/// A file gains and loses a hard link while others append to it. After unlink(2) the kernel counts
/// one link less than it knows of. If it has been told of the new number already, it counts 0, and
/// refuses link(2). Expectation: it is told anew at the next look-up, so the next call works.
#[test]
fn hard_links_come_and_go_while_others_append() {
    let place = two_mounts();
    let (file, link) = (place.path("mnt/file"), place.path("mnt/link"));
    fs::write(&file, "content").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut file = File::options().append(true).open(&file).unwrap();
                file.write_all(b"more").unwrap();
            }
        });
        // Also an assertion that fails ends the thread.
        let _ends = Ends(&over);
        let (began, mut refused) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(3) {
            match fs::hard_link(&file, &link) {
                Ok(()) => {
                    refused = 0;
                    fs::remove_file(&link).unwrap();
                }
                Err(error) if error.kind() == ErrorKind::NotFound => refused += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(refused < REFUSED, "link(2) is refused");
        }
    });
    umount(&place);
}

/// In a row. In a second, for which a name could be cached, a loop counts thousands.
const REFUSED: u32 = 100;

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
