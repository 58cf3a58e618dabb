//! Credentials that a service hands out: STS for a web identity, the container agent,
//! the instance's metadata service (version 2).

use super::Credentials;
use crate::http::credentials::{
    CredentialError, Environment, FORM, Secret, ask, ask_metadata, keeps_secrets, read_file,
    refused, variable,
};
use crate::http::encode::encode_query;
use crate::http::json;
use crate::http::time::parse_iso;
use crate::http::transport::{Answer, Transport};
use crate::http::xml::Element;
use ebb_model::redacted;

/// A Kubernetes service account or another OpenID token, exchanged at STS.
pub(super) struct WebIdentity {
    token_file: String,
    role: String,
    session: String,
    endpoint: String,
}

impl WebIdentity {
    pub fn of(environment: &Environment, region: &str) -> Option<WebIdentity> {
        let variable = |name: &str| variable(environment, name);
        Some(WebIdentity {
            token_file: variable("AWS_WEB_IDENTITY_TOKEN_FILE")?,
            role: variable("AWS_ROLE_ARN")?,
            session: variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "ebb".into()),
            endpoint: variable("AWS_ENDPOINT_URL_STS")
                .unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com")),
        })
    }

    pub async fn fetch(&self, transport: &Transport) -> Result<Credentials, CredentialError> {
        let token = read_file(&self.token_file)?;
        let form = encode_query(&[
            ("Action", "AssumeRoleWithWebIdentity".into()),
            ("Version", "2011-06-15".into()),
            ("RoleArn", self.role.clone()),
            ("RoleSessionName", self.session.clone()),
            ("WebIdentityToken", token),
        ]);
        let answer = ask(
            transport,
            "POST",
            &format!("{}/", self.endpoint.trim_end_matches('/')),
            &[FORM],
            form,
        )
        .await?;
        let from = format!("STS at {}", self.endpoint);
        let tree = Element::parse(&answer.body);
        if !answer.status.is_success() {
            let error = tree.as_ref().and_then(|root| root.child("Error"));
            let said = error.and_then(|error| {
                Some(format!("{}: {}", error.text_of("Code")?, error.text_of("Message")?))
            });
            return Err(refused(&from, &answer, said));
        }
        let found = tree
            .as_ref()
            .and_then(|root| root.child("AssumeRoleWithWebIdentityResult")?.child("Credentials"));
        found
            .and_then(|found| {
                Some(Credentials {
                    access_key: found.text_of("AccessKeyId")?.into(),
                    secret_key: Secret::new(found.text_of("SecretAccessKey")?),
                    session_token: Some(Secret::new(found.text_of("SessionToken")?)),
                    expires_secs: Some(parse_iso(found.text_of("Expiration")?)?),
                })
            })
            .ok_or_else(|| {
                CredentialError::Unavailable(format!("{from} gave an answer without credentials"))
            })
    }
}

/// The agent of ECS or EKS.
pub(super) struct Container {
    address: String,
    token: Option<Token>,
}

enum Token {
    Given(Secret),
    /// Read every time: the agent rotates it.
    File(String),
}

pub(super) fn container(environment: &Environment) -> Result<Option<Container>, CredentialError> {
    let variable = |name: &str| variable(environment, name);
    let address = match (
        variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        variable("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ) {
        (Some(relative), _) => format!("http://169.254.170.2{relative}"),
        (None, Some(full)) if keeps_secrets(&full) => full,
        (None, Some(full)) => {
            let why = "is neither https nor an address of this machine or its agent";
            return Err(CredentialError::Missing(format!(
                "AWS_CONTAINER_CREDENTIALS_FULL_URI {} {why}",
                redacted(&full)
            )));
        }
        (None, None) => return Ok(None),
    };
    let token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(Token::File).or_else(|| {
        variable("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(|token| Token::Given(Secret::new(token)))
    });
    Ok(Some(Container { address, token }))
}

impl Container {
    pub async fn fetch(&self, transport: &Transport) -> Result<Credentials, CredentialError> {
        let token = match &self.token {
            None => None,
            Some(Token::Given(token)) => Some(token.expose().to_string()),
            Some(Token::File(path)) => Some(read_file(path)?),
        };
        let headers: Vec<(&str, &str)> =
            token.iter().map(|token| ("authorization", token.as_str())).collect();
        let answer = ask(transport, "GET", &self.address, &headers, String::new()).await?;
        from_json(&format!("the container agent at {}", redacted(&self.address)), &answer)
    }
}

pub(super) async fn instance_role(
    transport: &Transport,
    address: Option<&str>,
) -> Result<Credentials, CredentialError> {
    let base = address.unwrap_or("http://169.254.169.254").trim_end_matches('/');
    let lifetime = [("x-aws-ec2-metadata-token-ttl-seconds", "21600")];
    let first = format!("{base}/latest/api/token");
    let token = match ask_metadata(transport, "PUT", &first, &lifetime).await {
        Some(answer) if answer.status.is_success() => {
            String::from_utf8_lossy(&answer.body).trim().to_string()
        }
        // No such service: this machine is no cloud instance.
        _ => return Err(CredentialError::Missing(super::chain::NOTHING_FOUND.into())),
    };
    let headers = [("x-aws-ec2-metadata-token", token.as_str())];
    let roles = format!("{base}/latest/meta-data/iam/security-credentials/");
    let answer = ask(transport, "GET", &roles, &headers, String::new()).await?;
    let names = String::from_utf8_lossy(&answer.body).into_owned();
    let role = names
        .lines()
        .next()
        .map(str::trim)
        .filter(|role| answer.status.is_success() && !role.is_empty());
    let role = role.ok_or_else(|| {
        CredentialError::Missing(
            "this instance has no role, and no other credentials were found".into(),
        )
    })?;
    let answer = ask(transport, "GET", &format!("{roles}{role}"), &headers, String::new()).await?;
    from_json("the instance's metadata service", &answer)
}

fn from_json(from: &str, answer: &Answer) -> Result<Credentials, CredentialError> {
    if !answer.status.is_success() {
        return Err(refused(from, answer, None));
    }
    let found = json::parse(&answer.body);
    let text = |name: &str| Some(found.as_ref()?.get(name)?.as_str()?.to_string());
    text("AccessKeyId")
        .and_then(|access_key| {
            Some(Credentials {
                access_key,
                secret_key: Secret::new(text("SecretAccessKey")?),
                session_token: text("Token").map(Secret::new),
                expires_secs: Some(parse_iso(&text("Expiration")?)?),
            })
        })
        .ok_or_else(|| {
            CredentialError::Unavailable(format!("{from} gave an answer without credentials"))
        })
}
