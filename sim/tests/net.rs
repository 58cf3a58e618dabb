//! Order, delay and failure in the simulated network.

use bytes::Bytes;
use ebb_ports::{Connection, FrameReceiver, FrameSender, MAX_FRAME_BYTES, NetError};
use ebb_sim::{FaultPlan, Process, Rate, World};
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use std::collections::BTreeSet;
use std::time::Duration;

type Halves = (Box<dyn FrameSender>, Box<dyn FrameReceiver>);

const SECOND: Duration = Duration::from_secs(1);

/// Two processes on two machines with a connection between them.
async fn connected(client: &Process, server: &Process) -> (Halves, Halves) {
    let mut listener = server.ports.net.listen("0.0.0.0:7000").await.unwrap();
    let (dialled, accepted) =
        futures_util::join!(client.ports.net.connect("b:7000"), listener.accept());
    (dialled.unwrap().split(), accepted.unwrap().split())
}

fn pair(world: &World) -> (Process, Process) {
    (world.machine("a").process("client"), world.machine("b").process("node"))
}

fn frame(number: u32) -> Vec<Bytes> {
    vec![Bytes::from("frame "), Bytes::from(number.to_string())]
}

/// Frames of very different latency arrive whole and in order, in both directions.
#[test]
fn frames_arrive_in_order() {
    let mut plan = FaultPlan::default();
    plan.net.slow.rate = Rate::one_in(3);
    plan.net.slow.limit = SECOND;
    let world = World::with_faults(1, plan);
    let (client, server) = pair(&world);
    world
        .run(async {
            let ((mut send, _keep), (_keep_too, mut receive)) = connected(&client, &server).await;
            for number in 0..100 {
                send.send(frame(number)).await.unwrap();
            }
            drop(send);
            for number in 0..100 {
                assert_eq!(receive.receive().await.unwrap().unwrap(), format!("frame {number}"));
            }
            assert_eq!(receive.receive().await, Ok(None), "closed in good order");
        })
        .unwrap();
}

/// No listener, an unknown name, a malformed address, a used port: each is an error.
#[test]
fn connect_to_an_unreachable_address_is_refused() {
    let world = World::new(1);
    let (client, server) = pair(&world);
    world
        .run(async {
            for address in ["b:7000", "nobody:7000", "b", "b:", "b:x", "", ":"] {
                let refused = client.ports.net.connect(address).await.err();
                assert!(
                    matches!(refused, Some(NetError::Unreachable { .. })),
                    "{address:?}: {refused:?}"
                );
            }
            let listener = server.ports.net.listen("b:7000").await.unwrap();
            assert!(matches!(
                server.ports.net.listen("localhost:7000").await.err(),
                Some(NetError::Unreachable { .. })
            ));
            assert!(matches!(
                client.ports.net.listen("b:7001").await.err(),
                Some(NetError::Unreachable { .. })
            ));
            drop(listener);
            let again = server.ports.net.listen("b:7000").await.unwrap();
            assert_eq!(again.address(), "b:7000");
            let (one, two) = (
                server.ports.net.listen("b:0").await.unwrap(),
                server.ports.net.listen("b:0").await.unwrap(),
            );
            assert_ne!(one.address(), two.address());
            client.ports.net.connect(&one.address()).await.unwrap();
        })
        .unwrap();
}

/// Frames are sent into a partition, which heals after some seconds: they arrive then, in order.
#[test]
fn a_partition_holds_frames_back() {
    let world = World::new(1);
    let (client, server) = pair(&world);
    world
        .run(async {
            let ((mut send, mut answers), (mut answer, mut receive)) =
                connected(&client, &server).await;
            world.net().partition_one_way("a", "b");
            send.send(frame(1)).await.unwrap();
            send.send(frame(2)).await.unwrap();
            answer.send(frame(3)).await.unwrap();
            assert_eq!(
                answers.receive().await.unwrap().unwrap(),
                "frame 3",
                "the other way is open"
            );
            world.sleep(5 * SECOND).await;
            assert!(receive.receive().now_or_never().is_none());
            assert!(matches!(
                client.ports.net.connect("b:7000").await.err(),
                Some(NetError::Unreachable { .. })
            ));
            world.net().heal();
            assert_eq!(receive.receive().await.unwrap().unwrap(), "frame 1");
            assert_eq!(receive.receive().await.unwrap().unwrap(), "frame 2");
        })
        .unwrap();
}

