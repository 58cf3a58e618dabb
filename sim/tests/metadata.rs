//! The memory limit of names and attributes.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::rig;
use ebb_sim::{Process, World};
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;
const LIMIT: u64 = 100_000;

fn options(metadata_bytes: u64) -> Options {
    Options { owner: "metadata".into(), embedded: true, metadata_bytes, ..Options::default() }
}

fn run<F: Future<Output = ()> + 'static>(seed: u64, work: impl FnOnce(Rc<World>) -> F) {
    let world = Rc::new(World::new(seed));
    world.run(work(world.clone())).unwrap_or_else(|failure| panic!("{failure}"));
}

/// A client of a node that may take so much.
async fn attach(world: &World, process: &Process, metadata_bytes: u64) -> Client {
    let node =
        rig::open(process, &world.bucket(), &options(metadata_bytes)).await.unwrap().unwrap();
    rig::attach_embedded(process, &node).await.unwrap().unwrap()
}

fn name(text: impl AsRef<[u8]>) -> Name {
    Name::new(text.as_ref()).unwrap()
}

async fn make(client: &Client, parent: Ino, text: &str, what: Make) -> Result<Ino, FsError> {
    client.make(&ROOT, parent, &name(text), 0o700, what, false).await.map(|attr| attr.ino)
}

