//! A process dies, and another one continues with its handover state. The node lives elsewhere.

mod locks;

use crate::node::*;
use crate::process::{Death, Process, nothing_left, with_every_death};
use crate::world::World;
use bytes::Bytes;
use ebb_client::{AttachError, CacheRule, Change, Client, HandoverState, Open, Options};
use ebb_model::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

const FILE: Ino = Ino(7);
const ROOT: Caller = Caller::ROOT;
/// A request of the user that has no answer when its process dies.
const REQUEST: u64 = 7;

/// The requests of a take-over to the node after its attach.
const STEPS: [&str; 4] = ["resume-session", "open", "syncfs", "renew"];

async fn append(client: Client, request: u64) -> Result<u64, FsError> {
    let written =
        client.on_behalf_of(request).append(&ROOT, FILE, Bytes::from_static(b"x"), false).await;
    written.map(|written| written.offset)
}

fn opens(process: &Rc<Process>, client: &Client, request: u64) {
    let opening = client.clone();
    process.run(async move { opening.open(FILE).await }).expect("opens");
    let handover = client.handover().expect("something is left");
    assert!(
        handover.opened(Open { request, ino: FILE, handle: request, detail: 0 }),
        "few files are open"
    );
}

/// Situation: a process dies with a request sent, executed or not. Its successor loses its node in
/// the middle of the take-over: at each step, before it, after it, or without an answer. The
/// successor ends tidily or is killed. Danger: the second process frees the slot, or gives it to
/// another request, and the third sends the request under another id. Expectation: the third
/// process uses the same id, and the file has grown once.
#[test]
fn failed_take_over_leaves_the_handover_state() {
    for step in STEPS {
        for fate in [Fate::LostRequest, Fate::LostReply, Fate::Silence] {
            for (executed, tidy) in [(false, false), (false, true), (true, false), (true, true)] {
                let case = format!("{step} {fate:?}, executed: {executed}, tidy: {tidy}");
                let world = World::new(1);
                let (node, left) = (Node::new(&world), nothing_left());
                let first = Process::on(&node, &left);
                let client = first.attach();
                opens(&first, &client, 1);
                node.meet("mutate", Fate::Silence);
                first.start(append(client, REQUEST));
                world.pass(if executed {
                    Duration::from_secs(1)
                } else {
                    Duration::from_micros(500)
                });
                first.kill();
                assert_eq!(node.executed().len(), usize::from(executed), "{case}");

                node.meet(step, fate);
                let second = Process::on(&node, &left);
                match second.try_attach() {
                    Err(AttachError::Unreachable(_)) => {}
                    other => panic!("{case}: {:?}", other.map(drop)),
                }
                assert!(node.fates_of.borrow()[step].is_empty(), "{case}: it came that far");
                if tidy {
                    world.pass(Duration::from_secs(1));
                }
                second.kill();
                assert_eq!(node.count("detach"), 0, "{case}: the session is left to the next");

                node.fates_of.take();
                let third = Process::on(&node, &left);
                let client = third.attach();
                assert_eq!(third.run(append(client.clone(), REQUEST)), Ok(0), "{case}");
                client.all_came(&BTreeSet::from([REQUEST]));
                client.answered(REQUEST);
                world.pass(Duration::from_secs(1));
                assert_eq!(
                    (node.executed().len(), transactions(&node).len()),
                    (1, 1),
                    "{case}: one id"
                );
                assert_eq!(
                    (node.count("opens-declared"), node.opens.borrow().get(&FILE).copied()),
                    (1, Some(1)),
                    "{case}"
                );
                assert_eq!(
                    third.run(append(client, REQUEST + 1)),
                    Ok(1),
                    "{case}: the slot is free again"
                );
            }
        }
    }
}

