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
    let backing = bucket.as_ref().map_or_else(|| "no bucket".into(), |bucket| bucket.describe());
    match (head_lease, &identity.serves) {
        (Some(head_lease), _) => Serves {
            cluster: head_lease.cluster(),
            incarnation: head_lease.incarnation(),
            backing,
            members,
        },
        (None, Some(known)) => Serves { backing, members, ..known.clone() },
        // Who only reads gives out ids that no page of the volume has.
        (None, None) => {
            let incarnation = if bucket.is_some() { Incarnation::NONE } else { Incarnation(1) };
            Serves {
                cluster: ClusterId(random_u128(&*ports.entropy)),
                incarnation,
                backing,
                members,
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
        Err(BucketError::NotFound { .. }) => {
            return Err(OpenError::OtherVolume {
                there: before.backing.clone(),
                backing: root.describe(),
            });
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
        return Err(OpenError::OtherVolume {
            there: before.backing.clone(),
            backing: root.describe(),
        });
    }
    match unwritten(ports, before).await? {
        0 => Ok(()),
        dirty => Err(OpenError::Superseded { backing: root.describe(), dirty }),
    }
}

/// Whether what is in the data directory may go on as `serves`.
pub(super) async fn claim(
    ports: &Ports,
    identity: &Identity,
    serves: &Serves,
    owns: bool,
) -> Result<(), OpenError> {
    let Some(before) = &identity.serves else { return Ok(()) };
    if before.cluster != serves.cluster || !owns && before.backing != serves.backing {
        return Err(OpenError::OtherVolume {
            there: before.backing.clone(),
            backing: serves.backing.clone(),
        });
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
