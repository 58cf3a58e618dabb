//! Counters of operations: how many, how many bytes, how long.

use crate::Ino;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// Distribution of durations. Bucket `n` counts durations `> bound(n - 1)` and `<= bound(n)`; eight
/// buckets cover a power of two, so a quantile is at most an eighth too long. The size is constant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "Sparse", try_from = "Sparse")]
pub struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    sum_ns: u64,
    most_ns: u64,
}

/// Buckets per power of two.
const STEPS: u64 = 8;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// The last bucket counts all durations above 2^40 ns (18 minutes).
const BUCKETS: usize = (((40 - STEP_BITS) as u64 * STEPS) + STEPS + 1) as usize;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: Box::new([0; BUCKETS]), sum_ns: 0, most_ns: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, took: Duration) {
        let ns = nanos(took);
        let bucket = &mut self.buckets[index(ns)];
        *bucket = bucket.saturating_add(1);
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.most_ns = self.most_ns.max(ns);
    }

    pub fn merge(&mut self, other: &Histogram) {
        for (to, from) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *to = to.saturating_add(*from);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.most_ns = self.most_ns.max(other.most_ns);
    }

    /// The durations recorded after `before`, an earlier copy of the same histogram. The maximum is
    /// exact only to its bucket.
    pub fn since(&self, before: &Histogram) -> Histogram {
        let mut buckets = self.buckets.clone();
        for (now, then) in buckets.iter_mut().zip(before.buckets.iter()) {
            *now = now.saturating_sub(*then);
        }
        let longest = buckets.iter().rposition(|count| *count > 0).map_or(0, bound_ns);
        Histogram {
            buckets,
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
            most_ns: self.most_ns.min(longest),
        }
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    pub fn most(&self) -> Duration {
        Duration::from_nanos(self.most_ns)
    }

    /// The duration that the fraction `part` of all did not exceed, from 0 to 1; zero if empty.
    pub fn quantile(&self, part: f64) -> Duration {
        let rank = (self.count() as f64 * part.clamp(0.0, 1.0)).ceil().max(1.0);
        let mut seen = 0u64;
        for (index, count) in self.buckets.iter().enumerate() {
            seen = seen.saturating_add(*count);
            if seen as f64 >= rank {
                return Duration::from_nanos(bound_ns(index).min(self.most_ns));
            }
        }
        self.most()
    }

    /// The number of durations `<= 2^power` ns. Exact, since these are bounds of buckets.
    pub fn within(&self, power: u32) -> u64 {
        let last = index(1u64.checked_shl(power).unwrap_or(u64::MAX));
        self.buckets[..=last].iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Bucket of a duration. Below [`STEPS`] ns each nanosecond has its own.
fn index(ns: u64) -> usize {
    // A bound belongs to the bucket below it.
    let below = ns.saturating_sub(1);
    let power = below.checked_ilog2().unwrap_or(0);
    let index = match power < STEP_BITS {
        true => below,
        false => u64::from(power - STEP_BITS) * STEPS + (below >> (power - STEP_BITS)),
    };
    (index as usize).min(BUCKETS - 1)
}

/// The upper bound of a bucket; the last one has none.
fn bound_ns(index: usize) -> u64 {
    let index = index as u64;
    match index {
        _ if index + 1 >= BUCKETS as u64 => u64::MAX,
        0..STEPS => index + 1,
        _ => (index % STEPS + STEPS + 1) << (index / STEPS - 1),
    }
}

/// A histogram on the wire: its non-empty buckets.
#[derive(Clone, Serialize, Deserialize)]
struct Sparse {
    sum_ns: u64,
    most_ns: u64,
    buckets: Vec<(u16, u64)>,
}

#[derive(Debug, Error)]
#[error("a histogram has no bucket {0}")]
struct NoBucket(u16);

impl From<Histogram> for Sparse {
    fn from(histogram: Histogram) -> Sparse {
        let Histogram { buckets, sum_ns, most_ns } = histogram;
        let buckets = (0u16..)
            .zip(buckets.iter())
            .filter(|(_, count)| **count > 0)
            .map(|(index, count)| (index, *count))
            .collect();
        Sparse { sum_ns, most_ns, buckets }
    }
}

impl TryFrom<Sparse> for Histogram {
    type Error = NoBucket;

    fn try_from(sparse: Sparse) -> Result<Histogram, NoBucket> {
        let mut histogram =
            Histogram { sum_ns: sparse.sum_ns, most_ns: sparse.most_ns, ..Histogram::default() };
        for (index, count) in sparse.buckets {
            *histogram.buckets.get_mut(usize::from(index)).ok_or(NoBucket(index))? = count;
        }
        Ok(histogram)
    }
}

/// Counters of requests of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Durations of the requests, and so their count.
    pub time: Histogram,
    /// Requests among them that failed.
    pub errors: u64,
    /// Transferred bytes of files or objects.
    pub bytes: u64,
}

impl Tally {
    pub fn record(&mut self, took: Duration, failed: bool, bytes: u64) {
        self.time.record(took);
        self.errors = self.errors.saturating_add(u64::from(failed));
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub fn since(&self, before: &Tally) -> Tally {
        Tally {
            time: self.time.since(&before.time),
            errors: self.errors.saturating_sub(before.errors),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

/// A [`Tally`] with the name of its kind.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    pub name: String,
    pub tally: Tally,
}

/// Tallies of several kinds of requests. Only the first request of a kind allocates.
#[derive(Default, Debug)]
pub struct Tallies(BTreeMap<&'static str, Tally>);

impl Tallies {
    pub fn record(&mut self, name: &'static str, took: Duration, failed: bool, bytes: u64) {
        self.0.entry(name).or_default().record(took, failed, bytes);
    }

    pub fn counted(&self) -> Vec<Counted> {
        self.0
            .iter()
            .map(|(name, tally)| Counted { name: (*name).to_owned(), tally: tally.clone() })
            .collect()
    }
}

/// Differences of `now` and `before`; kinds without a new request are omitted.
pub fn counted_since(now: &[Counted], before: &[Counted]) -> Vec<Counted> {
    let then = |name: &str| before.iter().find(|other| other.name == name);
    let since = now.iter().map(|counted| match then(&counted.name) {
        Some(then) => {
            Counted { name: counted.name.clone(), tally: counted.tally.since(&then.tally) }
        }
        None => counted.clone(),
    });
    since.filter(|counted| counted.tally.time.count() > 0).collect()
}

/// Counters of a mount.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MountStats {
    /// Time since the start.
    pub uptime_ms: u64,
    /// Requests of the kernel by its names of the operations; answers from the kernel's own caches
    /// do not count.
    pub operations: Vec<Counted>,
}

/// Counters of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeStats {
    /// Time since the start.
    pub uptime_ms: u64,
    /// Requests of all clients.
    pub requests: Vec<Counted>,
    pub reads: ReadStats,
    /// Requests to all buckets of the volume. A missing object and a failed condition are replies,
    /// not errors.
    pub bucket: Vec<Counted>,
}

/// A replica of a volume, on a node that leads or follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplicaStats {
    /// It serves the clients of the volume.
    pub leads: bool,
    /// It knows which node leads.
    pub has_leader: bool,
    pub term: u64,
    /// `applied <= committed`
    pub committed: u64,
    pub applied: u64,
}

/// Requests of a mount within one interval.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    pub took_ms: u64,
    pub lines: Vec<Profiled>,
    /// Requests about inodes beyond the limit of distinct inodes.
    pub left_out: u64,
}

/// Requests of one kind about one inode; requests about names count for their directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Profiled {
    /// Inode id of the kernel, where the root of the mount is [`Ino::ROOT`].
    pub ino: Ino,
    pub operation: String,
    pub count: u64,
    pub errors: u64,
    pub bytes: u64,
    pub sum_us: u64,
    pub most_us: u64,
}

