//! `ebb refresh`: compares known entries with the bucket on request.

use crate::Node;
use ebb_model::*;
use ebb_store::Mode;
use std::collections::BTreeMap;
use std::rc::Rc;

/// By name: the inode, its length and when it was last changed.
type Names = BTreeMap<Name, (Ino, u64, Time)>;

impl Node {
    /// Compares a file, or a directory and the names in it, with the bucket.
    pub(crate) async fn refresh(self: &Rc<Self>, ino: Ino) -> Result<AdminReply, RpcError> {
        let kind = self.replica.view().namespace().attr(ino)?.kind;
        if self.buckets.is_none() {
            return Ok(AdminReply::Refreshed { changed: 0 });
        }
        let place = self.replica.view().namespace().primary_name(ino);
        let mut changed = 0;
        if let Some((parent, name)) = place {
            let before = self.names_of(parent, Some(&name));
            self.confirm(parent, &name).await?;
            if self.replica.view().namespace().lookup(parent, &name).is_err() {
                // Another object may have taken its place.
                self.refresh_listing(parent).await?;
            }
            changed += differing(&before, &self.names_of(parent, Some(&name)), Known::All);
        }
        let is_there = self.replica.view().namespace().inode(ino).is_some();
        if kind == FileKind::Directory && is_there {
            let known = if self.is_complete(ino) { Known::All } else { Known::Some };
            let before = self.names_of(ino, None);
            self.refresh_listing(ino).await?;
            changed += differing(&before, &self.names_of(ino, None), known);
        }
        Ok(AdminReply::Refreshed { changed })
    }

    async fn refresh_listing(self: &Rc<Self>, dir: Ino) -> Result<(), RpcError> {
        let is_untouched = self.is_untouched(dir);
        self.complete(dir).await?;
        if is_untouched {
            return Ok(());
        }
        let _turn = self.names.revalidation.turns.hold(dir, Mode::Exclusive).await;
        let now = self.ports.clock.monotonic();
        Box::pin(self.list_again(dir)).await?;
        self.names.revalidation.asked_for(dir, now);
        Ok(())
    }

    fn names_of(&self, dir: Ino, only: Option<&Name>) -> Names {
        let state = self.replica.view();
        let namespace = state.namespace();
        let known = |name: Name| {
            let attr = namespace.lookup(dir, &name).ok()?;
            Some((name, (attr.ino, attr.size_bytes, attr.mtime)))
        };
        match only {
            Some(name) => known(name.clone()).into_iter().collect(),
            None => namespace.children(dir).filter_map(|(name, _)| known(name)).collect(),
        }
    }
}

/// The names of a directory that were known before a refresh.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    All,
    Some,
}

/// How many names have changed. A new one counts only if all names were known: otherwise it may
/// have been there before.
fn differing(before: &Names, after: &Names, known: Known) -> u64 {
    let gone = before.keys().filter(|name| !after.contains_key(*name)).count();
    let is_other = |name, now| match before.get(name) {
        Some(before) => before != now,
        None => known == Known::All,
    };
    let other = after.iter().filter(|(name, now)| is_other(*name, *now)).count();
    (gone + other) as u64
}
