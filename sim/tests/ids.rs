//! Inode ids of whole nodes: slots, and the ranges of take-overs (decision 30).

use ebb_client::{Client, ClientPorts, Options as ClientOptions};
use ebb_format::head::{self, Head};
use ebb_format::identity::{self, Identity};
use ebb_format::record::{self, GroupId, Payload, RecordHeader};
use ebb_format::segment::{self, Generation, SegmentHeader, VolumeId};
use ebb_format::snapshot::SnapshotHeader;
use ebb_journal::{Log, LoggedCommand};
use ebb_model::*;
use ebb_node::head::{HEAD_KEY, TakeOver};
use ebb_node::{Node, OpenError, Options, Stopped};
use ebb_ports::OpenMode;
use ebb_sim::volume::rig;
use ebb_sim::{Process, World};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;

/// Counters that stay reserved after a release.
const KEPT: u32 = 1 << 12;

struct Mount {
    process: Process,
    node: Rc<Node>,
    client: Rc<Client>,
}

async fn try_mount(world: &World, machine: &str, options: Options) -> Result<Mount, OpenError> {
    let process = world.machine(machine).process_on("node", "data");
    let options =
        Options { owner: machine.into(), embedded: true, scrub_interval: None, ..options };
    let node = match rig::open(&process, &world.bucket(), &options).await.unwrap() {
        Ok(node) => node,
        Err(error) => {
            process.kill();
            return Err(error);
        }
    };
    let (link, ports) = (rig::local_link(&node), ClientPorts::from(&process.ports));
    let client = ClientOptions {
        read_only: options.read_only,
        ..ClientOptions::new(rig::VOLUME, "embedded")
    };
    let attached = process.call(Client::attach(link, ports, client)).await.unwrap();
    let client = attached.unwrap();
    Ok(Mount { process, node, client: Rc::new(client) })
}

async fn mount(world: &World, machine: &str) -> Mount {
    try_mount(world, machine, Options::default()).await.unwrap()
}

