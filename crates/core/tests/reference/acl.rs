//! ACLs as in acl(5): flat lists of entries, searched from the start.

use super::{Node, Outcome, Reference};
use ebb_model::*;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

#[derive(Clone, Copy)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

type List = Vec<Entry>;

fn read(value: &[u8]) -> Outcome<List> {
    match value {
        [] => return Ok(vec![]),
        [2, 0, 0, 0, ..] => {}
        [_, _, _, _, ..] => return Err(FsError::NotSupported),
        _ => return Err(FsError::Invalid),
    }
    let body = &value[4..];
    if !body.len().is_multiple_of(8) {
        return Err(FsError::Invalid);
    }
    let entry = |raw: &[u8]| Entry {
        tag: u16::from_le_bytes([raw[0], raw[1]]),
        perm: u16::from_le_bytes([raw[2], raw[3]]),
        id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
    };
    let list: List = body.chunks(8).map(entry).collect();
    if list.is_empty() || is_valid(&list) { Ok(list) } else { Err(FsError::Invalid) }
}

fn is_valid(list: &List) -> bool {
    let count = |tag| list.iter().filter(|entry| entry.tag == tag).count();
    let named = count(USER) + count(GROUP);
    list.windows(2).all(|pair| pair[0].tag <= pair[1].tag)
        && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1)
        && count(MASK) <= 1
        && (named == 0 || count(MASK) == 1)
        && named + count(MASK) + 3 == list.len()
        && list.iter().all(|entry| entry.perm < 8)
        && list.iter().all(|entry| entry.tag != USER && entry.tag != GROUP || entry.id != u32::MAX)
}

fn write(list: &List) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for entry in list {
        let id = if entry.tag == USER || entry.tag == GROUP { entry.id } else { u32::MAX };
        value.extend(entry.tag.to_le_bytes());
        value.extend(entry.perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn find(list: &mut List, tag: u16) -> Option<&mut Entry> {
    list.iter_mut().find(|entry| entry.tag == tag)
}

/// The entry of the mode's group bits.
fn middle(list: &mut List) -> &mut Entry {
    let tag = if list.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OBJ };
    find(list, tag).expect("a valid list has one")
}

fn mode_of(list: &mut List) -> u16 {
    let owner = find(list, USER_OBJ).expect("a valid list has one").perm;
    let other = find(list, OTHER).expect("a valid list has one").perm;
    owner * 64 + middle(list).perm * 8 + other
}

fn store(node: &mut Node, name: &[u8], list: Option<List>) {
    match list {
        Some(list) => drop(node.xattrs.insert(name.to_vec(), write(&list))),
        None => drop(node.xattrs.remove(name)),
    }
}

impl Reference {
    pub fn set_acl(
        &mut self,
        caller: &Caller,
        now: Time,
        ino: Ino,
        class: AclClass,
        value: &[u8],
        drop_set_gid: bool,
    ) -> Outcome {
        let node = self.node(ino)?;
        let mut node = node.borrow_mut();
        let mut list = read(value)?;
        if node.kind == FileKind::Symlink {
            return Err(FsError::NotSupported);
        }
        if class == AclClass::Default && node.kind != FileKind::Directory {
            return if list.is_empty() { Ok(()) } else { Err(FsError::AccessDenied) };
        }
        let root = caller.checked || caller.uid == 0;
        if !root && caller.uid != node.uid {
            return Err(FsError::NotPermitted);
        }
        let before = (node.mode, node.xattrs.clone());
        let name = if class == AclClass::Access { ACCESS } else { DEFAULT };
        if list.is_empty() {
            store(&mut node, name, None);
        } else if class == AclClass::Default {
            store(&mut node, name, Some(list));
        } else {
            node.mode = node.mode & 0o7000 | mode_of(&mut list);
            if drop_set_gid || !root && !caller.in_group(node.gid) {
                node.mode &= !0o2000;
            }
            let says_more = list.len() > 3;
            store(&mut node, name, says_more.then_some(list));
        }
        if before != (node.mode, node.xattrs.clone()) {
            node.stamp(now, false);
        }
        Ok(())
    }
}

/// After a chmod.
pub fn chmod(node: &mut Node) {
    let Some(value) = node.xattrs.get(ACCESS) else { return };
    let mut list = read(value).expect("stored ACLs are valid");
    find(&mut list, USER_OBJ).expect("a valid list has one").perm = node.mode / 64 % 8;
    middle(&mut list).perm = node.mode / 8 % 8;
    find(&mut list, OTHER).expect("a valid list has one").perm = node.mode % 8;
    store(node, ACCESS, Some(list));
}

/// `node` was just created in `dir`.
pub fn inherit(dir: &Node, node: &mut Node) {
    let Some(value) = dir.xattrs.get(DEFAULT) else { return };
    if node.kind == FileKind::Symlink {
        return;
    }
    let default = read(value).expect("stored ACLs are valid");
    let mut list = default.clone();
    find(&mut list, USER_OBJ).expect("a valid list has one").perm &= node.mode / 64 % 8;
    middle(&mut list).perm &= node.mode / 8 % 8;
    find(&mut list, OTHER).expect("a valid list has one").perm &= node.mode % 8;
    node.mode = node.mode & 0o7000 | mode_of(&mut list);
    let says_more = list.len() > 3;
    store(node, ACCESS, says_more.then_some(list));
    if node.kind == FileKind::Directory {
        store(node, DEFAULT, Some(default));
    }
}

/// Rights that the ACL grants to a caller other than the owner. Linux does not consult one with an
/// empty mask.
pub fn rights(caller: &Caller, node: &Node, asked: u16) -> Option<u16> {
    let list = read(node.xattrs.get(ACCESS)?).expect("stored ACLs are valid");
    if node.mode & 0o070 == 0 {
        return None;
    }
    let mask = list.iter().find(|entry| entry.tag == MASK).map_or(7, |entry| entry.perm);
    let mut in_a_group = false;
    for entry in list {
        let mine = match entry.tag {
            GROUP_OBJ => caller.in_group(node.gid),
            GROUP => caller.in_group(entry.id),
            _ => false,
        };
        in_a_group |= mine;
        match entry.tag {
            USER if entry.id == caller.uid => return Some(entry.perm & mask),
            GROUP_OBJ | GROUP if mine && entry.perm & asked == asked => {
                return Some(entry.perm & mask);
            }
            OTHER if in_a_group => return Some(0),
            OTHER => return Some(entry.perm),
            _ => {}
        }
    }
    unreachable!("a valid list ends with the others")
}
