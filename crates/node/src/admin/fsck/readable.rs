//! Reads as much as possible from a data directory with a damaged log. No node continues from that
//! state: it lacks the later changes to files and to the bucket.

use super::named;
use crate::recover::{OpenError, Replaying};
use ebb_core::backing::Dirt;
use ebb_format::identity::Serves;
use ebb_format::segment::VolumeId;
use ebb_journal::{Log, LogError, LoggedCommand};
use ebb_model::*;
use ebb_ports::Ports;
use std::fmt;

#[derive(Clone, PartialEq, Debug)]
pub struct Readable {
    damage: LogError,
    before: Option<Before>,
}

/// The state before the damage.
#[derive(Clone, PartialEq, Debug)]
struct Before {
    index: LogIndex,
    /// Time of the last command with a time behind the snapshot.
    time: Option<Time>,
    inodes: u64,
    dirt: Dirt,
    dirty_bytes: u64,
    /// Descriptions of the changes that the bucket did not have at the damaged position.
    dirty: Vec<String>,
}

impl Readable {
    pub(crate) async fn of(ports: &Ports, serves: &Serves, damage: LogError) -> Readable {
        let before = match before(ports, serves).await {
            Ok(before) => before,
            Err(error) => {
                tracing::warn!(%error, "what is before the damage cannot be read either");
                None
            }
        };
        Readable { damage, before }
    }

    pub(super) fn report(self, serves: &Serves) -> FsckReport {
        let mut report = FsckReport {
            inodes: self.before.as_ref().map_or(0, |before| before.inodes),
            ..FsckReport::default()
        };
        report.problem(format!("{self}. {}", what_can_be_done(serves)));
        self.before
            .into_iter()
            .flat_map(|before| before.dirty)
            .for_each(|what| report.problem(what));
        report
    }
}

impl fmt::Display for Readable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "the log is damaged: {}. What was logged from there on cannot be read, so no node \
             starts with it",
            self.damage
        )?;
        let Some(Before { index, time, dirt, dirty_bytes, .. }) = &self.before else {
            return write!(out, "; nor can anything before it, for there is no whole snapshot");
        };
        write!(out, ". Before it is command {}", index.0)?;
        if let Some(time) = time {
            write!(out, ", of `date -d @{}`", time.secs)?;
        }
        let Dirt { files, pages, deletes, .. } = dirt;
        write!(
            out,
            ": by then {files} files and {pages} directories, {dirty_bytes} bytes of files, and \
             {deletes} deletes had not reached the \
             bucket"
        )
    }
}

async fn before(ports: &Ports, serves: &Serves) -> Result<Option<Before>, OpenError> {
    let Some((mut snapshots, mut entries)) =
        Log::read_before_damage(ports.disk.clone(), VolumeId(serves.cluster.0)).await?
    else {
        return Ok(None);
    };
    let Some(mut replaying) = Replaying::begin(&mut snapshots).await? else { return Ok(None) };
    let mut time = None;
    while let Some(logged) = entries.next().await? {
        if let LoggedCommand::Partition(command) = &logged.command {
            time = command.stamp().map(|stamp| stamp.time).or(time);
        }
        replaying.apply(&logged);
    }
    let state = replaying.end();
    let dirty = |(_, ino)| {
        format!(
            "{}: {} bytes had not reached the bucket",
            named(&state, ino),
            state.extents().dirty_bytes_of(ino)
        )
    };
    Ok(Some(Before {
        index: state.applied(),
        time,
        inodes: state.namespace().len() as u64,
        dirt: state.backing().dirt(),
        dirty_bytes: state.extents().dirty_bytes(),
        dirty: state.backing().dirty_inodes().map(dirty).collect(),
    }))
}

fn what_can_be_done(serves: &Serves) -> String {
    let Serves { backing, members, .. } = serves;
    if !backing.contains("://") {
        return "The volume has no bucket: keep this directory, and restore a copy of it".into();
    }
    let more = match members.is_empty() {
        true => format!(
            "; with a backup, after `ebb restore BACKUP NEW_DIRECTORY {backing}`, which brings its \
             names and attributes back"
        ),
        false => " and the other buckets as before".into(),
    };
    format!(
        "Keep this directory, and mount the volume with another one: `ebb mount {backing} \
         MOUNTPOINT --data NEW_DIRECTORY`{more}. \
         Given up by that is what is named here, and what was changed later and had not reached \
         the bucket"
    )
}
