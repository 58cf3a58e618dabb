//! The operations of a volume.
//!
//! Every operation waits for a node that does not answer: for ever, or up to
//! [`crate::Options::unavailable_timeout`]. A mutation that times out, or whose future is dropped,
//! may still be executed, once.

use crate::Client;
use crate::call::wrong_reply;
use crate::leases::{Lease, Leased};
use bytes::{Bytes, BytesMut};
use ebb_model::*;
use std::pin::pin;

/// Part of a directory, in the order of cookies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    pub entries: Vec<(DirEntry, Attr)>,
    /// Nothing follows the last entry.
    pub end: bool,
}

/// The result of a write, an append or a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// The attributes of the file afterwards.
    pub attr: Attr,
    /// The position of the first byte.
    pub offset: u64,
    /// Fewer than requested after an error, on a full disk, or at the largest file size.
    pub len_bytes: usize,
}

/// Queries.
impl Client {
    pub async fn lookup(&self, parent: Ino, name: &Name) -> Result<Attr, FsError> {
        self.lookup_leased(parent, name).await?.value.ok_or(FsError::NotFound)
    }

    pub async fn getattr(&self, ino: Ino) -> Result<Attr, FsError> {
        Ok(self.getattr_leased(ino).await?.value)
    }

    /// As [`Client::lookup`], of a name that may be absent. The lease is of the directory, and of
    /// the inode that is found.
    pub async fn lookup_leased(
        &self,
        parent: Ino,
        name: &Name,
    ) -> Result<Leased<Option<Attr>>, FsError> {
        let lease = self.shared.leases.requested();
        match self.read_request(Request::Lookup { parent, name: name.clone() }).await {
            Ok(Reply::LeasedAttr(attr)) => Ok(self.granted(Some(*attr), lease)),
            Ok(Reply::LeasedAbsent) => Ok(self.granted(None, lease)),
            Ok(reply) => Ok(Leased { value: Some(attr(reply)?), lease: Lease::default() }),
            Err(FsError::NotFound) => Ok(Leased { value: None, lease: Lease::default() }),
            Err(error) => Err(error),
        }
    }

    pub async fn getattr_leased(&self, ino: Ino) -> Result<Leased<Attr>, FsError> {
        let lease = self.shared.leases.requested();
        match self.read_request(Request::GetAttr { ino }).await? {
            Reply::LeasedAttr(attr) => Ok(self.granted(*attr, lease)),
            reply => Ok(Leased { value: attr(reply)?, lease: Lease::default() }),
        }
    }

    fn granted<T>(&self, value: T, lease: Lease) -> Leased<T> {
        self.shared.leases.granted();
        Leased { value, lease }
    }

    pub async fn readlink(&self, ino: Ino) -> Result<Bytes, FsError> {
        match self.read_request(Request::ReadLink { ino }).await? {
            Reply::Link(target) => Ok(target),
            _ => Err(wrong_reply()),
        }
    }

    /// At most `limit` entries after `after`, and at most as many as fit a reply.
    pub async fn readdir(&self, dir: Ino, after: Cookie, limit: u32) -> Result<Page, FsError> {
        match self.read_request(Request::ReadDir { dir, after, limit }).await? {
            Reply::Directory { entries, end } => Ok(Page { entries, end }),
            _ => Err(wrong_reply()),
        }
    }

    pub async fn getxattr(&self, ino: Ino, name: Bytes) -> Result<Bytes, FsError> {
        match self.read_request(Request::GetXattr { ino, name }).await? {
            Reply::Xattr(value) => Ok(value),
            _ => Err(wrong_reply()),
        }
    }

    pub async fn flags(&self, ino: Ino) -> Result<InodeFlags, FsError> {
        match self.getxattr(ino, Bytes::from_static(InodeFlags::ATTRIBUTE)).await {
            Ok(value) => Ok(InodeFlags::parse(&value).unwrap_or_default()),
            Err(FsError::NoAttribute) => Ok(InodeFlags::default()),
            Err(error) => Err(error),
        }
    }

