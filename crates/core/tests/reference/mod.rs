//! A naive file system after POSIX and the Linux manual: nodes hold their entries, and lookups walk
//! the whole tree. It is the oracle of the namespace and shares neither code nor structure with it.

mod acl;
mod quota;

use bytes::Bytes;
use ebb_model::*;
use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub type NodeRef = Rc<RefCell<Node>>;

pub struct Node {
    pub ino: Ino,
    pub kind: FileKind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    pub target: Vec<u8>,
    pub times: Times,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// In the order of a listing.
    pub entries: Vec<(Name, NodeRef)>,
    /// Its names, oldest first.
    pub names: Vec<(Ino, Name)>,
    pub quota: Option<QuotaLimits>,
    /// For a node without a name: the innermost quota root in which it counts.
    pub stray: Option<Ino>,
}

#[derive(Clone, Copy)]
pub struct Times {
    pub access: Time,
    pub modify: Time,
    pub change: Time,
    pub birth: Time,
}

pub struct Reference {
    root: NodeRef,
    /// Nodes without a name, with the sessions that have them open.
    nameless: Vec<(NodeRef, BTreeSet<SessionId>)>,
    /// Those of them that never had one.
    unnamed: BTreeSet<Ino>,
}

const READ: u16 = 4;
const WRITE: u16 = 2;
const SEARCH: u16 = 1;

type Outcome<T = ()> = Result<T, FsError>;

impl Reference {
    pub fn new(mode: u16, time: Time) -> Reference {
        let node = Node::new(Ino::ROOT, FileKind::Directory, mode, 0, 0, time);
        Reference {
            root: Rc::new(RefCell::new(node)),
            nameless: Vec::new(),
            unnamed: BTreeSet::new(),
        }
    }

    /// Every existing node, with its number of links.
    pub fn all(&self) -> BTreeMap<Ino, (NodeRef, u32)> {
        let mut found: BTreeMap<Ino, (NodeRef, u32)> = BTreeMap::new();
        let mut todo = vec![Rc::clone(&self.root)];
        found.insert(Ino::ROOT, (Rc::clone(&self.root), 2));
        while let Some(dir) = todo.pop() {
            for (_, child) in &dir.borrow().entries {
                let ino = child.borrow().ino;
                if child.borrow().kind == FileKind::Directory {
                    todo.push(Rc::clone(child));
                    found.insert(ino, (Rc::clone(child), 2));
                } else {
                    found.entry(ino).or_insert((Rc::clone(child), 0)).1 += 1;
                }
            }
        }
        for (node, links) in found.values_mut() {
            let node = node.borrow();
            *links += node
                .entries
                .iter()
                .filter(|(_, child)| child.borrow().kind == FileKind::Directory)
                .count() as u32;
        }
        for (node, _) in &self.nameless {
            found.insert(node.borrow().ino, (Rc::clone(node), 0));
        }
        found
    }

    pub fn attr(&self, ino: Ino) -> Outcome<Attr> {
        let (node, nlink) = self.all().remove(&ino).ok_or(FsError::Stale)?;
        let attr = node.borrow().attr(nlink);
        Ok(attr)
    }

