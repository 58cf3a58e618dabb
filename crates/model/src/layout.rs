//! Sizes that formats and several crates share.

/// The unit of presence, dirtiness and checksums of cached bytes.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// Files below this are kept in pack files, many in one (C-19), with their bytes at multiples of
/// [`PACK_UNIT_BYTES`]: the least that file systems give back of a hole.
pub const PACKED_BYTES: u64 = 128 << 10;
pub const PACK_UNIT_BYTES: u64 = 4 << 10;

/// A pack file that has grown to this is not added to.
pub const PACK_BYTES: u64 = 64 << 20;

/// The unit of transfer, eviction and placement (O-32). A multiple of [`BLOCK_BYTES`].
pub const CHUNK_BYTES: u64 = 16 << 20;

/// Longest READ or WRITE of one request.
pub const MAX_IO_BYTES: usize = 1 << 20;

/// Longest file: ext4's limit with 4 KiB blocks, so that a sparse store file can hold it.
pub const MAX_FILE_BYTES: u64 = (16 << 40) - 4096;

/// Longest target of a symbolic link.
pub const MAX_SYMLINK_BYTES: usize = 4095;

/// Linux limits of extended attributes: a name, a value, all names of one inode.
pub const MAX_XATTR_NAME_BYTES: usize = 255;
pub const MAX_XATTR_VALUE_BYTES: usize = 64 << 10;
pub const MAX_XATTR_LIST_BYTES: usize = 64 << 10;

/// All names and values of one inode, which travel in one record. Far above ext4's 4 KiB.
pub const MAX_XATTRS_BYTES: usize = 512 << 10;

/// As ext4.
pub const MAX_LINKS: u32 = 65_000;
