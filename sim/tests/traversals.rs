//! Traversals of directories that exist only in the bucket.

use ebb_client::{Client, Page};
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Rate, Rng, Slowness, World};
use futures_util::future::join;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::ready;
use std::rc::Rc;
use std::time::Duration;

/// The duration of 200 listings, one after the other.
const IN_TURN: Duration = Duration::from_secs(10);

/// Does this with a volume of which nothing is known, over a store that has an object for each of
/// these keys, and takes up to 100 ms for an answer. Gives how long that took, and how many
/// listings.
fn with_keys<T>(
    keys: impl IntoIterator<Item = String>,
    work: impl AsyncFn(&World, &Client) -> T,
) -> (T, Duration, u64) {
    with_keys_and(Options::default(), keys, work)
}

fn with_keys_and<T>(
    options: Options,
    keys: impl IntoIterator<Item = String>,
    work: impl AsyncFn(&World, &Client) -> T,
) -> (T, Duration, u64) {
    with_node(options, keys, async |world, _, client| work(world, client).await)
}

fn with_node<T>(
    options: Options,
    keys: impl IntoIterator<Item = String>,
    work: impl AsyncFn(&World, &Rc<Node>, &Client) -> T,
) -> (T, Duration, u64) {
    let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(100) };
    let faults = FaultPlan {
        bucket: BucketFaults { slow, ..BucketFaults::default() },
        ..FaultPlan::default()
    };
    let world = World::with_faults(1, faults);
    let bucket = world.bucket();
    let done = world.run(async {
        for key in keys {
            bucket.put_as_outsider(&key, "content", vec![]).unwrap();
        }
        let process = world.machine("a").process("node");
        let options = Options { volume: "ebb".into(), embedded: true, ..options };
        let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        let listings = || bucket.requests().get("list").copied().unwrap_or(0);
        let (began, before) = (world.now(), listings());
        let done = work(&world, &node, &client).await;
        let took = world.now() - began;
        // Listings for which no call waits complete, too.
        world.sleep(Duration::from_secs(5)).await;
        (done, took, listings() - before)
    });
    done.unwrap()
}

/// All files and directories below one, in the order of find(1).
async fn find(client: &Client, top: Ino) -> usize {
    go_through(client, top, async |_| ()).await
}

/// The same, with work for each file that it comes to.
async fn go_through(client: &Client, top: Ino, work: impl AsyncFn(Ino)) -> usize {
    let (mut found, mut left) = (0, vec![(top, FileKind::Directory)]);
    while let Some((ino, kind)) = left.pop() {
        if kind != FileKind::Directory {
            work(ino).await;
            continue;
        }
        let (mut after, mut below) = (Cookie::START, Vec::new());
        loop {
            let Page { entries, end } = client.readdir(ino, after, 100).await.unwrap();
            found += entries.len();
            after = entries.last().map_or(after, |(entry, _)| entry.cookie);
            below.extend(entries.into_iter().map(|(entry, _)| (entry.ino, entry.kind)));
            if end {
                break;
            }
        }
        left.extend(below.into_iter().rev());
    }
    found
}

async fn dir(client: &Client, name: &str) -> Ino {
    client.lookup(Ino::ROOT, &Name::new(name.as_bytes()).unwrap()).await.unwrap().ino
}

/// Situation: find(1) on directories that only the bucket has. Danger: each of 200 directories
/// waits for the one before. Expectation: several are listed at one time, at every depth.
#[test]
fn traversal_lists_directories_ahead() {
    let flat = (0..200).map(|at| format!("{at:03}/file"));
    let deep = (0..10).flat_map(|at| (0..19).map(move |below| format!("{at}/{below:02}/file")));
    for (keys, entries) in [(flat.collect::<Vec<_>>(), 400), (deep.collect(), 390)] {
        let (found, took, listings) =
            with_keys(keys, async |_, client| find(client, Ino::ROOT).await);
        assert_eq!(found, entries);
        assert!(took < IN_TURN / 5 * 2, "{took:?}");
        assert!(listings <= 210, "{listings}");
    }
}

/// The same for a program that visits them out of order, forwards and backwards.
#[test]
fn traversal_out_of_order_lists_directories_ahead() {
    for order in [|at: usize| at ^ 1, |at| 199 - (at ^ 1)] {
        let (found, took, listings) =
            with_keys((0..200).map(|at| format!("{at:03}/file")), async |_, client| {
                let Page { entries: dirs, .. } =
                    client.readdir(Ino::ROOT, Cookie::START, 1000).await.unwrap();
                let mut found = 0;
                for at in (0..200).map(order) {
                    found += client
                        .readdir(dirs[at].0.ino, Cookie::START, 100)
                        .await
                        .unwrap()
                        .entries
                        .len();
                }
                found
            });
        assert_eq!(found, 200);
        assert!(took < IN_TURN / 5 * 2, "{took:?}");
        assert!(listings <= 210, "{listings}");
    }
}

