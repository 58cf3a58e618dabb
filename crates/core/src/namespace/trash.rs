//! The trash: what loses its last name where removed things are kept is moved to a directory that
//! nobody sees, and can be restored from there until its time has come.
//!
//! - Whether something is kept, where and for how long stands in the command, which has it from
//!   [`Namespace::keep_of`] as it was then.
//! - What is kept says so itself ([`TRASHED`]), and so in the log, in snapshots and in the pages of
//!   the bucket.
//! - To those who have it open a file stays what it is, but for its link count. A directory is
//!   empty, and nothing is made in it.

use super::access::require;
use super::{Change, FIRST_COOKIE, Inode, Named, Namespace, Operation, QUOTA};
use bytes::Bytes;
use ebb_model::*;

/// The attribute of what is in the trash. It is not shown as an extended attribute and cannot be
/// set as one. Its value is `version u8 = 1 | at i64 | at u32 | until i64 | uid u32 | path`, little
/// endian.
pub const TRASHED: &[u8] = b"ebb.trashed";
const VERSION: u8 = 1;

/// What has a longer path than programs can use is not kept.
const MAX_PATH_BYTES: usize = 4095;

/// What the name of the trash is in its directory.
pub fn trash_name() -> Name {
    Name::new(TRASH).expect("it is a name")
}

/// What something is called in the trash.
pub fn trashed_name(ino: Ino) -> Name {
    Name::new(format!("{:x}", ino.0).as_bytes()).expect("digits are a name")
}

/// The names of the trash are nobody's to use.
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

/// What is asked and shown.
impl Namespace {
    /// For how many seconds what is removed from the directory is kept, and the directory that says
    /// so: the nearest that says anything.
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

    /// The trash that `top` has.
    pub fn trash_of(&self, top: Ino) -> Option<Ino> {
        self.dentry(top, &trash_name())
            .filter(|dentry| dentry.kind == FileKind::Directory)
            .map(|dentry| dentry.ino)
    }

    pub(crate) fn is_trash(&self, dir: Ino) -> bool {
        self.primary_name(dir).is_some_and(|(_, name)| name.as_bytes() == TRASH)
    }

    /// What is known to be in the trash of `top`, with its cookie, behind a position.
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

    /// How it came into the trash; `None` of what is not in it.
    pub fn trashed_inode(&self, ino: Ino) -> Option<Trashed> {
        self.inode(ino)?.trashed()
    }
}

/// What comes into the trash.
impl Namespace {
    /// Refuses what is to go where there is no trash, and none can be.
    pub(super) fn may_discard(&self, op: &Operation) -> Result<(), FsError> {
        let Some(place) = op.trash else { return Ok(()) };
        self.directory(place.top)?;
        match self.dentry(place.top, &trash_name()) {
            Some(dentry) if dentry.kind == FileKind::Directory => Ok(()),
            // Of what others have put there nothing is to be lost, nor of what is to be kept.
            Some(_) => Err(FsError::Exists),
            None if self.inode(place.ino).is_none() && self.may_be_made(place.ino) => Ok(()),
            None => Err(FsError::Invalid),
        }
    }

    /// Where an inode was that is to be kept once it has lost this name. `None`: it has others, or
    /// goes.
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

    /// Moves what has lost its last name to the trash. A quota ends with the path of its root.
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

    /// Root's, and nobody else's to look into. To who sees `top` nothing changes.
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
        let link = self.enter(top, &trash_name(), ino, FileKind::Directory);
        self.add_link(&mut inode, link, true);
        self.add_inode(&inode);
        self.count_in(ino);
        op.linked(top, &trash_name(), ino, true);
        ino
    }
}

/// What leaves the trash.
impl Namespace {
    /// Whether what is in the trash can be `name` in the directory `to`.
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

    /// To be asked [`Namespace::may_restore`] before.
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
            self.primary_name(ino).expect("what is in the trash has a name there");
        let from = self.primary_link(ino).expect("what has a name has a link");
        let mut inode = self.inode(ino).expect("it is in the trash");
        let kind = inode.attr.kind;
        self.strike(trash, &kept_name);
        self.dir_changed(trash, stamp, -i32::from(kind == FileKind::Directory));
        let link = self.add(to, name, ino, kind, stamp);
        inode.xattrs.remove(TRASHED);
        inode.changed(stamp);
        let primary = self.move_link(&mut inode, from, link);
        self.put_inode(&inode);
        self.count_renamed(ino, counted_in);
        changes.push(Change::Unlinked { parent: trash, name: kept_name, ino, primary, stamp });
        changes.push(Change::Linked { parent: to, name: name.clone(), ino, primary, stamp });
    }

    /// Removes what is in the trash for good. False if it is not there.
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
            self.primary_name(ino).expect("what is in the trash has a name there");
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
