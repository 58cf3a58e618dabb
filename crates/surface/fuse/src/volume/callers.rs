//! The caller of a request, as passed to the node. Where the mount may be idmapped, the kernel
//! names it only in requests that create an inode. For other operations that depend on the caller,
//! the process is looked up in /proc while it waits for the answer.

use super::Volume;
use crate::abi::NO_ID;
use crate::{Context, Errno, Ids};
use ebb_model::{Attr, Caller, Ino};

impl Volume {
    /// For operations that do not depend on the caller: the kernel checks permissions itself on
    /// every mount (`default_permissions`).
    pub(super) fn caller(&self, cx: &Context) -> Caller {
        self.squashed(cx).unwrap_or_else(|| self.ids.caller(from_kernel(cx)))
    }

    /// The owner of a new inode. EOVERFLOW for a caller without an id in the volume: it cannot own
    /// anything.
    pub(super) fn caller_for_create(&self, cx: &Context) -> Result<Caller, Errno> {
        let maker = self.caller(cx);
        if maker.uid == NO_ID || maker.gid == NO_ID { Err(Errno::OVERFLOW) } else { Ok(maker) }
    }

    /// For operations that depend on the caller.
    pub(super) fn caller_for_delete(&self, cx: &Context) -> Caller {
        self.squashed(cx).unwrap_or_else(|| self.ids.caller(from_proc(cx)))
    }

    /// The caller that changes a file, and whether it is root of this machine. A file with set-id
    /// bits keeps some of them for root, and for members of its group.
    pub(super) fn caller_for_change(&self, cx: &Context, ino: Ino) -> (Caller, bool) {
        if let Some(anonymous) = self.squashed(cx) {
            return (anonymous, false);
        }
        let local =
            if self.set_id.borrow().contains_key(&ino) { with_groups(cx) } else { from_kernel(cx) };
        let is_root = local.uid == 0;
        (self.ids.caller(local), is_root)
    }

    /// The caller is root of this machine, and is not squashed.
    pub(super) fn is_root(&self, cx: &Context) -> bool {
        self.squashed(cx).is_none() && from_proc(cx).uid == 0
    }

    /// For set-gid, on kernels that send only one group of the caller: supplementary ones do not
    /// count.
    pub(super) fn is_in_group(&self, cx: &Context, attr: &Attr) -> bool {
        from_kernel(cx).uid == 0 || self.caller(cx).gid == attr.gid
    }
}

/// The caller as named by the kernel, by the machine's ids.
fn from_kernel(cx: &Context) -> Caller {
    let Ids { uid, gid } = cx.ids.unwrap_or(Ids { uid: NO_ID, gid: NO_ID });
    Caller { uid, gid, groups: Vec::new(), checked: true }
}

fn from_proc(cx: &Context) -> Caller {
    let looked_at = if cx.ids.is_none() && cx.pid != 0 { of_process(cx.pid) } else { None };
    looked_at.unwrap_or_else(|| from_kernel(cx))
}

/// With the groups, which the kernel never sends.
fn with_groups(cx: &Context) -> Caller {
    let found = if cx.pid == 0 { None } else { of_process(cx.pid) };
    match cx.ids {
        Some(_) => Caller {
            groups: found.map(|caller| caller.groups).unwrap_or_default(),
            ..from_kernel(cx)
        },
        None => found.unwrap_or_else(|| from_kernel(cx)),
    }
}

fn of_process(pid: u32) -> Option<Caller> {
    of_status(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// `None` for a kernel thread: it acts for a process that its status does not name.
fn of_status(status: &str) -> Option<Caller> {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    if line("Kthread:")?.trim() != "0" {
        return None;
    }
    // Real, effective, saved, and of the file system.
    let acting_as = |name: &str| line(name)?.split_whitespace().nth(3)?.parse().ok();
    let groups = line("Groups:")?
        .split_whitespace()
        .map(|group| group.parse().ok())
        .collect::<Option<_>>()?;
    Some(Caller { uid: acting_as("Uid:")?, gid: acting_as("Gid:")?, groups, checked: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_of_a_process_has_its_file_system_ids() {
        let status = |kthread: u8| {
            format!(
                "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \
                 \nKthread:\t{kthread}\n"
            )
        };
        assert_eq!(
            of_status(&status(0)),
            Some(Caller { uid: 4, gid: 8, groups: vec![9, 10], checked: true })
        );
        assert_eq!(of_status(&status(1)), None);
        assert_eq!(of_status("Uid:\t0\t0\t0\t0\n"), None);
        assert_eq!(
            of_process(std::process::id()).map(|caller| caller.uid),
            Some(std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()))
        );
    }

    #[test]
    fn caller_of_an_unknown_process_is_nobody() {
        let cx = Context { unique: 1, ids: None, pid: 0, umask: 0, resent: false };
        assert_eq!(from_proc(&cx).uid, NO_ID);
    }
}
