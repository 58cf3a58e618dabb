//! The node's disk fails, and the node is restarted.

use super::*;
use ebb_sim::{DiskFaults, FaultPlan, Rate};

/// Two clients work, and for a moment every write or every sync fails: the node no longer knows its
/// disk's contents, and ends. Expectation: clients wait for the next node and replay the loss; no
/// application sees an error.
#[test]
fn failed_disk_restarts_the_node_without_errors() {
    let writes = DiskFaults { write_error: Rate::ALWAYS, ..DiskFaults::default() };
    let syncs = DiskFaults { sync_error: Rate::ALWAYS, ..DiskFaults::default() };
    for seed in 0..SEEDS {
        for (disk, clients) in [(writes, 1), (writes, 2), (syncs, 1), (syncs, 2)] {
            let world = World::new(seed);
            run(seed, &world, async {
                let node = serve(&world).await;
                let (process, client) = attach(&world, "desk").await;
                let other = if clients == 2 { Some(attach(&world, "other").await) } else { None };
                let maker = client.clone();
                let first = process
                    .call(async move { make(&maker, 0).await })
                    .await
                    .expect("the client lives");
                world.set_faults(FaultPlan { disk, ..FaultPlan::default() });
                let maker = client.clone();
                // A name first: bytes that cannot be written are refused, and nothing has been
                // promised.
                let second = process.call(async move {
                    let name = name(1);
                    let made = maker
                        .make(&Caller::ROOT, Ino::ROOT, &name, 0o600, Make::Regular, false)
                        .await
                        .unwrap();
                    maker.fsync(made.ino).await.unwrap();
                    let content = Bytes::from(vec![7; 100_000]);
                    maker.write(&Caller::ROOT, made.ino, 0, content.clone(), false).await.unwrap();
                    maker.sync_fs().await.unwrap();
                    (made.ino, content)
                });
                ended(&world, &node).await;
                world.set_faults(FaultPlan::default());
                serve(&world).await;
                let made = vec![first, second.await.expect("the client lives")];
                let (process, client) = other.unwrap_or((process, client));
                process
                    .call(async move { check(&client, &made).await })
                    .await
                    .expect("the client lives");
            });
        }
    }
}
