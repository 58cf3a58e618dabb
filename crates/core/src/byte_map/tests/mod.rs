mod laws;
mod naive_blocks;
mod reads;

use super::*;
use crate::content::{ContentChange, ContentItem, ContentMut, zeroed_edges};
use crate::extent::ExtentItem;
use crate::namespace::Change;
use ebb_model::{Attr, FileKind, Ino, LocalCommand, SetAttr, Stamp, Time, Version};

const INO: Ino = Ino(7);

/// Content and extents, as a node has them.
#[derive(Default)]
struct Maps {
    content: Content,
    extents: Extents,
}

impl Maps {
    fn view(&self) -> ByteMap<'_> {
        ByteMap::new(&self.content, &self.extents)
    }

    /// Changes content, and lets extents follow.
    fn change(&mut self, change: impl FnOnce(&mut ContentMut)) {
        let mut changes: Vec<ContentChange> = Vec::new();
        change(&mut ContentMut::new(&mut self.content, &mut changes));
        changes.iter().for_each(|change| self.extents.follow(change));
    }

    fn observe(&mut self, change: &Change) {
        self.change(|content| content.observe(change));
    }

    /// A command of this node.
    fn apply(&mut self, command: &LocalCommand) {
        match command {
            LocalCommand::Present { ino, etag, first, sums } => {
                if self.content.object(*ino).is_some_and(|object| object.etag == *etag) {
                    let (object, content) = (self.content.object_mark(*ino), &self.content);
                    let is_hole = |block| content.is_hole(*ino, block);
                    self.extents.fetched(*ino, object, *first, sums, is_hole);
                }
            }
            _ => self.extents.apply(command),
        }
    }

    /// A write of this node.
    fn write(
        &mut self,
        (offset, len_bytes): (u64, u64),
        sums: Vec<Option<u32>>,
        range: Option<PackRange>,
        stamp: Stamp,
    ) {
        let (version, first) = (stamp.version, offset / BLOCK_BYTES);
        if len_bytes > 0 {
            self.apply(&LocalCommand::Staged { ino: INO, version, first, sums, range });
        }
        self.observe(&Change::Written { ino: INO, offset, len_bytes, stamp });
    }

    fn zero(&mut self, range: Range<u64>, edges: Vec<u64>, stamp: Stamp) {
        for first in zeroed_edges(&range, &edges) {
            let (version, sums) = (stamp.version, vec![None]);
            self.apply(&LocalCommand::Staged { ino: INO, version, first, sums, range: None });
        }
        self.observe(&Change::Zeroed { ino: INO, range, edges, stamp });
    }

    fn cut(&mut self, (old_bytes, new_bytes): (u64, u64), stamp: Stamp) {
        let set = SetAttr { size_bytes: Some(new_bytes), ..SetAttr::default() };
        let has_edge = self.view().has_edge(INO, &set);
        self.observe(&Change::Resized { ino: INO, old_bytes, new_bytes, has_edge, stamp });
    }

    fn uploaded(&mut self, etag: &str, len_bytes: u64, version: Version) {
        let changed = self.view().changed_since(INO, version);
        self.change(|content| content.uploaded(INO, etag, len_bytes, version, changed));
    }

    fn items(&self) -> (Vec<ContentItem>, Vec<ExtentItem>) {
        (self.content.items().collect(), self.extents.items().collect())
    }

    fn is_empty(&self) -> bool {
        let (shared, local) = self.items();
        shared.is_empty() && local.is_empty()
    }

    fn restored((shared, local): (Vec<ContentItem>, Vec<ExtentItem>)) -> Maps {
        let mut maps = Maps::default();
        shared.into_iter().for_each(|item| maps.content.restore(item));
        local.into_iter().for_each(|item| maps.extents.restore(item));
        maps
    }

    fn check(&self) -> Vec<String> {
        let mut problems = self.content.check();
        problems.extend(self.extents.check());
        problems.extend(check(&self.content, &self.extents));
        if problems.is_empty() {
            problems.extend(check_all_present(&self.content, &self.extents));
        }
        problems
    }
}

fn gone() -> Change {
    let (time, version) = (Time::default(), Version(1));
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let (kind, mode, nlink, uid, gid, rdev, size_bytes, hole_bytes) =
        (FileKind::Regular, 0, 0, 0, 0, 0, 0, 0);
    let attr = Attr {
        ino: INO,
        kind,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        size_bytes,
        hole_bytes,
        atime,
        mtime,
        ctime,
        btime,
        version,
    };
    Change::Gone { ino: INO, attr }
}
