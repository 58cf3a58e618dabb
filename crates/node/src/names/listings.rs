//! A directory is listed part by part, and each request needs the key at which the part before it
//! ended. While the caller takes in one part, the next one is requested.

use crate::Node;
use crate::names::load::For;
use ebb_core::backing::{Listed, LoadPlan, Part};
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, ListEntry, ListRequest, PortFuture};
use futures_channel::mpsc;
use futures_util::StreamExt;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::time::Duration;

/// Keys requested at one time: the most that S3 returns.
pub(crate) const LIST_LIMIT: usize = 1000;

/// Parts that wait to be logged while another one is requested.
const MOST_WAITING: usize = 1;

/// Directories that are listed ahead. The least recently continued one makes way.
const MOST_AHEAD: usize = 16;

/// A later request for the next part gets one that is listed then, without parts ahead: the bucket
/// may have been changed externally.
const MOST_PAUSE: Duration = Duration::from_secs(5);

/// The result of a listing is used up to this age: other programs may change the bucket.
pub(crate) const MOST_AGE: Duration = Duration::from_secs(5);

/// One response to a listing request.
pub(crate) struct Page {
    pub entries: Vec<Listed>,
    pub more: bool,
}

/// Directories that are being listed.
#[derive(Default)]
pub(crate) struct Listings {
    begun: RefCell<VecDeque<Begun>>,
}

struct Begun {
    dir: Ino,
    /// The request for the next part.
    plan: LoadPlan,
    /// The entry that the part begins with.
    left: Option<Listed>,
    /// When the part before was requested.
    taken: Duration,
    /// The later parts, if they are requested.
    ahead: Option<Parts>,
}

/// Parts that are requested ahead. The stream ends after the last part, and after an error.
type Parts = mpsc::Receiver<Result<Part, BucketError>>;

impl Listings {
    /// The listing that was begun by exactly this plan. Any other one of the directory is dropped.
    fn take(&self, dir: Ino, plan: &LoadPlan) -> Option<Begun> {
        let mut begun = self.begun.borrow_mut();
        let at = begun.iter().position(|begun| begun.dir == dir)?;
        begun.remove(at).filter(|begun| begun.plan == *plan)
    }

    fn keep(&self, next: Begun) {
        let mut begun = self.begun.borrow_mut();
        begun.retain(|other| other.dir != next.dir);
        if begun.len() == MOST_AHEAD {
            begun.pop_front();
        }
        begun.push_back(next);
    }
}

impl Node {
    /// The next part of a directory's listing, which ends at the key that `end` returns, if any.
    /// `early`: its page, if it has arrived already.
    pub(crate) async fn list_part(
        &self,
        dir: Ino,
        plan: &LoadPlan,
        early: Option<Page>,
        whom: For,
        end: impl FnOnce(&Part) -> Option<String>,
    ) -> Result<Part, RpcError> {
        let now = self.ports.clock.monotonic();
        let begun = self.names.listings.take(dir, plan);
        let is_slow = begun.as_ref().is_some_and(|begun| now >= begun.taken + MOST_PAUSE);
        let (left, ahead) = begun.map_or((None, None), |begun| (begun.left, begun.ahead));
        let ahead = RefCell::new(ahead.filter(|_| !is_slow));
        let early = Cell::new(early);
        let ask = || -> PortFuture<'_, Result<Part, BucketError>> {
            let (parts, left, early) = (ahead.take(), left.clone(), early.take());
            Box::pin(async {
                if let Some(page) = early {
                    return Ok(part_of(left, page));
                }
                // A part that did not arrive is requested anew.
                if let Some(mut parts) = parts
                    && let Some(Ok(part)) = parts.next().await
                {
                    ahead.replace(Some(parts));
                    return Ok(part);
                }
                let page = list(
                    self.buckets.bucket(),
                    &plan.prefix,
                    behind(plan.after.as_ref(), left.as_ref()),
                )
                .await?;
                Ok(part_of(left, page))
            })
        };
        let mut part = self.bucket_read("list", &plan.prefix, 0, ask).await?;
        let end = end(&part);
        let is_cut = end.is_some();
        if let Some(end) = end {
            part.end_at(end);
        }
        if let (For::Listing, Some(last)) = (whom, &part.last) {
            let plan = LoadPlan { after: Some(last.clone()), ..plan.clone() };
            let left = part.left.take();
            let begin = || (!is_slow).then(|| self.list_from(&plan, left.clone()));
            let ahead = if is_cut { None } else { ahead.into_inner().or_else(begin) };
            self.names.listings.keep(Begun { dir, plan, left, taken: now, ahead });
        }
        Ok(part)
    }

    /// All parts from this one on, as long as they are taken.
    fn list_from(&self, plan: &LoadPlan, mut left: Option<Listed>) -> Parts {
        let (mut sender, parts) = mpsc::channel(MOST_WAITING);
        let Some(bucket) = self.buckets.all().cloned() else { return parts };
        let prefix = plan.prefix.clone();
        let mut after = behind(plan.after.as_ref(), left.as_ref());
        self.ports.spawn.spawn(Box::pin(async move {
            while let Some(key) = after.take()
                && poll_fn(|cx| sender.poll_ready(cx)).await.is_ok()
            {
                let page = list(&*bucket, &prefix, Some(key)).await;
                let part = page.map(|page| part_of(left.take(), page));
                if let Ok(part) = &part {
                    (after, left) =
                        (behind(part.last.as_ref(), part.left.as_ref()), part.left.clone());
                }
                // If the receiver is gone, the next one is not requested.
                sender.start_send(part).ok();
            }
        }));
        parts
    }
}

/// The position of the next request: behind the entry left from the part before, for a store may
/// continue only where that part ended.
fn behind(last: Option<&String>, left: Option<&Listed>) -> Option<String> {
    left.map(|left| left.key().to_owned()).or_else(|| last.cloned())
}

fn part_of(left: Option<Listed>, page: Page) -> Part {
    Part::of(left.into_iter().chain(page.entries).collect(), page.more)
}

pub(crate) async fn list(
    bucket: &dyn Bucket,
    prefix: &str,
    after: Option<String>,
) -> Result<Page, BucketError> {
    let request =
        ListRequest { prefix: prefix.to_owned(), by_directory: true, after, limit: LIST_LIMIT };
    let page = bucket.list(request).await?;
    Ok(Page { entries: page.entries.into_iter().map(listed).collect(), more: page.more })
}

pub(crate) fn listed(entry: ListEntry) -> Listed {
    match entry {
        ListEntry::Object { key, etag, len_bytes, modified_secs } => Listed::Object {
            key,
            etag: etag.0,
            len_bytes,
            modified: Time::from_secs(modified_secs),
        },
        ListEntry::Prefix { key } => Listed::Prefix { key },
    }
}
