//! Memory for bytes on their way between buckets and the cache (O-97).

use bytes::Bytes;
use ebb_client::{Client, ClientPorts, LocalLink, Options as ClientOptions};
use ebb_model::*;
use ebb_node::side_by_side::Member;
use ebb_node::{Node, Options};
use ebb_sim::{SimBucket, World};
use std::rc::Rc;
use std::time::Duration;

const FILES: usize = 100;
const FILE_BYTES: usize = 200 << 10;
const MEMBER: &str = "member";

fn content(file: usize) -> Vec<u8> {
    vec![file as u8; FILE_BYTES]
}

fn fill(bucket: &SimBucket) {
    (0..FILES).for_each(|file| {
        drop(bucket.put_as_outsider(&file.to_string(), Bytes::from(content(file)), vec![]).unwrap())
    });
}

async fn ino(client: &Client, dir: Ino, name: &str) -> Ino {
    client.lookup(dir, &Name::new(name.as_bytes()).unwrap()).await.unwrap().ino
}

/// Situation: one of two buckets does not answer, and more reads of it are pending than the buffer
/// limit permits. Danger: they take all buffers and slots from reads of the other bucket.
/// Expectation: those complete at once.
#[test]
fn a_bucket_that_does_not_answer_keeps_its_share_and_no_more() {
    for buffer_bytes in [1 << 20, 1 << 30] {
        let world = World::new(1);
        let [root, member] = ["root", "member"].map(|name| world.bucket_named(name));
        [&root, &member].into_iter().for_each(fill);
        let done = world.run(async {
            let process = world.machine("a").process("node");
            let options = Options {
                owner: "buffers".into(),
                embedded: true,
                buffer_bytes,
                ..Options::default()
            };
            let members =
                vec![Member::new(MemberDir::new(MEMBER).unwrap(), process.bucket(&member))];
            let opened = Node::open_side_by_side(
                process.ports.clone(),
                process.bucket(&root),
                members,
                options,
            )
            .await
            .unwrap();
            let (handle, notices) = (opened.clone(), opened.clone());
            let link = LocalLink::new(
                move |request| handle.handle(request),
                move |session| {
                    let node = notices.clone();
                    Box::pin(async move { node.next_notice(session).await })
                },
            );
            let client = Rc::new(
                Client::attach(
                    Rc::new(link),
                    ClientPorts::from(&process.ports),
                    ClientOptions::new("ebb", "buffers"),
                )
                .await
                .unwrap(),
            );
            let work = process.call({
                let (clock, spawn) = (process.ports.clock.clone(), process.ports.spawn.clone());
                let member = member.clone();
                async move {
                    let dir = ino(&client, Ino::ROOT, MEMBER).await;
                    let mut files = Vec::new();
                    for file in 0..FILES {
                        files.push((
                            ino(&client, dir, &file.to_string()).await,
                            ino(&client, Ino::ROOT, &file.to_string()).await,
                        ));
                    }
                    member.vanish_for(Duration::from_secs(3600));
                    for (lost, _) in files.clone() {
                        let client = client.clone();
                        spawn.spawn(Box::pin(async move {
                            drop(client.read(lost, 0, FILE_BYTES).await)
                        }));
                    }
                    clock.sleep(Duration::from_secs(1)).await;
                    let began = clock.monotonic();
                    for (file, (_, ino)) in files.into_iter().enumerate() {
                        assert!(client.read(ino, 0, FILE_BYTES).await.unwrap() == content(file));
                    }
                    assert!(
                        clock.monotonic() - began < Duration::from_secs(10),
                        "{:?}",
                        clock.monotonic() - began
                    );
                }
            });
            work.await.expect("the process lives");
        });
        done.unwrap_or_else(|failure| panic!("{buffer_bytes}: {failure}"));
    }
}
