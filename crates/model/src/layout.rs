//! Sizes that several crates and formats share.

/// A block: the unit of presence, dirtiness and checksums of cached bytes.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// Smaller files share pack files (C-19), with their bytes at multiples of [`PACK_UNIT_BYTES`], the
/// smallest hole that file systems deallocate.
pub const PACKED_BYTES: u64 = 128 << 10;
pub const PACK_UNIT_BYTES: u64 = 4 << 10;

/// A pack file of this length gets no more files.
pub const PACK_BYTES: u64 = 64 << 20;

/// A chunk: the unit of transfer, eviction and placement (O-32). A multiple of [`BLOCK_BYTES`].
pub const CHUNK_BYTES: u64 = 16 << 20;

/// Longest READ or WRITE of one request.
pub const MAX_IO_BYTES: usize = 1 << 20;

/// Longest file: ext4's limit with 4 KiB blocks, so a sparse store file can hold it.
pub const MAX_FILE_BYTES: u64 = (16 << 40) - 4096;

/// Longest target of a symbolic link.
pub const MAX_SYMLINK_BYTES: usize = 4095;

/// Linux's limits of extended attributes: a name, a value, all names of one inode.
pub const MAX_XATTR_NAME_BYTES: usize = 255;
pub const MAX_XATTR_VALUE_BYTES: usize = 64 << 10;
pub const MAX_XATTR_LIST_BYTES: usize = 64 << 10;

/// Limit of all names and values of one inode, which one record carries. ext4 allows 4 KiB.
pub const MAX_XATTRS_BYTES: usize = 512 << 10;

/// Limit of hard links per inode, as in ext4.
pub const MAX_LINKS: u32 = 65_000;
