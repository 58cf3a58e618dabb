//! The ports over the real operating system.

mod clock;
mod disk;
mod full;
mod hostile;
mod lock;
mod net;
mod tls;

use ebb_os::OsDisk;
use ebb_ports::Ports;
use std::future::Future;
use tempfile::TempDir;
use tokio::task::LocalSet;

/// Runs `test` like a node: on one thread, with local tasks.
fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    LocalSet::new().block_on(&runtime, test)
}

fn temporary() -> TempDir {
    tempfile::tempdir().expect("the temporary directory is writable")
}

fn disk(dir: &TempDir) -> OsDisk {
    OsDisk::open(dir.path()).expect("a data directory opens")
}

fn ports(dir: &TempDir) -> Ports {
    ebb_os::ports(dir.path()).expect("a data directory opens")
}
