//! Mutations: from a client's request to its answer.
//!
//! An answer is given when the command is in the log and applied. A repeated request of the same
//! transaction gets the same answer and is not executed again, whether the first is long done,
//! under way, or was lost with its connection.

use crate::Node;
use crate::admin::troubles::Subject;
use crate::clients::barrier::Origin;
use crate::clients::leases::InWay;
use crate::clients::recall::Touched;
use crate::data::fetch::MAX_ATTEMPTS;
use crate::replica::{Proposal, refusal};
use bytes::Bytes;
use ebb_core::blocks;
use ebb_core::byte_map::Fill;
use ebb_core::session::Verdict;
use ebb_core::state::State;
use ebb_model::*;
use ebb_ports::DiskError;
use ebb_store::{Mode, StoreLocation};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

impl Node {
    pub(crate) async fn mutate(
        self: &Rc<Self>,
        origin: Origin,
        mutate: Box<Mutate>,
    ) -> Result<Reply, RpcError> {
        let Mutate { tx, ref mutation, replay, .. } = *mutate;
        // Before it is under way: a successor of its client waits for those.
        let life = self.attachments.lives(tx.session);
        let intent = self.recall(tx.session, &Touched::by(mutation), in_way(replay)).await;
        if self.attachments.lives(tx.session) != life {
            return Err(RpcError::Retry);
        }
        // The mutation may be applied while its effects are unfinished, or not forced yet.
        if self.under_way.borrow().contains_key(&tx) {
            return Err(RpcError::Retry);
        }
        let must_force = must_force(origin, mutation);
        let verdict = self.replica.view().sessions().check(tx);
        match verdict {
            Verdict::New => {}
            Verdict::Done(answer) => {
                if let (true, Ok(Mutated { attr: Some(attr), .. })) = (mutation.opens(), &answer) {
                    self.attachments.open_again(tx.session, attr.ino);
                }
                let mut answer = answer;
                if let Ok(mutated) = &mut answer
                    && mutated.index <= self.run.recovered
                    && let Some(index) =
                        Box::pin(self.repeat_bytes(tx, mutation, mutated.replay)).await?
                {
                    mutated.index = index;
                }
                self.commit_mutation(origin, tx.session, must_force).await?;
                return answer.map(|mutated| self.mutated(origin, tx.session, mutated));
            }
            Verdict::Misordered => {
                // The operation was executed, like the later one in its slot, and forced with it;
                // its bytes may not have been forced.
                let Some(replay) = replay else { return Err(RpcError::Misordered) };
                let Some(index) = Box::pin(self.repeat_bytes(tx, mutation, replay)).await? else {
                    return Err(RpcError::Misordered);
                };
                self.commit_mutation(origin, tx.session, false).await?;
                return Ok(self.mutated(origin, tx.session, Mutated { attr: None, index, replay }));
            }
            Verdict::Unknown => return Err(RpcError::SessionExpired),
        }
        if self.attachments.read_only(tx.session) {
            return Err(FsError::ReadOnly.into());
        }
        self.expect_writable()?;
        // Operations acknowledged before a restart are replayed before any new one.
        if replay.is_none() {
            let copied = match *mutation {
                ClientMutation::Copy { from, .. } => Some(from),
                _ => None,
            };
            let mut files = mutation.rewrites().into_iter().chain(copied);
            if self.attachments.awaits_sole()
                || self.attachments.awaits(tx.session)
                || files.any(|ino| self.lacks_bytes(ino))
            {
                return Err(RpcError::Retry);
            }
        }
        if replay.is_some_and(|replay| !self.may_have_answered(replay)) {
            return Err(FsError::Invalid.into());
        }
        let copied = match *mutation {
            ClientMutation::Copy { from, .. } => Some(from),
            _ => None,
        };
        // Before the first wait: the same mutation can come again meanwhile.
        self.under_way.borrow_mut().insert(tx, must_force);
        for ino in mutation.rewrites().into_iter().chain(copied) {
            if let Err(error) = self.bring(ino).await {
                self.under_way.borrow_mut().remove(&tx);
                return Err(error);
            }
        }
        let rewrites = mutation.rewrites();
        let answer = self.execute(*mutate, must_force).await;
        drop(intent);
        let forced = match &answer {
            Ok(_) => self.commit_mutation(origin, tx.session, must_force).await,
            Err(_) => Ok(()),
        };
        // Clients that have the file open are about to read its bytes. Their mappings are told of a
        // new length meanwhile (S-107a): nothing waits for that.
        let forced = match (forced, rewrites) {
            (Ok(()), Some(ino)) if answer.is_ok() && self.is_open_elsewhere(ino, tx.session) => {
                self.fsync(ino).await.map(drop)
            }
            (forced, _) => forced,
        };
        self.under_way.borrow_mut().remove(&tx);
        forced?;
        answer.map(|mutated| self.mutated(origin, tx.session, mutated))
    }

