//! The bytes of one file: the current ones, and those that each change since the last force
//! replaced.

use super::fate::Fate;
use super::{Lost, SECTOR_BYTES};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// A file with unforced changes.
///
/// Laws: `file` includes every change. Undoing `changes`, newest first, yields the forced content.
pub struct Cached {
    file: File,
    changes: Vec<Change>,
}

struct Change {
    /// When, counted in changes of the whole disk.
    time: u64,
    /// The length before.
    len: u64,
    /// The replaced sectors, in order; unchanged sectors may be left out.
    before: Vec<Piece>,
}

/// Consecutive sectors.
struct Piece {
    first: u64,
    bytes: Vec<u8>,
}

impl Piece {
    fn sectors(&self) -> Range<u64> {
        self.first..self.first + self.bytes.len() as u64 / SECTOR_BYTES
    }

    fn sector(&self, sector: u64) -> Option<&[u8]> {
        let start = (sector.checked_sub(self.first)? * SECTOR_BYTES) as usize;
        self.bytes.get(start..start + SECTOR_BYTES as usize)
    }
}

impl Change {
    fn sector(&self, sector: u64) -> Option<&[u8]> {
        self.before.iter().find_map(|piece| piece.sector(sector))
    }

    fn sectors(&self) -> impl Iterator<Item = u64> {
        self.before.iter().flat_map(Piece::sectors)
    }
}

impl Cached {
    pub fn new(file: File) -> Cached {
        Cached { file, changes: Vec::new() }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn write(&mut self, time: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let sectors = sectors(offset, data.len() as u64);
        let before = self.piece(sectors)?;
        self.note(time, vec![before])?;
        self.file.write_all_at(data, offset)
    }

    pub fn set_len(&mut self, time: u64, len: u64) -> io::Result<()> {
        let before = self.data(len..u64::MAX)?;
        self.note(time, before)?;
        let set = self.file.set_len(len);
        if set.is_err() {
            self.changes.pop();
        }
        set
    }

    pub fn punch(&mut self, time: u64, offset: u64, len: u64) -> io::Result<()> {
        let before = self.data(offset..offset.saturating_add(len))?;
        self.note(time, before)?;
        self.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len)
    }

    /// Allocates the range, and extends the file if needed.
    pub fn reserve(&mut self, time: u64, offset: u64, len: u64) -> io::Result<()> {
        self.note(time, Vec::new())?;
        self.fallocate(0, offset, len)
    }

    pub fn force(&mut self) {
        self.changes.clear();
    }

    /// Applies a power cut: `fate` decides about each change.
    pub fn settle(&mut self, fate: &mut Fate) -> io::Result<Lost> {
        let changes = std::mem::take(&mut self.changes);
        let mut lost = Lost { writes: changes.len() as u64, ..Lost::default() };
        if changes.is_empty() {
            return Ok(lost);
        }
        let times: Vec<u64> = changes.iter().map(|change| change.time).collect();
        let fates = fate.of_file(&times);
        let mut touched: Vec<u64> = changes.iter().flat_map(Change::sectors).collect();
        touched.sort_unstable();
        touched.dedup();
        let now = self.file.metadata()?.len();
        for sector in touched {
            let covering: Vec<usize> =
                (0..changes.len()).filter(|at| changes[*at].sector(sector).is_some()).collect();
            // After the last kept change the sector holds the bytes that the next change replaced.
            let next = match fates.last_kept(fate, &covering, Some(sector)) {
                None => covering.first(),
                Some(kept) => covering.iter().find(|at| **at > kept),
            };
            if let Some(older) = next.and_then(|at| changes[*at].sector(sector)) {
                lost.sectors += 1;
                self.file.write_all_at(older, sector * SECTOR_BYTES)?;
            }
        }
        let lens: Vec<u64> = changes.iter().map(|change| change.len).chain([now]).collect();
        let resizing: Vec<usize> =
            (0..changes.len()).filter(|at| lens[*at] != lens[*at + 1]).collect();
        let len = match fates.last_kept(fate, &resizing, None) {
            None => lens[0],
            Some(kept) => lens[kept + 1],
        };
        lost.lengths += u64::from(len != now);
        self.file.set_len(len)?;
        Ok(lost)
    }

    fn note(&mut self, time: u64, before: Vec<Piece>) -> io::Result<()> {
        let len = self.file.metadata()?.len();
        self.changes.push(Change { time, len, before });
        Ok(())
    }

    /// The current sectors; beyond the end of the file they are zeros.
    fn piece(&self, sectors: Range<u64>) -> io::Result<Piece> {
        let mut bytes = vec![0; ((sectors.end - sectors.start) * SECTOR_BYTES) as usize];
        let mut have = 0;
        while have < bytes.len() {
            match self
                .file
                .read_at(&mut bytes[have..], sectors.start * SECTOR_BYTES + have as u64)?
            {
                0 => break,
                read => have += read,
            }
        }
        Ok(Piece { first: sectors.start, bytes })
    }

    /// The data of a range, without its holes.
    fn data(&self, range: Range<u64>) -> io::Result<Vec<Piece>> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Some(start) = self.seek(at, libc::SEEK_DATA)? else { break };
            let end = self.seek(start, libc::SEEK_HOLE)?.unwrap_or(start).min(range.end);
            if start >= end {
                break;
            }
            let mut sectors = sectors(start, end - start);
            if let Some(last) = pieces.last() {
                sectors.start = sectors.start.max(last.sectors().end);
            }
            pieces.push(self.piece(sectors)?);
            at = end;
        }
        Ok(pieces)
    }

    fn seek(&self, from: u64, whence: i32) -> io::Result<Option<u64>> {
        let Ok(from) = i64::try_from(from) else { return Ok(None) };
        // SAFETY: lseek takes no memory, and the descriptor is open.
        let found = unsafe { libc::lseek(self.file.as_raw_fd(), from, whence) };
        match u64::try_from(found) {
            Ok(found) => Ok(Some(found)),
            Err(_) => match io::Error::last_os_error() {
                behind if behind.raw_os_error() == Some(libc::ENXIO) => Ok(None),
                error => Err(error),
            },
        }
    }

    fn fallocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let too_large = |_| io::Error::from_raw_os_error(libc::EFBIG);
        let (offset, len) =
            (i64::try_from(offset).map_err(too_large)?, i64::try_from(len).map_err(too_large)?);
        // SAFETY: fallocate takes no memory, and the descriptor is open.
        match unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The sectors that a range touches.
fn sectors(offset: u64, len: u64) -> Range<u64> {
    offset / SECTOR_BYTES..(offset + len).div_ceil(SECTOR_BYTES)
}
