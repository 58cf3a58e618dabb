//! Plain data of ebb: what crosses the borders between crates, machines and restarts.
//! No logic beyond what keeps a value from being wrong, and no I/O.

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
