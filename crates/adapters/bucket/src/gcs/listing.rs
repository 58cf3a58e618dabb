//! Listings: the pages of the JSON interface.

use super::Gcs;
use super::operations::generation_of;
use crate::http::client::Call;
use crate::http::json;
use crate::http::page::MAX_PAGE;
use crate::http::remote::{Listed, unclear};
use crate::http::time::parse_iso;
use ebb_ports::{BucketError, ListEntry, ListRequest};
use serde_json::Value;

impl Gcs {
    pub(super) async fn list_page(
        &self,
        request: &ListRequest,
        token: Option<&str>,
    ) -> Result<Listed, BucketError> {
        let limit = request.limit.clamp(1, MAX_PAGE);
        let mut call = Call::read("GET", None, self.service.objects())
            .query("prefix", &request.prefix)
            .query("fields", "items(name,generation,size,updated),prefixes,nextPageToken");
        if request.by_directory {
            call = call.query("delimiter", "/");
        }
        call = match &request.after {
            // The store begins with this name itself, which is one entry too many.
            Some(after) => call
                .query("startOffset", after)
                .query("maxResults", (limit + 1).min(MAX_PAGE).to_string()),
            None => call.query("maxResults", limit.to_string()),
        };
        if let Some(token) = token {
            call = call.query("pageToken", token);
        }
        let answer = self.call(&call).await?;
        read(&answer.body).ok_or_else(|| unclear("list", &request.prefix, "a listing"))
    }
}

/// An object without a member that this reads is no listing, but neither is it another
/// service's: an empty listing has no members at all on some servers.
pub(crate) fn read(body: &[u8]) -> Option<Listed> {
    let page = json::parse(body)?;
    let members = page.as_object()?;
    if members.get("kind").is_some_and(|kind| kind != "storage#objects")
        || members.contains_key("error")
    {
        return None;
    }
    let list = |name: &str| match members.get(name) {
        None | Some(Value::Null) => Some(&[][..]),
        Some(other) => other.as_array().map(Vec::as_slice),
    };
    let mut entries = Vec::new();
    for item in list("items")? {
        let text = |name: &str| item.get(name)?.as_str();
        entries.push(ListEntry::Object {
            key: text("name")?.into(),
            etag: generation_of(item)?,
            len_bytes: text("size")?.parse().ok()?,
            modified_secs: text("updated").and_then(parse_iso).unwrap_or(0),
        });
    }
    for prefix in list("prefixes")? {
        entries.push(ListEntry::Prefix { key: prefix.as_str()?.into() });
    }
    let next = members
        .get("nextPageToken")
        .and_then(Value::as_str)
        .filter(|token| !token.is_empty())
        .map(str::to_string);
    Some(Listed { entries, more: next.is_some(), next })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &str = r#"{"kind":"storage#objects","nextPageToken":"t","prefixes":["d/"],
        "items":[{"name":"a\u0000b","generation":"17","size":"5","updated":"2026-11-21T21:46:25.123Z"}]}"#;

    #[test]
    fn a_page_is_read() {
        let page = read(PAGE.as_bytes()).unwrap();
        assert_eq!(page.next.as_deref(), Some("t"));
        assert_eq!(page.entries[0].key(), "a\0b");
        assert_eq!(page.entries[1], ListEntry::Prefix { key: "d/".into() });
        assert!(read(b"{}").unwrap().entries.is_empty());
    }

    #[test]
    fn malformed_listing_is_rejected() {
        let deep = "[".repeat(100_000);
        for bad in [
            "",
            "null",
            "[]",
            "{",
            r#"{"kind":"storage#bucket"}"#,
            r#"{"items":{}}"#,
            r#"{"items":[{"name":"a"}]}"#,
            &deep,
        ] {
            assert!(read(bad.as_bytes()).is_none(), "{bad:.40}");
        }
    }

    proptest! {
        #[test]
        fn a_damaged_page_is_read_or_refused(at in 0..PAGE.len(), byte: u8, cut in 0..PAGE.len()) {
            let mut page = PAGE.as_bytes().to_vec();
            page[at] = byte;
            read(&page);
            read(&page[..cut]);
        }
    }
}
