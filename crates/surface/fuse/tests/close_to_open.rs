//! The kernel's caches of files that others change too, on a real mount over a node that plays the
//! others.

#![allow(dead_code, reason = "each test binary uses its part of the harness")]

mod harness;
mod memfs;
mod scripted;

use bytes::Bytes;
use ebb_fuse::{
    AccessRule, Caching, Consistency, Context, Filesystem, Mount, MountOptions, Notification,
    Notifier, OpenFlags, Session, Volume,
};
use ebb_model::*;
use harness::{Point, can_mount};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

const FILE: Ino = Ino(2);

/// How long the node waits before it changes anything.
const MUTATING: Duration = Duration::from_millis(20);

/// The one file of a node that several mounts have, after the latest change by any of them.
struct Content {
    bytes: Vec<u8>,
    version: u64,
    /// The number of requests for its bytes.
    reads: usize,
    /// How often its attributes were.
    asked: usize,
    /// How long the node waits before it answers requests for attributes.
    asking: Duration,
    /// The mount is the only one.
    is_sole: bool,
    /// The file has lost its name.
    is_removed: bool,
    /// A full disk cuts longer writes short.
    longest_write: usize,
}

impl Content {
    fn new(bytes: Vec<u8>) -> Content {
        Content {
            bytes,
            version: 1,
            reads: 0,
            asked: 0,
            asking: Duration::ZERO,
            is_sole: false,
            is_removed: false,
            longest_write: usize::MAX,
        }
    }
}

impl Content {
    fn attr(&self, ino: Ino) -> Attr {
        let (kind, mode, size_bytes) = match ino {
            Ino::ROOT => (FileKind::Directory, 0o755, 0),
            _ => (FileKind::Regular, 0o644, self.bytes.len() as u64),
        };
        let time = Time::from_secs(0);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let version = Version(self.version);
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
            version,
        }
    }

    fn answer(&mut self, request: Request) -> Result<Reply, RpcError> {
        match request {
            Request::Attach { .. } => Ok(match scripted::attached() {
                Reply::Attached(attached) => {
                    Reply::Attached(Attached { sole: self.is_sole, ..attached })
                }
                other => other,
            }),
            Request::GetAttr { ino } => Ok(Reply::Attr(Box::new(self.attr(ino)))),
            Request::Lookup { .. } if self.is_removed => Err(FsError::NotFound.into()),
            Request::Lookup { .. } => Ok(Reply::Attr(Box::new(self.attr(FILE)))),
            Request::GetXattr { .. } => Err(FsError::NoAttribute.into()),
            Request::Read { offset, len_bytes, .. } => {
                self.reads += 1;
                let from = self.bytes.len().min(offset as usize);
                let to = self.bytes.len().min(from + len_bytes as usize);
                Ok(Reply::Data(Bytes::copy_from_slice(&self.bytes[from..to])))
            }
            Request::Mutate(mutate) => {
                let (offset, data) = match &mutate.mutation {
                    ClientMutation::Append { data, .. } => (self.bytes.len(), data),
                    ClientMutation::Write { offset, data, .. } => (*offset as usize, data),
                    _ => return Ok(Reply::Done),
                };
                let data = &data[..data.len().min(self.longest_write)];
                let end = offset + data.len();
                self.bytes.resize(self.bytes.len().max(end), 0);
                self.bytes[offset..end].copy_from_slice(data);
                self.version += 1;
                let stamp = Stamp { time: Time::from_secs(0), version: Version(self.version) };
                let replay = Replay {
                    stamp,
                    ino: None,
                    offset: Some(offset as u64),
                    len_bytes: Some(data.len() as u64),
                };
                Ok(Reply::Mutated(
                    Box::new(Mutated { attr: Some(self.attr(FILE)), index: LogIndex(1), replay }),
                    vec![],
                ))
            }
            Request::Fsync { .. } => Ok(Reply::Forced { durable: LogIndex(1) }),
            _ => Ok(Reply::Done),
        }
    }
}

/// A mount of such a node.
struct Shared {
    content: Arc<Mutex<Content>>,
    notifier: Notifier,
    notices: mpsc::UnboundedSender<Notice>,
    point: Point,
    stop: Option<oneshot::Sender<()>>,
    server: Option<std::thread::JoinHandle<()>>,
}

