//! What a suite found, case by case.

use super::ground::DISK;
use crate::{Outcome, tool};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::{fmt, fs};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Passed,
    Skipped,
    /// With what the suite says of it, which may be nothing.
    Failed(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Passed => f.write_str("passed"),
            Verdict::Skipped => f.write_str("skipped"),
            Verdict::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

#[derive(Default)]
pub struct Results {
    pub cases: BTreeMap<String, Verdict>,
    pub seconds: f64,
}

impl Results {
    pub fn passed(&self) -> usize {
        self.cases.values().filter(|verdict| **verdict == Verdict::Passed).count()
    }

    fn skipped(&self) -> usize {
        self.cases.values().filter(|verdict| **verdict == Verdict::Skipped).count()
    }

    pub fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.cases.iter().filter_map(|(case, verdict)| match verdict {
            Verdict::Failed(why) => Some((case.as_str(), why.as_str())),
            Verdict::Passed | Verdict::Skipped => None,
        })
    }
}

/// Prints a row for each ground and every failure, and keeps all cases in a file.
pub fn publish(suite: &str, results: &[(String, Results)]) -> Outcome<()> {
    println!("{:<14} {:>7} {:>7} {:>8} {:>8}", "mount", "passed", "failed", "skipped", "seconds");
    for (name, result) in results {
        let failed = result.failed().count();
        println!("{name:<14} {:>7} {failed:>7} {:>8} {:>8.1}", result.passed(), result.skipped(), result.seconds);
    }
    for (name, result) in results {
        for (case, why) in result.failed() {
            println!("FAILED on {name}: {case}{}{why}", if why.is_empty() { "" } else { ": " });
        }
    }
    let report: Value =
        results.iter().map(|(name, result)| (name.clone(), json!({ "seconds": result.seconds, "cases": verdicts(result) }))).collect();
    let file = tool::conformance()?.join(format!("{suite}.json"));
    fs::write(&file, format!("{report:#}\n"))?;
    println!("every case: {}", file.display());
    Ok(())
}

/// Publishes, and fails if a mount fails in what the disk does not fail in.
pub fn judge(suite: &str, results: &[(String, Results)]) -> Outcome<()> {
    publish(suite, results)?;
    let disk = results.iter().find(|(name, _)| name == DISK).map(|(_, disk)| disk);
    let excused = |case: &str| disk.is_some_and(|disk| matches!(disk.cases.get(case), Some(Verdict::Failed(_))));
    let mounts = results.iter().filter(|(name, _)| name != DISK);
    let fallen: Vec<_> =
        mounts.filter(|(_, result)| result.failed().any(|(case, _)| !excused(case))).map(|(name, _)| name.as_str()).collect();
    if fallen.is_empty() { Ok(()) } else { Err(format!("{suite} fails on {}", fallen.join(", ")).into()) }
}

fn verdicts(result: &Results) -> BTreeMap<&str, &str> {
    let word = |verdict: &Verdict| match verdict {
        Verdict::Passed => "ok",
        Verdict::Skipped => "skipped",
        Verdict::Failed(_) => "failed",
    };
    result.cases.iter().map(|(case, verdict)| (case.as_str(), word(verdict))).collect()
}