/// Sources of the bytes that clients read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReadStats {
    /// Reads without a fetch.
    pub from_cache: u64,
    /// Reads that waited for the bucket.
    pub from_bucket: u64,
    pub cache_bytes: u64,
    pub bucket_bytes: u64,
    /// Bytes of holes.
    pub zero_bytes: u64,
}

impl ReadStats {
    pub fn since(&self, before: &ReadStats) -> ReadStats {
        ReadStats {
            from_cache: self.from_cache.saturating_sub(before.from_cache),
            from_bucket: self.from_bucket.saturating_sub(before.from_bucket),
            cache_bytes: self.cache_bytes.saturating_sub(before.cache_bytes),
            bucket_bytes: self.bucket_bytes.saturating_sub(before.bucket_bytes),
            zero_bytes: self.zero_bytes.saturating_sub(before.zero_bytes),
        }
    }
}

impl MountStats {
    pub fn since(&self, before: &MountStats) -> MountStats {
        MountStats {
            uptime_ms: self.uptime_ms.saturating_sub(before.uptime_ms),
            operations: counted_since(&self.operations, &before.operations),
        }
    }
}

impl NodeStats {
    pub fn since(&self, before: &NodeStats) -> NodeStats {
        NodeStats {
            uptime_ms: self.uptime_ms.saturating_sub(before.uptime_ms),
            requests: counted_since(&self.requests, &before.requests),
            reads: self.reads.since(&before.reads),
            bucket: counted_since(&self.bucket, &before.bucket),
        }
    }
}

/// Rate limit of repeated log lines: a fixed number per interval.
#[derive(Default, Debug)]
pub struct LogBudget {
    since: Duration,
    written: u32,
    left_out: u64,
}

impl LogBudget {
    const LINES: u32 = 10;
    const WHILE: Duration = Duration::from_secs(10);

    /// Whether a line can be logged at `now`, a time that never decreases; if so, returns the
    /// number of lines suppressed since the last one.
    pub fn take(&mut self, now: Duration) -> Option<u64> {
        if now.saturating_sub(self.since) >= LogBudget::WHILE {
            (self.since, self.written) = (now, 0);
        }
        if self.written == LogBudget::LINES {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests;
