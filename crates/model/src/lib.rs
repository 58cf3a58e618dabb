//! Plain data of ebb: the types that cross crates, machines and restarts.
//!
//! Laws:
//! - A value that can be constructed is valid; constructors and decoders reject invalid input.
//! - No I/O, and no rule about the relation of several values: rules are `ebb_core`'s.
//! - Wire and log numbers of variants never change; new variants and fields are appended.

mod attr;
mod command;
mod error;
mod flags;
mod fsck;
mod id;
mod layout;
mod loan;
mod lock;
mod member;
mod name;
mod quota;
mod redact;
mod request;
mod shown;
mod stats;
mod time;
mod trash;

pub use attr::*;
pub use command::*;
pub use error::*;
pub use flags::*;
pub use fsck::*;
pub use id::*;
pub use layout::*;
pub use loan::*;
pub use lock::*;
pub use member::*;
pub use name::*;
pub use quota::*;
pub use redact::*;
pub use request::*;
pub use stats::*;
pub use time::*;
pub use trash::*;
