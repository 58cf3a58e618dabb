use crate::FsError;
use bytes::Bytes;

/// Flags of chattr(1) that an inode can have, in the bits of `FS_IOC_GETFLAGS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InodeFlags(u32);

impl InodeFlags {
    /// `i`: nothing changes it, no name of it comes or goes, and none in it if it is a directory.
    pub const IMMUTABLE: InodeFlags = InodeFlags(0x10);
    /// `a`: bytes are only appended; a directory gets names and loses none.
    pub const APPEND: InodeFlags = InodeFlags(0x20);
    /// `d`: backups leave it out. What is made in such a directory has it too.
    pub const NO_DUMP: InodeFlags = InodeFlags(0x40);

    /// The extended attribute that holds them where there are any. It is neither listed nor
    /// given to applications.
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

    /// Those that keep even root from changes.
    pub fn guards(self) -> InodeFlags {
        InodeFlags(self.0 & (InodeFlags::IMMUTABLE.0 | InodeFlags::APPEND.0))
    }

    pub fn parse(value: &[u8]) -> Result<InodeFlags, FsError> {
        InodeFlags::new(u32::from_le_bytes(value.try_into().map_err(|_| FsError::Invalid)?))
    }

    /// As the attribute has them.
    pub fn value(self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }
}
