use crate::volume::*;
use ebb_core::namespace::FIRST_COOKIE;
use ebb_model::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Between two calls names before and after the position are removed, added and replaced: a name
/// that exists throughout is listed once, no name twice.
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
    assert_eq!(
        first.iter().map(|(entry, _)| entry.name.to_string()).collect::<Vec<_>>(),
        ["a", "b"]
    );
    volume.unlink(&Caller::ROOT, dir, "b", &[]).unwrap();
    volume.unlink(&Caller::ROOT, dir, "c", &[]).unwrap();
    let new = volume.file(dir, "new");
    volume.rename((dir, "new"), (dir, "d"), RenameMode::Replace).unwrap();
    volume.rename((dir, "a"), (dir, "e"), RenameMode::Exchange).unwrap();
    let (rest, end) = volume.namespace.read_dir(dir, first[1].0.cookie, 10).unwrap();
    assert!(end);
    assert_eq!(
        rest.iter().map(|(entry, _)| entry.name.to_string()).collect::<Vec<_>>(),
        ["d", "e"]
    );
    assert_eq!(rest[0].1.ino, new);
}

#[test]
fn limits_and_ends_are_exact() {
    let mut volume = Volume::new();
    let (empty, dir) = (volume.dir(Ino::ROOT, "empty"), volume.dir(Ino::ROOT, "d"));
    let file = volume.file(dir, "f");
    volume.file(dir, "g");
    let read = |dir, after, limit| {
        volume.namespace.read_dir(dir, after, limit).map(|(entries, end)| (entries.len(), end))
    };
    assert_eq!(read(empty, Cookie::START, 10), Ok((0, true)));
    assert_eq!(read(dir, Cookie::START, 0), Ok((0, false)));
    assert_eq!(read(dir, Cookie::START, 1), Ok((1, false)));
    assert_eq!(read(dir, Cookie::START, 2), Ok((2, true)));
    assert_eq!(read(dir, Cookie(u64::MAX), 2), Ok((0, true)));
    assert_eq!(read(file, Cookie::START, 2), Err(FsError::NotDirectory));
    assert_eq!(read(Ino(77), Cookie::START, 2), Err(FsError::Stale));
}

