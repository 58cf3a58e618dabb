//! The owner of the volume: taking over `.ebb/head`, keeping it, giving it back.
//!
//! - The head changes only by conditional put, so of several nodes that want a volume one wins.
//! - The owner renews the head every third of the term.
//! - A newcomer that sees no renewal for a whole term on its own clock concludes that the owner is
//!   gone.
//! - An owner that could not renew within the term no longer writes to the bucket until it has
//!   renewed, and never again once it finds another owner in the head.
//! - The head's mark is above all inode ids of the volume (decision 30). Only a release lowers it,
//!   to above the ids that its owner has used.

use crate::buckets::ask::{Attempts, ask};
use crate::buckets::id_ranges;
use ebb_format::crc32c;
use ebb_format::head::{self, Head};
use ebb_model::{ClusterId, IdMark, IdRange, Incarnation, Planted, Time};
use ebb_ports::{Bucket, BucketError, Condition, ETag, Object, Ports};
use futures_util::future::select;
use futures_util::lock::Mutex;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;

pub const HEAD_KEY: &str = ".ebb/head";

/// A request with an unheard answer may take effect until so long afterwards.
pub(crate) const LATE_EFFECT: Duration = Duration::from_secs(10);

/// The action where another node holds the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOver {
    /// Wait one term to see whether its owner still renews; refuse if so.
    IfAbandoned,
    /// Take it without waiting: an operator has made sure that the owner is dead.
    Now,
    /// Leave it to its owner if that listens for other mounts; otherwise as `IfAbandoned`.
    Join,
    /// Never take it over: leave it to the node that has it, had it, or gets it again.
    Leave,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum HeadError {
    /// `address` is empty where the owner does not listen for other mounts.
    #[error(
        "{backing} is served by {owner}: mount it read-only, {}or stop that node first",
        joining(address)
    )]
    Held { backing: String, owner: String, address: String, cluster: ClusterId },
    #[error(
        "{backing} cannot say who serves it, for the store has no conditional requests: \
         make sure that no other node serves it and start with --take-over=now"
    )]
    Undecidable { backing: String },
    #[error("{backing}: {HEAD_KEY} is not what ebb writes: {what}")]
    Unreadable { backing: String, what: String },
    #[error("{backing}: all inode ids of the volume are used: copy it to a new one")]
    NoIds { backing: String },
    #[error(
        "{backing} was last served with the bucket {missing}, which is not among those that are \
         configured now: \
         configure it as it was, or set `rearrange = true` in the table [advanced] to serve the \
         volume without it"
    )]
    Rearranged { backing: String, missing: String },
    #[error(
        "{backing} has volume {there}, and the backup is of volume {wanted}: name the bucket and \
         endpoint that the backup is of, or an empty bucket"
    )]
    OtherVolume { backing: String, there: ClusterId, wanted: ClusterId },
    #[error("{backing}: {error}")]
    Store { backing: String, error: BucketError },
}

fn joining(address: &str) -> String {
    if address.is_empty() {
        String::new()
    } else {
        format!("join it (--take-over=join, or mount {address}), ")
    }
}

/// The node that requests the head.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The data directory.
    pub node: u128,
    /// For people.
    pub owner: String,
    /// The address at which other mounts reach the node, if they can.
    pub address: String,
    pub term: Duration,
    /// How long a request is repeated to a bucket that does not answer.
    pub patience: Duration,
    /// The volume's member buckets, by their names for people; none for a member itself.
    pub members: Vec<String>,
    /// Members that the volume had before may be missing.
    pub rearrange: bool,
    pub restores: Option<Restored>,
    pub continues: Continues,
}

/// The backup that is restored to the volume: the take-over gets a later incarnation, and ids from
/// `ids` on.
#[derive(Clone, Copy, Debug)]
pub struct Restored {
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    pub ids: IdMark,
}

/// The take-over whose state a data directory has. It goes on with that one if the head still is of
/// this data directory; any other state makes a take-over, with ids of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Continues {
    State(Incarnation),
    Nothing,
    /// The bucket is a member, which has no inode ids.
    Member,
}

impl Continues {
    fn is_of(self, head: &Head) -> bool {
        match self {
            Continues::State(incarnation) => incarnation == head.incarnation,
            Continues::Nothing => false,
            Continues::Member => true,
        }
    }
}

