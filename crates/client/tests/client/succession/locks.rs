//! Locks outlive the process that requested them.

use super::*;
use ebb_client::Client;
use ebb_core::locks::Ranges;
use std::future::pending;

const FCNTL: LockOwner = LockOwner::Fcntl(1);
const FLOCK: LockOwner = LockOwner::Flock(1);
const OWNERS: [LockOwner; 2] = [FCNTL, FLOCK];
const SHARED: Option<LockMode> = Some(LockMode::Shared);
const EXCLUSIVE: Option<LockMode> = Some(LockMode::Exclusive);

/// Other sessions exist in the node's table only.
const STRANGER: SessionId = SessionId(1);
const PASSER_BY: SessionId = SessionId(2);

/// All bytes at which a lock of these tests begins or ends lie in this range.
const BYTES: std::ops::RangeInclusive<u64> = 0..=40;

fn range(start: u64, end: u64) -> LockRange {
    LockRange::new(start, end).expect("a range")
}

fn ask(owner: LockOwner, range: LockRange, mode: Option<LockMode>) -> LockAsk {
    LockAsk { ino: FILE, owner, range, mode, keep: false, pid: 1 }
}

fn fcntl(start: u64, end: u64, mode: Option<LockMode>) -> LockAsk {
    ask(FCNTL, range(start, end), mode)
}

fn flock(mode: Option<LockMode>) -> LockAsk {
    ask(FLOCK, LockRange::WHOLE, mode)
}

/// The requests of an owner, one after the other. They split, merge, weaken and strengthen locks,
/// and are refused where the stranger has a conflicting one.
fn asks_of(owner: LockOwner) -> Vec<LockAsk> {
    match owner {
        LockOwner::Fcntl(_) => vec![
            fcntl(0, 9, EXCLUSIVE),
            fcntl(2, 3, None),
            fcntl(5, 6, SHARED),
            fcntl(0, 19, SHARED),
            fcntl(4, 12, EXCLUSIVE),
            fcntl(0, 35, SHARED),
            fcntl(13, 40, EXCLUSIVE),
            fcntl(8, 8, SHARED),
            ask(FCNTL, LockRange::WHOLE, None),
        ],
        LockOwner::Flock(_) => vec![
            flock(SHARED),
            flock(EXCLUSIVE),
            flock(SHARED),
            flock(None),
            flock(SHARED),
            flock(SHARED),
        ],
    }
}

fn stranger_has(node: &Node) {
    let mut locks = node.locks.borrow_mut();
    let lock = |range, mode| [RangeLock { range, mode }];
    assert_eq!(
        locks.reclaim(STRANGER, FILE, FCNTL, 9, &lock(range(30, 31), LockMode::Exclusive)),
        Ok(())
    );
    assert_eq!(
        locks.reclaim(STRANGER, FILE, FLOCK, 9, &lock(LockRange::WHOLE, LockMode::Shared)),
        Ok(())
    );
}

fn is_refused(ask: &LockAsk) -> bool {
    match ask.owner {
        LockOwner::Fcntl(_) => ask.mode.is_some() && ask.range.overlaps(range(30, 31)),
        LockOwner::Flock(_) => ask.mode == EXCLUSIVE,
    }
}

/// The locks that an owner holds after answers to these requests.
fn held_after(asks: &[LockAsk]) -> Ranges {
    let mut held = Ranges::default();
    for ask in asks {
        if let LockOwner::Flock(_) = ask.owner
            && mode_at(&held, 0) != ask.mode
        {
            held.set(ask.range, None);
        }
        if !is_refused(ask) {
            held.set(ask.range, ask.mode);
        }
    }
    held
}

fn mode_at(held: &Ranges, byte: u64) -> Option<LockMode> {
    held.overlapping(range(byte, byte)).next().map(|lock| lock.mode)
}

/// The mode in which an owner other than the stranger holds the byte, as the stranger's lock test
/// shows.
fn node_has(node: &Node, owner: LockOwner, byte: u64) -> Option<LockMode> {
    let mut modes = [LockMode::Exclusive, LockMode::Shared].into_iter();
    let locks = node.locks.borrow();
    // The stranger does not conflict with itself.
    let is_in_the_way = |mode| {
        locks.test(STRANGER, FILE, owner, RangeLock { range: range(byte, byte), mode }).is_some()
    };
    modes.find(|mode| match mode {
        LockMode::Exclusive => is_in_the_way(LockMode::Shared),
        LockMode::Shared => is_in_the_way(LockMode::Exclusive),
    })
}

fn restart(node: &Node) {
    node.kill();
    stranger_has(node);
    node.restart();
}

fn no_error_stands(process: &Rc<Process>, client: &Client) {
    assert_eq!(client.error(FILE), None);
    let syncing = client.clone();
    assert_eq!(process.run(async move { syncing.sync_fs().await }), Ok(()));
}

/// The fate of the node around the death of its client.
#[derive(Clone, Copy, PartialEq, Debug)]
enum NodeThen {
    Stays,
    /// Before the successor attaches.
    Restarts,
    /// After the successor has attached.
    RestartsLater,
}

