use super::fate::Kind;
use super::*;
use std::os::unix::fs::MetadataExt;

const KINDS: [Kind; 6] =
    [Kind::Nothing, Kind::Everything, Kind::UpTo(20), Kind::Writes, Kind::Sectors, Kind::Each];

/// A disk in a directory of its own, removed on drop.
struct Scratch {
    dir: PathBuf,
    disk: Disk,
}

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("ebb-disk-{name}-{}", std::process::id()));
        let disk = Disk::new(&dir).unwrap();
        Scratch { dir, disk }
    }

    fn file(&mut self, name: &str) -> Id {
        self.disk.make_file(ROOT, OsStr::new(name), 0o600).unwrap()
    }

    fn content(&self, id: Id) -> Vec<u8> {
        self.disk.read(id, 0, 1 << 20).unwrap()
    }

    fn names(&self, dir: Id) -> Vec<String> {
        self.disk.list(dir).into_iter().map(|(name, _)| name.into_string().unwrap()).collect()
    }

    fn cut(&mut self, kind: Kind, seed: u64) -> Lost {
        self.disk.settle(&mut Fate::new(Rng(seed), kind)).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// Random changes, with the file's content after each of them. Danger: after a cut a sector has
/// content that it never had, or a forced sector has older content.
#[test]
fn each_sector_is_as_some_change_since_the_last_force_has_left_it() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mut scratch = Scratch::new(&format!("sectors-{seed}"));
        let id = scratch.file("file");
        scratch.disk.force(ROOT).unwrap();
        let mut states = vec![Vec::new()];
        for _ in 0..20 {
            let (offset, len) = (rng.below(20_000), 1 + rng.below(5000));
            match rng.below(8) {
                0 => scratch.disk.set_len(id, offset).unwrap(),
                1 => scratch.disk.punch(id, offset, len).unwrap(),
                2 => scratch.disk.reserve(id, offset, len).unwrap(),
                3 => {
                    scratch.disk.force(id).unwrap();
                    states.clear();
                }
                _ => scratch.disk.write(id, offset, &rng.bytes(len as usize)).unwrap(),
            }
            states.push(scratch.content(id));
        }
        let kind = KINDS[seed as usize % KINDS.len()];
        scratch.cut(kind, seed);
        let found = scratch.content(id);
        assert!(
            states.iter().any(|state| state.len() == found.len()),
            "seed {seed}: a length of no moment"
        );
        match kind {
            Kind::Nothing => assert_eq!(found, states[0], "seed {seed}"),
            Kind::Everything => assert_eq!(found, *states.last().unwrap(), "seed {seed}"),
            _ => {}
        }
        for (nth, sector) in found.chunks(SECTOR_BYTES as usize).enumerate() {
            let start = nth * SECTOR_BYTES as usize;
            let was = |state: &Vec<u8>| {
                (0..sector.len())
                    .all(|at| state.get(start + at).copied().unwrap_or(0) == sector[at])
            };
            assert!(states.iter().any(was), "seed {seed}: sector {nth} is as it never was");
        }
    }
}

#[test]
fn writes_are_torn_and_overtake_each_other() {
    let (mut torn, mut overtaken) = (0, 0);
    for seed in 0..100 {
        let mut scratch = Scratch::new(&format!("torn-{seed}"));
        let id = scratch.file("file");
        scratch.disk.write(id, 0, &[1; 8192]).unwrap();
        scratch.disk.write(id, 8192, &[2; 8192]).unwrap();
        scratch.disk.force(ROOT).unwrap();
        scratch.cut(Kind::Writes, seed);
        let found = scratch.content(id);
        let count = |byte: u8| found.iter().filter(|found| **found == byte).count();
        torn += u32::from([1, 2].iter().any(|byte| count(*byte) % 8192 != 0));
        overtaken += u32::from(count(1) == 0 && count(2) > 0);
    }
    assert!(torn > 0 && overtaken > 0, "{torn} torn, {overtaken} overtaken");
}

