use crate::{ports, run, temporary};
use ebb_ports::Ports;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[test]
fn wall_time_is_the_machines() {
    let Ports { clock, .. } = ports(&temporary());
    let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    let wall = clock.wall();
    let after = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    let wall = Duration::new(wall.secs as u64, wall.nanos);
    assert!(before <= wall && wall <= after, "{before:?} {wall:?} {after:?}");
}

#[test]
fn a_sleep_is_never_too_short() {
    run(async {
        let Ports { clock, .. } = ports(&temporary());
        for ms in [0, 1, 25, 1100] {
            let begin = clock.monotonic();
            clock.sleep(Duration::from_millis(ms)).await;
            let took = clock.monotonic() - begin;
            assert!(took >= Duration::from_millis(ms), "{took:?} for {ms} ms");
        }
    });
}

#[test]
fn tasks_run_beside_their_starter() {
    run(async {
        let Ports { clock, spawn, .. } = ports(&temporary());
        let ran = Rc::new(Cell::new(false));
        let mark = Rc::clone(&ran);
        spawn.spawn(Box::pin(async move { mark.set(true) }));
        assert!(!ran.get(), "a task does not run before its starter waits");
        clock.sleep(Duration::from_millis(5)).await;
        assert!(ran.get());
    });
}

#[test]
fn numbers_do_not_repeat() {
    let Ports { entropy, .. } = ports(&temporary());
    let numbers: BTreeSet<u64> = (0..1000).map(|_| entropy.next_u64()).collect();
    assert_eq!(numbers.len(), 1000);
}
