//! The commit barrier: a client on another machine is shown nothing that a power cut of the node
//! takes back, and waits for nothing else.

use super::*;
use futures_util::future::{Either, select};
use std::pin::pin;

const DIR: &[u8] = b"dir";
const OLD: &[u8] = b"old";
const NEW: &[u8] = b"new";
const MARK: &[u8] = b"user.mark";
const BEFORE: &[u8] = b"before";
const AFTER: &[u8] = b"after!";

/// A node in the process of a mount that others join.
async fn mount(world: &World) -> (Process, Rc<Client>) {
    let (process, node) = serve_one(world, options()).await;
    let client = rig::attach_embedded(&process, &node)
        .await
        .expect("the process lives")
        .expect("the node serves");
    (process, Rc::new(client))
}

fn named(bytes: &[u8]) -> Name {
    Name::new(bytes).unwrap()
}

async fn created(client: &Client, parent: Ino, bytes: &[u8], what: Make) -> Ino {
    let mode = if what == Make::Directory { 0o755 } else { 0o600 };
    client.make(&Caller::ROOT, parent, &named(bytes), mode, what, false).await.unwrap().ino
}

/// What a client can be told of, with a change of it that touches nothing else that it could tell
/// by.
#[derive(Clone, Copy, Debug)]
enum Row {
    NameMade,
    NameGone,
    AttributesByName,
    Attributes,
    Listing,
    AttributesInListing,
    ExtendedAttribute,
    ExtendedAttributes,
    Access,
    Holes,
    Bytes,
    BytesOfNewFile,
    CopiedBytes,
    Length,
    NameReplaced,
    RefusedMutation,
}

impl Row {
    const ALL: [Row; 16] = [
        Row::NameMade,
        Row::NameGone,
        Row::AttributesByName,
        Row::Attributes,
        Row::Listing,
        Row::AttributesInListing,
        Row::ExtendedAttribute,
        Row::ExtendedAttributes,
        Row::Access,
        Row::Holes,
        Row::Bytes,
        Row::BytesOfNewFile,
        Row::CopiedBytes,
        Row::Length,
        Row::NameReplaced,
        Row::RefusedMutation,
    ];

    /// Changes what the row is about.
    async fn change(self, client: &Client, dir: Ino, old: Ino) {
        let root = &Caller::ROOT;
        let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        match self {
            Row::NameMade | Row::RefusedMutation => {
                created(client, dir, NEW, Make::Regular).await;
            }
            Row::NameGone | Row::Listing => {
                client.unlink(root, dir, &named(OLD)).await.unwrap();
            }
            Row::AttributesByName | Row::Attributes | Row::AttributesInListing => {
                client.setattr(root, old, mode).await.unwrap();
            }
            Row::ExtendedAttribute | Row::ExtendedAttributes => {
                let (name, value) = (Bytes::from_static(MARK), Bytes::from_static(AFTER));
                client.setxattr(root, old, name, value, XattrMode::Set).await.unwrap();
            }
            Row::Access => {
                let open = SetAttr { mode: Some(0o606), ..SetAttr::default() };
                client.setattr(root, old, open).await.unwrap();
            }
            Row::Holes => {
                client.write(root, old, 1 << 20, Bytes::from_static(AFTER), false).await.unwrap();
            }
            Row::Bytes | Row::CopiedBytes => {
                client.write(root, old, 0, Bytes::from_static(AFTER), false).await.unwrap();
            }
            Row::Length => {
                let set = SetAttr { size_bytes: Some(3), ..SetAttr::default() };
                client.setattr(root, old, set).await.unwrap();
            }
            Row::NameReplaced => {
                created(client, Ino::ROOT, NEW, Make::Regular).await;
                let (from, to) = (named(NEW), named(OLD));
                let mode = RenameMode::Replace;
                client.rename(root, Ino::ROOT, &from, dir, &to, mode).await.unwrap();
            }
            Row::BytesOfNewFile => {
                let new = created(client, dir, NEW, Make::Regular).await;
                client.write(root, new, 0, Bytes::from_static(AFTER), false).await.unwrap();
            }
        }
    }

