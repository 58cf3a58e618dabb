//! Input from the kernel, the command line and the machine.

use bytes::Bytes;
use ebb_cli::helper::{self, Asked};
use ebb_cli::places::MountRecord;
use ebb_cli::{config, profile, stats, units};
use ebb_encryption::Key;
use ebb_fuse::{EntryReply, Errno, Message, MountOptions, Negotiated, Operation, Rejected, abi};
use ebb_model::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// Offset of the request id, from which a reply copies it.
const UNIQUE_AT: usize = 8;

pub fn fuse(bytes: &[u8]) {
    let unique = bytes
        .get(UNIQUE_AT..UNIQUE_AT + 8)
        .and_then(|unique| unique.try_into().ok())
        .map(u64::from_le_bytes);
    let opcode = bytes.get(4..8).and_then(|opcode| opcode.try_into().ok()).map(u32::from_le_bytes);
    for flags in [0, abi::init::SETXATTR_EXT] {
        let agreed = Negotiated { minor: abi::MINOR, flags };
        match Message::parse(&agreed, bytes, |range| Bytes::copy_from_slice(&bytes[range])) {
            Ok(Message::Request(request)) => {
                assert_eq!((Some(request.context.unique), Some(request.opcode)), (unique, opcode));
                asked(request.ino, request.operation);
            }
            Err(Rejected::Answer { unique: answered, opcode: of, errno: Errno(errno) }) => {
                assert_eq!((Some(answered), Some(of)), (unique, opcode));
                assert!((1..MOST_ERRNO).contains(&errno), "the kernel takes no error {errno}");
            }
            Ok(Message::Forget(_) | Message::Interrupt(_)) | Err(Rejected::Silent) => {}
        }
    }
}

/// The kernel rejects larger error numbers in a reply.
const MOST_ERRNO: i32 = 512;

fn asked(ino: Ino, operation: Operation) {
    match operation {
        Operation::Read { offset, len_bytes, .. } => within(offset, len_bytes as usize),
        Operation::Write { offset, data, .. } => within(offset, data.len()),
        Operation::ReadDir { position, limit_bytes, plus, .. } => {
            let limit_bytes = limit_bytes.min(MAX_IO_BYTES as u32);
            ebb_fuse::fuzz::listed(ino, position, limit_bytes, plus, &entries());
        }
        _ => {}
    }
}

fn within(offset: u64, len_bytes: usize) {
    assert!(
        len_bytes <= MAX_IO_BYTES && offset.checked_add(len_bytes as u64).is_some(),
        "{len_bytes} bytes at {offset}"
    );
}

fn entries() -> Vec<(Name, EntryReply)> {
    let time = Time::from_secs(1);
    let ttl = Duration::from_secs(1);
    let entry = |len: usize| {
        let attr = Attr {
            ino: Ino(len as u64),
            kind: FileKind::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size_bytes: 0,
            hole_bytes: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            version: Version(1),
        };
        (
            Name::new(&vec![b'n'; len]).expect("a name"),
            EntryReply { attr, entry_ttl: ttl, attr_ttl: ttl },
        )
    };
    [1, 8, 255].map(entry).into()
}

/// Arguments, separated by zero bytes, of `ebb` and of the mount(8) helper.
pub fn arguments(bytes: &[u8]) {
    let args = || bytes.split(|byte| *byte == 0).map(|arg| OsString::from_vec(arg.to_vec()));
    // `--config` would read files of this machine.
    if !args().any(|arg| arg.as_bytes().starts_with(b"--conf")) {
        drop(config::parse(std::iter::once("ebb".into()).chain(args())));
    }
    let is_mount_option = |option: &str| option.parse::<MountOptions>().is_ok();
    if let Ok(Asked::Mount { args } | Asked::Fake { args }) =
        helper::parse(std::iter::once("mount.ebb".into()).chain(args()), is_mount_option)
    {
        assert!(args[0] == "ebb" && args[1] == "mount", "{args:?}");
        if !args.iter().any(|arg| arg.as_bytes().starts_with(b"--conf")) {
            drop(config::parse(args));
        }
    }
}

/// Arbitrary configuration files.
pub fn config(bytes: &[u8]) {
    crate::file::holding(bytes, |path| {
        drop(config::parse(["ebb", "mount", "--config", path].map(OsString::from)));
    });
}

/// The first byte selects the source of the text.
pub fn machine(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match what % 8 {
        0 => ebb_fuse::fuzz::mountinfo(bytes),
        1 => ebb_os::fuzz::memory(&text),
        2 => drop(read_again::<MountRecord>(bytes)),
        3 => drop(
            read_again::<MountStats>(bytes)
                .map(|told| (stats::text(Some(&told), None), stats::json(Some(&told), None))),
        ),
        4 => drop(
            read_again::<Profile>(bytes)
                .map(|told| profile::text(&told, &profile::Paths::new(), 10)),
        ),
        5 => drop(Key::parse(bytes)),
        6 => {
            if let Ok(bytes) = text.parse::<units::Bytes>() {
                bytes.to_string();
            }
            if let Ok(span) = text.parse::<units::Span>() {
                span.to_string();
            }
        }
        _ => {
            if let Ok(options) = text.parse::<MountOptions>() {
                assert!(
                    (4096..=MAX_IO_BYTES as u32).contains(&options.max_read_bytes)
                        && !options.source.contains('\0')
                );
            }
        }
    }
}

/// JSON that one process of ebb leaves for another.
fn read_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let told: T = serde_json::from_slice(bytes).ok()?;
    let again = serde_json::to_vec(&told).expect("a decoded value encodes");
    serde_json::from_slice::<T>(&again).expect("the encoding decodes");
    Some(told)
}

/// The first byte selects the size of the reads in which a stream of frames arrives.
pub fn frames(bytes: &[u8]) {
    if let Some((piece, stream)) = bytes.split_first() {
        ebb_os::fuzz::frames(stream, usize::from(*piece));
    }
}
