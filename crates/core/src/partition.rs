//! A partition: the state machine behind one replicated log. It owns the namespace, the session
//! table, the content and the bucket index, and it decides the order in which they follow a
//! command. It has no fact about a disk: [`crate::state`] puts a node's extents beside it.
//!
//! Laws:
//! - [`Partition::apply`] is the only way to change it. The result depends on the state and the
//!   command alone.
//! - A refused command changes nothing but the session table (O-59).
//! - `applied` is the index of the last command; indices have no gaps.
//! - Every version in the state is `<= version`, and `version` never decreases.
//! - A command takes effect on the namespace at once. Backing, and the content of removed inodes,
//!   follow in [`Partition::apply_deferred`]; reading the backing before that is a bug and asserts.

mod rebuild;

pub use rebuild::{Rebuilt, Remains};

use crate::backing::{Backing, BackingItem};
use crate::byte_map::JoinedItem;
use crate::content::{Content, ContentChange, ContentItem, ContentMut};
pub use crate::namespace::Inconsistent;
use crate::namespace::{Change, Namespace, NamespaceItem, Operation};
use crate::nodes::{Nodes, NodesItem};
use crate::session::{Session, Sessions, Verdict};
use ebb_model::*;
use serde::{Deserialize, Serialize};

/// The replicated state, changed by [`Partition::apply`] alone. A clone is O(1).
#[derive(Clone)]
pub struct Partition {
    namespace: Namespace,
    sessions: Sessions,
    content: Content,
    backing: Backing,
    nodes: Nodes,
    applied: LogIndex,
    version: Version,
    /// Changes that backing, and the content of removed inodes, have not followed yet.
    deferred: Vec<Change>,
}

/// One item of a partition's snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SnapshotItem {
    Position {
        applied: LogIndex,
        version: Version,
    },
    Namespace(NamespaceItem),
    Session {
        id: SessionId,
        session: Session,
    },
    /// Of older versions.
    Joined(JoinedItem),
    Backing(BackingItem),
    Content(ContentItem),
    Nodes(NodesItem),
}

/// The outcome of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The reply to a client's mutation; `None` for other commands.
    pub answer: Option<Result<Mutated, RpcError>>,
    /// Inodes with changed attributes, names or data, to invalidate in other clients' caches.
    pub touched: Vec<Ino>,
    /// Names, with their directories, that changed without a client's mutation: each now refers to
    /// another inode or to none.
    pub names: Vec<(Ino, Name)>,
    /// For the extents of each node to follow, in order.
    pub content: Vec<ContentChange>,
}