/// The same where changes of other programs must be visible: all directories are listed again.
#[test]
fn traversal_with_revalidate_lists_directories_ahead() {
    let options = Options { revalidate: Some(Duration::from_secs(60)), ..Options::default() };
    let (took, _, listings) = with_keys_and(
        options,
        (0..200).map(|at| format!("{at:03}/file")),
        async |world, client| {
            find(client, Ino::ROOT).await;
            world.sleep(Duration::from_secs(60)).await;
            let began = world.now();
            assert_eq!(find(client, Ino::ROOT).await, 400);
            world.now() - began
        },
    );
    assert!(took < IN_TURN / 5 * 2, "{took:?}");
    assert!((402..=420).contains(&listings), "{listings}");
}

/// Situation: the memory of the node has room for a few directories at one time, and somebody looks
/// into all of them. Danger: those that are listed ahead come in together, each of which had room.
/// Expectation: the bound holds but for one part of a listing.
#[test]
fn listing_ahead_respects_the_metadata_limit() {
    for limit in [700_000, 900_000, 1_300_000] {
        let options = Options { metadata_bytes: limit, ..Options::default() };
        let keys = (0..60).flat_map(|at| {
            (0..300).map(move |file| format!("{at:02}/an object with a name {file}"))
        });
        let (most, ..) = with_keys_and(options, keys, async |_, client| {
            let most = Cell::new(0);
            let tops = client.readdir(Ino::ROOT, Cookie::START, 100).await.unwrap().entries;
            let dirs: BTreeSet<Ino> = tops.into_iter().map(|(entry, _)| entry.ino).collect();
            client.on_reference_query(move |inos| {
                Box::pin(ready(inos.into_iter().filter(|ino| dirs.contains(ino)).collect()))
            });
            let found = go_through(client, Ino::ROOT, async |_| {
                let Ok(AdminReply::Status(status)) = client.admin(AdminRequest::Status).await
                else {
                    panic!("there is no status")
                };
                most.set(most.get().max(status.metadata_bytes));
            });
            assert_eq!(found.await, 60 * 301);
            most.get()
        });
        assert!(most > limit / 2 && most < limit + (64 << 10), "{most} of {limit}");
    }
}

/// As git(1) and rsync(1) do, which know the names, and do other work for each.
#[test]
fn lookups_in_all_directories_list_ahead() {
    let work = Duration::from_millis(20);
    let keys = (0..200).flat_map(|at| (0..300).map(move |file| format!("{at:03}/{file}")));
    let (_, took, listings) = with_keys(keys, async |world, client| {
        for at in 0..200 {
            let dir = dir(client, &format!("{at:03}")).await;
            client.lookup(dir, &Name::new(&b"7"[..]).unwrap()).await.unwrap();
            world.sleep(work).await;
        }
    });
    assert!(took < 200 * work + IN_TURN / 10, "{took:?}");
    assert!(listings <= 210, "{listings}");
}

/// Danger: each directory that anybody looks into has others listed, which cost money.
#[test]
fn random_lookups_list_nothing_ahead() {
    let ((), _, listings) =
        with_keys((0..400).map(|at| format!("{at:03}/file")), async |_, client| {
            let rng = Rng::new(7);
            for _ in 0..40 {
                let dir = dir(client, &format!("{:03}", rng.below(400))).await;
                client.lookup(dir, &Name::new(&b"file"[..]).unwrap()).await.unwrap();
            }
        });
    assert!(listings < 50, "{listings}");
}

/// Situation: find(1) on one of many directories. Expectation: of the others nothing is listed.
#[test]
fn traversal_of_one_directory_lists_nothing_else() {
    let keys = (0..50).flat_map(|at| (0..10).map(move |below| format!("{at:02}/{below}/file")));
    let (found, _, listings) =
        with_keys(keys, async |_, client| find(client, dir(client, "02").await).await);
    assert_eq!(found, 20);
    // The root, the directory, and those in it.
    assert!(listings <= 1 + 1 + 10 + 1, "{listings}");
}