/// Situation: a process dies with a request in progress, and its successor gets hundreds of changes
/// at one time. Danger: a slot is leased to two of them. Expectation: each is made, and no more are
/// in progress than there are slots.
#[test]
fn an_heir_has_no_more_slots() {
    let world = World::new(31);
    let (node, left) = (Node::new(&world), nothing_left());
    let first = Process::on(&node, &left);
    let client = first.attach();
    node.meet("mutate", Fate::Silence);
    first.start(append(client, REQUEST));
    world.pass(Duration::from_secs(1));
    first.kill();

    let second = Process::on(&node, &left);
    let client = second.attach();
    assert_eq!(second.run(append(client.clone(), REQUEST)), Ok(0));
    client.all_came(&BTreeSet::from([REQUEST]));
    client.answered(REQUEST);
    let made = (0..300).map(|number: u32| {
        let (client, name) = (client.clone(), Name::new(number.to_string().as_bytes()).unwrap());
        second.start(async move {
            client.make(&ROOT, Ino::ROOT, &name, 0o600, Make::Regular, false).await.is_ok()
        })
    });
    let made: Vec<_> = made.collect();
    world.pass(Duration::from_secs(10));
    assert!(made.iter().all(|made| made.take() == Some(true)));
    assert_eq!(node.most_executing.get(), usize::from(SESSION_SLOTS));
}

/// Situation: a process dies at any moment between its attach and the end of a request, and so does
/// its successor, which gets the same request. Danger: a slot or an id is written too late, or
/// freed too early, and one of the three processes uses another id. Expectation: the request made
/// the file grow once, and the third process returns the offset.
#[test]
fn a_request_is_done_once_in_three_lives() {
    with_every_death(|first| {
        let dies = Cell::new(true);
        with_every_death(|second| {
            let case = format!("{first:?}, then {second:?}");
            let world = World::new(14);
            let (node, left) = (Node::new(&world), nothing_left());
            // The slot has carried another request.
            let before = Process::on(&node, &left);
            let client = before.attach();
            assert_eq!(before.run(append(client.clone(), 1)), Ok(0));
            client.answered(1);
            before.kill();
            let answer = Rc::new(Cell::new(None));
            let live = || {
                let process = Process::on(&node, &left);
                // An answered request is not repeated.
                let again = if answer.get().is_none() {
                    BTreeSet::from([REQUEST])
                } else {
                    BTreeSet::new()
                };
                let (life, told, attaching) =
                    (process.clone(), answer.clone(), process.attaching(Node::options()));
                let ended = process.start(async move {
                    let client = attaching.await.expect("takes over");
                    client.all_came(&again);
                    if again.is_empty() {
                        return client;
                    }
                    let appended = append(client.clone(), REQUEST).await;
                    if life.is_alive() {
                        told.set(Some(appended));
                    }
                    client.answered(REQUEST);
                    client
                });
                (process, ended)
            };
            let (process, ended) = live();
            dies.set(process.lives_until(first, || ended.borrow().is_some()));
            process.kill();
            let (process, ended) = live();
            let dies_again = process.lives_until(second, || ended.borrow().is_some());
            process.kill();
            let (_, ended) = live();
            drop(world.await_result(&ended));
            assert_eq!(answer.get(), Some(Ok(1)), "{case}");
            assert_eq!((node.executed().len(), transactions(&node).len()), (2, 2), "{case}");
            dies_again
        });
        dies.get()
    });
}

/// The state of a client that has died, and of its node since.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// The node lives in the process itself.
    local: bool,
    /// The node has restarted since.
    restarted: bool,
    /// The node has another incarnation.
    renamed: bool,
    /// Something was answered that the node has not forced.
    undurable: bool,
    /// A successor took over from the client, and died too, before the node changed.
    succeeded: bool,
    unanswered: bool,
}

impl Case {
    fn all() -> impl Iterator<Item = Case> {
        (0..1 << 6).map(|bits| {
            let is = |bit: u32| bits >> bit & 1 == 1;
            Case {
                local: is(0),
                restarted: is(1),
                renamed: is(2),
                undurable: is(3),
                succeeded: is(4),
                unanswered: is(5),
            }
        })
    }

    fn is_lost(self) -> bool {
        // A successor has everything forced, and cannot repeat requests in place of its user.
        let owed = self.undurable && !self.succeeded || self.unanswered;
        self.restarted && !self.local && (owed || self.renamed)
    }
}

