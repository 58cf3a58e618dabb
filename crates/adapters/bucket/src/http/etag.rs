//! Tags of objects: in quotes on the wire, without them in the port.

use super::remote::{unclear, unclear_change};
use super::transport::Answer;
use ebb_ports::{BucketError, ETag};

/// The tag in an answer. A weak one is refused: by RFC 9110 §13.1.1 it fails every condition, so
/// that nothing guarded by it could be read or written, ever.
pub(crate) fn etag_of(answer: &Answer, what: &str, key: &str) -> Result<ETag, BucketError> {
    match strong(answer) {
        Ok(etag) => etag.ok_or_else(|| unclear(what, key, "an ETag")),
        Err(weak) => Err(BucketError::Refused {
            what: format!(
                "{what} {key}: the ETag {weak} is weak, so that no condition holds for it"
            ),
        }),
    }
}

/// The same of a request that has changed something.
pub(crate) fn changed_etag_of(answer: &Answer, what: &str, key: &str) -> Result<ETag, BucketError> {
    match strong(answer) {
        Ok(etag) => etag.ok_or_else(|| unclear_change(what, key, "an ETag")),
        Err(weak) => Err(unclear_change(what, key, &format!("a strong ETag ({weak} is weak)"))),
    }
}

/// `Err`: the weak tag, as it came.
fn strong(answer: &Answer) -> Result<Option<ETag>, String> {
    match answer.header("etag").map(str::trim) {
        Some(weak) if weak.starts_with("W/") => Err(weak.into()),
        tag => Ok(tag.map(unquoted).filter(|etag| !etag.0.is_empty())),
    }
}

pub(crate) fn unquoted(text: &str) -> ETag {
    let text = text.trim();
    ETag(text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).into())
}

pub(crate) fn quoted(tag: &ETag) -> String {
    format!("\"{}\"", tag.0)
}
