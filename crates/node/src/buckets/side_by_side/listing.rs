//! Listings over several buckets: every bucket's page without its hidden keys, merged in byte
//! order.

use super::{MARKER, Member};
use ebb_core::backing::keys::MAX_KEY_BYTES;
use ebb_ports::{Bucket, BucketError, ETag, ListEntry, ListPage, ListRequest};
use futures_util::future::try_join_all;

/// Above every key that begins with the same text, except keys that have this character there,
/// which are skipped one by one.
const BEHIND: char = char::MAX;

/// The port's limit.
const MAX_PAGE: usize = 1000;

pub(super) async fn list(
    root: &dyn Bucket,
    members: &[Member],
    request: ListRequest,
) -> Result<ListPage, BucketError> {
    let request = ListRequest { limit: request.limit.min(MAX_PAGE), ..request };
    if let Some(member) = super::member_of(members, &request.prefix) {
        return in_member(member, request).await;
    }
    let limit = request.limit;
    let hidden = |key: &str| super::member_of(members, key).map(|member| behind(member.prefix()));
    let shown = members.iter().filter(|member| member.prefix().starts_with(&request.prefix));
    let mut pages = vec![without(root, request.clone(), hidden).await?];
    if request.by_directory {
        let dirs = shown.map(|member| member.prefix().to_owned());
        let dirs = dirs.filter(|dir| request.after.as_ref().is_none_or(|after| dir > after));
        pages.push(ListPage {
            entries: dirs.map(|key| ListEntry::Prefix { key }).collect(),
            more: false,
        });
    } else {
        let below = shown.map(|member| {
            in_member(member, ListRequest { prefix: member.prefix().to_owned(), ..request.clone() })
        });
        pages.extend(try_join_all(below).await?);
    }
    Ok(merge(pages, limit))
}

/// The requested keys lie below the member's directory.
async fn in_member(member: &Member, request: ListRequest) -> Result<ListPage, BucketError> {
    let dir = member.prefix();
    let after = match request.after {
        Some(after) if after.starts_with(dir) => Some(after[dir.len()..].to_owned()),
        Some(after) if after.as_str() > dir => {
            return Ok(ListPage { entries: Vec::new(), more: false });
        }
        _ => None,
    };
    let mut entries = Vec::new();
    if request.prefix == dir && after.is_none() && request.limit > 0 {
        let etag = ETag(MARKER.into());
        entries.push(ListEntry::Object { key: dir.into(), etag, len_bytes: 0, modified_secs: 0 });
    }
    if entries.len() == request.limit {
        return Ok(ListPage { entries, more: true });
    }
    let limit = request.limit - entries.len();
    let inner =
        ListRequest { prefix: request.prefix[dir.len()..].to_owned(), after, limit, ..request };
    let hidden = |key: &str| match key {
        // No name of the volume has so long a key.
        _ if dir.len() + key.len() > MAX_KEY_BYTES => Some(behind(key)),
        _ if key.starts_with(RESERVED) => Some(behind(RESERVED)),
        _ => is_reserved(key).then(|| key.to_owned()),
    };
    let page =
        without(&**member.bucket(), inner, hidden).await.map_err(|error| member.outward(error))?;
    entries.extend(page.entries.into_iter().map(|mut entry| {
        let (ListEntry::Object { key, .. } | ListEntry::Prefix { key }) = &mut entry;
        key.insert_str(0, dir);
        entry
    }));
    Ok(ListPage { entries, more: page.more })
}

/// Ebb's own part of a bucket.
const RESERVED: &str = ".ebb/";

pub(super) fn is_reserved(key: &str) -> bool {
    key.starts_with(RESERVED) || key == ".ebb"
}

/// The position behind all keys with this prefix: a whole bucket may lie there.
fn behind(prefix: &str) -> String {
    format!("{prefix}{BEHIND}")
}

/// A page without hidden keys: `hidden` returns the key behind which to continue.
async fn without(
    bucket: &dyn Bucket,
    request: ListRequest,
    hidden: impl Fn(&str) -> Option<String>,
) -> Result<ListPage, BucketError> {
    let mut entries: Vec<ListEntry> = Vec::new();
    let mut after = request.after.clone();
    loop {
        let limit = request.limit - entries.len();
        let page = bucket.list(ListRequest { after, limit, ..request.clone() }).await?;
        let last = page.entries.last().map(|last| last.key().to_owned());
        entries.extend(page.entries.into_iter().filter(|entry| hidden(entry.key()).is_none()));
        let Some(last) = last.filter(|_| page.more && entries.len() < request.limit) else {
            return Ok(ListPage { entries, more: page.more });
        };
        after = Some(hidden(&last).filter(|behind| *behind > last).unwrap_or(last));
    }
}

/// One page of several in byte order. Where a page is not the last of its bucket, keys behind its
/// end are left out.
fn merge(pages: Vec<ListPage>, limit: usize) -> ListPage {
    let end = pages
        .iter()
        .filter(|page| page.more)
        .filter_map(|page| page.entries.last())
        .map(|last| last.key().to_owned())
        .min();
    let mut more = pages.iter().any(|page| page.more);
    let mut entries: Vec<ListEntry> = pages.into_iter().flat_map(|page| page.entries).collect();
    entries.sort_by(|a, b| a.key().cmp(b.key()));
    if let Some(end) = end {
        entries.retain(|entry| entry.key() <= end.as_str());
    }
    more |= entries.len() > limit;
    entries.truncate(limit);
    ListPage { entries, more }
}
