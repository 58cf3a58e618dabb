//! Which account, and where it is reached.

use crate::http::credentials::{Environment, Secret, variable};
use crate::http::origin::{Origin, is_name};
use std::collections::BTreeMap;

#[derive(Debug)]
pub(super) struct Account {
    pub name: String,
    pub origin: Origin,
    /// Prefix of every path: empty if the account is in the host's name.
    pub root: String,
}

impl Account {
    /// `named`: by the URL, as the account's name or as its host; may be empty.
    pub fn find(
        named: &str,
        endpoint: Option<&str>,
        environment: &Environment,
    ) -> Result<Account, String> {
        let connection = ConnectionString::of(environment)?;
        let said = |name: &str| connection.as_ref().and_then(|connection| connection.text(name));
        let (name, host) = match named.split_once('.') {
            Some((name, _)) => (name.to_string(), Some(named)),
            None => (named.to_string(), None),
        };
        let told = said("AccountName");
        if told.as_ref().is_some_and(|told| !is_name(told)) {
            return Err(
                "AccountName in AZURE_STORAGE_CONNECTION_STRING is no name of an account".into()
            );
        }
        let name = match (name.as_str(), &told) {
            ("", Some(told)) => told.clone(),
            ("", None) => variable(environment, "AZURE_STORAGE_ACCOUNT")
                .or_else(|| variable(environment, "AZURE_STORAGE_ACCOUNT_NAME"))
                .ok_or(
                    "it names no account: write az://CONTAINER@ACCOUNT, or set \
                    AZURE_STORAGE_ACCOUNT",
                )?,
            (name, Some(told)) if name != told => {
                return Err(format!(
                    "it names account {name}, and AZURE_STORAGE_CONNECTION_STRING \
                    account {told}"
                ));
            }
            (name, _) => name.into(),
        };
        if !is_name(&name) {
            return Err("what is given as the account is no name of one".into());
        }
        let usual = || {
            let scheme = said("DefaultEndpointsProtocol").unwrap_or_else(|| "https".into());
            let suffix = said("EndpointSuffix").unwrap_or_else(|| "core.windows.net".into());
            format!("{scheme}://{name}.blob.{suffix}")
        };
        let (origin, root) = match endpoint
            .map(str::to_string)
            .or_else(|| Some(format!("https://{}", host?)))
        {
            Some(address) => Origin::parse(&address)?,
            None => Origin::parse(&said("BlobEndpoint").unwrap_or_else(usual)).map_err(|_| {
                "BlobEndpoint, or DefaultEndpointsProtocol and EndpointSuffix, in \
                    AZURE_STORAGE_CONNECTION_STRING is no http[s]://HOST[:PORT][/PATH]"
            })?,
        };
        // A host without names cannot have the account in its name.
        let host =
            origin.authority.rsplit_once(':').map_or(origin.authority.as_str(), |(host, _)| host);
        let nameless = host == "localhost"
            || host.starts_with('[')
            || host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let root = if root.is_empty() && nameless { format!("/{name}") } else { root };
        Ok(Account { name, origin, root })
    }
}

/// AZURE_STORAGE_CONNECTION_STRING: `Name=value;…`.
pub(super) struct ConnectionString(BTreeMap<String, Secret>);

impl ConnectionString {
    pub fn of(environment: &Environment) -> Result<Option<ConnectionString>, String> {
        variable(environment, "AZURE_STORAGE_CONNECTION_STRING")
            .map(|text| ConnectionString::parse(&text))
            .transpose()
    }

    /// The error never contains the text, which holds the key.
    fn parse(text: &str) -> Result<ConnectionString, String> {
        let wrong = || "AZURE_STORAGE_CONNECTION_STRING is not NAME=VALUE;NAME=VALUE…".to_string();
        let pairs = text.split(';').map(str::trim).filter(|pair| !pair.is_empty());
        let parts: Result<BTreeMap<_, _>, _> = pairs
            .map(|pair| {
                pair.split_once('=')
                    .map(|(name, value)| (name.to_string(), Secret::new(value)))
                    .ok_or_else(wrong)
            })
            .collect();
        let parts = parts?;
        if parts.contains_key("UseDevelopmentStorage") {
            return Err(
                "AZURE_STORAGE_CONNECTION_STRING says UseDevelopmentStorage, which ebb does not \
                 do; give endpoint, account and key"
                    .into(),
            );
        }
        Ok(ConnectionString(parts))
    }

    pub fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|value| value.expose().to_string()).filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn find(
        named: &str,
        endpoint: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<(String, String), String> {
        let variables: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let environment: Environment = Arc::new(move |name| variables.get(name).cloned());
        Account::find(named, endpoint, &environment)
            .map(|account| (account.name.clone(), account.origin.address(&account.root, "")))
    }

    fn is(name: &str, address: &str) -> Result<(String, String), String> {
        Ok((name.into(), address.into()))
    }

    #[test]
    fn an_account_is_found_where_it_is_said() {
        let usual = "https://acc.blob.core.windows.net";
        assert_eq!(find("acc", None, &[]), is("acc", usual));
        assert_eq!(find("", None, &[("AZURE_STORAGE_ACCOUNT", "acc")]), is("acc", usual));
        assert_eq!(find("", None, &[("AZURE_STORAGE_ACCOUNT_NAME", "acc")]), is("acc", usual));
        assert_eq!(
            find("acc.blob.core.chinacloudapi.cn", None, &[]),
            is("acc", "https://acc.blob.core.chinacloudapi.cn")
        );
        assert_eq!(
            find("acc", Some("http://127.0.0.1:10000"), &[]),
            is("acc", "http://127.0.0.1:10000/acc")
        );
        assert_eq!(
            find("acc", Some("http://127.0.0.1:10000/acc/"), &[]),
            is("acc", "http://127.0.0.1:10000/acc")
        );
        let connection = |text| [("AZURE_STORAGE_CONNECTION_STRING", text)];
        let text = "DefaultEndpointsProtocol=http;AccountName=acc;AccountKey=aHVzaA==;BlobEndpoint=http://127.0.0.1:1/acc;";
        assert_eq!(find("", None, &connection(text)), is("acc", "http://127.0.0.1:1/acc"));
        assert_eq!(
            find("", None, &connection("AccountName=acc;EndpointSuffix=e.x")),
            is("acc", "https://acc.blob.e.x")
        );
    }

    #[test]
    fn missing_account_is_reported() {
        let connection = |text| [("AZURE_STORAGE_CONNECTION_STRING", text)];
        for (named, variables, said) in [
            ("", &[][..], "AZURE_STORAGE_ACCOUNT"),
            ("a/b", &[], "no name of one"),
            ("", &connection("AccountName=acc AccountKey=hush"), "no name of an account"),
            ("acc", &connection("AccountName=acc\nAccountKey=hush"), "no name of an account"),
            (
                "",
                &connection(
                    "DefaultEndpointsProtocol=https,AccountName=acc,AccountKey=hush;AccountName=acc",
                ),
                "HOST",
            ),
            ("", &connection("AccountName=acc;BlobEndpoint=https://acc.x/?sig=hush"), "HOST"),
            ("other", &connection("AccountName=acc"), "account other"),
            ("", &connection("hush"), "NAME=VALUE"),
            ("", &connection("UseDevelopmentStorage=true"), "does not do"),
        ] {
            let error = find(named, None, variables).unwrap_err();
            assert!(error.contains(said) && !error.contains("hush"), "{error}");
        }
    }
}
