//! Names while a directory is read or changed.

use crate::place::Place;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;

const FILES: usize = 2000;

/// Situation: a program renames each file that a directory shows it, to and fro or for good.
/// Danger: the new name is further on, and shown again, without end. Expectation: each file is
/// shown once.
#[test]
fn readdir_ends_when_listed_files_are_renamed() {
    let place = Place::new();
    place.mount();
    let dir = place.path("mnt/dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..FILES {
        File::create(dir.join(format!("{number}"))).unwrap();
    }
    for to_and_fro in [true, false] {
        let mut shown = BTreeSet::new();
        for entry in fs::read_dir(&dir).unwrap() {
            let name = entry.unwrap().file_name();
            let new = if to_and_fro { "moved".into() } else { format!("{}.moved", name.display()) };
            fs::rename(dir.join(&name), dir.join(&new)).unwrap();
            if to_and_fro {
                fs::rename(dir.join(&new), dir.join(&name)).unwrap();
            }
            assert!(shown.insert(name), "a file is shown again");
        }
        assert_eq!(shown.len(), FILES);
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), FILES);
    place.umount();
}

/// Situation: a file has many names in one directory and one in another, and the cache is lost.
/// Danger: the page repeats all names for each of them, and becomes too large; or some names belong
/// to another file afterwards. Expectation: all names are present and of one file, and one can be
/// removed.
#[test]
fn many_names_of_one_file_come_back_from_the_bucket() {
    let place = Place::new();
    place.mount();
    let (dir, other) = (place.path("mnt/dir"), place.path("mnt/other"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(dir.join("name"), b"content").unwrap();
    for number in 1..FILES {
        fs::hard_link(dir.join("name"), dir.join(format!("name-{number}"))).unwrap();
    }
    fs::hard_link(dir.join("name"), other.join("name")).unwrap();
    place.umount();
    let pages = fs::read_dir(place.path("backing/.ebb/d")).unwrap();
    let page_bytes: u64 = pages.map(|page| page.unwrap().metadata().unwrap().len()).sum();
    assert!(page_bytes < FILES as u64 * 300, "{page_bytes} bytes of pages");
    place.drop_cache();

    place.mount();
    let ino = fs::metadata(other.join("name")).unwrap().ino();
    fs::remove_file(dir.join("name-7")).unwrap();
    let names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap()).collect();
    assert_eq!(names.len(), FILES - 1);
    assert!(names.iter().all(|name| (name.ino(), name.nlink()) == (ino, FILES as u64)));
    assert_eq!(fs::read(dir.join("name-9")).unwrap(), b"content");
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}

/// Situation: a directory is so large that its page is in pieces, and one name is added. Danger:
/// the whole page is uploaded; or it is incomplete when the cache is lost. Expectation: one or two
/// pieces are uploaded, and all names are loaded from them.
#[test]
fn a_large_directory_comes_back_from_the_bucket() {
    const LINKS: usize = 12_000;
    let place = Place::new();
    place.mount();
    let dir = place.path("mnt/dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..LINKS {
        symlink(format!("to-{number}"), dir.join(format!("link-{number}"))).unwrap();
    }
    place.ebb(&["flush", "mnt"]).good();
    let stored = place.path("backing/.ebb/e");
    let pieces = || -> BTreeSet<_> {
        fs::read_dir(&stored).unwrap().map(|piece| piece.unwrap().file_name()).collect()
    };
    let before = pieces();
    assert!(before.len() >= LINKS / 4096, "{} pieces", before.len());
    symlink("to-more", dir.join("link-more")).unwrap();
    place.ebb(&["flush", "mnt"]).good();
    let after = pieces();
    assert!(
        (1..=2).contains(&after.difference(&before).count())
            && before.difference(&after).count() == 1
    );
    place.ebb(&["fsck", "--bucket", "mnt"]).good();
    place.umount();
    place.drop_cache();

    place.mount();
    assert_eq!(fs::read_link(dir.join("link-more")).unwrap().to_str(), Some("to-more"));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), LINKS + 1);
    for number in (0..LINKS).step_by(7) {
        assert_eq!(
            fs::read_link(dir.join(format!("link-{number}"))).unwrap().to_str(),
            Some(&*format!("to-{number}"))
        );
    }
    place.ebb(&["fsck", "--bucket", "mnt"]).good();
    fs::remove_dir_all(&dir).unwrap();
    place.umount();
    assert!(!stored.exists());
}

/// Situation: the kernel has cached the name that a file is moved away from. Danger: it keeps
/// showing the file, or nothing. Expectation: the old name is a whiteout at once, the new one the
/// file.
#[test]
fn a_whiteout_is_there_at_once() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/taken"), "").unwrap();
    for (round, flags) in [libc::RENAME_WHITEOUT, libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE]
        .into_iter()
        .enumerate()
    {
        let [old, new, taken] =
            [format!("old-{round}"), format!("new-{round}"), "taken".to_owned()]
                .map(|name| place.path("mnt").join(name));
        fs::write(&old, "content").unwrap();
        let ino = fs::metadata(&old).unwrap().ino();
        let renamed = |to: &Path| {
            let [from, to] =
                [&old, to].map(|path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap());
            // SAFETY: the strings end in NUL and outlive the call.
            match unsafe {
                libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
            } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error().raw_os_error().unwrap()),
            }
        };
        if flags & libc::RENAME_NOREPLACE != 0 {
            assert_eq!(renamed(&taken), Err(libc::EEXIST));
        }
        renamed(&new).unwrap();
        let whiteout = fs::symlink_metadata(&old).unwrap();
        assert_eq!((whiteout.file_type().is_char_device(), whiteout.rdev()), (true, 0));
        assert!(whiteout.ino() != ino && fs::metadata(&new).unwrap().ino() == ino);
        assert_eq!(fs::read_to_string(&new).unwrap(), "content");
    }
    place.umount();
}

