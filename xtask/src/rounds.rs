//! Rounds of harm to real mounts, shape by shape. A bug that is planted must be found: with it
//! nothing but a finding will do.

use crate::finding::Finding;
use crate::rig::Shape;
use crate::{Outcome, name_of, rng, tool};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub struct Rounds {
    /// With each shape.
    #[arg(long, default_value_t = 20)]
    pub rounds: u32,
    /// Which shapes to try; all, one after the other, if none is named.
    #[arg(long, alias = "only", value_enum, default_values_t = Shape::value_variants(), hide_default_value = true)]
    pub mount: Vec<Shape>,
    /// All that is random follows from it. Drawn from the clock if it is not given.
    #[arg(long, default_value_t = rng::seed(), hide_default_value = true)]
    pub seed: u64,
    /// Plant a bug into the node, which must be found.
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

    /// Says how it went on a shape, and fails if it is not as it should be; `leave` then says what
    /// is left to look at.
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
