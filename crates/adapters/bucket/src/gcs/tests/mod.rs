//! The Google Cloud Storage adapter with a faulty service and with each credential source, against
//! a scripted server.

mod credentials;
mod faults;
mod opening;
mod requests;

use super::{Gcs, open_in};
use crate::http::remote::Remote;
use crate::http::script::{Reply, Script, answer, serve};
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
) -> Result<Remote<Gcs>, OpenError> {
    let settings = BucketSettings { endpoint: Some(endpoint.into()), read_only: true, ..settings };
    open_as(settings, variables)
}

fn open_as(settings: BucketSettings, variables: &[(&str, &str)]) -> Result<Remote<Gcs>, OpenError> {
    let variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    wait(open_in("bucket", "", &settings, Arc::new(move |name| variables.get(name).cloned())))
}

fn nobody() -> BucketSettings {
    BucketSettings { anonymous: true, ..BucketSettings::default() }
}

/// A store that can be opened and then plays.
fn store(mut play: impl FnMut(&str) -> Reply + Send + 'static) -> Script {
    serve(
        true,
        move |request| {
            if request.contains("maxResults=1&prefix=") { json("{}") } else { play(request) }
        },
    )
}

fn json(body: &str) -> Reply {
    answer("200 OK", "content-type: application/json\r\n", body)
}

fn error(status: &str, reason: &str, message: &str) -> Reply {
    let body = format!(
        r#"{{"error":{{"code":0,"message":"{message}","errors":[{{"reason":"{reason}"}}]}}}}"#
    );
    answer(status, "content-type: application/json\r\n", &body)
}

/// The head of an object without content.
fn found(generation: u64, more: &str) -> Reply {
    Reply::Answer(format!(
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-goog-generation: {generation}\r\n{more}\r\n"
    ))
}
