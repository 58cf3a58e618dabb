//! A naive file system: what a volume is, for the checker. It shares nothing with the core.

use super::acl;
use super::content::Content;
use super::history::{ClientId, Op, OpId, Outcome, SeenNode, SeenTree};
use bytes::Bytes;
use ebb_model::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NodeId(u64);

const ROOT: NodeId = NodeId(0);

/// One state of a volume. Cloning shares what does not change.
///
/// Laws: every node but the root is an entry of some directory, or is held open, or may
/// vanish at any moment; `by_ino` holds the nodes whose inode id has been seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    nodes: BTreeMap<NodeId, Rc<Node>>,
    by_ino: BTreeMap<Ino, NodeId>,
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
    /// `None` where nobody has been told.
    mtime: Option<Time>,
    target: Bytes,
    xattrs: BTreeMap<Bytes, Bytes>,
    content: Content,
    /// What the bytes have been since they were last forced, and may be after a power cut.
    unforced: Vec<Content>,
    /// Where they were changed since then: what is there may be lost altogether, and reads as
    /// zeros. Whatever was not changed stays as it is.
    changed_bytes: Vec<Range<u64>>,
    /// What bytes may be although they were not written so: a write failed half-way, or
    /// the power was cut.
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

/// Why an outcome is not what this state gives.
pub type Mismatch = String;

/// What is asked to change, and by whom.
struct Asked<'a> {
    client: ClientId,
    id: OpId,
    outcome: Option<&'a Outcome>,
}

impl Tree {
    /// A volume with nothing in it.
    pub fn empty() -> Tree {
        let root = Node::new(FileKind::Directory, 0o755);
        Tree {
            nodes: BTreeMap::from([(ROOT, Rc::new(Node { ino: Some(Ino::ROOT), ..root }))]),
            by_ino: BTreeMap::from([(Ino::ROOT, ROOT)]),
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
                let name = Name::new(segment.as_bytes()).expect("scenarios use keys that are paths");
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
            tree.enter(dir, &name, NodeId(next), Node { content: Content::from_bytes(body), ..Node::new(FileKind::Regular, 0o644) });
        }
        tree
    }

