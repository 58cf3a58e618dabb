//! Serving a mount: reads requests, runs them concurrently on this thread, answers.
//!
//! A request costs two system calls, read and writev. A handler that completes at once is polled in
//! place and costs no allocation; one that has to wait moves to the set of those in flight.

use crate::buffer::{BufferPool, share};
use crate::counters::{Arrival, Counters};
use crate::device::{Device, Received};
use crate::init::{Answer, negotiate};
use crate::interrupt::Interrupts;
use crate::mount::{LeftMount, MountPoint};
use crate::notify::Telling;
use crate::reply::Responder;
use crate::request_size::RequestSize;
use crate::succession::Succession;
use crate::{
    Filesystem, Message, Mount, Negotiated, Notification, Notifier, NotifyError, Operation,
    Passthrough, Rejected, Request, abi, dispatch,
};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};
use zerocopy::{FromBytes, IntoBytes};

#[derive(Debug, Error)]
pub enum SessionError {
    #[error(
        "this kernel speaks FUSE {major}.{minor}; ebb needs {}.{} or newer (Linux 5.4)",
        abi::MAJOR,
        abi::MINOR_LEAST
    )]
    KernelTooOld { major: u32, minor: u32 },
    #[error("the mount ended before it was served")]
    EndedEarly,
    #[error("the kernel does not keep to the protocol: {0}")]
    Protocol(&'static str),
    #[error("/dev/fuse: {0}")]
    Device(#[from] io::Error),
    #[error("the kernel does not send again what was not answered: {0}")]
    NotResumable(NotifyError),
}

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// A user has unmounted it.
    Unmounted,
    /// It was told to stop, and the mount is no longer in use.
    Stopped,
    /// It was told to stop, and the mount was still in use when the waiting time ended: further
    /// accesses fail with ENOTCONN or EIO.
    CutOff,
}

/// A mount that is usable: the kernel and we agree on how to talk.
pub struct Session {
    // Dropped in this order: once the device is closed unmounting does not wait.
    device: Rc<Device>,
    telling: Telling,
    point: MountPoint,
    negotiated: Negotiated,
    counters: Rc<Counters>,
    /// Requests in flight hold no more.
    most_bytes: u64,
    /// Another process has served it before.
    taken_over: bool,
    /// Called when the mount needs no successor any more.
    at_end: Option<Box<dyn FnOnce()>>,
    /// Work for the time without requests.
    idle: Box<dyn Fn()>,
}

impl Session {
    /// Needs a tokio runtime with I/O and time.
    pub async fn start(mount: Mount) -> Result<Session, SessionError> {
        let Mount { device, point, read_ahead_bytes, wants, size } = mount;
        let device = Rc::new(Device::new(device)?);
        let negotiated = initialise(&device, wants, size).await?;
        point.place.set_read_ahead(read_ahead_bytes);
        let telling = Telling::start(&device)?;
        debug!(
            minor = negotiated.minor,
            flags = format_args!("{:#x}", negotiated.flags),
            "FUSE connection"
        );
        Ok(Session::of(device, telling, point, negotiated, false))
    }

    /// Continues a mount whose process has died and left the [device](Session::device), which
    /// another process holds. Requests that the dead process had read and not answered come again,
    /// before all others.
    pub async fn take_over(left: LeftMount) -> Result<Session, SessionError> {
        let LeftMount { device, point, negotiated } = left;
        let device = Rc::new(Device::new(device)?);
        let telling = Telling::start(&device)?;
        match telling.notifier().send(Notification::Resend).await {
            // The end of the mount is detected when it is served.
            Ok(()) | Err(NotifyError::Ended) => {}
            Err(error) => return Err(SessionError::NotResumable(error)),
        }
        Ok(Session::of(device, telling, point, negotiated, true))
    }

    fn of(
        device: Rc<Device>,
        telling: Telling,
        point: MountPoint,
        negotiated: Negotiated,
        taken_over: bool,
    ) -> Session {
        let (counters, most_bytes) = (Rc::new(Counters::new()), u64::MAX);
        Session {
            device,
            telling,
            point,
            negotiated,
            counters,
            most_bytes,
            taken_over,
            at_end: None,
            idle: Box::new(|| ()),
        }
    }

