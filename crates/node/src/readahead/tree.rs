//! Files and directories as they are known, in the order in which who goes through all of them comes to them.

use ebb_core::namespace::Link;
use ebb_core::partition::Partition;
use ebb_model::*;
use std::iter::{from_fn, successors};

pub struct Tree<'a> {
    pub state: &'a Partition,
}

/// What is next on the way.
pub enum Step {
    Entry(Link, Ino, FileKind),
    /// No more of this directory is known.
    End(Ino),
}

impl Tree<'_> {
    /// All that comes after an entry within `top`: what is in a directory, where that is entered, comes before what is behind it.
    pub fn after(&self, Link { parent, cookie }: Link, top: Ino, enters: impl Fn(Ino) -> bool) -> impl Iterator<Item = Step> {
        let stream = |dir, after| (dir, self.state.namespace().entries_after(dir, after));
        let mut streams = vec![stream(parent, cookie)];
        from_fn(move || {
            let (dir, entries) = streams.last_mut()?;
            let dir = *dir;
            if let Some((cookie, ino, kind)) = entries.next() {
                if kind == FileKind::Directory && enters(ino) {
                    streams.push(stream(ino, Cookie::START));
                }
                return Some(Step::Entry(Link { parent: dir, cookie }, ino, kind));
            }
            streams.pop();
            if streams.is_empty() && dir != top {
                streams.extend(self.link(dir).map(|Link { parent, cookie }| stream(parent, cookie)));
            }
            Some(Step::End(dir))
        })
    }

    pub fn link(&self, ino: Ino) -> Option<Link> {
        self.state.namespace().primary_link(ino)
    }

    pub fn parent_of(&self, ino: Ino) -> Option<Ino> {
        self.link(ino).map(|link| link.parent)
    }

    pub fn is_below(&self, dir: Ino, top: Ino) -> bool {
        successors(Some(dir), |at| self.parent_of(*at)).any(|at| at == top)
    }

    /// One level above, where there is one.
    pub fn above(&self, top: Ino) -> Ino {
        self.parent_of(top).unwrap_or(top)
    }
}
