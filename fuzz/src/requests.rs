//! Arbitrary requests to a node: it replies to each, keeps every law, and keeps serving.

use bytes::Bytes;
use ebb_format::rpc::{self, RequestId};
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::World;
use std::time::Duration;

/// Longer sequences find no more bugs.
const MOST_REQUESTS: usize = 32;

/// The node waits this long for a client that does not give up its cache.
const TERM: Duration = Duration::from_secs(1);

/// Limit of requests that let simulated time pass, which makes the search slow.
const MOST_SLOW: usize = 3;

/// Sends the requests unchanged, except session ids: 1, 2, ... stand for the attached sessions in
/// order; other ids belong to no session.
pub fn run(bytes: &[u8]) {
    let Ok(requests) = postcard::from_bytes::<Vec<Request>>(bytes) else { return };
    let world = World::new(1);
    let bucket = world.bucket();
    let process = world.machine("a").process("node");
    let port = process.bucket(&bucket);
    let ports = process.ports.clone();
    let ended = world.run(process.call(async move {
        let node =
            Node::open(ports, Some(port), Options { session_term: TERM, ..Options::default() })
                .await
                .expect("a node starts");
        let attach = Request::Attach {
            volume: "ebb".into(),
            client: "legitimate".into(),
            previous: None,
            read_only: false,
            cluster: None,
        };
        let Ok(Reply::Attached(attached)) = node.handle(attach).await else {
            panic!("a client cannot attach")
        };
        let mut sessions = vec![attached.session];
        let mut slow = 0;
        for request in requests.into_iter().take(MOST_REQUESTS) {
            slow += usize::from(is_slow(&request));
            if is_slow(&request) && slow > MOST_SLOW {
                continue;
            }
            let request = speaking_for(request, &sessions);
            // Success or failure: the node has replied.
            if let Ok(reply) = node.handle(request.clone()).await {
                check(&request, &reply);
                if let Reply::Attached(attached) = reply {
                    sessions.push(attached.session);
                }
            }
        }
        match node.handle(Request::Admin(AdminRequest::Fsck)).await {
            Ok(Reply::Admin(AdminReply::Fsck(report))) => {
                assert!(report.problems.is_empty(), "{:?}", report.problems)
            }
            other => panic!("fsck: {other:?}"),
        }
    }));
    assert!(matches!(ended, Ok(Some(()))), "the node has died or waits for ever: {ended:?}");
}

fn is_slow(request: &Request) -> bool {
    matches!(
        request,
        Request::Attach { .. }
            | Request::Detach { .. }
            | Request::Admin(AdminRequest::Flush { .. })
    )
}

fn speaking_for(mut request: Request, sessions: &[SessionId]) -> Request {
    let said = match &mut request {
        Request::Attach { previous, .. } => previous.as_mut(),
        Request::Mutate(mutate) => Some(&mut mutate.tx.session),
        Request::Lock { tx, .. } => Some(&mut tx.session),
        Request::Detach { session }
        | Request::Renew { session }
        | Request::ResumeSession { session }
        | Request::OpensDeclared { session }
        | Request::CachesDropped { session }
        | Request::LeasesReturned { session, .. }
        | Request::ReferenceQueryReply { session, .. }
        | Request::Open { session, .. }
        | Request::Close { session, .. }
        | Request::Fsync { session, .. }
        | Request::SyncFs { session }
        | Request::EndWait { session, .. }
        | Request::TestLock { session, .. }
        | Request::Reclaim { session, .. } => Some(session),
        _ => None,
    };
    if let Some(said) = said
        && let Some(session) = said.0.checked_sub(1).and_then(|at| sessions.get(at as usize))
    {
        *said = *session;
    }
    request
}

/// A reply fits a frame and holds no more than requested.
fn check(request: &Request, reply: &Reply) {
    match (request, reply) {
        (Request::Read { len_bytes, .. }, Reply::Data(data)) => {
            assert!(data.len() <= *len_bytes as usize, "{request:?}")
        }
        (Request::ReadDir { limit, .. }, Reply::Directory { entries, .. }) => {
            assert!(entries.len() <= *limit as usize, "{request:?}")
        }
        _ => {}
    }
    let parts = rpc::encode_reply(RequestId(1), reply).expect("an answer fits a frame");
    assert!(rpc::decode(Bytes::from(parts.concat())).is_ok(), "an answer cannot be read");
}

pub fn seeds() -> Vec<Vec<u8>> {
    let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
    let mutations = [
        ClientMutation::Make {
            parent: Ino::ROOT,
            name: name("a"),
            mode: 0o644.into(),
            what: Make::Regular,
            open: true,
        },
        ClientMutation::Make {
            parent: Ino::ROOT,
            name: name("d"),
            mode: NewMode { mode: 0o777, umask: 0o22 },
            what: Make::Directory,
            open: false,
        },
        ClientMutation::Write {
            ino: Ino(2),
            offset: 1 << 20,
            data: Bytes::from_static(b"data"),
            drop_set_id: false,
        },
        ClientMutation::Rename {
            from: Ino::ROOT,
            name: name("a"),
            to: Ino::ROOT,
            new_name: name("b"),
            mode: RenameMode::Replace,
        },
        ClientMutation::Rename {
            from: Ino::ROOT,
            name: name("b"),
            to: Ino(2),
            new_name: name("a"),
            mode: RenameMode::Whiteout { keep_target: true, ino: Some(Ino(3)) },
        },
        ClientMutation::SetAcl {
            ino: Ino(3),
            class: AclClass::Default,
            value: Bytes::from_static(b"\x02\0\0\0"),
            drop_set_gid: true,
        },
        ClientMutation::Unlink { parent: Ino::ROOT, name: name("b") },
    ];
    let mutate = |(at, mutation): (usize, ClientMutation)| {
        let tx = TxId { session: SessionId(1), slot: 0, sequence: at as u64 + 1 };
        Request::Mutate(Box::new(Mutate { tx, caller: Caller::ROOT, mutation, replay: None }))
    };
    let mut requests: Vec<Request> = mutations.into_iter().enumerate().map(mutate).collect();
    requests.push(Request::ReadDir { dir: Ino::ROOT, after: Cookie::START, limit: 10 });
    requests.push(Request::Read { ino: Ino(2), offset: 0, len_bytes: 1 << 16 });
    let owners = [LockOwner::Fcntl(1), LockOwner::Fcntl(2), LockOwner::Flock(1)];
    for (at, owner) in owners.into_iter().enumerate() {
        let ask = LockAsk {
            ino: Ino(3),
            owner,
            range: LockRange::WHOLE,
            mode: Some(LockMode::Exclusive),
            keep: false,
            pid: 1,
        };
        let tx = TxId { session: SessionId(1), slot: 0, sequence: at as u64 + 1 };
        requests.push(Request::Lock {
            tx,
            ask,
            wait: Some(LockWait { id: at as u64, detect: true }),
        });
    }
    requests.push(Request::EndWait { session: SessionId(1), wait: 1 });
    requests.push(Request::Attach {
        volume: "ebb".into(),
        client: "another".into(),
        previous: None,
        read_only: false,
        cluster: None,
    });
    requests.push(Request::Open { session: SessionId(2), ino: Ino(2) });
    requests.push(Request::Admin(AdminRequest::Flush { path: vec![] }));
    requests.push(Request::Detach { session: SessionId(1) });
    vec![postcard::to_stdvec(&requests).expect("requests have an encoding")]
}
