//! Lengths, in the kernel, of files that other mounts change too.
//!
//! The kernel drops the attributes of a reply if the inode's `attr_version` (fs/fuse) has grown
//! since it sent the request: through an invalidation, a write, or another reply. It keeps the
//! earlier length. lseek(2) with SEEK_END, reads to the end of the file and mappings go by that
//! length, and the reply to a lookup or stat(2) does not correct it.
//!
//! Therefore no reply alone carries a length that has grown. The kernel is notified of it before
//! the reply is sent ([`Notification::Longer`]), and never drops a notification. Laws:
//! - In the kernel a file is at least as long as every reply of the mount has said, until a reply
//!   says that the file has become shorter.
//! - A length is void once a reply has found the file shorter, also while it is queued: the thread
//!   that writes it compares it with the newest length.
//! - Pages are dropped before the length grows: a page that was filled at the end of the file has
//!   zeros where it shows the new bytes.
//!
//! There is no such notification for a file that has become shorter: the kernel learns that from
//! replies alone. So nothing invalidates attributes without a reason.

use crate::{Notification, Notifier, NotifyError};
use ebb_model::{Attr, Ino, Version};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Has entries only while several mounts are attached.
pub(crate) struct Lengths {
    notifier: Notifier,
    files: RefCell<BTreeMap<Ino, Shown>>,
    /// Held while the kernel is notified. A request must not wait for it if it holds kernel locks
    /// that a notification needs: a SETATTR keeps pages from being written back.
    turn: tokio::sync::Mutex<()>,
}

/// The kernel's state of a file.
#[derive(Clone)]
struct Shown {
    /// In the kernel the file has at least this length.
    least_bytes: u64,
    /// The version and the length in the newest attributes that the kernel got.
    version: Version,
    /// Shared with the notifications of this file that are queued.
    newest_bytes: Arc<AtomicU64>,
    /// The kernel may have pages.
    filled: bool,
    /// Replies that are older than this version it does not take.
    fenced: Option<Version>,
}

impl Shown {
    /// The state of a file that the kernel knew before the first record here.
    fn unknown() -> Shown {
        Shown {
            least_bytes: 0,
            version: Version(0),
            newest_bytes: Arc::new(AtomicU64::new(u64::MAX)),
            filled: true,
            fenced: None,
        }
    }

    /// The state of a file that is new to the kernel.
    fn new(attr: &Attr) -> Shown {
        Shown {
            least_bytes: attr.size_bytes,
            version: attr.version,
            newest_bytes: Arc::new(AtomicU64::new(attr.size_bytes)),
            filled: false,
            fenced: None,
        }
    }

    /// The kernel is about to be given these attributes.
    fn note(&mut self, attr: &Attr) {
        if attr.version >= self.version {
            self.version = attr.version;
            self.newest_bytes.store(attr.size_bytes, Ordering::SeqCst);
            self.least_bytes = self.least_bytes.min(attr.size_bytes);
        }
    }

    fn newest_bytes(&self) -> u64 {
        self.newest_bytes.load(Ordering::SeqCst)
    }
}

impl Lengths {
    pub fn new(notifier: Notifier) -> Lengths {
        Lengths { notifier, files: RefCell::default(), turn: tokio::sync::Mutex::default() }
    }

    /// A reply with these attributes of a regular file is about to be sent. `is_known` if the
    /// kernel already has the inode; it accepts the attributes of a new inode as they are. The
    /// length of a file that is not open has no effect.
    pub async fn show(&self, attr: &Attr, is_known: bool, is_open: bool) {
        if !self.has_to_grow(attr, is_known, is_open) {
            return;
        }
        let _turn = self.turn.lock().await;
        // Another one may have done it, or newer attributes have been given since.
        if !self.has_to_grow(attr, is_known, is_open) {
            return;
        }
        let pages_dropped = match self.of(attr.ino).filled {
            true => self.drop_pages(attr.ino).await,
            false => Ok(()),
        };
        let outcome = match pages_dropped {
            // It may have been cut since, and may be until the notification is written.
            Ok(()) => {
                let newest_bytes = self.of(attr.ino).newest_bytes;
                self.notifier.lengthen(attr.ino, attr.size_bytes, newest_bytes).await
            }
            failed => failed,
        };
        match outcome {
            Ok(()) => self.change(attr.ino, |shown| {
                if shown.newest_bytes() >= attr.size_bytes {
                    shown.least_bytes = shown.least_bytes.max(attr.size_bytes);
                }
            }),
            Err(NotifyError::Ended) => {}
            Err(error) => {
                tracing::error!(ino = %attr.ino, %error, "the kernel does not take a file's length")
            }
        }
    }

