use crate::rng::Rng;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Random faults with their rates. All are zero by default; a scenario that needs one specific
/// fault calls the affected component instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    pub clock: ClockFaults,
    pub disk: DiskFaults,
    pub net: NetFaults,
    pub bucket: BucketFaults,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockFaults {
    /// Each machine's clocks run too fast or too slow by up to this many parts in a million.
    pub drift_limit_ppm: u32,
    /// Timers are late by up to this.
    pub timer_late_limit: Duration,
    /// Per reading of the wall clock: it jumps, in either direction.
    pub wall_jump: Rate,
    pub wall_jump_limit: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskFaults {
    pub slow: Slowness,
    pub read_error: Rate,
    pub write_error: Rate,
    pub sync_error: Rate,
    /// Opening, renaming, removing, listing.
    pub name_error: Rate,
    /// Per read: one bit of the range flips permanently before the read.
    pub bit_rot: Rate,
    /// Per write: begins a time in which the disk takes at most `full_room_bytes` more.
    pub full: Rate,
    pub full_limit: Duration,
    pub full_room_bytes: u64,
    /// Syncs answer and do nothing. Not a fault to survive: a planted bug to be found.
    pub lying_sync: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetFaults {
    pub slow: Slowness,
    /// Per frame: its connection breaks and loses everything in flight.
    pub reset: Rate,
    /// Per frame: its two machines are partitioned, one-way or both ways.
    pub partition: Rate,
    pub partition_limit: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BucketFaults {
    pub slow: Slowness,
    /// Refused with 500 or 503; nothing is done.
    pub unavailable: Rate,
    /// Refused with a time to wait; nothing is done.
    pub throttled: Rate,
    pub retry_after_limit: Duration,
    /// The answer of a change is lost, and the change was never made.
    pub lost_request: Rate,
    /// The answer of a change is lost, and the change was made.
    pub lost_answer: Rate,
    /// The answer of a change is lost, and the change is made some time afterwards.
    pub late: Rate,
    pub late_limit: Duration,
    /// Begins a time in which everything is forbidden.
    pub forbidden: Rate,
    /// Begins a time in which the store cannot be reached.
    pub gone: Rate,
    pub outage_limit: Duration,
    /// Per listing: it shows the bucket as it was up to `stale_limit` ago.
    pub stale_listing: Rate,
    pub stale_limit: Duration,
    /// Per body that announces its checksum: one bit flips in transit.
    pub garbled: Rate,
}

/// Some operations take up to `limit` longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slowness {
    pub rate: Rate,
    pub limit: Duration,
}

impl Slowness {
    /// How long one operation takes that needs `min` to `max` on a good day.
    pub(crate) fn latency(&self, rng: &Rng, min: Duration, max: Duration) -> Duration {
        let usual = rng.duration(min, max);
        if rng.chance(self.rate) { usual + rng.duration(Duration::ZERO, self.limit) } else { usual }
    }
}

/// A probability, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Rate(pub u32);

impl Rate {
    pub const NEVER: Rate = Rate(0);
    pub const ALWAYS: Rate = Rate(1_000_000);

    pub const fn one_in(times: u32) -> Rate {
        Rate(Rate::ALWAYS.0 / times)
    }
}

/// The plan that is in force now; all parts of a world look at the same one.
#[derive(Clone, Default)]
pub struct Faults {
    plan: Rc<Cell<FaultPlan>>,
}

impl Faults {
    pub fn new(plan: FaultPlan) -> Faults {
        Faults { plan: Rc::new(Cell::new(plan)) }
    }

    pub fn plan(&self) -> FaultPlan {
        self.plan.get()
    }

    pub fn set(&self, plan: FaultPlan) {
        self.plan.set(plan);
    }
}

impl FaultPlan {
    /// Each fault is active in about half of all plans: with everything active, one fault would
    /// hide another.
    ///
    /// Bit rot and lying syncs stay off. They destroy the only copy of data that must survive, so
    /// only a scenario with another copy, or one that expects the loss, enables them. Full disks
    /// stay off too: a scenario enables them if it permits the errors that they cause. So do stale
    /// listings: a node with an empty data directory has nothing else than listings.
    pub fn random(rng: &Rng) -> FaultPlan {
        let rate = |limit: Rate| {
            if rng.chance(HALF) {
                Rate(rng.below(u64::from(limit.0) + 1) as u32)
            } else {
                Rate::NEVER
            }
        };
        let up_to = |limit: Duration| rng.duration(Duration::ZERO, limit);
        let slow = |limit: Duration| Slowness { rate: rate(SLOW), limit: up_to(limit) };
        FaultPlan {
            clock: ClockFaults {
                drift_limit_ppm: if rng.chance(HALF) { rng.below(DRIFT_PPM) as u32 } else { 0 },
                timer_late_limit: if rng.chance(HALF) { up_to(TIMER_LATE) } else { Duration::ZERO },
                wall_jump: rate(WALL_JUMP),
                wall_jump_limit: up_to(WALL_JUMP_LIMIT),
            },
            disk: DiskFaults {
                slow: slow(DISK_SLOW),
                read_error: rate(DISK_ERROR),
                write_error: rate(DISK_ERROR),
                sync_error: rate(DISK_ERROR),
                name_error: rate(DISK_ERROR),
                ..DiskFaults::default()
            },
            net: NetFaults {
                slow: slow(NET_SLOW),
                reset: rate(NET_FAULT),
                partition: rate(NET_FAULT),
                partition_limit: up_to(PARTITION),
            },
            bucket: BucketFaults {
                slow: slow(BUCKET_SLOW),
                unavailable: rate(BUCKET_FAULT),
                throttled: rate(BUCKET_FAULT),
                retry_after_limit: up_to(RETRY_AFTER),
                lost_request: rate(BUCKET_FAULT),
                lost_answer: rate(BUCKET_FAULT),
                late: rate(BUCKET_FAULT),
                late_limit: up_to(LATE),
                forbidden: rate(OUTAGE),
                gone: rate(OUTAGE),
                outage_limit: up_to(OUTAGE_LIMIT),
                garbled: rate(GARBLED),
                ..BucketFaults::default()
            },
        }
    }
}

const HALF: Rate = Rate::one_in(2);
const SLOW: Rate = Rate::one_in(20);

/// Quartz is good to 100 ppm; a badly driven virtual clock to ten times that.
const DRIFT_PPM: u64 = 1000;
const TIMER_LATE: Duration = Duration::from_millis(20);
const WALL_JUMP: Rate = Rate::one_in(100);
const WALL_JUMP_LIMIT: Duration = Duration::from_secs(2 * 3600);

const DISK_SLOW: Duration = Duration::from_millis(500);
/// Rare: a node answers most of these by stopping, and a node that is always down shows nothing.
const DISK_ERROR: Rate = Rate::one_in(2000);

const NET_SLOW: Duration = Duration::from_secs(2);
const NET_FAULT: Rate = Rate::one_in(200);
const PARTITION: Duration = Duration::from_secs(60);

const BUCKET_SLOW: Duration = Duration::from_secs(20);
const BUCKET_FAULT: Rate = Rate::one_in(10);
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Longer than any request's time-out, so that a late change meets its successor.
const LATE: Duration = Duration::from_secs(120);
/// Low: after four garbled transfers in a row, an error is correct.
const GARBLED: Rate = Rate::one_in(100);
const OUTAGE: Rate = Rate::one_in(500);
const OUTAGE_LIMIT: Duration = Duration::from_secs(120);
