//! The known files and directories, in the order of a traversal of all of them.

use ebb_core::namespace::Link;
use ebb_core::state::State;
use ebb_model::*;
use std::iter::{from_fn, successors};

/// The direction in which a traversal goes through the entries of each directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// In the order of readdir(2).
    Forth,
    /// The last one first, as programs that put directories on a stack (ripgrep, fd).
    Back,
}

pub struct Tree<'a> {
    pub state: &'a State,
}

/// The next step of a traversal.
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

    /// The position at which a traversal begins in a directory.
    pub fn start(self) -> Cookie {
        match self {
            Way::Forth => Cookie::START,
            Way::Back => Cookie(u64::MAX),
        }
    }

    /// Whether this direction leads from one place in a directory to the other.
    pub fn leads(self, from: Cookie, to: Cookie) -> bool {
        match self {
            Way::Forth => from < to,
            Way::Back => to < from,
        }
    }
}

impl Tree<'_> {
    /// All that comes beyond an entry within `top`: the content of a directory, where that is
    /// entered, comes before the entries behind it.
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

    /// The parent, if there is one.
    pub fn above(&self, top: Ino) -> Ino {
        self.parent_of(top).unwrap_or(top)
    }
}
