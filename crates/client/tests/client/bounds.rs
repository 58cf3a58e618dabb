use crate::node::*;
use crate::world::World;
use bytes::Bytes;
use ebb_client::{KEPT_BYTES, KEPT_OPERATIONS, MUTATIONS_UNDER_WAY, SLOTS_FOR_BYTES};
use ebb_model::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;

/// A thousand writes at once: never more are in progress than have slots. All are executed, in the
/// order of their calls.
#[test]
fn mutations_wait_for_slots_in_order() {
    let world = World::new(1);
    let node = Node::new(&world);
    let client = node.attach();
    let all: Vec<_> = (0..1000)
        .map(|offset| {
            let client = client.clone();
            world.start(async move {
                client.write(&ROOT, Ino(7), offset, Bytes::from_static(b"x"), false).await.is_ok()
            })
        })
        .collect();
    world.pass(Duration::from_secs(10));
    assert!(all.iter().all(|done| done.take() == Some(true)));
    assert_eq!(node.most_executing.get(), SLOTS_FOR_BYTES);
    let offsets: Vec<_> =
        node.executed().into_iter().filter_map(|(_, mutated)| mutated.replay.offset).collect();
    assert_eq!(offsets, (0..1000).collect::<Vec<_>>());
}

/// A caller that never waits is refused beyond the bound, and served again below it.
#[test]
fn callers_that_never_wait_are_refused() {
    let world = World::new(2);
    let node = Node::new(&world);
    let client = node.attach();
    let refused = Rc::new(Cell::new(0));
    for offset in 0..MUTATIONS_UNDER_WAY as u64 + 10 {
        let (client, refused) = (client.clone(), refused.clone());
        world.start(async move {
            match client.write(&ROOT, Ino(7), offset, Bytes::from_static(b"x"), false).await {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error, FsError::Busy);
                    refused.set(refused.get() + 1);
                }
            }
        });
    }
    world.pass(Duration::from_secs(20));
    assert_eq!(refused.get(), 10);
    assert_eq!(node.executed().len(), MUTATIONS_UNDER_WAY);
    world
        .run(async move { client.write(&ROOT, Ino(7), 0, Bytes::from_static(b"x"), false).await })
        .expect("written");
}

/// A node that forces nothing by itself: the client requests a force before it keeps more than its
/// bounds, in bytes and in operations.
#[test]
fn a_full_journal_asks_for_a_force() {
    for (len_bytes, operations) in [(1 << 20, 4 * (KEPT_BYTES >> 20)), (1, KEPT_OPERATIONS + 2000)]
    {
        let world = World::new(3);
        let node = Node::new(&world);
        node.latency_ms.set(0);
        let client = node.attach();
        let data = Bytes::from(vec![0; len_bytes]);
        let watched = node.clone();
        world.run(async move {
            for _ in 0..operations {
                client.write(&ROOT, Ino(7), 0, data.clone(), false).await.expect("written");
                let unforced = watched.log.borrow().len() - watched.durable.get() as usize;
                assert!(
                    unforced <= KEPT_OPERATIONS + 1
                        && unforced * len_bytes <= KEPT_BYTES + len_bytes
                );
                // The node of this test scans its log.
                if watched.durable.get() > 0 {
                    break;
                }
            }
        });
        assert!(node.count("syncfs") > 0, "{len_bytes}");
    }
}

/// The node cannot force. Mutations that need room get its error instead of waiting for ever, and
/// work again once it can.
#[test]
fn a_node_that_cannot_force_hangs_nobody() {
    let world = World::new(4);
    let node = Node::new(&world);
    let client = node.attach();
    node.refuse.borrow_mut().insert("syncfs", RpcError::Refused(FsError::NoSpace));
    let data = Bytes::from(vec![0; 1 << 20]);
    let asked = client.clone();
    let first = world.run({
        let data = data.clone();
        async move {
            loop {
                if let Err(error) = asked.write(&ROOT, Ino(7), 0, data.clone(), false).await {
                    return error;
                }
            }
        }
    });
    assert_eq!(first, FsError::NoSpace);
    assert_eq!(node.executed().len(), KEPT_BYTES >> 20);
    node.refuse.borrow_mut().clear();
    world.run(async move { client.write(&ROOT, Ino(7), 0, data, false).await }).expect("written");
}

/// Reads and writes longer than a request go in pieces, and a read ends at the end of the file.
#[test]
fn long_reads_and_writes_are_split() {
    let world = World::new(5);
    let node = Node::new(&world);
    let client = node.attach();
    world.run(async move {
        assert_eq!(client.read(Ino(7), 0, 10 << 20).await.map(|data| data.len()), Ok(3 << 20));
        assert_eq!(client.read(Ino(7), (3 << 20) - 5, 1 << 20).await.map(|data| data.len()), Ok(5));
        assert_eq!(client.read(Ino(7), u64::MAX, 4 << 20).await.map(|data| data.len()), Ok(0));
        let written = client
            .write(&ROOT, Ino(7), 10, Bytes::from(vec![0; (2 << 20) + 1]), false)
            .await
            .expect("written");
        assert_eq!((written.offset, written.len_bytes), (10, (2 << 20) + 1));
        let beyond = client.write(&ROOT, Ino(7), u64::MAX, Bytes::from_static(b"x"), false).await;
        assert_eq!(beyond, Err(FsError::TooLarge));
    });
    let sizes: Vec<_> = node
        .executed()
        .iter()
        .map(
            |(mutation, _)| {
                if let ClientMutation::Write { data, .. } = mutation { data.len() } else { 0 }
            },
        )
        .collect();
    assert_eq!(sizes, [1 << 20, 1 << 20, 1]);
}
