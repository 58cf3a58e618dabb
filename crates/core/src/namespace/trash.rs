//! The trash: an inode that loses its last name moves to a hidden directory, if retention is set,
//! and can be restored until its time ends.
//!
//! Laws:
//! - The command decides whether, where and how long an inode is kept, from [`Namespace::keep_of`]
//!   at the time of the request.
//! - The attribute [`TRASHED`] of a kept inode records its origin. So it is in the log, in
//!   snapshots and in directory pages.
//! - A file stays usable through open descriptors; only its link count changes. A directory is
//!   empty and gets no names.

use super::access::require;
use super::{Change, FIRST_COOKIE, Inode, Named, Namespace, Operation, QUOTA};
use bytes::Bytes;
use ebb_model::*;

/// The attribute of an inode in the trash, hidden from applications. Its value is `version u8 = 1 |
/// at i64 | at u32 | until i64 | uid u32 | path`, little endian.
pub const TRASHED: &[u8] = b"ebb.trashed";
const VERSION: u8 = 1;

/// Longest path (PATH_MAX - 1) of an inode that is kept.
const MAX_PATH_BYTES: usize = 4095;

/// Name of the trash in its directory.
pub fn trash_name() -> Name {
    Name::new(TRASH).expect("it is a name")
}

/// Name of an inode in the trash.
pub fn trashed_name(ino: Ino) -> Name {
    Name::new(format!("{:x}", ino.0).as_bytes()).expect("digits are a name")
}

/// Fails if a mutation uses the reserved name of the trash.
pub(super) fn require_no_trash(mutation: &Mutation) -> Result<(), FsError> {
    let (first, second) = match mutation {
        Mutation::Make { name, .. }
        | Mutation::Link { name, .. }
        | Mutation::Unlink { name, .. }
        | Mutation::Rmdir { name, .. } => (Some(name), None),
        Mutation::Rename { name, new_name, .. } => (Some(name), Some(new_name)),
        _ => (None, None),
    };
    let is_used = first.into_iter().chain(second).any(|name| name.as_bytes() == TRASH);
    if is_used { Err(FsError::AccessDenied) } else { Ok(()) }
}

/// Queries.
impl Namespace {
    /// Retention in seconds of inodes removed from the directory, and the directory that sets it:
    /// the nearest one with the attribute.
    pub fn keep_of(&self, dir: Ino) -> Option<(Ino, u64)> {
        let mut at = dir;
        loop {
            let inode = self.inode(at)?;
            if let Some(keep_secs) = inode.xattrs.get(KEEP).and_then(|value| parse_keep(value)) {
                return (keep_secs > 0).then_some((at, keep_secs));
            }
            at = inode.first?.parent;
        }
    }

    /// The trash directory of `top`.
    pub fn trash_of(&self, top: Ino) -> Option<Ino> {
        self.dentry(top, &trash_name())
            .filter(|dentry| dentry.kind == FileKind::Directory)
            .map(|dentry| dentry.ino)
    }

    pub(crate) fn is_trash(&self, dir: Ino) -> bool {
        self.primary_name(dir).is_some_and(|(_, name)| name.as_bytes() == TRASH)
    }

    /// The loaded entries in the trash of `top` after a position, with their cookies.
    pub fn trashed(&self, top: Ino, after: Cookie) -> impl Iterator<Item = (Cookie, TrashEntry)> {
        let stream = self
            .trash_of(top)
            .map(|trash| self.stream(trash, after.max(Cookie(FIRST_COOKIE.0 - 1))));
        stream.into_iter().flatten().filter_map(|(cookie, entry)| {
            let inode = self.inode(entry.ino)?;
            let trashed = inode.trashed()?;
            Some((
                cookie,
                TrashEntry {
                    ino: entry.ino,
                    kind: entry.kind,
                    size_bytes: inode.attr.size_bytes,
                    trashed,
                },
            ))
        })
    }

    /// Origin of an inode in the trash; `None` for other inodes.
    pub fn trashed_inode(&self, ino: Ino) -> Option<Trashed> {
        self.inode(ino)?.trashed()
    }
}

/// Moves to the trash.
impl Namespace {
    /// Fails if the mutation needs a trash that does not exist and cannot be created.
    pub(super) fn may_discard(&self, op: &Operation) -> Result<(), FsError> {
        let Some(place) = op.trash else { return Ok(()) };
        self.directory(place.top)?;
        match self.dentry(place.top, &trash_name()) {
            Some(dentry) if dentry.kind == FileKind::Directory => Ok(()),
            // Fail instead of discarding: neither the foreign file under the name nor the removed
            // inode may be lost.
            Some(_) => Err(FsError::Exists),
            None if self.inode(place.ino).is_none() && self.may_be_made(place.ino) => Ok(()),
            None => Err(FsError::Invalid),
        }
    }

    /// The path to record for an inode that loses this name. `None`: it has other names, or is not
    /// kept.
    pub(super) fn path_to_keep(&self, lost: Named) -> Option<Bytes> {
        let inode = self.inode(lost.ino)?;
        if inode.attr.kind != FileKind::Directory && inode.attr.nlink > 1 {
            return None;
        }
        let mut path = self.path_of(lost.link.parent)?;
        path.push(lost.name.clone());
        let path = path.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/');
        (path.len() <= MAX_PATH_BYTES).then(|| path.into())
    }

