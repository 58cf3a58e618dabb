//! Pins: an inode with the attribute [`PIN`], and its subtree by primary names, stays in the cache.

use super::Namespace;
use ebb_model::{Ino, PIN};

impl Namespace {
    /// The nearest inode that pins this one: itself or a directory above it.
    pub fn pin_of(&self, ino: Ino) -> Option<Ino> {
        let mut at = ino;
        loop {
            let inode = self.inode(at)?;
            if inode.xattrs.contains_key(PIN) {
                return Some(at);
            }
            at = inode.first?.parent;
        }
    }
}