/// The first request to the successor by an owner whose request had no answer.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Next {
    /// The same request again.
    Again,
    /// The owner has closed the file.
    Unlock,
}

/// Situation: a client dies at any moment of lock requests of two owners side by side. The node
/// restarts before its successor attaches, after that, or not. Danger: the successor knows fewer
/// locks than were granted. Then a lock that a program relies on is lost with the node, or an
/// unknown lock stays for ever. Or it knows more locks, and takes one that another owner has by
/// then. Expectation: answered locks are held, before and after. For a request without an answer no
/// lock is held that the node has not granted. The request is settled when it is repeated, or when
/// the owner gives up everything.
#[test]
fn locks_outlive_the_process() {
    for then in [NodeThen::Stays, NodeThen::Restarts, NodeThen::RestartsLater] {
        for next in [Next::Again, Next::Unlock] {
            with_every_death(|death| locks_outlive(death, then, next));
        }
    }
}

fn locks_outlive(death: Death, then: NodeThen, next: Next) -> bool {
    let case = format!("{death:?}, the node {then:?}, {next:?}");
    let world = World::new(11);
    let (node, left) = (Node::new(&world), nothing_left());
    stranger_has(&node);
    let first = Process::on(&node, &left);
    let client = first.attach();
    let users = OWNERS.map(|owner| {
        let (done, client) = (Rc::new(Cell::new(0)), client.clone());
        let told = done.clone();
        first.start(async move {
            for ask in asks_of(owner) {
                let answer = if is_refused(&ask) { Err(FsError::WouldBlock) } else { Ok(()) };
                assert_eq!(client.lock(ask).await, answer, "{ask:?}");
                told.set(told.get() + 1);
            }
        });
        (owner, done)
    });
    let dies = first.lives_until(death, || {
        users.iter().all(|(owner, done)| done.get() == asks_of(*owner).len())
    });
    if !dies {
        return false;
    }
    drop(client);
    let granted =
        OWNERS.map(|owner| BYTES.map(|byte| node_has(&node, owner, byte)).collect::<Vec<_>>());
    if then == NodeThen::Restarts {
        restart(&node);
    }
    let successor = Process::on(&node, &left);
    let client = successor.attach();
    if then == NodeThen::RestartsLater {
        restart(&node);
        world.pass(Duration::from_secs(10));
    }
    for ((owner, done), granted) in users.iter().zip(&granted) {
        let asks = asks_of(*owner);
        let answered = held_after(&asks[..done.get()]);
        for (byte, granted) in BYTES.zip(granted) {
            let (had, has) = (mode_at(&answered, byte), node_has(&node, *owner, byte));
            match asks.get(done.get()).filter(|ask| ask.range.overlaps(range(byte, byte))) {
                _ if then == NodeThen::Stays => {
                    assert_eq!(has, *granted, "{case}: {owner:?} at {byte}")
                }
                None => assert_eq!((has, *granted), (had, had), "{case}: {owner:?} at {byte}"),
                Some(ask) => {
                    let least =
                        if let LockOwner::Fcntl(_) = owner { had.min(ask.mode) } else { None };
                    assert!(
                        least <= has && has <= *granted,
                        "{case}: {owner:?} at {byte}: {least:?} {has:?} {granted:?}"
                    );
                }
            }
        }
    }
    no_error_stands(&successor, &client);

    for (owner, done) in users {
        let asks = asks_of(owner);
        let rest = if next == Next::Again { &asks[done.get()..] } else { &[] };
        for (at, again) in rest.iter().enumerate() {
            let (asking, again) = (client.clone(), *again);
            let answer = if is_refused(&again) { Err(FsError::WouldBlock) } else { Ok(()) };
            assert_eq!(
                successor.run(async move { asking.lock(again).await }),
                answer,
                "{case}: {again:?}"
            );
            let held = held_after(&asks[..done.get() + at + 1]);
            for byte in BYTES {
                assert_eq!(
                    node_has(&node, owner, byte),
                    mode_at(&held, byte),
                    "{case}: {owner:?} at {byte} after {again:?}"
                );
            }
        }
        for is_known_to_be_free in [false, true] {
            let (closing, asked) = (client.clone(), node.count("lock"));
            assert_eq!(
                successor.run(async move { closing.unlock_all(FILE, owner).await }),
                Ok(()),
                "{case}"
            );
            assert!(
                BYTES.into_iter().all(|byte| node_has(&node, owner, byte).is_none()),
                "{case}: {owner:?}"
            );
            assert!(
                !is_known_to_be_free || node.count("lock") == asked,
                "{case}: nobody is asked in vain"
            );
        }
    }
    no_error_stands(&successor, &client);
    assert_eq!(node.locks.borrow().check(), Vec::<String>::new(), "{case}");
    true
}