impl Shared {
    fn new(consistency: Consistency) -> Shared {
        Shared::of(consistency, Content::new(vec![b'a'; 100]))
    }

    fn of(consistency: Consistency, content: Content) -> Shared {
        let point = Point::new();
        let content = Arc::new(Mutex::new(content));
        let mount =
            Mount::new(&point.0, &MountOptions { consistency, ..MountOptions::default() }).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, started) = std::sync::mpsc::channel();
        let (notices, sent) = mpsc::unbounded_channel();
        let node = content.clone();
        let server = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let serving = async {
                let session = Session::start(mount).await.unwrap();
                let asked = node.clone();
                let pause = move |request: &Request| match request {
                    Request::Mutate(_) => MUTATING,
                    Request::GetAttr { ino: FILE } => {
                        let mut node = asked.lock().unwrap();
                        node.asked += 1;
                        node.asking
                    }
                    _ => Duration::ZERO,
                };
                let client = scripted::notified_client(sent, pause, move |request| {
                    node.lock().unwrap().answer(request)
                })
                .await;
                let (notifier, agreed) = (session.notifier(), session.negotiated());
                let volume_notifier = notifier.clone();
                let volume = Volume::new(
                    client,
                    Ino::ROOT,
                    notifier,
                    agreed,
                    AccessRule::default(),
                    consistency,
                    None,
                );
                ready.send(volume_notifier).unwrap();
                session
                    .serve(
                        &volume,
                        async { stopped.await.unwrap_or_default() },
                        Duration::from_secs(5),
                    )
                    .await
                    .unwrap();
            };
            tokio::task::LocalSet::new().block_on(&runtime, serving);
        });
        let notifier = started.recv().unwrap();
        Shared { content, notifier, notices, point, stop: Some(stop), server: Some(server) }
    }

    fn file(&self) -> std::path::PathBuf {
        self.point.0.join("file")
    }

    fn notify(&self, notification: Notification) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.notifier.send(notification)).unwrap();
    }

    fn node(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    /// Another mount does it.
    fn others_write(&self, bytes: &[u8]) {
        let mut node = self.node();
        node.bytes = bytes.to_vec();
        node.version += 1;
    }

    /// The number of requests for bytes that this work causes.
    fn reads(&self, work: impl FnOnce()) -> usize {
        let before = self.node().reads;
        work();
        self.node().reads - before
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(server) = self.server.take() {
            let ended = server.join();
            assert!(std::thread::panicking() || ended.is_ok());
        }
    }
}

/// An unchanged file is read once; an open sees all changes made before it.
#[test]
fn an_open_asks_whether_the_file_has_changed() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new(Consistency::CloseToOpen);
    assert_eq!(fs::read(shared.file()).unwrap(), [b'a'; 100]);
    let again = || {
        for _ in 0..10 {
            assert_eq!(fs::read(shared.file()).unwrap(), [b'a'; 100]);
        }
    };
    assert_eq!(shared.reads(again), 0);
    for round in 0..10 {
        // Of the same length, which tells nothing.
        shared.others_write(&[b'b' + round; 100]);
        assert_eq!(fs::read(shared.file()).unwrap(), [b'b' + round; 100]);
    }
}

#[test]
fn strong_caches_nothing() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new(Consistency::Strong);
    let file = File::open(shared.file()).unwrap();
    let mut first = [0];
    for expected in b'a'..b'k' {
        shared.others_write(&[expected; 100]);
        file.read_exact_at(&mut first, 50).unwrap();
        assert_eq!(first[0], expected);
    }
}

