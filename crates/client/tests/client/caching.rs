use crate::node::*;
use crate::world::World;
use bytes::Bytes;
use ebb_client::{CacheRule, Change, Client, LinkEvent};
use ebb_model::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Records each change, with the rule at that time, and takes 50 ms to drop it.
fn watch(world: &World, client: &Client) -> Rc<RefCell<Vec<(Change, CacheRule)>>> {
    let told = Rc::new(RefCell::new(Vec::new()));
    let (notes, world) = (told.clone(), world.clone());
    client.on_change(move |change, rule| {
        notes.borrow_mut().push((change, rule));
        world.sleep_ms(50)
    });
    told
}

/// Another client attaches. First the rule changes, then everything cached is dropped, and only
/// then the node learns that it may admit the other client.
#[test]
fn a_second_client_ends_caching_before_it_comes_in() {
    let world = World::new(1);
    let node = Node::new(&world);
    let client = node.attach();
    assert_eq!(client.cache_rule(), CacheRule::Sole);
    let told = watch(&world, &client);
    node.say(LinkEvent::Notice(Notice::DropCaches));
    world.pass(Duration::from_millis(40));
    assert_eq!(client.cache_rule(), CacheRule::Shared);
    assert_eq!(*told.borrow(), [(Change::All, CacheRule::Shared)]);
    assert_eq!(node.count("caches-dropped"), 0, "the cache is not dropped yet");
    world.pass(Duration::from_millis(40));
    assert_eq!(node.count("caches-dropped"), 1);
}

/// While caches are dropped, which may wait for requests of the same user, requests are served and
/// answered.
#[test]
fn requests_are_served_while_caches_are_dropped() {
    let world = World::new(2);
    let node = Node::new(&world);
    let client = node.attach();
    let used = client.clone();
    client.on_change(move |_, _| {
        let used = used.clone();
        Box::pin(
            async move { assert_eq!(used.read(Ino(7), 0, 5).await.map(|data| data.len()), Ok(5)) },
        )
    });
    node.say(LinkEvent::Notice(Notice::DropCaches));
    world.pass(Duration::from_millis(100));
    assert_eq!(node.count("caches-dropped"), 1);
}

/// Another client makes a flood of changes while the first is being dropped. Each inode and name is
/// dropped once, and everything at once when there are too many.
#[test]
fn changes_are_gathered() {
    let world = World::new(3);
    let node = Node::new(&world);
    node.sole.set(false);
    let client = node.attach();
    assert_eq!(client.cache_rule(), CacheRule::Shared);
    let told = watch(&world, &client);
    for ino in [1, 2, 3, 2, 3, 2] {
        node.say(LinkEvent::Notice(Notice::Invalidate { ino: Ino(ino) }));
    }
    let f = Name::new(b"f").unwrap();
    for dir in [2, 1, 2] {
        node.say(LinkEvent::Notice(Notice::Relinked { dir: Ino(dir), name: f.clone() }));
    }
    world.pass(Duration::from_secs(1));
    let changes: Vec<Change> = told.take().into_iter().map(|(change, _)| change).collect();
    let names = [1, 2].map(|dir| Change::Name(Ino(dir), f.clone()));
    assert_eq!(changes, [&[1, 2, 3].map(|ino| Change::Inode(Ino(ino)))[..], &names].concat());
    for ino in 0..10_000 {
        node.say(LinkEvent::Notice(Notice::Invalidate { ino: Ino(ino) }));
    }
    world.pass(Duration::from_secs(10));
    assert_eq!(
        told.take().into_iter().map(|(change, _)| change).collect::<Vec<_>>(),
        [Change::All]
    );
}

/// The node cannot be reached. Caching ends before the session's term is over by the client's
/// clock. It resumes if the node still knows the session.
#[test]
fn caching_ends_with_the_term() {
    let world = World::new(4);
    let node = Node::new(&world);
    let client = node.attach();
    let told = watch(&world, &client);
    world.pass(TERM * 10);
    assert!(told.borrow().is_empty(), "renewed all the time");
    assert!(node.count("renew") >= 30);
    node.kill();
    world.pass(TERM / 2);
    assert_eq!(client.cache_rule(), CacheRule::Sole);
    world.pass(TERM / 2);
    assert_eq!(client.cache_rule(), CacheRule::Shared);
    assert_eq!(*told.borrow(), [(Change::All, CacheRule::Shared)]);
    node.restart();
    world.pass(Duration::from_secs(5));
    assert_eq!(client.cache_rule(), CacheRule::Sole);
    // The node has restarted: other clients may have been attached since.
    assert_eq!(told.borrow().len(), 2);
}

/// The node freezes without a notice and thaws: renewals get no answer, caching ends in time, and
/// resumes.
#[test]
fn a_frozen_node_ends_caching() {
    let world = World::new(5);
    let node = Node::new(&world);
    let client = node.attach();
    node.frozen.set(true);
    world.pass(TERM);
    assert_eq!(client.cache_rule(), CacheRule::Shared);
    node.frozen.set(false);
    world.pass(TERM);
    assert_eq!(client.cache_rule(), CacheRule::Sole);
}

/// The session has expired and another client was attached. Cached data is dropped even if this
/// client is sole again, and does not count as valid until that is done.
#[test]
fn fresh_session_drops_caches() {
    let world = World::new(6);
    let node = Node::new(&world);
    let client = node.attach();
    let told = watch(&world, &client);
    node.expire_sessions();
    node.disconnect();
    world.pass(Duration::from_secs(1));
    assert_eq!(*told.borrow(), [(Change::All, CacheRule::Shared)]);
    assert_eq!(client.cache_rule(), CacheRule::Sole);
    node.sole.set(false);
    node.disconnect();
    world.pass(Duration::from_secs(1));
    assert_eq!(told.borrow().last(), Some(&(Change::All, CacheRule::Shared)));
}

/// Situation: the connection breaks after another client, which shared the volume, has left.
/// Danger: notices of its changes were sent to the old connection, and this client, which is sole
/// again, keeps stale caches without end. Expectation: the caches are dropped.
#[test]
fn sole_client_again_drops_caches_of_the_shared_time() {
    let world = World::new(8);
    let node = Node::new(&world);
    node.sole.set(false);
    let client = node.attach();
    let told = watch(&world, &client);
    node.sole.set(true);
    node.disconnect();
    world.pass(Duration::from_secs(1));
    assert_eq!(
        (told.take(), client.cache_rule()),
        (vec![(Change::All, CacheRule::Shared)], CacheRule::Sole)
    );
    node.disconnect();
    world.pass(Duration::from_secs(1));
    assert_eq!(
        told.take(),
        [(Change::All, CacheRule::Shared)],
        "nor has the node been heard while it was alone"
    );
}

/// A replay is refused: the caches of its file are stale.
#[test]
fn a_refused_replay_drops_its_file() {
    let world = World::new(7);
    let node = Node::new(&world);
    let client = node.attach();
    node.force();
    let told = watch(&world, &client);
    let used = client.clone();
    world.run(async move { used.append(&Caller::ROOT, Ino(7), Bytes::from_static(b"x"), false).await }).expect("appended");
    node.refuse_replays.set(true);
    node.cut_power();
    node.restart();
    world.pass(Duration::from_secs(1));
    assert_eq!(
        *told.borrow(),
        [(Change::All, CacheRule::Shared), (Change::Inode(Ino(7)), CacheRule::Sole)]
    );
}
