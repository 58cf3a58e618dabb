//! `~/.aws/credentials` and `~/.aws/config`.

use super::Credentials;
use crate::http::credentials::{CredentialError, Environment, Secret, variable};
use std::collections::BTreeMap;
use std::io::ErrorKind;

/// The contents of one profile, merged from both files; the credentials file has precedence.
#[derive(Debug)]
pub(in crate::s3) struct Profile {
    pub name: String,
    pub region: Option<String>,
    pub endpoint: Option<String>,
    /// Certificates of the authorities to trust.
    pub ca_bundle: Option<String>,
    pub keys: ProfileKeys,
}

#[derive(Debug, PartialEq)]
pub(in crate::s3) enum ProfileKeys {
    None,
    Found(Credentials),
    /// A setting that needs another program or a chain of roles.
    Unsupported(String),
}

impl Profile {
    /// `named`: by the configuration; otherwise AWS_PROFILE, otherwise `default`. A named one must
    /// exist.
    pub fn read(
        environment: &Environment,
        named: Option<&str>,
    ) -> Result<Profile, CredentialError> {
        let variable = |name: &str| variable(environment, name);
        let chosen = named.map(str::to_string).or_else(|| variable("AWS_PROFILE"));
        let name = chosen.clone().unwrap_or_else(|| "default".into());
        let home = variable("HOME");
        let file = |over: &str, usual: &str| {
            variable(over).or_else(|| home.as_ref().map(|home| format!("{home}/.aws/{usual}")))
        };

        let mut settings = BTreeMap::new();
        let mut exists = false;
        for path in
            [file("AWS_CONFIG_FILE", "config"), file("AWS_SHARED_CREDENTIALS_FILE", "credentials")]
                .into_iter()
                .flatten()
        {
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
                {
                    continue;
                }
                Err(error) => return Err(CredentialError::Missing(format!("{path}: {error}"))),
            };
            if let Some(section) = section(&text, &name) {
                exists = true;
                settings.extend(section);
            }
        }
        if chosen.is_some() && !exists {
            return Err(CredentialError::Missing(format!(
                "profile {name:?} is in neither ~/.aws/credentials nor ~/.aws/config"
            )));
        }
        let mut take =
            |name: &str| settings.remove(name).filter(|value: &String| !value.is_empty());
        let keys = match (take("aws_access_key_id"), take("aws_secret_access_key")) {
            (Some(access_key), Some(secret_key)) => ProfileKeys::Found(Credentials {
                access_key,
                secret_key: Secret::new(secret_key),
                session_token: take("aws_session_token").map(Secret::new),
                expires_secs: None,
            }),
            (None, None) => {
                let beyond = [
                    "role_arn",
                    "credential_process",
                    "sso_session",
                    "sso_start_url",
                    "login_session",
                ];
                match beyond.into_iter().find(|setting| take(setting).is_some()) {
                    Some(setting) => ProfileKeys::Unsupported(setting.into()),
                    None => ProfileKeys::None,
                }
            }
            _ => {
                return Err(CredentialError::Missing(format!(
                    "profile {name:?} has only one of aws_access_key_id and aws_secret_access_key"
                )));
            }
        };
        Ok(Profile {
            region: take("region"),
            ca_bundle: take("ca_bundle"),
            endpoint: take("endpoint_url"),
            keys,
            name,
        })
    }
}

/// The settings of `[name]` or `[profile name]`; indented lines belong to nested tables and are
/// skipped.
fn section(text: &str, name: &str) -> Option<BTreeMap<String, String>> {
    let mut found: Option<BTreeMap<String, String>> = None;
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with(['#', ';', ' ', '\t']) {
            continue;
        }
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let header = header.trim();
            inside = header == name
                || header
                    .strip_prefix("profile")
                    .is_some_and(|rest| rest.starts_with([' ', '\t']) && rest.trim() == name);
            if inside {
                found.get_or_insert_default();
            }
        } else if let (true, Some((key, value))) = (inside, line.split_once('=')) {
            found
                .get_or_insert_default()
                .insert(key.trim().to_ascii_lowercase(), value.trim().to_string());
        }
    }
    found
}
