//! readdir and readdirplus.

use super::Namespace;
use ebb_model::*;
use std::ops::Bound;

/// No entry has a lower cookie, so that a surface can give 1 and 2 to the `.` and `..`
/// that it makes itself.
pub const FIRST_COOKIE: Cookie = Cookie(3);

impl Namespace {
    /// Up to `limit` entries after a position, with attributes, and whether the stream ends
    /// with them. Every name that is there all the time is shown exactly once, whatever
    /// comes and goes between two calls; no place in the directory is shown twice, and no
    /// rename within it makes a new one.
    pub fn read_dir(&self, dir: Ino, after: Cookie, limit: usize) -> Result<(Vec<(DirEntry, Attr)>, bool), FsError> {
        match self.directory(dir) {
            Ok(_) => {}
            Err(FsError::NotFound) => return Ok((Vec::new(), true)),
            Err(error) => return Err(error),
        }
        let mut rest = self.order.range((Bound::Excluded((dir, after)), Bound::Included((dir, Cookie(u64::MAX)))));
        let entries = rest.by_ref().take(limit).filter_map(|((_, cookie), name)| self.entry(dir, *cookie, name)).collect();
        Ok((entries, rest.next().is_none()))
    }

    fn entry(&self, dir: Ino, cookie: Cookie, name: &Name) -> Option<(DirEntry, Attr)> {
        let dentry = self.dentry(dir, name)?;
        let attr = self.inode(dentry.ino)?.attr.clone();
        Some((DirEntry { name: name.clone(), ino: dentry.ino, kind: dentry.kind, cookie }, attr))
    }
}
