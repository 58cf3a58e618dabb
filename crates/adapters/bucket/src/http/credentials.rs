//! Credentials of requests. The result of a store's sources is cached until shortly before it
//! expires, and looked up again when the store rejects it, so rotated keys need no restart.

use super::json;
use super::time::now_secs;
use super::transport::{Answer, Lost, Transport};
use bytes::Bytes;
use ebb_model::redacted;
use http_body_util::Full;
use hyper::Request;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Text that no log or error shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CredentialError {
    /// No source has any, or one is set up wrongly: only an administrator can help.
    Missing(String),
    /// A source that should have some does not answer.
    Unavailable(String),
}

/// Environment variables as the sources see them.
pub(crate) type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// An environment variable that is set and not empty.
pub(crate) fn variable(environment: &Environment, name: &str) -> Option<String> {
    environment(name).filter(|value| !value.is_empty())
}

/// Where one store's credentials are looked for.
pub(crate) trait Source: Send + Sync + 'static {
    type Found: Clone + PartialEq + Send + Sync;

    /// Requests are sent without credentials: public buckets.
    fn is_anonymous(&self) -> bool;

    fn find(
        &self,
        transport: &Transport,
    ) -> impl Future<Output = Result<Self::Found, CredentialError>> + Send;

    /// Seconds since the epoch; none for keys that only an administrator changes.
    fn expires_secs(found: &Self::Found) -> Option<i64>;
}

pub(crate) struct Provider<S: Source> {
    source: S,
    cached: Mutex<Cached<S::Found>>,
}

struct Cached<F> {
    credentials: Option<F>,
    /// The time of the source's last result.
    asked: Option<Instant>,
    /// The source's error, if it had no credentials.
    failure: Option<CredentialError>,
}

impl<F> Cached<F> {
    /// Within this time all requests get the source's last result, also those that waited for it:
    /// otherwise a source that is silent for seconds would delay one request after the other.
    fn is_fresh(&self) -> bool {
        self.asked.is_some_and(|asked| asked.elapsed() < ASK_AGAIN)
    }
}

impl<S: Source> Provider<S> {
    pub fn new(source: S) -> Provider<S> {
        Provider {
            source,
            cached: Mutex::new(Cached { credentials: None, asked: None, failure: None }),
        }
    }

    /// `None` if the configuration requires requests without credentials.
    pub async fn current(
        &self,
        transport: &Transport,
    ) -> Result<Option<S::Found>, CredentialError> {
        if self.source.is_anonymous() {
            return Ok(None);
        }
        let mut cached = self.cached.lock().await;
        let now = now_secs();
        let good = |margin: Duration| {
            let lasts = |found: &&S::Found| {
                S::expires_secs(found).is_none_or(|at| now + (margin.as_secs() as i64) < at)
            };
            cached.credentials.as_ref().filter(lasts).cloned()
        };
        if let Some(found) = good(RENEW_BEFORE_EXPIRY) {
            return Ok(Some(found));
        }
        // While a source is down, the old ones serve until they really expire.
        let last_good = good(Duration::ZERO);
        match (&last_good, &cached.failure) {
            (Some(last_good), _) if cached.is_fresh() => return Ok(Some(last_good.clone())),
            (None, Some(error)) if cached.is_fresh() => return Err(error.clone()),
            _ => {}
        }
        match self.ask(&mut cached, transport).await {
            Ok(fresh) => Ok(Some(fresh)),
            Err(error) => match last_good {
                Some(last_good) => {
                    tracing::warn!(
                        ?error,
                        "credentials could not be renewed; the present ones expire soon"
                    );
                    Ok(Some(last_good))
                }
                None => Err(error),
            },
        }
    }

    /// The store rejected `refused`: returns other credentials, if there are any now.
    pub async fn other_than(&self, refused: &S::Found, transport: &Transport) -> Option<S::Found> {
        let mut cached = self.cached.lock().await;
        if let Some(newer) = cached.credentials.as_ref().filter(|now| *now != refused) {
            return Some(newer.clone());
        }
        if cached.is_fresh() {
            return None;
        }
        match self.ask(&mut cached, transport).await {
            Ok(fresh) => (fresh != *refused).then_some(fresh),
            Err(error) => {
                tracing::warn!(
                    ?error,
                    "the store doubts the credentials, and no others were found"
                );
                None
            }
        }
    }

    async fn ask(
        &self,
        cached: &mut Cached<S::Found>,
        transport: &Transport,
    ) -> Result<S::Found, CredentialError> {
        let found = self.source.find(transport).await;
        cached.asked = Some(Instant::now());
        cached.failure = found.as_ref().err().cloned();
        if let Ok(fresh) = &found {
            cached.credentials = Some(fresh.clone());
        }
        found
    }
}