/// The right to write to the bucket.
pub struct HeadLease {
    bucket: Rc<dyn Bucket>,
    ports: Ports,
    state: RefCell<State>,
    /// Monotonic time at which the right ends unless it is renewed.
    ends: Cell<Duration>,
    /// When the last successful renewal was requested.
    renewed: Cell<Duration>,
    late_until: Duration,
    /// The ids of the take-over that this was; `None` if it continues an earlier one.
    taken_over: Option<IdRange>,
    /// The mark that the next write reserves at least.
    wanted_ids: Cell<u32>,
    /// Until when puts of the head by this run with unheard answers may take effect.
    unheard_until: Cell<Duration>,
    lost_to: RefCell<Option<String>>,
    /// One write of the head at a time: two would make each other's condition fail, and a renewal
    /// still on its way would undo a release.
    writing: Mutex<()>,
}

struct State {
    head: Head,
    etag: ETag,
}

impl HeadLease {
    /// Takes over the head, or finds it in the hands of `node` from before a restart.
    pub async fn acquire(
        bucket: Rc<dyn Bucket>,
        ports: Ports,
        candidate: Candidate,
        take_over: TakeOver,
    ) -> Result<HeadLease, HeadError> {
        let backing = bucket.describe();
        let store = |error| HeadError::Store { backing: backing.clone(), error };
        if !bucket.capabilities().conditional_put && take_over != TakeOver::Now {
            return Err(HeadError::Undecidable { backing });
        }
        let Candidate {
            node,
            owner,
            address,
            term,
            patience,
            members,
            rearrange,
            restores,
            continues,
        } = candidate;
        let asking = ports.clone();
        let mut unanswered = None;
        let run = ports.entropy.next_u64();
        let mut watched: Option<(ETag, Duration)> = None;
        // The same at each attempt: the first put may come last.
        let fresh = ClusterId(node ^ u128::from(crc32c(backing.as_bytes())) << 64);
        let mut released = true;
        let unheard_until = Cell::default();
        loop {
            let asked = ports.clock.monotonic();
            let mine = |cluster, incarnation, ids, beat| Head {
                cluster,
                incarnation,
                ids,
                node,
                run,
                owner: owner.clone(),
                address: address.clone(),
                started: Time::from_secs(ports.clock.wall().secs),
                term_secs: term.as_secs().max(1) as u32,
                beat,
                released: false,
                members: members.clone(),
            };
            let (head, taken_over, condition) = match get(&ports, patience, &*bucket).await {
                Err(BucketError::NotFound { .. }) => {
                    let cluster = restores.map_or(fresh, |restored| restored.cluster);
                    let last = restores.map_or(Incarnation(0), |restored| restored.incarnation);
                    let mark = restores.map_or(id_ranges::FIRST, |restored| restored.ids);
                    let ids = ids_above(&*bucket, mark)?;
                    (mine(cluster, next(last), mark_of(ids), 0), Some(ids), Condition::Absent)
                }
                Err(error) => return Err(store(error)),
                Ok(object) => {
                    let found = head::decode(&object.body).map_err(|error| {
                        HeadError::Unreadable { backing: backing.clone(), what: error.to_string() }
                    })?;
                    if let Some(Restored { cluster: wanted, .. }) =
                        restores.filter(|restored| restored.cluster != found.cluster)
                    {
                        let backing = match bucket.endpoint() {
                            Some(endpoint) => format!("{backing} at {endpoint}"),
                            None => backing,
                        };
                        return Err(HeadError::OtherVolume {
                            backing,
                            there: found.cluster,
                            wanted,
                        });
                    }
                    if let Some(missing) =
                        found.members.iter().find(|member| !rearrange && !members.contains(member))
                    {
                        return Err(HeadError::Rearranged { backing, missing: missing.clone() });
                    }
                    let etag = object.meta.etag;
                    // An earlier attempt of this run may have succeeded with a lost answer.
                    released &= found.released || (found.node, found.run) == (node, run);
                    // Not before the answer: the owner may have renewed while the request was on
                    // its way.
                    let seen_at = ports.clock.monotonic();
                    let joins =
                        take_over == TakeOver::Join && !found.released && !found.address.is_empty();
                    let is_own = found.node == node;
                    let (incarnation, taken_over) = if is_own && continues.is_of(&found) {
                        (found.incarnation, None)
                    } else if !is_own && (joins || take_over == TakeOver::Leave) {
                        return Err(HeadError::Held {
                            backing,
                            owner: found.owner,
                            address: found.address,
                            cluster: found.cluster,
                        });
                    } else {
                        let abandoned = is_own
                            || found.released
                            || take_over == TakeOver::Now
                            || match &watched {
                                Some((seen, since)) if *seen == etag => {
                                    asked.saturating_sub(*since)
                                        > Duration::from_secs(found.term_secs.into())
                                }
                                Some(_) => {
                                    return Err(HeadError::Held {
                                        backing,
                                        owner: found.owner,
                                        address: found.address,
                                        cluster: found.cluster,
                                    });
                                }
                                None => {
                                    watched = Some((etag.clone(), seen_at));
                                    false
                                }
                            };
                        if !abandoned {
                            tracing::info!(owner = %found.owner, "waiting to see whether the owner \
                                of the volume still lives");
                            ports.clock.sleep(WATCH_INTERVAL).await;
                            continue;
                        }
                        let (last, mark) = match restores {
                            Some(Restored { incarnation, ids, .. }) => {
                                (incarnation.max(found.incarnation), ids.max(found.ids))
                            }
                            None => (found.incarnation, found.ids),
                        };
                        (next(last), Some(ids_above(&*bucket, mark)?))
                    };
                    let ids = match taken_over {
                        Some(ids) => mark_of(ids),
                        // The release has lowered it.
                        None if found.released => id_ranges::next(found.ids),
                        None => found.ids,
                    };
                    let step =
                        if bucket.capabilities().conditional_put { 1 } else { UNGUARDED_STEP };
                    (
                        mine(found.cluster, incarnation, ids, found.beat.wrapping_add(step)),
                        taken_over,
                        Condition::Match(etag),
                    )
                }
            };
            let condition = bucket.capabilities().guard(condition);
            // Not before the head was read: that may have taken several attempts.
            let asked = ports.clock.monotonic();
            match put(&*bucket, &head, condition).await {
                Ok(etag) => {
                    let head_lease = HeadLease {
                        bucket,
                        ends: Cell::new(asked + Duration::from_secs(head.term_secs.into())),
                        renewed: Cell::new(asked),
                        unheard_until,
                        taken_over,
                        wanted_ids: Cell::new(head.ids.below),
                        late_until: if released {
                            Duration::ZERO
                        } else {
                            ports.clock.monotonic() + LATE_EFFECT
                        },
                        ports,
                        state: RefCell::new(State { head, etag }),
                        lost_to: RefCell::default(),
                        writing: Mutex::default(),
                    };
                    return Ok(head_lease);
                }
                // Another node was faster, or our own put arrived and its answer did not: look
                // again.
                Err(BucketError::Precondition { .. } | BucketError::NotFound { .. }) => {}
                Err(error) => {
                    if matches!(error, BucketError::Unknown { .. }) {
                        unheard_until.set(ports.clock.monotonic() + LATE_EFFECT);
                    }
                    let attempts =
                        unanswered.get_or_insert_with(|| Attempts::new(&asking, patience, 0));
                    let Some(pause) = attempts.pause(&error) else { return Err(store(error)) };
                    tracing::warn!(%error, "the volume is not taken over yet: asking again");
                    asking.clock.sleep(pause).await;
                }
            }
        }
    }

