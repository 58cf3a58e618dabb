use crate::node::*;
use crate::world::World;
use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;

fn data(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn append(world: &World, client: &Client, ino: u64, text: &'static str) -> Result<u64, FsError> {
    let client = client.clone();
    world.run(async move {
        client.append(&ROOT, Ino(ino), data(text), false).await.map(|written| written.offset)
    })
}

fn make(world: &World, client: &Client, text: &str) -> Result<Ino, FsError> {
    let (client, name) = (client.clone(), name(text));
    world.run(async move {
        client.make(&ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false).await.map(|attr| attr.ino)
    })
}

/// Power fails, and the node comes back.
fn fail_power(world: &World, node: &Rc<Node>) {
    node.cut_power();
    world.pass(Duration::from_millis(50));
    node.restart();
    world.pass(Duration::from_secs(10));
}

/// Operations are answered, some are forced, power fails. The lost operations are repeated in their
/// order, with their ids, offsets, times and versions. The forced ones are not.
#[test]
fn replay_repeats_lost_operations_unchanged() {
    let world = World::new(1);
    let node = Node::new(&world);
    let client = node.attach();
    append(&world, &client, 7, "forced").expect("appended");
    node.force();
    world.pass(Duration::from_millis(5));
    let made = make(&world, &client, "made").expect("made");
    append(&world, &client, 7, "one").expect("appended");
    append(&world, &client, 7, "two").expect("appended");
    let before = node.executed();
    world.pass(Duration::from_secs(100));

    fail_power(&world, &node);
    assert_eq!(node.executed(), before);
    assert_eq!(node.count("replay"), 3);
    assert_eq!(make(&world, &client, "other").map(|ino| ino.0), Ok(made.0 + 1));
    assert_eq!(append(&world, &client, 7, "three"), Ok(12));
}

/// The node is killed, but its machine lives: all answered operations are there. Each one not known
/// to be durable is repeated, and the session table keeps it from being executed twice.
#[test]
fn replay_skips_operations_that_the_node_kept() {
    let world = World::new(2);
    let node = Node::new(&world);
    let client = node.attach();
    for _ in 0..200 {
        append(&world, &client, 7, "x").expect("appended");
    }
    node.kill();
    node.restart();
    world.pass(Duration::from_secs(10));
    assert_eq!(node.count("replay"), 200);
    assert_eq!(node.executed().len(), 200);
    assert_eq!(append(&world, &client, 7, "x"), Ok(200));
}

/// Only the connection breaks. The same run of the node answers, so nothing is sent again.
#[test]
fn a_lost_connection_alone_repeats_nothing() {
    let world = World::new(3);
    let node = Node::new(&world);
    let client = node.attach();
    append(&world, &client, 7, "x").expect("appended");
    node.disconnect();
    world.pass(Duration::from_secs(10));
    assert_eq!(node.count("attach"), 2);
    assert_eq!(node.count("replay"), 0);
}

/// Between two operations of one slot lies one that was refused. The power cut takes all three. The
/// refused one is not repeated, the others are.
#[test]
fn a_forgotten_refusal_leaves_a_gap() {
    let world = World::new(4);
    let node = Node::new(&world);
    let client = node.attach();
    node.force();
    make(&world, &client, "a").expect("made");
    assert_eq!(make(&world, &client, "a"), Err(FsError::Exists));
    make(&world, &client, "b").expect("made");
    let before = node.executed().into_iter().map(|(_, mutated)| mutated.replay).collect::<Vec<_>>();
    fail_power(&world, &node);
    assert_eq!(
        node.executed().into_iter().map(|(_, mutated)| mutated.replay).collect::<Vec<_>>(),
        before
    );
    assert_eq!(client.error(Ino::ROOT), None);
}

/// Power fails. The node starts, writes for another client, and is killed before this one is back.
/// The log is longer now than the index of this client's last answer, and still lacks its
/// operation.
#[test]
fn others_work_after_a_restart_does_not_hide_a_loss() {
    let world = World::new(5);
    let node = Node::new(&world);
    let client = node.attach();
    node.force();
    append(&world, &client, 7, "mine").expect("appended");
    node.cut_power();
    node.restart();
    for _ in 0..10 {
        node.append(Record::Foreign);
    }
    node.force();
    node.kill();
    node.restart();
    world.pass(Duration::from_secs(10));
    assert_eq!(node.executed().len(), 1);
    assert_eq!(append(&world, &client, 7, "more"), Ok(4));
}

/// Power fails again in the middle of a replay, several times. In the end all operations are there,
/// once, in order.
#[test]
fn a_replay_survives_further_losses() {
    let world = World::new(6);
    let node = Node::new(&world);
    let client = node.attach();
    node.force();
    for _ in 0..50 {
        append(&world, &client, 7, "x").expect("appended");
    }
    let before = node.executed().into_iter().map(|(_, mutated)| mutated.replay).collect::<Vec<_>>();
    for round in 0..8 {
        node.cut_power();
        node.restart();
        // A replay takes 100 ms.
        world.pass(Duration::from_millis(30 + round * 7));
    }
    world.pass(Duration::from_secs(10));
    assert_eq!(
        node.executed().into_iter().map(|(_, mutated)| mutated.replay).collect::<Vec<_>>(),
        before
    );
}

/// A lost operation conflicts with the present state. Its file has an error that stays until it is
/// reported. Other operations are repeated all the same, and the client continues.
#[test]
fn a_replay_that_is_refused_is_an_error_on_its_file() {
    let world = World::new(7);
    let node = Node::new(&world);
    let client = node.attach();
    node.force();
    append(&world, &client, 7, "x").expect("appended");
    node.refuse_replays.set(true);
    fail_power(&world, &node);
    assert_eq!(client.error(Ino(7)), Some(FsError::Io));
    assert_eq!(append(&world, &client, 7, "x"), Err(FsError::Io));
    assert_eq!(append(&world, &client, 8, "x"), Ok(0));
    let asked = client.clone();
    world.run(async move {
        assert_eq!(asked.fsync(Ino(7)).await, Err(FsError::Io));
        assert_eq!(asked.fsync(Ino(7)).await, Ok(()), "it is not open: reported once");
    });
    assert_eq!(append(&world, &client, 7, "x"), Ok(1));
    node.refuse_replays.set(false);
    fail_power(&world, &node);
    assert_eq!(node.executed().len(), 2, "what was refused is not tried again");
}

/// The session is lost with the power. The operations above the recovered log are certainly lost,
/// and are repeated under the new session.
#[test]
fn certain_losses_are_repeated_under_a_fresh_session() {
    let world = World::new(8);
    let node = Node::new(&world);
    let client = node.attach();
    for text in ["one", "two", "six"] {
        append(&world, &client, 7, text).expect("appended");
    }
    // Not even the session was forced.
    fail_power(&world, &node);
    assert_eq!(node.executed().len(), 3);
    assert_eq!(client.error(Ino(7)), None);
    assert_eq!(append(&world, &client, 7, "x"), Ok(9));
    assert_eq!(node.executed().len(), 4);
}

/// The session has expired, and the node has restarted with an unknown log. It cannot be determined
/// whether the operation is in it: the result is an error, and no second execution.
#[test]
fn doubtful_losses_are_errors() {
    let world = World::new(9);
    let node = Node::new(&world);
    let client = node.attach();
    append(&world, &client, 7, "x").expect("appended");
    node.kill();
    node.restart();
    node.expire_sessions();
    world.pass(Duration::from_secs(10));
    assert_eq!(node.executed().len(), 1);
    assert_eq!(node.count("replay"), 0);
    assert_eq!(client.error(Ino(7)), Some(FsError::Io));
    assert_eq!(append(&world, &client, 8, "x"), Ok(1));
}

/// A file has lost acknowledged bytes. Until that is reported no operation changes its bytes. Its
/// attributes can be changed.
#[test]
fn no_bytes_are_changed_under_an_error() {
    let world = World::new(9);
    let node = Node::new(&world);
    let client = node.attach();
    append(&world, &client, 7, "x").expect("appended");
    node.kill();
    node.restart();
    node.expire_sessions();
    world.pass(Duration::from_secs(10));
    let set = |set: SetAttr| {
        let client = client.clone();
        world.run(async move { client.setattr(&ROOT, Ino(7), set).await.map(drop) })
    };
    let cut = || set(SetAttr { size_bytes: Some(0), ..SetAttr::default() });
    let (zeroing, syncing) = (client.clone(), client.clone());
    assert_eq!(append(&world, &client, 7, "y"), Err(FsError::Io));
    let zeroed = async move {
        zeroing.fallocate(&ROOT, Ino(7), (0, 1), Allocation::Zero, true, false).await.map(drop)
    };
    assert_eq!(world.run(zeroed), Err(FsError::Io));
    assert_eq!(cut(), Err(FsError::Io));
    assert_eq!(node.executed().len(), 1);
    assert_eq!(set(SetAttr { mode: Some(0o600), ..SetAttr::default() }), Ok(()));
    assert_eq!(world.run(async move { syncing.fsync(Ino(7)).await }), Err(FsError::Io));
    assert_eq!(cut(), Ok(()), "it has been reported");
}

/// A session ends while its node lives, and another begins. Then the node restarts and knows the
/// later one. Operations of the earlier one are not sent under an id that the node does not know.
#[test]
fn replay_omits_operations_of_an_earlier_session() {
    let world = World::new(10);
    let node = Node::new(&world);
    let client = node.attach();
    make(&world, &client, "a").expect("made");
    append(&world, &client, 7, "x").expect("appended");
    node.expire_sessions();
    node.disconnect();
    world.pass(Duration::from_secs(10));
    node.kill();
    node.restart();
    world.pass(Duration::from_secs(10));
    make(&world, &client, "b").expect("it is attached");
    assert_eq!(
        append(&world, &client, 7, "y"),
        Err(FsError::Io),
        "nobody knows whether the bytes are there"
    );
}

/// A certain loss is being repeated under a fresh session when the connection breaks and that
/// session expires too. The outcome of the repetition is not known, so it is not repeated.
#[test]
fn a_repetition_in_doubt_is_not_repeated_under_another_session() {
    let world = World::new(10);
    let node = Node::new(&world);
    let client = node.attach();
    append(&world, &client, 7, "x").expect("appended");
    node.fates.borrow_mut().push_back(Fate::LostReply);
    node.cut_power();
    node.restart();
    while node.executed().is_empty() {
        world.pass(Duration::from_millis(1));
    }
    node.expire_sessions();
    world.pass(Duration::from_secs(10));
    assert_eq!(node.executed().len(), 1);
    assert_eq!(client.error(Ino(7)), Some(FsError::Io));
}