/// A token that a service gave, to be shown as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bearer {
    pub token: Secret,
    pub expires_secs: i64,
}

impl Bearer {
    /// OAuth 2.0 (RFC 6749 §5.1): `access_token` and `expires_in`, a number or its digits.
    pub fn of_answer(from: &str, answer: &Answer) -> Result<Bearer, CredentialError> {
        let json = json::parse(&answer.body);
        let text = |name: &str| json.as_ref()?.get(name)?.as_str();
        if !answer.status.is_success() {
            let said = [text("error"), text("error_description")]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(": ");
            return Err(refused(from, answer, Some(said).filter(|said| !said.is_empty())));
        }
        let lasts = json.as_ref().and_then(|json| {
            let lasts = json.get("expires_in")?;
            lasts.as_i64().or_else(|| lasts.as_str()?.parse().ok())
        });
        match (text("access_token"), lasts) {
            (Some(token), Some(lasts))
                if !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic()) =>
            {
                Ok(Bearer {
                    token: Secret::new(token),
                    expires_secs: now_secs().saturating_add(lasts.clamp(0, 7 * 86_400)),
                })
            }
            _ => {
                Err(CredentialError::Unavailable(format!("{from} gave an answer without a token")))
            }
        }
    }

    pub fn header(&self) -> (String, String) {
        ("authorization".into(), format!("Bearer {}", self.token.expose()))
    }
}

/// Requests credentials from a service that issues them.
pub(crate) async fn ask(
    transport: &Transport,
    method: &str,
    address: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Result<Answer, CredentialError> {
    let (len, shown) = (body.len(), redacted(address));
    let mut request = Request::builder().method(method).uri(address);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| CredentialError::Missing(format!("{shown}: {error}")))?;
    transport.send(request, len, SERVICE_TIMEOUT, MAX_SERVICE_ANSWER_BYTES).await.map_err(|lost| {
        match lost {
            Lost::NotSent(reason) | Lost::Unfit(reason) | Lost::Sent(reason) => {
                CredentialError::Unavailable(format!("{shown}: {reason}"))
            }
        }
    })
}

/// Queries the metadata service of a cloud's machines; `None` if this is no such machine.
pub(crate) async fn ask_metadata(
    transport: &Transport,
    method: &str,
    address: &str,
    headers: &[(&str, &str)],
) -> Option<Answer> {
    let asked = ask(transport, method, address, headers, String::new());
    tokio::time::timeout(METADATA_TIMEOUT, asked).await.ok()?.ok()
}

/// Whether a secret may be sent to an address: plain HTTP shows it to the network anywhere but on
/// this machine and at its agents.
pub(crate) fn keeps_secrets(address: &str) -> bool {
    let Some(rest) = address.strip_prefix("http://") else {
        return address.starts_with("https://");
    };
    let authority = rest.split('/').next().unwrap_or_default();
    is_one_of(&["127.0.0.1", "localhost", "[::1]"], authority) || is_one_of(&AGENTS, authority)
}

/// Whether an agent or a metadata service of this machine is there.
pub(crate) fn is_agent(authority: &str) -> bool {
    const METADATA: [&str; 3] = ["169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal"];
    is_one_of(&AGENTS, authority) || is_one_of(&METADATA, authority)
}

fn is_one_of(hosts: &[&str], authority: &str) -> bool {
    hosts.iter().any(|host| {
        authority.strip_prefix(host).is_some_and(|port| port.is_empty() || port.starts_with(':'))
    })
}

const AGENTS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];

pub(crate) fn refused(from: &str, answer: &Answer, said: Option<String>) -> CredentialError {
    let text = format!(
        "{from} refused: {}",
        said.unwrap_or_else(|| format!("HTTP status {}", answer.status.as_u16()))
    );
    if answer.status.is_client_error() && answer.status.as_u16() != 429 {
        CredentialError::Missing(text)
    } else {
        CredentialError::Unavailable(text)
    }
}

pub(crate) fn read_file(path: &str) -> Result<String, CredentialError> {
    // A few hundred bytes, on a thread of the adapter.
    std::fs::read_to_string(path)
        .map(|text| text.trim().to_string())
        .map_err(|error| CredentialError::Missing(format!("{path}: {error}")))
}

pub(crate) const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const RENEW_BEFORE_EXPIRY: Duration = Duration::from_secs(300);
/// After it has answered a source is left alone for this long, also under a storm of refusals.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const SERVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// Outside the cloud nothing answers at the service's address.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_SERVICE_ANSWER_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests;
