use super::*;
use std::cell::Cell;
use tracing::span;

fn block(block: u64) -> Subject {
    Subject::Block { ino: Ino(7), block, version: Version(1) }
}

fn set(troubles: &Troubles, subject: Subject, what: Option<&str>, secs: i64) {
    troubles.set(
        subject,
        what.map(str::to_owned),
        Time::from_secs(secs),
        Duration::from_secs(secs as u64),
    );
}

fn list(troubles: &Troubles) -> Vec<(i64, String)> {
    troubles.list().into_iter().map(|trouble| (trouble.since.secs, trouble.what)).collect()
}

/// Situation: more blocks are damaged than are reported one by one, then the bucket is away.
/// Expectation: that is reported too, and the number of further blocks, since the first of these.
#[test]
fn many_of_one_kind_hide_no_other() {
    let troubles = Troubles::default();
    for at in 0..MAX_KEPT as u64 + 100 {
        set(&troubles, block(at), Some("damaged"), 10 + at as i64);
    }
    set(&troubles, "bucket writes".into(), Some("away"), 90_000);
    let told = list(&troubles);
    assert_eq!(told[0], (90_000, "away".into()));
    assert_eq!(told.len(), 1 + MAX_TOLD + 1);
    assert_eq!(
        told.last().unwrap(),
        &(10 + MAX_TOLD as i64, format!("and {} more of this kind", MAX_KEPT - MAX_TOLD))
    );

    troubles.end(block(1)..block(u64::MAX), |_, _| true);
    assert_eq!(list(&troubles), [(90_000, "away".into()), (10, "damaged".into())]);
    assert_eq!(troubles.blocks(Ino(7)), [(0, Version(1))]);
    assert_eq!(troubles.blocks(Ino(8)), []);
}

#[test]
fn a_trouble_is_as_old_as_its_first_report() {
    let troubles = Troubles::default();
    set(&troubles, "space".into(), Some("full"), 1);
    set(&troubles, "space".into(), Some("still full"), 3600);
    assert_eq!(list(&troubles), [(1, "still full".into())]);
    troubles.end(.., |_, reported| reported < Duration::from_secs(3600));
    assert!(troubles.has(&"space".into()), "it was last reported then");
    set(&troubles, "space".into(), None, 3601);
    assert!(troubles.is_empty());
}

/// Situation: one thing fails again and again, also with more failures than are kept. Danger: the
/// log fills the disk. Expectation: a line when each trouble begins, and one when it is over.
#[test]
fn the_log_has_a_line_for_each_begin_and_each_end() {
    tracing::subscriber::set_global_default(Lines).expect("no other test looks at the log");
    let troubles = Troubles::default();
    for _ in 0..100 {
        set(&troubles, block(0), Some("damaged"), 1);
    }
    assert_eq!(LINES.get(), 1);
    set(&troubles, block(0), None, 2);
    set(&troubles, block(0), None, 2);
    assert_eq!(LINES.get(), 2);
    for _ in 0..3 {
        (0..MAX_KEPT as u64 + 100).for_each(|at| set(&troubles, block(at), Some("damaged"), 3));
    }
    assert_eq!(LINES.get(), 2 + MAX_KEPT + 1, "the last says that the rest is not logged");
}

thread_local! {
    static LINES: Cell<usize> = const { Cell::new(0) };
}

/// Counts the lines that each thread logs.
struct Lines;

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        LINES.set(LINES.get() + 1);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
