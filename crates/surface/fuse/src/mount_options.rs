//! The options of `-o`.

use crate::{AccessRule, AccessTimes, IdMappingError, IdMappings, Ids};
use ebb_model::MAX_IO_BYTES;
use std::str::FromStr;
use thiserror::Error;

/// Which writes of other mounts a reader of a file sees (O-48). A mount that is alone sees all
/// writes at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Consistency {
    /// All writes: nothing is cached (O-49).
    #[default]
    Strong,
    /// At least the writes that were closed before the file was opened here: pages are cached
    /// (O-50). Everything but bytes of files is as with `Strong` (O-52).
    CloseToOpen,
}

/// Options that the kernel gets with a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    pub read_only: bool,
    /// Users other than the mounting one may enter.
    pub allow_other: bool,
    /// The kernel checks permissions against the attributes. Without it every operation
    /// is checked by the file system alone.
    pub default_permissions: bool,
    /// Set-id bits are honoured.
    pub suid: bool,
    /// Device nodes work.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// The effect of reads on access times.
    pub access: AccessRule,
    /// Visibility of the writes of other mounts.
    pub consistency: Consistency,
    /// Users and groups that the volume numbers otherwise.
    pub ids: IdMappings,
    /// The user and group that replace root, by the machine's numbers. Such a mount cannot be
    /// idmapped: the kernel must name the caller.
    pub squash: Option<Ids>,
    /// The source that `mount` and `df` show.
    pub source: String,
    /// Longest READ; the session's own limit is 1 MiB.
    pub max_read_bytes: u32,
    /// Read-ahead of the kernel for a sequential reader. Its own default of 128 KiB is also the
    /// largest READ that it then sends. From 4 MiB on its first request is four times the size of
    /// the first read, and a reader that needs no more waits for all of it; below, twice the size.
    pub read_ahead_bytes: u32,
    /// Requests that the kernel reads and writes some files by itself ([`crate::Passthrough`]). The
    /// mount then counts as stacked on another file system, which kernels allow two deep.
    pub passthrough: bool,
    /// Lock requests go to the file system, because other mounts may take locks too. Otherwise the
    /// kernel keeps them, and closing a file that was only read needs no request.
    pub shared_locks: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            allow_other: false,
            default_permissions: true,
            suid: false,
            dev: false,
            exec: true,
            access: AccessRule::default(),
            consistency: Consistency::default(),
            ids: IdMappings::default(),
            squash: None,
            source: "ebb".into(),
            max_read_bytes: MAX_IO_BYTES as u32,
            read_ahead_bytes: 2 << 20,
            passthrough: false,
            shared_locks: false,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MountOptionsError {
    #[error("unknown mount option {0:?}")]
    Unknown(String),
    #[error("mount option {0:?} has a value that it cannot have")]
    BadValue(String),
    #[error("mount option {option:?}: {why}")]
    BadRange { option: String, why: IdMappingError },
}

impl MountOptions {
    /// Applies a comma-separated list as `-o` takes it. Later options win.
    pub fn apply(&mut self, list: &str) -> Result<(), MountOptionsError> {
        for option in list.split(',').filter(|option| !option.is_empty()) {
            self.apply_one(option)?;
        }
        Ok(())
    }

    fn apply_one(&mut self, option: &str) -> Result<(), MountOptionsError> {
        let bad_range = |why| MountOptionsError::BadRange { option: option.into(), why };
        match option.split_once('=') {
            None => match option {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "allow_other" => self.allow_other = true,
                "default_permissions" => self.default_permissions = true,
                "suid" => self.suid = true,
                "nosuid" => self.suid = false,
                "dev" => self.dev = true,
                "nodev" => self.dev = false,
                "exec" => self.exec = true,
                "noexec" => self.exec = false,
                "noatime" => self.access.times = AccessTimes::Kept,
                "atime" | "relatime" => self.access.times = AccessTimes::Relative,
                "strictatime" => self.access.times = AccessTimes::Strict,
                "diratime" => self.access.directories = true,
                "nodiratime" => self.access.directories = false,
                _ => return Err(MountOptionsError::Unknown(option.into())),
            },
            Some(("fsname", value)) if !value.is_empty() && !value.contains('\0') => {
                self.source = value.into()
            }
            Some(("max_read", value)) => {
                self.max_read_bytes = number(option, value, 4096..=MAX_IO_BYTES as u32)?
            }
            Some(("read_ahead", value)) => {
                self.read_ahead_bytes = number(option, value, 0..=1 << 30)?
            }
            Some(("map_uid", range)) => self.ids.users.add(range).map_err(bad_range)?,
            Some(("map_gid", range)) => self.ids.groups.add(range).map_err(bad_range)?,
            Some(("fsname", _)) => return Err(MountOptionsError::BadValue(option.into())),
            Some((name, _)) => return Err(MountOptionsError::Unknown(name.into())),
        }
        Ok(())
    }
}

impl FromStr for MountOptions {
    type Err = MountOptionsError;

    fn from_str(list: &str) -> Result<MountOptions, MountOptionsError> {
        let mut options = MountOptions::default();
        options.apply(list)?;
        Ok(options)
    }
}

fn number(
    option: &str,
    value: &str,
    allowed: std::ops::RangeInclusive<u32>,
) -> Result<u32, MountOptionsError> {
    value
        .parse()
        .ok()
        .filter(|number| allowed.contains(number))
        .ok_or_else(|| MountOptionsError::BadValue(option.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_applied_in_order() {
        let options: MountOptions =
            "ro,allow_other,dev,suid,noexec,fsname=s3://a/b,max_read=131072,noatime,relatime,nodiratime,rw".parse().unwrap();
        let expected = MountOptions {
            allow_other: true,
            dev: true,
            suid: true,
            exec: false,
            access: AccessRule { times: AccessTimes::Relative, directories: false },
            source: "s3://a/b".into(),
            max_read_bytes: 131072,
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn mount_options_refuse_unknown_options() {
        for list in ["nope", "ro,nope=1", "ro=1"] {
            assert!(
                matches!(list.parse::<MountOptions>(), Err(MountOptionsError::Unknown(_))),
                "{list}"
            );
        }
        for list in ["map_uid=", "map_gid=1:1", "map_uid=0:0:2,map_uid=1:5:1"] {
            assert!(
                matches!(list.parse::<MountOptions>(), Err(MountOptionsError::BadRange { .. })),
                "{list}"
            );
        }
        for list in ["max_read=x", "max_read=1", "max_read=", "fsname=", "read_ahead=-1"] {
            assert!(
                matches!(list.parse::<MountOptions>(), Err(MountOptionsError::BadValue(_))),
                "{list}"
            );
        }
    }
}
