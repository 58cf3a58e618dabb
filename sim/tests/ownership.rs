//! One writer of a bucket at a time: the node that holds its head.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_node::head::TakeOver;
use ebb_sim::volume::rig;
use ebb_sim::{Process, World};
use std::time::Duration;

const TERM: Duration = Duration::from_secs(3);
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

async fn mount(world: &World, machine: &str, take_over: TakeOver) -> (Process, Client) {
    let process = world.machine(machine).process_on("node", "data");
    let options = Options {
        owner: machine.into(),
        embedded: true,
        take_over,
        head_term: TERM,
        flush_interval: FLUSH_INTERVAL,
        ..Options::default()
    };
    let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
    let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
    (process, client)
}

async fn make(process: &Process, client: &Client, file: &str) {
    let (client, name) = (client.clone(), Name::new(file.as_bytes()).unwrap());
    let making = process.call(async move {
        let made = client
            .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
            .await
            .unwrap();
        let content = Bytes::from_static(b"content");
        client.write(&Caller::ROOT, made.ino, 0, content, false).await.unwrap();
    });
    making.await.expect("the process lives");
}

/// Situation: the machine of a node stands still for longer than the term of its head, with files
/// to be flushed, and another node takes the volume over. Danger: the first one goes on and writes
/// into the volume of the other. Expectation: it writes nothing any more, neither before nor after
/// it learns of the other, and the other goes on.
#[test]
fn node_that_was_taken_over_writes_nothing_to_the_bucket() {
    for seed in 0..8 {
        let world = World::new(seed);
        let bucket = world.bucket();
        let scene = async {
            let (first, client) = mount(&world, "a", TakeOver::IfAbandoned).await;
            make(&first, &client, "before").await;
            while !bucket.objects().contains_key("before") {
                world.sleep(Duration::from_millis(10)).await;
            }
            make(&first, &client, "after").await;
            first.pause(10 * TERM);
            // Requests that were on their way have arrived.
            world.sleep(Duration::from_millis(100)).await;
            let (second, other) = mount(&world, "b", TakeOver::Now).await;
            let taken_over = world.now();
            make(&second, &other, "other").await;
            world.sleep(30 * TERM).await;
            let late: Vec<_> = bucket
                .history()
                .into_iter()
                .filter(|change| change.process == first.name() && change.at > taken_over)
                .collect();
            assert_eq!(late, [], "seed {seed}");
            assert!(first.is_alive() && !bucket.objects().contains_key("after"), "seed {seed}");
            assert!(bucket.objects().contains_key("other"), "seed {seed}");
        };
        world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
    }
}
