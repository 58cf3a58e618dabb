//! Power cuts under load, on real processes: the node's data directory is on a disk that loses
//! unforced changes ([`disk`]), and its machine boots again.
//!
//! Guarantees checked afterwards:
//! - mount and node on that machine: S-2 and S-4 for forced operations;
//! - only the node on that machine: every acknowledged operation, because the client survives and
//!   replays it, and no application sees an error;
//! - both stopped cleanly before: every acknowledged operation.

mod bucket;
mod disk;
mod layer;
mod machine;
mod trial;

use crate::Outcome;
use crate::finding::at;
use crate::recoveries::Recoveries;
use crate::rig::{Rig, Shape};
use crate::rng::Rng;
use crate::rounds::Rounds;
use crate::scratch::Scratch;
use crate::workload::{AtWork, Crew, Mix};
use disk::Lost;
use ebb_model::{Planted, VARIABLE};
use layer::Layer;
use machine::Boot;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Cuts the power under a directory that serves as bucket alone.
pub fn under_bucket(seed: u64) -> Outcome<()> {
    bucket::run(&Scratch::new("powercut")?, &mut Rng(seed))
}

pub fn run(rounds: &Rounds) -> Outcome<()> {
    let binaries = rounds.build()?;
    let place = Scratch::new("powercut")?;
    let mut rng = Rng(rounds.seed);
    let boot = Boot::first(&place, &binaries, &mut rng)?;
    trial::run(&place)?;
    bucket::run(&place, &mut rng)?;
    rounds.announce("power cuts");
    for shape in &rounds.mount {
        let mut site = Site::new(*shape, &binaries, &boot, Rng(rng.draw()))?;
        if rounds.planted {
            site.rig.store.environment.push((VARIABLE, format!("{:?}", Planted::SkippedFsync)));
            // A surviving client would repair the loss.
            site.always_both = true;
        }
        let outcome = site.run(rounds.rounds);
        rounds.judge(*shape, outcome, || site.leave())?;
    }
    Ok(())
}

/// A mount whose node is on a machine that loses power.
struct Site<'a> {
    // Drop order: a process that waits for the disk must get an error before it is killed.
    layer: Layer,
    rig: Rig,
    boot: &'a Boot,
    rng: Rng,
    tally: Tally,
    /// The mount is on the node's machine.
    always_both: bool,
}

#[derive(Default)]
struct Tally {
    cuts: u32,
    /// Lost because they were not forced.
    operations: u64,
    disk: Lost,
    recoveries: Recoveries,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    /// Mount and node, on one machine.
    Both,
    /// The node; its client is on another machine.
    Node,
    /// Both, after a clean stop.
    Stopped,
}

