//! One authentic request and its answer, or the error it means.

use super::credentials::{CredentialError, Provider, Source};
use super::encode::encode_query;
use super::fault::{self, Effect, Refusal};
use super::opening::Opening;
use super::origin::Origin;
use super::transport::{Answer, Lost, Transport};
use crate::OpenError;
use bytes::Bytes;
use ebb_ports::BucketError;
use http_body_util::Full;
use hyper::Request;
use std::ops::Range;
use std::time::Duration;
use tokio::time::timeout;

/// The parts of a request that differ between stores.
pub(crate) trait Service: Send + Sync + 'static {
    type Source: Source;

    /// Scheme and bucket, for people.
    fn url(&self) -> String;

    fn origin(&self) -> &Origin;

    /// Whether the store can have such a key. One that no store has is refused here:
    /// without a key a request would be about the bucket, and DELETE would delete it.
    fn check_key(&self, key: &str) -> Result<(), BucketError>;

    /// Authenticates the request. `Err` names the reason if that is impossible.
    fn authorize(
        &self,
        request: &mut Outgoing,
        credentials: &<Self::Source as Source>::Found,
    ) -> Result<(), String>;
}

/// A request as it will be sent. Path and query are in their encoded form.
pub(crate) struct Outgoing {
    pub method: &'static str,
    pub path: String,
    pub query: String,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

pub(crate) struct Client<S: Service> {
    pub service: S,
    pub transport: Transport,
    pub provider: Provider<S::Source>,
    /// The header that names the payer, sent with every request.
    payer: Option<(&'static str, String)>,
    /// How long a read waits until its answer begins.
    read_patience: Duration,
    /// Requests are repeated while the bucket is opened.
    opening: Option<Opening>,
}

/// One request of a store's protocol.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    pub method: &'static str,
    /// The key that it is about, as errors name it; none: the bucket itself.
    pub key: Option<&'a str>,
    /// Encoded.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    pub effect: Effect,
    /// Completion and copy: the store works before it answers, and may send status 200 before the
    /// outcome is known.
    pub slow: bool,
    /// A longer answer is an error: a store must not be able to fill the memory.
    pub max_answer_bytes: u64,
}

impl<'a> Call<'a> {
    pub fn read(method: &'static str, key: Option<&'a str>, path: String) -> Call<'a> {
        Call {
            method,
            key,
            path,
            query: vec![],
            headers: vec![],
            body: Bytes::new(),
            effect: Effect::None,
            slow: false,
            max_answer_bytes: MAX_ANSWER_BYTES,
        }
    }

    pub fn mutation(method: &'static str, key: &'a str, path: String, body: Bytes) -> Call<'a> {
        Call { effect: Effect::Mutation, body, ..Call::read(method, Some(key), path) }
    }

    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Call<'a> {
        self.query.push((name, value.into()));
        self
    }

    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Call<'a> {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The answer is an object, or `range` of it.
    pub fn content(mut self, range: Option<&Range<u64>>) -> Call<'a> {
        self.max_answer_bytes = range
            .map_or(u64::MAX, |range| range.end.saturating_sub(range.start).max(MAX_ANSWER_BYTES));
        self
    }

    pub fn slow(mut self) -> Call<'a> {
        self.slow = true;
        self
    }
}

/// The outcome of a request that the store answered.
pub(crate) enum Outcome {
    Done(Answer),
    Refused(Refusal),
}

impl<S: Service> Client<S> {
    pub fn new(service: S, source: S::Source, transport: Transport) -> Client<S> {
        Client {
            service,
            transport,
            provider: Provider::new(source),
            payer: None,
            read_patience: PATIENCE,
            opening: None,
        }
    }

    /// Sends this header with every request to the store.
    pub fn paid_by(mut self, header: &'static str, payer: Option<String>) -> Client<S> {
        self.payer = payer.map(|payer| (header, payer));
        self
    }

    /// Until [`Client::end_opening`] a request that meets a passing fault is sent again, all of
    /// them within `patience`. No read waits longer for its answer, then or later.
    pub fn begin_opening(&mut self, patience: Duration) {
        self.read_patience = PATIENCE.min(patience);
        self.opening = Some(Opening::new(patience));
    }

    pub fn end_opening(&mut self) {
        self.opening = None;
    }

    /// Why a bucket that is being opened cannot be used.
    pub fn not_open(&self, error: BucketError) -> OpenError {
        let url = self.service.url();
        match error {
            BucketError::Forbidden { what } => OpenError::Forbidden { url, what },
            error
                if error.is_silence()
                    && self.opening.as_ref().is_some_and(Opening::was_answered) =>
            {
                OpenError::Busy { url, error }
            }
            error => {
                let is_cut = self.opening.as_ref().is_some_and(Opening::was_only_cut);
                let hint = match is_cut && self.service.origin().is_plain() {
                    true => "; if that is a port of TLS, the endpoint begins with https://",
                    false => "",
                };
                OpenError::Unreachable {
                    url,
                    what: format!("{error}{hint}; check the endpoint and the network"),
                }
            }
        }
    }

    /// The answer, or the error for the caller.
    pub async fn call(&self, call: &Call<'_>) -> Result<Answer, BucketError> {
        match self.try_call(call).await? {
            Outcome::Done(answer) => Ok(answer),
            Outcome::Refused(refusal) => Err(self.error(call, &refusal)),
        }
    }

