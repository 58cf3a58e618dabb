//! Whose volume a data directory is: what is in it goes on, or is dropped where all of it has
//! reached the bucket.

use super::OpenError;
use super::replay::{Replayed, replay};
use crate::Options;
use crate::buckets::head::{self, HeadError, HeadLease, TakeOver};
use crate::buckets::members;
use crate::buckets::rate_limit::{RateLimitedBucket, RateLimits};
use crate::buckets::side_by_side::{Member, SideBySide};
use crate::identity;
use crate::random_u128;
use crate::snapshot::items;
use ebb_core::state::State;
use ebb_format::identity::{Identity, Serves};
use ebb_format::segment::VolumeId;
use ebb_journal::{LOG_DIR, Log, Log010, SNAPSHOT_DIR};
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, DiskError, Ports};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// What the volume lives in.
pub(crate) struct Buckets {
    /// All of them as one.
    pub bucket: Option<Rc<dyn Bucket>>,
    pub members: Rc<[Member]>,
    /// Requests to all of them.
    pub asked: Rc<RefCell<Tallies>>,
}

impl Buckets {
    /// The rights to write to them are held past the `rate_limits`.
    pub(crate) fn of(
        root: Option<Rc<dyn Bucket>>,
        head_lease: Option<Rc<HeadLease>>,
        members: Vec<Member>,
        asked: Rc<RefCell<Tallies>>,
        rate_limits: Rc<RateLimits>,
    ) -> Buckets {
        let paced = |bucket, head_lease| -> Rc<dyn Bucket> {
            Rc::new(RateLimitedBucket::new(bucket, rate_limits.clone(), head_lease))
        };
        let of_member = |member: Member| {
            let head_lease = member.head_lease().cloned();
            member.within(|bucket| paced(bucket, head_lease))
        };
        let members: Rc<[Member]> = members.into_iter().map(of_member).collect();
        let root = root.map(|root| paced(root, head_lease));
        Buckets { bucket: root.map(|root| SideBySide::over(root, members.clone())), members, asked }
    }
}

pub(crate) async fn give_back(head_lease: &HeadLease) {
    if let Err(error) = head_lease.release(None).await {
        tracing::warn!(%error, "the volume could not be given back");
    }
}

/// Release 0.1.0 wrote the data directory. It starts empty, as the same node, if all of it is in
/// the bucket and no client comes back to it: its files have other names, and its ids are not those
/// that the head reserves.
pub(super) async fn drop_old(
    ports: &Ports,
    identity: Identity,
    options: &Options,
) -> Result<Identity, OpenError> {
    let found = match &identity.serves {
        None => None,
        Some(before) => replayed_0_1_0(ports, before).await?.map(|state| (before, state)),
    };
    if let Some((before, state)) = found {
        let dirty = if is_cache(before) { 0 } else { count_unwritten(&state) };
        if dirty > 0 {
            return Err(OpenError::Outdated { dirty });
        }
        // Only one session can outlive a node in its own process.
        let outlives = |session| !options.embedded || options.resumes == Some(session);
        if state.sessions().iter().any(|(session, _)| outlives(session)) {
            return Err(OpenError::OutdatedInUse);
        }
    }
    let fresh = Identity::of(identity.node, None);
    identity::store(&*ports.disk, &fresh).await?;
    Ok(fresh)
}

/// The data directory was used with other buckets side by side than now. What is in it says
/// of keys what is no longer so: it starts anew, as another node, unless something in it
/// never reached the bucket.
pub(super) async fn rearrange(ports: &Ports, identity: Identity) -> Result<Identity, OpenError> {
    let Some(before) = &identity.serves else { return Ok(identity) };
    let dirty = unwritten(ports, before).await?;
    if dirty > 0 {
        let mut with = before.members.join(", ");
        if with.is_empty() {
            with = format!("{} alone", before.backing);
        }
        return Err(OpenError::Rearranged { before: with, dirty });
    }
    let fresh = Identity::of(random_u128(&*ports.entropy), None);
    identity::store(&*ports.disk, &fresh).await?;
    Ok(fresh)
}

pub(super) fn serves(
    ports: &Ports,
    backing: &Buckets,
    head_lease: Option<&HeadLease>,
    identity: &Identity,
) -> Serves {
    let Buckets { bucket, members, .. } = backing;
    let members = members::describe(members);
    let endpoint = bucket.as_ref().and_then(|bucket| bucket.endpoint());
    let backing = bucket.as_ref().map_or_else(|| "no bucket".into(), |bucket| bucket.describe());
    match (head_lease, &identity.serves) {
        (Some(head_lease), _) => Serves {
            cluster: head_lease.cluster(),
            incarnation: head_lease.incarnation(),
            backing,
            members,
            endpoint,
        },
        (None, Some(known)) => Serves { backing, members, endpoint, ..known.clone() },
        // Who only reads gives out ids that no page of the volume has.
        (None, None) => {
            let incarnation = if bucket.is_some() { Incarnation::NONE } else { Incarnation(1) };
            Serves {
                cluster: ClusterId(random_u128(&*ports.entropy)),
                incarnation,
                backing,
                members,
                endpoint,
            }
        }
    }
}

