//! Directories that were renamed: their objects follow them in the course of a flush, also those
//! of names that nobody has looked at. Until then a redirect says where the objects are.

use crate::Node;
use crate::buckets::borders::BucketIndex;
use ebb_core::namespace::Namespace;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;
use std::rc::Rc;

/// Directories with more entries than this keep their objects where they are when they are
/// renamed: a redirect in `.ebb/` says where.
const MAX_MOVED_ENTRIES: usize = 10_000;

/// Directories with a redirect of which the bucket was found to have more entries than are moved.
/// They are not listed again in this run.
#[derive(Default)]
pub(super) struct TooLarge(RefCell<BTreeSet<Ino>>);

impl Node {
    /// Renamed directories whose objects are still to follow: those at or below an inode, and
    /// those that it is in.
    pub(crate) fn renamed_due(&self, root: Ino) -> Vec<Ino> {
        let due: Vec<Ino> = {
            let state = self.replica.view();
            let (backing, namespace) = (state.backing(), state.namespace());
            let can_follow = |dir: &Ino| {
                // Its keys that are not shown are in it as long as it has its prefix.
                let stays = self.not_shown.has(*dir)
                    || match backing.is_complete(*dir) {
                        true => namespace.has_more_names_than(*dir, MAX_MOVED_ENTRIES),
                        false => self.flusher.too_large.0.borrow().contains(dir),
                    };
                !stays && backing.is_path_free(namespace, *dir)
            };
            backing.redirects().filter(can_follow).collect()
        };
        due.into_iter().filter(|dir| self.concerns(*dir, root)).collect()
    }

    /// Renamed directories at or below an inode whose objects are at the keys of before.
    pub(crate) fn redirected_below(&self, root: Ino) -> u64 {
        let redirected: Vec<Ino> = self.replica.view().backing().redirects().collect();
        redirected.into_iter().filter(|dir| self.is_below(*dir, root)).count() as u64
    }

    pub(super) fn is_renamed_due(&self, bucket_index: BucketIndex) -> bool {
        self.renamed_due(Ino::ROOT).into_iter().any(|dir| self.bucket_of(dir) == bucket_index)
    }

    /// The objects of what is below `root` are where the path says only once `dir` has none
    /// elsewhere.
    fn concerns(&self, dir: Ino, root: Ino) -> bool {
        self.is_below(dir, root) || self.is_below(root, dir)
    }

    /// Renamed directories give up their redirects where that moves few objects, those first that
    /// are above others: these are then moved once, to where they are to be, and not along with
    /// each of them. `root`: only those that a flush of it waits for.
    pub(super) async fn move_renamed(
        self: &Rc<Self>,
        bucket_index: BucketIndex,
        root: Option<Ino>,
    ) -> Result<(), RpcError> {
        let mut renamed: BTreeSet<(usize, Ino)> = {
            let due = self.renamed_due(root.unwrap_or(Ino::ROOT));
            let (state, mut known) = (self.replica.view(), BTreeMap::from([(Ino::ROOT, 0)]));
            due.into_iter().map(|dir| (depth(state.namespace(), dir, &mut known), dir)).collect()
        };
        let mut room = MAX_MOVED_ENTRIES;
        while let Some((depth, dir)) = renamed.pop_first() {
            let is_due = self.bucket_of(dir) == bucket_index
                && self.concerns(dir, root.unwrap_or(Ino::ROOT))
                && self.list_renamed(dir).await?;
            let entries = {
                let state = self.replica.view();
                let can_move = is_due && state.backing().can_unredirect(state.namespace(), dir);
                can_move.then(|| state.namespace().read_dir(dir, Cookie::START, MAX_MOVED_ENTRIES))
            };
            let Some(Ok((entries, true))) = entries else { continue };
            let Some(left) = room.checked_sub(entries.len()) else { break };
            room = left;
            if let Err(error) =
                self.commit(Command::Backing(BackingCommand::Unredirect { dir })).await
            {
                tracing::warn!(%dir, %error, "a renamed directory keeps its redirect");
            }
            self.flusher.followed.update(|followed| followed + 1);
            // What is in these is where it was.
            renamed.extend(
                entries
                    .iter()
                    .filter(|(entry, _)| entry.kind == FileKind::Directory)
                    .map(|(entry, _)| (depth + 1, entry.ino)),
            );
        }
        Ok(())
    }

    /// Makes sure that all names of a renamed directory are known, unless there are too many for
    /// their objects to follow: then false.
    async fn list_renamed(self: &Rc<Self>, dir: Ino) -> Result<bool, RpcError> {
        let is_path_free = || {
            let state = self.replica.view();
            state.backing().is_path_free(state.namespace(), dir)
        };
        while is_path_free() && !self.is_complete(dir) {
            if self.replica.view().namespace().has_more_names_than(dir, MAX_MOVED_ENTRIES) {
                self.flusher.too_large.0.borrow_mut().insert(dir);
                return Ok(false);
            }
            self.room_to_load()?;
            self.load_next(dir).await?;
        }
        self.flusher.too_large.0.borrow_mut().remove(&dir);
        if is_path_free() {
            self.list_of_earlier_run(dir).await?;
        }
        Ok(!self.not_shown.has(dir))
    }
}

/// How many directories a directory is in. `known` are those of others.
fn depth(namespace: &Namespace, dir: Ino, known: &mut BTreeMap<Ino, usize>) -> usize {
    let above = successors(Some(dir), |dir| namespace.parent_of(*dir))
        .take_while(|dir| !known.contains_key(dir));
    let unknown: Vec<Ino> = above.collect();
    for dir in unknown.into_iter().rev() {
        let above = namespace.parent_of(dir).and_then(|parent| known.get(&parent)).copied();
        known.insert(dir, above.map_or(0, |above| above + 1));
    }
    known[&dir]
}
