//! The first message of a connection, against a node that listens (`docs/protocol/rpc.md`).

use bytes::Bytes;
use ebb_format::FormatError;
use ebb_format::rpc::{self, Message, RequestId};
use ebb_format::versions::Versions;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::rig;
use ebb_sim::{Process, World};

/// Sends frames over a new connection, and returns what the node answers until it ends the
/// connection, at most `most` frames.
async fn answers(process: &Process, frames: Vec<Bytes>, most: usize) -> Vec<Bytes> {
    let net = process.ports.net.clone();
    let asking = async move {
        let (mut sender, mut receiver) = net.connect("a:7000").await.unwrap().split();
        for frame in frames {
            sender.send(vec![frame]).await.unwrap();
        }
        let mut answers = Vec::new();
        while answers.len() < most
            && let Ok(Some(frame)) = receiver.receive().await
        {
            answers.push(frame);
        }
        answers
    };
    process.call(asking).await.unwrap()
}

fn request() -> Bytes {
    let parts = rpc::encode_request(RequestId(5), &Request::StatFs { ino: Ino::ROOT }).unwrap();
    parts.concat().into()
}

fn denied(frame: &Bytes) -> String {
    match rpc::decode(frame.clone()) {
        Ok(Message::Error { id: RequestId::NONE, error: RpcError::Denied(why) }) => why,
        other => panic!("{other:?}"),
    }
}

/// Situation: clients of this release, of a later one with and without a common version, of release
/// 0.1.0, and other programs connect. Danger: a request is served in a version that the client does
/// not speak, or one of these peers stops the node. Expectation: requests of a common version are
/// served, the others learn the node's versions, and the node goes on serving.
#[test]
fn node_serves_peers_with_a_common_version_alone() {
    let world = World::new(1);
    let scene = async {
        let process = world.machine("a").process("node");
        let node =
            rig::open(&process, &world.bucket(), &Options::default()).await.unwrap().unwrap();
        rig::serve(&process, "a", &node).await;
        let peer = world.machine("b").process("peer");
        let own = Versions::OWN.encode();
        for (lowest, highest) in [(rpc::VERSION, rpc::VERSION), (1, 255)] {
            let first = Versions::new(lowest, highest).unwrap().encode();
            let served = answers(&peer, vec![first, request()], 2).await;
            assert_eq!(served[0], own);
            assert!(matches!(
                rpc::decode(served[1].clone()),
                Ok(Message::Reply { id: RequestId(5), reply: Reply::Stat(_) })
            ));
        }
        for (lowest, highest) in [(1, 16), (18, 200)] {
            let first = Versions::new(lowest, highest).unwrap().encode();
            assert_eq!(answers(&peer, vec![first, request()], 9).await, std::slice::from_ref(&own));
        }
        // As release 0.1.0 begins.
        let mut old = request().to_vec();
        old[0] = 16;
        let refused = answers(&peer, vec![old.into()], 9).await;
        assert_eq!(refused.len(), 1);
        assert_eq!(
            denied(&refused[0]),
            "protocol versions of a peer: version 16 is not supported (supported: 17); use another \
             version of ebb"
        );
        assert_eq!(refused[0][0], rpc::VERSION, "it names the node's version to the old client");
        // A request in this version needs the first message, too.
        for first in [request(), Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"), Bytes::new()] {
            let refused = answers(&peer, vec![first], 9).await;
            assert!(refused.len() == 1 && !denied(&refused[0]).is_empty());
        }
        let mut damaged = own.to_vec();
        damaged[8] ^= 1;
        assert_eq!(answers(&peer, vec![damaged.into()], 9).await.len(), 1);
        assert!(matches!(
            Versions::decode(&[16]),
            Err(FormatError::Version { found: 16, known: rpc::VERSION, .. })
        ));
        let client = rig::attach_wire(&peer, "a").await.unwrap().unwrap();
        client.statfs(Ino::ROOT).await.unwrap();
    };
    world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
}
