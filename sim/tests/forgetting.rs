//! Metadata that exceeds its memory limit: clean names are evicted and loaded again, and no client
//! notices.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options, Stopped};
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, DiskFaults, FaultPlan, Process, Rate, Rng, Slowness, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;
const SEEDS: u64 = 4;
const STEPS: u64 = 400;
const DIRS: u64 = 12;
const FOUND_DIRS: u64 = 20;
const FOUND_FILES: u64 = 30;

/// Far less than all names take.
const LIMIT: u64 = 120_000;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// A kernel's references to inodes: each is kept until the kernel is asked to drop it, or drops it
/// by itself.
#[derive(Clone)]
struct Kernel(Rc<Inodes>);

struct Inodes {
    rng: Rng,
    /// With how many use each now.
    held: RefCell<BTreeMap<Ino, u32>>,
    names: RefCell<BTreeMap<(Ino, String), Ino>>,
}

/// An inode that is used: it is not given up.
struct Used {
    kernel: Kernel,
    ino: Ino,
}

impl Drop for Used {
    fn drop(&mut self) {
        if let Some(users) = self.kernel.0.held.borrow_mut().get_mut(&self.ino) {
            *users -= 1;
        }
    }
}

impl Kernel {
    fn new(rng: Rng) -> Kernel {
        Kernel(Rc::new(Inodes { rng, held: RefCell::default(), names: RefCell::default() }))
    }

    fn told(&self, parent: Ino, text: &str, ino: Ino) -> Used {
        self.0.names.borrow_mut().insert((parent, text.into()), ino);
        self.using(ino)
    }

    fn using(&self, ino: Ino) -> Used {
        *self.0.held.borrow_mut().entry(ino).or_default() += 1;
        Used { kernel: self.clone(), ino }
    }

    fn known(&self, parent: Ino, text: &str) -> Option<Used> {
        let ino = self.0.names.borrow().get(&(parent, text.to_owned())).copied()?;
        Some(self.using(ino))
    }

    fn lost(&self, parent: Ino, text: &str) {
        self.0.names.borrow_mut().remove(&(parent, text.to_owned()));
    }

    fn give_up(&self, inos: Vec<Ino>) -> Vec<Ino> {
        let mut held = self.0.held.borrow_mut();
        for ino in &inos {
            if held.get(ino) == Some(&0) && self.0.rng.below(4) != 0 {
                held.remove(ino);
                self.0
                    .names
                    .borrow_mut()
                    .retain(|(parent, _), child| child != ino && parent != ino);
            }
        }
        inos.into_iter().filter(|ino| held.contains_key(ino)).collect()
    }
}

/// The expected state of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct File {
    ino: Ino,
    mode: u16,
    mtime: Time,
    content: Bytes,
}

/// Works in a directory of its own, and reads objects of another program.
struct Worker {
    world: Rc<World>,
    client: Client,
    kernel: Kernel,
    rng: Rng,
    top: String,
    files: Rc<RefCell<BTreeMap<(String, String), File>>>,
    /// Inode ids under which each object was seen.
    found: Rc<RefCell<BTreeMap<String, BTreeSet<Ino>>>>,
    refused: Rc<Cell<u64>>,
}

fn found_content(dir: u64, file: u64) -> Bytes {
    Bytes::from(format!("found {dir} {file}"))
}

impl Worker {
    async fn look_up(&self, parent: Ino, text: &str) -> Result<Used, FsError> {
        if self.rng.below(4) != 0
            && let Some(used) = self.kernel.known(parent, text)
        {
            return Ok(used);
        }
        let attr = self.client.lookup(parent, &name(text)).await?;
        Ok(self.kernel.told(parent, text, attr.ino))
    }

    /// All that is on the way is used, from the top down.
    async fn walk(&self, path: &[&str]) -> Result<Vec<Used>, FsError> {
        let mut way = Vec::new();
        let mut at = Ino::ROOT;
        for text in path {
            way.push(self.look_up(at, text).await?);
            at = way[way.len() - 1].ino;
        }
        Ok(way)
    }

    async fn step(&self) {
        let drawn = self.rng.below(10);
        let done = match drawn {
            0..3 => self.read().await,
            3..5 => self.write().await,
            5 => self.unlink().await,
            6 => self.rename().await,
            7 => self.list().await,
            _ => self.find().await,
        };
        match done {
            Ok(()) => {}
            // No room for a while.
            Err(FsError::NoSpace | FsError::NoMemory) => {
                self.refused.set(self.refused.get() + 1);
                self.world.sleep(Duration::from_secs(2)).await;
            }
            Err(error) => panic!("{drawn}: {error}"),
        }
    }

