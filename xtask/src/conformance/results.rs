//! Results of a suite, case by case.

use super::ground::DISK;
use crate::{Outcome, tool};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::{fmt, fs};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Passed,
    Skipped,
    /// With the suite's message, which can be empty.
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

/// Prints a row per place and every failure, and writes all cases to a file.
fn publish(suite: &str, results: &[(String, Results)]) -> Outcome<()> {
    println!("{:<14} {:>7} {:>7} {:>8} {:>8}", "mount", "passed", "failed", "skipped", "seconds");
    for (name, result) in results {
        let failed = result.failed().count();
        println!(
            "{name:<14} {:>7} {failed:>7} {:>8} {:>8.1}",
            result.passed(),
            result.skipped(),
            result.seconds
        );
    }
    for (name, result) in results {
        for (case, why) in result.failed() {
            println!("FAILED on {name}: {case}{}{why}", if why.is_empty() { "" } else { ": " });
        }
    }
    let report: Value = results
        .iter()
        .map(|(name, result)| {
            (name.clone(), json!({ "seconds": result.seconds, "cases": verdicts(result) }))
        })
        .collect();
    let file = tool::conformance()?.join(format!("{suite}.json"));
    fs::write(&file, format!("{report:#}\n"))?;
    println!("every case: {}", file.display());
    Ok(())
}

/// Publishes the results, and fails if a mount fails a case, or skips one, that the disk passes.
/// Without the disk, only conformance/exclusions.toml excuses a failure.
pub fn judge(suite: &str, results: &[(String, Results)]) -> Outcome<()> {
    publish(suite, results)?;
    let excluded = excluded(suite)?;
    let disk = results.iter().find(|(name, _)| name == DISK).map(|(_, disk)| disk);
    let mut fallen = Vec::new();
    for (name, mount) in results.iter().filter(|(name, _)| name != DISK) {
        let unexcused = unexcused(mount, disk, &excluded);
        for case in &unexcused {
            println!(
                "NOT EXCUSED on {name}: {case}: {}",
                mount.cases.get(*case).map_or("missing".into(), Verdict::to_string)
            );
        }
        if !unexcused.is_empty() {
            fallen.push(name.as_str());
        }
    }
    if fallen.is_empty() {
        Ok(())
    } else {
        Err(format!("{suite} is not what it should be on {}", fallen.join(", ")).into())
    }
}

/// Cases that may be skipped although the disk passes them.
fn excluded(suite: &str) -> Outcome<BTreeSet<String>> {
    let reasons: BTreeMap<String, BTreeMap<String, String>> = toml::from_str(EXCLUSIONS)?;
    let reasons = reasons.get(suite).cloned().unwrap_or_default();
    match reasons.iter().find(|(_, reason)| reason.trim().is_empty()) {
        Some((case, _)) => Err(format!("{case} is excluded for no reason").into()),
        None => Ok(reasons.into_keys().collect()),
    }
}

const EXCLUSIONS: &str = include_str!("../../../conformance/exclusions.toml");

fn unexcused<'a>(
    mount: &'a Results,
    disk: Option<&'a Results>,
    excluded: &BTreeSet<String>,
) -> Vec<&'a str> {
    let on_disk = |case: &str| disk.and_then(|disk| disk.cases.get(case));
    let is_unexcused = |case: &&str| match mount.cases.get(*case) {
        Some(Verdict::Passed) => false,
        Some(Verdict::Failed(_)) => !matches!(on_disk(case), Some(Verdict::Failed(_))),
        Some(Verdict::Skipped) | None => {
            !excluded.contains(*case)
                && !matches!(on_disk(case), Some(Verdict::Failed(_) | Verdict::Skipped))
        }
    };
    let known: BTreeSet<&str> = mount
        .cases
        .keys()
        .chain(disk.iter().flat_map(|disk| disk.cases.keys()))
        .map(String::as_str)
        .collect();
    known.into_iter().filter(is_unexcused).collect()
}

fn verdicts(result: &Results) -> BTreeMap<&str, &str> {
    let word = |verdict: &Verdict| match verdict {
        Verdict::Passed => "ok",
        Verdict::Skipped => "skipped",
        Verdict::Failed(_) => "failed",
    };
    result.cases.iter().map(|(case, verdict)| (case.as_str(), word(verdict))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results<const N: usize>(cases: [(&str, Verdict); N]) -> Results {
        Results {
            cases: cases.map(|(case, verdict)| (case.to_owned(), verdict)).into(),
            seconds: 0.0,
        }
    }

    fn failed() -> Verdict {
        Verdict::Failed(String::new())
    }

    /// Situation: a suite on the disk and on a mount. Danger: a case that a mount skips counts as
    /// passed. Expectation: the mount must pass each case that the disk passes, and only those.
    #[test]
    fn what_the_disk_passes_is_neither_skipped_nor_missing() {
        use Verdict::{Passed, Skipped};
        let disk = results([
            ("both", Passed),
            ("skipped", Passed),
            ("gone", Passed),
            ("broken", Passed),
            ("odd", Skipped),
            ("bad", failed()),
        ]);
        let mount = results([
            ("both", Passed),
            ("skipped", Skipped),
            ("broken", failed()),
            ("odd", failed()),
            ("bad", failed()),
        ]);
        let none = BTreeSet::new();
        assert_eq!(unexcused(&mount, Some(&disk), &none), ["broken", "gone", "odd", "skipped"]);
        let alike = results([
            ("both", Passed),
            ("skipped", Passed),
            ("gone", Passed),
            ("broken", Passed),
            ("odd", Skipped),
            ("bad", Skipped),
        ]);
        assert!(unexcused(&alike, Some(&disk), &none).is_empty());
    }

    /// Situation: an excluded case. Danger: the exclusion hides a failure. Expectation: the case
    /// may be skipped, but must not fail.
    #[test]
    fn what_is_excluded_may_be_left_out_and_may_not_fail() {
        let disk =
            results([("a", Verdict::Passed), ("b", Verdict::Passed), ("c", Verdict::Passed)]);
        let mount = results([("a", Verdict::Skipped), ("b", failed())]);
        let excluded = ["a", "b", "c"].map(String::from).into();
        assert_eq!(unexcused(&mount, Some(&disk), &excluded), ["b"]);
    }

    /// Situation: a run without the disk. Danger: without a reference everything passes.
    /// Expectation: each case passes or is excluded.
    #[test]
    fn without_the_disk_all_is_to_be_passed() {
        let mount = results([("a", Verdict::Passed), ("b", Verdict::Skipped), ("c", failed())]);
        assert_eq!(unexcused(&mount, None, &BTreeSet::new()), ["b", "c"]);
        assert_eq!(unexcused(&mount, None, &["b".to_owned()].into()), ["c"]);
    }

    #[test]
    fn exclusions_have_reasons() {
        assert!(excluded("pjdfstest").unwrap().contains("link::link_count_max"));
        assert!(excluded("fsx").unwrap().is_empty());
    }
}
