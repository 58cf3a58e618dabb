//! The source of a mount: a node's volume over the network, or storage that a node of this process
//! serves.

use crate::failure::Failure;
use ebb_client::{MAX_NODES, is_node_address};
use ebb_model::Name;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// `ebb://host:port[,host:port]…[/volume[/subdirectory]]`; an empty volume is the one that the
    /// node serves.
    Served { addresses: Vec<String>, volume: String, subdirectory: Vec<Name> },
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
                 ebb://HOST:PORT[,HOST:PORT]...[/VOLUME[/SUBDIRECTORY]]"
            ))
        };
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        match scheme
            .as_deref()
            .zip(text.split_once("://"))
            .map(|(scheme, (_, rest))| (scheme, rest))
        {
            Some(("ebb", rest)) => {
                let (list, path) = rest.split_once('/').unwrap_or((rest, ""));
                let addresses = addresses(list).map_err(|why| wrong(&why))?;
                let (volume, below) = path.split_once('/').unwrap_or((path, ""));
                if volume.is_empty() && !below.is_empty() {
                    return Err(wrong("it names no volume before its subdirectory"));
                }
                let subdirectory =
                    names(Path::new(below)).ok_or_else(|| wrong("its subdirectory cannot be"))?;
                Ok(Source::Served { addresses, volume: volume.into(), subdirectory })
            }
            Some((scheme, _)) if STORAGE.contains(&scheme) => {
                Ok(Source::Storage { url: text.into() })
            }
            Some(_) => Err(wrong("its scheme is unknown")),
            None => Err(wrong("it has no scheme")),
        }
    }
}

/// The addresses of the nodes of a volume, separated by commas, or why they cannot be.
pub fn addresses(list: &str) -> Result<Vec<String>, String> {
    let addresses: Vec<String> = list.split(',').map(Into::into).collect();
    for address in &addresses {
        // With a single address the URL shows which one is meant.
        let meant = match addresses.len() {
            1 => String::new(),
            _ => format!(" in {address:?}"),
        };
        if !address.contains(':') {
            return Err(format!("it names no port{meant}"));
        }
        if !is_node_address(address) {
            return Err(format!("it names no host and port{meant}"));
        }
    }
    if addresses.len() > MAX_NODES {
        return Err(format!("it names more than {MAX_NODES} nodes"));
    }
    Ok(addresses)
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
            addresses: vec!["h:1".into()],
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
    fn served_volume_can_have_several_addresses() {
        let several = |text: &str| match Source::parse(text).unwrap() {
            Source::Served { addresses, volume, .. } => (addresses, volume),
            other => panic!("{text}: {other:?}"),
        };
        let of = |addresses: &[&str]| addresses.iter().map(ToString::to_string).collect();
        assert_eq!(several("ebb://a:1,b:2,c:3/v/d"), (of(&["a:1", "b:2", "c:3"]), "v".into()));
        assert_eq!(several("ebb://a:1,b:2"), (of(&["a:1", "b:2"]), "".into()));
        assert_eq!(
            several("ebb://[::1]:1,[fe80::1]:2,10.0.0.1:3/v"),
            (of(&["[::1]:1", "[fe80::1]:2", "10.0.0.1:3"]), "v".into())
        );
        // The comma ends an address, and is a part of a name behind them.
        assert_eq!(several("ebb://a:1/v,b:2"), (of(&["a:1"]), "v,b:2".into()));
    }

    #[test]
    fn wrong_address_is_named_among_several() {
        let many = format!("ebb://{}h:1/v", "h:1,".repeat(MAX_NODES));
        for (text, why) in [
            ("ebb://h/v", "it names no port;"),
            ("ebb://h:x/v", "it names no host and port;"),
            ("ebb://a:1,b/v", "it names no port in \"b\";"),
            ("ebb://a:1,,b:2/v", "it names no port in \"\";"),
            ("ebb://a:1,/v", "it names no port in \"\";"),
            ("ebb://,a:1/v", "it names no port in \"\";"),
            ("ebb://a:1,:2/v", "it names no host and port in \":2\";"),
            ("ebb://a:1,b:70000/v", "it names no host and port in \"b:70000\";"),
            ("ebb://a:1, b:2/v", "it names no host and port in \" b:2\";"),
            ("ebb://unix:1/v", "it names no host and port;"),
            (&many, "it names more than 64 nodes;"),
        ] {
            match Source::parse(text) {
                Err(Failure::Usage(message)) => assert!(message.contains(why), "{message}"),
                other => panic!("{text}: {other:?}"),
            }
        }
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
