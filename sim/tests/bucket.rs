//! Semantics and faults of the simulated store.

use bytes::Bytes;
use ebb_ports::{Bucket, BucketError, Condition, ETag, ListEntry, ListPage, ListRequest};
use ebb_sim::{BUCKET_HOST, FaultPlan, Rate, SimBucket, World};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn port(world: &World) -> Rc<dyn Bucket> {
    world.machine("a").process("node").bucket(&world.bucket())
}

async fn put(
    bucket: &Rc<dyn Bucket>,
    key: &str,
    body: &str,
    condition: Condition,
) -> Result<ETag, BucketError> {
    bucket.put(key, Bytes::from(body.to_owned()), condition, vec![]).await
}

fn body_of(bucket: &SimBucket, key: &str) -> Option<Bytes> {
    bucket.objects().get(key).map(|object| object.body.clone())
}

fn precondition<T>(result: Result<T, BucketError>) -> bool {
    matches!(result, Err(BucketError::Precondition { .. }))
}

fn refused<T>(result: Result<T, BucketError>) -> bool {
    matches!(result, Err(BucketError::Refused { .. }))
}

/// Every condition on every state of a key, and the ranges of a read.
#[test]
fn bucket_conditions_and_ranges_follow_the_port() {
    let world = World::new(1);
    let bucket = port(&world);
    world
        .run(async {
            let other = || Some(ETag("other".into()));
            assert!(precondition(put(&bucket, "k", "0", Condition::Match(other().unwrap())).await));
            let first = put(&bucket, "k", "0123", Condition::Absent).await.unwrap();
            assert!(precondition(put(&bucket, "k", "1", Condition::Absent).await));
            let second = put(&bucket, "k", "4567", Condition::Match(first.clone())).await.unwrap();
            assert!(precondition(put(&bucket, "k", "1", Condition::Match(first.clone())).await));
            assert_eq!(
                put(&bucket, "again", "0123", Condition::Always).await.unwrap(),
                first,
                "same content, same tag"
            );

            for (range, expected) in
                [(0..2, "45"), (2..9, "67"), (4..5, ""), (9..12, ""), (3..3, "")]
            {
                let object = bucket.get("k", Some(range), Some(&second)).await.unwrap();
                assert_eq!((object.body, object.meta.len_bytes), (Bytes::from(expected), 4));
            }
            assert!(precondition(bucket.get("k", None, Some(&first)).await));
            assert!(matches!(
                bucket.get("none", None, None).await,
                Err(BucketError::NotFound { .. })
            ));
            assert!(matches!(bucket.head("none").await, Err(BucketError::NotFound { .. })));

            assert!(precondition(
                bucket.copy("k", "copy", other().as_ref(), Condition::Always).await
            ));
            assert_eq!(
                bucket.copy("k", "copy", Some(&second), Condition::Always).await.unwrap(),
                second
            );
            assert!(matches!(
                bucket.copy("none", "copy", None, Condition::Always).await,
                Err(BucketError::NotFound { .. })
            ));

            assert!(precondition(bucket.delete("k", Some(&first)).await));
            bucket.delete("k", Some(&second)).await.unwrap();
            bucket.delete("k", Some(&second)).await.unwrap();
            bucket.delete("k", None).await.unwrap();

            assert!(refused(put(&bucket, "", "", Condition::Always).await));
            assert!(refused(put(&bucket, &"x".repeat(2000), "", Condition::Always).await));
            assert!(refused(put(&bucket, "k", &"x".repeat(300_000), Condition::Always).await));
            assert!(refused(
                bucket
                    .put(
                        "k",
                        Bytes::new(),
                        Condition::Always,
                        vec![("Bad Name".into(), "x".into())]
                    )
                    .await
            ));
        })
        .unwrap();
    let keys: Vec<String> = world.bucket().objects().into_keys().collect();
    assert_eq!(keys, ["again", "copy"]);
    let history: Vec<(String, bool)> = world
        .bucket()
        .history()
        .into_iter()
        .map(|change| (change.key, change.etag.is_some()))
        .collect();
    let expected = [("k", true), ("k", true), ("again", true), ("copy", true), ("k", false)];
    assert_eq!(history, expected.map(|(key, there)| (key.to_owned(), there)));
    assert_eq!(world.bucket().requests()["put"], 10);
}

