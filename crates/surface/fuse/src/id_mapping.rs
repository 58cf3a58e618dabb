//! UID and GID mapping between the machine and the volume.
//!
//! An id without a counterpart is nobody on the other side, as on an idmapped mount: the kernel
//! shows such an owner as 65534; no process can act as it or give a file to it.

use crate::Errno;
use crate::abi::NO_ID;
use bytes::Bytes;
use ebb_model::{Attr, Caller, SetAttr};
use std::fmt;
use thiserror::Error;

/// A one-to-one mapping: no two ranges share an id of either side. Empty: the identity.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IdMapping {
    ranges: Vec<IdRange>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct IdRange {
    local: u32,
    remote: u32,
    /// Not 0, and no id of the range is above [`LAST_ID`].
    count: u32,
}

/// The mappings of a mount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IdMappings {
    pub users: IdMapping,
    pub groups: IdMapping,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum IdMappingError {
    #[error("a range is LOCAL:REMOTE:COUNT, three numbers, and not {0:?}")]
    Malformed(String),
    #[error("{0}: a range has one id at least")]
    Empty(String),
    #[error("{0}: ids end with {LAST_ID}")]
    Beyond(String),
    #[error("{0} and {1} have ids in common")]
    Overlap(String, String),
}

impl IdMapping {
    /// A further range, as `LOCAL:REMOTE:COUNT`.
    pub fn add(&mut self, text: &str) -> Result<(), IdMappingError> {
        let numbers: Option<Vec<u32>> = text.split(':').map(number).collect();
        let Some([local, remote, count]) = numbers.as_deref() else {
            return Err(IdMappingError::Malformed(text.into()));
        };
        let range = IdRange { local: *local, remote: *remote, count: *count };
        let Some(further) = range.count.checked_sub(1) else {
            return Err(IdMappingError::Empty(text.into()));
        };
        if [range.local, range.remote]
            .iter()
            .any(|first| first.checked_add(further).is_none_or(|last| last > LAST_ID))
        {
            return Err(IdMappingError::Beyond(text.into()));
        }
        if let Some(other) = self.ranges.iter().find(|other| other.overlaps(&range)) {
            return Err(IdMappingError::Overlap(other.to_string(), text.into()));
        }
        self.ranges.push(range);
        Ok(())
    }

    /// The volume's number of an id of the machine.
    pub fn to_remote(&self, id: u32) -> Option<u32> {
        self.find(id, |range| (range.local, range.remote))
    }

    /// The machine's number of an id of the volume.
    pub fn to_local(&self, id: u32) -> Option<u32> {
        self.find(id, |range| (range.remote, range.local))
    }

    fn find(&self, id: u32, sides: impl Fn(&IdRange) -> (u32, u32)) -> Option<u32> {
        if self.ranges.is_empty() {
            return Some(id);
        }
        self.ranges.iter().find_map(|range| {
            let (from, to) = sides(range);
            id.checked_sub(from).filter(|offset| *offset < range.count).map(|offset| to + offset)
        })
    }
}

impl IdRange {
    fn overlaps(&self, other: &IdRange) -> bool {
        let meet =
            |one: u32, another: u32| one < another + other.count && another < one + self.count;
        meet(self.local, other.local) || meet(self.remote, other.remote)
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.local, self.remote, self.count)
    }
}

impl IdMappings {
    pub(crate) fn is_identity(&self) -> bool {
        *self == IdMappings::default()
    }

    /// The caller with the volume's ids.
    pub(crate) fn caller(&self, caller: Caller) -> Caller {
        let groups = caller.groups.iter().filter_map(|gid| self.groups.to_remote(*gid)).collect();
        let (uid, gid) = (self.users.to_remote(caller.uid), self.groups.to_remote(caller.gid));
        Caller { uid: uid.unwrap_or(NO_ID), gid: gid.unwrap_or(NO_ID), groups, ..caller }
    }

    /// The attributes to set, with the volume's ids.
    pub(crate) fn set(&self, set: SetAttr) -> Result<SetAttr, Errno> {
        let uid =
            set.uid.map(|uid| self.users.to_remote(uid).ok_or(Errno::OVERFLOW)).transpose()?;
        let gid =
            set.gid.map(|gid| self.groups.to_remote(gid).ok_or(Errno::OVERFLOW)).transpose()?;
        Ok(SetAttr { uid, gid, ..set })
    }

    /// Attributes by the machine's numbers.
    pub(crate) fn attr(&self, attr: Attr) -> Attr {
        let (uid, gid) = (self.users.to_local(attr.uid), self.groups.to_local(attr.gid));
        Attr { uid: uid.unwrap_or(NO_ID), gid: gid.unwrap_or(NO_ID), ..attr }
    }

    /// An ACL by the volume's numbers.
    pub(crate) fn acl_to_remote(&self, acl: Bytes) -> Result<Bytes, Errno> {
        self.acl(acl, |map, id| map.to_remote(id).ok_or(Errno::INVALID))
    }

    /// An ACL with the machine's ids. The kernel rejects an ACL with an invalid id.
    pub(crate) fn acl_to_local(&self, acl: Bytes) -> Result<Bytes, Errno> {
        self.acl(acl, |map, id| Ok(map.to_local(id).unwrap_or(UNNAMED)))
    }

