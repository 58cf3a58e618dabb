//! Replicated volumes: several nodes on this machine, each a process with a data directory.

use crate::place::{Place, until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// A volume goes on in this time after the death of its leader, also on a busy machine.
const FAIL_OVER: Duration = Duration::from_secs(15);

/// After this time clients know that what is forced is forced.
const FORCED: Duration = Duration::from_millis(1500);

struct Cluster {
    place: Place,
    addresses: Vec<String>,
    /// The running process of each node.
    children: Vec<usize>,
}

impl Cluster {
    /// Nodes that all vote.
    fn of(count: usize) -> Cluster {
        // Bound at the same time, so that no two are equal.
        let bound: Vec<TcpListener> =
            (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses = bound.iter().map(|it| it.local_addr().unwrap().to_string()).collect();
        drop(bound);
        let mut cluster = Cluster { place: Place::new(), addresses, children: Vec::new() };
        for at in 0..count {
            let child = cluster.start(at);
            cluster.children.push(child);
        }
        until("all nodes vote", || {
            let nodes = cluster.nodes();
            nodes.len() == count && nodes.iter().all(|node| node["votes"] == true)
        });
        cluster
    }

    fn start(&mut self, at: usize) -> usize {
        let (url, data) = (self.place.url().to_owned(), format!("node{at}"));
        let mut args = vec!["serve", "--backing", &url, "--name", "volume", "--data", &data];
        args.extend(["--flush-interval", "1h", "--voters", "3", "--listen", &self.addresses[at]]);
        if at > 0 {
            args.extend(["--join", &self.addresses[0]]);
        }
        let (child, line) = self.place.start(&args);
        assert!(line.contains(&self.addresses[at]) && line.contains("as node"), "{line:?}");
        child
    }

    fn volume(&self) -> String {
        format!("ebb://{}/volume", self.addresses.join(","))
    }

    /// The nodes, as the leader lists them; none without a leader.
    fn nodes(&self) -> Vec<Value> {
        let done = self.place.ebb(&["node", "list", &self.volume(), "--json"]);
        if done.status != 0 {
            return Vec::new();
        }
        done.json().as_array().unwrap().clone()
    }

    fn leader(&self) -> usize {
        let nodes = self.nodes();
        let leader = nodes.iter().find(|node| node["leader"] == true).expect("a node leads");
        self.at(leader)
    }

    fn at(&self, node: &Value) -> usize {
        self.addresses.iter().position(|address| node["address"] == address.as_str()).unwrap()
    }

    fn kill(&mut self, at: usize) {
        self.place.signal(self.children[at], libc::SIGKILL);
    }
}

/// Situation: files are in the bucket, others on the leader alone; the leader is killed.
/// Expectation: the volume goes on within seconds, and everything is there once the killed node
/// runs again.
#[test]
fn cluster_outlives_its_leader() {
    let mut cluster = Cluster::of(3);
    let volume = cluster.volume();
    cluster.place.ebb(&["mount", &volume, "mnt", "--data", "client"]).good();
    let mut written = BTreeMap::new();
    let mut write = |place: &Place, name: String| {
        let content: Vec<u8> =
            (0..40_000u32).map(|at| (at * 7 + name.len() as u32) as u8).collect();
        fs::write(place.path("mnt").join(&name), &content).unwrap();
        written.insert(name, content);
    };
    (0..10).for_each(|number| write(&cluster.place, format!("flushed{number}")));
    cluster.place.ebb(&["flush", "mnt"]).good();
    (0..10).for_each(|number| write(&cluster.place, format!("dirty{number}")));

    // A client repeats writes that are not forced, and for that needs the killed node.
    for number in 0..10 {
        let file = fs::File::open(cluster.place.path(&format!("mnt/dirty{number}"))).unwrap();
        file.sync_all().unwrap();
    }
    std::thread::sleep(FORCED);

    let first = cluster.leader();
    let began = Instant::now();
    cluster.kill(first);
    (0..10).for_each(|number| write(&cluster.place, format!("after{number}")));
    let took = began.elapsed();
    println!("10 files were written {} ms after the leader was killed", took.as_millis());
    assert!(took < FAIL_OVER, "{took:?}");
    assert_ne!(cluster.leader(), first);
    assert_eq!(fs::read(cluster.place.path("mnt/flushed3")).unwrap(), written["flushed3"]);
    let text = cluster.place.ebb(&["status", "mnt"]).good().out;
    assert!(text.contains("nodes     3, of which 3 vote; "), "{text}");
    assert!(text.contains("another node alone: 10"), "{text}");

    cluster.children[first] = cluster.start(first);
    until("the node has caught up", || {
        cluster.nodes().iter().all(|node| node["behind_entries"] == 0)
    });
    for (name, content) in &written {
        assert!(fs::read(cluster.place.path("mnt").join(name)).unwrap() == *content, "{name}");
    }
    cluster.place.ebb(&["flush", "mnt"]).good();
    for (name, content) in &written {
        assert!(fs::read(cluster.place.path("backing").join(name)).unwrap() == *content, "{name}");
    }

    let nodes = cluster.nodes();
    let leads = nodes.iter().find(|node| node["leader"] == true).unwrap();
    let id = leads["node"].as_str().unwrap();
    cluster.place.ebb(&["node", "remove", "mnt", id]).refused(1, "the node that leads cannot be");
    let follows = nodes.iter().find(|node| node["leader"] == false).unwrap();
    let (at, id) = (cluster.at(follows), follows["node"].as_str().unwrap());
    let left = cluster.place.ebb(&["node", "remove", "mnt", id, "--json"]).good().json();
    assert_eq!(left.as_array().unwrap().len(), 2, "{left}");
    assert_eq!(cluster.place.ended(cluster.children[at]), 1, "a removed node ends");
    fs::write(cluster.place.path("mnt/with two"), "nodes").unwrap();
    cluster.place.umount();
}

/// Situation: SIGTERM to the leader. Expectation: another node leads at once, and no file is on the
/// stopped node alone.
#[test]
fn cluster_leader_hands_over_when_it_stops() {
    let mut cluster = Cluster::of(3);
    let volume = cluster.volume();
    cluster.place.ebb(&["mount", &volume, "mnt", "--data", "client"]).good();
    fs::write(cluster.place.path("mnt/file"), "content").unwrap();
    let first = cluster.leader();
    let began = Instant::now();
    assert_eq!(cluster.place.signal(cluster.children[first], libc::SIGTERM), 0);
    fs::write(cluster.place.path("mnt/other"), "more").unwrap();
    println!("a file was written {} ms after SIGTERM to the leader", began.elapsed().as_millis());
    assert_ne!(cluster.leader(), first);
    assert_eq!(fs::read_to_string(cluster.place.path("mnt/file")).unwrap(), "content");
    cluster.children[first] = cluster.start(first);
    cluster.place.umount();
}

#[test]
fn cluster_settings_that_do_not_fit_are_refused() {
    let place = Place::new();
    let url = place.url().to_owned();
    let refused = |more: &[&str], status: i32, text: &str| {
        let serve = ["serve", "--backing", &url, "--name", "volume", "--data", "node"];
        place.ebb(&[&serve[..], more].concat()).refused(status, text);
    };
    let listen = ["--listen", "127.0.0.1:1"];
    refused(&[&listen[..], &["--voters", "3", "--take-over", "never"]].concat(), 2, "read-only");
    refused(&["--voters", "3", "--listen", "127.0.0.1:0"], 2, "a port that stays the same");
}
