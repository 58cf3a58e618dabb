//! Nodes end, lose power, and come back.

use super::*;

/// Operations of a client that goes on through everything.
async fn keep_working(mount: &Client, rounds: usize) -> Vec<(String, Ino)> {
    let mut made = Vec::new();
    for round in 0..rounds {
        let file = format!("file{round}");
        let ino = make(mount, &file).await;
        write(mount, ino, 0, b"bytes of this file").await;
        made.push((file, ino));
    }
    made
}

async fn expect_names(mount: &Client, made: &[(String, Ino)]) {
    for (file, ino) in made {
        let attr = mount.lookup(Ino::ROOT, &name(file)).await;
        let attr = attr.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!((attr.ino, attr.size_bytes), (*ino, 18), "{file}");
    }
}

async fn expect_bytes(mount: &Client, made: &[(String, Ino)]) {
    for (file, ino) in made {
        let data = mount.read(*ino, 0, 100).await;
        let data = data.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(&data[..], b"bytes of this file", "{file}");
    }
}

/// Situation: the node that leads is killed while a client works, and starts again. Expectation: no
/// operation fails, and everything that was answered is there, bytes included.
#[test]
fn the_leader_is_killed() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let done = world.run(async {
            let mut cluster = formed(&world, 3).await;
            let (process, mount) = client(&world, &cluster, "desk").await;
            let worker = mount.clone();
            let working = process.call(async move { keep_working(&worker, 40).await });
            let leader = cluster.leader().expect("one leads");
            let killing = async {
                world.sleep(Duration::from_millis(5 + 7 * seed)).await;
                cluster.servers[leader].process.kill();
                cluster.pass(20 * SECONDS).await;
            };
            let (made, ()) = futures_util::future::join(working, killing).await;
            let made = made.expect("the client lives");
            let checked = process.call(async move {
                expect_names(&mount, &made).await;
                expect_bytes(&mount, &made).await;
            });
            checked.await.expect("the client lives");
            cluster.until("all agree", 20 * SECONDS, |it| it.agrees()).await.unwrap();
        });
        done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}
