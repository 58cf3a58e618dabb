//! A follower with a disk of its own: the commands of a leader's log, power cuts between them, and
//! effects on what the follower has of the files.

use bytes::Bytes;
use ebb_client::Client;
use ebb_core::state::State;
use ebb_format::record::GroupId;
use ebb_format::segment::VolumeId;
use ebb_journal::{Log, LoggedCommand, SnapshotFrames};
use ebb_model::*;
use ebb_node::{Follower, Options, serves};
use ebb_sim::volume::rig::{attach_embedded, open};
use ebb_sim::{Machine, Process, Rng, World};
use std::rc::Rc;
use std::time::Duration;

const FILES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

/// What a leader has logged: each command with the state behind it.
struct Leader {
    process: Process,
    cluster: ClusterId,
    commands: Vec<(LogIndex, Command, State)>,
}

impl Leader {
    /// A node that has done what the seed draws.
    async fn new(world: &World) -> Leader {
        let process = world.machine("leader").process_on("node", "data");
        let options = Options {
            volume: "ebb".into(),
            embedded: true,
            flush_interval: Duration::from_secs(3600),
            snapshot_operations: u64::MAX,
            ..Options::default()
        };
        let node = open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let client = attach_embedded(&process, &node).await.unwrap().unwrap();
        let rng = world.rng("leader");
        for _ in 0..80 {
            change(&client, &rng).await;
        }
        client.admin(AdminRequest::Flush { path: Vec::new() }).await.unwrap();
        for _ in 0..20 {
            change(&client, &rng).await;
        }
        let serves = serves(&process.ports).await.unwrap().unwrap();
        let volume = VolumeId(serves.cluster.0);
        let mut recovery = Log::read(process.ports.disk.clone(), volume).await.unwrap();
        let snapshot = snapshot(&process, volume).await.unwrap();
        let mut state = State::from_items(items(snapshot).await, []).unwrap();
        let mut commands = Vec::new();
        while let Some(logged) = recovery.entries.next().await.unwrap() {
            if let LoggedCommand::Partition(command) = logged.command {
                state.apply(logged.index, &command);
                commands.push((logged.index, command, state.clone()));
            }
        }
        assert!(commands.len() > 50, "only {} commands", commands.len());
        Leader { process, cluster: serves.cluster, commands }
    }

    async fn follower(&self, machine: &Machine) -> (Process, Rc<Follower>) {
        let process = machine.process_on("follower", "data");
        let (ports, from) = (process.ports.clone(), self.process.clone());
        let cluster = self.cluster;
        let open = async move {
            let leader = async || snapshot(&from, VolumeId(cluster.0)).await;
            Follower::open(&ports, cluster, leader).await
        };
        let follower = process.call(open).await.expect("it lives").unwrap();
        (process, Rc::new(follower))
    }
}

/// The state before the first command.
async fn snapshot(
    process: &Process,
    volume: VolumeId,
) -> Result<SnapshotFrames, ebb_journal::LogError> {
    SnapshotFrames::open(&*process.ports.disk, volume, GroupId::PARTITION, LogIndex(0)).await
}

async fn items(mut snapshot: SnapshotFrames) -> Vec<ebb_core::partition::SnapshotItem> {
    let mut items = Vec::new();
    while let Some(frame) = snapshot.next().await.unwrap() {
        items.extend(ebb_format::snapshot::value_of::<Vec<_>>(&frame).unwrap());
    }
    items
}

/// One change of some file. Some are refused, which is logged, too.
async fn change(client: &Client, rng: &Rng) {
    let pick = |rng: &Rng| Name::new(FILES[rng.below(FILES.len() as u64) as usize]).unwrap();
    let (name, root) = (pick(rng), Caller::ROOT);
    let found = client.lookup(Ino::ROOT, &name).await;
    let Ok(attr) = found else {
        client.make(&root, Ino::ROOT, &name, 0o644, Make::Regular, false).await.unwrap();
        return;
    };
    let at = rng.below(3 * BLOCK_BYTES);
    let outcome = match rng.below(8) {
        0..3 => {
            let data = Bytes::from(vec![rng.below(255) as u8; 1 + rng.below(90_000) as usize]);
            client.write(&root, attr.ino, at, data, false).await.map(drop)
        }
        3 | 4 => {
            let set = SetAttr { size_bytes: Some(at), ..SetAttr::default() };
            client.setattr(&root, attr.ino, set).await.map(drop)
        }
        5 => client
            .fallocate(&root, attr.ino, (at, 2 * BLOCK_BYTES), Allocation::Zero, true, false)
            .await
            .map(drop),
        6 => client.unlink(&root, Ino::ROOT, &name).await.map(drop),
        _ => {
            client.admin(AdminRequest::Flush { path: Vec::new() }).await.unwrap();
            let new = pick(rng);
            let mode = RenameMode::Replace;
            client.rename(&root, Ino::ROOT, &name, Ino::ROOT, &new, mode).await.map(drop)
        }
    };
    assert_ne!(outcome, Err(FsError::Io));
}

