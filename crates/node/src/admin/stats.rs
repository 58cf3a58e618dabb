//! A node's counters, and its reports of slow requests.

use crate::Node;
use crate::clients::barrier::Origin;
use ebb_core::byte_map::{ByteOrigin, Segment};
use ebb_model::*;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

#[derive(Default)]
pub struct Counters {
    began: Duration,
    requests: RefCell<Tallies>,
    reads: Cell<ReadStats>,
    /// Shared with the wrapper that counts requests to the bucket.
    bucket: Rc<RefCell<Tallies>>,
    /// The waits so far of the request that is being polled.
    waits: RefCell<Option<Waits>>,
    slow: RefCell<LogBudget>,
}

/// The reason and the length of each wait. Takes no memory for a request that never waits.
type Waits = Vec<(&'static str, Duration)>;

impl Counters {
    pub fn new(began: Duration, bucket: Rc<RefCell<Tallies>>) -> Counters {
        Counters { began, bucket, ..Counters::default() }
    }

    /// A client reads this plan, before anything is fetched for it.
    pub fn read(&self, plan: &[Segment]) {
        let mut reads = self.reads.get();
        let mut remote = false;
        for Segment { origin, range } in plan {
            let bytes = range.end - range.start;
            match origin {
                ByteOrigin::Local => reads.cache_bytes += bytes,
                ByteOrigin::Zero => reads.zero_bytes += bytes,
                ByteOrigin::Remote => {
                    reads.bucket_bytes += bytes;
                    remote = true;
                }
            }
        }
        if remote {
            reads.from_bucket += 1
        } else {
            reads.from_cache += 1
        }
        self.reads.set(reads);
    }

    fn waited(&self, what: &'static str, took: Duration) {
        let mut current = self.waits.borrow_mut();
        let Some(waits) = current.as_mut() else { return };
        match waits.iter_mut().find(|(known, _)| *known == what) {
            Some((_, total)) => *total += took,
            None => waits.push((what, took)),
        }
    }

    /// Requests of several clients take turns on this thread. A wait is noted for a request only
    /// while that request is being polled.
    async fn noting_waits<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> (T, Waits) {
        let mut waits = Waits::new();
        let done = poll_fn(|cx| {
            let outer = self.waits.replace(Some(std::mem::take(&mut waits)));
            let polled = work.as_mut().poll(cx);
            waits = self.waits.replace(outer).unwrap_or_default();
            polled
        });
        let done = done.await;
        (done, waits)
    }

    /// What was counted so far.
    pub fn stats(&self, now: Duration) -> NodeStats {
        let uptime = now.saturating_sub(self.began);
        NodeStats {
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            requests: self.requests.borrow().counted(),
            reads: self.reads.get(),
            bucket: self.bucket.borrow().counted(),
        }
    }
}

impl Node {
    /// Waits, and adds the wait and its reason to the current request.
    pub(crate) async fn waiting<T>(&self, what: &'static str, wait: impl Future<Output = T>) -> T {
        let began = self.ports.clock.monotonic();
        let done = wait.await;
        self.instruments.counters.waited(what, self.ports.clock.monotonic().saturating_sub(began));
        done
    }

    /// Answers a request, counts it, and logs it if it took long.
    pub(crate) async fn answer_counted(
        self: &Rc<Self>,
        origin: Origin,
        request: Request,
    ) -> Result<Reply, RpcError> {
        let (name, subject, sent_bytes) = (request.name(), request.subject(), request.data_bytes());
        let may_last = matches!(request, Request::Admin(_) | Request::Attach { .. });
        let began = self.ports.clock.monotonic();
        let counters = &self.instruments.counters;
        let (answer, waits) = counters.noting_waits(pin!(self.answer(origin, request))).await;
        let now = self.ports.clock.monotonic();
        let took = now.saturating_sub(began);
        let bytes = match &answer {
            Ok(Reply::Data(data)) => data.len() as u64,
            Ok(_) => sent_bytes,
            Err(_) => 0,
        };
        counters.requests.borrow_mut().record(name, took, answer.is_err(), bytes);
        if !may_last && self.options.slow_operation.is_some_and(|limit| took >= limit) {
            self.tell_slow(name, subject, took, &waits, now);
        }
        answer
    }

    fn tell_slow(
        &self,
        request: &str,
        subject: Option<Ino>,
        took: Duration,
        waits: &Waits,
        now: Duration,
    ) {
        let Some(left_out) = self.instruments.counters.slow.borrow_mut().take(now) else { return };
        let known = subject.and_then(|ino| self.replica.view().namespace().path_of(ino));
        let path = known
            .map(|path| format!("/{}", String::from_utf8_lossy(&crate::admin::path_bytes(&path))));
        let waited: Vec<String> = waits
            .iter()
            .map(|(what, time)| format!("{} ms for {what}", time.as_millis()))
            .collect();
        tracing::warn!(
            request,
            inode = subject.map(|ino| ino.to_string()),
            path,
            took_ms = took.as_millis() as u64,
            waited = waited.join(", "),
            left_out,
            "a slow request"
        );
    }
}
