//! Times and versions of inodes, as far as clients were told them.

use super::history::Event;
use super::tree::Mismatch;
use crate::WallRecord;
use ebb_model::{Attr, Time, Version};
use std::time::Duration;

/// The knowledge about one time of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    /// Any time.
    Unknown,
    /// A client set it or was told it.
    Told(Time),
    /// The time of a change after this moment of true time, which no client was told.
    Since(Duration),
    /// The time of the operation that is being executed.
    Now,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Times {
    pub atime: Moment,
    pub mtime: Moment,
    pub ctime: Moment,
    pub btime: Moment,
    /// The version that a client was told last.
    version: Option<Version>,
    /// The inode has changed since a client was told its version.
    is_changed: bool,
}

/// When an operation was called and answered, in true time.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    pub called: Duration,
    pub answered: Duration,
    pub clocks: &'a Clocks,
}

impl Span<'_> {
    /// The time of an operation whose reply does not show it. It is rounded down; otherwise each
    /// order of overlapping operations would be a state of its own.
    pub(super) fn since(&self) -> Moment {
        let step = GRAIN.as_nanos() as u64;
        let called = self.called.as_nanos() as u64;
        Moment::Since(Duration::from_nanos(called - called % step))
    }
}

const GRAIN: Duration = Duration::from_millis(50);

impl Times {
    pub fn all(moment: Moment) -> Times {
        let (atime, mtime, ctime, btime) = (moment, moment, moment, moment);
        Times { atime, mtime, ctime, btime, version: None, is_changed: false }
    }

    /// The inode changes: its ctime and its version follow.
    pub fn change(&mut self, at: Moment) {
        self.ctime = at;
        self.is_changed = true;
    }

    /// The data or the names of the inode change.
    pub fn modify(&mut self, at: Moment) {
        self.mtime = at;
        self.change(at);
    }

    /// A change of atime alone, which leaves ctime.
    pub fn access(&mut self, at: Moment) {
        self.atime = at;
        self.is_changed = true;
    }

    pub fn forget_version(&mut self) {
        (self.version, self.is_changed) = (None, false);
    }

    pub fn has_now(&self) -> bool {
        [self.atime, self.mtime, self.ctime, self.btime].contains(&Moment::Now)
    }

    /// The operation has no answer that shows its time.
    pub fn untold(&mut self, span: &Span<'_>) {
        let Times { atime, mtime, ctime, btime, .. } = self;
        for moment in [atime, mtime, ctime, btime] {
            if *moment == Moment::Now {
                *moment = span.since();
            }
        }
    }

    /// The times after an answer has shown `attr`, or why the answer is wrong. With `may_grow` the
    /// version also grows without a change, as when the names of a directory are loaded.
    pub fn told(&self, attr: &Attr, may_grow: bool, span: &Span<'_>) -> Result<Times, Mismatch> {
        let mut now = None;
        let mut told = |what: &str, moment: Moment, shown: Time| {
            let from = match moment {
                Moment::Unknown => None,
                Moment::Told(time) if time != shown => {
                    return Err(format!("{what} is {shown:?} in place of {time:?}"));
                }
                Moment::Told(_) => None,
                Moment::Since(from) => Some(from),
                Moment::Now if *now.get_or_insert(shown) != shown => {
                    return Err(format!("{what} is {shown:?}, other times of the change differ"));
                }
                Moment::Now => Some(span.called),
            };
            let is_possible =
                from.is_none_or(|from| span.clocks.have_shown(shown, from, span.answered));
            if is_possible {
                Ok(Moment::Told(shown))
            } else {
                Err(format!("{what} is {shown:?}, which is not the time of its last change"))
            }
        };
        let times = Times {
            ctime: told("ctime", self.ctime, attr.ctime)?,
            mtime: told("mtime", self.mtime, attr.mtime)?,
            atime: told("atime", self.atime, attr.atime)?,
            btime: told("birth time", self.btime, attr.btime)?,
            version: Some(attr.version),
            is_changed: false,
        };
        match self.version {
            Some(last) if attr.version < last => {
                Err(format!("is version {} after {}", attr.version.0, last.0))
            }
            Some(last) if attr.version == last && self.is_changed => {
                Err(format!("has changed and is still version {}", last.0))
            }
            Some(last) if attr.version > last && !self.is_changed && !may_grow => {
                Err(format!("is version {} after {} without a change", attr.version.0, last.0))
            }
            _ => Ok(times),
        }
    }
}

/// The wall clocks of the machines that served the volume, each from some moment of true time to
/// that of the next ones. Machines of the same moment serve in turns.
#[derive(Clone, Default)]
pub struct Clocks {
    records: Vec<(Duration, WallRecord)>,
}

impl Clocks {
    pub fn of(history: &[(Duration, Event)]) -> Clocks {
        let records = history.iter().filter_map(|(at, event)| match event {
            Event::Served { clock } => Some((*at, clock.clone())),
            _ => None,
        });
        Clocks { records: records.collect() }
    }

    /// Whether the clock of the serving machine showed `time` from `from` to `to`. A history
    /// without clocks allows every time.
    fn have_shown(&self, time: Time, from: Duration, to: Duration) -> bool {
        let end_of = |begin: Duration| {
            let later = self.records.iter().map(|(at, _)| *at).find(|at| *at > begin);
            later.unwrap_or(Duration::MAX)
        };
        self.records.is_empty()
            || self.records.iter().any(|(begin, clock)| {
                let (from, to) = (from.max(*begin), to.min(end_of(*begin)));
                from <= to && clock.has_shown(time, from, to)
            })
    }
}
