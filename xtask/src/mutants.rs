//! Bugs planted into the product, each switched on by itself in one build: which check finds it,
//! and after how many seeds or seconds. A bug that nothing finds lacks a check.

use crate::{Outcome, tool};
use clap::Args;
use ebb_model::{Layer, Planted, VARIABLE};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Wanted {
    /// Which bugs; all if none is named.
    #[arg(value_parser = parse)]
    bugs: Vec<Planted>,
    /// Seeds of the random simulation for each bug.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// Leave out tests on real mounts.
    #[arg(long)]
    no_mounts: bool,
}

fn parse(name: &str) -> Result<Planted, String> {
    Planted::named(name).ok_or_else(|| {
        let names: Vec<String> = Planted::ALL.iter().map(|(bug, _)| format!("{bug:?}")).collect();
        format!("one of {}", names.join(", "))
    })
}

/// A binary of tests, in the directory of its package.
struct Suite {
    name: String,
    binary: PathBuf,
    dir: PathBuf,
}

/// What found a bug.
struct Found {
    check: String,
    effort: String,
}

/// A share of the bugs that must be found.
const REQUIRED_PERCENT: usize = 95;

/// A check that takes longer with a bug than this is stuck because of it.
const PATIENCE: Duration = Duration::from_secs(400);

const POLL: Duration = Duration::from_millis(50);

pub fn run(wanted: &Wanted) -> Outcome<()> {
    let mut suites = Suites::default();
    let scratch = crate::scratch::Scratch::new("mutants")?;
    let output = scratch.join("output");
    let chosen = |bug: &Planted| wanted.bugs.is_empty() || wanted.bugs.contains(bug);
    let bugs: Vec<(Planted, Layer)> =
        Planted::ALL.iter().copied().filter(|(bug, _)| chosen(bug)).collect();
    println!("{:<24} {:<7} found by", "bug", "layer");
    let mut missed = Vec::new();
    for (bug, layer) in &bugs {
        let found = find(*bug, *layer, &mut suites, wanted, &output)?;
        let (bug, layer) = (format!("{bug:?}"), format!("{layer:?}").to_lowercase());
        match found {
            Some(Found { check, effort }) => println!("{bug:<24} {layer:<7} {check}, {effort}"),
            None => {
                println!("{bug:<24} {layer:<7} not found");
                missed.push(bug);
            }
        }
    }
    let found = bugs.len() - missed.len();
    println!("{found} of {} found", bugs.len());
    match found * 100 >= bugs.len() * REQUIRED_PERCENT {
        true => Ok(()),
        false => Err(format!("nothing finds {}", missed.join(", ")).into()),
    }
}

/// The random simulation comes first where it runs the layer, then the tests of the layer itself,
/// then all named scenarios.
fn find(
    bug: Planted,
    layer: Layer,
    suites: &mut Suites,
    wanted: &Wanted,
    output: &Path,
) -> Outcome<Option<Found>> {
    let is_simulated =
        matches!(layer, Layer::Core | Layer::Node | Layer::Client | Layer::Replication);
    let seeds = wanted.seeds.to_string();
    let mut simulation = vec!["sim", "--until-broken", "--seeds", &seeds];
    if layer == Layer::Replication {
        simulation.extend(["--cluster", "3"]);
    }
    if is_simulated && let Some(found) = command(bug, "simulation", &simulation, output)? {
        return Ok(Some(found));
    }
    let packages: &[&'static str] = match layer {
        Layer::Core => &["ebb-core", "ebb-sim"],
        Layer::Consensus => &["ebb-consensus"],
        Layer::Replication => &["ebb-sim"],
        Layer::Node => &["ebb-journal", "ebb-store", "ebb-node", "ebb-sim"],
        Layer::Client => &["ebb-client", "ebb-sim"],
        Layer::Bucket => &["ebb-bucket"],
        Layer::Fuse if wanted.no_mounts => &["ebb-fuse"],
        Layer::Fuse => &["ebb-fuse", "ebb"],
    };
    for package in packages {
        for suite in suites.of(package)? {
            if let Some(found) = test(bug, suite, output)? {
                return Ok(Some(found));
            }
        }
    }
    if layer == Layer::Bucket {
        return command(bug, "powercut-bucket", &["powercut-bucket"], output);
    }
    Ok(None)
}

