//! A partition: the state machine behind one replicated log. It owns the namespace, the session
//! table, the content, the extents and the bucket index, and it decides the order in which they
//! follow a command.
//!
//! Laws:
//! - [`Partition::apply`] is the only way to change it. The result depends on the state and the
//!   command alone.
//! - A refused command changes nothing but the session table (O-59).
//! - `applied` is the index of the last command; indices have no gaps.
//! - Every version in the state is `<= version`, and `version` never decreases.
//! - A command takes effect on the namespace at once. Backing, and content and extents of removed
//!   inodes, follow in [`Partition::apply_deferred`]; reading the backing before that is a bug and
//!   asserts.

mod rebuild;

pub use rebuild::{Rebuilt, Remains};

use crate::backing::{Backing, BackingItem};
use crate::blocks;
use crate::byte_map::{self, ByteMap, ByteMapMut, ExtentItem};
use crate::content::Content;
use crate::extent::Extents;
pub use crate::namespace::Inconsistent;
use crate::namespace::{Change, Namespace, NamespaceItem, Operation};
use crate::session::{Session, Sessions, Verdict};
use ebb_model::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The replicated state, changed by [`Partition::apply`] alone. A clone is O(1).
#[derive(Clone)]
pub struct Partition {
    namespace: Namespace,
    sessions: Sessions,
    content: Content,
    extents: Extents,
    backing: Backing,
    applied: LogIndex,
    version: Version,
    /// Changes that backing, and content and extents of removed inodes, have not followed yet.
    deferred: Vec<Change>,
}

/// One item of a partition's snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SnapshotItem {
    Position { applied: LogIndex, version: Version },
    Namespace(NamespaceItem),
    Session { id: SessionId, session: Session },
    Extent(ExtentItem),
    Backing(BackingItem),
}

/// Work for the node after a command. Every effect is idempotent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The inode was removed: delete its store file.
    Drop { ino: Ino },
    /// The file was truncated: bytes from `len_bytes` on must never be read again.
    Cut { ino: Ino, len_bytes: u64 },
    /// These blocks became holes: deallocate their space.
    Punch { ino: Ino, blocks: Range<u64> },
    /// No file uses this range of a pack file any more: deallocate its space.
    Vacate { range: PackRange },
}

/// The outcome of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The reply to a client's mutation; `None` for other commands.
    pub answer: Option<Result<Mutated, RpcError>>,
    /// Inodes with changed attributes, names or data, to invalidate in other clients' caches.
    pub touched: Vec<Ino>,
    /// Names, with their directories, that changed without a client's mutation: each now refers to
    /// another inode or to none.
    pub names: Vec<(Ino, Name)>,
    pub effects: Vec<Effect>,
}

impl Partition {
    /// An empty volume. `backed`: a bucket exists, and its names are not loaded yet.
    pub fn new(ids: IdRange, root: InstalledRecord, backed: bool) -> Partition {
        let namespace = Namespace::new(ids, root);
        let backing = Backing::new(backed);
        Partition {
            namespace,
            sessions: Sessions::default(),
            content: Content::default(),
            extents: Extents::default(),
            backing,
            applied: LogIndex(0),
            version: Version(0),
            deferred: Vec::new(),
        }
    }

    /// All items of a snapshot, in an order determined by the state. A clone of the partition is
    /// O(1) and stays unchanged while the original applies further commands.
    pub fn items(&self) -> impl Iterator<Item = SnapshotItem> {
        let sessions = self
            .sessions
            .iter()
            .map(|(id, session)| SnapshotItem::Session { id, session: session.clone() });
        std::iter::once(SnapshotItem::Position { applied: self.applied, version: self.version })
            .chain(self.namespace.items().map(SnapshotItem::Namespace))
            .chain(sessions)
            .chain(byte_map::items(&self.content, &self.extents).map(SnapshotItem::Extent))
            .chain(self.backing().items().map(SnapshotItem::Backing))
    }

