//! The operations requested of a volume and their outcomes, in the order of true time.

use crate::WallRecord;
use crate::executor::Executor;
use crate::world::World;
use bytes::Bytes;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

/// One life of a client, from attach to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClientId(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

/// A directory stream of one client: pages from the first entry on, each after the last one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u64);

#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    Mutate(ClientMutation),
    Lookup {
        parent: Ino,
        name: Name,
    },
    GetAttr {
        ino: Ino,
    },
    ReadLink {
        ino: Ino,
    },
    /// One page of a directory stream, which the node may cut short.
    ReadDir {
        dir: Ino,
        after: Cookie,
        limit: u32,
        stream: StreamId,
    },
    Read {
        ino: Ino,
        offset: u64,
        len_bytes: usize,
    },
    Seek {
        ino: Ino,
        offset: u64,
        to: Seek,
    },
    Xattrs {
        ino: Ino,
    },
    Open {
        ino: Ino,
    },
    Close {
        ino: Ino,
    },
    Fsync {
        ino: Ino,
    },
    SyncFs,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    Done,
    Attr(Attr),
    Link(Bytes),
    Entries {
        entries: Vec<(DirEntry, Attr)>,
        end: bool,
    },
    Data(Bytes),
    Offset(u64),
    Copied {
        attr: Attr,
        len_bytes: u64,
    },
    /// A write of fewer bytes than requested.
    CutShort {
        attr: Attr,
        len_bytes: u64,
    },
    Names(Vec<Bytes>),
    Failed(FsError),
}

#[derive(Clone, Debug)]
pub enum Event {
    Call {
        id: OpId,
        client: ClientId,
        op: Op,
    },
    Return {
        id: OpId,
        outcome: Outcome,
    },
    /// The client has ended: its operations under way will never be answered, and nothing
    /// is open by it any more.
    Gone {
        client: ClientId,
    },
    /// Operations that have no reply and have not taken effect yet never will.
    Settled,
    /// The node of clients that live on has died, and starts again with all that it has answered.
    NodeDied {
        of: &'static str,
    },
    /// The machine of the only client and its node lost power. Operations that were answered
    /// before `durable` must survive.
    PowerCut {
        durable: Duration,
    },
    /// From here on a machine with this clock serves the volume.
    Served {
        clock: WallRecord,
    },
    /// The whole tree as it was found while nothing else went on.
    Seen {
        tree: Rc<SeenTree>,
        inos: Identity,
    },
    Note(String),
}

/// Whether a tree that was seen has the inode ids of before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    Kept,
    /// Inodes that were only read from the bucket, and are on no record, may have new ids.
    Anew,
}

#[derive(Clone, PartialEq, Debug)]
pub struct SeenNode {
    pub attr: Attr,
    pub target: Bytes,
    pub xattrs: BTreeMap<Bytes, Bytes>,
    pub content: Bytes,
}

/// By path from the root, which is the empty path. Names are separated by `/`.
pub type SeenTree = BTreeMap<Vec<u8>, SeenNode>;

/// A place in the record of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position(usize);

/// The record of a run, which its tasks share.
#[derive(Clone)]
pub struct History {
    executor: Executor,
    shared: Rc<RefCell<Vec<(Duration, Event)>>>,
}

impl History {
    pub fn new(world: &World) -> History {
        History { executor: world.executor().clone(), shared: Rc::default() }
    }

    pub fn add(&self, event: Event) {
        self.shared.borrow_mut().push((self.executor.now(), event));
    }

    /// The id of a new stream.
    pub fn new_stream(&self) -> StreamId {
        StreamId(self.shared.borrow().len() as u64)
    }

    /// Where the next event will stand.
    pub fn position(&self) -> Position {
        Position(self.shared.borrow().len())
    }

    /// For events that are discovered later.
    pub fn add_at(&self, position: Position, event: Event) {
        let mut shared = self.shared.borrow_mut();
        let at = shared[..position.0].last().map_or(Duration::ZERO, |(at, _)| *at);
        shared.insert(position.0, (at, event));
    }

    pub fn note(&self, what: impl Into<String>) {
        self.add(Event::Note(what.into()));
    }

    pub fn call(&self, client: ClientId, op: Op) -> OpId {
        let id = OpId(self.shared.borrow().len() as u64);
        self.add(Event::Call { id, client, op });
        id
    }

    pub fn events(&self) -> Vec<(Duration, Event)> {
        self.shared.borrow().clone()
    }

    /// Operations answered so far.
    pub fn answered(&self) -> usize {
        self.shared
            .borrow()
            .iter()
            .filter(|(_, event)| matches!(event, Event::Return { .. }))
            .count()
    }
}

/// One line per event, for a report.
pub fn describe(history: &[(Duration, Event)]) -> String {
    let mut text = String::new();
    for (at, event) in history {
        let line = match event {
            Event::Call { id, client, op } => {
                format!("{:>4} client {} asks {}", id.0, client.0, describe_op(op))
            }
            Event::Return { id, outcome } => format!("{:>4} {}", id.0, describe_outcome(outcome)),
            Event::Gone { client } => format!("     client {} is gone", client.0),
            Event::Settled => "     settled".into(),
            Event::NodeDied { of } => format!("     the node dies of {of}"),
            Event::PowerCut { durable } => {
                format!("     power cut: nothing answered before {durable:?} is missing")
            }
            Event::Served { .. } => "     a machine serves".into(),
            Event::Seen { tree, inos } => {
                let paths: Vec<String> = tree
                    .iter()
                    .map(|(path, node)| {
                        format!(
                            "{} {} {} bytes",
                            path.escape_ascii(),
                            node.attr.ino,
                            node.attr.size_bytes
                        )
                    })
                    .collect();
                format!("     seen ({inos:?}): {}", paths.join(", "))
            }
            Event::Note(what) => format!("     {what}"),
        };
        writeln!(text, "{:>12.6} {line}", at.as_secs_f64()).expect("a String takes all text");
    }
    text
}

pub fn describe_op(op: &Op) -> String {
    match op {
        Op::Mutate(ClientMutation::Write { ino, offset, data, .. }) => {
            format!("write {ino} at {offset}: {} bytes", data.len())
        }
        Op::Mutate(ClientMutation::Append { ino, data, .. }) => {
            format!("append {ino}: {} bytes", data.len())
        }
        Op::Mutate(mutation) => format!("{mutation:?}"),
        other => format!("{other:?}"),
    }
}

fn describe_outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Data(data) => {
            format!("{} bytes, beginning {}", data.len(), data[..data.len().min(8)].escape_ascii())
        }
        Outcome::Attr(attr) => format!(
            "{} {:?} {:o} nlink {} {}:{} {} bytes version {} mtime {} ctime {}",
            attr.ino,
            attr.kind,
            attr.mode,
            attr.nlink,
            attr.uid,
            attr.gid,
            attr.size_bytes,
            attr.version.0,
            describe_time(attr.mtime),
            describe_time(attr.ctime)
        ),
        Outcome::Entries { entries, end } => {
            let names: Vec<String> =
                entries.iter().map(|(entry, _)| format!("{} {}", entry.name, entry.ino)).collect();
            format!("[{}]{}", names.join(", "), if *end { "" } else { " and more" })
        }
        other => format!("{other:?}"),
    }
}

fn describe_time(time: Time) -> String {
    format!("{}.{:09}", time.secs, time.nanos)
}
