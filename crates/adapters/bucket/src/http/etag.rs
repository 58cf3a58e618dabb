//! Tags of objects: in quotes on the wire, without them in the port.

use super::transport::Answer;
use ebb_ports::ETag;

pub(crate) fn etag_of(answer: &Answer) -> Option<ETag> {
    answer.header("etag").map(unquoted).filter(|etag| !etag.0.is_empty())
}

pub(crate) fn unquoted(text: &str) -> ETag {
    let text = text.trim();
    ETag(text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).into())
}

pub(crate) fn quoted(tag: &ETag) -> String {
    format!("\"{}\"", tag.0)
}
