//! tar, rsync and cp -a: each copies a tree with all inode features to the mount, and from there
//! back to the disk.

use super::shell;
use crate::rng::Rng;
use crate::tree;
use crate::{Outcome, tool};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// cp must scan for zeros: by default it trusts st_blocks, which counts holes on ebb.
const PROGRAMS: [(&str, &str); 3] = [
    (
        "tar",
        r#"tar -C "$1" --format=posix --acls --xattrs --xattrs-include='*' --sparse -cf - . | tar -C "$2" --acls --xattrs --xattrs-include='*' --numeric-owner -xpf -"#,
    ),
    (
        "rsync",
        r#"rsync -aHAXS --numeric-ids "$1/" "$2/"; rsync -aHAXSn --checksum --numeric-ids --itemize-changes "$1/" "$2/""#,
    ),
    ("cp", r#"cp -a --sparse=always "$1/." "$2/""#),
];

pub fn prepare(reference: &Path) -> Outcome<()> {
    tool::debian(Path::new("/usr/bin/rsync"), "rsync")?;
    tool::debian(Path::new("/usr/bin/setfacl"), "acl")?;
    tool::debian(Path::new("/usr/bin/setfattr"), "attr")?;
    let tree = reference.join("tree");
    fs::create_dir(&tree)?;
    plain(&tree)?;
    let lines = r#"
umask 022
mkfifo pipe; mknod null c 1 3; mknod loop b 7 200
mkdir -p modes/sticky modes/group modes/none acl/default xattr times links
chmod 1777 modes/sticky; chmod 2775 modes/group; chmod 0 modes/none
for mode in 0000 0400 0644 0666 0711 4755 2755 6711; do echo $mode > modes/$mode; chown 1000:2000 modes/$mode; chmod $mode modes/$mode; done
chown 4000000000:4000000001 modes/0644
echo acl > acl/file; setfacl -m u:1001:rw,g:1002:r,m::rwx acl/file
setfacl -m u:1003:rwx -m d:u:1004:rwx,d:g:1005:rx,d:o::- acl/default; echo inherited > acl/default/file
echo x > xattr/file; setfattr -n user.short -v value xattr/file; setfattr -n user.empty xattr/file
setfattr -n user.binary -v 0x00ff0a00 xattr/file; setfattr -n trusted.mine -v secret xattr/file
setfattr -n user.long -v "$(head -c 1500 /dev/zero | tr '\0' x)" xattr/file
setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 xattr/file
setfattr -n user.kind -v directory xattr
echo one > links/one; ln links/one links/two; ln links/one modes/three; ln -s one links/soft; ln links/soft links/soft2
ln -s "$(head -c 4000 /dev/zero | tr '\0' y)" links/long; ln -s /nowhere/at/all links/dangling
chown -h 1234:5678 links/dangling; touch -h -d '2001-02-03 04:05:06.070809010' links/dangling
for when in '1903-01-01 00:00:00.5' '1970-01-01 00:00:00.000000001' '2001-09-09 01:46:40.123456789' '2100-01-01 00:00:00.999999999'; do touch -d "$when UTC" "times/$when"; done
truncate -s 80M sparse; for at in 0 17 40 79; do printf here | dd of=sparse bs=1M seek=$at conv=notrunc status=none; done
truncate -s 3M hole
deep=deep; for n in $(seq 40); do deep=$deep/directory-$n; done; mkdir -p $deep; echo bottom > $deep/file
touch -d '2010-10-10 10:10:10.101010101' modes/sticky acl/default deep xattr .
"#;
    shell(&tree, lines, &[]).map(drop)
}

pub fn work(reference: &Path, dir: &Path) -> Outcome<()> {
    let tree = reference.join("tree");
    for (program, lines) in PROGRAMS {
        let there = dir.join(program);
        fs::create_dir(&there)?;
        let said = shell(dir, lines, &[&tree, &there])
            .map_err(|error| format!("{program}, in: {error}"))?;
        // rsync prints the entries that differ.
        if !said.is_empty() {
            return Err(format!("{program} is not content: {said}").into());
        }
        tree::compare(&tree, &there).map_err(|error| format!("{program}, in: {error}"))?;
        holes(&there).map_err(|error| format!("{program}, in: {error}"))?;
        let back = reference.join(format!("back-{program}"));
        fs::create_dir(&back)?;
        shell(dir, lines, &[&there, &back]).map_err(|error| format!("{program}, back: {error}"))?;
        let compared =
            tree::compare(&tree, &back).map_err(|error| format!("{program}, back: {error}"));
        // tar always trusts st_blocks.
        let sparse = if program == "tar" {
            Ok(())
        } else {
            holes(&back).map_err(|error| format!("{program}, back: {error}"))
        };
        fs::remove_dir_all(&back)?;
        compared?;
        sparse?;
    }
    Ok(())
}

pub fn look_again(reference: &Path, dir: &Path) -> Outcome<()> {
    PROGRAMS.iter().try_for_each(|(program, _)| {
        tree::compare(&reference.join("tree"), &dir.join(program)).map(drop)
    })
}

/// Files of many lengths, and names of every kind.
fn plain(tree: &Path) -> Outcome<()> {
    let mut rng = Rng(3);
    let names: [&[u8]; 7] = [
        b"blanks and more",
        b"line\nend",
        b"\xff\xfe not UTF-8",
        "\u{fc}ml\u{e4}ut \u{1F980}".as_bytes(),
        b"-rf",
        b"%41",
        b"back\\slash",
    ];
    let names = names
        .into_iter()
        .map(|name| OsStr::from_bytes(name).to_owned())
        .chain([OsString::from("n".repeat(255))]);
    fs::create_dir(tree.join("names"))?;
    for name in names {
        fs::write(tree.join("names").join(name), rng.bytes(100))?;
    }
    fs::create_dir(tree.join("sizes"))?;
    for len in [0, 1, 4095, 4096, 65_535, 65_536, 65_537, 1 << 20, 17 << 20] {
        fs::write(tree.join("sizes").join(len.to_string()), rng.bytes(len))?;
    }
    for file in 0..300 {
        let dir = tree.join("many").join((file % 9).to_string());
        fs::create_dir_all(&dir)?;
        let len = rng.below(9_000) as usize;
        fs::write(dir.join(file.to_string()), rng.bytes(len))?;
    }
    Ok(())
}

/// The sparse file has little more data than was written to it, by lseek(2).
fn holes(tree: &Path) -> Outcome<()> {
    let file = File::open(tree.join("sparse"))?;
    let seek = |from: i64, whence| {
        // SAFETY: the descriptor is open and the rest are plain integers.
        unsafe { libc::lseek(file.as_raw_fd(), from, whence) }
    };
    let (mut data_bytes, mut at) = (0, 0);
    // ENXIO: no data behind this offset.
    while let Ok(data) = u64::try_from(seek(at, libc::SEEK_DATA)) {
        at = seek(data as i64, libc::SEEK_HOLE);
        data_bytes += at as u64 - data;
    }
    if data_bytes > MOST_OF_SPARSE {
        Err(format!("the sparse file has {data_bytes} bytes of data").into())
    } else {
        Ok(())
    }
}

/// Four data ranges of some blocks each.
const MOST_OF_SPARSE: u64 = 2 << 20;