async fn mount_read_only(world: &World, machine: &str) -> Mount {
    try_mount(world, machine, Options { read_only: true, ..Options::default() }).await.unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

impl Mount {
    async fn make(&self, dir: Ino, text: &str, what: Make) -> Ino {
        self.client.make(&ROOT, dir, &name(text), 0o755, what, false).await.unwrap().ino
    }

    async fn lookup(&self, dir: Ino, text: &str) -> Ino {
        self.client.lookup(dir, &name(text)).await.unwrap().ino
    }

    async fn stop(self) -> Stopped {
        let (node, client) = (self.node.clone(), self.client.clone());
        let stopping = async move {
            client.detach(Duration::from_secs(30)).await.unwrap();
            node.stop(true).await
        };
        let stopped = self.process.call(stopping).await.unwrap();
        self.process.kill();
        stopped.unwrap()
    }
}

fn head_of(world: &World) -> Head {
    head::decode(&world.bucket().objects()[HEAD_KEY].body).unwrap()
}

fn run(seed: u64, scene: impl AsyncFnOnce(&World)) {
    let world = World::new(seed);
    world.run(scene(&world)).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: directories and files are made, and found in the bucket. Danger: all of them are in
/// one slot, and the volume cannot be split later. Expectation: each directory draws a slot of its
/// own, and files share the slot of their directory.
#[test]
fn slots_are_drawn_for_directories_and_shared_by_their_files() {
    run(1, async |world| {
        for key in ["found/a", "found/b", "other/c"] {
            world.bucket().put_as_outsider(key, "content", Vec::new()).unwrap();
        }
        let mount = mount(world, "a").await;
        let mut dirs = Vec::new();
        for number in 0..20 {
            let dir = mount.make(Ino::ROOT, &format!("d{number}"), Make::Directory).await;
            let below = mount.make(dir, "below", Make::Directory).await;
            let file = mount.make(dir, "file", Make::Regular).await;
            assert_eq!(file.slot(), dir.slot());
            dirs.extend([dir, below]);
        }
        for (dir, files) in [("found", vec!["a", "b"]), ("other", vec!["c"])] {
            let dir = mount.lookup(Ino::ROOT, dir).await;
            dirs.push(dir);
            for file in files {
                assert_eq!(mount.lookup(dir, file).await.slot(), dir.slot());
            }
        }
        let slots: BTreeSet<Slot> = dirs.iter().map(|dir| dir.slot()).collect();
        assert!(slots.len() > 40, "42 of 65,536 slots seldom meet: {slots:?}");
        let file = mount.make(Ino::ROOT, "file", Make::Regular).await;
        assert_eq!(file.slot(), Ino::ROOT.slot());
    });
}

/// Situation: a volume goes from node to node, by releases, a crash and a restart. Danger: an id is
/// handed out twice, or each take-over wastes many. Expectation: all ids differ; a release leaves a
/// mark just above the used ids; a restart goes on counting.
#[test]
fn owners_in_turn_draw_different_ids() {
    run(2, async |world| {
        let mut made: BTreeMap<Ino, String> = BTreeMap::new();
        let mut note = |ino: Ino, text: &str| {
            let before = made.insert(ino, text.into());
            assert_eq!(before, None, "{ino} is {text}, too");
        };
        let mut incarnation = 0;
        for (turn, machine) in ["a", "b", "a", "c", "c", "b"].into_iter().enumerate() {
            let before = (turn > 0).then(|| head_of(world).ids);
            let mount = mount(world, machine).await;
            for number in 0..3 {
                let text = format!("{turn}-{number}");
                let dir = mount.make(Ino::ROOT, &text, Make::Directory).await;
                note(dir, &text);
                note(mount.make(dir, "file", Make::Regular).await, &format!("{text}/file"));
                note(mount.make(Ino::ROOT, &format!("{text}.txt"), Make::Regular).await, &text);
            }
            if turn == 3 {
                // The same data directory starts again.
                mount.process.kill();
                continue;
            }
            assert_eq!(mount.stop().await, Stopped::Released);
            let head = head_of(world);
            if turn != 4 {
                incarnation += 1 + u64::from(turn == 5);
                assert_eq!(head.incarnation, Incarnation(incarnation), "turn {turn}");
            }
            if let Some(before) = before.filter(|_| turn < 3) {
                let used = head.ids.below - before.below;
                assert!((KEPT..KEPT + 20).contains(&used), "{used} of one take-over");
            }
        }
        let mount = mount(world, "d").await;
        for (ino, text) in made.iter().filter(|(_, text)| !text.contains('/')) {
            let found = [text.clone(), format!("{text}.txt")].map(|text| name(&text));
            let mut inos = Vec::new();
            for name in &found {
                inos.push(mount.client.lookup(Ino::ROOT, name).await.unwrap().ino);
            }
            assert!(inos.contains(ino), "{text} had {ino}, and has {inos:?}");
        }
    });
}

/// Situation: after a release the data directory is mounted read-only and finds new names; then
/// another node takes the volume over. Danger: both draw the same ids, and the first one takes the
/// page of one directory for that of another. Expectation: the ids differ, and the read-only node
/// shows each directory with its own names.
#[test]
fn read_only_node_draws_no_id_of_the_next_owner() {
    run(3, async |world| {
        let owner = mount(world, "a").await;
        let used = owner.make(Ino::ROOT, "made", Make::Directory).await;
        assert_eq!(owner.stop().await, Stopped::Released);
        let mark = head_of(world).ids;
        for number in 0..30 {
            let key = format!("found{number}/below");
            world.bucket().put_as_outsider(&key, "content", Vec::new()).unwrap();
        }
        let reader = mount_read_only(world, "a").await;
        let mut found = BTreeSet::new();
        for number in 0..30 {
            let dir = reader.lookup(Ino::ROOT, &format!("found{number}")).await;
            found.extend([dir, reader.lookup(dir, "below").await]);
        }
        assert!(found.iter().all(|ino| (ino.epoch(), ino.counter()) < (mark.epoch, mark.below)));
        assert!(found.len() == 60 && !found.contains(&used));

        let next = mount(world, "b").await;
        for number in 0..100 {
            let dir = next.make(Ino::ROOT, &format!("next{number}"), Make::Directory).await;
            let file = next.make(dir, "file", Make::Regular).await;
            assert!(!found.contains(&dir) && !found.contains(&file));
        }
        assert_eq!(next.stop().await, Stopped::Released);
        reader.process.kill();
        let again = mount(world, "a").await;
        assert_eq!(head_of(world).incarnation, Incarnation(3));
        let dir = again.lookup(Ino::ROOT, "next5").await;
        again.lookup(dir, "file").await;
    });
}

/// Situation: a node dies between the put of the head and its first record; its log is lost.
/// Danger: it takes the ids before its take-over, or those of the lost log, for unused.
/// Expectation: it reserves ids above all of them.
#[test]
fn data_directory_without_a_log_reserves_new_ids() {
    run(4, async |world| {
        let first = mount(world, "a").await;
        let made = first.make(Ino::ROOT, "first", Make::Regular).await;
        first.process.kill();
        let disk = world.machine("a").process_on("surgery", "data").ports.disk.clone();
        for dir in ["log", "snapshot"] {
            for name in disk.list(dir).await.unwrap() {
                disk.remove(&format!("{dir}/{name}")).await.unwrap();
            }
        }
        drop(disk);
        let mark = head_of(world).ids;
        let second = mount(world, "a").await;
        let again = second.make(Ino::ROOT, "second", Make::Regular).await;
        assert!(made.counter() < mark.below && again.counter() >= mark.below, "{made} {again}");
        assert!(head_of(world).ids.below > again.counter());
    });
}

/// Situation: release 0.1.0 has left a data directory, once with everything in the bucket and once
/// not. Danger: changes are dropped, or ids of the earlier release are drawn again. Expectation:
/// the clean one starts empty, as the same node, with ids of the next epoch; the other is refused
/// with one line, and nothing is changed.
#[test]
fn data_directory_of_release_0_1_0_starts_empty_or_is_refused() {
    run(5, async |world| {
        let clean = mount(world, "a").await;
        let old = clean.make(Ino::ROOT, "file", Make::Regular).await;
        assert_eq!(clean.stop().await, Stopped::Released);
        age(world, "a").await;
        let renewed = mount(world, "a").await;
        assert_eq!(head_of(world).incarnation, Incarnation(2));
        let new = renewed.make(Ino::ROOT, "new", Make::Regular).await;
        assert_eq!((old.epoch(), new.epoch()), (IdEpoch(1), IdEpoch(2)));
        renewed.lookup(Ino::ROOT, "file").await;
        renewed.process.kill();

        age(world, "a").await;
        let before = identity_of(world, "a").await.1;
        for take_over in [TakeOver::IfAbandoned, TakeOver::Now] {
            let options = Options { take_over, ..Options::default() };
            let refused = try_mount(world, "a", options).await.map(drop).unwrap_err().to_string();
            let whole = "ebb 0.1.0 wrote the data directory, and 2 files and directories in it \
                have not reached the bucket: mount it once more with ebb 0.1.0, and unmount it \
                there";
            assert_eq!(refused, whole);
        }
        assert_eq!(identity_of(world, "a").await.1, before);
    });
}

/// Situation: a node of release 0.1.0 has died; everything is in the bucket, and its clients have
/// not detached. Danger: they lose their sessions. Expectation: a node that they could come back to
/// is refused, and one in whose process no client has outlived the death starts.
#[test]
fn sessions_of_release_0_1_0_are_not_dropped() {
    run(7, async |world| {
        let old = mount(world, "a").await;
        old.make(Ino::ROOT, "file", Make::Regular).await;
        old.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        old.process.kill();
        age(world, "a").await;
        let process = world.machine("a").process_on("node", "data");
        let refused = rig::open(&process, &world.bucket(), &Options::default()).await.unwrap();
        assert_eq!(refused.map(drop), Err(OpenError::OutdatedInUse));
        process.kill();
        let new = mount(world, "a").await;
        new.lookup(Ino::ROOT, "file").await;
    });
}

/// Situation: a data directory of release 0.1.0 is all that there is of a volume without a bucket.
/// Danger: it is taken for a cache. Expectation: it is refused.
#[test]
fn volume_of_release_0_1_0_without_a_bucket_is_kept() {
    run(6, async |world| {
        let process = world.machine("a").process_on("node", "data");
        let options = Options { embedded: true, ..Options::default() };
        let open = |process: &Process| {
            process.call(Node::open(process.ports.clone(), None, options.clone()))
        };
        let node = open(&process).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        let made = client.make(&ROOT, Ino::ROOT, &name("f"), 0o644, Make::Regular, false).await;
        made.unwrap();
        process.kill();
        age_log(world, "a").await;
        age_identity(world, "a").await;
        let process = world.machine("a").process_on("node", "data");
        let refused = open(&process).await.unwrap().map(drop);
        assert_eq!(refused, Err(OpenError::Outdated { dirty: 1 }));
    });
}

async fn identity_of(world: &World, machine: &str) -> (Identity, Vec<u8>) {
    let disk = world.machine(machine).process_on("surgery", "data").ports.disk.clone();
    let file = disk.open("identity", OpenMode::Existing).await.unwrap();
    let bytes = file.read_at(0, 64 << 10).await.unwrap().to_vec();
    (identity::decode(&bytes).unwrap(), bytes)
}

/// Writes the data directory and the head as release 0.1.0 did.
async fn age(world: &World, machine: &str) {
    age_log(world, machine).await;
    age_identity(world, machine).await;
    age_head(world);
}

/// Writes snapshot and log of the partition as release 0.1.0 did, which had one group.
async fn age_log(world: &World, machine: &str) {
    let cluster = identity_of(world, machine).await.0.serves.unwrap().cluster;
    let volume = VolumeId(cluster.0);
    let disk = world.machine(machine).process_on("surgery", "data").ports.disk.clone();
    let mut recovery = Log::read(disk.clone(), volume).await.unwrap();
    let mut snapshot = recovery.snapshots.remove(&GroupId::PARTITION).unwrap();
    let SnapshotHeader { term, index: first, version, .. } = *snapshot.header();
    let mut old = b"EBBSNAP\x01\x01\0\0\0\0\0\0\0".to_vec();
    old.extend(volume.0.to_le_bytes());
    for number in [term.0, first.0, version.0] {
        old.extend(number.to_le_bytes());
    }
    let mut sum = ebb_format::crc32c(&old).to_le_bytes();
    old.extend(sum);
    let mut frames = 0u64;
    let mut add = |len: u32, content: &[u8]| {
        let len = len.to_le_bytes();
        sum = ebb_format::crc32c(&[&sum, &len, content].concat()).to_le_bytes();
        [&len, &sum, content].concat()
    };
    while let Some(content) = snapshot.next().await.unwrap() {
        old.extend(add(content.len() as u32, &content));
        frames += 1;
    }
    let end = add(u32::MAX, &frames.to_le_bytes());
    old.extend(end);

    let (generation, synced) = (Generation(1), Position(0));
    let mut log = segment::encode(&SegmentHeader { generation, volume, len_bytes: 0 });
    let mut position = Position(0);
    while let Some(logged) = recovery.entries.next().await.unwrap() {
        let LoggedCommand::Partition(command) = logged.command else { continue };
        position.0 += 1;
        let (group, index) = (GroupId::PARTITION, logged.index);
        let header = RecordHeader { generation, group, position, synced, term, index };
        let at = log.len();
        record::encode(&header, &Payload::<_, LocalCommand>::Command(command), &mut log).unwrap();
        // Group 0 and version 1.
        log[at + 12..at + 16].fill(0);
        log[at + 53] = 1;
        let sum = ebb_format::crc32c(&log[at + 4..at + 64]);
        log[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
    log.resize(log.len().next_multiple_of(4096) + 4096, 0);
    for dir in ["log", "snapshot"] {
        for file in disk.list(dir).await.unwrap() {
            disk.remove(&format!("{dir}/{file}")).await.unwrap();
        }
    }
    for (path, content) in
        [("log/00000001".into(), log), (format!("snapshot/{:016x}", first.0), old)]
    {
        let file = disk.open(&path, OpenMode::Create).await.unwrap();
        file.write_at(0, content.into()).await.unwrap();
    }
}

async fn age_identity(world: &World, machine: &str) {
    let (Identity { node, serves, .. }, _) = identity_of(world, machine).await;
    let serves = serves.unwrap();
    let text = sealed(format!(
        "{{\"format\":1,\"node\":\"{node:032x}\",\"cluster\":\"{}\",\"incarnation\":{},\
         \"backing\":\"{}\"",
        serves.cluster, serves.incarnation.0, serves.backing
    ));
    let disk = world.machine(machine).process_on("surgery", "data").ports.disk.clone();
    let file = disk.open("identity", OpenMode::Existing).await.unwrap();
    file.set_len(0).await.unwrap();
    file.write_at(0, text.into()).await.unwrap();
}

fn age_head(world: &World) {
    let Head { cluster, incarnation, node, run, owner, beat, released, .. } = head_of(world);
    let text = sealed(format!(
        "{{\"format\":1,\"cluster\":\"{cluster}\",\"incarnation\":{},\"node\":\"{node:032x}\",\
         \"run\":\"{run:016x}\",\"owner\":\"{owner}\",\"started_secs\":0,\"term_secs\":30,\
         \"beat\":{beat},\"released\":{released}",
        incarnation.0
    ));
    world.bucket().put_as_outsider(HEAD_KEY, text, Vec::new()).unwrap();
}

fn sealed(members: String) -> String {
    let sum = ebb_format::crc32c(format!("{members}}}").as_bytes());
    format!("{members},\"crc32c\":\"{sum:08x}\"}}")
}