    /// Moves an inode that lost its last name to the trash. The quota of a root ends with its path.
    pub(super) fn keep(
        &mut self,
        lost: Named,
        path: Bytes,
        place: &TrashTarget,
        op: &mut Operation,
    ) {
        let Named { name, link, ino, kind } = lost;
        let counted_in = self.counts_in(ino);
        let trash = self.trash_of(place.top).unwrap_or_else(|| self.make_trash(place, op));
        let stamp = op.stamp;
        let until_secs =
            stamp.time.secs.saturating_add(i64::try_from(place.keep_secs).unwrap_or(i64::MAX));
        let trashed = Trashed { path, at: stamp.time, until_secs, uid: op.caller.uid };
        let kept_name = trashed_name(ino);
        self.end_root(ino, counted_in);
        let mut inode = self.inode(ino).expect("a dentry refers to an inode that exists");
        let kept = self.add(trash, &kept_name, ino, kind, stamp);
        inode.xattrs.remove(QUOTA);
        inode.xattrs.insert(Bytes::from_static(TRASHED), trashed_value(&trashed));
        inode.changed(stamp);
        let primary = self.move_link(&mut inode, link, kept);
        self.put_inode(&inode);
        self.count_renamed(ino, counted_in);
        op.unlinked(link.parent, name, ino, primary);
        op.linked(trash, &kept_name, ino, primary);
    }

    /// Creates the trash, accessible by root only. The attributes of `top` do not change.
    fn make_trash(&mut self, place: &TrashTarget, op: &mut Operation) -> Ino {
        let (top, ino, time) = (place.top, place.ino, op.stamp.time);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let record = InstalledRecord {
            mode: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            atime,
            mtime,
            ctime,
            btime,
            xattrs: Vec::new(),
            links: Vec::new(),
        };
        let mut inode = Inode::recorded(ino, &Make::Directory, 0, record);
        inode.attr.version = op.stamp.version;
        let link = self.insert_dentry(top, &trash_name(), ino, FileKind::Directory);
        self.add_link(&mut inode, link, true);
        self.add_inode(&inode);
        self.count_in(ino);
        op.linked(top, &trash_name(), ino, true);
        ino
    }
}

/// Moves out of the trash.
impl Namespace {
    /// Whether an inode in the trash can be restored to `name` in the directory `to`.
    pub fn may_restore(&self, ino: Ino, to: Ino, name: &Name) -> Result<(), FsError> {
        if !self.inode(ino).is_some_and(|inode| inode.is_trashed()) {
            return Err(FsError::NotFound);
        }
        let dir = self.directory(to)?;
        if name.as_bytes() == TRASH || self.is_trash(to) {
            return Err(FsError::AccessDenied);
        }
        if self.dentry(to, name).is_some() {
            return Err(FsError::Exists);
        }
        require(&Caller::ROOT, &dir, Access::WRITE)?;
        self.may_count_in(ino, self.quota_root(to))
    }

    /// Requires a successful [`Namespace::may_restore`].
    pub fn restore(
        &mut self,
        ino: Ino,
        to: Ino,
        name: &Name,
        stamp: Stamp,
        changes: &mut Vec<Change>,
    ) {
        let counted_in = self.counts_in(ino);
        let (trash, kept_name) =
            self.primary_name(ino).expect("an inode in the trash has a name there");
        let from = self.primary_link(ino).expect("a named inode has a link");
        let mut inode = self.inode(ino).expect("the inode is in the trash");
        let kind = inode.attr.kind;
        self.remove_dentry(trash, &kept_name);
        self.dir_changed(trash, stamp, -i32::from(kind == FileKind::Directory));
        let link = self.add(to, name, ino, kind, stamp);
        inode.xattrs.remove(TRASHED);
        inode.changed(stamp);
        let primary = self.move_link(&mut inode, from, link);
        self.put_inode(&inode);
        self.count_renamed(ino, counted_in);
        changes.push(Change::Unlinked {
            parent: trash,
            name: kept_name,
            ino,
            primary,
            by_others: false,
            stamp,
        });
        changes.push(Change::Linked { parent: to, name: name.clone(), ino, primary, stamp });
    }

    /// Removes an inode from the trash permanently. Returns false if it is not there.
    pub fn purge(
        &mut self,
        ino: Ino,
        holders: &[SessionId],
        stamp: Stamp,
        changes: &mut Vec<Change>,
    ) -> bool {
        if !self.inode(ino).is_some_and(|inode| inode.is_trashed()) {
            return false;
        }
        let (trash, kept_name) =
            self.primary_name(ino).expect("an inode in the trash has a name there");
        let lost = self.named(trash, &kept_name).expect("a link leads to a dentry");
        self.change_inode(ino, |inode| drop(inode.xattrs.remove(TRASHED)));
        self.remove(
            lost,
            holders,
            &mut Operation { caller: &Caller::ROOT, stamp, trash: None, changes },
        );
        true
    }
}

impl Inode {
    pub(super) fn is_trashed(&self) -> bool {
        self.xattrs.contains_key(TRASHED)
    }

    fn trashed(&self) -> Option<Trashed> {
        let (secs, rest) =
            self.xattrs.get(TRASHED)?.strip_prefix(&[VERSION])?.split_first_chunk()?;
        let (nanos, rest) = rest.split_first_chunk()?;
        let (until_secs, rest) = rest.split_first_chunk()?;
        let (uid, path) = rest.split_first_chunk()?;
        Some(Trashed {
            path: Bytes::copy_from_slice(path),
            at: Time { secs: i64::from_le_bytes(*secs), nanos: u32::from_le_bytes(*nanos) },
            until_secs: i64::from_le_bytes(*until_secs),
            uid: u32::from_le_bytes(*uid),
        })
    }
}

fn trashed_value(trashed: &Trashed) -> Bytes {
    let Trashed { path, at, until_secs, uid } = trashed;
    let numbers = [
        &at.secs.to_le_bytes()[..],
        &at.nanos.to_le_bytes(),
        &until_secs.to_le_bytes(),
        &uid.to_le_bytes(),
    ]
    .concat();
    [&[VERSION][..], &numbers, path].concat().into()
}
