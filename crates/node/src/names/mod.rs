//! Names and attributes: loaded from the bucket, asked for again, let go of, counted, and kept in a
//! trash.

pub(crate) mod forget;
pub(crate) mod gone;
pub(crate) mod listings;
pub(crate) mod load;
pub(crate) mod metadata;
pub(crate) mod outside;
pub(crate) mod pages;
pub(crate) mod questions;
pub(crate) mod quota;
pub(crate) mod revalidate;
pub(crate) mod trash;
