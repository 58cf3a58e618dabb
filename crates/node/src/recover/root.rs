//! The state of a volume that this node has not served before.

use super::OpenError;
use crate::Options;
use crate::buckets::ask::{MAX_DAMAGED, ask};
use crate::buckets::head::HeadError;
use crate::names::pages::LARGE_PAGE_BYTES;
use ebb_core::backing::{keys, page_key};
use ebb_core::partition::Partition;
use ebb_format::identity::Serves;
use ebb_format::page;
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, ListRequest, Ports};
use std::time::Duration;

/// The state of a volume that this node has not served before, and the troubles with it.
pub(super) async fn empty(
    ports: &Ports,
    bucket: Option<&dyn Bucket>,
    (serves, ids): (&Serves, IdRange),
    options: &Options,
) -> Result<(Partition, Option<String>), OpenError> {
    let default = bare_root(options, ports.clock.wall());
    let Some(bucket) = bucket else {
        return Ok((Partition::new(ids, default, false), None));
    };
    let failed = |error| HeadError::Store { backing: serves.backing.clone(), error };
    let patience = options.bucket_timeout;
    let key = page_key(Ino::ROOT);
    let mut attempt = 1;
    loop {
        let object = match ask(ports, patience, LARGE_PAGE_BYTES, || bucket.get(&key, None, None))
            .await
        {
            Ok(object) => object,
            Err(BucketError::NotFound { .. }) => {
                let missing = has_pages(ports, patience, bucket).await.map_err(failed)?.then(|| {
                    format!(
                        "{key} is not in the bucket, where pages of other directories are: it was \
                         removed, or never written. Attributes, \
                         links and special files of the root are not known, nor what has been \
                         renamed into it"
                    )
                });
                missing.iter().for_each(|what| tracing::error!("{what}"));
                return Ok((Partition::new(ids, default, true), missing));
            }
            Err(error) => {
                tracing::error!(%error, "the root of the volume cannot be read");
                return Err(failed(error).into());
            }
        };
        match page::decode(&object.body) {
            Ok(head) => {
                return Ok((Partition::new(ids, head.page.record, true), None));
            }
            Err(error) if attempt == MAX_DAMAGED => {
                return Err(OpenError::Root { key, what: error.to_string() });
            }
            Err(error) => {
                tracing::warn!(attempt, "{key} came from the bucket as it was not written: {error}")
            }
        }
        attempt += 1;
    }
}

/// The root of a volume that has nothing else.
pub(crate) fn bare_root(options: &Options, now: Time) -> InstalledRecord {
    InstalledRecord {
        mode: 0o755,
        nlink: 2,
        uid: options.uid,
        gid: options.gid,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        xattrs: Vec::new(),
        links: Vec::new(),
    }
}

pub(super) async fn has_pages(
    ports: &Ports,
    patience: Duration,
    bucket: &dyn Bucket,
) -> Result<bool, BucketError> {
    let request =
        ListRequest { prefix: keys::pages_prefix(), by_directory: false, after: None, limit: 1 };
    let listed = ask(ports, patience, 0, || bucket.list(request.clone())).await?;
    Ok(!listed.entries.is_empty())
}
