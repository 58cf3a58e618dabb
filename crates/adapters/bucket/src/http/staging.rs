//! Uploads of stores that know none that can be aborted: they are put together below the
//! volume's prefix, at a place of their own, and what is there is gone when they end.

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

/// Where an upload of `key` is put together: a name of the upload and of the key, so that
/// the id of another key's upload leads nowhere. `None` for what no upload was ever called.
pub(crate) fn place(prefix: &str, key: &str, id: &str) -> Option<String> {
    let ours = id.len() == ID_BYTES && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    ours.then(|| places(prefix, key) + id)
}

/// What the places of all uploads of `key` begin with.
fn places(prefix: &str, key: &str) -> String {
    let digest = digest::digest(&digest::SHA256, key.as_bytes());
    format!("{prefix}{UPLOADS}{}-", hex(&digest.as_ref()[..8]))
}

/// The uploads of `key` of which anything is left.
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

/// The upload, as far as the caller knows it.
pub(crate) fn place_of(prefix: &str, key: &str, upload: &UploadId) -> Result<String, BucketError> {
    place(prefix, key, &upload.0).ok_or_else(|| BucketError::NotFound { key: key.into() })
}

/// 32 hexadecimal digits that nobody has seen before.
pub(crate) fn random() -> String {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).expect("the system has random numbers");
    hex(&bytes)
}

/// Takes away what crashes have left: what is older than any upload lasts. An upload that
/// lives nevertheless is not found when it is completed, and begun again.
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

/// The places of uploads must be keys as well.
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
/// Few, beside what the volume asks for meanwhile.
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
