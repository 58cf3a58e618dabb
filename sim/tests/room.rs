//! How much the node takes in before what is written has to wait.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::World;
use ebb_sim::volume::rig;
use futures_util::future::{join, join_all};
use std::rc::Rc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const ROOT: Caller = Caller::ROOT;

/// Runs `work` with a client of a node that lets one MiB wait for the bucket, for ten seconds,
/// and caches eight.
fn with_room_for_one<F: Future<Output = ()> + 'static>(seed: u64, work: impl FnOnce(Rc<World>, Rc<Client>) -> F) {
    let world = Rc::new(World::new(seed));
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let space_timeout = Duration::from_secs(10);
        let options =
            Options { owner: "room".into(), embedded: true, dirty_bytes: MIB, cache_bytes: 8 * MIB, space_timeout, ..Options::default() };
        let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        process.call(work(world.clone(), client)).await.expect("the process lives");
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
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

async fn dirty_bytes(client: &Client) -> u64 {
    match client.admin(AdminRequest::Status).await.unwrap() {
        AdminReply::Status(status) => status.dirty_bytes,
        other => panic!("{other:?}"),
    }
}

/// Files without a name, made so or removed while open, hold more than may wait for the bucket,
/// where they never go. Nobody waits for that; what has a name waits as ever. In the cache they
/// take room.
#[test]
fn what_never_goes_to_the_bucket_does_not_wait_for_it() {
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
        assert_eq!(client.write(&ROOT, named, MIB, Bytes::from_static(b"more"), false).await.map(drop), Err(FsError::NoSpace));

        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(fill(&client, unnamed, 9).await, Err(FsError::NoSpace), "the cache is full of it");
        client.close(unnamed);
        fill(&client, named, 2).await.unwrap();
    });
}

/// A file gets its name when it is whole. From then on it waits for the bucket like any other.
#[test]
fn what_gets_a_name_waits_from_then_on() {
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

/// Situation: the bucket is away, what may wait for it waits, and a hundred writes more are asked for; somebody removes the file
/// that takes the room. Danger: the removal waits behind the writes, and none of them ends but by its time-out. Expectation: it
/// is done at once, and so are the writes then.
#[test]
fn who_makes_room_does_not_wait_behind_who_waits_for_it() {
    with_room_for_one(3, |world, client| async move {
        let (large, other) = (make(&client, "large").await, make(&client, "other").await);
        world.bucket().vanish_for(Duration::from_secs(60));
        fill(&client, large, 1).await.unwrap();
        client.close(large);
        let began = world.now();
        let write = async |at: u64| client.write(&ROOT, other, at * 10, Bytes::from_static(b"ten bytes."), false).await;
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
