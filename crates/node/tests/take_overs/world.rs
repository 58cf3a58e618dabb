//! A bucket that loses replies and requests, and a clock that advances when everything waits.

use bytes::Bytes;
use ebb_bucket::Memory;
use ebb_model::Time;
use ebb_ports::*;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// SplitMix64.
pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Cell::new(seed))
    }

    pub fn below(&self, limit: u64) -> u64 {
        self.next_u64() % limit
    }
}

impl Entropy for Random {
    fn next_u64(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

thread_local! {
    static TIME: Cell<Duration> = Cell::default();
    static WAITING: RefCell<BinaryHeap<Reverse<Duration>>> = RefCell::default();
}

/// Completes the flow; time passes when it waits.
pub fn now<T>(flow: impl Future<Output = T>) -> T {
    let mut flow = pin!(flow);
    loop {
        if let Poll::Ready(value) = flow.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            WAITING.with_borrow_mut(BinaryHeap::clear);
            return value;
        }
        let Reverse(next) = WAITING.with_borrow_mut(BinaryHeap::pop).expect("it waits for a time");
        TIME.set(TIME.get().max(next));
    }
}

struct TestClock;

impl Clock for TestClock {
    fn wall(&self) -> Time {
        Time::from_secs(TIME.get().as_secs() as i64)
    }

    fn monotonic(&self) -> Duration {
        TIME.get()
    }

    fn sleep(&self, duration: Duration) -> PortFuture<'static, ()> {
        let until = TIME.get() + duration;
        WAITING.with_borrow_mut(|waiting| waiting.push(Reverse(until)));
        Box::pin(poll_fn(
            move |_| if TIME.get() >= until { Poll::Ready(()) } else { Poll::Pending },
        ))
    }
}

/// The lease uses neither disk nor net, and starts no task.
struct Unused;

impl Net for Unused {
    fn connect(&self, _: &str) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>> {
        unreachable!()
    }

    fn listen(&self, _: &str) -> PortFuture<'_, Result<Box<dyn Listener>, NetError>> {
        unreachable!()
    }
}

impl Spawn for Unused {
    fn spawn(&self, _: PortFuture<'static, ()>) {
        unreachable!()
    }
}

impl Disk for Unused {
    fn open(&self, _: &str, _: OpenMode) -> PortFuture<'_, Result<Rc<dyn DiskFile>, DiskError>> {
        unreachable!()
    }

    fn rename(&self, _: &str, _: &str) -> PortFuture<'_, Result<(), DiskError>> {
        unreachable!()
    }

    fn remove(&self, _: &str) -> PortFuture<'_, Result<(), DiskError>> {
        unreachable!()
    }

    fn create_dir(&self, _: &str) -> PortFuture<'_, Result<(), DiskError>> {
        unreachable!()
    }

    fn list(&self, _: &str) -> PortFuture<'_, Result<Vec<String>, DiskError>> {
        unreachable!()
    }

    fn sync_dir(&self, _: &str) -> PortFuture<'_, Result<(), DiskError>> {
        unreachable!()
    }

    fn space(&self) -> PortFuture<'_, Result<DiskSpace, DiskError>> {
        unreachable!()
    }

    fn longest_file(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        unreachable!()
    }

    fn lock(&self) -> Result<(), DiskError> {
        unreachable!()
    }

    fn boot_id(&self) -> u128 {
        unreachable!()
    }
}

pub fn ports(random: &Rc<Random>) -> Ports {
    Ports {
        disk: Rc::new(Unused),
        net: Rc::new(Unused),
        clock: Rc::new(TestClock),
        entropy: random.clone(),
        spawn: Rc::new(Unused),
    }
}

/// One put in 20 has an unknown outcome: half of them have taken effect.
pub struct Faulty {
    memory: Memory,
    random: Rc<Random>,
    faults: Cell<u64>,
    is_faulty: Cell<bool>,
}

impl Faulty {
    pub fn new(random: Rc<Random>) -> Faulty {
        let (faults, is_faulty) = (Cell::new(0), Cell::new(true));
        Faulty { memory: Memory::new(), random, faults, is_faulty }
    }

    pub fn faults(&self) -> u64 {
        self.faults.get()
    }

    pub fn without_faults(&self, work: impl FnOnce(&Faulty)) {
        self.is_faulty.set(false);
        work(self);
        self.is_faulty.set(true);
    }
}

impl Bucket for Faulty {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        self.memory.get(key, range, if_match)
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let lost = || Err(BucketError::Unknown { what: "no reply".into() });
        let fault = if self.is_faulty.get() { self.random.below(40) } else { 2 };
        if fault < 2 {
            self.faults.set(self.faults.get() + 1);
        }
        match fault {
            0 => Box::pin(async move { lost() }),
            1 => {
                let put = self.memory.put(key, body, condition, tags);
                Box::pin(async move { put.await.and_then(|_| lost()) })
            }
            _ => self.memory.put(key, body, condition, tags),
        }
    }

    fn head(&self, _: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        unreachable!()
    }

    fn delete(&self, _: &str, _: Option<&ETag>) -> PortFuture<'_, Result<(), BucketError>> {
        unreachable!()
    }

    fn copy(
        &self,
        _: &str,
        _: &str,
        _: Option<&ETag>,
        _: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        unreachable!()
    }

    fn list(&self, _: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        unreachable!()
    }

    fn upload_begin(
        &self,
        _: &str,
        _: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        unreachable!()
    }

    fn upload_part(
        &self,
        _: &str,
        _: &UploadId,
        _: u32,
        _: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        unreachable!()
    }

    fn upload_part_copy(
        &self,
        _: &str,
        _: &UploadId,
        _: u32,
        _: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        unreachable!()
    }

    fn upload_complete(
        &self,
        _: &str,
        _: &UploadId,
        _: Vec<PartTag>,
        _: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        unreachable!()
    }

    fn upload_abort(&self, _: &str, _: &UploadId) -> PortFuture<'_, Result<(), BucketError>> {
        unreachable!()
    }

    fn uploads(&self, _: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        unreachable!()
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}
