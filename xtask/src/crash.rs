//! SIGKILL under load, on real processes: every acknowledged change is present after the restart.

use crate::Outcome;
use crate::finding::at;
use crate::recoveries::Recoveries;
use crate::rig::Rig;
use crate::rng::Rng;
use crate::rounds::Rounds;
use crate::workload::{Crew, Mix};
use ebb_model::{Planted, VARIABLE};
use std::fs;
use std::time::{Duration, Instant};

pub fn run(rounds: &Rounds) -> Outcome<()> {
    let binaries = rounds.build()?;
    rounds.announce("rounds");
    for shape in &rounds.mount {
        let mut rig = Rig::new(*shape, &binaries)?;
        if rounds.planted {
            rig.store.environment.push((VARIABLE, format!("{:?}", Planted::LateRecord)));
        }
        let outcome = on_shape(&mut rig, rounds);
        rounds.judge(*shape, outcome, || {
            rig.keep();
            Ok(rig.dir.to_path_buf())
        })?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    /// Kills the mount, with its node if they are one process.
    Mount,
    /// Kills the node; its client survives and replays unacknowledged operations.
    Node,
    Both,
}

fn on_shape(rig: &mut Rig, rounds: &Rounds) -> Outcome<String> {
    let mut rng = Rng(rounds.seed);
    rig.mount("")?;
    let root = rig.mountpoint();
    let mut crew = Crew::new(&root, Mix::WithTrees, &mut rng)?;
    let mut recoveries = Recoveries::default();
    for round in 0..rounds.rounds {
        let at_work = crew.start();
        std::thread::sleep(Duration::from_millis(20 + rng.below(600)));
        let victim = match rng.below(4) {
            _ if rig.shape.is_embedded() => Victim::Mount,
            // Only a loss of the client too loses data.
            _ if rounds.planted => Victim::Both,
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
            // Workers continue across the restart.
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
    // The bucket holds the same again.
    rig.umount()?;
    rig.drop_cache()?;
    rig.mount("")?;
    let place = "from the bucket alone";
    crew.verify().map_err(at(place))?;
    rig.fsck_bucket().map_err(at(place))?;
    rig.umount()?;
    Ok(format!(
        "{} kills, {} operations acknowledged, none lost; recovery {recoveries}",
        rounds.rounds,
        crew.done()
    ))
}
