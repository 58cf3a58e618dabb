//! The order of requests where a session was taken over: first the changes that the process before
//! may have made and not answered.
//!
//! The kernel counts links itself as names go. What it is told of an inode before it hears that one
//! of its names has gone, and knows of that already, it would count down once more.

use crate::{Operation, Request};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct Succession {
    /// Requests that were sent again; none once it is known that no more will be.
    again: Option<BTreeSet<u64>>,
    /// Those of them that change something and have no answer yet have this.
    unanswered: Rc<()>,
    pub until: Instant,
}

impl Succession {
    pub fn new() -> Succession {
        Succession {
            again: Some(BTreeSet::new()),
            unanswered: Rc::default(),
            until: Instant::now() + PATIENCE,
        }
    }

    /// What is to be held until the request has its answer; `None` if the request itself is held
    /// up.
    pub fn admit(&mut self, request: &Request) -> Option<Rc<()>> {
        if request.context.resent
            && let Some(again) = &mut self.again
        {
            again.insert(request.context.request());
        }
        (request.context.resent && changes(&request.operation)).then(|| self.unanswered.clone())
    }

    pub fn expects_more(&self) -> bool {
        self.again.is_some()
    }

    /// No request is sent again from now on. Gives those that were, once.
    pub fn all_came(&mut self) -> Option<BTreeSet<u64>> {
        self.again.take()
    }

    pub fn is_over(&self) -> bool {
        self.again.is_none()
            && (Rc::strong_count(&self.unanswered) == 1 || Instant::now() >= self.until)
    }
}

fn changes(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::SetAttr { .. }
            | Operation::Make { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
            | Operation::Tmpfile { .. }
            | Operation::Write { .. }
    )
}

/// What was made and not answered is answered at once; what was not made may have to wait for a
/// bucket, and then nobody else waits for it.
const PATIENCE: Duration = Duration::from_secs(1);
