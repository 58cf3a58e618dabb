//! What the kernel may keep of what it is told, and how it is told that it may not any more.

use super::{DIRECT, SET_ID, Volume};
use crate::known::KernelReferences;
use crate::{
    AttrReply, Consistency, EntryReply, Errno, Handle, Notification, Notifier, NotifyError,
    OpenFlags,
};
use ebb_client::{CacheRule, Change};
use ebb_model::{Attr, FileKind, Ino, Name, Planted};
use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

/// A sole client may cache without term, and what ends it comes as a notification.
pub(super) const SOLE_TTL: Duration = Duration::from_secs(3600);

/// The same for names, where the kernel cannot be told to ask for all of them again.
pub(super) const SOLE_NAME_TTL_WITHOUT_EPOCH: Duration = Duration::from_secs(1);

impl Volume {
    pub(super) fn may_cache(&self) -> bool {
        self.client.cache_rule() == CacheRule::Sole
    }

    /// Pages, of a file that is opened now. Where others can write too, now or once they have come,
    /// the kernel would put what is appended where it thinks that the file ends, and ask for it in
    /// pieces, between which others can append.
    pub(super) fn may_cache_pages(&self, flags: OpenFlags) -> bool {
        match flags.appends() {
            true => self.may_cache() && self.client.is_exclusive(),
            false => self.may_cache() || self.consistency == Consistency::CloseToOpen,
        }
    }

    /// What the kernel has cached nobody else changes, unless it is told.
    pub(super) fn is_told(&self) -> bool {
        self.may_cache() && self.client.cache_term().is_none()
    }

    pub(super) fn attr_ttl(&self) -> Duration {
        if self.may_cache() { self.client.cache_term().unwrap_or(SOLE_TTL) } else { Duration::ZERO }
    }

    pub(super) fn entry_ttl(&self) -> Duration {
        if self.may_cache() {
            self.client.cache_term().map_or(self.name_ttl, |term| term.min(self.name_ttl))
        } else {
            Duration::ZERO
        }
    }

    /// The kernel is given these attributes.
    pub(super) fn seen(&self, attr: &Attr) {
        self.readings.seen(attr.ino, attr);
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

    pub(super) fn attr_reply(&self, attr: Attr) -> AttrReply {
        self.seen(&attr);
        AttrReply { attr: self.ids.attr(attr), ttl: self.attr_ttl() }
    }

    pub(super) fn entry(&self, attr: Attr) -> EntryReply {
        EntryReply {
            attr: self.ids.attr(attr),
            entry_ttl: self.entry_ttl(),
            attr_ttl: self.attr_ttl(),
        }
    }

    /// An entry that the kernel takes a reference with.
    pub(super) fn referenced(&self, attr: Attr) -> EntryReply {
        self.refer(&attr);
        self.entry(attr)
    }

    pub(super) fn refer(&self, attr: &Attr) {
        self.known.borrow_mut().refer(attr.ino);
        self.seen(attr);
    }

    /// Attributes that the kernel has cached of an inode, and these pages, are no longer so. It is
    /// told once it has its answer, as it may hold pages until then.
    pub(super) fn dropped_later(&self, ino: Ino, bytes: Range<u64>) {
        let notifier = self.notifier.clone();
        tokio::task::spawn_local(async move {
            match notifier.send(Notification::Inode { ino, bytes }).await {
                Ok(()) | Err(NotifyError::Ended) => {}
                Err(error) => tracing::error!(%ino, %error, "the kernel keeps what it should drop"),
            }
        });
    }

    /// Drops what the kernel has cached of a file that others may change, and has it written
    /// what was stored through a mapping: locks change hands with all that they protect.
    pub(super) async fn write_back(&self, ino: Ino, handle: Handle) -> Result<(), Errno> {
        let caches = handle.0 & DIRECT == 0
            || self.pages.of(ino)
            || self.mappable.borrow().contains_key(&ino);
        if self.may_cache() || !caches {
            return Ok(());
        }
        match self.notifier.send(Notification::Inode { ino, bytes: 0..u64::MAX }).await {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::error!(%ino, %error, "the kernel does not write back what is mapped");
                Err(Errno::IO)
            }
        }
    }

    /// Where the kernel does not drop pages of a file that it learns to be longer. On a strong
    /// mount it has none but of who has the file open since before others came, or since before
    /// somebody appends.
    pub(super) fn may_show_zeros(&self, ino: Ino) -> bool {
        match self.consistency {
            Consistency::CloseToOpen => self.pages.of(ino) || self.io_modes.fills_pages(ino),
            Consistency::Strong => self.io_modes.reads_pages(ino),
        }
    }

    /// Drops pages of a file that a write past the cache has made longer, from where it did so: one
    /// that was read meanwhile has zeros behind the old end. The kernel takes the file to be longer
    /// as soon as it has its answer, so it comes first; of such a write it holds no page until
    /// then.
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

/// Requests of the mount are served meanwhile, so waiting for the kernel is safe.
pub(super) async fn drop_cached(
    change: Change,
    root: Ino,
    known: &RefCell<KernelReferences>,
    notifier: &Notifier,
    name_ttl: Duration,
) {
    let inodes = match change {
        Change::Inode(ino) if ino == root => vec![Ino::ROOT],
        Change::Inode(ino) => vec![ino],
        Change::Name(dir, name) => {
            return expire(if dir == root { Ino::ROOT } else { dir }, name, known, notifier).await;
        }
        Change::All => {
            if notifier.send(Notification::AllEntries).await == Err(NotifyError::Unsupported) {
                tokio::time::sleep(name_ttl).await;
            }
            known.borrow().all()
        }
    };
    for ino in inodes {
        match notifier.send(Notification::Inode { ino, bytes: 0..u64::MAX }).await {
            Ok(()) => {}
            Err(NotifyError::Ended) => return,
            Err(error) => tracing::error!(%ino, %error, "the kernel keeps what it should drop"),
        }
    }
}

/// The name is asked for again at its next use, and what is mounted there stays, as it would not if
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