/// A partition outlasts the sender's patience: the sender gets an error; the receiver learns of it
/// only when it sends after the partition has ended.
#[test]
fn a_long_partition_breaks_the_sender_and_leaves_the_receiver_half_open() {
    let world = World::new(1);
    let (client, server) = pair(&world);
    world
        .run(async {
            let ((mut send, receive_too), (mut answer, mut receive)) =
                connected(&client, &server).await;
            world.net().partition("a", "b");
            send.send(frame(1)).await.unwrap();
            world.sleep(60 * SECOND).await;
            assert!(matches!(send.send(frame(2)).await, Err(NetError::Broken { .. })));
            drop((send, receive_too));
            world.sleep(60 * SECOND).await;
            world.net().heal();
            world.sleep(SECOND).await;
            assert!(receive.receive().now_or_never().is_none(), "half-open");
            answer.send(frame(3)).await.unwrap();
            assert!(matches!(receive.receive().await, Err(NetError::Broken { .. })));
        })
        .unwrap();
}

/// The connection is reset with frames in flight: frames that arrived before are read, then both
/// ends get an error.
#[test]
fn reset_loses_frames_in_flight() {
    let world = World::new(1);
    let (client, server) = pair(&world);
    world
        .run(async {
            let ((mut send, mut answers), (_answer, mut receive)) =
                connected(&client, &server).await;
            send.send(frame(1)).await.unwrap();
            world.sleep(SECOND).await;
            send.send(frame(2)).await.unwrap();
            world.net().reset("b", "a");
            assert_eq!(receive.receive().await.unwrap().unwrap(), "frame 1");
            assert!(matches!(receive.receive().await, Err(NetError::Broken { .. })));
            assert!(matches!(answers.receive().await, Err(NetError::Broken { .. })));
            assert!(matches!(send.send(frame(3)).await, Err(NetError::Broken { .. })));
        })
        .unwrap();
}

/// Random resets and partitions: the received frames are a prefix of the sent ones.
#[test]
fn received_frames_are_a_prefix_of_the_sent_ones() {
    let mut cut_short = 0;
    for seed in 0..100 {
        let mut plan = FaultPlan::default();
        plan.net.reset = Rate::one_in(100);
        plan.net.partition = Rate::one_in(50);
        plan.net.partition_limit = 30 * SECOND;
        let world = World::new(seed);
        let (client, server) = pair(&world);
        world
            .run(async {
                let ((mut send, _answers), (_answer, mut receive)) =
                    connected(&client, &server).await;
                world.set_faults(plan);
                client.spawn(async move {
                    for number in 0..50 {
                        if send.send(frame(number)).await.is_err() {
                            return;
                        }
                    }
                });
                let mut next = 0;
                let end = loop {
                    match select(receive.receive(), world.sleep(120 * SECOND)).await {
                        Either::Left((Ok(Some(bytes)), _)) => {
                            assert_eq!(bytes, format!("frame {next}"))
                        }
                        Either::Left((Ok(None), _)) => break "closed",
                        Either::Left((Err(_), _)) => break "broken",
                        Either::Right(_) => break "silence",
                    }
                    next += 1;
                };
                assert!(
                    next == 50 || end != "closed",
                    "seed {seed}: only {next} frames and a good end"
                );
                cut_short += u32::from(next < 50);
            })
            .unwrap();
    }
    assert!((10..90).contains(&cut_short), "{cut_short}");
}

