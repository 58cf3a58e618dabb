//! A naive file system: the checker's model of a volume. It shares no code with the core.

mod data;
mod mutate;
mod node;
mod quota;
mod streams;

use super::content::Content;
use super::history::{ClientId, Op, OpId, Outcome, SeenNode, SeenTree, StreamId};
use super::times::{Moment, Span, Times};
use bytes::Bytes;
use ebb_model::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use streams::Stream;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NodeId(u64);

const ROOT: NodeId = NodeId(0);

/// One state of a volume. Clones share the unchanged nodes.
///
/// Laws: every node but the root is an entry of some directory, or is held open, or may vanish at
/// any moment; `by_ino` holds the nodes whose inode id has been seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    nodes: BTreeMap<NodeId, Rc<Node>>,
    by_ino: BTreeMap<Ino, NodeId>,
    /// An inode that loses its last name goes to a trash, which no client reads.
    keeps: bool,
    /// Directory streams between their first page and their last.
    streams: BTreeMap<StreamId, Stream>,
    /// Inodes beside the root that a quota of the root allows.
    inode_limit: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Node {
    /// `None` until somebody has been told.
    ino: Option<Ino>,
    kind: FileKind,
    mode: u16,
    uid: u32,
    gid: u32,
    rdev: u32,
    times: Times,
    target: Bytes,
    xattrs: BTreeMap<Bytes, Bytes>,
    content: Content,
    /// Contents since the last force. Each of them is possible after a power cut.
    unforced: Vec<Content>,
    /// Ranges changed since the last force: a power cut may lose their bytes altogether, so that
    /// they read as zeros. All other ranges stay as they are.
    changed_bytes: Vec<Range<u64>>,
    /// Possible contents that were not written so: a write failed half-way, or the power was cut.
    smeared: Vec<Content>,
    entries: BTreeMap<Name, NodeId>,
    /// Names it has; of a directory 1 or, once removed, 0.
    links: u32,
    opens: BTreeMap<ClientId, u32>,
    /// It was made without a name and may still get one.
    linkable: bool,
    /// Somebody has changed it, so that its times are on record.
    changed: bool,
}

/// The reason why this state does not give an outcome.
pub type Mismatch = String;

/// A request of a client. `outcome` is its answer, or `None` if the answer is not known.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub client: ClientId,
    pub id: OpId,
    pub outcome: Option<&'a Outcome>,
    pub span: Span<'a>,
    /// The directory stream of the page that is read, if the client reads it to its end.
    pub stream: Option<StreamId>,
    /// The node's disk is full at times, and cuts writes short.
    pub may_be_short: bool,
    /// That has happened to this write, which has no answer, before the end of the file.
    pub cut_short: bool,
}

impl Asked<'_> {
    /// Nobody knows how many of its bytes a write has written.
    fn is_unanswered(&self) -> bool {
        self.may_be_short && self.outcome.is_none()
    }
}

impl Tree {
    /// A volume with nothing in it.
    pub fn empty() -> Tree {
        let root = Node::new(FileKind::Directory, 0o755);
        Tree {
            nodes: BTreeMap::from([(ROOT, Rc::new(Node { ino: Some(Ino::ROOT), ..root }))]),
            by_ino: BTreeMap::from([(Ino::ROOT, ROOT)]),
            keeps: false,
            streams: BTreeMap::new(),
            inode_limit: None,
        }
    }