    /// What a client is told now.
    async fn tell(self, client: &Client, dir: Ino, old: Ino) -> String {
        let stranger = Caller { uid: 1000, gid: 1000, checked: false, ..Caller::ROOT };
        match self {
            Row::NameMade => {
                let found = client.lookup(dir, &named(NEW)).await;
                format!("{:?}", found.map(|attr| attr.ino))
            }
            Row::NameGone | Row::NameReplaced => {
                let found = client.lookup(dir, &named(OLD)).await;
                format!("{:?}", found.map(|attr| attr.ino))
            }
            Row::AttributesByName => {
                format!("{:o}", client.lookup(dir, &named(OLD)).await.unwrap().mode)
            }
            Row::Attributes => format!("{:o}", client.getattr(old).await.unwrap().mode),
            Row::Listing | Row::AttributesInListing => {
                let page = client.readdir(dir, Cookie::START, 100).await.unwrap();
                let entries = page.entries.iter();
                format!("{:?}", entries.map(|(_, attr)| attr.mode).collect::<Vec<_>>())
            }
            Row::ExtendedAttribute => {
                format!("{:?}", client.getxattr(old, Bytes::from_static(MARK)).await)
            }
            Row::ExtendedAttributes => format!("{:?}", client.listxattr(old).await),
            Row::Access => format!("{:?}", client.access(&stranger, old, Access::READ).await),
            Row::Holes => format!("{:?}", client.seek(old, 1 << 20, Seek::Data).await),
            Row::Bytes => format!("{:?}", client.read(old, 0, 100).await),
            Row::BytesOfNewFile => {
                let new = client.lookup(dir, &named(NEW)).await.unwrap().ino;
                format!("{:?}", client.read(new, 0, 100).await)
            }
            Row::CopiedBytes => {
                let copy = match client.lookup(dir, &named(NEW)).await {
                    Ok(copy) => copy.ino,
                    Err(_) => {
                        let copy = created(client, dir, NEW, Make::Regular).await;
                        let (from, to) = ((old, 0), (copy, 0));
                        client.copy(&Caller::ROOT, from, to, 100, false).await.unwrap();
                        copy
                    }
                };
                format!("{:?}", (client.read(copy, 0, 100).await, client.read(old, 0, 100).await))
            }
            Row::Length => format!("{:?}", client.getattr(old).await.unwrap().size_bytes),
            Row::RefusedMutation => {
                let (mode, what) = (0o600, Make::Regular);
                let made = client.make(&Caller::ROOT, dir, &named(NEW), mode, what, false).await;
                format!("{:?}", made.map(|attr| attr.ino))
            }
        }
    }
}

/// Situation: the mount whose process has the node, or a client elsewhere, changes something, which
/// is not forced; another client is told of it, and the power of the node and of the writer is cut.
/// Danger: the client has acted on a change that never was. Expectation: it is told the same as
/// before.
#[test]
fn nothing_that_was_shown_is_taken_back() {
    for (row, is_elsewhere) in Row::ALL.into_iter().flat_map(|row| [(row, false), (row, true)]) {
        for seed in 0..SEEDS / 2 {
            let world = World::new(seed);
            run(seed, &world, async {
                let (process, writer) = match is_elsewhere {
                    true => {
                        serve(&world).await;
                        attach(&world, "writer").await
                    }
                    false => mount(&world).await,
                };
                let (elsewhere, reader) = attach(&world, "desk").await;
                let maker = writer.clone();
                let made = process.call(async move {
                    let dir = created(&maker, Ino::ROOT, DIR, Make::Directory).await;
                    let old = created(&maker, dir, OLD, Make::Regular).await;
                    let bytes = Bytes::from_static(BEFORE);
                    maker.write(&Caller::ROOT, old, 0, bytes, false).await.unwrap();
                    maker.sync_fs().await.unwrap();
                    row.change(&maker, dir, old).await;
                    (dir, old)
                });
                let (dir, old) = made.await.expect("the mount lives");
                let told = reader.clone();
                let told = elsewhere.call(async move { row.tell(&told, dir, old).await });
                let told = told.await.expect("the client lives");
                world.machine("server").power_cut();
                process.kill();
                serve(&world).await;
                let again = elsewhere.call(async move { row.tell(&reader, dir, old).await });
                let again = again.await.expect("the client lives");
                assert_eq!(again, told, "seed {seed}: {row:?}, elsewhere {is_elsewhere}");
            });
        }
    }
}