/// Situation: a client dies, with or without operations that its node could still lose, and perhaps
/// the node restarts. Danger: an answered operation that was not forced is gone, or a request
/// without an answer is logged without its bytes, and the successor serves all the same. Or it
/// gives up although nothing is missing. Expectation: the take-over fails only if a node elsewhere
/// has restarted and something may be missing. The node then learns that the session is over.
#[test]
fn possible_loss_prevents_a_successor() {
    for case in Case::all() {
        let world = World::new(2);
        let (node, left) = (Node::new(&world), nothing_left());
        node.local.set(case.local);
        let process = Process::on(&node, &left);
        let client = process.attach();
        assert_eq!(process.run(append(client.clone(), 1)), Ok(0));
        client.answered(1);
        if !case.undurable {
            node.force();
        }
        world.pass(Duration::from_secs(1));
        if case.unanswered {
            node.meet("mutate", Fate::Silence);
            process.start(append(client, REQUEST));
            world.pass(Duration::from_secs(1));
        }
        process.kill();
        if case.succeeded {
            let process = Process::on(&node, &left);
            drop(process.attach());
            process.kill();
        }
        if case.restarted {
            node.kill();
            node.restart();
        }
        node.incarnation.set(if case.renamed { 2 } else { 1 });
        match (Process::on(&node, &left).try_attach(), case.is_lost()) {
            (Ok(_), false) => assert_eq!(node.count("detach"), 0, "{case:?}"),
            (Err(AttachError::Lost(_)), true) => assert_eq!(node.count("detach"), 1, "{case:?}"),
            (other, _) => panic!("{case:?}: {:?}", other.map(drop)),
        }
    }
}

/// Situation: a request without an answer is not repeated, because its caller has been killed. The
/// next process dies too, and the node restarts. Danger: the abandoned request counts as missing
/// for ever, and the mount dies with the next node. Expectation: the third process takes over.
#[test]
fn a_request_that_does_not_come_again_is_forgotten() {
    let world = World::new(15);
    let (node, left) = (Node::new(&world), nothing_left());
    let first = Process::on(&node, &left);
    node.meet("mutate", Fate::Silence);
    first.start(append(first.attach(), REQUEST));
    world.pass(Duration::from_secs(1));
    first.kill();
    let second = Process::on(&node, &left);
    second.attach().all_came(&BTreeSet::new());
    second.kill();
    node.kill();
    node.restart();
    Process::on(&node, &left).attach();
}

/// Situation: a user writes and forces in turn. Its client dies at any moment, and the power of the
/// node fails. Danger: an answered operation is gone and the successor does not know, or an
/// operation is executed twice. Expectation: either no process succeeds, or every answered
/// operation is there, and one without an answer is executed once when it is repeated. No process
/// succeeds only if an operation was answered and not forced, or had no answer.
#[test]
fn successor_never_serves_lost_answers() {
    let (successors, lost) = (Cell::new(0), Cell::new(0));
    with_every_death(|death| {
        let world = World::new(3);
        let (node, left) = (Node::new(&world), nothing_left());
        let process = Process::on(&node, &left);
        let client = process.attach();
        node.force();
        world.pass(Duration::from_secs(1));
        let answers = Rc::new(Cell::new(0));
        // Whether the user knows that everything is forced, and waits for nothing.
        let safe = Rc::new(Cell::new(true));
        let (user, told, knows, life) =
            (client.clone(), answers.clone(), safe.clone(), process.clone());
        let all = process.start(async move {
            for request in [1, 2, 3, 4] {
                knows.set(false);
                append(user.clone(), request).await.expect("appended");
                if life.is_alive() {
                    told.set(request);
                }
                user.answered(request);
                if request % 2 == 0 {
                    user.sync_fs().await.expect("forced");
                    knows.set(life.is_alive());
                    user.getattr(FILE).await.expect("found");
                }
            }
        });
        let dies = process.lives_until(death, || all.borrow().is_some());
        process.kill();
        drop(client);
        node.cut_power();
        node.restart();
        let successor = Process::on(&node, &left);
        match successor.try_attach() {
            Ok(client) => {
                successors.set(successors.get() + 1);
                assert_eq!(
                    node.executed().len() as u64,
                    answers.get(),
                    "{death:?}: what was answered is there, and nothing else"
                );
                client.all_came(&BTreeSet::from([answers.get() + 1]));
                assert_eq!(
                    successor.run(append(client.clone(), answers.get() + 1)),
                    Ok(answers.get()),
                    "{death:?}"
                );
                assert_eq!(client.error(FILE), None, "{death:?}");
            }
            Err(AttachError::Lost(_)) => {
                lost.set(lost.get() + 1);
                assert!(!safe.get(), "{death:?}: nothing is missing");
            }
            Err(other) => panic!("{death:?}: {other}"),
        }
        dies
    });
    assert!(successors.get() > 3 && lost.get() > 3, "both happen");
}

