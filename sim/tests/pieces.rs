//! Directories so large that their pages are in pieces (decision 15).

use ebb_client::Client;
use ebb_format::page::{self, Head};
use ebb_model::*;
use ebb_node::head::TakeOver;
use ebb_node::{Node, Options};
use ebb_ports::Capabilities;
use ebb_sim::volume::rig;
use ebb_sim::{Process, SimBucket, World};
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;

/// The head of the root's page, and the key prefix of its pieces.
const HEAD: &str = ".ebb/d/1";
const PIECES: &str = ".ebb/e/1-";

/// Entries of a piece.
const ENTRIES: usize = 16;

struct Mount {
    process: Process,
    #[expect(dead_code, reason = "lives as long as its client")]
    node: Rc<Node>,
    client: Client,
}

/// A node with nothing but the bucket.
async fn mount(world: &World, machine: &str, flush_interval: Duration) -> Mount {
    let process = world.machine(machine).process("node");
    let owner = machine.to_owned();
    let take_over = TakeOver::Now;
    let options = Options {
        owner,
        embedded: true,
        flush_interval,
        take_over,
        page_piece_entries: ENTRIES,
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
    async fn make(&self, text: &str, what: Make) -> Ino {
        self.client.make(&ROOT, Ino::ROOT, &name(text), 0o640, what, false).await.unwrap().ino
    }

    async fn link(&self, text: &str, target: &str) {
        self.make(text, Make::Symlink { target: bytes::Bytes::copy_from_slice(target.as_bytes()) })
            .await;
    }

    async fn target(&self, text: &str) -> Result<String, FsError> {
        let attr = self.client.lookup(Ino::ROOT, &name(text)).await?;
        Ok(String::from_utf8(self.client.readlink(attr.ino).await?.to_vec()).unwrap())
    }

    async fn remove(&self, text: &str) {
        self.client.unlink(&ROOT, Ino::ROOT, &name(text)).await.unwrap();
    }

    async fn flush(&self) {
        self.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
    }
}

fn run<F: Future<Output = ()> + 'static>(seed: u64, scenario: impl FnOnce(Rc<World>) -> F) {
    let world = Rc::new(World::new(seed));
    let outside = world.machine("outside").process("others").bucket(&world.bucket()).capabilities();
    world
        .bucket()
        .set_capabilities(Capabilities { max_put_bytes: outside.max_object_bytes, ..outside });
    world.run(scenario(world.clone())).unwrap_or_else(|failure| panic!("{failure}"));
}

fn head(bucket: &SimBucket) -> Head {
    page::decode(&bucket.objects()[HEAD].body).unwrap()
}

/// The bucket has exactly the pieces of the head.
fn check_pieces(bucket: &SimBucket, entries: usize) {
    let (head, objects) = (head(bucket), bucket.objects());
    let keys: Vec<String> =
        head.pieces.iter().map(|piece| format!("{PIECES}{:016x}", piece.id)).collect();
    assert_eq!(objects.keys().filter(|key| key.starts_with(PIECES)).count(), keys.len());
    let mut sum = 0;
    for (key, piece) in keys.iter().zip(&head.pieces) {
        let content = page::decode_piece(&objects[key].body).unwrap();
        assert!(
            content.entries.len() <= ENTRIES && content.entries.len() == piece.entries as usize
        );
        assert!(content.entries.iter().all(|entry| head.piece_of(&entry.name) == Some(piece)));
        sum += content.entries.len();
    }
    assert_eq!(sum, entries);
}