    pub fn run(
        &mut self,
        caller: &Caller,
        now: Time,
        mutation: &Mutation,
    ) -> Outcome<Option<Attr>> {
        match mutation {
            Mutation::Make { parent, name, ino, mode, what } => {
                self.make(caller, now, (*parent, name), *ino, *mode, what)?;
                self.attr(*ino).map(Some)
            }
            Mutation::Tmpfile { parent, ino, mode, holder } => {
                self.tmpfile(caller, now, *parent, *ino, *mode, *holder)?;
                self.attr(*ino).map(Some)
            }
            Mutation::Link { ino, parent, name } => {
                self.link(caller, now, *ino, *parent, name)?;
                self.attr(*ino).map(Some)
            }
            Mutation::Unlink { parent, name, holders } => {
                self.unlink(caller, now, *parent, name, holders).map(|()| None)
            }
            Mutation::Rmdir { parent, name, holders } => {
                self.rmdir(caller, now, *parent, name, holders).map(|()| None)
            }
            Mutation::Rename { from, name, to, new_name, mode, holders } => self
                .rename(caller, now, (*from, name), (*to, new_name), *mode, holders)
                .map(|()| None),
            Mutation::SetAttr { ino, set } | Mutation::Truncate { ino, set } => {
                self.set_attr(caller, now, *ino, set)?;
                self.attr(*ino).map(Some)
            }
            Mutation::SetXattr { ino, name, value, mode } => {
                self.set_xattr(caller, now, *ino, name, Some((value, *mode)))?;
                self.attr(*ino).map(Some)
            }
            Mutation::SetAcl { ino, class, value, drop_set_gid } => {
                self.set_acl(caller, now, *ino, *class, value, *drop_set_gid)?;
                self.attr(*ino).map(Some)
            }
            Mutation::RemoveXattr { ino, name } => {
                self.set_xattr(caller, now, *ino, name, None)?;
                self.attr(*ino).map(Some)
            }
            Mutation::Write { ino, offset, len_bytes, drop_set_id, .. }
            | Mutation::WriteWhole { ino, offset, len_bytes, drop_set_id, .. }
            | Mutation::WriteSummed { ino, offset, len_bytes, drop_set_id, .. }
            | Mutation::WritePacked { ino, offset, len_bytes, drop_set_id, .. } => {
                self.write(caller, now, *ino, *offset, *len_bytes, *drop_set_id)?;
                self.attr(*ino).map(Some)
            }
            Mutation::Fallocate { ino, offset, len_bytes, keep_size, drop_set_id, .. } => {
                self.fallocate(caller, now, *ino, (*offset, *len_bytes), *keep_size, *drop_set_id)?;
                self.attr(*ino).map(Some)
            }
        }
    }

    pub fn access(&self, caller: &Caller, ino: Ino, asked: Access) -> Outcome {
        let node = self.node(ino)?;
        let held = bits(caller, &node.borrow(), asked.0.into());
        if u16::from(asked.0) & held == u16::from(asked.0) {
            Ok(())
        } else {
            Err(FsError::AccessDenied)
        }
    }

    pub fn lookup(&self, dir: Ino, name: &Name) -> Outcome<Ino> {
        let dir = self.dir(dir)?;
        child(&dir, name).map(|node| node.borrow().ino).ok_or(FsError::NotFound)
    }

    pub fn list(&self, ino: Ino) -> Outcome<Vec<(Name, Ino)>> {
        let node = self.node(ino)?;
        if node.borrow().kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        let list = node
            .borrow()
            .entries
            .iter()
            .map(|(name, child)| (name.clone(), child.borrow().ino))
            .collect();
        Ok(list)
    }

    pub fn release(&mut self, session: SessionId, only: Option<Ino>) {
        for (node, holders) in &mut self.nameless {
            if only.is_none_or(|ino| ino == node.borrow().ino) {
                holders.remove(&session);
            }
        }
        self.nameless.retain(|(_, holders)| !holders.is_empty());
    }

    fn make(
        &mut self,
        caller: &Caller,
        now: Time,
        (parent, name): (Ino, &Name),
        ino: Ino,
        mode: u16,
        what: &Make,
    ) -> Outcome {
        let dir = self.dir(parent)?;
        may(caller, &dir, SEARCH)?;
        if child(&dir, name).is_some() || self.node(ino).is_ok() {
            return Err(FsError::Exists);
        }
        may(caller, &dir, WRITE)?;
        let mut node = Node::new(ino, what.kind(), mode, caller.uid, caller.gid, now);
        match what {
            Make::Regular => {}
            Make::Directory => {
                node.mode = mode & 0o1777;
                node.size = 4096;
            }
            Make::Symlink { target } => {
                match target.len() {
                    0 => return Err(FsError::NotFound),
                    1..=4095 => {}
                    _ => return Err(FsError::NameTooLong),
                }
                if target.contains(&0) {
                    return Err(FsError::Invalid);
                }
                node.target = target.to_vec();
                node.size = target.len() as u64;
                node.mode = 0o777;
            }
            Make::Special { kind: FileKind::Fifo | FileKind::Socket, .. } => {}
            Make::Special { kind: FileKind::CharDevice | FileKind::BlockDevice, rdev } => {
                if !caller.checked && caller.uid != 0 {
                    return Err(FsError::NotPermitted);
                }
                node.rdev = *rdev;
            }
            Make::Special { .. } => return Err(FsError::Invalid),
        }
        if dir.borrow().mode & 0o2000 != 0 {
            node.gid = dir.borrow().gid;
            match what {
                Make::Directory => node.mode |= 0o2000,
                Make::Symlink { .. } => {}
                _ => {
                    let member = caller.checked || caller.uid == 0 || caller.in_group(node.gid);
                    if !member && mode & 0o2010 == 0o2010 {
                        node.mode &= !0o2000;
                    }
                }
            }
        }
        self.room(&self.roots_from(parent), 0, 1)?;
        acl::inherit(&dir.borrow(), &mut node);
        node.names.push((parent, name.clone()));
        let mut dir = dir.borrow_mut();
        dir.entries.push((name.clone(), Rc::new(RefCell::new(node))));
        dir.stamp(now, true);
        Ok(())
    }

