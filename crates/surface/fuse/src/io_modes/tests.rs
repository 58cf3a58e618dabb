use super::*;
use crate::abi::init;
use std::sync::Weak;

const READS: OpenFlags = OpenFlags { bits: libc::O_RDONLY };
const WRITES: OpenFlags = OpenFlags { bits: libc::O_WRONLY };
const BOTH: OpenFlags = OpenFlags { bits: libc::O_RDWR };
const INO: Ino = Ino(7);

/// Linux 6.18, and one that may keep a page which was read while it was written.
const NEW: Negotiated = Negotiated { minor: 45, flags: init::DIRECT_IO_ALLOW_MMAP };
const OLD: Negotiated = Negotiated { minor: 44, flags: init::DIRECT_IO_ALLOW_MMAP };

/// On a connection that is gone: nothing can be registered.
fn modes(kernel: Negotiated) -> IoModes {
    IoModes::new(Some(Passthrough::new(Weak::new())), kernel)
}

fn opened(modes: &IoModes, flags: OpenFlags) -> IoMode {
    modes.open(INO, flags, None, true)
}

#[test]
fn the_first_open_decides() {
    for (first, mode) in [(READS, IoMode::Cached), (BOTH, IoMode::Cached), (WRITES, IoMode::Direct)] {
        let modes = modes(NEW);
        for flags in [first, READS, WRITES, BOTH] {
            assert_eq!(opened(&modes, flags), mode);
        }
        // As long as one is open.
        (0..3).for_each(|_| modes.release(INO));
        assert_eq!(opened(&modes, READS), mode);
        (0..2).for_each(|_| modes.release(INO));
        assert_eq!(opened(&modes, READS), IoMode::Cached);
    }
}

#[test]
fn what_is_not_to_be_cached_is_not() {
    let modes = modes(NEW);
    assert_eq!(modes.open(INO, READS, None, false), IoMode::Direct);
    assert_eq!(modes.open(INO, READS, None, true), IoMode::Direct);
    (0..2).for_each(|_| modes.release(INO));
    assert_eq!(opened(&modes, READS), IoMode::Cached);
    assert_eq!(modes.open(INO, BOTH, None, false), IoMode::Direct);
}

#[test]
fn older_kernels_write_into_their_pages() {
    let modes = modes(OLD);
    assert_eq!(opened(&modes, WRITES), IoMode::Cached);
}

/// Who follows what is written would see it in the kernel's pages, where nothing can be lent.
#[test]
fn without_passthrough_writers_write_into_the_pages() {
    assert_eq!(opened(&IoModes::new(None, NEW), WRITES), IoMode::Cached);
}

#[test]
fn who_appends_writes_into_the_pages() {
    let modes = modes(NEW);
    assert_eq!(opened(&modes, OpenFlags { bits: libc::O_WRONLY | libc::O_APPEND }), IoMode::Cached);
}

#[test]
fn the_first_who_reads_beside_a_writer_can_have_the_lent_file() {
    let modes = modes(NEW);
    opened(&modes, WRITES);
    assert!(modes.is_only_written(INO) && modes.wants(INO));
    opened(&modes, WRITES);
    assert!(modes.is_only_written(INO) && modes.wants(INO));
    opened(&modes, READS);
    assert!(!modes.is_only_written(INO) && !modes.wants(INO));
}

#[test]
fn a_successor_goes_on_in_the_same_mode() {
    let left = |cached| Left { count: 1, read: false, cached, registration: None };
    for (cached, mode) in [(true, IoMode::Cached), (false, IoMode::Direct)] {
        let modes = modes(NEW);
        modes.left(INO, left(cached), None);
        assert_eq!(opened(&modes, READS), mode);
        (0..2).for_each(|_| modes.release(INO));
        assert_eq!(opened(&modes, READS), IoMode::Cached);
    }
}
