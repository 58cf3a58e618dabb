//! Credentials that a service hands out: STS for a web identity, the container agent,
//! the instance's metadata service (version 2).

use super::{CredentialError, Credentials, Environment, Secret};
use crate::s3::sign::encode_query;
use crate::s3::time::parse_iso;
use crate::s3::transport::{Answer, Lost, Transport};
use crate::s3::xml::Element;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use std::time::Duration;

/// A Kubernetes service account or another OpenID token, exchanged at STS.
pub(super) struct WebIdentity {
    token_file: String,
    role: String,
    session: String,
    endpoint: String,
}

impl WebIdentity {
    pub fn of(environment: &Environment, region: &str) -> Option<WebIdentity> {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        Some(WebIdentity {
            token_file: variable("AWS_WEB_IDENTITY_TOKEN_FILE")?,
            role: variable("AWS_ROLE_ARN")?,
            session: variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "ebb".into()),
            endpoint: variable("AWS_ENDPOINT_URL_STS").unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com")),
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
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        let answer = ask(transport, "POST", &format!("{}/", self.endpoint.trim_end_matches('/')), &headers, form).await?;
        let from = format!("STS at {}", self.endpoint);
        let tree = Element::parse(&answer.body);
        if !answer.status.is_success() {
            let error = tree.as_ref().and_then(|root| root.child("Error"));
            let said = error.and_then(|error| Some(format!("{}: {}", error.text_of("Code")?, error.text_of("Message")?)));
            return Err(refused(&from, &answer, said));
        }
        let found = tree.as_ref().and_then(|root| root.child("AssumeRoleWithWebIdentityResult")?.child("Credentials"));
        found
            .and_then(|found| {
                Some(Credentials {
                    access_key: found.text_of("AccessKeyId")?.into(),
                    secret_key: Secret::new(found.text_of("SecretAccessKey")?),
                    session_token: Some(Secret::new(found.text_of("SessionToken")?)),
                    expires_secs: Some(parse_iso(found.text_of("Expiration")?)?),
                })
            })
            .ok_or_else(|| CredentialError::Unavailable(format!("{from} gave an answer without credentials")))
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
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
    let address = match (variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), variable("AWS_CONTAINER_CREDENTIALS_FULL_URI")) {
        (Some(relative), _) => format!("http://169.254.170.2{relative}"),
        (None, Some(full)) if full.starts_with("https://") || is_local(&full) => full,
        (None, Some(full)) => {
            let why = "is neither https nor an address of this machine or its agent";
            return Err(CredentialError::Missing(format!("AWS_CONTAINER_CREDENTIALS_FULL_URI {full} {why}")));
        }
        (None, None) => return Ok(None),
    };
    let token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        .map(Token::File)
        .or_else(|| variable("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(|token| Token::Given(Secret::new(token))));
    Ok(Some(Container { address, token }))
}

/// Plain HTTP would show the token to the network anywhere else.
fn is_local(address: &str) -> bool {
    const HOSTS: [&str; 6] = ["127.0.0.1", "localhost", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];
    let Some(rest) = address.strip_prefix("http://") else { return false };
    let authority = rest.split('/').next().unwrap_or_default();
    HOSTS.iter().any(|host| authority.strip_prefix(host).is_some_and(|port| port.is_empty() || port.starts_with(':')))
}

impl Container {
    pub async fn fetch(&self, transport: &Transport) -> Result<Credentials, CredentialError> {
        let token = match &self.token {
            None => None,
            Some(Token::Given(token)) => Some(token.expose().to_string()),
            Some(Token::File(path)) => Some(read_file(path)?),
        };
        let headers: Vec<(&str, &str)> = token.iter().map(|token| ("authorization", token.as_str())).collect();
        let answer = ask(transport, "GET", &self.address, &headers, String::new()).await?;
        from_json(&format!("the container agent at {}", self.address), &answer)
    }
}

pub(super) async fn instance_role(transport: &Transport, address: Option<&str>) -> Result<Credentials, CredentialError> {
    let base = address.unwrap_or("http://169.254.169.254").trim_end_matches('/');
    let lifetime = [("x-aws-ec2-metadata-token-ttl-seconds", "21600")];
    let first = format!("{base}/latest/api/token");
    let token = match tokio::time::timeout(INSTANCE_TIMEOUT, ask(transport, "PUT", &first, &lifetime, String::new())).await {
        Ok(Ok(answer)) if answer.status.is_success() => String::from_utf8_lossy(&answer.body).trim().to_string(),
        // No such service: this machine is no cloud instance.
        _ => return Err(CredentialError::Missing(super::chain::NOTHING_FOUND.into())),
    };
    let headers = [("x-aws-ec2-metadata-token", token.as_str())];
    let roles = format!("{base}/latest/meta-data/iam/security-credentials/");
    let answer = ask(transport, "GET", &roles, &headers, String::new()).await?;
    let names = String::from_utf8_lossy(&answer.body).into_owned();
    let role = names.lines().next().map(str::trim).filter(|role| answer.status.is_success() && !role.is_empty());
    let role = role.ok_or_else(|| CredentialError::Missing("this instance has no role, and no other credentials were found".into()))?;
    let answer = ask(transport, "GET", &format!("{roles}{role}"), &headers, String::new()).await?;
    from_json("the instance's metadata service", &answer)
}

fn from_json(from: &str, answer: &Answer) -> Result<Credentials, CredentialError> {
    if !answer.status.is_success() {
        return Err(refused(from, answer, None));
    }
    let found: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
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
        .ok_or_else(|| CredentialError::Unavailable(format!("{from} gave an answer without credentials")))
}

fn refused(from: &str, answer: &Answer, said: Option<String>) -> CredentialError {
    let text = format!("{from} refused: {}", said.unwrap_or_else(|| format!("HTTP status {}", answer.status.as_u16())));
    if answer.status.is_client_error() && answer.status.as_u16() != 429 {
        CredentialError::Missing(text)
    } else {
        CredentialError::Unavailable(text)
    }
}

async fn ask(
    transport: &Transport,
    method: &str,
    address: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Result<Answer, CredentialError> {
    let len = body.len();
    let mut request = Request::builder().method(method).uri(address);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).map_err(|error| CredentialError::Missing(format!("{address}: {error}")))?;
    transport.send(request, len, SERVICE_TIMEOUT).await.map_err(|lost| match lost {
        Lost::NotSent(reason) | Lost::Sent(reason) => CredentialError::Unavailable(format!("{address}: {reason}")),
    })
}

fn read_file(path: &str) -> Result<String, CredentialError> {
    // A few hundred bytes, on a thread of the adapter.
    std::fs::read_to_string(path).map(|text| text.trim().to_string()).map_err(|error| CredentialError::Missing(format!("{path}: {error}")))
}

const SERVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// Outside the cloud nothing answers at the service's address.
const INSTANCE_TIMEOUT: Duration = Duration::from_secs(2);
