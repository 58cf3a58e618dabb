//! Lookups of one inode or name.

use super::{Inode, Link, Namespace};
use bytes::Bytes;
use ebb_model::*;

impl Namespace {
    /// The inode that `name` refers to. A directory that is not completely loaded can have the name
    /// in the bucket: the caller must load it first.
    pub fn lookup(&self, parent: Ino, name: &Name) -> Result<Attr, FsError> {
        self.directory(parent)?;
        let dentry = self.dentry(parent, name).ok_or(FsError::NotFound)?;
        self.attr(dentry.ino)
    }

    /// Attributes of an inode; [`FsError::Stale`] if it does not exist.
    pub fn attr(&self, ino: Ino) -> Result<Attr, FsError> {
        self.inode(ino).map(|inode| inode.attr).ok_or(FsError::Stale)
    }

    /// Target of a symbolic link; [`FsError::Invalid`] for another kind.
    pub fn read_link(&self, ino: Ino) -> Result<Bytes, FsError> {
        let inode = self.inode(ino).ok_or(FsError::Stale)?;
        if inode.attr.kind == FileKind::Symlink { Ok(inode.target) } else { Err(FsError::Invalid) }
    }

    /// A loaded inode, named or orphan.
    pub fn inode(&self, ino: Ino) -> Option<Inode> {
        self.inodes.get(&ino)
    }

    /// Number of inodes.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Memory of the trees, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.inodes.bytes()
            + self.dentries.bytes()
            + self.links.memory_bytes()
            + self.hashes.bytes()
    }

    /// Always false: a root exists.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// The parent of a directory, for `..`; the root is its own parent. `None` for other kinds and
    /// for removed directories.
    pub fn parent_of(&self, dir: Ino) -> Option<Ino> {
        if dir == Ino::ROOT {
            return Some(dir);
        }
        let inode = self.inode(dir)?;
        if inode.attr.kind != FileKind::Directory {
            return None;
        }
        inode.first.map(|link| link.parent)
    }

    /// Directory and name of the inode's primary name.
    pub fn primary_name(&self, ino: Ino) -> Option<(Ino, Name)> {
        let link = self.primary_link(ino)?;
        Some((link.parent, self.name_at(link)?))
    }

    /// Position of the inode's primary name.
    pub fn primary_link(&self, ino: Ino) -> Option<Link> {
        self.inode(ino)?.first
    }

    /// Path from the root by primary names; `None` for an inode without a name.
    pub fn path_of(&self, ino: Ino) -> Option<Vec<Name>> {
        let mut path = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let link = self.primary_link(at)?;
            path.push(self.name_at(link)?);
            at = link.parent;
        }
        path.reverse();
        Some(path)
    }

    /// Whether `dir` is `ancestor` or below it.
    pub(super) fn is_within(&self, dir: Ino, ancestor: Ino) -> bool {
        let mut at = dir;
        while at != ancestor {
            match self.parent_of(at) {
                Some(parent) if parent != at => at = parent,
                _ => return false,
            }
        }
        true
    }
}
