//! An encrypted disk behaves like a plain one: compared with a model over kills, power cuts and
//! failing operations.

use bytes::Bytes;
use ebb_encryption::{EncryptionError, Key};
use ebb_ports::{Disk, DiskError, OpenMode};
use ebb_sim::{DiskOperation, Process, Rng, World};
use std::collections::BTreeSet;
use std::rc::Rc;

fn key(byte: u8) -> Key {
    Key::parse(&[byte; 32]).unwrap()
}

async fn encrypted(process: &Process) -> Rc<dyn Disk> {
    let ports = &process.ports;
    ebb_encryption::open(ports.disk.clone(), Some(&key(1)), ports.entropy.clone()).await.unwrap()
}

fn start(world: &World) -> Process {
    world.machine("a").process("node")
}

/// The possible contents of a file: its current bytes, and each byte's values after a power cut.
#[derive(Clone)]
struct Model {
    now: Vec<u8>,
    /// After a failed sync, the values of the affected bytes are unknown after a power cut unless
    /// they are written again.
    bytes: Vec<Kept>,
    lens: Kept<usize>,
    /// The disk may have kept a length that is no longer than this, and nothing behind it.
    known_below: usize,
}

#[derive(Clone)]
struct Kept<T = u8> {
    versions: BTreeSet<T>,
    is_changed: bool,
    is_stranded: bool,
}

impl<T: Ord + Copy> Kept<T> {
    fn forced(value: T) -> Kept<T> {
        Kept { versions: BTreeSet::from([value]), is_changed: false, is_stranded: false }
    }

    fn changes(&mut self, to: T) {
        self.versions.insert(to);
        self.is_changed = true;
        self.is_stranded = false;
    }

    fn sync(&mut self, now: T) {
        if !self.is_stranded {
            *self = Kept::forced(now);
        }
    }
}

const LONGEST: usize = 2000;

