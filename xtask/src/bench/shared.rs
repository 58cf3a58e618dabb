//! A mount that others can join, alone and with a second mount of its volume.

use super::place::Column;
use crate::Outcome;
use crate::rig::{Rig, Shape, Store};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// The measured mount, and the one that has joined it. Drop order: the node outlives its client.
pub struct Served {
    joined: Option<Rig>,
    rig: Rig,
}

impl Served {
    /// Joined by a second mount in the column `shared`.
    pub fn start(column: Column, binaries: &Path) -> Outcome<Served> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let name = if column == Column::Shared { "shared" } else { "alone" };
        let rig = Rig::named(Shape::EmbeddedDir, name, binaries)?;
        let mut rig = rig.with(&["--listen", &address]);
        rig.mount("")?;
        let joined = match column {
            Column::Shared => {
                let node = Store::of(format!("ebb://{address}"), Vec::new());
                let mut second = Rig::over(Shape::EmbeddedDir, "joined", node, binaries)?;
                second.mount("")?;
                Some(second)
            }
            _ => None,
        };
        Ok(Served { joined, rig })
    }

    pub fn point(&self) -> PathBuf {
        self.rig.mountpoint()
    }

    /// Returns when the bucket has everything, also in the eyes of the second mount.
    pub fn settle(&self) -> Outcome<()> {
        self.joined.as_ref().unwrap_or(&self.rig).flush()
    }
}
