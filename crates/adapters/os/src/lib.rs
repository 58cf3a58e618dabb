//! The ports over Linux. Nothing here decides anything: each method is one operation of the
//! operating system, with its errors mapped to those of the ports.
//!
//! The ports must run inside a tokio `LocalSet` (or local runtime) with I/O and time enabled.

mod clock;
mod descriptors;
mod disk;
mod entropy;
mod file;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod memory;
mod net;
mod security;
mod shared_memory;
mod spawn;

pub use clock::OsClock;
pub use disk::OsDisk;
pub use entropy::OsEntropy;
pub use memory::memory_bytes;
pub use net::OsNet;
pub use security::Security;
pub use shared_memory::OsSharedMemory;
pub use spawn::OsSpawn;

use ebb_ports::{DiskError, Ports};
use std::path::Path;
use std::rc::Rc;

/// The ports with `data_dir` as the disk. Creates a missing directory and raises the limit of open
/// file descriptors.
pub fn ports(data_dir: &Path) -> Result<Ports, DiskError> {
    if let Err(error) = descriptors::raise() {
        tracing::warn!("the limit of descriptors cannot be raised: {error}");
    }
    Ok(Ports {
        disk: Rc::new(OsDisk::open(data_dir)?),
        net: Rc::new(OsNet::default()),
        clock: Rc::new(OsClock),
        entropy: Rc::new(OsEntropy),
        spawn: Rc::new(OsSpawn),
    })
}
