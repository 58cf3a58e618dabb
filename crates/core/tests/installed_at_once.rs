//! Installing many names at once equals installing them one by one.

use ebb_core::partition::{Partition, SnapshotItem};
use ebb_model::*;
use proptest::prelude::*;

const SESSION: SessionId = SessionId(1);

#[derive(Clone)]
struct Volume {
    partition: Partition,
    sequence: u64,
}

impl Volume {
    fn new() -> Volume {
        let mut volume = Volume {
            partition: Partition::new(IdRange::whole(IdEpoch(1)), record(), true),
            sequence: 0,
        };
        volume.apply(&Command::SessionOpen {
            session: SESSION,
            client: "test".into(),
            replaces: None,
        });
        volume
    }

    fn apply(&mut self, command: &Command) {
        self.partition.apply(LogIndex(self.partition.applied().0 + 1), command);
    }

    fn stamp(&self) -> Stamp {
        Stamp { time: Time::from_secs(9), version: self.partition.next_version() }
    }

    fn install(&mut self, dir: Ino, entries: Vec<Installed>, stamp: Stamp) {
        let (epoch, progress) =
            (self.partition.backing().load_epoch(dir).unwrap_or_default(), LoadProgress::Unchanged);
        self.apply(&Command::Backing(BackingCommand::Install {
            dir,
            epoch,
            entries,
            hidden: vec![],
            owner: (5, 6),
            progress,
            stamp,
        }));
    }

    /// Success or failure does not matter.
    fn mutate(&mut self, mutation: Mutation) {
        self.sequence += 1;
        let (tx, stamp) =
            (TxId { session: SESSION, slot: 0, sequence: self.sequence }, self.stamp());
        self.apply(&Command::Client { tx, caller: Caller::ROOT, stamp, mutation });
    }

    fn make(&mut self, parent: Ino, name: Name, what: Make) {
        let ino = self.partition.namespace().next_ino(parent.slot()).unwrap();
        self.mutate(Mutation::Make { parent, name, ino, mode: 0o700, what });
    }

    fn items(&self) -> Vec<SnapshotItem> {
        self.partition
            .items()
            .filter(|item| !matches!(item, SnapshotItem::Position { .. }))
            .collect()
    }
}

fn record() -> InstalledRecord {
    let time = Time::from_secs(1);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    InstalledRecord {
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        atime,
        mtime,
        ctime,
        btime,
        xattrs: vec![],
        links: vec![],
    }
}

fn name(number: u8) -> Name {
    let bytes = match number {
        0 => b"d".into(),
        1 => b".ebb%object".into(),
        // Too long as a segment.
        2 => [0xff; 200].into(),
        _ => format!("f{number}").into_bytes(),
    };
    Name::new(&bytes).unwrap()
}

/// State of the directory before the install.
#[derive(Clone, Debug)]
enum Before {
    Make(u8),
    Remove(u8),
    Rename(u8, u8),
    Upload(u8, u8),
    Deleted(u8),
    /// An upload of a file that was removed, with a pending delete.
    Left(u8),
    Quota,
    Complete,
}

fn before() -> impl Strategy<Value = Before> {
    let name = 0..12u8;
    prop_oneof![
        3 => name.clone().prop_map(Before::Make),
        2 => name.clone().prop_map(Before::Remove),
        2 => (name.clone(), name.clone()).prop_map(|(from, to)| Before::Rename(from, to)),
        1 => (name.clone(), name.clone()).prop_map(|(of, key)| Before::Upload(of, key)),
        1 => name.clone().prop_map(Before::Deleted),
        1 => name.prop_map(Before::Left),
        1 => Just(Before::Quota),
        1 => Just(Before::Complete),
    ]
}

/// Mostly a listing of other writers' objects, in order.
fn entry() -> impl Strategy<Value = (u8, u8, bool, u16)> {
    (prop_oneof![20 => Just(0u8), 1 => 1..5u8], 0..16u8, prop::bool::weighted(0.1), 0..300u16)
}

fn installed(entries: Vec<(u8, u8, bool, u16)>, in_order: bool) -> Vec<Installed> {
    let mut entries: Vec<Installed> = entries
        .into_iter()
        .map(|(what, number, recorded, ino)| {
            let (etag, modified) = (format!("e{number}"), Time::from_secs(2));
            let object = |key| InstalledKind::Object {
                key,
                etag,
                len_bytes: u64::from(number) * 3000,
                modified,
            };
            let what = match what {
                0 => object(None),
                1 => object(Some(format!("f{}", number + 1))),
                2 => InstalledKind::Directory { prefix: None, page: recorded },
                3 => InstalledKind::Recorded(Make::Symlink { target: "t".into() }),
                _ => InstalledKind::Directory { prefix: Some(format!("p{number}/")), page: false },
            };
            let incarnation = if ino == 299 { 2 } else { 1 };
            Installed {
                name: name(number),
                ino: Ino((incarnation << 48) | (100 + u64::from(ino))),
                what,
                record: recorded.then(record),
            }
        })
        .collect();
    if in_order {
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries.dedup_by(|a, b| a.name == b.name);
        let mut inos: Vec<Ino> = entries.iter().map(|entry| entry.ino).collect();
        inos.sort_unstable();
        inos.dedup();
        entries.iter_mut().zip(inos).for_each(|(entry, ino)| entry.ino = ino);
    }
    entries
}

