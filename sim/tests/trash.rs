//! The trash under load, deaths of nodes and lost caches: a removed file is in it or deleted for
//! good, never in between.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options, Stopped};
use ebb_sim::volume::rig;
use ebb_sim::{Process, Rng, World};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;
const SEEDS: u64 = 24;
const LIVES: u64 = 5;
const KEEP_SECS: u64 = 1 << 30;

fn options() -> Options {
    Options {
        owner: "trash".into(),
        embedded: true,
        flush_interval: Duration::from_secs(1),
        ..Options::default()
    }
}

/// The entry at a path: the content of a file, or `None` for a directory.
type Thing = Option<Vec<u8>>;

/// All entries by path, and the trash in path order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Volume {
    tree: BTreeMap<String, Thing>,
    trash: Vec<(String, Thing)>,
}

/// Situation: a client creates, writes, removes, replaces, restores and purges in a volume with a
/// trash, and the node is killed, loses power, or restarts with only the bucket. Danger: an entry
/// is both in the trash and at its path, or in neither; a restored file is changed. Expectation:
/// every reply matches a model, and after every start tree and trash are as after the last
/// operation, or after a power cut as after one that was not forced yet.
#[test]
fn tree_and_trash_are_one_state() {
    let mut restored = 0;
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let rng = Rc::new(world.rng("trash"));
        restored += world
            .run(tell(world.clone(), rng))
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    assert!(restored > SEEDS, "only {restored} were restored");
}

async fn tell(world: Rc<World>, rng: Rc<Rng>) -> u64 {
    let mut data = "data0".to_owned();
    let mut restored = 0;
    // All states since the last certain force, the oldest first.
    let mut history = vec![Volume::default()];
    for life in 0..LIVES {
        let process = world.machine("a").process_on("ebb", &data);
        let node = rig::open(&process, &world.bucket(), &options()).await.unwrap().unwrap();
        let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        let seen = {
            let client = client.clone();
            process.call(async move { look(&client, life == 0).await }).await.unwrap()
        };
        let at = history.iter().rposition(|state| *state == seen);
        assert!(at.is_some(), "life {life}: {seen:?} is none of {history:?}");
        history = vec![seen];
        let (steps, end) = (rng.below(60), rng.below(3));
        for step in 0..steps {
            let names_only = end == 1 && step >= steps / 2;
            if end == 1 && step == steps / 2 {
                let client = client.clone();
                process.call(async move { client.sync_fs().await.unwrap() }).await.unwrap();
                history.drain(..history.len() - 1);
            }
            world.sleep(rng.duration(Duration::ZERO, Duration::from_millis(200))).await;
            let mut state = history.last().unwrap().clone();
            let step =
                Step { client: client.clone(), rng: rng.clone(), world: world.clone(), names_only };
            let done = process.call(async move {
                let restored = step.run(&mut state).await;
                (restored, state)
            });
            let (came_back, state) = done.await.unwrap();
            restored += u64::from(came_back);
            history.push(state);
            if came_back {
                // A restore is forced, with everything before it.
                history.drain(..history.len() - 1);
            }
        }
        match end {
            0 => {
                process.kill();
                history.drain(..history.len() - 1);
            }
            1 => world.machine("a").power_cut(),
            _ => {
                stop(&process, &node, &client).await;
                data = format!("data of {life}");
                history.drain(..history.len() - 1);
            }
        }
        world.sleep(Duration::from_secs(40)).await;
    }
    restored
}

/// Checks the node's consistency, and returns the state.
async fn look(client: &Client, first: bool) -> Volume {
    if first {
        let value = Bytes::from(KEEP_SECS.to_string());
        client
            .setxattr(&ROOT, Ino::ROOT, Bytes::from_static(KEEP), value, XattrMode::Set)
            .await
            .unwrap();
        client.sync_fs().await.unwrap();
    }
    let mut volume = Volume::default();
    for (path, node) in rig::walk(client).await.unwrap() {
        if !path.is_empty() {
            let thing = (node.attr.kind == FileKind::Regular).then(|| node.content.to_vec());
            volume.tree.insert(String::from_utf8(path).unwrap(), thing);
        }
    }
    for entry in listed(client).await {
        volume.trash.push((path_of(&entry), content(client, &entry).await));
    }
    volume.trash.sort();
    let report = rig::fsck(client).await.unwrap();
    assert_eq!(report.problems, vec![]);
    volume
}

