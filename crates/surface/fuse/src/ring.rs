//! Requests that come and are answered through an io_uring in place of reads and writes of
//! `/dev/fuse` (Linux 6.14).
//!
//! Each processor has a queue of slots, each of which is either in the kernel's hands, to be filled
//! with a request, or in ours, until that is answered. A request for which there is no slot waits
//! in the kernel until another one of the same processor is answered, whatever slots come
//! meanwhile: so each queue has some to spare, and mounts whose requests may wait for ever (for
//! locks that others take too) are refused. What only informs (FORGET, INTERRUPT) still is read
//! from the device, and notifications are written to it.

use crate::abi;
use crate::device::Device;
use crate::session::MAX_IN_FLIGHT;
use ebb_model::MAX_IO_BYTES;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::rc::Rc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{error, warn};
use zerocopy::{FromBytes, IntoBytes};

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

pub(crate) struct Ring {
    // Declared first: it is no longer watched before it is closed.
    wakes: AsyncFd<Watched>,
    inner: RefCell<Inner>,
}

struct Watched(RawFd);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

struct Inner {
    uring: Uring,
    slots: Vec<Slot>,
    queues: Vec<Queue>,
    /// As many slots the mount begins with: without them it is not served.
    first: usize,
    /// Commands that were pushed and not submitted.
    pushed: usize,
    /// Slots are added where they are short.
    grows: bool,
    device: Rc<Device>,
}

/// How many slots of one processor are whose.
#[derive(Clone, Copy, Default)]
struct Queue {
    kernels: usize,
    ours: usize,
}

struct Slot {
    queue: u16,
    /// The kernel's name of the request that is in it.
    commit_id: u64,
    state: State,
    memory: Memory,
    /// So much of the payload has been written to since its memory was last given back.
    filled_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The kernel has not given a request with it yet.
    Fresh,
    Kernel,
    Ours,
    /// The kernel does not use it any more.
    Over,
}

/// What the kernel writes to whenever the slot is its own: the header, where both are (for the
/// kernel to read), and the payload.
struct Memory(NonNull<u8>);

/// A request that was taken out of a slot.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub slot: usize,
    pub len: usize,
}

impl Ring {
    /// On the thread that is to serve it.
    pub fn start(device: &Rc<Device>) -> io::Result<Ring> {
        let (queues, online) = (processors("possible")?.len(), processors("online")?);
        let mut builder = IoUring::builder();
        builder
            .setup_coop_taskrun()
            .setup_submit_all()
            .setup_cqsize(most_slots(queues) as u32)
            .setup_clamp();
        let uring: Uring = builder.build(PUSHED_AT_MOST)?;
        // SAFETY: the ring stays open for as long as it is watched.
        let wakes = unsafe {
            AsyncFd::register_with_interest(Watched(uring.as_raw_fd()), Interest::READABLE)?
        };
        let (queues, device) = (vec![Queue::default(); queues], device.clone());
        let mut inner =
            Inner { uring, slots: Vec::new(), queues, first: 0, pushed: 0, grows: true, device };
        // The kernel sends nothing before every queue has a slot. Those that are used have all from
        // the beginning: to add one can meet the end of the mount.
        for queue in 0..inner.queues.len() {
            for _ in 0..if online.contains(&queue) { SPARE } else { 1 } {
                inner.add(queue)?;
            }
        }
        inner.first = inner.slots.len();
        inner.submit()?;
        Ok(Ring { wakes, inner: RefCell::new(inner) })
    }