    /// With objects that others had put into the bucket before: directories and files as
    /// ebb shows those that it knows nothing of.
    pub fn with_objects<'a>(objects: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Tree {
        let mut tree = Tree::empty();
        let mut next = FOUND;
        for (key, body) in objects {
            let mut dir = ROOT;
            let (path, file) = key.rsplit_once('/').map_or(("", key), |(path, file)| (path, file));
            for segment in path.split('/').filter(|segment| !segment.is_empty()) {
                let name =
                    Name::new(segment.as_bytes()).expect("scenarios use keys that are paths");
                dir = match tree.nodes[&dir].entries.get(&name) {
                    Some(known) => *known,
                    None => {
                        next += 1;
                        tree.enter(dir, &name, NodeId(next), Node::new(FileKind::Directory, 0o755));
                        NodeId(next)
                    }
                };
            }
            next += 1;
            let name = Name::new(file.as_bytes()).expect("scenarios use keys that are paths");
            tree.enter(
                dir,
                &name,
                NodeId(next),
                Node { content: Content::from_bytes(body), ..Node::new(FileKind::Regular, 0o644) },
            );
        }
        tree
    }

    /// From the beginning on everything that is removed is kept, as this attribute of the root
    /// says.
    pub fn keeping(mut self, name: Bytes, value: Bytes) -> Tree {
        self.change(ROOT).xattrs.insert(name, value);
        Tree { keeps: true, ..self }
    }

    /// The state after an operation, if the state explains its outcome. Without an outcome any
    /// effect of it is accepted.
    pub fn step(&self, asked: &Asked<'_>, op: &Op) -> Result<Tree, Mismatch> {
        let mut next = self.clone();
        let client = asked.client;
        // An inode without a name that nobody has open may have gone already.
        if let Some(Outcome::Failed(FsError::Stale)) = asked.outcome
            && addressed(op).into_iter().any(|ino| next.may_be_gone(ino))
        {
            return Ok(next);
        }
        if asked.outcome == Some(&Outcome::Failed(FsError::QuotaExceeded)) {
            return self.refused_by_quota(asked, op);
        }
        match op {
            Op::Mutate(mutation) => {
                next.mutate(asked, mutation)?;
                next.streams_follow();
            }
            Op::Lookup { parent, name } => next.lookup(asked, *parent, name)?,
            Op::GetAttr { ino } => match next.by_ino.get(ino).copied() {
                Some(node) => next.expect_attr(asked, node)?,
                None => asked.expect_one_of(&[FsError::Stale])?,
            },
            Op::ReadLink { ino } => match next.at(*ino) {
                Err(errors) => asked.expect_one_of(&errors)?,
                Ok(node) if next.nodes[&node].kind != FileKind::Symlink => {
                    asked.expect_one_of(&[FsError::Invalid])?
                }
                Ok(node) => asked.expect(&Outcome::Link(next.nodes[&node].target.clone()))?,
            },
            Op::ReadDir { dir, after, limit, .. } => next.read_dir(asked, *dir, *after, *limit)?,
            Op::Read { ino, offset, len_bytes } => next.read(asked, *ino, *offset, *len_bytes)?,
            Op::Seek { ino, offset, to } => next.seek(asked, *ino, *offset, *to)?,
            Op::Xattrs { ino } => match next.at(*ino) {
                Err(errors) => asked.expect_one_of(&errors)?,
                Ok(node) => asked
                    .expect(&Outcome::Names(next.nodes[&node].xattrs.keys().cloned().collect()))?,
            },
            Op::Open { ino } => match next.at(*ino) {
                Err(errors) => asked.expect_one_of(&errors)?,
                // Only a client that has an inode without a name open can open it once more.
                Ok(node)
                    if next.is_nameless(node) && !next.nodes[&node].opens.contains_key(&client) =>
                {
                    asked.expect_one_of(&[FsError::Stale])?;
                }
                Ok(node) => {
                    asked.expect(&Outcome::Done)?;
                    *next.change(node).opens.entry(client).or_default() += 1;
                }
            },
            Op::Close { ino } => {
                if let Ok(node) = next.at(*ino) {
                    next.close(client, node, 1);
                }
            }
            Op::Fsync { ino } => {
                asked.expect(&Outcome::Done)?;
                if let Ok(node) = next.at(*ino) {
                    next.forced(node);
                }
            }
            Op::SyncFs => {
                asked.expect(&Outcome::Done)?;
                next.forced_all();
            }
        }
        Ok(next)
    }

    /// The bytes of a file, and those that may stand in place of them.
    pub fn bytes_of(&self, ino: Ino) -> Option<(&Content, &[Content])> {
        self.by_ino.get(&ino).map(|id| self.nodes[id].bytes())
    }

    /// As [`Tree::bytes_of`], of all files.
    pub fn all_bytes(&self) -> impl Iterator<Item = (&Content, &[Content])> {
        let files = self.nodes.values().filter(|node| node.kind == FileKind::Regular);
        files.map(|node| node.bytes())
    }

    /// The operation is about an inode without a name.
    pub fn is_about_nameless(&self, op: &Op) -> bool {
        addressed(op)
            .into_iter()
            .any(|ino| self.by_ino.get(&ino).is_some_and(|id| self.nodes[id].links == 0))
    }

    /// Nothing is open by the client any more.
    pub fn client_gone(&mut self, client: ClientId) {
        let held: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.opens.contains_key(&client))
            .map(|(id, _)| *id)
            .collect();
        for node in held {
            self.close(client, node, u32::MAX);
        }
    }

    /// Bytes that were written and not forced may be any of those that other states have.
    pub fn smear(&mut self, states: &[Rc<Tree>]) {
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            let mut variants = Vec::new();
            let mut lost = self.nodes[&id].content.clone();
            for range in &self.nodes[&id].changed_bytes {
                lost.zero(range.start, range.end - range.start);
            }
            for state in states {
                if let Some(node) = state.nodes.get(&id) {
                    for range in &node.changed_bytes {
                        lost.zero(range.start, range.end - range.start);
                    }
                    add_new(&mut variants, &node.content);
                    node.unforced.iter().for_each(|content| add_new(&mut variants, content));
                    node.smeared.iter().for_each(|content| add_new(&mut variants, content));
                }
            }
            let node = &self.nodes[&id];
            node.unforced.iter().for_each(|content| add_new(&mut variants, content));
            node.smeared.iter().for_each(|content| add_new(&mut variants, content));
            if variants.iter().any(|variant| *variant != node.content) {
                add_new(&mut variants, &lost);
            }
            if !variants.is_empty() || !node.unforced.is_empty() {
                let node = self.change(id);
                node.smeared = variants;
                node.unforced.clear();
                node.changed_bytes.clear();
            }
        }
    }

    /// Takes on a tree that was seen whole, if this state explains it.
    pub fn seen(
        &self,
        tree: &SeenTree,
        same_inos: bool,
        span: &Span<'_>,
    ) -> Result<Tree, Mismatch> {
        let mut next = self.clone();
        next.nodes.retain(|id, node| !self.is_nameless(*id) || !node.opens.is_empty());
        let left: BTreeSet<NodeId> = next.nodes.keys().copied().collect();
        next.by_ino.retain(|_, node| left.contains(node));
        if !same_inos {
            // An inode on no record gets its id when it is found, and a directory its times too.
            for node in
                next.nodes.values_mut().filter(|node| !node.changed && node.ino != Some(Ino::ROOT))
            {
                let node = Rc::make_mut(node);
                if let Some(ino) = node.ino.take() {
                    next.by_ino.remove(&ino);
                }
            }
            for node in next.nodes.values_mut().map(Rc::make_mut) {
                node.times.forget_version();
                if !node.changed && node.kind == FileKind::Directory {
                    node.times = Times::all(Moment::Unknown);
                }
            }
        }
        let mut mine = BTreeMap::new();
        next.list(ROOT, &mut Vec::new(), &mut mine);
        if let Some(path) = mine.keys().find(|path| !tree.contains_key(*path)) {
            return Err(format!("{:?} is not there", path.escape_ascii().to_string()));
        }
        for (path, seen) in tree {
            let shown = path.escape_ascii();
            let node = *mine
                .get(path)
                .ok_or_else(|| format!("\"{shown}\" is there, but should not be"))?;
            next.take_on(node, seen, span).map_err(|why| format!("\"{shown}\": {why}"))?;
        }
        Ok(next)
    }

    fn take_on(&mut self, id: NodeId, seen: &SeenNode, span: &Span<'_>) -> Result<(), Mismatch> {
        self.tell(id, &seen.attr, span)?;
        let subdirectories = self.nodes[&id]
            .entries
            .values()
            .filter(|child| self.nodes[*child].kind == FileKind::Directory)
            .count();
        let node = self.change(id);
        if node.kind == FileKind::Directory && seen.attr.nlink as usize != 2 + subdirectories {
            return Err(format!(
                "has {} links and {subdirectories} directories in it",
                seen.attr.nlink
            ));
        }
        if node.target != seen.target {
            return Err("links to somewhere else".into());
        }
        if node.xattrs != seen.xattrs {
            return Err(format!(
                "has the extended attributes {:?} in place of {:?}",
                seen.xattrs, node.xattrs
            ));
        }
        if node.kind == FileKind::Regular {
            if seen.content.len() as u64 != node.content.size() {
                return Err(format!(
                    "has {} readable bytes of {}",
                    seen.content.len(),
                    node.content.size()
                ));
            }
            if let Some(at) = node.content.first_stranger(&node.smeared, 0, &seen.content) {
                return Err(format!("byte {at} is not what was written"));
            }
            if !node.smeared.is_empty() {
                let before =
                    std::mem::replace(&mut node.content, Content::from_bytes(&seen.content));
                // Bytes on their way to the disk may still arrive, until later bytes are forced
                // over them, and the bytes before them may come back.
                for content in std::mem::take(&mut node.smeared).into_iter().chain([before]) {
                    add_new(&mut node.unforced, &content);
                }
            }
        }
        Ok(())
    }

    fn lookup(&mut self, asked: &Asked<'_>, parent: Ino, name: &Name) -> Result<(), Mismatch> {
        match self.child(parent, name) {
            Ok((_, node)) => self.expect_attr(asked, node),
            Err(errors) => asked.expect_one_of(&errors),
        }
    }

    fn expect_attr(&mut self, asked: &Asked<'_>, id: NodeId) -> Result<(), Mismatch> {
        match asked.outcome {
            None => {
                self.untold(asked, id);
                Ok(())
            }
            Some(Outcome::Attr(attr)) => self.tell(id, attr, &asked.span),
            Some(other) => Err(format!("{other:?} in place of success")),
        }
    }

    /// The operation has no answer that shows its time.
    fn untold(&mut self, asked: &Asked<'_>, id: NodeId) {
        if self.nodes[&id].times.has_now() {
            self.change(id).times.untold(&asked.span);
        }
    }

    /// A client is told the attributes.
    fn tell(&mut self, id: NodeId, attr: &Attr, span: &Span<'_>) -> Result<(), Mismatch> {
        self.bind(id, attr.ino)?;
        let times = self.check_attr(id, attr, span)?;
        if self.nodes[&id].times != times {
            self.change(id).times = times;
        }
        Ok(())
    }

    /// Returns the times as they are known after the answer, if the attributes are right.
    fn check_attr(&self, id: NodeId, attr: &Attr, span: &Span<'_>) -> Result<Times, Mismatch> {
        let node = &self.nodes[&id];
        let links = if self.is_kept(id) { 1 } else { node.links };
        let is_directory = node.kind == FileKind::Directory;
        node.check_attr(attr, if is_directory { None } else { Some(links) })?;
        node.times.told(attr, is_directory, span)
    }

    fn bind(&mut self, id: NodeId, ino: Ino) -> Result<(), Mismatch> {
        match self.nodes[&id].ino {
            Some(known) if known == ino => Ok(()),
            Some(known) => Err(format!("is inode {ino} in place of {known}")),
            None => match self.by_ino.insert(ino, id) {
                Some(other) if other != id => Err(format!("is inode {ino}, which is another")),
                _ => {
                    self.change(id).ino = Some(ino);
                    Ok(())
                }
            },
        }
    }

    fn at(&self, ino: Ino) -> Result<NodeId, Vec<FsError>> {
        self.by_ino.get(&ino).copied().ok_or_else(|| vec![FsError::Stale])
    }

    fn dir(&self, ino: Ino) -> Result<NodeId, Vec<FsError>> {
        let id = self.at(ino)?;
        let node = &self.nodes[&id];
        match node.kind {
            FileKind::Directory if node.links == 0 => Err(vec![FsError::NotFound]),
            FileKind::Directory => Ok(id),
            _ => Err(vec![FsError::NotDirectory]),
        }
    }

    fn child(&self, parent: Ino, name: &Name) -> Result<(NodeId, NodeId), Vec<FsError>> {
        let dir = self.dir(parent)?;
        let node = self.nodes[&dir].entries.get(name).ok_or_else(|| vec![FsError::NotFound])?;
        Ok((dir, *node))
    }

    fn name_errors(&self, parent: Ino, name: &Name, taken: FsError) -> Vec<FsError> {
        match self.dir(parent) {
            Err(errors) => errors,
            Ok(dir) if self.nodes[&dir].entries.contains_key(name) => vec![taken],
            Ok(_) => vec![],
        }
    }

    fn xattr_holder(&self, ino: Ino) -> Result<NodeId, FsError> {
        let id = self.by_ino.get(&ino).copied().ok_or(FsError::Stale)?;
        match self.nodes[&id].kind {
            FileKind::Regular | FileKind::Directory => Ok(id),
            _ => Err(FsError::NotPermitted),
        }
    }

    fn may_be_gone(&self, ino: Ino) -> bool {
        self.by_ino
            .get(&ino)
            .is_none_or(|id| self.is_nameless(*id) && self.nodes[id].opens.is_empty())
    }

    /// It has lost its last name, and is in the trash.
    fn is_kept(&self, id: NodeId) -> bool {
        self.keeps && self.nodes[&id].links == 0 && !self.nodes[&id].linkable
    }

    fn is_nameless(&self, id: NodeId) -> bool {
        self.nodes[&id].links == 0 && !self.is_kept(id)
    }

    fn contains(&self, outer: NodeId, inner: NodeId) -> bool {
        outer == inner
            || self.nodes[&outer].entries.values().any(|child| self.contains(*child, inner))
    }

    fn enter(&mut self, dir: NodeId, name: &Name, id: NodeId, node: Node) {
        self.nodes.insert(id, Rc::new(node));
        self.change(dir).entries.insert(name.clone(), id);
    }

    fn strike(&mut self, asked: &Asked<'_>, dir: NodeId, name: &Name, node: NodeId) {
        let dir = self.change(dir);
        dir.entries.remove(name);
        dir.touch(asked);
        let keeps = self.keeps;
        let node = self.change(node);
        node.links -= 1;
        node.changed |= keeps;
        node.times.change(asked.span.since());
    }

    fn close(&mut self, client: ClientId, id: NodeId, count: u32) {
        let node = self.change(id);
        if let Some(held) = node.opens.get_mut(&client) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                node.opens.remove(&client);
            }
        }
    }

    fn change(&mut self, id: NodeId) -> &mut Node {
        Rc::make_mut(self.nodes.get_mut(&id).expect("a node that was found is there"))
    }

    fn list(&self, dir: NodeId, path: &mut Vec<u8>, found: &mut BTreeMap<Vec<u8>, NodeId>) {
        found.insert(path.clone(), dir);
        for (name, child) in &self.nodes[&dir].entries {
            let len = path.len();
            if len > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            self.list(*child, path, found);
            path.truncate(len);
        }
    }
}