    fn any_dir(&self) -> String {
        format!("d{}", self.rng.below(DIRS))
    }

    fn any_file(&self) -> Option<((String, String), File)> {
        let files = self.files.borrow();
        let at = files.len().checked_sub(1)?;
        files.iter().nth(self.rng.index(at + 1)).map(|(path, file)| (path.clone(), file.clone()))
    }

    async fn read(&self) -> Result<(), FsError> {
        let Some(((dir, text), file)) = self.any_file() else { return Ok(()) };
        let way = self.walk(&[&self.top, &dir, &text]).await?;
        let ino = way[2].ino;
        assert_eq!(ino, file.ino, "what is on record keeps its id");
        let attr = self.client.getattr(ino).await?;
        assert_eq!(
            (attr.mode, attr.mtime, attr.size_bytes),
            (file.mode, file.mtime, file.content.len() as u64),
            "{dir}/{text}"
        );
        self.world.sleep(self.rng.duration(Duration::ZERO, Duration::from_millis(30))).await;
        assert_eq!(
            self.client.read(ino, 0, file.content.len() + 1).await?,
            file.content,
            "{dir}/{text}"
        );
        Ok(())
    }

    async fn write(&self) -> Result<(), FsError> {
        let (dir, text) = (self.any_dir(), format!("file {}", self.rng.below(40)));
        let way = self.walk(&[&self.top, &dir]).await?;
        let parent = way[1].ino;
        let path = (dir, text);
        let known = self.files.borrow().get(&path).cloned();
        let used = match &known {
            Some(_) => self.look_up(parent, &path.1).await?,
            None => {
                let mode = [0o600, 0o644][self.rng.index(2)];
                let attr = self
                    .client
                    .make(&ROOT, parent, &name(&path.1), mode, Make::Regular, false)
                    .await?;
                self.note(&path, attr.clone(), Bytes::new());
                self.kernel.told(parent, &path.1, attr.ino)
            }
        };
        let content = Bytes::from(vec![self.rng.below(255) as u8 + 1; 1 + self.rng.index(300)]);
        let attr = self.client.write(&ROOT, used.ino, 0, content.clone(), false).await?.attr;
        let before = self.files.borrow()[&path].content.clone();
        let whole = [&content[..], before.get(content.len()..).unwrap_or_default()].concat();
        self.note(&path, attr, whole.into());
        if self.rng.below(3) == 0 {
            let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
            let attr = self.client.setattr(&ROOT, used.ino, set).await?;
            let content = self.files.borrow()[&path].content.clone();
            self.note(&path, attr, content);
        }
        Ok(())
    }

    fn note(&self, path: &(String, String), attr: Attr, content: Bytes) {
        let file = File { ino: attr.ino, mode: attr.mode, mtime: attr.mtime, content };
        self.files.borrow_mut().insert(path.clone(), file);
    }

    async fn unlink(&self) -> Result<(), FsError> {
        let Some(((dir, text), _)) = self.any_file() else { return Ok(()) };
        let way = self.walk(&[&self.top, &dir]).await?;
        self.client.unlink(&ROOT, way[1].ino, &name(&text)).await?;
        self.kernel.lost(way[1].ino, &text);
        self.files.borrow_mut().remove(&(dir.clone(), text.clone()));
        assert_eq!(
            self.client.lookup(way[1].ino, &name(&text)).await.err(),
            Some(FsError::NotFound),
            "{dir}/{text}"
        );
        Ok(())
    }

    async fn rename(&self) -> Result<(), FsError> {
        let Some(((dir, text), file)) = self.any_file() else { return Ok(()) };
        let (to, new) = (self.any_dir(), format!("file {}", self.rng.below(40)));
        if (&dir, &text) == (&to, &new) {
            return Ok(());
        }
        let from_way = self.walk(&[&self.top, &dir]).await?;
        let to_way = self.walk(&[&self.top, &to]).await?;
        let (from_dir, to_dir) = (from_way[1].ino, to_way[1].ino);
        self.client
            .rename(&ROOT, from_dir, &name(&text), to_dir, &name(&new), RenameMode::Replace)
            .await?;
        self.kernel.lost(from_dir, &text);
        self.kernel.lost(to_dir, &new);
        let mut files = self.files.borrow_mut();
        files.remove(&(dir, text));
        files.insert((to, new), file);
        Ok(())
    }

