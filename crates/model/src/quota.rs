//! Limits and usage of quotas.

use serde::{Deserialize, Serialize};

/// Limits of a quota root's subtree; `None` is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QuotaLimits {
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

/// Usage of a quota root's subtree or of a volume: the sum of file lengths, and the number of
/// inodes. An inode counts once, however many names it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}