/// Refuses, before anything is taken over, what [`claim`] would refuse afterwards: whoever served
/// the volume last can go on with it.
pub(super) async fn expect_current(
    ports: &Ports,
    root: &dyn Bucket,
    identity: &Identity,
    options: &Options,
) -> Result<(), OpenError> {
    let Some(before) = identity.serves.as_ref().filter(|serves| !is_cache(serves)) else {
        return Ok(());
    };
    let head = match head::get(ports, options.bucket_timeout, root).await {
        Ok(object) => ebb_format::head::decode(&object.body).ok(),
        Err(BucketError::NotFound { .. }) => {
            return Err(other_volume(before, root, VolumeThere::None));
        }
        Err(error) => {
            return Err(HeadError::Store { backing: root.describe(), error }.into());
        }
    };
    // Who takes it over says what is wrong with it.
    let Some(head) = head else { return Ok(()) };
    let is_left = match options.take_over {
        TakeOver::Leave => true,
        TakeOver::Join => !head.released && !head.address.is_empty(),
        TakeOver::IfAbandoned | TakeOver::Now => false,
    };
    if head.node == identity.node || is_left {
        return Ok(());
    }
    if head.cluster != before.cluster {
        return Err(other_volume(before, root, VolumeThere::Is(head.cluster)));
    }
    match unwritten(ports, before).await? {
        0 => Ok(()),
        dirty => Err(OpenError::Superseded { backing: root.describe(), dirty }),
    }
}

/// A volume was only read from the data directory, which has no change of its own: all of it can be
/// read again from the bucket.
pub(crate) fn is_cache(serves: &Serves) -> bool {
    serves.incarnation == Incarnation::NONE
}

/// Drops a cache from an earlier read-only run if this run reads other storage, or owns the volume.
/// An owner needs the head's cluster and incarnation, which a reader does not record.
pub(super) async fn drop_cache(
    ports: &Ports,
    identity: Identity,
    bucket: Option<&dyn Bucket>,
    owns: bool,
) -> Result<Identity, OpenError> {
    let stays = identity.serves.as_ref().is_none_or(|before| {
        !is_cache(before) || !owns && bucket.is_some_and(|bucket| is_at(before, bucket))
    });
    if stays {
        return Ok(identity);
    }
    let fresh = Identity::of(identity.node, None);
    identity::store(&*ports.disk, &fresh).await?;
    Ok(fresh)
}

/// The same storage by its name, and by its endpoint where that was recorded.
fn is_at(before: &Serves, bucket: &dyn Bucket) -> bool {
    before.backing == bucket.describe()
        && (before.endpoint.is_none() || before.endpoint == bucket.endpoint())
}

/// A node that takes nothing over serves the volume of the data directory, as the head says. The
/// storage's name and endpoint decide only while the store gives no head that can be read. A store
/// without a head is another one: its answers would remove what the data directory knows.
async fn expect_same(
    ports: &Ports,
    bucket: &dyn Bucket,
    before: &Serves,
    options: &Options,
) -> Result<(), OpenError> {
    if is_cache(before) {
        return Ok(());
    }
    let there = match head::get(ports, options.bucket_timeout, bucket).await {
        Ok(object) => ebb_format::head::decode(&object.body)
            .map_or(VolumeThere::Unknown, |head| VolumeThere::Is(head.cluster)),
        Err(BucketError::NotFound { .. }) => VolumeThere::None,
        Err(_) => VolumeThere::Unknown,
    };
    let is_same = match there {
        VolumeThere::Is(cluster) => cluster == before.cluster,
        VolumeThere::None => false,
        VolumeThere::Unknown => is_at(before, bucket),
    };
    if is_same { Ok(()) } else { Err(other_volume(before, bucket, there)) }
}

pub(crate) fn other_volume(before: &Serves, bucket: &dyn Bucket, volume: VolumeThere) -> OpenError {
    let mut backing = bucket.describe();
    // The root bucket alone was asked; the members have been compared before.
    let with_members = format!("{backing}, {}", before.members.join(", "));
    if before.backing == with_members {
        backing = with_members;
    }
    let now = Place { backing, endpoint: bucket.endpoint(), volume };
    OpenError::OtherVolume(Box::new(Difference { before: Place::of(before), now }))
}

/// Which volume a storage holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeThere {
    Is(ClusterId),
    None,
    /// The store has not answered.
    Unknown,
}

/// Where a volume is, and which one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub backing: String,
    pub endpoint: Option<String>,
    pub volume: VolumeThere,
}

