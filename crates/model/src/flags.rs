//! Inode flags of chattr(1).

use crate::FsError;
use bytes::Bytes;

/// Flags of chattr(1) that an inode can have, in the bits of `FS_IOC_GETFLAGS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InodeFlags(u32);

impl InodeFlags {
    /// `i`: neither the inode nor its names can change; in a directory no name can come or go.
    pub const IMMUTABLE: InodeFlags = InodeFlags(0x10);
    /// `a`: bytes can only be appended; a directory gains names and loses none.
    pub const APPEND: InodeFlags = InodeFlags(0x20);
    /// `d`: backups skip it. New children of the directory inherit it.
    pub const NO_DUMP: InodeFlags = InodeFlags(0x40);

    /// Extended attribute that stores non-zero flags. Applications can neither list nor read it.
    pub const ATTRIBUTE: &'static [u8] = b"system.ebb.flags";

    pub fn new(bits: u32) -> Result<InodeFlags, FsError> {
        let known = InodeFlags::IMMUTABLE.0 | InodeFlags::APPEND.0 | InodeFlags::NO_DUMP.0;
        if bits & !known == 0 { Ok(InodeFlags(bits)) } else { Err(FsError::NotSupported) }
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    pub fn has(self, flags: InodeFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    pub const fn and(self, flags: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 & flags.0)
    }

    /// The flags that restrict changes even by root.
    pub fn guards(self) -> InodeFlags {
        InodeFlags(self.0 & (InodeFlags::IMMUTABLE.0 | InodeFlags::APPEND.0))
    }

    pub fn parse(value: &[u8]) -> Result<InodeFlags, FsError> {
        InodeFlags::new(u32::from_le_bytes(value.try_into().map_err(|_| FsError::Invalid)?))
    }

    /// Encodes the flags for the attribute.
    pub fn value(self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }
}