async fn listed(client: &Client) -> Vec<TrashEntry> {
    let (mut all, mut at) = (Vec::new(), Some(TrashPoint::default()));
    while let Some(from) = at {
        match client.admin(AdminRequest::ListTrash { path: vec![], from }).await.unwrap() {
            AdminReply::Trash { entries, next } => {
                all.extend(entries);
                at = next;
            }
            other => panic!("{other:?}"),
        }
    }
    all
}

fn path_of(entry: &TrashEntry) -> String {
    String::from_utf8(entry.trashed.path.to_vec()).unwrap()
}

async fn content(client: &Client, entry: &TrashEntry) -> Thing {
    match entry.kind {
        FileKind::Regular => Some(client.read(entry.ino, 0, MAX_IO_BYTES).await.unwrap().to_vec()),
        _ => None,
    }
}

async fn stop(process: &Process, node: &Rc<Node>, client: &Rc<Client>) {
    let (node, client) = (node.clone(), client.clone());
    let stopped = process.call(async move {
        client.detach(Duration::from_secs(30)).await.unwrap();
        node.stop(true).await
    });
    let stopped = stopped.await.unwrap();
    process.kill();
    assert_eq!(stopped, Ok(Stopped::Released));
}

fn names(path: &str) -> Vec<Name> {
    path.split('/').map(|name| Name::new(name.as_bytes()).unwrap()).collect()
}

struct Step {
    client: Rc<Client>,
    rng: Rc<Rng>,
    world: Rc<World>,
    /// No bytes are written: a power cut takes the last operations, but of bytes any that were not
    /// forced.
    names_only: bool,
}

impl Step {
    /// True if something was restored.
    async fn run(&self, state: &mut Volume) -> bool {
        let (rng, client) = (&self.rng, &self.client);
        let path = self.path();
        let Some((dir, name)) = self.place(&path).await else { return false };
        match rng.below(12) {
            0..=3 => {
                let len = if self.names_only { 0 } else { 1 + rng.index(200_000) };
                let content = vec![rng.below(256) as u8; len];
                let expected =
                    if state.tree.contains_key(&path) { Err(FsError::Exists) } else { Ok(()) };
                let made = client.make(&ROOT, dir, &name, 0o644, Make::Regular, false).await;
                assert_eq!(made.as_ref().map(drop), expected.as_ref().copied(), "{path}");
                if let Ok(attr) = made {
                    if !content.is_empty() {
                        client
                            .write(&ROOT, attr.ino, 0, Bytes::from(content.clone()), false)
                            .await
                            .unwrap();
                    }
                    state.tree.insert(path, Some(content));
                }
            }
            4 => {
                let expected =
                    if state.tree.contains_key(&path) { Err(FsError::Exists) } else { Ok(()) };
                let made =
                    client.make(&ROOT, dir, &name, 0o755, Make::Directory, false).await.map(drop);
                assert_eq!(made, expected, "{path}");
                state.tree.entry(path).or_insert(None);
            }
            5 | 6 => self.unlink(state, &path, (dir, &name)).await,
            7 => {
                let is_empty =
                    !state.tree.keys().any(|other| other.starts_with(&format!("{path}/")));
                let done = client.rmdir(&ROOT, dir, &name).await.map(drop);
                match state.tree.get(&path) {
                    None => assert_eq!(done, Err(FsError::NotFound)),
                    Some(Some(_)) => assert_eq!(done, Err(FsError::NotDirectory)),
                    Some(None) if !is_empty => assert_eq!(done, Err(FsError::NotEmpty)),
                    Some(None) => {
                        assert_eq!(done, Ok(()));
                        remove(state, &path);
                    }
                }
            }
            8 | 9 => {
                let to = self.path();
                let Some((to_dir, to_name)) = self.place(&to).await else { return false };
                let is_file = |path: &str| matches!(state.tree.get(path), Some(Some(_)));
                if !is_file(&path) || path == to || state.tree.contains_key(&to) && !is_file(&to) {
                    return false;
                }
                client
                    .rename(&ROOT, dir, &name, to_dir, &to_name, RenameMode::Replace)
                    .await
                    .unwrap();
                remove(state, &to);
                let moved = state.tree.remove(&path).unwrap();
                state.tree.insert(to, moved);
            }
            10 => {
                let entries = listed(client).await;
                if entries.is_empty() {
                    return false;
                }
                let entry = &entries[rng.index(entries.len())];
                let (was, thing) = (path_of(entry), content(client, entry).await);
                let done =
                    client.admin(AdminRequest::Restore { ino: entry.ino, to: names(&path) }).await;
                if state.tree.contains_key(&path) {
                    assert_eq!(done, Err(FsError::Exists));
                    return false;
                }
                assert_eq!(done, Ok(AdminReply::Restored));
                let at = state.trash.iter().position(|kept| *kept == (was.clone(), thing.clone()));
                state.trash.remove(
                    at.unwrap_or_else(|| panic!("{was} was never removed as it comes back")),
                );
                state.tree.insert(path, thing);
                return true;
            }
            _ => {
                if rng.below(3) > 0 {
                    return false;
                }
                let until = Time { secs: i64::MAX, nanos: 0 };
                let mut at = Some(TrashPoint::default());
                while let Some(from) = at {
                    match client
                        .admin(AdminRequest::EmptyTrash { path: names(&path), until, from })
                        .await
                        .unwrap()
                    {
                        AdminReply::Emptied { next, .. } => at = next,
                        other => panic!("{other:?}"),
                    }
                }
                let below = format!("{path}/");
                state.trash.retain(|(kept, _)| *kept != path && !kept.starts_with(&below));
            }
        }
        false
    }

