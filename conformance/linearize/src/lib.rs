//! A linearizability checker for histories of file system operations: [`history`] records the
//! calls of several mounts, [`model`] is the sequential file system, and [`checker`] searches for
//! an order of the calls that the model permits.
//!
//! Everything is deterministic and free of I/O, except for reading and writing JSON lines.

pub mod checker;
pub mod history;
pub mod model;

pub use checker::{Budget, Verdict, Violation, check};
pub use history::{
    Answer, Data, Errno, History, InodeId, Kind, Op, Operation, Outcome, Owner, Token,
};
pub use model::State;
