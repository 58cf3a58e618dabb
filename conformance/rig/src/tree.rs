//! Comparison of two trees.

use crate::{Outcome, xattr};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Size {
    pub files: u64,
    pub directories: u64,
    pub bytes: u64,
}

/// Counts a tree, with lstat of every entry.
pub fn size(root: &Path) -> Outcome<Size> {
    let mut size = Size::default();
    for (_, meta) in walk(root)? {
        if meta.is_dir() {
            size.directories += 1;
        } else {
            size.files += 1;
            size.bytes += meta.len();
        }
    }
    Ok(size)
}

/// Entries by path relative to the root, which has the empty path.
fn walk(root: &Path) -> Outcome<BTreeMap<PathBuf, Metadata>> {
    let mut found = BTreeMap::from([(PathBuf::new(), fs::symlink_metadata(root)?)]);
    let mut open = vec![PathBuf::new()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            let meta = entry.metadata()?;
            if meta.is_dir() {
                open.push(path.clone());
            }
            found.insert(path, meta);
        }
    }
    Ok(found)
}

/// Copies modification times from `from` to `to`, whose entries were changed at different times.
pub fn copy_times(from: &Path, to: &Path) -> Outcome<()> {
    for (path, meta) in walk(from)?.into_iter().rev() {
        let target = CString::new(to.join(&path).as_os_str().as_bytes())?;
        let time = libc::timespec { tv_sec: meta.mtime(), tv_nsec: meta.mtime_nsec() };
        // SAFETY: the path ends in NUL and two times are given.
        let set = unsafe {
            libc::utimensat(
                libc::AT_FDCWD,
                target.as_ptr(),
                [time, time].as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
            )
        };
        if set != 0 {
            return Err(format!("{}: {}", path.display(), std::io::Error::last_os_error()).into());
        }
    }
    Ok(())
}

/// Compares names, types, attributes, extended attributes, links and content.
pub fn compare(reference: &Path, mount: &Path) -> Outcome<Size> {
    let (expected, found) = (walk(reference)?, walk(mount)?);
    let mut wrong: Vec<String> = Vec::new();
    let only =
        |these: &BTreeMap<PathBuf, Metadata>, those: &BTreeMap<PathBuf, Metadata>, what: &str| {
            these
                .keys()
                .filter(|path| !those.contains_key(*path))
                .map(|path| format!("{} {what}", path.display()))
                .collect::<Vec<_>>()
        };
    wrong.extend(only(&expected, &found, "is missing"));
    wrong.extend(only(&found, &expected, "should not be there"));
    for (path, expected) in &expected {
        let Some(found) = found.get(path) else { continue };
        let at = |root: &Path| root.join(path);
        wrong
            .extend(differences(expected, found).map(|what| format!("{}: {what}", path.display())));
        if xattr::all(&at(reference), &COPIED)? != xattr::all(&at(mount), &COPIED)? {
            wrong.push(format!("{}: other extended attributes", path.display()));
        }
        let kind = expected.file_type();
        if kind.is_symlink() && fs::read_link(at(reference))? != fs::read_link(at(mount))? {
            wrong.push(format!("{}: another target", path.display()));
        }
        if kind.is_file() && found.is_file() && fs::read(at(reference))? != fs::read(at(mount))? {
            wrong.push(format!("{}: other content", path.display()));
        }
    }
    if names_by_inode(&expected) != names_by_inode(&found) {
        wrong.push("hard links join other names".into());
    }
    match wrong.len() {
        0 => size(mount),
        many => Err(format!("{many} differences\n{}", wrong[..many.min(20)].join("\n")).into()),
    }
}

fn differences(expected: &Metadata, found: &Metadata) -> impl Iterator<Item = String> {
    let is_dir = expected.is_dir();
    let rdev = |meta: &Metadata| {
        if meta.file_type().is_block_device() || meta.file_type().is_char_device() {
            meta.rdev()
        } else {
            0
        }
    };
    let pairs = [
        ("mode", u64::from(expected.mode()), u64::from(found.mode())),
        ("uid", expected.uid().into(), found.uid().into()),
        ("gid", expected.gid().into(), found.gid().into()),
        (
            "links",
            if is_dir { 0 } else { expected.nlink() },
            if is_dir { 0 } else { found.nlink() },
        ),
        // Sizes of directories are not comparable between file systems.
        ("size", if is_dir { 0 } else { expected.len() }, if is_dir { 0 } else { found.len() }),
        ("seconds of modification", expected.mtime() as u64, found.mtime() as u64),
        ("nanoseconds of modification", expected.mtime_nsec() as u64, found.mtime_nsec() as u64),
        ("device", rdev(expected), rdev(found)),
    ];
    pairs
        .into_iter()
        .filter(|(_, expected, found)| expected != found)
        .map(|(what, expected, found)| format!("{what} is {found}, not {expected}"))
}

/// Names of each inode with several names, independent of inode numbers.
fn names_by_inode(entries: &BTreeMap<PathBuf, Metadata>) -> Vec<Vec<&PathBuf>> {
    let mut names: BTreeMap<u64, Vec<&PathBuf>> = BTreeMap::new();
    for (path, meta) in entries.iter().filter(|(_, meta)| !meta.is_dir() && meta.nlink() > 1) {
        names.entry(meta.ino()).or_default().push(path);
    }
    let mut names: Vec<_> = names.into_values().collect();
    names.sort();
    names
}

/// Namespaces of copied attributes; others belong to the file system.
const COPIED: [&[u8]; 4] = [b"user.", b"trusted.", b"system.posix_acl_", b"security.capability"];
