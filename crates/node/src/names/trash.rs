//! The trash: what goes into it, what people ask of it, and that it is emptied of what has been
//! there for its time. The rules are the namespace's.
//!
//! Each bucket of a volume has its own, at its root: nothing is moved from one bucket to another.

use crate::Node;
use crate::buckets::borders::BucketIndex;
use crate::clients::mutate::{LookedUp, MutationContext};
use ebb_core::namespace::{trash_name, trashed_name};
use ebb_core::state::State;
use ebb_model::*;
use std::rc::Rc;
use std::time::Duration;

/// How often the trash is looked through for what need not be kept any more.
const ROUND: Duration = Duration::from_secs(60);

/// Entries that are looked at, or removed, in one go: others are to have their turn.
const PIECE: usize = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// What is listed in one answer, so that it fits a frame.
const MAX_LIST_BYTES: usize = 512 << 10;

/// Entries that are passed for one answer.
const MAX_PASSED: usize = 4096;

/// What an entry takes beside its path.
const ENTRY_BYTES: usize = 64;

impl Node {
    /// Makes known what has to be before `victim` is removed from `dir`, if it is to be kept.
    pub(crate) async fn prepare_trash(
        &self,
        context: &MutationContext,
        dir: Ino,
        victim: Option<Ino>,
    ) -> Result<(), RpcError> {
        let Some(victim) =
            victim.filter(|_| self.replica.view().namespace().keep_of(dir).is_some())
        else {
            return Ok(());
        };
        let top = self.top_of(dir);
        self.look_up_in_trash(context, top, trash_name()).await?;
        let trash = self.replica.view().namespace().trash_of(top);
        match trash {
            Some(trash) => self.look_up_in_trash(context, trash, trashed_name(victim)).await,
            None => Ok(()),
        }
    }

    async fn look_up_in_trash(
        &self,
        context: &MutationContext,
        dir: Ino,
        name: Name,
    ) -> Result<(), RpcError> {
        self.resolve(dir, &name).await?;
        let looked_up = LookedUp { dir, name, epoch: self.load_epoch(dir) };
        context.looked_up_in_trash.borrow_mut().push(looked_up);
        Ok(())
    }

    /// Where what has this name goes when it is removed; `None` if it is not kept. `made`: the
    /// inode that the same command makes.
    pub(crate) fn trash_place(
        &self,
        state: &State,
        context: &MutationContext,
        dir: Ino,
        name: &Name,
        made: Option<Ino>,
    ) -> Result<Option<TrashTarget>, RpcError> {
        let namespace = state.namespace();
        let (Some(victim), Some((_, keep_secs))) =
            (namespace.dentry(dir, name), namespace.keep_of(dir))
        else {
            return Ok(None);
        };
        let top = self.top_of(dir);
        let is_known = |dir: Ino, name: &Name| {
            namespace.dentry(dir, name).is_some()
                || state.backing().knows_absent(namespace, dir, name)
                // Of a directory that is listed in part, the bucket's answer is noted nowhere else.
                || context.has_looked_up_in_trash(state, dir, name)
        };
        // What was looked up has changed since: sent again, it is looked up again.
        if !is_known(top, &trash_name())
            || namespace
                .trash_of(top)
                .is_some_and(|trash| !is_known(trash, &trashed_name(victim.ino)))
        {
            return Err(RpcError::Retry);
        }
        let (slot, mut ids) =
            (self.slot_of_new(top, FileKind::Directory), namespace.draw_ids(self.ids_to_skip()));
        let mut draw = || ids.draw(slot).filter(|ino| Some(*ino) != made);
        let ino = draw().or_else(draw).unwrap_or(Ino::NONE);
        Ok(Some(TrashTarget { top, ino, keep_secs }))
    }

    /// The directory that has the trash for what is removed from `dir`.
    fn top_of(&self, dir: Ino) -> Ino {
        self.top(self.bucket_of(dir)).unwrap_or(Ino::ROOT)
    }

    /// The directory at the root of a bucket; of a member `None` until it is known.
    fn top(&self, bucket_index: BucketIndex) -> Option<Ino> {
        match bucket_index.0.checked_sub(1) {
            None => Some(Ino::ROOT),
            Some(at) => self
                .replica
                .view()
                .namespace()
                .dentry(Ino::ROOT, self.buckets.members().get(at)?.dir().name())
                .map(|dentry| dentry.ino),
        }
    }

