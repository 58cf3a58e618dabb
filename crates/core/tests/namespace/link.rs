use crate::volume::*;
use ebb_core::namespace::Change;
use ebb_model::*;

/// A second name increments `nlink`, changes ctime and the directory, and is not primary.
#[test]
fn a_link_is_another_name() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let file = volume.file(Ino::ROOT, "f");
    let before = volume.attr(file);
    let changes = volume.link(file, dir, "g").unwrap();
    assert!(
        matches!(&changes[..], [Change::Linked { parent, ino, primary: false, .. }] if *parent == dir && *ino == file)
    );
    let after = volume.attr(file);
    assert_eq!((after.nlink, after.ctime, after.mtime), (2, volume.now(), before.mtime));
    assert_eq!(volume.attr(dir).mtime, volume.now());
    assert_eq!(volume.path(file).unwrap(), "/f");
}

#[test]
fn directories_and_removed_inodes_get_no_second_name() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    assert_eq!(volume.link(dir, Ino::ROOT, "e"), Err(FsError::NotPermitted));
    let file = volume.file(Ino::ROOT, "f");
    assert_eq!(volume.link(file, Ino::ROOT, "d"), Err(FsError::Exists));
    volume.unlink(&Caller::ROOT, Ino::ROOT, "f", &[SESSION]).unwrap();
    assert_eq!(volume.link(file, Ino::ROOT, "f"), Err(FsError::NotFound));
}

#[test]
fn links_end_at_the_limit() {
    let mut volume = Volume::new();
    let what = InstalledKind::Object {
        key: None,
        etag: "e".into(),
        len_bytes: 1,
        modified: Time::from_secs(1),
    };
    let ino = volume.namespace.next_ino(Ino::ROOT.slot()).unwrap();
    let record = InstalledRecord { nlink: MAX_LINKS - 1, ..root_record() };
    let stamp = volume.stamp();
    assert!(volume.namespace.install(
        Ino::ROOT,
        &Installed { name: name("f"), ino, what, record: Some(record) },
        (0, 0),
        stamp
    ));
    assert!(volume.link(ino, Ino::ROOT, "g").is_ok());
    assert_eq!(volume.link(ino, Ino::ROOT, "h"), Err(FsError::TooManyLinks));
}
