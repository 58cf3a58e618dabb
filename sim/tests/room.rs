//! Back-pressure: the amount of dirty and cached data at which writers wait.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_ports::Capabilities;
use ebb_sim::volume::rig;
use ebb_sim::{DiskFaults, DiskOperation, FaultPlan, Process, Rate, SECTOR_BYTES, Slowness, World};
use futures_util::future::{Either, join, join_all, select};
use std::ops::Range;
use std::panic::catch_unwind;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const ROOT: Caller = Caller::ROOT;

/// Runs `work` with a client of a node with a dirty limit of 1 MiB, a wait of ten seconds, and a
/// cache of 8 MiB.
fn with_room_for_one<F: Future<Output = ()> + 'static>(
    seed: u64,
    work: impl FnOnce(Rc<World>, Rc<Client>) -> F,
) {
    with_room_for(seed, MIB, work);
}

fn with_room_for<F: Future<Output = ()> + 'static>(
    seed: u64,
    dirty_bytes: u64,
    work: impl FnOnce(Rc<World>, Rc<Client>) -> F,
) {
    let world = Rc::new(World::new(seed));
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let options = options(dirty_bytes);
        let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        process.call(work(world.clone(), client)).await.expect("the process lives");
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}

fn options(dirty_bytes: u64) -> Options {
    let space_timeout = Duration::from_secs(10);
    Options {
        owner: "room".into(),
        embedded: true,
        dirty_bytes,
        cache_bytes: 8 * MIB,
        space_timeout,
        ..Options::default()
    }
}

async fn fill(client: &Client, ino: Ino, mib: u64) -> Result<(), FsError> {
    for at in 0..mib {
        client.write(&ROOT, ino, at * MIB, Bytes::from(vec![7; MIB as usize]), false).await?;
    }
    Ok(())
}

async fn make(client: &Client, name: &str) -> Ino {
    let name = Name::new(name.as_bytes()).unwrap();
    client.make(&ROOT, Ino::ROOT, &name, 0o600, Make::Regular, true).await.unwrap().ino
}

