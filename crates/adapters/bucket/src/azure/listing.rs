//! Listings. Azure continues a listing only at a marker of its own, not after a given key. So the
//! marker after the last key of each batch is cached for the next request; a request after any
//! other key reads from the start of the prefix.

use super::Blobs;
use super::VERSION;
use crate::http::client::{Call, Outcome};
use crate::http::encode::decode;
use crate::http::etag::unquoted;
use crate::http::page::{MAX_PAGE, page};
use crate::http::remote::{Listed, unclear};
use crate::http::time::parse_http;
use crate::http::xml::Element;
use ebb_ports::{BucketError, ListEntry, ListRequest};
use std::collections::VecDeque;
use std::sync::Mutex;

impl Blobs {
    pub(super) fn listing<'a>(&self) -> Call<'a> {
        let call = Call::read("GET", None, self.service.container_path())
            .query("restype", "container")
            .query("comp", "list");
        call.header("x-ms-version", VERSION)
    }

    pub(super) async fn list_page(
        &self,
        request: &ListRequest,
        token: Option<&str>,
    ) -> Result<Listed, BucketError> {
        if let Some(token) = token {
            return self.page_at(request, Some(token), request.limit).await;
        }
        if let Some(kept) = self.service.markers.find(request) {
            match self.page_at(request, Some(&kept), request.limit).await {
                // The service has forgotten it.
                Err(BucketError::Refused { .. }) => {}
                ended => return ended,
            }
        }
        // Entries before `after` are discarded, so request the largest batches.
        let limit = if request.after.as_deref().is_some_and(|after| after > request.prefix.as_str())
        {
            MAX_PAGE
        } else {
            request.limit
        };
        self.page_at(request, None, limit).await
    }

    async fn page_at(
        &self,
        request: &ListRequest,
        marker: Option<&str>,
        limit: usize,
    ) -> Result<Listed, BucketError> {
        let mut call = self
            .listing()
            .query("prefix", &request.prefix)
            .query("maxresults", limit.clamp(1, MAX_PAGE).to_string());
        if request.by_directory {
            call = call.query("delimiter", "/");
        }
        if let Some(marker) = marker {
            call = call.query("marker", marker);
        }
        let answer = match self.try_call(&call).await? {
            Outcome::Done(answer) => answer,
            Outcome::Refused(refusal) => return Err(self.error(&call, &refusal)),
        };
        let listed = read(&answer.body)
            .ok_or_else(|| unclear("list", &request.prefix, "an EnumerationResults"))?;
        let handed_out = page(listed.entries.clone(), listed.more, request);
        if let (Some(last), true) = (handed_out.entries.last(), handed_out.more) {
            let whole = listed.entries.iter().all(|entry| entry.key() <= last.key());
            let behind = if whole { listed.next.as_deref() } else { marker };
            self.service.markers.keep(request, last.key(), behind);
        }
        Ok(listed)
    }
}

pub(crate) fn read(body: &[u8]) -> Option<Listed> {
    let root = Element::parse(body).filter(|root| root.name == "EnumerationResults")?;
    let blobs = root.child("Blobs")?;
    // Names that XML cannot hold are percent-encoded and marked as such.
    let name = |element: &Element| {
        let name = element.child("Name")?;
        if name.attribute("Encoded") == Some("true") {
            decode(&name.text, false)
        } else {
            Some(name.text.to_string())
        }
    };
    let mut entries = Vec::new();
    for blob in blobs.all("Blob") {
        let properties = blob.child("Properties")?;
        entries.push(ListEntry::Object {
            key: name(blob)?,
            etag: unquoted(properties.text_of("Etag")?),
            len_bytes: properties.text_of("Content-Length")?.parse().ok()?,
            modified_secs: properties.text_of("Last-Modified").and_then(parse_http).unwrap_or(0),
        });
    }
    for prefix in blobs.all("BlobPrefix") {
        entries.push(ListEntry::Prefix { key: name(prefix)? });
    }
    let next = root.text_of("NextMarker").filter(|marker| !marker.is_empty()).map(str::to_string);
    Some(Listed { entries, more: next.is_some(), next })
}

/// Markers by the key that they continue after, the latest last.
#[derive(Default)]
pub(super) struct Markers(Mutex<VecDeque<Kept>>);

struct Kept {
    prefix: String,
    by_directory: bool,
    after: String,
    marker: String,
}

impl Markers {
    fn find(&self, request: &ListRequest) -> Option<String> {
        let after = request.after.as_deref()?;
        let kept = self.0.lock().expect("nobody panics while holding it");
        let fits = |kept: &&Kept| {
            kept.after == after
                && kept.prefix == request.prefix
                && kept.by_directory == request.by_directory
        };
        kept.iter().rev().find(fits).map(|kept| kept.marker.clone())
    }

    fn keep(&self, request: &ListRequest, after: &str, marker: Option<&str>) {
        let Some(marker) = marker else { return };
        let mut kept = self.0.lock().expect("nobody panics while holding it");
        if kept.len() == MAX_MARKERS {
            kept.pop_front();
        }
        let (prefix, by_directory) = (request.prefix.clone(), request.by_directory);
        kept.push_back(Kept { prefix, by_directory, after: after.into(), marker: marker.into() });
    }
}

/// Listings that are under way together, and then some.
const MAX_MARKERS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &str = "\u{feff}<?xml version=\"1.0\"?><EnumerationResults><Blobs><Blob><Name \
        Encoded=\"true\">a%01b</Name><Properties>\
        <Last-Modified>Sat, 21 Nov 2026 21:46:25 \
        GMT</Last-Modified><Etag>0x8D</Etag><Content-Length>5</Content-Length></Properties></Blob>\
        <BlobPrefix><Name>d/</Name></BlobPrefix></Blobs><NextMarker>m</NextMarker></EnumerationResults>";

    #[test]
    fn a_page_is_read() {
        let page = read(PAGE.as_bytes()).unwrap();
        assert_eq!(page.next.as_deref(), Some("m"));
        assert_eq!(page.entries[0].key(), "a\u{1}b");
        assert_eq!(page.entries[1], ListEntry::Prefix { key: "d/".into() });
        for bad in [
            "",
            "<EnumerationResults/>",
            "<ListBucketResult/>",
            "<EnumerationResults><Blobs><Blob/></Blobs></EnumerationResults>",
        ] {
            assert!(read(bad.as_bytes()).is_none(), "{bad}");
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
