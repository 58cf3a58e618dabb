use super::*;
use crate::abi::init;
use std::sync::Weak;

const READS: OpenFlags = OpenFlags { bits: libc::O_RDONLY };
const WRITES: OpenFlags = OpenFlags { bits: libc::O_WRONLY };
const APPENDS: OpenFlags = OpenFlags { bits: libc::O_WRONLY | libc::O_APPEND };
const BOTH: OpenFlags = OpenFlags { bits: libc::O_RDWR };
const INO: Ino = Ino(7);

/// Linux 6.18, and one that may keep a page which was read while it was written.
const NEW: Negotiated = Negotiated { minor: 45, flags: init::DIRECT_IO_ALLOW_MMAP };
const OLD: Negotiated = Negotiated { minor: 44, flags: init::DIRECT_IO_ALLOW_MMAP };

/// On a connection that is gone: nothing can be registered.
fn modes(kernel: Negotiated) -> IoModes {
    IoModes::new(Some(Passthrough::new(Weak::new())), kernel, true)
}

fn by(number: u64, flags: OpenFlags) -> Opener {
    Opener {
        number,
        flags,
        cacheable: true,
        made: true,
        thread: Some(number as u32),
        at: Instant::now(),
    }
}

fn opened(modes: &IoModes, number: u64, flags: OpenFlags) -> IoMode {
    modes.open(INO, by(number, flags), None)
}

#[test]
fn the_first_open_decides() {
    for (first, mode, way) in [
        (READS, IoMode::Cached, [Way::Cached; 4]),
        (BOTH, IoMode::Cached, [Way::Cached; 4]),
        (APPENDS, IoMode::Cached, [Way::Cached; 4]),
        (WRITES, IoMode::Direct, [Way::Writer, Way::Direct, Way::Writer, Way::Direct]),
    ] {
        let modes = modes(NEW);
        for (number, flags) in [first, READS, WRITES, BOTH].into_iter().enumerate() {
            assert_eq!(opened(&modes, number as u64, flags), mode, "{first:?} {flags:?}");
        }
        // As long as one is open.
        (1..4).for_each(|number| modes.release(INO, number, way[number as usize]));
        assert_eq!(opened(&modes, 4, READS), mode);
        modes.release(INO, 0, way[0]);
        modes.release(INO, 4, if mode == IoMode::Cached { Way::Cached } else { Way::Direct });
        assert_eq!(opened(&modes, 5, READS), IoMode::Cached);
    }
}

#[test]
fn what_is_not_to_be_cached_is_not() {
    let modes = modes(NEW);
    let shared = |number, flags| Opener { cacheable: false, made: false, ..by(number, flags) };
    assert_eq!(modes.open(INO, shared(1, READS), None), IoMode::Direct);
    assert_eq!(opened(&modes, 2, READS), IoMode::Direct);
    [1, 2].into_iter().for_each(|number| modes.release(INO, number, Way::Direct));
    assert_eq!(opened(&modes, 3, READS), IoMode::Cached);
    assert_eq!(modes.open(INO, shared(4, BOTH), None), IoMode::Direct);
}

/// Where other mounts can have the volume writes of one file go side by side, which keeps the
/// kernel from a lent file of another name for it (EIO): nothing is lent while one can be under
/// way, and nobody who makes a file has others follow it.
#[test]
fn nothing_is_lent_beside_writes_that_go_side_by_side() {
    let modes = IoModes::new(Some(Passthrough::new(Weak::new())), NEW, false);
    let shared = |number, flags| Opener { cacheable: false, ..by(number, flags) };
    assert!(modes.wants(INO));
    assert_eq!(modes.open(INO, shared(1, WRITES), None), IoMode::Direct);
    modes.heard(INO, 1);
    assert!(!modes.wants(INO) && !modes.is_written_past(INO));
    modes.release(INO, 1, Way::Writer);
    assert!(modes.wants(INO));
    assert_eq!(opened(&modes, 2, WRITES), IoMode::Cached);
}

