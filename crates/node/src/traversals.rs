//! Who looks into one directory after the other, as find(1) does, and which of the next ones are listed ahead: each alone
//! takes two or three requests to the bucket, one after the other.

use crate::Node;
use crate::locks::Mode;
use ebb_core::namespace::Link;
use ebb_core::partition::Partition;
use ebb_model::*;
use std::collections::BTreeSet;
use std::rc::Rc;

/// So many directories in a row are a traversal, those not counted that are gone down into.
const LEAST_RUN: u32 = 3;

/// Several who share a traversal among them do not look into its directories quite in order.
const SLACK: usize = 8;

/// Directories that one traversal is run ahead by at most.
const MOST_AHEAD: usize = 32;

/// Directories that are listed ahead at one time.
const MOST_UNDER_WAY: usize = 64;

/// Traversals. The one that was not used for longest makes way.
const MOST_TRAVERSALS: usize = 16;

/// Entries that are looked through for the next directories.
const MOST_ENTRIES: usize = 1024;

#[derive(Default)]
pub struct Traversals {
    traversals: Vec<Traversal>,
    looks: u64,
    /// Directories that are being listed ahead.
    under_way: usize,
}

struct Traversal {
    /// It has not been outside of this directory so far.
    top: Ino,
    last: Ino,
    run: u32,
    /// Listed ahead, and not looked into yet.
    ahead: BTreeSet<Ino>,
    /// Number of the last look.
    used: u64,
}

impl Traversals {
    /// Notes that somebody begins to look into a directory; gives those that are to be listed, if it is time to.
    fn look_into(&mut self, dir: Ino, state: &Partition) -> Vec<Ino> {
        let runs_ahead = |traversal: &Traversal| traversal.ahead.contains(&dir);
        let ahead = self.traversals.iter().position(runs_ahead);
        if ahead.is_none() && !state.backing().is_untouched(dir) {
            return Vec::new();
        }
        self.looks += 1;
        let Some(at) = ahead.or_else(|| self.traversals.iter().position(|traversal| traversal.leads_to(dir, state))) else {
            self.add(Traversal { top: dir, last: dir, run: 1, ahead: BTreeSet::new(), used: self.looks });
            return Vec::new();
        };
        self.traversals[at].used = self.looks;
        let wanted = self.traversals[at].go_on(dir, state, MOST_UNDER_WAY.saturating_sub(self.under_way));
        self.under_way += wanted.len();
        wanted
    }

    fn add(&mut self, traversal: Traversal) {
        if self.traversals.len() < MOST_TRAVERSALS {
            self.traversals.push(traversal);
        } else if let Some(oldest) = self.traversals.iter_mut().min_by_key(|other| other.used) {
            *oldest = traversal;
        }
    }
}

impl Traversal {
    /// Whether a directory that has not been listed is one of its next ones, at most one level above all before.
    fn leads_to(&self, dir: Ino, state: &Partition) -> bool {
        let above = parent_of(self.top, state).unwrap_or(self.top);
        next_after(self.last, above, SLACK, state).contains(&dir)
    }

    fn go_on(&mut self, dir: Ino, state: &Partition, room: usize) -> Vec<Ino> {
        let parent = parent_of(dir, state);
        self.run += u32::from(parent != Some(self.last));
        self.last = dir;
        if let Some(parent) = parent.filter(|_| !is_below(dir, self.top, state)) {
            self.top = parent;
        }
        // It went past those that it did not look into.
        if !self.ahead.remove(&dir) {
            self.ahead.clear();
        }
        let Some(beyond) = self.run.checked_sub(LEAST_RUN) else { return Vec::new() };
        let window = (2usize << beyond.min(8)).min(MOST_AHEAD);
        // Topped up by halves.
        if self.ahead.len() > window / 2 {
            return Vec::new();
        }
        let mut wanted = next_after(dir, self.top, window, state);
        wanted.retain(|dir| !self.ahead.contains(dir));
        wanted.truncate(room.min(window - self.ahead.len()));
        self.ahead.extend(&wanted);
        wanted
    }
}

/// The directories not listed yet that who is at one comes to next within `top`: first what is in a directory, then what is behind it.
fn next_after(dir: Ino, top: Ino, most: usize, state: &Partition) -> Vec<Ino> {
    let (mut found, mut entries_left) = (Vec::new(), MOST_ENTRIES);
    let (mut at, mut streams) = (dir, vec![(dir, Cookie::START)]);
    loop {
        while let Some((dir, after)) = streams.pop() {
            for (cookie, ino, kind) in state.namespace().entries_after(dir, after) {
                if found.len() == most || entries_left == 0 {
                    return found;
                }
                entries_left -= 1;
                if kind != FileKind::Directory {
                    continue;
                }
                if !state.backing().is_untouched(ino) {
                    streams.extend([(dir, cookie), (ino, Cookie::START)]);
                    break;
                }
                found.push(ino);
            }
        }
        match state.namespace().primary_link(at) {
            Some(Link { parent, cookie }) if at != top => {
                streams.push((parent, cookie));
                at = parent;
            }
            _ => return found,
        }
    }
}

fn parent_of(dir: Ino, state: &Partition) -> Option<Ino> {
    state.namespace().primary_link(dir).map(|link| link.parent)
}

fn is_below(dir: Ino, top: Ino, state: &Partition) -> bool {
    std::iter::successors(Some(dir), |at| parent_of(*at, state)).any(|at| at == top)
}

impl Node {
    /// Somebody begins to look into a directory: lists what who goes through all directories will want next.
    pub(crate) fn look_into(self: &Rc<Self>, dir: Ino) {
        let wanted = self.traversals.borrow_mut().look_into(dir, &self.replica.view());
        for dir in wanted {
            let node = self.clone();
            self.ports.spawn.spawn(Box::pin(async move {
                if let Err(error) = node.list_ahead(dir).await {
                    tracing::debug!(%dir, %error, "a directory could not be listed ahead");
                }
                node.traversals.borrow_mut().under_way -= 1;
            }));
        }
    }

    async fn list_ahead(&self, dir: Ino) -> Result<(), RpcError> {
        let _guard = self.loads.lock(dir, Mode::Exclusive).await;
        let is_untouched = self.replica.view().backing().is_untouched(dir);
        // Nothing that is in use makes way for it.
        if is_untouched && self.has_metadata_to_spare() && !self.attachments.awaits_any() && !self.is_stopping() {
            self.load_page(dir).await?;
        }
        Ok(())
    }
}