/// Copies of the first block of each file whose object has it, as another node would send them.
async fn keep_some(process: &Process, follower: &Rc<Follower>) {
    let wanted: Vec<(Ino, String, u64)> = {
        let state = follower.view();
        let files = state.partition().content().files().filter_map(|ino| {
            let content = state.partition().content();
            let object = content.object(ino)?;
            let is_clean = content.dirty_version(ino, 0).is_none() && !content.is_hole(ino, 0);
            (is_clean && object.valid_bytes > 0).then_some((ino, object.etag, object.valid_bytes))
        });
        files.collect()
    };
    for (ino, etag, valid_bytes) in wanted {
        let mut block = vec![0; BLOCK_BYTES as usize];
        block[..valid_bytes.min(BLOCK_BYTES) as usize].fill(b'k');
        let follower = follower.clone();
        let kept = async move { follower.keep(ino, &etag, 0, block.into()).await };
        process.call(kept).await.expect("it lives").unwrap();
    }
}

/// No file is on the disk that the state does not have, and none has bytes behind its end.
async fn expect_effects(process: &Process, follower: &Rc<Follower>, seed: u64) {
    for ino in follower.files() {
        let size = follower.view().namespace().attr(ino).map(|attr| attr.size_bytes);
        let size = size.unwrap_or_else(|_| panic!("seed {seed}: a file of {ino} is left"));
        let (reader, at) = (follower.clone(), size);
        let read = async move { reader.read(ino, at, 2 * BLOCK_BYTES as usize).await };
        let behind = process.call(read).await.expect("it lives").unwrap();
        assert!(
            behind.iter().all(|byte| *byte == 0),
            "seed {seed}: {ino} has bytes behind its end at {size}"
        );
    }
}

#[test]
fn follower_performs_effects_and_agrees_after_power_cuts() {
    for seed in 1..=12 {
        let world = World::new(seed);
        let scenario = async {
            let leader = Leader::new(&world).await;
            let (machine, rng) = (world.machine("follower"), world.rng("follower"));
            let (mut process, mut follower) = leader.follower(&machine).await;
            let mut forced = LogIndex(0);
            let mut next = 0;
            while let Some((index, command, state)) = leader.commands.get(next) {
                let (to, command, at) = (follower.clone(), command.clone(), *index);
                let followed = async move { to.follow(at, &command).await };
                process.call(followed).await.expect("it lives").unwrap();
                let is_equal = follower.view().partition().items().eq(state.partition().items());
                assert!(is_equal, "seed {seed}: another state after command {}", index.0);
                assert_eq!(follower.view().check_copies(), Vec::<String>::new());
                next += 1;
                match rng.below(12) {
                    0..4 => keep_some(&process, &follower).await,
                    4 => {
                        let forcing = follower.clone();
                        let force = async move { forcing.force().await };
                        process.call(force).await.expect("it lives").unwrap();
                        forced = *index;
                        expect_effects(&process, &follower, seed).await;
                    }
                    5 => {
                        let writing = follower.clone();
                        let write = async move { writing.write_snapshot().await };
                        process.call(write).await.expect("it lives").unwrap();
                        forced = *index;
                    }
                    6 => {
                        machine.power_cut();
                        (process, follower) = leader.follower(&machine).await;
                        let applied = follower.view().applied();
                        assert!(applied >= forced, "seed {seed}: forced commands are lost");
                        let is_next = |(index, ..): &(LogIndex, _, _)| *index > applied;
                        next = leader.commands.iter().position(is_next).expect("it was behind");
                        expect_effects(&process, &follower, seed).await;
                    }
                    _ => {}
                }
            }
        };
        world.run(scenario).unwrap();
    }
}

/// Situation: the power fails between the snapshot of the extents and that of the partition.
/// Danger: the extents follow commands again that they have followed, and lose later blocks.
#[test]
fn extents_follow_each_command_once() {
    for delay in 0..40 {
        let world = World::new(delay);
        let scenario = async {
            let leader = Leader::new(&world).await;
            let machine = world.machine("follower");
            let (process, follower) = leader.follower(&machine).await;
            for (index, command, _) in &leader.commands {
                let (to, command, at) = (follower.clone(), command.clone(), *index);
                let followed = async move { to.follow(at, &command).await };
                process.call(followed).await.expect("it lives").unwrap();
            }
            keep_some(&process, &follower).await;
            let forcing = follower.clone();
            process.call(async move { forcing.force().await }).await.expect("it lives").unwrap();
            let before: Vec<_> = follower.view().local().items().collect();
            let writing = follower.clone();
            process.spawn(async move { drop(writing.write_snapshot().await) });
            world.sleep(Duration::from_micros(400 * delay)).await;
            machine.power_cut();
            let (_process, follower) = leader.follower(&machine).await;
            let after: Vec<_> = follower.view().local().items().collect();
            assert_eq!(after, before, "delay {delay}");
        };
        world.run(scenario).unwrap();
    }
}