    pub fn cluster(&self) -> ClusterId {
        self.state.borrow().head.cluster
    }

    pub fn incarnation(&self) -> Incarnation {
        self.state.borrow().head.incarnation
    }

    /// The ids of the take-over that this was; `None` if it continues an earlier one.
    pub fn taken_over(&self) -> Option<IdRange> {
        self.taken_over
    }

    /// No other owner uses an inode id below this mark that this one has not found in use.
    pub fn ids(&self) -> IdMark {
        self.state.borrow().head.ids
    }

    /// Reserves ids beyond the mark, for a node that does not know which ids below it are used.
    pub async fn renew_ids(&self) -> Result<IdRange, BucketError> {
        let before = self.ids();
        self.want_ids(id_ranges::next(before).below);
        self.renew().await?;
        Ok(IdRange { epoch: before.epoch, from: before.below, upto: self.ids().below })
    }

    /// The next renewal reserves ids up to this mark.
    pub fn want_ids(&self, below: u32) {
        self.wanted_ids.set(below.max(self.wanted_ids.get()));
    }

    /// The bucket may be written to now.
    pub fn holds(&self) -> bool {
        let is_held = self.lost_to.borrow().is_none()
            && self.ports.clock.monotonic() < self.ends.get()
            && !self.is_unseen();
        is_held || Planted::HeadIgnored.is_on()
    }

