//! Users and groups of the machine and of the volume.

use crate::acl::{ACCESS, DEFAULT, acl, get, set, shell};
use crate::detached::serve;
use crate::place::Place;
use crate::trash::entries;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A second, idmapped mount: the volume's ids 0 to 1,999 are 100,000 to 101,999 there.
struct Idmapped {
    at: PathBuf,
}

impl Idmapped {
    fn new(of: &Path, at: PathBuf) -> Idmapped {
        let mut sleep = Command::new("sleep");
        // SAFETY: makes one system call.
        unsafe {
            sleep.arg("60").pre_exec(|| cvt(libc::unshare(libc::CLONE_NEWUSER).into()).map(drop))
        };
        let mut sleep = sleep.spawn().unwrap();
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{map}", sleep.id()), "0 100000 2000").unwrap();
        }
        let users = File::open(format!("/proc/{}/ns/user", sleep.id())).unwrap();
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        // SAFETY: mount_attr is plain data, for which zeros are a value.
        let mut attr: libc::mount_attr = unsafe { std::mem::zeroed() };
        attr.attr_set = libc::MOUNT_ATTR_IDMAP;
        attr.userns_fd = users.as_raw_fd() as u64;
        let (of, to, none) = (c_string(of), c_string(&at), c"");
        // SAFETY: all strings end in NUL and outlive the calls, as does `attr`, whose size is
        // passed.
        unsafe {
            let tree = libc::syscall(
                libc::SYS_open_tree,
                libc::AT_FDCWD,
                of.as_ptr(),
                libc::OPEN_TREE_CLONE | libc::O_CLOEXEC as u32,
            );
            let tree = OwnedFd::from_raw_fd(cvt(tree).unwrap());
            let (len, flags) = (size_of::<libc::mount_attr>(), libc::MOVE_MOUNT_F_EMPTY_PATH);
            cvt(libc::syscall(
                libc::SYS_mount_setattr,
                tree.as_raw_fd(),
                none.as_ptr(),
                libc::AT_EMPTY_PATH,
                &attr,
                len,
            ))
            .unwrap();
            cvt(libc::syscall(
                libc::SYS_move_mount,
                tree.as_raw_fd(),
                none.as_ptr(),
                libc::AT_FDCWD,
                to.as_ptr(),
                flags,
            ))
            .unwrap();
        }
        Idmapped { at }
    }
}

