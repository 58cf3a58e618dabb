//! Azure block blobs. The reasons for this design: docs/decisions/0005-google-and-azure.md.
//!
//! [`operations`] and [`listing`] map operations to requests, [`sign`] authenticates the requests.

mod account;
mod credentials;
pub(crate) mod listing;
mod operations;
mod sign;

use crate::http::client::{Call, Client, Outcome, Outgoing, Service, bad_key};
use crate::http::credentials::{Environment, keeps_secrets};
use crate::http::encode::encode;
use crate::http::origin::Origin;
use crate::http::remote::{Remote, conditions};
use crate::http::staging;
use crate::http::time::{http_date, now_secs};
use crate::http::transport::Transport;
use crate::http::trust::Bundle;
use crate::{BucketSettings, OpenError};
use account::Account;
use credentials::{AzureSource, Credentials};
use ebb_ports::{BucketError, Capabilities};
use listing::Markers;
use std::sync::Arc;

/// The container as a service.
pub(crate) struct Azure {
    account: Account,
    container: String,
    /// The prefix of the volume in the container.
    prefix: String,
    markers: Markers,
}

pub(crate) type Blobs = Client<Azure>;

/// Opens a container that is reachable and permitted, and determines its abilities. Only keys below
/// `prefix` will be used.
pub(crate) async fn open(
    container: &str,
    account: &str,
    prefix: &str,
    settings: &BucketSettings,
) -> Result<Remote<Blobs>, OpenError> {
    let environment: Environment = Arc::new(|name| std::env::var(name).ok());
    open_in(container, account, prefix, settings, environment).await
}

async fn open_in(
    container: &str,
    account: &str,
    prefix: &str,
    settings: &BucketSettings,
    environment: Environment,
) -> Result<Remote<Blobs>, OpenError> {
    let mut client =
        client(container, account, prefix, settings, environment, Transport::to_store)?;
    client.begin_opening(settings.patience());
    let read_only = settings.read_only;
    let remote = Remote::open("ebb-azure", async move {
        let capabilities = probe(&client, read_only).await?;
        client.end_opening();
        Ok((client, capabilities))
    })
    .await?;
    if !read_only {
        remote.aside(|store| staging::sweep(store, prefix.into()));
    }
    Ok(remote)
}

/// The client for the container, before any request.
pub(crate) fn client(
    container: &str,
    account: &str,
    prefix: &str,
    settings: &BucketSettings,
    environment: Environment,
    transport: impl FnOnce(&Environment, Option<Bundle>) -> Result<Transport, String>,
) -> Result<Blobs, OpenError> {
    let wrong = |what: String| OpenError::Settings { url: format!("az://{container}"), what };
    check_name(container).map_err(wrong)?;
    staging::check_prefix(prefix, MAX_KEY_BYTES).map_err(wrong)?;
    let account =
        Account::find(account, settings.endpoint.as_deref(), &environment).map_err(wrong)?;
    let transport = transport(&environment, None).map_err(wrong)?;
    let source =
        AzureSource { anonymous: settings.anonymous, account: account.name.clone(), environment };
    let service = Azure {
        account,
        container: container.into(),
        prefix: prefix.into(),
        markers: Markers::default(),
    };
    Ok(Client::new(service, source, transport))
}

fn check_name(container: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let good = (3..=63).contains(&container.len())
        && container.bytes().all(|byte| is_plain(byte) || byte == b'-')
        && !container.contains("--")
        && !container.starts_with('-')
        && !container.ends_with('-');
    match good {
        true => Ok(()),
        false => Err(format!(
            "{container:?} cannot be the name of a container: it has 3 to 63 small letters, digits \
             and single '-', and '-' neither first nor last"
        )),
    }
}

