//! Listings: the pages of ListObjectsV2 as the port orders them.

use super::S3;
use crate::http::client::Call;
use crate::http::encode::decode;
use crate::http::etag::unquoted;
use crate::http::page::MAX_PAGE;
use crate::http::remote::{Listed, unclear};
use crate::http::time::parse_iso;
use crate::http::xml::Element;
use ebb_ports::{BucketError, ListEntry, ListRequest};

impl S3 {
    pub(super) async fn list_page(&self, request: &ListRequest, token: Option<&str>) -> Result<Listed, BucketError> {
        let mut call = Call::read("GET", None, self.service.endpoint.path(None))
            .query("list-type", "2")
            .query("max-keys", request.limit.clamp(1, MAX_PAGE).to_string())
            .query("encoding-type", "url")
            .query("prefix", &request.prefix);
        if request.by_directory {
            call = call.query("delimiter", "/");
        }
        call = match (token, start_after(request)) {
            (Some(token), _) => call.query("continuation-token", token),
            (None, Some(after)) => call.query("start-after", after),
            (None, None) => call,
        };
        let answer = self.call(&call).await?;
        read(&answer.body).ok_or_else(|| unclear("list", &request.prefix, "a ListBucketResult"))
    }
}

/// Where the store is to go on. Behind a common prefix that is the end of all its keys:
/// whether a store repeats the prefix after `dir/` differs from store to store.
fn start_after(request: &ListRequest) -> Option<String> {
    let after = request.after.as_ref()?;
    let slash = after.strip_prefix(&request.prefix).filter(|_| request.by_directory).and_then(|rest| rest.find('/'));
    Some(match slash {
        Some(slash) => format!("{}\u{10FFFF}", &after[..request.prefix.len() + slash + 1]),
        None => after.clone(),
    })
}

pub(crate) fn read(body: &[u8]) -> Option<Listed> {
    let root = Element::parse(body).filter(|root| root.name == "ListBucketResult")?;
    let encoded = root.text_of("EncodingType") == Some("url");
    // Some stores write a blank as `+`.
    let name = |text: &str| if encoded { decode(text, true) } else { Some(text.to_string()) };
    let mut entries = Vec::new();
    for found in root.all("Contents") {
        entries.push(ListEntry::Object {
            key: name(found.text_of("Key")?)?,
            etag: unquoted(found.text_of("ETag").unwrap_or_default()),
            len_bytes: found.text_of("Size")?.parse().ok()?,
            modified_secs: found.text_of("LastModified").and_then(parse_iso).unwrap_or(0),
        });
    }
    for found in root.all("CommonPrefixes") {
        entries.push(ListEntry::Prefix { key: name(found.text_of("Prefix")?)? });
    }
    let more = root.text_of("IsTruncated") == Some("true");
    Some(Listed { entries, more, next: root.text_of("NextContinuationToken").map(str::to_string) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prefix: &str, by_directory: bool, after: &str) -> ListRequest {
        ListRequest { prefix: prefix.into(), by_directory, after: Some(after.into()), limit: 10 }
    }

    #[test]
    fn a_listing_goes_on_behind_a_whole_directory() {
        assert_eq!(start_after(&request("", true, "dir/")).unwrap(), "dir/\u{10FFFF}");
        assert_eq!(start_after(&request("dir/", true, "dir/")).unwrap(), "dir/");
        assert_eq!(start_after(&request("", false, "dir/")).unwrap(), "dir/");
    }
}