impl Asked<'_> {
    fn expect(&self, expected: &Outcome) -> Result<(), Mismatch> {
        match self.outcome {
            None => Ok(()),
            Some(outcome) if outcome == expected => Ok(()),
            // A mutation that changes an inode answers with its attributes, others do not.
            Some(outcome) => Err(format!("{outcome:?} in place of {expected:?}")),
        }
    }

    fn expect_one_of(&self, errors: &[FsError]) -> Result<(), Mismatch> {
        match self.outcome {
            None => Ok(()),
            Some(Outcome::Failed(error)) if errors.contains(error) => Ok(()),
            Some(outcome) => Err(format!("{outcome:?} in place of {errors:?}")),
        }
    }
}

fn add_new(contents: &mut Vec<Content>, content: &Content) {
    if !contents.contains(content) {
        contents.push(content.clone());
    }
}

/// Inodes that an operation names.
fn addressed(op: &Op) -> Vec<Ino> {
    match op {
        Op::Mutate(mutation) => {
            let source =
                if let ClientMutation::Copy { from, .. } = mutation { Some(*from) } else { None };
            mutation.directories().chain(mutation.inode()).chain(source).collect()
        }
        Op::Lookup { parent: ino, .. } | Op::ReadDir { dir: ino, .. } => vec![*ino],
        Op::GetAttr { ino }
        | Op::ReadLink { ino }
        | Op::Read { ino, .. }
        | Op::Seek { ino, .. }
        | Op::Xattrs { ino }
        | Op::Open { ino }
        | Op::Close { ino }
        | Op::Fsync { ino } => vec![*ino],
        Op::SyncFs => vec![],
    }
}

/// Nodes that were in the bucket at the beginning are numbered from here.
const FOUND: u64 = 1 << 40;
