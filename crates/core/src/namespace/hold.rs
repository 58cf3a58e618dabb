//! Orphan inodes: unlinked inodes exist as long as a session has them open, and are removed with
//! the last close. None remains for an administrator to clean up (C-16).

use super::{Change, Namespace};
use ebb_model::*;

impl Namespace {
    /// The session has closed its last descriptor of the inode. No effect on an inode with a name,
    /// or one that the session does not hold.
    pub fn release(&mut self, session: SessionId, ino: Ino, changes: &mut Vec<Change>) {
        let Some(holders) = self.orphans.get_mut(&ino) else { return };
        holders.remove(&session);
        if !holders.is_empty() {
            return;
        }
        self.orphans.remove(&ino);
        self.linkable.remove(&ino);
        if let Some(inode) = self.inodes.remove(&ino) {
            self.count_out_stray(&inode);
            changes.push(Change::Gone { ino, attr: inode.attr });
        }
    }

    /// Ends every hold of a session.
    pub fn release_all(&mut self, session: SessionId, changes: &mut Vec<Change>) {
        let held: Vec<Ino> = self
            .orphans
            .iter()
            .filter(|(_, holders)| holders.contains(&session))
            .map(|(ino, _)| *ino)
            .collect();
        for ino in held {
            self.release(session, ino, changes);
        }
    }

    /// The sessions that hold an orphan inode; none for an inode with a name.
    pub fn holders(&self, ino: Ino) -> impl Iterator<Item = SessionId> {
        self.orphans.get(&ino).into_iter().flatten().copied()
    }

    /// Orphan inodes, with the sessions that hold them.
    pub fn orphans(&self) -> impl Iterator<Item = (Ino, impl Iterator<Item = SessionId>)> {
        self.orphans.iter().map(|(ino, holders)| (*ino, holders.iter().copied()))
    }
}