/// Situation: the bucket goes away while directories are listed ahead. Danger: a client that opens
/// one of them waits for the attempts of the readahead, and then for its own. Expectation: it gets
/// an error after the configured time.
#[test]
fn listing_ahead_keeps_the_bucket_timeout() {
    let timeout = Duration::from_secs(30);
    let options = Options { bucket_timeout: timeout, ..Options::default() };
    let keys = (0..50).map(|at| format!("{at:02}/file"));
    let (took, ..) = with_keys_and(options, keys, async |world, client| {
        for at in 0..10 {
            find(client, dir(client, &format!("{at:02}")).await).await;
        }
        world.bucket().vanish_for(Duration::from_secs(600));
        // Those are there that were on their way, and others are begun when the next one is looked
        // into.
        for at in 10..50 {
            let dir = dir(client, &format!("{at:02}")).await;
            let began = world.now();
            if client.readdir(dir, Cookie::START, 100).await.is_err() {
                return world.now() - began;
            }
        }
        panic!("all of them are there");
    });
    assert!(took > timeout / 2 && took < timeout + timeout / 2, "{took:?}");
}

/// Situation: ls(1) on a directory that takes many requests to list. Danger: each request is sent
/// only when the result of the one before it has been read, and each ends with one more for keys
/// that may follow. Expectation: the next request is in progress meanwhile, and there are no
/// additional ones.
#[test]
fn large_directory_listing_fetches_batches_ahead() {
    let (parts, calls, work) = (10, 10, Duration::from_millis(15));
    let keys = (0..1000 * parts - 10).map(|at| format!("d/{at:05}"));
    let (found, took, listings) = with_keys(keys, async |world, client| {
        let dir = dir(client, "d").await;
        let (mut found, mut after) = (0, Cookie::START);
        loop {
            let Page { entries, end } = client.readdir(dir, after, 1000 / calls).await.unwrap();
            found += entries.len();
            world.sleep(work).await;
            match entries.last() {
                Some((entry, _)) if !end => after = entry.cookie,
                _ => return found,
            }
        }
    });
    assert_eq!(found, 9990);
    // 150 ms each for question and work, of which one hides the other.
    assert!(took < Duration::from_millis(150) * parts * 3 / 2, "{took:?}");
    assert!(listings <= u64::from(parts) + 2, "{listings}");
}

/// Situation: a client does work for each of the files of a large directory. Expectation: no batch
/// is fetched ahead that would be stale when the client needs it.
#[test]
fn slow_listing_fetches_nothing_stale() {
    let keys = (0..9990).map(|at| format!("d/{at:05}"));
    let (found, _, listings) = with_keys(keys, async |world, client| {
        let dir = dir(client, "d").await;
        let (mut found, mut after) = (0, Cookie::START);
        loop {
            let Page { entries, end } = client.readdir(dir, after, 1000).await.unwrap();
            found += entries.len();
            world.sleep(Duration::from_secs(10)).await;
            match entries.last() {
                Some((entry, _)) if !end => after = entry.cookie,
                _ => return found,
            }
        }
    });
    assert_eq!(found, 9990);
    // The root, ten parts, and the three that were asked for before he was known.
    assert!(listings <= 1 + 10 + 3, "{listings}");
}

/// Situation: a client lists a large directory, and stops; later it continues. Danger: a batch
/// fetched ahead counts as the current content. Expectation: it is requested again.
#[test]
fn listing_batch_fetched_ahead_expires() {
    let keys = (0..1500).map(|at| format!("d/{at:05}"));
    let (names, ..) = with_keys(keys, async |world, client| {
        let dir = dir(client, "d").await;
        let first = client.readdir(dir, Cookie::START, 10).await.unwrap();
        assert!(!first.end);
        world.sleep(Duration::from_secs(60)).await;
        world.bucket().put_as_outsider("d/01600", "content", vec![]).unwrap();
        find(client, dir).await
    });
    assert_eq!(names, 1501);
}

/// Danger: entries carried over from one batch to the next are listed again, and a store that
/// continues only where it ended begins anew each time. Expectation: each entry comes once.
#[test]
fn each_entry_of_a_listing_comes_once() {
    let (found, _, listings) =
        with_keys((0..100).map(|at| format!("d/{at:05}")), async |world, client| {
            world.bucket().list_at_most(2);
            find(client, dir(client, "d").await).await
        });
    assert_eq!(found, 100);
    // The root, and two entries each.
    assert!(listings <= 1 + 51, "{listings}");
}

