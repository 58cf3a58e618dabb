//! Rounds of faults on real mounts, one shape after the other. With a planted bug, a run passes
//! only if it ends in a finding.

use crate::finding::Finding;
use crate::rig::Shape;
use crate::{Outcome, name_of, rng, tool};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub struct Rounds {
    /// Rounds per shape.
    #[arg(long, default_value_t = 20)]
    pub rounds: u32,
    /// Shapes to test; all by default.
    #[arg(long, alias = "only", value_enum, default_values_t = Shape::value_variants(), hide_default_value = true)]
    pub mount: Vec<Shape>,
    /// The seed of all random choices. The default is drawn from the clock.
    #[arg(long, default_value_t = rng::seed(), hide_default_value = true)]
    pub seed: u64,
    /// Plant a bug into the node, which the run must find.
    #[arg(long, conflicts_with = "release")]
    pub planted: bool,
    #[arg(long)]
    release: bool,
}

impl Rounds {
    pub fn build(&self) -> Outcome<PathBuf> {
        if self.planted {
            tool::build_planted()
        } else {
            tool::build(&["ebb", "ebb-s3-server"], self.release)
        }
    }

    pub fn announce(&self, harm: &str) {
        let shapes: Vec<String> = self.mount.iter().map(|shape| name_of(*shape)).collect();
        println!("{} {harm} each of {}, seed {}", self.rounds, shapes.join(", "), self.seed);
    }

    /// Prints the result of a shape and returns an error unless it is as expected; `leave` then
    /// returns the files to inspect.
    pub fn judge(
        &self,
        shape: Shape,
        outcome: Outcome<String>,
        leave: impl FnOnce() -> Outcome<PathBuf>,
    ) -> Outcome<()> {
        let name = name_of(shape);
        match outcome {
            Ok(_) if self.planted => {
                return Err(format!("{name}: the planted bug is not found").into());
            }
            Ok(row) => println!("{name:<14} {row}"),
            Err(error) if self.planted && error.is::<Finding>() => {
                println!("{name:<14} the planted bug is found: {error}")
            }
            Err(error) => {
                let left = leave()?;
                return Err(format!(
                    "{name}, seed {}: {error}\nleft to look at: {}",
                    self.seed,
                    left.display()
                )
                .into());
            }
        }
        Ok(())
    }
}
