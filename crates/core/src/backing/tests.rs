use super::keys::*;
use super::{Listed, Part, are_agreed};
use ebb_model::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(vec![
        &b".ebb%"[..],
        b".ebb",
        b"x",
        b"2e",
        b"00",
        b"a",
        b"\xff",
        b".",
        b"\0",
        b"zz",
        b"2f",
        b".ebb%x",
        b"2E",
    ]);
    prop::collection::vec(word, 0..6).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Every name has a segment that decodes to it, unless the segment is longer than any listing
    /// shows.
    #[test]
    fn a_name_comes_back_from_its_segment(bytes in bytes()) {
        let Ok(name) = Name::new(&bytes) else { return Ok(()) };
        let segment = segment_of(&name);
        prop_assert!(!segment.contains('/'));
        if segment.len() <= MAX_SEGMENT_BYTES {
            prop_assert_eq!(name_of(&segment), Some(name));
        }
    }

    /// Every possible segment, of any origin, has a name that encodes to it: no two segments share
    /// a name.
    #[test]
    fn a_segment_comes_back_from_its_name(bytes in bytes()) {
        let Ok(segment) = String::from_utf8(bytes) else { return Ok(()) };
        if let Some(name) = name_of(&segment) {
            prop_assert_eq!(segment_of(&name), segment);
        }
    }
}

#[test]
fn names_and_segments_of_the_format_page() {
    let name = |bytes: &[u8]| Name::new(bytes).unwrap();
    for (segment, shown) in [
        ("a b", &b"a b"[..]),
        ("", b".ebb%"),
        (".", b".ebb%2e"),
        ("..", b".ebb%2e2e"),
        ("a\0", b".ebb%6100"),
        (".ebb%xff", b"\xff"),
        (".ebb%zz", b".ebb%2e656262257a7a"),
        (".ebb%x2e656262257a7a", b".ebb%zz"),
    ] {
        assert_eq!(name_of(segment), Some(name(shown)), "{segment}");
        assert_eq!(segment_of(&name(shown)), segment);
    }
    assert_eq!(name_of(&"s".repeat(256)), None);
    assert!(
        is_escaped(&name(b".ebb%"))
            && is_escaped(&name(b".ebb%2e"))
            && !is_escaped(&name(b".ebb%q"))
    );
}

#[test]
fn long_and_impossible_keys_come_from_the_inode_id() {
    let name = |bytes: &[u8]| Name::new(bytes).unwrap();
    let long = "p".repeat(1000) + "/";
    assert_eq!(own_key("d/", &name(b"f"), Ino(255)), "d/f");
    assert_eq!(own_key(&long, &name(&[b'n'; 30]), Ino(255)), ".ebb/long/ff");
    assert_eq!(own_key("", &name(&[0xff; 200]), Ino(255)), ".ebb/long/ff");
    assert_eq!(
        own_key("d/", &name(b".ebb%"), Ino(255)),
        ".ebb/long/ff",
        "the key would be the directory's marker"
    );
    assert_eq!(own_prefix("d/", &name(b".ebb%"), Ino(255)), "d//");
    assert_eq!(own_prefix(&long, &name(b"e"), Ino(255)), ".ebb/p/ff/");
    assert_eq!(split("a/b/"), ("a/", "b"));
    assert_eq!(split("a//"), ("a/", ""));
    assert_eq!(split("a"), ("", "a"));
}

/// Keys that ebb generates never collide.
#[test]
fn reserved_keys_differ() {
    let keys = [
        page_key(Ino(1)),
        waiting_key(Ino(1)),
        private_prefix(Ino(1)),
        own_key("", &Name::new(&[0xff; 200]).unwrap(), Ino(1)),
    ];
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
}

fn object(key: &str) -> Listed {
    Listed::Object { key: key.into(), etag: "e".into(), len_bytes: 1, modified: Time::default() }
}

fn prefix(key: &str) -> Listed {
    Listed::Prefix { key: key.into() }
}

