//! The kinds of certificates, and the identities in them.

use std::fmt;
use std::str::FromStr;

/// The role of a certificate's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Serves, and connects to other nodes.
    Node,
    /// Mounts a volume.
    Mount,
    /// Asks and administers a node: `ebb status HOST:PORT`.
    Tool,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Node, Kind::Mount, Kind::Tool];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Node => "node",
            Kind::Mount => "mount",
            Kind::Tool => "tool",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("{text:?} is not node, mount or tool"))
    }
}

/// The owner of a certificate, in one of its alternative names: the URI `ebb:KIND/NAME`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub kind: Kind,
    pub name: String,
}

impl Identity {
    pub fn new(kind: Kind, name: &str) -> Result<Identity, String> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(fits) {
            return Err(format!(
                "{name:?} cannot be the name of a {kind}: 1 to {MAX_NAME_BYTES} letters, digits, \
                 dots, hyphens and underscores"
            ));
        }
        Ok(Identity { kind, name: name.to_owned() })
    }

    pub fn uri(&self) -> String {
        format!("{SCHEME}{}/{}", self.kind, self.name)
    }

    /// The identity among the URIs of a certificate. Two would leave the choice to the reader.
    pub fn among<'a>(uris: impl Iterator<Item = &'a str>) -> Result<Identity, String> {
        let mut ours = uris.filter_map(|uri| uri.strip_prefix(SCHEME));
        let none = || {
            format!("it names neither node, mount nor tool (URI {SCHEME}node/NAME); see `ebb cert`")
        };
        let first = ours.next().ok_or_else(none)?;
        if ours.next().is_some() {
            return Err(format!("it has more than one URI {SCHEME}…"));
        }
        let (kind, name) = first.split_once('/').ok_or_else(none)?;
        Identity::new(kind.parse()?, name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

const SCHEME: &str = "ebb:";

/// The limit of a common name in X.509.
const MAX_NAME_BYTES: usize = 64;
