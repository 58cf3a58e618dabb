//! What a node knows: a partition, which all replicas have alike, and the extents of its own disk.
//!
//! Laws:
//! - Extents follow each change of content in the order of the node's log. So both are functions of
//!   a prefix of it.
//! - Staged bytes belong to the command of the partition directly behind them in the log. Without
//!   it, or if that is refused, they have no effect.
//! - A block of the extents is dirty at the version of its last write, or clean and of the file's
//!   object. On the node that has written a block it is present for as long as it is dirty.
//! - In a replicated volume a power cut can take the record of staged bytes, and the command that
//!   they belong to is committed by other nodes. Then the bytes are undefined on this node, which
//!   is their holder all the same: their clients repeat them.

use crate::backing::Backing;
use crate::byte_map::{self, ByteMap, JoinedItem};
use crate::content::ContentChange;
use crate::extent::{Effect, ExtentItem, Extents};
use crate::namespace::{Inconsistent, Namespace};
use crate::nodes::Nodes;
use crate::partition::{Outcome, Partition, SnapshotItem};
use crate::session::Sessions;
use ebb_model::*;

/// A partition and the extents of one node. A clone is O(1).
#[derive(Clone)]
pub struct State {
    partition: Partition,
    extents: Extents,
    /// Bytes on the disk for the command of the partition whose record is directly behind theirs.
    staged: Vec<LocalCommand>,
    /// Position of the last record of staged bytes.
    staged_at: Position,
    /// Removed files whose extents are still there.
    gone: Vec<Ino>,
    /// This node, in a replicated volume.
    own: Option<NodeId>,
    /// Files with bytes that became undefined.
    undefined: Vec<Ino>,
}

/// The outcome of a command on this node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// The reply to a client's mutation; `None` for other commands.
    pub answer: Option<Result<Mutated, RpcError>>,
    /// Inodes with changed attributes, names or data, to invalidate in other clients' caches.
    pub touched: Vec<Ino>,
    /// Names, with their directories, that changed without a client's mutation: each now refers to
    /// another inode or to none.
    pub names: Vec<(Ino, Name)>,
    /// Work for the node's disk.
    pub effects: Vec<Effect>,
}

impl State {
    /// A node without a byte of the partition's files.
    pub fn of(partition: Partition) -> State {
        State {
            partition,
            extents: Extents::default(),
            staged: Vec::new(),
            staged_at: Position(0),
            gone: Vec::new(),
            own: None,
            undefined: Vec::new(),
        }
    }

    /// The node whose extents these are, in a replicated volume.
    pub fn is_of(&mut self, own: NodeId) {
        self.own = Some(own);
    }