    /// The next request, put together in `buffer` as the device would have given it.
    pub fn take(&self, buffer: &mut [u8]) -> io::Result<Option<Taken>> {
        let inner = &mut *self.inner.borrow_mut();
        loop {
            let Some(entry) = inner.uring.completion().next() else { return Ok(None) };
            let at = entry.user_data() as usize;
            let slot = inner.slots.get_mut(at).ok_or(io::ErrorKind::InvalidData)?;
            let queue = &mut inner.queues[usize::from(slot.queue)];
            queue.kernels -= 1;
            if entry.result() < 0 {
                let before = std::mem::replace(&mut slot.state, State::Over);
                match -entry.result() {
                    // The connection is over, which the device tells.
                    libc::ENOTCONN
                    | libc::ECANCELED
                    | libc::ENODEV
                    | libc::ENOENT
                    | libc::ECONNABORTED => {}
                    refused if before == State::Fresh && at >= inner.first => {
                        inner.is_enough(&io::Error::from_raw_os_error(refused))
                    }
                    refused => return Err(io::Error::from_raw_os_error(refused)),
                }
                continue;
            }
            slot.state = State::Ours;
            queue.ours += 1;
            let is_deep = queue.ours > FILLED;
            let queue = usize::from(slot.queue);
            let len = slot.read(buffer, is_deep)?;
            inner.refill(queue);
            return Ok(Some(Taken { slot: at, len }));
        }
    }

