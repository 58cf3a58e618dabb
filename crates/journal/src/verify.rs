//! Verifies the files that a start would read, while the log is in use, and changes nothing.

use super::scan::{Scanner, written};
use super::segments::{self, FILL_BYTES, Segment};
use super::snapshots::{self, PIECE_BYTES, SnapshotFrames};
use super::{Log, LogError};
use ebb_format::record::{GroupId, Position};
use ebb_format::segment::{Generation, SEGMENT_HEADER_BYTES};
use ebb_model::LogIndex;
use ebb_ports::OpenMode;
use std::fmt;
use std::ops::Range;

/// Damage that the next start could not read past: the first place of each kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Damage {
    pub snapshot: Option<LogError>,
    pub segment: Option<LogError>,
}

impl Damage {
    pub fn is_none(&self) -> bool {
        self.snapshot.is_none() && self.segment.is_none()
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> =
            self.snapshot.iter().chain(&self.segment).map(LogError::to_string).collect();
        out.write_str(&all.join("; "))
    }
}

/// The present extent of a segment.
enum Reach {
    /// Records up to this offset, the last of them at this position. The next one follows it.
    Open(u64, Position),
    /// A full segment, which gets no further records.
    Closed,
    /// A segment that is not needed, or not known.
    Gone,
}

impl Log {
    /// Verifies the records written so far that a start would read. `pace` is asked before each
    /// read of so many bytes, and returns how many of them may be read now, at least one. Other
    /// calls go on at the same time.
    pub async fn prove(&self, mut pace: impl AsyncFnMut(u64) -> u64) -> Damage {
        let snapshot = self.prove_snapshots(&mut pace).await.err();
        let segment = self.prove_segments(&mut pace).await.err();
        Damage { snapshot, segment }
    }

    /// About as many as [`Log::prove`] reads.
    pub fn bytes(&self) -> u64 {
        let snapshots = self.snapshots.borrow();
        let of_snapshots: u64 = snapshots.values().map(|taken| taken.len_bytes).sum();
        self.segments.borrow().len() as u64 * self.options.segment_bytes + of_snapshots
    }

