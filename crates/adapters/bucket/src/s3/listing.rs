//! Listings: the pages of ListObjectsV2 as the port orders them.

use super::client::{Call, Client};
use super::fault::Effect;
use super::operations::{unclear, unquoted};
use super::time::parse_iso;
use super::xml::Element;
use bytes::Bytes;
use ebb_ports::{BucketError, ListEntry, ListPage, ListRequest};

impl Client {
    pub async fn list(&self, request: &ListRequest) -> Result<ListPage, BucketError> {
        let limit = request.limit.clamp(1, MAX_PAGE);
        let mut token: Option<String> = None;
        loop {
            let mut query = vec![("list-type", "2".to_string()), ("max-keys", limit.to_string()), ("encoding-type", "url".to_string())];
            query.push(("prefix", request.prefix.clone()));
            if request.by_directory {
                query.push(("delimiter", "/".into()));
            }
            match (&token, start_after(request)) {
                (Some(token), _) => query.push(("continuation-token", token.clone())),
                (None, Some(after)) => query.push(("start-after", after)),
                (None, None) => {}
            }
            let call = Call { method: "GET", key: None, query, headers: vec![], body: Bytes::new(), effect: Effect::None, slow: false };
            let answer = self.call(&call).await?;
            let root = Element::parse(&answer.body).filter(|root| root.name == "ListBucketResult");
            let page = root.as_ref().and_then(|root| read_page(root, request));
            let (page, next) = page.ok_or_else(|| unclear("list", &request.prefix, "a ListBucketResult"))?;
            // A page may hold nothing but what `after` excludes.
            if !page.entries.is_empty() || !page.more {
                return Ok(page);
            }
            match next {
                Some(next) if token.as_ref() != Some(&next) => token = Some(next),
                _ => return Err(unclear("list", &request.prefix, "a new continuation token")),
            }
        }
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

fn read_page(root: &Element, request: &ListRequest) -> Option<(ListPage, Option<String>)> {
    let encoded = root.text_of("EncodingType") == Some("url");
    let name = |text: &str| if encoded { decode(text) } else { Some(text.to_string()) };
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
    let after = request.after.as_deref();
    entries.retain(|entry| entry.key().starts_with(&request.prefix) && after.is_none_or(|after| entry.key() > after));
    entries.sort_by(|a, b| a.key().cmp(b.key()));
    entries.dedup_by(|a, b| a.key() == b.key());
    let more = root.text_of("IsTruncated") == Some("true");
    let next = root.text_of("NextContinuationToken").map(str::to_string);
    Some((ListPage { entries, more }, next))
}

/// The encoding of `encoding-type=url`, in which some stores write a blank as `+`.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
                (digit(rest.next())? * 16 + digit(rest.next())?) as u8
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// What the protocol allows.
const MAX_PAGE: usize = 1000;

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

    #[test]
    fn encoded_names_are_decoded_or_refused() {
        assert_eq!(decode("a%2Bb+c%C3%A9/").as_deref(), Some("a+b cé/"));
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode(bad), None);
        }
    }
}
