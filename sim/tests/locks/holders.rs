//! Mutual exclusion from the view of the holders, through failures of node and network, as long as
//! every client returns within the term.

use super::*;
use ebb_core::locks::Ranges;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// A file, a client and one of its owners.
type Party = (Ino, u32, LockOwner);

/// The locks that each owner of each client believes to have.
#[derive(Clone, Default)]
struct Book {
    held: Rc<RefCell<BTreeMap<Party, Ranges>>>,
    granted: Rc<Cell<u64>>,
    circles: Rc<Cell<u64>>,
}

impl Book {
    /// From before the request on, an owner relies on no more than the requested lock.
    fn ask(&self, client: u32, ask: &LockAsk) {
        let mut held = self.held.borrow_mut();
        let ranges = held.entry((ask.ino, client, ask.owner)).or_default();
        match ask.owner {
            LockOwner::Fcntl(_) => ranges.weaken(ask.range, ask.mode),
            LockOwner::Flock(_) => ranges.set(ask.range, None),
        }
    }

    fn granted(&self, client: u32, ask: &LockAsk, before: Ranges) {
        let Some(mode) = ask.mode else { return };
        let me = (ask.ino, client, ask.owner);
        self.held.borrow_mut().insert(me, before);
        self.held.borrow_mut().entry(me).or_default().set(ask.range, Some(mode));
        for ((ino, other, owner), ranges) in
            self.held.borrow().iter().filter(|(party, _)| **party != me)
        {
            let one_kind =
                matches!(owner, LockOwner::Flock(_)) == matches!(ask.owner, LockOwner::Flock(_));
            let conflict = ranges
                .overlapping(ask.range)
                .find(|held| held.mode == LockMode::Exclusive || mode == LockMode::Exclusive);
            assert!(
                *ino != ask.ino || !one_kind || conflict.is_none(),
                "client {client} was granted {ask:?}, client {other} has {conflict:?}"
            );
        }
        self.granted.set(self.granted.get() + 1);
    }

    fn ranges(&self, client: u32, ask: &LockAsk) -> Ranges {
        self.held.borrow().get(&(ask.ino, client, ask.owner)).cloned().unwrap_or_default()
    }

    fn gone(&self, client: u32) {
        self.held.borrow_mut().retain(|(_, of, _), _| *of != client);
    }
}

struct Worker {
    client: Rc<Client>,
    number: u32,
    owner: LockOwner,
    files: Vec<Ino>,
    rng: Rng,
    book: Book,
    world: Rc<World>,
}

impl Worker {
    async fn work(self) {
        for _ in 0..25 {
            self.pause().await;
            let start = self.rng.below(6);
            let range = match self.owner {
                LockOwner::Flock(_) => LockRange::WHOLE,
                LockOwner::Fcntl(_) => {
                    LockRange::new(start, start + self.rng.below(4)).expect("a range")
                }
            };
            let mode = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)][self.rng.index(3)];
            let ask = LockAsk {
                ino: self.files[self.rng.index(self.files.len())],
                owner: self.owner,
                range,
                mode,
                keep: false,
                pid: 1,
            };
            match self.ask(ask, self.rng.below(2) == 0).await {
                Ok(()) | Err(FsError::WouldBlock | FsError::Interrupted) => {}
                Err(FsError::Deadlock) => {
                    self.book.circles.set(self.book.circles.get() + 1);
                    self.let_go().await;
                }
                Err(error) => panic!("client {}: {ask:?}: {error}", self.number),
            }
            // Otherwise two owners that wait for two locks at once could wait for ever.
            if self.rng.below(4) == 0 {
                self.let_go().await;
            }
        }
        self.let_go().await;
    }

    async fn ask(&self, ask: LockAsk, wait: bool) -> Result<(), FsError> {
        let before = self.book.ranges(self.number, &ask);
        self.book.ask(self.number, &ask);
        let patience = self.world.sleep(self.rng.duration(Duration::ZERO, 20 * SECOND));
        let answer = match wait {
            true => self.client.lock_waiting(ask, true, patience).await,
            false => self.client.lock(ask).await,
        };
        match (&answer, ask.owner) {
            (Ok(()), _) => self.book.granted(self.number, &ask, before),
            // POSIX locks stay as they were; a flock(2) lock is gone.
            (Err(_), LockOwner::Fcntl(_)) => {
                drop(self.book.held.borrow_mut().insert((ask.ino, self.number, ask.owner), before))
            }
            (Err(_), LockOwner::Flock(_)) => {}
        }
        answer
    }

    async fn let_go(&self) {
        for ino in &self.files {
            let ask = LockAsk {
                ino: *ino,
                owner: self.owner,
                range: LockRange::WHOLE,
                mode: None,
                keep: false,
                pid: 1,
            };
            self.book.ask(self.number, &ask);
            self.client.unlock_all(*ino, self.owner).await.expect("what is held can be given up");
        }
    }

    async fn pause(&self) {
        self.world.sleep(self.rng.duration(Duration::ZERO, Duration::from_millis(300))).await;
    }
}