impl Outcome {
    /// Whether a client's mutation was refused.
    pub fn is_refused(&self) -> bool {
        matches!(self.answer, Some(Err(_)))
    }
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
            backing,
            nodes: Nodes::default(),
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
            .chain(self.content.items().map(SnapshotItem::Content))
            .chain(self.backing().items().map(SnapshotItem::Backing))
            .chain(self.nodes.items().map(SnapshotItem::Nodes))
    }

    /// Restores a partition from [`Partition::items`].
    pub fn from_items(
        items: impl IntoIterator<Item = SnapshotItem>,
    ) -> Result<Partition, Inconsistent> {
        Partition::restore(items, |_| {})
    }

    /// Restores a partition. `restore_more` adds to its content before it is checked.
    pub(crate) fn restore(
        items: impl IntoIterator<Item = SnapshotItem>,
        restore_more: impl FnOnce(&mut Content),
    ) -> Result<Partition, Inconsistent> {
        let mut positions = Vec::new();
        let mut names = Vec::new();
        let mut sessions = Sessions::default();
        let mut content = Content::default();
        let mut backing = Backing::new(false);
        let mut nodes = Nodes::default();
        for item in items {
            match item {
                SnapshotItem::Position { applied, version } => positions.push((applied, version)),
                SnapshotItem::Namespace(item) => names.push(item),
                SnapshotItem::Session { id, session } => sessions.restore(id, session),
                SnapshotItem::Content(item) => content.restore(item),
                SnapshotItem::Backing(item) => backing.restore(item),
                SnapshotItem::Nodes(item) => nodes.restore(item),
                // The caller restores them: they have facts of extents, too.
                SnapshotItem::Joined(_) => {}
            }
        }
        restore_more(&mut content);
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
            backing,
            nodes,
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
        problems.extend(self.content.check());
        problems.extend(self.backing.check(&self.namespace, &self.content));
        problems.extend(self.nodes.check(&self.content));
        for ino in self.content.files() {
            if self.namespace.inode(ino).is_none_or(|inode| inode.attr.kind != FileKind::Regular) {
                problems.push(format!("inode {ino} has content and is not a file"));
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

    pub fn content(&self) -> &Content {
        &self.content
    }

    /// The bucket state. Asserts that it has followed the last command.
    pub fn backing(&self) -> &Backing {
        assert!(!self.has_deferred(), "backing is read before apply_deferred");
        &self.backing
    }

    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Bytes of the inode that are in holes for certain; 0 unless it is a regular file.
    pub fn hole_bytes(&self, attr: &Attr) -> u64 {
        if attr.kind == FileKind::Regular {
            self.content.hole_bytes(attr.ino, attr.size_bytes)
        } else {
            0
        }
    }

    /// Memory of the trees, nearly all of the partition's memory. While a snapshot is written,
    /// changed nodes of the trees exist twice.
    pub fn memory_bytes(&self) -> u64 {
        let (namespace, content) = (self.namespace.memory_bytes(), self.content.memory_bytes());
        let (backing, nodes) = (self.backing.memory_bytes(), self.nodes.memory_bytes());
        (namespace + content + backing + nodes) as u64
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
    /// to invalidate, and the changes for extents to follow.
    pub fn apply(&mut self, index: LogIndex, command: &Command) -> Outcome {
        let outcome = self.apply_namespace(index, command);
        self.apply_deferred();
        outcome
    }

    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Lets backing, and the content of removed inodes, follow the last command.
    pub fn apply_deferred(&mut self) {
        for change in std::mem::take(&mut self.deferred) {
            self.backing.observe(&change, &self.namespace);
            if let Change::Gone { ino, .. } = change {
                self.content.gone(ino);
            }
        }
    }

    /// The entry at `index`, which must be `applied + 1`, has no command.
    pub fn skip(&mut self, index: LogIndex) {
        assert_eq!(index.0, self.applied.0 + 1, "log indices have no gaps");
        self.applied = index;
    }

    /// Like [`Partition::apply`], but backing, and the content of removed inodes, do not follow
    /// yet. Use only between a command and its reply.
    pub fn apply_namespace(&mut self, index: LogIndex, command: &Command) -> Outcome {
        self.apply_deferred();
        assert_eq!(index.0, self.applied.0 + 1, "log indices have no gaps");
        self.applied = index;
        let mut changes = Vec::new();
        let mut stale = Vec::new();
        let mut content = Vec::new();
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
                self.found(*ino, (*first, sums.len() as u64), *stamp, &mut changes)
            }
            Command::Found { ino, first, count, stamp } => {
                self.found(*ino, (*first, *count), *stamp, &mut changes)
            }
            Command::BytesRepeated { .. } => None,
            Command::Nodes(command) => {
                self.nodes.apply(command, &self.content);
                None
            }
            // In logs of older versions, about the disk of the node.
            Command::Extent(_) => None,
            Command::Backing(command) => {
                self.advance(command.stamp());
                stale = self.backing.apply(
                    self.version,
                    command,
                    &mut self.namespace,
                    &mut ContentMut::new(&mut self.content, &mut content),
                    &mut changes,
                );
                None
            }
        };
        let touched = self.observe(&changes, stale, &mut content);
        let names = if answer.is_none() { names_of(&changes) } else { Vec::new() };
        // A repeated reply has no hole count: the holes can have changed since.
        if let Some(Ok(Mutated { attr: Some(attr), index: executed, .. })) = &mut answer
            && *executed == index
        {
            attr.hole_bytes = self.hole_bytes(attr);
        }
        for change in &content {
            self.nodes.follow(change, &self.content);
        }
        if let Some(Ok(_)) = answer {
            self.nodes.carried_out(index, command);
        }
        self.deferred = changes;
        Outcome { answer, touched, names, content }
    }

    fn found(
        &mut self,
        ino: Ino,
        blocks: (u64, u64),
        stamp: Stamp,
        changes: &mut Vec<Change>,
    ) -> Option<Result<Mutated, RpcError>> {
        if self.namespace.found(ino, blocks, stamp, changes) {
            self.advance(Some(stamp));
        }
        None
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

    fn close_session(&mut self, session: SessionId, changes: &mut Vec<Change>) {
        self.sessions.close(session);
        self.namespace.release_all(session, changes);
    }

    fn advance(&mut self, stamp: Option<Stamp>) {
        if let Some(stamp) = stamp {
            self.version = self.version.max(stamp.version);
        }
    }

    /// Lets the content of existing files follow the namespace's changes, in order. Returns the
    /// inodes with stale caches: `touched` changed without a change of the namespace.
    fn observe(
        &mut self,
        changes: &[Change],
        mut touched: Vec<Ino>,
        content: &mut Vec<ContentChange>,
    ) -> Vec<Ino> {
        for change in changes {
            touched.extend(change.inodes());
            match *change {
                Change::Gone { ino, .. } => content.push(ContentChange::Gone { ino }),
                _ => ContentMut::new(&mut self.content, content).observe(change),
            }
        }
        touched.sort_unstable();
        touched.dedup();
        touched
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