#[test]
fn older_kernels_write_into_their_pages() {
    assert_eq!(opened(&modes(OLD), 1, WRITES), IoMode::Cached);
}

/// Who follows what is written would see it in the kernel's pages, where nothing can be lent; and
/// what is not new may be mapped by many.
#[test]
fn where_nothing_is_lent_writers_write_into_the_pages() {
    assert_eq!(opened(&IoModes::new(None, NEW, true), 1, WRITES), IoMode::Cached);
    let not_made = Opener { made: false, ..by(1, WRITES) };
    assert_eq!(modes(NEW).open(INO, not_made, None), IoMode::Cached);
}

/// Situation: a writer has its answer, and has not come to run. Danger: the kernel is told to read
/// the file natively, and refuses the writer's open. Expectation: nobody is lent the file before
/// the writer is known to have run, however long that takes, and nobody waits for it for long.
#[test]
fn nobody_is_lent_a_file_before_the_kernel_has_it_open() {
    let (nobody, everybody) = (|_| false, |_| true);
    let (modes, soon) = (modes(NEW), Instant::now());
    opened(&modes, 1, WRITES);
    assert!(modes.is_written_past(INO) && !modes.wants(INO));
    // For this little time one that sleeps may do so in the open itself.
    assert!(modes.is_awaited(INO, 9, soon, everybody));
    modes.heard(INO, 1);
    assert!(modes.wants(INO) && !modes.is_awaited(INO, 9, soon, nobody));
    opened(&modes, 2, WRITES);
    assert!(!modes.is_awaited(INO, 2, soon, nobody) && modes.wants(INO), "who asks again has run");
    // Which thread it is may not be known.
    opened(&modes, 3, WRITES);
    modes.open(INO, Opener { thread: None, ..by(4, WRITES) }, None);
    assert!(modes.is_awaited(INO, 0, soon, everybody) && !modes.wants(INO));
    let late = Instant::now() + LONGEST_WAIT;
    modes.open(INO, Opener { at: late, ..by(5, WRITES) }, None);
    assert!(!modes.is_awaited(INO, 9, late, |thread| thread == 3) && !modes.wants(INO), "in vain");
    modes.heard(INO, 5);
    assert!(!modes.is_awaited(INO, 9, late, nobody) && !modes.wants(INO));
    assert!(!modes.is_awaited(INO, 9, late + LONGEST_OPEN, nobody) && modes.wants(INO));
    // Who reads otherwise may have it mapped, until that is over.
    opened(&modes, 6, READS);
    assert!(!modes.wants(INO));
    modes.release(INO, 6, Way::Direct);
    assert!(modes.wants(INO));
}

#[test]
fn a_successor_goes_on_in_the_same_modes() {
    let left = |ways: &[Way], registration| {
        let (modes, mut left) = (modes(NEW), Left { registration, ..Left::default() });
        (10..).zip(ways).for_each(|(number, way)| left.add(number, *way));
        modes.left(INO, left, None);
        modes
    };
    assert_eq!(opened(&left(&[Way::Cached], None), 1, WRITES), IoMode::Cached);
    assert_eq!(opened(&left(&[Way::Direct, Way::Writer], None), 1, READS), IoMode::Direct);
    assert!(!left(&[Way::Direct, Way::Writer], None).wants(INO));
    let modes = left(&[Way::Writer], None);
    assert!(!modes.wants(INO));
    modes.heard(INO, 10);
    assert!(modes.wants(INO));

    // What is lent is given back with the last who has it, whoever goes on writing.
    let modes = left(&[Way::Cached, Way::Writer], Some(3));
    assert_eq!(opened(&modes, 1, READS), IoMode::Native(PassthroughId(3)));
    modes.release(INO, 1, Way::Cached);
    assert!(modes.is_native(INO));
    modes.release(INO, 2, Way::Cached);
    assert!(!modes.is_native(INO) && modes.is_written_past(INO));
    modes.release(INO, 3, Way::Writer);
    assert_eq!(opened(&modes, 4, READS), IoMode::Cached);
}
