use crate::node::*;
use crate::world::World;
use bytes::Bytes;
use ebb_client::Options;
use ebb_model::*;
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;

fn data() -> Bytes {
    Bytes::from_static(b"x")
}

/// The reply to an append is lost with the connection, then the request, then the node is busy,
/// then it does not answer at all: the file has grown once.
#[test]
fn a_mutation_is_executed_once_however_often_it_is_sent() {
    for fate in [Fate::LostReply, Fate::LostRequest, Fate::Retry, Fate::Silence] {
        let world = World::new(1);
        let node = Node::new(&world);
        let client = node.attach();
        node.fates.borrow_mut().extend([fate, fate]);
        let written = world
            .run(async move { client.append(&ROOT, Ino(7), data(), false).await })
            .expect("appended");
        assert_eq!(written.offset, 0, "{fate:?}");
        assert_eq!(node.executed().len(), 1, "{fate:?}");
        assert_eq!(transactions(&node).len(), 1, "{fate:?}: always the same transaction");
    }
}

/// The answer is lost, and so is the session before the client is back. The outcome of the append
/// cannot be determined: its caller gets EIO, fsync fails as long as the file is open, and no
/// append is executed after that.
#[test]
fn an_unknown_outcome_is_an_error_that_stays() {
    let world = World::new(2);
    let node = Node::new(&world);
    let client = node.attach();
    let opened = client.clone();
    world.run(async move { opened.open(Ino(7)).await }).expect("opens");
    node.fates.borrow_mut().push_back(Fate::LostReply);
    let appending = world.start({
        let client = client.clone();
        async move { client.append(&ROOT, Ino(7), data(), false).await }
    });
    world.pass(Duration::from_millis(2));
    node.expire_sessions();
    world.pass(Duration::from_secs(5));
    assert_eq!(appending.take(), Some(Err(FsError::Io)));
    assert_eq!(node.executed().len(), 1);
    assert_eq!(client.error(Ino(7)), Some(FsError::Io));

    let asked = client.clone();
    world.run(async move {
        assert_eq!(
            asked.append(&ROOT, Ino(7), data(), false).await,
            Err(FsError::Io),
            "no write over a hole in the story"
        );
        assert_eq!(asked.fsync(Ino(7)).await, Err(FsError::Io));
        assert_eq!(asked.fsync(Ino(7)).await, Err(FsError::Io));
        assert_eq!(asked.fsync(Ino(8)).await, Ok(()));
        assert_eq!(asked.sync_fs().await, Err(FsError::Io));
        assert_eq!(asked.sync_fs().await, Ok(()));
        asked.close(Ino(7));
        assert_eq!(asked.error(Ino(7)), None);
        assert_eq!(
            asked.append(&ROOT, Ino(7), data(), false).await.map(|written| written.offset),
            Ok(1)
        );
    });
}

/// Situation: a node loses the lead during an append, and the session has ended when the client
/// attaches to the leader. Danger: the append is in the log, and is executed again under another
/// session. Expectation: the caller gets EIO, and no append is sent again.
#[test]
fn outcome_at_a_former_leader_is_unknown_without_the_session() {
    let world = World::new(12);
    let node = Node::new(&world);
    let client = node.attach();
    node.refuse.borrow_mut().insert("mutate", RpcError::NotLeader { leader: None });
    let appending = world.start(async move { client.append(&ROOT, Ino(7), data(), false).await });
    world.pass(Duration::from_micros(2500));
    assert_eq!(node.count("mutate"), 1);
    node.refuse.borrow_mut().clear();
    node.expire_sessions();
    world.pass(Duration::from_secs(5));
    assert_eq!(appending.take(), Some(Err(FsError::Io)));
    assert_eq!((node.count("mutate"), node.count("attach")), (1, 2));
}

/// The session has expired in silence, but no request is in doubt: the mutation is executed under
/// the new session and its caller sees no error.
#[test]
fn an_expired_session_is_replaced_where_nothing_is_in_doubt() {
    let world = World::new(3);
    let node = Node::new(&world);
    let client = node.attach();
    node.expire_sessions();
    world.run(async move { client.append(&ROOT, Ino(7), data(), false).await }).expect("appended");
    assert_eq!(node.executed().len(), 1);
    assert_eq!(node.count("attach"), 2);
}

/// The node is silent for longer than the caller wants to wait. The caller gets a time-out. The
/// slot carries no other mutation until the node has answered. The mutation is executed once.
#[test]
fn a_mutation_given_up_by_its_caller_is_still_settled() {
    let world = World::new(4);
    let node = Node::new(&world);
    let client = node.attach_with(Options {
        unavailable_timeout: Some(Duration::from_secs(10)),
        ..Node::options()
    });
    node.frozen.set(true);
    let asked = client.clone();
    let result = world.run(async move { asked.append(&ROOT, Ino(7), data(), false).await });
    assert_eq!(result, Err(FsError::TimedOut));
    node.frozen.set(false);
    world.run(async move { client.append(&ROOT, Ino(7), data(), false).await }).expect("appended");
    world.pass(Duration::from_secs(60));
    assert_eq!(node.executed().len(), 2);
    assert_eq!(transactions(&node).iter().map(|(_, slot, _)| *slot).collect::<Vec<_>>(), [0, 1]);
}

