//! The world as a whole: clocks, entropy, and that nothing but the seed decides.

use bytes::Bytes;
use ebb_model::Time;
use ebb_ports::{Condition, ListRequest, OpenMode};
use ebb_sim::{FaultPlan, Machine, Process, Rate, Rng, World};
use futures_util::future::{Either, select};
use std::collections::BTreeSet;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A few hundred random operations on every port, by three processes on two machines,
/// under random faults, kills and power cuts. Nothing is checked but that it ends.
fn demo(seed: u64) -> u64 {
    let rng = Rng::new(seed);
    let world = World::with_faults(seed, FaultPlan::random(&rng.split("plan")));
    let machines = [world.machine("a"), world.machine("b")];
    let start = |machine: &Machine, program: &str| {
        let process = machine.process(program);
        let rng = world.rng(process.name());
        process.spawn(serve(process.clone()));
        process.spawn(work(process.clone(), process.bucket(&world.bucket()), rng));
        process
    };
    world
        .run(async {
            let rng = world.rng("nemesis");
            let mut running = [
                start(&machines[0], "node"),
                start(&machines[1], "node"),
                start(&machines[1], "client"),
            ];
            for _ in 0..20 {
                world.sleep(rng.duration(Duration::ZERO, SECOND)).await;
                let which = rng.index(running.len());
                match rng.below(8) {
                    0 => running[which].kill(),
                    1 => machines[rng.index(2)].power_cut(),
                    2 => running[which].pause(2 * SECOND),
                    3 => world.net().partition("a", "b"),
                    4 => machines[rng.index(2)].jump_wall(-1000),
                    _ => world.net().heal(),
                }
                for (at, machine, program) in [(0, 0, "node"), (1, 1, "node"), (2, 1, "client")] {
                    if !running[at].is_alive() {
                        running[at] = start(&machines[machine], program);
                    }
                }
            }
        })
        .unwrap();
    world.trace_hash()
}

/// Echoes all frames.
async fn serve(process: Process) {
    let net = process.ports.net.clone();
    let Ok(mut listener) = net.listen("localhost:7000").await else { return };
    while let Ok(connection) = listener.accept().await {
        let (mut send, mut receive) = connection.split();
        process.spawn(async move {
            while let Ok(Some(frame)) = receive.receive().await {
                if send.send(vec![frame]).await.is_err() {
                    return;
                }
            }
        });
    }
}

async fn work(process: Process, bucket: std::rc::Rc<dyn ebb_ports::Bucket>, rng: Rng) {
    let ports = &process.ports;
    for step in 0..400_u64 {
        let name = format!("file{}", rng.below(5));
        // Failures are expected here: the trace has every outcome.
        match rng.below(10) {
            0..4 => {
                let Ok(file) = ports.disk.open(&name, OpenMode::Create).await else { continue };
                let body = Bytes::from(vec![ports.entropy.next_u64() as u8; rng.index(3000)]);
                match rng.below(4) {
                    0 => drop(file.sync_data().await),
                    1 => drop(file.read_at(rng.below(1000), 5000).await),
                    _ => drop(file.write_at(rng.below(10_000), body).await),
                }
            }
            4 => drop(ports.disk.rename(&name, "renamed").await),
            5 => drop(ports.disk.sync_dir("").await),
            6 => {
                let peer = if rng.below(2) == 0 { "a:7000" } else { "b:7000" };
                let call = async {
                    let (mut send, mut receive) = ports.net.connect(peer).await?.split();
                    send.send(vec![Bytes::from(step.to_le_bytes().to_vec())]).await?;
                    receive.receive().await
                };
                if let Either::Left((answer, _)) =
                    select(Box::pin(call), ports.clock.sleep(SECOND)).await
                {
                    assert!(
                        answer.is_err()
                            || answer.is_ok_and(|frame| frame
                                .is_none_or(|frame| frame == step.to_le_bytes().to_vec()))
                    );
                }
            }
            7 => drop(
                bucket.put(&name, Bytes::from(step.to_string()), Condition::Always, vec![]).await,
            ),
            8 => drop(
                bucket
                    .list(ListRequest {
                        prefix: String::new(),
                        by_directory: true,
                        after: None,
                        limit: 10,
                    })
                    .await,
            ),
            _ => ports.clock.sleep(Duration::from_millis(rng.below(50))).await,
        }
    }
}

/// Two runs of one seed agree on every event; different seeds do not.
#[test]
fn the_seed_alone_decides() {
    let hashes: Vec<u64> = (0..20).map(demo).collect();
    assert_eq!(hashes, (0..20).map(demo).collect::<Vec<u64>>());
    assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), 20);
}