/// An overlay that is taken away at the end of a test.
struct Overlay(CString);

impl Overlay {
    /// `None` if this kernel has none.
    fn mount(place: &Place) -> Option<Overlay> {
        let c_text = |text: String| CString::new(text).unwrap();
        let [lower, upper, work, merged] =
            ["lower", "mnt/upper", "mnt/work", "merged"].map(|name| place.text(name));
        let target = c_text(merged);
        let options = c_text(format!("lowerdir={lower},upperdir={upper},workdir={work}"));
        let kind = c"overlay".as_ptr();
        // SAFETY: the strings end in NUL and outlive the call.
        let mounted =
            unsafe { libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast()) };
        match io::Error::last_os_error() {
            _ if mounted == 0 => Some(Overlay(target)),
            error if error.raw_os_error() == Some(libc::ENODEV) => None,
            error => panic!("{error}"),
        }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // SAFETY: the string ends in NUL and outlives the call.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Situation: a container's root is an overlay whose upper directory is on ebb; files of the lower
/// one are removed, renamed and changed, and the cache is lost. Danger: whiteouts are rejected or
/// lost, and removed files reappear. Expectation: the overlay shows the changes.
#[test]
fn an_overlay_has_its_upper_directory_here() {
    let place = Place::new();
    place.mount();
    for dir in ["lower", "lower/dir", "mnt/upper", "mnt/work", "merged"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    for file in ["removed", "renamed", "changed", "dir/inside"] {
        fs::write(place.path("lower").join(file), file).unwrap();
    }
    let merged = place.path("merged");
    let seen = || {
        let names = fs::read_dir(&merged)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let Some(overlay) = Overlay::mount(&place) else {
        return println!("skipped: this kernel has no overlays");
    };
    fs::remove_file(merged.join("removed")).unwrap();
    fs::rename(merged.join("renamed"), merged.join("moved")).unwrap();
    fs::write(merged.join("changed"), "anew").unwrap();
    fs::remove_dir_all(merged.join("dir")).unwrap();
    assert_eq!(seen(), ["changed", "moved"]);
    drop(overlay);
    place.umount();
    place.drop_cache();

    place.mount();
    let whiteout = fs::symlink_metadata(place.path("mnt/upper/renamed")).unwrap();
    assert_eq!((whiteout.file_type().is_char_device(), whiteout.rdev()), (true, 0));
    let overlay = Overlay::mount(&place).unwrap();
    assert_eq!(seen(), ["changed", "moved"]);
    assert_eq!(fs::read_to_string(merged.join("moved")).unwrap(), "renamed");
    assert_eq!(fs::read_to_string(merged.join("changed")).unwrap(), "anew");
    drop(overlay);
    place.umount();
}

/// Situation: files and directories exchange names, over a directory, in which a file and a
/// directory cannot share a name. Danger: the flush waits for ever, since each blocks the other.
/// Expectation: it completes, the backing directory equals the mount, and a restart from it alone
/// shows the same.
#[test]
fn files_and_directories_change_places() {
    let place = Place::new();
    place.mount();
    let at = |name: &str| place.path(&format!("mnt/{name}"));
    fs::create_dir(at("taken")).unwrap();
    fs::create_dir(at("swapped")).unwrap();
    for name in ["below", "taken/by", "swapped/x", "with"] {
        fs::write(at(name), name).unwrap();
    }
    place.ebb(&["flush", "mnt"]).good();
    fs::rename(at("below"), at("t")).unwrap();
    fs::create_dir(at("below")).unwrap();
    fs::rename(at("t"), at("below/below")).unwrap();
    fs::rename(at("taken/by"), at("t")).unwrap();
    fs::remove_dir(at("taken")).unwrap();
    fs::rename(at("t"), at("taken")).unwrap();
    exchange(&at("swapped"), &at("with"));
    place.ebb(&["flush", "mnt"]).good();
    let came = [
        ("below/below", "below"),
        ("taken", "taken/by"),
        ("with/x", "swapped/x"),
        ("swapped", "with"),
    ];
    for (name, content) in came {
        assert_eq!(fs::read_to_string(place.path(&format!("backing/{name}"))).unwrap(), content);
    }
    place.umount();
    place.drop_cache();
    place.mount();
    for (name, content) in came {
        assert_eq!(fs::read_to_string(at(name)).unwrap(), content);
    }
    place.ebb(&["fsck", "--bucket", "mnt"]).good();
    place.umount();
}

fn exchange(one: &Path, other: &Path) {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (one, other) = (path(one), path(other));
    // SAFETY: both paths outlive the call.
    let done = unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            one.as_ptr(),
            libc::AT_FDCWD,
            other.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}