    pub async fn listxattr(&self, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        match self.read_request(Request::ListXattr { ino }).await? {
            Reply::Xattrs(names) => Ok(names),
            _ => Err(wrong_reply()),
        }
    }

    pub async fn access(&self, caller: &Caller, ino: Ino, access: Access) -> Result<(), FsError> {
        done(self.read_request(Request::Access { caller: caller.clone(), ino, access }).await?)
    }

    /// Of the volume, or of the quota root that the inode is at or below.
    pub async fn statfs(&self, ino: Ino) -> Result<VolumeStat, FsError> {
        match self.read_request(Request::StatFs { ino }).await? {
            Reply::Stat(stat) => Ok(stat),
            _ => Err(wrong_reply()),
        }
    }

    /// Fewer bytes than requested only at the end of the file.
    pub async fn read(&self, ino: Ino, offset: u64, len_bytes: usize) -> Result<Bytes, FsError> {
        if len_bytes <= MAX_IO_BYTES {
            return self.read_piece(ino, offset, len_bytes).await;
        }
        let mut data = BytesMut::new();
        while data.len() < len_bytes {
            let wanted = (len_bytes - data.len()).min(MAX_IO_BYTES);
            let Some(at) = offset.checked_add(data.len() as u64) else { break };
            let piece = self.read_piece(ino, at, wanted).await?;
            data.extend_from_slice(&piece);
            if piece.len() < wanted {
                break;
            }
        }
        Ok(data.freeze())
    }

    /// SEEK_DATA and SEEK_HOLE. [`FsError::NoData`] behind the end of the file, and where no data
    /// follows.
    pub async fn seek(&self, ino: Ino, offset: u64, to: Seek) -> Result<u64, FsError> {
        match self.read_request(Request::Seek { ino, offset, to }).await? {
            Reply::Offset(found) => Ok(found),
            _ => Err(wrong_reply()),
        }
    }

    /// Has no time-out but that of the session.
    pub async fn admin(&self, request: AdminRequest) -> Result<AdminReply, FsError> {
        match self.shared.ask_patiently(None, |_| Request::Admin(request.clone())).await? {
            Reply::Admin(reply) => Ok(reply),
            _ => Err(wrong_reply()),
        }
    }

    async fn read_piece(&self, ino: Ino, offset: u64, len_bytes: usize) -> Result<Bytes, FsError> {
        match self.read_request(Request::Read { ino, offset, len_bytes: len_bytes as u32 }).await? {
            Reply::Data(data) if data.len() <= len_bytes => Ok(data),
            _ => Err(wrong_reply()),
        }
    }

    async fn read_request(&self, request: Request) -> Result<Reply, FsError> {
        self.shared.ask(|_| request.clone()).await
    }
}

