//! Requests that come through an io_uring (`-o io_uring`).

use crate::place::{Place, until};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;

/// The kernel's switch, which is put back at the end.
struct Switch {
    before: String,
}

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

impl Switch {
    /// `None` if this kernel has none.
    fn set(on: &str) -> Option<Switch> {
        let before = fs::read_to_string(SWITCH).ok()?;
        fs::write(SWITCH, on).unwrap();
        Some(Switch { before })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        fs::write(SWITCH, &self.before).unwrap();
    }
}

/// Situation: the kernel offers no ring, then it does; the daemon of a mount with one is killed.
/// Danger: the mount is served through the device and nobody says so; what was acknowledged is
/// lost; who uses the mount hangs. Expectation: it is refused, or served through the ring; after
/// the daemon's death there are errors, and the next mount has everything.
#[test]
fn a_mount_is_served_through_a_ring() {
    let Some(_before) = Switch::set("N") else {
        return println!("skipped: this kernel has no FUSE over io_uring");
    };
    let place = Place::new();
    let (url, data) = (place.url().to_owned(), place.text("data"));
    place
        .ebb(&["mount", &url, "mnt", "--data", &data, "-o", "io_uring"])
        .refused(1, "enable_uring");
    let _offered = Switch::set("Y");
    let shared =
        ["mount", &url, "mnt", "--data", &data, "-o", "io_uring", "--listen", "127.0.0.1:0"];
    place.ebb(&shared).refused(2, "share no locks");
    place.mount_with(&["-o", "io_uring"]);
    let daemon = place.record("mnt").daemon.pid;
    let descriptors = fs::read_dir(format!("/proc/{daemon}/fd")).unwrap();
    let mut names = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    assert!(names.any(|name| name.to_string_lossy() == "anon_inode:[io_uring]"));

    let content: Vec<u8> = (0..5_000_000u32).map(|at| (at % 251) as u8).collect();
    let file = File::create(place.path("mnt/large")).unwrap();
    file.write_all_at(&content, 0).unwrap();
    file.sync_all().unwrap();
    let makers = (0..4).map(|maker| {
        let dir = place.path(&format!("mnt/{maker}"));
        thread::spawn(move || {
            fs::create_dir(&dir).unwrap();
            for file in 0..100 {
                fs::write(dir.join(file.to_string()), file.to_string()).unwrap();
            }
            fs::rename(dir.join("0"), dir.join("first")).unwrap();
        })
    });
    makers.collect::<Vec<_>>().into_iter().for_each(|maker| maker.join().unwrap());
    place.ebb(&["upgrade", "mnt"]).refused(1, "nobody can take it over");

    place.kill_daemon("mnt");
    drop(file);
    // What it has cached the kernel goes on answering.
    until("the mount is dead", || {
        fs::write(place.path("mnt/late"), "")
            .is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    });
    place.mount_with(&["-o", "io_uring"]);
    assert!(fs::read(place.path("mnt/large")).unwrap() == content);
    for maker in 0..4 {
        assert_eq!(fs::read_dir(place.path(&format!("mnt/{maker}"))).unwrap().count(), 100);
        assert_eq!(fs::read_to_string(place.path(&format!("mnt/{maker}/first"))).unwrap(), "0");
        assert_eq!(fs::read_to_string(place.path(&format!("mnt/{maker}/99"))).unwrap(), "99");
    }
    place.umount();
    assert!(fs::read(place.path("backing/large")).unwrap() == content);
}
