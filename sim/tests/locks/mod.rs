//! Advisory locks of clients on machines of their own.

mod counters;
mod holders;
mod returns;

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::rig;
use ebb_sim::{FaultPlan, NetFaults, Process, Rate, Rng, World};
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Connections that break and messages that are slow, and nothing worse by itself.
fn world(seed: u64) -> World {
    let drawn = FaultPlan::random(&Rng::new(seed).split("faults"));
    let net = NetFaults { partition: Rate::NEVER, ..drawn.net };
    World::with_faults(seed, FaultPlan { clock: drawn.clock, net, ..FaultPlan::default() })
}

async fn serve(world: &World, session_term: Duration) -> Process {
    serve_with(world, Options { session_term, ..Options::default() }).await
}

async fn serve_with(world: &World, options: Options) -> Process {
    let process = world.machine("server").process("node");
    let options = Options { owner: "locks".into(), ..options };
    let node = rig::open(&process, &world.bucket(), &options)
        .await
        .expect("the process lives")
        .expect("the volume is there");
    rig::serve(&process, "server", &node).await;
    let clock = process.ports.clock.clone();
    process.spawn(async move {
        loop {
            clock.sleep(SECOND / 2).await;
            if let Ok(Reply::Admin(AdminReply::Fsck(report))) =
                node.handle(Request::Admin(AdminRequest::Fsck)).await
            {
                assert_eq!(report.problems, vec![]);
            }
        }
    });
    process
}

async fn attach(world: &World, machine: &str) -> (Process, Rc<Client>) {
    loop {
        let process = world.machine(machine).process("client");
        if let Ok(client) = rig::attach_wire(&process, "server").await.expect("the process lives") {
            return (process, Rc::new(client));
        }
        process.kill();
        world.sleep(SECOND).await;
    }
}

async fn make(client: &Client, file: u64) -> Ino {
    let name = Name::new(format!("file{file}").as_bytes()).expect("a name");
    match client.make(&Caller::ROOT, Ino::ROOT, &name, 0o600, Make::Regular, false).await {
        Ok(made) => made.ino,
        Err(error) => panic!("{error}"),
    }
}

fn run(seed: u64, world: &World, story: impl Future<Output = ()>) {
    world
        .run(story)
        .unwrap_or_else(|failure| panic!("seed {seed}: {failure}\n{}", world.last_events()));
}
