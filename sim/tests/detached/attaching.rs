//! Clients that attach concurrently, or again.

use ebb_model::*;
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

/// Situation: a client waits to be let in until another one that caches has expired; its connection
/// breaks, and it attaches again under its name. Danger: the attach that it has given up goes on,
/// and ends the session of the second one. Expectation: the second one stays, alone.
#[test]
fn the_last_attach_of_a_client_counts() {
    let term = Duration::from_secs(10);
    for seed in 0..20 {
        let world = World::new(seed);
        let options = Options {
            volume: rig::VOLUME.into(),
            owner: "simulated".into(),
            session_term: term,
            ..Options::default()
        };
        let done = world.run(async {
            let server = world.machine("server").process_on("node", "data");
            let node = rig::open(&server, &world.bucket(), &options).await.unwrap().unwrap();
            rig::serve(&server, "server", &node).await;
            let caches = world.machine("dead").process("mount");
            let _client = rig::attach_wire(&caches, "server").await.unwrap().unwrap();
            caches.kill();
            let process = world.machine("a").process("mount");
            let breaks = async {
                let until = world.rng("break").duration(Duration::ZERO, Duration::from_secs(4));
                world.sleep(until).await;
                world.net().reset("server", "a");
            };
            let (attached, ()) = join(rig::attach_wire(&process, "server"), breaks).await;
            let client = attached.unwrap().unwrap();
            world.sleep(term / 2).await;
            let made = process.call(async move {
                let name = Name::new(b"new").unwrap();
                let what = Make::Regular;
                client.make(&Caller::ROOT, Ino::ROOT, &name, 0o600, what, false).await.map(drop)
            });
            assert_eq!(made.await, Some(Ok(())), "seed {seed}");
            let status =
                server.call(async move { node.handle(Request::Admin(AdminRequest::Status)).await });
            let Some(Ok(Reply::Admin(AdminReply::Status(status)))) = status.await else {
                panic!("a status was asked for")
            };
            assert_eq!(status.sessions.len(), 1, "seed {seed}");
        });
        done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}