async fn status(client: &Client) -> Status {
    match client.admin(AdminRequest::Status).await.unwrap() {
        AdminReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

async fn dirty_bytes(client: &Client) -> u64 {
    status(client).await.dirty_bytes
}

/// Files of so many MiB each that are in the bucket, and not in the cache.
async fn in_the_bucket<const N: usize>(client: &Client, files: [(&str, u64); N]) -> [Ino; N] {
    let mut made = [Ino::ROOT; N];
    for (ino, (name, mib)) in made.iter_mut().zip(files) {
        *ino = make(client, name).await;
        fill(client, *ino, mib).await.unwrap();
    }
    client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
    client
        .admin(AdminRequest::Evict { path: vec![], from: (Ino(0), 0), limit_bytes: u64::MAX })
        .await
        .unwrap();
    made
}

async fn read(client: &Client, ino: Ino, mib: Range<u64>) {
    for at in mib {
        assert_eq!(client.read(ino, at * MIB, MIB as usize).await.unwrap().len() as u64, MIB);
    }
}

/// Files without a name, created so or unlinked while open, exceed the dirty limit, which they
/// never leave. Expectation: they do not count against it, named files wait as usual, and in the
/// cache they take space.
#[test]
fn unnamed_files_do_not_wait_for_the_bucket() {
    with_room_for_one(1, |world, client| async move {
        let bucket = world.bucket();
        let unnamed = client.tmpfile(&ROOT, Ino::ROOT, 0o600).await.unwrap().ino;
        fill(&client, unnamed, 2).await.unwrap();
        let removed = make(&client, "removed").await;
        fill(&client, removed, 1).await.unwrap();
        client.unlink(&ROOT, Ino::ROOT, &Name::new(b"removed").unwrap()).await.unwrap();
        assert_eq!(dirty_bytes(&client).await, 0);

        bucket.vanish_for(Duration::from_secs(60));
        let named = make(&client, "named").await;
        let began = world.now();
        fill(&client, named, 1).await.unwrap();
        assert!(world.now() - began < Duration::from_secs(1), "{:?}", world.now() - began);
        assert_eq!(dirty_bytes(&client).await, MIB);
        assert_eq!(
            client.write(&ROOT, named, MIB, Bytes::from_static(b"more"), false).await.map(drop),
            Err(FsError::NoSpace)
        );

        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(
            fill(&client, unnamed, 9).await,
            Err(FsError::NoSpace),
            "the cache is full of it"
        );
        client.close(unnamed);
        fill(&client, named, 2).await.unwrap();
    });
}

/// A complete file gets its name. From then on it is uploaded like any other.
#[test]
fn unnamed_file_waits_once_it_is_linked() {
    with_room_for_one(2, |world, client| async move {
        let unnamed = client.tmpfile(&ROOT, Ino::ROOT, 0o600).await.unwrap().ino;
        fill(&client, unnamed, 3).await.unwrap();
        let other = make(&client, "other").await;
        world.bucket().vanish_for(Duration::from_secs(60));
        client.link(&ROOT, unnamed, Ino::ROOT, &Name::new(b"named").unwrap()).await.unwrap();
        assert_eq!(dirty_bytes(&client).await, 3 * MIB);
        assert_eq!(fill(&client, other, 1).await, Err(FsError::NoSpace));
        world.sleep(Duration::from_secs(60)).await;
        fill(&client, other, 1).await.unwrap();
        assert_eq!(world.bucket().objects()["named"].body.len() as u64, 3 * MIB);
    });
}

/// Situation: the bucket is away, the dirty limit is reached, and a hundred more writes are
/// pending; a client removes the file that takes the space. Danger: the removal waits behind the
/// writes, which end only by timeout. Expectation: the removal completes at once, and then the
/// writes.
#[test]
fn removal_does_not_wait_behind_blocked_writers() {
    with_room_for_one(3, |world, client| async move {
        let (large, other) = (make(&client, "large").await, make(&client, "other").await);
        world.bucket().vanish_for(Duration::from_secs(60));
        fill(&client, large, 1).await.unwrap();
        client.close(large);
        let began = world.now();
        let write = async |at: u64| {
            client.write(&ROOT, other, at * 10, Bytes::from_static(b"ten bytes."), false).await
        };
        let removal = async {
            world.sleep(Duration::from_secs(1)).await;
            client.unlink(&ROOT, Ino::ROOT, &Name::new(b"large").unwrap()).await
        };
        let (removed, written) = join(removal, join_all((0..100).map(write))).await;
        removed.unwrap();
        assert!(written.into_iter().all(|written| written.is_ok()));
        assert!(world.now() - began < Duration::from_secs(2), "{:?}", world.now() - began);
    });
}

/// Situation: a file is being uploaded of which a range is only in the bucket, and the bucket stops
/// answering the download: the file is latched meanwhile. Its clean data, and that of another file,
/// fill the cache. Danger: eviction waits for the latched file, and all reads and writes wait for
/// eviction. Expectation: the other file is evicted at once, and without one a writer gets ENOSPC
/// at its timeout.
#[test]
fn eviction_does_not_wait_for_a_file_with_a_stalled_bucket() {
    with_room_for(4, 4 * MIB, |world, client| async move {
        let [sent, other] = in_the_bucket(&client, [("sent", 6), ("other", 2)]).await;
        read(&client, sent, 1..6).await;
        read(&client, other, 0..2).await;
        client
            .write(&ROOT, sent, 0, Bytes::from(vec![8; BLOCK_BYTES as usize]), false)
            .await
            .unwrap();
        let new = make(&client, "new").await;
        // It is uploaded in one request, so its data is read before the bucket receives
        // anything.
        let port = world.machine("a").process("other").bucket(&world.bucket());
        world
            .bucket()
            .set_capabilities(Capabilities { max_put_bytes: 8 * MIB, ..port.capabilities() });
        world.bucket().vanish_for(Duration::from_secs(600));
        let writes = async {
            world.sleep(Duration::from_secs(1)).await;
            let began = world.now();
            fill(&client, new, 2).await.unwrap();
            assert!(world.now() - began < Duration::from_secs(1), "{:?}", world.now() - began);
            let write = async {
                client
                    .write(&ROOT, new, 2 * MIB, Bytes::from(vec![7; MIB as usize]), false)
                    .await
                    .map(drop)
            };
            let (write, time) = (pin!(write), pin!(world.sleep(Duration::from_secs(20))));
            let Either::Left((refused, _)) = select(write, time).await else {
                panic!("it waits for longer than it may")
            };
            assert_eq!(refused, Err(FsError::NoSpace));
        };
        let flush = client.admin(AdminRequest::Flush { path: vec![] });
        let Either::Right(_) = select(pin!(flush), pin!(writes)).await else {
            panic!("the bucket is there")
        };
    });
}

/// Situation: several clients constantly read a file longer than the cache. Danger: it is never
/// evicted, since it is always in use, and the cache exceeds its limit.
#[test]
fn eviction_includes_a_file_in_constant_use() {
    with_room_for_one(5, |world, client| async move {
        let [file] = in_the_bucket(&client, [("file", 48)]).await;
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(20) };
        world.set_faults(FaultPlan {
            disk: DiskFaults { slow, ..DiskFaults::default() },
            ..FaultPlan::default()
        });
        let reader = async |first: u64| {
            let mut most = 0;
            for at in first..first + 20 {
                read(&client, file, at * 7 % 48..at * 7 % 48 + 1).await;
                most = status(&client).await.cached_bytes.max(most);
            }
            most
        };
        let most = join_all((0..32).map(|reader_at| reader(reader_at * 5)))
            .await
            .into_iter()
            .max()
            .unwrap();
        // Concurrent reads may exceed the limit by this much.
        assert!(most <= 32 * MIB, "{most} bytes were cached");
    });
}

/// Situation: clean files fill the cache, and evicting the first of them frees no space. Danger: a
/// write of another file fails, though enough other data could be evicted.
#[test]
fn a_file_that_cannot_be_evicted_is_passed_over() {
    let world = World::new(6);
    let done = world.run(async {
        let (machine, bucket) = (world.machine("a"), world.bucket());
        let start = async || {
            let process = machine.process_on("node", "data");
            let node = rig::open(&process, &bucket, &options(4 * MIB)).await.unwrap().unwrap();
            let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
            (process, client)
        };
        let (process, client) = start().await;
        for (name, mib) in [("first", 3), ("second", 4)] {
            let ino = make(&client, name).await;
            fill(&client, ino, mib).await.unwrap();
            client.fsync(ino).await.unwrap();
        }
        client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        process.kill();
        let (_process, client) = start().await;
        let new = make(&client, "new").await;
        fill(&client, new, 1).await.unwrap();
        assert_eq!(status(&client).await.cached_bytes, 8 * MIB);
        // After two writes by the log.
        machine.disk("data").fail_nth(DiskOperation::Write, 3);
        client.write(&ROOT, new, MIB, Bytes::from(vec![7; MIB as usize]), false).await.unwrap();
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}

/// One client of a node, by its requests: so it can repeat one.
struct Requester {
    process: Process,
    node: Rc<Node>,
    session: SessionId,
}

impl Requester {
    async fn new(world: &World, previous: Option<SessionId>) -> Requester {
        let options = Options {
            owner: "room".into(),
            flush_interval: Duration::from_secs(3600),
            ..Options::default()
        };
        let process = world.machine("a").process("node");
        let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let attach = Request::Attach {
            volume: rig::VOLUME.into(),
            client: "requester".into(),
            previous,
            read_only: false,
            cluster: None,
        };
        let Ok(Reply::Attached(attached)) = node.handle(attach).await else {
            panic!("not attached");
        };
        assert_eq!(attached.fresh, previous.is_none());
        let session = attached.session;
        for request in [Request::OpensDeclared { session }, Request::Renew { session }] {
            node.handle(request).await.unwrap();
        }
        Requester { process, node, session }
    }

    async fn restarted(self, world: &World) -> Requester {
        self.process.kill();
        Requester::new(world, Some(self.session)).await
    }

    /// Asks for a mutation, by the number of its slot.
    async fn mutate(&self, slot: u16, mutation: ClientMutation) -> Result<Mutated, RpcError> {
        let tx = TxId { session: self.session, slot, sequence: 1 };
        let mutate = Mutate { tx, caller: ROOT, mutation, replay: None };
        match self.node.handle(Request::Mutate(Box::new(mutate))).await? {
            Reply::Mutated(mutated, _) => Ok(*mutated),
            other => panic!("{other:?}"),
        }
    }

    async fn make(&self, slot: u16, name: &str) -> Ino {
        let (parent, name) = (Ino::ROOT, Name::new(name.as_bytes()).unwrap());
        let (mode, what, open) = (0o600.into(), Make::Regular, true);
        let make = ClientMutation::Make { parent, name, mode, what, open };
        self.mutate(slot, make).await.unwrap().attr.unwrap().ino
    }

    async fn read(&self, ino: Ino, len_bytes: u64) -> Bytes {
        let read = Request::Read { ino, offset: 0, len_bytes: len_bytes as u32 };
        match self.node.handle(read).await.unwrap() {
            Reply::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    async fn fsync(&self, ino: Ino) {
        self.node.handle(Request::Fsync { session: self.session, ino }).await.unwrap();
    }
}

fn write(ino: Ino, offset: u64, data: Bytes) -> ClientMutation {
    ClientMutation::Write { ino, offset, data, drop_set_id: false }
}

/// Every 16 KiB of the file some bytes are written, and on the disk there is nothing between them.
/// From the end on: a small file that outgrows its range would be copied, gaps included.
async fn write_with_gaps(requester: &Requester, ino: Ino, blocks: Range<u64>) -> Vec<u8> {
    let mut model = vec![0; (blocks.end * BLOCK_BYTES) as usize - GAP as usize + PIECE];
    let gaps = blocks.start * (BLOCK_BYTES / GAP)..blocks.end * (BLOCK_BYTES / GAP);
    for (slot, gap) in gaps.rev().enumerate() {
        let at = gap * GAP;
        let piece = vec![7; PIECE];
        model[at as usize..at as usize + PIECE].copy_from_slice(&piece);
        requester.mutate(30 + slot as u16, write(ino, at, piece.into())).await.unwrap();
    }
    requester.fsync(ino).await;
    model
}

const GAP: u64 = 16 << 10;
const PIECE: usize = 4096;

/// Situation: a file has gaps on the disk between its written ranges, the disk is full but for two
/// sectors, and a write or copy goes over all of the file. Danger: it fails, and its first bytes
/// stay in place of acknowledged ones; or it counts as a whole. Expectation: the answer says how
/// many bytes there are, the same one if the request is repeated, after a restart, too. The file
/// has exactly these, after a power cut and in the bucket, too.
#[test]
fn write_cut_short_by_a_full_disk_is_a_short_write() {
    // In a range of a pack file, and in a store file of its own.
    for (blocks, copies) in [(1, false), (1, true), (4, false), (4, true)] {
        let world = World::new(7);
        let scenario = async {
            let requester = Requester::new(&world, None).await;
            let (ino, source) =
                (requester.make(0, "file").await, requester.make(1, "source").await);
            let mut model = write_with_gaps(&requester, ino, 0..blocks).await;
            let len_bytes = model.len() as u64;
            let data = Bytes::from(vec![8; model.len()]);
            requester.mutate(2, write(source, 0, data.clone())).await.unwrap();
            requester.fsync(source).await;

            let disk = world.machine("a").disk("node");
            disk.set_capacity(disk.used_bytes() + 2 * SECTOR_BYTES);
            let change = match copies {
                true => ClientMutation::Copy {
                    from: source,
                    from_offset: 0,
                    ino,
                    offset: 0,
                    len_bytes,
                    drop_set_id: false,
                },
                false => write(ino, 0, data.clone()),
            };
            let short = requester.mutate(3, change.clone()).await.unwrap();
            let written_bytes = PIECE + 2 * SECTOR_BYTES as usize;
            model[..written_bytes].fill(8);
            let expect = async |requester: &Requester, model: &[u8]| {
                let again = requester.mutate(3, change.clone()).await.unwrap();
                assert_eq!(again.replay.len_bytes, Some(written_bytes as u64));
                assert_eq!(again.attr.unwrap().size_bytes, len_bytes);
                assert!(requester.read(ino, len_bytes).await == model, "other bytes");
            };
            assert_eq!(short.replay.len_bytes, Some(written_bytes as u64));
            expect(&requester, &model).await;

            let rest = write(ino, written_bytes as u64, data.slice(written_bytes..));
            let refused = requester.mutate(4, rest.clone()).await.map(drop);
            assert_eq!(refused, Err(RpcError::Refused(FsError::NoSpace)));
            expect(&requester, &model).await;

            let requester = requester.restarted(&world).await;
            expect(&requester, &model).await;
            requester.fsync(ino).await;
            world.machine("a").power_cut();
            disk.set_capacity(64 << 30);
            let requester = Requester::new(&world, Some(requester.session)).await;
            expect(&requester, &model).await;

            let flush = Request::Admin(AdminRequest::Flush { path: vec![] });
            requester.node.handle(flush.clone()).await.unwrap();
            assert!(world.bucket().objects()["file"].body == model, "other bytes in the bucket");
            requester.mutate(5, rest).await.unwrap();
            assert!(requester.read(ino, len_bytes).await == data, "other bytes");
        };
        world.run(scenario).unwrap_or_else(|failure| panic!("{blocks}, {copies}: {failure}"));
    }
}

/// Few seeds have a disk that becomes full during a write over gaps, so this scenario must find the
/// bugs of short writes.
#[test]
fn short_write_scenario_finds_planted_bugs() {
    for bug in [Planted::ShortWriteWhole, Planted::FailedWriteKeepsBytes] {
        let scenario = || {
            planted_during(Some(bug), write_cut_short_by_a_full_disk_is_a_short_write);
        };
        assert!(catch_unwind(scenario).is_err(), "{bug:?} is not found");
    }
}

/// Situation: on a disk that is full but for some sectors a write begins in a hole of a file, with
/// room for a part of the hole, or for all of it and some of the bytes behind it. Expectation: a
/// write that has replaced nothing fails and changes nothing; the other one is a short write.
#[test]
fn write_into_a_hole_on_a_full_disk_fails_or_is_short() {
    for (room_bytes, expected_bytes) in [
        (2 * SECTOR_BYTES, None),
        (BLOCK_BYTES + 2 * SECTOR_BYTES, Some(BLOCK_BYTES + PIECE as u64 + 2 * SECTOR_BYTES)),
    ] {
        let world = World::new(8);
        let scenario = async {
            let requester = Requester::new(&world, None).await;
            let ino = requester.make(0, "file").await;
            let mut model = write_with_gaps(&requester, ino, 1..4).await;
            let len_bytes = model.len() as u64;
            let disk = world.machine("a").disk("node");
            disk.set_capacity(disk.used_bytes() + room_bytes);
            // Longer than the file.
            let data = Bytes::from(vec![8; 4 * BLOCK_BYTES as usize]);
            let written = requester.mutate(3, write(ino, 0, data)).await;
            let written = written.map(|mutated| mutated.replay.len_bytes.unwrap());
            assert_eq!(written, expected_bytes.ok_or(RpcError::Refused(FsError::NoSpace)));
            model[..expected_bytes.unwrap_or(0) as usize].fill(8);
            assert!(requester.read(ino, 4 * BLOCK_BYTES).await == model, "other bytes");

            let requester = requester.restarted(&world).await;
            disk.set_capacity(64 << 30);
            // Bytes behind the end of the file are zeros when it grows.
            let set = SetAttr { size_bytes: Some(4 * BLOCK_BYTES), ..SetAttr::default() };
            requester.mutate(4, ClientMutation::SetAttr { ino, set }).await.unwrap();
            requester.mutate(5, write(ino, 100, vec![9; 100].into())).await.unwrap();
            model[100..200].fill(9);
            model.resize(4 * BLOCK_BYTES as usize, 0);
            assert!(requester.read(ino, 4 * BLOCK_BYTES).await == model, "{len_bytes}: others");
        };
        world.run(scenario).unwrap_or_else(|failure| panic!("{room_bytes}: {failure}"));
    }
}

/// Situation: a range of a file with gaps on the disk is zeroed by fallocate(2), and the disk is
/// full. Danger: it fails half-way, with some of the zeros in place. Expectation: zeros need no
/// room.
#[test]
fn zeroed_range_needs_no_room_on_a_full_disk() {
    for blocks in [1, 4] {
        let world = World::new(9);
        let scenario = async {
            let requester = Requester::new(&world, None).await;
            let ino = requester.make(0, "file").await;
            let mut model = write_with_gaps(&requester, ino, 0..blocks).await;
            let disk = world.machine("a").disk("node");
            disk.set_capacity(disk.used_bytes() + SECTOR_BYTES);
            let (start, end) = (1000, model.len() - 1000);
            let zeroed = ClientMutation::Fallocate {
                ino,
                offset: start as u64,
                len_bytes: (end - start) as u64,
                what: Allocation::Zero,
                keep_size: true,
                drop_set_id: false,
            };
            requester.mutate(3, zeroed).await.unwrap();
            model[start..end].fill(0);
            requester.fsync(ino).await;
            world.machine("a").power_cut();
            disk.set_capacity(64 << 30);
            let requester = Requester::new(&world, Some(requester.session)).await;
            assert!(requester.read(ino, model.len() as u64).await == model, "other bytes");
        };
        world.run(scenario).unwrap_or_else(|failure| panic!("{blocks}: {failure}"));
    }
}
