//! Arbitrary replies of a node: every operation of the client completes, and none returns more
//! bytes than requested.

use bytes::Bytes;
use ebb_client::{Client, ClientPorts, Link, LinkEvent, Options};
use ebb_model::*;
use ebb_ports::PortFuture;
use ebb_sim::World;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{pending, ready};
use std::rc::Rc;
use std::time::Duration;

/// Longer sequences find no more bugs.
const MOST_REPLIES: usize = 64;

type Answer = Result<Reply, RpcError>;

/// A node that sends the given replies and rejects every later request.
struct Node {
    answers: RefCell<VecDeque<Answer>>,
    notices: RefCell<VecDeque<Notice>>,
}

impl Link for Node {
    fn call(&self, request: Request) -> PortFuture<'_, Answer> {
        let next = self.answers.borrow_mut().pop_front();
        Box::pin(ready(next.unwrap_or_else(|| match request {
            Request::Attach { .. } => Ok(Reply::Attached(attached())),
            Request::SyncFs { .. } | Request::Fsync { .. } => {
                Ok(Reply::Forced { durable: LogIndex(u64::MAX) })
            }
            _ => Err(FsError::Io.into()),
        })))
    }

    fn event(&self) -> PortFuture<'_, LinkEvent> {
        match self.notices.borrow_mut().pop_front() {
            Some(notice) => Box::pin(ready(LinkEvent::Notice(notice))),
            None => Box::pin(pending()),
        }
    }

    fn is_local(&self) -> bool {
        false
    }

    fn trouble(&self) -> String {
        String::new()
    }
}

fn attached() -> Attached {
    Attached {
        session: SessionId(1),
        cluster: ClusterId(1),
        incarnation: Incarnation(1),
        start: 1,
        fresh: true,
        recovered: LogIndex(0),
        sole: true,
        cache_term_ms: 0,
        read_only: false,
        session_term_ms: 30_000,
        lease_term_ms: 2_000,
        nodes: Vec::new(),
    }
}

pub fn run(bytes: &[u8]) {
    let Ok((answers, notices)) = postcard::from_bytes::<(Vec<Answer>, Vec<Notice>)>(bytes) else {
        return;
    };
    let answers = RefCell::new(answers.into_iter().take(MOST_REPLIES).collect());
    let node = Rc::new(Node { answers, notices: RefCell::new(notices.into()) });
    let world = World::new(1);
    let process = world.machine("a").process("mount");
    let ports = ClientPorts::from(&process.ports);
    let ended = world.run(process.call(async move {
        let patience = Duration::from_secs(60);
        let options = Options {
            attach_timeout: patience,
            unavailable_timeout: Some(patience),
            ..Options::new("ebb", "legitimate")
        };
        if let Ok(client) = Client::attach(node, ports, options).await {
            use_all(&client).await;
            // Either result is valid: some changes can be lost.
            either_way(client.detach(patience).await);
        }
    }));
    assert!(matches!(ended, Ok(Some(()))), "the client has died or waits for ever: {ended:?}");
}

async fn use_all(client: &Client) {
    let (root, ino, caller) = (Ino::ROOT, Ino(2), Caller::ROOT);
    let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
    either_way(client.make(&caller, root, &name("a"), 0o644, Make::Regular, true).await);
    either_way(client.lookup(root, &name("a")).await);
    either_way(client.open(ino).await);
    let data = Bytes::from_static(b"data");
    for written in [
        client.write(&caller, ino, 9, data.clone(), false).await,
        client.append(&caller, ino, data.clone(), true).await,
    ] {
        assert!(
            written.is_err() || written.is_ok_and(|written| written.len_bytes <= data.len()),
            "more was written than there was"
        );
    }
    let copied = client.copy(&caller, (ino, 0), (Ino(3), 0), 9, false).await;
    assert!(
        copied.is_err() || copied.is_ok_and(|copied| copied.len_bytes <= 9),
        "more was copied than requested"
    );
    for len_bytes in [9, 2 * MAX_IO_BYTES] {
        let read = client.read(ino, 1, len_bytes).await;
        assert!(
            read.is_err() || read.is_ok_and(|read| read.len() <= len_bytes),
            "more was read than requested"
        );
    }
    let range = LockRange::new(0, 9).expect("a range");
    let owner = LockOwner::Fcntl(1);
    let ask = LockAsk { ino, owner, range, mode: Some(LockMode::Exclusive), keep: false, pid: 1 };
    either_way(client.lock(ask).await);
    either_way(
        client.lock_waiting(LockAsk { owner: LockOwner::Flock(1), ..ask }, true, ready(())).await,
    );
    either_way(client.test_lock(ino, owner, RangeLock { range, mode: LockMode::Shared }).await);
    either_way(client.readdir(root, Cookie::START, 10).await);
    either_way(client.getattr(ino).await);
    either_way(client.readlink(ino).await);
    either_way(client.flags(ino).await);
    either_way(client.listxattr(ino).await);
    either_way(client.statfs(ino).await);
    either_way(client.access(&caller, ino, Access::READ).await);
    either_way(client.seek(ino, 0, Seek::Data).await);
    either_way(
        client.rename(&caller, root, &name("a"), root, &name("b"), RenameMode::Replace).await,
    );
    either_way(client.unlink(&caller, root, &name("b")).await);
    either_way(client.fsync(ino).await);
    client.close(ino);
    either_way(client.sync_fs().await);
    either_way(client.unlock_all(ino, owner).await);
}

