//! The borders between the buckets of one volume (O-24). A file stays in the bucket of its path for
//! as long as it lives: a mutation that would move it to another one is refused, as between file
//! systems, and programs copy. So the bucket of an inode never changes, and a check done here still
//! holds when the mutation is applied.

use crate::Node;
use crate::buckets::head::HeadLease;
use crate::buckets::side_by_side;
use ebb_model::*;
use std::rc::Rc;

/// The buckets of a volume: its root bucket, then its members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BucketIndex(pub usize);

impl BucketIndex {
    pub const ROOT: BucketIndex = BucketIndex(0);
}

impl Node {
    pub(crate) fn bucket_indexes(&self) -> impl Iterator<Item = BucketIndex> + use<> {
        (0..=self.members.len()).map(BucketIndex)
    }

    pub(crate) fn head_lease_of(&self, bucket_index: BucketIndex) -> Option<&Rc<HeadLease>> {
        match bucket_index {
            BucketIndex::ROOT => self.head_lease.as_ref(),
            BucketIndex(member) => self.members[member - 1].head_lease(),
        }
    }

    /// The bucket that a key is in.
    pub(crate) fn bucket_of_key(&self, key: &str) -> BucketIndex {
        match side_by_side::member_of(&self.members, key) {
            None => BucketIndex::ROOT,
            Some(found) => {
                let at = self.members.iter().position(|member| member.dir() == found.dir());
                BucketIndex(at.map_or(0, |at| at + 1))
            }
        }
    }

    /// The bucket that an inode's path leads to; the root bucket for an inode without a name.
    pub(crate) fn bucket_of(&self, ino: Ino) -> BucketIndex {
        if self.members.is_empty() {
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
        self.members
            .iter()
            .position(|member| leads(member.dir().name()))
            .map_or(BucketIndex::ROOT, |at| BucketIndex(at + 1))
    }

    /// Names a trouble together with its bucket, so that troubles of different buckets stay apart.
    pub(crate) fn subject(&self, what: &str, bucket_index: BucketIndex) -> String {
        match bucket_index.0.checked_sub(1).and_then(|at| self.members.get(at)) {
            Some(member) => format!("{what} of {}", member.dir()),
            None => what.to_owned(),
        }
    }

    /// The name of a bucket of the volume for people and logs.
    pub(crate) fn describe(&self, bucket_index: BucketIndex) -> String {
        match bucket_index.0.checked_sub(1).and_then(|at| self.members.get(at)) {
            Some(member) => member.describe(),
            None => self.bucket().describe(),
        }
    }

    fn is_nameless(&self, ino: Ino) -> bool {
        self.replica.view().namespace().inode(ino).is_some_and(|inode| inode.attr.nlink == 0)
    }

    fn is_member_dir(&self, dir: Ino, name: &Name) -> bool {
        dir == Ino::ROOT && self.members.iter().any(|member| member.dir().name() == name)
    }

    /// A member's own `.ebb` must not be made either, as that of the root.
    fn is_reserved(&self, dir: Ino, name: &Name) -> bool {
        name.as_bytes() == b".ebb" && {
            let state = self.replica.view();
            let at = |member: &side_by_side::Member| {
                state.namespace().dentry(Ino::ROOT, member.dir().name())
            };
            self.members.iter().filter_map(at).any(|dentry| dentry.ino == dir)
        }
    }

    /// Refuses a mutation that would remove a member's directory, or cross a border.
    pub(crate) fn admit(&self, mutation: &ClientMutation) -> Result<(), FsError> {
        if self.members.is_empty() {
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
            ClientMutation::Rmdir { parent, name } if self.is_member_dir(*parent, name) => {
                Err(FsError::Busy)
            }
            ClientMutation::Rename { from, name, to, new_name, .. } => {
                if self.is_member_dir(*from, name) || self.is_member_dir(*to, new_name) {
                    return Err(FsError::Busy);
                }
                crosses(*from, *to)?;
                make(*to, new_name)
            }
            _ => Ok(()),
        }
    }
}