fn story(seed: u64) -> Book {
    let world = Rc::new(world(seed));
    let rng = Rng::new(seed).split("holders");
    let book = Book::default();
    run(seed, &world.clone(), async {
        let mut node = serve(&world, 60 * SECOND).await;
        let mut clients = vec![];
        let (process, first) = attach(&world, "client0").await;
        let maker = first.clone();
        let files = process
            .call(async move { vec![make(&maker, 0).await, make(&maker, 1).await] })
            .await
            .expect("the client lives");
        clients.push((process, first, 0));
        for number in 1..3 {
            let (process, client) = attach(&world, &format!("client{number}")).await;
            clients.push((process, client, number));
        }
        let start = |process: &Process, client: &Rc<Client>, number: u32| {
            for worker in 0..3 {
                let owner =
                    if worker == 2 { LockOwner::Flock(1) } else { LockOwner::Fcntl(worker) };
                let (rng, book) =
                    (world.rng(&format!("client {number} worker {worker}")), book.clone());
                let worker = Worker {
                    client: client.clone(),
                    number,
                    owner,
                    files: files.clone(),
                    rng,
                    book,
                    world: world.clone(),
                };
                process.spawn(worker.work());
            }
        };
        clients.iter().for_each(|(process, client, number)| start(process, client, *number));
        let mut last = 2;
        for _ in 0..4 {
            world.sleep(rng.duration(Duration::ZERO, 3 * SECOND)).await;
            match rng.below(4) {
                0 => world.net().reset("server", &format!("client{}", rng.below(3))),
                1 => {
                    node.kill();
                    world.sleep(rng.duration(Duration::ZERO, 2 * SECOND)).await;
                    node = serve(&world, 60 * SECOND).await;
                }
                2 => {
                    world.machine("server").power_cut();
                    world.sleep(rng.duration(Duration::ZERO, 2 * SECOND)).await;
                    node = serve(&world, 60 * SECOND).await;
                }
                _ => {
                    let (process, _, number) = clients.swap_remove(rng.index(clients.len()));
                    process.kill();
                    book.gone(number);
                    last += 1;
                    let (process, client) = attach(&world, &format!("client{last}")).await;
                    start(&process, &client, last);
                    clients.push((process, client, last));
                }
            }
        }
        while Rc::strong_count(&book.held) > 1 && world.now() < 3000 * SECOND {
            world.sleep(SECOND).await;
        }
        // Sessions of the dead.
        world.sleep(200 * SECOND).await;
        // No stale lock is left: every lock can be acquired.
        let (process, client, _) = clients.pop().expect("there are clients");
        let (book, files) = (book.clone(), files.clone());
        let free = process.call(async move {
            assert!(
                book.held.borrow().values().all(Ranges::is_empty),
                "somebody still waits: {:?}",
                book.held.borrow()
            );
            for ino in files {
                for owner in [LockOwner::Fcntl(99), LockOwner::Flock(99)] {
                    client
                        .lock(LockAsk {
                            ino,
                            owner,
                            range: LockRange::WHOLE,
                            mode: Some(LockMode::Exclusive),
                            keep: false,
                            pid: 1,
                        })
                        .await?;
                }
            }
            Ok::<(), FsError>(())
        });
        assert_eq!(free.await.expect("the client lives"), Ok(()), "seed {seed}");
        assert!(node.is_alive());
    });
    book
}

#[test]
fn exclusive_locks_have_one_holder() {
    let (mut granted, mut circles) = (0, 0);
    for seed in 0..16 {
        let book = story(seed);
        granted += book.granted.get();
        circles += book.circles.get();
    }
    assert!(
        granted > 1000 && circles > 4,
        "no test of locks: {granted} granted, {circles} circles"
    );
}
