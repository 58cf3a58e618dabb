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
    /// Where one thing is right to do.
    pub remedy: Option<Remedy>,
}

/// What puts a problem right. Whoever carries it out looks again whether it is still due.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Remedy {
    /// A damaged block that the bucket has is dropped, fetched and compared.
    Refetch { ino: Ino, block: u64 },
    /// A file whose object is gone, or a directory whose page is not what was written, is written
    /// to the bucket again.
    SendAgain { ino: Ino },
    /// An object below `.ebb/` that nobody refers to is deleted, if it is still this one.
    Delete { key: String, etag: String },
    /// A file of the data directory that nobody refers to is removed.
    Remove { path: String },
    /// A snapshot is written in the place of a damaged one, or of a log that is damaged and goes on
    /// in a new segment.
    Snapshot,
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
pub struct FsckBatch {
    pub report: FsckReport,
    /// Directories that are done, and all there are.
    pub done: u64,
    pub total: u64,
    /// `None` at the end.
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

    /// A problem that only people can decide about.
    pub fn problem(&mut self, what: impl Into<String>) {
        self.problems.push(Problem { what: what.into(), remedy: None });
    }

    pub fn repairable(&mut self, what: impl Into<String>, remedy: Remedy) {
        self.problems.push(Problem { what: what.into(), remedy: Some(remedy) });
    }
}