    /// The descriptor that a successor needs, if this kernel sends requests again.
    pub fn device(&self) -> Option<BorrowedFd<'_>> {
        self.negotiated.has(abi::init::HAS_RESEND).then(|| self.device.fd())
    }

    /// The identity of the mount as a number, for [`LeftMount::new`].
    pub fn place(&self) -> u64 {
        self.point.place.id.number()
    }

    /// `told` is called once the mount needs no successor: it has gone, or is about to be cut off,
    /// for which other processes have to close the device.
    pub fn at_end(&mut self, told: impl FnOnce() + 'static) {
        self.at_end = Some(Box::new(told));
    }

    /// `work` is short, and called repeatedly while there is no request. The callers have their
    /// replies and prepare their next requests.
    pub fn when_idle(&mut self, work: impl Fn() + 'static) {
        self.idle = Box::new(work);
    }

    /// Bytes of files that requests may hold while they are in flight. Beyond it all requests wait
    /// in the kernel.
    pub fn hold_at_most(&mut self, bytes: u64) {
        self.most_bytes = bytes;
    }

    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// `Some` if the mount requested it and the kernel supports it.
    pub fn passthrough(&self) -> Option<Passthrough> {
        self.negotiated
            .has(abi::init::PASSTHROUGH)
            .then(|| Passthrough::new(Arc::downgrade(&self.device.shared())))
    }

    /// Counters of the requests that it serves.
    pub fn counters(&self) -> Rc<Counters> {
        self.counters.clone()
    }

    pub fn notifier(&self) -> Notifier {
        self.telling.notifier()
    }

    /// Serves until the mount has gone, or until `stop` completes and then the mount has been
    /// taken away: requests in flight are finished, files that are open keep working for up
    /// to `patience`.
    pub async fn serve<F: Filesystem>(
        self,
        fs: &F,
        stop: impl Future<Output = ()>,
        patience: Duration,
    ) -> Result<Ended, SessionError> {
        // In this order: whenever this future is dropped, the device goes before the mount point.
        let Session {
            point,
            telling,
            device,
            negotiated,
            counters,
            most_bytes,
            taken_over,
            at_end,
            idle,
        } = self;
        let mut succession = taken_over.then(Succession::new);
        let mut held: VecDeque<Held> = VecDeque::new();
        let shared = SessionShared {
            interrupts: Interrupts::default(),
            hears_closes: negotiated.has(abi::init::POSIX_LOCKS),
        };
        let pool = BufferPool::default();
        let mut buffer = pool.take();
        let mut spare = Box::pin(None);
        let mut in_flight = FuturesUnordered::new();
        let mut in_flight_bytes = 0;
        let mut stop = pin!(stop.fuse());
        let mut deadline = None;
        let mut busy_poll = BusyPoll::default();

        let ended = 'serve: loop {
            let mut drained = false;
            if succession.as_ref().is_some_and(Succession::is_over) {
                succession = None;
            }
            for _ in 0..BATCH {
                let next = if succession.is_none() { held.pop_front() } else { None };
                let (request, arrival, unanswered) = match next {
                    Some(Held::Interrupt(unique)) => {
                        shared.interrupts.interrupt(unique);
                        continue;
                    }
                    Some(Held::Request(request, arrival)) => {
                        in_flight_bytes -= sent_bytes(&request.operation) as u64;
                        (request, arrival, None)
                    }
                    None if is_full(
                        succession.as_ref(),
                        in_flight.len() + held.len(),
                        in_flight_bytes,
                        most_bytes,
                    ) =>
                    {
                        break;
                    }
                    None => {
                        let len = match device.receive(buffer.as_mut())? {
                            Received::Message(len) => {
                                busy_poll.came();
                                len
                            }
                            Received::Nothing if in_flight.is_empty() && busy_poll.goes_on() => {
                                idle();
                                std::thread::yield_now();
                                continue;
                            }
                            Received::Nothing => {
                                if let Some(again) =
                                    succession.as_mut().and_then(Succession::all_came)
                                {
                                    fs.all_came(&again);
                                }
                                if succession.as_ref().is_some_and(Succession::is_over) {
                                    succession = None;
                                    continue;
                                }
                                drained = true;
                                break;
                            }
                            Received::Gone => {
                                break 'serve if deadline.is_some() {
                                    Ended::Stopped
                                } else {
                                    Ended::Unmounted
                                };
                            }
                        };
                        let message = match share(&mut buffer, len) {
                            Some(whole) => {
                                Message::parse(&negotiated, &whole, |range| whole.slice(range))
                            }
                            None => Message::parse(&negotiated, buffer.bytes(0..len), |range| {
                                Bytes::copy_from_slice(buffer.bytes(range))
                            }),
                        };
                        let request = match message {
                            Ok(Message::Request(request)) => request,
                            Ok(Message::Forget(forgets)) => {
                                forgets.into_iter().for_each(|(ino, count)| fs.forget(ino, count));
                                continue;
                            }
                            Ok(Message::Interrupt(unique)) => {
                                match &succession {
                                    Some(_) => held.push_back(Held::Interrupt(unique)),
                                    None => shared.interrupts.interrupt(unique),
                                }
                                continue;
                            }
                            Err(Rejected::Silent) => continue,
                            Err(Rejected::Answer { unique, opcode, errno }) => {
                                debug!(
                                    operation = abi::opcode_name(opcode),
                                    ?errno,
                                    "request refused"
                                );
                                Responder::new(
                                    device.clone(),
                                    counters.clone(),
                                    unique,
                                    Arrival::now(opcode, None, 0),
                                )
                                .error(errno);
                                continue;
                            }
                        };
                        let arrival = Arrival::now(
                            request.opcode,
                            Some(request.ino),
                            sent_bytes(&request.operation),
                        );
                        let mut unanswered = None;
                        if let Some(succession) = &mut succession {
                            // Requests that are sent again come before new ones.
                            if !request.context.resent
                                && let Some(again) = succession.all_came()
                            {
                                fs.all_came(&again);
                            }
                            unanswered = succession.admit(&request);
                            if unanswered.is_none() {
                                in_flight_bytes += sent_bytes(&request.operation) as u64;
                                held.push_back(Held::Request(request, arrival));
                                continue;
                            }
                        }
                        (request, arrival, unanswered)
                    }
                };
                let cost = sent_bytes(&request.operation) as u64;
                let reply = Responder::new(
                    device.clone(),
                    counters.clone(),
                    request.context.unique,
                    arrival,
                );
                let served = move |()| {
                    drop(unanswered);
                    cost
                };
                spare.set(Some(dispatch::serve(fs, request, reply, &shared).map(served)));
                // A handler that is not ready is polled again by `in_flight`, with a waker that
                // wakes.
                match spare
                    .as_mut()
                    .as_pin_mut()
                    .map(|handler| handler.poll(&mut TaskContext::from_waker(Waker::noop())))
                {
                    Some(Poll::Pending) => {
                        in_flight.push(Handler(std::mem::replace(&mut spare, Box::pin(None))));
                        in_flight_bytes += cost;
                    }
                    Some(Poll::Ready(_)) | None => spare.set(None),
                }
            }
            if drained {
                idle();
            }
            let full = is_full(
                succession.as_ref(),
                in_flight.len() + held.len(),
                in_flight_bytes,
                most_bytes,
            );
            let room = !full || succession.is_none() && !held.is_empty();
            tokio::select! {
                biased;
                () = &mut stop, if deadline.is_none() => {
                    deadline = Some(Instant::now() + patience);
                    unmount_aside(&point);
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => break Ended::CutOff,
                Some(cost) = in_flight.next(), if !in_flight.is_empty() => in_flight_bytes -= cost,
                ready = device.readable(), if drained => ready?,
                () = sleep_until(succession.as_ref().map_or_else(Instant::now, |succession| succession.until)), if succession.is_some() => {}
                () = tokio::task::yield_now(), if !drained && room => {}
            }
        };

        let finish = async { while in_flight.next().await.is_some() {} };
        let patience_left = deadline.unwrap_or_else(|| Instant::now() + patience);
        if tokio::time::timeout_at(patience_left, finish).await.is_err() {
            warn!(requests = in_flight.len(), "requests are given up: the mount has ended");
        }
        if let Some(told) = at_end {
            told();
        }
        if ended == Ended::CutOff {
            info!(path = %point.place.path.display(), "somebody still uses the mount: they are cut \
                off");
        }
        // The order matters: unanswered requests are answered EIO, then the device is closed, which
        // ends the connection, and then nothing can hold up the unmounting.
        drop(in_flight);
        drop(spare);
        drop(device);
        drop(telling);
        drop(point);
        Ok(ended)
    }
}

