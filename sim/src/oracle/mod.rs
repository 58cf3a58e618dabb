//! The required behaviour of a volume: the history of a run, and the checker that must explain it.

mod acl;
mod checker;
mod content;
mod history;
mod times;
mod tree;
mod versions;

pub use checker::{Checker, Permitted, Verdict};
pub use content::Content;
pub use history::{
    ClientId, Event, History, Identity, Op, OpId, Outcome, Position, SeenNode, SeenTree, StreamId,
    describe,
};
pub use tree::Tree;
pub use versions::StoredObject;
