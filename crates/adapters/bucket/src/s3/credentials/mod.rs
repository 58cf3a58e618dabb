//! Credentials, from the first source in the usual order that has any: keys in the configuration,
//! environment, profile files, web identity, container role, instance role.

mod chain;
mod profile;
mod remote;

pub(super) use chain::{Chain, Start};
pub(super) use profile::Profile;

use crate::http::credentials::Secret;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Credentials {
    pub access_key: String,
    pub secret_key: Secret,
    pub session_token: Option<Secret>,
    /// Seconds since the epoch; none for keys that only an administrator changes.
    pub expires_secs: Option<i64>,
}
