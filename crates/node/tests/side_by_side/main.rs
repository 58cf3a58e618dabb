//! Several buckets as one: every clause of the port, and the places of objects.

mod across;
mod listing;
mod places;

use ebb_bucket::{Memory, suite};
use ebb_model::MemberDir;
use ebb_node::side_by_side::{Member, SideBySide};
use ebb_ports::{Bucket, Condition, ETag};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct World {
    root: Rc<dyn Bucket>,
    members: Vec<Rc<dyn Bucket>>,
    all: Rc<dyn Bucket>,
}

/// A root bucket and one member for each directory.
fn world(dirs: &[&str]) -> World {
    let root: Rc<dyn Bucket> = Rc::new(Memory::new());
    let members: Vec<Rc<dyn Bucket>> =
        dirs.iter().map(|_| Rc::new(Memory::new()) as Rc<dyn Bucket>).collect();
    let bucket_indexes = dirs
        .iter()
        .zip(&members)
        .map(|(dir, bucket)| Member::new(MemberDir::new(dir).unwrap(), bucket.clone()));
    let all = SideBySide::over(root.clone(), bucket_indexes.collect());
    World { root, members, all }
}

/// Memory answers at once.
fn now<T>(flow: impl Future<Output = T>) -> T {
    match pin!(flow).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("memory does not wait"),
    }
}

fn put(bucket: &Rc<dyn Bucket>, key: &str, body: &str) -> ETag {
    now(bucket.put(key, body.as_bytes().to_vec().into(), Condition::Always, vec![])).unwrap()
}

fn text(bucket: &Rc<dyn Bucket>, key: &str) -> Option<String> {
    now(bucket.get(key, None, None))
        .ok()
        .map(|object| String::from_utf8(object.body.to_vec()).unwrap())
}

#[test]
fn the_suite_passes_in_a_member() {
    let world = world(&["logs", "m"]);
    suite::run(&ebb_bucket::Prefixed::over(world.all, "m/"), None, &[]);
    suite::run(
        &ebb_bucket::Prefixed::over(world.members[0].clone(), "below/"),
        Some("directories_come_once"),
        &[],
    );
}

#[test]
fn the_suite_passes_beside_members() {
    suite::run(&world(&["logs", "m"]).all, None, &[]);
}