    /// Answers the request that was taken out of the slot. It is on its way by the next
    /// [`Ring::submit`].
    pub fn answer(&self, slot: usize, error: i32, unique: u64, body: &[u8]) -> io::Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        let Some(answered) = inner.slots.get_mut(slot).filter(|slot| slot.state == State::Ours)
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        answered.write(error, unique, body)?;
        let (queue, commit_id) = (answered.queue, answered.commit_id);
        inner.push(
            slot,
            COMMIT_AND_FETCH,
            abi::RingCommand { commit_id, queue, ..abi::RingCommand::default() },
        )?;
        inner.slots[slot].state = State::Kernel;
        let queue = &mut inner.queues[usize::from(queue)];
        (queue.ours, queue.kernels) = (queue.ours - 1, queue.kernels + 1);
        if inner.pushed >= TOGETHER {
            // An error is that of the next submission too.
            inner.submit().ok();
        }
        Ok(())
    }

    /// Hands over what was answered.
    pub fn submit(&self) -> io::Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        while inner.pushed > 0 {
            match inner.submit() {
                // The kernel is short of memory for the moment.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EAGAIN | libc::ENOMEM | libc::EBUSY | libc::EINTR)
                    ) =>
                {
                    std::thread::yield_now();
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// To be awaited after [`Ring::take`] gave nothing.
    pub async fn readable(&self) -> io::Result<()> {
        self.wakes.readable().await.map(|mut guard| guard.clear_ready())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.submit().ok();
        let inner = self.inner.get_mut();
        for entry in inner.uring.completion() {
            if let Some(slot) = inner.slots.get_mut(entry.user_data() as usize) {
                slot.state = State::Over;
            }
        }
    }
}

impl Inner {
    /// Keeps slots to spare in the queue.
    fn refill(&mut self, queue: usize) {
        if self.queues[queue].kernels >= SPARE / 2 {
            return;
        }
        while self.grows && self.queues[queue].kernels < SPARE {
            if self.slots.len() >= most_slots(self.queues.len()) {
                self.is_enough(&"there are as many as there are to be");
            } else if let Err(error) = self.add(queue) {
                self.is_enough(&error);
            }
        }
    }

    fn is_enough(&mut self, why: &dyn std::fmt::Display) {
        if std::mem::replace(&mut self.grows, false) {
            warn!(slots = self.slots.len(), %why, "no more requests come through the ring at one \
                time: further ones wait in the kernel");
        }
    }

    fn add(&mut self, queue: usize) -> io::Result<()> {
        let (at, memory) = (self.slots.len(), Memory::new()?);
        self.slots.push(Slot {
            queue: queue as u16,
            commit_id: 0,
            state: State::Fresh,
            memory,
            filled_bytes: 0,
        });
        let pushed = self.push(
            at,
            REGISTER,
            abi::RingCommand { queue: queue as u16, ..abi::RingCommand::default() },
        );
        match pushed {
            Ok(()) => self.queues[queue].kernels += 1,
            Err(_) => self.slots[at].state = State::Over,
        }
        pushed
    }

    fn push(&mut self, slot: usize, operation: u32, command: abi::RingCommand) -> io::Result<()> {
        let mut bytes = [0; 80];
        bytes[..size_of::<abi::RingCommand>()].copy_from_slice(command.as_bytes());
        let entry =
            opcode::UringCmd80::new(types::Fd(self.device.fd().as_raw_fd()), operation).cmd(bytes);
        let entry = match operation {
            REGISTER => {
                let mut entry = entry.addr(Some(self.slots[slot].memory.parts() as u64)).build();
                // SAFETY: the entry is the kernel's `io_uring_sqe` of 128 bytes, of which `len` are
                // these four.
                unsafe {
                    (&raw mut entry)
                        .cast::<[u8; 4]>()
                        .byte_add(SQE_LEN_AT)
                        .write(PARTS.to_ne_bytes())
                };
                entry
            }
            _ => entry.build(),
        };
        let entry = entry.user_data(slot as u64);
        // SAFETY: what the entry points to is the slot's, and let go only when the kernel has given
        // the slot back.
        while unsafe { self.uring.submission().push(&entry) }.is_err() {
            self.submit()?;
        }
        self.pushed += 1;
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        self.uring.submit()?;
        self.pushed = self.uring.submission().len();
        Ok(())
    }
}

impl Slot {
    /// The request as one message. Only while the slot is ours. `is_deep`: so many are in use that
    /// the memory of this one is not soon needed again.
    fn read(&mut self, buffer: &mut [u8], is_deep: bool) -> io::Result<usize> {
        // SAFETY: nobody else touches the memory of a slot that is ours.
        let (header, payload) = unsafe {
            (
                &*self.memory.header(),
                std::slice::from_raw_parts(self.memory.payload(), PAYLOAD_BYTES),
            )
        };
        self.commit_id = header.slot.commit_id;
        let head_bytes = size_of::<abi::InHeader>();
        let (head, _) = abi::InHeader::read_from_prefix(&header.in_out)
            .map_err(|_| io::ErrorKind::InvalidData)?;
        let (len, payload_bytes) = (head.len as usize, header.slot.payload_bytes as usize);
        let arguments = len
            .checked_sub(head_bytes + payload_bytes)
            .and_then(|bytes| header.arguments.get(..bytes));
        let (Some(arguments), Some(payload), Some(buffer)) =
            (arguments, payload.get(..payload_bytes), buffer.get_mut(..len))
        else {
            error!(len, payload_bytes, "the kernel does not keep to the protocol");
            return Err(io::ErrorKind::InvalidData.into());
        };
        let (head, rest) = buffer.split_at_mut(head_bytes);
        head.copy_from_slice(&header.in_out[..head_bytes]);
        let (first, rest) = rest.split_at_mut(arguments.len());
        first.copy_from_slice(arguments);
        rest.copy_from_slice(payload);
        self.filled_bytes = self.filled_bytes.max(payload_bytes);
        if is_deep && self.filled_bytes >= GIVEN_BACK_BYTES {
            // SAFETY: as above; what was there has been copied, and is zeros from now on.
            unsafe {
                libc::madvise(self.memory.payload().cast(), PAYLOAD_BYTES, libc::MADV_DONTNEED)
            };
            self.filled_bytes = 0;
        }
        Ok(len)
    }

    /// Only while the slot is ours.
    fn write(&mut self, error: i32, unique: u64, body: &[u8]) -> io::Result<()> {
        // SAFETY: as in `read`.
        let (header, payload) = unsafe {
            (
                &mut *self.memory.header(),
                std::slice::from_raw_parts_mut(self.memory.payload(), PAYLOAD_BYTES),
            )
        };
        payload.get_mut(..body.len()).ok_or(io::ErrorKind::FileTooLarge)?.copy_from_slice(body);
        self.filled_bytes = self.filled_bytes.max(body.len());
        let out = abi::OutHeader {
            len: (size_of::<abi::OutHeader>() + body.len()) as u32,
            error,
            unique,
        };
        header.in_out[..size_of::<abi::OutHeader>()].copy_from_slice(out.as_bytes());
        header.slot.payload_bytes = body.len() as u32;
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // What the kernel may still write to is left to it: the process ends with its mount, or
        // soon after.
        if matches!(self.state, State::Ours | State::Over) {
            // SAFETY: it comes from `Memory::new`, and nobody else has it any more.
            unsafe { libc::munmap(self.memory.0.as_ptr().cast(), MEMORY_BYTES) };
        }
    }
}

impl Memory {
    /// Only what a request fills of it becomes memory.
    fn new() -> io::Result<Memory> {
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new mapping touches no memory that is there.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), MEMORY_BYTES, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = Memory(NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?);
        let part = |base: *mut libc::c_void, iov_len| libc::iovec { iov_base: base, iov_len };
        let parts = [
            part(memory.header().cast(), size_of::<abi::RingHeader>()),
            part(memory.payload().cast(), PAYLOAD_BYTES),
        ];
        // SAFETY: it is within the mapping, behind the header, and aligned.
        unsafe { memory.parts().write(parts) };
        Ok(memory)
    }

    fn header(&self) -> *mut abi::RingHeader {
        self.0.as_ptr().cast()
    }

    fn parts(&self) -> *mut [libc::iovec; PARTS as usize] {
        // SAFETY: it is within the mapping.
        unsafe { self.0.as_ptr().add(HEADER_BYTES / 2).cast() }
    }

    fn payload(&self) -> *mut u8 {
        // SAFETY: it is within the mapping.
        unsafe { self.0.as_ptr().add(HEADER_BYTES) }
    }
}

