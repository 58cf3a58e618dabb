//! The Azure adapter with a faulty service and with each credential source, against a scripted
//! server.

mod credentials;
mod faults;
mod requests;

use super::{Blobs, open_in};
use crate::http::remote::Remote;
use crate::http::script::{Reply, Script, answer, serve};
use crate::{BucketSettings, OpenError};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Opens read-only: the script need only answer one listing.
fn open(
    endpoint: &str,
    settings: BucketSettings,
    variables: &[(&str, &str)],
) -> Result<Remote<Blobs>, OpenError> {
    let settings = BucketSettings { endpoint: Some(endpoint.into()), read_only: true, ..settings };
    let variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    wait(open_in(
        "container",
        "acc",
        "",
        &settings,
        Arc::new(move |name| variables.get(name).cloned()),
    ))
}

fn nobody() -> BucketSettings {
    BucketSettings { anonymous: true, ..BucketSettings::default() }
}

/// A store that can be opened and then plays.
fn store(mut play: impl FnMut(&str) -> Reply + Send + 'static) -> Script {
    serve(true, move |request| match request {
        _ if request.contains("maxresults=1&") => listing("", ""),
        _ if request.contains("restype=account") => {
            Reply::Answer("HTTP/1.1 403 Forbidden\r\n\r\n".into())
        }
        _ => play(request),
    })
}

fn listing(blobs: &str, next: &str) -> Reply {
    answer(
        "200 OK",
        "",
        &format!(
            "<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>"
        ),
    )
}

fn error(status: &str, code: &str) -> Reply {
    answer(
        status,
        &format!("x-ms-error-code: {code}\r\n"),
        &format!("<Error><Code>{code}</Code><Message>m</Message></Error>"),
    )
}

/// An answer without a body.
fn head(status: &str, headers: &str) -> Reply {
    Reply::Answer(format!(
        "HTTP/1.1 {status}\r\ncontent-length: 0\r\netag: \"0x8D\"\r\n{headers}\r\n"
    ))
}

fn last(script: &Script) -> String {
    script.seen.lock().unwrap().last().unwrap().clone()
}
