//! Who asks, as the node is told. Where the mount may be idmapped the kernel says it of what makes an inode; of
//! what else depends on it the process is looked at, which waits for the answer.

use super::Volume;
use crate::abi::NO_ID;
use crate::{Context, Errno, Ids};
use ebb_model::{Caller, Ino};

/// For what does not depend on who asks: the kernel checks permissions itself on every mount (`default_permissions`).
pub(super) fn caller(cx: &Context) -> Caller {
    let Ids { uid, gid } = cx.ids.unwrap_or(Ids { uid: NO_ID, gid: NO_ID });
    Caller { uid, gid, groups: Vec::new(), checked: true }
}

/// Whom belongs what is made. Of who has no number in the map of an idmapped mount it can belong to nobody.
pub(super) fn maker(cx: &Context) -> Result<Caller, Errno> {
    if cx.ids.is_some() { Ok(caller(cx)) } else { Err(Errno::OVERFLOW) }
}

/// Who asks, as this machine numbers users, if that can be found out.
pub(super) fn asker(cx: &Context) -> Caller {
    let looked_at = if cx.ids.is_none() && cx.pid != 0 { of_process(cx.pid) } else { None };
    looked_at.unwrap_or_else(|| caller(cx))
}

impl Volume {
    /// Who changes a file: one with set-id bits keeps some of them for root and for its group.
    pub(super) fn changer(&self, cx: &Context, ino: Ino) -> Caller {
        if self.set_id.borrow().contains_key(&ino) { asker(cx) } else { caller(cx) }
    }
}

fn of_process(pid: u32) -> Option<Caller> {
    of_status(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// `None` of a thread of the kernel: it acts for somebody whom this does not name.
fn of_status(status: &str) -> Option<Caller> {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    if line("Kthread:")?.trim() != "0" {
        return None;
    }
    // Real, effective, saved, and of the file system.
    let acting_as = |name: &str| line(name)?.split_whitespace().nth(3)?.parse().ok();
    let groups = line("Groups:")?.split_whitespace().map(|group| group.parse().ok()).collect::<Option<_>>()?;
    Some(Caller { uid: acting_as("Uid:")?, gid: acting_as("Gid:")?, groups, checked: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_what_it_acts_as() {
        let status = |kthread: u8| format!("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nKthread:\t{kthread}\n");
        assert_eq!(of_status(&status(0)), Some(Caller { uid: 4, gid: 8, groups: vec![9, 10], checked: true }));
        assert_eq!(of_status(&status(1)), None);
        assert_eq!(of_status("Uid:\t0\t0\t0\t0\n"), None);
        assert_eq!(
            of_process(std::process::id()).map(|caller| caller.uid),
            Some(std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()))
        );
    }

    #[test]
    fn nobody_makes_what_belongs_to_nobody() {
        let cx = Context { unique: 1, ids: None, pid: 0, umask: 0, resent: false };
        assert_eq!(maker(&cx), Err(Errno::OVERFLOW));
        assert_eq!(asker(&cx).uid, NO_ID);
    }
}