pub(crate) async fn probe(client: &Blobs, read_only: bool) -> Result<Capabilities, OpenError> {
    let (url, prefix) = (client.service.url(), &client.service.prefix);
    let call = client.listing().query("maxresults", "1").query("prefix", prefix);
    match client.try_call(&call).await {
        Ok(Outcome::Done(answer)) if listing::read(&answer.body).is_some() => {}
        Ok(Outcome::Done(_)) => return Err(OpenError::stranger(url, "Azure blob")),
        Ok(Outcome::Refused(refusal))
            if refusal.is("ContainerNotFound")
                || (refusal.status == 404 && refusal.code.is_empty()) =>
        {
            return Err(OpenError::NoBucket {
                url,
                endpoint: client.service.account.origin.authority.clone(),
            });
        }
        Ok(Outcome::Refused(refusal)) => {
            return Err(client.not_open(client.error(&call, &refusal)));
        }
        Err(error) => return Err(client.not_open(error)),
    }
    if hierarchical(client).await {
        let what = "the account has a hierarchical namespace, which keeps keys as paths; use one \
            with a flat namespace"
            .into();
        return Err(OpenError::Settings { url, what });
    }
    let kept = conditions(client, prefix, read_only).await?;
    Ok(Capabilities {
        conditional_put: kept.put,
        conditional_delete: kept.delete,
        copies_parts: false,
        copies_remotely: false,
        min_part_bytes: 1,
        max_parts: staging::MAX_PARTS,
        max_object_bytes: u64::from(staging::MAX_PARTS) * MAX_PART_BYTES,
        max_key_bytes: MAX_KEY_BYTES,
        max_put_bytes: MAX_PUT_BYTES,
    })
}

/// False if the caller has no permission for this request: later operations then fail instead.
async fn hierarchical(client: &Blobs) -> bool {
    let call = Call::read("HEAD", None, client.service.container_path())
        .query("restype", "account")
        .query("comp", "properties");
    let call = call.header("x-ms-version", VERSION);
    match client.try_call(&call).await {
        Ok(Outcome::Done(answer)) => answer.header("x-ms-is-hns-enabled") == Some("true"),
        Ok(Outcome::Refused(_)) | Err(_) => false,
    }
}

impl Azure {
    fn container_path(&self) -> String {
        format!("{}/{}", self.account.root, self.container)
    }

    /// The key is one segment, so that no key is a path.
    fn blob(&self, key: &str) -> String {
        format!("{}/{}", self.container_path(), encode(key, false))
    }
}

impl Service for Azure {
    type Source = AzureSource;

    fn url(&self) -> String {
        format!("az://{}@{}", self.container, self.account.name)
    }

    fn origin(&self) -> &Origin {
        &self.account.origin
    }

    /// Rejects keys that are invalid for blobs, and keys that the service documents to change or
    /// lose.
    fn check_key(&self, key: &str) -> Result<(), BucketError> {
        let bad = |why: &str| Err(bad_key(&self.url(), key, why));
        match key {
            _ if key.is_empty() || key.len() > MAX_KEY_BYTES => {
                bad(&format!("a key is 1 to {MAX_KEY_BYTES} bytes long"))
            }
            _ if key.contains('\\') => bad("the store takes a backslash for a slash"),
            _ if key.split('/').any(|segment| segment.ends_with('.')) => {
                bad("the store keeps no dot at the end of a segment")
            }
            _ if key.chars().any(|c| c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}')) => {
                bad("the store takes no control characters")
            }
            _ if key.matches('/').count() >= MAX_SEGMENTS => {
                bad(&format!("a key has at most {MAX_SEGMENTS} segments"))
            }
            _ => Ok(()),
        }
    }

    fn authorize(&self, request: &mut Outgoing, credentials: &Credentials) -> Result<(), String> {
        let private = || match keeps_secrets(&self.account.origin.address("", "")) {
            true => Ok(()),
            false => {
                Err("a token is shown to nobody over plain HTTP; use an https endpoint".to_string())
            }
        };
        request.headers.push(("x-ms-date".into(), http_date(now_secs())));
        match credentials {
            Credentials::Key(key) => sign::sign(request, &self.account.name, key),
            Credentials::Signature(signature) => {
                private()?;
                let mark = if request.query.is_empty() { "" } else { "&" };
                request.query = format!("{}{mark}{}", request.query, signature.expose());
                // The source of a copy is authorised by the same signature.
                for (_, source) in
                    request.headers.iter_mut().filter(|(name, _)| name == "x-ms-copy-source")
                {
                    *source = format!("{source}?{}", signature.expose());
                }
                Ok(())
            }
            Credentials::Token(bearer) => {
                private()?;
                request.headers.push(bearer.header());
                Ok(())
            }
        }
    }
}

/// The first that takes blocks of 4,000 MiB.
const VERSION: &str = "2021-08-06";
const MAX_KEY_BYTES: usize = 1024;
const MAX_SEGMENTS: usize = 254;
const MAX_PUT_BYTES: u64 = 5000 << 20;
const MAX_PART_BYTES: u64 = 4000 << 20;

#[cfg(test)]
mod tests;