/// A command of this program.
fn command(bug: Planted, name: &str, args: &[&str], output: &Path) -> Outcome<Option<Found>> {
    let mut command = Command::new(std::env::current_exe()?);
    let run = perform(command.args(args).env(VARIABLE, format!("{bug:?}")), output)?;
    let Ended { text, ended, took } = run;
    if ended == Some(true) {
        return Ok(None);
    }
    let broken = text.lines().find_map(|line| {
        let number = line.strip_prefix("seed ")?;
        number.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    });
    let check = match ended {
        Some(_) => name.to_owned(),
        None => format!("{name}, which does not end"),
    };
    let seed = broken.map_or(String::new(), |seed| format!("seed {seed}, "));
    Ok(Some(Found { check, effort: format!("{seed}{took:.1} s") }))
}

fn test(bug: Planted, suite: &Suite, output: &Path) -> Outcome<Option<Found>> {
    let tests = |arguments: &[&str], planted: Option<Planted>| {
        let mut command = Command::new(&suite.binary);
        command.args(arguments).current_dir(&suite.dir);
        if let Some(bug) = planted {
            command.env(VARIABLE, format!("{bug:?}"));
        }
        perform(&mut command, output)
    };
    let Ended { text, ended, took } = tests(&[], Some(bug))?;
    if ended == Some(true) {
        return Ok(None);
    }
    let failed = text.lines().find_map(|line| {
        line.strip_prefix("test ")?.split_once(" ... FAILED").map(|(name, _)| name.to_owned())
    });
    let Some(failed) = failed else {
        let check = format!("{}, which does not end", suite.name);
        return Ok(Some(Found { check, effort: format!("{took:.1} s") }));
    };
    // Without the bug it must pass, or it has found something else.
    match tests(&["--exact", &failed], None)?.ended {
        Some(true) => Ok(Some(Found {
            check: format!("{} {failed}", suite.name),
            effort: format!("{took:.1} s"),
        })),
        _ => Err(format!("{} {failed} fails without a bug", suite.name).into()),
    }
}

struct Ended {
    text: String,
    /// Whether it succeeded; `None` if it had to be killed.
    ended: Option<bool>,
    took: f64,
}

fn perform(command: &mut Command, output: &Path) -> Outcome<Ended> {
    let file = File::create(output)?;
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    let ended = wait(&mut child, began)?;
    let mut text = Vec::new();
    File::open(output)?.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Ended { text, ended, took: began.elapsed().as_secs_f64() })
}

fn wait(child: &mut Child, began: Instant) -> Outcome<Option<bool>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// The tests of packages, each built when it is first asked for.
#[derive(Default)]
struct Suites {
    built: BTreeMap<&'static str, Vec<Suite>>,
}

impl Suites {
    fn of(&mut self, package: &'static str) -> Outcome<&[Suite]> {
        if !self.built.contains_key(package) {
            self.built.insert(package, build(package)?);
        }
        Ok(&self.built[package])
    }
}

/// Builds them with what the workspace has switched on, and gives the unit tests first.
fn build(package: &str) -> Outcome<Vec<Suite>> {
    let metadata = tool::metadata()?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let of_package = packages.filter(|other| other["name"] == package);
    let targets = of_package.flat_map(|package| package["targets"].as_array()).flatten();
    let tests = targets.filter(|target| target["kind"][0] == "test");
    let names = tests.filter_map(|target| target["name"].as_str());
    let mut command = Command::new(tool::cargo());
    command.args(["test", "--workspace", "--locked", "--no-run", "--message-format=json", "--lib"]);
    command.args(names.flat_map(|name| ["--test", name]));
    let built = tool::output(command.current_dir(tool::root()))?;
    let messages = built.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let suite = |message: Value| {
        let binary = PathBuf::from(message["executable"].as_str()?);
        let dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).ok()?;
        let is_of_package = manifest.lines().any(|line| line == format!("name = \"{package}\""));
        let (target, kind) = (&message["target"]["name"], &message["target"]["kind"][0]);
        let name = format!("{package}/{}", target.as_str()?);
        is_of_package.then_some((kind == "test", Suite { name, binary, dir }))
    };
    let mut suites: Vec<(bool, Suite)> = messages.filter_map(suite).collect();
    suites.sort_by(|(a, one), (b, other)| (a, &one.name).cmp(&(b, &other.name)));
    Ok(suites.into_iter().map(|(_, suite)| suite).collect())
}
