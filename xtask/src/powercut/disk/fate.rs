//! The effect of a power cut on unforced changes: a device with a volatile cache, below a file
//! system that writes back in any order, may keep any subset.

use super::SECTOR_BYTES;
use crate::rng::Rng;

pub struct Fate {
    rng: Rng,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Nothing,
    Everything,
    /// Keeps all changes up to this moment, as if each one had been forced before the next.
    UpTo(u64),
    /// Keeps or loses each change independently, and tears some.
    Writes,
    /// Each sector independently keeps one of its changes.
    Sectors,
    /// One of these modes per file and per name.
    Each,
}

impl Fate {
    /// `time` is that of the last change.
    pub fn draw(mut rng: Rng, time: u64) -> Fate {
        let kind = match rng.below(8) {
            0 => Kind::Nothing,
            1 => Kind::Everything,
            2 => Kind::UpTo(time.saturating_sub(rng.below(RECENT))),
            3 => Kind::Writes,
            4 | 5 => Kind::Sectors,
            _ => Kind::Each,
        };
        Fate { rng, kind }
    }

    #[cfg(test)]
    pub fn new(rng: Rng, kind: Kind) -> Fate {
        Fate { rng, kind }
    }

    /// Decides about the changes of one file, made at these times.
    pub fn of_file(&mut self, times: &[u64]) -> FileFate {
        let kind = match self.kind {
            Kind::Each => [Kind::Nothing, Kind::Everything, Kind::Writes, Kind::Sectors]
                [self.rng.below(4) as usize],
            kind => kind,
        };
        let writes = times.iter().map(|time| self.of_write(kind, *time)).collect();
        FileFate { by_sector: kind == Kind::Sectors, writes }
    }

    fn of_write(&mut self, kind: Kind, time: u64) -> Write {
        match kind {
            Kind::Nothing => Write::Lost,
            Kind::UpTo(last) if time > last => Write::Lost,
            Kind::Everything | Kind::UpTo(_) | Kind::Sectors | Kind::Each => Write::Kept,
            Kind::Writes => match self.rng.below(4) {
                0 | 1 => Write::Kept,
                2 => Write::Lost,
                _ => Write::Torn {
                    modulus: 2 + self.rng.below(TORN_SECTORS),
                    rest: self.rng.below(2),
                },
            },
        }
    }

    /// Whether a namespace change survives.
    pub fn keeps_name(&mut self, time: u64) -> bool {
        match self.kind {
            Kind::Nothing => false,
            Kind::Everything => true,
            Kind::UpTo(last) => time <= last,
            Kind::Writes | Kind::Sectors | Kind::Each => self.rng.below(2) == 0,
        }
    }
}

/// The decision about the changes of one file.
pub struct FileFate {
    by_sector: bool,
    writes: Vec<Write>,
}

#[derive(Clone, Copy)]
enum Write {
    Kept,
    Lost,
    /// Alternately keeps and loses runs of this many sectors.
    Torn {
        modulus: u64,
        rest: u64,
    },
}

impl FileFate {
    /// The last surviving change of this sector or, without a sector, of the length.
    pub fn last_kept(
        &self,
        fate: &mut Fate,
        changes: &[usize],
        sector: Option<u64>,
    ) -> Option<usize> {
        if self.by_sector {
            return match fate.rng.below(changes.len() as u64 + 1) as usize {
                0 => None,
                nth => Some(changes[nth - 1]),
            };
        }
        changes.iter().copied().rev().find(|at| match (self.writes[*at], sector) {
            (Write::Kept, _) | (Write::Torn { .. }, None) => true,
            (Write::Lost, _) => false,
            (Write::Torn { modulus, rest }, Some(sector)) => sector / modulus % 2 == rest,
        })
    }
}

/// Maximum age of the moment of `UpTo`, in changes: some requests of a busy node.
const RECENT: u64 = 200;

/// Longest torn run of sectors: half a block of 64 KiB.
const TORN_SECTORS: u64 = (32 << 10) / SECTOR_BYTES;
