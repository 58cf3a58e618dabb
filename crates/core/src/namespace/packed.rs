//! Encoding of inodes and dentries in memory. Common values take no space.

use super::readdir::FIRST_COOKIE;
use super::{Entry, Inode, Link};
use crate::tree::{Value, pack, take};
use bytes::Bytes;
use ebb_model::*;
use std::collections::BTreeMap;

/// Optional parts of an inode. A set bit means that the part follows.
const DEVICE: u8 = 1;
const XATTRS: u8 = 1 << 1;
const TARGET: u8 = 1 << 2;
/// Times that differ from their base: atime and mtime from btime, ctime from mtime.
const ATIME: u8 = 1 << 3;
const MTIME: u8 = 1 << 4;
const CTIME: u8 = 1 << 5;
/// Not exactly one name.
const LINKS: u8 = 1 << 6;
const LAST_COOKIE: u8 = 1 << 7;

/// Bits of the mode; the number of the kind is above them, and then the mark of a policy.
pub(super) const MODE: u16 = (1 << MODE_BITS) - 1;
const MODE_BITS: u16 = 12;

/// Not the default policy, which follows.
const POLICY: u16 = 1 << 15;

const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::CharDevice,
    FileKind::BlockDevice,
    FileKind::Fifo,
    FileKind::Socket,
];

/// A directory without an assigned cookie.
const NO_COOKIE: Cookie = Cookie(FIRST_COOKIE.0 - 1);

impl Value<Ino> for Inode {
    fn pack(&self, ino: &Ino, out: &mut Vec<u8>) {
        let Attr {
            ino: _,
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size_bytes,
            hole_bytes: _,
            atime,
            mtime,
            ctime,
            btime,
            version,
        } = self.attr;
        let only = self.first.filter(|_| self.names == 1 && nlink == 1);
        let parts = [
            (DEVICE, rdev != 0),
            (XATTRS, !self.xattrs.is_empty()),
            (TARGET, !self.target.is_empty()),
            (ATIME, atime != btime),
            (MTIME, mtime != btime),
            (CTIME, ctime != mtime),
            (LINKS, only.is_none()),
            (LAST_COOKIE, self.last_cookie != NO_COOKIE),
        ];
        let has =
            parts.iter().filter(|(_, is_there)| *is_there).fold(0, |has, (part, _)| has | part);
        let kind =
            KINDS.iter().position(|other| *other == kind).expect("every kind has a number") as u16;
        let policy = if self.policy == PolicyId::DEFAULT { 0 } else { POLICY };
        pack(&(has, policy | kind << MODE_BITS | mode, uid, gid, size_bytes, btime, version), out);
        match only {
            Some(link) => pack(&(distance(*ino, link.parent), link.cookie), out),
            None => pack(&(nlink, self.first, self.names, self.last_age), out),
        }
        let times = [(ATIME, atime, btime), (MTIME, mtime, btime), (CTIME, ctime, mtime)];
        for (_, time, base) in times.into_iter().filter(|(part, ..)| has & part != 0) {
            pack(
                &(time.secs.wrapping_sub(base.secs), i64::from(time.nanos) - i64::from(base.nanos)),
                out,
            );
        }
        if has & DEVICE != 0 {
            pack(&rdev, out);
        }
        if has & XATTRS != 0 {
            pack(&self.xattrs, out);
        }
        if has & TARGET != 0 {
            pack(&self.target, out);
        }
        if has & LAST_COOKIE != 0 {
            pack(&self.last_cookie, out);
        }
        if policy != 0 {
            pack(&self.policy, out);
        }
    }

    fn unpack(ino: &Ino, mut bytes: &[u8]) -> Inode {
        let bytes = &mut bytes;
        let (has, kind_and_mode, uid, gid, size_bytes, btime, version): (
            u8,
            u16,
            u32,
            u32,
            u64,
            Time,
            Version,
        ) = take(bytes);
        let has = |part| has & part != 0;
        let (nlink, first, names, last_age) = match has(LINKS) {
            true => take(bytes),
            false => {
                let (parent, cookie): (i64, Cookie) = take(bytes);
                (1, Some(Link { parent: at_distance(*ino, parent), cookie }), 1, 0)
            }
        };
        let mut time = |part, base: Time| match has(part) {
            true => {
                let (secs, nanos): (i64, i64) = take(bytes);
                Time {
                    secs: base.secs.wrapping_add(secs),
                    nanos: (i64::from(base.nanos) + nanos) as u32,
                }
            }
            false => base,
        };
        let (atime, mtime) = (time(ATIME, btime), time(MTIME, btime));
        let ctime = time(CTIME, mtime);
        let rdev = if has(DEVICE) { take(bytes) } else { 0 };
        let xattrs = if has(XATTRS) { take(bytes) } else { BTreeMap::new() };
        let target = if has(TARGET) { take(bytes) } else { Bytes::new() };
        let last_cookie = if has(LAST_COOKIE) { take(bytes) } else { NO_COOKIE };
        let policy = if kind_and_mode & POLICY != 0 { take(bytes) } else { PolicyId::DEFAULT };
        let kind = KINDS[usize::from((kind_and_mode & !POLICY) >> MODE_BITS)];
        let mode = kind_and_mode & MODE;
        let attr = Attr {
            ino: *ino,
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size_bytes,
            hole_bytes: 0,
            atime,
            mtime,
            ctime,
            btime,
            version,
        };
        Inode { attr, xattrs, policy, target, first, names, last_age, last_cookie }
    }
}

impl Value<(Ino, Cookie)> for Entry {
    fn pack(&self, (dir, _): &(Ino, Cookie), out: &mut Vec<u8>) {
        pack(&(distance(*dir, self.ino), self.kind), out);
        out.extend_from_slice(self.name.as_bytes());
    }

    fn unpack((dir, _): &(Ino, Cookie), mut bytes: &[u8]) -> Entry {
        let (ino, kind) = take(&mut bytes);
        Entry { name: Name::new(bytes).expect("a valid name"), ino: at_distance(*dir, ino), kind }
    }
}

/// Cookies of the names of one hash: nearly always one.
impl Value<(Ino, u32)> for Vec<Cookie> {
    fn pack(&self, _: &(Ino, u32), out: &mut Vec<u8>) {
        self.iter().for_each(|cookie| pack(cookie, out));
    }

    fn unpack(_: &(Ino, u32), mut bytes: &[u8]) -> Vec<Cookie> {
        std::iter::from_fn(|| (!bytes.is_empty()).then(|| take(&mut bytes))).collect()
    }
}

/// Usually a small number: new inodes get ids in the slot of their directory.
fn distance(from: Ino, to: Ino) -> i64 {
    to.0.wrapping_sub(from.0) as i64
}

fn at_distance(from: Ino, distance: i64) -> Ino {
    Ino(from.0.wrapping_add_signed(distance))
}