/// Situation: in a large directory one name is added, changed, removed. Danger: the whole page is
/// uploaded each time. Expectation: only its piece and the head are uploaded, and the replaced
/// objects deleted; a small directory has one object.
#[test]
fn a_flush_writes_the_pieces_that_changed() {
    run(1, |world| async move {
        let (bucket, a) = (world.bucket(), mount(&world, "a", Duration::from_secs(3600)).await);
        for at in 0..2 * ENTRIES - 1 {
            a.link(&format!("link-{at:04}"), "before").await;
        }
        a.flush().await;
        assert_eq!(
            (head(&bucket).pieces.len(), head(&bucket).page.entries.len()),
            (0, 2 * ENTRIES - 1)
        );
        for at in 2 * ENTRIES - 1..500 {
            a.link(&format!("link-{at:04}"), "before").await;
        }
        a.flush().await;
        check_pieces(&bucket, 500);
        for (step, entries) in [("more", 501), ("change", 501), ("less", 500)] {
            let before = bucket.history().len();
            match step {
                "more" => a.link("link-0250-more", "after").await,
                "less" => a.remove("link-0250-more").await,
                _ => {
                    let ino = a.client.lookup(Ino::ROOT, &name("link-0100")).await.unwrap().ino;
                    let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
                    a.client.setattr(&ROOT, ino, owner).await.unwrap();
                }
            }
            a.flush().await;
            let since = &bucket.history()[before..];
            let count = |prefix: &str| {
                since.iter().filter(|mutation| mutation.key.starts_with(prefix)).count()
            };
            // One or two replace one.
            assert!((2..=3).contains(&count(PIECES)), "{step}: {}", count(PIECES));
            assert_eq!(count(HEAD), 1, "{step}");
            check_pieces(&bucket, entries);
        }
        for at in 0..496 {
            a.remove(&format!("link-{at:04}")).await;
        }
        a.flush().await;
        assert_eq!((head(&bucket).pieces.len(), head(&bucket).page.entries.len()), (0, 4));
        assert!(!bucket.objects().keys().any(|key| key.starts_with(PIECES)));
    });
}

/// Situation: a node constantly writes pieces and heads, and dies with its disk at any moment.
/// Danger: the last head names deleted pieces, or lacks entries of an earlier one. Expectation: the
/// next node finds every entry that was not changed since its upload, and for the others the last
/// uploaded value or a newer one.
#[test]
fn whenever_a_node_dies_the_bucket_has_a_whole_page() {
    for seed in 1..=20 {
        run(seed, move |world| async move {
            let a = mount(&world, "a", Duration::ZERO).await;
            for at in 0..100 {
                a.link(&format!("kept-{at:03}"), "kept").await;
                a.link(&format!("link-{at:03}"), "0").await;
            }
            a.flush().await;
            let (process, client) = (a.process.clone(), Rc::new(a.client));
            let busy = client.clone();
            process.spawn(async move {
                for round in 1u64.. {
                    let text = format!("link-{:03}", round * 37 % 100);
                    let link = Make::Symlink { target: bytes::Bytes::from(round.to_string()) };
                    let (Ok(_) | Err(_)) = busy.unlink(&ROOT, Ino::ROOT, &name(&text)).await;
                    let (Ok(_) | Err(_)) =
                        busy.make(&ROOT, Ino::ROOT, &name(&text), 0o777, link, false).await;
                }
            });
            world.sleep(Duration::from_millis(200)).await;
            let last = world
                .bucket()
                .history()
                .last()
                .map(|mutation| mutation.key.clone())
                .unwrap_or_default();
            // In the middle of a write, or shortly after it.
            while !world
                .bucket()
                .history()
                .last()
                .is_some_and(|mutation| mutation.key.starts_with(PIECES) && mutation.key != last)
            {
                world.sleep(Duration::from_millis(1)).await;
            }
            world.sleep(Duration::from_millis(2 * seed)).await;
            a.process.kill();
            let b = mount(&world, "b", Duration::ZERO).await;
            for at in 0..100 {
                assert_eq!(b.target(&format!("kept-{at:03}")).await.as_deref(), Ok("kept"), "{at}");
                // Between its end and its new beginning it is not there.
                assert!(matches!(
                    b.target(&format!("link-{at:03}")).await,
                    Ok(_) | Err(FsError::NotFound)
                ));
            }
            b.link("one more", "b").await;
            b.flush().await;
            // The first node's leftover pieces are found.
            let report = rig::fsck(&b.client).await.unwrap();
            let objects = world.bucket().objects();
            let there = objects.keys().filter(|key| key.starts_with(PIECES)).count();
            let told: Vec<&String> = report.problems.iter().map(|problem| &problem.what).collect();
            assert_eq!(told.len(), there - head(&world.bucket()).pieces.len(), "{told:?}");
            assert!(
                told.iter()
                    .all(|what| what.contains(PIECES) && what.ends_with("nothing refers to it")),
                "{told:?}"
            );
        });
    }
}