    fn tmpfile(
        &mut self,
        caller: &Caller,
        now: Time,
        parent: Ino,
        ino: Ino,
        mode: u16,
        holder: SessionId,
    ) -> Outcome {
        let dir = self.dir(parent)?;
        may(caller, &dir, SEARCH)?;
        if self.node(ino).is_ok() {
            return Err(FsError::Exists);
        }
        may(caller, &dir, WRITE)?;
        let mut node = Node::new(ino, FileKind::Regular, mode, caller.uid, caller.gid, now);
        if dir.borrow().mode & 0o2000 != 0 {
            node.gid = dir.borrow().gid;
            let member = caller.checked || caller.uid == 0 || caller.in_group(node.gid);
            if !member && mode & 0o2010 == 0o2010 {
                node.mode &= !0o2000;
            }
        }
        let roots = self.roots_from(parent);
        self.room(&roots, 0, 1)?;
        node.stray = roots.first().copied();
        acl::inherit(&dir.borrow(), &mut node);
        self.nameless.push((Rc::new(RefCell::new(node)), BTreeSet::from([holder])));
        self.unnamed.insert(ino);
        Ok(())
    }

    fn link(&mut self, caller: &Caller, now: Time, ino: Ino, parent: Ino, name: &Name) -> Outcome {
        let (node, nlink) = self.all().remove(&ino).ok_or(FsError::Stale)?;
        let dir = self.dir(parent)?;
        may(caller, &dir, SEARCH)?;
        if child(&dir, name).is_some() {
            return Err(FsError::Exists);
        }
        may(caller, &dir, WRITE)?;
        if node.borrow().kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        if nlink == 0 && !self.unnamed.contains(&ino) {
            return Err(FsError::NotFound);
        }
        Reference::one_side(&self.roots_of(&node), &self.roots_from(parent))?;
        self.unnamed.remove(&ino);
        node.borrow_mut().names.push((parent, name.clone()));
        self.nameless.retain(|(other, _)| other.borrow().ino != ino);
        dir.borrow_mut().entries.push((name.clone(), Rc::clone(&node)));
        dir.borrow_mut().stamp(now, true);
        node.borrow_mut().stamp(now, false);
        Ok(())
    }

    fn unlink(
        &mut self,
        caller: &Caller,
        now: Time,
        parent: Ino,
        name: &Name,
        holders: &[SessionId],
    ) -> Outcome {
        let (dir, node) = self.doomed(caller, parent, name)?;
        if node.borrow().kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        dir.borrow_mut().entries.retain(|(other, _)| other != name);
        dir.borrow_mut().stamp(now, true);
        self.nameless(node, (parent, name), now, holders);
        Ok(())
    }

    fn rmdir(
        &mut self,
        caller: &Caller,
        now: Time,
        parent: Ino,
        name: &Name,
        holders: &[SessionId],
    ) -> Outcome {
        let (dir, node) = self.doomed(caller, parent, name)?;
        if node.borrow().kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if !node.borrow().entries.is_empty() {
            return Err(FsError::NotEmpty);
        }
        dir.borrow_mut().entries.retain(|(other, _)| other != name);
        dir.borrow_mut().stamp(now, true);
        self.nameless(node, (parent, name), now, holders);
        Ok(())
    }

