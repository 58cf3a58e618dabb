//! fallocate(2) on a real mount: sizes, zeros, and freed space.

use crate::place::Place;
use crate::quota::room;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const BLOCK: u64 = 64 << 10;

pub fn fallocate(file: &File, mode: i32, offset: u64, len: u64) -> Result<(), i32> {
    // SAFETY: the descriptor is open and the rest are plain integers.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

pub fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

/// Bytes that the node's store files take on its disk.
fn stored(place: &Place) -> u64 {
    fs::read_dir(place.store())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512)
        .sum()
}

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Situation: parts of a file that was written, and of one that is only in the bucket, are
/// punched and zeroed, at block borders and inside blocks. Expectation: zeros exactly there,
/// on the mount, in the bucket, and for a node that has nothing but the bucket; the node's
/// disk has the space back.
#[test]
fn zeros_where_they_are_asked_for() {
    let place = Place::over_s3();
    place.mount_with(&["--flush-interval", "1h"]);
    let len = 10 * BLOCK + 1000;
    let mut expected: Vec<u8> = (0..len).map(|at| (at % 251) as u8 + 1).collect();
    let path = place.path("mnt/file");
    let file = create(&path);
    file.write_all_at(&expected, 0).unwrap();
    let before = stored(&place);
    let zero = |file: &File, expected: &mut Vec<u8>, mode: i32, offset: u64, zeros: u64| {
        fallocate(file, mode, offset, zeros).unwrap();
        let end = (offset + zeros).min(expected.len() as u64);
        expected[offset as usize..end as usize].fill(0);
        assert_eq!(&fs::read(&path).unwrap(), expected, "{mode} at {offset}: {zeros}");
    };
    zero(&file, &mut expected, PUNCH, BLOCK, 2 * BLOCK);
    zero(&file, &mut expected, PUNCH, 4 * BLOCK + 100, 300);
    zero(&file, &mut expected, PUNCH, 5 * BLOCK - 10, BLOCK + 20);
    zero(&file, &mut expected, libc::FALLOC_FL_ZERO_RANGE, 8 * BLOCK, BLOCK);
    zero(&file, &mut expected, PUNCH, len - 10, BLOCK);
    assert!(stored(&place) + 4 * BLOCK <= before, "{} bytes of {before} are left", stored(&place));
    assert_eq!(file.metadata().unwrap().len(), len);

    // The kernel has no stale page of the hole, and a new write is visible.
    file.write_all_at(b"again", BLOCK + 7).unwrap();
    expected[BLOCK as usize + 7..][..5].copy_from_slice(b"again");
    assert_eq!(fs::read(&path).unwrap(), expected);
    place.ebb(&["flush", "mnt"]).good();
    drop(file);
    place.umount();
    place.drop_cache();

    place.mount_with(&["--flush-interval", "1h"]);
    assert_eq!(fs::read(&path).unwrap(), expected);
    place.umount();
    place.drop_cache();
    place.mount_with(&["--flush-interval", "1h"]);
    // Nothing of it is cached, and only partial blocks at the edges are fetched.
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    zero(&file, &mut expected, PUNCH, 6 * BLOCK + 5, 3 * BLOCK);
    zero(&file, &mut expected, PUNCH, 0, BLOCK);
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, len - 5, BLOCK).unwrap();
    expected[len as usize - 5..].fill(0);
    expected.resize((len - 5 + BLOCK) as usize, 0);
    assert_eq!(fs::read(&path).unwrap(), expected);
    drop(file);
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
    place.drop_cache();
    place.mount();
    assert_eq!(fs::read(&path).unwrap(), expected);
    place.umount();
}

