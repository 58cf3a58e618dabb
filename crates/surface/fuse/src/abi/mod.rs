//! The kernel's side of the protocol: numbers and structures of `linux/fuse.h` up to
//! ABI 7.45, as far as this crate speaks it. Field names are the kernel's, so that the two
//! can be read side by side. Everything is in the machine's byte order.

mod flags;
mod structs;

pub use flags::*;
pub use structs::*;

pub const MAJOR: u32 = 7;

/// The newest minor version that this crate knows.
pub const MINOR: u32 = 45;

/// Linux 5.4: large requests, cached symbolic links, explicit invalidation of data and
/// 64-byte INIT replies are all there, so no older layout has to be spoken.
pub const MINOR_LEAST: u32 = 31;

/// Of a directory entry whose inode number is not known. Never 0, which hides an entry.
pub const UNKNOWN_INO: u64 = 0xffff_ffff;

macro_rules! opcodes {
    ($($name:ident = $value:literal,)*) => {
        $(pub const $name: u32 = $value;)*

        /// The name of an operation, for logs.
        pub fn opcode_name(opcode: u32) -> &'static str {
            match opcode {
                $($value => stringify!($name),)*
                _ => "unknown",
            }
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    GETLK = 31,
    SETLK = 32,
    SETLKW = 33,
    ACCESS = 34,
    CREATE = 35,
    INTERRUPT = 36,
    BMAP = 37,
    DESTROY = 38,
    IOCTL = 39,
    POLL = 40,
    NOTIFY_REPLY = 41,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SETUPMAPPING = 48,
    REMOVEMAPPING = 49,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
    COPY_FILE_RANGE_64 = 53,
}

/// ioctl(2) requests of the device: `_IOW(229, 1, BackingMap)` and `_IOW(229, 2, u32)`.
pub const DEV_IOC_BACKING_OPEN: libc::Ioctl = 0x4010_e501;
pub const DEV_IOC_BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

pub const NOTIFY_INVAL_INODE: i32 = 2;
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
pub const NOTIFY_STORE: i32 = 4;
pub const NOTIFY_DELETE: i32 = 6;
pub const NOTIFY_RESEND: i32 = 7;
pub const NOTIFY_INC_EPOCH: i32 = 8;
pub const NOTIFY_PRUNE: i32 = 9;