/// A store without conditions refuses them, and a guarded delete looks first.
#[test]
fn a_store_without_conditions_says_so() {
    let world = World::new(1);
    let bucket = port(&world);
    world.bucket().forget_conditions();
    world
        .run(async {
            assert!(refused(put(&bucket, "k", "", Condition::Absent).await));
            let etag = put(&bucket, "k", "x", Condition::Always).await.unwrap();
            assert!(precondition(bucket.delete("k", Some(&ETag("other".into()))).await));
            bucket.delete("k", Some(&etag)).await.unwrap();
            bucket.delete("k", Some(&etag)).await.unwrap();
        })
        .unwrap();
    assert_eq!(world.bucket().requests()["head"], 3);
}

/// A naive listing: all keys, sorted, grouped, filtered, truncated.
fn naive_list(keys: &BTreeSet<String>, request: &ListRequest) -> (Vec<String>, bool) {
    let entries: BTreeSet<String> = keys
        .iter()
        .filter_map(|key| {
            let rest = key.strip_prefix(&request.prefix)?;
            match rest.find('/') {
                Some(at) if request.by_directory => {
                    Some(format!("{}{}", request.prefix, &rest[..=at]))
                }
                _ => Some(key.clone()),
            }
        })
        .filter(|entry| request.after.as_ref().is_none_or(|after| entry > after))
        .collect();
    (entries.iter().take(request.limit).cloned().collect(), entries.len() > request.limit)
}

fn names(page: &ListPage) -> Vec<String> {
    page.entries.iter().map(|entry| entry.key().to_owned()).collect()
}

/// Random keys full of slashes are listed in every way, and agree with the plainest listing.
#[test]
fn listings_agree_with_the_plainest_listing() {
    let world = World::new(1);
    let (bucket, rng) = (port(&world), world.rng("keys"));
    let text = |longest: usize| {
        (0..rng.index(longest))
            .map(|_| ['a', 'b', '/', '0', '.', 'é'][rng.index(6)])
            .collect::<String>()
    };
    let keys: BTreeSet<String> = (0..200).map(|_| text(7)).filter(|key| !key.is_empty()).collect();
    for key in &keys {
        world.bucket().put_as_outsider(key, "", vec![]).unwrap();
    }
    world
        .run(async {
            for _ in 0..2000 {
                let request = ListRequest {
                    prefix: text(4),
                    by_directory: rng.below(2) == 0,
                    after: if rng.below(2) == 0 { Some(text(5)) } else { None },
                    limit: 1 + rng.index(10),
                };
                let page = bucket.list(request.clone()).await.unwrap();
                let (expected, more) = naive_list(&keys, &request);
                assert_eq!((names(&page), page.more), (expected, more), "{request:?}");
                for entry in &page.entries {
                    let grouped =
                        request.by_directory && entry.key()[request.prefix.len()..].contains('/');
                    assert_eq!(
                        matches!(entry, ListEntry::Prefix { .. }),
                        grouped,
                        "{request:?}: {entry:?}"
                    );
                }
            }
        })
        .unwrap();
}

