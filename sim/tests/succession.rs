//! Processes that die and are succeeded, while their users go on.

use ebb_sim::volume::{Amnesia, Broken, nameless, run_succession};

const SEEDS: u64 = 120;

/// A planted mistake shows in few of them.
const PLANTED_SEEDS: u64 = 1000;

/// Every change is made once, nothing that was answered is lost, and what is open stays, whenever
/// the process dies. The same seed runs in the same way.
#[test]
fn users_do_not_notice_that_a_process_dies() {
    let mut operations = 0;
    for seed in 1..=SEEDS {
        let report = run_succession(seed, None).unwrap_or_else(|broken| panic!("{broken}"));
        operations += report.operations;
        if seed % 20 == 0 {
            assert_eq!(run_succession(seed, None).map_err(|broken| broken.to_string()), Ok(report));
        }
    }
    println!("{operations} operations");
}

fn finds(amnesia: Amnesia) {
    let broken = (1..=PLANTED_SEEDS).find_map(|seed| run_succession(seed, Some(amnesia)).err());
    let Some(Broken { seed, what, .. }) = broken else { panic!("{amnesia:?} breaks none of {PLANTED_SEEDS} seeds") };
    println!("{amnesia:?} is found by seed {seed}: {what}");
}

#[test]
fn finds_a_successor_that_makes_changes_twice() {
    finds(Amnesia::Requests);
}

#[test]
fn finds_a_successor_that_forgets_what_is_open() {
    finds(Amnesia::Opens);
}

/// Danger: the successor takes what nobody told it of for closed, and lets it go before the request
/// that has made it comes again.
#[test]
fn a_file_without_a_name_waits_for_who_asked_for_it() {
    for seed in 1..=10 {
        let attr = nameless(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert_eq!(attr.nlink, 0);
    }
}