    /// The answer to a mutation. A client in this process repeats nothing.
    fn mutated(&self, origin: Origin, session: SessionId, mutated: Mutated) -> Reply {
        let preceding = match origin {
            Origin::Process => Vec::new(),
            Origin::Connection(_) => self.replica.view_without_backing().sessions().preceding(
                session,
                self.replica.durable(),
                mutated.index,
            ),
        };
        Reply::Mutated(Box::new(mutated), preceding)
    }

    fn is_open_elsewhere(&self, ino: Ino, session: SessionId) -> bool {
        self.attachments.is_shared()
            && self.attachments.holders(ino).iter().any(|holder| *holder != session)
    }

    pub(crate) fn has_firm_under_way(&self) -> bool {
        self.under_way.borrow().values().any(|must_force| *must_force)
    }

    /// Whether this node can have chosen a replayed stamp before a power cut. Time and version
    /// continue from it, so a made-up stamp must not be accepted.
    fn may_have_answered(&self, replay: Replay) -> bool {
        let latest = self.replica.view().next_version().0.saturating_add(MAX_LOST_VERSIONS);
        replay.stamp.version.0 <= latest && replay.stamp.time.nanos < 1_000_000_000
    }

    async fn execute(
        self: &Rc<Self>,
        Mutate { tx, caller, mutation, replay }: Mutate,
        must_force: bool,
    ) -> Result<Mutated, RpcError> {
        self.admit(&mutation)?;
        if replay.is_none() {
            self.room_to_make(&mutation)?;
        }
        let context = MutationContext {
            tx,
            caller,
            replay,
            must_force,
            touched: Touched::by(&mutation),
            looked_up: RefCell::default(),
            looked_up_in_trash: RefCell::default(),
        };
        if let Some(ino) = mutation.inode() {
            self.see_all_names(ino).await?;
        }
        match mutation {
            ClientMutation::Make { parent, name, mode, what, open } => {
                self.resolve_for(&context, parent, &name).await?;
                let mutated = self
                    .propose(&context, |state| {
                        let ino = context.made_ino(state, self.slot_of_new(parent, what.kind()));
                        let mode = state.namespace().made_mode(parent, mode);
                        Mutation::Make { parent, name, ino, mode, what }
                    })
                    .await?;
                if let (true, Some(attr)) = (open, &mutated.attr) {
                    self.attachments.open(tx.session, attr.ino);
                }
                Ok(mutated)
            }
            ClientMutation::Link { ino, parent, name } => {
                self.resolve_for(&context, parent, &name).await?;
                self.propose(&context, |_| Mutation::Link { ino, parent, name }).await
            }
            ClientMutation::Unlink { parent, name } => {
                let victim = self.known_child(&context, parent, &name).await?;
                self.prepare_trash(&context, parent, victim).await?;
                let done = self
                    .propose_removal(&context, Some((parent, name.clone())), |state| {
                        let holders = self.holders_of(state, parent, &name);
                        Mutation::Unlink { parent, name, holders }
                    })
                    .await?;
                self.recheck_holders(victim).await?;
                Ok(done)
            }
            ClientMutation::Rmdir { parent, name } => {
                let victim = self.known_child(&context, parent, &name).await?;
                if let Some(dir) = victim {
                    self.empty_to_remove(&context, dir).await?;
                }
                self.prepare_trash(&context, parent, victim).await?;
                let done = self
                    .propose_removal(&context, Some((parent, name.clone())), |state| {
                        let holders = self.holders_of(state, parent, &name);
                        Mutation::Rmdir { parent, name, holders }
                    })
                    .await?;
                self.recheck_holders(victim).await?;
                Ok(done)
            }
            ClientMutation::Rename { from, name, to, new_name, mode } => {
                let renamed = self.known_child(&context, from, &name).await?;
                let victim = self.known_child(&context, to, &new_name).await?;
                if let Some(dir) = victim.filter(|dir| mode.replaces() && renamed != Some(*dir)) {
                    self.empty_to_remove(&context, dir).await?;
                }
                let replaced = mode.replaces().then(|| (to, new_name.clone()));
                if replaced.is_some() {
                    self.prepare_trash(&context, to, victim).await?;
                }
                let done = self
                    .propose_removal(&context, replaced, |state| {
                        let holders = self.holders_of(state, to, &new_name);
                        let mode = match mode {
                            RenameMode::Whiteout { keep_target, .. } => RenameMode::Whiteout {
                                keep_target,
                                ino: Some(context.made_ino(state, from.slot())),
                            },
                            RenameMode::Replace | RenameMode::KeepTarget | RenameMode::Exchange => {
                                mode
                            }
                        };
                        Mutation::Rename { from, name, to, new_name, mode, holders }
                    })
                    .await?;
                self.recheck_holders(victim).await?;
                Ok(done)
            }
            ClientMutation::SetAttr { ino, set } => {
                if set.size_bytes.is_some_and(|size| size > self.data.max_file_bytes()) {
                    self.file_size(ino)?;
                    return Err(FsError::TooLarge.into());
                }
                // A change of size excludes readers, writers and uploads of the file.
                let _guard = match set.size_bytes {
                    Some(_) => Some(self.data.latches().hold(ino, Mode::Exclusive).await),
                    None => None,
                };
                let _growth = match set.size_bytes {
                    Some(size) => self.grow_to(&context, ino, self.file_size(ino)?, size)?,
                    None => None,
                };
                self.flusher.break_upload_at(ino, set.size_bytes);
                if let Some(size) = set.size_bytes {
                    let location = self.location(ino);
                    self.clear_behind(&location, location.size_bytes, size).await?;
                    self.force_rest(ino, size..u64::MAX).await?;
                    self.void_cut(&location, size).await?;
                    self.note_writer(ino, tx.session);
                }
                let size = set.size_bytes;
                let done = self
                    .propose(&context, |state| match state.extents().has_edge(ino, &set) {
                        true => Mutation::Truncate { ino, set },
                        false => Mutation::SetAttr { ino, set },
                    })
                    .await?;
                if let Some(size) = size {
                    self.show_length(ino).await?;
                    self.unforced.borrow_mut().superseded(ino, size..u64::MAX);
                }
                Ok(done)
            }
            ClientMutation::SetXattr { ino, name, value, mode } => {
                // A change of flags can forbid writes: no write is half done at that moment.
                let _guard = match *name == *InodeFlags::ATTRIBUTE {
                    true => Some(self.data.latches().hold(ino, Mode::Exclusive).await),
                    false => None,
                };
                self.propose(&context, |_| Mutation::SetXattr { ino, name, value, mode }).await
            }
            ClientMutation::SetAcl { ino, class, value, drop_set_gid } => {
                self.propose(&context, |_| Mutation::SetAcl { ino, class, value, drop_set_gid })
                    .await
            }
            ClientMutation::RemoveXattr { ino, name } => {
                self.propose(&context, |_| Mutation::RemoveXattr { ino, name }).await
            }
            ClientMutation::Write { ino, offset, data, drop_set_id } => {
                self.write(&context, ino, Some(offset), data, drop_set_id).await
            }
            ClientMutation::Append { ino, data, drop_set_id } => {
                let offset = context.replay.and_then(|replay| replay.offset);
                self.write(&context, ino, offset, data, drop_set_id).await
            }
            ClientMutation::Copy { from, from_offset, ino, offset, len_bytes, drop_set_id } => {
                self.copy(&context, (from, from_offset), (ino, offset), len_bytes, drop_set_id)
                    .await
            }
            ClientMutation::Tmpfile { parent, mode } => {
                let mutated = self
                    .propose(&context, |state| {
                        let ino = context.made_ino(state, parent.slot());
                        let mode = state.namespace().made_mode(parent, mode);
                        Mutation::Tmpfile { parent, ino, mode, holder: tx.session }
                    })
                    .await?;
                if let Some(attr) = &mutated.attr {
                    self.attachments.open(tx.session, attr.ino);
                }
                Ok(mutated)
            }
            ClientMutation::Fallocate { ino, offset, len_bytes, what, keep_size, drop_set_id } => {
                self.fallocate(&context, ino, (offset, len_bytes), (what, keep_size), drop_set_id)
                    .await
            }
        }
    }

