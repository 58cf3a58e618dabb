//! Directories that were renamed: their objects follow them in the course of a flush, also those
//! of names that nobody has looked at. Until then a redirect says where the objects are.

use crate::Node;
use crate::admin::path_bytes;
use crate::admin::troubles::Subject;
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

/// Directories with a redirect whose names could not be listed, and how often in a row. After a
/// refusal, or [`MOST_LISTINGS`] failures, the directory keeps its redirect until the next run or
/// the next flush that a client requests.
#[derive(Default)]
pub(super) struct Unlistable(RefCell<BTreeMap<Ino, u32>>);

/// Failures in a row that may pass: names must leave the memory first, or the directory changes.
const MOST_LISTINGS: u32 = 16;

/// Redirects that a flush awaits: those of its directories when it began, and those that the
/// directories below got when one of these was given up. Each counts once, and redirects of later
/// renames do not count: without a bound, a flush would wait for as long as directories are
/// renamed.
pub(super) struct AwaitedRedirects {
    dirs: BTreeSet<Ino>,
    given_up: BTreeSet<Ino>,
}

impl AwaitedRedirects {
    pub fn of(dirs: BTreeSet<Ino>) -> AwaitedRedirects {
        AwaitedRedirects { dirs, given_up: BTreeSet::new() }
    }

    /// Whether some were given up since the last call. `now`: all redirects of the flush.
    pub fn have_gone(
        &mut self,
        now: BTreeSet<Ino>,
        are_below: impl Fn(Ino, &BTreeSet<Ino>) -> bool,
    ) -> bool {
        let gone: BTreeSet<Ino> = self.dirs.difference(&now).copied().collect();
        if gone.is_empty() {
            return false;
        }
        self.dirs.retain(|dir| !gone.contains(dir));
        self.given_up.extend(&gone);
        let inherited = now.into_iter().filter(|dir| are_below(*dir, &gone));
        self.dirs.extend(inherited.filter(|dir| !self.given_up.contains(dir)));
        true
    }
}

impl Unlistable {
    fn keeps_redirect(&self, dir: Ino) -> bool {
        self.0.borrow().get(&dir).is_some_and(|failures| *failures >= MOST_LISTINGS)
    }

    /// Notes a failed listing. True if the directory keeps its redirect because of it.
    fn failed(&self, dir: Ino, error: &RpcError) -> bool {
        let mut table = self.0.borrow_mut();
        let failures = table.entry(dir).or_default();
        *failures = match error {
            RpcError::Retry => *failures + 1,
            _ => MOST_LISTINGS,
        };
        *failures >= MOST_LISTINGS
    }

    fn listed(&self, dir: Ino) {
        self.0.borrow_mut().remove(&dir);
    }
}

impl Node {
    /// Renamed directories whose objects are still to follow: those at or below an inode, and
    /// those that it is in.
    pub(crate) fn renamed_due(&self, root: Ino) -> Vec<Ino> {
        let due: Vec<Ino> = {
            let state = self.replica.view();
            let (backing, namespace) = (state.backing(), state.namespace());
            let can_follow = |dir: &Ino| {
                // Its keys that are not shown are in it as long as it has its prefix.
                let stays = self.names.has_not_shown(*dir)
                    || self.flusher.unlistable.keeps_redirect(*dir)
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

    /// Directories with a redirect that a flush of an inode waits for, listed or not.
    pub(super) fn redirects_of_flush(&self, root: Ino) -> BTreeSet<Ino> {
        let redirected: Vec<Ino> = self.replica.view().backing().redirects().collect();
        redirected.into_iter().filter(|dir| self.concerns(*dir, root)).collect()
    }

    /// A client requests a flush: directories that could not be listed are listed again for it.
    pub(super) fn list_unlistable_again(&self, root: Ino) {
        let dirs: Vec<Ino> = self.flusher.unlistable.0.borrow().keys().copied().collect();
        for dir in dirs.into_iter().filter(|dir| self.concerns(*dir, root)) {
            self.flusher.unlistable.listed(dir);
        }
    }

    /// Whether the directory has a redirect that it keeps because it cannot be listed.
    pub(crate) fn is_unlistable(&self, dir: Ino) -> bool {
        self.flusher.unlistable.keeps_redirect(dir)
            && self.replica.view().backing().redirect_of(dir).is_some()
    }

    pub(crate) fn unlistable_reason(&self, dir: Ino) -> Option<String> {
        self.instruments
            .troubles()
            .reason(&Subject::Redirect(dir))
            .filter(|_| self.is_unlistable(dir))
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
    /// each of them. `root`: only those that a flush of it waits for. A directory that cannot be
    /// listed is passed over. Returns the first error that may pass.
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
        let mut outcome = Ok(());
        let mut room = MAX_MOVED_ENTRIES;
        while let Some((depth, dir)) = renamed.pop_first() {
            if self.bucket_of(dir) != bucket_index
                || !self.concerns(dir, root.unwrap_or(Ino::ROOT))
                || self.flusher.unlistable.keeps_redirect(dir)
            {
                continue;
            }
            let is_listed = match self.list_renamed(dir).await {
                Ok(is_listed) => is_listed,
                Err(error) if may_be_passed_over(&error) => {
                    let keeps_redirect = self.flusher.unlistable.failed(dir, &error);
                    if keeps_redirect {
                        self.tell_of_unlistable(dir, &error);
                    } else {
                        outcome = outcome.and(Err(error));
                    }
                    continue;
                }
                // The bucket does not answer, or the disk is full: the others would fail as well.
                Err(error) => return outcome.and(Err(error)),
            };
            let entries = {
                let state = self.replica.view();
                let can_move = is_listed && state.backing().can_unredirect(state.namespace(), dir);
                can_move.then(|| state.namespace().read_dir(dir, Cookie::START, MAX_MOVED_ENTRIES))
            };
            let Some(Ok((entries, true))) = entries else { continue };
            let Some(left) = room.checked_sub(entries.len()) else { break };
            room = left;
            // With its redirect, nothing in the directory moves.
            if let Err(error) =
                self.commit(Command::Backing(BackingCommand::Unredirect { dir })).await
            {
                tracing::warn!(%dir, %error, "a renamed directory keeps its redirect");
                outcome = outcome.and(Err(error));
                continue;
            }
            // What is in these is where it was.
            renamed.extend(
                entries
                    .iter()
                    .filter(|(entry, _)| entry.kind == FileKind::Directory)
                    .map(|(entry, _)| (depth + 1, entry.ino)),
            );
        }
        outcome
    }

    fn tell_of_unlistable(&self, dir: Ino, error: &RpcError) {
        let what = {
            let state = self.replica.view();
            let prefix = state.backing().redirect_of(dir).unwrap_or_default();
            let path = shown_path(&path_bytes(&state.namespace().path_of(dir).unwrap_or_default()));
            format!(
                "directory /{path} of the volume was renamed and cannot be listed, so its objects \
                 stay at {prefix}: {error}"
            )
        };
        self.trouble(Subject::Redirect(dir), Some(what));
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
        self.flusher.unlistable.listed(dir);
        Ok(!self.names.has_not_shown(dir))
    }
}

/// Whether the failed listing of one directory leaves others to be listed: the bucket refuses it,
/// its answer cannot be used, or the memory for names is full.
fn may_be_passed_over(error: &RpcError) -> bool {
    match error {
        RpcError::Refused(error) => !matches!(error, FsError::TimedOut | FsError::NoSpace),
        RpcError::Retry => true,
        _ => false,
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