impl Site<'_> {
    fn new<'a>(shape: Shape, binaries: &Path, boot: &'a Boot, rng: Rng) -> Outcome<Site<'a>> {
        let rig = Rig::new(shape, binaries)?;
        let point = rig.dir.join("disk");
        fs::create_dir(&point)?;
        let layer = Layer::new(&rig.dir.join("platter"), &point)?;
        // A nested data directory, frequent uploads, and a small cache.
        let rig = rig.with_data(point.join("ebb/data")).with(&[
            "--flush-interval",
            "1s",
            "--cache-size",
            "16M",
        ]);
        Ok(Site {
            layer,
            rig,
            boot,
            rng,
            tally: Tally::default(),
            always_both: shape.is_embedded(),
        })
    }

    fn run(&mut self, rounds: u32) -> Outcome<String> {
        self.rig.mount("")?;
        let mut crew = Crew::new(&self.rig.mountpoint(), Mix::Forcing, &mut self.rng)?;
        for round in 0..rounds {
            let victim = self.draw();
            let at_work = crew.start();
            // Sometimes long enough for the node's own force.
            let rarely = if self.rng.below(8) == 0 { 3000 } else { 600 };
            sleep(Duration::from_millis(20 + self.rng.below(rarely)));
            let moment = format!("round {round}, {victim:?} without power");
            crew = self.cut_under(at_work, victim).map_err(at(&moment))?;
            self.judge(&mut crew, victim).map_err(at(&moment))?;
        }
        // The bucket holds the same again.
        self.rig.umount()?;
        self.rig.drop_cache()?;
        self.rig.mount("")?;
        crew.verify().map_err(at("from the bucket alone"))?;
        self.rig.umount()?;
        let Tally { cuts, operations, disk, recoveries } = &self.tally;
        let Lost { writes, sectors, lengths, names, names_lost } = disk;
        Ok(format!(
            "{cuts} power cuts, {} operations acknowledged, {operations} that were not forced are \
             lost, nothing else; the disk lost \
             {sectors} sectors and {lengths} lengths of {writes} writes, and {names_lost} of \
             {names} names; recovery {recoveries}",
            crew.done(),
        ))
    }

    fn draw(&mut self) -> Victim {
        match (self.rng.below(8), self.rng.below(3)) {
            (0, _) => Victim::Stopped,
            (_, 1 | 2) if !self.always_both => Victim::Node,
            _ => Victim::Both,
        }
    }

    /// Cuts the power while the workers run, and restarts everything.
    fn cut_under(&mut self, at_work: AtWork, victim: Victim) -> Outcome<Crew> {
        if victim == Victim::Stopped {
            let crew = at_work.stop()?;
            self.rig.umount()?;
            self.cut(victim)?;
            self.rig.mount("")?;
            return Ok(crew);
        }
        self.cut(victim)?;
        let began = Instant::now();
        let crew = match victim {
            Victim::Node => {
                self.rig.serve()?;
                // Workers continue across the restart.
                sleep(Duration::from_millis(100));
                at_work.stop()?
            }
            _ => {
                let crew = at_work.stop()?;
                self.rig.mount("")?;
                fs::metadata(self.rig.mountpoint())?;
                crew
            }
        };
        self.tally.recoveries.add(began.elapsed());
        Ok(crew)
    }

    /// Checks the guarantees.
    fn judge(&mut self, crew: &mut Crew, victim: Victim) -> Outcome<()> {
        match (victim, crew.failed()) {
            (Victim::Both, _) => self.tally.operations += crew.verify_after_power_cut()?,
            (_, Some(failed)) => return Err(format!("an application has seen it: {failed}").into()),
            (_, None) => crew.verify()?,
        }
        self.rig.fsck()
    }

    /// Cuts the power of the node's machine, sometimes again during the node's start.
    fn cut(&mut self, victim: Victim) -> Outcome<()> {
        self.layer.switch_off();
        let layer = &mut self.layer;
        match victim {
            Victim::Stopped => layer.take_away()?,
            Victim::Both | Victim::Node => self.rig.kill_node_and(|| layer.take_away())?,
        }
        if victim == Victim::Both && !self.rig.shape.is_embedded() {
            self.rig.kill_mount()?;
        }
        self.come_back()?;
        while self.rng.below(4) == 0 {
            let starting = self.rig.begin()?;
            sleep(Duration::from_millis(self.rng.below(300)));
            self.layer.switch_off();
            starting.kill()?;
            self.layer.take_away()?;
            starting.wait()?;
            self.come_back()?;
        }
        Ok(())
    }

    fn come_back(&mut self) -> Outcome<()> {
        self.tally.disk += self.layer.come_back(self.rng.draw())?;
        self.tally.cuts += 1;
        self.boot.again(&mut self.rng)
    }

    /// Copies the disk's files for inspection, and removes everything else.
    fn leave(self) -> Outcome<PathBuf> {
        let left = self.rig.dir.with_extension("left");
        self.layer.lay_out(&left)?;
        for (log, name) in [("node.log", "node.log"), ("client/ebb.log", "client.log")] {
            match fs::copy(self.rig.dir.join(log), left.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(left)
    }
}
