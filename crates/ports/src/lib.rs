//! Interfaces between ebb and its environment. A trait exists only where two real implementations
//! differ: the operating system in production (`adapters/`) and the simulated world (`sim/`).
//! [`Signal`] is a struct because tasks wait in the same way on every executor.
//!
//! Laws:
//! - Each core runs one single-threaded executor: futures need not be `Send`, shared state is `Rc`.
//! - No method blocks the thread for longer than a write into the page cache.

mod bucket;
mod clock;
mod counted;
mod disk;
mod net;
mod shared_memory;
mod signal;

pub use bucket::*;
pub use clock::*;
pub use counted::*;
pub use disk::*;
pub use net::*;
pub use shared_memory::*;
pub use signal::*;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A boxed future of a port method.
pub type PortFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The environment of a node or a client, except its bucket.
#[derive(Clone)]
pub struct Ports {
    pub disk: Rc<dyn Disk>,
    pub net: Rc<dyn Net>,
    pub clock: Rc<dyn Clock>,
    pub entropy: Rc<dyn Entropy>,
    pub spawn: Rc<dyn Spawn>,
}
