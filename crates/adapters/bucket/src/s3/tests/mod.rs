//! The S3 adapter against servers that fail, and with every source of credentials: the server
//! answers by script.

mod at_rest;
mod checksums;
mod credentials;
mod faults;
mod opening;
mod ways;

use super::{S3, open_in};
use crate::http::remote::Remote;
use crate::{BucketSettings, OpenError};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Opens read-only: the script need only answer one listing.
fn open(
    endpoint: &str,
    settings: BucketSettings,
    variables: &[(&str, &str)],
) -> Result<Remote<S3>, OpenError> {
    open_as(
        BucketSettings { endpoint: Some(endpoint.into()), read_only: true, ..settings },
        variables,
    )
}

fn open_as(settings: BucketSettings, variables: &[(&str, &str)]) -> Result<Remote<S3>, OpenError> {
    let variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    wait(open_in("bucket", "", &settings, Arc::new(move |name| variables.get(name).cloned())))
}

fn keys() -> BucketSettings {
    BucketSettings {
        access_key: Some("AKIATEST".into()),
        secret_key: Some("hush-hush".into()),
        ..BucketSettings::default()
    }
}
