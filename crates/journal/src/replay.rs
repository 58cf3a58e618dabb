use super::LogError;
use super::scan::Cut;
use super::segments;
use ebb_format::record::{self, Decoded, Payload, Position};
use ebb_format::segment::{Generation, SEGMENT_HEADER_BYTES};
use ebb_model::{Command, LogIndex, Planted};
use ebb_ports::{Disk, OpenMode};
use std::collections::VecDeque;
use std::rc::Rc;

/// The commands of a log that has been found sound, one by one, without gaps. Holds one segment in
/// memory. Must be read to the end before the next snapshot is taken, which may recycle segments
/// that are still to be read.
pub struct Commands {
    disk: Rc<dyn Disk>,
    segments: VecDeque<Generation>,
    cuts: Vec<Cut>,
    /// The index of the last command returned.
    index: LogIndex,
    /// The index of the last command in the log.
    last: LogIndex,
    path: String,
    bytes: Vec<u8>,
    offset: usize,
    /// The boot id under which the current segment was written.
    boot_id: u128,
}

impl Commands {
    pub(super) fn new(
        disk: Rc<dyn Disk>,
        segments: VecDeque<Generation>,
        cuts: Vec<Cut>,
        after: LogIndex,
        last: LogIndex,
    ) -> Commands {
        Commands {
            disk,
            segments,
            cuts,
            index: after,
            last,
            path: String::new(),
            bytes: Vec::new(),
            offset: 0,
            boot_id: 0,
        }
    }

    /// Index of the last command to be returned, or of the snapshot if there is none.
    pub fn last(&self) -> LogIndex {
        self.last
    }

    pub async fn next(&mut self) -> Result<Option<(LogIndex, Command)>, LogError> {
        let left_out = u64::from(Planted::ReplayStopsEarly.is_on());
        while self.index.0 + left_out < self.last.0 {
            let record = match record::decode(&self.bytes[self.offset..]) {
                Decoded::Record(record) => *record,
                Decoded::End | Decoded::Torn(_) => {
                    self.open_next().await?;
                    continue;
                }
                Decoded::Corrupt(error) => {
                    return Err(LogError::format(&self.path, self.offset as u64, error));
                }
            };
            self.offset += record.consumed;
            let command = match record.payload {
                Payload::Command(command) => command,
                Payload::Start { boot_id, .. } => {
                    self.boot_id = boot_id;
                    continue;
                }
                Payload::Forced { .. } => continue,
            };
            let index = record.header.index;
            if index <= self.index || self.is_void(record.header.position, index) {
                continue;
            }
            assert_eq!(index.0, self.index.0 + 1, "the log was found without gaps");
            self.index = index;
            return Ok(Some((index, command)));
        }
        Ok(None)
    }

    /// Whether the machine has not been down since the last returned command was written.
    pub fn is_of_this_boot(&self) -> bool {
        self.boot_id == self.disk.boot_id()
    }

    fn is_void(&self, position: Position, index: LogIndex) -> bool {
        self.cuts.iter().any(|cut| position < cut.before && index > cut.above)
    }

    async fn open_next(&mut self) -> Result<(), LogError> {
        let Some(generation) = self.segments.pop_front() else {
            let what = format!("command {} was there and is not", self.index.0 + 1);
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
