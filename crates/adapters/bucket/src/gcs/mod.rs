//! Google Cloud Storage. Why this mixture of its interfaces:
//! docs/decisions/0005-google-and-azure.md.
//!
//! Objects are read over the XML interface, which alone gives content and tags in one
//! answer; everything else goes over the JSON interface, which alone knows conditions on
//! everything. The port's tag of an object is its generation.

mod credentials;
pub(crate) mod listing;
mod operations;
mod token;
mod uploads;

use crate::http::client::{Call, Client, Outcome, Outgoing, Service, bad_key};
use crate::http::credentials::{Bearer, Environment, variable};
use crate::http::encode::encode;
use crate::http::origin::Origin;
use crate::http::remote::{Remote, conditions};
use crate::http::staging;
use crate::http::transport::Transport;
use crate::http::trust::Bundle;
use crate::{BucketSettings, OpenError};
use credentials::GoogleSource;
use ebb_ports::{BucketError, Capabilities};
use std::sync::Arc;

/// The bucket as a service.
pub(crate) struct Google {
    origin: Origin,
    /// Prefix of every path: empty except behind a proxy.
    root: String,
    bucket: String,
    /// The prefix of the volume in the bucket.
    prefix: String,
    /// The key that encrypts new objects; the bucket's default if `None`.
    kms_key: Option<String>,
    /// The store honours conditions on other operations than uploads too. If false, such conditions
    /// are checked with a HEAD request first.
    guarded: bool,
}

pub(crate) type Gcs = Client<Google>;

/// Opens a bucket that is reachable and permitted, and determines its abilities. Only keys below
/// `prefix` will be used.
pub(crate) async fn open(
    bucket: &str,
    prefix: &str,
    settings: &BucketSettings,
) -> Result<Remote<Gcs>, OpenError> {
    let environment: Environment = Arc::new(|name| std::env::var(name).ok());
    open_in(bucket, prefix, settings, environment).await
}

async fn open_in(
    bucket: &str,
    prefix: &str,
    settings: &BucketSettings,
    environment: Environment,
) -> Result<Remote<Gcs>, OpenError> {
    let mut client = client(bucket, prefix, settings, environment, Transport::to_store)?;
    client.begin_opening(settings.patience());
    let read_only = settings.read_only;
    let remote = Remote::open("ebb-gcs", async move {
        let capabilities = probe(&mut client, read_only).await?;
        client.end_opening();
        Ok((client, capabilities))
    })
    .await?;
    if !read_only {
        remote.aside(|store| staging::sweep(store, prefix.into()));
    }
    Ok(remote)
}

/// The client for the bucket, before any request.
pub(crate) fn client(
    bucket: &str,
    prefix: &str,
    settings: &BucketSettings,
    environment: Environment,
    transport: impl FnOnce(&Environment, Option<Bundle>) -> Result<Transport, String>,
) -> Result<Gcs, OpenError> {
    let url = format!("gs://{bucket}");
    let wrong = |what: String| OpenError::Settings { url: url.clone(), what };
    check_name(bucket).map_err(wrong)?;
    staging::check_prefix(prefix, MAX_KEY_BYTES).map_err(wrong)?;
    // As in Google's own clients: an emulator needs no credentials, and may be named without a
    // scheme.
    let emulator =
        variable(&environment, "STORAGE_EMULATOR_HOST").filter(|_| settings.endpoint.is_none());
    let anonymous = settings.anonymous || emulator.is_some();
    let address = match (&settings.endpoint, emulator) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, Some(host)) if host.contains("://") => host,
        (None, Some(host)) => format!("http://{host}"),
        (None, None) => "https://storage.googleapis.com".into(),
    };
    let (origin, root) = Origin::parse(&address).map_err(wrong)?;
    let service = Google {
        origin,
        root,
        bucket: bucket.into(),
        prefix: prefix.into(),
        kms_key: settings.kms_key.clone(),
        guarded: false,
    };
    let transport = transport(&environment, None).map_err(wrong)?;
    let client = Client::new(service, GoogleSource { anonymous, environment }, transport);
    Ok(client.paid_by("x-goog-user-project", settings.request_payer.clone()))
}

