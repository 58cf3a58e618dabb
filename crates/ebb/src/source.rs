//! The source of a mount: a node's volume over the network, or storage that a node of this process
//! serves.

use crate::failure::Failure;
use ebb_model::Name;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// `ebb://host:port[/volume[/subdirectory]]`; an empty volume is the one that the node serves.
    Served { address: String, volume: String, subdirectory: Vec<Name> },
    /// `s3://…`, `gs://…`, `az://…`, `file://…`
    Storage { url: String },
}

/// Schemes that [`ebb_bucket::open`] handles.
const STORAGE: [&str; 5] = ["s3", "file", "mem", "gs", "az"];

impl Source {
    pub fn parse(text: &str) -> Result<Source, Failure> {
        let wrong = |why: &str| {
            Failure::Usage(format!(
                "{text:?} cannot be mounted: {why}; use s3://BUCKET[/PREFIX], \
                 gs://BUCKET[/PREFIX], az://CONTAINER[@ACCOUNT][/PREFIX], file:///DIRECTORY or \
                 ebb://HOST:PORT[/VOLUME[/SUBDIRECTORY]]"
            ))
        };
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        match scheme
            .as_deref()
            .zip(text.split_once("://"))
            .map(|(scheme, (_, rest))| (scheme, rest))
        {
            Some(("ebb", rest)) => {
                let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
                let (host, port) =
                    address.rsplit_once(':').ok_or_else(|| wrong("it names no port"))?;
                if host.is_empty() || port.parse::<u16>().is_err() {
                    return Err(wrong("it names no host and port"));
                }
                let (volume, below) = path.split_once('/').unwrap_or((path, ""));
                if volume.is_empty() && !below.is_empty() {
                    return Err(wrong("it names no volume before its subdirectory"));
                }
                let subdirectory =
                    names(Path::new(below)).ok_or_else(|| wrong("its subdirectory cannot be"))?;
                Ok(Source::Served { address: address.into(), volume: volume.into(), subdirectory })
            }
            Some((scheme, _)) if STORAGE.contains(&scheme) => {
                Ok(Source::Storage { url: text.into() })
            }
            Some(_) => Err(wrong("its scheme is unknown")),
            None => Err(wrong("it has no scheme")),
        }
    }
}

/// The names of a relative path; `None` where one of them cannot be a name.
pub fn names(path: &Path) -> Option<Vec<Name>> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts
        .map(|part| match part {
            Component::Normal(name) => Name::new(name.as_bytes()).ok(),
            _ => None,
        })
        .collect()
}

/// The path of these names, which begins with the first of them.
pub fn path_bytes(names: &[Name]) -> Vec<u8> {
    names.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        let served = |volume: &str, below: &[&str]| Source::Served {
            address: "h:1".into(),
            volume: volume.into(),
            subdirectory: below.iter().map(|name| Name::new(name.as_bytes()).unwrap()).collect(),
        };
        assert_eq!(Source::parse("ebb://h:1").unwrap(), served("", &[]));
        assert_eq!(Source::parse("ebb://h:1/").unwrap(), served("", &[]));
        assert_eq!(Source::parse("ebb://h:1/v").unwrap(), served("v", &[]));
        assert_eq!(Source::parse("ebb://h:1/v/").unwrap(), served("v", &[]));
        assert_eq!(Source::parse("ebb://h:1/v/a//b/").unwrap(), served("v", &["a", "b"]));
        assert_eq!(Source::parse("EBB://h:1/v").unwrap(), served("v", &[]));
        assert_eq!(Source::parse("s3://b/p").unwrap(), Source::Storage { url: "s3://b/p".into() });
    }

    #[test]
    fn invalid_source_is_a_usage_error() {
        for text in [
            "",
            "/dir",
            "ftp://x",
            "ebb://",
            "ebb://h",
            "ebb://h:1//a",
            "ebb://:1/v",
            "ebb://h:x/v",
            "ebb://h:1/v/..",
        ] {
            assert!(matches!(Source::parse(text), Err(Failure::Usage(_))), "{text}");
        }
    }
}