async fn durable(process: &Process, client: &Rc<Client>) -> (LogIndex, LogIndex) {
    let client = client.clone();
    let asking = process.call(async move { client.admin(AdminRequest::Status).await.unwrap() });
    let Some(AdminReply::Status(status)) = asking.await else { panic!("a status was asked for") };
    (status.durable_index, status.log_index)
}

/// Situation: the mount whose process has the node creates a file; a client on another machine
/// looks at other ones, also in that directory. Danger: each of its requests forces the log, or the
/// creation does. Expectation: neither waits for the other.
#[test]
fn other_objects_are_not_waited_for() {
    let world = World::new(1);
    run(1, &world, async {
        let (process, writer) = mount(&world).await;
        let (elsewhere, reader) = attach(&world, "desk").await;
        let maker = writer.clone();
        let made = process.call(async move {
            let dir = created(&maker, Ino::ROOT, DIR, Make::Directory).await;
            let old = created(&maker, dir, OLD, Make::Regular).await;
            maker.write(&Caller::ROOT, old, 0, Bytes::from_static(BEFORE), false).await.unwrap();
            let quiet = created(&maker, Ino::ROOT, NEW, Make::Directory).await;
            maker.sync_fs().await.unwrap();
            (dir, old, quiet)
        });
        let (dir, old, quiet) = made.await.expect("the mount lives");
        let (before, _) = durable(&process, &writer).await;
        let maker = writer.clone();
        process
            .call(async move { created(&maker, dir, NEW, Make::Regular).await })
            .await
            .expect("the mount lives");
        let looked = elsewhere.call(async move {
            reader.getattr(old).await.unwrap();
            reader.lookup(dir, &named(OLD)).await.unwrap();
            assert_eq!(reader.lookup(quiet, &named(NEW)).await, Err(FsError::NotFound));
            reader.readdir(quiet, Cookie::START, 100).await.unwrap();
            assert_eq!(reader.read(old, 0, 100).await.unwrap(), BEFORE);
        });
        looked.await.expect("the client lives");
        let (after, written) = durable(&process, &writer).await;
        assert_eq!(after, before, "nothing was forced");
        assert!(after < written, "there was something to force");
    });
}

/// Situation: a client writes to a file, another one reads it and writes to another file; the power
/// of the node is cut, and the first client is not heard of for a while, or never. Danger:
/// everybody waits for it. Expectation: only the file waits of which the node may lack bytes, until
/// the client has repeated them or its session has ended; changes wait for leases that it may have.
#[test]
fn a_client_that_is_away_holds_up_its_files_only() {
    for (seed, returns) in (0..SEEDS).flat_map(|seed| [(seed, true), (seed, false)]) {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (left, away) = attach(&world, "left").await;
            let (right, stays) = attach(&world, "right").await;
            let writer = away.clone();
            let written = left.call(async move {
                let made = make(&writer, 0).await;
                make(&writer, 1).await;
                made
            });
            let (ino, content) = written.await.expect("the client lives");
            world.net().partition("server", "left");
            world.machine("server").power_cut();
            serve(&world).await;
            let client = stays.clone();
            let began = world.now();
            let looking = right.call(async move {
                client.lookup(Ino::ROOT, &name(0)).await.unwrap();
            });
            looking.await.expect("the client lives");
            let took = world.now() - began;
            assert!(took < Duration::from_secs(1), "seed {seed}: {took:?}");
            let client = stays.clone();
            let soon = right.call(async move {
                let made = make(&client, 2).await;
                check(&client, &[]).await;
                assert_eq!(client.read(made.0, 0, 1000).await.unwrap(), made.1);
                client.lookup(Ino::ROOT, &name(0)).await.unwrap();
                client.fsync(made.0).await.unwrap();
                client
                    .rename(
                        &Caller::ROOT,
                        Ino::ROOT,
                        &name(1),
                        Ino::ROOT,
                        &name(3),
                        RenameMode::Replace,
                    )
                    .await
                    .unwrap();
            });
            soon.await.expect("the client lives");
            let took = world.now() - began;
            let limit = options().lease_term + Duration::from_secs(1);
            assert!(took < limit, "seed {seed}: {took:?}");
            let client = stays.clone();
            let reading =
                right.call(async move { client.read(ino, 0, 1000).await.expect("it is there") });
            let mut reading = pin!(reading);
            let waited = Duration::from_secs(20);
            if let Either::Left((read, _)) = select(&mut reading, world.sleep(waited)).await {
                panic!("seed {seed}: {read:?} is read before it is repeated")
            }
            if returns {
                world.net().heal();
            }
            let read = reading.await.expect("the client lives");
            let took = world.now() - began;
            match returns {
                true => assert_eq!(read, content, "seed {seed}"),
                false => assert_eq!(read.len(), content.len(), "seed {seed}"),
            }
            assert!(took < options().session_term * 2, "seed {seed}: {took:?}");
        });
    }
}

