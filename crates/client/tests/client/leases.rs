//! Answers that may be cached under leases, and the ends of leases.

use crate::node::*;
use crate::world::World;
use ebb_client::{Client, LinkEvent, Recall};
use ebb_model::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const FILE: Ino = Ino(7);

fn attached(world: &World) -> (Rc<Node>, Client) {
    let node = Node::new(world);
    node.sole.set(false);
    node.lease_term_ms.set(2000);
    let client = node.attach();
    client.on_lease_recall(|_| Box::pin(async {}));
    (node, client)
}

/// Whether an answer that is asked for now may be cached when it has come.
fn is_leased(world: &World, client: &Client) -> bool {
    let client = client.clone();
    world.run(async move {
        let found = client.getattr_leased(FILE).await.expect("the node answers");
        client.may_cache(found.lease)
    })
}

fn recall() -> LinkEvent {
    LinkEvent::Notice(Notice::Recall { recall: 5, inos: vec![FILE], names: vec![] })
}

/// Story 2: the recall is delivered before the answer that grants.
#[test]
fn an_answer_that_a_recall_overtakes_is_not_cached() {
    let world = World::new(1);
    let (node, client) = attached(&world);
    assert!(is_leased(&world, &client));
    node.latency_ms.set(20);
    let asking = client.clone();
    let answer = world.start(async move {
        let found = asking.getattr_leased(FILE).await.expect("the node answers");
        asking.may_cache(found.lease)
    });
    world.pass(Duration::from_millis(30));
    node.say(recall());
    assert!(!world.await_result(&answer));
    assert!(is_leased(&world, &client), "the next answer is cached again");
}

/// A lease is returned when the cache has dropped it, without waiting for other invalidations.
#[test]
fn leases_are_returned_when_caches_have_dropped_them() {
    let world = World::new(2);
    let (node, client) = attached(&world);
    let dropped = Rc::new(Cell::new(0));
    let (dropping, time) = (dropped.clone(), world.clone());
    client.on_lease_recall(move |recall| {
        assert_eq!(recall, Recall::Some { inos: vec![FILE], names: vec![] });
        let (dropping, slowly) = (dropping.clone(), time.sleep_ms(50));
        Box::pin(async move {
            slowly.await;
            dropping.set(dropping.get() + 1);
        })
    });
    let time = world.clone();
    client.on_change(move |_, _| time.sleep_ms(5000));
    node.say(LinkEvent::Notice(Notice::Invalidate { ino: FILE }));
    world.pass(Duration::from_millis(10));
    node.say(recall());
    world.pass(Duration::from_millis(40));
    assert_eq!((dropped.get(), node.count("leases-returned")), (0, 0));
    world.pass(Duration::from_millis(40));
    assert_eq!((dropped.get(), node.count("leases-returned")), (1, 1));
}

/// The connection breaks, and recalls with it. Expectation: nothing is cached before everything is
/// dropped and the node has taken all leases back.
#[test]
fn a_client_that_attaches_again_begins_without_leases() {
    let world = World::new(3);
    let (node, client) = attached(&world);
    let time = world.clone();
    client.on_lease_recall(move |recall| {
        assert_eq!(recall, Recall::All);
        time.sleep_ms(300)
    });
    node.disconnect();
    world.pass(Duration::from_millis(200));
    assert!(!is_leased(&world, &client), "the old is still being dropped");
    world.pass(Duration::from_millis(700));
    assert_eq!(node.count("leases-returned"), 0, "a name may still be cached");
    world.pass(Duration::from_millis(400));
    assert_eq!(node.count("leases-returned"), 1);
    assert!(is_leased(&world, &client));
}

/// The client changes something while an answer is under way that may be older.
#[test]
fn an_answer_that_an_own_change_overtakes_is_not_cached() {
    let world = World::new(5);
    let (node, client) = attached(&world);
    node.latency_ms.set(20);
    let asking = client.clone();
    let answer = world.start(async move {
        let found = asking.getattr_leased(FILE).await.expect("the node answers");
        asking.may_cache(found.lease)
    });
    world.pass(Duration::from_millis(5));
    node.latency_ms.set(1);
    let changing = client.clone();
    world.run(async move {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        changing.setattr(&Caller::ROOT, FILE, set).await.expect("the node answers");
    });
    assert!(!world.await_result(&answer));
}

/// A client without a handler cannot drop anything.
#[test]
fn nothing_is_cached_without_a_handler() {
    let world = World::new(6);
    let node = Node::new(&world);
    node.sole.set(false);
    node.lease_term_ms.set(2000);
    let client = node.attach();
    assert!(!is_leased(&world, &client));
    node.say(recall());
    world.pass(Duration::from_millis(20));
    assert_eq!(node.count("leases-returned"), 1);
}

/// The node is silent. Leases end before it takes them back, and caches are dropped.
#[test]
fn leases_end_without_renewal() {
    let world = World::new(4);
    let (node, client) = attached(&world);
    let dropped = Rc::new(Cell::new(0));
    let dropping = dropped.clone();
    client.on_lease_recall(move |recall| {
        assert_eq!(recall, Recall::All);
        dropping.set(dropping.get() + 1);
        Box::pin(async {})
    });
    world.pass(Duration::from_secs(10));
    assert!(is_leased(&world, &client), "renewals keep leases");
    assert_eq!(dropped.get(), 0);
    node.frozen.set(true);
    world.pass(Duration::from_millis(2000));
    assert_eq!(dropped.get(), 1);
    node.frozen.set(false);
    world.pass(Duration::from_secs(60));
    assert!(is_leased(&world, &client));
}