    async fn list(&self) -> Result<(), FsError> {
        let dir = self.any_dir();
        let way = self.walk(&[&self.top, &dir]).await?;
        let ino = way[1].ino;
        self.client.open(ino).await?;
        let (mut names, mut after) = (Vec::new(), Cookie::START);
        let listed = loop {
            let page = match self.client.readdir(ino, after, 7).await {
                Ok(page) => page,
                Err(error) => break Err(error),
            };
            for (entry, _) in &page.entries {
                let text = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
                drop(self.kernel.told(ino, &text, entry.ino));
                names.push(text);
                after = entry.cookie;
            }
            if page.end {
                break Ok(());
            }
            self.world.sleep(self.rng.duration(Duration::ZERO, Duration::from_millis(100))).await;
        };
        self.client.close(ino);
        listed?;
        names.sort();
        let expected: Vec<String> = self
            .files
            .borrow()
            .keys()
            .filter(|(of, _)| *of == dir)
            .map(|(_, text)| text.clone())
            .collect();
        assert_eq!(names, expected, "names in {dir}");
        Ok(())
    }

    async fn find(&self) -> Result<(), FsError> {
        let (dir, file) = (self.rng.below(FOUND_DIRS), self.rng.below(FOUND_FILES));
        let path = format!("f/{dir}/{file}");
        let way = self.walk(&["f", &dir.to_string(), &file.to_string()]).await?;
        let ino = way[2].ino;
        self.found.borrow_mut().entry(path.clone()).or_default().insert(ino);
        self.world.sleep(self.rng.duration(Duration::ZERO, Duration::from_millis(200))).await;
        let expected = found_content(dir, file);
        let attr = self.client.getattr(ino).await?;
        assert_eq!((attr.mode, attr.size_bytes), (0o644, expected.len() as u64), "{path}");
        assert_eq!(self.client.read(ino, 0, 100).await?, expected, "{path}");
        assert_eq!(
            self.client.lookup(way[1].ino, &name(&file.to_string())).await?.ino,
            ino,
            "{path} while it is used"
        );
        Ok(())
    }
}

async fn attached(world: &World, client: &Client, label: &str) -> Kernel {
    let kernel = Kernel::new(world.rng(label));
    let handler = kernel.clone();
    client.on_reference_query(move |inos| {
        let held = handler.give_up(inos);
        Box::pin(async move { held })
    });
    kernel
}

fn options(embedded: bool, limit: u64) -> Options {
    let flush_interval = Duration::from_secs(1);
    Options {
        volume: rig::VOLUME.into(),
        owner: "forgetting".into(),
        embedded,
        flush_interval,
        metadata_bytes: limit,
        ..Options::default()
    }
}

async fn status(process: &Process, client: &Client) -> Status {
    let client = client.clone();
    match process.call(async move { client.admin(AdminRequest::Status).await }).await.unwrap() {
        Ok(AdminReply::Status(status)) => *status,
        other => panic!("{other:?}"),
    }
}

/// Totals of a run.
#[derive(Default)]
struct Shown {
    /// Names that were seen under several ids.
    new_ids: usize,
    most_bytes: u64,
    refused: u64,
}

