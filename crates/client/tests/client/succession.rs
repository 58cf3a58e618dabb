//! A process dies, and another one goes on over what it has left. The node lives elsewhere.

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

/// All that a take-over asks of the node once it is attached.
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

/// Situation: a process dies with a request sent, executed or not, and its successor loses its node
/// in the middle of the take-over: at each step, before it or after it, or never hears of it. That
/// one ends tidily or is killed. Danger: the second life frees the slot, or gives it to another
/// request, and the third asks under another id. Expectation: the third life asks under the same
/// id, and the file has grown once.
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

/// Situation: a process dies with a request under way, and its successor is asked for hundreds of
/// changes at one time. Danger: a slot is lent to two of them. Expectation: each is made, and no
/// more are under way than there are slots.
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
/// the one after it, which is asked the same again. Danger: a slot or an id is written too late, or
/// freed too early, and one of the three asks under another id. Expectation: the file has grown
/// once by it, and the third says where.
#[test]
fn a_request_is_done_once_in_three_lives() {
    with_every_death(|first| {
        let dies = Cell::new(true);
        with_every_death(|second| {
            let case = format!("{first:?}, then {second:?}");
            let world = World::new(14);
            let (node, left) = (Node::new(&world), nothing_left());
            // The slot has had another one.
            let before = Process::on(&node, &left);
            let client = before.attach();
            assert_eq!(before.run(append(client.clone(), 1)), Ok(0));
            client.answered(1);
            before.kill();
            let answer = Rc::new(Cell::new(None));
            let live = || {
                let process = Process::on(&node, &left);
                // What has its answer does not come again.
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

/// What is to be said of a client that has died, and of its node since.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// The node lives in the process itself.
    local: bool,
    /// The node has started anew since.
    restarted: bool,
    /// It is of another incarnation.
    renamed: bool,
    /// Something was answered that it has not forced.
    undurable: bool,
    /// An heir took over from it, and died too, before anything became of the node.
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
        // An heir has everything forced, and cannot ask again in the place of its user.
        let owed = self.undurable && !self.succeeded || self.unanswered;
        self.restarted && !self.local && (owed || self.renamed)
    }
}

/// Situation: a client dies, with or without something that its node could still lose, and perhaps
/// the node starts anew. Danger: what was answered and not forced is gone, or a request without an
/// answer is logged without its bytes, and the heir serves as if nothing were; or it gives up where
/// nothing is missing. Expectation: nobody succeeds just where the node has started anew elsewhere
/// and something may be missing, and then the node hears that the session is over.
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

/// Situation: a request without an answer does not come again, for whoever asked has been killed.
/// The next process dies too, and the node starts anew. Danger: what nobody asks for any more
/// counts as missing for ever, and the mount dies with the next node. Expectation: it is taken
/// over.
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

/// Situation: a user writes and forces in turn; its client dies at any moment, and with it the
/// power of the node fails. Danger: something that was answered is gone and the heir does not know;
/// or something is done twice. Expectation: either nobody succeeds, or everything that was answered
/// is there, and what had no answer is done once when it comes again. And nobody succeeds only if
/// something was answered and not forced, or had no answer.
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

/// Situation: the power of a node fails, it has lost what it had answered, and does not take it
/// back; the client dies at any moment of finding that out. Danger: the heir finds nothing to
/// repeat and no error, and an application never learns that its bytes are gone. Expectation:
/// either nobody succeeds, or the error stands until the user has it, and no longer.
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

/// Situation: a file that was open is gone when the heir tells the node of it.
/// Danger: the mount dies for one file; or the file seems to be there.
/// Expectation: the heir takes over, and the file is stale to whoever has it open.
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

/// Situation: the node refuses a step of the take-over. Danger: a bucket that is full for a while,
/// or a connection that another process of the mount had meanwhile, ends the mount; or one that is
/// denied is tried for ever. Expectation: what may pass is tried again by another process, with the
/// session as it was. What will not is given up, and the node hears of it.
#[test]
fn take_over_retries_passing_refusals_only() {
    let passes = |step: &'static str| {
        let unserved =
            [RpcError::NotServing("it is stopping".into()), RpcError::SessionExpired].map(Some);
        // A file that is refused is gone, and no reason to give up anything else.
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

/// What a process before let its user have cached is there still.
struct Caches {
    world: World,
    node: Rc<Node>,
    successor: Rc<Process>,
    client: Client,
    /// When the user was told to drop what, and what rule there was then.
    told: Rc<RefCell<Vec<(Duration, Change, CacheRule)>>>,
}

impl Caches {
    /// An heir since just now, of a node elsewhere. One request of before comes again.
    fn of_before(seed: u64) -> Caches {
        Caches::of_node(seed, false, false)
    }

    /// The same, of a node in its own process, perhaps, which lets others attach, perhaps.
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

    /// Lets time pass up to so long after the take-over, in which nothing may be cached.
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

    /// The user drops everything from so long after the take-over on, and caches again when it is
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

/// Situation: a client that was sole dies, and its heir is sole too; its user waits for an answer
/// of before. Danger: what others changed while nobody listened is cached for ever; or the user is
/// told of its own change by a drop before it has the answer, and takes it for another's.
/// Expectation: nothing is cached before everything has been dropped, and that begins when the
/// answer has left.
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

/// Situation: the heir is of a node in its own process that nobody else can join.
/// Danger: every death of a daemon costs the machine all that it has cached.
/// Expectation: what is cached stays.
#[test]
fn caches_stay_where_nobody_else_can_come() {
    let caches = Caches::of_node(5, true, false);
    caches.can_be_dropped();
    assert_eq!(caches.client.cache_rule(), CacheRule::Sole);
    caches.client.answered(REQUEST);
    caches.world.pass(Duration::from_secs(5));
    assert_eq!((caches.client.cache_rule(), caches.told.take()), (CacheRule::Sole, vec![]));
}

/// Situation: as before, and the request does not come, or hangs.
/// Danger: caches of before stay for as long as it does.
/// Expectation: they are dropped after a second.
#[test]
fn caches_of_before_are_dropped_after_a_second_without_answers() {
    let caches = Caches::of_before(6);
    let since = caches.world.now();
    caches.can_be_dropped();
    caches.are_dropped_at(since, 1000);
}

/// Situation: as before, all is answered at once, and the mount is ready to have caches dropped
/// after two seconds only. Danger: the drop falls before that and on nobody, and what is cached
/// counts as dropped. Expectation: it comes when somebody can do it, and nothing is cached before.
/// What the node says meanwhile is not lost.
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

/// Situation: a request of before has no answer, was executed or not, and the session of the heir
/// expires: before the request comes again, or while it is on its way. Danger: it is executed once
/// more under the new session. Or a third process takes up the old session as if it were there.
/// Expectation: whoever asked gets an error, which stands on the file; nothing is executed again,
/// and nobody succeeds.
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
