//! Terms of the kernel's caches, and their invalidation.

use super::{SET_ID, Volume};
use crate::io_modes::IoModes;
use crate::known::KernelReferences;
use crate::lengths::Lengths;
use crate::pages::Pages;
use crate::{
    AttrReply, Consistency, EntryReply, Errno, Notification, Notifier, NotifyError, OpenFlags,
};
use ebb_client::{CacheRule, Change, Lease, Leased, NAME_TERM, Recall, WeakClient};
use ebb_model::{Attr, FileKind, Ino, Name, Planted};
use futures_util::future::join_all;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// A sole client may cache without term; a notification ends that.
pub(super) const SOLE_TTL: Duration = Duration::from_secs(3600);

/// The same for names, on kernels without a notification that invalidates all of them.
pub(super) const SOLE_NAME_TTL_WITHOUT_EPOCH: Duration = Duration::from_secs(1);

/// Attempts to notify the kernel of an inode that it does not know yet, or has forgotten before its
/// FORGET has come; and the pause between them.
const RECALL_LOOKS: u32 = 20;
const RECALL_PAUSE: Duration = Duration::from_millis(2);

impl Volume {
    pub(super) fn may_cache(&self) -> bool {
        self.client.cache_rule() == CacheRule::Sole
    }

    /// Whether the kernel may cache pages of a file that is opened now. If others can write too,
    /// now or later, the kernel would place appended bytes at the end that it knows, and send them
    /// in pieces, between which others can append.
    pub(super) fn may_cache_pages(&self, flags: OpenFlags) -> bool {
        match flags.appends() {
            true => self.may_cache() && self.client.is_exclusive(),
            false => self.may_cache() || self.consistency == Consistency::CloseToOpen,
        }
    }

    /// Cached state changes only with a notification to this mount.
    pub(super) fn is_told(&self) -> bool {
        self.may_cache() && self.client.cache_term().is_none()
    }

    /// How long the kernel may keep the attributes of an answer with this lease.
    fn attr_ttl(&self, lease: Lease) -> Duration {
        match self.may_cache() || self.client.may_cache(lease) {
            true => self.client.cache_term().unwrap_or(SOLE_TTL),
            false => Duration::ZERO,
        }
    }

    /// The same for a name.
    pub(super) fn entry_ttl(&self, lease: Lease) -> Duration {
        if self.may_cache() {
            self.client.cache_term().map_or(self.name_ttl, |term| term.min(self.name_ttl))
        } else if self.client.may_cache_name(lease) {
            self.client.cache_term().map_or(NAME_TERM, |term| term.min(NAME_TERM))
        } else {
            Duration::ZERO
        }
    }

    /// The kernel is given these attributes.
    pub(super) fn seen(&self, attr: &Attr) {
        self.readings.seen(attr.ino, attr);
        if attr.nlink > 1 && attr.kind != FileKind::Directory {
            self.hard_linked.borrow_mut().insert(attr.ino);
        }
        let mut set_id = self.set_id.borrow_mut();
        match attr.mode & SET_ID {
            bits if bits != 0 && attr.kind == FileKind::Regular => {
                set_id.insert(attr.ino, bits);
            }
            _ => {
                set_id.remove(&attr.ino);
            }
        }
    }

    pub(super) fn attr_reply(&self, attr: Attr, lease: Lease) -> AttrReply {
        self.seen(&attr);
        AttrReply { attr: self.ids.attr(attr), ttl: self.attr_ttl(lease) }
    }

    pub(super) fn entry(&self, attr: Attr, lease: Lease) -> EntryReply {
        let is_name_cached = self.may_cache() || !self.hard_linked.borrow().contains(&attr.ino);
        let entry_ttl = if is_name_cached { self.entry_ttl(lease) } else { Duration::ZERO };
        EntryReply { attr: self.ids.attr(attr), entry_ttl, attr_ttl: self.attr_ttl(lease) }
    }

    /// An entry that the kernel takes a reference with.
    pub(super) async fn referenced(&self, attr: Attr) -> EntryReply {
        self.referenced_under(Leased { value: attr, lease: Lease::default() }).await
    }

    pub(super) async fn referenced_under(&self, found: Leased<Attr>) -> EntryReply {
        let Leased { value: attr, lease } = found;
        self.show(&attr).await;
        self.refer(&attr);
        self.entry(attr, lease)
    }

