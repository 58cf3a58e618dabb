//! Locks of this client beside those of a stranger, which exists in the node's table only.

use crate::node::*;
use crate::world::World;
use bytes::Bytes;
use ebb_client::{Client, Options};
use ebb_model::*;
use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

const FILE: Ino = Ino(7);
const STRANGER: SessionId = SessionId(1);
const OWNER: LockOwner = LockOwner::Fcntl(1);
const ROOT: Caller = Caller::ROOT;

fn range(start: u64, end: u64) -> LockRange {
    LockRange::new(start, end).expect("a range")
}

fn ask(start: u64, end: u64, mode: Option<LockMode>) -> LockAsk {
    LockAsk { ino: FILE, owner: OWNER, range: range(start, end), mode, keep: false, pid: 1 }
}

const SHARED: Option<LockMode> = Some(LockMode::Shared);
const EXCLUSIVE: Option<LockMode> = Some(LockMode::Exclusive);

/// Whether the stranger could lock the bytes.
fn free(node: &Node, start: u64, end: u64, mode: LockMode) -> bool {
    node.locks
        .borrow()
        .test(STRANGER, FILE, OWNER, RangeLock { range: range(start, end), mode })
        .is_none()
}

fn stranger_has(node: &Node, start: u64, end: u64) {
    let locks = [RangeLock { range: range(start, end), mode: LockMode::Exclusive }];
    assert_eq!(node.locks.borrow_mut().reclaim(STRANGER, FILE, OWNER, 9, &locks), Ok(()));
}

fn lock(world: &World, client: &Client, ask: LockAsk) -> Result<(), FsError> {
    let client = client.clone();
    world.run(async move { client.lock(ask).await })
}

type Pending = Rc<RefCell<Option<Result<(), FsError>>>>;

fn start_waiting(world: &World, client: &Client, ask: LockAsk) -> Pending {
    let client = client.clone();
    world.start(async move { client.lock_waiting(ask, true, pending()).await })
}

/// Requests and replies are lost: each lock is taken once and given up once.
#[test]
fn a_lock_is_taken_and_given_up_once() {
    for fate in [Fate::LostReply, Fate::LostRequest, Fate::Retry, Fate::Silence] {
        let world = World::new(1);
        let node = Node::new(&world);
        let client = node.attach();
        node.fates.borrow_mut().extend([fate, fate]);
        assert_eq!(lock(&world, &client, ask(0, 9, EXCLUSIVE)), Ok(()), "{fate:?}");
        assert!(
            !free(&node, 9, 9, LockMode::Shared) && free(&node, 10, 10, LockMode::Exclusive),
            "{fate:?}"
        );
        node.fates.borrow_mut().extend([fate, fate]);
        assert_eq!(lock(&world, &client, ask(0, 4, None)), Ok(()), "{fate:?}");
        assert!(
            free(&node, 0, 4, LockMode::Exclusive) && !free(&node, 5, 5, LockMode::Shared),
            "{fate:?}"
        );
    }
}

/// A restarted node is told of every held lock, and of none that was given up.
#[test]
fn locks_held_are_reclaimed() {
    let world = World::new(2);
    let node = Node::new(&world);
    let client = node.attach();
    lock(&world, &client, ask(0, 9, EXCLUSIVE)).unwrap();
    lock(&world, &client, ask(2, 3, None)).unwrap();
    lock(&world, &client, ask(5, 6, SHARED)).unwrap();
    node.kill();
    node.restart();
    world.pass(Duration::from_secs(1));
    assert!(!free(&node, 1, 1, LockMode::Shared) && free(&node, 2, 3, LockMode::Exclusive));
    assert!(
        free(&node, 5, 6, LockMode::Shared)
            && !free(&node, 5, 5, LockMode::Exclusive)
            && !free(&node, 7, 9, LockMode::Shared)
    );
    // The reply to an unlock is lost with the run that sent it.
    node.fates.borrow_mut().push_back(Fate::Silence);
    let unlocking = world.start({
        let client = client.clone();
        async move { client.lock(ask(0, 9, None)).await }
    });
    world.pass(Duration::from_millis(5));
    assert!(free(&node, 0, 9, LockMode::Exclusive));
    node.kill();
    stranger_has(&node, 0, 1);
    node.restart();
    world.pass(Duration::from_secs(10));
    assert_eq!(unlocking.take(), Some(Ok(())));
    assert_eq!(client.error(FILE), None);
    assert_eq!(
        lock(&world, &client, ask(0, 0, SHARED)),
        Err(FsError::WouldBlock),
        "the stranger has it still"
    );
}

