//! Flushes of renamed directories whose objects cannot follow them: each flush ends.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options, Stopped};
use ebb_ports::*;
use ebb_sim::volume::rig;
use ebb_sim::{Process, World};
use futures_util::future::{Either, ready, select};
use std::cell::RefCell;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;

/// No flush takes longer than this.
const LONGEST_FLUSH: Duration = Duration::from_secs(900);

/// Situation: a directory is renamed, and then the disk is full, so that the log does not take that
/// its objects move. Danger: the flush counts each attempt as progress, for ever. Expectation: it
/// ends with an error, and moves the objects once there is room.
#[test]
fn flush_on_a_full_disk_ends() {
    run(1, async |world| {
        let mount = mount(world, "data", &Rc::default()).await;
        mount.make("old", Make::Directory).await;
        mount.make("old/file", Make::Regular).await;
        mount.flush(world, "").await.unwrap();
        mount.rename("old", "new").await;
        let disk = world.machine("machine").disk("data");
        disk.set_capacity(0);
        mount.fill_log().await;
        mount.flush(world, "").await.unwrap_err();
        disk.set_capacity(1 << 30);
        world.sleep(Duration::from_secs(30)).await;
        assert_eq!(mount.flush(world, "").await, Ok(0));
        assert!(world.bucket().objects().contains_key("new/file"));
    });
}

/// Situation: the bucket does not answer, and directories elsewhere in the volume are renamed to
/// and fro. Danger: each rename restarts the time of a flush, for ever. Expectation: it ends with
/// an error, also if the directories are below the one that is flushed.
#[test]
fn flush_during_renames_ends_without_a_bucket() {
    for (seed, at) in [(2, "dir"), (3, "")] {
        run(seed, async |world| {
            let mount = mount(world, "data", &Rc::default()).await;
            mount.make("dir", Make::Directory).await;
            mount.make("one", Make::Directory).await;
            mount.flush(world, "").await.unwrap();
            world.bucket().vanish_for(3 * LONGEST_FLUSH);
            mount.make("dir/file", Make::Regular).await;
            let (client, clock) = (mount.client.clone(), mount.process.ports.clock.clone());
            mount.process.spawn(async move {
                for turn in 0.. {
                    let (fresh, renamed) = (format!("fresh {turn}"), format!("renamed {turn}"));
                    make(&client, &fresh, Make::Directory).await;
                    for (from, to) in [("one", "two"), ("two", "one"), (&fresh[..], &renamed[..])] {
                        rename(&client, from, to).await;
                        clock.sleep(Duration::from_millis(700)).await;
                    }
                }
            });
            assert_eq!(mount.flush(world, at).await, Err(FsError::TimedOut));
        });
    }
}

/// Situation: of two renamed directories that were never listed, the bucket refuses to list one.
/// Danger: the other one is not moved, flushes time out, and the volume is not released at unmount.
/// Expectation: the refused one keeps its redirect, which status and `explain` report; a later
/// flush lists it again.
#[test]
fn flush_passes_over_a_directory_that_cannot_be_listed() {
    run(4, async |world| {
        let bucket = world.bucket();
        for key in ["bad/file", "good/file"] {
            bucket.put_as_outsider(key, Bytes::from_static(b"bytes"), vec![]).unwrap();
        }
        let refused = Rc::new(RefCell::new(Some("bad/".to_owned())));
        let first = mount(world, "data", &refused).await;
        first.rename("bad", "bad2").await;
        first.rename("good", "good2").await;
        assert_eq!(first.flush(world, "").await, Ok(1));
        let has = |key: &str| bucket.objects().contains_key(key);
        assert!(has("good2/file") && has("bad/file"));
        let reported = "directory /bad2 of the volume was renamed and cannot be listed, so its \
            objects stay at bad/: permission denied";
        let troubles = first.status().await.troubles;
        assert!(troubles.iter().any(|trouble| trouble.what == reported), "{troubles:?}");
        assert!(first.explain("bad2").await.refused.contains(&reported.to_owned()));
        first.unmount().await;
        let second = mount(world, "other", &refused).await;
        assert_eq!(second.explain("bad2").await.prefix.as_deref(), Some("bad/"));
        assert_eq!(second.flush(world, "").await, Ok(1));
        refused.take();
        assert_eq!(second.flush(world, "").await, Ok(0));
        assert!(has("bad2/file") && !has("bad/file"));
        let troubles = second.status().await.troubles;
        assert!(troubles.iter().all(|trouble| !trouble.what.contains("/bad2")), "{troubles:?}");
        assert!(second.explain("bad2").await.refused.is_empty());
        second.unmount().await;
    });
}

fn run(seed: u64, scene: impl AsyncFnOnce(&World)) {
    let world = World::new(seed);
    world.run(scene(&world)).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
}

struct Mount {
    process: Process,
    node: Rc<Node>,
    client: Client,
}

