//! The tree as a user sees it.

use super::world::World;
use bytes::Bytes;
use ebb_model::*;
use std::collections::BTreeMap;

impl World {
    pub fn directories(&self) -> Vec<Ino> {
        let mut dirs = vec![Ino::ROOT];
        let mut at = 0;
        while let Some(dir) = dirs.get(at) {
            let entries =
                self.state.namespace().read_dir(*dir, Cookie::START, usize::MAX).unwrap().0;
            dirs.extend(
                entries
                    .iter()
                    .filter(|(entry, _)| entry.kind == FileKind::Directory)
                    .map(|(entry, _)| entry.ino),
            );
            at += 1;
        }
        dirs
    }

    pub fn dentries(&self) -> Vec<(Ino, Name, Ino)> {
        let entries =
            |dir: Ino| self.state.namespace().read_dir(dir, Cookie::START, usize::MAX).unwrap().0;
        self.directories()
            .into_iter()
            .flat_map(|dir| {
                entries(dir).into_iter().map(move |(entry, _)| (dir, entry.name, entry.ino))
            })
            .collect()
    }

    pub fn dump(&self) -> BTreeMap<Vec<u8>, Seen> {
        let mut seen = BTreeMap::new();
        let mut groups = BTreeMap::new();
        self.dump_below(Ino::ROOT, b"", &mut seen, &mut groups);
        let namespace = self.state.namespace();
        let inode = namespace.inode(Ino::ROOT).unwrap();
        let (root, xattrs) = (inode.attr.clone(), inode.xattrs.clone().into_iter().collect());
        seen.insert(
            b"/".to_vec(),
            Seen {
                attr: comparable(root),
                policy: inode.policy,
                xattrs,
                target: Bytes::new(),
                content: vec![],
                group: b"/".to_vec(),
            },
        );
        for entry in self.trashed() {
            let path =
                format!("trash {:?} {} {}", entry.trashed.path, entry.trashed.at.secs, entry.ino)
                    .into_bytes();
            let inode = namespace.inode(entry.ino).unwrap();
            let content =
                if entry.kind == FileKind::Regular { self.read(entry.ino) } else { vec![] };
            if entry.kind == FileKind::Regular {
                assert_eq!(
                    content,
                    self.truth.get(&entry.ino).cloned().unwrap_or_default(),
                    "content of {}",
                    path.escape_ascii()
                );
            }
            let xattrs =
                inode.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            seen.insert(
                path.clone(),
                Seen {
                    attr: comparable(inode.attr),
                    policy: inode.policy,
                    xattrs,
                    target: inode.target,
                    content,
                    group: path,
                },
            );
        }
        seen
    }

    pub fn trashed(&self) -> Vec<TrashEntry> {
        self.state.namespace().trashed(Ino::ROOT, Cookie::START).map(|(_, entry)| entry).collect()
    }

    pub fn dump_below(
        &self,
        dir: Ino,
        path: &[u8],
        seen: &mut BTreeMap<Vec<u8>, Seen>,
        groups: &mut BTreeMap<Ino, Vec<u8>>,
    ) {
        let namespace = self.state.namespace();
        let mut entries = namespace.read_dir(dir, Cookie::START, usize::MAX).unwrap().0;
        entries.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        for (entry, attr) in entries {
            let path = [path, b"/", entry.name.as_bytes()].concat();
            let inode = namespace.inode(entry.ino).unwrap();
            let mut content = vec![];
            if entry.kind == FileKind::Regular {
                content = self.read(entry.ino);
                let truth = self.truth.get(&entry.ino).cloned().unwrap_or_default();
                assert_eq!(content, truth, "content of {}", path.escape_ascii());
            }
            let group = groups.entry(entry.ino).or_insert_with(|| path.clone()).clone();
            let xattrs =
                inode.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            seen.insert(
                path.clone(),
                Seen {
                    attr: comparable(attr),
                    policy: inode.policy,
                    xattrs,
                    target: inode.target.clone(),
                    content,
                    group,
                },
            );
            if entry.kind == FileKind::Directory {
                self.dump_below(entry.ino, &path, seen, groups);
            }
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    attr: Attr,
    policy: PolicyId,
    xattrs: Vec<(Bytes, Bytes)>,
    target: Bytes,
    content: Vec<u8>,
    /// The first path of the inode, which identifies hard links of each other.
    group: Vec<u8>,
}

/// Without the fields that a cold start can assign anew.
fn comparable(attr: Attr) -> Attr {
    Attr { ino: Ino(0), version: Version(0), ..attr }
}
