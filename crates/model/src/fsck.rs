//! What a check of a volume has come to (`ebb fsck`).

use crate::Ino;
use serde::{Deserialize, Serialize};

/// Of a whole check, or of one part of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FsckReport {
    pub inodes: u64,
    pub blocks: u64,
    /// Files' objects that the bucket has as the node knows them, and pages of directories.
    pub objects: u64,
    pub pages: u64,
    /// What the bucket does not have yet: files, pages and deletes.
    pub waiting: u64,
    /// Keys below `.ebb/` of which only directories that are not loaded can tell whose they are.
    pub undecided: u64,
    pub problems: Vec<Problem>,
    /// What others have done to the bucket, in words: it is no damage.
    pub others: Vec<String>,
}

/// A broken invariant, or bytes that are not what was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// In words.
    pub what: String,
}

/// Where the comparison with the bucket goes on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FsckPoint {
    /// With this directory, and those with greater ids.
    Directories { from: Ino },
    /// With the keys below `.ebb/` that are greater.
    Reserved { after: String },
}

impl FsckPoint {
    pub const START: FsckPoint = FsckPoint::Directories { from: Ino(0) };
}

/// What one part of the comparison with the bucket has come to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsckPart {
    pub report: FsckReport,
    /// Directories that are done, and all there are.
    pub done: u64,
    pub total: u64,
    /// `None` at the end.
    pub next: Option<FsckPoint>,
}

impl FsckReport {
    pub fn add(&mut self, part: FsckReport) {
        let FsckReport { inodes, blocks, objects, pages, waiting, undecided, problems, others } = part;
        self.inodes += inodes;
        self.blocks += blocks;
        self.objects += objects;
        self.pages += pages;
        self.waiting += waiting;
        self.undecided += undecided;
        self.problems.extend(problems);
        self.others.extend(others);
    }

    pub fn problem(&mut self, what: impl Into<String>) {
        self.problems.push(Problem { what: what.into() });
    }
}
