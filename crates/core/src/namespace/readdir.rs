//! readdir and readdirplus.

use super::{Entry, Namespace};
use ebb_model::*;

/// No entry has a lower cookie, so that a surface can give 1 and 2 to the `.` and `..`
/// that it makes itself.
pub const FIRST_COOKIE: Cookie = Cookie(3);

impl Namespace {
    /// Up to `limit` entries after a position, with attributes, and whether the stream ends with
    /// them. Every name that is there all the time is shown exactly once, whatever comes and goes
    /// between two calls; no place in the directory is shown twice, and no rename within it makes a
    /// new one, but for one that leaves a whiteout, whose new name comes last.
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
        let mut rest = self.stream(dir, after);
        let shown = |(cookie, Entry { name, ino, kind })| {
            let attr = self.attr(ino).ok()?;
            (name.as_bytes() != TRASH).then_some((DirEntry { name, ino, kind, cookie }, attr))
        };
        let entries = rest.by_ref().take(limit).filter_map(shown).collect();
        Ok((entries, rest.next().is_none()))
    }

    /// What a directory stream has after a position, as far as it is loaded.
    pub fn entries_after(
        &self,
        dir: Ino,
        after: Cookie,
    ) -> impl Iterator<Item = (Cookie, Ino, FileKind)> {
        self.stream(dir, after).filter_map(shown)
    }

    /// What it has before a position, the last one first.
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
