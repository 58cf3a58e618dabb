//! Planted violations in the middle of executions that have none.

use crate::execution::{Execution, Size, data};
use ebb_linearize::history::Name;
use ebb_linearize::{
    Answer, Budget, Data, Errno, History, InodeId, Kind, Op, Operation, Outcome, Owner, Token,
    Verdict, check,
};

/// A directory that the other threads do not know.
fn dir() -> InodeId {
    InodeId::new(9)
}

fn file() -> InodeId {
    InodeId::new(7)
}

fn name(text: &str) -> Name {
    Name::from(text)
}

/// One operation of two mounts: called and answered at these times, or never answered.
fn at(mount: u32, call_ns: u64, return_ns: u64, op: Op, outcome: Outcome) -> Operation {
    Operation::new(Owner::new(mount, 9), call_ns, op, Some(Answer::new(return_ns, outcome)))
}

fn created() -> Operation {
    let op = Op::Create { dir: dir(), name: name("file") };
    at(0, 0, 1, op, Outcome::Inode { inode: file(), kind: Kind::File })
}

fn write(mount: u32, call_ns: u64, return_ns: u64, token: u64) -> Operation {
    let op = Op::Write { inode: file(), at: 0, cells: 2, token: Token::new(token) };
    at(mount, call_ns, return_ns, op, Outcome::Done)
}

fn read(mount: u32, call_ns: u64, return_ns: u64, content: Data) -> Operation {
    at(
        mount,
        call_ns,
        return_ns,
        Op::Read { inode: file(), at: 0, cells: 9 },
        Outcome::Data(content),
    )
}

fn append(mount: u32, call_ns: u64, return_ns: u64, token: u64) -> Operation {
    let op = Op::Append { inode: file(), cells: 2, token: Token::new(token) };
    at(mount, call_ns, return_ns, op, Outcome::Done)
}

fn fstat(call_ns: u64, cells: u32, links: u32) -> Operation {
    let outcome = Outcome::Attributes { inode: file(), kind: Kind::File, cells, links };
    at(1, call_ns, call_ns + 1, Op::Fstat { inode: file() }, outcome)
}

fn unlink(call_ns: u64) -> Operation {
    at(0, call_ns, call_ns + 1, Op::Unlink { dir: dir(), name: name("file") }, Outcome::Done)
}

fn open(call_ns: u64, outcome: Outcome) -> Operation {
    at(1, call_ns, call_ns + 1, Op::Open { dir: dir(), name: name("file") }, outcome)
}

fn lock(mount: u32, call_ns: u64, outcome: Outcome) -> Operation {
    at(mount, call_ns, call_ns + 1, Op::Lock { inode: file(), exclusive: true }, outcome)
}

/// The operations among many of other threads.
fn among_others(operations: &[Operation]) -> History {
    let size = Size { threads: 4, operations: 60, names: 3, unanswered: 0 };
    let mut all = Execution::run(5, size).operations().to_vec();
    all.extend_from_slice(operations);
    History::new(all)
}

/// Returns the core of the violation.
fn refused(operations: &[Operation]) -> Vec<Operation> {
    let history = among_others(operations);
    match check(&history, Budget::default()) {
        Verdict::Violation(violation) => {
            violation.core().iter().map(|index| history.operations()[*index].clone()).collect()
        }
        verdict => panic!("{verdict:?}"),
    }
}

fn accepted(operations: &[Operation]) {
    assert_eq!(check(&among_others(operations), Budget::default()), Verdict::Linearizable);
}

#[test]
fn stale_read_is_refused() {
    let (old, new) = (write(0, 10, 11, 1), write(0, 20, 25, 2));
    let stale = read(1, 30, 31, data(1, 2));
    let core = refused(&[created(), old.clone(), new.clone(), stale.clone()]);
    assert_eq!(core, [old.clone(), new.clone(), stale]);
    // Before the write has returned, both contents are possible, but none after the other.
    accepted(&[created(), old.clone(), new.clone(), read(1, 21, 22, data(1, 2))]);
    let (first, second) = (read(1, 21, 22, data(2, 2)), read(1, 23, 24, data(1, 2)));
    accepted(&[created(), old.clone(), new.clone(), read(1, 21, 22, data(2, 2))]);
    refused(&[created(), old.clone(), new.clone(), first, second]);
    // A write that was never answered can take effect later.
    accepted(&[created(), old, new.unanswered(), read(1, 90, 91, data(1, 2))]);
}

