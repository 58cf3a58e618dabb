//! The FUSE surface: kernel protocol, sessions, errno.