/// Messages that are processed in the order of their arrival once a [`Succession`] is over.
enum Held {
    Request(Request, Arrival),
    /// A signal to the caller of a request that came before it. Requests served until then ignore
    /// signals.
    Interrupt(u64),
}

/// State shared by all requests of a connection.
pub(crate) struct SessionShared {
    pub interrupts: Interrupts,
    /// The kernel reports every close of a descriptor, for the locks that end with it.
    pub hears_closes: bool,
}

/// Answers INIT.
async fn initialise(
    device: &Rc<Device>,
    wants: u64,
    size: RequestSize,
) -> Result<Negotiated, SessionError> {
    let mut buffer = BufferPool::default().take();
    loop {
        let len = match device.receive(buffer.as_mut())? {
            Received::Message(len) => len,
            Received::Nothing => {
                device.readable().await?;
                continue;
            }
            Received::Gone => return Err(SessionError::EndedEarly),
        };
        let message = buffer.bytes(0..len);
        let (header, body) = abi::InHeader::read_from_prefix(message)
            .map_err(|_| SessionError::Protocol("short message"))?;
        let Some((answer, out)) =
            negotiate(body, wants, size).filter(|_| header.opcode == abi::INIT)
        else {
            return Err(SessionError::Protocol("the first request is not INIT"));
        };
        if let Answer::TooOld { major, minor } = answer {
            return Err(SessionError::KernelTooOld { major, minor });
        }
        device.answer(0, header.unique, out.as_bytes())?;
        if let Answer::Agreed(negotiated) = answer {
            return Ok(negotiated);
        }
    }
}