    /// Maps the ids of a `system.posix_acl_*` value: four bytes of version, then eight bytes per
    /// entry: tag, permissions and id. Malformed values pass unchanged; the node rejects them.
    fn acl(
        &self,
        acl: Bytes,
        map: impl Fn(&IdMapping, u32) -> Result<u32, Errno>,
    ) -> Result<Bytes, Errno> {
        const USER: u16 = 0x02;
        const GROUP: u16 = 0x08;
        if self.is_identity() {
            return Ok(acl);
        }
        let mut mapped = acl.to_vec();
        let (entries, _) = mapped.get_mut(4..).unwrap_or_default().as_chunks_mut::<8>();
        for [t0, t1, _, _, id @ ..] in entries {
            let ids = match u16::from_le_bytes([*t0, *t1]) {
                USER => &self.users,
                GROUP => &self.groups,
                _ => continue,
            };
            *id = map(ids, u32::from_le_bytes(*id))?.to_le_bytes();
        }
        Ok(mapped.into())
    }
}

fn number(text: &str) -> Option<u32> {
    // `parse` takes a sign too.
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Stands for an unmapped id in an ACL. No mapping contains it, so no process has it.
const UNNAMED: u32 = NO_ID - 1;

const LAST_ID: u32 = UNNAMED - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(ranges: &[&str]) -> IdMapping {
        let mut map = IdMapping::default();
        ranges.iter().for_each(|range| map.add(range).unwrap());
        map
    }

    #[test]
    fn ranges_are_read_from_both_sides() {
        let map = map(&["0:65534:1", "1000:5000:10", "5000:0:1"]);
        for (local, remote) in [(0, 65_534), (1000, 5000), (1009, 5009), (5000, 0)] {
            assert_eq!((map.to_remote(local), map.to_local(remote)), (Some(remote), Some(local)));
        }
        for local in [1, 999, 1010, NO_ID, UNNAMED] {
            assert_eq!(map.to_remote(local), None, "{local}");
        }
        for remote in [1, 4999, 5010, NO_ID] {
            assert_eq!(map.to_local(remote), None, "{remote}");
        }
        assert_eq!(IdMapping::default().to_remote(7), Some(7));
    }

    #[test]
    fn id_mapping_refuses_invalid_ranges() {
        let wrong = |ranges: &[&str]| {
            let mut map = IdMapping::default();
            ranges
                .iter()
                .find_map(|range| map.add(range).err())
                .expect("one of them is wrong")
                .to_string()
        };
        for text in [
            "",
            "1",
            "1:2",
            "1:2:3:4",
            "a:1:1",
            "-1:1:1",
            "+1:1:1",
            "1::1",
            " 1:1:1",
            "4294967296:0:1",
        ] {
            assert!(wrong(&[text]).contains("three numbers"), "{text}");
        }
        assert!(wrong(&["1:1:0"]).contains("one id at least"));
        for text in ["4294967295:0:1", "0:4294967294:1", "1:0:4294967294", "4294967293:0:2"] {
            assert!(wrong(&[text]).contains("4294967293"), "{text}");
        }
        map(&["4294967293:0:1", "0:1:4294967293"]);
        for ranges in [
            ["0:0:10", "9:100:1"],
            ["9:100:1", "0:0:10"],
            ["0:0:10", "100:9:1"],
            ["5:5:1", "5:5:1"],
        ] {
            assert_eq!(
                wrong(&ranges),
                format!("{} and {} have ids in common", ranges[0], ranges[1])
            );
        }
    }

    #[test]
    fn id_mapping_translates_ids_in_acls() {
        let acl = |ids: [u32; 6]| {
            let tags = [1u16, 2, 4, 8, 16, 32];
            let entry = |(tag, id): (u16, u32)| {
                [&tag.to_le_bytes()[..], &[6, 0], &id.to_le_bytes()].concat()
            };
            Bytes::from(
                [vec![2, 0, 0, 0], tags.into_iter().zip(ids).flat_map(entry).collect()].concat(),
            )
        };
        let maps = IdMappings { users: map(&["1000:5000:1"]), groups: map(&["1000:6000:1"]) };
        let (local, remote) = (
            acl([NO_ID, 1000, NO_ID, 1000, NO_ID, NO_ID]),
            acl([NO_ID, 5000, NO_ID, 6000, NO_ID, NO_ID]),
        );
        assert_eq!(
            (maps.acl_to_remote(local.clone()), maps.acl_to_local(remote)),
            (Ok(acl([NO_ID, 5000, NO_ID, 6000, NO_ID, NO_ID])), Ok(local))
        );
        let (unknown, shown) = (acl([0, 1, 0, 2, 0, 0]), acl([0, UNNAMED, 0, UNNAMED, 0, 0]));
        assert_eq!(
            (maps.acl_to_remote(unknown.clone()), maps.acl_to_local(unknown)),
            (Err(Errno::INVALID), Ok(shown))
        );
        for short in [&b""[..], &[2, 0], &[2, 0, 0, 0, 2, 0, 6, 0, 1]] {
            assert_eq!(maps.acl_to_remote(Bytes::from(short)).unwrap(), short);
        }
    }

    proptest! {
        /// Accepted mappings are one to one: mapping an id there and back yields the same id.
        #[test]
        fn each_direction_undoes_the_other(
            ranges in proptest::collection::vec((0u32..40, 0u32..40, 0u32..12), 0..6),
            ids in proptest::collection::vec(0u32..60, 20),
        ) {
            let mut map = IdMapping::default();
            for (local, remote, count) in ranges {
                map.add(&format!("{local}:{remote}:{count}")).ok();
            }
            for id in ids {
                prop_assert!(map.to_remote(id).is_none_or(|remote| map.to_local(remote) == Some(id)));
                prop_assert!(map.to_local(id).is_none_or(|local| map.to_remote(local) == Some(id)));
            }
        }
    }
}
