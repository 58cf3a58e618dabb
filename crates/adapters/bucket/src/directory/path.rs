//! Keys as paths below the directory.

use ebb_ports::BucketError;

/// A key that a directory can hold: every segment a name, none of them private.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyPath {
    pub key: String,
    pub form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// An object: a regular file.
    File,
    /// A key that ends with `/`: the directory itself.
    Folder,
}

impl KeyPath {
    pub fn parse(key: &str) -> Result<KeyPath, BucketError> {
        let refused = |why: &str| {
            Err(BucketError::Refused {
                what: format!("{key:?} cannot be stored in a directory: {why}"),
            })
        };
        if key.len() > MAX_KEY_BYTES {
            return refused("it is longer than 1024 bytes");
        }
        let (path, form) = match key.strip_suffix('/') {
            Some(path) => (path, Form::Folder),
            None => (key, Form::File),
        };
        for segment in path.split('/') {
            match segment {
                "" => return refused("a name in it is empty"),
                "." | ".." => return refused("'.' and '..' are no names"),
                _ if segment.len() > MAX_NAME_BYTES => {
                    return refused("a name in it is longer than 255 bytes");
                }
                _ if segment.contains('\0') => return refused("it holds a NUL"),
                _ => {}
            }
        }
        if path == INCOMING || path.strip_prefix(INCOMING).is_some_and(|rest| rest.starts_with('/'))
        {
            return refused("ebb keeps unfinished objects there");
        }
        Ok(KeyPath { key: key.into(), form })
    }

    /// Relative to the directory, without a slash at its end.
    pub fn path(&self) -> &str {
        self.key.strip_suffix('/').unwrap_or(&self.key)
    }

    /// The parent's path; empty for the directory itself.
    pub fn parent(&self) -> &str {
        self.path().rsplit_once('/').map_or("", |(parent, _)| parent)
    }

    pub fn name(&self) -> &str {
        self.path().rsplit_once('/').map_or(self.path(), |(_, name)| name)
    }

    /// The paths of all directories on the way, outermost first.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.path().match_indices('/').map(|(slash, _)| &self.path()[..slash])
    }
}

/// Directory of unfinished objects, uploads and the lock. It is on the file system of the objects,
/// so that a rename commits them, and contains no keys.
pub(super) const INCOMING: &str = ".ebb/incoming";
pub(super) const MAX_KEY_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_leaves_the_directory() {
        for bad in [
            "",
            "/",
            "//",
            "/a",
            "a//b",
            "a//",
            ".",
            "..",
            "./a",
            "a/../b",
            "../a",
            "a/.",
            "a/..",
            "a\0b",
            ".ebb/incoming",
            ".ebb/incoming/x",
            ".ebb/incoming/",
        ] {
            assert!(KeyPath::parse(bad).is_err(), "{bad:?}");
        }
        assert!(KeyPath::parse(&"x".repeat(256)).is_err());
        assert!(KeyPath::parse(&"x/".repeat(600)).is_err());
    }

    #[test]
    fn a_key_falls_into_parent_and_name() {
        let file = KeyPath::parse("a/b/c").unwrap();
        assert_eq!((file.form, file.parent(), file.name()), (Form::File, "a/b", "c"));
        assert_eq!(file.parents().collect::<Vec<_>>(), ["a", "a/b"]);
        let folder = KeyPath::parse("a/").unwrap();
        assert_eq!(
            (folder.form, folder.parent(), folder.name(), folder.path()),
            (Form::Folder, "", "a", "a")
        );
        assert!(KeyPath::parse(".ebb/head").is_ok());
        assert!(KeyPath::parse(".ebb/incoming2").is_ok());
    }
}
