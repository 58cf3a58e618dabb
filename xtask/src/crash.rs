//! SIGKILL under load, on real processes: whatever an application was told has happened
//! is there after the restart.

use crate::rig::{Rig, Shape};
use crate::rng::Rng;
use crate::workload::Worker;
use crate::{Outcome, tool};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const WORKERS: usize = 4;

pub fn run(rounds: u32, shapes: &[Shape], seed: Option<u64>, release: bool) -> Outcome<()> {
    let seed = seed.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64));
    let binaries = tool::build(&["ebb", "ebb-s3-server"], release)?;
    println!("{rounds} rounds each of {}, seed {seed}", shapes.iter().map(|shape| shape.name()).collect::<Vec<_>>().join(", "));
    for shape in shapes {
        let mut rig = Rig::new(*shape, &binaries)?;
        if let Err(error) = on_shape(&mut rig, rounds, seed) {
            rig.keep();
            return Err(format!("{}, seed {seed}: {error}\nleft to look at: {}", shape.name(), rig.dir.display()).into());
        }
    }
    Ok(())
}

fn on_shape(rig: &mut Rig, rounds: u32, seed: u64) -> Outcome<()> {
    let mut rng = Rng(seed);
    rig.mount("")?;
    let root = rig.mountpoint();
    let mut workers = (0..WORKERS).map(|number| Worker::new(&root, number, rng.next())).collect::<Outcome<Vec<_>>>()?;
    let (mut operations, mut recoveries) = (0, Vec::new());
    for round in 0..rounds {
        let stop = Arc::new(AtomicBool::new(false));
        let running: Vec<_> = workers
            .drain(..)
            .map(|worker| {
                let stop = stop.clone();
                std::thread::spawn(move || worker.work(&stop))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20 + rng.below(600)));
        // A detached mount outlives its node, and the other way round.
        let kill_mount = rig.shape.is_embedded() || rng.below(3) == 0;
        let began = Instant::now();
        if kill_mount {
            rig.kill_mount()?;
        } else {
            rig.kill_node()?;
            rig.serve()?;
            // Workers go on over the restart.
            std::thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, Ordering::Relaxed);
        for thread in running {
            workers.push(thread.join().map_err(|_| "a worker panicked")?);
        }
        if kill_mount {
            let began = Instant::now();
            rig.mount("")?;
            fs::metadata(&root)?;
            recoveries.push(began.elapsed());
        } else {
            recoveries.push(began.elapsed());
        }
        for worker in &mut workers {
            worker.verify().map_err(|error| format!("round {round}: {error}"))?;
        }
        tool::output(&mut rig.ebb(&["fsck", &root.display().to_string()])).map_err(|error| format!("round {round}: {error}"))?;
        operations = workers.iter().map(Worker::done).sum::<u64>();
    }
    // What the bucket holds is the same again.
    rig.umount()?;
    rig.drop_cache()?;
    rig.mount("")?;
    for worker in &mut workers {
        worker.verify().map_err(|error| format!("from the bucket alone: {error}"))?;
    }
    rig.umount()?;
    recoveries.sort();
    let at = |part: usize| {
        recoveries.get((recoveries.len() * part / 100).min(recoveries.len().saturating_sub(1))).copied().unwrap_or_default().as_millis()
    };
    println!(
        "{:<14} {rounds} kills, {operations} operations acknowledged, none lost; recovery p50 {} ms, p90 {} ms, most {} ms",
        rig.shape.name(),
        at(50),
        at(90),
        at(100)
    );
    Ok(())
}
