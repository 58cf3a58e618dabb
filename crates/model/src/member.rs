//! Directories of member buckets.

use crate::{Name, TRASH};
use std::fmt;
use thiserror::Error;

/// Directory of a member bucket at a volume's root (O-24). UTF-8, since it is the first segment of
/// keys, and not a name that `docs/format/names.md` reserves.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MemberDir {
    text: String,
    name: Name,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{text:?} cannot be the directory of a bucket: {why}")]
pub struct BadMemberDir {
    text: String,
    why: &'static str,
}

impl MemberDir {
    pub fn new(text: &str) -> Result<MemberDir, BadMemberDir> {
        let bad = |why| Err(BadMemberDir { text: text.into(), why });
        match text {
            "" => return bad("it is empty"),
            "." | ".." => return bad("it names no directory of its own"),
            _ if text.contains('/') => return bad("it is one name, without a slash"),
            _ if text.contains('\0') => return bad("it holds a NUL"),
            _ if text == ".ebb" || text.starts_with(".ebb%") || text.as_bytes() == TRASH => {
                return bad("names that begin so are ebb's own");
            }
            _ => {}
        }
        match Name::new(text.as_bytes()) {
            Ok(name) => Ok(MemberDir { text: text.into(), name }),
            Err(_) => bad("it is longer than 255 bytes"),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn name(&self) -> &Name {
        &self.name
    }
}

impl fmt::Display for MemberDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_say_why() {
        let long = "n".repeat(256);
        for (text, why) in [
            ("", "is empty"),
            (".", "of its own"),
            ("..", "of its own"),
            ("a/b", "without a slash"),
            ("/", "without a slash"),
            ("a\0", "NUL"),
            (".ebb", "ebb's own"),
            (".ebb%2e", "ebb's own"),
            (&long, "255"),
        ] {
            let error = MemberDir::new(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        for text in ["a", "...", ".ebbs", "a b", "ä", "a\u{10FFFF}", &"n".repeat(255)] {
            assert_eq!(MemberDir::new(text).unwrap().as_str(), text);
        }
    }
}
