//! The life of a volume without faults, from its first mount to another node that has nothing but
//! the bucket.

use bytes::Bytes;
use ebb_client::{Client, ClientPorts, LocalLink, Options as ClientOptions};
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::{Process, World};
use std::rc::Rc;
use std::time::Duration;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

async fn start(process: Process, world_bucket: Rc<dyn ebb_ports::Bucket>) -> (Rc<Node>, Client) {
    let options = Options {
        embedded: true,
        segment_bytes: 64 << 10,
        owner: "smoke".into(),
        ..Options::default()
    };
    let node = Node::open(process.ports.clone(), Some(world_bucket), options).await.unwrap();
    let (handle, notices) = (node.clone(), node.clone());
    let link = LocalLink::new(
        move |request| handle.handle(request),
        move |session| {
            let node = notices.clone();
            Box::pin(async move { node.next_notice(session).await })
        },
    );
    let client = Client::attach(
        Rc::new(link),
        ClientPorts::from(&process.ports),
        ClientOptions::new("ebb", "smoke"),
    )
    .await
    .unwrap();
    (node, client)
}

#[test]
fn smoke() {
    let world = World::new(1);
    let bucket = world.bucket();
    let process = world.machine("a").process("node");
    let port = process.bucket(&bucket);
    let inner = process.clone();
    let root = Caller::ROOT;
    let done = world.run(process.call(async move {
        let (node, client) = start(inner, port).await;
        let dir = client
            .make(&root, Ino::ROOT, &name("dir"), 0o750, Make::Directory, false)
            .await
            .unwrap();
        let file =
            client.make(&root, dir.ino, &name("file"), 0o640, Make::Regular, true).await.unwrap();
        client.write(&root, file.ino, 0, Bytes::from_static(b"hello"), false).await.unwrap();
        client.write(&root, file.ino, 100_000, Bytes::from(vec![7; 70_000]), false).await.unwrap();
        let data = client.read(file.ino, 0, 200_000).await.unwrap();
        assert_eq!(data.len(), 170_000);
        client
            .rename(&root, dir.ino, &name("file"), Ino::ROOT, &name("moved"), RenameMode::Replace)
            .await
            .unwrap();
        client.make(&root, dir.ino, &name("gone"), 0o640, Make::Regular, false).await.unwrap();
        client.unlink(&root, dir.ino, &name("gone")).await.unwrap();
        client
            .make(
                &root,
                dir.ino,
                &name("link"),
                0o777,
                Make::Symlink { target: Bytes::from_static(b"to") },
                false,
            )
            .await
            .unwrap();
        client.close(file.ino);
        client.fsync(file.ino).await.unwrap();
        let page = client.readdir(Ino::ROOT, Cookie::START, 100).await.unwrap();
        assert_eq!(page.entries.len(), 2);
        client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        let AdminReply::Fsck(report) = client.admin(AdminRequest::Fsck).await.unwrap() else {
            panic!("another answer")
        };
        assert_eq!(report.problems, []);
        client.detach(Duration::from_secs(5)).await.unwrap();
        node.stop(true).await.unwrap();
    }));
    done.unwrap().unwrap();
    assert_eq!(bucket.objects()["moved"].body.len(), 170_000);
    process.kill();
    for data in ["node", "other"] {
        let process = world.machine("a").process_on("node", data);
        let port = process.bucket(&bucket);
        let inner = process.clone();
        world
            .run(process.call(async move {
                let (node, client) = start(inner, port).await;
                let moved = client.lookup(Ino::ROOT, &name("moved")).await.unwrap();
                let data = client.read(moved.ino, 0, 200_000).await.unwrap();
                assert_eq!(data.len(), 170_000);
                assert_eq!(data[..5], *b"hello");
                client.detach(Duration::from_secs(5)).await.unwrap();
                node.stop(true).await.unwrap();
            }))
            .unwrap()
            .unwrap();
        process.kill();
    }
}

/// A detaching client is notified of the end of its session before it gets the reply.
#[test]
fn detached_client_does_not_attach_again() {
    let world = World::new(1);
    let process = world.machine("a").process("node");
    let (port, inner) = (process.bucket(&world.bucket()), process.clone());
    let attached = world.run(process.call(async move {
        let (node, client) = start(inner.clone(), port).await;
        client
            .make(&Caller::ROOT, Ino::ROOT, &name("dir"), 0o750, Make::Directory, false)
            .await
            .unwrap();
        client.detach(Duration::from_secs(5)).await.unwrap();
        inner.ports.clock.sleep(Duration::from_secs(5)).await;
        let Ok(Reply::Admin(AdminReply::Stats(stats))) =
            node.handle(Request::Admin(AdminRequest::Stats)).await
        else {
            panic!()
        };
        stats
            .requests
            .iter()
            .find(|request| request.name == "attach")
            .map(|attached| attached.tally.time.count())
    }));
    assert_eq!(attached.unwrap().unwrap(), Some(1));
}
