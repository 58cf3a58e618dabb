//! A limit of the volume's inodes: the operations that it refuses.

use super::*;

impl Tree {
    /// The root of the volume is a quota root with this limit of inodes.
    pub fn limited(self, inodes: u64) -> Tree {
        Tree { inode_limit: Some(inodes), ..self }
    }

    /// The operation was refused for the quota, which changes nothing. An inode without a name
    /// counts as long as it is open, and a close reaches the node late, so each of them may still
    /// count.
    pub(super) fn refused_by_quota(&self, asked: &Asked<'_>, op: &Op) -> Result<Tree, Mismatch> {
        let next = self.step(&Asked { outcome: None, ..*asked }, op)?;
        let (before, after) = (self.nodes.len() as u64 - 1, next.nodes.len() as u64 - 1);
        match self.inode_limit {
            Some(limit) if after > before && after > limit => Ok(self.clone()),
            Some(limit) => {
                Err(format!("is refused, where {before} of {limit} inodes become {after}"))
            }
            None => Err("is refused for a quota, and there is none".into()),
        }
    }

    /// An operation that has succeeded and made `after` of this state was not to be refused.
    pub fn check_quota(&self, op: &Op, after: &Tree) -> Result<(), Mismatch> {
        let makes = matches!(
            op,
            Op::Mutate(
                ClientMutation::Make { .. }
                    | ClientMutation::Tmpfile { .. }
                    | ClientMutation::Rename { .. }
            )
        );
        let (before, now) = (self.named_inodes(), after.named_inodes());
        match self.inode_limit {
            Some(limit) if makes && now > before && now > limit => {
                Err(format!("makes {now} inodes of {before}, where {limit} are allowed"))
            }
            _ => Ok(()),
        }
    }

    /// All but the root.
    fn named_inodes(&self) -> u64 {
        self.nodes.values().filter(|node| node.links > 0).count() as u64 - 1
    }
}