/// Creates files until an error; returns their number.
async fn fill(client: &Client, dir: Ino) -> u64 {
    for number in 0.. {
        match make(client, dir, &format!("file {number}"), Make::Regular).await {
            Ok(_) => {}
            Err(FsError::NoSpace) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

async fn status(client: &Client) -> Status {
    match client.admin(AdminRequest::Status).await.unwrap() {
        AdminReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Situation: files are created until the metadata reaches its limit. Danger: the limit is
/// exceeded, or removals fail. Expectation: every creation fails with ENOSPC, all other operations
/// work, status reports the reason, and removals end the state.
#[test]
fn metadata_limit_refuses_new_entries() {
    run(1, |world| async move {
        let process = world.machine("a").process("node");
        let client = Rc::new(attach(&world, &process, LIMIT).await);
        let (inner, clock) = (client.clone(), world.clone());
        let work = async move {
            let client = inner;
            let dir = make(&client, Ino::ROOT, "dir", Make::Directory).await.unwrap();
            let empty = make(&client, Ino::ROOT, "empty", Make::Directory).await.unwrap();
            let files = fill(&client, dir).await;
            // Without a name they fit where nothing else does.
            let refused = loop {
                if let Err(error) = client.tmpfile(&ROOT, dir, 0o600).await {
                    break error;
                }
            };
            assert_eq!(refused, FsError::NoSpace);
            let Status { metadata_bytes, metadata_limit_bytes, troubles, .. } =
                status(&client).await;
            assert_eq!(metadata_limit_bytes, LIMIT);
            assert!((LIMIT - 2000..=LIMIT).contains(&metadata_bytes), "{metadata_bytes}");
            assert!(files > 300, "{files} files in {metadata_bytes} bytes");
            assert!(
                matches!(&troubles[..], [only] if only.what.contains("--metadata-memory")),
                "{troubles:?}"
            );

            let file = client.lookup(dir, &name("file 0")).await.unwrap().ino;
            let value = Bytes::from_static(b"value");
            assert_eq!(make(&client, dir, "d", Make::Directory).await, Err(FsError::NoSpace));
            assert_eq!(
                make(&client, dir, "l", Make::Symlink { target: value.clone() }).await,
                Err(FsError::NoSpace)
            );
            assert_eq!(
                client.link(&ROOT, file, dir, &name("link")).await.map(drop),
                Err(FsError::NoSpace)
            );
            assert_eq!(
                client.setxattr(&ROOT, file, "user.x".into(), value.clone(), XattrMode::Set).await,
                Err(FsError::NoSpace)
            );
            let leaves = RenameMode::Whiteout { keep_target: false, ino: None };
            assert_eq!(
                client.rename(&ROOT, dir, &name("file 0"), dir, &name("x"), leaves).await,
                Err(FsError::NoSpace)
            );
            client.set_flags(&ROOT, file, InodeFlags::IMMUTABLE).await.unwrap();
            client.set_flags(&ROOT, file, InodeFlags::default()).await.unwrap();
            client.write(&ROOT, file, 0, value.clone(), false).await.unwrap();
            let mut longer = 1;
            let refused = loop {
                let (from, to) = (name(format!("file {longer}")), name(format!("{longer:0255}")));
                match client.rename(&ROOT, dir, &from, dir, &to, RenameMode::Replace).await {
                    Ok(_) => longer += 1,
                    Err(error) => break error,
                }
            };
            assert!(
                refused == FsError::NoSpace
                    && longer > 1
                    && status(&client).await.metadata_bytes <= LIMIT,
                "{refused} {longer}"
            );
            client
                .rename(&ROOT, dir, &name("file 0"), dir, &name("rename"), RenameMode::Replace)
                .await
                .unwrap();
            client.rmdir(&ROOT, Ino::ROOT, &name("empty")).await.unwrap();
            assert_eq!(client.getattr(empty).await, Err(FsError::Stale));

            for number in 1..files {
                let is = if number < longer {
                    format!("{number:0255}")
                } else {
                    format!("file {number}")
                };
                client.unlink(&ROOT, dir, &name(is)).await.unwrap();
            }
            make(&client, dir, "more", Make::Regular).await.unwrap();
            // Removed files stay in the bucket until the flush.
            clock.sleep(Duration::from_secs(60)).await;
            let Status { metadata_bytes, troubles, .. } = status(&client).await;
            assert!(
                metadata_bytes < LIMIT / 4 && troubles.is_empty(),
                "{metadata_bytes} {troubles:?}"
            );
        };
        process.call(work).await.unwrap();
    });
}

/// Situation: a node dies with its metadata at the limit, and restarts with half the limit. Danger:
/// it does not start, or acknowledged names are missing. Expectation: all names are present, and
/// creations fail.
#[test]
fn metadata_of_the_log_loads_above_the_limit() {
    run(2, |world| async move {
        let process = world.machine("a").process_on("node", "data");
        let client = Rc::new(attach(&world, &process, LIMIT).await);
        let inner = client.clone();
        let files = process.call(async move { fill(&inner, Ino::ROOT).await }).await.unwrap();
        process.kill();

        let process = world.machine("a").process_on("node again", "data");
        let client = attach(&world, &process, LIMIT / 2).await;
        let work = async move {
            for number in 0..files {
                client.lookup(Ino::ROOT, &name(format!("file {number}"))).await.unwrap();
            }
            assert!(status(&client).await.metadata_bytes >= LIMIT - 2000);
            assert_eq!(
                make(&client, Ino::ROOT, "more", Make::Regular).await,
                Err(FsError::NoSpace)
            );
        };
        process.call(work).await.unwrap();
    });
}

/// Situation: a bucket with more names than the limit. Danger: the node loads them all.
/// Expectation: a listing fails with ENOMEM, loaded names are found, and other names are not
/// reported as absent.
#[test]
fn a_bucket_that_does_not_fit_is_not_loaded_whole() {
    run(3, |world| async move {
        for number in 0..20_000 {
            world.bucket().put_as_outsider(&format!("dir/{number:05}"), vec![], vec![]).unwrap();
        }
        let process = world.machine("a").process("node");
        let client = attach(&world, &process, LIMIT * 5).await;
        let work = async move {
            let dir = client.lookup(Ino::ROOT, &name("dir")).await.unwrap().ino;
            let (mut after, mut known) = (Cookie::START, Vec::new());
            let refused = loop {
                match client.readdir(dir, after, 1000).await {
                    Ok(page) => {
                        known.extend(page.entries.iter().map(|(entry, _)| entry.name.clone()));
                        after = page.entries.last().unwrap().0.cookie;
                        assert!(!page.end, "all of it fits");
                    }
                    Err(error) => break error,
                }
            };
            assert_eq!(refused, FsError::NoMemory);
            let taken = status(&client).await.metadata_bytes;
            assert!(taken < LIMIT * 5 + 300_000, "{taken}");
            client.lookup(dir, &known[0]).await.unwrap();
            assert_eq!(client.lookup(dir, &name("19999")).await, Err(FsError::NoMemory));
            client.unlink(&ROOT, dir, &known[0]).await.unwrap();
        };
        process.call(work).await.unwrap();
    });
}
