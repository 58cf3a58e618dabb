//! The daemon of a mount of a shared volume dies: the next one resumes its session with the node
//! (O-6).

use crate::detached::{serve, serve_with};
use crate::joining::free_address;
use crate::place::{Held, Place, kill, until};
use std::fs::{self, File};
use std::io::Read;
use std::time::Duration;

/// Other mounts find the node at its known address.
#[test]
fn a_mount_that_others_have_joined_is_upgraded() {
    let place = Place::new();
    place.mount_with(&["--listen", "127.0.0.1:0"]);
    place.ebb(&["mount", place.url(), "mnt2", "--data", "data2", "--take-over", "join"]).good();
    for (written, read) in [("mnt", "mnt2"), ("mnt2", "mnt")] {
        fs::write(place.path(written).join("file"), written).unwrap();
        let before = place.record(written).daemon;
        place.ebb(&["upgrade", written]).good();
        assert_ne!(place.record(written).daemon, before);
        assert_eq!(fs::read_to_string(place.path(read).join("file")).unwrap(), written);
    }
    place.ebb(&["upgrade", "backing"]).refused(2, "is no mount of ebb");
    place.umount_at("mnt2");
    place.umount();
}

/// Situation: mount and node die together, and the node is back first; acknowledged operations of
/// the mount may not be forced. Expectation: the mount continues if they were, and otherwise
/// reports that it cannot.
#[test]
fn mount_resumes_after_node_death_if_all_was_forced() {
    for forced in [true, false] {
        let mut place = Place::new();
        // Forces happen on demand only.
        let (node, address) =
            serve_with(&mut place, &["--listen", "127.0.0.1:0", "--commit-interval", "1h"]);
        place.ebb(&["mount", &format!("ebb://{address}/volume"), "mnt", "--data", "client"]).good();
        // Processes that are started here would close an inherited descriptor, which no daemon
        // could answer.
        fs::write(place.path("mnt/file"), "content").unwrap();
        match forced {
            true => File::open(place.path("mnt")).unwrap().sync_all().unwrap(),
            false => fs::write(place.path("mnt/file"), "not forced").unwrap(),
        }
        // Prevents a new daemon for the moment.
        let supervisor = place.record("mnt").supervisor.unwrap();
        let held = Held::stop(supervisor.pid);
        kill(place.record("mnt").daemon.pid, libc::SIGKILL);
        place.signal(node, libc::SIGKILL);
        let (node, _) = serve(&mut place, &address);
        drop(held);
        match forced {
            true => {
                fs::write(place.path("mnt/file"), "goes on").unwrap();
                assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "goes on");
                place.umount();
            }
            false => {
                until("the mount is given up", || !supervisor.is_alive());
                assert!(
                    fs::read_to_string(place.path("client/ebb.log"))
                        .unwrap()
                        .contains("may have lost what it had answered")
                );
                place.ebb(&["umount", "--lazy", "--no-wait", "mnt"]);
            }
        }
        assert_eq!(place.signal(node, libc::SIGTERM), 0);
    }
}

/// Situation: no daemon takes over for longer than the session term, and another mount changes data
/// that this mount's kernel has cached. Danger: programs continue with stale data. Expectation:
/// they see none of it, and get errors once the session has expired.
#[test]
fn session_expiry_drops_kernel_caches() {
    let mut place = Place::new();
    let (node, address) =
        serve_with(&mut place, &["--listen", "127.0.0.1:0", "--session-term", "10s"]);
    let volume = format!("ebb://{address}/volume");
    place.ebb(&["mount", &volume, "mnt", "--data", "client"]).good();
    fs::write(place.path("mnt/file"), "old").unwrap();
    let length =
        |mountpoint: &str| fs::metadata(place.path(mountpoint).join("file")).map(|file| file.len());
    assert_eq!(length("mnt").unwrap(), 3);
    let supervisor = place.record("mnt").supervisor.unwrap();
    fs::rename(place.path("client"), place.path("client away")).unwrap();
    place.kill_daemon("mnt");
    assert_eq!(length("mnt").unwrap(), 3, "the kernel answers by itself");
    until("the other is let in", || {
        place.ebb(&["mount", &volume, "mnt2", "--data", "client2"]).status == 0
    });
    fs::write(place.path("mnt2/file"), "new, and longer").unwrap();
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| length("mnt"));
        std::thread::sleep(Duration::from_millis(300));
        fs::rename(place.path("client away"), place.path("client")).unwrap();
        let errno = looking.join().unwrap().unwrap_err().raw_os_error().unwrap();
        assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&errno), "{errno}");
    });
    until("the mount is given up", || !supervisor.is_alive());
    place.umount_at("mnt2");
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