/// Accepts success and failure alike: the operation has completed.
fn either_way<T>(_: Result<T, FsError>) {}

/// Correct replies to every request, with a node restart in between.
pub fn seeds() -> Vec<Vec<u8>> {
    let time = Time::from_secs(1);
    let attr = Attr {
        ino: Ino(2),
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes: 13,
        hole_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: Version(1),
    };
    let mutated = |index: u64, offset: Option<u64>| {
        let stamp = Stamp { time, version: Version(index) };
        let replay = Replay { stamp, ino: Some(Ino(2)), offset, len_bytes: offset.map(|_| 4) };
        let mutated = Mutated { attr: Some(attr.clone()), index: LogIndex(index), replay };
        Ok(Reply::Mutated(Box::new(mutated), vec![]))
    };
    let entry = DirEntry {
        name: Name::new(b"a").expect("a name"),
        ino: Ino(2),
        kind: FileKind::Regular,
        cookie: Cookie(1),
    };
    let lost = || Err(RpcError::Lost);
    let before: Vec<Answer> = vec![
        Ok(Reply::Attached(attached())),
        mutated(1, None),
        Ok(Reply::Attr(Box::new(attr.clone()))),
        Ok(Reply::Opened { passthrough: false }),
        mutated(2, Some(9)),
        mutated(3, Some(13)),
    ];
    let after = || -> Vec<Answer> {
        vec![
            mutated(4, Some(0)),
            Ok(Reply::Data(Bytes::from_static(b"data"))),
            Ok(Reply::Data(Bytes::new())),
            Ok(Reply::Lock(LockAnswer::Granted)),
            Ok(Reply::Lock(LockAnswer::Granted)),
            Ok(Reply::Conflict(None)),
            Ok(Reply::Directory { entries: vec![(entry.clone(), attr.clone())], end: true }),
            Ok(Reply::Attr(Box::new(attr.clone()))),
            Ok(Reply::Link(Bytes::from_static(b"target"))),
            Ok(Reply::Xattr(Bytes::from_static(b"1"))),
            Ok(Reply::Xattrs(vec![Bytes::from_static(b"user.a")])),
            Err(FsError::NotSupported.into()),
            Ok(Reply::Done),
            Ok(Reply::Offset(4)),
            Err(RpcError::Retry),
        ]
    };
    let anew = Attached { start: 2, fresh: false, sole: false, ..attached() };
    let notices = vec![
        Notice::Durable { durable: LogIndex(1) },
        Notice::DropCaches,
        Notice::Recall {
            recall: 1,
            inos: vec![Ino(7)],
            names: vec![(Ino(1), Name::new(b"a".as_slice()).expect("a name"))],
        },
        Notice::Invalidate { ino: Ino(2) },
        Notice::Lock { wait: 1 },
        Notice::ReferenceQuery { query: 1, inos: vec![Ino(2)] },
        Notice::Relinked { dir: Ino(1), name: Name::new(b"a").expect("a name") },
        Notice::Leaving,
    ];
    let plain: Vec<Answer> = before.iter().cloned().chain(after()).collect();
    let restarted: Vec<Answer> = before
        .into_iter()
        .chain([lost(), Ok(Reply::Attached(anew)), mutated(1, None), mutated(2, Some(9))])
        .chain(after())
        .collect();
    [(plain, vec![]), (restarted, notices)]
        .map(|said| postcard::to_stdvec(&said).expect("replies have an encoding"))
        .into()
}