/// A range is requested in a weaker mode than a part of it has, and refused. The node restarts in
/// between. The held locks stay held.
#[test]
fn refused_weaker_lock_keeps_the_held_one() {
    for fate in [Fate::Silence, Fate::LostReply, Fate::LostRequest] {
        let world = World::new(3);
        let node = Node::new(&world);
        let client = node.attach();
        lock(&world, &client, ask(0, 4, EXCLUSIVE)).unwrap();
        stranger_has(&node, 8, 8);
        node.fates.borrow_mut().push_back(fate);
        let asking = world.start({
            let client = client.clone();
            async move { client.lock(ask(0, 9, SHARED)).await }
        });
        world.pass(Duration::from_millis(1));
        node.kill();
        stranger_has(&node, 8, 8);
        node.restart();
        world.pass(Duration::from_secs(10));
        assert_eq!(asking.take(), Some(Err(FsError::WouldBlock)), "{fate:?}");
        assert_eq!(client.error(FILE), None, "{fate:?}");
        assert!(
            !free(&node, 0, 4, LockMode::Shared) && free(&node, 5, 7, LockMode::Exclusive),
            "{fate:?}"
        );
        // Without a conflict the lock becomes weaker.
        node.locks.borrow_mut().end(STRANGER);
        assert_eq!(lock(&world, &client, ask(0, 9, SHARED)), Ok(()));
        assert!(
            free(&node, 0, 9, LockMode::Shared) && !free(&node, 9, 9, LockMode::Exclusive),
            "{fate:?}"
        );
    }
}

/// The caller gets a time-out, and later the node grants the lock. No caller would ever give it up,
/// so the client does, and keeps the locks that were held before.
#[test]
fn lock_granted_after_a_timeout_is_released() {
    let world = World::new(4);
    let node = Node::new(&world);
    let client = node.attach_with(Options {
        unavailable_timeout: Some(Duration::from_secs(10)),
        ..Node::options()
    });
    lock(&world, &client, ask(3, 5, SHARED)).unwrap();
    for waits in [false, true] {
        node.frozen.set(true);
        let asked = client.clone();
        let result = world.run(async move {
            match waits {
                true => asked.lock_waiting(ask(0, 9, EXCLUSIVE), true, pending()).await,
                false => asked.lock(ask(0, 9, EXCLUSIVE)).await,
            }
        });
        assert_eq!(result, Err(FsError::TimedOut));
        node.frozen.set(false);
        world.pass(Duration::from_secs(60));
        assert!(
            free(&node, 0, 2, LockMode::Exclusive) && free(&node, 6, 9, LockMode::Exclusive),
            "waits: {waits}"
        );
        assert!(
            free(&node, 3, 5, LockMode::Shared) && !free(&node, 4, 4, LockMode::Exclusive),
            "waits: {waits}"
        );
    }
}

/// A signal ends a wait when the lock is already reserved for it. The node learns of it although
/// the connection breaks, and other clients can have the lock.
#[test]
fn an_interrupted_wait_leaves_nothing() {
    let world = World::new(5);
    let node = Node::new(&world);
    let client = node.attach();
    stranger_has(&node, 0, 9);
    let (signal, signalled) = futures_channel::oneshot::channel::<()>();
    let waiting = world.start({
        let client = client.clone();
        async move {
            client
                .lock_waiting(ask(0, 9, EXCLUSIVE), true, async {
                    let (Ok(()) | Err(_)) = signalled.await;
                })
                .await
        }
    });
    world.pass(Duration::from_secs(1));
    assert!(waiting.borrow().is_none());
    // The lock is free now, and the news is lost.
    node.locks.borrow_mut().end(STRANGER);
    node.locks.borrow_mut().take_ended();
    assert!(!free(&node, 0, 9, LockMode::Shared));
    signal.send(()).unwrap();
    node.disconnect();
    world.pass(Duration::from_secs(10));
    match waiting.take() {
        Some(Err(FsError::Interrupted)) => assert!(free(&node, 0, 9, LockMode::Exclusive)),
        other => panic!("{other:?}"),
    }
}