/// Situation: names of all kinds, a bucket that returns any number of them and errors in between,
/// and other programs that create and remove some meanwhile. Danger: where a batch requested ahead
/// begins, a name is left out or shown twice. Expectation: each name that was there all the time is
/// found once.
#[test]
fn parts_requested_ahead_leave_nothing_out() {
    let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(100) };
    for seed in 0..60 {
        let world = World::new(seed);
        let errors =
            BucketFaults { slow, unavailable: Rate::one_in(20), ..BucketFaults::default() };
        let (bucket, rng) = (world.bucket(), Rng::new(seed));
        let kind = rng.below(6);
        let number = |at: u64| match if kind < 4 { kind } else { rng.below(4) } {
            0 => format!("{at:05}"),
            1 => format!("{at}"),
            2 => format!("{:08X}-{at}", at.wrapping_mul(0x9e37_79b9)),
            _ => format!("{}é~{at}/x", "z".repeat(at as usize % 7)),
        };
        let names: BTreeSet<String> = (0..rng.below(900)).map(number).collect();
        let shown: BTreeSet<String> =
            names.iter().map(|name| name.split('/').next().unwrap().to_owned()).collect();
        bucket.list_at_most(1 + rng.below(30) as usize);
        let (found, more) = world
            .run(async {
                for name in &names {
                    bucket.put_as_outsider(&format!("d/{name}"), "content", vec![]).unwrap();
                }
                let process = world.machine("a").process("node");
                let options =
                    Options { volume: "ebb".into(), embedded: true, ..Options::default() };
                let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
                let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
                let dir = if names.is_empty() { Ino::ROOT } else { dir(&client, "d").await };
                world.set_faults(FaultPlan { bucket: errors, ..FaultPlan::default() });
                let (mut found, mut after, mut more) = (Vec::new(), Cookie::START, 0);
                loop {
                    let Page { entries, end } = client.readdir(dir, after, 10).await.unwrap();
                    found.extend(entries.iter().map(|(entry, _)| {
                        String::from_utf8(entry.name.as_bytes().to_vec()).unwrap()
                    }));
                    if rng.below(3) == 0 {
                        bucket
                            .put_as_outsider(&format!("d/+{}", number(more)), "content", vec![])
                            .unwrap();
                        bucket.delete_as_outsider(&format!("d/+{}", rng.below(more + 1)));
                        more += 1;
                    }
                    match entries.last() {
                        Some((entry, _)) if !end => after = entry.cookie,
                        _ => return (found, more),
                    }
                }
            })
            .unwrap();
        let (others, expected): (Vec<_>, Vec<_>) = found
            .into_iter()
            .filter(|name| name != "." && name != "..")
            .partition(|name| name.starts_with('+'));
        assert!(others.len() as u64 <= more, "seed {seed}");
        assert_eq!(expected.len(), shown.len(), "seed {seed}");
        assert_eq!(expected.into_iter().collect::<BTreeSet<_>>(), shown, "seed {seed}");
    }
}

/// Situation: a path of 20 directories that ebb has made, after the loss of its cache. Danger: of
/// each the page and then the listing is waited for. Expectation: both come at one time, and are
/// asked for once.
#[test]
fn page_and_listing_are_asked_for_at_one_time() {
    const DEPTH: u32 = 20;
    let world = World::new(1);
    let bucket = world.bucket();
    let (took, asked) = world
        .run(async {
            let options = Options { volume: "ebb".into(), embedded: true, ..Options::default() };
            let maker = world.machine("a").process_on("maker", "data");
            let node = rig::open(&maker, &bucket, &options).await.unwrap().unwrap();
            let client = rig::attach_embedded(&maker, &node).await.unwrap().unwrap();
            let (name, mut dir) = (Name::new(&b"d"[..]).unwrap(), Ino::ROOT);
            for _ in 0..DEPTH {
                dir = client
                    .make(&Caller::ROOT, dir, &name, 0o755, Make::Directory, false)
                    .await
                    .unwrap()
                    .ino;
                client
                    .make(
                        &Caller::ROOT,
                        dir,
                        &Name::new(&b"f"[..]).unwrap(),
                        0o644,
                        Make::Regular,
                        false,
                    )
                    .await
                    .unwrap();
            }
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            client.detach(Duration::from_secs(5)).await.unwrap();
            node.stop(true).await.unwrap();
            let process = world.machine("a").process_on("node", "another");
            let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
            let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(100) };
            world.set_faults(FaultPlan {
                bucket: BucketFaults { slow, ..BucketFaults::default() },
                ..FaultPlan::default()
            });
            let asked =
                || ["get", "list"].map(|what| bucket.requests().get(what).copied().unwrap_or(0));
            let (began, before) = (world.now(), asked());
            let mut dir = Ino::ROOT;
            for _ in 0..DEPTH {
                dir = client.lookup(dir, &name).await.unwrap().ino;
            }
            let asked = asked();
            (world.now() - began, [asked[0] - before[0], asked[1] - before[1]])
        })
        .unwrap();
    // One after the other: twice as long.
    assert!(took < Duration::from_millis(200) * DEPTH, "{took:?}");
    assert!(asked.into_iter().all(|asked| asked <= u64::from(DEPTH) + 1), "{asked:?}");
}

