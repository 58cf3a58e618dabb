//! ACLs and extended attributes: a mount answers like this machine's disk.

use crate::place::Place;
use std::ffi::CString;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

pub const ACCESS: &str = "system.posix_acl_access";
pub const DEFAULT: &str = "system.posix_acl_default";

/// Entries of (tag, permissions, id).
pub fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn c_string(text: impl AsRef<std::ffi::OsStr>) -> CString {
    CString::new(text.as_ref().as_bytes()).unwrap()
}

fn cvt(result: isize) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap())
}

pub fn set(path: &Path, name: &str, value: &[u8], flags: i32) -> Result<(), i32> {
    let (path, name) = (c_string(path), c_string(name));
    // SAFETY: both strings end in NUL, and the length is that of the value.
    cvt(unsafe {
        libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
    } as isize)
    .map(drop)
}

fn remove(path: &Path, name: &str) -> Result<(), i32> {
    let (path, name) = (c_string(path), c_string(name));
    // SAFETY: both strings end in NUL.
    cvt(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) } as isize).map(drop)
}

pub fn get(path: &Path, name: &str, room: usize) -> Result<Vec<u8>, i32> {
    let (path, name) = (c_string(path), c_string(name));
    let mut value = vec![0; room];
    // SAFETY: both strings end in NUL, and the length is that of the buffer.
    let len = cvt(unsafe {
        libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), room)
    })?;
    value.truncate(len);
    Ok(value)
}

fn names(path: &Path) -> Vec<String> {
    let mut list = vec![0; 4096];
    let path = c_string(path);
    // SAFETY: the string ends in NUL, and the length is that of the buffer.
    let len = cvt(unsafe { libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) })
        .unwrap();
    let mut names: Vec<String> = list[..len]
        .split(|byte| *byte == 0)
        .map(|name| String::from_utf8_lossy(name).into())
        .collect();
    names.sort();
    names
}

/// The result of `act` in a process of that user and group.
fn as_user(id: u32, act: impl Fn() -> Result<(), i32> + Send + Sync + 'static) -> Option<i32> {
    let mut command = Command::new("true");
    // SAFETY: `act` makes system calls and allocates, which the C library lets a forked process do.
    unsafe {
        command.uid(id).gid(id).pre_exec(move || act().map_err(io::Error::from_raw_os_error))
    };
    command.status().err().and_then(|error| error.raw_os_error())
}

/// Output of a shell script of that user and group, with a umask.
pub fn shell(dir: &Path, uid: u32, gid: u32, script: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(dir).uid(uid).gid(gid).stdin(Stdio::null());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = errors.lines().filter_map(|line| line.rsplit(": ").next()).collect();
    format!(
        "{} {} {errors:?}",
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).trim()
    )
}

/// Name, mode, owner, attributes in order of everything at and below a directory.
fn shown(at: &Path, path: &mut String, out: &mut String) {
    let meta = fs::symlink_metadata(at).unwrap();
    write!(out, "{path} {:o} {}:{}", meta.mode(), meta.uid(), meta.gid()).unwrap();
    for name in names(at).iter().filter(|name| name.contains("acl") || name.starts_with("user.")) {
        write!(out, " {name}={}", get(at, name, 4096).unwrap().escape_ascii()).unwrap();
    }
    out.push('\n');
    if meta.is_dir() {
        let mut names: Vec<_> =
            fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        for name in names {
            let len = path.len();
            write!(path, "/{}", name.display()).unwrap();
            shown(&at.join(&name), path, out);
            path.truncate(len);
        }
    }
}

fn tree(root: &Path) -> String {
    let mut out = String::new();
    shown(root, &mut String::new(), &mut out);
    out
}

