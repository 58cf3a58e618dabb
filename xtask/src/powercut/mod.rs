//! Power cuts under load, on real processes: the node's data directory is on a disk that loses
//! what was not forced ([`disk`]), and the machine that had it boots again.
//!
//! Where mount and node are on that machine, what docs/semantics.md promises of forced operations
//! must hold afterwards; where only the node is, everything that was acknowledged, because its
//! client has lived on and repeats it, and no application may have seen an error.

mod disk;
mod layer;
mod machine;
mod trial;

use crate::recoveries::Recoveries;
use crate::rig::{Rig, Shape};
use crate::rng::{self, Rng};
use crate::workload::{Crew, Mix};
use crate::{Outcome, tool};
use disk::{Kind, Lost};
use layer::Layer;
use machine::Boot;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub struct Wanted {
    pub rounds: u32,
    pub shapes: Vec<Shape>,
    pub seed: Option<u64>,
    pub release: bool,
    /// With a bug in the node, which must be found.
    pub planted: bool,
}

pub fn run(wanted: Wanted) -> Outcome<()> {
    let Wanted { rounds, shapes, seed, release, planted } = wanted;
    let seed = seed.unwrap_or_else(rng::seed);
    let binaries = if planted { tool::build_planted()? } else { tool::build(&["ebb", "ebb-s3-server"], release)? };
    let place = Place::new()?;
    let mut rng = Rng(seed);
    let boot = Boot::first(&place.0, &mut rng)?;
    trial::run(&place.0)?;
    println!("{rounds} power cuts each of {}, seed {seed}", shapes.iter().map(|shape| shape.name()).collect::<Vec<_>>().join(", "));
    for shape in shapes {
        let mut site = Site::new(shape, &binaries, &boot, Rng(rng.next()))?;
        if planted {
            site.rig.store.environment.push(("EBB_PLANTED", "skipped-fsync".into()));
            // A client that lives on makes up for it.
            site.always_whole = true;
        }
        match (site.run(rounds), planted) {
            (Ok(row), false) => println!("{row}"),
            (Err(error), true) => println!("{:<14} the planted bug is found: {error}", shape.name()),
            (Ok(_), true) => return Err(format!("{}: the planted bug is not found", shape.name()).into()),
            (Err(error), false) => {
                let left = site.leave()?;
                return Err(format!("{}, seed {seed}: {error}\nleft to look at: {}", shape.name(), left.display()).into());
            }
        }
    }
    Ok(())
}

/// A directory of this run, gone with it.
struct Place(PathBuf);

impl Place {
    fn new() -> Outcome<Place> {
        let path = std::env::temp_dir().join(format!("ebb-powercut-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Place(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Best effort: what is left is in the machine's directory for such things.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A mount whose node is on a machine that loses power.
struct Site<'a> {
    // Dropped in this order: whoever waits for the disk gets an error before he is killed.
    layer: Layer,
    rig: Rig,
    boot: &'a Boot,
    rng: Rng,
    lost: Lost,
    /// The mount's machine is the node's.
    always_whole: bool,
}

impl Site<'_> {
    fn new<'a>(shape: Shape, binaries: &Path, boot: &'a Boot, rng: Rng) -> Outcome<Site<'a>> {
        let rig = Rig::new(shape, binaries)?;
        let point = rig.dir.join("disk");
        fs::create_dir(&point)?;
        let layer = Layer::new(&rig.dir.join("platter"), &point)?;
        // Directories that it makes itself, a bucket that is busy, and a cache that is soon full.
        let rig = rig.with_data(point.join("ebb/data")).with(&["--flush-interval", "1s", "--cache-size", "16M"]);
        Ok(Site { layer, always_whole: shape.is_embedded(), rig, boot, rng, lost: Lost::default() })
    }

    fn run(&mut self, rounds: u32) -> Outcome<String> {
        self.rig.mount("")?;
        let mut crew = Crew::new(&self.rig.mountpoint(), Mix::Forcing, &mut self.rng)?;
        let mut recoveries = Recoveries::default();
        let mut lost = 0;
        for round in 0..rounds {
            let at_work = crew.start();
            sleep(Duration::from_millis(20 + self.rng.below(600)));
            let whole = self.always_whole || self.rng.below(3) == 0;
            let (kinds, began) = self.cut(whole)?;
            if !whole {
                self.rig.serve()?;
                // Workers go on over the restart.
                sleep(Duration::from_millis(100));
                recoveries.add(began.elapsed());
            }
            crew = at_work.stop()?;
            let at = |error: &dyn std::fmt::Display| format!("round {round}, cut {kinds:?}, {}: {error}", said(whole));
            if whole {
                self.rig.mount("").map_err(|error| at(&error))?;
                fs::metadata(self.rig.mountpoint())?;
                recoveries.add(began.elapsed());
                lost += crew.verify_after_power_cut().map_err(|error| at(&error))?;
            } else if let Some(failed) = crew.failed() {
                return Err(at(&format!("an application has seen it: {failed}")).into());
            } else {
                crew.verify().map_err(|error| at(&error))?;
            }
            let root = self.rig.mountpoint().display().to_string();
            tool::output(&mut self.rig.ebb(&["fsck", &root])).map_err(|error| at(&error))?;
        }
        // What the bucket holds is the same again.
        self.rig.umount()?;
        self.rig.drop_cache()?;
        self.rig.mount("")?;
        crew.verify().map_err(|error| format!("from the bucket alone: {error}"))?;
        self.rig.umount()?;
        let Lost { writes, sectors, lengths, names, names_lost } = self.lost;
        Ok(format!(
            "{:<14} {rounds} power cuts, {} operations acknowledged, {lost} that were not forced are lost, nothing else; the disk lost \
             {sectors} sectors and {lengths} lengths of {writes} writes, and {names_lost} of {names} names; recovery {recoveries}",
            self.rig.shape.name(),
            crew.done(),
        ))
    }

    /// Cuts the power of the node's machine, which has the mount too if `whole`, now and then again
    /// while it starts. Gives how, and when the last machine came back.
    fn cut(&mut self, whole: bool) -> Outcome<(Vec<Kind>, Instant)> {
        self.layer.switch_off();
        let layer = &mut self.layer;
        self.rig.kill_node_and(|| layer.take_away())?;
        if whole && !self.rig.shape.is_embedded() {
            self.rig.kill_mount()?;
        }
        let mut kinds = vec![self.come_back()?];
        while self.rng.below(4) == 0 {
            let mut starting = self.rig.begin()?;
            sleep(Duration::from_millis(self.rng.below(300)));
            self.layer.switch_off();
            starting.kill()?;
            self.layer.take_away()?;
            starting.wait()?;
            kinds.push(self.come_back()?);
        }
        Ok((kinds, Instant::now()))
    }

    fn come_back(&mut self) -> Outcome<Kind> {
        let (kind, lost) = self.layer.come_back(self.rng.next())?;
        self.lost += lost;
        self.boot.again(&mut self.rng)?;
        Ok(kind)
    }

    /// Leaves what is on the disk for somebody to look at; the rest goes.
    fn leave(self) -> Outcome<PathBuf> {
        let left = self.rig.dir.with_extension("left");
        self.layer.lay_out(&left)?;
        match fs::copy(self.rig.dir.join("node.log"), left.join("node.log")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(left),
        }
    }
}

fn said(whole: bool) -> &'static str {
    if whole { "mount and node" } else { "the node alone" }
}