    /// Puts the bytes in the store file, then commits their presence (O-78), by one record for each
    /// write, of a small file or a large one (O-79; decision 17). If the commit fails the bytes are
    /// not seen: an absent block stays absent. A present block is read up to the old size, or is
    /// the target of an overwrite. The commit of an overwrite fails only with the disk, and then
    /// nothing is assumed of the block's content.
    pub(crate) async fn write(
        self: &Rc<Self>,
        context: &MutationContext,
        ino: Ino,
        offset: Option<u64>,
        data: Bytes,
        drop_set_id: bool,
    ) -> Result<Mutated, RpcError> {
        if data.len() > MAX_IO_BYTES {
            return Err(FsError::Invalid.into());
        }
        self.reserve_for(context, data.len() as u64).await?;
        for _ in 0..MAX_ATTEMPTS {
            let guard = self.data.latches().hold(ino, Mode::Exclusive).await;
            let offset = match offset {
                Some(offset) => offset,
                None => self.file_size(ino)?,
            };
            match self.write_locked(context, ino, offset, data.clone(), drop_set_id).await? {
                Written::Done(mutated) => return Ok(mutated),
                Written::Missing(remote) => {
                    drop(guard);
                    self.fetch(ino, &remote).await?;
                }
            }
        }
        Err(self.fetched_in_vain(ino))
    }

