//! One listing of the bucket, of which several pages are asked for at one time where it takes longer to answer than somebody to come
//! for them: behind keys that nobody has seen, and that are [likely](Pace) to be there. What overlaps is cut off, and what was left out
//! is asked for.

use crate::names::listings::{LIST_LIMIT, listed};
use ebb_core::backing::{Listed, Pace};
use ebb_ports::{Bucket, BucketError, ListRequest, Spawn};
use futures_channel::oneshot;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Open questions behind keys that nobody has seen.
const MOST_AHEAD: usize = 8;

pub(crate) struct Questions {
    bucket: Rc<dyn Bucket>,
    spawn: Rc<dyn Spawn>,
    prefix: String,
    /// Whether somebody waits for the next page.
    is_awaited: Rc<Cell<bool>>,
    /// In the order of keys.
    open: VecDeque<Question>,
    pace: Option<Pace>,
    /// It was like that of the page before.
    is_steady: bool,
    /// How many of them are to be behind keys that nobody has seen: twice as many each time that somebody waits.
    depth: usize,
    /// How many may be: half as many where one was in vain, and one more where it was not.
    most: usize,
}

struct Question {
    after: String,
    answer: oneshot::Receiver<Result<Page, BucketError>>,
}

pub(crate) struct Page {
    pub entries: Vec<Listed>,
    pub more: bool,
}

impl Questions {
    pub fn new(bucket: Rc<dyn Bucket>, spawn: Rc<dyn Spawn>, prefix: String, is_awaited: Rc<Cell<bool>>) -> Questions {
        let most = if bucket.capabilities().lists_from_anywhere { MOST_AHEAD } else { 0 };
        Questions { bucket, spawn, prefix, is_awaited, open: VecDeque::new(), pace: None, is_steady: false, depth: 0, most }
    }

    /// Entries that follow `after`, with none left out between them.
    pub async fn page_behind(&mut self, after: &str) -> Result<Page, BucketError> {
        loop {
            let question = self.question_at(after);
            let (from, answer) = (question.after, question.answer);
            let never = || Err(BucketError::Unavailable { what: "nobody asks any more".into(), retry_after: None });
            let mut page = answer.await.unwrap_or_else(|_| never())?;
            let pace = Pace::of(&self.prefix, &from, &page.entries);
            self.is_steady = pace.as_ref().zip(self.pace.as_ref()).is_some_and(|(now, before)| now.is_like(before));
            self.pace = pace;
            let found = page.entries.len();
            page.entries.retain(|entry| entry.key() > after);
            if from != after {
                let was_of_use = page.entries.len() > found / 2;
                self.most = if was_of_use { MOST_AHEAD.min(self.most + 1) } else { self.most / 2 };
            }
            if !page.more {
                return Ok(page);
            }
            if let Some(last) = page.entries.last() {
                self.go_on(last.key());
                return Ok(page);
            }
        }
    }

    /// What is to follow this key is asked for, and more if somebody waits for it.
    fn go_on(&mut self, after: &str) {
        let deeper = if self.is_awaited.get() { (2 * self.depth).max(1) } else { self.depth };
        self.depth = deeper.min(self.most);
        let question = self.question_at(after);
        self.open.push_front(question);
        while self.open.len() <= self.depth
            && let Some(last) = self.open.back()
            && let Some(next) = self.pace.as_ref().and_then(|pace| pace.end_behind(&last.after, self.is_steady))
        {
            let question = self.ask(next);
            self.open.push_back(question);
        }
    }

    /// The last one that begins at `after` or before it. Where there is none, what stands there is asked for.
    fn question_at(&mut self, after: &str) -> Question {
        while self.open.get(1).is_some_and(|next| next.after.as_str() <= after) {
            self.open.pop_front();
        }
        self.open.pop_front_if(|first| first.after.as_str() <= after).unwrap_or_else(|| self.ask(after.to_owned()))
    }

    fn ask(&self, after: String) -> Question {
        let (sender, answer) = oneshot::channel();
        let (bucket, prefix, behind) = (self.bucket.clone(), self.prefix.clone(), after.clone());
        self.spawn.spawn(Box::pin(async move {
            let page = list(&*bucket, &prefix, Some(behind)).await;
            // Nobody may want it any more.
            sender.send(page).ok();
        }));
        Question { after, answer }
    }
}

pub(crate) async fn list(bucket: &dyn Bucket, prefix: &str, after: Option<String>) -> Result<Page, BucketError> {
    let request = ListRequest { prefix: prefix.to_owned(), by_directory: true, after, limit: LIST_LIMIT };
    let page = bucket.list(request).await?;
    Ok(Page { entries: page.entries.into_iter().map(listed).collect(), more: page.more })
}
