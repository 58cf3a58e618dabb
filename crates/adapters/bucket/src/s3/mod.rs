//! S3 and stores that speak its protocol. Why no existing client is used:
//! docs/decisions/0001-s3-client.md.
//!
//! [`operations`] and [`listing`] map operations to requests, [`sign`] authenticates the requests.

mod checksums;
mod credentials;
mod endpoint;
pub(crate) mod listing;
mod operations;
pub(crate) mod probe;
mod sign;

use crate::http::client::{Client, Outgoing, Service, bad_key};
use crate::http::credentials::{CredentialError, Environment, Secret, variable};
use crate::http::origin::Origin;
use crate::http::remote::Remote;
use crate::http::time::now_secs;
use crate::http::transport::Transport;
use crate::http::trust::Bundle;
use crate::{BucketSettings, OpenError, ServerSideEncryption};
use checksums::Checksums;
use credentials::{Chain, Credentials, Profile, Start};
use ebb_ports::BucketError;
use endpoint::Endpoint;
use std::sync::Arc;

/// The bucket as a service: where it is, and the region that requests are signed for.
pub(crate) struct Amazon {
    endpoint: Endpoint,
    region: String,
    /// Headers of every request that creates an object: how the store must encrypt it.
    at_rest: Vec<(&'static str, String)>,
    checksums: Checksums,
}

pub(crate) type S3 = Client<Amazon>;

/// Opens a bucket that is reachable and permitted, and determines its abilities. Only keys below
/// `prefix` will be used.
pub(crate) async fn open(
    bucket: &str,
    prefix: &str,
    settings: &BucketSettings,
) -> Result<Remote<S3>, OpenError> {
    let environment: Environment = Arc::new(|name| std::env::var(name).ok());
    open_in(bucket, prefix, settings, environment).await
}

async fn open_in(
    bucket: &str,
    prefix: &str,
    settings: &BucketSettings,
    environment: Environment,
) -> Result<Remote<S3>, OpenError> {
    let mut client = client(bucket, settings, environment, Transport::to_store)?;
    client.begin_opening(settings.patience());
    let (prefix, read_only) = (prefix.to_string(), settings.read_only);
    Remote::open("ebb-s3", async move {
        let capabilities = probe::probe(&client, &prefix, read_only).await?;
        client.end_opening();
        Ok((client, capabilities))
    })
    .await
}

/// The client for the bucket, before any request.
pub(crate) fn client(
    bucket: &str,
    settings: &BucketSettings,
    environment: Environment,
    transport: impl FnOnce(&Environment, Option<Bundle>) -> Result<Transport, String>,
) -> Result<S3, OpenError> {
    let url = format!("s3://{bucket}");
    let wrong = |what: String| OpenError::Settings { url: url.clone(), what };
    let variable = |name: &str| variable(&environment, name);
    let start = start(settings).map_err(wrong)?;
    let profile = match &start {
        Start::Profile(name) => Some(Profile::read(&environment, Some(name))),
        Start::Environment => Some(Profile::read(&environment, None)),
        Start::Given(_) | Start::Anonymous => None,
    };
    let profile = match profile.transpose() {
        Ok(profile) => profile,
        Err(CredentialError::Missing(what) | CredentialError::Unavailable(what)) => {
            return Err(wrong(what));
        }
    };
    let region = settings
        .region
        .clone()
        .or_else(|| variable("AWS_REGION"))
        .or_else(|| variable("AWS_DEFAULT_REGION"));
    let region = region
        .or_else(|| profile.as_ref()?.region.clone())
        .unwrap_or_else(|| DEFAULT_REGION.into());
    let address = settings
        .endpoint
        .clone()
        .or_else(|| variable("AWS_ENDPOINT_URL_S3"))
        .or_else(|| variable("AWS_ENDPOINT_URL"));
    let address = address.or_else(|| profile.as_ref()?.endpoint.clone());
    check_name(bucket, address.is_none() && settings.path_style != Some(true)).map_err(wrong)?;
    let endpoint =
        Endpoint::new(bucket, address.as_deref(), &region, settings.path_style).map_err(wrong)?;

    let at_rest = at_rest(settings).map_err(wrong)?;
    let service =
        Amazon { endpoint, region: region.clone(), at_rest, checksums: Checksums::default() };
    let bundle = variable("AWS_CA_BUNDLE")
        .map(|path| Bundle { setting: "AWS_CA_BUNDLE", path })
        .or_else(|| {
            let path = profile.as_ref()?.ca_bundle.clone()?;
            Some(Bundle { setting: "ca_bundle of the profile", path })
        });
    let transport = transport(&environment, bundle).map_err(wrong)?;
    let client = Client::new(service, Chain { start, environment, region }, transport);
    Ok(client.paid_by("x-amz-request-payer", settings.request_payer.clone()))
}

/// `strictly`: by the rules of AWS for names that are part of host names. Its oldest buckets and
/// other stores have other names too.
fn check_name(bucket: &str, strictly: bool) -> Result<(), String> {
    let is_ended = |end: Option<u8>| end.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let bad = |why: &str| Err(format!("{bucket:?} cannot be the name of a bucket: {why}"));
    let most = if strictly { 63 } else { 255 };
    match bucket.as_bytes() {
        name if !(3..=most).contains(&name.len()) => bad(&format!("it has 3 to {most} characters")),
        name if !is_ended(name.first().copied()) || !is_ended(name.last().copied()) => {
            bad("it begins and ends with a letter or a digit")
        }
        _ if bucket.contains("..") => bad("it has no two dots side by side"),
        _ if bucket.parse::<std::net::Ipv4Addr>().is_ok() => bad("it is an address"),
        name if strictly && name.iter().any(|byte| byte.is_ascii_uppercase() || *byte == b'_') => {
            bad("it has small letters, digits, '-' and '.' alone")
        }
        _ => Ok(()),
    }
}

fn start(settings: &BucketSettings) -> Result<Start, String> {
    match (&settings.access_key, &settings.secret_key, &settings.profile) {
        _ if settings.anonymous => Ok(Start::Anonymous),
        (Some(access_key), Some(secret_key), _) => Ok(Start::Given(Credentials {
            access_key: access_key.clone(),
            secret_key: Secret::new(secret_key.clone()),
            session_token: settings.session_token.clone().map(Secret::new),
            expires_secs: None,
        })),
        (None, None, Some(profile)) => Ok(Start::Profile(profile.clone())),
        (None, None, None) => Ok(Start::Environment),
        _ => Err("an access key and a secret key go together; only one is given".into()),
    }
}

fn at_rest(settings: &BucketSettings) -> Result<Vec<(&'static str, String)>, String> {
    let method = match (settings.server_side_encryption, &settings.kms_key) {
        (None, None) => return Ok(Vec::new()),
        (Some(ServerSideEncryption::Aes256), Some(_)) => {
            return Err("a KMS key is not for encryption with the store's own".into());
        }
        (Some(ServerSideEncryption::Aes256), None) => "AES256",
        (Some(ServerSideEncryption::KmsDsse), _) => "aws:kms:dsse",
        (Some(ServerSideEncryption::Kms) | None, _) => "aws:kms",
    };
    let key = settings
        .kms_key
        .iter()
        .map(|key| ("x-amz-server-side-encryption-aws-kms-key-id", key.clone()));
    Ok([("x-amz-server-side-encryption", method.to_owned())].into_iter().chain(key).collect())
}

impl Service for Amazon {
    type Source = Chain;

    fn url(&self) -> String {
        format!("s3://{}", self.endpoint.bucket)
    }

    fn origin(&self) -> &Origin {
        &self.endpoint.origin
    }

    fn check_key(&self, key: &str) -> Result<(), BucketError> {
        match key.len() {
            1..=MAX_KEY_BYTES => Ok(()),
            _ => {
                Err(bad_key(&self.url(), key, &format!("a key is 1 to {MAX_KEY_BYTES} bytes long")))
            }
        }
    }

    fn authorize(&self, request: &mut Outgoing, credentials: &Credentials) -> Result<(), String> {
        sign::sign(
            request,
            &self.endpoint.origin.authority,
            credentials,
            &self.region,
            "s3",
            now_secs(),
        );
        Ok(())
    }
}

const DEFAULT_REGION: &str = "us-east-1";
const MAX_KEY_BYTES: usize = 1024;

#[cfg(test)]
mod tests;