    /// At times while it is open and written.
    async fn unlink(&self, state: &mut Volume, path: &str, (dir, name): (Ino, &Name)) {
        let client = &self.client;
        let is_open = !self.names_only && self.rng.below(3) == 0;
        let found = client.lookup(dir, name).await;
        if let (true, Ok(attr)) = (is_open, &found) {
            client.open(attr.ino).await.unwrap();
        }
        let done = client.unlink(&ROOT, dir, name).await.map(drop);
        match state.tree.get(path) {
            None => assert_eq!(done, Err(FsError::NotFound)),
            Some(None) => assert_eq!(done, Err(FsError::IsDirectory)),
            Some(Some(_)) => {
                assert_eq!(done, Ok(()));
                if is_open {
                    let ino = found.as_ref().unwrap().ino;
                    client.write(&ROOT, ino, 0, Bytes::from_static(b"late"), false).await.unwrap();
                    let content = state.tree.get_mut(path).unwrap().as_mut().unwrap();
                    content.resize(content.len().max(4), 0);
                    content[..4].copy_from_slice(b"late");
                }
                remove(state, path);
            }
        }
        if let (true, Ok(attr)) = (is_open, &found) {
            client.close(attr.ino);
        }
        self.world.sleep(Duration::from_millis(1)).await;
    }

    fn path(&self) -> String {
        let name = ["x", "y", "z"][self.rng.index(3)];
        match self.rng.below(3) {
            0 => name.to_owned(),
            1 => format!("d/{name}"),
            _ => "d".to_owned(),
        }
    }

    /// `None` if the directory is not there.
    async fn place(&self, path: &str) -> Option<(Ino, Name)> {
        let mut names = names(path);
        let name = names.pop()?;
        let mut dir = Ino::ROOT;
        for name in names {
            let attr = self.client.lookup(dir, &name).await.ok()?;
            dir = (attr.kind == FileKind::Directory).then_some(attr.ino)?;
        }
        Some((dir, name))
    }
}

/// Moves the entry at the path to the trash.
fn remove(state: &mut Volume, path: &str) {
    if let Some(thing) = state.tree.remove(path) {
        state.trash.push((path.to_owned(), thing));
        state.trash.sort();
    }
}

