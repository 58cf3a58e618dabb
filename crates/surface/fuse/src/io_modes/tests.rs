use super::*;
use std::sync::Weak;

const INO: Ino = Ino(7);

/// On a connection that is gone: nothing can be registered.
fn modes() -> IoModes {
    IoModes::new(Some(Passthrough::new(Weak::new())))
}

#[test]
fn io_modes_keep_pages_unless_an_open_bypasses_them() {
    let modes = modes();
    assert_eq!(modes.open(INO, false, None), IoMode::Direct);
    assert_eq!(modes.open(INO, true, None), IoMode::Direct);
    [Way::Direct; 2].into_iter().for_each(|way| modes.release(INO, way));
    assert_eq!(modes.open(INO, true, None), IoMode::Cached);
    assert_eq!(modes.open(INO, false, None), IoMode::Direct);
    assert_eq!(modes.open(INO, true, None), IoMode::Cached);
}

/// If other mounts can have the volume, writes of one file run in parallel. During such a write the
/// kernel refuses another passthrough file for the inode (EIO).
#[test]
fn io_modes_lend_nothing_beside_other_opens() {
    for cacheable in [true, false] {
        let modes = modes();
        assert!(modes.wants(INO));
        let way = match modes.open(INO, cacheable, None) {
            IoMode::Cached => Way::Cached,
            _ => Way::Direct,
        };
        assert!(!modes.wants(INO));
        modes.release(INO, way);
        assert!(modes.wants(INO));
    }
    assert!(!IoModes::new(None).wants(INO));
}

#[test]
fn io_modes_go_on_in_a_successor() {
    let left = |ways: &[Way], registration| {
        let (modes, mut left) = (modes(), Left { registration, ..Left::default() });
        ways.iter().for_each(|way| left.add(*way));
        modes.left(INO, left, None);
        modes
    };
    assert_eq!(left(&[Way::Cached], None).open(INO, true, None), IoMode::Cached);
    assert_eq!(left(&[Way::Direct], None).open(INO, true, None), IoMode::Direct);
    assert!(!left(&[Way::Direct], None).wants(INO));

    // The last open that uses the granted file returns it.
    let modes = left(&[Way::Cached, Way::Direct], Some(3));
    assert_eq!(modes.open(INO, true, None), IoMode::Native(PassthroughId(3)));
    modes.release(INO, Way::Cached);
    assert!(modes.is_native(INO));
    modes.release(INO, Way::Cached);
    assert!(!modes.is_native(INO) && !modes.wants(INO));
    modes.release(INO, Way::Direct);
    assert_eq!(modes.open(INO, true, None), IoMode::Cached);
}