fn prepared(steps: &[Before], dir: Ino) -> Volume {
    let mut volume = Volume::new();
    let sub = Installed {
        name: name(0),
        ino: SUB,
        what: InstalledKind::Directory { prefix: None, page: false },
        record: None,
    };
    let stamp = volume.stamp();
    volume.install(Ino::ROOT, vec![sub], stamp);
    let ino_of = |volume: &Volume, number: u8| {
        volume.partition.namespace().dentry(dir, &name(number)).map(|dentry| dentry.ino)
    };
    let prefix = if dir == SUB { "d/" } else { "" };
    for step in steps {
        match *step {
            Before::Make(number) => volume.make(
                dir,
                name(number),
                if number % 5 == 0 { Make::Directory } else { Make::Regular },
            ),
            Before::Remove(number) => {
                volume.mutate(Mutation::Unlink { parent: dir, name: name(number), holders: vec![] })
            }
            Before::Rename(from, to) => {
                let (name, new_name, mode) = (name(from), name(to), RenameMode::Replace);
                volume.mutate(Mutation::Rename {
                    from: dir,
                    name,
                    to: dir,
                    new_name,
                    mode,
                    holders: vec![],
                });
            }
            Before::Upload(of, key) => {
                let Some(ino) = ino_of(&volume, of) else { continue };
                let key = format!("{prefix}f{key}");
                volume.apply(&Command::Backing(BackingCommand::UploadBegun {
                    ino,
                    key,
                    upload: None,
                }));
            }
            Before::Deleted(number) => {
                let stamp = volume.stamp();
                volume.install(dir, installed(vec![(0, number, false, 200)], false), stamp);
                volume.mutate(Mutation::Unlink {
                    parent: dir,
                    name: name(number),
                    holders: vec![],
                });
            }
            Before::Left(number) => {
                let (key, etag) = (format!("{prefix}f{number}"), "left".into());
                let uploaded = BackingCommand::Uploaded {
                    ino: Ino(1 << 48 | 999),
                    key,
                    etag,
                    len_bytes: 1,
                    version: Version(1),
                };
                volume.apply(&Command::Backing(uploaded));
            }
            Before::Quota => {
                let (limits, stamp) =
                    (Some(QuotaLimits { bytes: Some(1 << 20), inodes: None }), volume.stamp());
                volume.apply(&Command::Quota { dir, limits, stamp });
            }
            Before::Complete => {
                let (epoch, stamp) = (
                    volume.partition.backing().load_epoch(dir).unwrap_or_default(),
                    volume.stamp(),
                );
                let (entries, hidden, owner, progress) =
                    (vec![], vec![], (0, 0), LoadProgress::Complete);
                volume.apply(&Command::Backing(BackingCommand::Install {
                    dir,
                    epoch,
                    entries,
                    hidden,
                    owner,
                    progress,
                    stamp,
                }));
                volume.apply(&Command::Backing(BackingCommand::Revalidating { dir }));
            }
        }
    }
    volume
}

const SUB: Ino = Ino(1 << 48 | 50);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn at_once_is_as_one_by_one(
        steps in prop::collection::vec(before(), 0..12),
        entries in prop::collection::vec(entry(), 0..30),
        in_order in prop::bool::weighted(0.8),
        in_root in any::<bool>(),
    ) {
        let dir = if in_root { Ino::ROOT } else { SUB };
        let mut at_once = prepared(&steps, dir);
        let was_possible = at_once.partition.check().is_empty();
        let mut one_by_one = at_once.clone();
        let (entries, stamp) = (installed(entries, in_order), at_once.stamp());
        at_once.install(dir, entries.clone(), stamp);
        let are_possible = was_possible && entries.windows(2).all(|pair| pair[0].name < pair[1].name && pair[0].ino < pair[1].ino);
        let are_objects = entries.iter().all(|entry| matches!(entry.what, InstalledKind::Object { key: None, .. }));
        entries.into_iter().for_each(|entry| one_by_one.install(dir, vec![entry], stamp));
        prop_assert_eq!(at_once.items(), one_by_one.items());
        // Counts and indices that no item contains.
        let problems = at_once.partition.check();
        prop_assert_eq!(&problems, &one_by_one.partition.check());
        prop_assert!(problems.is_empty() || !are_possible || !are_objects, "{:?}", problems);
        let next = |volume: &Volume| volume.partition.namespace().next_ino(dir.slot()).unwrap();
        prop_assert_eq!(next(&at_once), next(&one_by_one));
    }
}
