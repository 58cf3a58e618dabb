//! A process that is killed again and again, with memory that outlives it. Its users do not notice:
//! each request is repeated to the next life until it is answered (O-6). Its node is in the same
//! process, or [elsewhere].
//!
//! To the oracle there is one client that never ends. An operation that was done twice or lost, or
//! an open file that is gone, shows as an impossible reply.

mod elsewhere;
mod memory;
mod other;
mod scene;
mod users;

use super::plan::{LATE, Plan};
use super::report::{Broken, Report, judge};
use super::rig::{empty_trash, walk};
use super::verify::{bucket_holds, empty_trashes};
use super::workload::Known;
use crate::oracle::{ClientId, Event, History, Identity};
use crate::{FaultPlan, Process, Rng, World};
use ebb_model::*;
use ebb_node::{Node, Stopped};
use scene::{MACHINE, Place, Scene};
use std::rc::Rc;
use std::time::Duration;
use users::Users;

pub use elsewhere::{Fates, run as run_elsewhere};

/// The state that the successor loses on purpose, to show that the oracle detects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amnesia {
    /// Under which id a request asked for its change.
    Requests,
    /// The open files.
    Opens,
    /// That a node elsewhere had acknowledged changes that it might lose.
    Undurable,
}

/// Runs the story of a seed.
pub fn run(seed: u64, amnesia: Option<Amnesia>) -> Result<Report, Broken> {
    let rng = Rng::new(seed).split("succession");
    let mut plan = Plan::draw(&rng);
    plan.options.embedded = true;
    plan.inode_limit = None;
    // A disk that fails ends more than a process.
    plan.faults.disk = Default::default();
    let lives = 1 + rng.below(8);
    let life_limit = Duration::from_millis([5, 50, 1000][rng.index(3)]);
    let world = World::with_faults(seed, plan.faults);
    let initial = plan.fill(&world.bucket());
    let history = History::new(&world);
    history.add(Event::Served { clock: world.machine(MACHINE).wall_record() });
    let scenario = format!("succession, {lives} lives of at most {life_limit:?}, {plan:?}");
    let permitted = plan.permitted();
    let scene = Scene::new(&world, Place::Inside, CLIENT, plan.clone(), amnesia);
    let ended = world.run(tell(&world, &scene, &history, &plan, rng, (lives, life_limit)));
    judge(&world, seed, scenario, ended, &history.events(), initial, permitted)
}

/// A file is created without a name, and the process dies before the handover state records that it
/// is open. Returns the successor's attributes of the file after the request is repeated.
pub fn nameless(seed: u64) -> Result<Attr, String> {
    const REQUEST: u64 = 7;
    let world = World::with_faults(seed, FaultPlan::default());
    let mut plan = Plan::draw(&Rng::new(seed));
    plan.options.embedded = true;
    let scene = Scene::new(&world, Place::Inside, CLIENT, plan, None);
    let found = world.run(async {
        scene.begin(&world).await?;
        let made = make_nameless(&scene, REQUEST).await?;
        scene.kill();
        scene.expect_again(REQUEST);
        scene.begin(&world).await?;
        let again = make_nameless(&scene, REQUEST).await?;
        assert_eq!(again.ino, made.ino, "it is made once");
        let life = scene.life()?;
        let client = life.client.clone();
        let found = life.process.call(async move {
            client.answered(REQUEST);
            client.getattr(made.ino).await
        });
        found.await.ok_or("the process has died")?.map_err(|error| error.to_string())
    });
    found.map_err(|failure| failure.to_string())?
}

async fn make_nameless(scene: &Scene, request: u64) -> Result<Attr, String> {
    let life = scene.life()?;
    let client = life.client.on_behalf_of(request);
    let mode = NewMode { mode: 0o600, umask: 0 };
    let made =
        life.process.call(async move { client.tmpfile(&Caller::ROOT, Ino::ROOT, mode).await });
    made.await.ok_or("the process has died")?.map_err(|error| error.to_string())
}

