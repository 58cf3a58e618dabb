//! Order of requests after a takeover: first those whose changes the previous process may have made
//! without a reply.
//!
//! The kernel adjusts link counts itself when it receives the reply to an unlink. If other
//! attributes that include the unlink arrive first, it would count down twice.

use crate::{Operation, Request};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct Succession {
    /// Requests to be repeated; `None` once no more can arrive.
    again: Option<BTreeSet<u64>>,
    /// Shared by repeated mutations without a reply.
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

    /// A guard to keep until the request's reply; `None` if the request must wait.
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

    /// No further request is repeated. Returns those that were, once.
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

/// A change that the previous process made is answered at once. One that it did not make may wait
/// for a bucket, and other requests do not wait for it.
const PATIENCE: Duration = Duration::from_secs(1);
