use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! abi {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $kind:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind,)* })*
    };
}

// Requests.
abi! {
    struct InHeader {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }
    struct ForgetIn { nlookup: u64, }
    struct ForgetOne { nodeid: u64, nlookup: u64, }
    struct BatchForgetIn { count: u32, dummy: u32, }
    struct GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    struct StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    struct SetattrIn {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    struct MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    struct MkdirIn { mode: u32, umask: u32, }
    struct RenameIn { newdir: u64, }
    struct Rename2In { newdir: u64, flags: u32, padding: u32, }
    struct LinkIn { oldnodeid: u64, }
    struct OpenIn { flags: u32, open_flags: u32, }
    struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    struct ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    struct FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// The request of READ, READDIR and READDIRPLUS.
    struct ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    struct WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    struct FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    /// The form without SETXATTR_EXT.
    struct SetxattrIn { size: u32, flags: u32, }
    /// Follows `SetxattrIn` with SETXATTR_EXT.
    struct SetxattrInExt { setxattr_flags: u32, padding: u32, }
    struct GetxattrIn { size: u32, padding: u32, }
    struct FileLock { start: u64, end: u64, kind: u32, pid: u32, }
    struct LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, }
    struct IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    /// The argument of `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
    struct Fsxattr { xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, padding: [u8; 8], }
    struct InterruptIn { unique: u64, }
    struct AccessIn { mask: u32, padding: u32, }
    struct FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    struct LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    struct CopyFileRangeIn {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    /// The part that every kernel sends; newer ones append `flags2` and reserved words.
    struct InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, }
}

// Replies.
abi! {
    struct OutHeader { len: u32, error: i32, unique: u64, }
    struct Attr {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    struct EntryOut {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    struct AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    struct OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    struct CreateOut { entry: EntryOut, open: OpenOut, }
    struct WriteOut { size: u32, padding: u32, }
    struct CopyFileRangeOut { bytes_copied: u64, }
    struct LkOut { lk: FileLock, }
    struct IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    struct LseekOut { offset: u64, }
    struct GetxattrOut { size: u32, padding: u32, }
    struct StatfsOut {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    struct Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    struct SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    struct Statx {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: SxTime,
        btime: SxTime,
        ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }
    struct StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
    struct InitOut {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    /// The argument of `DEV_IOC_BACKING_OPEN`.
    struct BackingMap { fd: i32, flags: u32, padding: u64, }
    struct NotifyInvalInodeOut { ino: u64, off: i64, len: i64, }
    struct NotifyInvalEntryOut { parent: u64, namelen: u32, flags: u32, }
    struct NotifyStoreOut { nodeid: u64, offset: u64, size: u32, padding: u32, }
    struct NotifyDeleteOut { parent: u64, child: u64, namelen: u32, padding: u32, }
    /// The numbers of the inodes follow.
    struct NotifyPruneOut { count: u32, padding: u32, spare: u64, }
}

// The sizes that the kernel checks replies and requests against.
const _: () = {
    assert!(size_of::<InHeader>() == 40);
    assert!(size_of::<OutHeader>() == 16);
    assert!(size_of::<Attr>() == 88);
    assert!(size_of::<EntryOut>() == 128);
    assert!(size_of::<AttrOut>() == 104);
    assert!(size_of::<SetattrIn>() == 88);
    assert!(size_of::<ReadIn>() == 40);
    assert!(size_of::<WriteIn>() == 40);
    assert!(size_of::<LkIn>() == 48);
    assert!(size_of::<LkOut>() == 24);
    assert!(size_of::<StatfsOut>() == 80);
    assert!(size_of::<Statx>() == 256);
    assert!(size_of::<StatxOut>() == 288);
    assert!(size_of::<InitOut>() == 64);
    assert!(size_of::<Dirent>() == 24);
    assert!(size_of::<BackingMap>() == 16);
    assert!(size_of::<IoctlIn>() == 32);
    assert!(size_of::<Fsxattr>() == 28);
};
