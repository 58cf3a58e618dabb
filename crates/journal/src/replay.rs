use super::entry::{Frontier, Logged, LoggedCommand};
use super::scan::Cut;
use super::segments;
use super::{LogError, SnapshotFrames};
use ebb_format::record::{self, Decoded, GroupId, Payload, Position, RecordHeader};
use ebb_format::segment::{Generation, SEGMENT_HEADER_BYTES};
use ebb_model::{LogIndex, Planted};
use ebb_ports::{Disk, OpenMode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// The commands of a sound log that no snapshot of their group has, one by one in the order of
/// their positions. Of replicated groups: all records, also void ones. Records that a power cut has
/// taken are left out. Holds one segment in memory. Must be read to the end before the next
/// snapshot is taken, which may recycle segments that are still to be read.
pub struct Entries {
    disk: Rc<dyn Disk>,
    segments: VecDeque<Generation>,
    cuts: Vec<Cut>,
    replicated: BTreeSet<GroupId>,
    /// The snapshots of groups that are not replicated.
    covered: BTreeMap<GroupId, (LogIndex, Position)>,
    /// Of the last command that was read.
    position: Position,
    /// The indices of the last commands returned.
    indices: BTreeMap<GroupId, LogIndex>,
    last: Frontier,
    path: String,
    bytes: Vec<u8>,
    offset: usize,
    /// The boot id under which the current segment was written.
    boot_id: u128,
}

impl Entries {
    /// The commands up to `last` in a log with nothing before `base`.
    pub(super) fn new(
        disk: Rc<dyn Disk>,
        segments: VecDeque<Generation>,
        cuts: Vec<Cut>,
        snapshots: &BTreeMap<GroupId, SnapshotFrames>,
        replicated: BTreeSet<GroupId>,
        base: Position,
        last: Frontier,
    ) -> Entries {
        let place = |snapshot: &SnapshotFrames| {
            let header = snapshot.header();
            (header.group, (header.index, header.position))
        };
        Entries {
            disk,
            segments,
            cuts,
            covered: snapshots
                .values()
                .map(place)
                .filter(|(group, _)| !replicated.contains(group))
                .collect(),
            replicated,
            position: base,
            indices: BTreeMap::new(),
            last,
            path: String::new(),
            bytes: Vec::new(),
            offset: 0,
            boot_id: 0,
        }
    }

    /// Whether consensus gives the indices of the group's records.
    pub fn is_replicated(&self, group: GroupId) -> bool {
        self.replicated.contains(&group)
    }

    /// The log up to the last command to be returned, or that snapshots have.
    pub fn last(&self) -> &Frontier {
        &self.last
    }

    pub async fn next(&mut self) -> Result<Option<Logged>, LogError> {
        while self.position < self.last.position {
            let at = self.offset as u64;
            let record = match record::decode(&self.bytes[self.offset..]) {
                Decoded::Record(record) => *record,
                Decoded::End | Decoded::Torn(_) => {
                    self.open_next().await?;
                    continue;
                }
                Decoded::Corrupt(error) => {
                    return Err(LogError::format(&self.path, at, error));
                }
            };
            self.offset += record.consumed;
            let command = match record.payload {
                Payload::Command(command) => LoggedCommand::Partition(command),
                Payload::Local(command) => LoggedCommand::Local(command),
                Payload::Start(start) => {
                    self.boot_id = start.boot_id;
                    continue;
                }
                Payload::Promise(content) => LoggedCommand::Promise(content),
                Payload::Step(content) => LoggedCommand::Step(content),
                Payload::Base(base) => LoggedCommand::Base(base.content),
                Payload::Forced { .. } => continue,
            };
            let RecordHeader { position, group, term, index, .. } = record.header;
            if self.cuts.iter().any(|cut| cut.after < position && position < cut.before) {
                continue;
            }
            self.position = position;
            if Planted::ReplayStopsEarly.is_on() && position == self.last.position {
                break;
            }
            if let Some((last, upto)) = self.covered.get(&group) {
                if (index <= *last) != (position <= *upto) {
                    let what = format!(
                        "command {} of group {} is record {}, and the snapshot of command {} is \
                         of record {}",
                        index.0, group.0, position.0, last.0, upto.0
                    );
                    return Err(LogError::Corrupt { file: self.path.clone(), offset: at, what });
                }
                if index <= *last {
                    continue;
                }
            }
            if !self.replicated.contains(&group)
                && let Some(before) = self.indices.insert(group, index)
            {
                assert_eq!(index.0, before.0 + 1, "the log was found without gaps");
            }
            return Ok(Some(Logged { position, group, term, index, command }));
        }
        Ok(None)
    }

    /// Whether the machine has not been down since the last returned command was written.
    pub fn is_of_this_boot(&self) -> bool {
        self.boot_id == self.disk.boot_id()
    }

    async fn open_next(&mut self) -> Result<(), LogError> {
        let Some(generation) = self.segments.pop_front() else {
            let what = format!("record {} was there and is not", self.last.position.0);
            return Err(LogError::Corrupt {
                file: self.path.clone(),
                offset: self.offset as u64,
                what,
            });
        };
        self.path = segments::path(generation);
        let file = self.disk.open(&self.path, OpenMode::Existing).await?;
        self.bytes = segments::read(&*file, file.len().await?).await?;
        self.offset = SEGMENT_HEADER_BYTES.min(self.bytes.len());
        Ok(())
    }
}