/// Situation: the node does not answer, a daemon dies while it fills a page, no daemon takes over
/// until the session expires, and then the mount is ended. Danger: dropping the caches waits for
/// that page, and keeps the connection that the reader waits on, for ever. Expectation: the mount
/// ends, and the read fails.
#[test]
fn a_mount_ends_though_its_caches_cannot_be_dropped() {
    let mut place = Place::new();
    fs::write(place.path("backing/file"), vec![1; 1 << 20]).unwrap();
    let (node, address) =
        serve_with(&mut place, &["--listen", "127.0.0.1:0", "--session-term", "3s"]);
    place.ebb(&["mount", &format!("ebb://{address}/volume"), "mnt", "--data", "client"]).good();
    let file = File::open(place.path("mnt/file")).unwrap();
    let supervisor = place.record("mnt").supervisor.unwrap();
    let silent = Held::stop(place.pid(node));
    let reader = std::thread::spawn(move || (&file).read(&mut [0; 4096]).map(|_| ()));
    std::thread::sleep(Duration::from_millis(300));
    kill(place.record("mnt").daemon.pid, libc::SIGKILL);
    let log = place.path("client/ebb.log");
    until("caches are dropped", || {
        fs::read_to_string(&log).unwrap().contains("what the kernel has cached of it is dropped")
    });
    kill(supervisor.pid, libc::SIGTERM);
    until("who reads is told", || reader.is_finished());
    assert!(reader.join().unwrap().is_err());
    until("the supervisor ends", || !supervisor.is_alive());
    drop(silent);
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

/// Situation: a daemon was stopped for so long that its session has expired, and has begun another
/// one. Danger: an upgrade kills it, and its successor cannot resume the first session.
/// Expectation: the upgrade is rejected, and the mount continues.
#[test]
fn upgrade_after_session_loss_is_refused() {
    let mut place = Place::new();
    let (node, address) =
        serve_with(&mut place, &["--listen", "127.0.0.1:0", "--session-term", "3s"]);
    let volume = format!("ebb://{address}/volume");
    place.ebb(&["mount", &volume, "mnt", "--data", "client"]).good();
    let held = Held::stop(place.record("mnt").daemon.pid);
    std::thread::sleep(Duration::from_secs(5));
    drop(held);
    until("it goes on", || fs::write(place.path("mnt/file"), "content").is_ok());
    place.ebb(&["upgrade", "mnt"]).refused(1, "it has begun another one");
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

/// Situation: the mount that serves is unmounted, and the daemon of one that has joined dies before
/// the first one is back. Danger: its successor takes the volume for itself, and the mount is lost.
/// Expectation: it waits, as the daemon would have.
#[test]
fn joined_mount_waits_for_the_serving_mount() {
    let place = Place::new();
    let (url, address) = (place.url().to_owned(), free_address());
    let first = ["mount", &url, "mnt", "--data", "data", "--listen", &address, "--head-term", "3s"];
    place.ebb(&first).good();
    place.ebb(&["mount", &url, "mnt2", "--data", "data2", "--take-over", "join"]).good();
    fs::write(place.path("mnt2/file"), "content").unwrap();
    place.umount();
    place.kill_daemon("mnt2");
    std::thread::sleep(Duration::from_secs(1));
    place.ebb(&first).good();
    assert_eq!(fs::read_to_string(place.path("mnt2/file")).unwrap(), "content");
    fs::write(place.path("mnt2/more"), "more").unwrap();
    assert_eq!(fs::read_to_string(place.path("mnt/more")).unwrap(), "more");
    place.umount_at("mnt2");
    place.umount();
}