async fn tell(world: Rc<World>, clients: usize) -> Shown {
    let rng = world.rng("forgetting");
    let slow = Slowness { rate: Rate::one_in(3), limit: Duration::from_millis(500) };
    world.set_faults(FaultPlan {
        bucket: BucketFaults { slow, ..BucketFaults::default() },
        ..FaultPlan::default()
    });
    for dir in 0..FOUND_DIRS {
        for file in 0..FOUND_FILES {
            world
                .bucket()
                .put_as_outsider(
                    &format!("f/{dir}/{file}"),
                    found_content(dir, file).to_vec(),
                    vec![],
                )
                .unwrap();
        }
    }
    let mut shown = Shown::default();
    let files: Vec<Rc<RefCell<BTreeMap<_, File>>>> = (0..2).map(|_| Rc::default()).collect();
    let found = Rc::<RefCell<BTreeMap<String, BTreeSet<Ino>>>>::default();
    let refused = Rc::<Cell<u64>>::default();
    for life in 0..3 {
        let process = world.machine("node").process_on("node", "data");
        let node = rig::open(&process, &world.bucket(), &options(clients == 0, LIMIT))
            .await
            .unwrap()
            .unwrap();
        let mut serving = (process, node);
        let (process, node) = (&serving.0, &serving.1);
        let mut users: Vec<(Process, Client)> = Vec::new();
        if clients == 0 {
            users.push((
                process.clone(),
                rig::attach_embedded(process, node).await.unwrap().unwrap(),
            ));
        } else {
            rig::serve(process, "node", node).await;
            for number in 0..clients {
                let user = world
                    .machine(&format!("user {number}"))
                    .process_on("user", &format!("user {life} {number}"));
                let client = rig::attach_wire(&user, "node").await.unwrap().unwrap();
                users.push((user, client));
            }
        }
        let mut kernels = Vec::new();
        for (number, (_, client)) in users.iter().enumerate() {
            kernels.push(attached(&world, client, &format!("kernel {life} {number}")).await);
        }
        let leaving = Rc::new(Cell::new(0));
        for (number, files) in files.iter().enumerate() {
            let (user, client) = users[number % users.len()].clone();
            let worker = Worker {
                world: world.clone(),
                client,
                kernel: kernels[number % users.len()].clone(),
                rng: world.rng(&format!("worker {life} {number}")),
                top: format!("w{number}"),
                files: files.clone(),
                found: found.clone(),
                refused: refused.clone(),
            };
            let leaving = leaving.clone();
            user.spawn(async move {
                if life == 0 {
                    begin(&worker).await;
                }
                for _ in 0..STEPS {
                    worker.step().await;
                    worker
                        .world
                        .sleep(worker.rng.duration(Duration::ZERO, Duration::from_millis(40)))
                        .await;
                }
                leaving.set(leaving.get() + 1);
            });
        }
        while leaving.get() < files.len() {
            world.sleep(Duration::from_secs(1)).await;
            // Clients on other machines continue with their references.
            if clients > 0 && rng.below(8) == 0 {
                match rng.below(2) {
                    0 => serving.0.kill(),
                    _ => world.machine("node").power_cut(),
                }
                world.sleep(rng.duration(Duration::ZERO, Duration::from_secs(5))).await;
                let process = world.machine("node").process_on("node", "data");
                let node = rig::open(&process, &world.bucket(), &options(false, LIMIT))
                    .await
                    .unwrap()
                    .unwrap();
                rig::serve(&process, "node", &node).await;
                serving = (process, node);
            }
            shown.most_bytes =
                shown.most_bytes.max(status(&users[0].0, &users[0].1).await.metadata_bytes);
        }
        if life == 2 {
            end(&world, &serving.0, &serving.1, users).await;
        } else {
            for (user, client) in users {
                user.call(async move { client.detach(Duration::from_secs(30)).await })
                    .await
                    .unwrap()
                    .unwrap();
                if clients > 0 {
                    user.kill();
                }
            }
            serving.0.kill();
        }
        world.sleep(Duration::from_secs(rng.below(60))).await;
    }
    let process = world.machine("other").process("node");
    let node =
        rig::open(&process, &world.bucket(), &options(true, u64::MAX)).await.unwrap().unwrap();
    let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
    let seen = process.call(async move { rig::walk(&client).await }).await.unwrap().unwrap();
    for (number, files) in files.iter().enumerate() {
        for ((dir, text), file) in files.borrow().iter() {
            let path = format!("w{number}/{dir}/{text}").into_bytes();
            let there = seen.get(&path).unwrap_or_else(|| panic!("{number} {dir}/{text} is lost"));
            let is = File {
                ino: there.attr.ino,
                mode: there.attr.mode,
                mtime: there.attr.mtime,
                content: there.content.clone(),
            };
            assert_eq!(is, *file, "{number} {dir}/{text}");
        }
    }
    let own: usize = files.iter().map(|files| files.borrow().len()).sum();
    let expected = own as u64 + 2 * (DIRS + 1) + FOUND_DIRS * (FOUND_FILES + 1) + 2;
    assert_eq!(seen.len() as u64, expected, "there is something else");
    shown.new_ids = found.borrow().values().filter(|ids| ids.len() > 1).count();
    shown.refused = refused.get();
    shown
}

async fn begin(worker: &Worker) {
    let client = &worker.client;
    let top = client
        .make(&ROOT, Ino::ROOT, &name(&worker.top), 0o700, Make::Directory, false)
        .await
        .unwrap()
        .ino;
    let _top = worker.kernel.told(Ino::ROOT, &worker.top, top);
    for number in 0..DIRS {
        let text = format!("d{number}");
        let dir =
            client.make(&ROOT, top, &name(&text), 0o700, Make::Directory, false).await.unwrap().ino;
        drop(worker.kernel.told(top, &text, dir));
    }
}

