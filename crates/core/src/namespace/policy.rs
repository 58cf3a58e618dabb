//! The policy of an inode. It is a field in memory, and an internal attribute in records: of pages,
//! snapshots and backups. An inode of the default policy has no such attribute.

use super::Inode;
use bytes::Bytes;
use ebb_model::*;
use std::collections::BTreeMap;

/// Version 1 (1 byte), id (4 bytes).
pub const POLICY: &[u8] = b"ebb.policy";

const VERSION: u8 = 1;

impl Inode {
    /// Moves the policy from the attributes of a record to its field. An unknown value is ignored.
    pub(super) fn settle_policy(&mut self) {
        if let Some(value) = self.xattrs.remove(POLICY) {
            self.policy = parse(&value).unwrap_or_default();
        }
    }

    /// All attributes of the inode's record.
    pub(crate) fn recorded_xattrs(&self) -> BTreeMap<Bytes, Bytes> {
        let mut xattrs = self.xattrs.clone();
        if self.policy != PolicyId::DEFAULT {
            xattrs.insert(Bytes::from_static(POLICY), value_of(self.policy));
        }
        xattrs
    }
}

/// The value of [`POLICY`].
pub fn value_of(policy: PolicyId) -> Bytes {
    [&[VERSION][..], &policy.0.to_le_bytes()].concat().into()
}

fn parse(value: &[u8]) -> Option<PolicyId> {
    match value {
        [VERSION, id @ ..] => Some(PolicyId(u32::from_le_bytes(id.try_into().ok()?))),
        _ => None,
    }
}
