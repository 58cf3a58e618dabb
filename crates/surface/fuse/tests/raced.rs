//! Names that another client creates during an open, on a real mount over a scripted node.

#![allow(dead_code, reason = "each test binary uses its part of the harness")]

mod harness;
mod memfs;
mod scripted;

use ebb_fuse::{AccessRule, Consistency, Mount, Session, Volume};
use ebb_model::*;
use harness::{Point, can_mount};
use std::cell::Cell;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

const FILE: Ino = Ino(2);
const NOBODY: u32 = 65_534;
const CONTENT_BYTES: u64 = 7;

/// A node with a world-writable root. Right after the first look-up of `file` another client
/// creates it, for root alone.
struct Raced {
    looked: Cell<bool>,
    size_bytes: Arc<AtomicU64>,
}

impl Raced {
    fn attr(&self, ino: Ino) -> Attr {
        let (kind, mode, size_bytes) = match ino {
            Ino::ROOT => (FileKind::Directory, 0o777, 0),
            _ => (FileKind::Regular, 0o600, self.size_bytes.load(Ordering::Relaxed)),
        };
        let time = Time::from_secs(0);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        Attr {
            ino,
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size_bytes,
            hole_bytes: 0,
            atime,
            mtime,
            ctime,
            btime,
            version: Version(1),
        }
    }

    fn answer(&self, request: Request) -> Result<Reply, RpcError> {
        match request {
            Request::Attach { .. } => Ok(scripted::attached()),
            Request::GetAttr { ino } => Ok(Reply::Attr(Box::new(self.attr(ino)))),
            Request::Lookup { .. } if self.looked.replace(true) => {
                Ok(Reply::Attr(Box::new(self.attr(FILE))))
            }
            Request::Lookup { .. } => Err(FsError::NotFound.into()),
            Request::GetXattr { .. } => Err(FsError::NoAttribute.into()),
            Request::Mutate(mutate) => match mutate.mutation {
                ClientMutation::Make { .. } => Err(FsError::Exists.into()),
                ClientMutation::SetAttr { ino, set } => {
                    self.size_bytes
                        .store(set.size_bytes.unwrap_or(CONTENT_BYTES), Ordering::Relaxed);
                    let stamp = Stamp { time: Time::from_secs(0), version: Version(2) };
                    let replay = Replay { stamp, ino: None, offset: None, len_bytes: None };
                    Ok(Reply::Mutated(
                        Box::new(Mutated {
                            attr: Some(self.attr(ino)),
                            index: LogIndex(1),
                            replay,
                        }),
                        vec![],
                    ))
                }
                other => panic!("nobody asks for {other:?}"),
            },
            Request::Open { .. } => Ok(Reply::Opened { passthrough: false }),
            Request::Close { .. } | Request::Renew { .. } | Request::Detach { .. } => {
                Ok(Reply::Done)
            }
            other => panic!("nobody asks for {other:?}"),
        }
    }
}

/// Runs `work` with a mount of such a node; returns the length of the file afterwards.
fn raced(work: impl FnOnce(&Point)) -> u64 {
    let point = Point::new();
    let size_bytes = Arc::new(AtomicU64::new(CONTENT_BYTES));
    let mount = Mount::new(&point.0, &"allow_other".parse().unwrap()).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, started) = std::sync::mpsc::channel();
    let size = size_bytes.clone();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let serving = async {
            let session = Session::start(mount).await.unwrap();
            let node = Rc::new(Raced { looked: Cell::new(false), size_bytes: size });
            let client = scripted::client(move |request| node.answer(request)).await;
            let (notifier, agreed) = (session.notifier(), session.negotiated());
            let volume = Volume::new(
                client,
                Ino::ROOT,
                notifier,
                agreed,
                AccessRule::default(),
                Consistency::Strong,
                None,
            );
            ready.send(()).unwrap();
            session
                .serve(&volume, async { stopped.await.unwrap_or_default() }, Duration::from_secs(5))
                .await
                .unwrap();
        };
        tokio::task::LocalSet::new().block_on(&runtime, serving);
    });
    started.recv().unwrap();
    work(&point);
    stop.send(()).unwrap();
    server.join().unwrap();
    size_bytes.load(Ordering::Relaxed)
}

/// The kernel grants access to the creator of a file, and has not checked permissions of this one,
/// which did not exist. An open with O_TRUNC must not succeed.
#[test]
fn create_race_denies_an_unpermitted_open() {
    if !can_mount() {
        return;
    }
    let left = raced(|point| {
        let script = format!("echo mine > {}/file", point.0.display());
        let shell =
            Command::new("sh").args(["-c", &script]).uid(NOBODY).gid(NOBODY).output().unwrap();
        let said = String::from_utf8_lossy(&shell.stderr);
        assert!(!shell.status.success() && said.contains("Permission denied"), "{said}");
    });
    assert_eq!(left, CONTENT_BYTES);
}

/// A permitted open succeeds in spite of the race.
#[test]
fn create_race_grants_a_permitted_open() {
    if !can_mount() {
        return;
    }
    let left = raced(|point| {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(point.0.join("file"))
            .unwrap();
        assert_eq!(file.metadata().unwrap().ino(), FILE.0);
    });
    assert_eq!(left, 0, "O_TRUNC is kept");
}