/// A file of the maximum length is truncated: only its data is recorded, not its holes.
#[test]
fn the_longest_file_costs_nothing() {
    let mut scratch = Scratch::new("long");
    let id = scratch.file("file");
    scratch.disk.write(id, 0, b"begin").unwrap();
    assert!(scratch.disk.set_len(id, u64::MAX).is_err());
    scratch.disk.set_len(id, 1 << 42).unwrap();
    scratch.disk.write(id, (1 << 42) - 3, b"end").unwrap();
    scratch.disk.force(id).unwrap();
    scratch.disk.force(ROOT).unwrap();
    scratch.disk.set_len(id, 2).unwrap();
    scratch.cut(Kind::Nothing, 1);
    assert_eq!(scratch.disk.read(id, 0, 5).unwrap(), b"begin");
    assert_eq!(scratch.disk.read(id, (1 << 42) - 3, 10).unwrap(), b"end");
    let Stat::File { metadata, .. } = scratch.disk.stat(id).unwrap() else {
        panic!("it is a file")
    };
    assert!(metadata.blocks() < 100);
}

#[test]
fn a_name_is_kept_only_if_its_directory_was_forced() {
    let mut scratch = Scratch::new("names");
    let safe = scratch.disk.make_dir(ROOT, OsStr::new("safe"), 0o700).unwrap();
    let kept = scratch.disk.make_file(safe, OsStr::new("kept"), 0o600).unwrap();
    scratch.disk.write(kept, 0, b"bytes").unwrap();
    scratch.disk.force(kept).unwrap();
    scratch.disk.force(safe).unwrap();
    // Neither the file's fsync nor its directory's forces the path to that directory.
    let mut lost = Scratch::new("lost");
    let dir = lost.disk.make_dir(ROOT, OsStr::new("dir"), 0o700).unwrap();
    let file = lost.disk.make_file(dir, OsStr::new("file"), 0o600).unwrap();
    lost.disk.force(file).unwrap();
    lost.disk.force(dir).unwrap();
    lost.cut(Kind::Nothing, 1);
    assert_eq!(lost.names(ROOT), [""; 0]);
    assert!(lost.disk.stat(file).is_err());

    scratch.disk.force(ROOT).unwrap();
    scratch.disk.make_file(safe, OsStr::new("loose"), 0o600).unwrap();
    scratch.cut(Kind::Nothing, 1);
    assert_eq!(scratch.names(ROOT), ["safe"]);
    assert_eq!(scratch.names(safe), ["kept"]);
    assert_eq!(scratch.content(kept), b"bytes");
}

/// Danger: a removed or replaced inode is missing when its name reappears.
#[test]
fn what_was_removed_and_replaced_comes_back() {
    for kind in KINDS {
        let mut scratch = Scratch::new(&format!("back-{kind:?}"));
        let (old, new, gone) = (scratch.file("old"), scratch.file("new"), scratch.file("gone"));
        for (id, bytes) in [(old, b"old"), (new, b"new"), (gone, b"was")] {
            scratch.disk.write(id, 0, bytes).unwrap();
            scratch.disk.force(id).unwrap();
        }
        scratch.disk.force(ROOT).unwrap();
        scratch.disk.rename((ROOT, "new".into()), (ROOT, "old".into())).unwrap();
        scratch.disk.remove_file(ROOT, OsStr::new("gone")).unwrap();
        assert_eq!(scratch.content(gone), b"was");
        scratch.cut(kind, 7);
        for (name, id) in scratch.disk.list(ROOT) {
            let content = scratch.content(id);
            match name.to_str().unwrap() {
                "old" => assert!(
                    [b"old", b"new"].contains(&content.as_slice().try_into().unwrap()),
                    "{kind:?}"
                ),
                "new" => assert_eq!(content, b"new", "{kind:?}"),
                _ => assert_eq!(content, b"was", "{kind:?}"),
            }
        }
        let names = scratch.names(ROOT);
        match kind {
            Kind::Nothing => assert_eq!(names, ["gone", "new", "old"]),
            Kind::Everything => assert_eq!(names, ["old"]),
            _ => assert!(names.contains(&"old".into()), "{kind:?}: a rename is whole"),
        }
        assert_eq!(
            fs::read_dir(&scratch.dir).unwrap().count(),
            scratch.disk.nodes.len() - 1,
            "{kind:?}: files are left over"
        );
    }
}