    pub(super) fn refer(&self, attr: &Attr) {
        self.known.borrow_mut().refer(attr.ino);
        self.seen(attr);
    }

    /// The kernel's cached attributes of an inode, and these pages, are outdated. It is notified
    /// once it has its reply, as it may hold pages until then.
    pub(super) fn dropped_later(&self, ino: Ino, bytes: Range<u64>) {
        let notifier = self.notifier.clone();
        tokio::task::spawn_local(async move {
            match notifier.send(Notification::Inode { ino, bytes }).await {
                Ok(()) | Err(NotifyError::Ended) => {}
                Err(error) => tracing::error!(%ino, %error, "the kernel keeps what it should drop"),
            }
        });
    }

    /// These attributes are about to be sent to the kernel; a length that has grown is notified
    /// before.
    pub(super) async fn show(&self, attr: &Attr) {
        if attr.kind == FileKind::Regular && !self.may_cache() {
            let is_known = self.known.borrow().has(attr.ino);
            self.lengths.show(attr, is_known, self.io_modes.is_open(attr.ino)).await;
        }
    }

    /// Has the kernel write back stores through mappings of a shared file: the next holder of the
    /// lock sees them.
    pub(super) async fn write_back(&self, ino: Ino) -> Result<(), Errno> {
        let may_be_stored_into =
            self.mappable.borrow().contains_key(&ino) && self.lengths.may_have_pages(ino);
        if self.may_cache() || !may_be_stored_into {
            return Ok(());
        }
        self.lengths.drop_pages(ino).await.map_err(|error| {
            tracing::error!(%ino, %error, "the kernel does not write back what is mapped");
            Errno::IO
        })
    }

    /// Has the kernel take a shared file as it is now: the holder of a lock sees all changes of
    /// earlier holders.
    pub(super) async fn catch_up(&self, ino: Ino) -> Result<(), Errno> {
        if self.may_cache() {
            return Ok(());
        }
        let attr = self.client.getattr(ino).await?;
        self.lengths.fence(&attr).await.map_err(|error| {
            tracing::error!(%ino, %error, "the kernel keeps what it should drop");
            Errno::IO
        })
    }

    /// Whether the kernel may have pages of a file that becomes longer by a write past them, which
    /// it does not drop by itself. A strong mount of a shared volume has pages of files that were
    /// open before, that are mapped, and that sendfile(2) has read.
    pub(super) fn may_show_zeros(&self, ino: Ino) -> bool {
        match self.consistency {
            Consistency::CloseToOpen => self.pages.of(ino) || self.io_modes.fills_pages(ino),
            Consistency::Strong => {
                self.io_modes.reads_pages(ino)
                    || !self.may_cache() && self.lengths.may_have_pages(ino)
            }
        }
    }

    /// Drops pages of a file that a write past the cache has extended, from the old `end` on: a
    /// page read in the meantime has zeros there. The kernel uses the new length as soon as it has
    /// the reply, so the pages are dropped before; for such a write it holds no page until then.
    pub(super) async fn end_dropped(&self, ino: Ino, end: u64) -> Result<(), Errno> {
        match self.notifier.send(Notification::Inode { ino, bytes: end..u64::MAX }).await {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::error!(%ino, %error, "the kernel keeps what it should drop");
                Err(Errno::IO)
            }
        }
    }
}

/// Handles changes that requests of this mount did not make.
pub(super) struct Told {
    pub client: WeakClient,
    pub root: Ino,
    pub consistency: Consistency,
    pub name_ttl: Duration,
    pub known: Rc<RefCell<KernelReferences>>,
    pub pages: Rc<Pages>,
    pub lengths: Rc<Lengths>,
    pub io_modes: Rc<IoModes>,
    pub notifier: Notifier,
}

impl Told {
    /// The notes of the kernel's state become void with a change, at once.
    pub fn is_void(&self, change: &Change) {
        match change {
            Change::All => {
                self.pages.distrust_all();
                self.lengths.clear();
            }
            Change::Inode(ino) => self.pages.distrust(*ino),
            Change::Name(..) => {}
        }
    }

