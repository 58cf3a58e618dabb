//! Names and attributes: loaded from the bucket, revalidated, evicted, counted, and kept in a
//! trash.

pub(crate) mod external_changes;
pub(crate) mod forget;
pub(crate) mod listings;
pub(crate) mod load;
pub(crate) mod metadata;
pub(crate) mod not_shown;
pub(crate) mod pages;
pub(crate) mod quota;
pub(crate) mod recent_deletes;
pub(crate) mod refresh;
pub(crate) mod revalidate;
pub(crate) mod trash;