async fn tell(
    world: &World,
    scene: &Rc<Scene>,
    history: &History,
    plan: &Plan,
    rng: Rng,
    (lives, life_limit): (u64, Duration),
) -> Result<(), String> {
    scene.begin(world).await?;
    let users = Users::begin(world, scene, history, &Known::default(), plan);
    for _ in 0..lives {
        world.sleep(rng.duration(Duration::ZERO, life_limit)).await;
        history.note("the process is killed");
        scene.kill();
        scene.begin(world).await?;
    }
    users.finish(world).await?;
    world.set_faults(FaultPlan::default());
    world.sleep(LATE * 2 + Duration::from_secs(60)).await;
    let life = scene.life()?;
    let node = life.node.as_ref().ok_or("no node is inside")?;
    end(world, scene, history, (&life.process, node), Errors::None).await
}

/// The errors permitted at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Errors {
    None,
    /// Of a session that has ended.
    Ended,
}

/// Without faults: the files open at the end are those that users have open, all changes reach the
/// bucket, and no file is held that no user has open. No other client is attached.
async fn end(
    world: &World,
    scene: &Scene,
    history: &History,
    (home, node): (&Process, &Rc<Node>),
    errors: Errors,
) -> Result<(), String> {
    let life = scene.life()?;
    let mut left: Vec<u64> = life.handover.opens().iter().map(|open| open.handle).collect();
    let mut held: Vec<u64> = scene.open().into_values().flatten().collect();
    left.sort_unstable();
    held.sort_unstable();
    if left != held {
        return Err(format!("open is {held:?}, left would be {left:?}"));
    }
    let at_node = open_at_node(scene).await?;
    // A file without a name that was open when a session ended cannot be open any more.
    let is_missing = errors == Errors::None && at_node < scene.open().len() as u64;
    if is_missing || at_node > scene.open().len() as u64 {
        return Err(format!("{} files are open, to the node it is {at_node}", scene.open().len()));
    }
    let (client, handover) = (life.client.clone(), life.handover.clone());
    let closed = life.process.call(async move {
        for open in handover.opens() {
            handover.closed(open.handle);
            client.close(open.ino);
        }
    });
    closed.await.ok_or("the process has died")?;
    world.sleep(Duration::from_secs(1)).await;
    let client = life.client.clone();
    let seen = life
        .process
        .call(async move { (walk(&client).await, client.admin(AdminRequest::Fsck).await) });
    let (seen, checked) = seen.await.ok_or("the process has died")?;
    let seen = seen.map_err(|error| format!("the tree cannot be read: {error}"))?;
    history.add(Event::Gone { client: scene.client });
    history.add(Event::Settled);
    history.add(Event::Seen { tree: Rc::new(seen.clone()), inos: Identity::Kept });
    match checked {
        Ok(AdminReply::Fsck(report)) if report.problems.is_empty() => {}
        other => return Err(format!("fsck: {other:?}")),
    }
    let client = life.client.clone();
    let calmed = life.process.call(async move {
        let emptied = empty_trash(&client).await;
        (
            emptied.and(client.admin(AdminRequest::Flush { path: vec![] }).await),
            client.sync_fs().await,
        )
    });
    match calmed.await.ok_or("the process has died")? {
        (Ok(_), Ok(())) => {}
        (Ok(_), Err(FsError::Io | FsError::Stale)) if errors == Errors::Ended => {}
        other => return Err(format!("the client does not come to rest: {other:?}")),
    }
    // The session still exists, so a file without a name that no user has open would leave
    // something behind.
    let node = node.clone();
    let stopped =
        home.call(async move { node.stop(true).await }).await.ok_or("the node has died")?;
    if !matches!(stopped, Ok(Stopped::Released)) {
        return Err(format!("the node does not come to rest: {stopped:?}"));
    }
    let problems = bucket_holds(&world.bucket(), &seen, &empty_trashes(&world.bucket()));
    if problems.is_empty() {
        Ok(())
    } else {
        Err(format!("the bucket is not what it should be: {}", problems.join("; ")))
    }
}

/// How many files the node takes for open on the mount.
async fn open_at_node(scene: &Scene) -> Result<u64, String> {
    let life = scene.life()?;
    let client = life.client.clone();
    let status = life
        .process
        .call(async move { client.admin(AdminRequest::Status).await })
        .await
        .ok_or("the process has died")?;
    let Ok(AdminReply::Status(status)) = status else {
        return Err(format!("no status: {status:?}"));
    };
    match &status.sessions[..] {
        [session] => Ok(session.open_files),
        others => Err(format!("the mount is not the only client: {others:?}")),
    }
}

const CLIENT: ClientId = ClientId(1);