/// Situation: many entries are kept for 100 seconds or for a day, and the cache is lost in between.
/// Expectation: each is deleted after its time and not before, by the node that serves then, and
/// leaves nothing in the bucket.
#[test]
fn trash_entries_expire_after_their_time() {
    for seed in 0..4 {
        let world = Rc::new(World::new(seed));
        world.run(expire(world.clone())).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

async fn expire(world: Rc<World>) {
    let mut data = "data0".to_owned();
    let began = world.machine("a").process_on("ebb", &data);
    let node = rig::open(&began, &world.bucket(), &options()).await.unwrap().unwrap();
    let client = Rc::new(rig::attach_embedded(&began, &node).await.unwrap().unwrap());
    let filling = client.clone();
    let fill = async move {
        let client = filling;
        for (dir, keep) in [("short", "100"), ("long", "86400")] {
            let dir = client
                .make(&ROOT, Ino::ROOT, &names(dir)[0], 0o755, Make::Directory, false)
                .await
                .unwrap()
                .ino;
            client
                .setxattr(
                    &ROOT,
                    dir,
                    Bytes::from_static(KEEP),
                    Bytes::from_static(keep.as_bytes()),
                    XattrMode::Set,
                )
                .await
                .unwrap();
            for at in 0..250 {
                let name = names(&format!("f{at}")).remove(0);
                let ino =
                    client.make(&ROOT, dir, &name, 0o644, Make::Regular, false).await.unwrap().ino;
                client.write(&ROOT, ino, 0, Bytes::from(vec![1; 100]), false).await.unwrap();
                client.unlink(&ROOT, dir, &name).await.unwrap();
            }
        }
    };
    began.call(fill).await.unwrap();
    world.sleep(Duration::from_secs(80)).await;
    let counting = client.clone();
    assert_eq!(
        began.call(async move { listed(&counting).await.len() }).await,
        Some(500),
        "it is not yet their time"
    );
    stop(&began, &node, &client).await;
    data.push_str("after");
    let process = world.machine("a").process_on("ebb", &data);
    let node = rig::open(&process, &world.bucket(), &options()).await.unwrap().unwrap();
    let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
    let looking = client.clone();
    process.call(async move { rig::walk(&looking).await.unwrap() }).await.unwrap();
    world.sleep(Duration::from_secs(200)).await;
    let counting = client.clone();
    let left = process.call(async move { listed(&counting).await }).await.unwrap();
    assert_eq!(left.len(), 250);
    assert!(left.iter().all(|entry| path_of(entry).starts_with("long/")));
    let checking = client.clone();
    let report = process.call(async move { rig::fsck(&checking).await.unwrap() }).await.unwrap();
    assert_eq!(report.problems, vec![]);
    stop(&process, &node, &client).await;
}

/// Situation: a node that has listed nothing removes a file. The trash has more entries than one
/// part of its listing has, or the root has more keys before the trash's and there is no trash.
/// Danger: the node looks for the name in the trash, does not find it, and asks for the removal to
/// be sent again until somebody lists all of the directory. Expectation: it is removed at once.
#[test]
fn removal_waits_for_no_listing_of_the_trash() {
    for (seed, removed, kept) in [(90, 5, 1), (91, 0, 5)] {
        let world = Rc::new(World::new(seed));
        world.bucket().list_at_most(2);
        let scene = remove_one_more(world.clone(), removed, kept);
        world.run(scene).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

async fn remove_one_more(world: Rc<World>, removed: usize, kept: usize) {
    let process = world.machine("a").process_on("ebb", "first");
    let node = rig::open(&process, &world.bucket(), &options()).await.unwrap().unwrap();
    let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
    let filling = client.clone();
    let fill = async move {
        look(&filling, true).await;
        for at in 0..removed + kept {
            // Sorts before the trash.
            let name = names(&format!("!{at}")).remove(0);
            let made = filling.make(&ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false).await;
            let (ino, bytes) = (made.unwrap().ino, Bytes::from_static(b"bytes"));
            filling.write(&ROOT, ino, 0, bytes, false).await.unwrap();
            if at < removed {
                filling.unlink(&ROOT, Ino::ROOT, &name).await.unwrap();
            }
        }
    };
    process.call(fill).await.unwrap();
    stop(&process, &node, &client).await;
    let process = world.machine("a").process_on("ebb", "second");
    let node = rig::open(&process, &world.bucket(), &options()).await.unwrap().unwrap();
    let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
    let (removing, began) = (client.clone(), world.now());
    let last = names(&format!("!{}", removed + kept - 1)).remove(0);
    let removal = async move { removing.unlink(&ROOT, Ino::ROOT, &last).await };
    process.call(removal).await.unwrap().unwrap();
    let took = world.now() - began;
    assert!(took < Duration::from_secs(5), "{took:?}");
    let counting = client.clone();
    assert_eq!(process.call(async move { listed(&counting).await.len() }).await, Some(removed + 1));
    stop(&process, &node, &client).await;
}