/// A clock runs too fast or too slow: a sleep takes the time that this clock shows, not a
/// nanosecond less, and two machines disagree.
#[test]
fn clocks_drift_and_sleeps_follow_them() {
    let mut plan = FaultPlan::default();
    plan.clock.drift_limit_ppm = 10_000;
    let mut elapsed = BTreeSet::new();
    for seed in 0..20 {
        let world = World::with_faults(seed, plan);
        let clock = world.machine("a").process("node").ports.clock;
        world
            .run(async {
                for _ in 0..10 {
                    let before = clock.monotonic();
                    clock.sleep(Duration::from_nanos(1_234_567)).await;
                    let slept = clock.monotonic() - before;
                    assert!((1_234_567..=1_234_569).contains(&slept.as_nanos()), "{slept:?}");
                }
            })
            .unwrap();
        elapsed.insert(world.now());
        assert!((world.now().as_secs_f64() / 0.01234567 - 1.0).abs() < 0.011);
    }
    assert!(elapsed.len() > 15);
}

/// A drifting clock completes a wait of zero at any instant.
#[test]
fn a_sleep_of_nothing_ends() {
    let mut plan = FaultPlan::default();
    plan.clock.drift_limit_ppm = 10_000;
    for seed in 0..20 {
        let world = World::with_faults(seed, plan);
        let clock = world.machine("a").process("node").ports.clock;
        let slept = world.run(async {
            for _ in 0..100 {
                world.sleep(Duration::from_nanos(1_234_567)).await;
                clock.sleep(Duration::ZERO).await;
            }
        });
        slept.unwrap();
        assert_eq!(world.now(), 100 * Duration::from_nanos(1_234_567));
    }
}

/// Timers are late by up to the limit, never early.
#[test]
fn timers_may_be_late() {
    let mut plan = FaultPlan::default();
    plan.clock.timer_late_limit = SECOND;
    let world = World::with_faults(1, plan);
    let clock = world.machine("a").process("node").ports.clock;
    let mut late = BTreeSet::new();
    world
        .run(async {
            for _ in 0..20 {
                let before = clock.monotonic();
                clock.sleep(SECOND).await;
                late.insert(clock.monotonic() - before);
            }
        })
        .unwrap();
    assert!(late.iter().all(|slept| (SECOND..=2 * SECOND).contains(slept)) && late.len() == 20);
}

/// The wall clock is set, or jumps by itself; the monotonic clock is not affected. After a power
/// cut the monotonic clock starts again.
#[test]
fn wall_clocks_jump() {
    let world = World::new(1);
    let machine = world.machine("a");
    let clock = machine.process("node").ports.clock;
    assert_eq!(clock.wall(), Time::from_secs(1_767_225_600));
    world.run_for(Duration::from_millis(1500)).unwrap();
    assert_eq!(clock.wall(), Time { secs: 1_767_225_601, nanos: 500_000_000 });
    machine.jump_wall(-1_767_225_602);
    assert_eq!(clock.wall(), Time { secs: -1, nanos: 500_000_000 });
    assert_eq!(clock.monotonic(), Duration::from_millis(1500));

    let mut plan = FaultPlan::default();
    plan.clock.wall_jump = Rate::ALWAYS;
    plan.clock.wall_jump_limit = 3600 * SECOND;
    world.set_faults(plan);
    let readings: Vec<i64> = (0..50).map(|_| clock.wall().secs).collect();
    assert!(readings.is_sorted_by(|a, b| (a - b).abs() <= 3600));
    assert!(!readings.is_sorted() && !readings.is_sorted_by(|a, b| a >= b));

    machine.power_cut();
    assert_eq!(machine.process("node").ports.clock.monotonic(), Duration::ZERO);
}

/// Each incarnation draws numbers of its own, the same in every run of the seed.
#[test]
fn entropy_belongs_to_the_incarnation() {
    let draw = |seed| {
        let world = World::new(seed);
        let machine = world.machine("a");
        [machine.process("node"), machine.process("node")]
            .map(|process| process.ports.entropy.next_u64())
    };
    assert_eq!(draw(1), draw(1));
    let all = [draw(1), draw(2)];
    assert_eq!(all.as_flattened().iter().collect::<BTreeSet<_>>().len(), 4);
}

/// A task of a process starts another by the port: it belongs to the process and dies with it.
#[test]
fn spawned_tasks_belong_to_their_process() {
    let world = World::new(1);
    let process = world.machine("a").process("node");
    let ports = process.ports.clone();
    let spawned = process.call(async move {
        let clock = ports.clock.clone();
        ports.spawn.spawn(Box::pin(async move {
            clock.sleep(SECOND).await;
            panic!("outlived its process");
        }));
    });
    world.run(spawned).unwrap().unwrap();
    process.kill();
    world.run_for(60 * SECOND).unwrap();
}

/// Random plans differ, keep to faults that leave one copy, and leave some faults off.
#[test]
fn random_plans_are_survivable() {
    let plans: Vec<FaultPlan> = (0..100).map(|seed| FaultPlan::random(&Rng::new(seed))).collect();
    assert!(plans.iter().all(|plan| plan.disk.bit_rot == Rate::NEVER && !plan.disk.lying_sync));
    let without_resets = plans.iter().filter(|plan| plan.net.reset == Rate::NEVER).count();
    assert!((25..75).contains(&without_resets), "{without_resets}");
    assert!(plans.windows(2).all(|two| two[0] != two[1]));
}