    /// As [`Node::write`], with the inode's latch held exclusively.
    pub(crate) async fn write_locked(
        self: &Rc<Self>,
        context: &MutationContext,
        ino: Ino,
        offset: u64,
        data: Bytes,
        drop_set_id: bool,
    ) -> Result<Written, RpcError> {
        let size = self.file_size(ino)?;
        // Short write at the size limit, as write(2) does. A zero-length write always succeeds.
        let room = self.data.max_file_bytes().saturating_sub(offset);
        let len_bytes = data.len() as u64;
        if room == 0 && len_bytes > 0 || offset.checked_add(len_bytes).is_none() {
            return Err(FsError::TooLarge.into());
        }
        let (len_bytes, _growth) = self.grow(context, ino, size, offset, len_bytes.min(room))?;
        let data = data.slice(..len_bytes as usize);
        let absent =
            in_home(&self.replica.view().extents().missing_for_write(ino, offset, len_bytes));
        if !absent.is_empty() {
            return Ok(Written::Missing(absent));
        }
        if let Some(dropped) =
            self.verify_rest(&self.location(ino), &(offset..offset + len_bytes)).await?
        {
            return Ok(Written::Missing(vec![dropped]));
        }
        // Refuse before the bytes are in place rather than after.
        let _stays =
            self.attachments.overwrite(context.tx.session).ok_or(RpcError::SessionExpired)?;
        if len_bytes > 0 {
            self.replica.view().namespace().permit_bytes(ino, false)?;
        }
        let (location, reserved) = self.room_to_write(ino, offset + len_bytes).await?;
        let written =
            self.write_to(context, &location, reserved.is_some(), offset, data, drop_set_id).await;
        if let Some(reserved) = reserved {
            self.vacate_unless_used(ino, &reserved);
        }
        written
    }

