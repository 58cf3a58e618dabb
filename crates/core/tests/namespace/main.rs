//! Corners of the namespace operations, one file per operation as in the source. The
//! breadth is in `namespace_oracle.rs`; what is here has a name so that it stays.

mod acl;
mod fallocate;
mod flags;
mod install;
mod link;
mod make;
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
