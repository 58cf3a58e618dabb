//! Makes a data directory from a backup. Names and attributes come from the backup, content comes
//! from the bucket (decision 14). The volume is taken over, so that its former node can no longer
//! write.

use crate::admin::backup::{BackupError, PATIENCE, path_of};
use crate::buckets::ask::ask;
use crate::buckets::head::{Candidate, Continues, HeadLease, Restored, TakeOver};
use crate::identity;
use crate::names::listings::LIST_LIMIT;
use crate::recover::{OpenError, give_back};
use crate::snapshot::{items, write};
use crate::{random_slot, random_u128};
use ebb_core::backing::{Loss, Object};
use ebb_core::partition::{Partition, Rebuilt, Remains};
use ebb_core::state::State;
use ebb_format::backup::Backup;
use ebb_format::identity::{Identity, Serves};
use ebb_format::object::ObjectOf;
use ebb_format::record::GroupId;
use ebb_format::segment::VolumeId;
use ebb_journal::{Log, SnapshotAt, SnapshotFrames};
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, ListEntry, ListRequest, ObjectMeta, Ports};
use futures_util::future::{Either, select};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Objects that are asked for their inode at one time.
const ASKED_AT_ONCE: usize = 16;

/// A backup that has been read, and the volume that it is to be restored over.
pub struct Restoring {
    ports: Ports,
    backup: Backup,
    partition: Partition,
    /// The owner of external objects in the bucket.
    owner: (u32, u32),
}

/// The outcome of a restore for the volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outlook {
    /// All inodes of the backup.
    pub inodes: u64,
    /// Files with changed or lost content, by path from the root.
    pub losses: Vec<(Vec<Name>, Loss)>,
    /// Objects that no file of the backup has: they are files of their own, or belong to
    /// directories that were not in the node's memory.
    pub others: u64,
}

/// The node that takes over the volume, and the way it does so.
#[derive(Clone, Debug)]
pub struct TakingOver {
    /// For people.
    pub owner: String,
    pub term: Duration,
    pub take_over: TakeOver,
}

impl Restoring {
    /// Reads the backup that [`crate::fetch_backup`] has put into the data directory.
    pub async fn read(
        ports: Ports,
        backup: Backup,
        owner: (u32, u32),
    ) -> Result<Restoring, BackupError> {
        let volume = VolumeId(backup.cluster.0);
        let snapshot =
            SnapshotFrames::open(&*ports.disk, volume, GroupId::PARTITION, backup.index).await?;
        let state = State::from_items(items(snapshot).await?, []).map_err(OpenError::from)?;
        let partition = state.into_partition();
        Ok(Restoring { ports, backup, partition, owner })
    }

    /// Reports the result that [`Restoring::carry_out`] would have if nothing changed until then.
    /// Changes nothing.
    pub async fn outlook(&self, bucket: &dyn Bucket) -> Result<Outlook, BackupError> {
        let rebuilt = self.rebuild(bucket, IdRange::whole(self.next_ids().epoch)).await?;
        Ok(self.outlook_of(&rebuilt))
    }

    /// Takes over the volume and makes the data directory. Its last step makes the directory valid.
    pub async fn carry_out(
        &self,
        bucket: Rc<dyn Bucket>,
        taking_over: TakingOver,
    ) -> Result<Outlook, BackupError> {
        let node = random_u128(&*self.ports.entropy);
        let TakingOver { owner, term, take_over } = taking_over;
        let candidate = Candidate {
            node,
            owner,
            address: String::new(),
            term,
            patience: PATIENCE,
            members: Vec::new(),
            rearrange: false,
            restores: Some(Restored {
                cluster: self.backup.cluster,
                incarnation: self.backup.incarnation,
                ids: self.next_ids(),
            }),
            continues: Continues::Nothing,
        };
        let head_lease =
            HeadLease::acquire(bucket.clone(), self.ports.clone(), candidate, take_over).await?;
        let made =
            match select(pin!(self.make(&*bucket, node, &head_lease)), pin!(head_lease.keep()))
                .await
            {
                Either::Left((made, _)) => made,
                Either::Right((never, _)) => match never {},
            };
        give_back(&head_lease).await;
        made
    }

    /// Ids that the backup's node cannot have used, before the backup or since.
    fn next_ids(&self) -> IdMark {
        let epoch = self.partition.namespace().id_range().epoch;
        IdMark { epoch: IdEpoch(epoch.0.saturating_add(1)), below: Ino::FIRST_COUNTER }
    }