    /// Makes the kernel drop stale caches, and adopt the true lengths of files. Requests of the
    /// mount are served at the same time, so waiting for the kernel is safe.
    pub async fn of(&self, change: Change, rule: CacheRule) {
        let is_shared = rule == CacheRule::Shared;
        if let Change::Inode(ino) = change
            && is_shared
            && self.io_modes.is_open(ino)
        {
            return self.of_open(ino).await;
        }
        // On a close-to-open mount each open validates the pages, and all else is recalled.
        if self.consistency == Consistency::CloseToOpen
            && is_shared
            && matches!(change, Change::Inode(_))
        {
            return;
        }
        match change {
            Change::Inode(ino) => self.drop_inode(ino).await,
            Change::Name(dir, name) => {
                expire(self.kernel_ino(dir), name, &self.known, &self.notifier).await
            }
            Change::All => {
                let unsupported = Err(NotifyError::Unsupported);
                if self.notifier.send(Notification::AllEntries).await == unsupported {
                    tokio::time::sleep(self.name_ttl).await;
                }
                let all = self.known.borrow().all();
                for ino in all {
                    self.drop_inode(ino).await;
                }
            }
        }
    }

    /// The kernel caches only pages of an open file on a shared volume, and attributes that are
    /// recalled. An invalidation would void replies in transit.
    async fn of_open(&self, ino: Ino) {
        let attr = match self.client.upgrade() {
            Some(client) => client.getattr(ino).await.ok(),
            None => return,
        };
        let is_cut = attr.as_ref().is_none_or(|attr| self.lengths.is_cut(attr));
        if (self.consistency == Consistency::Strong || is_cut) && self.lengths.may_have_pages(ino) {
            self.drop_inode(ino).await;
        }
        if let Some(attr) = attr.filter(|attr| attr.kind == FileKind::Regular) {
            self.lengths.show(&attr, true, true).await;
        }
    }

    /// Makes the kernel drop recalled attributes and names. Waits for no request of the mount: a
    /// name that is not dropped in time, because a request holds its directory, ends by itself.
    pub async fn recall(&self, recall: Recall) {
        let (inos, names) = match recall {
            Recall::Some { inos, names } => (inos, names),
            Recall::All => (self.known.borrow().all(), Vec::new()),
        };
        join_all(inos.into_iter().map(|ino| self.recall_attributes(self.kernel_ino(ino)))).await;
        if !names.is_empty() {
            let dropped = join_all(names.into_iter().map(|(dir, name)| {
                expire(self.kernel_ino(dir), name, &self.known, &self.notifier)
            }));
            let (Ok(_) | Err(_)) = tokio::time::timeout(NAME_TERM * 11 / 10, dropped).await;
        }
    }

    /// The kernel may have yet to take up a reply with an inode that is new to it.
    async fn recall_attributes(&self, ino: Ino) {
        for _ in 0..RECALL_LOOKS {
            match self.notifier.recall(ino).await {
                Err(NotifyError::Unknown) if self.known.borrow().has(ino) => {
                    tokio::time::sleep(RECALL_PAUSE).await;
                }
                Ok(()) | Err(NotifyError::Ended | NotifyError::Unknown) => return,
                Err(error) => {
                    tracing::error!(%ino, %error, "the kernel keeps what it should drop");
                    return;
                }
            }
        }
    }

    fn kernel_ino(&self, ino: Ino) -> Ino {
        if ino == self.root { Ino::ROOT } else { ino }
    }

    async fn drop_inode(&self, ino: Ino) {
        let ino = self.kernel_ino(ino);
        match self.lengths.drop_pages(ino).await {
            Ok(()) | Err(NotifyError::Ended) => {}
            Err(error) => tracing::error!(%ino, %error, "the kernel keeps what it should drop"),
        }
    }
}

/// The kernel looks the name up at its next use. A file system mounted there stays; it would not if
/// all names were dropped.
async fn expire(parent: Ino, name: Name, known: &RefCell<KernelReferences>, notifier: &Notifier) {
    if !known.borrow().has(parent) {
        return;
    }
    if Planted::NamesKept.is_on() {
        return;
    }
    match notifier.send(Notification::Entry { parent, name, expire: true }).await {
        Ok(()) | Err(NotifyError::Ended) => {}
        Err(error) => {
            tracing::error!(%parent, %error, "the kernel keeps a name that it should ask for")
        }
    }
}