    /// Files with bytes that became undefined since the last call.
    pub fn take_undefined(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.undefined)
    }

    /// Restores a state from [`Partition::items`] and [`Extents::items`]. The extents can have
    /// followed more commands than the partition's snapshot has: [`State::check`] is for when the
    /// partition has them, too.
    pub fn from_items(
        shared: impl IntoIterator<Item = SnapshotItem>,
        local: impl IntoIterator<Item = ExtentItem>,
    ) -> Result<State, Inconsistent> {
        let mut joined: Vec<JoinedItem> = Vec::new();
        let mut items = Vec::new();
        for item in shared {
            match item {
                SnapshotItem::Joined(item) => joined.push(item),
                item => items.push(item),
            }
        }
        let mut extents = Extents::default();
        let partition = Partition::restore(items, |content| {
            joined.into_iter().for_each(|item| byte_map::restore(content, &mut extents, item));
        })?;
        local.into_iter().for_each(|item| extents.restore(item));
        match extents.check() {
            problems if problems.is_empty() => Ok(State { extents, ..State::of(partition) }),
            problems => Err(Inconsistent { problems }),
        }
    }

    /// Descriptions of broken laws. Empty unless there is a bug or the snapshot was modified.
    pub fn check(&self) -> Vec<String> {
        let mut problems = self.partition.check();
        problems.extend(self.extents.check());
        problems.extend(self.check_joined());
        problems
    }

    /// Descriptions of broken laws that join partition and extents, which each keep their own.
    pub fn check_joined(&self) -> Vec<String> {
        let mut problems = self.check_copies();
        problems.extend(byte_map::check_all_present(self.partition.content(), &self.extents));
        problems
    }

    /// The same of a node that has copies of some blocks, and need not have a dirty one.
    pub fn check_copies(&self) -> Vec<String> {
        let mut problems = byte_map::check(self.partition.content(), &self.extents);
        for ino in self.extents.files().chain(self.extents.exposed()) {
            let inode = self.namespace().inode(ino);
            if inode.is_none_or(|inode| inode.attr.kind != FileKind::Regular) {
                problems.push(format!("inode {ino} has extents and is not a file"));
            }
        }
        problems
    }

    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    pub fn into_partition(self) -> Partition {
        self.partition
    }

    pub fn namespace(&self) -> &Namespace {
        self.partition.namespace()
    }

    pub fn nodes(&self) -> &Nodes {
        self.partition.nodes()
    }

    pub fn sessions(&self) -> &Sessions {
        self.partition.sessions()
    }

    /// The bucket state. Asserts that it has followed the last command.
    pub fn backing(&self) -> &Backing {
        self.partition.backing()
    }

    /// Content and extents, joined.
    pub fn extents(&self) -> ByteMap<'_> {
        ByteMap::new(self.partition.content(), &self.extents)
    }

    /// The extents alone, for a snapshot.
    pub fn local(&self) -> &Extents {
        assert!(self.staged.is_empty(), "a snapshot is not between bytes and their command");
        &self.extents
    }

    /// Index of the last command.
    pub fn applied(&self) -> LogIndex {
        self.partition.applied()
    }

    /// Version of the last stamp.
    pub fn version(&self) -> Version {
        self.partition.version()
    }

    /// The version for the stamp of the next command.
    pub fn next_version(&self) -> Version {
        self.partition.next_version()
    }

    /// Whether an inode in the trash can be restored to `name` in the directory `to`.
    pub fn may_restore(&self, ino: Ino, to: Ino, name: &Name) -> Result<(), FsError> {
        self.partition.may_restore(ino, to, name)
    }

    /// Bytes of the inode that are in holes for certain; 0 unless it is a regular file.
    pub fn hole_bytes(&self, attr: &Attr) -> u64 {
        self.partition.hole_bytes(attr)
    }

    /// Dirty bytes of orphan inodes. They never go to the bucket, so no flush waits for them.
    pub fn orphan_bytes(&self) -> u64 {
        self.namespace().orphans().map(|(ino, _)| self.extents().dirty_bytes_of(ino)).sum()
    }

    /// Memory of the trees, nearly all of the state's memory. While a snapshot is written, changed
    /// nodes of the trees exist twice.
    pub fn memory_bytes(&self) -> u64 {
        self.partition.memory_bytes() + self.extents.memory_bytes() as u64
    }

    /// This node's extents beside a partition that has come as a snapshot, as the node `own`. Bytes
    /// stay that the partition says are there. Returns the state, and the effects that the node
    /// must perform.
    pub fn with_partition(&self, partition: Partition, own: NodeId) -> (State, Vec<Effect>) {
        let mut extents = self.extents.clone();
        let mut effects = Vec::new();
        let files: Vec<Ino> = extents.files().collect();
        for ino in files {
            let inode = partition.namespace().inode(ino);
            let regular = inode.filter(|inode| inode.attr.kind == FileKind::Regular);
            let Some(inode) = regular else {
                effects.extend(extents.effects_of(&ContentChange::Gone { ino }));
                extents.follow(&ContentChange::Gone { ino });
                continue;
            };
            let content = partition.content();
            let is_holder = partition.nodes().holder(ino).is_none_or(|holder| holder == own);
            extents.reconcile(ino, content.object_mark(ino), |block, dirty| {
                match content.dirty_version(ino, block) {
                    Some(version) => (dirty && is_holder).then_some(version),
                    None => (!dirty && !content.is_hole(ino, block)).then_some(Version(0)),
                }
            });
            effects.push(Effect::Cut { ino, len_bytes: inode.attr.size_bytes });
        }
        let mut state = State { extents, own: Some(own), ..State::of(partition) };
        state.find_all_undefined(own);
        (state, effects)
    }

    /// Applies what one turn has logged: commands of this node, one of the partition, or both, the
    /// last one at the position `at`. What [`State::apply_deferred`] does is left to do.
    pub fn apply_logged(
        &mut self,
        at: Position,
        local: &[LocalCommand],
        command: Option<(LogIndex, &Command)>,
    ) -> Applied {
        let mut effects = Vec::new();
        let count = local.len() as u64 + u64::from(command.is_some());
        let mut position = Position(at.0 - count);
        let staged = match command {
            // With their command: nothing is kept for a later record.
            Some(_) => {
                local.iter().take_while(|one| matches!(one, LocalCommand::Staged { .. })).count()
            }
            None => 0,
        };
        let (with_command, alone) = local.split_at(staged);
        position.0 += with_command.len() as u64;
        for local in alone {
            position.0 += 1;
            effects.extend(self.apply_local(position, local));
        }
        let Some((index, command)) = command else {
            return Applied { effects, ..Applied::default() };
        };
        let applied = match with_command {
            [] => {
                let staged = self.take_staged(at);
                self.apply_with(&staged, index, command)
            }
            staged => self.apply_with(staged, index, command),
        };
        Applied { effects: effects.into_iter().chain(applied.effects).collect(), ..applied }
    }

    /// Applies a command of the partition that the extents have followed already.
    pub fn apply_known(&mut self, index: LogIndex, command: &Command) {
        self.partition.apply(index, command);
    }

    /// The entry at `index`, which must be `applied + 1`, has no command.
    pub fn skip(&mut self, index: LogIndex) {
        self.apply_deferred();
        self.partition.skip(index);
    }

    /// Applies the partition's command at `index`, which must be `applied + 1`. Returns the reply,
    /// the caches to invalidate, and the effects that the node must perform. Staged bytes count for
    /// it.
    pub fn apply(&mut self, index: LogIndex, command: &Command) -> Applied {
        let staged = self.take_staged(Position(self.staged_at.0 + 1));
        let applied = self.apply_with(&staged, index, command);
        self.apply_deferred();
        applied
    }

    /// The staged bytes of the partition's command at the position `at`. Between the two a power
    /// cut can have taken their command, and another run begun.
    fn take_staged(&mut self, at: Position) -> Vec<LocalCommand> {
        let mut staged = std::mem::take(&mut self.staged);
        if self.staged_at.0 + 1 != at.0 && !Planted::StagedKept.is_on() {
            staged.clear();
        }
        staged
    }

    fn apply_with(
        &mut self,
        staged: &[LocalCommand],
        index: LogIndex,
        command: &Command,
    ) -> Applied {
        self.apply_deferred();
        let outcome = self.partition.apply_namespace(index, command);
        let mut effects = Vec::new();
        let mut is_staged = false;
        for staged in staged {
            if self.is_accepted(&outcome, staged) {
                is_staged = true;
                effects.extend(self.apply_to_extents(staged));
            }
        }
        for change in &outcome.content {
            effects.extend(self.extents.effects_of(change));
            match *change {
                ContentChange::Gone { ino } => self.gone.push(ino),
                // All of it is staged: nothing older is left.
                ContentChange::Written { .. } if is_staged => {}
                _ => self.extents.follow(change),
            }
            if !is_staged {
                self.find_undefined(change);
            }
        }
        if let Command::Extent(command) = command {
            effects.extend(self.apply_local(Position(0), command));
        }
        let Outcome { answer, touched, names, .. } = outcome;
        Applied { answer, touched, names, effects }
    }

    /// Whether another node has dirty bytes of the file that this one has not.
    pub fn lacks_dirty(&self, ino: Ino) -> bool {
        let dirty = self.partition.content().dirty_runs(ino, 0..u64::MAX).into_iter().flatten();
        dirty.into_iter().any(|block| self.extents.block(ino, block).is_none())
    }

    /// Finds all blocks that this node should have and does not know of.
    fn find_all_undefined(&mut self, own: NodeId) {
        let held = self.nodes().holders().filter(|(_, holder)| *holder == own);
        for ino in held.map(|(ino, _)| ino).collect::<Vec<_>>() {
            let content = self.partition.content();
            let dirty = content.dirty_runs(ino, 0..u64::MAX).into_iter().flatten();
            let unknown = dirty.filter(|block| self.extents.block(ino, *block).is_none());
            let versions = unknown.filter_map(|block| {
                content.dirty_version(ino, block).map(|version| (block, version))
            });
            for (block, version) in versions.collect::<Vec<_>>() {
                self.extents.undefined(ino, &[block], version);
                self.undefined.push(ino);
            }
        }
        self.undefined.dedup();
    }

    /// Finds blocks that this node has written, without the record of it.
    fn find_undefined(&mut self, change: &ContentChange) {
        let ino = change.ino();
        let is_holder = self.own.is_some() && self.nodes().holder(ino) == self.own;
        if !is_holder {
            return;
        }
        let (blocks, version): (Vec<u64>, _) = match change {
            ContentChange::Written { blocks, version, .. } => (blocks.clone().collect(), *version),
            ContentChange::Zeroed { edges, version, .. } => (edges.clone(), *version),
            _ => return,
        };
        let content = self.partition.content();
        let is_written = |block: &u64| content.dirty_version(ino, *block) == Some(version);
        let blocks: Vec<u64> = blocks.into_iter().filter(is_written).collect();
        if self.extents.undefined(ino, &blocks, version) {
            self.undefined.push(ino);
        }
    }

    /// Whether the command of the staged bytes has written them.
    fn is_accepted(&self, outcome: &Outcome, staged: &LocalCommand) -> bool {
        let LocalCommand::Staged { ino, version, first, .. } = *staged else { return false };
        let is_written = || self.partition.content().dirty_version(ino, first) == Some(version);
        Planted::StagedKept.is_on() || !outcome.is_refused() && is_written()
    }

    /// Bytes of this node's disk for the next command that is applied.
    pub fn stage(&mut self, staged: &LocalCommand) {
        self.apply_local(Position(self.staged_at.0 + 1), staged);
    }

    /// Applies a command about this node's disk, whose record is at the position `at`. Returns the
    /// effects that the node must perform.
    fn apply_local(&mut self, at: Position, command: &LocalCommand) -> Option<Effect> {
        self.apply_deferred();
        if let LocalCommand::Staged { .. } = command {
            if self.staged_at.0 + 1 != at.0 {
                self.staged.clear();
            }
            self.staged.push(command.clone());
            self.staged_at = at;
            return None;
        }
        match command {
            // The inode can be removed while its bytes are being written.
            LocalCommand::Packed { ino, .. } | LocalCommand::Exposed { ino, .. }
                if self.namespace().inode(*ino).is_none() =>
            {
                None
            }
            LocalCommand::Present { ino, etag, first, sums } => {
                let content = self.partition.content();
                if content.object(*ino).is_some_and(|object| object.etag == *etag) {
                    let (object, is_hole) =
                        (content.object_mark(*ino), |block| content.is_hole(*ino, block));
                    self.extents.fetched(*ino, object, *first, sums, is_hole);
                }
                None
            }
            _ => self.apply_to_extents(command),
        }
    }

    fn apply_to_extents(&mut self, command: &LocalCommand) -> Option<Effect> {
        let vacated = match *command {
            LocalCommand::Packed { ino, range } => self.extents.vacated(ino, range),
            LocalCommand::Staged { ino, range: Some(range), .. } => {
                self.extents.vacated(ino, Some(range))
            }
            _ => None,
        };
        self.extents.apply(command);
        vacated
    }

    pub fn has_deferred(&self) -> bool {
        self.partition.has_deferred()
    }

    /// Lets backing, and content and extents of removed inodes, follow the last command.
    pub fn apply_deferred(&mut self) {
        self.partition.apply_deferred();
        for ino in std::mem::take(&mut self.gone) {
            self.extents.follow(&ContentChange::Gone { ino });
        }
    }
}

#[cfg(test)]
mod tests;
