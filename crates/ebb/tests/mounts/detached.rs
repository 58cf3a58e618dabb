//! A node of its own, and mounts of its volume.

use crate::place::Place;
use std::fs;

/// Returns the child and the address that it serves at.
pub fn serve(place: &mut Place, listen: &str) -> (usize, String) {
    serve_with(place, &["--listen", listen])
}

pub fn serve_with(place: &mut Place, more: &[&str]) -> (usize, String) {
    let url = place.url().to_owned();
    let serve = [
        "serve",
        "--data",
        "node",
        "--backing",
        &url,
        "--name",
        "volume",
        "--flush-interval",
        "1h",
    ];
    let (child, line) = place.start(&[&serve, more].concat());
    let address = line
        .split("ebb://")
        .nth(1)
        .and_then(|rest| rest.split('/').next())
        .unwrap_or_else(|| panic!("{line:?}"));
    (child, address.to_owned())
}

/// A process that waits on one mount sees changes of another mount at once, as on one machine
/// (O-53).
#[test]
fn two_mounts_see_each_other_at_once() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    let volume = format!("ebb://{address}/volume");
    place.ebb(&["mount", &volume, "mnt", "--data", "client"]).good();
    fs::create_dir(place.path("mnt/sub")).unwrap();
    fs::write(place.path("mnt/sub/file"), "one").unwrap();
    // The second shows a directory of the volume only.
    place.ebb(&["mount", &format!("{volume}/sub"), "mnt2", "--data", "client2"]).good();
    assert_eq!(fs::read_to_string(place.path("mnt2/file")).unwrap(), "one");
    fs::write(place.path("mnt2/file"), "two, and longer").unwrap();
    assert_eq!(fs::read_to_string(place.path("mnt/sub/file")).unwrap(), "two, and longer");
    fs::write(place.path("mnt/sub/new"), "three").unwrap();
    assert_eq!(fs::read_to_string(place.path("mnt2/new")).unwrap(), "three");
    fs::rename(place.path("mnt2/new"), place.path("mnt2/newer")).unwrap();
    assert!(!place.path("mnt/sub/new").exists() && place.path("mnt/sub/newer").exists());
    fs::set_permissions(place.path("mnt2"), std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(place.path("mnt/sub")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o711, "the root of one mount is a directory of the other");

    // The node is addressed by path or by network address.
    let status = place.ebb(&["status", "mnt", "--json"]).good().json();
    assert_eq!(status["sessions"].as_array().unwrap().len(), 2);
    assert_eq!(place.ebb(&["status", &address, "--json"]).good().json()["volume"], "volume");
    place.ebb(&["flush", "mnt2/newer"]).good();
    assert_eq!(fs::read_to_string(place.path("backing/sub/newer")).unwrap(), "three");
    assert!(!place.path("backing/sub/file").exists(), "it was not asked for");

    // The second mount follows the directory through renames.
    fs::rename(place.path("mnt/sub"), place.path("mnt/renamed")).unwrap();
    fs::create_dir(place.path("mnt/sub")).unwrap();
    fs::write(place.path("mnt/sub/file"), "of another directory").unwrap();
    place.ebb(&["flush", "mnt2/file"]).good();
    assert_eq!(fs::read_to_string(place.path("backing/renamed/file")).unwrap(), "two, and longer");
    assert!(!place.path("backing/sub/file").exists(), "it was not asked for");
    place.ebb(&["warmup", "mnt2/file", "mnt2/newer", "mnt/sub/file"]).good();
    let profile =
        place.ebb(&["profile", "mnt2", "--json", "--", "chmod", "700", "mnt2"]).good().json();
    let paths: Vec<_> =
        profile["lines"].as_array().unwrap().iter().map(|line| line["path"].as_str()).collect();
    assert!(paths.contains(&Some("renamed")), "{paths:?}");
    fs::remove_file(place.path("mnt2/file")).unwrap();
    fs::remove_file(place.path("mnt2/newer")).unwrap();
    fs::remove_dir(place.path("mnt/renamed")).unwrap();
    place.ebb(&["flush", "mnt2/file"]).refused(1, "mnt2 shows has been removed");
    place.ebb(&["status", "mnt2"]).good();

    place.umount_at("mnt2");
    assert!(place.umount_at("mnt").out.contains("is safe at"));
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
    assert_eq!(fs::read_to_string(place.path("backing/sub/file")).unwrap(), "of another directory");
}

/// Situation: the node is killed and restarted while a mount works. Expectation: the mount waits
/// and continues (O-59); nothing is lost and nothing fails.
#[test]
fn a_mount_outlives_its_node() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    place.ebb(&["mount", &format!("ebb://{address}/volume"), "mnt", "--data", "client"]).good();
    fs::write(place.path("mnt/before"), "before").unwrap();
    let open = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(place.path("mnt/open"))
        .unwrap();
    place.signal(node, libc::SIGKILL);
    let path = place.path("mnt/during");
    let writer = std::thread::spawn(move || fs::write(path, "during"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    let (node, _) = serve(&mut place, &address);
    writer.join().unwrap().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&open, b"still open", 0).unwrap();
    drop(open);
    for (name, content) in [("before", "before"), ("during", "during"), ("open", "still open")] {
        assert_eq!(fs::read_to_string(place.path("mnt").join(name)).unwrap(), content);
    }
    place.ebb(&["fsck", "mnt"]).good();
    place.umount_at("mnt");
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
    assert_eq!(fs::read_to_string(place.path("backing/during")).unwrap(), "during");
}

#[test]
fn mount_of_missing_volume_or_subdirectory_is_refused() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    let mount = |what: &str| {
        place.ebb(&["mount", &format!("ebb://{address}/{what}"), "mnt", "--data", "client"])
    };
    mount("other").refused(1, "serves the volume \"volume\"");
    mount("volume/no/such").refused(1, "subdirectory no: no such file or directory");
    mount("volume").good();
    fs::write(place.path("mnt/file"), "").unwrap();
    place.umount_at("mnt");
    let mount = |what: &str| {
        place.ebb(&["mount", &format!("ebb://{address}/{what}"), "mnt", "--data", "client"])
    };
    mount("volume/file").refused(1, "not a directory");
    assert_eq!(place.signal(node, libc::SIGINT), 0);
}
