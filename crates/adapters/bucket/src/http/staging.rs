//! Uploads for stores without abortable multipart uploads: parts are staged below the volume's
//! prefix, under a prefix per upload, and are deleted when the upload ends.

use super::encode::hex;
use super::page::MAX_PAGE;
use super::remote::Operations;
use super::time::now_secs;
use ebb_ports::{BucketError, ListEntry, ListRequest, UploadId};
use futures_util::{StreamExt, stream};
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The staging prefix of an upload, derived from its id and key, so that an id with another key
/// leads nowhere. `None` for an invalid id.
pub(crate) fn place(prefix: &str, key: &str, id: &str) -> Option<String> {
    let ours = id.len() == ID_BYTES && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    ours.then(|| places(prefix, key) + id)
}

/// Common prefix of all uploads of `key`.
fn places(prefix: &str, key: &str) -> String {
    let digest = digest::digest(&digest::SHA256, key.as_bytes());
    format!("{prefix}{UPLOADS}{}-", hex(&digest.as_ref()[..8]))
}

/// Uploads of `key` with any object left.
pub(crate) async fn uploads<O: Operations>(
    store: &O,
    prefix: &str,
    key: &str,
) -> Result<Vec<UploadId>, BucketError> {
    let request = ListRequest {
        prefix: places(prefix, key),
        by_directory: true,
        after: None,
        limit: MAX_PAGE,
    };
    let mut uploads = BTreeSet::new();
    let mut token: Option<String> = None;
    loop {
        let listed = store.list(&request, token.as_deref()).await?;
        let id = |entry: &ListEntry| {
            Some(entry.key().strip_prefix(&request.prefix)?.get(..ID_BYTES)?.to_owned())
        };
        uploads.extend(listed.entries.iter().filter_map(id));
        match listed.next {
            Some(next) if token.as_ref() != Some(&next) => token = Some(next),
            _ => return Ok(uploads.into_iter().map(UploadId).collect()),
        }
    }
}

/// The staging prefix of an upload of the caller.
pub(crate) fn place_of(prefix: &str, key: &str, upload: &UploadId) -> Result<String, BucketError> {
    place(prefix, key, &upload.0).ok_or_else(|| BucketError::NotFound { key: key.into() })
}

/// 32 random hexadecimal digits.
pub(crate) fn random() -> String {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).expect("the system has random numbers");
    hex(&bytes)
}

/// Deletes crash leftovers: objects older than any upload lasts. An upload that still runs is then
/// missing at its completion, and begins again.
pub(crate) async fn sweep<O: Operations>(store: Arc<O>, prefix: String) {
    let request = ListRequest {
        prefix: format!("{prefix}{UPLOADS}"),
        by_directory: false,
        after: None,
        limit: MAX_PAGE,
    };
    let oldest = now_secs() - LONGEST_UPLOAD.as_secs() as i64;
    let mut token: Option<String> = None;
    loop {
        let listed = match store.list(&request, token.as_deref()).await {
            Ok(listed) => listed,
            Err(error) => return tracing::warn!(%error, "left-over uploads cannot be listed"),
        };
        let old = listed.entries.into_iter().filter_map(|entry| match entry {
            ListEntry::Object { key, etag, modified_secs, .. } if modified_secs < oldest => {
                Some((key, etag))
            }
            _ => None,
        });
        let store = &store;
        let deletions = old.map(|(key, etag)| async move {
            if let Err(error) = store.delete(&key, Some(&etag)).await {
                tracing::warn!(key, %error, "a left-over upload is not taken away");
            }
        });
        stream::iter(deletions).buffer_unordered(SWEPT_AT_ONCE).collect::<()>().await;
        match listed.next {
            Some(next) if token.as_ref() != Some(&next) => token = Some(next),
            _ => return,
        }
    }
}

/// Staging keys must be valid keys as well.
pub(crate) fn check_prefix(prefix: &str, max_key_bytes: usize) -> Result<(), String> {
    let longest = max_key_bytes - UPLOADS.len() - 96;
    if prefix.len() > longest {
        Err(format!("the prefix is longer than {longest} bytes"))
    } else {
        Ok(())
    }
}

const UPLOADS: &str = ".ebb/uploads/";
const ID_BYTES: usize = 32;
/// Low, to leave most requests to the volume.
const SWEPT_AT_ONCE: usize = 4;
/// The same as S3's, so that files are cut alike.
pub(crate) const MAX_PARTS: u32 = 10_000;
/// Azure itself forgets blocks after this time.
const LONGEST_UPLOAD: Duration = Duration::from_secs(7 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_has_a_place() {
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(place("p/", "k", id).unwrap(), place("p/", "k", id).unwrap());
        assert_ne!(place("p/", "k", id), place("p/", "l", id));
        assert!(place("p/", "k", id).unwrap().starts_with("p/.ebb/uploads/"));
        for bad in [
            "",
            "../../etc",
            "no such upload",
            "0123456789ABCDEF0123456789ABCDEF",
            "0123456789abcdef0123456789abcde/",
        ] {
            assert_eq!(place("", "k", bad), None, "{bad}");
        }
    }
}
