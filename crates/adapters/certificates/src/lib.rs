//! Certificates of the connections between nodes, mounts and tools
//! (`docs/decisions/0035-tls.md`).
//!
//! A [`Kind`] stands in each certificate, so that the certificate of a mount cannot serve as that
//! of a node. An [`Authority`] issues certificates, [`Certificate`] describes one for people, and
//! [`Credentials`] are the files that a process uses: the rustls configurations of both directions.

mod authority;
mod certificate;
mod credentials;
mod explain;
mod kind;
mod verify;

pub use authority::{Authority, CA_FILE, CA_KEY_FILE, Request};
pub use certificate::{Certificate, shown_time};
pub use credentials::{CERTIFICATE_FILE, Credentials, KEY_FILE};
pub use explain::explain;
pub use kind::{Identity, Kind};

use ebb_model::shown_path;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum CertificateError {
    /// The caller asks for something that cannot be.
    #[error("{0}")]
    Request(String),
    /// A file is missing, unusable, or in the way.
    #[error("{}: {what}", shown_path(.path.as_os_str().as_bytes()))]
    File { path: PathBuf, what: String },
}

impl CertificateError {
    fn file(path: &Path, what: impl std::fmt::Display) -> CertificateError {
        CertificateError::File { path: path.to_owned(), what: what.to_string() }
    }
}

/// Seconds since 1970.
pub fn now() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    elapsed.as_secs().try_into().unwrap_or(i64::MAX)
}