    /// No conditional put guards the head, and a late put may have replaced it unseen. The next
    /// node would count on from that one.
    fn is_unseen(&self) -> bool {
        !self.compares()
            && self.renewed.get() < self.late_until
            && self.late_until <= self.ports.clock.monotonic()
    }

    fn compares(&self) -> bool {
        self.bucket.capabilities().conditional_put
    }

    /// Refuses to write while this node does not own the bucket.
    pub fn check(&self) -> Result<(), BucketError> {
        if self.holds() {
            return Ok(());
        }
        let what = match self.lost_to() {
            Some(owner) => format!("the bucket was taken over by {owner}"),
            None => "the bucket's head could not be renewed in time".into(),
        };
        Err(BucketError::Unavailable { what, retry_after: None })
    }

    /// Monotonic time until which requests of a run before this one, which has not given the volume
    /// back, may still take effect.
    pub fn late_until(&self) -> Duration {
        self.late_until
    }

    /// When the last successful write of the head was requested.
    pub fn renewed(&self) -> Duration {
        self.renewed.get()
    }

    /// The node that has taken the volume from this one.
    pub fn lost_to(&self) -> Option<String> {
        self.lost_to.borrow().clone()
    }

    pub fn term(&self) -> Duration {
        Duration::from_secs(self.state.borrow().head.term_secs.into())
    }

    /// Renews once. An error leaves the term as it was.
    pub async fn renew(&self) -> Result<(), BucketError> {
        let _turn = self.writing.lock().await;
        self.write(None).await
    }

    /// Gives the volume back, so that the next node need not wait, neither for the term to end nor
    /// for earlier requests of this node to expire. `ids`: from this counter on, the data directory
    /// has not used any id of its range and never will; unknown if it is `None`.
    pub async fn release(&self, ids: Option<u32>) -> Result<(), BucketError> {
        self.keep_until(self.late_until).await;
        let _turn = self.writing.lock().await;
        self.write(Some(ids)).await
    }

    /// `release`: as its argument.
    async fn write(&self, release: Option<Option<u32>>) -> Result<(), BucketError> {
        let (compares, released) = (self.compares(), release.is_some());
        for _ in 0..ATTEMPTS {
            if self.lost_to.borrow().is_some() {
                return Err(BucketError::Precondition { key: HEAD_KEY.into() });
            }
            if !compares {
                // Nothing guards the put: the owner of the head that it would replace is at least
                // looked at.
                self.settle(released).await?;
            }
            let asked = self.ports.clock.monotonic();
            let (head, etag) = {
                let state = self.state.borrow();
                let below = match release {
                    Some(Some(unused)) => unused,
                    Some(None) => state.head.ids.below,
                    None if self.may_reserve() => state.head.ids.below.max(self.wanted_ids.get()),
                    None => state.head.ids.below,
                };
                let head = Head {
                    ids: IdMark { below, ..state.head.ids },
                    beat: state.head.beat.wrapping_add(1),
                    released,
                    ..state.head.clone()
                };
                (head, state.etag.clone())
            };
            let condition = self.bucket.capabilities().guard(Condition::Match(etag));
            let unheard = Unheard(self);
            let answer = put(&*self.bucket, &head, condition).await;
            match answer {
                Err(BucketError::Unknown { .. }) => drop(unheard),
                _ => std::mem::forget(unheard),
            }
            match answer {
                Ok(etag) => {
                    *self.state.borrow_mut() = State { head, etag };
                    self.ends.set(asked + self.term());
                    self.renewed.set(asked);
                    return Ok(());
                }
                Err(
                    BucketError::Precondition { .. }
                    | BucketError::NotFound { .. }
                    | BucketError::Unknown { .. },
                ) => {
                    self.settle(released).await?;
                }
                Err(error) => return Err(error),
            }
            if released && self.state.borrow().head.released {
                return Ok(());
            }
        }
        Err(BucketError::Unavailable {
            what: format!("{HEAD_KEY} is this node's, but writing it is not answered"),
            retry_after: None,
        })
    }

    /// Where no condition guards the head, an earlier put can still replace this one, and with it
    /// the mark.
    fn may_reserve(&self) -> bool {
        self.compares() || self.unheard_until.get() <= self.ports.clock.monotonic()
    }

