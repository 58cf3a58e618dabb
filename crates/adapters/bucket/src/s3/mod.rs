//! S3 and what speaks its protocol. Why no ready client is used: docs/decisions/0001-s3-client.md.
//!
//! The port's side is here; [`client`] sends one signed request, [`operations`] and
//! [`listing`] say what is sent for what. Nothing that changes the bucket is retried.

mod client;
mod credentials;
mod endpoint;
mod fault;
mod listing;
mod operations;
mod probe;
mod sign;
mod time;
mod transport;
mod xml;

use crate::background::Background;
use crate::{BucketSettings, OpenError};
use bytes::Bytes;
use client::Client;
use credentials::{Chain, Credentials, Environment, Profile, Provider, Secret, Start};
use ebb_ports::{
    Bucket, BucketError, Capabilities, Condition, ETag, ListPage, ListRequest, Object, ObjectMeta, ObjectTags, PartTag, PortFuture,
    UploadId,
};
use endpoint::Endpoint;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use transport::Transport;

pub(crate) struct S3 {
    client: Arc<Client>,
    capabilities: Capabilities,
    background: Background,
}

impl S3 {
    /// A bucket that has answered: reachable, permitted, its abilities known. Only keys below `prefix` will be asked for.
    pub async fn open(bucket: &str, prefix: &str, settings: &BucketSettings) -> Result<S3, OpenError> {
        let environment: Environment = Arc::new(|name| std::env::var(name).ok());
        S3::open_in(bucket, prefix, settings, environment).await
    }

    async fn open_in(bucket: &str, prefix: &str, settings: &BucketSettings, environment: Environment) -> Result<S3, OpenError> {
        let url = format!("s3://{bucket}");
        let wrong = |what: String| OpenError::Settings { url: url.clone(), what };
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        let start = start(settings).map_err(wrong)?;
        let profile = match &start {
            Start::Profile(name) => Some(Profile::read(&environment, Some(name))),
            Start::Environment => Some(Profile::read(&environment, None)),
            Start::Given(_) | Start::Anonymous => None,
        };
        let profile = match profile.transpose() {
            Ok(profile) => profile,
            Err(credentials::CredentialError::Missing(what) | credentials::CredentialError::Unavailable(what)) => return Err(wrong(what)),
        };
        let region = settings.region.clone().or_else(|| variable("AWS_REGION")).or_else(|| variable("AWS_DEFAULT_REGION"));
        let region = region.or_else(|| profile.as_ref()?.region.clone()).unwrap_or_else(|| DEFAULT_REGION.into());
        let address = settings.endpoint.clone().or_else(|| variable("AWS_ENDPOINT_URL_S3")).or_else(|| variable("AWS_ENDPOINT_URL"));
        let address = address.or_else(|| profile.as_ref()?.endpoint.clone());
        let endpoint = Endpoint::new(bucket, address.as_deref(), &region, settings.path_style).map_err(wrong)?;

        let background = Background::start("ebb-s3", WORKERS, MAX_BLOCKING).map_err(|error| OpenError::Threads { error })?;
        let provider = Provider::new(Chain { start, environment, region: region.clone() });
        let client = Arc::new(Client { transport: Transport::new(MAX_IN_FLIGHT), provider, endpoint, region });
        let (probed, prefix, read_only) = (client.clone(), prefix.to_string(), settings.read_only);
        let capabilities = background.run(async move { probe::probe(&probed, &prefix, read_only).await }).await?;
        Ok(S3 { client, capabilities, background })
    }

    fn run<T: Send + 'static, F>(&self, operation: impl FnOnce(Arc<Client>) -> F) -> PortFuture<'_, Result<T, BucketError>>
    where
        F: Future<Output = Result<T, BucketError>> + Send + 'static,
    {
        Box::pin(self.background.run(operation(self.client.clone())))
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

impl Bucket for S3 {
    fn get(&self, key: &str, range: Option<Range<u64>>, if_match: Option<&ETag>) -> PortFuture<'_, Result<Object, BucketError>> {
        let (key, if_match) = (key.to_string(), if_match.cloned());
        self.run(|client| async move { client.get(&key, range, if_match.as_ref()).await })
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        let key = key.to_string();
        self.run(|client| async move { client.head(&key).await })
    }

    fn put(&self, key: &str, body: Bytes, condition: Condition, tags: ObjectTags) -> PortFuture<'_, Result<ETag, BucketError>> {
        let key = key.to_string();
        self.run(|client| async move { client.put(&key, body, &condition, &tags).await })
    }

    fn delete(&self, key: &str, if_match: Option<&ETag>) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, if_match, guarded) = (key.to_string(), if_match.cloned(), self.capabilities.conditional_delete);
        self.run(|client| async move { client.delete(&key, if_match.as_ref(), guarded).await })
    }

    fn copy(&self, from: &str, to: &str, if_match: Option<&ETag>) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (from, to, if_match) = (from.to_string(), to.to_string(), if_match.cloned());
        self.run(|client| async move { client.copy(&from, &to, if_match.as_ref()).await })
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        self.run(|client| async move { client.list(&request).await })
    }

    fn upload_begin(&self, key: &str, tags: ObjectTags) -> PortFuture<'_, Result<UploadId, BucketError>> {
        let key = key.to_string();
        self.run(|client| async move { client.upload_begin(&key, &tags).await })
    }

    fn upload_part(&self, key: &str, upload: &UploadId, number: u32, body: Bytes) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let (key, upload) = (key.to_string(), upload.clone());
        self.run(|client| async move { client.upload_part(&key, &upload, number, body).await })
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (key, upload) = (key.to_string(), upload.clone());
        self.run(|client| async move { client.upload_complete(&key, &upload, &parts, &condition).await })
    }

    fn upload_abort(&self, key: &str, upload: &UploadId) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, upload) = (key.to_string(), upload.clone());
        self.run(|client| async move { client.upload_abort(&key, &upload).await })
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn describe(&self) -> String {
        format!("s3://{}", self.client.endpoint.bucket)
    }
}

const DEFAULT_REGION: &str = "us-east-1";
/// TLS and hashing of a few gigabytes a second; more would take the node's cores.
const WORKERS: usize = 2;
/// Name resolution only.
const MAX_BLOCKING: usize = 4;
/// Requests at once; the rest wait. Throughput to S3 peaks well below this.
const MAX_IN_FLIGHT: usize = 128;

#[cfg(test)]
mod tests;
