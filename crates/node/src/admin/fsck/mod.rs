//! Checks that a node's records agree with each other and with its bytes, and that nothing without
//! a reference is left (O-80, C-16). It works on a running node and on a data directory that is not
//! open.

mod bucket;
mod readable;
mod repair;

pub use readable::Readable;

use crate::Node;
use crate::admin::path_bytes;
use crate::buckets::head::{self, HEAD_KEY, HeadError};
use crate::data::packs;
use crate::identity;
use crate::recover::{
    OpenError, Replayed, VolumeThere, count_unwritten, is_cache, other_volume, replay,
    unwritten_0_1_0,
};
use bucket::Comparison;
use ebb_core::extent::Block;
use ebb_core::state::State;
use ebb_format::identity::{Identity, Serves};
use ebb_format::segment::VolumeId;
use ebb_journal::{Log, LogError};
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, DiskError, Ports};
use ebb_store::{Mode, Store, StoreLocation};
use std::cell::{Ref, RefCell};
use std::iter;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;

/// The most findings in one answer, so that it fits a frame. The rest is counted.
const MAX_TOLD: usize = 1000;
const MAX_TOLD_BYTES: usize = 256 << 10;

/// How long a request is repeated to a bucket that does not answer, without the options of a node.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Debug, Error)]
pub enum FsckError {
    #[error(transparent)]
    Open(Box<OpenError>),
    #[error("{0}")]
    Bucket(#[from] BucketError),
    #[error(
        "{backing} was served by {owner} since this data directory was last used: what is here \
         says nothing of it"
    )]
    Superseded { backing: String, owner: String },
    #[error(
        "ebb 0.1.0 wrote the data directory, and everything in it has reached the bucket: the next \
         mount starts it empty"
    )]
    Outdated,
    #[error("{backing} cannot be compared: {what}")]
    Head { backing: String, what: String },
}

impl Node {
    /// Proves the invariants of the state and reads every cached block against its checksum.
    pub(crate) async fn fsck(self: &Rc<Self>) -> Result<FsckReport, RpcError> {
        let (mut report, files) = {
            let state = self.replica.view();
            let mut report = of_state(&state);
            self.locks.borrow().check().into_iter().for_each(|what| report.problem(what));
            (report, state.extents().files().collect::<Vec<_>>())
        };
        for (ino, error) in self.store.failed() {
            let file = named(&self.replica.view(), ino);
            report.problem(format!(
                "{file}: its bytes could not be forced to disk: {error}. Send what can be read of \
                 them to the bucket (`ebb flush`), write \
                 them anew to another file, or remove it; the next start of the node takes what is \
                 on the disk then"
            ));
        }
        for path in self.strays().await? {
            report.repairable(
                format!("{path} in the data directory is nobody's"),
                Remedy::Remove { path },
            );
        }
        let damage = self.damage_of_log().await;
        if let Some(damage) = damage.snapshot {
            report.repairable(
                format!("a snapshot is damaged, and the next start may not have another: {damage}"),
                Remedy::Snapshot,
            );
        }
        if let Some(damage) = damage.segment {
            report.repairable(
                format!(
                    "the log is damaged, and a start could not read what comes after: {damage}"
                ),
                Remedy::Snapshot,
            );
        }
        for ino in files {
            let _guard = self.data.latches().hold(ino, Mode::Shared).await;
            let (file, blocks) = {
                let state = self.replica.view();
                (named(&state, ino), known_blocks(&state, ino))
            };
            compare(&self.store, (&self.location(ino), &file), blocks, &mut report).await;
        }
        Ok(bounded(report))
    }

    /// Compares a part of the node's record of the bucket with the bucket.
    pub(crate) async fn fsck_bucket(&self, from: FsckPoint) -> Result<FsckBatch, RpcError> {
        if self.buckets.is_none() {
            return Err(RpcError::Denied("the volume has no bucket".into()));
        }
        if let Some(owner) = self.buckets.lost_to() {
            return Err(RpcError::Denied(format!(
                "the volume was taken over by {owner}, which may be writing to the bucket"
            )));
        }
        if self.buckets.head_lease().is_none() {
            return Err(RpcError::Denied(
                "this node only reads the bucket, which others may be writing to".into(),
            ));
        }
        let state = || self.replica.view();
        let part = self
            .comparison(&state)
            .part(from)
            .await
            .map_err(|error| RpcError::Denied(error.to_string()))?;
        Ok(FsckBatch { report: bounded(part.report), ..part })
    }

