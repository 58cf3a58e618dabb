//! Listings: the pages of ListObjectsV2 as the port orders them, and uploads that have not ended.

use super::S3;
use crate::http::client::Call;
use crate::http::encode::decode;
use crate::http::etag::unquoted;
use crate::http::page::MAX_PAGE;
use crate::http::remote::{Listed, unclear};
use crate::http::time::parse_iso;
use crate::http::xml::Element;
use ebb_ports::{BucketError, ListEntry, ListRequest, UploadId};

impl S3 {
    pub(super) async fn list_page(
        &self,
        request: &ListRequest,
        token: Option<&str>,
    ) -> Result<Listed, BucketError> {
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

impl S3 {
    /// Lists uploads with the key as prefix. Some stores list only those whose key equals the
    /// prefix; every store lists the shortest key first, which is the key itself.
    pub(super) async fn uploads_of(&self, key: &str) -> Result<Vec<UploadId>, BucketError> {
        let mut uploads = Vec::new();
        let mut marker: Option<(String, String)> = None;
        loop {
            let mut call = Call::read("GET", None, self.service.endpoint.path(None))
                .query("uploads", "")
                .query("max-uploads", MAX_PAGE.to_string())
                .query("encoding-type", "url")
                .query("prefix", key);
            if let Some((key, upload)) = &marker {
                call = call.query("key-marker", key).query("upload-id-marker", upload);
            }
            let answer = self.call(&call).await?;
            let page = read_uploads(&answer.body)
                .ok_or_else(|| unclear("list uploads of", key, "a ListMultipartUploadsResult"))?;
            let others = page.uploads.iter().any(|(of, _)| of != key);
            uploads.extend(
                page.uploads
                    .into_iter()
                    .filter(|(of, _)| of == key)
                    .map(|(_, upload)| UploadId(upload)),
            );
            match page.next {
                Some(next) if !others && marker.as_ref() != Some(&next) => marker = Some(next),
                _ => return Ok(uploads),
            }
        }
    }
}

pub(crate) struct Uploads {
    /// Key and id.
    uploads: Vec<(String, String)>,
    /// Key and id behind which the next page begins.
    next: Option<(String, String)>,
}

pub(crate) fn read_uploads(body: &[u8]) -> Option<Uploads> {
    let root = Element::parse(body).filter(|root| root.name == "ListMultipartUploadsResult")?;
    let name = names(&root);
    let mut uploads = Vec::new();
    for found in root.all("Upload") {
        let upload = found.text_of("UploadId").filter(|id| !id.is_empty())?;
        uploads.push((name(found.text_of("Key")?)?, upload.to_string()));
    }
    let next = match root.text_of("IsTruncated") {
        Some("true") => Some((
            name(root.text_of("NextKeyMarker")?)?,
            root.text_of("NextUploadIdMarker").unwrap_or_default().to_string(),
        )),
        _ => None,
    };
    Some(Uploads { uploads, next })
}

/// How names in an answer are read.
fn names(root: &Element) -> impl Fn(&str) -> Option<String> + use<> {
    let encoded = root.text_of("EncodingType") == Some("url");
    // Some stores write a blank as `+`.
    move |text| if encoded { decode(text, true) } else { Some(text.to_string()) }
}

/// Where the store continues. After a common prefix, that is behind its last key: stores differ in
/// whether they repeat the prefix after `dir/`.
fn start_after(request: &ListRequest) -> Option<String> {
    let after = request.after.as_ref()?;
    let slash = after
        .strip_prefix(&request.prefix)
        .filter(|_| request.by_directory)
        .and_then(|rest| rest.find('/'));
    Some(match slash {
        Some(slash) => format!("{}\u{10FFFF}", &after[..request.prefix.len() + slash + 1]),
        None => after.clone(),
    })
}

pub(crate) fn read(body: &[u8]) -> Option<Listed> {
    let root = Element::parse(body).filter(|root| root.name == "ListBucketResult")?;
    let name = names(&root);
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

    #[test]
    fn uploads_are_read_with_where_the_next_page_begins() {
        let page = |rest: &str| {
            let body = format!(
                "<ListMultipartUploadsResult><EncodingType>url</EncodingType>{rest}<Upload><Key>a+b%2Fc</Key><UploadId>1</UploadId></Upload>\
                 </ListMultipartUploadsResult>"
            );
            read_uploads(body.as_bytes())
        };
        let whole =
            page("<IsTruncated>false</IsTruncated><NextKeyMarker>x</NextKeyMarker>").unwrap();
        assert_eq!((whole.uploads, whole.next), (vec![("a b/c".into(), "1".into())], None));
        let first = page(
            "<IsTruncated>true</IsTruncated><NextKeyMarker>a+b%2Fc</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker>",
        );
        assert_eq!(first.unwrap().next, Some(("a b/c".into(), "1".into())));
        assert!(
            page("<IsTruncated>true</IsTruncated>").is_none(),
            "nobody says where the next page begins"
        );
        assert!(
            page("<Upload><Key>k</Key><UploadId/></Upload>").is_none(),
            "no upload is called so"
        );
    }
}
