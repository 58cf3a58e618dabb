//! What the kernel and the command line say.

use bytes::Bytes;
use ebb_fuse::{Message, Negotiated, abi};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

pub fn fuse(bytes: &[u8]) {
    for flags in [0, abi::init::SETXATTR_EXT] {
        let agreed = Negotiated { minor: abi::MINOR, flags };
        drop(Message::parse(&agreed, bytes, |range| Bytes::copy_from_slice(&bytes[range])));
    }
}

/// Arguments, separated by zeros.
pub fn arguments(bytes: &[u8]) {
    let args = bytes.split(|byte| *byte == 0).map(|arg| OsString::from_vec(arg.to_vec()));
    drop(ebb_cli::config::parse(std::iter::once("ebb".into()).chain(args)));
}