fn check_name(bucket: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_end = |end: Option<u8>| end.is_some_and(is_plain);
    let good = (3..=222).contains(&bucket.len())
        && bucket.bytes().all(|byte| is_plain(byte) || b"-_.".contains(&byte))
        && is_end(bucket.bytes().next())
        && is_end(bucket.bytes().last());
    match good {
        true => Ok(()),
        false => Err(format!(
            "{bucket:?} cannot be the name of a bucket: it has 3 to 222 small letters, digits, '-', \
             '_' and '.', and begins and ends with a letter or a digit"
        )),
    }
}

pub(crate) async fn probe(client: &mut Gcs, read_only: bool) -> Result<Capabilities, OpenError> {
    let url = client.service.url();
    let call = Call::read("GET", None, client.service.objects())
        .query("maxResults", "1")
        .query("prefix", &client.service.prefix);
    match client.try_call(&call).await {
        Ok(Outcome::Done(answer)) if listing::read(&answer.body).is_some() => {}
        Ok(Outcome::Done(_)) => return Err(OpenError::stranger(url, "Google Cloud Storage")),
        Ok(Outcome::Refused(refusal)) if refusal.status == 404 => {
            return Err(OpenError::NoBucket {
                url,
                endpoint: client.service.origin.authority.clone(),
            });
        }
        Ok(Outcome::Refused(refusal)) => {
            return Err(client.not_open(client.error(&call, &refusal)));
        }
        Err(error) => return Err(client.not_open(error)),
    }
    let prefix = client.service.prefix.clone();
    let kept = conditions(client, &prefix, read_only).await?;
    client.service.guarded = kept.delete;
    Ok(Capabilities {
        conditional_put: kept.put,
        conditional_delete: kept.delete,
        copies_parts: false,
        copies_remotely: false,
        min_part_bytes: 1,
        max_parts: staging::MAX_PARTS,
        max_object_bytes: MAX_OBJECT_BYTES,
        max_key_bytes: MAX_KEY_BYTES,
        max_put_bytes: MAX_PUT_BYTES,
    })
}

impl Google {
    /// The path of all objects in the JSON interface.
    fn objects(&self) -> String {
        format!("{}/storage/v1/b/{}/o", self.root, self.bucket)
    }

    /// The path of an object in the JSON interface.
    fn object(&self, key: &str) -> String {
        format!("{}/storage/v1/{}", self.root, self.resource(key))
    }

    /// The key is one segment, so that no key is a path.
    fn resource(&self, key: &str) -> String {
        format!("b/{}/o/{}", self.bucket, encode(key, false))
    }

    /// The path of an object's content in the XML interface.
    fn content(&self, key: &str) -> String {
        format!("{}/{}/{}", self.root, self.bucket, encode(key, false))
    }

    fn upload(&self) -> String {
        format!("{}/upload/storage/v1/b/{}/o", self.root, self.bucket)
    }
}

impl Service for Google {
    type Source = GoogleSource;

    fn url(&self) -> String {
        format!("gs://{}", self.bucket)
    }

    fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The store's own rule, checked here as well, because the test servers accept every key.
    fn check_key(&self, key: &str) -> Result<(), BucketError> {
        let bad = |why: &str| Err(bad_key(&self.url(), key, why));
        match key {
            "." | ".." => bad("the store has no such key"),
            _ if key.is_empty() || key.len() > MAX_KEY_BYTES => {
                bad(&format!("a key is 1 to {MAX_KEY_BYTES} bytes long"))
            }
            _ if key.contains(['\r', '\n']) => bad("the store takes no line ends in keys"),
            _ if key.starts_with(".well-known/acme-challenge/") => bad("the store has no such key"),
            _ => Ok(()),
        }
    }

    fn authorize(&self, request: &mut Outgoing, bearer: &Bearer) -> Result<(), String> {
        request.headers.push(bearer.header());
        Ok(())
    }
}

const MAX_KEY_BYTES: usize = 1024;
const MAX_OBJECT_BYTES: u64 = 5 << 40;
/// The store takes more; a longer one is better sent in parts.
const MAX_PUT_BYTES: u64 = 5 << 30;

#[cfg(test)]
mod tests;
