//! `mount.ebb`: the binary under the name by which mount(8) calls it.

use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::{mount, umount};
use ebb_cli::Command;
use ebb_cli::config::ConfigError;
use ebb_cli::helper::{self, Asked, HelperError};
use ebb_cli::places::RunDir;
use ebb_fuse::{Mount, MountOptions, RemountError};
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

/// Exit statuses of mount(8).
const USAGE: u8 = 1;
const FAILURE: u8 = 32;

pub fn run(name: &str) -> ExitCode {
    let failure = match perform() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Refusal::Text(text)) => {
            // If the terminal has gone the text has no reader.
            text.print().ok();
            return if text.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
        Err(Refusal::Failure(failure)) => failure,
    };
    output::fail(name, &failure);
    ExitCode::from(if let Failure::Usage(_) = failure { USAGE } else { FAILURE })
}

/// Why nothing was done.
enum Refusal {
    /// Flags that cannot be, or a question about them.
    Text(clap::Error),
    Failure(Failure),
}

fn perform() -> Result<(), Refusal> {
    let asked =
        helper::parse(std::env::args_os(), |option| MountOptions::default().apply(option).is_ok())?;
    let (args, fake) = match asked {
        Asked::Remount { dir, options } => return Ok(remount(&dir, &options)?),
        Asked::Mount { args } => (args, false),
        Asked::Fake { args } => (args, true),
    };
    let cli = ebb_cli::parse(args)?;
    output::warn_deprecated(&cli.deprecated);
    let Command::Mount(args) = cli.command else {
        unreachable!("a helper asks for nothing but a mount")
    };
    // Callers of a mount helper treat any output as an error.
    if fake {
        Ok(mount::check(args)?)
    } else {
        Ok(mount::run(args, std::io::stderr().is_terminal())?)
    }
}

fn remount(dir: &Path, options: &str) -> Result<(), Failure> {
    let about = |error: &dyn std::fmt::Display| Failure::of(dir.shown(), error);
    let point = umount::mountpoint(dir).map_err(|error| about(&error))?;
    let run_dir = RunDir::of_user()
        .map_err(|error| Failure::of("the run directory cannot be used", error))?;
    let record = run_dir.read(&point).map_err(|error| about(&error))?;
    let writable = options.split(',').rfind(|option| matches!(*option, "ro" | "rw")) == Some("rw");
    if writable && record.is_some_and(|record| record.read_only) {
        return Err(about(&"its node takes no changes: unmount it, and mount it without ro"));
    }
    Mount::remount(&point, options).map_err(|error| match error {
        RemountError::Options(_) => Failure::Usage(error.to_string()),
        error => about(&error),
    })
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal::Failure(failure)
    }
}

impl From<HelperError> for Refusal {
    fn from(error: HelperError) -> Refusal {
        match error {
            HelperError::Usage(text) => Refusal::Text(text),
            error @ HelperError::Misplaced(_) => {
                Refusal::Failure(Failure::Usage(error.to_string()))
            }
        }
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Refusal {
        match error {
            ConfigError::Usage(text) => Refusal::Text(text),
            error @ ConfigError::File { .. } => Refusal::Failure(Failure::Usage(error.to_string())),
        }
    }
}
