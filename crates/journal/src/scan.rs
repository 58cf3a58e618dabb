//! Reads the whole log and checks it, changing nothing (`docs/format/log.md`, recovery).

use super::replicated::{Checkpoint, GroupEnd, Kind, Release};
use super::segments::{self, Segment};
use super::{Frontier, LogError, MAX_SEGMENT_BYTES, Received};
use ebb_format::FormatError;
use ebb_format::record::{
    self, Base, Decoded, GroupId, GroupTail, Payload, Position, Record, RecordHeader, Term,
};
use ebb_format::segment::{self as header, Generation, SEGMENT_HEADER_BYTES, VolumeId};
use ebb_model::{Incarnation, LogIndex};
use ebb_ports::{Disk, OpenMode};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The content of a sound log.
pub(super) struct Scan {
    /// Segments with records, oldest first. All but the last are whole and were synced.
    pub segments: Vec<Used>,
    /// `None` if there is no record at all.
    pub tail: Option<Tail>,
    /// Segments without records once `junk` is wiped, oldest first.
    pub empty: Vec<Segment>,
    pub junk: Option<Junk>,
    /// Commands that a power cut took and that an earlier run has cut.
    pub cuts: Vec<Cut>,
    /// Segments before `segments` that a snapshot was about to give up, oldest first.
    pub given_up: Vec<Generation>,
    /// The last forced checkpoint of each replicated group.
    pub checkpoints: BTreeMap<GroupId, Checkpoint>,
    /// The received snapshots that a start goes on from.
    pub received: BTreeMap<(GroupId, LogIndex), Received>,
}

pub(super) struct Used {
    pub generation: Generation,
    /// The last commands before the segment that count. Of a replicated group: the last entry
    /// that no forced record voids.
    pub base: Frontier,
}

/// The end of the log. `forced <= groups.last <= position`, and `synced < position`.
pub(super) struct Tail {
    pub segment: Segment,
    /// The offset behind the last record.
    pub offset: u64,
    pub position: Position,
    /// How far the log had been synced when its last record was written.
    pub synced: Position,
    /// Where the first record behind `synced` begins, if that is in this segment, or the segment.
    pub unsynced_from: u64,
    pub forced: Position,
    pub groups: Groups,
    pub boot_id: u128,
    pub incarnation: Incarnation,
}

/// The groups after the commands that count.
#[derive(Clone, Default)]
pub(super) struct Groups {
    ends: BTreeMap<GroupId, GroupEnd>,
    /// The last command. `base <= last`.
    last: Position,
    /// The last command before the log, whose segments have been given up.
    base: Position,
    /// Commands that were not forced, in order.
    unforced: VecDeque<Unforced>,
    /// Of replicated groups, in order.
    resets: Vec<Reset>,
    bases: Vec<BaseAt>,
}

/// A command or a record of a replicated group, and what a cut before it restores.
#[derive(Clone, Copy)]
struct Unforced {
    position: Position,
    group: GroupId,
    group_before: GroupEnd,
    before: Position,
    release: Option<Release>,
}

/// A record that voids entries of a replicated group. A snapshot from before it that has a later
/// entry than `snapshot` belongs to an earlier replica.
#[derive(Clone, Copy)]
struct Reset {
    position: Position,
    group: GroupId,
    snapshot: LogIndex,
}

/// A base of a replicated group in the log.
#[derive(Clone, Copy)]
struct BaseAt {
    position: Position,
    group: GroupId,
    index: LogIndex,
    term: Term,
}

impl Groups {
    /// The groups of a log that begins with this start record.
    fn of(start: &record::Start) -> Groups {
        let end = |tail: &GroupTail| (tail.group, stated(tail));
        Groups {
            ends: start.groups.iter().map(end).collect(),
            last: start.cut,
            base: start.cut,
            ..Groups::default()
        }
    }