    /// Restores a partition from [`Partition::items`].
    pub fn from_items(
        items: impl IntoIterator<Item = SnapshotItem>,
    ) -> Result<Partition, Inconsistent> {
        let mut positions = Vec::new();
        let mut names = Vec::new();
        let mut sessions = Sessions::default();
        let (mut content, mut extents) = (Content::default(), Extents::default());
        let mut backing = Backing::new(false);
        for item in items {
            match item {
                SnapshotItem::Position { applied, version } => positions.push((applied, version)),
                SnapshotItem::Namespace(item) => names.push(item),
                SnapshotItem::Session { id, session } => sessions.restore(id, session),
                SnapshotItem::Extent(item) => byte_map::restore(&mut content, &mut extents, item),
                SnapshotItem::Backing(item) => backing.restore(item),
            }
        }
        let [(applied, version)] = positions[..] else {
            return Err(Inconsistent {
                problems: vec![format!("there are {} positions", positions.len())],
            });
        };
        let namespace = Namespace::from_items(names)?;
        let partition = Partition {
            namespace,
            sessions,
            content,
            extents,
            backing,
            applied,
            version,
            deferred: Vec::new(),
        };
        let problems = partition.check();
        if problems.is_empty() { Ok(partition) } else { Err(Inconsistent { problems }) }
    }

    /// Descriptions of broken laws. Empty unless there is a bug or the snapshot was modified.
    pub fn check(&self) -> Vec<String> {
        let mut problems = self.namespace.check();
        problems.extend(byte_map::check(&self.content, &self.extents));
        problems.extend(self.backing.check(&self.namespace, self.extents()));
        for ino in self.extents().files().chain(self.extents.exposed()) {
            if self.namespace.inode(ino).is_none_or(|inode| inode.attr.kind != FileKind::Regular) {
                problems.push(format!("inode {ino} has extents and is not a file"));
            }
        }
        problems
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Content and extents, joined.
    pub fn extents(&self) -> ByteMap<'_> {
        ByteMap::new(&self.content, &self.extents)
    }

