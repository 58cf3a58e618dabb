//! The order of the sources.

use super::Credentials;
use super::profile::{Profile, ProfileKeys};
use super::remote;
use crate::http::credentials::{CredentialError, Environment, Secret, Source, variable};
use crate::http::transport::Transport;

pub(crate) struct Chain {
    pub start: Start,
    pub environment: Environment,
    pub region: String,
}

/// Where the chain begins.
pub(crate) enum Start {
    /// Requests are not signed: public buckets.
    Anonymous,
    /// Given in the configuration; no other source is used.
    Given(Credentials),
    /// This profile, before the environment.
    Profile(String),
    Environment,
}

impl Source for Chain {
    type Found = Credentials;

    fn is_anonymous(&self) -> bool {
        matches!(self.start, Start::Anonymous)
    }

    fn expires_secs(found: &Credentials) -> Option<i64> {
        found.expires_secs
    }

    async fn find(&self, transport: &Transport) -> Result<Credentials, CredentialError> {
        match &self.start {
            Start::Given(credentials) => return Ok(credentials.clone()),
            Start::Profile(name) => {
                return match Profile::read(&self.environment, Some(name))?.keys {
                    ProfileKeys::Found(credentials) => Ok(credentials),
                    ProfileKeys::None => Err(CredentialError::Missing(format!(
                        "profile {name:?} has no aws_access_key_id"
                    ))),
                    ProfileKeys::Unsupported(setting) => Err(unsupported(name, setting)),
                };
            }
            Start::Anonymous | Start::Environment => {}
        }
        if let Some(credentials) = self.environment_keys()? {
            return Ok(credentials);
        }
        let profile = Profile::read(&self.environment, None)?;
        match profile.keys {
            ProfileKeys::Found(credentials) => return Ok(credentials),
            // A profile selected by name must not be skipped in favour of another identity's
            // role.
            ProfileKeys::Unsupported(setting) if self.variable("AWS_PROFILE").is_some() => {
                return Err(unsupported(&profile.name, setting));
            }
            _ => {}
        }
        if let Some(identity) = remote::WebIdentity::of(&self.environment, &self.region) {
            return identity.fetch(transport).await;
        }
        if let Some(container) = remote::container(&self.environment)? {
            return container.fetch(transport).await;
        }
        if self
            .variable("AWS_EC2_METADATA_DISABLED")
            .is_none_or(|value| !value.eq_ignore_ascii_case("true"))
        {
            let address = self.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
            return remote::instance_role(transport, address.as_deref()).await;
        }
        Err(CredentialError::Missing(NOTHING_FOUND.into()))
    }
}

impl Chain {
    fn environment_keys(&self) -> Result<Option<Credentials>, CredentialError> {
        match (self.variable("AWS_ACCESS_KEY_ID"), self.variable("AWS_SECRET_ACCESS_KEY")) {
            (Some(access_key), Some(secret_key)) => Ok(Some(Credentials {
                access_key,
                secret_key: Secret::new(secret_key),
                session_token: self.variable("AWS_SESSION_TOKEN").map(Secret::new),
                expires_secs: None,
            })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(CredentialError::Missing(
                "AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not".into(),
            )),
            (None, Some(_)) => Err(CredentialError::Missing(
                "AWS_SECRET_ACCESS_KEY is set, AWS_ACCESS_KEY_ID is not".into(),
            )),
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        variable(&self.environment, name)
    }
}

fn unsupported(profile: &str, setting: String) -> CredentialError {
    CredentialError::Missing(format!(
        "profile {profile:?} wants {setting}, which ebb does not do; give keys, a web identity or \
         a role of the machine"
    ))
}

pub(super) const NOTHING_FOUND: &str = "no credentials found: set AWS_ACCESS_KEY_ID and \
    AWS_SECRET_ACCESS_KEY, a profile in ~/.aws/credentials, \
     a web identity or a container or instance role";