    fn rename(
        &mut self,
        caller: &Caller,
        now: Time,
        (from, name): (Ino, &Name),
        (to, new_name): (Ino, &Name),
        mode: RenameMode,
        holders: &[SessionId],
    ) -> Outcome {
        let (from_ino, to_ino) = (from, to);
        let (from, to) = (self.dir(from)?, self.dir(to));
        may(caller, &from, SEARCH)?;
        let to = to?;
        may(caller, &to, SEARCH)?;
        let source = child(&from, name).ok_or(FsError::NotFound)?;
        let target = child(&to, new_name);
        let whiteout = match mode {
            RenameMode::Whiteout { ino, .. } => ino,
            _ => None,
        };
        if matches!(mode, RenameMode::KeepTarget | RenameMode::Whiteout { keep_target: true, .. })
            && target.is_some()
        {
            return Err(FsError::Exists);
        }
        if mode == RenameMode::Exchange && target.is_none() {
            return Err(FsError::NotFound);
        }
        if contains(&source, &to) {
            return Err(FsError::Invalid);
        }
        if target.as_ref().is_some_and(|target| contains(target, &from)) {
            return Err(if mode == RenameMode::Exchange {
                FsError::Invalid
            } else {
                FsError::NotEmpty
            });
        }
        if target.as_ref().is_some_and(|target| Rc::ptr_eq(target, &source)) {
            return Ok(());
        }
        let moved = !Rc::ptr_eq(&from, &to);
        let is_dir = |node: &NodeRef| node.borrow().kind == FileKind::Directory;
        may_remove(caller, &from, &source)?;
        if moved && is_dir(&source) {
            may(caller, &source, WRITE)?;
        }
        match &target {
            None => may(caller, &to, WRITE)?,
            Some(target) => {
                may_remove(caller, &to, target)?;
                if mode == RenameMode::Exchange {
                    if moved && is_dir(target) {
                        may(caller, target, WRITE)?;
                    }
                } else if is_dir(&source) && !is_dir(target) {
                    return Err(FsError::NotDirectory);
                } else if !is_dir(&source) && is_dir(target) {
                    return Err(FsError::IsDirectory);
                } else if !target.borrow().entries.is_empty() {
                    return Err(FsError::NotEmpty);
                }
            }
        }

        Reference::one_side(&self.roots_from(from_ino), &self.roots_from(to_ino))?;
        if whiteout.is_some() {
            self.room(&self.roots_from(from_ino), 0, 1)?;
        }

        let (left, right) = ((from_ino, name.clone()), (to_ino, new_name.clone()));
        if let (Some(target), RenameMode::Exchange) = (&target, mode) {
            target.borrow_mut().renamed(&right, &left);
        }
        source.borrow_mut().renamed(&left, &right);
        source.borrow_mut().stamp(now, false);
        from.borrow_mut().stamp(now, true);
        to.borrow_mut().stamp(now, true);
        if target.is_none() && !moved && whiteout.is_none() {
            let mut dir = from.borrow_mut();
            let entry =
                dir.entries.iter_mut().find(|(other, _)| other == name).expect("it was found");
            entry.0 = new_name.clone();
            return Ok(());
        }
        let set = |dir: &NodeRef, name: &Name, node: &NodeRef| {
            let mut dir = dir.borrow_mut();
            match dir.entries.iter_mut().find(|(other, _)| other == name) {
                Some(entry) => entry.1 = Rc::clone(node),
                None => dir.entries.push((name.clone(), Rc::clone(node))),
            }
        };
        set(&to, new_name, &source);
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                set(&from, name, &target);
                target.borrow_mut().stamp(now, false);
            }
            replaced => {
                match whiteout {
                    Some(ino) => {
                        set(&from, name, &Reference::whiteout(caller, now, (&from, name), ino))
                    }
                    None => from.borrow_mut().entries.retain(|(other, _)| other != name),
                }
                if let Some(target) = replaced {
                    self.nameless(target, (to_ino, new_name), now, holders);
                }
            }
        }
        Ok(())
    }

    fn whiteout(caller: &Caller, now: Time, (dir, name): (&NodeRef, &Name), ino: Ino) -> NodeRef {
        let gid = if dir.borrow().mode & 0o2000 != 0 { dir.borrow().gid } else { caller.gid };
        let mut node = Node::new(ino, FileKind::CharDevice, 0, caller.uid, gid, now);
        acl::inherit(&dir.borrow(), &mut node);
        node.names.push((dir.borrow().ino, name.clone()));
        Rc::new(RefCell::new(node))
    }

    fn set_attr(&mut self, caller: &Caller, now: Time, ino: Ino, set: &SetAttr) -> Outcome {
        let node = self.node(ino)?;
        let root = caller.checked || caller.uid == 0;
        let owner = root || caller.uid == node.borrow().uid;
        let kind = node.borrow().kind;
        if set.mode.is_some() && kind == FileKind::Symlink {
            return Err(FsError::NotSupported);
        }
        if set.size_bytes.is_some() {
            match kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid),
            }
        }
        for id in [set.uid, set.gid] {
            if id == Some(u32::MAX) {
                return Err(FsError::Invalid);
            }
        }
        let reading = SetAttr { atime: Some(SetTime::Reading), ..SetAttr::default() };
        if set.mtime == Some(SetTime::Reading)
            || set.atime == Some(SetTime::Reading) && *set != reading
        {
            return Err(FsError::Invalid);
        }
        for time in [set.atime, set.mtime] {
            if let Some(SetTime::To(time)) = time
                && time.nanos > 999_999_999
            {
                return Err(FsError::Invalid);
            }
        }
        if let Some(size) = set.size_bytes {
            may(caller, &node, WRITE)?;
            if size > MAX_FILE_BYTES {
                return Err(FsError::TooLarge);
            }
        }
        // Only root can give a file away; its owner can set itself.
        if let Some(uid) = set.uid
            && !root
            && !(caller.uid == node.borrow().uid && uid == node.borrow().uid)
        {
            return Err(FsError::NotPermitted);
        }
        // An owner can set a group of its own.
        if let Some(gid) = set.gid
            && !(root || owner && (gid == node.borrow().gid || caller.in_group(gid)))
        {
            return Err(FsError::NotPermitted);
        }
        if set.mode.is_some() && !owner {
            return Err(FsError::NotPermitted);
        }
        if *set == reading {
            may(caller, &node, READ)?;
            node.borrow_mut().times.access = now;
            return Ok(());
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let touch = set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now);
            if touch && !owner {
                may(caller, &node, WRITE)?;
            } else if !owner {
                return Err(FsError::NotPermitted);
            }
        }

        if let Some(size) = set.size_bytes {
            let grows = size.saturating_sub(node.borrow().size);
            self.room(&self.roots_of(&node), grows, 0)?;
        }
        let mut node = node.borrow_mut();
        let old_mode = node.mode;
        let chown = set.uid.is_some() || set.gid.is_some();
        let asked = SetAttr { drop_set_id: false, ..*set } != SetAttr::default();
        // On its own, only the owner and root can do this.
        let drops = set.drop_set_id && (asked || [0, node.uid].contains(&caller.uid));
        if chown || drops || set.size_bytes.is_some() && !root {
            node.kill_set_id(caller);
        }
        if (chown || set.size_bytes.is_some()) && node.kind != FileKind::Directory {
            node.xattrs.remove(&b"security.capability"[..]);
        }
        if let Some(uid) = set.uid {
            node.uid = uid;
        }
        if let Some(gid) = set.gid {
            node.gid = gid;
        }
        if let Some(mode) = set.mode {
            node.mode = mode & 0o7777;
            if !root && !caller.in_group(node.gid) {
                node.mode &= !0o2000;
            }
            acl::chmod(&mut node);
        }
        if let Some(size) = set.size_bytes {
            node.size = size;
            node.times.modify = now;
        }
        let instant = |time| match time {
            SetTime::Now | SetTime::Reading => now,
            SetTime::To(time) => time,
        };
        if let Some(time) = set.atime {
            node.times.access = instant(time);
        }
        if let Some(time) = set.mtime {
            node.times.modify = instant(time);
        }
        if asked || node.mode != old_mode {
            node.times.change = now;
        }
        Ok(())
    }

    fn set_xattr(
        &mut self,
        caller: &Caller,
        now: Time,
        ino: Ino,
        name: &[u8],
        new: Option<(&Bytes, XattrMode)>,
    ) -> Outcome {
        let node = self.node(ino)?;
        let root = caller.checked || caller.uid == 0;
        if new.is_some_and(|(value, _)| value.len() > 65536) {
            return Err(FsError::ValueTooLarge);
        }
        if name.is_empty() || name.len() > 255 {
            return Err(FsError::Range);
        }
        if name.contains(&0) {
            return Err(FsError::Invalid);
        }
        let dot = name.iter().position(|byte| *byte == b'.').ok_or(FsError::NotSupported)?;
        let (class, rest) = (&name[..dot], &name[dot + 1..]);
        if !matches!(class, b"user" | b"trusted" | b"security") {
            return Err(FsError::NotSupported);
        }
        if rest.is_empty() {
            return Err(FsError::Invalid);
        }
        if class != b"user" {
            if !root {
                return Err(FsError::NotPermitted);
            }
        } else {
            let (kind, sticky, uid) =
                (node.borrow().kind, node.borrow().mode & 0o1000 != 0, node.borrow().uid);
            if kind != FileKind::Regular && kind != FileKind::Directory {
                return Err(FsError::NotPermitted);
            }
            if kind == FileKind::Directory && sticky && !root && caller.uid != uid {
                return Err(FsError::NotPermitted);
            }
            may(caller, &node, WRITE)?;
        }
        let mut node = node.borrow_mut();
        let exists = node.xattrs.contains_key(name);
        match new {
            Some((_, XattrMode::Create)) if exists => return Err(FsError::Exists),
            Some((_, XattrMode::Replace)) | None if !exists => return Err(FsError::NoAttribute),
            Some((value, _)) => {
                let listed: usize = node.xattrs.keys().map(|name| name.len() + 1).sum();
                if !exists && listed + name.len() + 1 > 65536 {
                    return Err(FsError::NoSpace);
                }
                node.xattrs.insert(name.to_vec(), value.to_vec());
            }
            None => {
                node.xattrs.remove(name);
            }
        }
        node.stamp(now, false);
        Ok(())
    }

    fn write(
        &mut self,
        caller: &Caller,
        now: Time,
        ino: Ino,
        offset: u64,
        len: u64,
        drop_set_id: bool,
    ) -> Outcome {
        let shared = self.node(ino)?;
        let node = shared.borrow();
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid),
        }
        if u128::from(offset) + u128::from(len) > u128::from(MAX_FILE_BYTES) {
            return Err(FsError::TooLarge);
        }
        if len > 0 {
            let grows = (offset + len).saturating_sub(node.size);
            drop(node);
            self.room(&self.roots_of(&shared), grows, 0)?;
            let mut node = shared.borrow_mut();
            node.size = node.size.max(offset + len);
            node.xattrs.remove(&b"security.capability"[..]);
            if drop_set_id || !caller.checked && caller.uid != 0 {
                node.kill_set_id(caller);
            }
            node.stamp(now, true);
        }
        Ok(())
    }

    fn fallocate(
        &mut self,
        caller: &Caller,
        now: Time,
        ino: Ino,
        span: (u64, u64),
        keep_size: bool,
        drop_set_id: bool,
    ) -> Outcome {
        let (offset, len) = span;
        let shared = self.node(ino)?;
        let node = shared.borrow();
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid),
        }
        if len == 0 {
            return Err(FsError::Invalid);
        }
        if u128::from(offset) + u128::from(len) > u128::from(MAX_FILE_BYTES) {
            return Err(FsError::TooLarge);
        }
        let grows = if keep_size { 0 } else { (offset + len).saturating_sub(node.size) };
        drop(node);
        self.room(&self.roots_of(&shared), grows, 0)?;
        let mut node = shared.borrow_mut();
        if !keep_size && offset + len > node.size {
            node.size = offset + len;
        }
        node.xattrs.remove(&b"security.capability"[..]);
        if drop_set_id || !caller.checked && caller.uid != 0 {
            node.kill_set_id(caller);
        }
        node.stamp(now, true);
        Ok(())
    }

    fn node(&self, ino: Ino) -> Outcome<NodeRef> {
        self.all().remove(&ino).map(|(node, _)| node).ok_or(FsError::Stale)
    }

    fn dir(&self, ino: Ino) -> Outcome<NodeRef> {
        let (node, nlink) = self.all().remove(&ino).ok_or(FsError::Stale)?;
        match node.borrow().kind {
            FileKind::Directory if nlink == 0 => return Err(FsError::NotFound),
            FileKind::Directory => {}
            _ => return Err(FsError::NotDirectory),
        }
        Ok(node)
    }

    /// An entry that the caller can remove.
    fn doomed(&self, caller: &Caller, parent: Ino, name: &Name) -> Outcome<(NodeRef, NodeRef)> {
        let dir = self.dir(parent)?;
        may(caller, &dir, SEARCH)?;
        let node = child(&dir, name).ok_or(FsError::NotFound)?;
        may_remove(caller, &dir, &node)?;
        Ok((dir, node))
    }

    /// A name of the node was removed from the tree.
    fn nameless(
        &mut self,
        node: NodeRef,
        (parent, name): (Ino, &Name),
        now: Time,
        holders: &[SessionId],
    ) {
        node.borrow_mut().stamp(now, false);
        let counted_in = self.roots_of(&node).first().copied();
        node.borrow_mut().names.retain(|(dir, other)| (*dir, other) != (parent, name));
        let ino = node.borrow().ino;
        let gone = !self.all().contains_key(&ino);
        if gone {
            node.borrow_mut().stray = counted_in;
            if node.borrow_mut().quota.take().is_some() {
                self.end_quota(ino, counted_in);
            }
        }
        if gone && !holders.is_empty() {
            self.nameless.push((node, holders.iter().copied().collect()));
        }
    }
}