    /// The state after an operation, if the state explains its outcome. Without an outcome
    /// whatever it does is taken.
    pub fn step(&self, client: ClientId, id: OpId, op: &Op, outcome: Option<&Outcome>) -> Result<Tree, Mismatch> {
        let mut next = self.clone();
        // An inode without a name that nobody has open may have gone already.
        if let Some(Outcome::Failed(FsError::Stale)) = outcome
            && addressed(op).into_iter().any(|ino| next.may_be_gone(ino))
        {
            return Ok(next);
        }
        let asked = Asked { client, id, outcome };
        match op {
            Op::Mutate(mutation) => next.mutate(&asked, mutation)?,
            Op::Lookup { parent, name } => next.lookup(&asked, *parent, name)?,
            Op::GetAttr { ino } => match next.by_ino.get(ino).copied() {
                Some(node) => next.expect_attr(&asked, node)?,
                None => asked.expect_one_of(&[FsError::Stale])?,
            },
            Op::ReadLink { ino } => match next.at(*ino) {
                Err(errors) => asked.expect_one_of(&errors)?,
                Ok(node) if next.nodes[&node].kind != FileKind::Symlink => asked.expect_one_of(&[FsError::Invalid])?,
                Ok(node) => asked.expect(&Outcome::Link(next.nodes[&node].target.clone()))?,
            },
            Op::ReadDir { dir, after } => next.read_dir(&asked, *dir, *after)?,
            Op::Read { ino, offset, len_bytes } => next.read(&asked, *ino, *offset, *len_bytes)?,
            Op::Seek { ino, offset, to } => next.seek(&asked, *ino, *offset, *to)?,
            Op::Xattrs { ino } => match next.at(*ino) {
                Err(errors) => asked.expect_one_of(&errors)?,
                Ok(node) => asked.expect(&Outcome::Names(next.nodes[&node].xattrs.keys().cloned().collect()))?,
            },
            Op::Open { ino } => match next.at(*ino) {
                Err(errors) => asked.expect_one_of(&errors)?,
                // Only who holds it already opens an inode without a name once more.
                Ok(node) if next.nodes[&node].links == 0 && !next.nodes[&node].opens.contains_key(&client) => {
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
                for node in next.nodes.keys().copied().collect::<Vec<_>>() {
                    next.forced(node);
                }
            }
        }
        Ok(next)
    }

    /// The operation is about an inode without a name.
    pub fn is_about_nameless(&self, op: &Op) -> bool {
        addressed(op).into_iter().any(|ino| self.by_ino.get(&ino).is_some_and(|id| self.nodes[id].links == 0))
    }

    /// Nothing is open by the client any more.
    pub fn client_gone(&mut self, client: ClientId) {
        let held: Vec<NodeId> = self.nodes.iter().filter(|(_, node)| node.opens.contains_key(&client)).map(|(id, _)| *id).collect();
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
    pub fn seen(&self, tree: &SeenTree, same_inos: bool) -> Result<Tree, Mismatch> {
        let mut next = self.clone();
        next.nodes.retain(|_, node| node.links > 0 || !node.opens.is_empty());
        let left: BTreeSet<NodeId> = next.nodes.keys().copied().collect();
        next.by_ino.retain(|_, node| left.contains(node));
        if !same_inos {
            // What is nowhere on record gets an id, and a directory its times, when it is found.
            for node in next.nodes.values_mut().filter(|node| !node.changed && node.ino != Some(Ino::ROOT)) {
                let node = Rc::make_mut(node);
                if let Some(ino) = node.ino.take() {
                    next.by_ino.remove(&ino);
                }
            }
            for node in next.nodes.values_mut().filter(|node| !node.changed && node.kind == FileKind::Directory) {
                Rc::make_mut(node).mtime = None;
            }
        }
        let mut mine = BTreeMap::new();
        next.list(ROOT, &mut Vec::new(), &mut mine);
        if let Some(path) = mine.keys().find(|path| !tree.contains_key(*path)) {
            return Err(format!("{:?} is not there", path.escape_ascii().to_string()));
        }
        for (path, seen) in tree {
            let shown = path.escape_ascii();
            let node = *mine.get(path).ok_or_else(|| format!("\"{shown}\" is there, but should not be"))?;
            next.take_on(node, seen).map_err(|why| format!("\"{shown}\": {why}"))?;
        }
        Ok(next)
    }

    fn take_on(&mut self, id: NodeId, seen: &SeenNode) -> Result<(), Mismatch> {
        self.bind(id, seen.attr.ino)?;
        self.check_attr(id, &seen.attr)?;
        let subdirectories = self.nodes[&id].entries.values().filter(|child| self.nodes[*child].kind == FileKind::Directory).count();
        let node = self.change(id);
        if node.kind == FileKind::Directory && seen.attr.nlink as usize != 2 + subdirectories {
            return Err(format!("has {} links and {subdirectories} directories in it", seen.attr.nlink));
        }
        node.mtime = Some(seen.attr.mtime);
        if node.target != seen.target {
            return Err("links to somewhere else".into());
        }
        if node.xattrs != seen.xattrs {
            return Err(format!("has the extended attributes {:?} in place of {:?}", seen.xattrs, node.xattrs));
        }
        if node.kind == FileKind::Regular {
            if seen.content.len() as u64 != node.content.size() {
                return Err(format!("has {} readable bytes of {}", seen.content.len(), node.content.size()));
            }
            if let Some(at) = node.content.first_stranger(&node.smeared, 0, &seen.content) {
                return Err(format!("byte {at} is not what was written"));
            }
            if !node.smeared.is_empty() {
                node.content = Content::from_bytes(&seen.content);
                // What was on its way to the disk may still get there, until others are forced over it.
                for content in std::mem::take(&mut node.smeared) {
                    add_new(&mut node.unforced, &content);
                }
            }
        }
        Ok(())
    }

    fn mutate(&mut self, asked: &Asked<'_>, mutation: &ClientMutation) -> Result<(), Mismatch> {
        match mutation {
            ClientMutation::Make { parent, name, mode, what, open } => {
                let errors = self.name_errors(*parent, name, FsError::Exists);
                if !errors.is_empty() {
                    return asked.expect_one_of(&errors);
                }
                let id = NodeId(asked.id.0 + 1);
                let mut node = Node::new(what.kind(), mode.mode);
                let parent = self.by_ino[parent];
                match what {
                    Make::Symlink { target } => (node.target, node.mode) = (target.clone(), 0o777),
                    _ => acl::inherit(&self.nodes[&parent].xattrs, *mode, node.kind, &mut node.mode, &mut node.xattrs),
                }
                if let Make::Special { rdev, .. } = what {
                    node.rdev = *rdev;
                }
                node.changed = true;
                if *open {
                    node.opens.insert(asked.client, 1);
                }
                self.enter(parent, name, id, node);
                self.expect_attr(asked, id)
            }
            ClientMutation::Link { ino, parent, name } => {
                let mut errors = self.name_errors(*parent, name, FsError::Exists);
                let node = self.by_ino.get(ino).copied();
                match node.map(|node| &self.nodes[&node]) {
                    None => errors.push(FsError::Stale),
                    Some(node) => {
                        if node.kind == FileKind::Directory {
                            errors.push(FsError::NotPermitted);
                        }
                        if node.links == 0 && !node.linkable {
                            errors.push(FsError::NotFound);
                        }
                    }
                }
                let (Some(node), true) = (node, errors.is_empty()) else { return asked.expect_one_of(&errors) };
                let parent = self.by_ino[parent];
                self.change(parent).entries.insert(name.clone(), node);
                self.change(parent).touch();
                self.change(node).links += 1;
                self.change(node).linkable = false;
                self.change(node).changed = true;
                self.expect_attr(asked, node)
            }
            ClientMutation::Unlink { parent, name } => match self.child(*parent, name) {
                Err(errors) => asked.expect_one_of(&errors),
                Ok((_, node)) if self.nodes[&node].kind == FileKind::Directory => asked.expect_one_of(&[FsError::IsDirectory]),
                Ok((dir, node)) => {
                    self.strike(dir, name, node);
                    asked.expect(&Outcome::Done)
                }
            },
            ClientMutation::Rmdir { parent, name } => match self.child(*parent, name) {
                Err(errors) => asked.expect_one_of(&errors),
                Ok((_, node)) if self.nodes[&node].kind != FileKind::Directory => asked.expect_one_of(&[FsError::NotDirectory]),
                Ok((_, node)) if !self.nodes[&node].entries.is_empty() => asked.expect_one_of(&[FsError::NotEmpty]),
                Ok((dir, node)) => {
                    self.strike(dir, name, node);
                    asked.expect(&Outcome::Done)
                }
            },
            ClientMutation::Rename { from, name, to, new_name, mode } => self.rename(asked, (*from, name), (*to, new_name), *mode),
            ClientMutation::SetAttr { ino, set } => self.set_attr(asked, *ino, set),
            ClientMutation::SetXattr { ino, name, value, mode } => {
                let node = match self.xattr_holder(*ino) {
                    Ok(node) => node,
                    Err(error) => return asked.expect_one_of(&[error]),
                };
                let exists = self.nodes[&node].xattrs.contains_key(name);
                match mode {
                    XattrMode::Create if exists => return asked.expect_one_of(&[FsError::Exists]),
                    XattrMode::Replace if !exists => return asked.expect_one_of(&[FsError::NoAttribute]),
                    _ => {}
                }
                self.change(node).xattrs.insert(name.clone(), value.clone());
                self.change(node).changed = true;
                asked.expect(&Outcome::Done)
            }
            ClientMutation::SetAcl { ino, class, value, .. } => self.set_acl(asked, *ino, *class, value),
            ClientMutation::RemoveXattr { ino, name } => {
                let node = match self.xattr_holder(*ino) {
                    Ok(node) => node,
                    Err(error) => return asked.expect_one_of(&[error]),
                };
                if self.change(node).xattrs.remove(name).is_none() {
                    return asked.expect_one_of(&[FsError::NoAttribute]);
                }
                self.change(node).changed = true;
                asked.expect(&Outcome::Done)
            }
            ClientMutation::Write { ino, offset, data, .. } => self.write(asked, *ino, Some(*offset), data),
            ClientMutation::Append { ino, data, .. } => self.write(asked, *ino, None, data),
            ClientMutation::Copy { from, from_offset, ino, offset, len_bytes, .. } => {
                self.copy(asked, (*from, *from_offset), (*ino, *offset), *len_bytes)
            }
            ClientMutation::Tmpfile { parent, mode } => {
                if let Err(errors) = self.dir(*parent) {
                    return asked.expect_one_of(&errors);
                }
                let id = NodeId(asked.id.0 + 1);
                let opens = BTreeMap::from([(asked.client, 1)]);
                let mut node = Node { links: 0, linkable: true, opens, ..Node::new(FileKind::Regular, mode.mode) };
                let parent = self.by_ino[parent];
                acl::inherit(&self.nodes[&parent].xattrs, *mode, node.kind, &mut node.mode, &mut node.xattrs);
                self.nodes.insert(id, Rc::new(node));
                self.expect_attr(asked, id)
            }
            ClientMutation::Fallocate { ino, offset, len_bytes, what, keep_size, .. } => {
                self.fallocate(asked, *ino, (*offset, *len_bytes), *what, *keep_size)
            }
        }
    }

    fn rename(
        &mut self,
        asked: &Asked<'_>,
        (from, name): (Ino, &Name),
        (to, new_name): (Ino, &Name),
        mode: RenameMode,
    ) -> Result<(), Mismatch> {
        let (from, source) = match self.child(from, name) {
            Err(errors) => {
                // The target directory may be wrong as well.
                let all = [errors, self.dir(to).err().unwrap_or_default()].concat();
                return asked.expect_one_of(&all);
            }
            Ok(found) => found,
        };
        let to = match self.dir(to) {
            Err(errors) => return asked.expect_one_of(&errors),
            Ok(to) => to,
        };
        let target = self.nodes[&to].entries.get(new_name).copied();
        let is_dir = |node: NodeId| self.nodes[&node].kind == FileKind::Directory;
        let mut errors = Vec::new();
        if mode == RenameMode::KeepTarget && target.is_some() {
            errors.push(FsError::Exists);
        }
        if mode == RenameMode::Exchange && target.is_none() {
            errors.push(FsError::NotFound);
        }
        if self.contains(source, to) {
            errors.push(FsError::Invalid);
        }
        if let Some(target) = target {
            if self.contains(target, from) {
                errors.push(if mode == RenameMode::Exchange { FsError::Invalid } else { FsError::NotEmpty });
            }
            if mode == RenameMode::Replace && target != source {
                match (is_dir(source), is_dir(target)) {
                    (true, false) => errors.push(FsError::NotDirectory),
                    (false, true) => errors.push(FsError::IsDirectory),
                    _ if !self.nodes[&target].entries.is_empty() => errors.push(FsError::NotEmpty),
                    _ => {}
                }
            }
        }
        if !errors.is_empty() {
            return asked.expect_one_of(&errors);
        }
        if target == Some(source) {
            return asked.expect(&Outcome::Done);
        }
        self.change(from).touch();
        self.change(to).touch();
        self.change(source).changed = true;
        match (target, mode) {
            (Some(target), RenameMode::Exchange) => {
                self.change(from).entries.insert(name.clone(), target);
                self.change(target).changed = true;
                self.change(to).entries.insert(new_name.clone(), source);
            }
            _ => {
                if let Some(target) = target {
                    self.strike(to, new_name, target);
                }
                self.change(from).entries.remove(name);
                self.change(to).entries.insert(new_name.clone(), source);
            }
        }
        asked.expect(&Outcome::Done)
    }

    fn set_attr(&mut self, asked: &Asked<'_>, ino: Ino, set: &SetAttr) -> Result<(), Mismatch> {
        let id = match self.at(ino) {
            Ok(id) => id,
            Err(errors) => return asked.expect_one_of(&errors),
        };
        let mut errors = Vec::new();
        match self.nodes[&id].kind {
            FileKind::Regular => {}
            _ if set.size_bytes.is_none() => {}
            FileKind::Directory => errors.push(FsError::IsDirectory),
            _ => errors.push(FsError::Invalid),
        }
        if set.mode.is_some() && self.nodes[&id].kind == FileKind::Symlink {
            errors.push(FsError::NotSupported);
        }
        if !errors.is_empty() {
            return asked.expect_one_of(&errors);
        }
        let node = self.change(id);
        node.changed = true;
        if let Some(mode) = set.mode {
            node.mode = mode;
            acl::chmod(mode, &mut node.xattrs);
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(size) = set.size_bytes {
            node.remember(size..u64::MAX);
            node.content.resize(size);
            node.smeared.iter_mut().for_each(|content| content.resize(size));
            node.mtime = None;
        }
        match set.mtime {
            Some(SetTime::To(time)) => node.mtime = Some(time),
            Some(SetTime::Now | SetTime::Reading) => node.mtime = None,
            None => {}
        }
        self.expect_attr(asked, id)
    }

    fn set_acl(&mut self, asked: &Asked<'_>, ino: Ino, class: AclClass, value: &Bytes) -> Result<(), Mismatch> {
        let id = match self.at(ino) {
            Ok(id) => id,
            Err(errors) => return asked.expect_one_of(&errors),
        };
        match (self.nodes[&id].kind, class) {
            (FileKind::Symlink, _) => return asked.expect_one_of(&[FsError::NotSupported]),
            (FileKind::Directory, _) | (_, AclClass::Access) => {}
            (_, AclClass::Default) if value.is_empty() => return self.expect_attr(asked, id),
            (_, AclClass::Default) => return asked.expect_one_of(&[FsError::AccessDenied]),
        }
        let before = self.nodes[&id].clone();
        let node = self.change(id);
        acl::set(class, value, &mut node.mode, &mut node.xattrs);
        node.changed |= (node.mode, &node.xattrs) != (before.mode, &before.xattrs);
        self.expect_attr(asked, id)
    }

    fn write(&mut self, asked: &Asked<'_>, ino: Ino, offset: Option<u64>, data: &[u8]) -> Result<(), Mismatch> {
        let id = match self.at(ino) {
            Ok(id) => id,
            Err(errors) => return asked.expect_one_of(&errors),
        };
        match self.nodes[&id].kind {
            FileKind::Regular => {}
            FileKind::Directory => return asked.expect_one_of(&[FsError::IsDirectory]),
            _ => return asked.expect_one_of(&[FsError::Invalid]),
        }
        let node = self.change(id);
        let offset = offset.unwrap_or(node.content.size());
        node.remember(offset..offset + data.len() as u64);
        node.content.write(offset, data);
        node.smeared.iter_mut().for_each(|content| content.write(offset, data));
        node.mtime = None;
        self.expect_attr(asked, id)
    }

    fn fallocate(&mut self, asked: &Asked<'_>, ino: Ino, span: (u64, u64), what: Allocation, keep_size: bool) -> Result<(), Mismatch> {
        let id = match self.at(ino) {
            Ok(id) => id,
            Err(errors) => return asked.expect_one_of(&errors),
        };
        match self.nodes[&id].kind {
            FileKind::Regular => {}
            FileKind::Directory => return asked.expect_one_of(&[FsError::IsDirectory]),
            _ => return asked.expect_one_of(&[FsError::Invalid]),
        }
        let (offset, len_bytes) = span;
        let node = self.change(id);
        node.remember(if what == Allocation::Zero { offset..offset.saturating_add(len_bytes) } else { 0..0 });
        let size = if keep_size { node.content.size() } else { node.content.size().max(offset + len_bytes) };
        for content in std::iter::once(&mut node.content).chain(&mut node.smeared) {
            if what == Allocation::Zero {
                content.zero(offset, len_bytes);
            }
            content.resize(size);
        }
        node.mtime = None;
        node.changed = true;
        self.expect_attr(asked, id)
    }

    fn copy(&mut self, asked: &Asked<'_>, from: (Ino, u64), to: (Ino, u64), len_bytes: u64) -> Result<(), Mismatch> {
        let mut errors = Vec::new();
        for ino in [from.0, to.0] {
            match self.at(ino).map(|id| self.nodes[&id].kind) {
                Err(more) => errors.extend(more),
                Ok(FileKind::Regular) => {}
                Ok(FileKind::Directory) => errors.push(FsError::IsDirectory),
                Ok(_) => errors.push(FsError::Invalid),
            }
        }
        if !errors.is_empty() {
            return asked.expect_one_of(&errors);
        }
        let (source, target) = (self.by_ino[&from.0], self.by_ino[&to.0]);
        let left = self.nodes[&source].content.size().saturating_sub(from.1);
        let len_bytes = len_bytes.min(left).min(MAX_IO_BYTES as u64);
        if source == target && from.1.abs_diff(to.1) < len_bytes {
            return asked.expect_one_of(&[FsError::Invalid]);
        }
        let read = |content: &Content| content.read(from.1, len_bytes as usize);
        let data = read(&self.nodes[&source].content);
        let others: Vec<Vec<u8>> = self.nodes[&source].smeared.iter().map(read).collect();
        let node = self.change(target);
        if len_bytes > 0 {
            node.remember(to.1..to.1 + len_bytes);
            let before = node.content.clone();
            node.content.write(to.1, &data);
            node.smeared.iter_mut().for_each(|content| content.write(to.1, &data));
            for other in others {
                let mut content = before.clone();
                content.write(to.1, &other);
                add_new(&mut node.smeared, &content);
            }
            node.mtime = None;
        }
        match asked.outcome {
            None => Ok(()),
            Some(Outcome::Copied { attr, len_bytes: copied }) if *copied == len_bytes => {
                self.bind(target, attr.ino)?;
                self.check_attr(target, attr)?;
                if self.nodes[&target].mtime.is_none() {
                    self.change(target).mtime = Some(attr.mtime);
                }
                Ok(())
            }
            Some(other) => Err(format!("{other:?} in place of {len_bytes} bytes copied")),
        }
    }

    /// Only what is zeros can be passed over; whether zeros are a hole is the node's to say.
    fn seek(&mut self, asked: &Asked<'_>, ino: Ino, offset: u64, to: Seek) -> Result<(), Mismatch> {
        let node = match self.at(ino) {
            Err(errors) => return asked.expect_one_of(&errors),
            Ok(node) => &self.nodes[&node],
        };
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return asked.expect_one_of(&[FsError::IsDirectory]),
            _ => return asked.expect_one_of(&[FsError::Invalid]),
        }
        let size = node.content.size();
        let passed = match (asked.outcome, to) {
            (None, _) => return Ok(()),
            (Some(Outcome::Failed(FsError::NoData)), Seek::Data) => offset..size,
            (Some(Outcome::Failed(FsError::NoData)), Seek::Hole) if offset >= size => return Ok(()),
            (Some(Outcome::Offset(found)), Seek::Data) if (offset..size).contains(found) => offset..*found,
            (Some(Outcome::Offset(found)), Seek::Hole) if *found == size && offset < size => return Ok(()),
            // A hole is at least one byte.
            (Some(Outcome::Offset(found)), Seek::Hole) if (offset..size).contains(found) => *found..*found + 1,
            (Some(other), _) => return Err(format!("{other:?} is no offset in {size} bytes behind {offset}")),
        };
        let zeros = vec![0; passed.end.saturating_sub(passed.start) as usize];
        match node.content.first_stranger(&node.smeared, passed.start, &zeros) {
            None => Ok(()),
            Some(at) => Err(format!("passes over byte {at}, which is data")),
        }
    }

    /// A write that failed: its bytes may be there or not, its length is not.
    pub fn smear_write(&mut self, ino: Ino, offset: Option<u64>, data: &[u8]) {
        let Ok(id) = self.at(ino) else { return };
        let node = self.change(id);
        let mut touched = node.content.clone();
        let size = touched.size();
        touched.write(offset.unwrap_or(size), data);
        touched.resize(size);
        add_new(&mut node.smeared, &touched);
    }

    /// As [`Tree::smear_write`], of a copy.
    pub fn smear_copy(&mut self, from: (Ino, u64), to: (Ino, u64), len_bytes: u64) {
        let Ok(source) = self.at(from.0) else { return };
        let source = &self.nodes[&source];
        let len_bytes = len_bytes.min(source.content.size().saturating_sub(from.1)).min(MAX_IO_BYTES as u64);
        let data: Vec<Vec<u8>> =
            std::iter::once(&source.content).chain(&source.smeared).map(|content| content.read(from.1, len_bytes as usize)).collect();
        data.iter().for_each(|data| self.smear_write(to.0, Some(to.1), data));
    }

    /// As [`Tree::smear_write`], of zeros that take the place of what is there.
    pub fn smear_zeros(&mut self, ino: Ino, offset: u64, len_bytes: u64) {
        let Ok(id) = self.at(ino) else { return };
        let node = self.change(id);
        let mut touched = node.content.clone();
        touched.zero(offset, len_bytes);
        add_new(&mut node.smeared, &touched);
    }

    fn lookup(&mut self, asked: &Asked<'_>, parent: Ino, name: &Name) -> Result<(), Mismatch> {
        match self.child(parent, name) {
            Ok((_, node)) => self.expect_attr(asked, node),
            Err(errors) => asked.expect_one_of(&errors),
        }
    }

    fn read_dir(&mut self, asked: &Asked<'_>, dir: Ino, after: Cookie) -> Result<(), Mismatch> {
        let dir = match self.at(dir) {
            Err(errors) => return asked.expect_one_of(&errors),
            Ok(dir) if self.nodes[&dir].kind != FileKind::Directory => return asked.expect_one_of(&[FsError::NotDirectory]),
            Ok(dir) => dir,
        };
        let removed = self.nodes[&dir].links == 0;
        let (entries, end) = match asked.outcome {
            None => return Ok(()),
            Some(Outcome::Entries { entries, end }) => (entries, *end),
            Some(Outcome::Failed(FsError::NotFound)) if removed => return Ok(()),
            Some(other) => return Err(format!("{other:?} in place of entries")),
        };
        for (entry, attr) in entries {
            let Some(node) = self.nodes[&dir].entries.get(&entry.name).copied() else {
                return Err(format!("shows {} which is not there", entry.name));
            };
            self.bind(node, entry.ino)?;
            self.check_attr(node, attr).map_err(|why| format!("{}: {why}", entry.name))?;
        }
        let shown: BTreeSet<&Name> = entries.iter().map(|(entry, _)| &entry.name).collect();
        if shown.len() != entries.len() {
            return Err("shows a name twice".into());
        }
        if after == Cookie::START
            && end
            && let Some(missing) = self.nodes[&dir].entries.keys().find(|name| !shown.contains(name))
        {
            return Err(format!("does not show {missing}"));
        }
        Ok(())
    }

    fn read(&mut self, asked: &Asked<'_>, ino: Ino, offset: u64, len_bytes: usize) -> Result<(), Mismatch> {
        let node = match self.at(ino) {
            Err(errors) => return asked.expect_one_of(&errors),
            Ok(node) => &self.nodes[&node],
        };
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return asked.expect_one_of(&[FsError::IsDirectory]),
            _ => return asked.expect_one_of(&[FsError::Invalid]),
        }
        let data = match asked.outcome {
            None => return Ok(()),
            Some(Outcome::Data(data)) => data,
            Some(other) => return Err(format!("{other:?} in place of data")),
        };
        let expected = (len_bytes as u64).min(node.content.size().saturating_sub(offset));
        if data.len() as u64 != expected {
            return Err(format!("{} bytes in place of {expected}", data.len()));
        }
        match node.content.first_stranger(&node.smeared, offset, data) {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} is {:#x}, which is not what was written", data[(at - offset) as usize])),
        }
    }

    fn forced(&mut self, node: NodeId) {
        if !self.nodes[&node].unforced.is_empty() {
            let node = self.change(node);
            node.unforced.clear();
            node.changed_bytes.clear();
        }
    }

    fn expect_attr(&mut self, asked: &Asked<'_>, id: NodeId) -> Result<(), Mismatch> {
        match asked.outcome {
            None => Ok(()),
            Some(Outcome::Attr(attr)) => {
                self.bind(id, attr.ino)?;
                self.check_attr(id, attr)?;
                if self.nodes[&id].mtime.is_none() {
                    self.change(id).mtime = Some(attr.mtime);
                }
                Ok(())
            }
            Some(other) => Err(format!("{other:?} in place of success")),
        }
    }

    fn check_attr(&self, id: NodeId, attr: &Attr) -> Result<(), Mismatch> {
        let node = &self.nodes[&id];
        node.check_attr(attr, if node.kind == FileKind::Directory { None } else { Some(node.links) })
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
        self.by_ino.get(&ino).is_none_or(|id| self.nodes[id].links == 0 && self.nodes[id].opens.is_empty())
    }

    fn contains(&self, outer: NodeId, inner: NodeId) -> bool {
        outer == inner || self.nodes[&outer].entries.values().any(|child| self.contains(*child, inner))
    }

    fn enter(&mut self, dir: NodeId, name: &Name, id: NodeId, node: Node) {
        self.nodes.insert(id, Rc::new(node));
        let named = self.nodes[&id].changed;
        let dir = self.change(dir);
        dir.entries.insert(name.clone(), id);
        if named {
            dir.touch();
        }
    }

    fn strike(&mut self, dir: NodeId, name: &Name, node: NodeId) {
        let dir = self.change(dir);
        dir.entries.remove(name);
        dir.touch();
        let node = self.change(node);
        node.links -= 1;
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

impl Node {
    fn new(kind: FileKind, mode: u16) -> Node {
        Node {
            ino: None,
            kind,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            mtime: None,
            target: Bytes::new(),
            xattrs: BTreeMap::new(),
            content: Content::default(),
            unforced: Vec::new(),
            changed_bytes: Vec::new(),
            smeared: Vec::new(),
            entries: BTreeMap::new(),
            links: 1,
            opens: BTreeMap::new(),
            linkable: false,
            changed: false,
        }
    }

    /// Its names have changed, at a time that nobody is told of.
    fn touch(&mut self) {
        self.mtime = None;
        self.changed = true;
    }

    /// The present content is about to change there and has perhaps not been forced over an older one.
    fn remember(&mut self, changed: Range<u64>) {
        let content = self.content.clone();
        add_new(&mut self.unforced, &content);
        if !changed.is_empty() && !self.changed_bytes.contains(&changed) {
            self.changed_bytes.push(changed);
        }
    }

    fn check_attr(&self, attr: &Attr, links: Option<u32>) -> Result<(), Mismatch> {
        let mine = (self.kind, self.mode, self.uid, self.gid, self.rdev);
        let theirs = (attr.kind, attr.mode, attr.uid, attr.gid, attr.rdev);
        if mine != theirs {
            return Err(format!("is {theirs:?} (kind, mode, owner, group, device) in place of {mine:?}"));
        }
        if links.is_some_and(|links| links != attr.nlink) {
            return Err(format!("has {} names in place of {}", attr.nlink, self.links));
        }
        if self.kind == FileKind::Regular && attr.size_bytes != self.content.size() {
            return Err(format!("has {} bytes in place of {}", attr.size_bytes, self.content.size()));
        }
        if attr.hole_bytes > 0 && attr.hole_bytes > self.content.bytes_in_zero_blocks(&self.smeared) {
            return Err(format!("has {} bytes in holes, where data is", attr.hole_bytes));
        }
        match self.mtime {
            Some(mtime) if mtime != attr.mtime => Err(format!("was modified {:?} in place of {mtime:?}", attr.mtime)),
            _ => Ok(()),
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
            let source = if let ClientMutation::Copy { from, .. } = mutation { Some(*from) } else { None };
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