/// Runs the workload; returns every result, one line each.
fn work(root: &Path) -> Vec<String> {
    let mut said = Vec::new();
    let mut say =
        |what: &str, answer: &dyn std::fmt::Debug| said.push(format!("{what}: {answer:?}"));
    fs::create_dir(root).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    let at = |name: &str| root.join(name);

    // A default ACL applies in place of the umask.
    let default = acl(&[
        (1, 7, 0),
        (2, 7, 1001),
        (2, 1, 1002),
        (4, 5, 0),
        (8, 6, 2000),
        (16, 7, 0),
        (32, 5, 0),
    ]);
    fs::create_dir(at("d")).unwrap();
    fs::set_permissions(at("d"), fs::Permissions::from_mode(0o2775)).unwrap();
    chown(at("d"), None, Some(2000)).unwrap();
    fs::set_permissions(at("d"), fs::Permissions::from_mode(0o2777)).unwrap();
    say("default", &set(&at("d"), DEFAULT, &default, 0));
    let make = "umask 027; echo x > f; mkdir sub; mkdir -m 700 private; mkfifo p; ln -s f l; echo \
        y > sub/f; install -m 640 /dev/null i";
    say("made below", &shell(&at("d"), 1000, 1000, make));
    fs::create_dir(at("plain")).unwrap();
    fs::set_permissions(at("plain"), fs::Permissions::from_mode(0o777)).unwrap();
    say("made beside", &shell(&at("plain"), 1000, 1000, make));
    fs::create_dir(at("minimal")).unwrap();
    say(
        "minimal default",
        &set(&at("minimal"), DEFAULT, &acl(&[(1, 7, 0), (4, 4, 0), (32, 0, 0)]), 0),
    );
    say("made below minimal", &shell(&at("minimal"), 0, 0, make));

    // Mode bits and ACLs follow each other.
    fs::write(at("f"), "content").unwrap();
    chown(at("f"), Some(1000), Some(500)).unwrap();
    let named = acl(&[(1, 6, 0), (2, 6, 1001), (4, 4, 0), (16, 6, 0), (32, 0, 0)]);
    say("access", &set(&at("f"), ACCESS, &named, 0));
    say("mode", &fs::metadata(at("f")).unwrap().mode());
    for (uid, gid) in [(1000, 1000), (1001, 1001), (1002, 500), (1003, 1003), (0, 0)] {
        say(
            "may",
            &shell(
                root,
                uid,
                gid,
                "cat f; echo >> f; test -x f; echo $?; cat d/sub/f; ls d/private",
            ),
        );
    }
    fs::set_permissions(at("f"), fs::Permissions::from_mode(0o2745)).unwrap();
    say("after chmod", &get(&at("f"), ACCESS, 4096));
    say("may after chmod", &shell(root, 1001, 1001, "cat f; echo >> f"));
    say("no room", &get(&at("f"), ACCESS, 5));
    say("length", &get(&at("f"), ACCESS, 0));
    // An owner outside the group loses the set-gid bit.
    let value = acl(&[(1, 7, 0), (2, 5, 1001), (4, 5, 0), (16, 5, 0), (32, 5, 0)]);
    let set_by = |uid| {
        let (file, value) = (at("f"), value.clone());
        as_user(uid, move || set(&file, ACCESS, &value, 0))
    };
    say("by the owner", &set_by(1000));
    say("set-gid", &fs::metadata(at("f")).unwrap().mode());
    say("by another", &set_by(1001));
    say("minimal", &set(&at("f"), ACCESS, &acl(&[(1, 6, 0), (4, 4, 0), (32, 4, 0)]), 0));
    say("nothing left", &get(&at("f"), ACCESS, 4096));
    say(
        "mask alone",
        &set(&at("f"), ACCESS, &acl(&[(1, 6, 0), (4, 6, 0), (16, 4, 0), (32, 4, 0)]), 0),
    );
    say("removed", &remove(&at("f"), ACCESS));
    say("removed again", &remove(&at("f"), ACCESS));
    say("removed by nothing", &set(&at("d/f"), ACCESS, &[], 0));
    say("removed by a header", &set(&at("d/sub"), DEFAULT, &[2, 0, 0, 0], 0));
    say("created where it is", &set(&at("d/sub"), ACCESS, &named, libc::XATTR_CREATE));

    // Invalid ACLs, and objects without ACLs.
    symlink("f", at("l")).unwrap();
    for (name, value) in [
        (ACCESS, vec![2]),
        (ACCESS, vec![1, 0, 0, 0]),
        (ACCESS, vec![2, 0, 0, 0, 1]),
        (ACCESS, acl(&[(1, 7, 0)])),
        (ACCESS, acl(&[(1, 7, 0), (2, 7, 1), (4, 7, 0), (32, 7, 0)])),
        (ACCESS, acl(&[(1, 8, 0), (4, 7, 0), (32, 7, 0)])),
        (DEFAULT, named.clone()),
        ("system.other", vec![1]),
    ] {
        say("not on a file", &set(&at("f"), name, &value, 0));
    }
    say("not on a link", &set(&at("l"), ACCESS, &named, 0));
    say("none on a link", &get(&at("l"), ACCESS, 100));
    say("none to remove", &remove(&at("f"), DEFAULT));
    say("none to read", &get(&at("f"), DEFAULT, 100));

    // Attributes that are no lists.
    for name in ["user.a", "trusted.a", "security.a", "user.", "unknown.a", ""] {
        say(name, &set(&at("f"), name, b"value", 0));
        say(name, &set(&at("f"), name, b"other", libc::XATTR_CREATE));
        say(name, &set(&at("f"), name, b"neither", libc::XATTR_CREATE | libc::XATTR_REPLACE));
        say(name, &set(&at("f2"), name, b"neither", libc::XATTR_CREATE | libc::XATTR_REPLACE));
        say(name, &set(&at("l"), name, b"value", libc::XATTR_REPLACE));
        say(name, &get(&at("f"), name, 3));
        say(name, &get(&at("l"), name, 100));
    }
    for uid in [0, 1000] {
        let file = at("f");
        let listed = move || {
            if names(&file).iter().any(|name| name == "trusted.a") {
                Ok(())
            } else {
                Err(libc::ENODATA)
            }
        };
        say("who sees its name", &as_user(uid, listed));
        let file = at("f");
        say("who sees its value", &as_user(uid, move || get(&file, "trusted.a", 100).map(drop)));
    }
    say("long name", &set(&at("f"), &format!("user.{}", "n".repeat(251)), b"", 0));
    say("long value", &set(&at("f"), "user.long", &[0; 65537], 0));
    say("user.a goes", &remove(&at("f"), "user.a"));
    say("user.a went", &remove(&at("f"), "user.a"));
    said.push(tree(root));
    said
}

#[test]
fn a_mount_answers_as_the_disk_does() {
    let place = Place::over_s3();
    fs::set_permissions(&place.dir, fs::Permissions::from_mode(0o755)).unwrap();
    place.mount_with(&["-o", "allow_other,dev,suid"]);
    let (disk, mount) = (place.path("disk"), place.path("mnt/work"));
    let expected = work(&disk);
    let found = work(&mount);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected, "(left: the mount, right: the disk)");
    }
    assert_eq!(found.len(), expected.len());
    place.ebb(&["fsck", "mnt"]).good();
    // ... and everything survives in the bucket.
    place.umount();
    place.drop_cache();
    place.mount_with(&["-o", "allow_other,dev,suid"]);
    assert_eq!(tree(&mount), tree(&disk));
    place.umount();
}