    /// Finds out whether the head is still this node's, after an unclear answer. Where nothing
    /// guards it, the `last` write waits until no earlier one can arrive after it.
    async fn settle(&self, last: bool) -> Result<(), BucketError> {
        if last && !self.compares() {
            self.ports
                .clock
                .sleep(self.unheard_until.get().saturating_sub(self.ports.clock.monotonic()))
                .await;
        }
        let found = match self.bucket.get(HEAD_KEY, None, None).await {
            Ok(object) => head::decode(&object.body).ok().map(|head| (head, object.meta.etag)),
            Err(BucketError::NotFound { .. }) => None,
            Err(other) => return Err(other),
        };
        let mut state = self.state.borrow_mut();
        let owner = match found {
            Some((head, etag)) if head.node == state.head.node && head.run == state.head.run => {
                let beat = head.beat.max(state.head.beat);
                *state = State { head: Head { beat, ..head }, etag };
                return Ok(());
            }
            // A late put of an earlier node or run, which no condition has stopped.
            Some((head, _)) if !self.compares() && age(&head) <= age(&state.head) => return Ok(()),
            Some((head, _)) => head.owner,
            None => format!("nobody: {HEAD_KEY} was removed or overwritten"),
        };
        *self.lost_to.borrow_mut() = Some(owner);
        Err(BucketError::Precondition { key: HEAD_KEY.into() })
    }

    /// The time until the head must be renewed.
    pub fn rest(&self) -> Duration {
        let (third, late) =
            (self.term() / 3, self.late_until.saturating_sub(self.ports.clock.monotonic()));
        if self.compares() || late.is_zero() { third } else { third.min(late) }
    }

    /// Renews until that monotonic time.
    pub async fn keep_until(&self, time: Duration) {
        let left = time.saturating_sub(self.ports.clock.monotonic());
        if !left.is_zero() {
            select(pin!(self.keep()), self.ports.clock.sleep(left)).await;
        }
        if self.is_unseen() {
            self.renew_or_say().await;
        }
    }

    /// Renews until it is dropped, while there is no node yet to do it.
    pub async fn keep(&self) -> Infallible {
        loop {
            self.ports.clock.sleep(self.rest()).await;
            self.renew_or_say().await;
        }
    }

    async fn renew_or_say(&self) {
        if let Err(error) = self.renew().await {
            tracing::warn!(%error, "the head of the volume cannot be renewed");
        }
    }
}

/// A put of the head without an answer so far, also because its future was dropped.
struct Unheard<'a>(&'a HeadLease);

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        let HeadLease { unheard_until, ports, .. } = self.0;
        unheard_until.set(ports.clock.monotonic() + LATE_EFFECT);
    }
}

/// The order in which heads of a volume were written: each node continues from the head that it has
/// found.
fn age(head: &Head) -> (Incarnation, u64) {
    (head.incarnation, head.beat)
}

/// Attempts to put the head, each settled, before the caller gets the error and may wait.
const ATTEMPTS: usize = 3;

/// Where nothing guards the head a newcomer may have found a late put: with this step its beats are
/// later than any put that may still arrive.
const UNGUARDED_STEP: u64 = 1 << 32;

/// How often a newcomer looks at a head that another node holds.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The incarnation of the next take-over.
fn next(last: Incarnation) -> Incarnation {
    Incarnation(last.0.checked_add(1).expect("no volume is taken over 2^64 times"))
}

/// The ids of a take-over of a head with this mark.
fn ids_above(bucket: &dyn Bucket, mark: IdMark) -> Result<IdRange, HeadError> {
    id_ranges::taken_over(mark, bucket.capabilities().conditional_put)
        .ok_or_else(|| HeadError::NoIds { backing: bucket.describe() })
}

fn mark_of(ids: IdRange) -> IdMark {
    IdMark { epoch: ids.epoch, below: ids.upto }
}

/// Reads the head, with retries for as long as `patience` lasts.
pub(crate) async fn get(
    ports: &Ports,
    patience: Duration,
    bucket: &dyn Bucket,
) -> Result<Object, BucketError> {
    ask(ports, patience, 0, || bucket.get(HEAD_KEY, None, None)).await
}

async fn put(bucket: &dyn Bucket, head: &Head, condition: Condition) -> Result<ETag, BucketError> {
    bucket.put(HEAD_KEY, head::encode(head), condition, Vec::new()).await
}
