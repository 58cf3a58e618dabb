//! The purpose of locks: of two clients that increment one number, neither increment is lost, even
//! if a client is cut off, paused or declared dead while it has the lock; or the node loses power
//! (not both: a client that cannot return in time cannot replay its acknowledged operations).

use super::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

const TERM: Duration = Duration::from_secs(10);

struct Worker {
    seed: u64,
    client: Rc<Client>,
    owner: LockOwner,
    ino: Ino,
    rng: Rng,
    written: Rc<RefCell<BTreeSet<u64>>>,
    world: Rc<World>,
}

impl Worker {
    async fn work(self) {
        for _ in 0..20 {
            self.world.sleep(self.rng.duration(Duration::ZERO, Duration::from_millis(500))).await;
            // The last close clears the sticky error.
            if self.client.open(self.ino).await.is_err() {
                continue;
            }
            if let Ok(number) = self.add_one().await {
                assert!(
                    self.written.borrow_mut().insert(number),
                    "seed {}: {number} was written twice",
                    self.seed
                );
            }
            // Lost with the session, or given up.
            self.client.unlock_all(self.ino, self.owner).await.expect("a lock can be given up");
            self.client.close(self.ino);
        }
    }

    async fn add_one(&self) -> Result<u64, FsError> {
        let ask = LockAsk {
            ino: self.ino,
            owner: self.owner,
            range: LockRange::WHOLE,
            mode: Some(LockMode::Exclusive),
            keep: false,
            pid: 1,
        };
        self.client.lock_waiting(ask, true, self.world.sleep(60 * SECOND)).await?;
        let read = self.client.read(self.ino, 0, 8).await?;
        let number = u64::from_le_bytes(read[..].try_into().expect("eight bytes")) + 1;
        self.world.sleep(self.rng.duration(Duration::ZERO, SECOND)).await;
        let data = Bytes::copy_from_slice(&number.to_le_bytes());
        self.client.write(&Caller::ROOT, self.ino, 0, data, false).await?;
        Ok(number)
    }
}

fn story(seed: u64) -> usize {
    let world = Rc::new(world(seed));
    let rng = Rng::new(seed).split("counters");
    let written = Rc::new(RefCell::new(BTreeSet::new()));
    run(seed, &world.clone(), async {
        let mut node = serve(&world, TERM).await;
        let (process, client) = attach(&world, "client0").await;
        let maker = client.clone();
        let made = process.call(async move {
            let ino = make(&maker, 0).await;
            maker
                .write(&Caller::ROOT, ino, 0, Bytes::copy_from_slice(&0u64.to_le_bytes()), false)
                .await
                .map(|_| ino)
        });
        let ino = made.await.expect("the client lives").expect("it is written");
        let mut clients = vec![(process, client, "client0".to_owned())];
        for number in 1..3 {
            let machine = format!("client{number}");
            let (process, client) = attach(&world, &machine).await;
            clients.push((process, client, machine));
        }
        let start = |process: &Process, client: &Rc<Client>, machine: &str| {
            for worker in 0..2 {
                let owner =
                    if worker == 0 { LockOwner::Fcntl(worker) } else { LockOwner::Fcntl(7) };
                let rng = world.rng(&format!("{machine} worker {worker}"));
                process.spawn(
                    Worker {
                        seed,
                        client: client.clone(),
                        owner,
                        ino,
                        rng,
                        written: written.clone(),
                        world: world.clone(),
                    }
                    .work(),
                );
            }
        };
        clients.iter().for_each(|(process, client, machine)| start(process, client, machine));
        let mut last = 2;
        for _ in 0..5 {
            world.sleep(rng.duration(Duration::ZERO, 5 * SECOND)).await;
            let which = rng.index(clients.len());
            match rng.below(5) {
                _ if seed.is_multiple_of(3) => {
                    world.machine("server").power_cut();
                    world.sleep(rng.duration(Duration::ZERO, SECOND)).await;
                    node = serve(&world, TERM).await;
                }
                0 => {
                    node.kill();
                    world.sleep(rng.duration(Duration::ZERO, SECOND)).await;
                    node = serve(&world, TERM).await;
                }
                1 => world.net().reset("server", &clients[which].2),
                2 => {
                    world.net().partition("server", &clients[which].2);
                    world.sleep(rng.duration(Duration::ZERO, 3 * TERM)).await;
                    world.net().heal();
                }
                3 => clients[which].0.pause(rng.duration(Duration::ZERO, 3 * TERM)),
                _ => {
                    clients.swap_remove(which).0.kill();
                    last += 1;
                    let machine = format!("client{last}");
                    let (process, client) = attach(&world, &machine).await;
                    start(&process, &client, &machine);
                    clients.push((process, client, machine));
                }
            }
        }
        world.set_faults(FaultPlan::default());
        // Their last words may take as long as a session lives.
        while Rc::strong_count(&written) > 1 && world.now() < 3000 * SECOND {
            world.sleep(SECOND).await;
        }
        let (process, client, _) = clients.pop().expect("there are clients");
        let read = process
            .call(async move { client.read(ino, 0, 8).await })
            .await
            .expect("the client lives")
            .expect("it can be read");
        let number = u64::from_le_bytes(read[..].try_into().expect("eight bytes"));
        assert!(
            written.borrow().last().is_none_or(|last| *last <= number),
            "seed {seed}: {number} is not the last of {written:?}"
        );
        assert!(node.is_alive());
    });
    written.take().len()
}

const SEEDS: std::ops::Range<u64> = 0..18;

/// A write waited for the node while its lock was lost with the session.
const WAITED: u64 = 1007;

#[test]
fn no_addition_is_lost() {
    let seeds = Mutex::new(SEEDS.chain([WAITED]));
    let worker = || std::iter::from_fn(|| seeds.lock().unwrap().next()).map(story).sum::<usize>();
    // The other long tests have finished by then.
    let done: usize = thread::scope(|scope| {
        [scope.spawn(worker), scope.spawn(worker)].map(|worker| worker.join().unwrap()).iter().sum()
    });
    assert!(done > 700, "no test of locks: {done} additions");
}
