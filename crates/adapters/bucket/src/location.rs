//! Parsed storage URLs.

use crate::http::origin::is_name;
use crate::{BucketSettings, OpenError};
use ebb_model::redacted;
use std::path::{Component, Path, PathBuf};

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
    /// `account` is a name, a host, or empty if the environment names it.
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
    /// Taken as it stands: nothing in it is decoded or normalised, but for the case of the scheme.
    pub fn parse(url: &str) -> Result<Location, OpenError> {
        let wrong = |why: &str| OpenError::Url { url: redacted(url), why: why.into() };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        match &*scheme.to_ascii_lowercase() {
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

    /// A URL of the same location, the same however it was spelled: with one `/` or none at its
    /// end, and of a directory its real path. `a//b` is another prefix than `a/b`, and `%20` is
    /// three characters of a key.
    pub fn address(&self) -> String {
        let below = |prefix: &str| match prefix.strip_suffix('/') {
            None => String::new(),
            // The slash is a part of the prefix.
            Some(stem) if stem.ends_with('/') || stem.is_empty() => format!("/{prefix}"),
            Some(stem) => format!("/{stem}"),
        };
        match self {
            Location::S3 { bucket, prefix } => format!("s3://{bucket}{}", below(prefix)),
            Location::Google { bucket, prefix } => format!("gs://{bucket}{}", below(prefix)),
            Location::Azure { container, account, prefix } => {
                let account = account.strip_suffix(AZURE_HOST).unwrap_or(account);
                let at = if account.is_empty() { "" } else { "@" };
                format!("az://{container}{at}{account}{}", below(prefix))
            }
            // A path that is not UTF-8 has no URL.
            Location::Directory { path } => {
                let real = real(path);
                format!("file://{}", if real.to_str().is_some() { &real } else { path }.display())
            }
            Location::Memory { prefix } => format!("mem://{}", below(prefix)),
        }
    }

    /// In words why the store cannot be told how to encrypt: a requested encryption must not be
    /// ignored.
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

    /// The same for the payer of requests.
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

/// Behind the name of an account in its host.
const AZURE_HOST: &str = ".blob.core.windows.net";

/// A path of which the end need not be there yet, free of symbolic links, `.` and `..`.
fn real(path: &Path) -> PathBuf {
    let there = path
        .ancestors()
        .find_map(|at| Some((at.canonicalize().ok()?, path.strip_prefix(at).ok()?)));
    let (mut real, rest) = there.unwrap_or_else(|| ("/".into(), path));
    for part in rest.components() {
        match part {
            Component::Normal(name) => real.push(name),
            Component::ParentDir => drop(real.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    real
}

fn prefix(path: &str) -> String {
    if path.is_empty() || path.ends_with('/') { path.into() } else { format!("{path}/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_parse_into_locations() {
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
    fn location_has_one_address_however_it_is_spelled() {
        let address = |url: &str| Location::parse(url).unwrap().address();
        for (one, others) in [
            ("s3://b", &["s3://b/", "S3://b"][..]),
            ("s3://b/p/q", &["s3://b/p/q/", "S3://b/p/q/"]),
            ("s3://b/p//", &["S3://b/p//"]),
            ("s3://b//", &[]),
            ("s3://b/a%20b", &["s3://b/a%20b/"]),
            ("gs://b/p", &["GS://b/p/"]),
            ("az://c", &["az://c/"]),
            ("az://c@a/p", &["az://c@a.blob.core.windows.net/p/", "AZ://c@a/p"]),
            ("file:///proc", &["file:///proc/", "FILE:///proc", "file:////proc/./self/.."]),
            ("file:///no-such/dir", &["file:///no-such//dir/", "file:///no-such/./x/../dir"]),
        ] {
            assert_eq!(address(one), one);
            others.iter().for_each(|other| assert_eq!(address(other), one, "{other}"));
        }
        let different = ["s3://b/p", "s3://b/p//", "s3://b//p", "s3://b/a b", "s3://b/a%20b"];
        let addresses: std::collections::BTreeSet<String> =
            different.iter().map(|url| address(url)).collect();
        assert_eq!(addresses.len(), different.len());
    }

    #[test]
    fn directory_behind_a_link_has_the_address_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("data")).unwrap();
        std::os::unix::fs::symlink("data", real.join("link")).unwrap();
        let url = |name: &str| format!("file://{}/{name}", dir.path().display());
        let address = Location::parse(&url("link/new/")).unwrap().address();
        assert_eq!(address, format!("file://{}/data/new", real.display()));
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
    fn invalid_urls_are_refused_with_the_remedy() {
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