/// Changes.
impl Client {
    /// create, mkdir, mknod and symlink. With `open` the file is open as by [`Client::open`].
    pub async fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
        mode: impl Into<NewMode>,
        what: Make,
        open: bool,
    ) -> Result<Attr, FsError> {
        let mode = mode.into();
        self.change(caller, ClientMutation::Make { parent, name: name.clone(), mode, what, open })
            .await
    }

    pub async fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &Name,
    ) -> Result<Attr, FsError> {
        self.change(caller, ClientMutation::Link { ino, parent, name: name.clone() }).await
    }

    /// Returns the inode if it no longer exists: it had no other name, and no client has it open.
    /// So do [`Client::rmdir`] and [`Client::rename`].
    pub async fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
    ) -> Result<Option<Attr>, FsError> {
        self.mutate(caller, ClientMutation::Unlink { parent, name: name.clone() })
            .await
            .map(|mutated| mutated.attr)
    }

    pub async fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
    ) -> Result<Option<Attr>, FsError> {
        self.mutate(caller, ClientMutation::Rmdir { parent, name: name.clone() })
            .await
            .map(|mutated| mutated.attr)
    }

    pub async fn rename(
        &self,
        caller: &Caller,
        from: Ino,
        name: &Name,
        to: Ino,
        new_name: &Name,
        mode: RenameMode,
    ) -> Result<Option<Attr>, FsError> {
        let mutation = ClientMutation::Rename {
            from,
            name: name.clone(),
            to,
            new_name: new_name.clone(),
            mode,
        };
        self.mutate(caller, mutation).await.map(|mutated| mutated.attr)
    }

    pub async fn setattr(&self, caller: &Caller, ino: Ino, set: SetAttr) -> Result<Attr, FsError> {
        self.change(caller, ClientMutation::SetAttr { ino, set }).await
    }

    /// Sets an ACL in the format of the system calls, or removes it if `value` is empty. With
    /// `drop_set_gid` an access ACL clears the set-gid bit.
    pub async fn set_acl(
        &self,
        caller: &Caller,
        ino: Ino,
        class: AclClass,
        value: Bytes,
        drop_set_gid: bool,
    ) -> Result<Attr, FsError> {
        self.change(caller, ClientMutation::SetAcl { ino, class, value, drop_set_gid }).await
    }

    /// The caller must check which flags the user can set. The node only requires the owner, and
    /// for some flags root.
    pub async fn set_flags(
        &self,
        caller: &Caller,
        ino: Ino,
        flags: InodeFlags,
    ) -> Result<(), FsError> {
        self.setxattr(
            caller,
            ino,
            Bytes::from_static(InodeFlags::ATTRIBUTE),
            flags.value(),
            XattrMode::Set,
        )
        .await
    }

    /// ACLs are set by [`Client::set_acl`], flags by [`Client::set_flags`].
    pub async fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<(), FsError> {
        self.mutate(caller, ClientMutation::SetXattr { ino, name, value, mode }).await.map(drop)
    }

    pub async fn removexattr(&self, caller: &Caller, ino: Ino, name: Bytes) -> Result<(), FsError> {
        self.mutate(caller, ClientMutation::RemoveXattr { ino, name }).await.map(drop)
    }

    /// More than [`MAX_IO_BYTES`] are written in pieces, which other clients may see one by one.
    pub async fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: Bytes,
        drop_set_id: bool,
    ) -> Result<Written, FsError> {
        if offset.checked_add(data.len() as u64).is_none() {
            return Err(FsError::TooLarge);
        }
        self.write_pieces(caller, data, |done, data| ClientMutation::Write {
            ino,
            offset: offset + done,
            data,
            drop_set_id,
        })
        .await
    }

    /// Writes at the end of the file at that time. Only pieces of at most [`MAX_IO_BYTES`] are sure
    /// to be contiguous.
    pub async fn append(
        &self,
        caller: &Caller,
        ino: Ino,
        data: Bytes,
        drop_set_id: bool,
    ) -> Result<Written, FsError> {
        self.write_pieces(caller, data, |_, data| ClientMutation::Append { ino, data, drop_set_id })
            .await
    }

    /// fallocate(2) of `span`, offset and length. With `keep_size` the file does not grow.
    pub async fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        span: (u64, u64),
        what: Allocation,
        keep_size: bool,
        drop_set_id: bool,
    ) -> Result<Attr, FsError> {
        let (offset, len_bytes) = span;
        self.change(
            caller,
            ClientMutation::Fallocate { ino, offset, len_bytes, what, keep_size, drop_set_id },
        )
        .await
    }

    /// copy_file_range(2) between two positions, each an inode and an offset. Returns the number of
    /// bytes copied: 0 at the end of the source, else perhaps fewer than requested.
    pub async fn copy(
        &self,
        caller: &Caller,
        from: (Ino, u64),
        to: (Ino, u64),
        len_bytes: u64,
        drop_set_id: bool,
    ) -> Result<Written, FsError> {
        let ((from, from_offset), (ino, offset)) = (from, to);
        let mutation =
            ClientMutation::Copy { from, from_offset, ino, offset, len_bytes, drop_set_id };
        let mutated = self.mutate(caller, mutation).await?;
        let (attr, copied) = mutated.attr.zip(mutated.replay.len_bytes).ok_or_else(wrong_reply)?;
        Ok(Written { attr, offset, len_bytes: copied.min(len_bytes) as usize })
    }

    /// O_TMPFILE: a file without a name, open as by [`Client::open`]. [`Client::link`] can give it
    /// one. `parent` determines the permission to create it and the attributes that it inherits.
    pub async fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        mode: impl Into<NewMode>,
    ) -> Result<Attr, FsError> {
        let mode = mode.into();
        self.change(caller, ClientMutation::Tmpfile { parent, mode }).await
    }

    async fn mutate(&self, caller: &Caller, mutation: ClientMutation) -> Result<Mutated, FsError> {
        self.shared.mutate(self.requested.clone(), caller, mutation).await
    }

    async fn change(&self, caller: &Caller, mutation: ClientMutation) -> Result<Attr, FsError> {
        self.mutate(caller, mutation).await?.attr.ok_or_else(wrong_reply)
    }

    async fn write_pieces(
        &self,
        caller: &Caller,
        data: Bytes,
        piece: impl Fn(u64, Bytes) -> ClientMutation,
    ) -> Result<Written, FsError> {
        let mut written: Option<Written> = None;
        loop {
            let done = written.as_ref().map_or(0, |written| written.len_bytes);
            let upto = data.len().min(done + MAX_IO_BYTES);
            let mutation = piece(done as u64, data.slice(done..upto));
            let asked = if let ClientMutation::Write { offset, .. } = mutation {
                Some(offset)
            } else {
                None
            };
            let result = self.mutate(caller, mutation).await.and_then(|mutated| {
                let len_bytes = mutated
                    .replay
                    .len_bytes
                    .map_or(upto - done, |len| (upto - done).min(len as usize));
                let (attr, offset) =
                    mutated.attr.zip(asked.or(mutated.replay.offset)).ok_or_else(wrong_reply)?;
                Ok((attr, offset, done + len_bytes))
            });
            match (result, &mut written) {
                (Ok((attr, _, len_bytes)), Some(written)) => {
                    written.attr = attr;
                    written.len_bytes = len_bytes;
                }
                (Ok((attr, offset, len_bytes)), None) => {
                    written = Some(Written { attr, offset, len_bytes })
                }
                // The caller gets the error with its next write, if it persists.
                (Err(_), Some(_)) => {}
                (Err(error), None) => return Err(error),
            }
            match written {
                Some(written) if upto == data.len() || written.len_bytes < upto => {
                    return Ok(written);
                }
                _ => {}
            }
        }
    }
}