impl Drop for Idmapped {
    fn drop(&mut self) {
        // SAFETY: the string ends in NUL.
        unsafe { libc::umount2(c_string(&self.at).as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn cvt(result: libc::c_long) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn make(path: &Path, mode: u32, uid: u32, gid: u32) {
    fs::write(path, "content").unwrap();
    chown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// An access ACL that names one user.
fn naming(id: u32) -> Vec<u8> {
    acl(&[(1, 6, u32::MAX), (2, 6, id), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)])
}

/// Situation: an idmapped copy of a mount, as for a container with a user namespace. Danger: the
/// daemon confuses ids of both, or the kernel does not support it. Expectation: owners, ACLs and
/// permissions are mapped in both directions; an unmapped user owns nothing.
#[test]
fn a_mount_can_be_idmapped() {
    let place = Place::over_s3();
    fs::set_permissions(&place.dir, Permissions::from_mode(0o755)).unwrap();
    place.mount_with(&["-o", "allow_other,dev,suid"]);
    let idmapped = Idmapped::new(&place.path("mnt"), place.path("mnt2"));
    let (mount, mapped) = (place.path("mnt"), idmapped.at.clone());
    let both = |name: &str| (mount.join(name), mapped.join(name));

    let (dir, mapped_dir) = both("d");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(1000), Some(1000)).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
    assert_eq!(owner(&mapped_dir), (101_000, 101_000));
    let work = "umask 022; echo x > f; mkdir sub; ln -s f l; mkfifo p; ln f g; mv g h; chmod 640 \
        f; truncate -s 1 f; cat f; rm h; ls -ln | grep -c 101000";
    assert_eq!(shell(&mapped_dir, 101_000, 101_000, work), "0 x4 []");
    for name in ["f", "sub", "l", "p"] {
        assert_eq!(owner(&dir.join(name)), (1000, 1000), "{name}");
    }
    // The machine's user 1000 is unmapped there, and is not the volume's user 1000.
    assert_eq!(shell(&mapped, 1000, 1000, "ls d"), r#"2  ["Permission denied"]"#);
    assert_eq!(shell(&mount, 101_000, 101_000, "ls d"), r#"2  ["Permission denied"]"#);

    // An owner without a mapped id.
    let (foreign, mapped_foreign) = both("foreign");
    make(&foreign, 0o644, 5000, 5000);
    assert_eq!(owner(&mapped_foreign), (65_534, 65_534));
    assert_eq!(
        errno(fs::write(mapped.join("d/mine"), "")),
        Some(libc::EOVERFLOW),
        "root itself is not in it"
    );
    assert_eq!(errno(OpenOptions::new().append(true).open(&mapped_foreign)), Some(libc::EACCES));

    let (file, mapped_file) = both("d/f");
    chown(&mapped_file, Some(100_500), Some(100_600)).unwrap();
    assert_eq!(owner(&file), (500, 600));
    assert_eq!(errno(chown(&mapped_file, Some(7), None)), Some(libc::EOVERFLOW));
    assert_eq!(errno(chown(&mapped_file, None, Some(102_000))), Some(libc::EOVERFLOW));
    assert_eq!(owner(&file), (500, 600));

    set(&file, ACCESS, &naming(1001), 0).unwrap();
    assert_eq!(get(&mapped_file, ACCESS, 100), Ok(naming(101_001)));
    set(&mapped_file, ACCESS, &naming(101_002), 0).unwrap();
    assert_eq!(get(&file, ACCESS, 100), Ok(naming(1002)));
    assert_eq!(set(&mapped_file, ACCESS, &naming(7), 0), Err(libc::EINVAL));
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(shell(&mapped_dir, 101_002, 101_002, "echo y > f; cat f"), "0 y []");
    assert_eq!(shell(&mapped_dir, 101_001, 101_001, "cat f"), r#"1  ["Permission denied"]"#);

    drop(idmapped);
    // ... and the bucket has the volume's ids.
    place.umount();
    place.drop_cache();
    place.mount_with(&["-o", "allow_other,dev,suid"]);
    assert_eq!((owner(&file), get(&file, ACCESS, 100)), ((500, 600), Ok(naming(1002))));
    place.umount();
}

/// Situation: for an idmappable mount the kernel omits the caller's ids in most requests. Danger:
/// root is treated as an ordinary user and loses set-id bits, or an ordinary user as root and keeps
/// them. Expectation: both are distinguished, and groups too.
#[test]
fn idmappable_mount_identifies_callers() {
    let place = Place::new();
    fs::set_permissions(&place.dir, Permissions::from_mode(0o755)).unwrap();
    place.mount_with(&["-o", "allow_other,dev,suid"]);
    let dir = place.path("mnt/d");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    let file = dir.join("f");
    let after = |given: u32, program: &str, args: &[&str]| {
        make(&file, given, 1000, 50);
        let path = file.to_str().unwrap();
        place.program(program, &[args, &[path]].concat()).good();
        mode(&file)
    };
    let append = ["sh", "-c", r#"echo more >> "$0""#];
    let by = |groups: &[&'static str]| [&["--reuid=1000"], groups, &append].concat();
    // A set-gid bit, which members of the group and root keep.
    assert_eq!(after(0o2664, "sh", &append[1..]), 0o2664);
    assert_eq!(after(0o2664, "setpriv", &by(&["--regid=50", "--clear-groups"])), 0o2664);
    assert_eq!(after(0o2664, "setpriv", &by(&["--regid=1000", "--groups=7,50"])), 0o2664);
    assert_eq!(after(0o2664, "setpriv", &by(&["--regid=1000", "--clear-groups"])), 0o664);
    assert_eq!(after(0o2664, "chown", &["1001"]), 0o2664);
    assert_eq!(
        after(
            0o2664,
            "setpriv",
            &["--reuid=1000", "--regid=1000", "--clear-groups", "chgrp", "1000"]
        ),
        0o664
    );
    // Only root's fallocate keeps set-user-id.
    assert_eq!(after(0o4755, "fallocate", &["-l", "100"]), 0o4755);
    assert_eq!(
        after(
            0o4755,
            "setpriv",
            &["--reuid=1000", "--regid=50", "--clear-groups", "fallocate", "-l", "100"]
        ),
        0o755
    );

    // So it does where the kernel has the file from a listing.
    make(&file, 0o4755, 1000, 50);
    place.umount();
    place.mount_with(&["-o", "allow_other,dev,suid"]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    place.program("fallocate", &["-l", "100", file.to_str().unwrap()]).good();
    assert_eq!(mode(&file), 0o4755);

    // The trash records the user who removed a file.
    place.ebb(&["trash", "keep", "mnt/d", "1d"]).good();
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("other"), "").unwrap();
    assert_eq!(shell(&dir, 1000, 1000, "rm -f f; rmdir sub"), "0  []");
    assert_eq!(shell(&dir, 1001, 1001, "echo > over; mv -f over other"), "0  []");
    let mut kept: Vec<_> = entries(&place, "mnt")
        .into_iter()
        .map(|entry| (entry["path"].clone(), entry["uid"].clone()))
        .collect();
    kept.sort_by_key(|(path, _)| path.to_string());
    assert_eq!(
        kept,
        [
            ("d/f".into(), 1000.into()),
            ("d/other".into(), 1001.into()),
            ("d/sub".into(), 1000.into())
        ]
    );
    place.umount();
}

/// Situation: a volume numbers users differently from the machine. Danger: an unmapped id of one
/// side is a user of the other, or an id reaches the volume unmapped. Expectation: owners, groups,
/// ACLs and permissions are mapped in both directions; unmapped ids are shown as nobody and have no
/// rights.
#[test]
fn a_mount_numbers_users_otherwise_than_its_volume() {
    let place = Place::over_s3();
    fs::set_permissions(&place.dir, Permissions::from_mode(0o755)).unwrap();
    let mapped = [
        "--map-uid",
        "0:0:1",
        "--map-uid=1000:5000:10",
        "-o",
        "allow_other,dev,suid,map_gid=0:0:1,map_gid=1000:6000:10",
    ];
    let (dir, foreign) = (place.path("mnt/d"), place.path("mnt/foreign"));
    let (file, named) = (dir.join("f"), dir.join("named"));
    place.mount_with(&["-o", "allow_other,dev,suid"]);
    make(&foreign, 0o644, 7777, 0);
    make(&place.path("mnt/private"), 0o600, 7777, 0);
    make(&place.path("mnt/listed"), 0o600, 0, 0);
    set(&place.path("mnt/listed"), ACCESS, &naming(7777), 0).unwrap();
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(5000), Some(6000)).unwrap();
    place.umount();

    place.mount_with(&mapped);
    assert_eq!(owner(&dir), (1000, 1000));
    place.ebb(&["trash", "keep", "mnt/d", "1d"]).good();
    let work = "echo x > f; mkdir sub; ln -s f l; mkfifo p; echo y > g; rm g; chmod 664 f; ls -ln \
        | grep -c 1000";
    assert_eq!(shell(&dir, 1000, 1000, work), "0 4 []");
    let trash = entries(&place, "mnt");
    assert_eq!((trash.len(), &trash[0]["uid"]), (1, &5000.into()));
    chown(&file, Some(1009), None).unwrap();
    assert_eq!(owner(&file), (1009, 1000));
    assert_eq!(errno(chown(&file, Some(1010), None)), Some(libc::EOVERFLOW));
    assert_eq!(errno(chown(&file, None, Some(5000))), Some(libc::EOVERFLOW));
    // Group membership for set-gid is checked with the machine's ids.
    fs::set_permissions(&file, Permissions::from_mode(0o2666)).unwrap();
    let by = |groups: &str| {
        ["--reuid=1002", "--regid=1002", groups, "sh", "-c", "echo >> mnt/d/f"].map(str::to_owned)
    };
    place.program("setpriv", &by("--groups=1000")).good();
    assert_eq!(mode(&file), 0o2666);
    place.program("setpriv", &by("--groups=6000")).good();
    assert_eq!(mode(&file), 0o666);

    fs::write(&named, "z").unwrap();
    set(&named, ACCESS, &naming(1001), 0).unwrap();
    assert_eq!(get(&named, ACCESS, 100), Ok(naming(1001)));
    assert_eq!(set(&named, ACCESS, &naming(5001), 0), Err(libc::EINVAL));
    assert_eq!(shell(&dir, 1001, 1001, "cat named"), "0 z []");
    assert_eq!(shell(&dir, 1002, 1002, "cat named"), r#"1  ["Permission denied"]"#);
    let handed_down = acl(&[
        (1, 7, u32::MAX),
        (4, 5, u32::MAX),
        (8, 7, 1003),
        (16, 7, u32::MAX),
        (32, 5, u32::MAX),
    ]);
    set(&dir.join("sub"), DEFAULT, &handed_down, 0).unwrap();
    fs::create_dir(dir.join("sub/below")).unwrap();
    assert_eq!(get(&dir.join("sub/below"), DEFAULT, 100), Ok(handed_down));

    // An id that only the volume has.
    assert_eq!(owner(&foreign), (65_534, 0));
    assert_eq!(
        shell(&place.path("mnt"), 65_534, 65_534, "cat foreign; cat private"),
        r#"1 content ["Permission denied"]"#
    );
    assert_eq!(
        errno(OpenOptions::new().append(true).open(&foreign)),
        Some(libc::EACCES),
        "root cannot name its owner either"
    );
    assert_eq!(
        errno(fs::set_permissions(&foreign, Permissions::from_mode(0o777))),
        Some(libc::EOVERFLOW)
    );
    assert_eq!(get(&place.path("mnt/listed"), ACCESS, 100), Ok(naming(u32::MAX - 1)));
    assert_eq!(shell(&place.path("mnt"), 7777, 7777, "cat listed"), r#"1  ["Permission denied"]"#);
    // An id that only the machine has.
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    let refused = r#"2  ["Value too large for defined data type"]"#;
    assert_eq!(shell(&dir, 2000, 2000, "echo > h"), refused);
    assert_eq!(shell(&dir, 1000, 2000, "echo > h"), refused);
    assert_eq!(shell(&dir, 2000, 2000, "cat f > /dev/null"), "0  []");
    place.kill_daemon("mnt");
    assert_eq!(shell(&dir, 1000, 1000, "echo > later"), "0  []", "a successor has the map too");
    place.umount();

    place.drop_cache();
    place.mount_with(&["-o", "allow_other,dev,suid"]);
    assert_eq!(
        (owner(&file), owner(&dir.join("sub")), owner(&dir.join("l"))),
        ((5009, 6000), (5000, 6000), (5000, 6000))
    );
    assert_eq!(
        (owner(&dir.join("later")), get(&named, ACCESS, 100)),
        ((5000, 6000), Ok(naming(5001)))
    );
    assert!(
        get(&dir.join("sub/below"), DEFAULT, 100)
            .unwrap()
            .windows(4)
            .any(|id| id == 6003u32.to_le_bytes())
    );
    place.umount();
}

/// An invalid mapping is rejected before the mount, with the reason.
#[test]
fn a_map_that_is_none_is_refused() {
    let place = Place::new();
    for (map, why) in [
        ("--map-uid=1000:5000", "three numbers"),
        ("--map-gid=0:0:0", "one id at least"),
        ("--map-uid=0:0:10,9:100:1", "0:0:10 and 9:100:1 have ids in common"),
        ("-omap_uid=0:4294967295:1", "ids end with"),
    ] {
        place.ebb(&["mount", place.url(), "mnt", "--data", "data", map]).refused(2, why);
    }
    assert!(!place.is_mounted("mnt"));
}

/// Situation: root squash. Danger: the kernel grants root everything, and answers from its caches:
/// a directory cached for other users lets root in. Expectation: reads, listings and changes are
/// those of the anonymous user, whatever the kernel has cached; other users are not affected.
#[test]
fn root_is_squashed() {
    let place = Place::over_s3();
    fs::set_permissions(&place.dir, Permissions::from_mode(0o755)).unwrap();
    place.mount_with(&["-o", "allow_other,dev,suid"]);
    let (mount, private) = (place.path("mnt"), place.path("mnt/private"));
    fs::set_permissions(&mount, Permissions::from_mode(0o777)).unwrap();
    fs::create_dir_all(private.join("d/e")).unwrap();
    for dir in [private.join("d/e"), private.join("d"), private.clone()] {
        chown(&dir, Some(1000), Some(1000)).unwrap();
    }
    make(&private.join("d/readable"), 0o666, 1000, 1000);
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    make(&mount.join("secret"), 0o600, 1000, 1000);
    make(&mount.join("shown"), 0o644, 1000, 1000);
    make(&mount.join("given"), 0o640, 1000, 1000);
    make(&mount.join("listed"), 0o600, 1000, 1000);
    make(&mount.join("roots"), 0o600, 0, 0);
    set(&mount.join("listed"), ACCESS, &naming(1500), 0).unwrap();
    set(&mount.join("secret"), "user.a", b"value", 0).unwrap();
    fs::create_dir(mount.join("sticky")).unwrap();
    fs::set_permissions(mount.join("sticky"), Permissions::from_mode(0o1777)).unwrap();
    make(&mount.join("sticky/f"), 0o666, 1000, 1000);
    make(&mount.join("set_gid"), 0o2664, 1001, 2001);
    place.umount();

    place.mount_with(&[
        "-o",
        "allow_other,dev,suid",
        "--squash=root",
        "--anonymous-uid=1500",
        "--anonymous-gid=1600",
    ]);
    // The kernel has cached all of it for permitted users.
    assert_eq!(
        shell(&mount, 1000, 1000, "cat private/d/readable; ls private/d/e; cat secret"),
        "0 contentcontent []"
    );
    let said = |script: &str| shell(&mount, 0, 0, script);
    let denied = r#"["Permission denied"]"#;
    let forbidden = r#"["Operation not permitted"]"#;
    for script in [
        "cat private/d/readable",
        "ls private/d/e",
        "ls private",
        "cat secret",
        "echo > secret",
        "cat roots",
        "echo > shown",
        "ln private/d/readable mine",
        "rm -f private/d/readable",
        "mv private/d/readable away",
        "mkdir private/d/new",
        "touch private/d/e/new",
        "truncate -s 0 shown",
    ] {
        let answer = said(script);
        assert!(
            answer.contains("Permission denied") && !answer.starts_with("0 "),
            "{script}: {answer}"
        );
    }
    assert_eq!(get(&mount.join("secret"), "user.a", 64), Err(libc::EACCES));
    assert_eq!(said("chmod 777 secret"), format!("1  {forbidden}"));
    assert_eq!(said("chown 0 shown"), format!("1  {forbidden}"));
    assert_eq!(said("rm -f sticky/f"), format!("1  {forbidden}"));
    assert_eq!(said("mknod device c 1 3"), format!("1  {forbidden}"));
    assert_eq!(set(&mount.join("shown"), "trusted.a", b"", 0), Err(libc::EPERM));
    assert_eq!(set(&mount.join("shown"), ACCESS, &naming(7), 0), Err(libc::EPERM));
    assert_eq!(shell(&private, 1000, 1000, "cat d/readable"), "0 content []", "others are not");
    // A user with the file's group as a supplementary group keeps set-gid.
    let member = ["--reuid=1001", "--regid=1001", "--groups=1001,2001", "sh", "-ec"];
    for change in [
        "echo more >> mnt/set_gid",
        "truncate -s 3 mnt/set_gid",
        "fallocate -l 100 mnt/set_gid",
        "chgrp 2001 mnt/set_gid",
    ] {
        place.program("setpriv", &[&member[..], &[change]].concat()).good();
        assert_eq!(mode(&mount.join("set_gid")), 0o2664, "{change}");
    }
    let stranger =
        ["--reuid=1001", "--regid=1001", "--clear-groups", "sh", "-ec", "echo more >> mnt/set_gid"];
    place.program("setpriv", &stranger).good();
    assert_eq!(mode(&mount.join("set_gid")), 0o664);
    // Permitted for the anonymous user.
    assert_eq!(
        said("cat shown listed; echo more >> sticky/f; cat sticky/f"),
        "0 contentcontentcontentmore []"
    );
    assert_eq!(
        said(
            "echo x > made; cat made; mkdir dir; cp /bin/true dir/run; dir/run; chmod 640 made; mv \
             made dir; ls dir"
        ),
        "0 x\nmade\nrun []"
    );
    assert_eq!(
        (owner(&mount.join("dir")), owner(&mount.join("dir/made"))),
        ((1500, 1600), (1500, 1600))
    );
    assert_eq!(
        said("chmod 444 dir/made; rm -f given; ls given"),
        r#"2  ["No such file or directory"]"#
    );
    let file = OpenOptions::new().append(true).create_new(true).open(mount.join("cut")).unwrap();
    fs::set_permissions(mount.join("cut"), Permissions::from_mode(0o444)).unwrap();
    file.set_len(10).unwrap();
    drop(file);
    place.kill_daemon("mnt");
    assert_eq!(said("cat private/d/readable"), format!("1  {denied}"), "a successor squashes too");
    place.umount();
}

/// Situation: a subdirectory of a volume is mounted, below a directory that the anonymous user
/// cannot search. Expectation: the mount's root is the subdirectory; names elsewhere in the volume
/// are not reachable.
#[test]
fn a_squashed_mount_begins_at_its_directory() {
    let mut place = Place::new();
    fs::set_permissions(&place.dir, Permissions::from_mode(0o755)).unwrap();
    let (_, address) = serve(&mut place, "127.0.0.1:0");
    place.ebb(&["mount", &format!("ebb://{address}/volume"), "mnt", "--data", "client"]).good();
    let (top, sub) = (place.path("mnt/top"), place.path("mnt/top/sub"));
    fs::create_dir_all(sub.join("closed")).unwrap();
    fs::create_dir(sub.join("open")).unwrap();
    for name in ["closed/f", "open/f", "f"] {
        make(&sub.join(name), 0o644, 1000, 1000);
    }
    make(&place.path("mnt/outside"), 0o644, 1000, 1000);
    fs::hard_link(place.path("mnt/outside"), sub.join("linked")).unwrap();
    for dir in [&sub.join("closed"), &top] {
        fs::set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
    }
    place
        .ebb(&[
            "mount",
            &format!("ebb://{address}/volume/top/sub"),
            "mnt2",
            "--data",
            "client2",
            "--squash=root",
        ])
        .good();
    let said = |script: &str| shell(&place.path("mnt2"), 0, 0, script);
    assert_eq!(said("ls; cat f open/f"), "0 closed\nf\nlinked\nopen\ncontentcontent []");
    assert_eq!(said("cat closed/f"), r#"1  ["Permission denied"]"#);
    assert_eq!(said("cat linked"), r#"1  ["Permission denied"]"#);
    place.umount_at("mnt2");
    place.umount();
}

/// An anonymous user without an id in the volume, or with root's, would have rights that no user
/// must have: it is rejected.
#[test]
fn an_anonymous_user_that_cannot_be_is_refused() {
    let place = Place::new();
    for options in ["--map-uid=0:0:10", "--map-gid=0:0:10", "--map-uid=65534:0:1"] {
        let args = ["mount", place.url(), "mnt", "--data", "data", "--squash=root", options];
        let told = place.ebb(&args).refused(2, "anonymous-uid");
        assert!(!told.err.contains("  "), "{told:?}");
    }
    assert_eq!(
        place
            .ebb(&[
                "mount",
                place.url(),
                "mnt",
                "--data",
                "data",
                "--squash=root",
                "--anonymous-uid=0"
            ])
            .status,
        2
    );
    assert!(!place.is_mounted("mnt"));
}