    async fn prove_snapshots(
        &self,
        pace: &mut impl AsyncFnMut(u64) -> u64,
    ) -> Result<(), LogError> {
        for (group, index) in snapshots::list(&*self.disk).await? {
            if let Err(error) = self.prove_snapshot(group, index, pace).await
                && snapshots::list(&*self.disk).await?.contains(&(group, index))
            {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn prove_snapshot(
        &self,
        group: GroupId,
        index: LogIndex,
        pace: &mut impl AsyncFnMut(u64) -> u64,
    ) -> Result<(), LogError> {
        let mut may_read = pace(PIECE_BYTES as u64).await;
        let mut frames =
            SnapshotFrames::unproved(&*self.disk, self.options.volume, group, index).await?;
        // A snapshot replaced by a newer one is not kept open.
        while index >= self.snapshot_of(group).index {
            while may_read < frames.read_bytes() + PIECE_BYTES as u64 {
                may_read += pace(PIECE_BYTES as u64).await;
            }
            if frames.next().await?.is_none() {
                break;
            }
        }
        Ok(())
    }

    async fn prove_segments(&self, pace: &mut impl AsyncFnMut(u64) -> u64) -> Result<(), LogError> {
        let mut scanner = Scanner::default();
        let mut next = self.needed(Generation(0));
        while let Some(generation) = next {
            let begun = self.reach(generation).await;
            let read = self.read_segment(generation, pace).await?;
            match (begun, self.reach(generation).await, read) {
                (Reach::Closed, Reach::Closed, Some((segment, bytes))) => {
                    scanner.segment(segment, self.options.volume, &bytes)?
                }
                (
                    Reach::Open(offset, position),
                    now @ (Reach::Open(..) | Reach::Closed),
                    Some((segment, mut bytes)),
                ) => {
                    let end = match now {
                        Reach::Open(now, _) => now,
                        _ => segment.len_bytes,
                    };
                    let corrupt = |offset, what: &str| LogError::Corrupt {
                        file: segments::path(generation),
                        offset,
                        what: what.into(),
                    };
                    let within = |at: u64| (at as usize).min(bytes.len());
                    if let Some(Range { start, .. }) = written(&bytes[within(end)..]) {
                        return Err(corrupt(end + start as u64, "nothing was ever written there"));
                    }
                    // Records written during the read are left to the next verification.
                    let since = within(offset)..within(end);
                    bytes[since].fill(0);
                    scanner.segment(segment, self.options.volume, &bytes)?;
                    return match &scanner.tail {
                        Some(tail) if tail.position == position => {
                            self.prove_ready(generation, pace).await
                        }
                        tail => Err(corrupt(
                            tail.as_ref().map_or(0, |tail| tail.offset),
                            "a record was lost",
                        )),
                    };
                }
                // The segment was given up during the read, with all before it.
                _ => scanner = Scanner::default(),
            }
            next = self.needed(Generation(generation.0 + 1));
        }
        Ok(())
    }

    /// The first segment with records from this one on that a start needs.
    fn needed(&self, from: Generation) -> Option<Generation> {
        let segments = self.segments.borrow();
        segments
            .iter()
            .skip(self.not_needed())
            .map(|used| used.generation)
            .find(|generation| *generation >= from)
    }

    async fn reach(&self, generation: Generation) -> Reach {
        let _turn = self.turns.turn().await;
        let end = self.end.lock().await;
        // The end of a failed log is unknown.
        if self.failed().is_some() || self.needed(generation) != Some(generation) {
            Reach::Gone
        } else if end.segment.generation == generation {
            Reach::Open(end.offset, end.position)
        } else {
            Reach::Closed
        }
    }

    /// `None` if it is not needed any more.
    async fn read_segment(
        &self,
        generation: Generation,
        pace: &mut impl AsyncFnMut(u64) -> u64,
    ) -> Result<Option<(Segment, Vec<u8>)>, LogError> {
        let mut bytes = Vec::new();
        let mut may_read = 0;
        loop {
            if may_read <= bytes.len() as u64 {
                may_read += pace(
                    self.options
                        .segment_bytes
                        .saturating_sub(bytes.len() as u64)
                        .max(PIECE_BYTES as u64),
                )
                .await;
            }
            let _snapshotting = self.snapshotting.lock().await;
            if self.needed(generation) != Some(generation) {
                return Ok(None);
            }
            let file = self.disk.open(&segments::path(generation), OpenMode::Existing).await?;
            let piece = file
                .read_at(
                    bytes.len() as u64,
                    FILL_BYTES.min((may_read - bytes.len() as u64) as usize),
                )
                .await?;
            bytes.extend_from_slice(&piece);
            if piece.is_empty() {
                let segment = Segment { generation, file, len_bytes: bytes.len() as u64 };
                return Ok(Some((segment, bytes)));
            }
        }
    }

    /// The segment behind this one, if it was made ahead.
    async fn prove_ready(
        &self,
        before: Generation,
        pace: &mut impl AsyncFnMut(u64) -> u64,
    ) -> Result<(), LogError> {
        pace(SEGMENT_HEADER_BYTES as u64).await;
        let _snapshotting = self.snapshotting.lock().await;
        let Some(generation) = self.supply.ready().filter(|ready| ready.0 == before.0 + 1) else {
            return Ok(());
        };
        let file = self.disk.open(&segments::path(generation), OpenMode::Existing).await?;
        let bytes = file.read_at(0, SEGMENT_HEADER_BYTES).await?;
        let len_bytes = file.len().await?;
        Scanner::default().header(
            &Segment { generation, file, len_bytes },
            self.options.volume,
            &bytes,
        )
    }
}