/// `refused`: the prefix that the bucket does not list.
async fn mount(world: &World, data: &str, refused: &Rc<RefCell<Option<String>>>) -> Mount {
    let process = world.machine("machine").process_on("node", data);
    let options = Options {
        owner: "machine".into(),
        embedded: true,
        flush_interval: Duration::from_secs(3600),
        ..Options::default()
    };
    let bucket = process.bucket(&world.bucket());
    let bucket = Rc::new(Refusing { bucket, refused: refused.clone() });
    let ports = process.ports.clone();
    let opening = async move { Node::open(ports, Some(bucket), options).await };
    let node = process.call(opening).await.unwrap().unwrap();
    let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
    Mount { process, node, client }
}

fn path(at: &str) -> Vec<Name> {
    let names = at.split('/').filter(|name| !name.is_empty());
    names.map(|name| Name::new(name.as_bytes()).unwrap()).collect()
}

/// The directory of a path, and its name in that.
async fn place(client: &Client, at: &str) -> (Ino, Name) {
    let mut names = path(at);
    let last = names.pop().unwrap();
    let mut dir = Ino::ROOT;
    for name in names {
        dir = client.lookup(dir, &name).await.unwrap().ino;
    }
    (dir, last)
}

async fn make(client: &Client, at: &str, what: Make) {
    let (dir, name) = place(client, at).await;
    client.make(&ROOT, dir, &name, 0o755, what, false).await.unwrap();
}

async fn rename(client: &Client, from: &str, to: &str) {
    let ((from, old), (to, new)) = (place(client, from).await, place(client, to).await);
    client.rename(&ROOT, from, &old, to, &new, RenameMode::Replace).await.unwrap();
}

impl Mount {
    async fn call<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        ask: impl FnOnce(Client) -> F,
    ) -> T {
        self.process.call(ask(self.client.clone())).await.expect("the node lives")
    }

    async fn make(&self, at: &'static str, what: Make) {
        self.call(|client| async move { make(&client, at, what).await }).await;
    }

    async fn rename(&self, from: &'static str, to: &'static str) {
        self.call(|client| async move { rename(&client, from, to).await }).await;
    }

    /// Changes attributes until the log takes no more.
    async fn fill_log(&self) {
        let error = self.call(|client| async move {
            loop {
                let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
                if let Err(error) = client.setattr(&ROOT, Ino::ROOT, set).await {
                    return error;
                }
            }
        });
        assert_eq!(error.await, FsError::NoSpace);
    }

    /// How many renamed directories keep their objects where they were.
    async fn flush(&self, world: &World, at: &str) -> Result<u64, FsError> {
        let request = AdminRequest::Flush { path: path(at) };
        let flushed = self.call(|client| async move { client.admin(request).await });
        match select(pin!(flushed), world.sleep(LONGEST_FLUSH)).await {
            Either::Left((Ok(AdminReply::Flushed { renamed, .. }), _)) => Ok(renamed),
            Either::Left((Ok(reply), _)) => panic!("{reply:?}"),
            Either::Left((Err(error), _)) => Err(error),
            Either::Right(_) => panic!("the flush does not end"),
        }
    }

    async fn status(&self) -> Status {
        let asked = |client: Client| async move { client.admin(AdminRequest::Status).await };
        match self.call(asked).await {
            Ok(AdminReply::Status(status)) => *status,
            reply => panic!("{reply:?}"),
        }
    }

    async fn explain(&self, at: &str) -> Explained {
        let request = AdminRequest::Explain { path: path(at) };
        match self.call(|client| async move { client.admin(request).await }).await {
            Ok(AdminReply::Explained(explained)) => *explained,
            reply => panic!("{reply:?}"),
        }
    }

    async fn unmount(self) {
        let (node, client) = (self.node, self.client);
        let stopped = self.process.call(async move {
            client.detach(Duration::from_secs(30)).await.unwrap();
            node.stop(true).await
        });
        assert_eq!(stopped.await.unwrap(), Ok(Stopped::Released));
        self.process.kill();
    }
}

/// A bucket that does not list one prefix.
struct Refusing {
    bucket: Rc<dyn Bucket>,
    refused: Rc<RefCell<Option<String>>>,
}

impl Bucket for Refusing {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        self.bucket.get(key, range, if_match)
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        self.bucket.head(key)
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.bucket.put(key, body, condition, tags)
    }

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        self.bucket.delete(key, if_match)
    }

    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.bucket.copy(from, to, if_match, condition)
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        match self.refused.borrow().as_ref() {
            Some(refused) if *refused == request.prefix && request.by_directory => {
                let what = format!("listing {refused} is not allowed");
                Box::pin(ready(Err(BucketError::Forbidden { what })))
            }
            _ => self.bucket.list(request),
        }
    }

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        self.bucket.upload_begin(key, tags)
    }

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        self.bucket.upload_part(key, upload, number, body)
    }

    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        self.bucket.upload_part_copy(key, upload, number, from)
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.bucket.upload_complete(key, upload, parts, condition)
    }

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        self.bucket.upload_abort(key, upload)
    }

    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        self.bucket.uploads(key)
    }

    fn capabilities(&self) -> Capabilities {
        self.bucket.capabilities()
    }

    fn describe(&self) -> String {
        self.bucket.describe()
    }
}