/// Open files and durability.
impl Client {
    /// Keeps the inode alive beyond its last name, until the same number of [`Client::close`]s.
    pub async fn open(&self, ino: Ino) -> Result<(), FsError> {
        self.shared.open(ino).await
    }

    /// Returns at once: the node is notified in the background.
    pub fn close(&self, ino: Ino) {
        self.shared.close(ino);
    }

    /// Forces the inode's data and every operation of this client. Fails with [`Client::error`] as
    /// long as that error stands. For an inode that is not open it fails once.
    pub async fn fsync(&self, ino: Ino) -> Result<(), FsError> {
        self.shared
            .within(pin!(self.shared.force(|session| Request::Fsync { session, ino })))
            .await?;
        let error = if self.shared.open_table.is_open(ino) {
            self.shared.errors.get(ino)
        } else {
            self.shared.errors.take(ino)
        };
        error.map_or(Ok(()), Err)
    }

    /// Forces everything. Fails if any error has [come up](Client::error) since it was last called.
    pub async fn sync_fs(&self) -> Result<(), FsError> {
        self.shared.within(pin!(self.shared.force(|session| Request::SyncFs { session }))).await?;
        self.shared.errors.take_unsynced().map_or(Ok(()), Err)
    }
}

fn attr(reply: Reply) -> Result<Attr, FsError> {
    match reply {
        Reply::Attr(attr) => Ok(*attr),
        _ => Err(wrong_reply()),
    }
}

fn done(reply: Reply) -> Result<(), FsError> {
    match reply {
        Reply::Done => Ok(()),
        _ => Err(wrong_reply()),
    }
}
