//! A node answers whatever a client sends, keeps every law, and serves on.

use bytes::Bytes;
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::World;

/// More tell a search nothing.
const MOST_REQUESTS: usize = 32;

/// Requests are sent as they are; whatever session they name stands for the one that there is.
pub fn run(bytes: &[u8]) {
    let Ok(requests) = postcard::from_bytes::<Vec<Request>>(bytes) else { return };
    let world = World::new(1);
    let bucket = world.bucket();
    let process = world.machine("a").process("node");
    let port = process.bucket(&bucket);
    let ports = process.ports.clone();
    let ended = world.run(process.call(async move {
        let node = Node::open(ports, Some(port), Options { embedded: true, ..Options::default() }).await.expect("a node starts");
        let attach = Request::Attach { volume: "ebb".into(), client: "legitimate".into(), previous: None, read_only: false, cluster: None };
        let Ok(Reply::Attached(attached)) = node.handle(attach).await else { panic!("a client cannot attach") };
        for request in requests.into_iter().take(MOST_REQUESTS) {
            if let Some(request) = speaking_for(request, attached.session) {
                // Refused or not: it is answered.
                drop(node.handle(request).await);
            }
        }
        match node.handle(Request::Admin(AdminRequest::Fsck)).await {
            Ok(Reply::Admin(AdminReply::Fsck(report))) => assert!(report.problems.is_empty(), "{:?}", report.problems),
            other => panic!("fsck: {other:?}"),
        }
    }));
    assert!(matches!(ended, Ok(Some(()))), "the node has died or waits for ever");
}

fn speaking_for(request: Request, session: SessionId) -> Option<Request> {
    Some(match request {
        // Time passes for these, and with it the search.
        Request::Attach { .. } | Request::Detach { .. } | Request::Admin(AdminRequest::Flush { .. }) => return None,
        Request::Open { ino, .. } => Request::Open { session, ino },
        Request::Close { ino, count, .. } => Request::Close { session, ino, count },
        Request::Fsync { ino, .. } => Request::Fsync { session, ino },
        Request::Mutate { tx, caller, mutation, replay } => Request::Mutate { tx: TxId { session, ..tx }, caller, mutation, replay },
        Request::Lock { tx, ask, wait } => Request::Lock { tx: TxId { session, ..tx }, ask, wait },
        Request::EndWait { wait, .. } => Request::EndWait { session, wait },
        Request::TestLock { ino, owner, piece, .. } => Request::TestLock { session, ino, owner, piece },
        Request::Reclaim { ino, owner, pid, pieces, .. } => Request::Reclaim { session, ino, owner, pid, pieces },
        other => other,
    })
}

pub fn seeds() -> Vec<Vec<u8>> {
    let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
    let mutations = [
        ClientMutation::Make { parent: Ino::ROOT, name: name("a"), mode: 0o644.into(), what: Make::Regular, open: true },
        ClientMutation::Make {
            parent: Ino::ROOT,
            name: name("d"),
            mode: NewMode { mode: 0o777, umask: 0o22 },
            what: Make::Directory,
            open: false,
        },
        ClientMutation::Write { ino: Ino(2), offset: 1 << 20, data: Bytes::from_static(b"data"), drop_set_id: false },
        ClientMutation::Rename { from: Ino::ROOT, name: name("a"), to: Ino::ROOT, new_name: name("b"), mode: RenameMode::Replace },
        ClientMutation::Rename {
            from: Ino::ROOT,
            name: name("b"),
            to: Ino(2),
            new_name: name("a"),
            mode: RenameMode::Whiteout { keep_target: true, ino: Some(Ino(3)) },
        },
        ClientMutation::SetAcl { ino: Ino(3), class: AclClass::Default, value: Bytes::from_static(b"\x02\0\0\0"), drop_set_gid: true },
        ClientMutation::Unlink { parent: Ino::ROOT, name: name("b") },
    ];
    let mutate = |(at, mutation): (usize, ClientMutation)| Request::Mutate {
        tx: TxId { session: SessionId(1), slot: 0, sequence: at as u64 + 1 },
        caller: Caller::ROOT,
        mutation,
        replay: None,
    };
    let mut requests: Vec<Request> = mutations.into_iter().enumerate().map(mutate).collect();
    requests.push(Request::ReadDir { dir: Ino::ROOT, after: Cookie::START, limit: 10 });
    requests.push(Request::Read { ino: Ino(2), offset: 0, len_bytes: 1 << 16 });
    let owners = [LockOwner::Fcntl(1), LockOwner::Fcntl(2), LockOwner::Flock(1)];
    for (at, owner) in owners.into_iter().enumerate() {
        let ask = LockAsk { ino: Ino(3), owner, range: LockRange::WHOLE, mode: Some(LockMode::Exclusive), keep: false, pid: 1 };
        let tx = TxId { session: SessionId(1), slot: 0, sequence: at as u64 + 1 };
        requests.push(Request::Lock { tx, ask, wait: Some(LockWait { id: at as u64, detect: true }) });
    }
    requests.push(Request::EndWait { session: SessionId(1), wait: 1 });
    vec![postcard::to_stdvec(&requests).expect("requests have an encoding")]
}