async fn end(world: &World, process: &Process, node: &Rc<Node>, users: Vec<(Process, Client)>) {
    for (user, client) in users {
        user.call(async move { client.detach(Duration::from_secs(30)).await })
            .await
            .unwrap()
            .unwrap();
    }
    let node = node.clone();
    let stopped = process.call(async move { node.stop(true).await }).await.unwrap().unwrap();
    assert_eq!(stopped, Stopped::Released);
    process.kill();
    world.sleep(Duration::from_secs(60)).await;
}

fn run(clients: usize) {
    let (mut new_ids, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let shown = world
            .run(tell(world.clone(), clients))
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        assert!(shown.most_bytes < LIMIT + 60_000, "seed {seed}: {}", shown.most_bytes);
        new_ids += shown.new_ids;
        refused += shown.refused;
    }
    assert!(new_ids > 100, "{new_ids}");
    assert!(refused < SEEDS * 100, "{refused}");
}

/// Situation: a volume with several times as many names as the node may keep, whose kernel holds
/// references and drops some on request. Danger: an inode is evicted that is referenced, dirty or
/// not in the bucket, or comes back changed. Expectation: no client notices, and the bucket is
/// complete at the end.
#[test]
fn evicted_names_come_back_unchanged() {
    run(0);
}

/// The same with two clients on other machines, which reply to the reference query late, and whose
/// node is killed or loses power now and then.
#[test]
fn names_referenced_on_other_machines_are_not_evicted() {
    run(2);
}

/// Situation: a node queries the references to a clean file, and before the replies arrive a client
/// opens the file, writes to it and closes it; afterwards no client references it. Danger: it is
/// evicted as clean, and the written bytes go with its store file, or are not forced any more.
#[test]
fn file_written_during_a_reference_query_is_not_evicted() {
    for (seed, len) in (0..8).flat_map(|seed| [(seed, 200_000), (seed, 5_000)]) {
        let world = Rc::new(World::new(seed));
        let told = write_while_asked(world.clone(), len);
        world.run(told).unwrap_or_else(|failure| panic!("seed {seed}, {len} bytes: {failure}"));
    }
}

async fn write_while_asked(world: Rc<World>, len: usize) {
    for (dir, file) in (0..FOUND_DIRS).flat_map(|dir| (0..FOUND_FILES).map(move |file| (dir, file)))
    {
        world
            .bucket()
            .put_as_outsider(&format!("f/{dir}/{file}"), found_content(dir, file).to_vec(), vec![])
            .unwrap();
    }
    let open = async || {
        let process = world.machine("node").process_on("node", "data");
        let options =
            Options { commit_interval: Duration::from_secs(3600), ..options(true, LIMIT / 3) };
        let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        // The client has no references; without this reply nothing would be evicted.
        client.on_reference_query(|_| Box::pin(async { Vec::new() }));
        client
    };
    let client = open().await;
    let dir =
        client.make(&ROOT, Ino::ROOT, &name("w"), 0o700, Make::Directory, false).await.unwrap().ino;
    let big = client.make(&ROOT, dir, &name("big"), 0o644, Make::Regular, false).await.unwrap().ino;
    client.write(&ROOT, big, 0, vec![b'a'; len].into(), false).await.unwrap();
    client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
    let asked = Rc::<Cell<bool>>::default();
    let (writer, heard) = (client.clone(), asked.clone());
    client.on_reference_query(move |inos| {
        let (writer, is_first) = (
            writer.clone(),
            inos.contains(&big) && !heard.replace(heard.get() || inos.contains(&big)),
        );
        Box::pin(async move {
            if is_first {
                writer.open(big).await.unwrap();
                writer.write(&ROOT, big, 0, Bytes::from_static(b"new"), false).await.unwrap();
                writer.close(big);
            }
            Vec::new()
        })
    });
    while !asked.get() {
        for (dir, file) in
            (0..FOUND_DIRS).flat_map(|dir| (0..FOUND_FILES).map(move |file| (dir, file)))
        {
            // There may be no room for a while.
            let Ok(found) = client.lookup(Ino::ROOT, &name("f")).await else { continue };
            let Ok(found) = client.lookup(found.ino, &name(&dir.to_string())).await else {
                continue;
            };
            drop(client.lookup(found.ino, &name(&file.to_string())).await);
        }
        world.sleep(Duration::from_secs(2)).await;
    }
    client.fsync(big).await.unwrap();
    let content = [b"new", &vec![b'a'; len - 3][..]].concat();
    let read = async |client: &Client| {
        for _ in 0..30 {
            // The directory may have been evicted since, and has another id then.
            let dir = client.lookup(Ino::ROOT, &name("w")).await;
            let found = match dir {
                Ok(dir) => client.lookup(dir.ino, &name("big")).await,
                Err(error) => Err(error),
            };
            match found {
                Ok(found) => return client.read(found.ino, 0, len).await.unwrap(),
                // As above.
                Err(error) => assert_eq!(error, FsError::NoMemory),
            }
            world.sleep(Duration::from_secs(2)).await;
        }
        panic!("there is no room for a minute");
    };
    assert!(read(&client).await == content, "other bytes");
    world.machine("node").power_cut();
    let client = open().await;
    assert!(read(&client).await == content, "other bytes after a power cut");
    client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
    assert!(world.bucket().objects()["w/big"].body == content, "other bytes in the bucket");
}

