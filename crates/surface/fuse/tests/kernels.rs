//! Work that older kernels leave to the session.

#![allow(dead_code, reason = "each test binary uses its part of the harness")]

mod harness;
mod memfs;
mod scripted;

use bytes::Bytes;
use ebb_fuse::{
    AccessRule, Consistency, Context, Filesystem, Ids, Mount, Negotiated, OpenFlags, Session,
    Volume,
};
use ebb_model::*;
use harness::{Point, can_mount};
use std::cell::RefCell;
use std::rc::Rc;

/// FUSE 7.36 and 7.37, of Linux 5.17 and 6.1; the first without SETXATTR_EXT, as before 5.13.
const OLD: Negotiated = Negotiated { minor: 36, flags: 0 };
const NEW: Negotiated = Negotiated { minor: 37, flags: u64::MAX };

const STAFF: u32 = 50;

/// Everything is a directory with set-gid, of STAFF.
fn attr() -> Attr {
    let time = Time::from_secs(0);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let (kind, mode) = (FileKind::Directory, 0o2777);
    Attr {
        ino: Ino::ROOT,
        kind,
        mode,
        nlink: 2,
        uid: 0,
        gid: STAFF,
        rdev: 0,
        size_bytes: 0,
        hole_bytes: 0,
        atime,
        mtime,
        ctime,
        btime,
        version: Version(1),
    }
}

/// The mutations that reach the node of a volume under such a kernel.
fn asked(kernel: Negotiated, work: impl AsyncFnOnce(&Volume)) -> Vec<ClientMutation> {
    asked_by(kernel, work).into_iter().map(|(_, mutation)| mutation).collect()
}

/// The same with the caller of each mutation.
fn asked_by(kernel: Negotiated, work: impl AsyncFnOnce(&Volume)) -> Vec<(Caller, ClientMutation)> {
    let point = Point::new();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let seeing = seen.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let session =
            Session::start(Mount::new(&point.0, &"allow_other".parse().unwrap()).unwrap())
                .await
                .unwrap();
        let answer = move |request| match request {
            Request::Attach { .. } => Ok(scripted::attached()),
            Request::Mutate(mutate) => {
                seeing.borrow_mut().push((mutate.caller, mutate.mutation));
                let stamp = Stamp { time: Time::from_secs(0), version: Version(2) };
                let replay = Replay { stamp, ino: Some(Ino(2)), offset: None, len_bytes: None };
                Ok(Reply::Mutated(
                    Box::new(Mutated { attr: Some(attr()), index: LogIndex(1), replay }),
                    vec![],
                ))
            }
            Request::GetAttr { .. } => Ok(Reply::Attr(Box::new(attr()))),
            _ => Ok(Reply::Done),
        };
        let client = scripted::client(answer).await;
        let volume = Volume::new(
            client,
            Ino::ROOT,
            session.notifier(),
            kernel,
            AccessRule::default(),
            Consistency::Strong,
            None,
        );
        work(&volume).await;
    });
    seen.take()
}

fn by(uid: u32, gid: u32) -> Context {
    Context { unique: 1, ids: Some(Ids { uid, gid }), pid: 1, umask: 0, resent: false }
}

/// In a set-gid directory that all users can write, a new set-gid program would have the
/// directory's group: where the kernel does not clear the bit, the session does.
#[test]
fn set_gid_is_dropped_where_the_kernel_does_not() {
    if !can_mount() {
        return;
    }
    let flags = OpenFlags { bits: libc::O_RDWR };
    let fifo = || Make::Special { kind: FileKind::Fifo, rdev: 0 };
    let modes = |kernel, uid, gid| {
        let made = asked(kernel, async |volume| {
            let (cx, name) = (by(uid, gid), || Name::new(b"name").unwrap());
            for mode in [0o2775, 0o2765, 0o775] {
                volume.create(&cx, Ino::ROOT, name(), mode, flags).await.unwrap();
                volume.make(&cx, Ino::ROOT, name(), mode, fifo()).await.unwrap();
            }
            volume.make(&cx, Ino::ROOT, name(), 0o2775, Make::Directory).await.unwrap();
        });
        let mode = |mutation| match mutation {
            ClientMutation::Make { mode, .. } => mode.mode,
            other => panic!("{other:?}"),
        };
        made.into_iter().map(mode).collect::<Vec<_>>()
    };
    let kept = [0o2775, 0o2775, 0o2765, 0o2765, 0o775, 0o775, 0o2775];
    assert_eq!(modes(OLD, 1000, 1000), [0o775, 0o775, 0o2765, 0o2765, 0o775, 0o775, 0o2775]);
    assert_eq!(modes(OLD, 1000, STAFF), kept);
    assert_eq!(modes(OLD, 0, 0), kept);
    assert_eq!(modes(NEW, 1000, 1000), kept, "the kernel knows all groups, and has seen to it");
}

/// The same for an access ACL, which changes the mode. The node clears the bit on request.
#[test]
fn acls_drop_set_gid_where_the_kernel_does_not_say_so() {
    if !can_mount() {
        return;
    }
    let dropped = |kernel, uid, gid, said| {
        let set = asked(kernel, async |volume| {
            for name in ["system.posix_acl_access", "system.posix_acl_default"] {
                let name = Bytes::from(name);
                volume
                    .setxattr(
                        &by(uid, gid),
                        Ino::ROOT,
                        name,
                        Bytes::from_static(b"acl"),
                        Some(XattrMode::Set),
                        said,
                    )
                    .await
                    .unwrap();
            }
        });
        let drops = |mutation| match mutation {
            ClientMutation::SetAcl { drop_set_gid, .. } => drop_set_gid,
            other => panic!("{other:?}"),
        };
        set.into_iter().map(drops).collect::<Vec<_>>()
    };
    assert_eq!(dropped(OLD, 1000, 1000, false), [true, false]);
    assert_eq!(dropped(OLD, 1000, STAFF, false), [false, false]);
    assert_eq!(dropped(OLD, 0, 0, false), [false, false]);
    assert_eq!(dropped(NEW, 1000, 1000, false), [false, false]);
    assert_eq!(dropped(NEW, 1000, 1000, true), [true, true]);
}

/// Situation: the kernel does not check the owner. Danger: a user that can open a file makes it
/// immutable, or reverts that. Expectation: the node checks.
#[test]
fn flags_are_checked_where_the_kernel_does_not() {
    if !can_mount() {
        return;
    }
    let by_whom = |kernel, uid| {
        let set = asked_by(kernel, async |volume| {
            volume.set_flags(&by(uid, uid), Ino::ROOT, InodeFlags::default()).await.unwrap();
        });
        set.into_iter().map(|(caller, _)| (caller.uid, caller.checked)).collect::<Vec<_>>()
    };
    assert_eq!(by_whom(OLD, 1000), [(1000, false)]);
    assert_eq!(by_whom(OLD, 0), [(0, false)]);
    assert_eq!(by_whom(NEW, 1000), [(1000, true)]);
}
