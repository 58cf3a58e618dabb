//! Bugs that are planted into replication, each of which breaks a seed.

use ebb_model::{Planted, planted_during};
use ebb_sim::volume::{Broken, run_replicated};
use std::panic::catch_unwind;

const WITHIN_SEEDS: u64 = 500;

fn finds(bug: Planted) {
    let first = (0..WITHIN_SEEDS).find_map(|seed| {
        let run = || planted_during(Some(bug), || run_replicated(seed, 3));
        // The world asserts what it can tell by itself.
        match catch_unwind(run) {
            Ok(outcome) => outcome.err().map(|Broken { what, .. }| (seed, what)),
            Err(_) => Some((seed, "the world stops".into())),
        }
    });
    let Some((seed, what)) = first else { panic!("{bug:?} breaks none of {WITHIN_SEEDS} seeds") };
    println!("{bug:?} is found by seed {seed}: {what}");
    if let Err(broken) = run_replicated(seed, 3) {
        panic!("without the bug seed {seed} breaks too: {broken}");
    }
}

#[test]
fn finds_an_answer_before_the_commit() {
    finds(Planted::AnsweredBeforeCommit);
}

#[test]
fn finds_a_deposed_leader_that_answers() {
    finds(Planted::DeposedLeaderAnswers);
}

#[test]
fn finds_bytes_that_were_not_brought() {
    finds(Planted::BroughtNothing);
}

#[test]
fn finds_unforced_writes_that_the_next_leader_does_not_know() {
    finds(Planted::UnforcedNotKnown);
}

#[test]
fn finds_effects_that_are_performed_again() {
    finds(Planted::PastEffectsPerformed);
}

#[test]
fn finds_a_void_entry_that_is_followed() {
    finds(Planted::VoidEntryFollowed);
}

#[test]
fn finds_a_holder_that_hides_its_doubts() {
    finds(Planted::DoubtsNotTold);
}