impl Model {
    fn new() -> Model {
        Model {
            now: Vec::new(),
            bytes: vec![Kept::forced(0); LONGEST],
            lens: Kept::forced(0),
            known_below: LONGEST,
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.now.get(at).copied().unwrap_or(0)
    }

    fn set_len(&mut self, len: usize) {
        for at in len..self.now.len() {
            self.bytes[at].changes(0);
        }
        if len != self.now.len() {
            self.lens.changes(len);
        }
        self.now.resize(len, 0);
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        if self.now.len() < at + data.len() {
            self.set_len(at + data.len());
        }
        for (byte, value) in data.iter().enumerate() {
            self.now[at + byte] = *value;
            self.bytes[at + byte].changes(*value);
        }
    }

    fn punch(&mut self, at: usize, len: usize) {
        let end = (at + len).min(self.now.len());
        for byte in at..end {
            self.now[byte] = 0;
            self.bytes[byte].changes(0);
        }
    }

    fn sync(&mut self) {
        for at in 0..LONGEST {
            let now = self.byte(at);
            self.bytes[at].sync(now);
        }
        self.lens.sync(self.now.len());
    }

    fn strand(&mut self) {
        self.bytes.iter_mut().for_each(|byte| byte.is_stranded |= byte.is_changed);
        self.lens.is_stranded |= self.lens.is_changed;
        if self.lens.is_stranded {
            self.known_below =
                self.lens.versions.iter().copied().fold(self.known_below, usize::min);
        }
    }

    /// Adopts the state after a power cut.
    fn cut(&mut self, found: &[u8]) {
        assert!(
            self.lens.versions.contains(&found.len()),
            "{} bytes, of {:?}",
            found.len(),
            self.lens.versions
        );
        for (at, byte) in found.iter().enumerate() {
            let Kept { versions, is_stranded, .. } = &self.bytes[at];
            assert!(
                *is_stranded || at >= self.known_below || versions.contains(byte),
                "byte {at} of {} is {byte}, of {versions:?}",
                found.len()
            );
        }
        self.now = found.to_vec();
        self.bytes = (0..LONGEST).map(|at| Kept::forced(self.byte(at))).collect();
        self.lens = Kept::forced(found.len());
        self.known_below = LONGEST;
    }

    /// Adopts the state after a failed operation: done, not done, or partly done.
    fn failed(&mut self, before: &Model, found: &[u8]) {
        for (at, byte) in found.iter().enumerate() {
            let allowed = [before.byte(at), self.byte(at)];
            assert!(allowed.contains(byte), "byte {at} is {byte}, of {allowed:?}");
        }
        let (least, most) =
            (before.now.len().min(self.now.len()), before.now.len().max(self.now.len()));
        assert!(
            (least..=most).contains(&found.len()),
            "{} bytes, of {least} to {most}",
            found.len()
        );
        for at in 0..LONGEST {
            let value = found.get(at).copied().unwrap_or(0);
            self.bytes[at].versions.extend([value, 0]);
            self.bytes[at].is_stranded |= before.bytes[at].is_stranded;
            self.bytes[at].is_changed = true;
        }
        self.lens.is_stranded |= before.lens.is_stranded;
        self.lens.is_changed = true;
        self.lens.versions.extend(least..=most);
        self.now = found.to_vec();
    }
}

/// Situation: one file is written, truncated, punched, forced and reopened at unaligned offsets;
/// operations fail, the process is killed, the power is cut. Danger: data that shares a block, a
/// length or a header with lost data is lost, too. Expectation: every byte has a value that it had
/// since its last force.
#[test]
fn encrypted_file_behaves_like_a_plain_one() {
    let (mut cuts, mut failures, mut lost) = (0, 0, 0);
    for seed in 0..400 {
        let world = World::new(seed);
        let rng = Rng::new(seed).split("encrypted file");
        let mut model = Model::new();
        let mut process = start(&world);
        let open = async |process: &Process| {
            encrypted(process).await.open("file", OpenMode::Create).await.unwrap()
        };
        let mut file = world.run(open(&process)).unwrap();
        world.run(process.ports.disk.sync_dir("")).unwrap().unwrap();
        for _ in 0..60 {
            let (at, len) = (rng.index(LONGEST - 200), 1 + rng.index([3, 17, 200][rng.index(3)]));
            let before = model.clone();
            let kind = rng.below(12);
            let fails = rng.below(8) == 0;
            let failing = match kind {
                0..6 => Some((DiskOperation::Write, 1 + rng.below(2))),
                6..9 => Some((DiskOperation::Sync, 1)),
                _ => None,
            };
            if let Some((operation, nth)) = failing.filter(|_| fails) {
                world.machine("a").disk("node").fail_nth(operation, nth);
            }
            let done = match kind {
                0..4 => {
                    let data: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                    model.write(at, &data);
                    world.run(file.write_at(at as u64, data.into())).unwrap()
                }
                4 => {
                    let len = rng.index(LONGEST);
                    model.set_len(len);
                    world.run(file.set_len(len as u64)).unwrap()
                }
                5 => {
                    model.punch(at, len * 3);
                    world.run(file.punch(at as u64, len as u64 * 3)).unwrap()
                }
                6..9 => {
                    let synced = world.run(file.sync_data()).unwrap();
                    if synced.is_ok() {
                        model.sync()
                    } else {
                        model.strand()
                    }
                    Ok(())
                }
                9 => {
                    drop(file);
                    file = world.run(open(&process)).unwrap();
                    Ok(())
                }
                10 => {
                    process.kill();
                    process = start(&world);
                    file = world.run(open(&process)).unwrap();
                    Ok(())
                }
                _ => {
                    world.machine("a").power_cut();
                    process = start(&world);
                    file = world.run(open(&process)).unwrap();
                    let found = world.run(file.read_at(0, 2 * LONGEST)).unwrap().unwrap();
                    lost += u64::from(found != model.now);
                    model.cut(&found);
                    cuts += 1;
                    Ok(())
                }
            };
            let found = world.run(file.read_at(0, 2 * LONGEST)).unwrap().unwrap();
            if done.is_err() {
                failures += 1;
                model.failed(&before, &found);
            }
            assert!(found == model.now, "seed {seed}");
            assert_eq!(world.run(file.len()).unwrap().unwrap(), model.now.len() as u64);
            let part = world.run(file.read_at(at as u64, len)).unwrap().unwrap();
            assert_eq!(
                part,
                model.now[at.min(model.now.len())..(at + len).min(model.now.len())],
                "seed {seed}"
            );
        }
    }
    assert!(
        cuts > 1000 && failures > 200 && lost > 200,
        "{cuts} power cuts of which {lost} took something, {failures} failures"
    );
}

/// Two handles write to one block: both writes are present.
#[test]
fn neighbours_do_not_overwrite_each_other() {
    for seed in 0..50 {
        let world = World::new(seed);
        let process = start(&world);
        let written = world.run(async {
            let disk = encrypted(&process).await;
            let opens = [0, 1, 2, 3].map(|_| disk.open("file", OpenMode::Create));
            let files = futures_util::future::try_join_all(opens).await.unwrap();
            let writes = files
                .iter()
                .enumerate()
                .map(|(at, file)| file.write_at(5 * at as u64, Bytes::from(vec![at as u8 + 1; 5])));
            futures_util::future::try_join_all(writes).await.unwrap();
            files[0].read_at(0, 100).await.unwrap()
        });
        assert_eq!(written.unwrap(), [[1; 5], [2; 5], [3; 5], [4; 5]].concat(), "seed {seed}");
    }
}

/// A file takes its contents along when it is renamed, and leaves nothing to one that gets its
/// name.
#[test]
fn names_come_and_go() {
    let world = World::new(1);
    let process = start(&world);
    let done = world.run(async {
        let disk = encrypted(&process).await;
        let put = async |path: &str, text: &'static str| {
            let file = disk.open(path, OpenMode::Create).await?;
            file.write_at(0, text.into()).await?;
            Ok::<_, DiskError>(file)
        };
        let first = put("first", "first").await?;
        put("second", "second").await?;
        disk.rename("first", "second").await?;
        let renamed = disk.open("second", OpenMode::Existing).await?;
        first.write_at(5, " of all".into()).await?;
        assert_eq!(renamed.read_at(0, 100).await?, "first of all");
        disk.remove("second").await?;
        put("second", "third").await?;
        assert_eq!(first.read_at(0, 100).await?, "first of all");
        assert_eq!(disk.list("").await?, ["second"]);
        assert!(matches!(
            disk.open("second", OpenMode::CreateNew).await,
            Err(DiskError::Exists { .. })
        ));
        assert!(matches!(
            disk.open("first", OpenMode::Existing).await,
            Err(DiskError::NotFound { .. })
        ));
        encrypted(&process).await.open("second", OpenMode::Existing).await?.read_at(0, 100).await
    });
    assert_eq!(done.unwrap().unwrap(), "third");
}

