use serde::{Deserialize, Serialize};

/// The most that may be below a quota root; `None` is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QuotaLimits {
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

/// What is below a quota root, or on a volume: the lengths of its files together, and files,
/// directories and all else that there is, each counted once however many names it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}
