//! What a volume leaves to the process that takes over from it, and what that makes of it (O-6).
//!
//! What the kernel has cached is so as long as it is not told otherwise. Where others may have
//! changed a file in the bucket its pages go with the next open; where others are attached
//! everything that it has cached goes, once what was asked before is answered.

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

    /// Attributes that answer a request. Of one that has been answered before, to nobody, they may
    /// be of the past by now, and the kernel would keep them.
    pub(super) async fn present(&self, cx: &Context, attr: Attr) -> Attr {
        match cx.resent {
            true => self.client.getattr(attr.ino).await.unwrap_or(attr),
            false => attr,
        }
    }

    /// Takes up what an earlier process has left open. To be called before anything is served.
    pub async fn take_up(&self) {
        let Some(handover) = self.client.handover() else { return };
        if !self.is_told() {
            // The kernel may have pages of whatever it knows. At which version is forgotten.
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
            // The kernel may know of set-id bits, which writes take away. It is not told to ask
            // anew: what it then hears of links it would count once more with names that go
            // meanwhile.
            if let Ok(attr) = self.client.getattr(self.volume_ino(ino)).await {
                self.seen(&attr);
            }
        }
    }

    /// As the kernel calls it.
    fn shown(&self, ino: Ino) -> Ino {
        if ino == self.root { Ino::ROOT } else { ino }
    }
}

/// What is to be known of an open file beside its number.
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
