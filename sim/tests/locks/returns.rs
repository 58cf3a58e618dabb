//! A lock holder that returns after its session has ended, to a node that restarted in between.

use super::*;

const TERM: Duration = Duration::from_secs(10);

/// Forces only on demand.
async fn serve_lazily(world: &World) -> Process {
    serve_with(
        world,
        Options {
            session_term: TERM,
            commit_interval: 100 * TERM,
            flush_interval: 100 * TERM,
            ..Options::default()
        },
    )
    .await
}

fn exclusive(ino: Ino) -> LockAsk {
    LockAsk {
        ino,
        owner: LockOwner::Fcntl(1),
        range: LockRange::WHOLE,
        mode: Some(LockMode::Exclusive),
        keep: false,
        pid: 1,
    }
}

/// Situation: a client has a lock and is cut off; the node loses power and restarts without the
/// lock. Another client waits for it, gets it when the first session expires, and the power is cut
/// again at once. Danger: the end of that session is lost, and the first client reclaims the lock.
/// Expectation: the first client learns that it has lost the lock.
#[test]
fn the_end_of_a_session_is_remembered_before_its_locks_are_given_away() {
    for seed in 0..16 {
        let world = World::new(seed);
        run(seed, &world, async {
            serve_lazily(&world).await;
            let (left, first) = attach(&world, "left").await;
            let (right, second) = attach(&world, "right").await;
            let locker = first.clone();
            let ino = left.call(async move {
                let ino = make(&locker, 0).await;
                locker.open(ino).await.unwrap();
                locker.lock(exclusive(ino)).await.unwrap();
                locker.fsync(ino).await.unwrap();
                ino
            });
            let ino = ino.await.expect("the client lives");
            world.net().partition("left", "server");
            world.machine("server").power_cut();
            serve_lazily(&world).await;
            let locker = second.clone();
            let locked = right.call(async move {
                locker.lock_waiting(exclusive(ino), true, std::future::pending()).await
            });
            assert_eq!(locked.await, Some(Ok(())), "seed {seed}");
            world.machine("server").power_cut();
            world.net().heal();
            // The first one is back first.
            world.net().partition("right", "server");
            serve_lazily(&world).await;
            world.sleep(TERM / 2).await;
            world.net().heal();
            let write = |process: &Process, client: &Rc<Client>| {
                let client = client.clone();
                process.call(async move {
                    client
                        .write(&Caller::ROOT, ino, 0, Bytes::from_static(b"mine"), false)
                        .await
                        .map(drop)
                })
            };
            assert_eq!(write(&left, &first).await, Some(Err(FsError::Io)), "seed {seed}");
            assert_eq!(write(&right, &second).await, Some(Ok(())), "seed {seed}");
            let kept = second.clone();
            let again = right.call(async move { kept.lock(exclusive(ino)).await });
            assert_eq!(again.await, Some(Ok(())), "seed {seed}");
        });
    }
}
