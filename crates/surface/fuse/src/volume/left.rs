//! State that a volume leaves to its successor, and its use there (O-6).
//!
//! The kernel's caches stay valid until it is notified. If others may have changed a file in the
//! bucket, its pages are dropped at the next open. If others are attached, all its caches are
//! dropped, once requests sent before are answered.

use super::Volume;
use super::opening::way;
use crate::io_modes::Left;
use crate::{Context, Errno, Handle};
use ebb_client::Open;
use ebb_model::{Attr, GrantRequest, Ino};
use std::collections::BTreeMap;

impl Volume {
    /// A file or directory is about to be open. If this fails it is not. If the request has opened
    /// it before, in an earlier life, it is open once all the same.
    pub(super) fn leave(
        &self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        mappable: bool,
    ) -> Result<(), Errno> {
        let Some(handover) = self.client.handover() else { return Ok(()) };
        let registration = self.io_modes.registration(ino);
        let detail = Detail { mappable, registration };
        let before = handover.opened_before(cx.request());
        let open = Open {
            request: cx.request(),
            ino: self.volume_ino(ino),
            handle: handle.0,
            detail: detail.word(),
        };
        if !handover.opened(open) {
            tracing::error!("more files are open than a mount can have");
            self.let_go(ino, handle, mappable);
            return Err(Errno::TOO_MANY_OPEN);
        }
        if let Some(before) = before {
            self.let_go(
                self.shown(before.ino),
                Handle(before.handle),
                Detail::of(before.detail).mappable,
            );
        }
        Ok(())
    }

    /// False if it was closed before, and the answer to that never left.
    pub(super) fn is_left_no_more(&self, handle: Handle) -> bool {
        self.client.handover().is_none_or(|handover| handover.closed(handle.0).is_some())
    }

    /// Attributes for a reply. If the request was already executed, and its reply lost, they may be
    /// outdated, and the kernel would cache them.
    pub(super) async fn present(&self, cx: &Context, attr: Attr) -> Attr {
        match cx.resent {
            true => self.client.getattr(attr.ino).await.unwrap_or(attr),
            false => attr,
        }
    }

    /// Restores the opens that an earlier process has left. To be called before any request is
    /// served.
    pub async fn take_up(&self) {
        let Some(handover) = self.client.handover() else { return };
        if !self.is_told() {
            // The kernel may have pages of all inodes it references. Their versions are not known.
            for (_, ino, _) in handover.inodes() {
                self.pages.opened(ino, Handle(0), None);
            }
        }
        let mut left: BTreeMap<Ino, Left> = BTreeMap::new();
        for open in handover.opens() {
            let (ino, detail) = (self.shown(open.ino), Detail::of(open.detail));
            let of_inode = left.entry(ino).or_default();
            of_inode.add(way(Handle(open.handle)));
            of_inode.registration = detail.registration.or(of_inode.registration);
            if detail.mappable {
                *self.mappable.borrow_mut().entry(ino).or_insert(0) += 1;
            }
        }
        for (ino, of_inode) in left {
            let grant = match of_inode.registration {
                Some(_) => self
                    .client
                    .grant(self.volume_ino(ino), GrantRequest::Resume)
                    .await
                    .unwrap_or(None),
                None => None,
            };
            self.io_modes.left(ino, of_inode, grant);
            // The kernel may have cached set-id bits, which writes remove. It is not notified: it
            // would request link counts, and subtract once more the names whose removal is in
            // progress.
            if let Ok(attr) = self.client.getattr(self.volume_ino(ino)).await {
                self.seen(&attr);
            }
        }
    }

    /// The inode's number for the kernel.
    fn shown(&self, ino: Ino) -> Ino {
        if ino == self.root { Ino::ROOT } else { ino }
    }
}

/// Details of an open file that are stored beside its number.
struct Detail {
    mappable: bool,
    registration: Option<i32>,
}

impl Detail {
    fn word(&self) -> u64 {
        u64::from(self.mappable) << 32 | u64::from(self.registration.unwrap_or(0) as u32)
    }

    fn of(word: u64) -> Detail {
        let registration = word as u32 as i32;
        Detail {
            mappable: word >> 32 != 0,
            registration: (registration != 0).then_some(registration),
        }
    }
}
