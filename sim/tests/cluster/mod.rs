//! Volumes on several machines.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::cluster::Cluster;
use ebb_sim::{Process, World};
use std::time::Duration;

mod failing;
mod forming;
mod planted;
mod seeds;

const SEEDS: u64 = 4;

const SECONDS: Duration = Duration::from_secs(1);

fn options() -> Options {
    Options { flush_interval: Duration::from_secs(3600), ..Options::default() }
}

async fn formed(world: &World, machines: usize) -> Cluster<'_> {
    let mut cluster = Cluster::new(world, machines, machines, options());
    cluster
        .until("all vote", 60 * SECONDS, |cluster| cluster.votes(machines))
        .await
        .unwrap_or_else(|why| panic!("{why}"));
    cluster
}

async fn client(world: &World, cluster: &Cluster<'_>, machine: &str) -> (Process, Client) {
    let process = world.machine(machine).process("mount");
    let attached = cluster.attach(&process).await.expect("the client lives");
    (process, attached.unwrap_or_else(|error| panic!("{error}")))
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

async fn make(client: &Client, file: &str) -> Ino {
    let made =
        client.make(&Caller::ROOT, Ino::ROOT, &name(file), 0o644, Make::Regular, false).await;
    made.unwrap_or_else(|error| panic!("{file}: {error}")).ino
}

async fn write(client: &Client, ino: Ino, at: u64, bytes: &'static [u8]) {
    let written = client.write(&Caller::ROOT, ino, at, Bytes::from_static(bytes), false).await;
    written.unwrap_or_else(|error| panic!("{error}"));
}