/// Unmounting sends requests that this thread has to serve, so another thread does it.
fn unmount_aside(point: &MountPoint) {
    let place = point.place.clone();
    let unmount = move || {
        if let Err(failure) = place.unmount() {
            warn!(path = %place.path.display(), %failure, "cannot unmount");
        }
    };
    if let Err(failure) = std::thread::Builder::new().name("ebb-umount".into()).spawn(unmount) {
        // Then the end of patience cuts it off.
        warn!(%failure, "no thread to unmount from");
    }
}

/// Whether requests have to wait in the kernel. None that are sent again do: the process before had
/// no more of them.
fn is_full(succession: Option<&Succession>, requests: usize, bytes: u64, most_bytes: u64) -> bool {
    !succession.is_some_and(Succession::expects_more)
        && (requests >= MAX_IN_FLIGHT || bytes >= most_bytes)
}

/// Bytes of files that come with a request, which holds them while it is in flight. A read holds
/// nothing while it waits.
fn sent_bytes(operation: &Operation) -> usize {
    if let Operation::Write { data, .. } = operation { data.len() } else { 0 }
}

/// After a request that followed the one before it closely, this thread polls for the next one a
/// moment longer before it sleeps: a wake-up takes longer than most requests, far longer on a
/// virtual processor.
#[derive(Default)]
struct BusyPoll {
    came: Option<std::time::Instant>,
    /// When the current time without requests began.
    idle: Option<std::time::Instant>,
    /// The last request came soon after the one before it.
    close: bool,
}

impl BusyPoll {
    fn came(&mut self) {
        let now = std::time::Instant::now();
        self.close = self.came.is_some_and(|before| now - before < VIGIL_CLOSE);
        self.came = Some(now);
        self.idle = None;
    }

    fn goes_on(&mut self) -> bool {
        self.close && self.idle.get_or_insert_with(std::time::Instant::now).elapsed() < VIGIL
    }
}

/// A handler that has to wait.
struct Handler<H>(Pin<Box<Option<H>>>);

impl<H: Future> Future for Handler<H> {
    type Output = H::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<H::Output> {
        self.0.as_mut().as_pin_mut().expect("a handler is put here before it is polled").poll(cx)
    }
}

/// How long to poll for a request, and how soon it must have followed another one for that: the
/// time of a wake-up on slow machines.
const VIGIL: Duration = Duration::from_micros(50);
const VIGIL_CLOSE: Duration = Duration::from_micros(250);

/// Requests read in a row before other tasks of the thread get their turn.
const BATCH: usize = 64;

/// Requests in flight. Beyond that the device is not read: their callers wait in the kernel.
/// More than the threads of a busy machine, because a request that waits for a lease may
/// depend on one that is yet to be read.
pub(crate) const MAX_IN_FLIGHT: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resent_requests_do_not_wait_for_room() {
        let mut succession = Succession::new();
        assert!(!is_full(Some(&succession), MAX_IN_FLIGHT, 10, 10));
        succession.all_came();
        assert!(
            is_full(Some(&succession), MAX_IN_FLIGHT, 0, 10)
                && is_full(Some(&succession), 0, 10, 10)
        );
        assert!(is_full(None, 0, 10, 10) && !is_full(None, 0, 9, 10));
    }
}
