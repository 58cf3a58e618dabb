//! Listings of directories come part by part, one question after the other. Whoever takes in one part will want the
//! next one: it is under way meanwhile.

use crate::Node;
use ebb_core::backing::{Listed, LoadPlan, Part};
use ebb_model::*;
use ebb_ports::{BucketError, ListEntry, ListPage, ListRequest, PortFuture};
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

/// Keys asked for at one time: the most that S3 gives.
pub(crate) const LIST_LIMIT: usize = 1000;

/// Directories whose next part is kept. The one that was asked for first makes way.
const MOST_AHEAD: usize = 16;

/// A part that was asked for longer ago is asked for again: others may have changed the bucket.
const GOOD_FOR: Duration = Duration::from_secs(5);

/// Next parts that were asked for.
#[derive(Default)]
pub(crate) struct Listings {
    ahead: RefCell<VecDeque<Ahead>>,
}

struct Ahead {
    dir: Ino,
    plan: LoadPlan,
    asked: Duration,
    answer: oneshot::Receiver<Result<ListPage, BucketError>>,
}

impl Listings {
    /// What was asked by this very plan. Of one directory no other answer is of use then.
    fn take(&self, dir: Ino, plan: &LoadPlan, now: Duration) -> Option<oneshot::Receiver<Result<ListPage, BucketError>>> {
        let mut ahead = self.ahead.borrow_mut();
        let at = ahead.iter().position(|ahead| ahead.dir == dir)?;
        let found = ahead.remove(at)?;
        (found.plan == *plan && now < found.asked + GOOD_FOR).then_some(found.answer)
    }

    fn keep(&self, next: Ahead) {
        let mut ahead = self.ahead.borrow_mut();
        ahead.retain(|other| other.dir != next.dir);
        if ahead.len() == MOST_AHEAD {
            ahead.pop_front();
        }
        ahead.push_back(next);
    }
}

impl Node {
    /// The next part of a directory's listing.
    pub(crate) async fn list_part(&self, dir: Ino, plan: &LoadPlan) -> Result<Part, RpcError> {
        let ahead = Cell::new(self.listings.take(dir, plan, self.ports.clock.monotonic()));
        let ask = || -> PortFuture<'_, Result<ListPage, BucketError>> {
            let ahead = ahead.take();
            Box::pin(async move {
                // What did not come is asked for anew.
                if let Some(answer) = ahead
                    && let Ok(Ok(page)) = answer.await
                {
                    return Ok(page);
                }
                self.bucket().list(request(plan)).await
            })
        };
        let page = self.bucket_read("list", &plan.prefix, 0, ask).await?;
        Ok(Part::of(page.entries.into_iter().map(listed).collect(), page.more))
    }

    /// Asks for the part that [`Node::list_part`] will be asked for by this plan.
    pub(crate) fn ask_for_part(&self, dir: Ino, plan: LoadPlan) {
        let Some(bucket) = self.bucket.clone() else { return };
        let (sender, answer) = oneshot::channel();
        let request = request(&plan);
        self.ports.spawn.spawn(Box::pin(async move {
            // Nobody may want it any more.
            drop(sender.send(bucket.list(request).await));
        }));
        self.listings.keep(Ahead { dir, plan, asked: self.ports.clock.monotonic(), answer });
    }
}

fn request(plan: &LoadPlan) -> ListRequest {
    ListRequest { prefix: plan.prefix.clone(), by_directory: true, after: plan.after.clone(), limit: LIST_LIMIT }
}

fn listed(entry: ListEntry) -> Listed {
    match entry {
        ListEntry::Object { key, etag, len_bytes, modified_secs } => {
            Listed::Object { key, etag: etag.0, len_bytes, modified: Time::from_secs(modified_secs) }
        }
        ListEntry::Prefix { key } => Listed::Prefix { key },
    }
}