/// Situation: the power of a node fails. It has lost answered operations, and refuses their replay.
/// The client dies at any moment of that discovery. Danger: the successor finds nothing to repeat
/// and no error, and an application never learns that its bytes are gone. Expectation: either no
/// process succeeds, or the error stands until the user has it, and no longer.
#[test]
fn an_error_outlives_the_process() {
    let successors = Cell::new(0);
    with_every_death(|death| {
        let world = World::new(9);
        let (node, left) = (Node::new(&world), nothing_left());
        let first = Process::on(&node, &left);
        let client = first.attach();
        node.force();
        assert_eq!(first.run(append(client.clone(), 1)), Ok(0));
        client.answered(1);
        node.cut_power();
        node.refuse_replays.set(true);
        node.restart();
        let renewals = node.count("renew");
        let dies = first
            .lives_until(death, || client.error(FILE).is_some() && node.count("renew") > renewals);
        first.kill();
        for said in [false, true] {
            let successor = Process::on(&node, &left);
            let client = match successor.try_attach() {
                Ok(client) => client,
                Err(AttachError::Lost(_)) => return dies,
                Err(other) => panic!("{death:?}: {other}"),
            };
            successors.set(successors.get() + 1);
            let syncing = client.clone();
            let synced = successor.run(async move { syncing.sync_fs().await });
            let (error, expected) =
                (client.take_error(FILE), if said { None } else { Some(FsError::Io) });
            assert_eq!((error, synced.err()), (expected, expected), "{death:?}");
            successor.kill();
        }
        dies
    });
    assert!(successors.get() > 3, "some succeed");
}

/// Situation: an open file is gone when the successor declares it to the node. Danger: the mount
/// dies for one file, or the file seems to be there. Expectation: the successor takes over, and the
/// file is stale for its open descriptors.
#[test]
fn an_open_file_that_is_gone_is_stale_to_the_heir() {
    let world = World::new(10);
    let (node, left) = (Node::new(&world), nothing_left());
    let first = Process::on(&node, &left);
    opens(&first, &first.attach(), 1);
    first.kill();
    node.refuse.borrow_mut().insert("open", RpcError::Refused(FsError::NotFound));
    let client = Process::on(&node, &left).attach();
    assert_eq!(client.error(FILE), Some(FsError::Stale));
}

/// Situation: the node refuses a step of the take-over. Danger: a full bucket, or a connection of
/// another process of the mount, ends the mount although it is temporary, or a denied take-over is
/// retried for ever. Expectation: after a temporary refusal another process tries again, with the
/// session unchanged. After a permanent one the take-over is given up, and the node learns of it.
#[test]
fn take_over_retries_passing_refusals_only() {
    let passes = |step: &'static str| {
        let unserved =
            [RpcError::NotServing("it is stopping".into()), RpcError::SessionExpired].map(Some);
        // A refused open means that the file is gone. It is no reason to give up anything else.
        let full = (step != "open").then_some(RpcError::Refused(FsError::NoSpace));
        unserved.into_iter().chain([full]).flatten().map(|error| (error, true))
    };
    let stays = || [(RpcError::Denied("not you".into()), false)];
    for step in STEPS {
        for (error, passes) in passes(step).chain(stays()) {
            let world = World::new(4);
            let (node, left) = (Node::new(&world), nothing_left());
            let first = Process::on(&node, &left);
            let client = first.attach();
            opens(&first, &client, 1);
            first.kill();
            drop(client);
            node.refuse.borrow_mut().insert(step, error.clone());
            let second = Process::on(&node, &left);
            match (second.try_attach(), passes) {
                (Err(AttachError::Unreachable(_)), true) => {
                    assert_eq!(node.count("detach"), 0, "{step}: {error}");
                    second.kill();
                    node.refuse.take();
                    let client = Process::on(&node, &left).attach();
                    assert_eq!(client.error(FILE), None, "{step}: {error}");
                }
                (Err(AttachError::Lost(_)), false) => {
                    assert_eq!(node.count("detach"), 1, "{step}: {error}")
                }
                (other, _) => panic!("{step}: {error}: {:?}", other.map(drop)),
            }
        }
    }
}

