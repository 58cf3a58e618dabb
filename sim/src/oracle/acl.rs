//! ACLs for the checker, as lists of entries. Input must be valid.

use bytes::Bytes;
use ebb_model::{AclClass, FileKind, NewMode};
use std::collections::BTreeMap;

type Xattrs = BTreeMap<Bytes, Bytes>;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const VERSION: [u8; 4] = [2, 0, 0, 0];

/// Tag and permissions stand in the first and third byte of an entry.
type Entries = Vec<[u8; 8]>;

fn entries(value: &[u8]) -> Entries {
    value.get(VERSION.len()..).unwrap_or_default().as_chunks::<8>().0.to_vec()
}

/// The entries that the three parts of the mode speak of.
fn spoken_of(list: &Entries) -> [usize; 3] {
    let at = |tag: u8| list.iter().position(|entry| entry[0] == tag);
    [at(1), at(16).or(at(4)), at(32)].map(|at| at.expect("only valid lists are asked for"))
}

fn bits(list: &Entries) -> u16 {
    spoken_of(list).into_iter().fold(0, |bits, at| bits << 3 | u16::from(list[at][2]))
}

fn with_bits(mut list: Entries, bits: u16) -> Entries {
    let [owner, group, others] = spoken_of(&list);
    (list[owner][2], list[group][2], list[others][2]) =
        ((bits >> 6 & 7) as u8, (bits >> 3 & 7) as u8, (bits & 7) as u8);
    list
}

fn keep(xattrs: &mut Xattrs, name: &'static [u8], list: &Entries) {
    xattrs.insert(Bytes::from_static(name), [&VERSION[..], list.as_flattened()].concat().into());
}

pub fn set(class: AclClass, value: &Bytes, mode: &mut u16, xattrs: &mut Xattrs) {
    let (name, list) = (if class == AclClass::Access { ACCESS } else { DEFAULT }, entries(value));
    if class == AclClass::Access && !list.is_empty() {
        *mode = *mode & !0o777 | bits(&list);
    }
    let minimal = class == AclClass::Access && list.len() <= 3;
    if list.is_empty() || minimal { drop(xattrs.remove(name)) } else { keep(xattrs, name, &list) }
}

pub fn chmod(mode: u16, xattrs: &mut Xattrs) {
    if let Some(value) = xattrs.get(ACCESS) {
        let list = with_bits(entries(value), mode);
        keep(xattrs, ACCESS, &list);
    }
}

/// ACLs and mode of a new inode in a directory with the attributes `dir`.
pub fn inherit(dir: &Xattrs, asked: NewMode, kind: FileKind, mode: &mut u16, xattrs: &mut Xattrs) {
    let Some(default) = dir.get(DEFAULT) else {
        *mode &= !asked.umask;
        return;
    };
    let list = entries(default);
    let list = with_bits(list.clone(), bits(&list) & *mode);
    *mode = *mode & !0o777 | bits(&list);
    if list.len() > 3 {
        keep(xattrs, ACCESS, &list);
    }
    if kind == FileKind::Directory {
        xattrs.insert(Bytes::from_static(DEFAULT), default.clone());
    }
}
