//! Quotas on real mounts: errors of programs, output of `df`, and persistence across a loss of the
//! cache.

use crate::detached::serve;
use crate::place::{Place, until};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: u64 = 1 << 20;

#[track_caller]
fn exceeds<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EDQUOT));
}

/// Bytes in all, bytes free, bytes available, inodes in all, inodes free.
pub fn room(path: &Path) -> [u64; 5] {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: statvfs is plain data, for which zeros are a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in NUL, and the buffer is valid for writes.
    assert_eq!(unsafe { libc::statvfs(path.as_ptr(), &mut stat) }, 0);
    let bytes = |blocks: u64| blocks * stat.f_frsize;
    [bytes(stat.f_blocks), bytes(stat.f_bfree), bytes(stat.f_bavail), stat.f_files, stat.f_ffree]
}

/// Output of `ebb quota get`: used bytes and inodes.
fn used(place: &Place, path: &str) -> (u64, u64) {
    let quotas = place.ebb(&["quota", "get", path, "--json"]).good().json();
    (quotas[0]["used_bytes"].as_u64().unwrap(), quotas[0]["used_inodes"].as_u64().unwrap())
}

/// A full quota rejects every kind of growth, loses nothing, and has room again at once.
#[test]
fn full_is_full_until_something_goes() {
    let place = Place::new();
    place.mount();
    let dir = place.path("mnt/d");
    fs::create_dir(&dir).unwrap();
    let set = place.ebb(&["quota", "set", "mnt/d", "--bytes", "10M", "--inodes", "5"]).good().out;
    assert_eq!(set, "/d  0 B of 10 MiB, 0 of 5 inodes\n");

    let done = place.program("dd", &["if=/dev/zero", "of=mnt/d/dd", "bs=1500000", "count=20"]);
    assert!(done.status != 0 && done.err.contains("Disk quota exceeded"), "{done:?}");
    assert_eq!(fs::metadata(dir.join("dd")).unwrap().len(), 10 * MIB, "it is filled to the byte");
    let file = OpenOptions::new().read(true).write(true).open(dir.join("dd")).unwrap();
    exceeds(file.set_len(11 * MIB));
    exceeds((&OpenOptions::new().append(true).open(dir.join("dd")).unwrap()).write_all(b"more"));
    exceeds(crate::holes::fallocate(&file, 0, 0, 11 * MIB).map_err(io::Error::from_raw_os_error));
    file.write_all_at(b"changed in place", 5 * MIB).unwrap();
    let empty = File::create(dir.join("empty")).unwrap();
    exceeds(empty.write_all_at(b"x", 0));
    // SAFETY: both descriptors are open, and the offsets may be absent.
    let copied = unsafe {
        use std::os::fd::AsRawFd;
        libc::copy_file_range(
            file.as_raw_fd(),
            std::ptr::null_mut(),
            empty.as_raw_fd(),
            std::ptr::null_mut(),
            100,
            0,
        )
    };
    assert_eq!((copied, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EDQUOT)));

    for name in ["a", "b", "c"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    exceeds(fs::create_dir(dir.join("more")));
    exceeds(File::create(dir.join("more")));
    exceeds(std::os::unix::fs::symlink("x", dir.join("more")));
    assert_eq!(fs::create_dir(dir.join("a")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(used(&place, "mnt/d/a"), (10 * MIB, 5));
    assert!(
        place
            .ebb(&["explain", "mnt/d/dd"])
            .good()
            .out
            .contains("/d  10 MiB of 10 MiB, 5 of 5 inodes")
    );
    let checked = place.ebb(&["fsck", "mnt"]).good().out;
    assert!(checked.contains("no problem"), "{checked}");

    // The bytes count until the last descriptor is closed.
    fs::remove_file(dir.join("dd")).unwrap();
    assert_eq!(used(&place, "mnt/d"), (10 * MIB, 5));
    drop(file);
    until("the room of a closed file is given back", || used(&place, "mnt/d") == (0, 4));
    empty.write_all_at(&vec![1; MIB as usize], 0).unwrap();
    fs::create_dir(dir.join("more")).unwrap();

    assert_eq!(
        place.ebb(&["quota", "remove", "mnt/d"]).good().out,
        "mnt/d: its quota is removed\n"
    );
    place.ebb(&["quota", "remove", "mnt/d"]).refused(1, "it has no quota");
    fs::create_dir(dir.join("and more")).unwrap();
    assert_eq!(place.ebb(&["quota", "list", "mnt"]).good().out, "no quota\n");
    drop(empty);
    place.umount();
}

/// From one quota to another is from one file system to another: `mv` copies.
#[test]
fn across_the_border_is_another_file_system() {
    let place = Place::new();
    place.mount();
    for name in ["a", "b"] {
        fs::create_dir(place.path("mnt").join(name)).unwrap();
        place.ebb(&["quota", "set", &format!("mnt/{name}"), "--bytes", "1M"]).good();
    }
    fs::write(place.path("mnt/a/file"), vec![1; 1000]).unwrap();
    let renamed = fs::rename(place.path("mnt/a/file"), place.path("mnt/b/file")).unwrap_err();
    assert_eq!(renamed.raw_os_error(), Some(libc::EXDEV));
    let linked = fs::hard_link(place.path("mnt/a/file"), place.path("mnt/file")).unwrap_err();
    assert_eq!(linked.raw_os_error(), Some(libc::EXDEV));
    let moved = place.program("mv", &["mnt/a/file", "mnt/b/file"]);
    assert_eq!(moved.status, 0, "{moved:?}");
    assert_eq!((used(&place, "mnt/a"), used(&place, "mnt/b")), ((0, 0), (1000, 1)));
    place.umount();
}

/// statfs(2) shows the innermost quota: its limits, its usage, and the free space of all enclosing
/// ones. Without a quota it shows the volume.
#[test]
fn df_shows_the_quota() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    let volume = format!("ebb://{address}/volume");
    place.ebb(&["mount", &volume, "mnt", "--data", "client"]).good();
    fs::create_dir_all(place.path("mnt/outer/inner")).unwrap();
    place.ebb(&["quota", "set", "mnt/outer", "--bytes", "3M", "--inodes", "10"]).good();
    place.ebb(&["quota", "set", "mnt/outer/inner", "--bytes", "100M"]).good();
    fs::write(place.path("mnt/outer/file"), vec![1; MIB as usize]).unwrap();
    fs::write(place.path("mnt/outer/inner/file"), vec![1; MIB as usize]).unwrap();
    let outer = [3 * MIB, MIB, MIB, 10, 7];
    assert_eq!(room(&place.path("mnt/outer")), outer);
    assert_eq!(room(&place.path("mnt/outer/file")), outer);
    assert_eq!(room(&place.path("mnt/outer/inner")), [100 * MIB, 99 * MIB, MIB, 10, 7]);
    let whole = room(&place.path("mnt"));
    assert_eq!((whole[0] - whole[1], whole[3] - whole[4]), (2 * MIB, 4));

    // A mount of the directory, as a container gets it.
    place.ebb(&["mount", &format!("{volume}/outer"), "mnt2", "--data", "client2"]).good();
    assert_eq!(room(&place.path("mnt2")), outer);
    let df = place.program("df", &["--output=size,used,avail,iused", "-B1", "mnt2"]);
    let figures: Vec<&str> = df.out.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(figures, ["3145728", "2097152", "1048576", "3"], "{df:?}");
    exceeds(fs::write(place.path("mnt2/more"), vec![1; 2 * MIB as usize]));
    let quotas = place.ebb(&["quota", "list", "mnt2", "--json"]).good().json();
    assert_eq!((&quotas[0]["path"], &quotas[1]["path"]), (&"outer".into(), &"outer/inner".into()));
    for mountpoint in ["mnt2", "mnt"] {
        place.umount_at(mountpoint);
    }
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

/// Situation: the cache is lost, and only the bucket is left. Expectation: the quota is loaded with
/// its directory, counts the objects, and rejects as before.
fn comes_back(place: &Place) {
    place.mount();
    fs::create_dir_all(place.path("mnt/home/user/deep/er")).unwrap();
    place.ebb(&["quota", "set", "mnt/home/user", "--bytes", "1M", "--inodes", "100"]).good();
    for at in 0..20 {
        fs::write(place.path(&format!("mnt/home/user/deep/er/{at}")), vec![1; 50_000]).unwrap();
    }
    let before = used(place, "mnt/home/user");
    assert_eq!(before, (1_000_000, 22));
    place.kill("mnt");
    place.ebb(&["umount", "mnt"]);
    place.mount();
    assert_eq!(used(place, "mnt/home/user"), before, "the log has it");
    place.umount();
    place.drop_cache();
    place.mount();
    until("everything is counted", || {
        let quotas = place.ebb(&["quota", "get", "mnt/home/user", "--json"]).good().json();
        quotas[0]["counted"] == true
    });
    assert_eq!(used(place, "mnt/home/user"), before);
    exceeds(fs::write(place.path("mnt/home/user/more"), vec![1; 100_000]));
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}

#[test]
fn a_quota_comes_back_from_a_directory() {
    comes_back(&Place::new());
}

#[test]
fn a_quota_comes_back_from_s3() {
    comes_back(&Place::over_s3());
}

/// Objects of other programs are counted before `ebb quota set` returns.
#[test]
fn quota_counts_objects_of_other_programs() {
    let place = Place::new();
    for at in 0..30 {
        fs::create_dir_all(place.path(&format!("backing/data/{at}"))).unwrap();
        fs::write(place.path(&format!("backing/data/{at}/object")), vec![1; 1000]).unwrap();
    }
    place.mount();
    let set = place.ebb(&["quota", "set", "mnt/data", "--bytes", "20K", "--json"]).good().json();
    assert_eq!(
        (&set[0]["used_bytes"], &set[0]["used_inodes"], &set[0]["counted"]),
        (&30_000.into(), &60.into(), &true.into())
    );
    exceeds(fs::write(place.path("mnt/data/0/more"), "x"));
    let object = OpenOptions::new().write(true).open(place.path("mnt/data/0/object")).unwrap();
    object.write_all_at(b"changed in place", 10).unwrap();
    object.set_len(100).unwrap();
    drop(object);
    for at in 1..20 {
        fs::remove_dir_all(place.path(&format!("mnt/data/{at}"))).unwrap();
    }
    fs::write(place.path("mnt/data/0/more"), "x").unwrap();
    place.umount();
}

#[test]
fn quota_of_non_directory_is_refused() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "x").unwrap();
    place.ebb(&["quota", "set", "mnt/file", "--bytes", "1M"]).refused(1, "not a directory");
    place.ebb(&["quota", "set", "mnt/none", "--bytes", "1M"]).refused(1, "no such file");
    let without = place.ebb(&["quota", "set", "mnt"]);
    assert_eq!(without.status, 2, "{without:?}");
    let whole = place.ebb(&["quota", "set", "mnt", "--inodes", "2"]).good().out;
    assert_eq!(whole, "/  1 B, 1 of 2 inodes\n");
    fs::write(place.path("mnt/second"), "x").unwrap();
    exceeds(fs::write(place.path("mnt/third"), "x"));
    place.umount();
    place.mount_with(&["-o", "ro"]);
    place.ebb(&["quota", "set", "mnt", "--bytes", "1M"]).refused(1, "read-only");
    place.umount();
}
