use crate::node::*;
use crate::world::World;
use bytes::Bytes;
use ebb_client::{AttachError, Client, Options};
use ebb_model::*;
use std::rc::Rc;
use std::time::Duration;

fn try_attach(world: &World, node: &Rc<Node>) -> Result<Client, AttachError> {
    let (link, ports) = (node.clone(), world.ports());
    world.run(async move { Client::attach(link, ports, Node::options()).await })
}

/// Each failure of a first attach has an error of its own, and none takes for ever.
#[test]
fn an_attach_that_fails_says_why() {
    let world = World::new(1);
    let node = Node::new(&world);
    for (error, expected) in [
        (RpcError::Denied("no such volume".into()), AttachError::Denied("no such volume".into())),
        (RpcError::Lost, AttachError::Unreachable("nobody listens".into())),
        (
            RpcError::NotServing("it stops".into()),
            AttachError::Unreachable("node does not serve the volume: it stops".into()),
        ),
        (RpcError::NotLeader { leader: None }, AttachError::NoLeader("nobody listens".into())),
    ] {
        node.refuse.borrow_mut().insert("attach", error);
        assert_eq!(try_attach(&world, &node).err(), Some(expected));
    }
    node.refuse.borrow_mut().clear();
    node.frozen.set(true);
    assert_eq!(
        try_attach(&world, &node).err(),
        Some(AttachError::TimedOut(Node::options().attach_timeout))
    );
    assert_eq!(world.tasks(), 0);
}

/// An attach waits for a node that is about to start.
#[test]
fn an_attach_waits_a_little_for_a_node() {
    let world = World::new(2);
    let node = Node::new(&world);
    node.kill();
    let (link, ports) = (node.clone(), world.ports());
    let attaching =
        world.start(async move { Client::attach(link, ports, Node::options()).await.is_ok() });
    world.pass(Duration::from_secs(2));
    node.restart();
    world.pass(Duration::from_secs(5));
    assert_eq!(attaching.take(), Some(true));
}

/// The node refuses to take the client back: every caller gets EIO, now and later.
#[test]
fn a_client_that_is_not_taken_back_ends() {
    let world = World::new(3);
    let node = Node::new(&world);
    let client = node.attach();
    node.refuse.borrow_mut().insert("attach", RpcError::Denied("read-only now".into()));
    node.disconnect();
    let used = client.clone();
    assert_eq!(world.run(async move { used.getattr(Ino(7)).await }), Err(FsError::Io));
    assert_eq!(
        world.run(async move { client.append(&Caller::ROOT, Ino(7), Bytes::new(), false).await }),
        Err(FsError::Io)
    );
    world.pass(Duration::from_millis(1));
    assert_eq!(world.tasks(), 0);
}

/// Without a time-out a caller waits for the node without bound.
#[test]
fn operations_wait_for_the_node_like_a_hard_mount() {
    let world = World::new(4);
    let node = Node::new(&world);
    let client = node.attach();
    node.kill();
    let reading = world.start(async move { client.getattr(Ino(7)).await.is_ok() });
    world.pass(Duration::from_secs(3600));
    assert!(reading.borrow().is_none());
    let attempts = node.count("attach");
    assert!(attempts < 3600, "{attempts} attempts are no back-off");
    node.restart();
    world.pass(Duration::from_secs(3));
    assert_eq!(reading.take(), Some(true));
}

/// A read-only client sends no request that changes anything.
#[test]
fn a_read_only_client_changes_nothing() {
    let world = World::new(5);
    let node = Node::new(&world);
    let client = node.attach_with(Options { read_only: true, ..Node::options() });
    assert!(client.is_read_only());
    let result =
        world.run(async move { client.unlink(&Caller::ROOT, Ino::ROOT, &name("a")).await });
    assert_eq!(result, Err(FsError::ReadOnly));
    assert_eq!(node.count("mutate"), 0);
}

/// Detaching waits for operations in progress, forces them and ends the session. No task stays
/// running.
#[test]
fn detach_leaves_everything_durable() {
    let world = World::new(6);
    let node = Node::new(&world);
    let client = node.attach();
    for offset in 0..200 {
        let client = client.clone();
        world.start(async move {
            client
                .write(&Caller::ROOT, Ino(7), offset, Bytes::from_static(b"x"), false)
                .await
                .map(drop)
        });
    }
    world.pass(Duration::from_millis(2));
    let used = client.clone();
    assert_eq!(world.run(async move { used.detach(Duration::from_secs(10)).await }), Ok(()));
    assert_eq!((node.executed().len(), node.count("detach")), (200, 1));
    node.cut_power();
    node.restart();
    assert_eq!(node.executed().len(), 200);
    assert_eq!(world.run(async move { client.getattr(Ino(7)).await }), Err(FsError::Io));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.tasks(), 0);
}

/// A node that is gone does not block a detach.
#[test]
fn detach_gives_up_in_time() {
    let world = World::new(7);
    let node = Node::new(&world);
    let client = node.attach();
    node.kill();
    assert_eq!(
        world.run(async move { client.detach(Duration::from_secs(10)).await }),
        Err(FsError::TimedOut)
    );
    assert_eq!(world.now().as_secs(), 10);
    world.pass(Duration::from_millis(1));
    assert_eq!(world.tasks(), 0);
}

/// The last clone is dropped without detaching, also while the node is away: no task stays running,
/// and nothing more is sent.
#[test]
fn a_dropped_client_leaves_nothing_running() {
    for away in [false, true] {
        let world = World::new(8);
        let node = Node::new(&world);
        let client = node.attach();
        if away {
            node.kill();
            world.pass(Duration::from_secs(1));
        }
        drop(client);
        world.pass(Duration::from_secs(1));
        assert_eq!(world.tasks(), 0);
        let seen = node.seen.borrow().len();
        world.pass(Duration::from_secs(100));
        assert_eq!(node.seen.borrow().len(), seen);
    }
}