/// Situation: a program renames each file as soon as the stream of a directory lists it. Danger:
/// the new name is further on in the stream, which never ends. Expectation: each file is listed
/// once, by its old name.
#[test]
fn readdir_ends_when_listed_names_are_renamed() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let old = ["a", "b", "c", "d", "e"];
    let inos: Vec<Ino> = old.iter().map(|name| volume.file(dir, name)).collect();
    let (mut shown, mut after) = (Vec::new(), Cookie::START);
    loop {
        let (entries, end) = volume.namespace.read_dir(dir, after, 1).unwrap();
        for (entry, _) in entries {
            after = entry.cookie;
            let name = entry.name.to_string();
            volume
                .rename((dir, &name), (dir, &format!("{name}.new")), RenameMode::KeepTarget)
                .unwrap();
            shown.push(name);
        }
        if end {
            break;
        }
    }
    assert_eq!(shown, old);
    let names =
        old.iter().zip(inos).map(|(name, ino)| (format!("{name}.new"), ino)).collect::<Vec<_>>();
    assert_eq!(volume.names(dir), names);
}

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    Make(&'static str),
    Unlink(&'static str),
    Rename(&'static str, &'static str, RenameMode),
    /// Moves a file in from another directory, over the target.
    MoveIn(&'static str),
    MoveOut(&'static str),
}

fn step() -> impl Strategy<Value = Step> {
    let name = || prop::sample::select(vec!["a", "b", "c", "d", "e", "f"]);
    let whiteout = RenameMode::Whiteout { keep_target: false, ino: None };
    let mode = prop::sample::select(vec![
        RenameMode::Replace,
        RenameMode::KeepTarget,
        RenameMode::Exchange,
        whiteout,
    ]);
    prop_oneof![
        3 => (1..3usize).prop_map(Step::Read),
        1 => name().prop_map(Step::Make),
        1 => name().prop_map(Step::Unlink),
        4 => (name(), name(), mode).prop_map(|(from, to, mode)| Step::Rename(from, to, mode)),
        1 => name().prop_map(Step::MoveIn),
        1 => name().prop_map(Step::MoveOut),
    ]
}

/// A reader of a directory, and the names that it has seen.
struct Reader {
    volume: Volume,
    dir: Ino,
    after: Cookie,
    ended: bool,
    /// Each existing name: whether it existed from the beginning, and how often it was listed.
    names: BTreeMap<String, (bool, usize)>,
    shown: usize,
    /// Entries that existed, were created or were moved in.
    entries: usize,
}

impl Reader {
    fn step(&mut self, step: Step) {
        let dir = self.dir;
        match step {
            Step::Read(limit) => {
                let (entries, end) =
                    self.volume.namespace.read_dir(dir, self.after, limit).unwrap();
                self.ended = end;
                for (entry, _) in entries {
                    self.after = entry.cookie;
                    self.shown += 1;
                    self.names
                        .get_mut(&entry.name.to_string())
                        .expect("a name that is shown is there")
                        .1 += 1;
                }
            }
            Step::Make(name) => {
                if self.volume.make(&Caller::ROOT, dir, name, 0o644, Make::Regular).is_ok() {
                    self.came(name);
                }
            }
            Step::Unlink(name) => {
                if self.volume.unlink(&Caller::ROOT, dir, name, &[]).is_ok() {
                    self.names.remove(name);
                }
            }
            Step::Rename(from, to, mode) => {
                let ino = self.volume.namespace.next_ino(dir.slot());
                let mode = if mode.makes() {
                    RenameMode::Whiteout { keep_target: false, ino }
                } else {
                    mode
                };
                if self.volume.rename((dir, from), (dir, to), mode).is_err()
                    || from == to
                    || mode == RenameMode::Exchange
                {
                    return;
                }
                if !mode.makes() {
                    self.names.remove(from);
                    self.names.entry(to.into()).or_insert((false, 0));
                } else if !self.names.contains_key(to) {
                    self.came(to);
                }
            }
            Step::MoveIn(name) => {
                self.volume.file(Ino::ROOT, "outside");
                self.volume
                    .rename((Ino::ROOT, "outside"), (dir, name), RenameMode::Replace)
                    .unwrap();
                if !self.names.contains_key(name) {
                    self.came(name);
                }
            }
            Step::MoveOut(name) => {
                if self
                    .volume
                    .rename((dir, name), (Ino::ROOT, "outside"), RenameMode::Replace)
                    .is_ok()
                {
                    self.volume.unlink(&Caller::ROOT, Ino::ROOT, "outside", &[]).unwrap();
                    self.names.remove(name);
                }
            }
        }
    }

    fn came(&mut self, name: &str) {
        self.entries += 1;
        self.names.insert(name.into(), (false, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// For any changes between two calls: a name that exists throughout is listed exactly once,
    /// none twice while it exists, and no rename makes the stream longer, except one that leaves a
    /// whiteout.
    #[test]
    fn readdir_lists_lasting_names_once_and_ends(present in 0..7usize, steps in prop::collection::vec(step(), 0..40)) {
        let mut volume = Volume::new();
        let dir = volume.dir(Ino::ROOT, "d");
        let names: Vec<&str> = ["a", "b", "c", "d", "e", "f"][..present.min(6)].to_vec();
        for name in &names {
            volume.file(dir, name);
        }
        let entries = names.len();
        let names = names.into_iter().map(|name| (name.to_string(), (true, 0))).collect();
        let mut reader = Reader { volume, dir, after: Cookie::START, ended: false, names, shown: 0, entries };
        for step in steps {
            reader.step(step);
            for (name, (_, times)) in &reader.names {
                prop_assert!(*times <= 1, "{} was shown {} times", name, times);
            }
        }
        reader.ended = false;
        while !reader.ended {
            reader.step(Step::Read(2));
        }
        for (name, (stayed, times)) in &reader.names {
            prop_assert!(!stayed || *times == 1, "{} was there all the time and was shown {} times", name, times);
        }
        prop_assert!(reader.shown <= reader.entries, "{} entries were shown {} times", reader.entries, reader.shown);
    }
}