/// Situation: a client dies at any moment of a wait for a lock. Its holder releases it in time,
/// before the successor attaches, or after that. Danger: the lock is reserved for an abandoned
/// wait, and all other owners are kept out for good. Expectation: an owner that waits again gets
/// the lock, and without one it is free.
#[test]
fn a_wait_does_not_outlive_the_process() {
    for lets_go_at in [Some(6), Some(1_000), None] {
        for next in [Next::Again, Next::Unlock] {
            with_every_death(|death| {
                let case = format!("{death:?}, let go at {lets_go_at:?} ms, {next:?}");
                let world = World::new(12);
                let (node, left) = (Node::new(&world), nothing_left());
                let wanted = fcntl(0, 9, EXCLUSIVE);
                let lock = RangeLock { range: wanted.range, mode: LockMode::Exclusive };
                assert_eq!(
                    node.locks.borrow_mut().reclaim(STRANGER, FILE, FCNTL, 9, &[lock]),
                    Ok(())
                );
                let first = Process::on(&node, &left);
                let client = first.attach();
                let began = world.now();
                let waiting = client.clone();
                let granted =
                    first.start(async move { waiting.lock_waiting(wanted, true, pending()).await });
                if let Some(ms) = lets_go_at {
                    let (node, world) = (node.clone(), world.clone());
                    drop(world.clone().start(async move {
                        world.sleep_ms(ms).await;
                        node.locks.borrow_mut().end(STRANGER);
                        node.tell_of_locks();
                    }));
                }
                let dies = first.lives_until(death, || {
                    granted.borrow().is_some() || world.now() > began + Duration::from_millis(20)
                });
                if !dies {
                    return false;
                }
                drop(client);
                world.pass(Duration::from_secs(2));
                let successor = Process::on(&node, &left);
                let client = successor.attach();
                if lets_go_at.is_none() {
                    node.locks.borrow_mut().end(STRANGER);
                    node.tell_of_locks();
                }
                if next == Next::Again {
                    let waiting = client.clone();
                    let granted = successor
                        .start(async move { waiting.lock_waiting(wanted, true, pending()).await });
                    world.pass(Duration::from_secs(1));
                    assert_eq!(granted.take(), Some(Ok(())), "{case}");
                    assert_eq!(node_has(&node, FCNTL, 9), EXCLUSIVE, "{case}");
                }
                let closing = client.clone();
                assert_eq!(
                    successor.run(async move { closing.unlock_all(FILE, FCNTL).await }),
                    Ok(()),
                    "{case}"
                );
                assert_eq!(
                    node.locks.borrow_mut().reclaim(PASSER_BY, FILE, FCNTL, 9, &[lock]),
                    Ok(()),
                    "{case}: it is free"
                );
                assert_eq!(node.locks.borrow().check(), Vec::<String>::new(), "{case}");
                no_error_stands(&successor, &client);
                true
            });
        }
    }
}

/// Situation: the node restarts, and the process with its locks dies at any moment of reclaiming
/// them: the client that had them, or its successor. The node accepts reclaims only until it is
/// told that everything is repeated. Danger: the next process reclaims them once more after that,
/// is refused, and counts them as lost. Or it assumes that they were reclaimed when they were not.
/// Expectation: the last successor holds all of them, and no error stands.
#[test]
fn locks_outlive_two_deaths_at_a_restart_of_the_node() {
    for first_dies_before in [true, false] {
        with_every_death(|death| {
            let case = format!("{death:?}, the first dies before the restart: {first_dies_before}");
            let world = World::new(13);
            let (node, left) = (Node::new(&world), nothing_left());
            let first = Process::on(&node, &left);
            let client = first.attach();
            opens(&first, &client, 1);
            let held = [fcntl(0, 9, EXCLUSIVE), fcntl(2, 3, SHARED), flock(SHARED)];
            for ask in held {
                let asking = client.clone();
                assert_eq!(first.run(async move { asking.lock(ask).await }), Ok(()));
            }
            let renewals = node.count("renew");
            let dies = if first_dies_before {
                first.kill();
                drop(client);
                restart(&node);
                let second = Process::on(&node, &left);
                let attached = second.start_attach(Node::options());
                let dies = second.lives_until(death, || attached.borrow().is_some());
                second.kill();
                dies
            } else {
                restart(&node);
                let dies = first.lives_until(death, || {
                    node.count("renew") > renewals
                        && node.count("opens-declared") > 0
                        && client.cache_rule() == CacheRule::Sole
                });
                first.kill();
                dies
            };
            let successor = Process::on(&node, &left);
            let client = successor.attach();
            world.pass(Duration::from_secs(1));
            for owner in OWNERS {
                let expected = held_after(
                    &held.into_iter().filter(|ask| ask.owner == owner).collect::<Vec<_>>(),
                );
                for byte in BYTES {
                    assert_eq!(
                        node_has(&node, owner, byte),
                        mode_at(&expected, byte),
                        "{case}: {owner:?} at {byte}"
                    );
                }
            }
            no_error_stands(&successor, &client);
            // The successor knows them, for the next restart of the node.
            restart(&node);
            world.pass(Duration::from_secs(10));
            assert_eq!(
                (node_has(&node, FCNTL, 0), node_has(&node, FCNTL, 2), node_has(&node, FLOCK, 0)),
                (EXCLUSIVE, SHARED, SHARED),
                "{case}"
            );
            no_error_stands(&successor, &client);
            dies
        });
    }
}
