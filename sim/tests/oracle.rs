//! Histories that the checker accepts, and histories that it rejects.

use bytes::Bytes;
use ebb_model::*;
use ebb_sim::oracle::{
    Checker, ClientId, Content, Event, Identity, Op, OpId, Outcome, Permitted, SeenNode,
    StoredObject, StreamId, Tree, Verdict,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

fn dir(ino: Ino, mode: u16, mtime: Time, version: u64) -> Attr {
    let (atime, ctime, btime) = (Time::default(), mtime, Time::default());
    let size_bytes = 4096;
    let (kind, version) = (FileKind::Directory, Version(version));
    Attr {
        ino,
        kind,
        mode,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes,
        hole_bytes: 0,
        atime,
        mtime,
        ctime,
        btime,
        version,
    }
}

fn lookup() -> Op {
    Op::Lookup { parent: Ino::ROOT, name: Name::new(b"d").unwrap() }
}

/// A client asks for a directory and is answered late; another one has seen it at an earlier
/// time, and changed it, in between. That is one possible course of things. Where nobody has
/// changed it, it is not.
#[test]
fn an_answer_may_be_of_any_moment_since_the_question() {
    let time = |secs: i64| Time { secs, nanos: 0 };
    let (late, quick) = (ClientId(1), ClientId(2));
    let parent = Ino::new(IdEpoch(1), Slot(0), 2);
    let change = ClientMutation::SetAttr {
        ino: parent,
        set: SetAttr { mtime: Some(SetTime::To(time(9))), ..SetAttr::default() },
    };
    let asked = |id, client, op| Event::Call { id: OpId(id), client, op };
    let answered = |id, outcome| Event::Return { id: OpId(id), outcome };
    let dir = |secs: i64| Outcome::Attr(dir(parent, 0o755, time(secs), secs as u64));
    let history = |changed: bool| {
        let mut history =
            vec![asked(1, late, lookup()), asked(2, quick, lookup()), answered(2, dir(5))];
        if changed {
            history.extend([asked(3, quick, Op::Mutate(change.clone())), answered(3, dir(9))]);
        }
        history.push(answered(1, dir(9)));
        history.into_iter().map(|event| (Duration::ZERO, event)).collect::<Vec<_>>()
    };
    let tree = || Tree::with_objects([("d/file", &b"found"[..])]);
    assert_eq!(Checker::new(tree(), Permitted::default(), &history(true)).check(), Ok(()));
    assert!(Checker::new(tree(), Permitted::default(), &history(false)).check().is_err());
}

/// The last reply that a client gets to a change is an error, because the client was cut off. A
/// later read finds the change made or not made, and nothing else. Where no operation can fail, the
/// change must not be there.
#[test]
fn change_in_doubt_is_done_or_not() {
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    let op = Op::Mutate(ClientMutation::SetAttr { ino: Ino::ROOT, set });
    let seen = |mode| {
        let (target, xattrs, content) = (Bytes::new(), BTreeMap::new(), Bytes::new());
        let root = SeenNode {
            attr: dir(Ino::ROOT, mode, Time { secs: 1, nanos: 0 }, 1),
            target,
            xattrs,
            content,
        };
        Event::Seen { tree: Rc::new(BTreeMap::from([(Vec::new(), root)])), inos: Identity::Kept }
    };
    let verdict = |mode, io| {
        let call = Event::Call { id: OpId(1), client: ClientId(1), op: op.clone() };
        let failed = Event::Return { id: OpId(1), outcome: Outcome::Failed(FsError::Io) };
        let history = [call, failed, seen(mode), seen(mode)].map(|event| (Duration::ZERO, event));
        Checker::new(Tree::with_objects([]), Permitted { io, ..Permitted::default() }, &history)
            .check()
    };
    assert_eq!((verdict(0o700, true), verdict(0o755, true)), (Ok(()), Ok(())));
    assert!(verdict(0o750, true).is_err() && verdict(0o700, false).is_err());
}

/// A history of one client: each operation is answered a second after the last one.
struct Story {
    events: Vec<(Duration, Event)>,
}

impl Story {
    fn of(steps: impl IntoIterator<Item = (Op, Outcome)>) -> Story {
        let mut story = Story { events: vec![] };
        steps.into_iter().for_each(|(op, outcome)| story.step(op, outcome));
        story
    }

    fn step(&mut self, op: Op, outcome: Outcome) {
        let id = OpId(self.events.len() as u64 + 1);
        self.add(Event::Call { id, client: ClientId(1), op });
        self.add(Event::Return { id, outcome });
    }

    fn add(&mut self, event: Event) {
        self.events.push((Duration::from_secs(self.events.len() as u64), event));
    }

    fn verdict(&self) -> Result<(), Verdict> {
        Checker::new(Tree::empty(), Permitted::default(), &self.events).check()
    }
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

fn made(counter: u32) -> Attr {
    let time = Time::from_secs(i64::from(counter));
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    Attr {
        ino: Ino::new(IdEpoch(1), Slot(0), counter),
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        size_bytes: 0,
        version: Version(u64::from(counter)),
        ..Attr { atime, mtime, ctime, btime, ..dir(Ino::ROOT, 0, time, 0) }
    }
}

fn make(file: &str) -> Op {
    let mode = NewMode { mode: 0o644, umask: 0 };
    let (parent, name, what, open) = (Ino::ROOT, name(file), Make::Regular, false);
    Op::Mutate(ClientMutation::Make { parent, name, mode, what, open })
}

fn write(ino: Ino, offset: u64, data: &'static [u8]) -> Op {
    let data = Bytes::from_static(data);
    Op::Mutate(ClientMutation::Write { ino, offset, data, drop_set_id: false })
}

/// A file is made and written to. The write moves mtime and ctime to one time, and the version;
/// anything else is a bug.
#[test]
fn a_write_moves_times_and_version() {
    let before = made(10);
    let time = Time::from_secs(11);
    let written = |change: &dyn Fn(&mut Attr)| {
        let mut attr = Attr {
            size_bytes: 3,
            mtime: time,
            ctime: time,
            version: Version(11),
            ..before.clone()
        };
        change(&mut attr);
        let write = write(before.ino, 0, b"abc");
        Story::of([(make("a"), Outcome::Attr(before.clone())), (write, Outcome::Attr(attr))])
            .verdict()
    };
    assert_eq!(written(&|_| {}), Ok(()));
    assert!(written(&|attr| attr.mtime = before.mtime).is_err());
    assert!(written(&|attr| attr.ctime = before.ctime).is_err());
    assert!(written(&|attr| attr.atime = time).is_err());
    assert!(written(&|attr| attr.btime = time).is_err());
    assert!(written(&|attr| attr.version = before.version).is_err());
}

/// A file is made, and the power fails some time later: the file may be missing unless it was
/// answered so long ago that the commit interval covers it.
#[test]
fn a_power_cut_takes_nothing_older_than_the_commit_interval() {
    let verdict = |durable: Duration| {
        let mut story = Story::of([(make("a"), Outcome::Attr(made(10)))]);
        story.add(Event::PowerCut { durable });
        story.add(Event::Gone { client: ClientId(1) });
        story.add(Event::Settled);
        let root = SeenNode {
            attr: dir(Ino::ROOT, 0o755, Time::from_secs(1), 1),
            target: Bytes::new(),
            xattrs: BTreeMap::new(),
            content: Bytes::new(),
        };
        let tree = Rc::new(BTreeMap::from([(Vec::new(), root)]));
        story.add(Event::Seen { tree, inos: Identity::Anew });
        story.verdict()
    };
    assert_eq!(verdict(Duration::from_secs(1)), Ok(()));
    assert!(verdict(Duration::from_secs(2)).is_err());
}

/// A file of six bytes is overwritten. The bucket may hold the old or the new content, not a
/// mixture of both, and not the new content before it is written.
#[test]
fn an_object_is_one_version_of_its_file() {
    let attr = |version: u32| Attr { ino: made(10).ino, size_bytes: 6, ..made(version) };
    let attr = |version| Attr { atime: made(10).atime, btime: made(10).btime, ..attr(version) };
    let story = Story::of([
        (make("a"), Outcome::Attr(made(10))),
        (write(made(10).ino, 0, b"before"), Outcome::Attr(attr(11))),
        (write(made(10).ino, 0, b"behind"), Outcome::Attr(attr(12))),
    ]);
    let verdict = |at_secs: u64, bytes: &[u8]| {
        let (at, key) = (Duration::from_secs(at_secs), "a".into());
        let objects = [StoredObject { at, key, content: Content::from_bytes(bytes) }];
        Checker::new(Tree::empty(), Permitted::default(), &story.events)
            .with_objects(&objects)
            .check()
    };
    assert_eq!(
        (verdict(9, b"before"), verdict(9, b"behind"), verdict(9, b"")),
        (Ok(()), Ok(()), Ok(()))
    );
    assert!(matches!(verdict(9, b"beforn"), Err(Verdict::Mixed { .. })));
    assert!(matches!(verdict(3, b"behind"), Err(Verdict::Mixed { .. })));
}

/// A directory is read in pages of one entry while names come and go. A name that stays is shown
/// once; a name that is made again can be shown again.
#[test]
fn a_stream_shows_what_stays_once() {
    let stream = StreamId(0);
    let page = |after: u64, shown: Option<(&str, u32)>, end: bool| {
        let entries = shown.map(|(file, counter)| {
            let attr = made(counter);
            let cookie = Cookie(u64::from(counter));
            (DirEntry { name: name(file), ino: attr.ino, kind: attr.kind, cookie }, attr)
        });
        let entries = entries.into_iter().collect();
        let op = Op::ReadDir { dir: Ino::ROOT, after: Cookie(after), limit: 1, stream };
        (op, Outcome::Entries { entries, end })
    };
    let begin = || {
        Story::of([
            (make("a"), Outcome::Attr(made(10))),
            (make("b"), Outcome::Attr(made(11))),
            page(0, Some(("a", 10)), false),
        ])
    };
    let ends = |mut story: Story, steps: Vec<(Op, Outcome)>| {
        steps.into_iter().for_each(|(op, outcome)| story.step(op, outcome));
        story.verdict()
    };
    assert_eq!(ends(begin(), vec![page(10, Some(("b", 11)), true)]), Ok(()));
    assert!(ends(begin(), vec![page(10, None, true)]).is_err(), "b is not shown");
    let twice = vec![page(10, Some(("b", 11)), false), page(11, Some(("a", 10)), true)];
    assert!(ends(begin(), twice).is_err(), "a is shown again");
    let unlink = Op::Mutate(ClientMutation::Unlink { parent: Ino::ROOT, name: name("a") });
    let again = vec![
        (unlink, Outcome::Done),
        (make("a"), Outcome::Attr(made(12))),
        page(10, Some(("b", 11)), false),
        page(11, Some(("a", 12)), true),
    ];
    assert_eq!(ends(begin(), again), Ok(()));
}