    /// Writes where there is room. `begins`: the file gets its place with this write, and the
    /// record of the write says so.
    async fn write_to(
        self: &Rc<Self>,
        context: &MutationContext,
        location: &StoreLocation,
        begins: bool,
        offset: u64,
        data: Bytes,
        drop_set_id: bool,
    ) -> Result<Written, RpcError> {
        let (ino, size, wanted_bytes) = (location.ino, location.size_bytes, data.len() as u64);
        let wanted = offset..offset + wanted_bytes;
        // An upload may have ended during the wait, and dropped blocks that it cannot vouch for.
        let missing = self.replica.view().extents().missing_for_write(ino, offset, wanted_bytes);
        let absent = in_home(&missing);
        if !absent.is_empty() {
            return Ok(Written::Missing(absent));
        }
        let unclear = match self.store.may_have_more(location) {
            true => self
                .replica
                .view()
                .extents()
                .fills(ino, blocks::touched_blocks(offset, wanted_bytes)),
            false => missing,
        };
        self.expect_log()?;
        // Bytes that were stored there past the node stay.
        let exposed = self.is_exposed(ino);
        for fill in unclear.into_iter().filter(|_| !exposed) {
            self.clear(location, fill.range()).await?;
        }
        if wanted_bytes > 0 {
            self.clear_behind(location, size, wanted.end).await?;
        }
        self.preserve(ino, wanted.clone()).await?;
        self.force_rest(ino, wanted.clone()).await?;
        self.void_sums(location, offset..size.min(wanted.end)).await?;
        self.expect_log_room().await?;
        let sums = self.sums_of_write(location, offset, &data);
        self.note_writer(ino, context.tx.session);
        let stored = self.store_bytes(context, location, offset, &data).await;
        self.unforced.borrow_mut().superseded(ino, wanted.clone());
        let is_short = stored.as_ref().is_ok_and(|len_bytes| *len_bytes < wanted_bytes);
        let stored = match stored {
            // A short write has changed a block in part that it was to cover: see `force_rest`.
            Ok(len_bytes) if context.must_force || is_short => {
                self.fsync(ino).await.map(|_| len_bytes)
            }
            stored => stored,
        };
        let len_bytes = *stored.as_ref().unwrap_or(&wanted_bytes);
        let written = match stored {
            Ok(len_bytes) => {
                let sums = match is_short {
                    true => self.sums_of_write(location, offset, &data[..len_bytes as usize]),
                    false => sums,
                };
                let (first, range) = (offset / BLOCK_BYTES, location.packed.filter(|_| begins));
                let staged = (len_bytes > 0).then_some(StagedBytes { ino, first, sums, range });
                let write = Mutation::Write { ino, offset, len_bytes, drop_set_id };
                self.propose_staged(context, staged.into_iter().collect(), write).await
            }
            Err(error) => Err(error),
        };
        if written.is_ok() {
            // The verification of small files that were never read is not remembered.
            let blocks = if location.packed.is_some() {
                blocks::whole_blocks
            } else {
                blocks::touched_blocks
            };
            self.data.verified(ino, blocks(offset, len_bytes));
            if offset + len_bytes > size {
                self.has_grown(ino, size, offset + len_bytes);
                self.show_length(ino).await?;
            }
        } else {
            self.flusher.has_failed_at(ino, wanted);
        }
        if is_short || written.is_err() {
            // Behind the end of the file there must be zeros. If the log has failed, the next start
            // finds out which of its records are there.
            if self.expect_log().is_ok()
                && let Err(error) = self.store.cut(location, size).await
            {
                let error = self.disk_failed(ino, error);
                // The next write that lengthens the file cuts it first.
                if written.is_err() {
                    return Err(error);
                }
            }
            self.drop_if_gone(ino);
        }
        written.map(Written::Done)
    }

    /// Puts the bytes of a write in the store file. Returns how many of them are there. On a disk
    /// that gets full during the write it is a short one, as write(2) is, if it has replaced bytes
    /// of the file; otherwise it fails.
    async fn store_bytes(
        &self,
        context: &MutationContext,
        location: &StoreLocation,
        offset: u64,
        data: &Bytes,
    ) -> Result<u64, RpcError> {
        match self.store.write(location, offset, data.clone()).await {
            Ok(()) => {
                self.trouble(Subject::Disk(location.ino), None);
                Ok(data.len() as u64)
            }
            Err(error) => {
                let is_replayed = context.replay.is_some();
                Box::pin(self.stored_until_full(location, offset, data, error, is_replayed)).await
            }
        }
    }

    /// How many bytes are there of a write that has failed with this error.
    async fn stored_until_full(
        &self,
        location: &StoreLocation,
        offset: u64,
        data: &Bytes,
        error: DiskError,
        is_replayed: bool,
    ) -> Result<u64, RpcError> {
        let failed = |error| self.disk_failed(location.ino, error);
        let is_full = error == DiskError::NoSpace;
        let error = failed(error);
        // After any other error nothing is assumed of the bytes. A replayed write has the length
        // that its client was told.
        if !is_full || is_replayed || Planted::FailedWriteKeepsBytes.is_on() {
            return Err(error);
        }
        let replaceable = location.size_bytes.saturating_sub(offset).min(data.len() as u64);
        let there =
            self.store.read(location, offset, replaceable as usize).await.map_err(failed)?;
        let is_written = |(there, written): &(&u8, &u8)| there == written;
        let written_bytes = there.iter().zip(data).take_while(is_written).count() as u64;
        match self.end_of_replaced(location.ino, offset..offset + written_bytes) {
            Some(_) if Planted::ShortWriteWhole.is_on() => Ok(data.len() as u64),
            Some(end) => Ok(end - offset),
            None => Err(error),
        }
    }

