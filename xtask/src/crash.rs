//! SIGKILL under load, on real processes: whatever an application was told has happened
//! is there after the restart.

use crate::recoveries::Recoveries;
use crate::rig::{Rig, Shape};
use crate::rng::{self, Rng};
use crate::workload::{Crew, Mix};
use crate::{Outcome, tool};
use std::fs;
use std::time::{Duration, Instant};

pub fn run(rounds: u32, shapes: &[Shape], seed: Option<u64>, release: bool) -> Outcome<()> {
    let seed = seed.unwrap_or_else(rng::seed);
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
    let mut crew = Crew::new(&root, Mix::Plain, &mut rng)?;
    let mut recoveries = Recoveries::default();
    for round in 0..rounds {
        let at_work = crew.start();
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
        crew = at_work.stop()?;
        if kill_mount {
            let began = Instant::now();
            rig.mount("")?;
            fs::metadata(&root)?;
            recoveries.add(began.elapsed());
        } else {
            recoveries.add(began.elapsed());
        }
        crew.verify().map_err(|error| format!("round {round}: {error}"))?;
        tool::output(&mut rig.ebb(&["fsck", &root.display().to_string()])).map_err(|error| format!("round {round}: {error}"))?;
    }
    // What the bucket holds is the same again.
    rig.umount()?;
    rig.drop_cache()?;
    rig.mount("")?;
    crew.verify().map_err(|error| format!("from the bucket alone: {error}"))?;
    rig.umount()?;
    println!("{:<14} {rounds} kills, {} operations acknowledged, none lost; recovery {recoveries}", rig.shape.name(), crew.done());
    Ok(())
}
