//! A volume as the kernel sees it: the client library's answers with the right to cache them.

use crate::access_times::Readings;
use crate::io_modes::{IoModes, Way};
use crate::known::KernelReferences;
use crate::lengths::Lengths;
use crate::lockers::Lockers;
use crate::pages::Pages;
use crate::{
    AccessRule, AttrReply, Caching, Consistency, Context, CopyEnd, DirBuffer, EntryReply, Errno,
    Filesystem, Handle, IdMappings, Ids, Interruption, LockRequest, Lookup, Negotiated,
    Notification, Notifier, OpenFlags, OpenReply, Passthrough, Pushed, SeekTo, WriteMode,
};
use bytes::Bytes;
use caching::{SOLE_NAME_TTL_WITHOUT_EPOCH, SOLE_TTL, Told};
use ebb_client::{Client, Lease, Leased};
use ebb_model::{
    Access, AclClass, Allocation, Attr, Caller, Cookie, FileKind, FsError, Ino, InodeFlags,
    LockAsk, LockConflict, LockMode, LockOwner, LockRange, Make, Name, NewMode, Planted, RangeLock,
    RenameMode, Seek, SetAttr, SetTime, VolumeStat, XattrMode,
};
use futures_util::future::join_all;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

mod caching;
mod callers;
mod left;
mod opening;
mod references;
mod squash;

/// Entries per request to the node.
const DIRECTORY_BATCH: u32 = 512;

/// After a reply that an inode is gone, the kernel looks the name up again within this time, and
/// uses the result within this time: both at once, unless the machine is busy.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// How often a name may be replaced during that second lookup.
const MOST_REPLACEMENTS: usize = 100;

const SET_ID: u16 = 0o6000;
const SET_GID: u16 = 0o2000;
const SET_GID_EXECUTABLE: u16 = SET_GID | 0o010;

/// Flag in an open file's number: every read and write is a request.
const DIRECT: u64 = 1;
/// Flag in an open file's number: it is open for writing.
const WRITES: u64 = 2;
/// O_NOATIME: reading with it is not noted.
const UNNOTED: u64 = 4;
const FLAG_BITS: u32 = 3;
/// Flag in an open directory's number: it was removed before the open, and the node does not have
/// it.
const GONE: u64 = 1;

/// The numbers of a successor start far beyond all that its predecessor can have given out.
const OPENS_PER_GENERATION: u64 = 1 << 40;

pub struct Volume {
    client: Client,
    /// The directory that is mounted: for the kernel its id is [`Ino::ROOT`].
    root: Ino,
    kernel: Negotiated,
    name_ttl: Duration,
    consistency: Consistency,
    known: Rc<RefCell<KernelReferences>>,
    /// Inodes that have lost their last name here, with their attributes at the last open that the
    /// kernel reported; until the kernel forgets them. It does not report opens of a FIFO, of a
    /// device, of a current directory or with O_PATH.
    gone: RefCell<BTreeMap<Ino, Attr>>,
    pages: Rc<Pages>,
    lengths: Rc<Lengths>,
    /// Files that are open for reading and writing here, with the number of their opens: they may
    /// be mapped, and a mapping may hold changes that have not been reported.
    mappable: RefCell<BTreeMap<Ino, u64>>,
    opens: Cell<u64>,
    lockers: RefCell<Lockers>,
    readings: Readings,
    /// Set-id bits of which the kernel knows. It does not notice that a write has taken them away
    /// where the write goes past its cache.
    set_id: RefCell<BTreeMap<Ino, u16>>,
    /// Files that had several hard links in a reply to the kernel: their names are not cached under
    /// leases. After unlink(2) the kernel decrements the link count that it has cached, also if a
    /// reply has brought the new count already. If that makes 0, it refuses link(2) until the next
    /// lookup.
    hard_linked: RefCell<BTreeSet<Ino>>,
    io_modes: Rc<IoModes>,
    notifier: Notifier,
    ids: IdMappings,
    /// The user and group that replace root.
    anonymous: Option<Ids>,
    /// When something that the kernel had looked up was last found to have gone.
    lost: Cell<Option<Instant>>,
}

