//! SIGKILL under load, on real processes: whatever an application was told has happened
//! is there after the restart.

use crate::finding::{Finding, at};
use crate::recoveries::Recoveries;
use crate::rig::{Rig, Shape};
use crate::rng::{self, Rng};
use crate::workload::{Crew, Mix};
use crate::{Outcome, tool};
use std::fs;
use std::time::{Duration, Instant};

pub struct Wanted {
    pub rounds: u32,
    pub shapes: Vec<Shape>,
    pub seed: Option<u64>,
    pub release: bool,
    /// With a bug in the node. Something that was acknowledged must then be lost; no other error will do.
    pub planted: bool,
}

pub fn run(wanted: Wanted) -> Outcome<()> {
    let Wanted { rounds, shapes, seed, release, planted } = wanted;
    let seed = seed.unwrap_or_else(rng::seed);
    let binaries = if planted { tool::build_planted()? } else { tool::build(&["ebb", "ebb-s3-server"], release)? };
    println!("{rounds} rounds each of {}, seed {seed}", shapes.iter().map(|shape| shape.name()).collect::<Vec<_>>().join(", "));
    for shape in shapes {
        let mut rig = Rig::new(shape, &binaries)?;
        if planted {
            rig.store.environment.push(("EBB_PLANTED", "late-record".into()));
        }
        match (on_shape(&mut rig, rounds, seed, planted), planted) {
            (Ok(row), false) => println!("{row}"),
            (Err(error), true) if error.is::<Finding>() => println!("{:<14} the planted bug is found: {error}", shape.name()),
            (Ok(_), true) => return Err(format!("{}: the planted bug is not found", shape.name()).into()),
            (Err(error), _) => {
                rig.keep();
                return Err(format!("{}, seed {seed}: {error}\nleft to look at: {}", shape.name(), rig.dir.display()).into());
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    /// With its node, if that is the same process.
    Mount,
    /// Its client lives on, and repeats what the node may not have.
    Node,
    Both,
}

fn on_shape(rig: &mut Rig, rounds: u32, seed: u64, planted: bool) -> Outcome<String> {
    let mut rng = Rng(seed);
    rig.mount("")?;
    let root = rig.mountpoint();
    let mut crew = Crew::new(&root, Mix::WithTrees, &mut rng)?;
    let mut recoveries = Recoveries::default();
    for round in 0..rounds {
        let at_work = crew.start();
        std::thread::sleep(Duration::from_millis(20 + rng.below(600)));
        let victim = match rng.below(4) {
            _ if rig.shape.is_embedded() => Victim::Mount,
            // Only where no client has lived on something is lost.
            _ if planted => Victim::Both,
            0 => Victim::Mount,
            1 => Victim::Both,
            _ => Victim::Node,
        };
        let mut began = Instant::now();
        if victim != Victim::Mount {
            rig.kill_node()?;
        }
        if victim == Victim::Node {
            rig.serve()?;
            // Workers go on over the restart.
            std::thread::sleep(Duration::from_millis(100));
            crew = at_work.stop()?;
        } else {
            rig.kill_mount()?;
            crew = at_work.stop()?;
            began = Instant::now();
            rig.mount("")?;
            fs::metadata(&root)?;
        }
        recoveries.add(began.elapsed());
        let moment = format!("round {round}, {victim:?} killed");
        crew.verify().map_err(at(&moment))?;
        rig.fsck().map_err(at(&moment))?;
    }
    // What the bucket holds is the same again.
    rig.umount()?;
    rig.drop_cache()?;
    rig.mount("")?;
    let place = "from the bucket alone";
    crew.verify().map_err(at(place))?;
    rig.fsck_bucket().map_err(at(place))?;
    rig.umount()?;
    Ok(format!("{:<14} {rounds} kills, {} operations acknowledged, none lost; recovery {recoveries}", rig.shape.name(), crew.done()))
}