/// A caller goes away while its mutation waits for the node to come back: nothing has been sent, so
/// nothing is executed.
#[test]
fn a_mutation_that_was_never_sent_goes_with_its_caller() {
    let world = World::new(5);
    let node = Node::new(&world);
    let client = node.attach_with(Options {
        unavailable_timeout: Some(Duration::from_secs(1)),
        ..Node::options()
    });
    node.kill();
    world.pass(Duration::from_millis(1));
    let asked = client.clone();
    assert_eq!(
        world.run(async move { asked.append(&ROOT, Ino(7), data(), false).await }),
        Err(FsError::TimedOut)
    );
    node.restart();
    world.pass(Duration::from_secs(10));
    assert_eq!(node.executed().len(), 0);
    world.run(async move { client.append(&ROOT, Ino(7), data(), false).await }).expect("appended");
    assert_eq!(node.executed().len(), 1);
}

/// Requests and replies are lost, late, or refused for load. The node is killed and loses power,
/// again and again, while thirty-two writers work. Every acknowledged mutation is in the log
/// exactly once, with the answer that its caller got, and every other one at most once. One seed
/// always gives one history.
#[test]
fn nothing_is_lost_or_doubled_under_chaos() {
    let mut replayed = 0;
    for seed in 0..40 {
        let story = chaos(seed);
        assert_eq!(story, chaos(seed), "seed {seed} is no seed");
        replayed += story.1;
    }
    assert!(replayed > 1000, "no test of replay: {replayed}");
}

const WRITERS: u64 = 32;
const ROUNDS: u64 = 12;

/// The executed mutations, and the number of replays.
fn chaos(seed: u64) -> (Vec<(ClientMutation, Mutated)>, usize) {
    let world = World::new(seed);
    let node = Node::new(&world);
    let client = node.attach();
    node.force();
    node.chaos.set(Some(20));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (client, sleeper) = (client.clone(), world.clone());
        writers.push(world.start(async move {
            let mut acknowledged = Vec::new();
            for round in 0..ROUNDS {
                sleeper.sleep_ms(sleeper.below(50)).await;
                // Two writers want each name, so that half of the makes are refused.
                let file = name(&format!("{}-{round}", writer / 2));
                match client.make(&ROOT, Ino::ROOT, &file, 0o644, Make::Regular, false).await {
                    Ok(attr) => acknowledged.push((writer * 1000 + round, Some(attr.ino))),
                    Err(error) => assert_eq!(error, FsError::Exists),
                }
                let offset = writer * 1000 + round;
                client.write(&ROOT, Ino(7), offset, data(), false).await.expect("written");
                acknowledged.push((offset, None));
            }
            acknowledged
        }));
    }
    for _ in 0..10 {
        world.pass(Duration::from_millis(world.below(200)));
        match world.below(4) {
            0 => node.disconnect(),
            1 => node.force(),
            2 => {
                node.kill();
                world.pass(Duration::from_millis(world.below(100)));
                node.restart();
            }
            _ => {
                node.cut_power();
                world.pass(Duration::from_millis(world.below(100)));
                node.restart();
            }
        }
    }
    let asked = client.clone();
    world.pass(Duration::from_secs(600));
    node.chaos.set(None);
    world.run(async move { asked.sync_fs().await }).expect("nothing was lost");
    node.cut_power();
    node.restart();
    check(
        &node,
        writers
            .iter()
            .map(|writer| writer.borrow_mut().take().expect("every writer has ended"))
            .collect(),
    );
    (node.executed(), node.count("replay"))
}

fn check(node: &Rc<Node>, acknowledged: Vec<Vec<(u64, Option<Ino>)>>) {
    let executed = node.executed();
    for (offset, made) in acknowledged.into_iter().flatten() {
        let times = executed
            .iter()
            .filter(|(mutation, mutated)| match (mutation, made) {
                (ClientMutation::Make { .. }, Some(ino)) => mutated.replay.ino == Some(ino),
                (ClientMutation::Write { offset: other, .. }, None) => *other == offset,
                _ => false,
            })
            .count();
        assert_eq!(times, 1, "{offset} {made:?}");
    }
    let writes = executed
        .iter()
        .filter(|(mutation, _)| matches!(mutation, ClientMutation::Write { .. }))
        .count();
    assert_eq!(writes as u64, WRITERS * ROUNDS);
    assert_eq!((executed.len() - writes) as u64, WRITERS / 2 * ROUNDS, "one make of each name");
}
