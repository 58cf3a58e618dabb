//! The simulation finds bugs: each of these is planted into the node and must break a seed
//! among the first few hundred, while the node as it is keeps that seed whole.

use ebb_model::Planted;
use ebb_sim::volume::{Broken, run, run_planted};
use std::panic::catch_unwind;

const WITHIN_SEEDS: u64 = 500;

fn finds(bug: Planted) {
    let first = (1..=WITHIN_SEEDS).find_map(|seed| {
        // The world asserts what it can tell by itself, such as checksums of objects.
        match catch_unwind(|| run_planted(seed, bug)) {
            Ok(outcome) => outcome.err().map(|Broken { what, .. }| (seed, what)),
            Err(_) => Some((seed, "the world stops".into())),
        }
    });
    let Some((seed, what)) = first else { panic!("{bug:?} breaks none of {WITHIN_SEEDS} seeds") };
    println!("{bug:?} is found by seed {seed}: {what}");
    if let Err(broken) = run(seed) {
        panic!("the node breaks seed {seed} without the bug: {broken}");
    }
}

#[test]
fn finds_a_skipped_fsync() {
    finds(Planted::SkippedFsync);
}

#[test]
fn finds_a_record_that_is_written_too_late() {
    finds(Planted::LateRecord);
}

#[test]
fn finds_a_lost_session_entry() {
    finds(Planted::LostSession);
}

#[test]
fn finds_a_flush_that_cleans_too_early() {
    finds(Planted::EarlyClean);
}

#[test]
fn finds_a_write_that_keeps_the_version() {
    finds(Planted::VersionKept);
}

#[test]
fn finds_a_write_that_keeps_mtime() {
    finds(Planted::MtimeKept);
}

#[test]
fn finds_a_rename_that_keeps_ctime() {
    finds(Planted::CtimeKept);
}

#[test]
fn finds_an_entry_that_is_left_out_between_pages() {
    finds(Planted::CookieSkipped);
}

#[test]
fn finds_a_commit_interval_without_a_force() {
    finds(Planted::IntervalForgotten);
}