/// Situation: the kernel of a mount that is alone has cached a name, and another program removes
/// its object. Danger: the kernel shows the name for an hour. Expectation: the node's notice drops
/// it.
#[test]
fn relinked_name_leaves_the_kernel_cache_of_a_sole_mount() {
    const PATIENCE: Duration = Duration::from_secs(10);
    if !can_mount() {
        return;
    }
    let content = Content { is_sole: true, ..Content::new(vec![b'a'; 100]) };
    let shared = Shared::of(Consistency::Strong, content);
    assert!(shared.file().exists());
    shared.node().is_removed = true;
    assert!(shared.file().exists(), "the kernel has no reason to ask");
    let name = Name::new(b"file").unwrap();
    shared.notices.send(Notice::Relinked { dir: Ino::ROOT, name }).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while shared.file().exists() {
        assert!(Instant::now() < deadline, "the kernel keeps the name");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Situation: a full disk cuts a write short. Danger: the kernel takes any answer to a write of
/// mapped pages for a whole write, and nobody learns that the other bytes are lost. Expectation:
/// write(2) returns the number of bytes written, and msync(2) fails.
#[test]
fn short_write_of_mapped_pages_is_an_error() {
    const LEN: usize = 8192;
    if !can_mount() {
        return;
    }
    let content = Content { longest_write: 1000, ..Content::new(vec![b'a'; LEN]) };
    let shared = Shared::of(Consistency::CloseToOpen, content);
    let file = File::options().read(true).write(true).open(shared.file()).unwrap();
    assert_eq!(file.write_at(&[b'b'; LEN], 0).unwrap(), 1000);
    let mut expected = vec![b'a'; LEN];
    expected[..1000].fill(b'b');
    assert_eq!(fs::read(shared.file()).unwrap(), expected);

    // Another process, for the one that serves the mapped pages must not wait for them.
    // SAFETY: the child takes no lock and no memory until it ends; the mapping has all of the file.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (nowhere, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: as above.
        unsafe {
            let map = libc::mmap(nowhere, LEN, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
            if map == libc::MAP_FAILED {
                libc::_exit(0);
            }
            map.cast::<u8>().add(5000).write_volatile(b'c');
            let synced = libc::msync(map, LEN, libc::MS_SYNC);
            libc::_exit(if synced == 0 { 0 } else { *libc::__errno_location() });
        }
    }
    let mut status = -1;
    // SAFETY: `status` is valid to write to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), libc::ENOSPC);
}

/// Situation: a reader has the file open and its last page in the cache, with zeros behind the end,
/// and others extend the file. Danger: the kernel learns the new length, and shows those zeros.
#[test]
fn appends_of_others_are_never_seen_as_zeros() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new(Consistency::CloseToOpen);
    let file = File::open(shared.file()).unwrap();
    let mut content = vec![b'a'; 100];
    let mut seen = [0; 8192];
    for round in 0..50 {
        let len = file.read_at(&mut seen, 0).unwrap();
        assert_eq!(seen[..len], content);
        content.extend_from_slice(&[b'b' + round % 20; 77]);
        shared.others_write(&content);
        assert_eq!(file.metadata().unwrap().len(), content.len() as u64);
    }
    // And shorter again.
    for len in [1000, 40, 0] {
        content.truncate(len);
        shared.others_write(&content);
        assert_eq!(file.metadata().unwrap().len(), len as u64);
        let read = file.read_at(&mut seen, 0).unwrap();
        assert_eq!(seen[..read], content);
    }
}

/// Situation: others have extended a file; the kernel requests its length, and gets a notification
/// before the reply, so it drops the reply. Danger: it continues with the previous length.
/// Expectation: SEEK_END, and reading to the end, agree with the reply.
#[test]
fn a_length_is_taken_though_the_kernel_is_told_meanwhile() {
    if !can_mount() {
        return;
    }
    for consistency in [Consistency::Strong, Consistency::CloseToOpen] {
        let shared = Shared::new(consistency);
        let file = File::open(shared.file()).unwrap();
        shared.node().asking = Duration::from_millis(50);
        let mut content = vec![b'a'; 100];
        for round in 0..6 {
            content.extend_from_slice(&[b'b'; 10]);
            shared.others_write(&content);
            let asked = shared.node().asked;
            let len = std::thread::scope(|scope| {
                let asking = scope.spawn(|| match round % 2 {
                    0 => (&file).seek(SeekFrom::End(0)).unwrap(),
                    _ => file.read_at(&mut [0; 4096], 0).unwrap() as u64,
                });
                let told = || {
                    while shared.node().asked == asked && !asking.is_finished() {
                        std::thread::yield_now();
                    }
                    let change = Notification::Inode { ino: FILE, bytes: 0..u64::MAX };
                    shared.notify(change);
                };
                told();
                asking.join().unwrap()
            });
            assert_eq!(len, content.len() as u64, "{consistency:?}, round {round}");
        }
    }
}

/// A reader that has the file open may read the previous content, until it opens the file again.
#[test]
fn an_open_file_may_be_read_as_it_was() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new(Consistency::CloseToOpen);
    let file = File::open(shared.file()).unwrap();
    let mut seen = [0; 100];
    file.read_exact_at(&mut seen, 0).unwrap();
    shared.others_write(&[b'b'; 100]);
    let from_cache = || file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(shared.reads(from_cache), 0);
    assert_eq!(seen, [b'a'; 100]);
    assert_eq!(fs::read(shared.file()).unwrap(), [b'b'; 100]);
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(seen, [b'b'; 100], "the pages are the file's, not the descriptor's");
}

