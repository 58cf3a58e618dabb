//! Credentials, from the first source in the usual order that has any: connection string, key and
//! shared access signature of the environment, service principal with a secret, workload identity,
//! managed identity.

use super::account::ConnectionString;
use crate::http::credentials::{
    Bearer, CredentialError, Environment, FORM, Secret, Source, ask, ask_metadata, keeps_secrets,
    read_file, variable,
};
use crate::http::encode::{encode, encode_query};
use crate::http::transport::Transport;
use ebb_model::redacted;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Credentials {
    /// The account's, which signs.
    Key(Secret),
    /// A shared access signature: a query without its question mark.
    Signature(Secret),
    Token(Bearer),
}

pub(crate) struct AzureSource {
    pub anonymous: bool,
    pub account: String,
    pub environment: Environment,
}

impl Source for AzureSource {
    type Found = Credentials;

    fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    fn expires_secs(found: &Credentials) -> Option<i64> {
        match found {
            Credentials::Token(bearer) => Some(bearer.expires_secs),
            Credentials::Key(_) | Credentials::Signature(_) => None,
        }
    }

    async fn find(&self, transport: &Transport) -> Result<Credentials, CredentialError> {
        if let Some(found) = self.of_account()? {
            return Ok(found);
        }
        let identity = (self.variable("AZURE_TENANT_ID"), self.variable("AZURE_CLIENT_ID"));
        if let (Some(tenant), Some(client)) = identity {
            if let Some(secret) = self.variable("AZURE_CLIENT_SECRET") {
                return self
                    .principal(transport, &tenant, &client, vec![("client_secret", secret)])
                    .await;
            }
            if let Some(file) = self.variable("AZURE_FEDERATED_TOKEN_FILE") {
                let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer".to_string();
                let proof =
                    vec![("client_assertion_type", kind), ("client_assertion", read_file(&file)?)];
                return self.principal(transport, &tenant, &client, proof).await;
            }
        }
        self.machine(transport).await
    }
}

impl AzureSource {
    fn variable(&self, name: &str) -> Option<String> {
        variable(&self.environment, name)
    }

    /// Credentials of the storage account itself.
    fn of_account(&self) -> Result<Option<Credentials>, CredentialError> {
        let connection =
            ConnectionString::of(&self.environment).map_err(CredentialError::Missing)?;
        let said = |name: &str| connection.as_ref().and_then(|connection| connection.text(name));
        // A key that the environment has for another account signs nothing here.
        let named = self
            .variable("AZURE_STORAGE_ACCOUNT")
            .or_else(|| self.variable("AZURE_STORAGE_ACCOUNT_NAME"));
        let ours = |text: &String| {
            !text.is_empty() && named.as_ref().is_none_or(|named| *named == self.account)
        };
        let key = || {
            self.variable("AZURE_STORAGE_KEY")
                .or_else(|| self.variable("AZURE_STORAGE_ACCOUNT_KEY"))
                .filter(ours)
        };
        let signature = || self.variable("AZURE_STORAGE_SAS_TOKEN").filter(ours);
        if let Some(key) = said("AccountKey") {
            return Ok(Some(Credentials::Key(Secret::new(key))));
        }
        if let Some(text) = said("SharedAccessSignature") {
            return shared_access_signature(&text).map(Some);
        }
        if let Some(key) = key() {
            return Ok(Some(Credentials::Key(Secret::new(key))));
        }
        signature().map(|text| shared_access_signature(&text)).transpose()
    }

    /// A service principal, authenticated by its secret or by another service's token.
    async fn principal(
        &self,
        transport: &Transport,
        tenant: &str,
        client: &str,
        proof: Vec<(&str, String)>,
    ) -> Result<Credentials, CredentialError> {
        let host = self
            .variable("AZURE_AUTHORITY_HOST")
            .unwrap_or_else(|| "https://login.microsoftonline.com".into());
        let address =
            format!("{}/{}/oauth2/v2.0/token", host.trim_end_matches('/'), encode(tenant, false));
        if !keeps_secrets(&address) {
            return Err(CredentialError::Missing(format!(
                "AZURE_AUTHORITY_HOST {} is neither https nor an address of this machine",
                redacted(&host)
            )));
        }
        let mut form = proof;
        form.extend([
            ("grant_type", "client_credentials".to_string()),
            ("client_id", client.to_string()),
            ("scope", format!("{RESOURCE}.default")),
        ]);
        let answer = ask(transport, "POST", &address, &[FORM], encode_query(&form)).await?;
        Bearer::of_answer(&redacted(&address), &answer).map(Credentials::Token)
    }

    async fn machine(&self, transport: &Transport) -> Result<Credentials, CredentialError> {
        let client = self
            .variable("AZURE_CLIENT_ID")
            .map(|id| format!("&client_id={}", encode(&id, false)))
            .unwrap_or_default();
        let resource = encode(RESOURCE, false);
        // If the platform has an agent of its own, the agent issues the credentials.
        if let (Some(endpoint), Some(header)) =
            (self.variable("IDENTITY_ENDPOINT"), self.variable("IDENTITY_HEADER"))
        {
            let address = format!("{endpoint}?api-version=2019-08-01&resource={resource}{client}");
            let answer =
                ask(transport, "GET", &address, &[("x-identity-header", &header)], String::new())
                    .await?;
            return Bearer::of_answer("the managed identity's agent", &answer)
                .map(Credentials::Token);
        }
        let host = self
            .variable("AZURE_POD_IDENTITY_AUTHORITY_HOST")
            .unwrap_or_else(|| "http://169.254.169.254".into());
        let host = host.trim_end_matches('/');
        let address = format!(
            "{host}/metadata/identity/oauth2/token?api-version=2018-02-01&resource={resource}{client}"
        );
        match ask_metadata(transport, "GET", &address, &[("metadata", "true")]).await {
            // 404: another cloud's metadata service at this address.
            Some(answer) if answer.status.as_u16() != 404 => {
                Bearer::of_answer("the machine's metadata service", &answer).map(Credentials::Token)
            }
            _ => Err(CredentialError::Missing(NOTHING_FOUND.into())),
        }
    }
}

fn shared_access_signature(text: &str) -> Result<Credentials, CredentialError> {
    let text = text.trim().trim_start_matches('?');
    if text.contains("sig=") && text.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(Credentials::Signature(Secret::new(text)))
    } else {
        Err(CredentialError::Missing("the shared access signature is none: it has no sig=".into()))
    }
}

const RESOURCE: &str = "https://storage.azure.com/";
const NOTHING_FOUND: &str = "no credentials found: set AZURE_STORAGE_CONNECTION_STRING, \
    AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, \
     AZURE_TENANT_ID and AZURE_CLIENT_ID with AZURE_CLIENT_SECRET or AZURE_FEDERATED_TOKEN_FILE, \
    or use a machine with a managed \
     identity; --anonymous for public containers";