impl Node {
    fn new(ino: Ino, kind: FileKind, mode: u16, uid: u32, gid: u32, now: Time) -> Node {
        let times = Times { access: now, modify: now, change: now, birth: now };
        let size = if ino == Ino::ROOT { 4096 } else { 0 };
        let (rdev, target, xattrs, entries) = (0, Vec::new(), BTreeMap::new(), Vec::new());
        let (names, quota, stray) = (Vec::new(), None, None);
        Node {
            ino,
            kind,
            mode,
            uid,
            gid,
            rdev,
            size,
            target,
            times,
            xattrs,
            entries,
            names,
            quota,
            stray,
        }
    }

    pub fn attr(&self, nlink: u32) -> Attr {
        Attr {
            ino: self.ino,
            kind: self.kind,
            mode: self.mode,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size_bytes: self.size,
            hole_bytes: 0,
            atime: self.times.access,
            mtime: self.times.modify,
            ctime: self.times.change,
            btime: self.times.birth,
            version: Version(0),
        }
    }

    fn renamed(&mut self, from: &(Ino, Name), to: &(Ino, Name)) {
        let name = self.names.iter_mut().find(|name| *name == from).expect("it has this name");
        *name = to.clone();
    }

    fn stamp(&mut self, now: Time, content: bool) {
        self.times.change = now;
        if content {
            self.times.modify = now;
        }
    }