/// Situation: a node with only the bucket looks up names of a directory with more keys than one
/// listing batch, and changes one. Danger: each look-up reads the whole page; or the rewritten
/// piece lacks names that are not loaded. Expectation: one piece per name, and nothing is lost.
#[test]
fn names_are_found_and_changed_without_the_other_pieces() {
    const FILES: usize = 1300;
    run(1, |world| async move {
        let a = mount(&world, "a", Duration::from_secs(3600)).await;
        for at in 0..FILES {
            a.make(&format!("file-{at:04}"), Make::Regular).await;
        }
        a.flush().await;
        a.process.kill();
        let b = mount(&world, "b", Duration::from_secs(3600)).await;
        assert_eq!(b.client.lookup(Ino::ROOT, &name("file-0001")).await.unwrap().mode, 0o640);
        let gets = || world.bucket().requests().get("get").copied().unwrap_or(0);
        let before = gets();
        let ino = b.client.lookup(Ino::ROOT, &name("file-1200")).await.unwrap().ino;
        assert!(gets() - before <= 1, "{}", gets() - before);
        assert_eq!(
            b.client.lookup(Ino::ROOT, &name("file-1200-not")).await.err(),
            Some(FsError::NotFound)
        );
        b.client
            .setattr(&ROOT, ino, SetAttr { mode: Some(0o600), ..SetAttr::default() })
            .await
            .unwrap();
        b.remove("file-1250").await;
        let before = world.bucket().history().len();
        b.flush().await;
        let written = world.bucket().history()[before..]
            .iter()
            .filter(|mutation| mutation.key.starts_with(PIECES))
            .count();
        assert!((4..=6).contains(&written), "{written}");
        b.process.kill();
        check_pieces(&world.bucket(), FILES - 1);
        let c = mount(&world, "c", Duration::from_secs(3600)).await;
        let tree = rig::walk(&c.client).await.unwrap();
        assert_eq!(tree.len(), FILES);
        for (path, node) in tree.iter().filter(|(path, _)| !path.is_empty()) {
            let mode = if path == b"file-1200" { 0o600 } else { 0o640 };
            assert_eq!(node.attr.mode, mode, "{}", path.escape_ascii());
        }
    });
}

/// Situation: a directory has many names and no objects, so that one listing has all of its keys.
/// Danger: all of its pieces are read, and put together again and again, for one name. Expectation:
/// some pieces for a name; all of them once for a listing.
#[test]
fn names_without_objects_come_in_parts_too() {
    const LINKS: usize = 2000;
    run(1, |world| async move {
        let a = mount(&world, "a", Duration::from_secs(3600)).await;
        for at in 0..LINKS {
            a.link(&format!("link-{at:04}"), "target").await;
        }
        a.link("link-\u{e9}\u{20ac}", "target").await;
        a.flush().await;
        a.process.kill();
        let pieces = head(&world.bucket()).pieces.len();
        assert!(pieces > 100);
        let b = mount(&world, "b", Duration::from_secs(3600)).await;
        let gets = || world.bucket().requests().get("get").copied().unwrap_or(0);
        let before = gets();
        assert_eq!(b.target("link-1500").await.as_deref(), Ok("target"));
        assert!(gets() - before < 10, "{}", gets() - before);
        assert_eq!(b.target("link-1500-not").await, Err(FsError::NotFound));
        b.remove("link-0003").await;
        let before = gets();
        assert_eq!(rig::walk(&b.client).await.unwrap().len(), LINKS + 1);
        assert!(gets() - before < pieces as u64 + 20, "{} for {pieces} pieces", gets() - before);
        b.flush().await;
        check_pieces(&world.bucket(), LINKS);
    });
}

/// Situation: another program has put an object at a key and others below it, and between the two
/// in key order are so many names without objects that the listing is installed in batches. Danger:
/// the first batch does not show that the name is a directory, which then never appears.
/// Expectation: both appear.
#[test]
fn listing_batch_may_end_between_an_object_and_keys_below_it() {
    const LINKS: usize = 200;
    run(1, |world| async move {
        let a = mount(&world, "a", Duration::from_secs(3600)).await;
        for at in 0..LINKS {
            a.link(&format!("a!{at:03}"), "target").await;
        }
        a.flush().await;
        a.process.kill();
        for key in ["a", "a/x"] {
            world.bucket().put_as_outsider(key, "content", vec![]).unwrap();
        }
        let b = mount(&world, "b", Duration::from_secs(3600)).await;
        assert_eq!(rig::walk(&b.client).await.unwrap().len(), LINKS + 4);
        for (shown, kind) in [("a", FileKind::Directory), ("a.ebb%object", FileKind::Regular)] {
            assert_eq!(
                b.client.lookup(Ino::ROOT, &name(shown)).await.unwrap().kind,
                kind,
                "{shown}"
            );
        }
    });
}

