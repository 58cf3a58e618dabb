//! Detects a client that looks into one directory after the other, as find(1) does, and lists the
//! next ones ahead: each alone takes two or three requests to the bucket, one after the other.

use crate::Node;
use crate::names::load::For;
use crate::readahead::tree::{Step, Tree, Way};
use ebb_core::namespace::Link;
use ebb_model::*;
use std::collections::BTreeSet;
use std::rc::Rc;

/// So many directories in a row are a traversal, without those entered from their parent.
const LEAST_RUN: usize = 3;

/// A run shorter than this can turn round, if more steps lead the other way.
const YOUNG_RUN: usize = 8;

/// Several threads that share a traversal do not look into its directories quite in order.
const SLACK: usize = 8;

/// The most directories that are listed ahead of one traversal.
const MOST_AHEAD: usize = 32;

/// Directories that are listed ahead at one time.
const MOST_UNDER_WAY: usize = 64;

/// The most traversals. The least recently used one makes way.
const MOST_TRAVERSALS: usize = 16;

/// Entries that are looked through for the next directories, and for those the other way.
const MOST_STEPS: usize = 1024;
const MOST_STEPS_BACK: usize = 64;

/// The use of a directory by a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// A lookup of a name.
    Up,
    /// A listing.
    Through,
}

#[derive(Default)]
pub struct Traversals {
    traversals: Vec<Traversal>,
    looks: u64,
    /// Directories that are being listed ahead.
    under_way: usize,
}

struct Traversal {
    /// The traversal has not left this directory so far.
    top: Ino,
    last: Ino,
    way: Way,
    /// The furthest one the other way, and how many steps led there: a client that comes to
    /// directories out of order may begin with some of these.
    back_last: Ino,
    back_run: usize,
    /// The traversal has listed directories.
    lists: bool,
    run: usize,
    /// Listed ahead, and not used yet.
    ahead: BTreeSet<Ino>,
    /// Number of the last look.
    used: u64,
}

/// The known directories.
struct Directories<'a> {
    tree: Tree<'a>,
    /// Whether a directory must be listed before any look into it, and no task does that yet.
    is_due: &'a dyn Fn(Ino) -> bool,
}

impl Traversals {
    pub fn is_ahead(&self, dir: Ino) -> bool {
        self.traversals.iter().any(|traversal| traversal.ahead.contains(&dir))
    }

