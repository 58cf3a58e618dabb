//! Copies from one bucket to another.

use super::*;
use ebb_ports::BucketError;

#[test]
fn a_copy_across_carries_content_and_tags() {
    let world = world(&["a", "b"]);
    let large: Vec<u8> = (0..(20 << 20) + 7u32).map(|at| (at >> 8) as u8 ^ at as u8).collect();
    let tags = vec![("mode".to_owned(), "33188".to_owned())];
    for body in [vec![], b"small".to_vec(), large] {
        let tag =
            now(world.all.put("a/from", body.clone().into(), Condition::Always, tags.clone()))
                .unwrap();
        for to in ["b/to", "to", "a/to"] {
            let copied = now(world.all.copy("a/from", to, Some(&tag), Condition::Always)).unwrap();
            let object = now(world.all.get(to, None, Some(&copied))).unwrap();
            assert!(object.body == body && object.meta.tags == tags);
        }
    }
    assert!(now(world.members[1].head("to")).is_ok() && now(world.root.head("to")).is_ok());
}

#[test]
fn a_copy_across_is_guarded_by_its_source() {
    let world = world(&["a"]);
    put(&world.all, "x", "1");
    let other = ETag("other".into());
    assert_eq!(
        now(world.all.copy("x", "a/x", Some(&other), Condition::Always)),
        Err(BucketError::Precondition { key: "x".into() })
    );
    assert_eq!(
        now(world.all.copy("none", "a/x", None, Condition::Always)),
        Err(BucketError::NotFound { key: "none".into() })
    );
    assert_eq!(text(&world.all, "a/x"), None);
}
