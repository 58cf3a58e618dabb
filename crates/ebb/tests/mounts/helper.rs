//! `mount.ebb`: the binary as mount(8) calls it.

use crate::detached::serve;
use crate::place::{Done, Place};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// The binary under the name of a helper, in a directory of its own.
fn link(place: &Place, name: &str) -> PathBuf {
    let dir = place.path("sbin");
    fs::create_dir_all(&dir).unwrap();
    symlink(env!("CARGO_BIN_EXE_ebb"), dir.join(name)).unwrap();
    dir.join(name)
}

#[track_caller]
fn refused(done: Done, status: i32, text: &str) {
    let line = done.err.trim_end().lines().last().unwrap_or_default();
    assert!(
        done.status == status && line.starts_with("mount.ebb: ") && line.contains(text),
        "expected {status} and {text:?}: {done:?}"
    );
}

fn errno(result: std::io::Result<()>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

fn options_of(place: &Place) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table
        .lines()
        .find(|line| line.contains(&format!(" {} ", place.text("mnt"))))
        .expect("it is mounted");
    line.split(' ').nth(5).unwrap().to_owned()
}

#[test]
fn its_version_is_that_of_ebb() {
    let place = Place::new();
    let version = place.ebb(&["--version"]).good().out;
    assert_eq!(place.program(link(&place, "mount.ebb"), &["-V"]).good().out, version);
}

#[test]
fn it_mounts_as_ebb_does() {
    let place = Place::over_s3();
    let helper = link(&place, "mount.ebb");
    let options = format!(
        "rw,_netdev,nofail,noauto,x-systemd.requires=network-online.target,user,allow_other,data={},cache-size=1G,read-ahead=1M",
        place.text("data")
    );
    place.program(&helper, &[place.url(), "mnt", "-f", "-o", &options]).good();
    assert!(!place.is_mounted("mnt"), "a trial mounts nothing");
    place.program(&helper, &[place.url(), "mnt", "-nv", "-o", &options]).good();
    assert!(options_of(&place).contains("noexec"), "an ordinary user's mount runs no programs");
    fs::write(place.path("mnt/file"), "content").unwrap();
    let status = place.ebb(&["status", "mnt", "--json"]).good().json();
    assert_eq!(status["cache_limit_bytes"], 1 << 30);
    refused(place.program(&helper, &[place.url(), "mnt", "-o", &options]), 32, "is mounted at");
    place.umount();
    // mount(8) drops `suid` and `dev`, which are its defaults.
    place
        .program(&helper, &[place.url(), "mnt", "-o", &format!("rw,data={}", place.text("data"))])
        .good();
    assert!(!options_of(&place).contains("nosuid") && !options_of(&place).contains("nodev"));
    place.umount();
    place
        .program(
            &helper,
            &[place.url(), "mnt", "-r", "-o", &format!("data={}", place.text("other"))],
        )
        .good();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    assert_eq!(errno(fs::write(place.path("mnt/file"), "")), Some(libc::EROFS));
    place.umount();
}

#[test]
fn helper_is_silent_without_a_terminal() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    let helper = link(&place, "mount.ebb");
    let (volume, options) =
        (format!("ebb://{address}/volume"), format!("data={}", place.text("client")));
    let told = place.ebb(&["mount", &volume, "mnt", "--data", "client"]).good();
    assert!(told.err.contains("attaching to"), "{told:?}");
    place.umount();
    let told = place.program(&helper, &[&volume, "mnt", "-o", &options]).good();
    assert_eq!(told.err, "");
    place.umount();
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

