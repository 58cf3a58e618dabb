//! A node and its clients on machines of their own.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::rig;
use ebb_sim::{Process, World};
use std::rc::Rc;
use std::time::Duration;

const FILES: usize = 24;
const SEEDS: u64 = 25;

fn name(file: usize) -> Name {
    Name::new(format!("file{file}").as_bytes()).unwrap()
}

fn options() -> Options {
    Options { owner: "detached".into(), ..Options::default() }
}

/// A fresh process of the node's machine serves the volume.
async fn serve(world: &World) -> Process {
    let process = world.machine("server").process("node");
    let node = rig::open(&process, &world.bucket(), &options()).await.expect("the process lives").expect("the volume is there");
    rig::serve(&process, "server", &node).await;
    process
}

async fn attach(world: &World, machine: &str) -> (Process, Rc<Client>) {
    let process = world.machine(machine).process("client");
    let client = rig::attach_wire(&process, "server").await.expect("the process lives").expect("the node serves");
    (process, Rc::new(client))
}

async fn make(client: &Client, file: usize) -> (Ino, Bytes) {
    let content = Bytes::from(format!("content of {file}").repeat(file + 1));
    let made = client.make(&Caller::ROOT, Ino::ROOT, &name(file), 0o600, Make::Regular, false).await.unwrap();
    client.write(&Caller::ROOT, made.ino, 0, content.clone(), false).await.unwrap();
    (made.ino, content)
}

async fn check(client: &Client, made: &[(Ino, Bytes)]) {
    for (file, (ino, content)) in made.iter().enumerate() {
        let attr = client.lookup(Ino::ROOT, &name(file)).await.unwrap();
        assert_eq!((attr.ino, attr.size_bytes), (*ino, content.len() as u64), "file {file}");
        assert_eq!(client.read(*ino, 0, content.len() + 1).await.unwrap(), content, "file {file}");
    }
}

/// A client was answered and nothing was forced; the node's machine loses power. The client
/// lives, and asks again for all that is lost, under the same inode ids.
#[test]
fn what_a_power_cut_takes_from_the_node_comes_back_from_its_client() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let done = world.run(async {
            serve(&world).await;
            let (process, client) = attach(&world, "desk").await;
            let writer = client.clone();
            let made = process.call(async move {
                let mut made = Vec::new();
                for file in 0..FILES {
                    made.push(make(&writer, file).await);
                }
                let AdminReply::Status(status) = writer.admin(AdminRequest::Status).await.unwrap() else {
                    panic!("a status was asked for")
                };
                assert!(status.durable_index < status.log_index, "seed {seed}: there is something to lose");
                made
            });
            let made = made.await.expect("the client lives");
            world.machine("server").power_cut();
            serve(&world).await;
            process.call(async move { check(&client, &made).await }).await.expect("the client lives");
        });
        done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Two clients write one file in turn, and connections break again and again: each sees
/// what the other was last answered, and nothing happens twice.
#[test]
fn clients_see_each_other_while_connections_break() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let done = world.run(async {
            serve(&world).await;
            let (left, writer) = attach(&world, "left").await;
            let (right, reader) = attach(&world, "right").await;
            let maker = writer.clone();
            let (ino, _) = left.call(async move { make(&maker, 0).await }).await.expect("the client lives");
            let mut size = writer.getattr(ino).await.unwrap().size_bytes;
            for turn in 0..20u8 {
                let (process, client, other) = if turn % 2 == 0 { (&left, &writer, "right") } else { (&right, &reader, "left") };
                let appending = client.clone();
                let appended = process.call(async move { appending.append(&Caller::ROOT, ino, Bytes::from(vec![turn; 100]), false).await });
                if turn % 3 == 0 {
                    world.net().reset(if turn % 2 == 0 { "left" } else { "right" }, "server");
                }
                let written = appended.await.expect("the client lives").unwrap();
                assert_eq!(written.offset, size, "turn {turn}: appended once, at the end");
                size += 100;
                let (process, client) = if other == "left" { (&left, writer.clone()) } else { (&right, reader.clone()) };
                let seen = process.call(async move { client.read(ino, size - 100, 200).await }).await.expect("the client lives").unwrap();
                assert_eq!(seen, vec![turn; 100], "turn {turn}: the other client reads it at once");
                world.sleep(Duration::from_millis(50)).await;
            }
        });
        done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}