    pub fn ends(&self) -> impl Iterator<Item = (GroupId, GroupEnd)> + '_ {
        self.ends.iter().map(|(group, end)| (*group, *end))
    }

    pub fn frontier(&self) -> Frontier {
        Frontier::new(self.last, self.ends().map(|(group, end)| (group, end.last.0)))
    }

    /// Adds the next command, if it follows the others.
    fn add(&mut self, header: &RecordHeader) -> Result<(), String> {
        let end = self.ends.entry(header.group).or_default();
        let (index, _) = end.last;
        if header.index.0 != index.0 + 1 {
            return Err(format!(
                "a record of index {} after command {} in group {}",
                header.index.0, index.0, header.group.0
            ));
        }
        if header.term < end.term {
            return Err(format!(
                "a record of term {} after term {} in group {}",
                header.term.0, end.term.0, header.group.0
            ));
        }
        let group_before = *end;
        end.term = header.term;
        end.last = (header.index, header.term);
        self.push(header, group_before, None);
        Ok(())
    }

    /// Adds the next record of a replicated group, if it follows the others.
    fn add_replicated(&mut self, header: &RecordHeader, kind: Kind) -> Result<(), String> {
        let &RecordHeader { group, position, term, index, generation, .. } = header;
        let end = self.ends.entry(group).or_default();
        let group_before = *end;
        let void =
            end.advance(kind, term, index).map_err(|what| format!("group {}: {what}", group.0))?;
        if let Some(void) = void {
            self.resets.push(Reset { position, group, snapshot: void.snapshot });
        }
        if matches!(kind, Kind::Base { .. }) {
            self.bases.push(BaseAt { position, group, index, term });
        }
        self.push(
            header,
            group_before,
            Release::of((position, group, index), kind, void, generation),
        );
        Ok(())
    }

    fn push(&mut self, header: &RecordHeader, group_before: GroupEnd, release: Option<Release>) {
        let &RecordHeader { group, position, .. } = header;
        let before = self.last;
        self.unforced.push_back(Unforced { position, group, group_before, before, release });
        self.last = position;
    }

    fn is_replicated(&self, group: GroupId) -> bool {
        self.ends.get(&group).is_some_and(|end| end.is_replicated)
    }

    pub fn replicated(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.ends().filter(|(_, end)| end.is_replicated).map(|(group, _)| group)
    }

    /// What the records that were not forced release once they are.
    pub fn releases(&self) -> impl Iterator<Item = Release> + '_ {
        self.unforced.iter().filter_map(|unforced| unforced.release)
    }

    /// Whether a snapshot of the group that was taken at `position` belongs to an earlier replica.
    pub fn is_of_earlier_replica(
        &self,
        group: GroupId,
        index: LogIndex,
        position: Position,
    ) -> bool {
        let is_later = |reset: &&Reset| reset.group == group && reset.position > position;
        self.resets.iter().filter(is_later).any(|reset| index > reset.snapshot)
    }

    /// Positions and terms of the bases with this index, newest first.
    pub fn bases(
        &self,
        group: GroupId,
        index: LogIndex,
    ) -> impl Iterator<Item = (Position, Term)> + '_ {
        let of_index = self.bases.iter().rev();
        let of_index = of_index.filter(move |base| (base.group, base.index) == (group, index));
        of_index.map(|base| (base.position, base.term))
    }

    /// The index of the snapshot that a replicated group goes on from at least.
    pub fn base_index(&self, group: GroupId) -> LogIndex {
        let last = self.bases.iter().rev().find(|base| base.group == group);
        last.filter(|base| !self.is_of_earlier_replica(group, base.index, base.position))
            .map_or(LogIndex(0), |base| base.index)
    }

    /// Returns what these records release.
    fn force(&mut self, upto: Position) -> Vec<Release> {
        let forced = self.unforced.partition_point(|unforced| unforced.position <= upto);
        self.unforced.drain(..forced).filter_map(|unforced| unforced.release).collect()
    }

    /// Cuts the commands behind `to`, which is not below the forced ones. Returns their number. The
    /// terms of groups that are not replicated stay: they are not used again.
    pub fn cut(&mut self, to: Position) -> u64 {
        let mut cut = 0;
        while let Some(last) = self.unforced.pop_back_if(|last| last.position > to) {
            self.last = last.before;
            let end = self.ends.entry(last.group).or_default();
            let before = last.group_before;
            let term = match before.is_replicated {
                true => before.term,
                false => end.term.max(before.term),
            };
            *end = GroupEnd { term, ..before };
            cut += 1;
        }
        self.resets.retain(|reset| reset.position <= to);
        self.bases.retain(|base| base.position <= to);
        cut
    }

    /// Goes on as a start record states. Returns whether it makes commands void.
    fn start(&mut self, start: &record::Start) -> Result<bool, String> {
        let mut is_cut = self.cut(start.cut) > 0;
        let is_in_base = start.cut < self.base;
        if is_in_base {
            // The segments with the first void commands have been given up.
            is_cut = true;
            (self.last, self.base) = (start.cut, start.cut);
            for tail in &start.groups {
                if tail.is_replicated || self.is_replicated(tail.group) {
                    self.ends.insert(tail.group, stated(tail));
                }
            }
        }
        if self.last != start.cut {
            return Err(format!(
                "a start record that cuts behind record {}, which is no command",
                start.cut.0
            ));
        }
        let named = |group| start.groups.iter().any(|tail| tail.group == group);
        if let Some((group, _)) = self.ends().find(|(group, _)| !named(*group)) {
            return Err(format!("a start record without group {}", group.0));
        }
        for tail in &start.groups {
            let end = self.ends.entry(tail.group).or_default();
            if is_in_base && tail.index < end.last.0 {
                end.last = (tail.index, Term(0));
            }
            if tail.is_replicated != end.is_replicated
                || tail.index != end.last.0
                || tail.term < end.term
                || (tail.is_replicated && tail.term != end.term)
            {
                return Err(format!(
                    "a start record of term {} and index {} after term {} and index {} in group {}",
                    tail.term.0, tail.index.0, end.term.0, end.last.0.0, tail.group.0
                ));
            }
            end.term = tail.term;
        }
        Ok(is_cut)
    }

    /// Whether the log has the state after the command at `upto`.
    pub fn reaches(&self, upto: Position) -> bool {
        self.base <= upto
    }
}

