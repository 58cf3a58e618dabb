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
use crate::log::Log;
use crate::random_u128;
use ebb_format::identity::{Identity, Serves};
use ebb_format::segment::VolumeId;
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, DiskError, Ports};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// What the volume lives in.
pub(super) struct Buckets {
    /// All of them as one.
    pub bucket: Option<Rc<dyn Bucket>>,
    pub members: Rc<[Member]>,
    /// Requests to all of them.
    pub asked: Rc<RefCell<Tallies>>,
}

impl Buckets {
    /// The rights to write to them are held past the `rate_limits`.
    pub(super) fn of(
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
    if let Err(error) = head_lease.release().await {
        tracing::warn!(%error, "the volume could not be given back");
    }
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
    let fresh = Identity { node: random_u128(&*ports.entropy), serves: None };
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
    let Some(before) = &identity.serves else { return Ok(()) };
    let head = match head::get(ports, options.bucket_timeout, root).await {
        Ok(object) => ebb_format::head::decode(&object.body).ok(),
        Err(BucketError::NotFound { .. }) => return Err(other_volume(before, root, None)),
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
        return Err(other_volume(before, root, Some(head.cluster)));
    }
    match unwritten(ports, before).await? {
        0 => Ok(()),
        dirty => Err(OpenError::Superseded { backing: root.describe(), dirty }),
    }
}

/// One that takes nothing over serves the volume that the data directory is of: by the head, or
/// where there is none, or the node has never owned the volume, by what the bucket is called.
async fn expect_same(
    ports: &Ports,
    bucket: &dyn Bucket,
    before: &Serves,
    options: &Options,
) -> Result<(), OpenError> {
    let head = match head::get(ports, options.bucket_timeout, bucket).await {
        Ok(object) if before.incarnation != Incarnation::NONE => {
            ebb_format::head::decode(&object.body).ok()
        }
        _ => None,
    };
    let is_same = match &head {
        Some(head) => head.cluster == before.cluster,
        None => before.backing == bucket.describe(),
    };
    match is_same {
        true => Ok(()),
        false => Err(other_volume(before, bucket, head.map(|head| head.cluster))),
    }
}

pub(crate) fn other_volume(
    before: &Serves,
    bucket: &dyn Bucket,
    cluster: Option<ClusterId>,
) -> OpenError {
    let now = Place { backing: bucket.describe(), endpoint: bucket.endpoint(), cluster };
    OpenError::OtherVolume(Box::new(Difference { before: Place::of(before), now }))
}

/// Where a volume is, and which one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub backing: String,
    pub endpoint: Option<String>,
    /// `None`: the storage has no volume.
    pub cluster: Option<ClusterId>,
}

impl Place {
    fn of(serves: &Serves) -> Place {
        Place {
            backing: serves.backing.clone(),
            endpoint: serves.endpoint.clone(),
            cluster: Some(serves.cluster),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { backing, endpoint, cluster } = self;
        write!(f, "{backing}")?;
        if let Some(endpoint) = endpoint {
            write!(f, " at {endpoint}")?;
        }
        match cluster {
            Some(cluster) => write!(f, " (volume {cluster})"),
            None => write!(f, " (no volume)"),
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
        } else if now.cluster.is_none() {
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
    identity::store(&*ports.disk, &Identity { node, serves: None }).await?;
    Ok(())
}

/// Files, directories and deletes in the data directory that have not reached the bucket.
pub(super) async fn unwritten(ports: &Ports, serves: &Serves) -> Result<u64, OpenError> {
    let recovery = Log::read(ports.disk.clone(), VolumeId(serves.cluster.0)).await?;
    if recovery.is_empty() {
        return Ok(0);
    }
    let Replayed { partition, .. } = replay(recovery).await?;
    let dirt = partition.backing().dirt();
    // What was stored into exposed files nobody has looked for.
    let exposed = partition.extents().exposed().count() as u64;
    // Links, special files and attributes are nowhere but in pages.
    Ok(dirt.files + dirt.pages + dirt.deletes + exposed)
}

/// Removes what is left of a volume that the data directory no longer serves.
pub(super) async fn wipe(ports: &Ports) -> Result<(), DiskError> {
    for dir in ["log", "snapshot", "store", "packs"] {
        let names = ports.disk.list(dir).await?;
        for name in &names {
            ports.disk.remove(&format!("{dir}/{name}")).await?;
        }
        if !names.is_empty() {
            ports.disk.sync_dir(dir).await?;
        }
    }
    Ok(())
}
