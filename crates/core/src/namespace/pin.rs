//! What is to stay in the cache: an inode that has the attribute [`PIN`], and all that is below it
//! by its oldest name.

use super::Namespace;
use ebb_model::{Ino, PIN};

impl Namespace {
    /// The nearest inode that pins this one: itself, or a directory that it is below.
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