/// Caches that an earlier process let its user fill are still there.
struct Caches {
    world: World,
    node: Rc<Node>,
    successor: Rc<Process>,
    client: Client,
    /// The time, change and rule of each call to drop caches.
    told: Rc<RefCell<Vec<(Duration, Change, CacheRule)>>>,
}

impl Caches {
    /// A successor that has just attached to a node elsewhere. One inherited request is repeated.
    fn of_before(seed: u64) -> Caches {
        Caches::of_node(seed, false, false)
    }

    /// The same, optionally with a node in its own process, and with a node that admits other
    /// clients.
    fn of_node(seed: u64, local: bool, others: bool) -> Caches {
        let world = World::new(seed);
        let (node, left) = (Node::new(&world), nothing_left());
        node.local.set(local);
        let attach = |process: &Rc<Process>| {
            process.attach_with(Options { others, ..Node::options() }).expect("takes over")
        };
        let first = Process::on(&node, &left);
        let client = attach(&first);
        assert_eq!(client.cache_rule(), CacheRule::Sole);
        node.meet("mutate", Fate::Silence);
        first.start(append(client, REQUEST));
        world.pass(Duration::from_secs(1));
        first.kill();
        let successor = Process::on(&node, &left);
        let client = attach(&successor);
        client.all_came(&BTreeSet::from([REQUEST]));
        Caches { world, node, successor, client, told: Rc::default() }
    }

    /// Dropping takes 50 ms.
    fn can_be_dropped(&self) {
        let (told, world) = (self.told.clone(), self.world.clone());
        self.client.on_change(move |change, rule| {
            told.borrow_mut().push((world.now(), change, rule));
            world.sleep_ms(50)
        });
    }

    /// Passes time up to `until_ms` after the take-over, during which nothing may be cached.
    fn nothing_is_cached_until(&self, since: Duration, until_ms: u64) {
        let until = since + Duration::from_millis(until_ms);
        while self.world.now() < until {
            assert_eq!(
                self.client.cache_rule(),
                CacheRule::Shared,
                "{:?}",
                self.world.now() - since
            );
            self.world.pass((until - self.world.now()).min(Duration::from_millis(10)));
        }
    }

    /// The user drops everything at `at_ms` after the take-over, and caches again when it is
    /// dropped.
    fn are_dropped_at(&self, since: Duration, at_ms: u64) {
        self.nothing_is_cached_until(since, at_ms);
        self.nothing_is_cached_until(since, at_ms + 50);
        self.world.pass(Duration::from_millis(10));
        let at = since + Duration::from_millis(at_ms);
        let told: Vec<_> = self
            .told
            .borrow()
            .iter()
            .map(|(when, change, rule)| (*when, change.clone(), *rule))
            .collect();
        assert_eq!(told, [(at, Change::All, CacheRule::Shared)]);
        assert_eq!(self.client.cache_rule(), CacheRule::Sole, "everything was dropped");
    }
}

/// Situation: a client that was sole dies, and its successor is sole too. Its user waits for the
/// answer to an inherited request. Danger: changes made by other clients between the two processes
/// stay stale in the caches for ever. Or a drop tells the user of its own change before it has the
/// answer, and the user takes it for a foreign change. Expectation: nothing is cached before
/// everything has been dropped, and the drop begins when the answer has left.
#[test]
fn caches_of_before_are_dropped_once_all_is_answered() {
    for local in [false, true] {
        let caches = Caches::of_node(5, local, true);
        let since = caches.world.now();
        caches.can_be_dropped();
        caches.nothing_is_cached_until(since, 300);
        assert_eq!(*caches.told.borrow(), []);
        let answered = caches.successor.run(append(caches.client.clone(), REQUEST));
        assert_eq!(answered, Ok(0));
        caches.nothing_is_cached_until(since, 400);
        assert_eq!(*caches.told.borrow(), [], "the answer has not left");
        caches.client.answered(REQUEST);
        caches.are_dropped_at(since, 400);
    }
}

