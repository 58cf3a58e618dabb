//! Metadata of files and directories beside their content: tags, and the mark of implicit
//! directories, which no request created.
//!
//! Both are extended attributes. Tags record the ETag of their content, so content that another
//! program wrote has none. On a file system without extended attributes, tags are files named by
//! ETag among the unfinished objects; a directory is then an object exactly while it is empty, and
//! only a delete of its own key removes it.

use super::path::INCOMING;
use super::sys::{self, Stat};
use ebb_ports::{ETag, ObjectTags};
use std::fs::File;
use std::io::{ErrorKind, Read, Result, Write};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Notes {
    Attributes,
    Files,
}

impl Notes {
    /// Probes the file system without writing.
    pub fn of(root: &File) -> Result<Notes> {
        match sys::get_xattr(root, IMPLICIT) {
            Ok(_) => Ok(Notes::Attributes),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                Ok(Notes::Files)
            }
            Err(error) => Err(error),
        }
    }

    pub fn write_tags(
        self,
        root: &File,
        file: &File,
        etag: &ETag,
        tags: &ObjectTags,
    ) -> Result<()> {
        if tags.is_empty() {
            return if self == Notes::Attributes { sys::remove_xattr(file, TAGS) } else { Ok(()) };
        }
        let text = text_of(tags, etag);
        match self {
            Notes::Attributes => sys::set_xattr(file, TAGS, text.as_bytes()),
            Notes::Files => {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
                let mut note = sys::open_beneath(root, &note_path(etag), flags, 0o666)?;
                note.write_all(text.as_bytes())?;
                note.sync_all()
            }
        }
    }

    pub fn read_tags(self, root: &File, file: &File, etag: &ETag) -> Result<ObjectTags> {
        let text = match self {
            Notes::Attributes => sys::get_xattr(file, TAGS)?.unwrap_or_default(),
            Notes::Files => {
                let mut text = Vec::new();
                match sys::open_beneath(root, &note_path(etag), libc::O_RDONLY, 0) {
                    Ok(mut note) => note.read_to_end(&mut text).map(drop)?,
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
                text
            }
        };
        Ok(tags_in(&text, etag))
    }

    /// Removes the tags of a deleted object.
    pub fn forget(self, incoming: &File, etag: &ETag) {
        if self == Notes::Files
            && let Err(error) = sys::remove_file(incoming, &note_name(etag))
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%etag, %error, "the tags of a deleted object are left behind");
        }
    }

    /// `implicit`: made for a key below, not by a key of its own.
    pub fn mark(self, folder: &File, implicit: bool) -> Result<()> {
        match (self, implicit) {
            (Notes::Files, _) => Ok(()),
            (Notes::Attributes, true) => sys::set_xattr(folder, IMPLICIT, b"1"),
            (Notes::Attributes, false) => sys::remove_xattr(folder, IMPLICIT),
        }
    }

    pub fn is_implicit(self, folder: &File) -> Result<bool> {
        match self {
            Notes::Files => Ok(true),
            Notes::Attributes => Ok(sys::get_xattr(folder, IMPLICIT)?.is_some()),
        }
    }
}

pub(crate) fn text_of(tags: &ObjectTags, etag: &ETag) -> String {
    let lines: String = tags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    format!("{etag}\n{lines}")
}

/// Empty if the tags belong to other content.
pub(crate) fn tags_in(text: &[u8], etag: &ETag) -> ObjectTags {
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines();
    if lines.next() != Some(etag.0.as_str()) {
        return vec![];
    }
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// Changes with every put (each gets a modification time of its own) and with every edit
/// that moves size or modification time; not with a chmod.
pub(super) fn etag_of(stat: &Stat) -> ETag {
    match stat.kind {
        sys::Kind::Folder => ETag(format!("d{:x}", stat.inode)),
        _ => ETag(format!("{:x}-{:x}-{:x}", stat.inode, stat.len_bytes, stat.modified_ns)),
    }
}

fn note_path(etag: &ETag) -> String {
    format!("{INCOMING}/{}", note_name(etag))
}

fn note_name(etag: &ETag) -> String {
    format!("tags-{etag}")
}

const TAGS: &str = "user.ebb.tags";
const IMPLICIT: &str = "user.ebb.implicit";
