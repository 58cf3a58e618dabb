//! The FUSE surface: mounting, the kernel's protocol over `/dev/fuse`, and errno.
//!
//! [`Mount`] puts a connection under a directory, [`Session`] negotiates with the kernel and serves
//! its requests from a [`Filesystem`], [`Notifier`] invalidates the kernel's caches. Everything
//! runs on the thread that serves, except notifications, which can block in the kernel and have a
//! thread of their own.

pub mod abi;

mod access_times;
mod buffer;
mod counters;
mod device;
mod dir_buffer;
mod dispatch;
mod errno;
mod filesystem;
mod fusermount;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod id_mapping;
mod init;
mod interrupt;
mod io_modes;
mod known;
mod lengths;
mod lockers;
mod mount;
mod mount_options;
mod mountinfo;
mod notify;
mod pages;
mod passing;
mod passthrough;
mod profile;
mod reply;
mod request;
mod request_size;
mod session;
mod succession;
mod volume;

pub use access_times::{AccessRule, AccessTimes};
pub use counters::Counters;
pub use dir_buffer::{DirBuffer, Pushed};
pub use errno::Errno;
pub use filesystem::{AttrReply, Caching, EntryReply, Filesystem, Lookup, OpenReply};
pub use id_mapping::{IdMapping, IdMappingError, IdMappings};
pub use init::Negotiated;
pub use interrupt::Interruption;
pub use mount::{LeftMount, Mount, MountError, RemountError, cut_off};
pub use mount_options::{Consistency, MountOptions, MountOptionsError};
pub use notify::{Notification, Notifier, NotifyError, drop_attributes, drop_everything};
pub use passing::{receive_with_fd, send_with_fd};
pub use passthrough::{Passthrough, PassthroughId, Registered};
pub use profile::ProfileUnderWay;
pub use request::{
    Context, CopyEnd, FlagForm, Handle, Ids, LockRequest, Message, OpenFlags, Operation, Rejected,
    Request, SeekTo, WriteMode,
};
pub use session::{Ended, Session, SessionError};
pub use volume::Volume;