    fn comparison<'a>(&'a self, state: &'a dyn Fn() -> Ref<'a, State>) -> Comparison<'a> {
        let revalidates = self.revalidates().is_some();
        Comparison {
            state,
            bucket: self.buckets.bucket(),
            ports: &self.ports,
            patience: self.options.bucket_timeout,
            revalidates,
        }
    }
}

/// The volume that the data directory belongs to, if it belongs to one.
pub async fn serves(ports: &Ports) -> Result<Option<Serves>, OpenError> {
    Ok(identity::load(&*ports.disk).await?.and_then(|identity| identity.serves))
}

/// The same check of a data directory that no node has open, and with `bucket` that of the volume.
/// Nothing is changed. If the log is damaged, the report covers the state before the damage.
/// `progress` receives the number of directories compared and their total.
pub async fn fsck(
    ports: Ports,
    bucket: Option<Rc<dyn Bucket>>,
    progress: impl FnMut(u64, u64),
) -> Result<FsckReport, FsckError> {
    ports.disk.lock()?;
    let identity = identity::load(&*ports.disk).await.map_err(OpenError::from)?;
    let Some(Identity { serves: Some(serves), is_of_0_1_0, .. }) = identity else {
        return Err(OpenError::Unused.into());
    };
    if is_of_0_1_0 {
        return Err(match unwritten_0_1_0(&ports, &serves).await? {
            0 => FsckError::Outdated,
            dirty => OpenError::Outdated { dirty }.into(),
        });
    }
    if let Some(bucket) = &bucket {
        check_head(&ports, &**bucket, &serves).await?;
    }
    let recovery = match Log::read(ports.disk.clone(), VolumeId(serves.cluster.0)).await {
        Err(damage @ LogError::Corrupt { .. }) => {
            return Ok(bounded(Readable::of(&ports, &serves, damage).await.report(&serves)));
        }
        recovery => recovery?,
    };
    if recovery.is_empty() {
        return Ok(FsckReport::default());
    }
    let damaged = recovery.damaged.clone();
    let Replayed { state: replayed, unverified, .. } = match replay(recovery, State::check_joined)
        .await
    {
        Err(damage @ (OpenError::State(_) | OpenError::Snapshot(_) | OpenError::NoSnapshot)) => {
            let mut report = FsckReport::default();
            report.problem(damage.to_string());
            return Ok(report);
        }
        replayed => replayed?,
    };
    let mut report = of_state(&replayed);
    if let Some(damage) = damaged {
        report.problem(format!(
            "a part of the log or a snapshot is damaged, and another stands in for it: {damage}"
        ));
    }
    let store = Store::found(ports.disk.clone(), serves.cluster).await?;
    for ino in replayed.extents().files() {
        let mut blocks = known_blocks(&replayed, ino);
        // Bytes that were not forced may differ from the written ones.
        let unverified_runs = unverified.get(&ino).map_or(&[][..], |runs| runs);
        blocks.retain(|(block, _)| !unverified_runs.iter().any(|run| run.contains(block)));
        compare(
            &store,
            (&packs::location(&replayed, ino), &named(&replayed, ino)),
            blocks,
            &mut report,
        )
        .await;
    }
    if bucket.is_none() && !is_cache(&serves) {
        report.waiting = count_unwritten(&replayed);
    }
    if let Some(bucket) = bucket {
        compare_all(&ports, &*bucket, replayed, progress, &mut report).await?;
    }
    Ok(report)
}

/// Whether the data directory has the state that the bucket was last written from.
async fn check_head(ports: &Ports, bucket: &dyn Bucket, serves: &Serves) -> Result<(), FsckError> {
    let backing = bucket.describe();
    if is_cache(serves) {
        return Err(FsckError::Head {
            backing,
            what: "the data directory was only used to read it, and has no changes".into(),
        });
    }
    let head = match head::get(ports, PATIENCE, bucket).await {
        Ok(object) => ebb_format::head::decode(&object.body).map_err(|error| {
            HeadError::Unreadable { backing: backing.clone(), what: error.to_string() }
        }),
        Err(BucketError::NotFound { .. }) if serves.backing != backing => {
            return Err(other_volume(serves, bucket, VolumeThere::None).into());
        }
        Err(BucketError::NotFound { .. }) => {
            return Err(FsckError::Head {
                backing,
                what: format!("{HEAD_KEY}, which says who serves it, is gone"),
            });
        }
        Err(error) => return Err(error.into()),
    };
    let head = head.map_err(OpenError::from)?;
    if head.cluster != serves.cluster {
        return Err(other_volume(serves, bucket, VolumeThere::Is(head.cluster)).into());
    }
    match (head.cluster, head.incarnation) == (serves.cluster, serves.incarnation) {
        true => Ok(()),
        false => Err(FsckError::Superseded { backing, owner: head.owner }),
    }
}