/// Situation: the last head of a dead node arrives when its successor is about to write its own.
/// Danger: the successor's head has pieces of an outdated head, and lacks a name that was renamed
/// between pieces. Expectation: it has the changes of both nodes.
#[test]
fn a_head_that_comes_late_is_not_undone() {
    const FILES: usize = 1300;
    run(1, |world| async move {
        let (bucket, a) = (world.bucket(), mount(&world, "a", Duration::from_secs(3600)).await);
        for at in 0..FILES {
            a.make(&format!("file-{at:04}"), Make::Regular).await;
        }
        a.link("file-1100-link", "target").await;
        a.flush().await;
        let before = bucket.objects();
        let (root, from, to) = (Ino::ROOT, name("file-1100-link"), name("zzz"));
        a.client.rename(&ROOT, root, &from, root, &to, RenameMode::Replace).await.unwrap();
        a.flush().await;
        a.process.kill();
        let late = bucket.objects()[HEAD].body.clone();
        for (key, object) in
            before.iter().filter(|(key, _)| key.starts_with(PIECES) || *key == HEAD)
        {
            bucket.put_as_outsider(key, object.body.clone(), vec![]).unwrap();
        }
        let b = mount(&world, "b", Duration::from_secs(3600)).await;
        let ino = b.client.lookup(root, &name("file-0650")).await.unwrap().ino;
        b.client
            .setattr(&ROOT, ino, SetAttr { mode: Some(0o600), ..SetAttr::default() })
            .await
            .unwrap();
        bucket.put_as_outsider(HEAD, late, vec![]).unwrap();
        b.flush().await;
        check_pieces(&bucket, FILES + 1);
        b.process.kill();
        let c = mount(&world, "c", Duration::from_secs(3600)).await;
        assert_eq!(c.target("zzz").await.as_deref(), Ok("target"));
        assert_eq!(c.target("file-1100-link").await, Err(FsError::NotFound));
        assert_eq!(c.client.lookup(root, &name("file-0650")).await.unwrap().mode, 0o600);
    });
}

/// Situation: a piece is missing in the bucket, or damaged. Danger: its entries are lost with the
/// cache, and as the head is correct the piece is never rewritten. Expectation: it is reported and
/// repaired.
#[test]
fn a_piece_that_is_lost_is_written_again() {
    for harm in ["gone", "damaged", "less"] {
        run(1, move |world| async move {
            let (bucket, a) = (world.bucket(), mount(&world, "a", Duration::from_secs(3600)).await);
            for at in 0..100 {
                a.link(&format!("link-{at:03}"), "kept").await;
            }
            a.flush().await;
            let key = format!("{PIECES}{:016x}", head(&bucket).pieces[1].id);
            let mut content = page::decode_piece(&bucket.objects()[&key].body).unwrap();
            let lost = content.entries.pop().unwrap().name.to_string();
            match harm {
                "gone" => bucket.delete_as_outsider(&key),
                "damaged" => drop(bucket.put_as_outsider(&key, "another", vec![]).unwrap()),
                _ => drop(
                    bucket
                        .put_as_outsider(&key, page::encode_piece(&content).unwrap(), vec![])
                        .unwrap(),
                ),
            }
            let report = rig::fsck(&a.client).await.unwrap();
            let [problem] = &report.problems[..] else { panic!("{:?}", report.problems) };
            assert!(
                problem.what.contains(if harm == "less" { &lost } else { &key }),
                "{}",
                problem.what
            );
            a.client
                .admin(AdminRequest::Repair { remedy: problem.remedy.clone().unwrap() })
                .await
                .unwrap();
            a.flush().await;
            assert_eq!(rig::fsck(&a.client).await.unwrap().problems, vec![]);
            check_pieces(&bucket, 100);
        });
    }
}
