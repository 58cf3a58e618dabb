//! One inode.

use super::*;

impl Node {
    pub(super) fn new(kind: FileKind, mode: u16) -> Node {
        Node {
            ino: None,
            kind,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            times: Times::all(Moment::Unknown),
            target: Bytes::new(),
            xattrs: BTreeMap::new(),
            content: Content::default(),
            unforced: Vec::new(),
            changed_bytes: Vec::new(),
            smeared: Vec::new(),
            entries: BTreeMap::new(),
            links: 1,
            opens: BTreeMap::new(),
            linkable: false,
            changed: false,
        }
    }

    pub(super) fn bytes(&self) -> (&Content, &[Content]) {
        (&self.content, &self.smeared)
    }

    /// Its names change, at a time that no client is told.
    pub(super) fn touch(&mut self, asked: &Asked<'_>) {
        self.times.modify(asked.span.since());
        self.changed = true;
    }

    /// The present content is about to change there and has perhaps not been forced over an older
    /// one.
    pub(super) fn remember(&mut self, changed: Range<u64>) {
        let content = self.content.clone();
        add_new(&mut self.unforced, &content);
        if !changed.is_empty() && !self.changed_bytes.contains(&changed) {
            self.changed_bytes.push(changed);
        }
    }

    pub(super) fn check_attr(&self, attr: &Attr, links: Option<u32>) -> Result<(), Mismatch> {
        let mine = (self.kind, self.mode, self.uid, self.gid, self.rdev);
        let theirs = (attr.kind, attr.mode, attr.uid, attr.gid, attr.rdev);
        if mine != theirs {
            return Err(format!(
                "is {theirs:?} (kind, mode, owner, group, device) in place of {mine:?}"
            ));
        }
        if links.is_some_and(|links| links != attr.nlink) {
            return Err(format!("has {} names in place of {}", attr.nlink, self.links));
        }
        if self.kind == FileKind::Regular && attr.size_bytes != self.content.size() {
            return Err(format!(
                "has {} bytes in place of {}",
                attr.size_bytes,
                self.content.size()
            ));
        }
        if attr.hole_bytes > 0 && attr.hole_bytes > self.content.bytes_in_zero_blocks(&self.smeared)
        {
            return Err(format!("has {} bytes in holes, where data is", attr.hole_bytes));
        }
        Ok(())
    }
}
