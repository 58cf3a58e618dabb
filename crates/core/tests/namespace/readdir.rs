use crate::volume::*;
use ebb_core::namespace::FIRST_COOKIE;
use ebb_model::*;

/// Between two calls names before and after the position go, others come, one is replaced:
/// what was there all the time is shown once, nothing twice.
#[test]
fn a_stream_survives_changes() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    for name in ["a", "b", "c", "d", "e"] {
        volume.file(dir, name);
    }
    let (first, end) = volume.namespace.read_dir(dir, Cookie::START, 2).unwrap();
    assert!(!end);
    assert_eq!(first[0].0.cookie, FIRST_COOKIE);
    assert_eq!(first.iter().map(|(entry, _)| entry.name.to_string()).collect::<Vec<_>>(), ["a", "b"]);
    volume.unlink(&Caller::ROOT, dir, "b", &[]).unwrap();
    volume.unlink(&Caller::ROOT, dir, "c", &[]).unwrap();
    let new = volume.file(dir, "new");
    volume.rename((dir, "new"), (dir, "d"), RenameMode::Replace).unwrap();
    volume.rename((dir, "a"), (dir, "e"), RenameMode::Exchange).unwrap();
    let (rest, end) = volume.namespace.read_dir(dir, first[1].0.cookie, 10).unwrap();
    assert!(end);
    assert_eq!(rest.iter().map(|(entry, _)| entry.name.to_string()).collect::<Vec<_>>(), ["d", "e"]);
    assert_eq!(rest[0].1.ino, new);
}

#[test]
fn limits_and_ends_are_exact() {
    let mut volume = Volume::new();
    let (empty, dir) = (volume.dir(Ino::ROOT, "empty"), volume.dir(Ino::ROOT, "d"));
    let file = volume.file(dir, "f");
    volume.file(dir, "g");
    let read = |dir, after, limit| volume.namespace.read_dir(dir, after, limit).map(|(entries, end)| (entries.len(), end));
    assert_eq!(read(empty, Cookie::START, 10), Ok((0, true)));
    assert_eq!(read(dir, Cookie::START, 0), Ok((0, false)));
    assert_eq!(read(dir, Cookie::START, 1), Ok((1, false)));
    assert_eq!(read(dir, Cookie::START, 2), Ok((2, true)));
    assert_eq!(read(dir, Cookie(u64::MAX), 2), Ok((0, true)));
    assert_eq!(read(file, Cookie::START, 2), Err(FsError::NotDirectory));
    assert_eq!(read(Ino(77), Cookie::START, 2), Err(FsError::Stale));
}