    pub fn error(&self, call: &Call<'_>, refusal: &Refusal) -> BucketError {
        refusal.error(&self.name(call), call.key.unwrap_or_default(), call.effect)
    }

    /// As [`Client::call`], for callers that handle a refusal themselves.
    pub async fn try_call(&self, call: &Call<'_>) -> Result<Outcome, BucketError> {
        let Some(opening) = &self.opening else { return self.attempt(call).await };
        let mut attempts = opening.attempts();
        loop {
            let outcome = match timeout(attempts.left(), self.attempt(call)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(BucketError::Unavailable {
                    what: format!("{}: no answer in time", self.name(call)),
                    retry_after: None,
                }),
            };
            let fault = match &outcome {
                Ok(Outcome::Refused(refusal)) if !refusal.is_of_damage() => {
                    Some(self.error(call, refusal)).filter(BucketError::is_silence)
                }
                Ok(_) => None,
                Err(error) => Some(error.clone()).filter(BucketError::is_silence),
            };
            match fault {
                Some(fault) if attempts.wait(&fault.to_string(), fault.retry_after()).await => {}
                Some(fault) => {
                    return Err(BucketError::Unavailable {
                        what: format!("{fault}{}", attempts.tried()),
                        retry_after: None,
                    });
                }
                None => return outcome,
            }
        }
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Outcome, BucketError> {
        if let Some(key) = call.key {
            self.service.check_key(key)?;
        }
        let unsigned = |error| match error {
            CredentialError::Missing(what) => BucketError::Forbidden { what },
            CredentialError::Unavailable(what) => {
                BucketError::Unavailable { what, retry_after: None }
            }
        };
        let credentials = self.provider.current(&self.transport).await.map_err(unsigned)?;
        let outcome = self.send(call, credentials.as_ref()).await?;
        // Nothing was done for a signature that the store does not accept, so that even a mutation
        // is sent again.
        if let (Outcome::Refused(refusal), Some(credentials)) = (&outcome, &credentials)
            && refusal.doubts_credentials()
            && let Some(others) = self.provider.other_than(credentials, &self.transport).await
        {
            return self.send(call, Some(&others)).await;
        }
        Ok(outcome)
    }

    async fn send(
        &self,
        call: &Call<'_>,
        credentials: Option<&<S::Source as Source>::Found>,
    ) -> Result<Outcome, BucketError> {
        let refused =
            |what: String| BucketError::Refused { what: format!("{}: {what}", self.name(call)) };
        let mut outgoing = Outgoing {
            method: call.method,
            path: call.path.clone(),
            query: encode_query(&call.query),
            headers: call.headers.clone(),
            body: call.body.clone(),
        };
        let payer = self.payer.iter().map(|(name, payer)| (name.to_string(), payer.clone()));
        outgoing.headers.extend(payer);
        if let Some(credentials) = credentials {
            self.service.authorize(&mut outgoing, credentials).map_err(refused)?;
        }
        let origin = self.service.origin();
        let address = origin.address(&outgoing.path, &outgoing.query);
        let mut request = Request::builder()
            .method(outgoing.method)
            .uri(address)
            .header("host", &origin.authority);
        for (name, value) in &outgoing.headers {
            request = request.header(name, value);
        }
        if matches!(outgoing.method, "PUT" | "POST") {
            // Left out for an empty body otherwise, which not every store takes.
            request = request.header("content-length", outgoing.body.len());
        }
        let request =
            request.body(Full::new(outgoing.body)).map_err(|error| refused(error.to_string()))?;
        let patience = match call.effect {
            _ if call.slow => SLOW_PATIENCE,
            Effect::None => self.read_patience,
            Effect::Mutation => PATIENCE,
        };
        let lost = |lost: Lost| {
            match (&lost, &self.opening) {
                (Lost::Unfit(_), Some(opening)) => opening.note_hopeless(),
                (Lost::Sent(_), Some(opening)) => opening.note_cut(),
                _ => {}
            }
            fault::lost(&self.name(call), lost, call.effect)
        };
        let answer = self
            .transport
            .send(request, call.body.len(), patience, call.max_answer_bytes)
            .await
            .map_err(lost)?;
        if let Some(opening) = &self.opening {
            opening.note_answer();
        }
        Ok(match Refusal::of(&answer, call.slow) {
            Some(refusal) => Outcome::Refused(refusal),
            None => Outcome::Done(answer),
        })
    }

    fn name(&self, call: &Call<'_>) -> String {
        format!("{} {}/{}", call.method, self.service.url(), call.key.unwrap_or_default())
    }
}

/// A key that the store's requests cannot carry.
pub(crate) fn bad_key(url: &str, key: &str, why: &str) -> BucketError {
    BucketError::Refused { what: format!("{url}/{}: {why}", key.escape_debug()) }
}

/// A thousand of the longest keys, encoded, are a sixth of it.
const MAX_ANSWER_BYTES: u64 = 32 << 20;
/// Includes the time for connecting.
const PATIENCE: Duration = Duration::from_secs(30);
const SLOW_PATIENCE: Duration = Duration::from_secs(15 * 60);
