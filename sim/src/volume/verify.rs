//! Checks of the bucket after everything has been flushed.

use crate::SimBucket;
use crate::oracle::SeenTree;
use ebb_core::backing::keys;
use ebb_format::page;
use ebb_model::{Attr, FileKind, Ino, Name, TRASH};
use std::collections::{BTreeMap, BTreeSet};

/// Compares the bucket with the tree that it is to hold. `others` are keys that somebody
/// else put there and nobody touched.
pub fn bucket_holds(
    bucket: &SimBucket,
    tree: &SeenTree,
    others: &BTreeMap<String, Vec<u8>>,
) -> Vec<String> {
    let objects = bucket.objects();
    let unfinished = bucket.unfinished_uploads().into_iter();
    let mut problems: Vec<String> =
        unfinished.map(|upload| format!("an upload to {} is not finished", upload.key)).collect();
    let mut owned: BTreeSet<String> = others.keys().cloned().collect();
    owned.insert(".ebb/head".into());
    for (key, body) in others {
        if objects.get(key).is_none_or(|object| object.body != *body) {
            problems.push(format!("{key}, which is somebody else's, is not what it was"));
        }
    }

    let prefixes = prefixes(tree);
    let mut files: BTreeMap<Ino, Vec<String>> = BTreeMap::new();
    for (path, node) in tree {
        match node.attr.kind {
            FileKind::Directory => {
                let key = keys::page_key(node.attr.ino);
                let head = objects.get(&key).and_then(|object| page::decode(&object.body).ok());
                owned.extend(
                    head.iter()
                        .flat_map(|head| &head.pieces)
                        .map(|piece| keys::piece_key(node.attr.ino, piece.id)),
                );
                owned.insert(key);
                owned.insert(prefixes[&path[..]].clone());
            }
            FileKind::Regular => {
                let (parent, name) = split(path);
                files.entry(node.attr.ino).or_default().push(keys::own_key(
                    &prefixes[parent],
                    &name,
                    node.attr.ino,
                ));
            }
            _ => {}
        }
    }
    let mut elsewhere = Vec::new();
    for (path, node) in tree.iter().filter(|(_, node)| node.attr.kind == FileKind::Regular) {
        // Of several names one has the object.
        let holds =
            |key: &&String| objects.get(*key).is_some_and(|object| object.body == node.content);
        match files[&node.attr.ino].iter().find(holds) {
            Some(key) => {
                owned.insert(key.clone());
            }
            None => elsewhere.push((path, node)),
        }
    }
    // Where directories have changed places, none of them can have its objects below its
    // path: they stay where they are, and pages say so.
    let mut left: BTreeSet<&String> = objects.keys().filter(|key| !owned.contains(*key)).collect();
    let mut seen = BTreeSet::new();
    for (path, node) in elsewhere {
        if !seen.insert(node.attr.ino) {
            continue;
        }
        match left
            .iter()
            .find(|key| objects[**key].body == node.content && !key.ends_with('/'))
            .copied()
        {
            Some(key) => {
                left.remove(key);
            }
            None => problems.push(format!("no object holds {}", path.escape_ascii())),
        }
    }
    // So do their markers.
    let displaced = prefixes
        .values()
        .filter(|prefix| !prefix.is_empty() && !objects.contains_key(*prefix))
        .count();
    let (markers, others): (Vec<_>, Vec<_>) =
        left.into_iter().partition(|key| key.ends_with('/') && objects[*key].body.is_empty());
    if markers.len() > displaced {
        problems.push(format!("some of {markers:?} mark no directory"));
    }
    problems.extend(others.into_iter().map(|key| format!("{key} belongs to nobody")));
    problems
}

/// The objects of an empty trash in the bucket.
pub fn empty_trashes(bucket: &SimBucket) -> BTreeMap<String, Vec<u8>> {
    let is_trash = |body: &[u8]| {
        let head = page::decode(body)
            .ok()
            .filter(|head| head.pieces.is_empty() && head.page.entries.is_empty());
        head.and_then(|head| head.page.parent).is_some_and(|(_, name)| name.as_bytes() == TRASH)
    };
    let objects = bucket.objects().into_iter().map(|(key, object)| (key, object.body.to_vec()));
    objects
        .filter(|(key, body)| key.as_bytes() == [TRASH, b"/"].concat() || is_trash(body))
        .collect()
}

/// The prefix of each directory, by its path.
fn prefixes(tree: &SeenTree) -> BTreeMap<&[u8], String> {
    let mut prefixes: BTreeMap<&[u8], String> = BTreeMap::new();
    for (path, node) in tree.iter().filter(|(_, node)| node.attr.kind == FileKind::Directory) {
        let prefix = if path.is_empty() {
            String::new()
        } else {
            // A parent's path is a prefix of the child's, so it comes first.
            let (parent, name) = split(path);
            keys::own_prefix(&prefixes[parent], &name, node.attr.ino)
        };
        prefixes.insert(path, prefix);
    }
    prefixes
}

fn split(path: &[u8]) -> (&[u8], Name) {
    let at = path.iter().rposition(|byte| *byte == b'/');
    let (parent, name) = at.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]));
    (parent, Name::new(name).expect("what was seen has names"))
}

/// The differences between two views of a tree, the second of a volume that was given only the
/// bucket. There, versions begin anew, and so do the inode ids and the directory times of inodes
/// that are on no record. Holes are not known.
pub fn differences(bucket: &SimBucket, before: &SeenTree, after: &SeenTree) -> Vec<String> {
    let objects = bucket.objects();
    let mut found = Vec::new();
    let mut inos: BTreeMap<Ino, Ino> = BTreeMap::new();
    for path in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let shown = path.escape_ascii();
        match (before.get(path), after.get(path)) {
            (Some(_), None) => found.push(format!("{shown} is gone")),
            (None, Some(_)) => found.push(format!("{shown} has appeared")),
            (Some(before), Some(after)) => {
                let mut expected = before.clone();
                expected.attr.version = after.attr.version;
                expected.attr.hole_bytes = 0;
                if *inos.entry(before.attr.ino).or_insert(after.attr.ino) != after.attr.ino {
                    found.push(format!("{shown} is no longer linked to its other names"));
                }
                expected.attr.ino = after.attr.ino;
                if before.attr.kind == FileKind::Directory
                    && !objects.contains_key(&keys::page_key(before.attr.ino))
                {
                    let Attr { atime, mtime, ctime, btime, .. } = after.attr;
                    expected.attr = Attr { atime, mtime, ctime, btime, ..expected.attr };
                }
                if expected.content != after.content {
                    found.push(format!("{shown} has another content"));
                } else if expected != *after {
                    found.push(format!("{shown} was {:?} and is {:?}", expected.attr, after.attr));
                }
            }
            (None, None) => {}
        }
    }
    found
}
