//! Changes that clients request, other than of bytes.

use super::*;
use crate::oracle::acl;

impl Tree {
    pub(super) fn mutate(
        &mut self,
        asked: &Asked<'_>,
        mutation: &ClientMutation,
    ) -> Result<(), Mismatch> {
        match mutation {
            ClientMutation::Make { parent, name, mode, what, open } => {
                let errors = self.name_errors(*parent, name, FsError::Exists);
                if !errors.is_empty() {
                    return asked.expect_one_of(&errors);
                }
                let id = NodeId(asked.id.0 + 1);
                let mut node =
                    Node { times: Times::all(Moment::Now), ..Node::new(what.kind(), mode.mode) };
                let parent = self.by_ino[parent];
                match what {
                    Make::Symlink { target } => (node.target, node.mode) = (target.clone(), 0o777),
                    _ => acl::inherit(
                        &self.nodes[&parent].xattrs,
                        *mode,
                        node.kind,
                        &mut node.mode,
                        &mut node.xattrs,
                    ),
                }
                if let Make::Special { rdev, .. } = what {
                    node.rdev = *rdev;
                }
                node.changed = true;
                if *open {
                    node.opens.insert(asked.client, 1);
                }
                self.enter(parent, name, id, node);
                self.change(parent).touch(asked);
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
                let (Some(node), true) = (node, errors.is_empty()) else {
                    return asked.expect_one_of(&errors);
                };
                let parent = self.by_ino[parent];
                self.change(parent).entries.insert(name.clone(), node);
                self.change(parent).touch(asked);
                let linked = self.change(node);
                linked.links += 1;
                linked.linkable = false;
                linked.changed = true;
                linked.times.change(Moment::Now);
                self.expect_attr(asked, node)
            }
            ClientMutation::Unlink { parent, name } => match self.child(*parent, name) {
                Err(errors) => asked.expect_one_of(&errors),
                Ok((_, node)) if self.nodes[&node].kind == FileKind::Directory => {
                    asked.expect_one_of(&[FsError::IsDirectory])
                }
                Ok((dir, node)) => {
                    self.strike(asked, dir, name, node);
                    asked.expect(&Outcome::Done)
                }
            },
            ClientMutation::Rmdir { parent, name } => match self.child(*parent, name) {
                Err(errors) => asked.expect_one_of(&errors),
                Ok((_, node)) if self.nodes[&node].kind != FileKind::Directory => {
                    asked.expect_one_of(&[FsError::NotDirectory])
                }
                Ok((_, node)) if !self.nodes[&node].entries.is_empty() => {
                    asked.expect_one_of(&[FsError::NotEmpty])
                }
                Ok((dir, node)) => {
                    self.strike(asked, dir, name, node);
                    asked.expect(&Outcome::Done)
                }
            },
            ClientMutation::Rename { from, name, to, new_name, mode } => {
                self.rename(asked, (*from, name), (*to, new_name), *mode)
            }
            ClientMutation::SetAttr { ino, set } => self.set_attr(asked, *ino, set),
            ClientMutation::SetXattr { ino, name, value, mode } => {
                let node = match self.xattr_holder(*ino) {
                    Ok(node) => node,
                    Err(error) => return asked.expect_one_of(&[error]),
                };
                let exists = self.nodes[&node].xattrs.contains_key(name);
                match mode {
                    XattrMode::Create if exists => return asked.expect_one_of(&[FsError::Exists]),
                    XattrMode::Replace if !exists => {
                        return asked.expect_one_of(&[FsError::NoAttribute]);
                    }
                    _ => {}
                }
                let node = self.change(node);
                node.xattrs.insert(name.clone(), value.clone());
                node.changed = true;
                node.times.change(asked.span.since());
                asked.expect(&Outcome::Done)
            }
            ClientMutation::SetAcl { ino, class, value, .. } => {
                self.set_acl(asked, *ino, *class, value)
            }
            ClientMutation::RemoveXattr { ino, name } => {
                let node = match self.xattr_holder(*ino) {
                    Ok(node) => node,
                    Err(error) => return asked.expect_one_of(&[error]),
                };
                if self.change(node).xattrs.remove(name).is_none() {
                    return asked.expect_one_of(&[FsError::NoAttribute]);
                }
                let node = self.change(node);
                node.changed = true;
                node.times.change(asked.span.since());
                asked.expect(&Outcome::Done)
            }
            ClientMutation::Write { ino, offset, data, .. } => {
                self.write(asked, *ino, Some(*offset), data)
            }
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
                let mut node = Node {
                    links: 0,
                    linkable: true,
                    opens,
                    times: Times::all(Moment::Now),
                    ..Node::new(FileKind::Regular, mode.mode)
                };
                let parent = self.by_ino[parent];
                acl::inherit(
                    &self.nodes[&parent].xattrs,
                    *mode,
                    node.kind,
                    &mut node.mode,
                    &mut node.xattrs,
                );
                self.nodes.insert(id, Rc::new(node));
                self.expect_attr(asked, id)
            }
            ClientMutation::Fallocate { ino, offset, len_bytes, what, keep_size, .. } => {
                self.fallocate(asked, *ino, (*offset, *len_bytes), *what, *keep_size)
            }
        }
    }

    pub(super) fn rename(
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
        if mode.keeps_target() && target.is_some() {
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
                errors.push(if mode == RenameMode::Exchange {
                    FsError::Invalid
                } else {
                    FsError::NotEmpty
                });
            }
            if mode.replaces() && target != source {
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
        self.change(from).touch(asked);
        self.change(to).touch(asked);
        let moved = self.change(source);
        moved.changed = true;
        moved.times.change(asked.span.since());
        match (target, mode) {
            (Some(target), RenameMode::Exchange) => {
                self.change(from).entries.insert(name.clone(), target);
                let moved = self.change(target);
                moved.changed = true;
                moved.times.change(asked.span.since());
                self.change(to).entries.insert(new_name.clone(), source);
            }
            _ => {
                if let Some(target) = target {
                    self.strike(asked, to, new_name, target);
                }
                self.change(from).entries.remove(name);
                self.change(to).entries.insert(new_name.clone(), source);
                if mode.makes() {
                    let mut node = Node {
                        changed: true,
                        times: Times::all(asked.span.since()),
                        ..Node::new(FileKind::CharDevice, 0)
                    };
                    acl::inherit(
                        &self.nodes[&from].xattrs,
                        NewMode::from(0),
                        node.kind,
                        &mut node.mode,
                        &mut node.xattrs,
                    );
                    self.enter(from, name, NodeId(asked.id.0 + 1), node);
                }
            }
        }
        asked.expect(&Outcome::Done)
    }

    pub(super) fn set_attr(
        &mut self,
        asked: &Asked<'_>,
        ino: Ino,
        set: &SetAttr,
    ) -> Result<(), Mismatch> {
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
        // Reading moves atime and leaves ctime.
        if set.atime == Some(SetTime::Reading) {
            node.times.access(Moment::Now);
        } else {
            node.times.change(Moment::Now);
        }
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
            node.times.mtime = Moment::Now;
        }
        let set_to = |moment: &mut Moment, set: Option<SetTime>| match set {
            Some(SetTime::To(time)) => *moment = Moment::Told(time),
            Some(SetTime::Now | SetTime::Reading) => *moment = Moment::Now,
            None => {}
        };
        set_to(&mut node.times.atime, set.atime);
        set_to(&mut node.times.mtime, set.mtime);
        self.expect_attr(asked, id)
    }

    pub(super) fn set_acl(
        &mut self,
        asked: &Asked<'_>,
        ino: Ino,
        class: AclClass,
        value: &Bytes,
    ) -> Result<(), Mismatch> {
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
        if (node.mode, &node.xattrs) != (before.mode, &before.xattrs) {
            node.changed = true;
            node.times.change(Moment::Now);
        }
        self.expect_attr(asked, id)
    }
}