    /// The end of those of these bytes that are the file's. Bytes of absent blocks behind it are
    /// not: a write that did not cover such a block to its end must not make it present.
    fn end_of_replaced(&self, ino: Ino, written: Range<u64>) -> Option<u64> {
        let state = self.replica.view();
        let extents = state.extents();
        let is_replaced =
            |block: &u64| extents.is_exposed(ino) || extents.block(ino, *block).is_some();
        let last = blocks::touched_blocks(written.start, written.end - written.start)
            .rev()
            .find(is_replaced)?;
        Some(written.end.min((last + 1) * BLOCK_BYTES))
    }

    /// A file is about to grow from `from` to `to`. Old bytes behind its end may be there: in a
    /// pack file nothing is cut off, and elsewhere a cut may have failed. They are cleared here,
    /// before anything is written there.
    pub(crate) async fn clear_behind(
        &self,
        location: &StoreLocation,
        from: u64,
        to: u64,
    ) -> Result<(), RpcError> {
        match location.packed {
            _ if from >= to => Ok(()),
            Some(_) => self.clear(location, from..to).await,
            None => self
                .store
                .cut_again(location, from)
                .await
                .map_err(|error| self.disk_failed(location.ino, error)),
        }
    }

    /// Makes a range that is not in use read as zeros, whether or not an earlier use left bytes
    /// there. The record that ended that use is forced before, or a power cut could bring it back
    /// without its bytes.
    async fn clear(&self, location: &StoreLocation, range: Range<u64>) -> Result<(), RpcError> {
        let (offset, len) = (range.start, range.end - range.start);
        let failed = |error| self.disk_failed(location.ino, error);
        if self.store.has_remains(location, offset, len).await.map_err(failed)? {
            if !Planted::ClearedBeforeForced.is_on() {
                self.force_log().await?;
            }
            self.store.clear(location, offset, len).await.map_err(failed)?;
        }
        Ok(())
    }

    /// If the log has failed, a range that it has cut off or made a hole may be back after a power
    /// cut, and must not be written over.
    pub(crate) fn expect_log(&self) -> Result<(), RpcError> {
        self.replica.log().failed().map_or(Ok(()), |error| Err(refusal(error)))
    }

    /// Refuses a change that a full disk could not log before bytes are written over.
    pub(crate) async fn expect_log_room(&self) -> Result<(), RpcError> {
        self.replica.log().expect_room().await.map_err(refusal)
    }

    /// A block that is changed in part is dirty as a whole, so its remaining bytes go to the bucket
    /// again from here. The bucket has them if the block was clean or is being sent. They are
    /// forced before the change. Otherwise a power cut could keep the change in the log and lose
    /// the block, and the zeros left there would replace the bytes in the bucket. This is needed
    /// once for each upload: later writes are not in that upload.
    pub(crate) async fn force_rest(&self, ino: Ino, changed: Range<u64>) -> Result<(), RpcError> {
        let whole = blocks::whole_blocks(changed.start, changed.end - changed.start);
        let is_at_stake = |block: u64| {
            let is_sent = self
                .replica
                .view()
                .extents()
                .block(ino, block)
                .is_some_and(|block| self.flusher.may_be_sent(ino, &block));
            is_sent && !whole.contains(&block) && !self.store.is_block_forced(ino, block)
        };
        if [changed.start, changed.end.saturating_sub(1)]
            .into_iter()
            .any(|at| is_at_stake(at / BLOCK_BYTES))
            && !Planted::RestNotForced.is_on()
        {
            self.fsync(ino).await?;
        }
        Ok(())
    }

    /// Proposes one mutation of a client and performs its effects.
    pub(crate) async fn propose(
        &self,
        context: &MutationContext,
        choose: impl FnOnce(&State) -> Mutation,
    ) -> Result<Mutated, RpcError> {
        self.propose_as(context, Vec::new(), None, choose).await
    }

    /// As [`Node::propose`], of a mutation that removes a name from an inode: the inode may be kept
    /// in the trash.
    async fn propose_removal(
        &self,
        context: &MutationContext,
        removed: Option<(Ino, Name)>,
        choose: impl FnOnce(&State) -> Mutation,
    ) -> Result<Mutated, RpcError> {
        self.propose_as(context, Vec::new(), removed, choose).await
    }

