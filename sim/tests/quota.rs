//! Quotas under load, deaths of nodes and lost caches: usage never exceeds a limit, nothing is
//! rejected without need, and usage always equals the sum over the tree.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options, Stopped};
use ebb_sim::volume::rig;
use ebb_sim::{Process, Rng, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;
const SEEDS: u64 = 16;
const LIVES: u64 = 4;
const OUTER: [&str; 1] = ["q"];
const INNER: [&str; 2] = ["q", "in"];

/// Situation: two nested quotas in a volume where one to three workers write, truncate, link,
/// rename and remove in every directory, while limits are raised and the node is killed, loses
/// power, or restarts with only the bucket. Danger: a path that is not counted, counted twice, or
/// not checked. Expectation: after every operation no usage exceeds its limit; a sole worker is
/// rejected only where nothing is left; a rename or link fails exactly where it crosses quotas; and
/// after every start the usage is that of the tree.
#[test]
fn quota_usage_matches_the_tree() {
    let refusals = Refusals::default();
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let rng = world.rng("quota");
        let done = world.run(tell(world.clone(), rng, refusals.clone()));
        done.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    for error in [FsError::QuotaExceeded, FsError::CrossDevice] {
        assert!(refusals.borrow().get(&error).is_some_and(|count| *count > SEEDS), "{refusals:?}");
    }
}

/// Rejections by error: a run without any would show nothing.
type Refusals = Rc<RefCell<BTreeMap<FsError, u64>>>;

async fn tell(world: Rc<World>, rng: Rng, refusals: Refusals) {
    let mut data = "data0".to_owned();
    let mut limits = [
        QuotaLimits { bytes: Some(400_000), inodes: Some(9) },
        QuotaLimits { bytes: Some(150_000), inodes: None },
    ];
    for life in 0..LIVES {
        let options = Options {
            owner: "quota".into(),
            embedded: true,
            flush_interval: Duration::from_secs(1),
            ..Options::default()
        };
        let process = world.machine("a").process_on("ebb", &data);
        let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        if life == 0 {
            let client = client.clone();
            process.call(async move { begin(&client, limits).await }).await.unwrap();
        }
        let dirs = {
            let (world, client) = (world.clone(), client.clone());
            process.call(async move { look(&world, &client, limits).await }).await.unwrap()
        };
        let workers = 1 + rng.below(3);
        let leaving = Rc::new(Cell::new(false));
        for worker in 0..workers {
            let rng = world.rng(&format!("worker {life} {worker}"));
            let (client, dirs, refusals) = (client.clone(), dirs.clone(), refusals.clone());
            let worker = Worker {
                client,
                rng,
                dirs,
                files: RefCell::default(),
                alone: workers == 1,
                refusals,
            };
            let (world, leaving) = (world.clone(), leaving.clone());
            process.spawn(async move {
                while !leaving.get() {
                    world
                        .sleep(worker.rng.duration(Duration::ZERO, Duration::from_millis(20)))
                        .await;
                    worker.step().await;
                }
            });
        }
        world.sleep(rng.duration(Duration::ZERO, Duration::from_secs(5))).await;
        // An acknowledged limit survives everything.
        limits = limits.map(|limits| QuotaLimits {
            bytes: limits.bytes.map(|bytes| bytes + rng.below(100_000)),
            ..limits
        });
        let setting = client.clone();
        process.call(async move { set(&setting, limits).await }).await.unwrap();
        match rng.below(3) {
            0 => process.kill(),
            1 => world.machine("a").power_cut(),
            _ => {
                // Pending operations complete first.
                leaving.set(true);
                world.sleep(Duration::from_secs(5)).await;
                stop(&process, &node, &client).await;
                data = format!("data of {life}");
            }
        }
        world.sleep(Duration::from_secs(40)).await;
    }
}

fn path(names: &[&str]) -> Vec<Name> {
    names.iter().map(|name| Name::new(name.as_bytes()).unwrap()).collect()
}

async fn begin(client: &Client, limits: [QuotaLimits; 2]) {
    let [q, inner, free] = ["q", "in", "free"].map(|name| Name::new(name.as_bytes()).unwrap());
    let outer = client.make(&ROOT, Ino::ROOT, &q, 0o755, Make::Directory, false).await.unwrap().ino;
    client.make(&ROOT, outer, &inner, 0o755, Make::Directory, false).await.unwrap();
    client.make(&ROOT, Ino::ROOT, &free, 0o755, Make::Directory, false).await.unwrap();
    set(client, limits).await;
}

async fn set(client: &Client, limits: [QuotaLimits; 2]) {
    for (names, limits) in [(&OUTER[..], limits[0]), (&INNER[..], limits[1])] {
        let request = AdminRequest::SetQuota { path: path(names), limits: Some(limits) };
        client.admin(request).await.unwrap();
    }
}

/// The quotas that hold in the inner directory: its own, then the outer one.
async fn quotas(client: &Client) -> Vec<QuotaStatus> {
    match client.admin(AdminRequest::Quotas { path: path(&INNER) }).await.unwrap() {
        AdminReply::Quotas(quotas) => quotas,
        other => panic!("{other:?}"),
    }
}

/// Compares counts with the tree, and gives the directories to work in with their quota.
async fn look(world: &World, client: &Client, limits: [QuotaLimits; 2]) -> Vec<(Ino, usize)> {
    let tree = rig::walk(client).await.unwrap();
    let mut statuses = quotas(client).await;
    for _ in 0..100 {
        if statuses.iter().all(|status| status.counted) {
            break;
        }
        world.sleep(Duration::from_millis(100)).await;
        statuses = quotas(client).await;
    }
    assert_eq!(statuses.len(), 2);
    for (status, (limits, prefix)) in
        statuses.iter().zip([(limits[1], &b"q/in/"[..]), (limits[0], b"q/")])
    {
        let mut seen = BTreeSet::new();
        let below = tree
            .iter()
            .filter(|(path, node)| path.starts_with(prefix) && seen.insert(node.attr.ino));
        let used = below.fold(Usage::default(), |sum, (_, node)| {
            let bytes = if node.attr.kind == FileKind::Regular { node.attr.size_bytes } else { 0 };
            Usage { bytes: sum.bytes + bytes, inodes: sum.inodes + 1 }
        });
        assert_eq!(
            (status.used, status.limits, status.counted),
            (used, limits, true),
            "{}",
            prefix.escape_ascii()
        );
    }
    match client.admin(AdminRequest::Fsck).await.unwrap() {
        AdminReply::Fsck(report) => assert_eq!(report.problems, vec![]),
        other => panic!("{other:?}"),
    }
    let ino = |path: &[u8]| tree[path].attr.ino;
    let mut dirs = vec![
        (ino(b"free"), 0),
        (Ino::ROOT, 0),
        (ino(b"q"), 1),
        (ino(b"q"), 1),
        (ino(b"q/in"), 2),
        (ino(b"q/in"), 2),
    ];
    dirs.extend(tree.iter().filter(|(_, node)| node.attr.kind == FileKind::Directory).filter_map(
        |(path, node)| {
            let inner = path.starts_with(b"q/in/") as usize;
            (path.starts_with(b"q/") && path != b"q/in").then_some((node.attr.ino, 1 + inner))
        },
    ));
    dirs
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

struct Worker {
    client: Rc<Client>,
    rng: Rng,
    /// With the quota that they are in: 0 none, 1 the outer, 2 the inner one.
    dirs: Vec<(Ino, usize)>,
    /// Files that this worker has made, by directory and name.
    files: RefCell<BTreeMap<Ino, usize>>,
    alone: bool,
    refusals: Refusals,
}

impl Worker {
    async fn step(&self) {
        let (rng, client) = (&self.rng, &self.client);
        let ((dir, quota), (other, other_quota)) = (self.dir(), self.dir());
        let (name, new_name) = (self.name(), self.name());
        let file = {
            let files = self.files.borrow();
            let all: Vec<Ino> = files.keys().copied().collect();
            if all.is_empty() { None } else { Some(all[rng.index(all.len())]) }
        };
        let data = Bytes::from(vec![7; 1 + rng.index(90_000)]);
        let offset = rng.below(60_000);
        let refused = match (rng.below(14), file) {
            (0..=2, _) => {
                let made =
                    client.make(&ROOT, dir, &name, 0o644, Make::Regular, rng.below(3) == 0).await;
                if let Ok(attr) = &made {
                    self.files.borrow_mut().insert(attr.ino, quota);
                }
                made.err()
            }
            (3, _) => client.make(&ROOT, dir, &name, 0o755, Make::Directory, false).await.err(),
            (4, _) => client.unlink(&ROOT, dir, &name).await.err(),
            (5, _) => client.rmdir(&ROOT, dir, &name).await.err(),
            (6, _) => {
                let mode = [RenameMode::Replace, RenameMode::Exchange][rng.index(2)];
                let done = client.rename(&ROOT, dir, &name, other, &new_name, mode).await;
                let crosses = quota != other_quota;
                assert!(
                    !(crosses && done.is_ok()) && (crosses || done != Err(FsError::CrossDevice)),
                    "{quota} to {other_quota}: {done:?}"
                );
                done.err()
            }
            (7, Some(file)) => {
                let done = client.link(&ROOT, file, dir, &name).await;
                // It may have been moved within its quota only.
                let crosses = self.files.borrow()[&file] != quota;
                assert!(
                    !(crosses && done.is_ok()) && (crosses || done != Err(FsError::CrossDevice)),
                    "into {quota}: {done:?}"
                );
                done.err()
            }
            (8, Some(file)) => client
                .setattr(&ROOT, file, SetAttr { size_bytes: Some(offset), ..SetAttr::default() })
                .await
                .err(),
            (9, Some(file)) => client.write(&ROOT, file, offset, data, false).await.err(),
            (10, Some(file)) => client
                .fallocate(
                    &ROOT,
                    file,
                    (offset, 1 + rng.below(50_000)),
                    Allocation::Reserve,
                    false,
                    false,
                )
                .await
                .err(),
            (11, Some(file)) => match client.tmpfile(&ROOT, dir, 0o600).await {
                Ok(attr) => {
                    let copied =
                        client.copy(&ROOT, (file, 0), (attr.ino, 0), 100_000, false).await.err();
                    let linked = client.link(&ROOT, attr.ino, dir, &name).await.err();
                    client.close(attr.ino);
                    copied.or(linked)
                }
                Err(error) => Some(error),
            },
            (_, Some(file)) => match client.append(&ROOT, file, data, false).await {
                Err(FsError::QuotaExceeded) if self.alone => {
                    let left = quotas(client)
                        .await
                        .into_iter()
                        .skip(2 - self.files.borrow()[&file])
                        .map(|status| left(&status))
                        .min();
                    assert_eq!(left, Some(0), "refused while there is room");
                    None
                }
                other => other.err(),
            },
            _ => None,
        };
        if let Some(error) = refused {
            assert!(expected(error), "{error:?}");
            *self.refusals.borrow_mut().entry(error).or_default() += 1;
        }
        for status in quotas(client).await {
            let within = |limit: Option<u64>, used| limit.is_none_or(|limit| used <= limit);
            let QuotaStatus { limits, used, .. } = &status;
            assert!(
                within(limits.bytes, used.bytes) && within(limits.inodes, used.inodes),
                "{status:?}"
            );
        }
    }

    fn dir(&self) -> (Ino, usize) {
        self.dirs[self.rng.index(self.dirs.len())]
    }

    fn name(&self) -> Name {
        Name::new([b"a", b"b", b"c", b"d"][self.rng.index(4)]).unwrap()
    }
}

fn left(status: &QuotaStatus) -> u64 {
    status.limits.bytes.map_or(u64::MAX, |limit| limit - status.used.bytes)
}

/// Valid errors of random operations on few names.
fn expected(error: FsError) -> bool {
    use FsError::*;
    matches!(
        error,
        QuotaExceeded
            | CrossDevice
            | NotFound
            | Exists
            | NotEmpty
            | NotDirectory
            | IsDirectory
            | Invalid
            | Stale
            | NotPermitted
    )
}