    /// Notes a look into a directory that is due, or was; returns the directories to list, if it is
    /// time to. No more than `most` are listed at one time.
    fn look_into(
        &mut self,
        dir: Ino,
        look: Look,
        directories: &Directories,
        most: usize,
    ) -> Vec<Ino> {
        self.looks += 1;
        let ahead = self.traversals.iter().position(|traversal| traversal.ahead.contains(&dir));
        let at = ahead.or_else(|| {
            self.traversals.iter().position(|traversal| traversal.leads_to(dir, directories))
        });
        let back = || {
            self.traversals
                .iter_mut()
                .enumerate()
                .find_map(|(at, traversal)| Some((at, traversal.back_to(dir, directories)?)))
        };
        let Some((at, is_step)) = at.map(|at| (at, true)).or_else(back) else {
            self.add(Traversal::new(dir, look, self.looks));
            return Vec::new();
        };
        self.traversals[at].used = self.looks;
        if !is_step {
            return Vec::new();
        }
        let wanted =
            self.traversals[at].go_on(dir, look, directories, most.saturating_sub(self.under_way));
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
    fn new(dir: Ino, look: Look, used: u64) -> Traversal {
        let (way, lists, ahead) = (Way::Forth, look == Look::Through, BTreeSet::new());
        Traversal {
            top: dir,
            last: dir,
            way,
            back_last: dir,
            back_run: 1,
            lists,
            run: 1,
            ahead,
            used,
        }
    }

    /// Whether a due directory is one of its next ones, at most one level above all earlier ones.
    fn leads_to(&self, dir: Ino, directories: &Directories) -> bool {
        directories
            .next_beyond(self.last, self.way, directories.tree.above(self.top), SLACK, MOST_STEPS)
            .contains(&dir)
    }

    /// The same the other way, as long as the traversal is young. Returns whether it turns round
    /// there, because more steps have led that way.
    fn back_to(&mut self, dir: Ino, directories: &Directories) -> Option<bool> {
        let (back, top) = (self.way.other(), directories.tree.above(self.top));
        if self.run >= YOUNG_RUN
            || !directories
                .next_beyond(self.back_last, back, top, SLACK, MOST_STEPS_BACK)
                .contains(&dir)
        {
            return None;
        }
        self.back_run += usize::from(directories.tree.parent_of(dir) != Some(self.back_last));
        self.back_last = dir;
        let turns = self.back_run > self.run;
        if turns {
            (self.last, self.back_last) = (self.back_last, self.last);
            // This step is counted later, as any other.
            (self.run, self.back_run) = (self.back_run - 1, self.run);
            self.way = back;
            self.ahead.clear();
        }
        Some(turns)
    }

    fn go_on(&mut self, dir: Ino, look: Look, directories: &Directories, room: usize) -> Vec<Ino> {
        let parent = directories.tree.parent_of(dir);
        self.run += usize::from(parent != Some(self.last));
        self.last = dir;
        if look == Look::Through && !self.lists {
            // The directories before it were the path to it.
            (self.top, self.lists) = (dir, true);
        } else if let Some(parent) = parent.filter(|_| !directories.tree.is_below(dir, self.top)) {
            self.top = parent;
        }
        if !self.ahead.remove(&dir) && !self.ahead.is_empty() {
            // The traversal went past them.
            self.ahead.clear();
            self.run = self.run.min(LEAST_RUN);
        }
        // No more than its directories so far, and refilled when half of them are used.
        let window = self.run.min(MOST_AHEAD);
        if room == 0 || self.run < LEAST_RUN || self.ahead.len() > window / 2 {
            return Vec::new();
        }
        let mut wanted = directories.next_beyond(dir, self.way, self.top, window, MOST_STEPS);
        wanted.retain(|dir| !self.ahead.contains(dir));
        wanted.truncate(room.min(window - self.ahead.len()));
        self.ahead.extend(&wanted);
        wanted
    }
}

impl Directories<'_> {
    /// The due directories that come next after one within `top`: first its content, then the
    /// entries behind it.
    fn next_beyond(
        &self,
        dir: Ino,
        way: Way,
        top: Ino,
        most: usize,
        most_steps: usize,
    ) -> Vec<Ino> {
        let within = self.has_directories(dir).then_some(Link { parent: dir, cookie: way.start() });
        let Some(from) = within.or_else(|| self.tree.link(dir).filter(|_| dir != top)) else {
            return Vec::new();
        };
        let steps = self
            .tree
            .beyond(from, way, top, |dir| !(self.is_due)(dir) && self.has_directories(dir));
        let found = steps.take(most_steps).filter_map(|step| match step {
            Step::Entry(_, ino, FileKind::Directory) if (self.is_due)(ino) => Some(ino),
            _ => None,
        });
        found.take(most).collect()
    }

    /// Whether any subdirectory is known.
    fn has_directories(&self, dir: Ino) -> bool {
        self.tree.state.namespace().attr(dir).is_ok_and(|attr| attr.nlink > 2)
    }
}

impl Node {
    /// A client begins to look into a directory: lists the directories that a traversal will want
    /// next.
    pub(crate) fn look_into(self: &Rc<Self>, dir: Ino, look: Look) {
        let is_due =
            |dir| self.is_untouched(dir) && !self.names.is_loading(dir) || self.is_listing_due(dir);
        if !is_due(dir) && !self.readahead.is_ahead(dir) {
            return;
        }
        let wanted = {
            let directories =
                Directories { tree: Tree { state: &self.replica.view() }, is_due: &is_due };
            // Listings ahead displace nothing that is in use.
            self.readahead.traversals.borrow_mut().look_into(
                dir,
                look,
                &directories,
                MOST_UNDER_WAY.min(self.names.parts_to_spare(&self.replica.view())),
            )
        };
        for dir in wanted {
            let node = self.clone();
            self.ports.spawn.spawn(Box::pin(async move {
                if let Err(error) = node.list_ahead(dir).await {
                    tracing::debug!(%dir, %error, "a directory could not be listed ahead");
                }
                node.readahead.traversals.borrow_mut().under_way -= 1;
            }));
        }
    }

    async fn list_ahead(self: &Rc<Self>, dir: Ino) -> Result<(), RpcError> {
        if !self.may_act_by_itself() {
            return Ok(());
        }
        self.names.used(dir);
        if self.is_listing_due(dir) {
            return self.revalidate_ahead(dir).await;
        }
        // A directory that is being loaded is listed anyway.
        let Some(_guard) = self.names.begin_load(dir) else { return Ok(()) };
        if self.is_untouched(dir) {
            self.load_page(dir, For::Later).await?;
            if !self.is_complete(dir) {
                self.names.forget_page(dir);
            }
        }
        // The next answer about anything in the volume would wait for that.
        if self.options.embedded { Ok(()) } else { self.force_log().await.map(drop) }
    }
}
