//! The binary on real mounts. Needs root and /dev/fuse, and fails without: a machine that
//! cannot mount has shown nothing.

mod access_times;
mod acl;
mod asked;
mod bench;
mod close_to_open;
mod crashes;
mod data;
mod detached;
mod encrypted;
mod ends;
mod exposed;
mod flags;
mod forgetting;
mod fsck;
mod handles;
mod helper;
mod holes;
mod joining;
mod lock_ends;
mod locks;
mod metadata;
mod names;
mod native;
mod open;
mod outsiders;
mod place;
mod quota;
mod refused;
mod session;
mod side_by_side;
mod stats;
mod succession;
mod switch;
mod trash;
mod warmth;
