//! The buckets of a volume: their owners, the requests to them, and the bandwidth of their lines.

pub(crate) mod ask;
pub(crate) mod bandwidth;
pub(crate) mod borders;
pub mod head;
pub(crate) mod members;
pub(crate) mod rate_limit;
pub mod side_by_side;
pub(crate) mod upload_window;
