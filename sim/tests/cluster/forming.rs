//! A volume gets more nodes, loses the one that leads, and gets it back.

use super::*;

/// Situation: a volume of one node gets two more. Expectation: all three vote, and have the same
/// state.
#[test]
fn three_nodes_have_one_state() {
    for seed in 0..3 {
        let world = World::new(seed);
        let done = world.run(async {
            let mut cluster = formed(&world, 3).await;
            let (process, mount) = client(&world, &cluster, "desk").await;
            let working = process.call(async move {
                for file in ["a", "b", "c"] {
                    let ino = make(&mount, file).await;
                    write(&mount, ino, 0, b"some bytes").await;
                    mount.fsync(ino).await.unwrap();
                }
            });
            working.await.expect("the client lives");
            cluster.until("all agree", 10 * SECONDS, |cluster| cluster.agrees()).await.unwrap();
        });
        done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}
