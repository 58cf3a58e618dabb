use crate::node::*;
use crate::world::World;
use ebb_client::{Client, Options};
use ebb_model::*;
use std::time::Duration;

const INO: Ino = Ino(7);

fn open(world: &World, client: &Client) -> Result<(), FsError> {
    let client = client.clone();
    world.run(async move { client.open(INO).await })
}

/// The node learns of the first open and the last close, and of nothing between.
#[test]
fn the_first_open_and_the_last_close_are_told() {
    let world = World::new(1);
    let node = Node::new(&world);
    let client = node.attach();
    for _ in 0..3 {
        open(&world, &client).expect("opens");
    }
    client.close(INO);
    client.close(INO);
    world.pass(Duration::from_secs(1));
    assert_eq!((node.count("open"), node.count("close")), (1, 0));
    client.close(INO);
    client.close(INO);
    world.pass(Duration::from_secs(1));
    assert_eq!((node.count("open"), node.count("close")), (1, 1));
    assert!(node.opens.borrow().is_empty());
}

/// Opens and closes in a hurry, with every wait cut short at random, connections that break and a
/// node that restarts. In the end the node knows exactly the inodes that are open.
#[test]
fn node_and_client_agree_in_the_end() {
    for seed in 0..200 {
        let world = World::new(seed);
        let node = Node::new(&world);
        let client = node.attach_with(Options {
            unavailable_timeout: Some(Duration::from_millis(30)),
            ..Node::options()
        });
        node.chaos.set(Some(5));
        let mut opens = 0u32;
        for _ in 0..50 {
            match world.below(6) {
                0 | 1 => opens += u32::from(open(&world, &client).is_ok()),
                2 | 3 if opens > 0 => {
                    client.close(INO);
                    opens -= 1;
                }
                4 => world.pass(Duration::from_millis(world.below(50))),
                5 if world.one_in(5) => {
                    node.kill();
                    node.restart();
                }
                _ => {}
            }
        }
        node.chaos.set(None);
        world.pass(Duration::from_secs(200));
        assert_eq!(node.opens.borrow().contains_key(&INO), opens > 0, "seed {seed}");
        for _ in 0..opens {
            client.close(INO);
        }
        world.pass(Duration::from_secs(1));
        assert!(node.opens.borrow().is_empty(), "seed {seed}");
    }
}

/// A restarted node knows no opens. They are declared again before any client can unlink, and those
/// of files that the replay creates are declared after it.
#[test]
fn opens_are_told_again_after_a_restart() {
    let world = World::new(2);
    let node = Node::new(&world);
    let client = node.attach();
    node.force();
    open(&world, &client).expect("opens");
    let used = client.clone();
    let made = world
        .run(async move {
            used.make(&Caller::ROOT, Ino::ROOT, &name("a"), 0o644, Make::Regular, true).await
        })
        .expect("made")
        .ino;
    assert_eq!(node.opens.borrow().len(), 2);
    node.cut_power();
    node.restart();
    world.pass(Duration::from_secs(1));
    assert!(node.opens.borrow().contains_key(&INO) && node.opens.borrow().contains_key(&made));
    client.close(INO);
    client.close(made);
    world.pass(Duration::from_secs(1));
    assert!(node.opens.borrow().is_empty());
}

/// An open inode is gone after a restart: it has an error of its own, and the client continues.
#[test]
fn an_open_file_that_is_gone_is_stale() {
    let world = World::new(3);
    let node = Node::new(&world);
    let client = node.attach();
    open(&world, &client).expect("opens");
    node.kill();
    node.restart();
    node.refuse.borrow_mut().insert("open", RpcError::Refused(FsError::NotFound));
    world.pass(Duration::from_secs(1));
    assert_eq!(client.error(INO), Some(FsError::Stale));
    assert_eq!(open(&world, &client), Err(FsError::NotFound));
    client.close(INO);
    assert_eq!(client.error(INO), None);
    node.refuse.borrow_mut().clear();
    open(&world, &client).expect("opens");
}

/// The caller of a create has gone when the file is created open: it is closed again.
#[test]
fn a_file_made_for_nobody_is_closed() {
    let world = World::new(4);
    let node = Node::new(&world);
    let client = node.attach_with(Options {
        unavailable_timeout: Some(Duration::from_secs(1)),
        ..Node::options()
    });
    node.fates.borrow_mut().push_back(Fate::Silence);
    let used = client.clone();
    let made = world.run(async move {
        used.make(&Caller::ROOT, Ino::ROOT, &name("a"), 0o644, Make::Regular, true).await
    });
    assert_eq!(made, Err(FsError::TimedOut));
    assert_eq!(node.opens.borrow().len(), 1);
    world.pass(Duration::from_secs(60));
    assert!(node.opens.borrow().is_empty());
}

/// A node restarts, and the client's attach fails when it is about to declare its open files. It
/// requests the passthrough grants again all the same. If the node then has another file, the inode
/// cannot be opened until the grant is given back.
#[test]
fn grants_are_requested_again_after_a_node_restart() {
    let world = World::new(4);
    let node = Node::new(&world);
    let client = node.attach();
    open(&world, &client).expect("opens");
    let ask = |request| {
        let client = client.clone();
        world.run(async move { client.grant(INO, request).await })
    };
    let granted = ask(GrantRequest::Join).expect("the node lends").expect("it has the file");
    for (file, expected) in [((1, 1), Ok(())), ((1, 2), Err(FsError::Stale))] {
        node.grant_requests.take();
        node.passthrough.set(file);
        node.meet("open", Fate::LostReply);
        node.kill();
        node.restart();
        world.pass(Duration::from_secs(30));
        assert_eq!(node.grant_requests.take(), [GrantRequest::Resume]);
        assert_eq!(ask(GrantRequest::Join).map(drop), expected);
    }
    drop(granted);
    ask(GrantRequest::Join).expect("it is another loan");
}
