//! Root squash. The kernel grants root everything, so permissions of such a caller are checked here
//! and by the node. Replies from kernel caches are not checked: names, attributes, link targets.

use super::Volume;
use crate::{Context, Errno, Handle, Ids, OpenFlags};
use ebb_model::{Access, AdminReply, AdminRequest, Caller, FsError, Ino, Name, SetAttr};

impl Volume {
    /// Treats root as `anonymous`, if given.
    pub fn squashing(self, anonymous: Option<Ids>) -> Volume {
        Volume { anonymous, ..self }
    }

    /// The substitute of a squashed caller, for which the node checks permissions.
    pub(super) fn squashed(&self, cx: &Context) -> Option<Caller> {
        let Ids { uid, gid } = self.anonymous.filter(|_| cx.ids.is_some_and(|ids| ids.uid == 0))?;
        Some(self.ids.caller(Caller { uid, gid, groups: Vec::new(), checked: false }))
    }

    /// Whether a squashed caller can reach an inode by its oldest name, with this access.
    pub(super) async fn admit(&self, cx: &Context, ino: Ino, access: Access) -> Result<(), Errno> {
        let Some(caller) = self.squashed(cx) else { return Ok(()) };
        let ino = self.volume_ino(ino);
        let AdminReply::Paths(paths) =
            self.client.admin(AdminRequest::Paths { inos: vec![ino] }).await?
        else {
            return Err(Errno::IO);
        };
        match paths.into_iter().next().flatten() {
            Some(path) => self.admit_by(&caller, &path, ino).await?,
            // An unlinked inode was reached when it was opened.
            None if self.client.getattr(ino).await?.nlink == 0 => {}
            None => return Err(FsError::AccessDenied.into()),
        }
        Ok(self.client.access(&caller, ino, access).await?)
    }

    /// Whether the directories of a path from the volume's root to an inode can be searched, from
    /// the mount's on.
    async fn admit_by(&self, caller: &Caller, path: &[u8], ino: Ino) -> Result<(), FsError> {
        let (mut at, mut in_mount) = (Ino::ROOT, self.root == Ino::ROOT);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if in_mount {
                self.client.access(caller, at, Access::EXECUTE).await?;
            }
            // Removed or renamed in between, so the path is unknown.
            let found = self.client.lookup(at, &Name::new(name)?).await;
            at = found
                .map_err(
                    |error| if error == FsError::NotFound { FsError::AccessDenied } else { error },
                )?
                .ino;
            in_mount |= at == self.root;
        }
        if in_mount && at == ino { Ok(()) } else { Err(FsError::AccessDenied) }
    }

    /// Checks an open: the access mode needs the matching permission; execute permission does not
    /// include reading.
    pub(super) async fn admit_opener(
        &self,
        cx: &Context,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<(), Errno> {
        let runs = flags.bits & FMODE_EXEC != 0;
        let rights = [
            (flags.reads() && !runs, Access::READ),
            (flags.writes(), Access::WRITE),
            (runs, Access::EXECUTE),
        ];
        let asked = rights
            .into_iter()
            .filter(|(asked, _)| *asked)
            .fold(Access::EXISTS, |all, (_, right)| all | right);
        self.admit(cx, ino, asked).await
    }

    /// ftruncate(2) needs only a descriptor open for writing, at any current mode.
    pub(super) fn cuts_open_file(set: &SetAttr, handle: Option<Handle>) -> bool {
        let rest = SetAttr { size_bytes: None, mtime: None, drop_set_id: false, ..*set };
        set.size_bytes.is_some()
            && rest == SetAttr::default()
            && handle.is_some_and(|handle| handle.0 & super::WRITES != 0)
    }
}

/// Set by the kernel in flags of execve(2), which no program can.
const FMODE_EXEC: i32 = 0x20;