    /// Records the length that is shown. True if the kernel has to be notified of it.
    fn has_to_grow(&self, attr: &Attr, is_known: bool, is_open: bool) -> bool {
        let mut files = self.files.borrow_mut();
        let shown = match (files.get_mut(&attr.ino), is_known, is_open) {
            (Some(shown), ..) => shown,
            (None, false, _) => {
                files.insert(attr.ino, Shown::new(attr));
                return false;
            }
            (None, true, false) => return false,
            (None, true, true) => files.entry(attr.ino).or_insert_with(Shown::unknown),
        };
        shown.note(attr);
        // An older reply than one that has found the file shorter makes it no longer.
        is_open && attr.size_bytes > shown.least_bytes && attr.size_bytes <= shown.newest_bytes()
    }

    /// The reply to a SETATTR of a regular file, whose length the kernel takes in any case. On a
    /// shared volume it is noted of every file: an older reply may be on its way.
    pub fn set(&self, attr: &Attr, is_shared: bool) {
        let mut files = self.files.borrow_mut();
        let shown = match is_shared {
            true => Some(files.entry(attr.ino).or_insert_with(Shown::unknown)),
            false => files.get_mut(&attr.ino),
        };
        if let Some(shown) = shown {
            shown.note(attr);
            shown.least_bytes = shown.least_bytes.min(attr.size_bytes);
        }
    }

    /// Bytes are about to be read into the kernel's pages.
    pub fn filling(&self, ino: Ino) {
        self.change(ino, |shown| shown.filled = true);
    }

    /// A read has found the end of the file before it. The kernel takes the file to be no longer.
    pub fn ended_at(&self, ino: Ino, end: u64) {
        self.change(ino, |shown| shown.least_bytes = shown.least_bytes.min(end));
    }

    /// The reply to a write, after which the kernel assumes that the file reaches to the write's
    /// `end`. Not recorded if others have extended the file in between: the kernel may not know
    /// that yet.
    pub fn wrote(&self, ino: Ino, offset: u64, end: u64, through_pages: bool) {
        self.change(ino, |shown| {
            shown.filled |= through_pages;
            if offset <= shown.least_bytes {
                shown.least_bytes = shown.least_bytes.max(end);
            }
        });
    }

    /// Whether the kernel may have pages of the file, stored into or not.
    pub fn may_have_pages(&self, ino: Ino) -> bool {
        self.of(ino).filled
    }

    /// Whether the kernel may take the file to be longer than it is.
    pub fn is_cut(&self, attr: &Attr) -> bool {
        let files = self.files.borrow();
        files.get(&attr.ino).is_none_or(|shown| attr.size_bytes < shown.least_bytes)
    }

    /// Drops the kernel's pages and attributes of the file, and has stores through mappings written
    /// back.
    pub async fn drop_pages(&self, ino: Ino) -> Result<(), NotifyError> {
        self.change(ino, |shown| shown.filled = false);
        let dropped = self.notifier.send(Notification::Inode { ino, bytes: 0..u64::MAX }).await;
        if dropped.is_err() {
            self.filling(ino);
        }
        dropped
    }

    /// For all operations that begin after this, an open file is as in `attr`, or newer: under a
    /// lock that was just taken.
    pub async fn fence(&self, attr: &Attr) -> Result<(), NotifyError> {
        let turn = self.turn.lock().await;
        let Shown { filled, fenced, .. } =
            self.files.borrow_mut().entry(attr.ino).or_insert_with(Shown::unknown).clone();
        if filled {
            // At an equal version too: stores into a passthrough file change the version only
            // later.
            self.drop_pages(attr.ino).await?;
        } else if fenced != Some(attr.version) {
            // A reply from before the lock may be in transit to a thread that has not run yet.
            self.notifier.send(Notification::Inode { ino: attr.ino, bytes: 0..0 }).await?;
        }
        self.change(attr.ino, |shown| shown.fenced = Some(attr.version));
        drop(turn);
        self.show(attr, true, true).await;
        Ok(())
    }

    /// The kernel has forgotten the inode.
    pub fn forget(&self, ino: Ino) {
        self.files.borrow_mut().remove(&ino);
    }

    /// All entries are void.
    pub fn clear(&self) {
        self.files.borrow_mut().clear();
    }

    fn of(&self, ino: Ino) -> Shown {
        self.files.borrow().get(&ino).cloned().unwrap_or_else(Shown::unknown)
    }

    fn change(&self, ino: Ino, change: impl FnOnce(&mut Shown)) {
        if let Some(shown) = self.files.borrow_mut().get_mut(&ino) {
            change(shown);
        }
    }
}

#[cfg(test)]
mod tests;