/// The end of a group at the cut of a start.
fn stated(tail: &GroupTail) -> GroupEnd {
    let &GroupTail { term, index, is_replicated, .. } = tail;
    // The term of the last command of another group is not stated.
    let last = if is_replicated { term } else { Term(0) };
    GroupEnd { term, last: (index, last), is_replicated }
}

/// Commands behind `after` that stand before `before` are void.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub after: Position,
    pub before: Position,
}

/// Bytes that an interrupted write left behind the end of the log: `offset..end` of a segment.
pub(super) struct Junk {
    pub segment: Segment,
    pub offset: u64,
    pub end: u64,
}

/// Scans the segments from this one on.
pub(super) async fn scan(
    disk: &dyn Disk,
    volume: VolumeId,
    from: Generation,
) -> Result<Scan, LogError> {
    let mut scanner = Scanner::default();
    read(disk, volume, from, &mut scanner).await?;
    scanner.finish(disk.boot_id())
}

/// Scans the log up to the first damage, if there is any. Not for going on from there.
pub(super) async fn scan_before_damage(
    disk: &dyn Disk,
    volume: VolumeId,
) -> Result<Scan, LogError> {
    let mut scanner = Scanner::default();
    match read(disk, volume, Generation(0), &mut scanner).await {
        Ok(()) | Err(LogError::Corrupt { .. }) => Ok(scanner.found()),
        Err(error) => Err(error),
    }
}

