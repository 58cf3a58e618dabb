//! Inode ids of whole nodes: slots, and ranges of take-overs.

use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::volume::rig;
use ebb_sim::{Process, World};
use std::collections::BTreeSet;
use std::rc::Rc;

const ROOT: Caller = Caller::ROOT;

struct Mount {
    #[expect(dead_code, reason = "lives as long as its client")]
    process: Process,
    #[expect(dead_code, reason = "lives as long as its client")]
    node: Rc<Node>,
    client: Client,
}

async fn mount(world: &World, machine: &str) -> Mount {
    let process = world.machine(machine).process_on("node", "data");
    let options = Options {
        owner: machine.into(),
        embedded: true,
        scrub_interval: None,
        ..Options::default()
    };
    let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
    let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
    Mount { process, node, client }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

impl Mount {
    async fn make(&self, dir: Ino, text: &str, what: Make) -> Ino {
        self.client.make(&ROOT, dir, &name(text), 0o755, what, false).await.unwrap().ino
    }

    async fn lookup(&self, dir: Ino, text: &str) -> Ino {
        self.client.lookup(dir, &name(text)).await.unwrap().ino
    }
}

fn run(seed: u64, scene: impl AsyncFnOnce(&World)) {
    let world = World::new(seed);
    world.run(scene(&world)).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: directories and files are made, and found in the bucket. Danger: all of them are in
/// one slot, and the volume cannot be split later. Expectation: each directory draws a slot of its
/// own, and files share the slot of their directory.
#[test]
fn slots_are_drawn_for_directories_and_shared_by_their_files() {
    run(1, async |world| {
        for key in ["found/a", "found/b", "other/c"] {
            world.bucket().put_as_outsider(key, "content", Vec::new()).unwrap();
        }
        let mount = mount(world, "a").await;
        let mut dirs = Vec::new();
        for number in 0..20 {
            let dir = mount.make(Ino::ROOT, &format!("d{number}"), Make::Directory).await;
            let below = mount.make(dir, "below", Make::Directory).await;
            let file = mount.make(dir, "file", Make::Regular).await;
            assert_eq!(file.slot(), dir.slot());
            dirs.extend([dir, below]);
        }
        for (dir, files) in [("found", vec!["a", "b"]), ("other", vec!["c"])] {
            let dir = mount.lookup(Ino::ROOT, dir).await;
            dirs.push(dir);
            for file in files {
                assert_eq!(mount.lookup(dir, file).await.slot(), dir.slot());
            }
        }
        let slots: BTreeSet<Slot> = dirs.iter().map(|dir| dir.slot()).collect();
        assert!(slots.len() > 40, "42 of 65,536 slots seldom meet: {slots:?}");
        let file = mount.make(Ino::ROOT, "file", Make::Regular).await;
        assert_eq!(file.slot(), Ino::ROOT.slot());
    });
}
