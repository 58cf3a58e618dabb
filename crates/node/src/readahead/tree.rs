//! Files and directories as they are known, in the order in which who goes through all of them
//! comes to them.

use ebb_core::namespace::Link;
use ebb_core::partition::Partition;
use ebb_model::*;
use std::iter::{from_fn, successors};

/// In which direction somebody goes through the entries of each directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// As readdir(2) gives them.
    Forth,
    /// The last one first, as who puts what is to be looked into on a stack (ripgrep, fd).
    Back,
}

pub struct Tree<'a> {
    pub state: &'a Partition,
}

/// What is next on the way.
pub enum Step {
    Entry(Link, Ino, FileKind),
    /// No more of this directory is known.
    End(Ino),
}

impl Way {
    pub fn other(self) -> Way {
        match self {
            Way::Forth => Way::Back,
            Way::Back => Way::Forth,
        }
    }

    /// Where who comes to a directory begins with its entries.
    pub fn start(self) -> Cookie {
        match self {
            Way::Forth => Cookie::START,
            Way::Back => Cookie(u64::MAX),
        }
    }

    /// Whether who goes this way comes from one place in a directory to the other.
    pub fn leads(self, from: Cookie, to: Cookie) -> bool {
        match self {
            Way::Forth => from < to,
            Way::Back => to < from,
        }
    }
}

impl Tree<'_> {
    /// All that comes beyond an entry within `top`: what is in a directory, where that is entered,
    /// comes before what is behind it.
    pub fn beyond(
        &self,
        Link { parent, cookie }: Link,
        way: Way,
        top: Ino,
        enters: impl Fn(Ino) -> bool,
    ) -> impl Iterator<Item = Step> {
        let entries = move |dir, at| -> Box<dyn Iterator<Item = _>> {
            match way {
                Way::Forth => Box::new(self.state.namespace().entries_after(dir, at)),
                Way::Back => Box::new(self.state.namespace().entries_before(dir, at)),
            }
        };
        let stream = move |dir, at| (dir, entries(dir, at));
        let mut streams = vec![stream(parent, cookie)];
        from_fn(move || {
            let (dir, entries) = streams.last_mut()?;
            let dir = *dir;
            if let Some((cookie, ino, kind)) = entries.next() {
                if kind == FileKind::Directory && enters(ino) {
                    streams.push(stream(ino, way.start()));
                }
                return Some(Step::Entry(Link { parent: dir, cookie }, ino, kind));
            }
            streams.pop();
            if streams.is_empty() && dir != top {
                streams
                    .extend(self.link(dir).map(|Link { parent, cookie }| stream(parent, cookie)));
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
