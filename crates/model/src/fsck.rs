//! Results of `ebb fsck`.

use crate::Ino;
use serde::{Deserialize, Serialize};

/// Result of a whole check or of one batch of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FsckReport {
    pub inodes: u64,
    pub blocks: u64,
    /// Objects of files and pages of directories that match the node's record of them.
    pub objects: u64,
    pub pages: u64,
    /// Files, pages and deletes that the bucket does not have yet.
    pub waiting: u64,
    /// Keys below `.ebb/` that only an unloaded directory could refer to.
    pub undecided: u64,
    pub problems: Vec<Problem>,
    /// Descriptions of changes by other writers to the bucket, which are not damage.
    pub others: Vec<String>,
}

/// A broken invariant, or bytes that differ from those written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// Description for operators.
    pub what: String,
    /// The repair, if exactly one is correct.
    pub remedy: Option<Remedy>,
}

/// A repair. Its executor first checks that the problem still exists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Remedy {
    /// Drops a damaged block that the bucket holds, fetches it again and verifies it.
    Refetch { ino: Ino, block: u64 },
    /// Writes a file whose object is gone, or a directory whose page is wrong, to the bucket again.
    SendAgain { ino: Ino },
    /// Deletes an unreferenced object below `.ebb/` if its tag is still `etag`.
    Delete { key: String, etag: String },
    /// Removes an unreferenced file of the data directory.
    Remove { path: String },
    /// Writes a snapshot that replaces a damaged one, or a damaged log, which continues in a new
    /// segment.
    Snapshot,
}

/// Position of the comparison with the bucket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FsckPoint {
    /// At this directory; directories with greater ids follow.
    Directories { from: Ino },
    /// At the keys below `.ebb/` greater than `after`.
    Reserved { after: String },
}

impl FsckPoint {
    pub const START: FsckPoint = FsckPoint::Directories { from: Ino(0) };
}

/// Result of one batch of the comparison with the bucket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsckBatch {
    pub report: FsckReport,
    /// Count of compared directories, and of all.
    pub done: u64,
    pub total: u64,
    /// Position of the next batch; `None` at the end.
    pub next: Option<FsckPoint>,
}

impl FsckReport {
    pub fn add(&mut self, part: FsckReport) {
        let FsckReport { inodes, blocks, objects, pages, waiting, undecided, problems, others } =
            part;
        self.inodes += inodes;
        self.blocks += blocks;
        self.objects += objects;
        self.pages += pages;
        self.waiting += waiting;
        self.undecided += undecided;
        self.problems.extend(problems);
        self.others.extend(others);
    }

    /// Adds a problem without an automatic repair.
    pub fn problem(&mut self, what: impl Into<String>) {
        self.problems.push(Problem { what: what.into(), remedy: None });
    }

    pub fn repairable(&mut self, what: impl Into<String>, remedy: Remedy) {
        self.problems.push(Problem { what: what.into(), remedy: Some(remedy) });
    }
}
