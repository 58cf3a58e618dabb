//! Open-but-unlinked inodes live as long as a session holds them, and go with the last that does:
//! none is left for an administrator to free (C-16).

use super::{Change, Namespace};
use ebb_model::*;

impl Namespace {
    /// The session has no descriptor on the inode any more. Of an inode that has a name, or
    /// that the session does not hold, this says nothing new.
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

    /// The session has ended.
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

    /// The sessions that hold an inode without a name; none hold one that has a name.
    pub fn holders(&self, ino: Ino) -> impl Iterator<Item = SessionId> {
        self.orphans.get(&ino).into_iter().flatten().copied()
    }

    /// Inodes without a name, with the sessions that hold them.
    pub fn orphans(&self) -> impl Iterator<Item = (Ino, impl Iterator<Item = SessionId>)> {
        self.orphans.iter().map(|(ino, holders)| (*ino, holders.iter().copied()))
    }
}
