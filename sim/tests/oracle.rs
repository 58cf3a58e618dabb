//! What the checker takes and what it does not.

use ebb_model::*;
use ebb_sim::oracle::{Checker, ClientId, Event, Op, OpId, Outcome, Permitted, Tree};
use std::time::Duration;

fn dir(mtime: Time) -> Outcome {
    let ino = Ino::new(Incarnation(1), Slot(0), 2);
    let (atime, ctime, btime) = (mtime, mtime, mtime);
    let size_bytes = 4096;
    let (kind, mode, version) = (FileKind::Directory, 0o755, Version(1));
    Outcome::Attr(Attr {
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
    })
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
    let parent = Ino::new(Incarnation(1), Slot(0), 2);
    let change = ClientMutation::SetAttr { ino: parent, set: SetAttr { mtime: Some(SetTime::To(time(9))), ..SetAttr::default() } };
    let asked = |id, client, op| Event::Call { id: OpId(id), client, op };
    let answered = |id, outcome| Event::Return { id: OpId(id), outcome };
    let history = |changed: bool| {
        let mut history = vec![asked(1, late, lookup()), asked(2, quick, lookup()), answered(2, dir(time(5)))];
        if changed {
            history.extend([asked(3, quick, Op::Mutate(change.clone())), answered(3, dir(time(9)))]);
        }
        history.push(answered(1, dir(time(9))));
        history.into_iter().map(|event| (Duration::ZERO, event)).collect::<Vec<_>>()
    };
    let tree = || Tree::with_objects([("d/file", &b"found"[..])]);
    assert_eq!(Checker::new(tree(), Permitted::default(), &history(true)).check(), Ok(()));
    assert!(Checker::new(tree(), Permitted::default(), &history(false)).check().is_err());
}
