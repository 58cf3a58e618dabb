//! The interface between the requests of a mount and the file system that serves them.

use crate::{
    Context, CopyEnd, DirBuffer, Errno, Handle, Interruption, LockRequest, OpenFlags,
    PassthroughId, SeekTo, WriteMode,
};
use bytes::Bytes;
use ebb_model::{
    Access, Attr, Cookie, Ino, InodeFlags, LockConflict, LockMode, LockRange, Make, Name,
    RenameMode, SetAttr, VolumeStat, XattrMode,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// A file system, one method per operation of the kernel.
///
/// Methods run concurrently on one thread; each holds one request of the kernel, which waits until
/// the future ends. A method must not wait for another request of the same mount nor for a
/// [`crate::Notifier`]: both can depend on its own reply. (`lseek` and `setlk` may have pages
/// dropped: for them the kernel holds none.) A request that is interrupted (a signal to its caller)
/// runs to its end all the same, except `setlk`: a reply with the real outcome is worth more than
/// EINTR after the fact.
///
/// Every `EntryReply` given out for an inode, by any operation, is one reference of the kernel to
/// it, returned by `forget`.
///
/// Operations without a body here have a refusal that the kernel compensates for.
#[expect(
    async_fn_in_trait,
    reason = "a session and its file system live on one thread; no bound is missing"
)]
pub trait Filesystem {
    async fn lookup(&self, cx: &Context, parent: Ino, name: Name) -> Result<Lookup, Errno>;

    /// An inode that the kernel knows by its id alone: ESTALE if there is none any more. Without it
    /// handles are stale once the kernel has forgotten their inode.
    async fn lookup_self(&self, _cx: &Context, _ino: Ino) -> Result<EntryReply, Errno> {
        Err(Errno::STALE)
    }

    /// The request that `cx` is of has been answered: it is never sent again.
    fn answered(&self, _cx: &Context) {}

    /// After a take-over: these requests were sent again ([`Context::request`]), and no others that
    /// an earlier process has read will be.
    fn all_came(&self, _again: &BTreeSet<u64>) {}

    /// The kernel drops `count` references to `ino`. Those that are left when the mount
    /// ends are never returned.
    fn forget(&self, ino: Ino, count: u64);

    async fn getattr(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
    ) -> Result<AttrReply, Errno>;

    async fn setattr(
        &self,
        cx: &Context,
        ino: Ino,
        set: SetAttr,
        handle: Option<Handle>,
    ) -> Result<AttrReply, Errno>;

    async fn readlink(&self, cx: &Context, ino: Ino) -> Result<Bytes, Errno>;

    /// mkdir, mknod and symlink. `mode` is as requested, and `cx` has the umask.
    async fn make(
        &self,
        cx: &Context,
        parent: Ino,
        name: Name,
        mode: u16,
        what: Make,
    ) -> Result<EntryReply, Errno>;

    async fn unlink(&self, cx: &Context, parent: Ino, name: Name) -> Result<(), Errno>;

    async fn rmdir(&self, cx: &Context, parent: Ino, name: Name) -> Result<(), Errno>;

    async fn rename(
        &self,
        cx: &Context,
        from: Ino,
        name: Name,
        to: Ino,
        new_name: Name,
        mode: RenameMode,
    ) -> Result<(), Errno>;

    async fn link(
        &self,
        cx: &Context,
        ino: Ino,
        parent: Ino,
        name: Name,
    ) -> Result<EntryReply, Errno>;