    fn extents_mut(&mut self) -> ByteMapMut<'_> {
        ByteMapMut::new(&mut self.content, &mut self.extents)
    }

    /// The bucket state. Asserts that it has followed the last command.
    pub fn backing(&self) -> &Backing {
        assert!(!self.has_deferred(), "backing is read before catch_up");
        &self.backing
    }

    /// Bytes of the inode that are in holes for certain; 0 unless it is a regular file.
    pub fn hole_bytes(&self, attr: &Attr) -> u64 {
        if attr.kind == FileKind::Regular {
            self.extents().hole_bytes(attr.ino, attr.size_bytes)
        } else {
            0
        }
    }

    /// Dirty bytes of orphan inodes. They never go to the bucket, so no flush waits for them.
    pub fn orphan_bytes(&self) -> u64 {
        self.namespace.orphans().map(|(ino, _)| self.extents().dirty_bytes_of(ino)).sum()
    }

    /// Memory of the trees, nearly all of the partition's memory. While a snapshot is written,
    /// changed nodes of the trees exist twice.
    pub fn memory_bytes(&self) -> u64 {
        (self.namespace.memory_bytes()
            + self.content.memory_bytes()
            + self.extents.memory_bytes()
            + self.backing.memory_bytes()) as u64
    }

    /// Index of the last command.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Version of the last stamp.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The version for the stamp of the next command.
    pub fn next_version(&self) -> Version {
        Version(self.version.0 + 1)
    }

    /// Applies the command at `index`, which must be `applied + 1`. Returns the reply, the caches
    /// to invalidate, and the effects that the node must perform.
    pub fn apply(&mut self, index: LogIndex, command: &Command) -> Applied {
        let applied = self.apply_namespace(index, command);
        self.apply_deferred();
        applied
    }

    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Lets backing, and content and extents of removed inodes, follow the last command.
    pub fn apply_deferred(&mut self) {
        for change in std::mem::take(&mut self.deferred) {
            self.backing.observe(&change, &self.namespace);
            if let Change::Gone { .. } = change {
                self.extents_mut().observe(&change);
            }
        }
    }

    /// Like [`Partition::apply`], but backing, and content and extents of removed inodes, do not
    /// follow yet.
    /// Use only between a command and its reply.
    pub fn apply_namespace(&mut self, index: LogIndex, command: &Command) -> Applied {
        self.apply_deferred();
        assert_eq!(index.0, self.applied.0 + 1, "log indices have no gaps");
        self.applied = index;
        let mut changes = Vec::new();
        let mut stale = Vec::new();
        let mut vacated = None;
        let mut answer = match command {
            Command::SessionOpen { session, client, replaces } => {
                if let Some(old) = replaces {
                    self.close_session(*old, &mut changes);
                }
                self.sessions.open(*session, client.clone());
                None
            }
            Command::SessionClose { session } => {
                self.close_session(*session, &mut changes);
                None
            }
            Command::Client { tx, caller, stamp, mutation } => {
                let op =
                    &mut Operation { caller, stamp: *stamp, trash: None, changes: &mut changes };
                Some(self.client(index, *tx, mutation, op, Namespace::mutate))
            }
            Command::Repeated { tx, caller, stamp, mutation } => {
                let op =
                    &mut Operation { caller, stamp: *stamp, trash: None, changes: &mut changes };
                Some(self.client(index, *tx, mutation, op, Namespace::repeat))
            }
            Command::Discard { tx, caller, stamp, mutation, trash, repeated } => {
                let op = &mut Operation {
                    caller,
                    stamp: *stamp,
                    trash: Some(trash),
                    changes: &mut changes,
                };
                let carry_out = if *repeated { Namespace::repeat } else { Namespace::mutate };
                Some(self.client(index, *tx, mutation, op, carry_out))
            }
            Command::Restore { ino, to, name, stamp } => {
                if self.may_restore(*ino, *to, name).is_ok() {
                    self.namespace.restore(*ino, *to, name, *stamp, &mut changes);
                    self.advance(Some(*stamp));
                }
                None
            }
            Command::Purge { ino, holders, stamp } => {
                if self.namespace.purge(*ino, holders, *stamp, &mut changes) {
                    self.advance(Some(*stamp));
                }
                None
            }
            Command::Quota { dir, limits, stamp } => {
                if self.namespace.set_quota(*dir, *limits, *stamp, &mut changes).is_ok() {
                    self.advance(Some(*stamp));
                }
                None
            }
            Command::ReserveIds { upto } => {
                self.namespace.reserve_ids(*upto);
                None
            }
            Command::Release { session, ino } => {
                self.namespace.release(*session, *ino, &mut changes);
                None
            }
            Command::Stored { ino, first, sums, stamp } => {
                if self.namespace.stored(*ino, *first, sums, *stamp, &mut changes) {
                    self.advance(Some(*stamp));
                }
                None
            }
            // The inode can be removed while its bytes are being written.
            Command::Extent(
                ExtentCommand::Packed { ino, .. } | ExtentCommand::Exposed { ino, .. },
            ) if self.namespace.inode(*ino).is_none() => None,
            Command::Extent(command) => {
                if let ExtentCommand::Packed { ino, range } = *command {
                    vacated = self.vacated(ino, range);
                }
                self.extents_mut().apply(command);
                None
            }
            Command::Backing(command) => {
                self.advance(command.stamp());
                stale = self.backing.apply(
                    self.version,
                    command,
                    &mut self.namespace,
                    &mut ByteMapMut::new(&mut self.content, &mut self.extents),
                    &mut changes,
                );
                None
            }
        };
        let (touched, mut effects) = self.observe(&changes, stale);
        effects.extend(vacated);
        let names = if answer.is_none() { names_of(&changes) } else { Vec::new() };
        // A repeated reply has no hole count: the holes can have changed since.
        if let Some(Ok(Mutated { attr: Some(attr), index: executed, .. })) = &mut answer
            && *executed == index
        {
            attr.hole_bytes = self.hole_bytes(attr);
        }
        self.deferred = changes;
        Applied { answer, touched, names, effects }
    }

    fn client(
        &mut self,
        index: LogIndex,
        tx: TxId,
        mutation: &Mutation,
        op: &mut Operation,
        carry_out: fn(&mut Namespace, &Mutation, &mut Operation) -> Result<Option<Attr>, FsError>,
    ) -> Result<Mutated, RpcError> {
        match self.sessions.check(tx) {
            Verdict::New => {}
            Verdict::Done(answer) => return answer,
            Verdict::Misordered => return Err(RpcError::Misordered),
            Verdict::Unknown => return Err(RpcError::SessionExpired),
        }
        let result = self
            .backing
            .admit(mutation, &self.namespace)
            .and_then(|()| carry_out(&mut self.namespace, mutation, op));
        if result.is_ok() {
            self.advance(Some(op.stamp));
        } else {
            assert!(op.changes.is_empty(), "a refused mutation changes nothing");
        }
        let answer = result.map_err(RpcError::Refused).map(|attr| Mutated {
            attr,
            index,
            replay: mutation.replay(op.stamp),
        });
        self.sessions.record(tx, answer.clone());
        answer
    }

    /// Whether an inode in the trash can be restored to `name` in the directory `to`.
    pub fn may_restore(&self, ino: Ino, to: Ino, name: &Name) -> Result<(), FsError> {
        let named = Mutation::Link { ino, parent: to, name: name.clone() };
        self.backing
            .admit(&named, &self.namespace)
            .and_then(|()| self.namespace.may_restore(ino, to, name))
    }

    /// The pack range that a file leaves when it gets another location. A range that grows in place
    /// is not left.
    fn vacated(&self, ino: Ino, new: Option<PackRange>) -> Option<Effect> {
        let range = self.extents.packed(ino)?;
        let stays = new.is_some_and(|new| new.begins_as(&range));
        (!stays).then_some(Effect::Vacate { range })
    }

    fn close_session(&mut self, session: SessionId, changes: &mut Vec<Change>) {
        self.sessions.close(session);
        self.namespace.release_all(session, changes);
    }

    fn advance(&mut self, stamp: Option<Stamp>) {
        if let Some(stamp) = stamp {
            self.version = self.version.max(stamp.version);
        }
    }

    /// Lets content and extents of existing files follow the namespace's changes, in order.
    /// `touched`: inodes that changed without a change of the namespace.
    fn observe(&mut self, changes: &[Change], mut touched: Vec<Ino>) -> (Vec<Ino>, Vec<Effect>) {
        let mut effects = Vec::new();
        for change in changes {
            if let Change::Zeroed { ino, range, .. } = change {
                let runs = self.extents().resident_runs(
                    *ino,
                    blocks::whole_blocks(range.start, range.end - range.start),
                );
                effects.extend(runs.into_iter().map(|blocks| Effect::Punch { ino: *ino, blocks }));
            }
            if let Change::Written { ino, packed: Some(range), .. } = *change {
                effects.extend(self.vacated(ino, Some(range)));
            }
            touched.extend(change.inodes());
            if let Change::Gone { ino, .. } = *change {
                effects.extend(self.vacated(ino, None));
                effects.push(Effect::Drop { ino });
                continue;
            }
            self.extents_mut().observe(change);
            match *change {
                Change::Resized { ino, old_bytes, new_bytes, .. } if new_bytes < old_bytes => {
                    effects.push(Effect::Cut { ino, len_bytes: new_bytes });
                }
                _ => {}
            }
        }
        touched.sort_unstable();
        touched.dedup();
        (touched, effects)
    }
}

fn names_of(changes: &[Change]) -> Vec<(Ino, Name)> {
    let name = |change: &Change| match change {
        Change::Linked { parent, name, .. } | Change::Unlinked { parent, name, .. } => {
            Some((*parent, name.clone()))
        }
        _ => None,
    };
    changes.iter().filter_map(name).collect()
}