/// Appends of this mount go to the current end of the file; readers see nothing else.
#[test]
fn appends_go_past_the_cache() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new(Consistency::CloseToOpen);
    let reader = File::open(shared.file()).unwrap();
    let mut seen = [0; 4096];
    let mut expected = vec![b'a'; 100];
    let log = fs::OpenOptions::new().append(true).open(shared.file()).unwrap();
    for round in 0..20u8 {
        let len = reader.read_at(&mut seen, 0).unwrap();
        assert_eq!(seen[..len], expected);
        expected.extend_from_slice(&[b'x'; 10]);
        shared.others_write(&expected);
        std::io::Write::write_all(&mut &log, &[b'0' + round; 10]).unwrap();
        expected.extend_from_slice(&[b'0' + round; 10]);
        assert_eq!(shared.node().bytes, expected);
    }
}

/// Situation: while a record is on its way to the node somebody reads the end of the file, which is
/// then in the cache with zeros behind it. Danger: the kernel knows without asking that the file is
/// longer once the record is written, and shows those zeros.
#[test]
fn append_shows_after_a_concurrent_read() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new(Consistency::CloseToOpen);
    let reader = File::open(shared.file()).unwrap();
    let log = fs::OpenOptions::new().append(true).open(shared.file()).unwrap();
    let mut seen = [0; 4096];
    for round in 1..20usize {
        let before = shared.node().reads;
        std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| std::io::Write::write_all(&mut &log, b"0123456789").unwrap());
            let mut during = [0; 4096];
            while !writer.is_finished() {
                let len = reader.read_at(&mut during, 0).unwrap();
                assert!(!during[..len].contains(&0), "zeros in {len} bytes");
            }
        });
        let len = reader.read_at(&mut seen, 0).unwrap();
        assert!(shared.node().reads > before);
        assert_eq!(len, 100 + 10 * round);
        assert!(
            seen[100..len].chunks(10).all(|record| record == b"0123456789"),
            "{:?}",
            &seen[100..len]
        );
    }
}

/// Before 6.6 kernels refuse to map a file with MAP_SHARED that was opened with direct I/O.
#[test]
fn files_can_be_mapped_by_every_kernel() {
    if !can_mount() {
        return;
    }
    let point = Point::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let session =
            Session::start(Mount::new(&point.0, &MountOptions::default()).unwrap()).await.unwrap();
        for (consistency, flags, direct) in [
            (Consistency::Strong, libc::O_RDWR, true),
            (Consistency::CloseToOpen, libc::O_RDWR, false),
            (Consistency::CloseToOpen, libc::O_RDWR | libc::O_DIRECT, false),
            (Consistency::CloseToOpen, libc::O_RDWR | libc::O_APPEND, true),
        ] {
            let content = Rc::new(std::cell::RefCell::new(Content::new(Vec::new())));
            let client =
                scripted::client(move |request| content.borrow_mut().answer(request)).await;
            let (notifier, agreed) = (session.notifier(), session.negotiated());
            let volume = Volume::new(
                client,
                Ino::ROOT,
                notifier,
                agreed,
                AccessRule::default(),
                consistency,
                None,
            );
            let cx = Context { unique: 1, ids: None, pid: 1, umask: 0, resent: false };
            let opened = volume.open(&cx, FILE, OpenFlags { bits: flags }).await.unwrap();
            assert_eq!(
                matches!(opened.caching, Caching::Direct { .. }),
                direct,
                "{consistency:?} {flags:o}"
            );
        }
    });
}
