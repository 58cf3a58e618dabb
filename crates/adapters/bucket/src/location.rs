//! What a storage URL names.

use crate::http::origin::is_name;
use crate::{BucketSettings, OpenError};
use ebb_model::redacted;
use std::path::PathBuf;

#[derive(Debug, PartialEq)]
pub(crate) enum Location {
    /// `prefix` is empty or ends with `/`.
    S3 {
        bucket: String,
        prefix: String,
    },
    Google {
        bucket: String,
        prefix: String,
    },
    /// `account` is a name, a host, or empty where the environment is to say it.
    Azure {
        container: String,
        account: String,
        prefix: String,
    },
    Directory {
        path: PathBuf,
    },
    Memory {
        prefix: String,
    },
}

impl Location {
    /// Taken as it stands: nothing in it is decoded or normalised.
    pub fn parse(url: &str) -> Result<Location, OpenError> {
        let wrong = |why: &str| OpenError::Url { url: redacted(url), why: why.into() };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        match scheme {
            "s3" | "gs" if host.is_empty() => Err(wrong("it names no bucket")),
            "s3" | "gs" if !is_name(host) => {
                Err(wrong("the name of a bucket has letters, digits, '-', '.' and '_' alone"))
            }
            "s3" => Ok(Location::S3 { bucket: host.into(), prefix: prefix(path) }),
            "gs" => Ok(Location::Google { bucket: host.into(), prefix: prefix(path) }),
            "az" => {
                let (container, account) = host.split_once('@').unwrap_or((host, ""));
                if container.is_empty() {
                    return Err(wrong("it names no container"));
                }
                let is_host = |account: &str| {
                    is_name(
                        account
                            .trim_end_matches(|c: char| c.is_ascii_digit())
                            .trim_end_matches(':'),
                    )
                };
                if !is_name(container)
                    || !account.is_empty() && !is_name(account) && !is_host(account)
                {
                    return Err(wrong(
                        "the names of a container and an account have letters, digits, '-', '.' \
                         and '_' alone",
                    ));
                }
                if path.contains("sig=") {
                    return Err(wrong(
                        "a shared access signature goes into AZURE_STORAGE_SAS_TOKEN",
                    ));
                }
                Ok(Location::Azure {
                    container: container.into(),
                    account: account.into(),
                    prefix: prefix(path),
                })
            }
            "file" if !host.is_empty() => {
                Err(wrong("a directory's URL has three slashes, then its absolute path"))
            }
            "file" if rest.contains('\0') => Err(wrong("it holds a NUL")),
            "file" if path.is_empty() => Err(wrong("the root of this machine is no storage")),
            "file" => Ok(Location::Directory { path: rest.into() }),
            "mem" if host.is_empty() => Ok(Location::Memory { prefix: prefix(path) }),
            "mem" => Err(wrong("memory has no host")),
            _ => Err(wrong("its scheme is unknown")),
        }
    }

    /// In words why the store cannot be told how to encrypt: what was asked for must not be passed
    /// over.
    pub fn check_encryption(&self, settings: &BucketSettings) -> Result<(), &'static str> {
        match (self, settings.server_side_encryption, &settings.kms_key) {
            (Location::S3 { .. }, _, _) | (_, None, None) | (Location::Google { .. }, None, _) => {
                Ok(())
            }
            (Location::Google { .. }, Some(_), _) => Err(
                "Google encrypts with its own keys, or with the one that is given as the KMS key",
            ),
            _ => Err("how this storage encrypts is a matter of its own settings"),
        }
    }

    /// The same of who pays for requests.
    pub fn check_payer(&self, settings: &BucketSettings) -> Result<(), &'static str> {
        match (self, settings.request_payer.as_deref()) {
            (_, None) | (Location::S3 { .. }, Some("requester")) => Ok(()),
            (Location::S3 { .. }, _) => Err("the payer of requests to S3 can be \"requester\""),
            (Location::Google { .. }, Some(project)) if is_name(project) => Ok(()),
            (Location::Google { .. }, _) => {
                Err("the payer of requests to Google is the id of a project")
            }
            _ => Err("this storage knows no payer of requests but its owner"),
        }
    }
}

fn prefix(path: &str) -> String {
    if path.is_empty() || path.ends_with('/') { path.into() } else { format!("{path}/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_what_they_say() {
        let s3 = |bucket: &str, prefix: &str| Location::S3 {
            bucket: bucket.into(),
            prefix: prefix.into(),
        };
        assert_eq!(Location::parse("s3://b").unwrap(), s3("b", ""));
        assert_eq!(Location::parse("s3://b/").unwrap(), s3("b", ""));
        assert_eq!(Location::parse("s3://b/a b/%41").unwrap(), s3("b", "a b/%41/"));
        let gs = Location::Google { bucket: "b".into(), prefix: "p/".into() };
        assert_eq!(Location::parse("gs://b/p").unwrap(), gs);
        let az = |account: &str| Location::Azure {
            container: "c".into(),
            account: account.into(),
            prefix: "p/".into(),
        };
        assert_eq!(Location::parse("az://c/p").unwrap(), az(""));
        assert_eq!(Location::parse("az://c@acc/p/").unwrap(), az("acc"));
        assert_eq!(
            Location::parse("az://c@acc.blob.core.windows.net/p").unwrap(),
            az("acc.blob.core.windows.net")
        );
        assert_eq!(
            Location::parse("file:///srv/data").unwrap(),
            Location::Directory { path: "/srv/data".into() }
        );
        assert_eq!(Location::parse("mem://").unwrap(), Location::Memory { prefix: "".into() });
    }

    #[test]
    fn encryption_that_a_store_is_not_asked_for_is_refused() {
        let with = |server_side_encryption, key: Option<&str>| BucketSettings {
            server_side_encryption,
            kms_key: key.map(str::to_owned),
            ..BucketSettings::default()
        };
        let is_taken = |url: &str, settings: &BucketSettings| {
            Location::parse(url).unwrap().check_encryption(settings).is_ok()
        };
        let kms = Some(crate::ServerSideEncryption::Kms);
        for (settings, takers) in [
            (with(None, None), "s3 gs az file mem"),
            (with(None, Some("k")), "s3 gs"),
            (with(kms, None), "s3"),
            (with(kms, Some("k")), "s3"),
        ] {
            for url in ["s3://b", "gs://b", "az://c@a", "file:///d", "mem://"] {
                let scheme = url.split(':').next().unwrap();
                assert_eq!(
                    is_taken(url, &settings),
                    takers.split(' ').any(|taker| taker == scheme),
                    "{url} {settings:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_url_is_said_with_what_to_do() {
        for bad in [
            "",
            "bucket",
            "s3://",
            "s3://..",
            "gs://a b",
            "az://ü",
            "s3://a:SECRET@b",
            "gs://u:SECRET@b",
            "az://c@acc?sig=SECRET",
            "az://c@acc/p?sig=SECRET",
            "s3://",
            "s3:///x",
            "file://host/x",
            "file:///",
            "file://",
            "gs://",
            "az://",
            "az://@acc",
            "ftp://x",
            "mem://x",
        ] {
            let error = Location::parse(bad).unwrap_err().to_string();
            assert!(error.contains("use s3://BUCKET") && !error.contains("SECRET"), "{error}");
        }
    }
}