    /// As [`Node::propose`], of a mutation that writes bytes which are on the disk.
    pub(crate) async fn propose_staged(
        &self,
        context: &MutationContext,
        staged: Vec<StagedBytes>,
        mutation: Mutation,
    ) -> Result<Mutated, RpcError> {
        self.propose_as(context, staged, None, |_| mutation).await
    }

    async fn propose_as(
        &self,
        context: &MutationContext,
        staged: Vec<StagedBytes>,
        removed: Option<(Ino, Name)>,
        choose: impl FnOnce(&State) -> Mutation,
    ) -> Result<Mutated, RpcError> {
        let time = self.ports.clock.wall();
        // Until it is applied.
        let mut intent = None;
        let (_, applied) = self
            .replica
            .propose(|state| {
                let stamp = match context.replay {
                    // Versions stay unique and growing. Otherwise an upload under way would take a
                    // replayed write for bytes that it has read.
                    Some(Replay { stamp, .. }) => {
                        Stamp { version: stamp.version.max(state.next_version()), ..stamp }
                    }
                    None => Stamp { time, version: state.next_version() },
                };
                let mutation = choose(state);
                // An entry looked up for it has changed since: sent again, it is looked up again.
                let is_known =
                    context.looked_up.borrow().iter().all(|looked_up| looked_up.stands(state));
                if !(is_known || Planted::LookupNotChecked.is_on())
                    || state.backing().admit(&mutation, state.namespace()) == Err(FsError::Busy)
                {
                    return Err(RpcError::Retry);
                }
                let (author, way) = (context.tx.session, in_way(context.replay));
                intent = self.expect_recalled(author, &context.touched, way, state)?;
                let (tx, caller, repeated) =
                    (context.tx, context.caller.clone(), context.replay.is_some());
                let made = mutation.replay(stamp).ino;
                let trash = removed.map_or(Ok(None), |(dir, name)| {
                    self.trash_place(state, context, dir, &name, made)
                })?;
                let command = match (trash, repeated) {
                    (Some(trash), repeated) => {
                        Command::Discard { tx, caller, stamp, mutation, trash, repeated }
                    }
                    (None, true) => Command::Repeated { tx, caller, stamp, mutation },
                    (None, false) => Command::Client { tx, caller, stamp, mutation },
                };
                let staged = staged.into_iter().map(|staged| staged.at(stamp.version)).collect();
                Ok(Proposal::of_both(staged, command))
            })
            .await?;
        self.wrote(context.tx.session, &context.touched, intent);
        let answer = applied.answer.clone().expect("a client's command has an answer");
        self.perform_effects(applied, Some(context.tx.session)).await?;
        answer
    }

    /// Determines whether the directory is empty. One that is not a directory passes.
    async fn empty_to_remove(
        self: &Rc<Self>,
        context: &MutationContext,
        dir: Ino,
    ) -> Result<(), RpcError> {
        self.complete(dir).await?;
        let is_empty = {
            let state = self.replica.view();
            let is_directory =
                state.namespace().attr(dir).is_ok_and(|attr| attr.kind == FileKind::Directory);
            is_directory && !state.namespace().has_more_names_than(dir, 0)
        };
        // A mutation that was answered before a restart keeps its outcome.
        match is_empty && context.replay.is_none() {
            true => self.expect_nothing_hidden(dir).await,
            false => Ok(()),
        }
    }

    async fn resolve_for(
        &self,
        context: &MutationContext,
        dir: Ino,
        name: &Name,
    ) -> Result<(), RpcError> {
        self.resolve(dir, name).await?;
        let looked_up = LookedUp { dir, name: name.clone(), epoch: self.load_epoch(dir) };
        context.looked_up.borrow_mut().push(looked_up);
        Ok(())
    }

    /// The inode of a name, with all metadata loaded that a change to it needs.
    async fn known_child(
        &self,
        context: &MutationContext,
        parent: Ino,
        name: &Name,
    ) -> Result<Option<Ino>, RpcError> {
        self.resolve_for(context, parent, name).await?;
        let child = self.replica.view().namespace().lookup(parent, name).ok().map(|attr| attr.ino);
        if let Some(ino) = child {
            self.see_all_names(ino).await?;
        }
        Ok(child)
    }

    fn holders_of(&self, state: &State, parent: Ino, name: &Name) -> Vec<SessionId> {
        state
            .namespace()
            .lookup(parent, name)
            .map(|attr| self.holders(state, attr.ino))
            .unwrap_or_default()
    }

