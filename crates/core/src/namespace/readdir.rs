//! readdir and readdirplus.

use super::{Entry, Namespace};
use ebb_model::*;

/// The lowest cookie of an entry. A surface uses 1 and 2 for the `.` and `..` that it adds.
pub const FIRST_COOKIE: Cookie = Cookie(3);

impl Namespace {
    /// Up to `limit` entries after a position, with attributes, and whether the stream ends with
    /// them.
    ///
    /// Laws:
    /// - A name that exists during the whole stream appears exactly once, whatever other names come
    ///   and go.
    /// - No position appears twice. A rename within the directory adds no position, except one that
    ///   leaves a whiteout: its new name comes last.
    pub fn read_dir(
        &self,
        dir: Ino,
        after: Cookie,
        limit: usize,
    ) -> Result<(Vec<(DirEntry, Attr)>, bool), FsError> {
        match self.directory(dir) {
            Ok(_) => {}
            Err(FsError::NotFound) => return Ok((Vec::new(), true)),
            Err(error) => return Err(error),
        }
        let skips = Planted::CookieSkipped.is_on() && after != Cookie::START;
        // The trash does not count: a page with nothing in it would look like the end.
        let mut rest = self
            .stream(dir, after)
            .filter(|(_, entry)| entry.name.as_bytes() != TRASH)
            .skip(usize::from(skips));
        let shown = |(cookie, Entry { name, ino, kind })| {
            let attr = self.attr(ino).ok()?;
            Some((DirEntry { name, ino, kind, cookie }, attr))
        };
        let entries = rest.by_ref().take(limit).filter_map(shown).collect();
        Ok((entries, rest.next().is_none()))
    }

    /// The loaded entries after a position.
    pub fn entries_after(
        &self,
        dir: Ino,
        after: Cookie,
    ) -> impl Iterator<Item = (Cookie, Ino, FileKind)> {
        self.stream(dir, after).filter_map(shown)
    }

    /// The loaded entries before a position, in reverse.
    pub fn entries_before(
        &self,
        dir: Ino,
        before: Cookie,
    ) -> impl Iterator<Item = (Cookie, Ino, FileKind)> {
        self.stream_back(dir, before).filter_map(shown)
    }
}

fn shown((cookie, Entry { name, ino, kind }): (Cookie, Entry)) -> Option<(Cookie, Ino, FileKind)> {
    (name.as_bytes() != TRASH).then_some((cookie, ino, kind))
}