impl Place {
    fn of(serves: &Serves) -> Place {
        Place {
            backing: serves.backing.clone(),
            endpoint: serves.endpoint.clone(),
            volume: VolumeThere::Is(serves.cluster),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { backing, endpoint, volume } = self;
        write!(f, "{backing}")?;
        if let Some(endpoint) = endpoint {
            write!(f, " at {endpoint}")?;
        }
        match volume {
            VolumeThere::Is(cluster) => write!(f, " (volume {cluster})"),
            VolumeThere::None => write!(f, " (no volume)"),
            VolumeThere::Unknown => Ok(()),
        }
    }
}

/// How the volume that a data directory is of differs from the one that is to be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    pub before: Place,
    pub now: Place,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { before, now } = self;
        let other_endpoint = before.endpoint.is_some() && before.endpoint != now.endpoint;
        let how = if before.backing != now.backing {
            "the storage is another"
        } else if other_endpoint {
            "the endpoint is another"
        } else if now.volume == VolumeThere::None {
            "the storage was emptied, or another store answers at the endpoint"
        } else {
            "the volume was made anew, or another store answers at the endpoint"
        };
        write!(f, "it is of {before}, and this is {now}: {how}")
    }
}

/// Whether what is in the data directory may go on as `serves`.
pub(super) async fn claim(
    ports: &Ports,
    identity: &Identity,
    serves: &Serves,
    bucket: Option<&dyn Bucket>,
    options: &Options,
    owns: bool,
) -> Result<(), OpenError> {
    let Some(before) = &identity.serves else { return Ok(()) };
    match bucket {
        Some(bucket) if !owns => expect_same(ports, bucket, before, options).await?,
        _ if before.cluster != serves.cluster || !owns && before.backing != serves.backing => {
            return Err(OpenError::OtherVolume(Box::new(Difference {
                before: Place::of(before),
                now: Place::of(serves),
            })));
        }
        _ => {}
    }
    if before.incarnation != serves.incarnation {
        supersede(ports, identity.node, before, serves).await
    } else {
        Ok(())
    }
}

/// The volume was in other hands since. What is here is a cache that can be dropped,
/// unless something in it never reached the bucket.
pub(super) async fn supersede(
    ports: &Ports,
    node: u128,
    before: &Serves,
    now: &Serves,
) -> Result<(), OpenError> {
    let dirty = unwritten(ports, before).await?;
    if dirty > 0 {
        return Err(OpenError::Superseded { backing: now.backing.clone(), dirty });
    }
    tracing::info!(
        backing = now.backing,
        "another node served the volume since: the cache here is dropped"
    );
    identity::store(&*ports.disk, &Identity::of(node, None)).await?;
    Ok(())
}

/// Files, directories and deletes in the data directory that have not reached the bucket.
pub(crate) async fn unwritten(ports: &Ports, serves: &Serves) -> Result<u64, OpenError> {
    if is_cache(serves) {
        return Ok(0);
    }
    Ok(replayed(ports, serves).await?.map_or(0, |state| count_unwritten(&state)))
}

/// As [`unwritten`], in a data directory of release 0.1.0.
pub(crate) async fn unwritten_0_1_0(ports: &Ports, serves: &Serves) -> Result<u64, OpenError> {
    if is_cache(serves) {
        return Ok(0);
    }
    Ok(replayed_0_1_0(ports, serves).await?.map_or(0, |state| count_unwritten(&state)))
}

/// The state in a data directory of release 0.1.0, if it has any.
async fn replayed_0_1_0(ports: &Ports, serves: &Serves) -> Result<Option<State>, OpenError> {
    let log = Log::read_0_1_0(&*ports.disk, VolumeId(serves.cluster.0)).await?;
    let Some(Log010 { snapshot, commands }) = log else { return Ok(None) };
    let mut state = State::from_items(items(snapshot).await?, [])?;
    for (index, command) in commands {
        state.apply(index, &command);
    }
    Ok(Some(state))
}

/// The state in the data directory, if it has any.
async fn replayed(ports: &Ports, serves: &Serves) -> Result<Option<State>, OpenError> {
    let recovery = Log::read(ports.disk.clone(), VolumeId(serves.cluster.0)).await?;
    if recovery.is_empty() {
        return Ok(None);
    }
    let Replayed { state, .. } = replay(recovery, State::check_joined).await?;
    Ok(Some(state))
}

pub(crate) fn count_unwritten(state: &State) -> u64 {
    if !state.backing().is_backed() {
        // Everything but the root is nowhere else.
        return state.namespace().len() as u64 - 1;
    }
    let dirt = state.backing().dirt();
    // What was stored into exposed files nobody has looked for.
    let exposed = state.extents().exposed().count() as u64;
    // Links, special files and attributes are nowhere but in pages.
    dirt.files + dirt.pages + dirt.deletes + exposed
}

/// Removes what is left of a volume that the data directory no longer serves.
pub(super) async fn wipe(ports: &Ports) -> Result<(), DiskError> {
    for dir in [LOG_DIR, SNAPSHOT_DIR] {
        ebb_store::remove_all(&*ports.disk, dir).await?;
    }
    ebb_store::wipe(&*ports.disk).await
}
