//! rename(2): moves a name, replaces or exchanges the target, or leaves a whiteout. Errors have the
//! precedence of Linux.

use super::access::{require, require_removable};
use super::{Entry, Inode, Link, Named, Namespace, Operation};
use ebb_model::*;

/// A name in a directory.
type ParentName<'a> = (Ino, &'a Name);

impl Namespace {
    pub(super) fn rename(
        &mut self,
        from: ParentName,
        to: ParentName,
        mode: RenameMode,
        holders: &[SessionId],
        op: &mut Operation,
    ) -> Result<(), FsError> {
        self.searchable(op.caller, from.0)?;
        self.searchable(op.caller, to.0)?;
        let source = self.named(from.0, from.1).ok_or(FsError::NotFound)?;
        let target = self.named(to.0, to.1);
        match (mode, target) {
            (mode, Some(_)) if mode.keeps_target() => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        self.require_no_loop(source, to.0, target, mode)?;
        if target.is_some_and(|target| target.ino == source.ino) {
            return Ok(());
        }
        self.require_movable(op.caller, source, to.0)?;
        match target {
            None => require(op.caller, &self.directory(to.0)?, Access::WRITE)?,
            Some(target) if mode == RenameMode::Exchange => {
                self.require_movable(op.caller, target, from.0)?
            }
            Some(target) => self.require_replaceable(op.caller, source, target)?,
        }
        let whiteout = match mode {
            RenameMode::Whiteout { ino, .. } => Some(self.whiteout(from.0, ino, op)?),
            RenameMode::Replace | RenameMode::KeepTarget | RenameMode::Exchange => None,
        };
        match target {
            Some(target) if mode == RenameMode::Exchange => self.exchange(source, target, op),
            _ => self.replace(source, to, target, whiteout, holders, op),
        }
        Ok(())
    }

    /// A whiteout, the mark of overlay file systems for a removed name: a device 0:0, owned by the
    /// caller. Opening it fails.
    fn whiteout(&self, dir: Ino, ino: Option<Ino>, op: &Operation) -> Result<Inode, FsError> {
        let ino = ino.ok_or(FsError::Invalid)?;
        self.require_unused(ino)?;
        if op.trash.is_some_and(|trash| trash.ino == ino) {
            return Err(FsError::Invalid);
        }
        let what = Make::Special { kind: FileKind::CharDevice, rdev: 0 };
        Ok(Inode::new(op, &self.directory(dir)?, ino, 0, &what))
    }

    /// Fails if a directory would move below itself, or would replace a directory above it.
    fn require_no_loop(
        &self,
        source: Named,
        to: Ino,
        target: Option<Named>,
        mode: RenameMode,
    ) -> Result<(), FsError> {
        let from = source.link.parent;
        if from == to {
            return Ok(());
        }
        if source.kind == FileKind::Directory
            && self.is_within(to, source.ino)
            && !Planted::LoopAllowed.is_on()
        {
            return Err(FsError::Invalid);
        }
        match target {
            Some(target)
                if target.kind == FileKind::Directory && self.is_within(from, target.ino) =>
            {
                match mode {
                    RenameMode::Exchange => Err(FsError::Invalid),
                    RenameMode::Replace | RenameMode::KeepTarget | RenameMode::Whiteout { .. } => {
                        Err(FsError::NotEmpty)
                    }
                }
            }
            _ => Ok(()),
        }
    }

    /// Fails unless the caller can remove the name from its directory. A directory that gets
    /// another `..` must itself be writable.
    fn require_movable(&self, caller: &Caller, named: Named, to: Ino) -> Result<(), FsError> {
        let inode = self.inode(named.ino).ok_or(FsError::Stale)?;
        require_removable(caller, &self.directory(named.link.parent)?, &inode)?;
        if named.link.parent != to && named.kind == FileKind::Directory {
            require(caller, &inode, Access::WRITE)?;
        }
        Ok(())
    }

    fn require_replaceable(
        &self,
        caller: &Caller,
        source: Named,
        target: Named,
    ) -> Result<(), FsError> {
        let inode = self.inode(target.ino).ok_or(FsError::Stale)?;
        require_removable(caller, &self.directory(target.link.parent)?, &inode)?;
        match (source.kind == FileKind::Directory, target.kind == FileKind::Directory) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (true, true) if !self.is_empty_directory(target.ino) => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    fn replace(
        &mut self,
        source: Named,
        to: ParentName,
        target: Option<Named>,
        whiteout: Option<Inode>,
        holders: &[SessionId],
        op: &mut Operation,
    ) {
        let Named { name, link: left, ino, kind } = source;
        let subdirectory = i32::from(kind == FileKind::Directory);
        let stays = whiteout.as_ref().map(|inode| inode.attr.ino);
        match whiteout {
            Some(inode) => self.leave_whiteout(source, inode),
            None => self.remove_dentry(left.parent, name),
        }
        self.dir_changed(left.parent, op.stamp, -subdirectory);
        let link = match target {
            None if left.parent == to.0 && stays.is_none() => {
                self.insert_dentry_at(to.1, left, ino, kind)
            }
            None => self.insert_dentry(to.0, to.1, ino, kind),
            Some(target) => {
                self.lose_name(target, holders, op);
                self.retarget(target, ino, kind);
                target.link
            }
        };
        let replaced = target.map_or(0, |target| i32::from(target.kind == FileKind::Directory));
        self.dir_changed(to.0, op.stamp, subdirectory - replaced);
        let primary = self.name_moved(source, link, op.stamp);
        op.unlinked(left.parent, name, ino, primary);
        op.linked(to.0, to.1, ino, primary);
        if let Some(whiteout) = stays {
            op.linked(left.parent, name, whiteout, true);
        }
    }

    /// Inserts the whiteout at the position of the moved name.
    fn leave_whiteout(&mut self, place: Named, mut inode: Inode) {
        let ino = inode.attr.ino;
        self.retarget(place, ino, inode.attr.kind);
        self.add_link(&mut inode, place.link, true);
        self.add_inode(&inode);
        self.count_in(ino);
    }

    fn exchange(&mut self, source: Named, target: Named, op: &mut Operation) {
        let (from, to) = (source.link.parent, target.link.parent);
        self.retarget(source, target.ino, target.kind);
        self.retarget(target, source.ino, source.kind);
        let moves = match Planted::ExchangeKeepsLinks.is_on() {
            true => 0,
            false => {
                i32::from(source.kind == FileKind::Directory)
                    - i32::from(target.kind == FileKind::Directory)
            }
        };
        self.dir_changed(from, op.stamp, -moves);
        self.dir_changed(to, op.stamp, moves);
        let source_primary = self.name_moved(source, target.link, op.stamp);
        let target_primary = self.name_moved(target, source.link, op.stamp);
        op.unlinked(from, source.name, source.ino, source_primary);
        op.unlinked(to, target.name, target.ino, target_primary);
        op.linked(to, target.name, source.ino, source_primary);
        op.linked(from, source.name, target.ino, target_primary);
    }

    /// Makes the dentry refer to another inode and keeps its position.
    fn retarget(&mut self, Named { name, link, .. }: Named, ino: Ino, kind: FileKind) {
        self.dentries.insert(&(link.parent, link.cookie), &Entry { name: name.clone(), ino, kind });
    }

    /// Moves the link of an inode from `named` to `to`. Returns whether it is the primary one.
    fn name_moved(&mut self, named: Named, to: Link, stamp: Stamp) -> bool {
        let mut inode = self.inode(named.ino).expect("a dentry refers to an inode that exists");
        if !Planted::CtimeKept.is_on() {
            inode.changed(stamp);
        }
        let primary = self.move_link(&mut inode, named.link, to);
        self.put_inode(&inode);
        primary
    }
}
