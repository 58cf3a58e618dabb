//! A node and its clients on machines of their own.

mod attaching;
mod barrier;
mod failing;
mod leases;
mod power;
mod sharing;

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options, Stopped};
use ebb_sim::volume::rig;
use ebb_sim::{DiskFaults, FaultPlan, Process, Rate, Slowness, World};
use std::rc::Rc;
use std::time::Duration;

const FILES: usize = 24;
const SEEDS: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(60);

fn name(file: usize) -> Name {
    Name::new(format!("file{file}").as_bytes()).unwrap()
}

fn options() -> Options {
    Options { owner: "detached".into(), ..Options::default() }
}

/// A fresh process of the node's machine serves the volume.
async fn serve(world: &World) -> Process {
    serve_with(world, options()).await
}

async fn serve_with(world: &World, options: Options) -> Process {
    serve_one(world, options).await.0
}

async fn serve_one(world: &World, options: Options) -> (Process, Rc<Node>) {
    let process = world.machine("server").process("node");
    let node = rig::open(&process, &world.bucket(), &options)
        .await
        .expect("the process lives")
        .expect("the volume is there");
    rig::serve(&process, "server", &node).await;
    (process, node)
}

/// In good order. A volume that is given back has nothing left that would be lost with its node.
async fn stop((process, node): (Process, Rc<Node>)) -> Result<Stopped, RpcError> {
    process.call(async move { node.stop(true).await }).await.expect("the process lives")
}

async fn attach(world: &World, machine: &str) -> (Process, Rc<Client>) {
    let process = world.machine(machine).process("client");
    let client = rig::attach_wire(&process, "server")
        .await
        .expect("the process lives")
        .expect("the node serves");
    (process, Rc::new(client))
}

/// As long as the process lives, which it ends by itself if its disk fails.
async fn ended(world: &World, process: &Process) {
    while process.is_alive() {
        world.sleep(Duration::from_millis(10)).await;
    }
}

fn run(seed: u64, world: &World, story: impl Future<Output = ()>) {
    world.run(story).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
}

async fn make(client: &Client, file: usize) -> (Ino, Bytes) {
    let content = Bytes::from(format!("content of {file}").repeat(file + 1));
    let made = client
        .make(&Caller::ROOT, Ino::ROOT, &name(file), 0o600, Make::Regular, false)
        .await
        .unwrap();
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