#[test]
fn read_of_bytes_that_nobody_wrote_is_refused() {
    refused(&[created(), write(0, 10, 11, 1), read(1, 10, 31, data(3, 2))]);
    refused(&[
        created(),
        write(0, 10, 11, 1),
        at(1, 10, 12, Op::Read { inode: file(), at: 0, cells: 2 }, Outcome::Short { bytes: 3 }),
    ]);
}

#[test]
fn stale_name_is_refused() {
    let found = Outcome::Inode { inode: file(), kind: Kind::File };
    let core = refused(&[created(), unlink(10), open(20, found.clone())]);
    assert_eq!(core, [unlink(10), open(20, found.clone())]);
    accepted(&[created(), unlink(10), open(11, found)]);
    accepted(&[created(), unlink(10), open(20, Outcome::Error(Errno::ENOENT))]);
    refused(&[created(), open(20, Outcome::Error(Errno::ENOENT))]);
}

#[test]
fn stale_name_in_listing_is_refused() {
    let list = |call_ns, names: &[&str]| {
        let names = names.iter().map(|text| name(text)).collect();
        at(1, call_ns, call_ns + 1, Op::List { inode: InodeId::new(8) }, Outcome::Names(names))
    };
    let mkdir = at(0, 2, 3, Op::Mkdir { dir: dir(), name: name("d") }, Outcome::Done);
    let found = Outcome::Inode { inode: InodeId::new(8), kind: Kind::Directory };
    let opened = at(0, 4, 5, Op::Open { dir: dir(), name: name("d") }, found);
    let rename = Op::Rename {
        from_dir: dir(),
        from: name("file"),
        to_dir: InodeId::new(8),
        to: name("moved"),
    };
    let rename = at(0, 10, 12, rename, Outcome::Done);
    let before = [created(), mkdir, opened];
    let with = |after: &[Operation]| [&before, after].concat();
    accepted(&with(&[list(6, &[]), rename.clone(), list(20, &["moved"])]));
    refused(&with(&[rename.clone(), list(20, &[])]));
    refused(&with(&[rename, list(6, &["moved"])]));
}

#[test]
fn stale_length_or_link_count_is_refused() {
    let cut = |call_ns, cells| {
        at(0, call_ns, call_ns + 1, Op::Truncate { inode: file(), cells }, Outcome::Done)
    };
    refused(&[created(), cut(10, 5), fstat(20, 0, 1)]);
    accepted(&[created(), cut(10, 5), fstat(11, 0, 1)]);
    accepted(&[created(), cut(10, 5), unlink(12), fstat(20, 5, 0)]);
    refused(&[created(), cut(10, 5), unlink(12), fstat(20, 5, 1)]);
}

#[test]
fn appends_that_overlap_are_refused() {
    let both = [created(), append(0, 10, 15, 1), append(1, 11, 16, 2)];
    let content = |first, second| {
        let tokens = [first, first, second, second].map(u64::to_le_bytes);
        Data::from_bytes(&tokens.concat()).unwrap()
    };
    for one_order in [content(1, 2), content(2, 1)] {
        accepted(&[both.as_slice(), &[read(0, 20, 21, one_order)]].concat());
    }
    refused(&[both.as_slice(), &[read(0, 20, 21, data(2, 2))]].concat());
    refused(&[both.as_slice(), &[fstat(20, 2, 1)]].concat());
}

#[test]
fn lock_held_twice_is_refused() {
    let unlock = at(0, 20, 21, Op::Unlock { inode: file() }, Outcome::Done);
    refused(&[created(), lock(0, 10, Outcome::Done), lock(1, 15, Outcome::Done)]);
    accepted(&[
        created(),
        lock(0, 10, Outcome::Done),
        lock(1, 15, Outcome::Error(Errno::EAGAIN)),
        unlock.clone(),
        lock(1, 25, Outcome::Done),
    ]);
    refused(&[
        created(),
        lock(0, 10, Outcome::Done),
        unlock,
        lock(1, 25, Outcome::Error(Errno::EAGAIN)),
    ]);
}

/// A file whose creation was not answered gets its number from the first program that finds it.
#[test]
fn unanswered_creation_is_found_under_one_number_only() {
    let found = |number| Outcome::Inode { inode: InodeId::new(number), kind: Kind::File };
    accepted(&[created().unanswered(), open(20, found(7)), fstat(22, 0, 1), open(24, found(7))]);
    accepted(&[
        created().unanswered(),
        open(20, Outcome::Error(Errno::ENOENT)),
        open(22, found(7)),
    ]);
    refused(&[created().unanswered(), open(20, found(7)), open(24, found(8))]);
    refused(&[created().unanswered(), open(20, found(7)), fstat(22, 0, 2)]);
}