/// Situation: a client removes a file at each moment of the eviction of its name. Danger: the name
/// is known when it is looked up and evicted when the removal is logged, and an existing file
/// counts as missing. Expectation: the file is removed, here and in the bucket.
#[test]
fn name_evicted_during_its_removal_is_removed() {
    for moment in 0..20 {
        let world = Rc::new(World::new(moment));
        let told = remove_while_evicted(world.clone(), Duration::from_micros(500 * moment));
        world.run(told).unwrap_or_else(|failure| panic!("moment {moment}: {failure}"));
    }
}

/// `pause`: from the reply to the reference query to the removal.
async fn remove_while_evicted(world: Rc<World>, pause: Duration) {
    for (dir, file) in (0..FOUND_DIRS).flat_map(|dir| (0..FOUND_FILES).map(move |file| (dir, file)))
    {
        world
            .bucket()
            .put_as_outsider(&format!("f/{dir}/{file}"), found_content(dir, file).to_vec(), vec![])
            .unwrap();
    }
    let process = world.machine("node").process_on("node", "data");
    let node =
        rig::open(&process, &world.bucket(), &options(true, LIMIT / 3)).await.unwrap().unwrap();
    let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
    let files = Rc::<RefCell<BTreeMap<Ino, (Ino, String, String)>>>::default();
    let (begun, removed) = (Rc::<Cell<bool>>::default(), Rc::<RefCell<Option<_>>>::default());
    let (known, result, remover) = (files.clone(), removed.clone(), client.clone());
    let outer = world.clone();
    client.on_reference_query(move |inos| {
        let victim = inos.iter().find_map(|ino| known.borrow().get(ino).cloned());
        if let Some((dir, text, key)) = victim.filter(|_| !begun.replace(true)) {
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(5) };
            outer.set_faults(FaultPlan {
                disk: DiskFaults { slow, ..DiskFaults::default() },
                ..FaultPlan::default()
            });
            let (outer, remover, result) = (outer.clone(), remover.clone(), result.clone());
            process.spawn(async move {
                outer.sleep(pause).await;
                let done = remover.unlink(&ROOT, dir, &name(&text)).await.map(drop);
                result.replace(Some((key, done)));
            });
        }
        // Directories stay, and with them the one that the file is in.
        let held = inos.into_iter().filter(|ino| !known.borrow().contains_key(ino)).collect();
        Box::pin(async move { held })
    });
    let (key, done) = loop {
        if let Some(done) = removed.take() {
            break done;
        }
        for (dir, file) in
            (0..FOUND_DIRS).flat_map(|dir| (0..FOUND_FILES).map(move |file| (dir, file)))
        {
            // There may be no room for a while.
            let Ok(found) = client.lookup(Ino::ROOT, &name("f")).await else { continue };
            let Ok(found) = client.lookup(found.ino, &name(&dir.to_string())).await else {
                continue;
            };
            let (parent, text) = (found.ino, file.to_string());
            if let Ok(found) = client.lookup(parent, &name(&text)).await {
                let key = format!("f/{dir}/{file}");
                files.borrow_mut().insert(found.ino, (parent, text, key));
            }
        }
        world.sleep(Duration::from_secs(2)).await;
    };
    assert_eq!(done, Ok(()), "{key}");
    world.set_faults(FaultPlan::default());
    client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
    assert!(!world.bucket().objects().contains_key(&key), "{key} is in the bucket");
}
