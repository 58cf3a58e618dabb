//! Tests of the checker: it accepts every state that a power cut may leave, and no other.

use super::*;

fn create(name: u64) -> Operation {
    Operation::Create { name }
}

fn write(name: u64, offset: usize, data: &[u8]) -> Operation {
    Operation::Write { name, offset, data: data.to_vec(), sync: false }
}

/// A worker's operations so far, and its acknowledged forces.
struct Story {
    history: History,
    forces: Forces,
}

impl Story {
    fn of(operations: impl IntoIterator<Item = Operation>) -> Story {
        let mut story = Story { history: History::default(), forces: Forces::of(1) };
        operations.into_iter().for_each(|operation| story.then(operation));
        story
    }

    fn then(&mut self, operation: Operation) {
        let before = self.forces.begin();
        self.history.add(operation);
        self.forces.ended(0, &self.history, before);
    }

    fn judge(&mut self, found: &[(u64, &[u8])]) -> Result<u64, String> {
        self.judge_with(found, Vec::new())
    }

    fn judge_with(
        &mut self,
        found: &[(u64, &[u8])],
        unanswered: Vec<Operation>,
    ) -> Result<u64, String> {
        let file =
            |content: &[u8]| File { content: content.to_vec(), mode: crate::workload::NEW_MODE };
        let found = found.iter().map(|(name, content)| (*name, file(content))).collect();
        self.history.explain(&found, unanswered, self.forces.of_worker(0))
    }
}

#[test]
fn names_are_those_of_one_moment_behind_the_last_force() {
    let work = || {
        Story::of([
            create(1),
            Operation::ForceNames,
            create(2),
            create(3),
            Operation::Rename { from: 1, to: 4 },
        ])
    };
    assert_eq!(work().judge(&[(1, b"")]), Ok(3));
    assert_eq!(work().judge(&[(1, b""), (2, b"")]), Ok(2));
    assert_eq!(work().judge(&[(2, b""), (3, b""), (4, b"")]), Ok(0));
    assert!(work().judge(&[]).is_err(), "what was forced is lost");
    assert!(work().judge(&[(1, b""), (3, b"")]).is_err(), "a mixture");
    assert!(work().judge(&[(1, b""), (2, b""), (3, b""), (4, b"")]).is_err(), "half a rename");
}

#[test]
fn bytes_that_were_not_forced_are_old_new_or_zero() {
    let work = || {
        Story::of([
            create(1),
            write(1, 0, b"aaaaaa"),
            Operation::Force { name: 1 },
            write(1, 2, b"bb"),
            write(1, 3, b"cc"),
        ])
    };
    for found in [b"aaaaaa", b"aabcca", b"aa\0caa", b"aabbaa", b"aab\0\0a"] {
        assert!(work().judge(&[(1, found)]).is_ok(), "{}", found.escape_ascii());
    }
    for found in [b"aadcca", b"\0abcca", b"aabccb", b"ccbcca"] {
        assert!(work().judge(&[(1, found)]).is_err(), "{}", found.escape_ascii());
    }
}

#[test]
fn a_force_of_one_file_is_none_of_anothers_bytes() {
    let mut work = Story::of([
        create(1),
        create(2),
        write(1, 0, b"a"),
        write(2, 0, b"b"),
        Operation::Force { name: 2 },
    ]);
    assert!(work.judge(&[(1, b"\0"), (2, b"\0")]).is_err());
    let mut work = Story::of([
        create(1),
        create(2),
        write(1, 0, b"a"),
        write(2, 0, b"b"),
        Operation::Force { name: 2 },
    ]);
    assert_eq!(work.judge(&[(1, b"\0"), (2, b"b")]), Ok(0));
    let mut work = Story::of([
        create(1),
        create(2),
        write(1, 0, b"a"),
        write(2, 0, b"b"),
        Operation::ForceAll,
    ]);
    assert!(work.judge(&[(1, b"\0"), (2, b"b")]).is_err());
}

#[test]
fn the_beginning_of_a_write_within_a_page_may_be_left() {
    let work =
        || Story::of([create(1), write(1, 0, &[1; 4090]), write(1, 4090, b"abcdefgh"), create(2)]);
    let with = |end: &[u8]| [&[1; 4090], end].concat();
    assert_eq!(work().judge(&[(1, &with(b"abcdef"))]), Ok(2));
    assert_eq!(work().judge(&[(1, &with(b""))]), Ok(2));
    assert!(work().judge(&[(1, &with(b"abcde"))]).is_err(), "another part");
    assert!(work().judge(&[(1, &with(b"cdefgh"))]).is_err(), "the end of it");
    assert!(work().judge(&[(1, &with(b"abcdef")), (2, b"")]).is_err(), "something came after it");
}

/// Danger: truncated bytes reappear when the file grows again, or are lost although the truncation
/// is lost.
#[test]
fn a_truncation_is_whole() {
    let work = || {
        let cut = [4, 8].map(|len| Operation::Truncate { name: 1, len });
        Story::of(
            [create(1), write(1, 0, b"aaaaaaaa"), Operation::Force { name: 1 }]
                .into_iter()
                .chain(cut),
        )
    };
    assert_eq!(work().judge(&[(1, b"aaaa\0\0\0\0")]), Ok(0));
    assert_eq!(work().judge(&[(1, b"aaaa")]), Ok(1));
    assert_eq!(work().judge(&[(1, b"aaaaaaaa")]), Ok(2));
    assert!(work().judge(&[(1, b"aaaaa\0\0\0")]).is_err());
}

#[test]
fn what_has_no_answer_happened_or_did_not() {
    let work = || Story::of([create(1), Operation::ForceAll]);
    let asked = || vec![write(1, 0, b"new"), write(1, 0, b"n")];
    assert_eq!(work().judge_with(&[(1, b"")], asked()), Ok(0));
    assert_eq!(work().judge_with(&[(1, b"n\0w")], asked()), Ok(0));
    assert_eq!(work().judge_with(&[(1, b"n")], asked()), Ok(0));
    assert!(work().judge_with(&[(1, b"xew")], asked()).is_err());
    assert!(work().judge_with(&[], asked()).is_err());
}

/// The result of a cut is forced: the next cut cannot lose it.
#[test]
fn a_new_beginning_is_forced() {
    let mut work = Story::of([create(1), write(1, 0, b"a")]);
    assert_eq!(work.judge(&[(1, b"a")]), Ok(0));
    work.then(create(2));
    assert!(work.judge(&[(1, b"\0")]).is_err());
    assert_eq!(work.judge(&[(1, b"a")]), Ok(1));
}