/// The first write leaves a partial header and fails, the second succeeds, and a power cut keeps
/// some sectors of each: surviving contents are readable.
#[test]
fn a_header_that_failed_is_that_of_the_next_write() {
    for seed in 0..200 {
        let world = World::new(seed);
        let process = start(&world);
        let write = async || {
            let file = encrypted(&process).await.open("file", OpenMode::Create).await.unwrap();
            process.ports.disk.sync_dir("").await.unwrap();
            world.machine("a").disk("node").fail_nth(DiskOperation::Write, 1);
            file.write_at(0, Bytes::from(vec![7; 100])).await.unwrap_err();
            file.write_at(0, Bytes::from(vec![7; 100])).await.unwrap();
        };
        world.run(write()).unwrap();
        world.machine("a").power_cut();
        let process = start(&world);
        let read = async || {
            encrypted(&process).await.open("file", OpenMode::Existing).await?.read_at(0, 200).await
        };
        let found = world.run(read()).unwrap().unwrap();
        assert!(found.iter().all(|byte| [0, 7].contains(byte)), "seed {seed}: {found:?}");
    }
}

/// One of the two headers rots and nothing is lost; with both the file is damaged, and not empty.
#[test]
fn a_header_can_be_lost() {
    let world = World::new(1);
    let process = start(&world);
    let read = async || {
        encrypted(&process).await.open("file", OpenMode::Existing).await?.read_at(0, 100).await
    };
    let put = async |text: &'static str| {
        let file = encrypted(&process).await.open("file", OpenMode::Create).await.unwrap();
        file.write_at(0, text.into()).await.unwrap();
        file.sync_data().await.unwrap();
    };
    let flip = |offset| assert!(world.machine("a").disk("node").flip("file", offset, 4).unwrap());
    world.run(put("contents")).unwrap();
    for first in [16, 2048 + 16] {
        flip(first);
        assert_eq!(world.run(read()).unwrap().unwrap(), "contents");
        flip(2048 + 32 - first);
        let damaged = world.run(read()).unwrap().unwrap_err().to_string();
        assert!(damaged.contains("file: encrypted file: damaged at byte 0"), "{damaged}");
        flip(first);
        world.run(put("contents")).unwrap();
    }
    flip(2048);
    world.run(put("contents")).unwrap();
    flip(0);
    assert_eq!(world.run(read()).unwrap().unwrap(), "contents", "a write has put the other right");
}