/// Mode 0 extends a file and KEEP_SIZE does not; modes that Linux or the kernel's FUSE rejects
/// fail.
#[test]
fn sizes_and_refusals() {
    let place = Place::new();
    place.mount();
    let path = place.path("mnt/file");
    let file = create(&path);
    fallocate(&file, 0, 100, 900).unwrap();
    assert_eq!(fs::read(&path).unwrap(), vec![0; 1000]);
    fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 0, 1 << 20).unwrap();
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, 500, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1000);
    fallocate(&file, 0, 0, 5).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1000);
    // SAFETY: the descriptor is open and the rest are plain integers.
    assert_eq!(unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, 5000) }, 0);
    assert_eq!(file.metadata().unwrap().len(), 5000);

    let largest = (16u64 << 40) - 4096;
    assert_eq!(fallocate(&file, 0, largest, 1), Err(libc::EFBIG));
    assert_eq!(fallocate(&file, 0, 1 << 60, 1), Err(libc::EFBIG));
    let [.., available, _, _] = room(&place.path("mnt"));
    // Other programs use the disk, too.
    assert_eq!(fallocate(&file, 0, 0, available + (1 << 32)), Err(libc::ENOSPC));
    assert_eq!(fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 0, 2 * available), Err(libc::ENOSPC));
    assert_eq!(file.metadata().unwrap().len(), 5000);
    file.set_len(largest).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(fallocate(&file, 0, 0, 0), Err(libc::EINVAL));
    assert_eq!(fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE, 0, 10), Err(libc::EOPNOTSUPP));
    for mode in [
        libc::FALLOC_FL_COLLAPSE_RANGE,
        libc::FALLOC_FL_INSERT_RANGE,
        libc::FALLOC_FL_UNSHARE_RANGE,
    ] {
        assert_eq!(fallocate(&file, mode, 0, 4096), Err(libc::EOPNOTSUPP));
    }
    assert_eq!(fallocate(&File::open(&path).unwrap(), 0, 0, 10), Err(libc::EBADF));
    drop(file);
    place.umount();
}

/// Situation: a sparse file is written, punched, truncated, extended and mapped; it is uploaded,
/// evicted, and mounted again. Expectation: `st_blocks` excludes holes, also where only the bucket
/// has the file, so that cp(1) and tar(1) keep them.
#[test]
fn holes_take_no_blocks() {
    let place = Place::over_s3();
    place.mount_with(&["--flush-interval", "1h"]);
    let path = place.path("mnt/file");
    let blocks = |path: &Path| path.metadata().unwrap().blocks();
    let file = create(&path);
    assert_eq!(blocks(&path), 0);
    file.set_len(10 * BLOCK).unwrap();
    // Not zero: tar(1) would skip data stored through a mapping.
    assert_eq!(blocks(&path), 1);
    file.write_all_at(&[7; 3 * BLOCK as usize], 2 * BLOCK).unwrap();
    assert_eq!(blocks(&path), 3 * BLOCK / 512);
    file.write_all_at(b"in the last block", 10 * BLOCK).unwrap();
    assert_eq!(blocks(&path), 3 * BLOCK / 512 + 1);
    fallocate(&file, PUNCH, 3 * BLOCK, BLOCK).unwrap();
    assert_eq!(blocks(&path), 2 * BLOCK / 512 + 1);
    file.set_len(4 * BLOCK + 1024).unwrap();
    assert_eq!(blocks(&path), BLOCK / 512 + 2);
    file.set_len(20 * BLOCK).unwrap();
    let sparse = 2 * BLOCK / 512;
    assert_eq!(blocks(&path), sparse);

    // Neither sending, nor dropping, nor a restart makes data of a hole.
    place.ebb(&["flush", "mnt"]).good();
    assert_eq!(blocks(&path), sparse);
    place.ebb(&["evict", "mnt"]).good();
    drop(file);
    assert_eq!(blocks(&path), sparse);
    place.umount();
    place.mount_with(&["--flush-interval", "1h"]);
    assert_eq!(blocks(&path), sparse);
    let content = fs::read(&path).unwrap();
    assert_eq!(blocks(&path), sparse);

    let copy = place.path("mnt/copy");
    assert!(Command::new("cp").arg(&path).arg(&copy).status().unwrap().success());
    assert_eq!((blocks(&copy), fs::read(&copy).unwrap() == content), (sparse, true));
    let tar = Command::new("tar")
        .args(["-C", path.parent().unwrap().to_str().unwrap(), "-Scf", "-", "file"])
        .output()
        .unwrap();
    assert!(
        tar.status.success() && tar.stdout.len() < 4 * BLOCK as usize,
        "{} bytes",
        tar.stdout.len()
    );

    // A node that starts with only the bucket does not know the holes.
    place.umount();
    place.drop_cache();
    place.mount();
    assert_eq!(blocks(&path), 20 * BLOCK / 512);
    place.umount();
}
