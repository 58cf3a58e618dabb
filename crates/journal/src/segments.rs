//! The files of the log: made ahead, filled with zeros, reused.

use super::LogError;
use bytes::Bytes;
use ebb_format::segment::{self, Generation, SEGMENT_HEADER_BYTES, SegmentHeader, VolumeId};
use ebb_ports::{Disk, DiskError, DiskFile, OpenMode};
use futures_util::lock::Mutex;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub const LOG_DIR: &str = "log";

/// A file on its way from one generation to the next, or half made. It has no records.
const SPARE: &str = "log/spare";

/// Zeros are written in pieces, so that other tasks get their turn between them.
pub(super) const FILL_BYTES: usize = 1 << 20;

#[derive(Clone)]
pub(super) struct Segment {
    pub generation: Generation,
    pub file: Rc<dyn DiskFile>,
    pub len_bytes: u64,
}

pub(super) fn path(generation: Generation) -> String {
    format!("{LOG_DIR}/{:08x}", generation.0)
}

/// The segments in a data directory, oldest first. Files with other names are foreign.
pub(super) async fn list(disk: &dyn Disk) -> Result<Vec<Generation>, LogError> {
    let names = disk.list(LOG_DIR).await?;
    Ok(names.iter().filter_map(|name| parse(name)).collect())
}

/// Whether a file in [`LOG_DIR`] is a segment or the spare file.
pub fn is_segment(name: &str) -> bool {
    parse(name).is_some() || format!("{LOG_DIR}/{name}") == SPARE
}

fn parse(name: &str) -> Option<Generation> {
    let generation = Generation(u32::from_str_radix(name, 16).ok()?);
    (path(generation) == format!("{LOG_DIR}/{name}")).then_some(generation)
}

/// Holds the segment that comes after the current one.
///
/// Law: a segment has its own name only when its header and its zeros, its length and the name are
/// durable. So a record can be written to it without asking for space, and any byte of it that is
/// not zero was put there as a record.
pub(super) struct Supply {
    disk: Rc<dyn Disk>,
    volume: VolumeId,
    segment_bytes: u64,
    ready: RefCell<Option<Segment>>,
    /// Generations have no gaps, so that a missing file is noticed.
    next: Cell<Generation>,
    /// Guards [`SPARE`].
    work: Mutex<()>,
}

impl Supply {
    /// `ready` is a segment without records; `next` the generation of the first one to be made.
    pub fn new(
        disk: Rc<dyn Disk>,
        volume: VolumeId,
        segment_bytes: u64,
        ready: Option<Segment>,
        next: Generation,
    ) -> Supply {
        Supply {
            disk,
            volume,
            segment_bytes,
            ready: RefCell::new(ready),
            next: Cell::new(next),
            work: Mutex::new(()),
        }
    }

    /// Makes sure that a segment is ready. Can be retried after any failure.
    pub async fn prepare(&self) -> Result<(), LogError> {
        let _working = self.work.lock().await;
        if self.ready.borrow().is_some() {
            return Ok(());
        }
        let generation = self.next.get();
        match self.make(generation).await {
            Ok(segment) => {
                self.next.set(Generation(generation.0 + 1));
                self.ready.replace(Some(segment));
                Ok(())
            }
            Err(error) => {
                // A half-made file would keep the space that may be missing, and after a failed
                // sync its pages are not to be trusted.
                for name in [SPARE, &path(generation)] {
                    match self.disk.remove(name).await {
                        Ok(()) | Err(DiskError::NotFound { .. }) => {}
                        Err(remove) => tracing::warn!(%remove, "half made log segment stays"),
                    }
                }
                Err(error)
            }
        }
    }

    async fn make(&self, generation: Generation) -> Result<Segment, LogError> {
        let file = self.disk.open(SPARE, OpenMode::Create).await?;
        // If the file had been a segment, the removal of that name must be durable before the first
        // zero. Otherwise a power cut would leave a segment of zeros under it.
        self.disk.sync_dir(LOG_DIR).await?;
        if file.len().await? > self.segment_bytes {
            file.set_len(self.segment_bytes).await?;
        }
        fill(&*file, SEGMENT_HEADER_BYTES as u64, self.segment_bytes).await?;
        let header =
            SegmentHeader { generation, volume: self.volume, len_bytes: self.segment_bytes };
        file.write_at(0, segment::encode(&header).into()).await?;
        file.sync_data().await?;
        self.disk.rename(SPARE, &path(generation)).await?;
        self.disk.sync_dir(LOG_DIR).await?;
        Ok(Segment { generation, file, len_bytes: self.segment_bytes })
    }

    pub async fn take(&self) -> Result<Segment, LogError> {
        loop {
            self.prepare().await?;
            if let Some(segment) = self.ready.take() {
                return Ok(segment);
            }
        }
    }

    /// The segment without records, if it is ready.
    pub fn ready(&self) -> Option<Generation> {
        self.ready.borrow().as_ref().map(|segment| segment.generation)
    }

    /// Gives up the segment that is ready: its file becomes another one.
    pub async fn discard(&self) -> Result<(), LogError> {
        let _working = self.work.lock().await;
        let Some(ready) = self.ready.take() else { return Ok(()) };
        self.next.set(ready.generation);
        self.give_up(ready.generation).await
    }

    /// Gives up a segment whose records are not needed any more.
    pub async fn recycle(&self, generation: Generation) -> Result<(), LogError> {
        let _working = self.work.lock().await;
        self.give_up(generation).await
    }

    async fn give_up(&self, generation: Generation) -> Result<(), LogError> {
        match self.disk.rename(&path(generation), SPARE).await {
            Ok(()) => {}
            // Done before, by a call whose sync failed.
            Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // Older ones are removed before newer ones, or a power cut would leave a gap in the log.
        self.disk.sync_dir(LOG_DIR).await?;
        Ok(())
    }
}

/// Fills `from..to` with zeros.
pub(super) async fn fill(file: &dyn DiskFile, from: u64, to: u64) -> Result<(), LogError> {
    let zeros = Bytes::from(vec![0; FILL_BYTES.min(to.saturating_sub(from) as usize)]);
    let mut at = from;
    while at < to {
        let piece = zeros.slice(..zeros.len().min((to - at) as usize));
        let len = piece.len() as u64;
        file.write_at(at, piece).await?;
        at += len;
    }
    Ok(())
}

/// Reads the whole file, in pieces.
pub(super) async fn read(file: &dyn DiskFile, len: u64) -> Result<Vec<u8>, LogError> {
    let mut bytes = Vec::with_capacity(len as usize);
    while (bytes.len() as u64) < len {
        let piece =
            file.read_at(bytes.len() as u64, FILL_BYTES.min(len as usize - bytes.len())).await?;
        if piece.is_empty() {
            break;
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}