    /// The sessions that hold an inode which loses its last name. A session that has ended has
    /// released everything, and becomes a holder of nothing more.
    pub(crate) fn holders(&self, state: &State, ino: Ino) -> Vec<SessionId> {
        self.attachments
            .holders(ino)
            .into_iter()
            .filter(|session| state.sessions().get(*session).is_some())
            .take(if Planted::HoldersForgotten.is_on() { 1 } else { usize::MAX })
            .collect()
    }

    /// A holder may have closed while the last name was being removed.
    pub(crate) async fn recheck_holders(&self, victim: Option<Ino>) -> Result<(), RpcError> {
        let Some(ino) = victim else { return Ok(()) };
        let holders =
            self.replica.view_without_backing().namespace().holders(ino).collect::<Vec<_>>();
        for session in holders {
            self.release_orphan(session, ino).await?;
        }
        Ok(())
    }
}

/// A client on another machine cannot replay a copy: the source may have changed since. So two
/// things are forced:
///
/// - before the copy is logged its bytes and all earlier ones, which are then not repeated over it;
/// - the log before the copy is answered, or shown in the answer to another mutation.
fn must_force(origin: Origin, mutation: &ClientMutation) -> bool {
    matches!((origin, mutation), (Origin::Connection(_), ClientMutation::Copy { .. }))
}

/// Versions that a power cut can take back: far more than one commit interval has.
const MAX_LOST_VERSIONS: u64 = 1 << 32;

/// The ranges, of blocks that a write touches in part, which are only in the bucket.
fn in_home(missing: &[Fill]) -> Vec<Range<u64>> {
    missing.iter().filter(|fill| fill.object_bytes > 0).map(Fill::range).collect()
}

/// Bytes that a write has put on the disk.
pub(crate) struct StagedBytes {
    pub ino: Ino,
    pub first: u64,
    /// Checksums of the touched blocks in order, `None` for a block that is not completely here.
    pub sums: Vec<Option<u32>>,
    /// The range of a pack file that the file gets for them.
    pub range: Option<PackRange>,
}

impl StagedBytes {
    fn at(self, version: Version) -> LocalCommand {
        let StagedBytes { ino, first, sums, range } = self;
        LocalCommand::Staged { ino, version, first, sums, range }
    }
}

/// The progress of a write.
pub(crate) enum Written {
    Done(Mutated),
    /// Nothing is done before these ranges are fetched, for which the latch must be given up.
    Missing(Vec<Range<u64>>),
}

/// The client of a mutation, and the values chosen for it at an earlier attempt, if there were any.
/// A repeated mutation does not wait for clients that have yet to come back: they may wait for it.
fn in_way(replay: Option<Replay>) -> InWay {
    if replay.is_some() { InWay::Granted } else { InWay::Any }
}

pub(crate) struct MutationContext {
    pub tx: TxId,
    pub caller: Caller,
    pub replay: Option<Replay>,
    /// The bytes are forced before the mutation is logged.
    pub must_force: bool,
    pub touched: Touched,
    /// Names that were looked up for it: the entries, and the knowledge of missing ones, may have
    /// been evicted since.
    pub looked_up: RefCell<Vec<LookedUp>>,
    /// The names of the trash that it needs if the entry that it removes is kept.
    pub looked_up_in_trash: RefCell<Vec<LookedUp>>,
}

/// A name that was looked up, and the load epoch of its directory at that time.
pub(crate) struct LookedUp {
    pub dir: Ino,
    pub name: Name,
    pub epoch: Option<u64>,
}

impl LookedUp {
    /// The directory is still in that epoch.
    fn stands(&self, state: &State) -> bool {
        state.backing().load_epoch(self.dir) == self.epoch
    }
}

impl MutationContext {
    /// The name was looked up, and its directory is still in that epoch: the bucket has the name
    /// only if the namespace has it.
    pub(crate) fn has_looked_up_in_trash(&self, state: &State, dir: Ino, name: &Name) -> bool {
        self.looked_up_in_trash.borrow().iter().any(|looked_up| {
            looked_up.dir == dir && looked_up.name == *name && looked_up.stands(state)
        })
    }

    /// The id of the inode that the mutation makes. The partition refuses [`Ino::NONE`].
    fn made_ino(&self, state: &State, slot: Slot) -> Ino {
        self.replay
            .and_then(|replay| replay.ino)
            .or_else(|| state.namespace().next_ino(slot))
            .unwrap_or(Ino::NONE)
    }
}