    async fn open(&self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<OpenReply, Errno>;

    /// Makes a regular file, with mode and umask as in `make`, and opens it. The kernel does not
    /// check permissions of a file that it asks to create. Where the name exists by now, and the
    /// flags do not exclude that, the answer is ESTALE: the kernel looks the name up again, and
    /// checks.
    async fn create(
        &self,
        cx: &Context,
        parent: Ino,
        name: Name,
        mode: u16,
        flags: OpenFlags,
    ) -> Result<(EntryReply, OpenReply), Errno>;

    /// A regular file without a name. Without it the kernel answers EOPNOTSUPP to O_TMPFILE.
    async fn tmpfile(
        &self,
        _cx: &Context,
        _parent: Ino,
        _mode: u16,
        _flags: OpenFlags,
    ) -> Result<(EntryReply, OpenReply), Errno> {
        Err(Errno::NOT_IMPLEMENTED)
    }

    /// Fewer bytes than requested mean the end of the file. With `fills_pages` the kernel caches
    /// them.
    async fn read(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len_bytes: u32,
        fills_pages: bool,
    ) -> Result<Bytes, Errno>;

    /// Returns the number of bytes written.
    async fn write(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Bytes,
        mode: WriteMode,
    ) -> Result<u32, Errno>;

    /// Whether close(2) of a writable descriptor can fail with the result of [`Filesystem::flush`].
    /// Where no error can follow an answered write, returning false saves one request.
    fn reports_at_close(&self) -> bool {
        true
    }

    /// A writable descriptor is closed, unless [`Filesystem::reports_at_close`] is false; with
    /// [`crate::MountOptions::shared_locks`] any descriptor. Can come several times for one open.
    /// It ends the fcntl(2) locks of `owner`, if that is a process. Its error is the result of
    /// close(2).
    async fn flush(&self, cx: &Context, ino: Ino, handle: Handle, owner: u64) -> Result<(), Errno>;

    /// The last descriptor of an open is closed and its last mapping gone, and with it the locks of
    /// the open file description. No caller gets the result.
    async fn release(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        flags: OpenFlags,
    ) -> Result<(), Errno>;

    async fn fsync(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        data_only: bool,
    ) -> Result<(), Errno>;

    async fn statfs(&self, cx: &Context, ino: Ino) -> Result<VolumeStat, Errno>;

    /// `drop_set_gid`: if this sets an access ACL, set-gid goes.
    async fn setxattr(
        &self,
        cx: &Context,
        ino: Ino,
        name: Bytes,
        value: Bytes,
        mode: Option<XattrMode>,
        drop_set_gid: bool,
    ) -> Result<(), Errno>;

    /// The value, however large: the session answers ERANGE where the caller's buffer is smaller.
    async fn getxattr(&self, cx: &Context, ino: Ino, name: Bytes) -> Result<Bytes, Errno>;

    async fn listxattr(&self, cx: &Context, ino: Ino) -> Result<Vec<Bytes>, Errno>;

    async fn removexattr(&self, cx: &Context, ino: Ino, name: Bytes) -> Result<(), Errno>;

    async fn opendir(&self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<OpenReply, Errno>;

    /// Pushes entries after `after` until the buffer is full or the directory ends. `.` and `..`
    /// are there already. See [`DirBuffer::push`] for the references that entries take. Entries
    /// pushed before an error are still answered; the error is returned if the next call has it
    /// too.
    async fn readdir(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        after: Cookie,
        entries: &mut DirBuffer,
    ) -> Result<(), Errno>;

    async fn releasedir(&self, cx: &Context, ino: Ino, handle: Handle) -> Result<(), Errno>;

    async fn fsyncdir(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        data_only: bool,
    ) -> Result<(), Errno>;

    /// Not called on a mount with `default_permissions`.
    async fn access(&self, cx: &Context, ino: Ino, access: Access) -> Result<(), Errno>;

    /// F_GETLK: the lock that keeps `owner` from having `piece`. Only with
    /// [`crate::MountOptions::shared_locks`], as `setlk`.
    async fn getlk(
        &self,
        _cx: &Context,
        _ino: Ino,
        _owner: u64,
        _range: LockRange,
        _mode: Option<LockMode>,
    ) -> Result<Option<LockConflict>, Errno> {
        Err(Errno::NOT_IMPLEMENTED)
    }

    /// Takes a lock or releases it. With `wait` waits for it, until it is interrupted; then EINTR
    /// means that it was not taken.
    async fn setlk(
        &self,
        _cx: &Context,
        _ino: Ino,
        _lock: LockRequest,
        _wait: Option<Interruption>,
    ) -> Result<(), Errno> {
        Err(Errno::NOT_IMPLEMENTED)
    }

    /// Without it fallocate(2) fails with EOPNOTSUPP, and libc writes zeros for posix_fallocate.
    async fn fallocate(
        &self,
        _cx: &Context,
        _ino: Ino,
        _handle: Handle,
        _offset: u64,
        _len_bytes: u64,
        _mode: i32,
    ) -> Result<(), Errno> {
        Err(Errno::NOT_IMPLEMENTED)
    }

    /// Flags of chattr(1). Without it and `set_flags` there are none.
    async fn flags(&self, _cx: &Context, _ino: Ino) -> Result<InodeFlags, Errno> {
        Err(Errno::NOT_TTY)
    }

    /// The kernel has checked the caller's permission, and stores no flags: the file system
    /// enforces them.
    async fn set_flags(&self, _cx: &Context, _ino: Ino, _flags: InodeFlags) -> Result<(), Errno> {
        Err(Errno::NOT_TTY)
    }

    /// Without it a file is one stretch of data with a hole at its end.
    async fn lseek(
        &self,
        _cx: &Context,
        _ino: Ino,
        _handle: Handle,
        _offset: u64,
        _to: SeekTo,
    ) -> Result<u64, Errno> {
        Err(Errno::NOT_IMPLEMENTED)
    }

    /// Without it the kernel reads and writes.
    async fn copy_file_range(
        &self,
        _cx: &Context,
        _from: CopyEnd,
        _to: CopyEnd,
        _len_bytes: u64,
    ) -> Result<u64, Errno> {
        Err(Errno::NOT_IMPLEMENTED)
    }

    /// Linux does not send it to mounts of this kind yet; syncfs(2) causes only WRITEs of dirty
    /// pages.
    async fn syncfs(&self, _cx: &Context, _ino: Ino) -> Result<(), Errno> {
        Err(Errno::NOT_IMPLEMENTED)
    }
}

/// An inode under a name. Inode ids are never reused, so the kernel's generation is always 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryReply {
    pub attr: Attr,
    /// How long the kernel may cache the name.
    pub entry_ttl: Duration,
    /// How long it may cache the attributes.
    pub attr_ttl: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    Found(EntryReply),
    /// There is no such name, and the kernel may cache that for `ttl`.
    Absent {
        ttl: Duration,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttrReply {
    pub attr: Attr,
    pub ttl: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenReply {
    pub handle: Handle,
    pub caching: Caching,
}

/// The kernel's treatment of the pages of an open file, or of the entries of an open directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Caching {
    /// Pages are cached while the file is open; pages cached before are dropped. Entries are not
    /// cached.
    #[default]
    Fresh,
    /// Pages cached before are kept, and entries of a directory are cached.
    Keep,
    /// Every read and write is a request. Mappings are still possible, and cached while mapped.
    Direct {
        /// Writes that do not extend the file run in parallel.
        parallel: bool,
    },
    /// No read, write or store through a mapping is a request: they go to this file. Of an inode's
    /// opens that overlap in time all or none are of this kind, with the same file.
    Passthrough(PassthroughId),
    /// Passthrough, but reads and writes of this open are requests; those of its mappings are not.
    PassthroughDirect(PassthroughId),
}