/// The server is killed: the client soon sees the connection closed or broken, by the seed; new
/// connections are rejected until the server is back.
#[test]
fn a_killed_process_closes_its_connections() {
    let mut ends = BTreeSet::new();
    for seed in 0..30 {
        let world = World::new(seed);
        let (client, server) = pair(&world);
        world
            .run(async {
                let ((_send, mut receive), _server_side) = connected(&client, &server).await;
                server.kill();
                let killed_at = world.now();
                ends.insert(match receive.receive().await {
                    Ok(end) => {
                        assert_eq!(end, None);
                        "closed"
                    }
                    Err(_) => "broken",
                });
                assert!(world.now() - killed_at < SECOND);
                assert!(client.ports.net.connect("b:7000").await.is_err());
                let successor = world.machine("b").process("node");
                connected(&client, &successor).await;
            })
            .unwrap();
    }
    assert_eq!(ends, BTreeSet::from(["broken", "closed"]));
}

/// The server's machine loses power: the client hears nothing until it sends.
#[test]
fn a_power_cut_tells_no_peer() {
    let world = World::new(1);
    let (client, server) = pair(&world);
    world
        .run(async {
            let ((mut send, mut receive), _server_side) = connected(&client, &server).await;
            world.machine("b").power_cut();
            world.sleep(60 * SECOND).await;
            assert!(receive.receive().now_or_never().is_none());
            send.send(frame(1)).await.unwrap();
            assert!(matches!(receive.receive().await, Err(NetError::Broken { .. })));
            assert!(matches!(send.send(frame(2)).await, Err(NetError::Broken { .. })));
        })
        .unwrap();
    assert_eq!(world.net().open_ends(), 0);
}

/// A client is killed with a call under way; its own halves never answer again, and no
/// end of a connection stays behind.
#[test]
fn a_dead_process_hears_nothing() {
    let world = World::new(1);
    let (client, server) = pair(&world);
    world
        .run(async {
            let ((mut send, mut receive), server_side) = connected(&client, &server).await;
            client.kill();
            world.sleep(SECOND).await;
            assert!(receive.receive().now_or_never().is_none());
            assert!(send.send(frame(1)).now_or_never().is_none());
            drop(server_side);
            world.sleep(SECOND).await;
            assert_eq!(world.net().open_ends(), 0);
        })
        .unwrap();
}

/// The receiver does not read: the sender blocks on the window, and continues when the receiver
/// reads or dies.
#[test]
fn a_sender_waits_for_a_slow_receiver() {
    let world = World::new(1);
    let (client, server) = pair(&world);
    world
        .run(async {
            let big = || vec![Bytes::from(vec![0; MAX_FRAME_BYTES])];
            let ((mut send, _answers), (_answer, mut receive)) = connected(&client, &server).await;
            for _ in 0..4 {
                send.send(big()).await.unwrap();
            }
            assert!(send.send(big()).now_or_never().is_none());
            world.sleep(SECOND).await;
            assert!(send.send(big()).now_or_never().is_none());
            let (sent, read) = futures_util::join!(send.send(big()), receive.receive());
            assert!(sent.is_ok() && read.is_ok());
            let (sent, ()) = futures_util::join!(send.send(big()), async { server.kill() });
            assert!(sent.is_ok() || matches!(sent, Err(NetError::Broken { .. })));
            let too_long = send.send(vec![Bytes::from(vec![0; MAX_FRAME_BYTES + 1])]).await;
            assert!(matches!(too_long, Err(NetError::Protocol { .. })));
        })
        .unwrap();
}

/// A connection that was never accepted and one that was dropped unsplit leave nothing.
#[test]
fn abandoned_connections_leave_nothing_behind() {
    let world = World::new(1);
    let (client, server) = pair(&world);
    world
        .run(async {
            let mut listener = server.ports.net.listen("b:7000").await.unwrap();
            let one: Box<dyn Connection> = client.ports.net.connect("b:7000").await.unwrap();
            let two = client.ports.net.connect("b:7000").await.unwrap();
            drop(one);
            let (_, mut first) = listener.accept().await.unwrap().split();
            assert_eq!(first.receive().await, Ok(None));
            drop((first, listener));
            let (_, mut second) = two.split();
            assert!(matches!(second.receive().await, Ok(None) | Err(NetError::Broken { .. })));
            drop(second);
            assert_eq!(world.net().open_ends(), 0);
        })
        .unwrap();
}