/// Situation: a client creates files all the time while a second one is let in, and the power of
/// the node is cut meanwhile. The first client is away until the second one has looked. Danger: the
/// start takes the answers to the first client for forced, as those to several clients are.
/// Expectation: the second client sees everything that was answered.
#[test]
fn a_client_that_is_let_in_changes_what_a_cut_leaves() {
    for seed in 0..5 * SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            serve(&world).await;
            let (left, first) = attach(&world, "left").await;
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(20) };
            let disk = DiskFaults { slow, ..DiskFaults::default() };
            world.set_faults(FaultPlan { disk, ..FaultPlan::default() });
            let answered = Rc::new(std::cell::Cell::new(0));
            let (maker, count) = (first.clone(), answered.clone());
            let making = left.call(async move {
                for file in 0..1000 {
                    let made = maker
                        .make(&Caller::ROOT, Ino::ROOT, &name(file), 0o600, Make::Regular, false)
                        .await;
                    made.expect("the node comes back");
                    count.set(file + 1);
                }
            });
            let entering = world.machine("right").process("client");
            let cut = async {
                let attaching = pin!(rig::attach_wire(&entering, "server"));
                let wait = world.rng("cut").duration(Duration::ZERO, Duration::from_millis(300));
                select(attaching, world.sleep(wait)).await;
                world.net().partition("server", "left");
                world.machine("server").power_cut();
                world.set_faults(FaultPlan::default());
                entering.kill();
                let seen = answered.get();
                serve(&world).await;
                let (right, second) = attach(&world, "right").await;
                let looking = right.call(async move {
                    let mut found = 0;
                    while second.lookup(Ino::ROOT, &name(found)).await.is_ok() {
                        found += 1;
                    }
                    found
                });
                let looking = pin!(looking);
                let back = async {
                    world.sleep(Duration::from_secs(10)).await;
                    world.net().heal();
                    std::future::pending::<()>().await;
                };
                let Either::Left((found, _)) = select(looking, pin!(back)).await else {
                    unreachable!("it waits for ever")
                };
                let found = found.expect("the client lives");
                assert!(found >= seen, "seed {seed}: {seen} were answered, {found} are there");
            };
            select(pin!(cut), pin!(making)).await;
        });
    }
}

/// Situation: one of several clients has filled what may be dirty, loses its bytes in a power cut
/// and never returns. Danger: another client that writes is refused for want of room before the
/// file of the first one can be uploaded. Expectation: it waits.
#[test]
fn a_client_that_never_returns_does_not_fill_the_cache() {
    const MIB: u64 = 1 << 20;
    let limited = Options { dirty_bytes: 4 * MIB, ..options() };
    let world = World::new(1);
    run(1, &world, async {
        serve_with(&world, limited.clone()).await;
        let (left, away) = attach(&world, "left").await;
        let (right, stays) = attach(&world, "right").await;
        let content = Bytes::from(vec![7; MIB as usize]);
        let fill = |client: Rc<Client>, file: Name, content: Bytes| async move {
            let (mode, what) = (0o600, Make::Regular);
            let made = client.make(&Caller::ROOT, Ino::ROOT, &file, mode, what, false).await?;
            for mib in 0..3 {
                client.write(&Caller::ROOT, made.ino, mib * MIB, content.clone(), false).await?;
            }
            Ok::<(), FsError>(())
        };
        let filled = left.call(fill(away.clone(), name(0), content.clone()));
        assert_eq!(filled.await.expect("the client lives"), Ok(()));
        world.machine("server").power_cut();
        left.kill();
        serve_with(&world, limited).await;
        let filled = right.call(fill(stays.clone(), name(1), content));
        assert_eq!(filled.await.expect("the client lives"), Ok(()));
    });
}
