//! Corner cases of the namespace operations, one file per operation as in the source. Broad
//! coverage is in `namespace_oracle.rs`; cases here have a name so that they stay.

mod acl;
mod fallocate;
mod flags;
mod install;
mod link;
mod make;
mod policy;
mod quota;
mod readdir;
mod rename;
mod setattr;
mod snapshot;
mod tmpfile;
mod trash;
mod unlink;
mod volume;
mod write;
mod xattr;