/// An upload in parts: seen only when complete, refused when its parts are wrong, listed
/// as unfinished until it is completed or aborted.
#[test]
fn uploads_appear_whole_or_not_at_all() {
    let world = World::new(1);
    let bucket = port(&world);
    world
        .run(async {
            let tags = vec![("mode".to_owned(), "644".to_owned())];
            let upload = bucket.upload_begin("k", tags.clone()).await.unwrap();
            let part = async |number, len: usize| {
                bucket.upload_part("k", &upload, number, Bytes::from(vec![number as u8; len])).await
            };
            let (one, two, three) = (
                part(1, 5000).await.unwrap(),
                part(2, 100).await.unwrap(),
                part(3, 100).await.unwrap(),
            );
            assert!(refused(part(0, 1).await) && refused(part(100_000, 1).await));
            assert!(bucket.upload_part("other", &upload, 1, Bytes::new()).await.is_err());
            assert!(bucket.head("k").await.is_err());

            let complete = async |parts: Vec<_>, condition| {
                bucket.upload_complete("k", &upload, parts, condition).await
            };
            assert!(refused(complete(vec![], Condition::Always).await));
            assert!(refused(complete(vec![two.clone(), one.clone()], Condition::Always).await));
            assert!(
                refused(
                    complete(vec![one.clone(), two.clone(), three.clone()], Condition::Always)
                        .await
                ),
                "a short part amid"
            );
            assert!(precondition(
                complete(vec![one.clone()], Condition::Match(ETag(one.receipt.clone()))).await
            ));
            part(2, 6000).await.unwrap();
            assert!(
                refused(complete(vec![one.clone(), two], Condition::Always).await),
                "replaced by now"
            );
            assert_eq!(world.bucket().unfinished_uploads().len(), 1);
            let etag = complete(vec![one.clone(), three], Condition::Absent).await.unwrap();
            assert!(world.bucket().unfinished_uploads().is_empty());
            let object = bucket.get("k", None, Some(&etag)).await.unwrap();
            assert_eq!((object.body.len(), object.meta.tags), (5100, tags));
            assert!(matches!(
                complete(vec![one], Condition::Always).await,
                Err(BucketError::NotFound { .. })
            ));

            let abandoned = bucket.upload_begin("k", vec![]).await.unwrap();
            bucket.upload_abort("other", &abandoned).await.unwrap();
            assert_eq!(world.bucket().unfinished_uploads()[0].upload, abandoned);
            bucket.upload_abort("k", &abandoned).await.unwrap();
            bucket.upload_abort("k", &abandoned).await.unwrap();
            assert!(world.bucket().unfinished_uploads().is_empty());
        })
        .unwrap();
}

/// The reply of a put is lost. By the fault plan the put had no effect, an immediate effect, or a
/// late one: the caller cannot tell, the store can.
#[test]
fn a_lost_answer_leaves_three_outcomes() {
    let outcome = |set: fn(&mut FaultPlan)| {
        let mut plan = FaultPlan::default();
        set(&mut plan);
        plan.bucket.late_limit = 60 * SECOND;
        let world = World::with_faults(1, plan);
        let bucket = port(&world);
        let result = world.run(put(&bucket, "k", "x", Condition::Always)).unwrap();
        assert!(matches!(result, Err(BucketError::Unknown { .. })), "{result:?}");
        let at_once = body_of(&world.bucket(), "k").is_some();
        world.run_for(60 * SECOND).unwrap();
        (at_once, body_of(&world.bucket(), "k").is_some())
    };
    assert_eq!(outcome(|plan| plan.bucket.lost_request = Rate::ALWAYS), (false, false));
    assert_eq!(outcome(|plan| plan.bucket.lost_answer = Rate::ALWAYS), (true, true));
    assert_eq!(outcome(|plan| plan.bucket.late = Rate::ALWAYS), (false, true));
}

/// A late put arrives after its successor: without a condition it overwrites it, with one it has no
/// effect.
#[test]
fn a_late_put_meets_its_successor() {
    for (condition, left) in [(Condition::Always, "old"), (Condition::Absent, "new")] {
        let mut plan = FaultPlan::default();
        plan.bucket.late = Rate::ALWAYS;
        plan.bucket.late_limit = 60 * SECOND;
        let world = World::with_faults(1, plan);
        let bucket = port(&world);
        world
            .run(async {
                assert!(put(&bucket, "k", "old", condition).await.is_err());
                world.set_faults(FaultPlan::default());
                put(&bucket, "k", "new", Condition::Always).await.unwrap();
                world.sleep(60 * SECOND).await;
            })
            .unwrap();
        assert_eq!(body_of(&world.bucket(), "k").unwrap(), left);
    }
}