/// The newest segment that begins with a whole record, and whose earlier commands are all covered:
/// with snapshots of them, the segments before it are not needed.
pub(super) async fn begins_below(
    disk: &dyn Disk,
    volume: VolumeId,
    is_covered: impl Fn(&Frontier) -> bool,
) -> Result<Option<Generation>, LogError> {
    for generation in segments::list(disk).await?.into_iter().rev() {
        let mut scanner = Scanner::default();
        let file = disk.open(&segments::path(generation), OpenMode::Existing).await?;
        let len = file.len().await?;
        let bytes = segments::read(
            &*file,
            len.min((SEGMENT_HEADER_BYTES + record::MAX_RECORD_BYTES) as u64),
        )
        .await?;
        let segment = Segment { generation, file, len_bytes: len };
        if scanner.header(&segment, volume, &bytes).is_err() {
            continue;
        }
        if let Decoded::Record(first) = record::decode(&bytes[SEGMENT_HEADER_BYTES..])
            && scanner
                .record(&segment, &segments::path(generation), SEGMENT_HEADER_BYTES as u64, &first)
                .is_ok()
            && scanner.used.iter().all(|used| is_covered(&used.base))
            // The promises of a replicated group may be in an earlier segment.
            && scanner.tail.iter().all(|tail| tail.groups.replicated().next().is_none())
        {
            return Ok(Some(generation));
        }
    }
    Ok(None)
}

async fn read(
    disk: &dyn Disk,
    volume: VolumeId,
    from: Generation,
    scanner: &mut Scanner,
) -> Result<(), LogError> {
    let mut before: Option<Generation> = None;
    for generation in
        segments::list(disk).await?.into_iter().filter(|generation| *generation >= from)
    {
        let path = segments::path(generation);
        if before.replace(generation).is_some_and(|before| before.0 + 1 != generation.0) {
            return Err(LogError::Corrupt {
                file: path,
                offset: 0,
                what: "the segment before it is missing".into(),
            });
        }
        let file = disk.open(&path, OpenMode::Existing).await?;
        let len = file.len().await?;
        if len > MAX_SEGMENT_BYTES {
            return Err(LogError::Corrupt {
                file: path,
                offset: 0,
                what: format!("no segment has {len} bytes"),
            });
        }
        let bytes = segments::read(&*file, len).await?;
        scanner.segment(Segment { generation, file, len_bytes: len }, volume, &bytes)?;
    }
    Ok(())
}

/// The range from the first nonzero byte to the last.
pub(super) fn written(bytes: &[u8]) -> Option<Range<usize>> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let is_written = |part: &[u8]| *part != ZEROS[..part.len()];
    let first = bytes.chunks(ZEROS.len()).position(is_written)? * ZEROS.len();
    let last = bytes.chunks(ZEROS.len()).rposition(is_written)? * ZEROS.len();
    let (start, end) = (
        bytes[first..].iter().position(|byte| *byte != 0)?,
        bytes[last..].chunks(ZEROS.len()).next()?.iter().rposition(|byte| *byte != 0)?,
    );
    Some(first + start..last + end + 1)
}

/// Checks one segment after the other.
#[derive(Default)]
pub(super) struct Scanner {
    used: Vec<Used>,
    pub tail: Option<Tail>,
    empty: Vec<Segment>,
    gap: Option<Gap>,
    cuts: Vec<Cut>,
    checkpoints: BTreeMap<GroupId, Checkpoint>,
    /// The offsets of the records of the tail's segment.
    offsets: Vec<(Position, u64)>,
}

/// A place where records end and other bytes than zeros follow.
struct Gap {
    junk: Junk,
    what: String,
    /// Whether whole records follow in the segment, and how far the log had been synced when they
    /// were written.
    later: bool,
    synced: Position,
}

impl Gap {
    fn corrupt(&self) -> LogError {
        LogError::Corrupt {
            file: segments::path(self.junk.segment.generation),
            offset: self.junk.offset,
            what: self.what.clone(),
        }
    }
}