impl Volume {
    /// Serves the tree below the directory `root`. With `passthrough` the kernel reads files for
    /// which the node has made a grant.
    pub fn new(
        client: Client,
        root: Ino,
        notifier: Notifier,
        kernel: Negotiated,
        access: AccessRule,
        consistency: Consistency,
        passthrough: Option<Passthrough>,
    ) -> Volume {
        let name_ttl = if kernel.epoch() { SOLE_TTL } else { SOLE_NAME_TTL_WITHOUT_EPOCH };
        let known = Rc::new(RefCell::new(KernelReferences::new(client.handover().cloned())));
        let pages = Rc::new(Pages::default());
        let lengths = Rc::new(Lengths::new(notifier.clone()));
        let io_modes = Rc::new(IoModes::new(passthrough));
        let told = Told {
            client: client.weak(),
            root,
            consistency,
            name_ttl,
            known: known.clone(),
            pages: pages.clone(),
            lengths: lengths.clone(),
            io_modes: io_modes.clone(),
            notifier: notifier.clone(),
        };
        let told = Rc::new(told);
        let recalled = told.clone();
        client.on_lease_recall(move |recall| {
            let told = recalled.clone();
            Box::pin(async move { told.recall(recall).await })
        });
        client.on_change(move |change, rule| {
            told.is_void(&change);
            let told = told.clone();
            Box::pin(async move { told.of(change, rule).await })
        });
        let (held, pruning) = (known.clone(), notifier.clone());
        client.on_reference_query(move |inos| {
            let (known, notifier) = (held.clone(), pruning.clone());
            Box::pin(async move { references::give_up(inos, root, &known, &notifier).await })
        });
        let generation = client.handover().map_or(0, |handover| handover.generation());
        let lockers = RefCell::new(Lockers::new(client.handover().cloned()));
        let (mappable, opens) = (RefCell::default(), Cell::new(generation * OPENS_PER_GENERATION));
        let (readings, set_id) = (Readings::new(access), RefCell::default());
        let hard_linked = RefCell::default();
        let lost = Cell::default();
        Volume {
            client,
            root,
            kernel,
            name_ttl,
            consistency,
            known,
            gone: RefCell::default(),
            pages,
            lengths,
            mappable,
            opens,
            lockers,
            readings,
            set_id,
            hard_linked,
            io_modes,
            notifier,
            ids: IdMappings::default(),
            anonymous: None,
            lost,
        }
    }