/// A process dies with a put under way: the put may land after its death.
#[test]
fn put_of_a_dead_process_may_land_later() {
    let mut landed = BTreeSet::new();
    for seed in 0..30 {
        let world = World::new(seed);
        let process = world.machine("a").process("node");
        let bucket = process.bucket(&world.bucket());
        process.spawn(async move { drop(put(&bucket, "k", "x", Condition::Always).await) });
        world.run_for(Duration::from_millis(8)).unwrap();
        let before = body_of(&world.bucket(), "k").is_some();
        process.kill();
        world.run_for(SECOND).unwrap();
        assert!(body_of(&world.bucket(), "k").is_some());
        landed.insert(before);
    }
    assert_eq!(landed, BTreeSet::from([false, true]));
}

/// Every rejection reports "no effect", and has none.
#[test]
fn refusals_change_nothing() {
    let attempt = |set: fn(&mut FaultPlan)| {
        let mut plan = FaultPlan::default();
        set(&mut plan);
        plan.bucket.retry_after_limit = 10 * SECOND;
        plan.bucket.outage_limit = 10 * SECOND;
        let world = World::with_faults(1, plan);
        let bucket = port(&world);
        let result = world.run(put(&bucket, "k", "x", Condition::Always)).unwrap();
        assert!(world.bucket().history().is_empty());
        world.set_faults(FaultPlan::default());
        world.run_for(10 * SECOND).unwrap();
        world.run(put(&bucket, "k", "x", Condition::Always)).unwrap().expect("outages end");
        result.unwrap_err()
    };
    assert!(matches!(
        attempt(|plan| plan.bucket.unavailable = Rate::ALWAYS),
        BucketError::Unavailable { retry_after: None, .. }
    ));
    assert!(matches!(
        attempt(|plan| plan.bucket.throttled = Rate::ALWAYS),
        BucketError::Unavailable { retry_after: Some(_), .. }
    ));
    assert!(matches!(
        attempt(|plan| plan.bucket.forbidden = Rate::ALWAYS),
        BucketError::Forbidden { .. }
    ));
    assert!(matches!(
        attempt(|plan| plan.bucket.gone = Rate::ALWAYS),
        BucketError::Unavailable { .. }
    ));
}

/// The scenario forbids or removes the store for a while, or cuts one machine off from it.
#[test]
fn outages_on_request() {
    let world = World::new(1);
    let (bucket, far) = (port(&world), world.machine("b").process("node").bucket(&world.bucket()));
    world
        .run(async {
            world.bucket().forbid_for(5 * SECOND);
            assert!(matches!(bucket.head("k").await, Err(BucketError::Forbidden { .. })));
            world.sleep(5 * SECOND).await;
            world.bucket().vanish_for(5 * SECOND);
            assert!(matches!(bucket.head("k").await, Err(BucketError::Unavailable { .. })));
            world.sleep(5 * SECOND).await;

            world.net().partition_one_way("a", BUCKET_HOST);
            assert!(matches!(
                put(&bucket, "k", "x", Condition::Always).await,
                Err(BucketError::Unavailable { .. })
            ));
            put(&far, "far", "x", Condition::Always).await.unwrap();
            world.net().heal();
            world.net().partition_one_way(BUCKET_HOST, "a");
            assert!(matches!(
                put(&bucket, "k", "x", Condition::Always).await,
                Err(BucketError::Unknown { .. })
            ));
            assert!(matches!(bucket.head("k").await, Err(BucketError::Unavailable { .. })));
        })
        .unwrap();
    let objects: Vec<String> = world.bucket().objects().into_keys().collect();
    assert_eq!(objects, ["far", "k"]);
    world.bucket().delete_as_outsider("far");
    let history = world.bucket().history();
    let who: Vec<&str> = history.iter().map(|change| change.process.as_str()).collect();
    assert_eq!(who, ["b/node#2", "a/node#1", "outsider"]);
}

/// Buckets of different names share nothing.
#[test]
fn buckets_are_separate() {
    let world = World::new(1);
    world.bucket_named("one").put_as_outsider("k", "x", vec![]).unwrap();
    assert!(world.bucket_named("two").objects().is_empty());
    let process = world.machine("a").process("node");
    assert_eq!(process.bucket(&world.bucket_named("one")).describe(), "sim://one");
}
