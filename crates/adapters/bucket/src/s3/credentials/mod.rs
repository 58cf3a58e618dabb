//! Who signs. The usual chain, walked in order until one source has something:
//! the configuration's own keys, environment, profile files, web identity, container role, instance role.
//!
//! What was found is kept until shortly before it expires, and looked up again when the
//! store doubts it, so that rotated keys are picked up without a restart.

mod chain;
mod profile;
mod remote;

pub(super) use chain::{Chain, Start};
pub(super) use profile::Profile;

use super::time::now_secs;
use super::transport::Transport;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Text that no log or error shows.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(String);

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
pub(super) struct Credentials {
    pub access_key: String,
    pub secret_key: Secret,
    pub session_token: Option<Secret>,
    /// Seconds since the epoch; none for keys that only an administrator changes.
    pub expires_secs: Option<i64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CredentialError {
    /// No source has any, or one is set up wrongly: only an administrator can help.
    Missing(String),
    /// A source that should have some does not answer.
    Unavailable(String),
}

/// Environment variables as the chain sees them.
pub(super) type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub(super) struct Provider {
    chain: Chain,
    cached: Mutex<Cached>,
}

#[derive(Default)]
struct Cached {
    credentials: Option<Credentials>,
    asked: Option<Instant>,
}

impl Provider {
    pub fn new(chain: Chain) -> Provider {
        Provider { chain, cached: Mutex::default() }
    }

    /// None where the configuration asks for unsigned requests.
    pub async fn current(&self, transport: &Transport) -> Result<Option<Credentials>, CredentialError> {
        if self.chain.is_anonymous() {
            return Ok(None);
        }
        let mut cached = self.cached.lock().await;
        let now = now_secs();
        let good = |margin: Duration| {
            cached.credentials.as_ref().filter(|found| found.expires_secs.is_none_or(|at| now + (margin.as_secs() as i64) < at)).cloned()
        };
        if let Some(found) = good(RENEW_BEFORE_EXPIRY) {
            return Ok(Some(found));
        }
        let (last_good, asked) = (good(Duration::ZERO), cached.asked);
        // While a source is down, the old ones serve until they really expire, and it is not asked at every request.
        if let Some(last_good) = last_good.clone().filter(|_| asked.is_some_and(|asked| asked.elapsed() < ASK_AGAIN)) {
            return Ok(Some(last_good));
        }
        cached.asked = Some(Instant::now());
        match self.chain.find(transport).await {
            Ok(fresh) => {
                cached.credentials = Some(fresh.clone());
                Ok(Some(fresh))
            }
            Err(error) => match last_good {
                Some(last_good) => {
                    tracing::warn!(?error, "credentials could not be renewed; the present ones expire soon");
                    Ok(Some(last_good))
                }
                None => Err(error),
            },
        }
    }

    /// The store doubted `refused`: others, if there are any now.
    pub async fn other_than(&self, refused: &Credentials, transport: &Transport) -> Option<Credentials> {
        let mut cached = self.cached.lock().await;
        if let Some(newer) = cached.credentials.as_ref().filter(|now| *now != refused) {
            return Some(newer.clone());
        }
        if cached.asked.is_some_and(|asked| asked.elapsed() < ASK_AGAIN) {
            return None;
        }
        cached.asked = Some(Instant::now());
        let fresh = match self.chain.find(transport).await {
            Ok(fresh) => fresh,
            Err(error) => {
                tracing::warn!(?error, "the store doubts the credentials, and no others were found");
                return None;
            }
        };
        cached.credentials = Some(fresh.clone());
        (fresh != *refused).then_some(fresh)
    }
}

const RENEW_BEFORE_EXPIRY: Duration = Duration::from_secs(300);
/// A source is asked at most this often, also under a storm of refusals.
const ASK_AGAIN: Duration = Duration::from_secs(1);