impl Scanner {
    pub fn header(
        &self,
        segment: &Segment,
        volume: VolumeId,
        bytes: &[u8],
    ) -> Result<(), LogError> {
        let (file, len) = (segments::path(segment.generation), segment.len_bytes);
        let found = header::decode(bytes).map_err(|error| LogError::format(&file, 0, error))?;
        if found.volume != volume {
            return Err(LogError::Foreign {
                file,
                found: found.volume.to_string(),
                expected: volume.to_string(),
            });
        }
        if found.generation != segment.generation {
            return Err(LogError::Corrupt {
                file,
                offset: 0,
                what: format!("its header is of generation {}", found.generation.0),
            });
        }
        if ![0, len].contains(&found.len_bytes) {
            let what = format!("it has {len} bytes and was made with {}", found.len_bytes);
            return Err(LogError::Corrupt { file, offset: len.min(found.len_bytes), what });
        }
        Ok(())
    }

    /// `bytes` are the segment's whole content.
    pub fn segment(
        &mut self,
        segment: Segment,
        volume: VolumeId,
        bytes: &[u8],
    ) -> Result<(), LogError> {
        self.header(&segment, volume, bytes)?;
        let path = &segments::path(segment.generation);
        let mut offset = SEGMENT_HEADER_BYTES;
        let what = loop {
            match record::decode(&bytes[offset..]) {
                Decoded::Record(record) => {
                    if let Some(gap) = &self.gap {
                        // The next segment is begun only after this one was synced.
                        return Err(gap.corrupt());
                    }
                    self.record(&segment, path, offset as u64, &record)?;
                    offset += record.consumed;
                }
                Decoded::End => break "a record was lost".to_string(),
                Decoded::Torn(error) => break error.to_string(),
                Decoded::Corrupt(error) => {
                    return Err(LogError::format(path, offset as u64, shifted(error, offset)));
                }
            }
        };
        if offset == SEGMENT_HEADER_BYTES {
            self.empty.push(segment.clone());
        }
        let rest = &bytes[offset..];
        let Some(Range { end, .. }) = written(rest) else { return Ok(()) };
        if let Some(gap) = &self.gap {
            return Err(gap.corrupt());
        }
        let after = self.tail.as_ref().map_or(Position(0), |tail| tail.position);
        let mut later = record::later(rest, segment.generation, after).peekable();
        self.gap = Some(Gap {
            later: later.peek().is_some(),
            synced: later.map(|header| header.synced).max().unwrap_or_default(),
            junk: Junk { segment, offset: offset as u64, end: (offset + end) as u64 },
            what,
        });
        Ok(())
    }

