//! Runs an example server: `EXAMPLE … MOUNTPOINT` serves until the unmount or SIGTERM, and prints
//! `ready` once the mount answers.

use ebb_fuse::{Filesystem, Mount, MountOptions, Passthrough, Session};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// `options.passthrough` enables the argument of `make`.
pub fn serve<F: Filesystem>(
    point: &Path,
    options: &MountOptions,
    make: impl FnOnce(Option<Passthrough>) -> io::Result<F>,
) -> io::Result<()> {
    let mount = Mount::new(point, options).map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        let session = Session::start(mount).await.map_err(io::Error::other)?;
        let fs = make(session.passthrough())?;
        println!("ready");
        let stop = async { terminated.recv().await.unwrap_or_default() };
        session.serve(&fs, stop, Duration::from_secs(10)).await.map_err(io::Error::other)?;
        Ok(())
    })
}