async fn compare_all(
    ports: &Ports,
    bucket: &dyn Bucket,
    replayed: State,
    mut progress: impl FnMut(u64, u64),
    report: &mut FsckReport,
) -> Result<(), BucketError> {
    let replayed = RefCell::new(replayed);
    let state = || replayed.borrow();
    let comparison =
        Comparison { state: &state, bucket, ports, patience: PATIENCE, revalidates: false };
    let mut next = Some(FsckPoint::START);
    while let Some(from) = next {
        let part = comparison.part(from).await?;
        progress(part.done, part.total);
        report.add(part.report);
        next = part.next;
    }
    Ok(())
}

impl From<OpenError> for FsckError {
    fn from(error: OpenError) -> FsckError {
        FsckError::Open(Box::new(error))
    }
}

impl From<DiskError> for FsckError {
    fn from(error: DiskError) -> FsckError {
        OpenError::from(error).into()
    }
}

impl From<LogError> for FsckError {
    fn from(error: LogError) -> FsckError {
        OpenError::from(error).into()
    }
}

/// The name of an inode for people.
fn named(state: &State, ino: Ino) -> String {
    match state.namespace().path_of(ino) {
        Some(path) => format!("/{} (inode {ino})", shown_path(&path_bytes(&path))),
        None => format!("inode {ino}, which has no name"),
    }
}

fn of_state(state: &State) -> FsckReport {
    let mut report = FsckReport { inodes: state.namespace().len() as u64, ..FsckReport::default() };
    state.check().into_iter().for_each(|what| report.problem(what));
    report
}

/// Returns no block for an exposed file: a mapping may have overwritten any of them.
fn known_blocks(state: &State, ino: Ino) -> Vec<(u64, Block)> {
    if state.extents().is_exposed(ino) {
        return Vec::new();
    }
    let size = state.namespace().attr(ino).map_or(0, |attr| attr.size_bytes);
    let chunks = 0..size.div_ceil(CHUNK_BYTES);
    chunks.flat_map(|chunk| state.extents().chunk_blocks(ino, chunk)).collect()
}

async fn compare(
    store: &Store,
    (place, file): (&StoreLocation, &str),
    blocks: Vec<(u64, Block)>,
    report: &mut FsckReport,
) {
    for (block, known) in blocks {
        let damage = match known.sum {
            Some(sum) => {
                report.blocks += 1;
                let read = store.read(place, block * BLOCK_BYTES, BLOCK_BYTES as usize).await;
                read.map(|data| (ebb_format::crc32c(&data) != sum).then_some("damaged on"))
            }
            None => store
                .missing(place, iter::once(block))
                .await
                .map(|missing| (!missing.is_empty()).then_some("missing from")),
        };
        let damage = match damage {
            Ok(None) => continue,
            Ok(Some(damage)) => format!("{file}: block {block} is {damage} the node's disk"),
            Err(error) => format!("{file}: block {block} cannot be read: {error}"),
        };
        match known.dirty {
            false => report.repairable(damage, Remedy::Refetch { ino: place.ino, block }),
            true => {
                let (start, end) =
                    (block * BLOCK_BYTES, ((block + 1) * BLOCK_BYTES).min(place.size_bytes));
                report.problem(format!(
                    "{damage}, and the bucket does not have it: bytes {start} to {end} are lost. \
                     Write them anew, remove the file, or \
                     give up what was written to it since it was last sent (`ebb rollback`)"
                ));
            }
        }
    }
}

fn bounded(mut report: FsckReport) -> FsckReport {
    let mut room = MAX_TOLD_BYTES;
    let mut fits = |what: &String| {
        let fits = what.len() <= room;
        room = room.saturating_sub(what.len());
        fits
    };
    let problems =
        report.problems.iter().take(MAX_TOLD).take_while(|problem| fits(&problem.what)).count();
    let others = report.others.iter().take(MAX_TOLD).take_while(|what| fits(what)).count();
    let (more_problems, more_others) =
        (report.problems.len() - problems, report.others.len() - others);
    report.problems.truncate(problems);
    report.others.truncate(others);
    if more_problems > 0 {
        report.problem(format!("and {more_problems} more"));
    }
    if more_others > 0 {
        report.others.push(format!("and {more_others} more"));
    }
    report
}
