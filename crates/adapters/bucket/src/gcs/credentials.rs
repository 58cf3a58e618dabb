//! Credentials, from the first source in the usual order that has any: the file named by
//! GOOGLE_APPLICATION_CREDENTIALS, the file of `gcloud auth application-default login`, the
//! machine's service account.

use super::token::assertion;
use crate::http::credentials::{
    Bearer, CredentialError, Environment, FORM, Secret, Source, ask, ask_metadata, keeps_secrets,
    read_file, variable,
};
use crate::http::encode::encode_query;
use crate::http::time::now_secs;
use crate::http::transport::Transport;
use ebb_model::redacted;
use serde_json::Value;
use std::path::Path;

pub(crate) struct GoogleSource {
    pub anonymous: bool,
    pub environment: Environment,
}

impl Source for GoogleSource {
    type Found = Bearer;

    fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    fn expires_secs(found: &Bearer) -> Option<i64> {
        Some(found.expires_secs)
    }

    async fn find(&self, transport: &Transport) -> Result<Bearer, CredentialError> {
        if let Some(path) = self.file() {
            let file = File::parse(&read_file(&path)?)
                .map_err(|why| CredentialError::Missing(format!("{path}: {why}")))?;
            return file.exchange(transport).await;
        }
        self.machine(transport).await
    }
}

impl GoogleSource {
    /// A file that is named must be there; the usual one need not.
    fn file(&self) -> Option<String> {
        let variable = |name: &str| variable(&self.environment, name);
        let usual = || {
            let directory = variable("CLOUDSDK_CONFIG")
                .or_else(|| Some(format!("{}/.config/gcloud", variable("HOME")?)))?;
            Some(format!("{directory}/application_default_credentials.json"))
                .filter(|path| Path::new(path).exists())
        };
        variable("GOOGLE_APPLICATION_CREDENTIALS").or_else(usual)
    }

    async fn machine(&self, transport: &Transport) -> Result<Bearer, CredentialError> {
        let host = variable(&self.environment, "GCE_METADATA_HOST")
            .unwrap_or_else(|| "169.254.169.254".into());
        let address =
            format!("http://{host}/computeMetadata/v1/instance/service-accounts/default/token");
        match ask_metadata(transport, "GET", &address, &[("metadata-flavor", "Google")]).await {
            // Other clouds also have a metadata service at this address.
            Some(answer) if answer.header("metadata-flavor") == Some("Google") => {
                Bearer::of_answer("the machine's metadata service", &answer)
            }
            _ => Err(CredentialError::Missing(NOTHING_FOUND.into())),
        }
    }
}

/// Contents of a credentials file.
#[derive(Debug, PartialEq)]
enum File {
    ServiceAccount {
        email: String,
        key_id: Option<String>,
        key: Secret,
        token_uri: String,
    },
    AuthorizedUser {
        client_id: String,
        client_secret: Secret,
        refresh_token: Secret,
        token_uri: String,
    },
}

impl File {
    /// The error describes the problem without quoting the content.
    fn parse(text: &str) -> Result<File, String> {
        let json: Value = serde_json::from_str(text).map_err(|_| "no JSON".to_string())?;
        let optional = |name: &str| {
            json.get(name)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .map(str::to_string)
        };
        let text = |name: &str| optional(name).ok_or_else(|| format!("it has no {name}"));
        let token_uri =
            optional("token_uri").unwrap_or_else(|| "https://oauth2.googleapis.com/token".into());
        if !keeps_secrets(&token_uri) {
            return Err(format!(
                "its token_uri {} is neither https nor an address of this machine",
                redacted(&token_uri)
            ));
        }
        match text("type")?.as_str() {
            "service_account" => Ok(File::ServiceAccount {
                email: text("client_email")?,
                key_id: optional("private_key_id"),
                key: Secret::new(text("private_key")?),
                token_uri,
            }),
            "authorized_user" => Ok(File::AuthorizedUser {
                client_id: text("client_id")?,
                client_secret: Secret::new(text("client_secret")?),
                refresh_token: Secret::new(text("refresh_token")?),
                token_uri,
            }),
            other => Err(format!(
                "credentials of type {other:?}, which ebb does not do; give a service account's \
                 key, a user's refresh token, or a machine with a service account"
            )),
        }
    }

    async fn exchange(&self, transport: &Transport) -> Result<Bearer, CredentialError> {
        let (token_uri, form) = match self {
            File::ServiceAccount { email, key_id, key, token_uri } => {
                let assertion = assertion(email, key_id.as_deref(), key, token_uri, now_secs());
                let assertion = assertion.map_err(|why| {
                    CredentialError::Missing(format!("the key of {email}: {why}"))
                })?;
                (
                    token_uri,
                    vec![
                        ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer".into()),
                        ("assertion", assertion),
                    ],
                )
            }
            File::AuthorizedUser { client_id, client_secret, refresh_token, token_uri } => (
                token_uri,
                vec![
                    ("grant_type", "refresh_token".into()),
                    ("client_id", client_id.clone()),
                    ("client_secret", client_secret.expose().into()),
                    ("refresh_token", refresh_token.expose().into()),
                ],
            ),
        };
        let answer = ask(transport, "POST", token_uri, &[FORM], encode_query(&form)).await?;
        Bearer::of_answer(&redacted(token_uri), &answer)
    }
}

const NOTHING_FOUND: &str = "no credentials found: set GOOGLE_APPLICATION_CREDENTIALS to a file of \
    credentials, run `gcloud auth \
     application-default login`, or use a machine with a service account; --anonymous for public \
    buckets";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_said() {
        for (text, said) in [
            ("", "no JSON"),
            ("[]", "no type"),
            (r#"{"type":"service_account","client_email":"a@b"}"#, "no private_key"),
            (
                r#"{"type":"authorized_user","client_id":"a","client_secret":"s"}"#,
                "no refresh_token",
            ),
            (r#"{"type":"external_account"}"#, "does not do"),
            (r#"{"type":"service_account","token_uri":"http://evil.example/"}"#, "neither https"),
        ] {
            let error = File::parse(text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let file = r#"{"type":"authorized_user","client_id":"a","client_secret":"hush","refresh_token":"hush"}"#;
        assert!(!format!("{:?}", File::parse(file).unwrap()).contains("hush"));
    }
}