    /// Entries at or below `path`, from a point on, as long as `fits` takes them, and where to go
    /// on.
    async fn trashed(
        &self,
        path: &[Name],
        from: TrashPoint,
        mut fits: impl FnMut(&TrashEntry) -> bool,
    ) -> Result<(Vec<TrashEntry>, Option<TrashPoint>), RpcError> {
        let (mut found, mut passed) = (Vec::new(), 0);
        let below = crate::admin::path_bytes(path);
        let is_below = |entry: &TrashEntry| {
            let rest = entry.trashed.path.strip_prefix(&below[..]);
            below.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        let mut at = from;
        while (at.bucket as usize) <= self.buckets.members().len() {
            if let Some(top) = self.top(BucketIndex(at.bucket as usize)) {
                self.load_trash(top).await?;
                let state = self.replica.view();
                for (cookie, entry) in state.namespace().trashed(top, Cookie(at.after)) {
                    if passed >= MAX_PASSED || is_below(&entry) && !fits(&entry) {
                        return Ok((found, Some(at)));
                    }
                    passed += 1;
                    at.after = cookie.0;
                    found.extend(is_below(&entry).then_some(entry));
                }
            }
            at = TrashPoint { bucket: at.bucket + 1, after: 0 };
        }
        Ok((found, None))
    }

    async fn load_trash(&self, top: Ino) -> Result<(), RpcError> {
        self.resolve(top, &trash_name()).await?;
        let trash = self.replica.view().namespace().trash_of(top);
        match trash {
            Some(trash) => self.complete(trash).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn list_trash(
        &self,
        path: &[Name],
        from: TrashPoint,
    ) -> Result<AdminReply, RpcError> {
        let mut room = MAX_LIST_BYTES;
        let fits = |entry: &TrashEntry| {
            let taken = room.checked_sub(entry.trashed.path.len() + ENTRY_BYTES);
            room = taken.unwrap_or(0);
            taken.is_some()
        };
        let (entries, next) = self.trashed(path, from, fits).await?;
        Ok(AdminReply::Trash { entries, next })
    }

    /// The answer is given when it survives a power cut.
    pub(crate) async fn restore(
        self: &Rc<Self>,
        ino: Ino,
        to: &[Name],
    ) -> Result<AdminReply, RpcError> {
        self.expect_changeable()?;
        let (name, parent) = to.split_last().ok_or(FsError::Exists)?;
        let dir = self.walk(parent).await?;
        self.resolve(dir, name).await?;
        if self.bucket_of(ino) != self.bucket_of(dir) {
            return Err(FsError::CrossDevice.into());
        }
        self.commit_stamped(|state, stamp| {
            self.expect_running()?;
            state.may_restore(ino, dir, name)?;
            Ok(Command::Restore { ino, to: dir, name: name.clone(), stamp })
        })
        .await?;
        self.force_log().await?;
        Ok(AdminReply::Restored)
    }

    pub(crate) async fn empty_trash(
        &self,
        path: &[Name],
        until: Time,
        from: TrashPoint,
    ) -> Result<AdminReply, RpcError> {
        self.expect_changeable()?;
        let mut room = PIECE;
        let fits = |entry: &TrashEntry| {
            let fits = entry.trashed.at > until || room > 0;
            room = room.saturating_sub(usize::from(entry.trashed.at <= until));
            fits
        };
        let (found, next) = self.trashed(path, from, fits).await?;
        let (mut entries, mut bytes) = (0, 0);
        for entry in found.into_iter().filter(|entry| entry.trashed.at <= until) {
            if self.purge(entry.ino).await? {
                entries += 1;
                bytes += if entry.kind == FileKind::Regular { entry.size_bytes } else { 0 };
            }
        }
        self.force_log().await?;
        Ok(AdminReply::Emptied { entries, bytes, next })
    }

    /// False if it is not in the trash any more.
    async fn purge(&self, ino: Ino) -> Result<bool, RpcError> {
        let mut is_there = false;
        self.commit_stamped(|state, stamp| {
            self.expect_running()?;
            is_there = state.namespace().trashed_inode(ino).is_some();
            Ok(Command::Purge { ino, holders: self.holders(state, ino), stamp })
        })
        .await?;
        self.recheck_holders(Some(ino)).await?;
        Ok(is_there)
    }

    /// Removes what has been kept for its time.
    pub(crate) async fn empty_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            self.ports.clock.sleep(ROUND).await;
            for bucket_index in self.buckets.bucket_indexes() {
                let expired = self.expire_trash(bucket_index).await;
                let said = expired
                    .err()
                    .map(|error| format!("what was kept for its time cannot be removed: {error}"));
                self.trouble(&self.buckets.subject("trash", bucket_index), said);
            }
        }
    }

    async fn expire_trash(&self, bucket_index: BucketIndex) -> Result<(), RpcError> {
        let Some(top) = self.top(bucket_index) else { return Ok(()) };
        // One that nobody has come across since the cache was lost is not asked for.
        let trash = self.replica.view().namespace().trash_of(top);
        let Some(trash) = trash.filter(|_| self.expect_changeable().is_ok()) else { return Ok(()) };
        self.complete(trash).await?;
        let mut after = Cookie::START;
        loop {
            let now = self.ports.clock.wall();
            let (mut expired, mut looked_at) = (Vec::new(), 0);
            {
                let state = self.replica.view();
                for (cookie, entry) in state.namespace().trashed(top, after).take(PIECE) {
                    after = cookie;
                    looked_at += 1;
                    expired.extend((entry.trashed.until_secs <= now.secs).then_some(entry.ino));
                }
            }
            for ino in expired {
                if self.is_stopping() || self.expect_changeable().is_err() {
                    return Ok(());
                }
                self.purge(ino).await?;
            }
            if looked_at < PIECE {
                return Ok(());
            }
            self.ports.clock.sleep(PAUSE).await;
        }
    }
}
