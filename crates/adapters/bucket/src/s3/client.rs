//! One signed request and its answer, or the error it means.

use super::credentials::{CredentialError, Credentials, Provider};
use super::endpoint::Endpoint;
use super::fault::{self, Effect, Refusal};
use super::sign::{ToSign, encode_query, sign};
use super::time::now_secs;
use super::transport::{Answer, Lost, Transport};
use bytes::Bytes;
use ebb_ports::BucketError;
use http_body_util::Full;
use hyper::Request;
use std::time::Duration;

pub(super) struct Client {
    pub transport: Transport,
    pub provider: Provider,
    pub endpoint: Endpoint,
    pub region: String,
}

/// One request of the S3 protocol.
pub(super) struct Call<'a> {
    pub method: &'static str,
    /// None: the bucket itself.
    pub key: Option<&'a str>,
    pub query: Vec<(&'static str, String)>,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    pub effect: Effect,
    /// Completion and copy: the store works before it answers, and says 200 before it knows.
    pub slow: bool,
}

impl<'a> Call<'a> {
    pub fn read(method: &'static str, key: &'a str) -> Call<'a> {
        Call { method, key: Some(key), query: vec![], headers: vec![], body: Bytes::new(), effect: Effect::None, slow: false }
    }

    pub fn mutation(method: &'static str, key: &'a str, body: Bytes) -> Call<'a> {
        Call { effect: Effect::Mutation, body, ..Call::read(method, key) }
    }

    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Call<'a> {
        self.query.push((name, value.into()));
        self
    }

    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Call<'a> {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn slow(mut self) -> Call<'a> {
        self.slow = true;
        self
    }

    fn name(&self, endpoint: &Endpoint) -> String {
        format!("{} s3://{}/{}", self.method, endpoint.bucket, self.key.unwrap_or_default())
    }
}

/// What came of a request that the store answered.
pub(super) enum Outcome {
    Done(Answer),
    Refused(Refusal),
}

impl Client {
    /// The answer, or the error for the caller.
    pub async fn call(&self, call: &Call<'_>) -> Result<Answer, BucketError> {
        match self.try_call(call).await? {
            Outcome::Done(answer) => Ok(answer),
            Outcome::Refused(refusal) => Err(self.error(call, &refusal)),
        }
    }

    /// Without a key a request would be about the bucket: DELETE would delete it.
    pub fn check_key(&self, key: &str) -> Result<(), BucketError> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let what = format!("s3://{}/{key}: a key is 1 to {MAX_KEY_BYTES} bytes long", self.endpoint.bucket);
            return Err(BucketError::Refused { what });
        }
        Ok(())
    }

    pub fn error(&self, call: &Call<'_>, refusal: &Refusal) -> BucketError {
        refusal.error(&call.name(&self.endpoint), call.key.unwrap_or_default(), call.effect)
    }

    /// As [`Client::call`], for those who look at a refusal themselves.
    pub async fn try_call(&self, call: &Call<'_>) -> Result<Outcome, BucketError> {
        if let Some(key) = call.key {
            self.check_key(key)?;
        }
        let unsigned = |error| match error {
            CredentialError::Missing(what) => BucketError::Forbidden { what },
            CredentialError::Unavailable(what) => BucketError::Unavailable { what, retry_after: None },
        };
        let credentials = self.provider.current(&self.transport).await.map_err(unsigned)?;
        let outcome = self.send(call, credentials.as_ref()).await?;
        // Nothing was done for a signature that the store does not accept, so that even a mutation is sent again.
        if let (Outcome::Refused(refusal), Some(credentials)) = (&outcome, &credentials)
            && refusal.doubts_credentials()
            && let Some(others) = self.provider.other_than(credentials, &self.transport).await
        {
            return self.send(call, Some(&others)).await;
        }
        Ok(outcome)
    }

    async fn send(&self, call: &Call<'_>, credentials: Option<&Credentials>) -> Result<Outcome, BucketError> {
        let path = self.endpoint.path(call.key);
        let query = encode_query(&call.query);
        let refused = |what: String| BucketError::Refused { what: format!("{}: {what}", call.name(&self.endpoint)) };
        let mut request =
            Request::builder().method(call.method).uri(self.endpoint.address(&path, &query)).header("host", &self.endpoint.authority);
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        if let Some(credentials) = credentials {
            let (host, body) = (&self.endpoint.authority, &call.body);
            let unsigned = ToSign { method: call.method, host, path: &path, query: &query, headers: &call.headers, body };
            for (name, value) in sign(&unsigned, credentials, &self.region, "s3", now_secs()) {
                request = request.header(name, value);
            }
        }
        let request = request.body(Full::new(call.body.clone())).map_err(|error| refused(error.to_string()))?;
        let patience = if call.slow { SLOW_PATIENCE } else { PATIENCE };
        let lost = |lost: Lost| fault::lost(&call.name(&self.endpoint), lost, call.effect);
        let answer = self.transport.send(request, call.body.len(), patience).await.map_err(lost)?;
        Ok(match Refusal::of(&answer, call.slow) {
            Some(refusal) => Outcome::Refused(refusal),
            None => Outcome::Done(answer),
        })
    }
}

pub(super) const MAX_KEY_BYTES: usize = 1024;
const PATIENCE: Duration = Duration::from_secs(30);
const SLOW_PATIENCE: Duration = Duration::from_secs(15 * 60);