    fn kill_set_id(&mut self, caller: &Caller) {
        if self.kind == FileKind::Directory {
            return;
        }
        self.mode &= !0o4000;
        let member = caller.uid == 0 || caller.in_group(self.gid);
        if self.mode & 0o010 != 0 || !member {
            self.mode &= !0o2000;
        }
    }
}

fn child(dir: &NodeRef, name: &Name) -> Option<NodeRef> {
    let dir = Ref::map(dir.borrow(), |dir| &dir.entries);
    dir.iter().find(|(other, _)| other == name).map(|(_, node)| Rc::clone(node))
}

/// Whether `inner` is `outer` or below it.
fn contains(outer: &NodeRef, inner: &NodeRef) -> bool {
    Rc::ptr_eq(outer, inner)
        || outer.borrow().entries.iter().any(|(_, child)| contains(child, inner))
}

/// The rights of mode and ACL, of which `asked` are relevant.
fn bits(caller: &Caller, node: &Node, asked: u16) -> u16 {
    if caller.uid == 0 {
        let search = node.kind == FileKind::Directory || node.mode & 0o111 != 0;
        return READ | WRITE | if search { SEARCH } else { 0 };
    }
    if caller.uid == node.uid {
        node.mode >> 6 & 7
    } else if let Some(rights) = acl::rights(caller, node, asked) {
        rights
    } else if caller.in_group(node.gid) {
        node.mode >> 3 & 7
    } else {
        node.mode & 7
    }
}

fn may(caller: &Caller, node: &NodeRef, right: u16) -> Outcome {
    if caller.checked || bits(caller, &node.borrow(), right) & right == right {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

/// In a sticky directory only the owner of the directory or of the entry removes it.
fn may_remove(caller: &Caller, dir: &NodeRef, node: &NodeRef) -> Outcome {
    may(caller, dir, WRITE)?;
    let sticky = dir.borrow().mode & 0o1000 != 0;
    let owns = caller.uid == dir.borrow().uid || caller.uid == node.borrow().uid;
    if sticky && !owns && !caller.checked && caller.uid != 0 {
        Err(FsError::NotPermitted)
    } else {
        Ok(())
    }
}
