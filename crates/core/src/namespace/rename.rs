//! rename: moves a name, over another one or in exchange for it, or leaves a whiteout. Refusals
//! come in the order in which Linux finds them.

use super::access::{require, require_removable};
use super::{Dentry, Entry, Inode, Link, Namespace, Operation};
use ebb_model::*;

/// A name in a directory.
type Place<'a> = (Ino, &'a Name);

impl Namespace {
    pub(super) fn rename(
        &mut self,
        from: Place,
        to: Place,
        mode: RenameMode,
        holders: &[SessionId],
        op: &mut Operation,
    ) -> Result<(), FsError> {
        self.searchable(op.caller, from.0)?;
        self.searchable(op.caller, to.0)?;
        let source = self.dentry(from.0, from.1).ok_or(FsError::NotFound)?;
        let target = self.dentry(to.0, to.1);
        match (mode, target) {
            (mode, Some(_)) if mode.keeps_target() => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        self.require_no_loop(from.0, to.0, source, target, mode)?;
        if target.is_some_and(|target| target.ino == source.ino) {
            return Ok(());
        }
        self.require_movable(op.caller, from.0, to.0, source)?;
        match target {
            None => require(op.caller, &self.directory(to.0)?, Access::WRITE)?,
            Some(target) if mode == RenameMode::Exchange => self.require_movable(op.caller, to.0, from.0, target)?,
            Some(target) => self.require_replaceable(op.caller, to.0, source, target)?,
        }
        let whiteout = match mode {
            RenameMode::Whiteout { ino, .. } => Some(self.whiteout(from.0, ino, op)?),
            RenameMode::Replace | RenameMode::KeepTarget | RenameMode::Exchange => None,
        };
        match target {
            Some(target) if mode == RenameMode::Exchange => self.exchange(from, to, source, target, op),
            _ => self.replace(from, to, source, target, whiteout, holders, op),
        }
        Ok(())
    }

    /// What overlays take for a removed name: a device 0:0, which nobody can open, of whoever moves the name away.
    fn whiteout(&self, dir: Ino, ino: Option<Ino>, op: &Operation) -> Result<Inode, FsError> {
        let ino = ino.ok_or(FsError::Invalid)?;
        self.require_unused(ino)?;
        if op.trash.is_some_and(|trash| trash.ino == ino) {
            return Err(FsError::Invalid);
        }
        let what = Make::Special { kind: FileKind::CharDevice, rdev: 0 };
        Ok(Inode::new(op, &self.directory(dir)?, ino, 0, &what))
    }

    /// Refuses to move a directory below itself, or over a directory that it is in.
    fn require_no_loop(&self, from: Ino, to: Ino, source: Dentry, target: Option<Dentry>, mode: RenameMode) -> Result<(), FsError> {
        if from == to {
            return Ok(());
        }
        if source.kind == FileKind::Directory && self.is_within(to, source.ino) {
            return Err(FsError::Invalid);
        }
        match target {
            Some(target) if target.kind == FileKind::Directory && self.is_within(from, target.ino) => match mode {
                RenameMode::Exchange => Err(FsError::Invalid),
                RenameMode::Replace | RenameMode::KeepTarget | RenameMode::Whiteout { .. } => Err(FsError::NotEmpty),
            },
            _ => Ok(()),
        }
    }

    /// Refuses a caller who may not take the entry out of `from`; a directory that gets
    /// another `..` must be writable itself.
    fn require_movable(&self, caller: &Caller, from: Ino, to: Ino, entry: Dentry) -> Result<(), FsError> {
        let inode = self.inode(entry.ino).ok_or(FsError::Stale)?;
        require_removable(caller, &self.directory(from)?, &inode)?;
        if from != to && entry.kind == FileKind::Directory {
            require(caller, &inode, Access::WRITE)?;
        }
        Ok(())
    }

    fn require_replaceable(&self, caller: &Caller, dir: Ino, source: Dentry, target: Dentry) -> Result<(), FsError> {
        let inode = self.inode(target.ino).ok_or(FsError::Stale)?;
        require_removable(caller, &self.directory(dir)?, &inode)?;
        match (source.kind == FileKind::Directory, target.kind == FileKind::Directory) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (true, true) if !self.is_empty_directory(target.ino) => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one per fact that the checks have found")]
    fn replace(
        &mut self,
        from: Place,
        to: Place,
        source: Dentry,
        target: Option<Dentry>,
        whiteout: Option<Inode>,
        holders: &[SessionId],
        op: &mut Operation,
    ) {
        let subdirectory = i32::from(source.kind == FileKind::Directory);
        let left = Link { parent: from.0, cookie: source.cookie };
        let stays = whiteout.as_ref().map(|inode| inode.attr.ino);
        match whiteout {
            Some(inode) => self.leave(from, left, inode),
            None => self.strike(from.0, from.1),
        }
        self.dir_changed(from.0, op.stamp, -subdirectory);
        let link = match target {
            None if from.0 == to.0 && stays.is_none() => self.enter_at(to.1, left, source.ino, source.kind),
            None => self.enter(to.0, to.1, source.ino, source.kind),
            Some(target) => {
                let link = Link { parent: to.0, cookie: target.cookie };
                self.lose_name(target.ino, link, to.1, holders, op);
                self.redirect(to, link, source);
                link
            }
        };
        let replaced = target.map_or(0, |target| i32::from(target.kind == FileKind::Directory));
        self.dir_changed(to.0, op.stamp, subdirectory - replaced);
        let primary = self.name_moved(source.ino, left, link, op.stamp);
        op.unlinked(from.0, from.1, source.ino, primary);
        op.linked(to.0, to.1, source.ino, primary);
        if let Some(ino) = stays {
            op.linked(from.0, from.1, ino, true);
        }
    }

    /// Makes the inode, at the place of what has the name so far.
    fn leave(&mut self, place: Place, link: Link, mut inode: Inode) {
        let (ino, kind) = (inode.attr.ino, inode.attr.kind);
        self.redirect(place, link, Dentry { ino, kind, cookie: link.cookie });
        self.add_link(&mut inode, link, true);
        self.add_inode(&inode);
        self.count_in(ino);
    }

    fn exchange(&mut self, from: Place, to: Place, source: Dentry, target: Dentry, op: &mut Operation) {
        let left = Link { parent: from.0, cookie: source.cookie };
        let right = Link { parent: to.0, cookie: target.cookie };
        self.redirect(from, left, target);
        self.redirect(to, right, source);
        let moves = i32::from(source.kind == FileKind::Directory) - i32::from(target.kind == FileKind::Directory);
        self.dir_changed(from.0, op.stamp, -moves);
        self.dir_changed(to.0, op.stamp, moves);
        let source_primary = self.name_moved(source.ino, left, right, op.stamp);
        let target_primary = self.name_moved(target.ino, right, left, op.stamp);
        op.unlinked(from.0, from.1, source.ino, source_primary);
        op.unlinked(to.0, to.1, target.ino, target_primary);
        op.linked(to.0, to.1, source.ino, source_primary);
        op.linked(from.0, from.1, target.ino, target_primary);
    }

    /// Makes the name refer to what `entry` refers to, at the place that it has in its directory.
    fn redirect(&mut self, place: Place, link: Link, entry: Dentry) {
        self.dentries.insert(&(link.parent, link.cookie), &Entry { name: place.1.clone(), ino: entry.ino, kind: entry.kind });
    }

    /// True if the name that was moved is the inode's primary one.
    fn name_moved(&mut self, ino: Ino, from: Link, to: Link, stamp: Stamp) -> bool {
        let mut inode = self.inode(ino).expect("a dentry refers to an inode that exists");
        inode.changed(stamp);
        let primary = self.move_link(&mut inode, from, to);
        self.put_inode(&inode);
        primary
    }
}
