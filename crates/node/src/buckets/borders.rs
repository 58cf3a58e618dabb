//! The borders between the buckets of one volume (O-24). A file stays in the bucket of its path for
//! as long as it lives: a mutation that would move it to another one is refused, as between file
//! systems, and programs copy. So the bucket of an inode never changes, and a check done here still
//! holds when the mutation is applied.

use crate::Node;
use crate::buckets::side_by_side;
use ebb_model::*;

/// The buckets of a volume: its root bucket, then its members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BucketIndex(pub usize);

impl BucketIndex {
    pub const ROOT: BucketIndex = BucketIndex(0);
}

impl Node {
    /// The bucket that an inode's path leads to; the root bucket for an inode without a name.
    pub(crate) fn bucket_of(&self, ino: Ino) -> BucketIndex {
        if self.buckets.members().is_empty() {
            return BucketIndex::ROOT;
        }
        let state = self.replica.view();
        let mut top = ino;
        loop {
            match state.namespace().primary_link(top) {
                Some(link) if link.parent == Ino::ROOT => break,
                Some(link) => top = link.parent,
                None => return BucketIndex::ROOT,
            }
        }
        let leads = |name: &Name| {
            state.namespace().dentry(Ino::ROOT, name).is_some_and(|dentry| dentry.ino == top)
        };
        self.buckets
            .members()
            .iter()
            .position(|member| leads(member.dir().name()))
            .map_or(BucketIndex::ROOT, |at| BucketIndex(at + 1))
    }

    fn is_nameless(&self, ino: Ino) -> bool {
        self.replica.view().namespace().inode(ino).is_some_and(|inode| inode.attr.nlink == 0)
    }

    /// A member's own `.ebb` must not be made either, as that of the root.
    fn is_reserved(&self, dir: Ino, name: &Name) -> bool {
        name.as_bytes() == b".ebb" && {
            let state = self.replica.view();
            let at = |member: &side_by_side::Member| {
                state.namespace().dentry(Ino::ROOT, member.dir().name())
            };
            self.buckets.members().iter().filter_map(at).any(|dentry| dentry.ino == dir)
        }
    }

    /// Refuses a mutation that would remove a member's directory, or cross a border.
    pub(crate) fn admit(&self, mutation: &ClientMutation) -> Result<(), FsError> {
        if self.buckets.members().is_empty() {
            return Ok(());
        }
        let crosses = |a: Ino, b: Ino| {
            if self.bucket_of(a) == self.bucket_of(b) { Ok(()) } else { Err(FsError::CrossDevice) }
        };
        let make = |dir: Ino, name: &Name| {
            if self.is_reserved(dir, name) { Err(FsError::AccessDenied) } else { Ok(()) }
        };
        match mutation {
            ClientMutation::Make { parent, name, .. } => make(*parent, name),
            // An inode without a name is in no bucket.
            ClientMutation::Link { ino, parent, name } if self.is_nameless(*ino) => {
                make(*parent, name)
            }
            ClientMutation::Link { ino, parent, name } => {
                crosses(*ino, *parent).and_then(|()| make(*parent, name))
            }
            ClientMutation::Rmdir { parent, name } if self.buckets.is_member_dir(*parent, name) => {
                Err(FsError::Busy)
            }
            ClientMutation::Rename { from, name, to, new_name, .. } => {
                if self.buckets.is_member_dir(*from, name)
                    || self.buckets.is_member_dir(*to, new_name)
                {
                    return Err(FsError::Busy);
                }
                crosses(*from, *to)?;
                make(*to, new_name)
            }
            _ => Ok(()),
        }
    }
}
