//! The course of a run, and the details needed to understand one that failed.

use super::rig::OTHERS;
use crate::oracle::{Checker, Event, Permitted, Tree, Verdict, describe};
use crate::{Failure, World};
use std::time::Duration;
use thiserror::Error;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    pub trace_hash: u64,
    pub operations: usize,
    pub scenario: String,
    /// The history was too ambiguous to be checked to its end.
    pub undecided: bool,
}

/// A run that broke a promise.
#[derive(Clone, Debug, Error)]
#[error(
    "seed {seed}: {what}\n\nscenario: {scenario}\nrepeat with: cargo xtask sim --seed \
     {seed}\n\nhistory:\n{history}\nlast events:\n{last_events}"
)]
pub struct Broken {
    pub seed: u64,
    pub what: String,
    pub scenario: String,
    pub history: String,
    pub last_events: String,
}

/// Judges a run that has come to its end, or not.
pub fn judge(
    world: &World,
    seed: u64,
    scenario: String,
    ended: Result<Result<(), String>, Failure>,
    events: &[(Duration, Event)],
    initial: Tree,
    permitted: Permitted,
) -> Result<Report, Broken> {
    let operations =
        events.iter().filter(|(_, event)| matches!(event, Event::Return { .. })).count();
    // The answers to clients say more than the way the run ended, so they are checked first.
    let mut objects = world.bucket().versions_of_files();
    // Other programs write these.
    objects.retain(|object| !object.key.starts_with(&format!("{OTHERS}/")));
    let verdict = Checker::new(initial, permitted, events).with_objects(&objects).check();
    let undecided = matches!(verdict, Err(Verdict::Undecided { .. }));
    let what = match (verdict, ended) {
        (Err(verdict @ (Verdict::Impossible { .. } | Verdict::Mixed { .. })), _) => {
            verdict.to_string()
        }
        (_, Err(failure)) => failure.stuck.to_string(),
        (_, Ok(Err(what))) => what,
        (_, Ok(Ok(()))) => {
            return Ok(Report { trace_hash: world.trace_hash(), operations, scenario, undecided });
        }
    };
    Err(Broken {
        seed,
        what,
        scenario,
        history: describe(events),
        last_events: world.last_events(),
    })
}