#[test]
fn helper_exit_status_tells_usage_errors_from_failures() {
    let place = Place::new();
    let helper = link(&place, "mount.ebb");
    let mount = |source: &str, options: &str| {
        place.program(&helper, &[source, "mnt", "-o", &format!("data=data,{options}")])
    };
    refused(mount(place.url(), "bogus"), 1, "unknown mount option \"bogus\"");
    refused(mount(place.url(), "foreground"), 1, "\"foreground\" cannot be given here");
    refused(mount(place.url(), "config=none.toml"), 1, "none.toml: ");
    refused(mount("/plain/path", "rw"), 1, "it has no scheme");
    refused(place.program(&helper, &[place.url(), "missing"]), 1, "does not exist");
    refused(
        mount(&format!("file://{}", place.text("gone")), "rw"),
        32,
        "there is no such directory",
    );
    refused(mount(place.url(), "remount,ro"), 32, "no ebb file system is mounted at");
    for args in
        [&["mnt"][..], &[place.url(), "mnt", "-Z"], &[place.url(), "mnt", "-o", "cache-size=much"]]
    {
        let done = place.program(&helper, args);
        assert!(done.status == 1 && done.err.starts_with("error: "), "{done:?}");
    }
    assert!(!place.is_mounted("mnt"));
    place.program(&helper, &["--help"]).good();
    place.program(&helper, &[place.url(), "mnt", "-s", "-o", "bogus,data=data"]).good();
    place.umount();
}

/// Situation: a volume is made read-only and writable again without unmounting it. Danger: a
/// flag that was not named is lost, or a file is written after all.
#[test]
fn a_mount_changes_its_flags() {
    let place = Place::new();
    let helper = link(&place, "mount.ebb");
    let remount = |options: &str| {
        place.program(&helper, &[place.url(), "mnt", "-o", &format!("remount,{options}")])
    };
    place.mount_with(&["-o", "noexec"]);
    fs::write(place.path("mnt/file"), "content").unwrap();
    remount("ro,cache-size=1G,allow_other").good();
    assert!(
        ["ro", "nosuid", "nodev", "noexec"]
            .iter()
            .all(|flag| options_of(&place).split(',').any(|set| set == *flag))
    );
    assert_eq!(errno(fs::write(place.path("mnt/file"), "changed")), Some(libc::EROFS));
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    // Earlier writes reach the bucket all the same.
    place.ebb(&["flush", "mnt"]).good();
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
    refused(remount("rw,bogus"), 1, "unknown mount option");
    remount("rw,exec").good();
    assert!(!options_of(&place).contains("noexec") && options_of(&place).contains("nosuid"));
    let open = fs::OpenOptions::new().write(true).open(place.path("mnt/file")).unwrap();
    refused(remount("ro"), 32, "busy");
    drop(open);
    fs::write(place.path("mnt/file"), "changed").unwrap();
    place.umount();
    // A node that takes no changes is not made to by the kernel.
    place.mount_with(&["-o", "ro"]);
    refused(remount("rw"), 32, "its node takes no changes");
    place.umount();
}

/// mount(8) itself, with the links where it looks for them: in a mount namespace of its own
/// in which a directory lies over /usr/sbin.
#[test]
fn mount_and_fstab_find_it() {
    let place = Place::new();
    link(&place, "mount.ebb");
    link(&place, "mount.fuse.ebb");
    let (mnt, sbin) = (place.text("mnt"), place.text("sbin"));
    let fstab = format!(
        "{} {mnt} ebb defaults,_netdev,nofail,allow_other,data={},cache-size=1G 0 0\n",
        place.url(),
        place.text("data")
    );
    fs::write(place.path("fstab"), fstab).unwrap();
    let script = format!(
        "set -e
        mount -t overlay overlay -o lowerdir={sbin}:/usr/sbin /usr/sbin
        mount -t ebb {url} {mnt} -o data={data},allow_other
        test $(findmnt -no FSTYPE {mnt}) = fuse.ebb
        echo content > {mnt}/file
        mount -o remount,ro {mnt}
        ! echo changed > {mnt}/file
        mount -o remount,rw {mnt}
        echo more >> {mnt}/file
        {ebb} umount {mnt}
        mount -T fstab {mnt}
        test $(cat {mnt}/file | wc -l) = 2
        mount -T fstab -o remount,ro {mnt}
        ! echo changed > {mnt}/file
        {ebb} umount {mnt}
        ! mount -t ebb {url} {mnt} -o bogus
        status=0; mount -t ebb file:///no/such {mnt} -o data={data}2 || status=$?
        test $status = 32",
        url = place.url(),
        data = place.text("data"),
        ebb = env!("CARGO_BIN_EXE_ebb"),
    );
    place.program("unshare", &["--mount", "--propagation=private", "bash", "-c", &script]).good();
}
