//! Pages of directories on their way to the bucket while the directories change.

use ebb_client::Client;
use ebb_format::page;
use ebb_model::*;
use ebb_node::Options;
use ebb_ports::Capabilities;
use ebb_sim::volume::rig;
use ebb_sim::{SimBucket, World};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(5);

/// The page of the root.
const KEY: &str = ".ebb/d/1";

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

async fn link(client: &Client, file: &str) {
    let link = Make::Symlink { target: bytes::Bytes::from_static(b"target") };
    client.make(&Caller::ROOT, Ino::ROOT, &name(file), 0o777, link, false).await.unwrap();
}

fn root_page(bucket: &SimBucket) -> Option<DirectoryPage> {
    bucket.objects().get(KEY).map(|object| page::decode(&object.body).unwrap().page)
}

/// Runs `work` with a client of a node over an empty bucket.
fn node<F: Future<Output = ()> + 'static>(work: impl FnOnce(Rc<World>, Rc<Client>) -> F) {
    let world = Rc::new(World::new(1));
    let outside = world.machine("outside").process("others").bucket(&world.bucket()).capabilities();
    world
        .bucket()
        .set_capabilities(Capabilities { max_put_bytes: outside.max_object_bytes, ..outside });
    let done = world.run(async {
        let process = world.machine("a").process("node");
        let options = Options {
            owner: "pages".into(),
            embedded: true,
            flush_interval: INTERVAL,
            ..Options::default()
        };
        let node = rig::open(&process, &world.bucket(), &options).await.unwrap().unwrap();
        let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
        process.call(work(world.clone(), client)).await.expect("the process lives");
    });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: a directory is filled without end. Danger: its whole page is rewritten again and
/// again for a few new names, and nothing else is uploaded. Expectation: one write per flush
/// interval, and one at once on demand.
#[test]
fn the_page_of_a_busy_directory_is_written_once_in_a_flush_interval() {
    node(|world, client| async move {
        for at in 0..4000 {
            link(&client, &format!("link-{at}")).await;
            world.sleep(Duration::from_millis(4)).await;
        }
        let written =
            || world.bucket().history().iter().filter(|mutation| mutation.key == KEY).count();
        let intervals = (world.now().as_secs() / INTERVAL.as_secs()) as usize;
        assert!(
            (intervals - 1..=intervals).contains(&written()),
            "{} in {intervals} intervals",
            written()
        );
        for at in 4000..4003 {
            let before = written();
            link(&client, &format!("link-{at}")).await;
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            assert_eq!(written(), before + 1);
            assert_eq!(root_page(&world.bucket()).unwrap().entries.len(), at + 1);
        }
    });
}

/// Situation: a directory is so large that its page is assembled in steps, and it changes
/// meanwhile: each old name is removed, and a new one is added. Danger: the page has both or
/// neither. Expectation: it shows the directory at one moment.
#[test]
fn the_page_of_a_large_directory_is_of_one_moment() {
    const NAMES: usize = 5000;
    node(|world, client| async move {
        for at in 0..NAMES {
            link(&client, &format!("old-{at}")).await;
        }
        let mut pages = 0;
        let mut last = None;
        for at in 0..NAMES {
            client.unlink(&Caller::ROOT, Ino::ROOT, &name(&format!("old-{at}"))).await.unwrap();
            link(&client, &format!("new-{at}")).await;
            world.sleep(Duration::from_millis(5)).await;
            let object = world.bucket().objects().get(KEY).map(|object| object.meta.etag.clone());
            if object == last {
                continue;
            }
            last = object;
            pages += 1;
            let page = root_page(&world.bucket()).unwrap();
            let names: BTreeSet<&[u8]> =
                page.entries.iter().map(|entry| entry.name.as_bytes()).collect();
            let has = |kind: &str, at: usize| names.contains(format!("{kind}-{at}").as_bytes());
            let came = (0..NAMES).take_while(|at| has("new", *at)).count();
            let went = (0..NAMES).take_while(|at| !has("old", *at)).count();
            assert!(went == came || went == came + 1, "{came} have come, {went} have gone");
            assert_eq!(names.len(), NAMES - went + came);
        }
        assert!(pages >= 3, "{pages}");
        client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        assert_eq!(root_page(&world.bucket()).unwrap().entries.len(), NAMES);
    });
}