    fn record(
        &mut self,
        segment: &Segment,
        path: &str,
        offset: u64,
        record: &Record,
    ) -> Result<(), LogError> {
        let header = &record.header;
        let corrupt = |what: String| LogError::Corrupt { file: path.to_string(), offset, what };
        if header.generation != segment.generation {
            return Err(corrupt(format!("a record of generation {}", header.generation.0)));
        }
        if header.synced >= header.position {
            return Err(corrupt(format!(
                "record {} says that record {} was synced before it",
                header.position.0, header.synced.0
            )));
        }
        let begins = offset == SEGMENT_HEADER_BYTES as u64;
        let Some(tail) = &mut self.tail else {
            let Payload::Start(start) = &record.payload else {
                return Err(corrupt("the log begins without a start record".into()));
            };
            if start.forced > start.cut || start.cut >= header.position || header.index.0 != 0 {
                return Err(corrupt(format!(
                    "start record {}, which forces record {} and cuts behind record {}",
                    header.position.0, start.forced.0, start.cut.0
                )));
            }
            let groups = Groups::of(start);
            self.used.push(Used { generation: segment.generation, base: groups.frontier() });
            self.offsets.push((header.position, offset));
            self.tail = Some(Tail {
                segment: segment.clone(),
                offset: offset + record.consumed as u64,
                position: header.position,
                synced: header.synced,
                unsynced_from: offset,
                forced: start.forced,
                groups,
                boot_id: start.boot_id,
                incarnation: start.incarnation,
            });
            return Ok(());
        };
        if header.position.0 != tail.position.0 + 1 {
            let what = format!(
                "after record {} comes record {} in {path}",
                tail.position.0, header.position.0
            );
            return Err(LogError::Corrupt {
                file: segments::path(tail.segment.generation),
                offset: tail.offset,
                what,
            });
        }
        match &record.payload {
            Payload::Command(_) if !begins && tail.groups.is_replicated(header.group) => {
                tail.groups.add_replicated(header, Kind::Entry).map_err(corrupt)?;
            }
            Payload::Command(_) | Payload::Local(_) if !begins => {
                tail.groups.add(header).map_err(corrupt)?;
            }
            Payload::Step(_) if !begins => {
                tail.groups.add_replicated(header, Kind::Entry).map_err(corrupt)?;
            }
            &Payload::Base(Base { is_checkpoint, .. }) if !begins => {
                tail.groups
                    .add_replicated(header, Kind::Base { is_checkpoint })
                    .map_err(corrupt)?;
            }
            Payload::Promise(_) if !begins => {
                tail.groups.add_replicated(header, Kind::Promise).map_err(corrupt)?;
            }
            Payload::Forced { upto }
                if !begins
                    && header.index.0 == 0
                    && (tail.forced..=tail.groups.last).contains(upto) =>
            {
                tail.forced = *upto;
                for release in tail.groups.force(*upto) {
                    release.apply(&mut self.used, &mut self.checkpoints);
                }
            }
            Payload::Start(start)
                if header.index.0 == 0
                    && start.forced == tail.forced
                    && (tail.forced..=tail.groups.last).contains(&start.cut) =>
            {
                if tail.groups.start(start).map_err(corrupt)? {
                    self.cuts.push(Cut { after: start.cut, before: header.position });
                    let kept = tail.groups.frontier();
                    self.used.iter_mut().for_each(|used| used.base.cut(&kept));
                }
                (tail.boot_id, tail.incarnation) = (start.boot_id, start.incarnation);
            }
            _ => return Err(corrupt("a record that cannot stand here".into())),
        }
        if begins {
            self.used.push(Used { generation: segment.generation, base: tail.groups.frontier() });
            self.offsets.clear();
            tail.segment = segment.clone();
        }
        self.offsets.push((header.position, offset));
        tail.offset = offset + record.consumed as u64;
        tail.position = header.position;
        tail.synced = header.synced;
        Ok(())
    }

    fn finish(mut self, boot_id: u128) -> Result<Scan, LogError> {
        if let Some(tail) = &mut self.tail {
            let first = self.offsets.partition_point(|(position, _)| *position <= tail.synced);
            tail.unsynced_from = self.offsets.get(first).map_or(tail.offset, |(_, offset)| *offset);
        }
        if let Some(gap) = &self.gap {
            let (missing, same_boot) = match &self.tail {
                Some(tail) => (Position(tail.position.0 + 1), tail.boot_id == boot_id),
                None => (Position(1), false),
            };
            // Nothing but the last write can be missing if the machine never went down.
            if gap.synced >= missing || (same_boot && gap.later) {
                return Err(gap.corrupt());
            }
        }
        Ok(self.found())
    }

    fn found(self) -> Scan {
        let junk = self.gap.map(|gap| gap.junk);
        Scan {
            segments: self.used,
            tail: self.tail,
            empty: self.empty,
            junk,
            cuts: self.cuts,
            given_up: Vec::new(),
            checkpoints: self.checkpoints,
            received: BTreeMap::new(),
        }
    }
}

/// Makes an offset within a record one within the file, which a person can look up.
fn shifted(error: FormatError, by: usize) -> FormatError {
    match error {
        FormatError::Checksum { format, offset, what } => {
            FormatError::Checksum { format, offset: offset + by as u64, what }
        }
        FormatError::Invalid { format, offset, what } => {
            FormatError::Invalid { format, offset: offset + by as u64, what }
        }
        FormatError::Truncated { format, offset, what } => {
            FormatError::Truncated { format, offset: offset + by as u64, what }
        }
        FormatError::Foreign { .. } | FormatError::Version { .. } | FormatError::TooLong { .. } => {
            error
        }
    }
}
