//! Programs that users run on a file system: each does its work, and its results are checked again
//! when only the bucket's state is left.

mod builds;
mod copies;
mod git;
mod postgres;
mod redis;
mod sqlite;

use super::{Ground, Mounts, Results, Verdict, ground, results};
use crate::scratch::Scratch;
use crate::{Outcome, name_of, tool};
use clap::ValueEnum;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// Transactions with every journal mode, with writers killed in the middle.
    Sqlite,
    /// pgbench while the server is killed.
    Postgres,
    /// Appends to a log that is synced before every reply, while the server is killed.
    Redis,
    /// Clone, work, gc and fsck of a large repository.
    Git,
    /// tar, rsync and cp of a tree with all inode features.
    Copies,
    /// Unpacking and building libffi and LuaJIT.
    C,
    /// Building a crate with its dependencies.
    Rust,
}

impl Program {
    /// Installs the program's packages and prepares its input on this machine's disk.
    fn prepare(self, reference: &Path) -> Outcome<()> {
        match self {
            Program::Sqlite => sqlite::prepare(),
            Program::Postgres => postgres::prepare(),
            Program::Redis => redis::prepare(),
            Program::Git => git::prepare(reference),
            Program::Copies => copies::prepare(reference),
            Program::C => builds::prepare_c(reference),
            Program::Rust => builds::prepare_rust(reference),
        }
    }

    fn work(self, reference: &Path, dir: &Path, kills: u32) -> Outcome<()> {
        match self {
            Program::Sqlite => sqlite::work(dir, kills),
            Program::Postgres => postgres::work(dir, kills),
            Program::Redis => redis::work(dir, kills),
            Program::Git => git::work(reference, dir),
            Program::Copies => copies::work(reference, dir),
            Program::C => builds::work_c(reference, dir),
            Program::Rust => builds::work_rust(reference, dir),
        }
    }

    fn look_again(self, reference: &Path, dir: &Path) -> Outcome<()> {
        match self {
            Program::Sqlite => sqlite::look_again(dir),
            Program::Postgres => postgres::look_again(dir),
            Program::Redis => redis::look_again(dir),
            Program::Git => git::look_again(dir),
            Program::Copies => copies::look_again(reference, dir),
            Program::C => builds::look_again_c(dir),
            Program::Rust => builds::look_again_rust(dir),
        }
    }
}

pub fn run(on: &Mounts, programs: &[Program], kills: u32) -> Outcome<()> {
    let place = Scratch::beside_suites("reference")?;
    prepare(programs, &place)?;
    results::judge(
        "programs",
        &ground::everywhere(on, &[], |ground| all(programs, &place, ground, kills))?,
    )
}

fn prepare(programs: &[Program], place: &Path) -> Outcome<()> {
    for program in programs {
        let reference = place.join(name_of(*program));
        fs::create_dir_all(&reference)?;
        program.prepare(&reference)?;
    }
    Ok(())
}

/// Runs all programs; the finding of one does not stop the others.
fn all(programs: &[Program], place: &Path, ground: &mut Ground, kills: u32) -> Outcome<Results> {
    let began = Instant::now();
    let mut results = Results::default();
    for program in programs {
        let (name, began) = (name_of(*program), Instant::now());
        let dir = ground.dir.join(&name);
        fs::create_dir(&dir)?;
        let verdict = verdict(program.work(&place.join(&name), &dir, kills));
        println!("{}: {name} in {:.1} s: {verdict}", ground.name, began.elapsed().as_secs_f64());
        results.cases.insert(name, verdict);
    }
    ground.forget_all_but_the_bucket()?;
    for program in programs {
        let name = name_of(*program);
        if results.cases.get(&name) == Some(&Verdict::Passed) {
            let verdict = verdict(program.look_again(&place.join(&name), &ground.dir.join(&name)));
            results.cases.insert(format!("{name}, looked at again"), verdict);
        }
    }
    results.seconds = began.elapsed().as_secs_f64();
    Ok(results)
}

fn verdict(outcome: Outcome<()>) -> Verdict {
    match outcome {
        Ok(()) => Verdict::Passed,
        Err(error) => Verdict::Failed(error.to_string()),
    }
}

/// Runs a shell script in `dir` with `$1`, `$2` …; stops at the first failing command.
fn shell(dir: &Path, lines: &str, arguments: &[&Path]) -> Outcome<String> {
    tool::output(
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", lines, "bash"])
            .args(arguments)
            .current_dir(dir),
    )
}
