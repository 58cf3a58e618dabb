//! Clients that attach concurrently, or again.

use ebb_node::Options;
use ebb_sim::volume::rig;
use ebb_sim::{DiskFaults, FaultPlan, Rate, Slowness, World};
use futures_util::future::join;
use std::time::Duration;

/// Situation: a client's connection breaks at any moment of its attach, and it attaches again under
/// its name, which ends its earlier session. Danger: the first attach continues and enters a
/// session that has ended; no client can attach any more, because that session never gives up its
/// caches. Expectation: the second attach succeeds, at the latest when the abandoned session
/// expires.
#[test]
fn a_client_that_comes_again_while_it_is_let_in() {
    let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(20) };
    let faults =
        FaultPlan { disk: DiskFaults { slow, ..DiskFaults::default() }, ..FaultPlan::default() };
    let term = Duration::from_secs(10);
    for step in 0..80 {
        let world = World::with_faults(1, faults);
        let options = Options {
            volume: rig::VOLUME.into(),
            owner: "simulated".into(),
            session_term: term,
            ..Options::default()
        };
        let took = world.run(async {
            let server = world.machine("server").process_on("node", "data");
            let node = rig::open(&server, &world.bucket(), &options).await.unwrap().unwrap();
            rig::serve(&server, "server", &node).await;
            let process = world.machine("a").process("mount");
            let breaks = async {
                world.sleep(Duration::from_micros(500) * step).await;
                world.net().reset("server", "a");
            };
            let began = world.now();
            let (attached, ()) = join(rig::attach_wire(&process, "server"), breaks).await;
            attached.unwrap().unwrap();
            world.now() - began
        });
        let took = took.unwrap_or_else(|failure| panic!("broken after step {step}: {failure}"));
        assert!(took < term + Duration::from_secs(5), "broken after step {step}: {took:?}");
    }
}
