//! One listing of the bucket, of which several pages are asked for at one time where it takes
//! longer to answer than somebody to come for them: behind keys that nobody has seen, and that are
//! [likely](Pace) to be there. What overlaps is cut off, and what was left out is asked for.

use crate::names::listings::{LIST_LIMIT, listed};
use ebb_core::backing::{Listed, Pace};
use ebb_ports::{Bucket, BucketError, ListRequest, Ports};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Open questions behind keys that nobody has seen.
const MOST_AHEAD: usize = 8;

/// Over a line that takes longer for one answer, several at one time would make each of them late.
const MOST_PATIENCE: Duration = Duration::from_secs(1);

/// What was asked for longer ago is asked for again: others may have changed the bucket.
pub(crate) const MOST_AGE: Duration = Duration::from_secs(5);

pub(crate) struct ListingPipeline {
    bucket: Rc<dyn Bucket>,
    ports: Ports,
    prefix: String,
    /// Whether somebody waits for the next page.
    is_awaited: Rc<Cell<bool>>,
    /// In the order of keys.
    open: VecDeque<ListingRequest>,
    pace: Option<Pace>,
    /// It was like that of the page before.
    is_steady: bool,
    /// How many of them are to be behind keys that nobody has seen: twice as many each time that
    /// somebody waits.
    depth: usize,
    /// How many may be: half as many where one was in vain, and one more where it was of use.
    most: usize,
}

struct ListingRequest {
    after: String,
    asked: Duration,
    answer: oneshot::Receiver<(Result<Page, BucketError>, Duration)>,
}

pub(crate) struct Page {
    pub entries: Vec<Listed>,
    pub more: bool,
}

impl ListingPipeline {
    pub fn new(
        bucket: Rc<dyn Bucket>,
        ports: Ports,
        prefix: String,
        is_awaited: Rc<Cell<bool>>,
    ) -> ListingPipeline {
        let most = if bucket.capabilities().lists_from_anywhere { MOST_AHEAD } else { 0 };
        ListingPipeline {
            bucket,
            ports,
            prefix,
            is_awaited,
            open: VecDeque::new(),
            pace: None,
            is_steady: false,
            depth: 0,
            most,
        }
    }

    /// Entries that follow `after`, with none left out between them.
    pub async fn page_behind(&mut self, after: &str) -> Result<Page, BucketError> {
        loop {
            let ListingRequest { after: from, answer, .. } = self.question_at(after);
            let never = || {
                (
                    Err(BucketError::Unavailable {
                        what: "nobody asks any more".into(),
                        retry_after: None,
                    }),
                    Duration::ZERO,
                )
            };
            let (page, took) = answer.await.unwrap_or_else(|_| never());
            let mut page = page?;
            let pace = Pace::of(&self.prefix, &from, &page.entries);
            self.is_steady = pace
                .as_ref()
                .zip(self.pace.as_ref())
                .is_some_and(|(now, before)| now.is_like(before));
            self.pace = pace;
            let found = page.entries.len();
            page.entries.retain(|entry| entry.key() > after);
            self.judge(from == after, &page, found, took);
            if !page.more {
                return Ok(page);
            }
            if let Some(last) = page.entries.last() {
                self.go_on(last.key());
                return Ok(page);
            }
        }
    }

    /// Whether it is of use to ask behind keys that nobody has seen, by what a page brought that
    /// had `found` entries.
    fn judge(&mut self, was_known: bool, page: &Page, found: usize, took: Duration) {
        let was_near = !was_known && page.entries.len() <= found / 2;
        // A page ends before the first of them, which was to begin there.
        let was_far = was_known
            && page
                .entries
                .last()
                .zip(self.open.front())
                .is_some_and(|(last, next)| next.after.as_str() > last.key());
        if was_far {
            self.open.clear();
        }
        self.most = match self.most {
            _ if took > MOST_PATIENCE => 0,
            most if was_near || was_far => most / 2,
            most if !was_known => MOST_AHEAD.min(most + 1),
            most => most,
        };
    }

    /// What is to follow this key is asked for, and more if somebody waits for it.
    fn go_on(&mut self, after: &str) {
        let deeper =
            if self.is_awaited.replace(false) { (2 * self.depth).max(1) } else { self.depth };
        self.depth = deeper.min(self.most);
        let request = self.question_at(after);
        self.open.push_front(request);
        while self.open.len() <= self.depth
            && let Some(last) = self.open.back()
            && let Some(next) =
                self.pace.as_ref().and_then(|pace| pace.end_behind(&last.after, self.is_steady))
        {
            let request = self.ask(next);
            self.open.push_back(request);
        }
    }

    /// The last one that begins at `after` or before it. Where there is none, what stands there is
    /// asked for.
    fn question_at(&mut self, after: &str) -> ListingRequest {
        let now = self.ports.clock.monotonic();
        self.open.retain(|request| now < request.asked + MOST_AGE);
        while self.open.get(1).is_some_and(|next| next.after.as_str() <= after) {
            self.open.pop_front();
        }
        self.open
            .pop_front_if(|first| first.after.as_str() <= after)
            .unwrap_or_else(|| self.ask(after.to_owned()))
    }

    fn ask(&self, after: String) -> ListingRequest {
        let (mut sender, answer) = oneshot::channel();
        let (bucket, clock, prefix, behind) =
            (self.bucket.clone(), self.ports.clock.clone(), self.prefix.clone(), after.clone());
        let asked = clock.monotonic();
        self.ports.spawn.spawn(Box::pin(async move {
            let asking = pin!(list(&*bucket, &prefix, Some(behind)));
            // Nobody may want it any more.
            if let Either::Left((page, _)) = select(asking, sender.cancellation()).await {
                let took = clock.monotonic().saturating_sub(asked);
                sender.send((page, took)).ok();
            }
        }));
        ListingRequest { after, asked, answer }
    }
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