/// Page and listing of one time are combined only if neither has more names than the other.
#[test]
fn page_and_listing_agree_where_neither_knows_more() {
    let time = Time::default();
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let record = InstalledRecord {
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        atime,
        mtime,
        ctime,
        btime,
        xattrs: vec![],
        links: vec![],
    };
    let entry = |name: &str, what| Installed {
        name: Name::new(name.as_bytes()).unwrap(),
        ino: Ino(9),
        what,
        record: Some(record.clone()),
    };
    let file = |key: Option<&str>| InstalledKind::Object {
        key: key.map(String::from),
        etag: "e".into(),
        len_bytes: 1,
        modified: time,
    };
    let dir = |prefix: Option<&str>| InstalledKind::Directory {
        prefix: prefix.map(String::from),
        page: true,
    };
    let link = InstalledKind::Recorded(Make::Symlink { target: "t".into() });
    let entries = vec![
        entry("a", file(None)),
        entry("d", dir(None)),
        entry("l", link),
        entry("m", file(Some("p/was"))),
        entry("r", dir(Some("q/"))),
    ];
    let page = DirectoryPage {
        dir: Ino(5),
        parent: None,
        record: record.clone(),
        hidden: vec![],
        entries,
    };
    let head = PageHead::from(page);
    let agreed = |prefix: &str, listed: &[Listed]| are_agreed(&head, prefix, listed, false);
    assert!(agreed("p/", &[object("p/a"), prefix("p/d/")]));
    assert!(agreed("p/", &[object("p/"), object("p/a"), prefix("p/d/")]), "with the marker");
    assert!(agreed("", &[prefix(".ebb/"), object("a"), prefix("d/")]));
    for (why, listed) in [
        ("a file that the bucket has not", vec![prefix("p/d/")]),
        ("a directory that it has not", vec![object("p/a")]),
        ("a file that nothing is recorded of", vec![object("p/a"), object("p/b"), prefix("p/d/")]),
        (
            "a directory that nothing is recorded of",
            vec![object("p/a"), prefix("p/c/"), prefix("p/d/")],
        ),
        ("an object and a prefix of one name", vec![object("p/a"), prefix("p/a/"), prefix("p/d/")]),
        (
            "a replaced file",
            vec![
                Listed::Object {
                    key: "p/a".into(),
                    etag: "f".into(),
                    len_bytes: 1,
                    modified: time,
                },
                prefix("p/d/"),
            ],
        ),
        ("a moved file", vec![object("p/a"), prefix("p/d/"), object("p/was")]),
    ] {
        assert!(!agreed("p/", &listed), "{why}");
    }
    assert!(!are_agreed(&head, "p/", &[object("p/a"), prefix("p/d/")], true), "there is more");
}

/// A prefix with the name of an object can come in the next batch, after other objects.
#[test]
fn listing_batch_returns_names_to_probe() {
    let entries = |keys: &[&str]| {
        keys.iter()
            .map(|key| if key.ends_with('/') { prefix(key) } else { object(key) })
            .collect::<Vec<_>>()
    };
    let part = |keys: &[&str], last: Option<&str>, left: Option<&str>, to_probe: &[&str]| Part {
        entries: entries(keys),
        last: last.map(str::to_owned),
        left: left.map(object),
        to_probe: to_probe.iter().map(|prefix| (*prefix).to_owned()).collect(),
    };
    assert_eq!(Part::of(entries(&["a", "b"]), false), part(&["a", "b"], None, None, &[]));
    assert_eq!(Part::of(Vec::new(), true), part(&[], None, None, &[]));
    assert_eq!(Part::of(entries(&["a", "b"]), true), part(&["a"], Some("a"), Some("b"), &[]));
    assert_eq!(Part::of(entries(&["a", "b/"]), true), part(&["a", "b/"], Some("b/"), None, &[]));
    assert_eq!(Part::of(entries(&["a"]), true), part(&["a"], Some("a"), None, &["a/"]));
    let mut long = Part::of(entries(&["a", "a!", "a!!", "a!!!"]), true);
    assert_eq!(long, part(&["a", "a!", "a!!"], Some("a!!"), Some("a!!!"), &["a/", "a!/", "a!!/"]));
    long.end_at("a!".to_owned());
    assert_eq!(long, part(&["a", "a!"], Some("a!"), None, &["a/", "a!/"]));
    for more in [true, false] {
        let mut cut = Part::of(entries(&["a", "a!", "a/", "b", "c"]), more);
        cut.end_at("a".to_owned());
        assert_eq!(cut, part(&["a", "a/"], Some("a"), None, &[]));
    }
}
