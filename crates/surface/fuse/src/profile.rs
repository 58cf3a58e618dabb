//! Operations of a workload by inode, over an interval.

use crate::abi;
use crate::counters::{Arrival, Counters};
use ebb_model::{Ino, Profile, Profiled};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Pairs of inode and operation with counters of their own, about 100 bytes each; further ones
/// share one counter.
const MOST_LINES: usize = 1 << 16;

pub(crate) struct Profiling {
    began: Instant,
    lines: BTreeMap<(Ino, u32), Line>,
    left_out: u64,
}

#[derive(Clone, Copy, Default)]
struct Line {
    count: u64,
    errors: u64,
    bytes: u64,
    sum: Duration,
    most: Duration,
}

impl Profiling {
    pub fn new() -> Profiling {
        Profiling { began: Instant::now(), lines: BTreeMap::new(), left_out: 0 }
    }

    pub fn add(&mut self, request: &Arrival, took: Duration, failed: bool, bytes: u64) {
        let key = (request.ino.unwrap_or(Ino(0)), request.opcode);
        if self.lines.len() >= MOST_LINES && !self.lines.contains_key(&key) {
            self.left_out += 1;
            return;
        }
        let line = self.lines.entry(key).or_default();
        line.count += 1;
        line.errors += u64::from(failed);
        line.bytes += bytes;
        line.sum += took;
        line.most = line.most.max(took);
    }

    fn told(self) -> Profile {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let lines = self.lines.into_iter().map(|((ino, opcode), line)| Profiled {
            ino,
            operation: abi::opcode_name(opcode).to_owned(),
            count: line.count,
            errors: line.errors,
            bytes: line.bytes,
            sum_us: micros(line.sum),
            most_us: micros(line.most),
        });
        Profile {
            took_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            lines: lines.collect(),
            left_out: self.left_out,
        }
    }
}

/// A profile that is being taken. It ends with this.
pub struct ProfileUnderWay(Rc<Counters>);

impl ProfileUnderWay {
    /// `None` while another one is taken.
    pub fn begin(counters: &Rc<Counters>) -> Option<ProfileUnderWay> {
        let mut profiling = counters.profiling.borrow_mut();
        if profiling.is_some() {
            return None;
        }
        *profiling = Some(Profiling::new());
        drop(profiling);
        Some(ProfileUnderWay(counters.clone()))
    }

    pub fn end(self) -> Profile {
        self.0.profiling.take().map(Profiling::told).unwrap_or_default()
    }
}

impl Drop for ProfileUnderWay {
    fn drop(&mut self) {
        self.0.profiling.take();
    }
}
