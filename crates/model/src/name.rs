use crate::FsError;
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// A file name that can be one: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
/// Cloning shares the bytes: the namespace holds each name several times.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct Name(Arc<[u8]>);

pub const MAX_NAME_BYTES: usize = 255;

impl Name {
    pub fn new(bytes: &[u8]) -> Result<Name, FsError> {
        if bytes.len() > MAX_NAME_BYTES {
            return Err(FsError::NameTooLong);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(FsError::Invalid);
        }
        Ok(Name(bytes.into()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for Name {
    type Error = FsError;

    fn try_from(bytes: Vec<u8>) -> Result<Name, FsError> {
        Name::new(&bytes)
    }
}

impl From<Name> for Vec<u8> {
    fn from(name: Name) -> Vec<u8> {
        name.0.to_vec()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}
