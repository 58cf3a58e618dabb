use crate::node::*;
use crate::world::World;
use ebb_client::LinkEvent;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

fn query(node: &Node, query: u64, inos: &[u64]) {
    node.say(LinkEvent::Notice(Notice::ReferenceQuery {
        query,
        inos: inos.iter().copied().map(Ino).collect(),
    }));
}

/// The answers to each query that the node got.
fn answers(node: &Node) -> Vec<(u64, Vec<Ino>)> {
    let seen = node.seen.borrow();
    let answers = seen.iter().filter_map(|request| match request {
        Request::ReferenceQueryReply { query, referenced, .. } => {
            Some((*query, referenced.clone()))
        }
        _ => None,
    });
    answers.collect()
}

/// An answer that names an inode is in transit, and the node, which sent it before, wants to evict
/// the inode. The client reports the reference once it has the answer.
#[test]
fn reference_query_waits_for_replies_in_transit() {
    let world = World::new(1);
    let node = Node::new(&world);
    let client = node.attach();
    let held = Rc::new(RefCell::new(BTreeSet::new()));
    let holds = held.clone();
    client.on_reference_query(move |inos| {
        let held = inos.into_iter().filter(|ino| holds.borrow().contains(ino)).collect();
        Box::pin(async move { held })
    });
    node.latency_ms.set(300);
    let (asked, learns) = (client.clone(), held.clone());
    let found = world.start(async move {
        let attr = asked.getattr(Ino(7)).await.unwrap();
        learns.borrow_mut().insert(attr.ino);
    });
    world.pass(Duration::from_millis(10));
    node.latency_ms.set(1);
    query(&node, 5, &[7, 8]);
    world.pass(Duration::from_millis(100));
    assert_eq!(answers(&node), [], "the answer is under way");
    world.pass(Duration::from_millis(500));
    assert!(found.borrow().is_some());
    assert_eq!(answers(&node), [(5, vec![Ino(7)])]);
}

/// Without a handler a client references everything. So does a client with an answer that stays in
/// transit for too long.
#[test]
fn reference_query_without_answer_counts_as_holding_all() {
    let world = World::new(2);
    let node = Node::new(&world);
    let client = node.attach();
    query(&node, 1, &[3, 4]);
    world.pass(Duration::from_millis(100));
    assert_eq!(answers(&node), [(1, vec![Ino(3), Ino(4)])]);

    client.on_reference_query(|_| Box::pin(async { Vec::new() }));
    node.latency_ms.set(60_000);
    let asked = client.clone();
    let _found = world.start(async move { asked.getattr(Ino(3)).await.map(drop) });
    world.pass(Duration::from_millis(10));
    node.latency_ms.set(1);
    query(&node, 2, &[4]);
    world.pass(Duration::from_secs(5));
    assert_eq!(answers(&node)[1..], [(2, vec![Ino(4)])]);
}
