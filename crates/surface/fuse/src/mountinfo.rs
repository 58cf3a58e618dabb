//! Mounts and their mount points, from `/proc/PID/mountinfo`: without access to the file systems in
//! question, which may be dead or hang.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mounted {
    pub device: DeviceId,
    pub point: PathBuf,
    /// Options of the mount, not those of the file system.
    pub options: String,
    pub kind: String,
    /// Of FUSE: the user that has mounted it.
    pub owner: Option<u32>,
}

/// `st_dev` of everything on a mount; of FUSE mounts it also names the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceId {
    pub major: u32,
    pub minor: u32,
}

impl DeviceId {
    pub fn of_stat(st_dev: u64) -> DeviceId {
        DeviceId { major: libc::major(st_dev), minor: libc::minor(st_dev) }
    }

    pub fn st_dev(self) -> u64 {
        libc::makedev(self.major, self.minor)
    }

    pub fn number(self) -> u64 {
        u64::from(self.major) << 32 | u64::from(self.minor)
    }

    pub fn of_number(number: u64) -> DeviceId {
        DeviceId { major: (number >> 32) as u32, minor: number as u32 }
    }
}

/// The mount that a path leads to, if the path is a mount point: the last one there.
pub(crate) fn topmost(point: &Path) -> io::Result<Option<Mounted>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table
        .split(|&byte| byte == b'\n')
        .rev()
        .filter_map(parse)
        .find(|mounted| mounted.point == point))
}

/// All mounts of a file system.
pub(crate) fn of_device(device: DeviceId) -> io::Result<Vec<Mounted>> {
    as_seen_by("self", device)
}

/// The same in the mount namespace of a process.
pub(crate) fn as_seen_by(process: &str, device: DeviceId) -> io::Result<Vec<Mounted>> {
    let table = std::fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(table
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .filter(|mounted| mounted.device == device)
        .collect())
}

/// `id parent major:minor root point options [tags…] - kind source options`
pub(crate) fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.by_ref().nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let point = unescape(fields.by_ref().nth(1)?);
    let options = fields.by_ref().next()?;
    let kind = fields.by_ref().skip_while(|field| field != b"-").nth(1)?;
    let of_file_system = fields.nth(1).map(String::from_utf8_lossy).unwrap_or_default();
    let owner = of_file_system.split(',').find_map(|option| option.strip_prefix("user_id="));
    Some(Mounted {
        device: DeviceId { major: major.parse().ok()?, minor: minor.parse().ok()? },
        point: PathBuf::from(OsString::from_vec(point)),
        options: String::from_utf8_lossy(options).into_owned(),
        kind: String::from_utf8_lossy(kind).into_owned(),
        owner: owner.and_then(|owner| owner.parse().ok()),
    })
}

/// Blanks, line ends and backslashes are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => {
                out.push(code);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_tags_and_a_blank_in_the_path() {
        let line = br"36 35 0:98 / /mnt/a\040b\134c rw,noatime master:1 shared:2 - fuse.ebb s3://x rw,user_id=0";
        let mounted = parse(line).unwrap();
        assert_eq!(mounted.device, DeviceId { major: 0, minor: 98 });
        assert_eq!(mounted.point, Path::new(r"/mnt/a b\c"));
        assert_eq!((mounted.options.as_str(), mounted.kind.as_str()), ("rw,noatime", "fuse.ebb"));
        assert_eq!(mounted.owner, Some(0));
    }

    #[test]
    fn mountinfo_skips_malformed_lines() {
        for line in [
            &b""[..],
            b"36",
            b"36 35 x:y / / rw - a b c",
            b"36 35 0:1 / / rw",
            br"1 2 0:1 / \9 rw - k s",
        ] {
            assert!(parse(line).is_none_or(|mounted| mounted.point == Path::new(r"\9")));
        }
    }
}