    /// Shows users and groups by these maps.
    pub fn mapping(self, ids: IdMappings) -> Volume {
        Volume { ids, ..self }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The client on behalf of a request that makes one change. The change is made once, even if
    /// the request is sent again.
    fn once(&self, cx: &Context) -> Client {
        self.client.on_behalf_of(cx.request())
    }

    /// The inode that the kernel means.
    fn volume_ino(&self, ino: Ino) -> Ino {
        if ino == Ino::ROOT { self.root } else { ino }
    }

    /// The mode of a new file. Without set-gid, if it would be of a group that its maker is not
    /// in, and the kernel leaves that to us.
    async fn mode_in(&self, cx: &Context, dir: Ino, mode: u16) -> Result<u16, FsError> {
        if self.kernel.drops_set_gid() || mode & SET_GID_EXECUTABLE != SET_GID_EXECUTABLE {
            return Ok(mode);
        }
        let dir = self.client.getattr(self.volume_ino(dir)).await?;
        let foreign = dir.mode & SET_GID != 0 && !self.is_in_group(cx, &dir);
        Ok(if foreign { mode & !SET_GID } else { mode })
    }

    /// An inode was read. That this cannot be noted is no failure of the reading: a volume that
    /// takes no changes has none to note it in.
    async fn note_reading(&self, cx: &Context, ino: Ino) {
        if !self.client.is_read_only() && self.readings.read(ino) {
            let set = SetAttr { atime: Some(SetTime::Reading), ..SetAttr::default() };
            let caller = Caller { checked: true, ..self.caller(cx) };
            if let Err(error) = self.client.setattr(&caller, self.volume_ino(ino), set).await {
                tracing::debug!(%ino, %error, "the access time stays as it is");
            }
        }
    }

    fn note_removed(&self, removed: Option<Attr>) {
        if let Some(attr) = removed.filter(|attr| self.known.borrow().has(attr.ino)) {
            self.gone.borrow_mut().insert(attr.ino, attr);
        }
    }

    /// Attributes of an inode without a name that is still in use.
    fn removed_attr(&self, ino: Ino) -> Option<Attr> {
        self.gone.borrow().get(&ino).cloned()
    }

    /// Converts the outcome of an operation on an inode that was looked up before.
    fn on_known<T>(&self, result: Result<T, FsError>) -> Result<T, Errno> {
        if matches!(result, Err(FsError::Stale)) {
            self.lost.set(Some(Instant::now()));
        }
        Ok(result?)
    }

    /// When a cached inode is gone, the kernel looks the name up again, but not a third time. So
    /// the second result is kept open until the kernel has used it, even if another inode gets the
    /// name in between.
    async fn look_up(&self, parent: Ino, name: &Name) -> Result<Leased<Option<Attr>>, FsError> {
        let mut found = self.client.lookup_leased(parent, name).await?;
        for _ in 0..MOST_REPLACEMENTS {
            let Some(attr) = &found.value else { break };
            let again = self.lost.get().is_some_and(|lost| lost.elapsed() < SECOND_LOOK);
            if !again || attr.kind == FileKind::Directory {
                break;
            }
            match self.client.open(attr.ino).await {
                Ok(()) => {
                    let (client, ino) = (self.client.clone(), attr.ino);
                    tokio::task::spawn_local(async move {
                        tokio::time::sleep(SECOND_LOOK).await;
                        client.close(ino);
                    });
                    break;
                }
                Err(FsError::Stale) => found = self.client.lookup_leased(parent, name).await?,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// Inode flags are read and set by operations of their own.
fn require_public(name: &[u8]) -> Result<(), Errno> {
    if name == InodeFlags::ATTRIBUTE { Err(Errno::NOT_SUPPORTED) } else { Ok(()) }
}

fn new_mode(cx: &Context, mode: u16) -> NewMode {
    NewMode { mode, umask: cx.umask }
}

impl Filesystem for Volume {
    async fn lookup(&self, _cx: &Context, parent: Ino, name: Name) -> Result<Lookup, Errno> {
        let Leased { value, lease } = self.look_up(self.volume_ino(parent), &name).await?;
        match value {
            Some(value) => Ok(Lookup::Found(self.referenced_under(Leased { value, lease }).await)),
            None => Ok(Lookup::Absent { ttl: self.entry_ttl(lease) }),
        }
    }

    async fn lookup_self(&self, _cx: &Context, ino: Ino) -> Result<EntryReply, Errno> {
        Ok(self.referenced_under(self.client.getattr_leased(ino).await?).await)
    }

    fn answered(&self, cx: &Context) {
        self.client.answered(cx.request());
    }

    fn all_came(&self, again: &BTreeSet<u64>) {
        self.client.all_came(again);
    }

    fn forget(&self, ino: Ino, count: u64) {
        if self.known.borrow_mut().forget(ino, count) {
            self.pages.forget(ino);
            self.lengths.forget(ino);
            self.readings.forget(ino);
            self.set_id.borrow_mut().remove(&ino);
            self.hard_linked.borrow_mut().remove(&ino);
            self.gone.borrow_mut().remove(&ino);
        }
    }

    async fn getattr(
        &self,
        _cx: &Context,
        ino: Ino,
        _handle: Option<Handle>,
    ) -> Result<AttrReply, Errno> {
        let removed = |error| {
            let attr = self.removed_attr(ino).ok_or(error)?;
            Ok(Leased { value: attr, lease: Lease::default() })
        };
        let found = self.client.getattr_leased(self.volume_ino(ino)).await.or_else(removed);
        let Leased { value: attr, lease } = self.on_known(found)?;
        self.show(&attr).await;
        Ok(self.attr_reply(attr, lease))
    }

    async fn setattr(
        &self,
        cx: &Context,
        ino: Ino,
        set: SetAttr,
        handle: Option<Handle>,
    ) -> Result<AttrReply, Errno> {
        let (mut caller, _) = self.caller_for_change(cx, ino);
        match Volume::cuts_open_file(&set, handle) {
            true => caller.checked = true,
            false => self.admit(cx, ino, Access::EXISTS).await?,
        }
        let attr = self.on_known(
            self.once(cx).setattr(&caller, self.volume_ino(ino), self.ids.set(set)?).await,
        )?;
        let attr = self.present(cx, attr).await;
        if attr.kind == FileKind::Regular {
            self.lengths.set(&attr, !self.may_cache());
        }
        Ok(self.attr_reply(attr, Lease::default()))
    }

    async fn readlink(&self, cx: &Context, ino: Ino) -> Result<Bytes, Errno> {
        let target = self.on_known(self.client.readlink(ino).await)?;
        self.note_reading(cx, ino).await;
        Ok(target)
    }

    async fn make(
        &self,
        cx: &Context,
        parent: Ino,
        name: Name,
        mode: u16,
        what: Make,
    ) -> Result<EntryReply, Errno> {
        self.admit(cx, parent, Access::EXISTS).await?;
        let mode =
            if what == Make::Directory { mode } else { self.mode_in(cx, parent, mode).await? };
        let attr = self
            .once(cx)
            .make(
                &self.caller_for_create(cx)?,
                self.volume_ino(parent),
                &name,
                new_mode(cx, mode),
                what,
                false,
            )
            .await?;
        Ok(self.referenced(self.present(cx, attr).await).await)
    }

    async fn unlink(&self, cx: &Context, parent: Ino, name: Name) -> Result<(), Errno> {
        self.admit(cx, parent, Access::EXISTS).await?;
        self.note_removed(
            self.once(cx)
                .unlink(&self.caller_for_delete(cx), self.volume_ino(parent), &name)
                .await?,
        );
        Ok(())
    }

    async fn rmdir(&self, cx: &Context, parent: Ino, name: Name) -> Result<(), Errno> {
        self.admit(cx, parent, Access::EXISTS).await?;
        self.note_removed(
            self.once(cx)
                .rmdir(&self.caller_for_delete(cx), self.volume_ino(parent), &name)
                .await?,
        );
        Ok(())
    }

    async fn rename(
        &self,
        cx: &Context,
        from: Ino,
        name: Name,
        to: Ino,
        new_name: Name,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.admit(cx, from, Access::EXISTS).await?;
        self.admit(cx, to, Access::EXISTS).await?;
        let caller = if matches!(mode, RenameMode::Whiteout { .. }) {
            self.caller_for_create(cx)?
        } else {
            self.caller_for_delete(cx)
        };
        self.note_removed(
            self.once(cx)
                .rename(&caller, self.volume_ino(from), &name, self.volume_ino(to), &new_name, mode)
                .await?,
        );
        Ok(())
    }

    async fn link(
        &self,
        cx: &Context,
        ino: Ino,
        parent: Ino,
        name: Name,
    ) -> Result<EntryReply, Errno> {
        self.admit(cx, ino, Access::EXISTS).await?;
        self.admit(cx, parent, Access::EXISTS).await?;
        let attr =
            self.once(cx).link(&self.caller(cx), ino, self.volume_ino(parent), &name).await?;
        Ok(self.referenced(self.present(cx, attr).await).await)
    }

    async fn open(&self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<OpenReply, Errno> {
        // The kernel itself refuses, unless the mount was remounted as writable.
        if flags.writes() && self.client.is_read_only() {
            return Err(FsError::ReadOnly.into());
        }
        self.admit_opener(cx, ino, flags).await?;
        if flags.writes() {
            let guards = self.on_known(self.client.flags(ino).await)?.guards();
            if guards.has(InodeFlags::IMMUTABLE)
                || guards.has(InodeFlags::APPEND) && !flags.appends()
            {
                return Err(FsError::NotPermitted.into());
            }
        }
        self.on_known(self.client.open(ino).await)?;
        match self.made_ready(ino, flags).await {
            Ok((found, grant)) => {
                let opened = self.opened(cx, ino, flags, found, grant)?;
                if matches!(opened.caching, Caching::Passthrough(_))
                    && opened.handle.0 & UNNOTED == 0
                {
                    // Reads of it are no requests, so the open counts as a read.
                    self.note_reading(cx, ino).await;
                }
                Ok(opened)
            }
            Err(error) => {
                self.client.close(ino);
                Err(error.into())
            }
        }
    }

    async fn create(
        &self,
        cx: &Context,
        parent: Ino,
        name: Name,
        mode: u16,
        flags: OpenFlags,
    ) -> Result<(EntryReply, OpenReply), Errno> {
        self.admit(cx, parent, Access::EXISTS).await?;
        let mode = self.mode_in(cx, parent, mode).await?;
        loop {
            let made = self
                .once(cx)
                .make(
                    &self.caller_for_create(cx)?,
                    self.volume_ino(parent),
                    &name,
                    new_mode(cx, mode),
                    Make::Regular,
                    true,
                )
                .await;
            match made {
                Ok(attr) => {
                    let opened = self.opened(cx, attr.ino, flags, None, None)?;
                    let attr = self.present(cx, attr).await;
                    return Ok((self.referenced(attr).await, opened));
                }
                Err(FsError::Exists) if !flags.excludes() => {}
                Err(error) => return Err(error.into()),
            }
            match self.client.lookup(self.volume_ino(parent), &name).await {
                // A file that another mount has made there in the meantime is not opened here: the
                // kernel does not check permissions of a file that it asks to create. It looks the
                // name up again.
                Ok(_) => return self.on_known(Err(FsError::Stale)),
                // Removed again in between.
                Err(FsError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn read(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len_bytes: u32,
        fills_pages: bool,
    ) -> Result<Bytes, Errno> {
        self.pages.read(ino, handle);
        if fills_pages {
            self.lengths.filling(ino);
        }
        let data = self.client.read(ino, offset, len_bytes as usize).await?;
        if data.len() < len_bytes as usize {
            self.lengths.ended_at(ino, offset + data.len() as u64);
        }
        if self.io_modes.is_native(ino) {
            // For sendfile(2) the kernel keeps a page, which stores of others past the page cache
            // leave stale.
            self.dropped_later(ino, offset..offset + u64::from(len_bytes));
        }
        if handle.0 & UNNOTED == 0 {
            self.note_reading(cx, ino).await;
        }
        Ok(data)
    }

    async fn write(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Bytes,
        mode: WriteMode,
    ) -> Result<u32, Errno> {
        // The kernel treats a squashed caller as root.
        let drop_set_id = mode.drop_set_id || !mode.from_cache && self.squashed(cx).is_some();
        let caller = if drop_set_id { self.caller_for_change(cx, ino).0 } else { self.caller(cx) };
        let caller = Caller { checked: true, ..caller };
        let wanted_bytes = data.len();
        let past_cache =
            (handle.0 & DIRECT != 0 || self.io_modes.is_native(ino)) && !mode.from_cache;
        // Only the node knows the end of a file that others write to.
        let written = match mode.append && !Planted::AppendIgnored.is_on() {
            true => self.once(cx).append(&caller, ino, data, drop_set_id).await?,
            false => self.once(cx).write(&caller, ino, offset, data, drop_set_id).await?,
        };
        if past_cache && self.may_show_zeros(ino) {
            self.end_dropped(ino, offset.min(written.offset)).await?;
        } else if written.offset != offset {
            // The kernel has put it where it thought that the file ends.
            self.dropped_later(ino, 0..u64::MAX);
        }
        if !mode.from_cache {
            let end = written.offset + written.len_bytes as u64;
            self.lengths.wrote(ino, written.offset, end, !past_cache);
        }
        self.readings.changed(ino);
        if cx.resent && drop_set_id {
            // The bits may have gone when it was first made.
            self.dropped_later(ino, 0..0);
        }
        let known = self.set_id.borrow().get(&ino).copied();
        if known.is_some_and(|known| known != written.attr.mode & SET_ID) {
            self.seen(&written.attr);
            self.dropped_later(ino, 0..0);
        }
        if past_cache && mode.force {
            self.client.fsync(ino).await?;
        }
        // The kernel takes any answer to a write of cached pages for a whole write: a short one
        // would lose the other bytes without an error at fsync(2).
        if mode.from_cache && written.len_bytes < wanted_bytes {
            return Err(FsError::NoSpace.into());
        }
        Ok(written.len_bytes as u32)
    }

    /// Answers of a node in this process are final: no error can follow.
    fn reports_at_close(&self) -> bool {
        !self.client.is_local()
    }

    async fn flush(
        &self,
        _cx: &Context,
        ino: Ino,
        handle: Handle,
        owner: u64,
    ) -> Result<(), Errno> {
        // The kernel has written back the pages that were changed through mappings, but not changes
        // that it made past the node.
        let may_have_stored = handle.0 & WRITES != 0
            && self.io_modes.is_native(ino)
            && self.mappable.borrow().contains_key(&ino);
        let told = if may_have_stored && !self.client.is_exclusive() {
            self.client.fsync(ino).await
        } else {
            Ok(())
        };
        let unlocked = match Planted::CloseKeepsLocks.is_on() {
            true => Ok(()),
            false => self.client.unlock_all(ino, LockOwner::Fcntl(owner)).await,
        };
        self.lockers.borrow_mut().flushed(ino, owner);
        told?;
        match self.client.error(ino) {
            Some(error) if handle.0 & WRITES != 0 => Err(error.into()),
            _ => Ok(unlocked?),
        }
    }

    async fn release(
        &self,
        _cx: &Context,
        ino: Ino,
        handle: Handle,
        flags: OpenFlags,
    ) -> Result<(), Errno> {
        let over = self.lockers.borrow().end_with(handle);
        let over = over.into_iter().map(|(ino, owner)| (ino, LockOwner::Fcntl(owner)));
        // All at once: later lock requests queue behind these.
        let unlocked = over
            .chain([(ino, LockOwner::Flock(handle.0))])
            .map(|(ino, owner)| self.client.unlock_all(ino, owner));
        for error in join_all(unlocked).await.into_iter().filter_map(Result::err) {
            tracing::error!(%ino, %error, "a lock of a closed file stays until the mount ends");
        }
        self.lockers.borrow_mut().released(handle);
        if self.removed_attr(ino).is_some() {
            self.note_removed(self.client.getattr(ino).await.ok());
        }
        if self.is_left_no_more(handle) {
            self.let_go(ino, handle, flags.reads() && flags.writes());
        }
        Ok(())
    }

    async fn fsync(
        &self,
        _cx: &Context,
        ino: Ino,
        _handle: Handle,
        _data_only: bool,
    ) -> Result<(), Errno> {
        Ok(self.client.fsync(ino).await?)
    }

    async fn statfs(&self, _cx: &Context, ino: Ino) -> Result<VolumeStat, Errno> {
        Ok(self.client.statfs(self.volume_ino(ino)).await?)
    }

    async fn setxattr(
        &self,
        cx: &Context,
        ino: Ino,
        name: Bytes,
        value: Bytes,
        mode: Option<XattrMode>,
        drop_set_gid: bool,
    ) -> Result<(), Errno> {
        let (caller, ino) = (self.caller(cx), self.volume_ino(ino));
        require_public(&name)?;
        self.admit(cx, ino, Access::EXISTS).await?;
        match AclClass::of(&name) {
            Some(class) => {
                let unsaid =
                    class == AclClass::Access && !self.kernel.says_when_acls_drop_set_gid();
                let drop_set_gid = drop_set_gid
                    || unsaid && !self.is_in_group(cx, &self.client.getattr(ino).await?);
                let value = self.ids.acl_to_remote(value)?;
                self.once(cx).set_acl(&caller, ino, class, value, drop_set_gid).await.map(|_| ())?
            }
            None => match mode {
                Some(mode) => self.once(cx).setxattr(&caller, ino, name, value, mode).await?,
                None => {
                    return Err(self
                        .client
                        .getxattr(ino, name)
                        .await
                        .err()
                        .unwrap_or(FsError::Exists)
                        .into());
                }
            },
        }
        Ok(())
    }

    async fn getxattr(&self, cx: &Context, ino: Ino, name: Bytes) -> Result<Bytes, Errno> {
        require_public(&name)?;
        let class = AclClass::of(&name);
        if name.starts_with(b"trusted.") && self.squashed(cx).is_some() {
            return Err(FsError::NoAttribute.into());
        }
        if name.starts_with(b"user.") {
            self.admit(cx, ino, Access::READ).await?;
        }
        let value = self.on_known(self.client.getxattr(self.volume_ino(ino), name).await)?;
        if class.is_some() { self.ids.acl_to_local(value) } else { Ok(value) }
    }

    async fn listxattr(&self, cx: &Context, ino: Ino) -> Result<Vec<Bytes>, Errno> {
        let mut names = self.client.listxattr(self.volume_ino(ino)).await?;
        // The kernel returns their values only to root, but leaves the list to us.
        let trusted = |name: &Bytes| name.starts_with(b"trusted.");
        if names.iter().any(trusted) && !self.is_root(cx) {
            names.retain(|name| !trusted(name));
        }
        Ok(names)
    }

    async fn removexattr(&self, cx: &Context, ino: Ino, name: Bytes) -> Result<(), Errno> {
        let (caller, ino) = (self.caller(cx), self.volume_ino(ino));
        require_public(&name)?;
        self.admit(cx, ino, Access::EXISTS).await?;
        match AclClass::of(&name) {
            Some(class) => {
                self.once(cx).set_acl(&caller, ino, class, Bytes::new(), false).await.map(|_| ())?
            }
            None => self.once(cx).removexattr(&caller, ino, name).await?,
        }
        Ok(())
    }

    async fn opendir(&self, cx: &Context, ino: Ino, _flags: OpenFlags) -> Result<OpenReply, Errno> {
        self.admit(cx, ino, Access::READ).await?;
        let opened = self.client.open(self.volume_ino(ino)).await;
        if opened.is_err() && self.removed_attr(ino).is_some() {
            return Ok(OpenReply {
                handle: Handle(self.next_number() << FLAG_BITS | GONE),
                caching: Caching::Fresh,
            });
        }
        self.on_known(opened)?;
        let unread = self.readings.of_directories() && {
            let attr = self.client.getattr(self.volume_ino(ino)).await;
            attr.is_ok_and(|attr| self.readings.opened(ino, Some(&attr)))
        };
        // If others may change the bucket the node needs to see every listing. A close-to-open
        // mount gets no more notifications once other mounts have attached.
        let is_told = self.is_told()
            && (self.consistency == Consistency::Strong || self.client.is_exclusive());
        let keep = is_told && !unread;
        let caching = if keep { Caching::Keep } else { Caching::Fresh };
        let handle = Handle(self.next_number() << FLAG_BITS);
        self.leave(cx, ino, handle, false)?;
        Ok(OpenReply { handle, caching })
    }

    async fn readdir(
        &self,
        cx: &Context,
        ino: Ino,
        _handle: Handle,
        after: Cookie,
        entries: &mut DirBuffer,
    ) -> Result<(), Errno> {
        self.note_reading(cx, ino).await;
        let mut after = after;
        loop {
            let limit = (entries.room() as u32).min(DIRECTORY_BATCH);
            if limit == 0 {
                return Ok(());
            }
            let page = self.client.readdir(self.volume_ino(ino), after, limit).await?;
            for (entry, attr) in &page.entries {
                if self.known.borrow().has(attr.ino) {
                    self.show(attr).await;
                }
                match entries.push(
                    &entry.name,
                    entry.cookie,
                    &self.entry(attr.clone(), Lease::default()),
                ) {
                    Pushed::Added { referenced: true } => self.refer(attr),
                    Pushed::Added { referenced: false } => {}
                    Pushed::Full => return Ok(()),
                }
                after = entry.cookie;
            }
            // While this waits for more entries, other mounts may attach, and change entries
            // already in the buffer.
            if page.end || entries.holds_entries() {
                return Ok(());
            }
        }
    }

    async fn releasedir(&self, _cx: &Context, ino: Ino, handle: Handle) -> Result<(), Errno> {
        if handle.0 & GONE == 0 && self.is_left_no_more(handle) {
            // Known as open if it was so before this process was.
            self.io_modes.release(ino, Way::Cached);
            self.client.close(self.volume_ino(ino));
        }
        Ok(())
    }

    /// For the mount's root it stands for syncfs(2), which the kernel does not pass on.
    async fn fsyncdir(
        &self,
        _cx: &Context,
        ino: Ino,
        _handle: Handle,
        _data_only: bool,
    ) -> Result<(), Errno> {
        if ino == Ino::ROOT {
            self.client.sync_fs().await?;
        }
        Ok(self.client.fsync(self.volume_ino(ino)).await?)
    }

    async fn access(&self, cx: &Context, ino: Ino, access: Access) -> Result<(), Errno> {
        Ok(self.client.access(&self.caller(cx), self.volume_ino(ino), access).await?)
    }

    async fn getlk(
        &self,
        _cx: &Context,
        ino: Ino,
        owner: u64,
        range: LockRange,
        mode: Option<LockMode>,
    ) -> Result<Option<LockConflict>, Errno> {
        let owner = LockOwner::Fcntl(owner);
        let found = match mode {
            Some(mode) => self.client.test_lock(ino, owner, RangeLock { range, mode }).await,
            None => self.client.own_lock(ino, owner, range).await,
        };
        Ok(found?)
    }

    async fn setlk(
        &self,
        _cx: &Context,
        ino: Ino,
        lock: LockRequest,
        wait: Option<Interruption>,
    ) -> Result<(), Errno> {
        let LockRequest { handle, range, mode, pid, .. } = lock;
        // A number that is never reused identifies a description better than the kernel's number.
        let owner =
            if lock.flock { LockOwner::Flock(handle.0) } else { LockOwner::Fcntl(lock.owner) };
        let ask = LockAsk { ino, owner, range, mode, keep: false, pid };
        if mode.is_none() {
            // An owner without a lock publishes nothing, and an invalidation would void replies to
            // the owners of other locks.
            let written = match self.client.may_hold_lock(ino, owner) {
                true => self.write_back(ino).await,
                false => Ok(()),
            };
            self.client.lock(ask).await?;
            return written;
        }
        if !lock.flock {
            self.lockers.borrow_mut().used(ino, lock.owner, handle);
        }
        match wait {
            None => self.client.lock(ask).await?,
            Some(mut interruption) => {
                self.client.lock_waiting(ask, !lock.flock, interruption.signalled()).await?
            }
        }
        // The holder sees all changes of earlier holders.
        let seen = self.catch_up(ino).await;
        if seen.is_err() {
            self.client.lock(LockAsk { mode: None, ..ask }).await?;
        }
        seen
    }

    async fn fallocate(
        &self,
        cx: &Context,
        ino: Ino,
        _handle: Handle,
        offset: u64,
        len_bytes: u64,
        mode: i32,
    ) -> Result<(), Errno> {
        let zero = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE);
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match zero {
            _ if mode & !(zero | libc::FALLOC_FL_KEEP_SIZE) != 0 => {
                return Err(Errno::NOT_SUPPORTED);
            }
            0 => Allocation::Reserve,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocation::Zero,
            _ => return Err(Errno::NOT_SUPPORTED),
        };
        // The kernel leaves the set-id bits to us, and does not pass on the caller's privileges.
        let (caller, is_root) = self.caller_for_change(cx, ino);
        let caller = Caller { checked: true, ..caller };
        self.once(cx)
            .fallocate(&caller, ino, (offset, len_bytes), what, keep_size, !is_root)
            .await?;
        self.readings.changed(ino);
        Ok(())
    }

    async fn lseek(
        &self,
        _cx: &Context,
        ino: Ino,
        _handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64, Errno> {
        let to = match to {
            SeekTo::Data => Seek::Data,
            SeekTo::Hole => Seek::Hole,
        };
        let found = self.client.seek(ino, offset, to).await;
        let hole = match (to, &found) {
            (Seek::Data, Ok(data)) => offset..*data,
            (Seek::Data, Err(FsError::NoData)) => offset..u64::MAX,
            (Seek::Hole, Ok(hole)) => *hole..u64::MAX,
            _ => return Ok(found?),
        };
        if hole.is_empty() || !self.mappable.borrow().contains_key(&ino) {
            return Ok(found?);
        }
        // Bytes stored there through a mapping arrive as WRITEs now, and are data.
        match self.notifier.send(Notification::Inode { ino, bytes: hole }).await {
            Ok(()) => Ok(self.client.seek(ino, offset, to).await?),
            Err(error) => {
                tracing::error!(%ino, %error, "the kernel does not write back what is mapped");
                Err(Errno::IO)
            }
        }
    }

    async fn copy_file_range(
        &self,
        cx: &Context,
        from: CopyEnd,
        to: CopyEnd,
        len_bytes: u64,
    ) -> Result<u64, Errno> {
        let (caller, is_root) = self.caller_for_change(cx, to.ino);
        let caller = Caller { checked: true, ..caller };
        let (unnoted, source) = (from.handle.0 & UNNOTED != 0, from.ino);
        let (from, to) = ((from.ino, from.offset), (to.ino, to.offset));
        let copied = self.once(cx).copy(&caller, from, to, len_bytes, !is_root).await?;
        self.readings.changed(to.0);
        if !unnoted {
            self.note_reading(cx, source).await;
        }
        Ok(copied.len_bytes as u64)
    }

    async fn flags(&self, _cx: &Context, ino: Ino) -> Result<InodeFlags, Errno> {
        self.on_known(self.client.flags(self.volume_ino(ino)).await)
    }

    async fn set_flags(&self, cx: &Context, ino: Ino, flags: InodeFlags) -> Result<(), Errno> {
        let caller = self.caller(cx);
        let caller = Caller { checked: caller.checked && self.kernel.checks_flags(), ..caller };
        self.once(cx).set_flags(&caller, self.volume_ino(ino), flags).await?;
        // The kernel does not know that the change time has changed.
        self.dropped_later(ino, 0..0);
        Ok(())
    }

    async fn tmpfile(
        &self,
        cx: &Context,
        parent: Ino,
        mode: u16,
        flags: OpenFlags,
    ) -> Result<(EntryReply, OpenReply), Errno> {
        self.admit(cx, parent, Access::EXISTS).await?;
        let attr = self
            .once(cx)
            .tmpfile(&self.caller_for_create(cx)?, self.volume_ino(parent), new_mode(cx, mode))
            .await?;
        let opened = self.opened(cx, attr.ino, flags, None, None)?;
        Ok((self.referenced(self.present(cx, attr).await).await, opened))
    }

    async fn syncfs(&self, _cx: &Context, _ino: Ino) -> Result<(), Errno> {
        Ok(self.client.sync_fs().await?)
    }
}