    async fn make(
        &self,
        bucket: &dyn Bucket,
        node: u128,
        head_lease: &HeadLease,
    ) -> Result<Outlook, BackupError> {
        let (cluster, incarnation) = (head_lease.cluster(), head_lease.incarnation());
        let ids = head_lease.taken_over().expect("a new data directory takes over");
        let rebuilt = self.rebuild(bucket, ids).await?;
        let outlook = self.outlook_of(&rebuilt);
        let Ports { disk, spawn, .. } = &self.ports;
        // The new log would take it for a snapshot of commands that it lacks.
        disk.remove(&path_of(self.backup.index)).await?;
        let options = ebb_journal::Options {
            volume: VolumeId(cluster.0),
            incarnation,
            segment_bytes: ebb_journal::DEFAULT_SEGMENT_BYTES,
        };
        let (log, _) = Log::recover(disk.clone(), spawn.clone(), options).await?;
        let (position, index) = (log.written_position(), rebuilt.partition.applied());
        let local = SnapshotAt { index: LogIndex(0), position, version: Version(0), term: None };
        let at = SnapshotAt { index, position, version: rebuilt.partition.version(), term: None };
        write(&log, (local, at), &State::of(rebuilt.partition.clone())).await?;
        let serves = Serves {
            cluster,
            incarnation,
            backing: bucket.describe(),
            members: Vec::new(),
            endpoint: bucket.endpoint(),
        };
        identity::store(&**disk, &Identity::of(node, Some(serves)))
            .await
            .map_err(OpenError::from)?;
        Ok(outlook)
    }

    async fn rebuild(&self, bucket: &dyn Bucket, ids: IdRange) -> Result<Rebuilt, BackupError> {
        let objects = self.objects(bucket).await?;
        let now = self.ports.clock.wall();
        let rebuilt = |moved: &BTreeMap<Ino, String>| {
            let remains = Remains {
                objects: &objects,
                moved,
                ids,
                new_slot: &|| random_slot(&*self.ports.entropy),
                owner: self.owner,
                now,
            };
            self.partition.clone().rebuilt(&remains).map_err(OpenError::from)
        };
        let first = rebuilt(&BTreeMap::new())?;
        if !first.losses.values().any(|loss| *loss == Loss::Lost) {
            return Ok(first);
        }
        // They may have been renamed since.
        let moved = self.moved(bucket, &first).await?;
        Ok(if moved.is_empty() { first } else { rebuilt(&moved)? })
    }

    /// All objects in the bucket.
    async fn objects(&self, bucket: &dyn Bucket) -> Result<BTreeMap<String, Object>, BucketError> {
        let mut objects = BTreeMap::new();
        let mut after = None;
        loop {
            let request = ListRequest {
                prefix: String::new(),
                by_directory: false,
                after,
                limit: LIST_LIMIT,
            };
            let page = ask(&self.ports, PATIENCE, 0, || bucket.list(request.clone())).await?;
            after = page.entries.last().filter(|_| page.more).map(|last| last.key().to_owned());
            for entry in page.entries {
                if let ListEntry::Object { key, etag, len_bytes, modified_secs } = entry {
                    objects.insert(
                        key,
                        Object {
                            etag: etag.0,
                            len_bytes,
                            modified: Time::from_secs(modified_secs),
                        },
                    );
                }
            }
            if after.is_none() {
                return Ok(objects);
            }
        }
    }

    /// Finds moved objects: their metadata names an inode that has no object at its own key.
    async fn moved(
        &self,
        bucket: &dyn Bucket,
        first: &Rebuilt,
    ) -> Result<BTreeMap<Ino, String>, BucketError> {
        let is_wanted = |object: &ObjectOf| {
            object.cluster == self.backup.cluster
                && first.losses.get(&object.ino) == Some(&Loss::Lost)
        };
        let asked = stream::iter(&first.others).map(|key| async move {
            match ask(&self.ports, PATIENCE, 0, || bucket.head(key)).await {
                Ok(meta) => Ok(Some((key, meta))),
                Err(BucketError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        });
        let found: Vec<(&String, ObjectMeta)> = asked
            .buffered(ASKED_AT_ONCE)
            .try_filter_map(async |found| Ok(found))
            .try_collect()
            .await?;
        let mut newest: BTreeMap<Ino, ((Incarnation, Version), String)> = BTreeMap::new();
        for (key, meta) in found {
            let Some(object) = ObjectOf::decode(&meta.tags).filter(is_wanted) else { continue };
            let age = (object.incarnation, object.version);
            if newest.get(&object.ino).is_none_or(|(other, _)| *other < age) {
                newest.insert(object.ino, (age, key.clone()));
            }
        }
        Ok(newest.into_iter().map(|(ino, (_, key))| (ino, key)).collect())
    }

    fn outlook_of(&self, rebuilt: &Rebuilt) -> Outlook {
        let path = |ino: Ino| rebuilt.partition.namespace().path_of(ino).unwrap_or_default();
        Outlook {
            inodes: self.partition.namespace().len() as u64,
            losses: rebuilt.losses.iter().map(|(ino, loss)| (path(*ino), *loss)).collect(),
            others: rebuilt.others.len() as u64,
        }
    }
}