/// Situation: the node is in the successor's own process and admits no other client. Danger: every
/// death of a daemon costs the machine all its caches. Expectation: the caches stay.
#[test]
fn caches_stay_where_nobody_else_can_come() {
    let caches = Caches::of_node(5, true, false);
    caches.can_be_dropped();
    assert_eq!(caches.client.cache_rule(), CacheRule::Sole);
    caches.client.answered(REQUEST);
    caches.world.pass(Duration::from_secs(5));
    assert_eq!((caches.client.cache_rule(), caches.told.take()), (CacheRule::Sole, vec![]));
}

/// Situation: as before, but the request is not repeated, or hangs. Danger: the inherited caches
/// stay for as long as that lasts. Expectation: they are dropped after a second.
#[test]
fn caches_of_before_are_dropped_after_a_second_without_answers() {
    let caches = Caches::of_before(6);
    let since = caches.world.now();
    caches.can_be_dropped();
    caches.are_dropped_at(since, 1000);
}

/// Situation: as before, all requests are answered at once, and the mount is ready to drop caches
/// only after two seconds. Danger: the drop comes before that without effect, and the caches count
/// as dropped. Expectation: the drop comes when the mount is ready, and nothing is cached before.
/// Notices of the node in between are not lost.
#[test]
fn caches_of_before_are_dropped_once_the_mount_is_ready() {
    let caches = Caches::of_before(7);
    let since = caches.world.now();
    caches.client.answered(REQUEST);
    caches.nothing_is_cached_until(since, 2000);
    caches.can_be_dropped();
    caches.are_dropped_at(since, 2000);
    assert_eq!(caches.node.count("caches-dropped"), 0, "nobody else has come");
}

/// Situation: an inherited request has no answer, was executed or not, and the session of the
/// successor expires: before the request is repeated, or while it is in transit. Danger: it is
/// executed once more under the new session. Or a third process resumes the old session as if it
/// existed. Expectation: the caller gets an error, which stands on the file. Nothing is executed
/// again, and no process succeeds.
#[test]
fn requests_of_an_expired_session_are_not_repeated() {
    for (executed, on_its_way) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = format!("executed: {executed}, on its way: {on_its_way}");
        let world = World::new(8);
        let (node, left) = (Node::new(&world), nothing_left());
        let first = Process::on(&node, &left);
        let client = first.attach();
        opens(&first, &client, 1);
        node.meet("mutate", Fate::Silence);
        first.start(append(client, REQUEST));
        world.pass(if executed { Duration::from_secs(1) } else { Duration::from_micros(500) });
        first.kill();
        node.fates_of.take();

        let successor = Process::on(&node, &left);
        let client = successor.attach();
        client.all_came(&BTreeSet::from([REQUEST]));
        assert_eq!(HandoverState::unfit_in(&*successor), None, "{case}");
        let asked = if on_its_way {
            node.meet("mutate", Fate::LostRequest);
            let asked = successor.start(append(client.clone(), REQUEST));
            world.pass(Duration::from_millis(1));
            node.expire_sessions();
            asked
        } else {
            node.expire_sessions();
            node.disconnect();
            world.pass(Duration::from_secs(1));
            successor.start(append(client.clone(), REQUEST))
        };
        world.pass(Duration::from_secs(20));
        assert_eq!(asked.take(), Some(Err(FsError::Io)), "{case}");
        assert_eq!(client.error(FILE), Some(FsError::Io), "{case}");
        client.answered(REQUEST);
        world.pass(Duration::from_secs(1));
        assert_eq!(node.executed().len(), usize::from(executed), "{case}");
        assert!(
            transactions(&node).len() <= 1,
            "{case}: under no other id: {:?}",
            transactions(&node)
        );
        assert!(HandoverState::unfit_in(&*successor).is_some(), "{case}");
        successor.kill();
        match Process::on(&node, &left).try_attach() {
            Err(AttachError::Lost(_)) => {}
            other => panic!("{case}: {:?}", other.map(drop)),
        }
    }
}