/// The news of a lock is lost with the connection. The waiting client asks again over the next one,
/// and continues to wait if the node has restarted.
#[test]
fn a_wait_outlives_the_connection_and_the_node() {
    let world = World::new(6);
    let node = Node::new(&world);
    let client = node.attach();
    stranger_has(&node, 0, 9);
    let waiting = start_waiting(&world, &client, ask(0, 9, EXCLUSIVE));
    world.pass(Duration::from_secs(1));
    node.kill();
    stranger_has(&node, 0, 9);
    node.restart();
    world.pass(Duration::from_secs(1));
    assert!(waiting.borrow().is_none());
    node.locks.borrow_mut().end(STRANGER);
    node.locks.borrow_mut().take_ended();
    node.disconnect();
    world.pass(Duration::from_secs(1));
    assert_eq!(waiting.take(), Some(Ok(())));
    assert_eq!(node.count("end-wait"), 0);
}

/// The session ends and its locks are lost. A write that was requested under a lock, and waits for
/// the node, is not executed. Nor is any other write until the file is closed.
#[test]
fn a_write_does_not_outlive_its_lock() {
    let world = World::new(7);
    let node = Node::new(&world);
    let client = node.attach();
    let opened = client.clone();
    world.run(async move { opened.open(FILE).await }).unwrap();
    lock(&world, &client, ask(0, 9, EXCLUSIVE)).unwrap();
    node.kill();
    world.pass(Duration::from_millis(1));
    let writing = world.start({
        let client = client.clone();
        async move { client.append(&ROOT, FILE, Bytes::from_static(b"x"), false).await }
    });
    world.pass(Duration::from_secs(1));
    node.expire_sessions();
    node.restart();
    node.expire_sessions();
    world.pass(Duration::from_secs(10));
    assert_eq!(writing.take(), Some(Err(FsError::Io)));
    assert_eq!(node.executed().len(), 0);
    assert_eq!(lock(&world, &client, ask(0, 9, SHARED)), Err(FsError::Io));
    assert_eq!(lock(&world, &client, ask(0, 9, None)), Ok(()));
    world.run(async move {
        assert_eq!(client.fsync(FILE).await, Err(FsError::Io));
        client.close(FILE);
        assert_eq!(client.lock(ask(0, 9, EXCLUSIVE)).await, Ok(()));
        assert_eq!(
            client.append(&ROOT, FILE, Bytes::from_static(b"x"), false).await.map(|_| ()),
            Ok(())
        );
    });
}

/// A power cut loses a write made under a lock that was given up, and the session ends before the
/// client is back. Others may have held the lock since, so the write is not repeated over theirs.
#[test]
fn writes_under_a_lost_lock_are_not_replayed() {
    for locked in [false, true] {
        let world = World::new(8);
        let node = Node::new(&world);
        let client = node.attach();
        node.force();
        let writer = client.clone();
        world.run(async move {
            writer.open(FILE).await.unwrap();
            if locked {
                writer.lock(ask(0, 9, EXCLUSIVE)).await.unwrap();
            }
            writer.append(&ROOT, FILE, Bytes::from_static(b"x"), false).await.unwrap();
            writer.unlock_all(FILE, OWNER).await.unwrap();
        });
        node.cut_power();
        node.expire_sessions();
        node.restart();
        node.expire_sessions();
        world.pass(Duration::from_secs(10));
        assert_eq!(
            (node.executed().len(), client.error(FILE)),
            if locked { (0, Some(FsError::Io)) } else { (1, None) }
        );
    }
}

/// A wait ends when its client has left.
#[test]
fn a_wait_ends_with_the_client() {
    let world = World::new(9);
    let node = Node::new(&world);
    let client = node.attach();
    stranger_has(&node, 0, 9);
    let waiting = start_waiting(&world, &client, ask(0, 9, EXCLUSIVE));
    world.pass(Duration::from_secs(1));
    assert!(waiting.borrow().is_none());
    world.run(async move { client.detach(Duration::from_secs(10)).await }).unwrap();
    world.pass(Duration::from_secs(1));
    assert_eq!(waiting.take(), Some(Err(FsError::Io)));
}