/// Those that each queue has to spare, and those that requests in flight take.
fn most_slots(queues: usize) -> usize {
    queues * SPARE + MAX_IN_FLIGHT
}

/// Those that could ever be there (`possible`), of which each has a queue, or are (`online`).
fn processors(which: &str) -> io::Result<BTreeSet<usize>> {
    let list = std::fs::read_to_string(format!("/sys/devices/system/cpu/{which}"))?;
    listed(list.trim()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{list:?} is no list of processors"))
    })
}

/// A list as in "0-3,6".
fn listed(list: &str) -> Option<BTreeSet<usize>> {
    let mut all = BTreeSet::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        if first > last {
            return None;
        }
        all.extend((first..=last).map(usize::from));
    }
    Some(all)
}

// Of `fuse_uring_cmd`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Where `io_uring_sqe` has `len`.
const SQE_LEN_AT: usize = 24;

/// Header and payload.
const PARTS: u32 = 2;

/// All pages of the largest request: the longest WRITE or READ from wherever in a page it begins.
const PAYLOAD_BYTES: usize = MAX_IO_BYTES + LARGEST_PAGE_BYTES;

/// Room for the header, in whole pages.
const HEADER_BYTES: usize = LARGEST_PAGE_BYTES;
const LARGEST_PAGE_BYTES: usize = 64 << 10;
const MEMORY_BYTES: usize = HEADER_BYTES + PAYLOAD_BYTES;

/// Slots that a queue has for requests that come while we are busy; from half of them on there are
/// to be more.
const SPARE: usize = 16;

/// Slots of a queue in use whose memory is kept: the kernel takes the one first that it was given
/// last.
const FILLED: usize = 4;

/// Memory of those beyond that is given back when so much of it was filled.
const GIVEN_BACK_BYTES: usize = 64 << 10;

/// Answers that are handed over at once.
const TOGETHER: usize = 8;

const PUSHED_AT_MOST: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed() {
        let counts = ["0", "0-3", "0-1,4,6-7"].map(|list| listed(list).map(|all| all.len()));
        assert_eq!(counts, [Some(1), Some(4), Some(5)]);
        assert_eq!(["", "3-1", "a-b", "0-70000"].map(listed), [const { None }; 4]);
    }

    /// However many processors are used: once each of them has its slots to spare, requests have
    /// theirs.
    #[test]
    fn many_processors_take_nobodys_slots() {
        for queues in [1, 2, 256, 4096] {
            let spare: usize = (0..queues).map(|_| SPARE).sum();
            assert!(spare + MAX_IN_FLIGHT <= most_slots(queues));
        }
    }
}