/// Situation: ripgrep on a tree that only the bucket has. Two threads take their next entries from
/// a stack, so that the last entry of each directory comes first. They share one stack, or each has
/// its own and takes entries from the other when it is empty. Danger: each of 300 files and 100
/// directories waits for the one before it. Expectation: several are fetched at one time, each
/// once.
#[test]
fn traversal_from_a_stack_reads_ahead() {
    for stacks in [1, 2] {
        let keys = (0..3).flat_map(|top| {
            (0..100).flat_map(move |dir| (0..3).map(move |file| format!("{top}/{dir:02}/{file}")))
        });
        let (gets, took, listings) = with_keys(keys, async |world, client| {
            let gets = || world.bucket().requests().get("get").copied().unwrap_or(0);
            let (stacks, top) = (vec![RefCell::new(Vec::new()); stacks], dir(client, "1").await);
            stacks[0].borrow_mut().push((top, FileKind::Directory));
            let (before, read) = (gets(), Cell::new(0));
            let worker = async |at: usize| {
                while read.get() < 300 {
                    let (own, other) =
                        (&stacks[at % stacks.len()], &stacks[(at + 1) % stacks.len()]);
                    if own.borrow().is_empty() {
                        let mut other = other.borrow_mut();
                        let half = other.len().div_ceil(2).min(32);
                        let taken: Vec<_> = other.drain(..half).collect();
                        drop(other);
                        own.borrow_mut().extend(taken);
                    }
                    let next = own.borrow_mut().pop();
                    match next {
                        Some((dir, FileKind::Directory)) => {
                            let Page { entries, end } =
                                client.readdir(dir, Cookie::START, 1000).await.unwrap();
                            assert!(end);
                            own.borrow_mut().extend(
                                entries.into_iter().map(|(entry, _)| (entry.ino, entry.kind)),
                            );
                        }
                        Some((file, _)) => {
                            assert_eq!(client.read(file, 0, 4096).await.unwrap(), "content");
                            read.set(read.get() + 1);
                        }
                        None => world.sleep(Duration::from_millis(1)).await,
                    }
                }
            };
            join(worker(0), worker(1)).await;
            gets() - before
        });
        assert_eq!(gets, 300);
        // On average 50 ms for each file alone.
        assert!(took < IN_TURN, "{took:?} of {stacks}");
        assert!(listings <= 110, "{listings}");
    }
}

/// Situation: cp(1) of a tree that only the bucket has. Danger: each of 300 files waits for the one
/// before it, for none of their directories has many. Expectation: several are fetched at one time,
/// each once, and nothing outside the tree.
#[test]
fn tree_copy_reads_files_ahead() {
    let keys = (0..3).flat_map(|top| {
        (0..100).flat_map(move |dir| (0..3).map(move |file| format!("{top}/{dir:02}/{file}")))
    });
    let ((found, gets), took, listings) = with_keys(keys, async |world, client| {
        let read = async |ino| assert_eq!(client.read(ino, 0, 4096).await.unwrap(), "content");
        let gets = || world.bucket().requests().get("get").copied().unwrap_or(0);
        let top = dir(client, "1").await;
        let before = gets();
        (go_through(client, top, read).await, gets() - before)
    });
    assert_eq!((found, gets), (100 + 300, 300));
    // On average 50 ms for each file alone.
    assert!(took < IN_TURN, "{took:?}");
    assert!(listings <= 110, "{listings}");
}

/// An open does not wait for the readahead that it triggers. The readahead runs when no call waits,
/// not only with the next open.
#[test]
fn open_triggers_readahead_without_delay() {
    let keys = (0..50).map(|file| format!("dir/{file:02}"));
    with_node(Options::default(), keys, async |world, node, client| {
        let dir = dir(client, "dir").await;
        let Page { entries, .. } = client.readdir(dir, Cookie::START, 100).await.unwrap();
        let files: Vec<Ino> = entries.iter().map(|(entry, _)| entry.ino).collect();
        for file in &files[..3] {
            client.read(*file, 0, 100).await.unwrap();
        }
        world.sleep(Duration::from_secs(5)).await;
        let fetched = || world.bucket().requests().get("get").copied().unwrap_or(0);
        let before = fetched();
        assert!(node.grant(files[3], GrantRequest::Begin).await.unwrap().is_none(), "it is small");
        node.apply_deferred();
        world.sleep(Duration::from_secs(5)).await;
        assert!(fetched() > before, "{before} objects were fetched, and no more since");
    });
}
