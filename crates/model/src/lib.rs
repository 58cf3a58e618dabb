//! Plain data of ebb: the types that cross crates, machines and restarts.
//!
//! Laws:
//! - Types with restricted values, such as [`Name`] and [`LockRange`], validate them in their
//!   constructors and decoders.
//! - No I/O, and no rule about the relation of several values: rules are `ebb_core`'s.
//! - In the log the numbers and fields of variants never change; new variants are appended. A
//!   change of a type on the wire raises the protocol version.

mod attr;
mod command;
mod error;
mod flags;
mod fsck;
mod grant;
mod id;
mod layout;
mod lock;
mod member;
mod name;
mod planted;
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
pub use grant::*;
pub use id::*;
pub use layout::*;
pub use lock::*;
pub use member::*;
pub use name::*;
pub use planted::*;
pub use quota::*;
pub use redact::*;
pub use request::*;
pub use stats::*;
pub use time::*;
pub use trash::*;
