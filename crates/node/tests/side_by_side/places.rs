//! Which bucket a key is in, hostile ones among them.

use super::*;
use ebb_ports::{BucketError, Capabilities, Condition, UploadId};

#[test]
fn the_first_segment_decides() {
    let world = world(&["a", "b"]);
    for (key, place, inner) in [
        ("x", &world.root, "x"),
        ("a", &world.root, "a"),
        ("aa/x", &world.root, "aa/x"),
        ("/a/x", &world.root, "/a/x"),
        ("../a/x", &world.root, "../a/x"),
        (".ebb/d/1", &world.root, ".ebb/d/1"),
        ("a/x", &world.members[0], "x"),
        ("a/b/x", &world.members[0], "b/x"),
        ("a//", &world.members[0], "/"),
        ("a/../b/x", &world.members[0], "../b/x"),
        ("a/.ebbs", &world.members[0], ".ebbs"),
        ("a/d/.ebb/x", &world.members[0], "d/.ebb/x"),
        ("b/ ", &world.members[1], " "),
    ] {
        put(&world.all, key, key);
        assert_eq!(text(place, inner).as_deref(), Some(key));
        assert_eq!(text(&world.all, key).as_deref(), Some(key));
        now(world.all.delete(key, None)).unwrap();
        assert_eq!(text(place, inner), None, "{key}");
    }
}

/// Situation: the member is a volume of its own, or was. Danger: its pages are taken for
/// files, or written over.
#[test]
fn reserved_keys_of_a_member_are_out_of_reach() {
    let world = world(&["a"]);
    put(&world.members[0], ".ebb/head", "another's");
    put(&world.members[0], ".ebb", "odd");
    for key in ["a/.ebb/head", "a/.ebb", "a/.ebb/"] {
        let bucket = &world.all;
        assert!(matches!(now(bucket.get(key, None, None)), Err(BucketError::NotFound { .. })));
        assert!(matches!(now(bucket.head(key)), Err(BucketError::NotFound { .. })));
        assert_refused(bucket, key);
    }
    assert_eq!(text(&world.members[0], ".ebb/head").as_deref(), Some("another's"));
}

/// The directory of a member is there also if the member reports otherwise, and stays.
#[test]
fn the_marker_of_a_member_is_there_and_stays() {
    let world = world(&["a"]);
    let meta = now(world.all.head("a/")).unwrap();
    assert_eq!((meta.len_bytes, text(&world.all, "a/").as_deref()), (0, Some("")));
    assert!(now(world.all.get("a/", None, Some(&meta.etag))).is_ok());
    let other = ETag("other".into());
    assert!(matches!(
        now(world.all.get("a/", None, Some(&other))),
        Err(BucketError::Precondition { .. })
    ));
    assert_refused(&world.all, "a/");
}

fn assert_refused(bucket: &Rc<dyn Bucket>, key: &str) {
    put(bucket, "source", "x");
    let upload = UploadId("1".into());
    let refused = |result: Result<(), BucketError>| {
        assert!(matches!(result, Err(BucketError::Refused { .. })), "{key}: {result:?}")
    };
    refused(now(bucket.put(key, vec![].into(), Condition::Always, vec![])).map(drop));
    refused(now(bucket.put(key, vec![].into(), Condition::Absent, vec![])).map(drop));
    refused(now(bucket.delete(key, None)));
    refused(now(bucket.copy("source", key, None, Condition::Always)).map(drop));
    refused(now(bucket.copy(key, "a/to", None, Condition::Always)).map(drop));
    refused(now(bucket.upload_begin(key, vec![])).map(drop));
    refused(now(bucket.upload_part(key, &upload, 1, vec![].into())).map(drop));
    refused(now(bucket.upload_complete(key, &upload, vec![], Condition::Always)).map(drop));
    refused(now(bucket.upload_abort(key, &upload)));
}

#[test]
fn errors_speak_of_the_volumes_keys() {
    let world = world(&["a"]);
    let missing = now(world.all.get("a/none", None, None)).unwrap_err();
    assert_eq!(missing, BucketError::NotFound { key: "a/none".into() });
    put(&world.all, "a/x", "1");
    let there = now(world.all.put("a/x", vec![].into(), Condition::Absent, vec![])).unwrap_err();
    assert_eq!(there, BucketError::Precondition { key: "a/x".into() });
    let tags = vec![("Bad".into(), "".into())];
    let Err(BucketError::Refused { what }) =
        now(world.all.put("a/x", vec![].into(), Condition::Always, tags))
    else {
        panic!()
    };
    assert!(what.starts_with("a: "), "{what}");
}

#[test]
fn side_by_side_bucket_has_common_capabilities_and_all_names() {
    let world = world(&["a"]);
    let Capabilities { conditional_put, conditional_delete, .. } = world.all.capabilities();
    assert!(conditional_put && conditional_delete);
    let (root, member) = (world.root.describe(), world.members[0].describe());
    assert_eq!(world.all.describe(), format!("{root}, a over {member}"));
}
