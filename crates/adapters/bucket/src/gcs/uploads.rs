//! Multipart uploads. Parts are objects of their own, and completion composes them atomically and
//! under a condition. (The store's S3-compatible uploads support no conditions; its resumable
//! uploads are sequential.)
//!
//! Laws:
//! - A marker object lies beside the parts. An abort deletes the marker first and then every part,
//!   until the listing is empty.
//! - A completion checks the marker before it composes, and composes only objects that are
//!   unchanged. So an aborted upload never becomes visible, however late its requests arrive.
//! - The sender of a part that arrives after the marker is gone deletes the part.

use super::Gcs;
use super::operations::{conditional, generation_of, metadata, parse};
use crate::http::client::Call;
use crate::http::remote::{Operations, unclear_change};
use crate::http::staging::{self, random};
use bytes::Bytes;
use ebb_ports::{
    BucketError, Condition, ETag, ListEntry, ListRequest, ObjectTags, PartTag, UploadId,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use std::collections::BTreeMap;

/// An object and its generation.
type Source = (String, ETag);

impl Gcs {
    pub(super) async fn begin(
        &self,
        key: &str,
        tags: &ObjectTags,
    ) -> Result<UploadId, BucketError> {
        let upload = UploadId(random());
        let place = staging::place_of(&self.service.prefix, key, &upload)?;
        self.put(&marker(&place), Bytes::new(), &Condition::Absent, tags).await?;
        Ok(upload)
    }

    pub(super) async fn stage(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, BucketError> {
        let place = staging::place_of(&self.service.prefix, key, upload)?;
        let part = part(&place, number);
        let etag = self.put(&part, body, &Condition::Always, &vec![]).await?;
        match self.head(&marker(&place)).await {
            Ok(_) => Ok(PartTag { number, receipt: etag.0 }),
            Err(BucketError::NotFound { .. }) => {
                self.clear(vec![(part, etag)]).await;
                Err(BucketError::NotFound { key: key.into() })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn compose_all(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[PartTag],
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        let place = staging::place_of(&self.service.prefix, key, upload)?;
        let missing = |error| match error {
            BucketError::NotFound { .. } => BucketError::NotFound { key: key.into() },
            other => other,
        };
        let tags = self.head(&marker(&place)).await.map_err(missing)?.tags;
        let staged = self.staged(&place).await?;
        let mut sources = Vec::with_capacity(parts.len());
        for (position, tag) in parts.iter().enumerate() {
            let source = (part(&place, tag.number), ETag(tag.receipt.clone()));
            let in_order = position == 0 || parts[position - 1].number < tag.number;
            if !in_order || staged.get(&source.0) != Some(&source.1) {
                return Err(BucketError::Refused {
                    what: format!("complete {key}: part {} is not what was uploaded", tag.number),
                });
            }
            sources.push(source);
        }
        if sources.is_empty() {
            return Err(BucketError::Refused {
                what: format!("complete {key}: an upload has at least one part"),
            });
        }
        let mut used: BTreeMap<String, ETag> = staged;
        for level in 0.. {
            if sources.len() <= MAX_SOURCES {
                break;
            }
            sources = self.join(&place, level, sources).await.map_err(missing)?;
            used.extend(sources.iter().cloned());
        }
        self.check_unguarded(key, condition).await?;
        let etag = self.compose(key, &sources, condition, &tags).await?;
        self.clear(used.into_iter().collect()).await;
        Ok(etag)
    }

    pub(super) async fn abort(&self, key: &str, upload: &UploadId) -> Result<(), BucketError> {
        let place = staging::place_of(&self.service.prefix, key, upload)?;
        match self.delete(&marker(&place), None).await {
            Ok(()) | Err(BucketError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        // A completion that saw the marker may be composing parts. Its result is listed, too; once
        // the listing is empty, nothing is left to compose.
        for _ in 0..MAX_ROUNDS {
            let staged: Vec<Source> = self.staged(&place).await?.into_iter().collect();
            if staged.is_empty() {
                return Ok(());
            }
            self.clear(staged).await;
        }
        Err(BucketError::Unavailable {
            what: format!("abort upload of {key}: parts keep arriving"),
            retry_after: None,
        })
    }

    /// Joins the sources to objects that are fewer, in groups.
    async fn join(
        &self,
        place: &str,
        level: usize,
        sources: Vec<Source>,
    ) -> Result<Vec<Source>, BucketError> {
        let groups: Vec<(String, Vec<Source>)> = sources
            .chunks(MAX_SOURCES)
            .enumerate()
            .map(|(number, group)| (format!("{place}/join-{level}-{number:04}"), group.to_vec()))
            .collect();
        let joined = groups.into_iter().map(|(name, group)| async move {
            match self.compose(&name, &group, &Condition::Always, &vec![]).await {
                Ok(etag) => Ok((name, etag)),
                // Nothing is visible yet, and a repeated compose yields the same.
                Err(BucketError::Unknown { what }) => {
                    Err(BucketError::Unavailable { what, retry_after: None })
                }
                Err(other) => Err(other),
            }
        });
        stream::iter(joined).buffered(AT_ONCE).try_collect().await
    }

    async fn compose(
        &self,
        key: &str,
        sources: &[Source],
        condition: &Condition,
        tags: &ObjectTags,
    ) -> Result<ETag, BucketError> {
        let named = |(name, etag): &Source| json!({ "name": name, "objectPreconditions": { "ifGenerationMatch": etag.0 } });
        let body = json!({
            "sourceObjects": sources.iter().map(named).collect::<Vec<_>>(),
            "destination": { "contentType": "application/octet-stream", "metadata": metadata(tags) },
        });
        let path = format!("{}/compose", self.service.object(key));
        let call = Call::mutation("POST", key, path, body.to_string().into())
            .slow()
            .header("content-type", "application/json");
        let call = self.with_key(call, "kmsKeyName");
        let answer = self.call(&conditional(call, condition)).await?;
        generation_of(&parse(&answer))
            .ok_or_else(|| unclear_change("complete", key, "a generation"))
    }

    /// Checks a condition that the store does not check itself.
    pub(super) async fn check_unguarded(
        &self,
        key: &str,
        condition: &Condition,
    ) -> Result<(), BucketError> {
        if self.service.guarded || *condition == Condition::Always {
            return Ok(());
        }
        let there = match self.head(key).await {
            Ok(meta) => Some(meta.etag),
            Err(BucketError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let holds = match condition {
            Condition::Always => true,
            Condition::Absent => there.is_none(),
            Condition::Match(tag) => there.as_ref() == Some(tag),
        };
        if holds { Ok(()) } else { Err(BucketError::Precondition { key: key.into() }) }
    }

    /// All objects of an upload.
    async fn staged(&self, place: &str) -> Result<BTreeMap<String, ETag>, BucketError> {
        let request = ListRequest {
            prefix: format!("{place}/"),
            by_directory: false,
            after: None,
            limit: 1000,
        };
        let mut staged = BTreeMap::new();
        let mut token: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let listed = self.list_page(&request, token.as_deref()).await?;
            staged.extend(listed.entries.into_iter().filter_map(|entry| match entry {
                ListEntry::Object { key, etag, .. } => Some((key, etag)),
                ListEntry::Prefix { .. } => None,
            }));
            match listed.next {
                Some(next) => token = Some(next),
                None => return Ok(staged),
            }
        }
        Err(BucketError::Unavailable {
            what: format!("{place}: its listing has no end"),
            retry_after: None,
        })
    }

    /// Deletes obsolete objects. Remaining ones are swept at a later open.
    async fn clear(&self, objects: Vec<Source>) {
        let deletions = objects.into_iter().map(|(name, etag)| async move {
            match self.delete(&name, Some(&etag)).await {
                Ok(()) | Err(BucketError::NotFound { .. } | BucketError::Precondition { .. }) => {}
                Err(error) => tracing::warn!(key = name, %error, "a part of an upload that has \
                    ended is left behind"),
            }
        });
        stream::iter(deletions).buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

fn marker(place: &str) -> String {
    format!("{place}/begun")
}

fn part(place: &str, number: u32) -> String {
    format!("{place}/part-{number:05}")
}

/// Objects that the store composes with one request.
const MAX_SOURCES: usize = 32;
/// Requests of one completion or abort that are under way together.
const AT_ONCE: usize = 8;
/// Rounds of an abort that meets a completion: one for the parts, one for each level of joining,
/// and some to spare.
const MAX_ROUNDS: usize = 8;
/// Parts and composed objects fill a twentieth of it.
const MAX_PAGES: usize = 200;