/// The platter reveals nothing of the plaintext: equal bytes differ there.
#[test]
fn the_platter_tells_nothing() {
    let world = World::new(1);
    let process = start(&world);
    world
        .run(async {
            let disk = encrypted(&process).await;
            for path in ["one", "two"] {
                let file = disk.open(path, OpenMode::Create).await.unwrap();
                file.write_at(0, Bytes::from(b"sixteen letters!".repeat(1000))).await.unwrap();
            }
            let mut blocks = BTreeSet::new();
            for path in ["one", "two"] {
                let stored = process
                    .ports
                    .disk
                    .open(path, OpenMode::Existing)
                    .await
                    .unwrap()
                    .read_at(4096, 16_000)
                    .await
                    .unwrap();
                assert!(stored.windows(7).all(|part| part != b"letters"));
                blocks.extend(stored.chunks(16).map(<[u8]>::to_vec));
            }
            assert_eq!(blocks.len(), 2000);
        })
        .unwrap();
}

/// A missing or wrong key, or a key for a plain directory, is rejected without any change.
#[test]
fn only_the_right_key_opens_a_data_directory() {
    let world = World::new(1);
    let process = start(&world);
    let disk = |name: &str| world.machine("a").process(name).ports.disk;
    world
        .run(async {
            let open = async |disk: &Rc<dyn Disk>, key: Option<Key>| {
                let opened =
                    ebb_encryption::open(disk.clone(), key.as_ref(), process.ports.entropy.clone())
                        .await;
                opened.map(|_| ())
            };
            let fresh = disk("fresh");
            assert_eq!(open(&fresh, Some(key(1))).await, Ok(()));
            assert_eq!(open(&fresh, Some(key(1))).await, Ok(()));
            assert_eq!(open(&fresh, Some(key(2))).await, Err(EncryptionError::WrongKey));
            assert_eq!(open(&fresh, None).await, Err(EncryptionError::NoKey));
            assert_eq!(fresh.list("").await.unwrap(), ["encryption"]);
            let plain = disk("plain");
            plain.open("identity", OpenMode::Create).await.unwrap();
            assert_eq!(open(&plain, Some(key(1))).await, Err(EncryptionError::Plain));
            assert_eq!(open(&plain, None).await, Ok(()));
            assert_eq!(plain.list("").await.unwrap(), ["identity"]);
            let damaged = disk("damaged");
            open(&damaged, Some(key(1))).await.unwrap();
            damaged
                .open("encryption", OpenMode::Existing)
                .await
                .unwrap()
                .write_at(60, "x".into())
                .await
                .unwrap();
            assert!(matches!(open(&damaged, Some(key(1))).await, Err(EncryptionError::Format(_))));
        })
        .unwrap();
}
