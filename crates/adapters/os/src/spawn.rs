//! The spawn port over tokio.

use ebb_ports::{PortFuture, Spawn};

/// Tasks of tokio's current `LocalSet`.
pub struct OsSpawn;

impl Spawn for OsSpawn {
    fn spawn(&self, task: PortFuture<'static, ()>) {
        // The task ends by itself, as the port requires; the handle is not needed.
        drop(tokio::task::spawn_local(task));
    }
}
