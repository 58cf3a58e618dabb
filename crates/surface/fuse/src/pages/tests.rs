use super::*;

const FILE: Ino = Ino(7);

fn found(pages: &Pages, version: u64) -> Option<Found> {
    Some(Found { version: Version(version), era: pages.era() })
}

#[test]
fn pages_of_unchanged_files_are_kept() {
    let pages = Pages::default();
    assert!(!pages.opened(FILE, Handle(1), found(&pages, 5)), "nobody knows what the kernel has");
    pages.read(FILE, Handle(1));
    assert!(pages.opened(FILE, Handle(2), found(&pages, 5)));
    assert!(!pages.opened(FILE, Handle(3), found(&pages, 6)));
    assert!(!pages.opened(FILE, Handle(4), None));
    pages.read(FILE, Handle(3));
    assert!(pages.opened(FILE, Handle(5), found(&pages, 6)));
}

/// Two processes open a changed file. The second open is answered before the kernel has dropped its
/// pages for the first: if it keeps the pages, it reads the old ones.
#[test]
fn nothing_is_kept_on_the_word_of_an_open_that_has_not_returned() {
    let pages = Pages::default();
    pages.opened(FILE, Handle(1), found(&pages, 5));
    pages.read(FILE, Handle(1));
    assert!(!pages.opened(FILE, Handle(2), found(&pages, 6)));
    pages.read(FILE, Handle(1));
    assert!(
        !pages.opened(FILE, Handle(3), found(&pages, 6)),
        "who has it open since before reads what he likes"
    );
    pages.read(FILE, Handle(3));
    assert!(pages.opened(FILE, Handle(4), found(&pages, 6)));
}

/// A node that lost power has lost acknowledged changes, and reuses their version numbers.
#[test]
fn versions_of_before_a_restart_say_nothing() {
    let pages = Pages::default();
    let before = found(&pages, 5);
    pages.opened(FILE, Handle(1), before);
    pages.read(FILE, Handle(1));
    pages.distrust_all();
    assert!(pages.of(FILE), "who has it open goes on reading");
    assert!(!pages.opened(FILE, Handle(2), found(&pages, 5)));
    // Requested before, answered after.
    assert!(!pages.opened(FILE, Handle(3), before));
    pages.read(FILE, Handle(3));
    assert!(!pages.opened(FILE, Handle(4), found(&pages, 5)));
}

/// A write of this mount was lost with the node, whose version number may be in use again.
#[test]
fn a_file_of_which_something_is_wrong_is_read_anew() {
    let pages = Pages::default();
    pages.opened(FILE, Handle(1), found(&pages, 5));
    pages.read(FILE, Handle(1));
    pages.distrust(FILE);
    assert!(pages.of(FILE) && !pages.opened(FILE, Handle(2), found(&pages, 5)));
}

#[test]
fn pages_of_forgotten_inodes_are_forgotten() {
    let pages = Pages::default();
    pages.opened(FILE, Handle(1), found(&pages, 5));
    pages.read(FILE, Handle(1));
    pages.forget(FILE);
    assert!(!pages.of(FILE) && !pages.opened(FILE, Handle(2), found(&pages, 5)));
}
