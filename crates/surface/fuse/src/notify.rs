//! Invalidation of the kernel's caches.
//!
//! A notification waits inside the kernel for locks that requests hold: the pages of a read in
//! progress, the directory of a create. Therefore each is written by a thread of its own, and a
//! sender must not delay a request while it waits.
//!
//! If the process is killed in that time, its thread waits on until a successor has answered those
//! requests. It has a table of descriptors of its own, so that nearly all other descriptors of the
//! process are already closed.

use crate::abi;
use crate::device::{Device, write_message};
use ebb_model::{Ino, Name};
use std::fs;
use std::io::{self, IoSlice};
use std::mem::{size_of, size_of_val};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use zerocopy::IntoBytes;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notification {
    /// Attributes are void, and so are the cached pages that touch `bytes`. An empty range is
    /// attributes only, `0..u64::MAX` is everything.
    Inode { ino: Ino, bytes: Range<u64> },
    /// The file has at least this length. Its bytes are requested as always.
    Longer { ino: Ino, len_bytes: u64 },
    /// The name is void: it is unhashed, or with `expire` looked up again at its next use.
    Entry { parent: Ino, name: Name, expire: bool },
    /// `child` has lost its name: watchers of the directory are notified.
    Deleted { parent: Ino, child: Ino, name: Name },
    /// Every name is looked up again at its next use (ABI 7.44).
    AllEntries,
    /// The kernel forgets those of these inodes that are not in use (ABI 7.45).
    Prune { inos: Vec<Ino> },
    /// Requests that were read and not answered are sent again (HAS_RESEND).
    Resend,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NotifyError {
    #[error("the mount has ended")]
    Ended,
    /// The kernel does not know this kind of notification.
    #[error("the kernel does not take this notification")]
    Unsupported,
    /// The kernel does not know the inode or the name: there is nothing to drop.
    #[error("the kernel does not know the inode of a notification")]
    Unknown,
    #[error("the kernel refused a notification: {0}")]
    Refused(String),
}

/// Sends notifications of one mount: those of inodes in the order in which they are sent, and those
/// of names in theirs.
#[derive(Clone)]
pub struct Notifier {
    inodes: mpsc::WeakSender<Job>,
    names: mpsc::WeakSender<Job>,
    recalls: mpsc::WeakSender<Job>,
}

/// The threads that write them. A name waits for the lock of its directory. That lock may be held
/// by a call which waits for the lock of a file in it (unlink(2)), and that one by a call whose
/// answer waits for a notification of the file's inode: so those are written by another thread.
/// Recalls of leases wait for no lock, and other mounts wait for them.
pub(crate) struct Telling {
    inodes: Writer,
    names: Writer,
    recalls: Writer,
}

/// A thread with a descriptor of the device. Once dropped that is closed.
struct Writer {
    /// Its end is the thread's. There is one until this is dropped.
    queue: Option<mpsc::Sender<Job>>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

pub(crate) struct Job {
    notification: Notification,
    /// Of a [`Notification::Longer`]: the length of the file by the newest reply.
    newest_bytes: Option<Arc<AtomicU64>>,
    done: oneshot::Sender<Result<(), NotifyError>>,
}

impl Job {
    /// Writes the notification. A length is void if a reply has found the file shorter while the
    /// job was queued: the kernel would take a truncated file for longer than it is.
    pub fn perform(self, write: impl FnOnce(&Notification) -> Result<(), NotifyError>) {
        let is_void = match (&self.notification, &self.newest_bytes) {
            (Notification::Longer { len_bytes, .. }, Some(newest_bytes)) => {
                *len_bytes > newest_bytes.load(Ordering::SeqCst)
            }
            _ => false,
        };
        let written = if is_void { Ok(()) } else { write(&self.notification) };
        // Whoever does not wait for the outcome does not want it.
        self.done.send(written).ok();
    }
}

impl Telling {
    pub fn start(device: &Device) -> io::Result<Telling> {
        Ok(Telling {
            inodes: Writer::start(device, "ebb-notify")?,
            names: Writer::start(device, "ebb-names")?,
            recalls: Writer::start(device, "ebb-recalls")?,
        })
    }

    pub fn notifier(&self) -> Notifier {
        Notifier {
            inodes: self.inodes.sender(),
            names: self.names.sender(),
            recalls: self.recalls.sender(),
        }
    }
}

impl Writer {
    fn start(device: &Device, name: &str) -> io::Result<Writer> {
        let (queue, mut jobs) = mpsc::channel::<Job>(QUEUE_LEN);
        let over = Arc::new(AtomicBool::new(false));
        let (shared, is_over) = (device.shared(), over.clone());
        let (taken, has_taken) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let own = take_alone(&shared);
            drop(shared);
            let (device, outcome) = match own {
                Ok(device) => (Some(device), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // The starting thread waits for this.
            taken.send(outcome).ok();
            let Some(device) = device else { return };
            while let Some(job) = jobs.blocking_recv() {
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                job.perform(|notification| write(&device, notification));
            }
        })?;
        // Until then the number must name the device in this table.
        has_taken.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(Writer { queue: Some(queue), over, thread })
    }

    fn sender(&self) -> mpsc::WeakSender<Job> {
        self.queue.as_ref().expect("there is a sender until this is dropped").downgrade()
    }

    fn end(&mut self) {
        self.over.store(true, Ordering::Release);
        self.queue = None;
    }
}

impl Drop for Telling {
    /// The connection can end only once its descriptors here are closed.
    fn drop(&mut self) {
        let mut writers = [&mut self.inodes, &mut self.names, &mut self.recalls];
        writers.iter_mut().for_each(|writer| writer.end());
        let began = Instant::now();
        while !writers.iter().all(|writer| writer.thread.is_finished())
            && began.elapsed() < LAST_WORD
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Notifier {
    /// Completes when the kernel has dropped it, which includes that it had nothing to
    /// drop. Never await this while a request of the same mount waits for you, unless that holds
    /// neither a page nor, for a name, its directory.
    pub async fn send(&self, notification: Notification) -> Result<(), NotifyError> {
        let queue = self.queue_of(&notification);
        unless_unknown(self.queue(queue, notification, None).await)
    }

    /// Makes the kernel drop the attributes of the inode, at once: that waits for no lock.
    /// [`NotifyError::Unknown`] also if the kernel has yet to take up a reply with the inode.
    pub(crate) async fn recall(&self, ino: Ino) -> Result<(), NotifyError> {
        self.queue(&self.recalls, Notification::Inode { ino, bytes: 0..0 }, None).await
    }

    /// Sends [`Notification::Longer`], unless `newest_bytes` is less by the time it is written.
    pub(crate) async fn lengthen(
        &self,
        ino: Ino,
        len_bytes: u64,
        newest_bytes: Arc<AtomicU64>,
    ) -> Result<(), NotifyError> {
        let notification = Notification::Longer { ino, len_bytes };
        unless_unknown(self.queue(&self.inodes, notification, Some(newest_bytes)).await)
    }

    fn queue_of(&self, notification: &Notification) -> &mpsc::WeakSender<Job> {
        match notification {
            Notification::Inode { .. } | Notification::Longer { .. } => &self.inodes,
            _ => &self.names,
        }
    }

    async fn queue(
        &self,
        queue: &mpsc::WeakSender<Job>,
        notification: Notification,
        newest_bytes: Option<Arc<AtomicU64>>,
    ) -> Result<(), NotifyError> {
        let (done, outcome) = oneshot::channel();
        let job = Job { notification, newest_bytes, done };
        let queued = queue.upgrade().ok_or(NotifyError::Ended)?.send(job).await;
        queued.map_err(|_| NotifyError::Ended)?;
        outcome.await.map_err(|_| NotifyError::Ended)?
    }
}

/// Drops the kernel's cached attributes of the root and of these inodes. Waits for nothing.
pub fn drop_attributes(device: &OwnedFd, inos: &[Ino]) {
    let inos = [Ino::ROOT].into_iter().chain(inos.iter().copied());
    drop_all(device, inos.map(|ino| Notification::Inode { ino, bytes: 0..0 }));
}

/// Drops the kernel's cached names and attributes, and then pages, of the root and of these inodes.
/// Waits for pages that are being read. So the caller must not be needed by anybody, and must be
/// able to [cut off](crate::cut_off) a mount without a serving process.
pub fn drop_everything(device: &OwnedFd, inos: &[Ino]) {
    let inos = || [Ino::ROOT].into_iter().chain(inos.iter().copied());
    let attributes = inos().map(|ino| Notification::Inode { ino, bytes: 0..0 });
    let pages = inos().map(|ino| Notification::Inode { ino, bytes: 0..u64::MAX });
    drop_all(device, std::iter::once(Notification::AllEntries).chain(attributes).chain(pages));
}

fn drop_all(device: &OwnedFd, notifications: impl Iterator<Item = Notification>) {
    for notification in notifications {
        match write(device, &notification) {
            // Names are then cached for no longer than a second.
            Ok(()) | Err(NotifyError::Unsupported | NotifyError::Unknown) => {}
            Err(NotifyError::Ended) => return,
            Err(error) => {
                tracing::error!(?notification, %error, "the kernel keeps what it should drop")
            }
        }
    }
}

fn write(device: &OwnedFd, notification: &Notification) -> Result<(), NotifyError> {
    let written = match notification {
        Notification::Inode { ino, bytes } => {
            let (off, len) = page_range(bytes);
            send(
                device,
                abi::NOTIFY_INVAL_INODE,
                &abi::NotifyInvalInodeOut { ino: ino.0, off, len },
                &[],
            )
        }
        Notification::Longer { ino, len_bytes } => lengthen(device, *ino, *len_bytes),
        Notification::Entry { parent, name, expire } => {
            let flags = if *expire { abi::EXPIRE_ONLY } else { 0 };
            let out = abi::NotifyInvalEntryOut {
                parent: parent.0,
                namelen: name.as_bytes().len() as u32,
                flags,
            };
            send(device, abi::NOTIFY_INVAL_ENTRY, &out, &terminated(name))
        }
        Notification::Deleted { parent, child, name } => {
            let namelen = name.as_bytes().len() as u32;
            let out =
                abi::NotifyDeleteOut { parent: parent.0, child: child.0, namelen, padding: 0 };
            send(device, abi::NOTIFY_DELETE, &out, &terminated(name))
        }
        Notification::AllEntries => send(device, abi::NOTIFY_INC_EPOCH, &[0u8; 0], &[]),
        Notification::Prune { inos } => {
            let out = abi::NotifyPruneOut { count: inos.len() as u32, padding: 0, spare: 0 };
            let numbers: Vec<u8> = inos.iter().flat_map(|ino| ino.0.to_ne_bytes()).collect();
            send(device, abi::NOTIFY_PRUNE, &out, &numbers)
        }
        Notification::Resend => send(device, abi::NOTIFY_RESEND, &[0u8; 0], &[]),
    };
    let Err(failure) = written else { return Ok(()) };
    match failure.raw_os_error() {
        Some(libc::ENOENT) => Err(NotifyError::Unknown),
        Some(libc::ENODEV | libc::ECONNABORTED | libc::ENOTCONN) => Err(NotifyError::Ended),
        Some(libc::EINVAL | libc::ENOSYS) => Err(NotifyError::Unsupported),
        _ => Err(NotifyError::Refused(failure.to_string())),
    }
}

fn unless_unknown(outcome: Result<(), NotifyError>) -> Result<(), NotifyError> {
    if outcome == Err(NotifyError::Unknown) { Ok(()) } else { outcome }
}

/// The kernel's offset and length: a negative offset leaves pages alone, a length of 0 or less
/// means up to the end.
fn page_range(bytes: &Range<u64>) -> (i64, i64) {
    if bytes.is_empty() {
        return (-1, 0);
    }
    let off = i64::try_from(bytes.start).unwrap_or(i64::MAX);
    let len = i64::try_from(bytes.end - bytes.start).unwrap_or(0);
    (off, if off.checked_add(len).is_none() { 0 } else { len })
}

/// The kernel requires the terminating NUL of a name and does not count it in `namelen`.
fn terminated(name: &Name) -> Vec<u8> {
    [name.as_bytes(), b"\0"].concat()
}

fn send<T: IntoBytes + zerocopy::Immutable + ?Sized>(
    device: &OwnedFd,
    code: i32,
    body: &T,
    more: &[u8],
) -> io::Result<()> {
    let body = body.as_bytes();
    let len = (size_of::<abi::OutHeader>() + body.len() + more.len()) as u32;
    // `unique` 0 marks a message that answers no request.
    let header = abi::OutHeader { len, error: code, unique: 0 };
    write_message(
        device,
        &[IoSlice::new(header.as_bytes()), IoSlice::new(body), IoSlice::new(more)],
    )
}

/// Stores the last byte of the file, from an address that cannot be read. The kernel first sets the
/// length of the file, and then fails to copy the byte: no page changes, and bytes stored there
/// through a mapping stay. (fuse_notify_store: since Linux 2.6.36.)
fn lengthen(device: &OwnedFd, ino: Ino, len_bytes: u64) -> io::Result<()> {
    let Some(offset) = len_bytes.checked_sub(1) else { return Ok(()) };
    let out = abi::NotifyStoreOut { nodeid: ino.0, offset, size: 1, padding: 0 };
    let len = (size_of::<abi::OutHeader>() + size_of_val(&out) + 1) as u32;
    let header = abi::OutHeader { len, error: abi::NOTIFY_STORE, unique: 0 };
    let part = |bytes: &[u8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let nowhere = libc::iovec { iov_base: unreadable()? as *mut libc::c_void, iov_len: 1 };
    let parts = [part(header.as_bytes()), part(out.as_bytes()), nowhere];
    // SAFETY: the kernel reads the first two parts, which outlive the call, and cannot read the
    // third.
    match unsafe { libc::writev(device.as_raw_fd(), parts.as_ptr(), parts.len() as libc::c_int) } {
        -1 => match io::Error::last_os_error() {
            failure if failure.raw_os_error() == Some(libc::EFAULT) => Ok(()),
            failure => Err(failure),
        },
        _ => Err(io::Error::other("the kernel has stored a byte that is nowhere")),
    }
}

/// The address of an unreadable page, mapped once.
fn unreadable() -> io::Result<usize> {
    static PAGE: OnceLock<usize> = OnceLock::new();
    if let Some(page) = PAGE.get() {
        return Ok(*page);
    }
    let (flags, nothing) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, std::ptr::null_mut());
    // SAFETY: a new mapping, which is never accessed as memory.
    let page = unsafe { libc::mmap(nothing, 1, libc::PROT_NONE, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(*PAGE.get_or_init(|| page as usize))
}

/// The device in a table of descriptors that is this thread's alone. Without one, as before Linux
/// 5.9 or in a container that forbids it, another descriptor in the table of all.
fn take_alone(device: &OwnedFd) -> io::Result<OwnedFd> {
    let number = device.as_raw_fd();
    // SAFETY: takes plain integers, and closes nothing: there is no such descriptor.
    if unsafe {
        libc::syscall(libc::SYS_close_range, RawFd::MAX, RawFd::MAX, libc::CLOSE_RANGE_UNSHARE)
    } == -1
    {
        return device.try_clone();
    }
    let kept = |fd: RawFd, what: &Path| {
        fd == number || fd <= libc::STDERR_FILENO || what == Path::new(WAKER)
    };
    // The listing has a descriptor too, which is closed after the listing.
    let all: Vec<RawFd> = fs::read_dir(TABLE)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in all {
        if fs::read_link(Path::new(TABLE).join(fd.to_string())).is_ok_and(|what| !kept(fd, &what)) {
            // SAFETY: nobody else uses the descriptor of that number in this table.
            unsafe { libc::close(fd) };
        }
    }
    // SAFETY: in this table the number is the device, and nobody else closes it there.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The descriptors of the thread that looks.
const TABLE: &str = "/proc/thread-self/fd";

/// The descriptor that a thread wakes the runtime with, as proc(5) shows it.
const WAKER: &str = "anon_inode:[eventfd]";

/// How long the end of a session waits for a notification in progress. One that takes longer
/// depends on a request that only the cut-off of the mount ends.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Notifications that wait their turn; senders beyond that wait before they are queued.
const QUEUE_LEN: usize = 1024;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A notifier whose jobs the test performs.
    pub fn held() -> (Notifier, mpsc::Sender<Job>, mpsc::Receiver<Job>) {
        let (queue, jobs) = mpsc::channel(QUEUE_LEN);
        let notifier = Notifier {
            inodes: queue.downgrade(),
            names: queue.downgrade(),
            recalls: queue.downgrade(),
        };
        (notifier, queue, jobs)
    }
}
