//! Random operations by several callers, on the namespace and on the reference file system: after
//! each both must have the same result, errors, listings and attributes.

mod reference;

use bytes::Bytes;
use ebb_core::namespace::{Change, FIRST_COOKIE, Namespace, Operation};
use ebb_model::*;
use proptest::prelude::*;
use reference::Reference;
use std::collections::{BTreeMap, BTreeSet};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn the_namespace_is_a_posix_file_system(ops in prop::collection::vec(any::<[u8; 10]>(), 1..=100)) {
        let mut world = World::new();
        for op in ops {
            world.step(Dice { bytes: op, at: 0 });
        }
    }
}

/// One byte per choice: cheap to draw, and shrinks to the first alternative.
struct Dice {
    bytes: [u8; 10],
    at: usize,
}

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(byte) % count
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}

struct World {
    namespace: Namespace,
    reference: Reference,
    follower: Follower,
    /// Every inode ever created, the root first.
    inos: Vec<Ino>,
    clock: u64,
}

const SESSIONS: [SessionId; 2] = [SessionId(1), SessionId(2)];
const MODES: [u16; 9] = [0o777, 0o755, 0o700, 0o2777, 0o1777, 0o4755, 0o6711, 0o644, 0];
const SIZES: [u64; 5] = [0, 1, 70_000, MAX_FILE_BYTES, MAX_FILE_BYTES + 1];
const XATTRS: [&[u8]; 7] = [
    b"user.a",
    b"user.b",
    b"trusted.a",
    b"security.capability",
    b"user.",
    b"system.posix_acl_access",
    b"a",
];

fn callers() -> [Caller; 6] {
    let caller =
        |uid, groups: &[u32], checked| Caller { uid, gid: uid, groups: groups.to_vec(), checked };
    [
        Caller::ROOT,
        caller(1000, &[2000], false),
        caller(1001, &[2000], false),
        caller(1002, &[], false),
        caller(1000, &[], true),
        caller(0, &[], false),
    ]
}

impl World {
    fn new() -> World {
        let time = Time::from_secs(1);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let root = InstalledRecord {
            mode: 0o777,
            nlink: 2,
            uid: 0,
            gid: 0,
            atime,
            mtime,
            ctime,
            btime,
            xattrs: vec![],
            links: vec![],
        };
        World {
            namespace: Namespace::new(IdRange::whole(IdEpoch(3)), root),
            reference: Reference::new(0o777, time),
            follower: Follower::default(),
            inos: vec![Ino::ROOT],
            clock: 1,
        }
    }

    fn step(&mut self, mut dice: Dice) {
        self.clock += 1;
        let caller = dice.of(&callers());
        match dice.below(26) {
            24 | 25 => self.set_quota(&mut dice),
            0 => self.release(&mut dice),
            1 => self.ask(&caller, &mut dice),
            other => {
                let mutation = self.mutation(other, &mut dice);
                self.mutate(&caller, &mutation);
            }
        }
        self.compare();
    }

    fn mutation(&self, choice: usize, dice: &mut Dice) -> Mutation {
        let holders = [vec![], vec![], vec![SESSIONS[0]], SESSIONS.to_vec()];
        match choice {
            2..=6 => {
                let parent = self.dir(dice);
                let what = self.make(dice);
                Mutation::Make {
                    parent,
                    name: name(dice),
                    ino: self.namespace.next_ino(parent.slot()).unwrap(),
                    mode: dice.of(&MODES),
                    what,
                }
            }
            7 | 8 => {
                Mutation::Link { ino: self.any(dice), parent: self.dir(dice), name: name(dice) }
            }
            9 | 10 => {
                let (parent, name) = self.entry(dice);
                Mutation::Unlink { parent, name, holders: dice.of(&holders) }
            }
            11 => {
                let (parent, name) = self.entry(dice);
                Mutation::Rmdir { parent, name, holders: dice.of(&holders) }
            }
            12..=14 => {
                let ((from, name), (to, new_name)) = (self.entry(dice), self.entry(dice));
                let ino = self.namespace.next_ino(from.slot());
                let whiteout = |keep_target| RenameMode::Whiteout { keep_target, ino };
                let plain = [
                    RenameMode::Replace,
                    RenameMode::Exchange,
                    RenameMode::KeepTarget,
                    RenameMode::Replace,
                ];
                let mode = dice.of(&[
                    plain,
                    plain,
                    [RenameMode::Exchange, RenameMode::Replace, whiteout(true), whiteout(false)],
                ]
                .concat());
                Mutation::Rename { from, name, to, new_name, mode, holders: dice.of(&holders) }
            }
            15 | 16 => Mutation::SetAttr { ino: self.any(dice), set: set(dice) },
            17 => Mutation::SetXattr {
                ino: self.any(dice),
                name: Bytes::from_static(dice.of(&XATTRS)),
                value: dice.of(&[
                    Bytes::from_static(b"v"),
                    Bytes::new(),
                    Bytes::from(vec![0; MAX_XATTR_VALUE_BYTES + 1]),
                ]),
                mode: dice.of(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]),
            },
            18 => Mutation::RemoveXattr {
                ino: self.any(dice),
                name: Bytes::from_static(dice.of(&XATTRS)),
            },
            20 => {
                let parent = self.dir(dice);
                let ino = self.namespace.next_ino(parent.slot()).unwrap();
                let mode = dice.of(&MODES);
                Mutation::Tmpfile { parent, ino, mode, holder: dice.of(&SESSIONS) }
            }
            21 | 23 => Mutation::SetAcl {
                ino: self.any_or_dir(dice),
                class: dice.of(&[AclClass::Access, AclClass::Default]),
                value: acl(dice),
                drop_set_gid: dice.of(&[false, false, true]),
            },
            19 => Mutation::Fallocate {
                ino: self.any(dice),
                offset: dice.of(&[0, 100, 1 << 20, MAX_FILE_BYTES, u64::MAX]),
                len_bytes: dice.of(&[1, 0, 70_000, 1 << 30]),
                what: dice.of(&[Allocation::Reserve, Allocation::Zero]),
                keep_size: dice.of(&[false, true]),
                edges: vec![],
                drop_set_id: dice.of(&[false, true]),
            },
            _ => Mutation::Write {
                ino: self.any(dice),
                offset: dice.of(&[0, 100, 1 << 20, MAX_FILE_BYTES, u64::MAX]),
                len_bytes: dice.of(&[1, 0, 70_000]),
                drop_set_id: dice.of(&[false, true]),
            },
        }
    }

    fn make(&self, dice: &mut Dice) -> Make {
        let special = |kind, rdev| Make::Special { kind, rdev };
        dice.of(&[
            Make::Regular,
            Make::Directory,
            Make::Directory,
            Make::Regular,
            Make::Symlink { target: Bytes::from_static(b"over/there") },
            special(FileKind::Fifo, 0),
            special(FileKind::CharDevice, 259),
            special(FileKind::Directory, 0),
            Make::Symlink { target: Bytes::new() },
        ])
    }

    /// Mostly an existing named directory.
    fn dir(&self, dice: &mut Dice) -> Ino {
        let all = self.reference.all();
        let dirs: Vec<Ino> = all
            .iter()
            .filter(|(_, (node, _))| node.borrow().kind == FileKind::Directory)
            .map(|(ino, _)| *ino)
            .collect();
        let pick = dice.below(256);
        if pick < 240 { dirs[pick % dirs.len()] } else { self.inos[pick % self.inos.len()] }
    }

    /// Mostly an existing inode, and then mostly not a directory.
    fn any(&self, dice: &mut Dice) -> Ino {
        let all = self.reference.all();
        let files: Vec<Ino> = all
            .iter()
            .filter(|(_, (node, _))| node.borrow().kind != FileKind::Directory)
            .map(|(ino, _)| *ino)
            .collect();
        let pick = dice.below(256);
        match pick {
            0..150 if !files.is_empty() => files[pick % files.len()],
            0..240 => *all.keys().nth(pick % all.len()).expect("the root is there"),
            _ => self.inos[pick % self.inos.len()],
        }
    }

    fn any_or_dir(&self, dice: &mut Dice) -> Ino {
        if dice.below(2) == 0 { self.dir(dice) } else { self.any(dice) }
    }

    /// Mostly an existing name.
    fn entry(&self, dice: &mut Dice) -> (Ino, Name) {
        let pick = dice.below(256);
        match self.follower.names.keys().nth(pick % self.follower.names.len().max(1)) {
            Some(entry) if pick < 150 => entry.clone(),
            _ => (self.dir(dice), name(dice)),
        }
    }

    fn mutate(&mut self, caller: &Caller, mutation: &Mutation) {
        let stamp =
            Stamp { time: Time::from_secs(self.clock as i64), version: Version(self.clock) };
        let before = self.namespace.clone();
        let mut changes = Vec::new();
        let answer = self
            .namespace
            .mutate(mutation, &mut Operation { caller, stamp, trash: None, changes: &mut changes });
        let expected = self.reference.run(caller, stamp.time, mutation);
        let mut found = answer.clone().map(|attr| attr.map(unversioned));
        if let (
            Mutation::Unlink { .. } | Mutation::Rmdir { .. } | Mutation::Rename { .. },
            Ok(gone),
        ) = (mutation, &mut found)
            && let Some(gone) = gone.take()
        {
            // Sessions with the inode open still have it, with the reported attributes.
            let left = self.namespace.attr(gone.ino).map(unversioned);
            let is_told = left == Err(FsError::Stale) || left.as_ref() == Ok(&gone);
            assert!(
                gone.nlink == 0 && before.attr(gone.ino).is_ok() && is_told,
                "{gone:?}, {left:?}"
            );
        }
        assert_eq!(found, expected, "{mutation:?} by {caller:?}");
        if answer.is_err() {
            assert!(changes.is_empty());
            assert!(
                before.items().eq(self.namespace.items()),
                "{mutation:?} was refused and left a trace"
            );
        }
        if let (Ok(_), Some(ino)) = (&answer, mutation.replay(stamp).ino) {
            self.inos.push(ino);
        }
        self.compare_versions(&before, stamp, &changes);
        self.follower.follow(&changes, &self.namespace);
    }

    fn set_quota(&mut self, dice: &mut Dice) {
        let stamp =
            Stamp { time: Time::from_secs(self.clock as i64), version: Version(self.clock) };
        let dir = self.any_or_dir(dice);
        let (bytes, inodes) = (
            dice.of(&[None, Some(0), Some(70_000), Some(2 << 20)]),
            dice.of(&[None, Some(2), Some(5), Some(0)]),
        );
        let limits = dice.of(&[
            Some(QuotaLimits { bytes, inodes }),
            Some(QuotaLimits { bytes, inodes }),
            None,
        ]);
        let mut changes = Vec::new();
        let answer = self.namespace.set_quota(dir, limits, stamp, &mut changes);
        assert_eq!(
            answer,
            self.reference.set_quota(stamp.time, dir, limits),
            "{limits:?} for {dir}"
        );
        assert_eq!(answer.is_ok(), changes == [Change::Touched { ino: dir, stamp }]);
        self.follower.follow(&changes, &self.namespace);
    }

    /// Every changed inode has the version of the change and is listed in one, so that no cache
    /// stays stale.
    fn compare_versions(&self, before: &Namespace, stamp: Stamp, changes: &[Change]) {
        let touched: BTreeSet<Ino> = changes.iter().flat_map(Change::inodes).collect();
        for ino in &self.inos {
            let (old, new) = (before.attr(*ino), self.namespace.attr(*ino));
            let Ok(new) = new else {
                assert!(
                    old.is_err()
                        || changes.iter().any(
                            |change| matches!(change, Change::Gone { ino: gone, .. } if gone == ino)
                        )
                );
                continue;
            };
            let same =
                old.as_ref().is_ok_and(|old| unversioned(old.clone()) == unversioned(new.clone()));
            let xattrs =
                |namespace: &Namespace| namespace.inode(*ino).map(|inode| inode.xattrs.clone());
            if same && xattrs(before) == xattrs(&self.namespace) {
                assert_eq!(old.map(|old| old.version), Ok(new.version));
            } else {
                assert_eq!(new.version, stamp.version);
                assert!(touched.contains(ino), "{ino} changed without a change: {changes:?}");
            }
        }
    }

    fn release(&mut self, dice: &mut Dice) {
        let session = dice.of(&SESSIONS);
        let only = [None, Some(self.any(dice))][dice.below(2)];
        let mut changes = Vec::new();
        match only {
            Some(ino) => self.namespace.release(session, ino, &mut changes),
            None => self.namespace.release_all(session, &mut changes),
        }
        self.reference.release(session, only);
        self.follower.follow(&changes, &self.namespace);
    }

    fn ask(&self, caller: &Caller, dice: &mut Dice) {
        let (dir, name, ino) = (self.dir(dice), name(dice), self.any(dice));
        assert_eq!(
            self.namespace.lookup(dir, &name).map(|attr| attr.ino),
            self.reference.lookup(dir, &name)
        );
        let access = Access(dice.below(8) as u8);
        assert_eq!(
            self.namespace.access(caller, ino, access),
            self.reference.access(caller, ino, access)
        );
    }

    fn compare(&self) {
        assert_eq!(self.namespace.check(), Vec::<String>::new());
        let all = self.reference.all();
        assert_eq!(self.namespace.len(), all.len());
        let quota = |root| self.namespace.quota(root).map(|(limits, used)| (root, limits, used));
        assert_eq!(
            self.namespace.quota_roots().filter_map(quota).collect::<Vec<_>>(),
            self.reference.quotas()
        );
        for ino in &self.inos {
            let Some((node, nlink)) = all.get(ino) else {
                assert_eq!(self.namespace.attr(*ino), Err(FsError::Stale));
                continue;
            };
            let node = node.borrow();
            assert_eq!(self.namespace.attr(*ino).map(unversioned), Ok(node.attr(*nlink)));
            let names = self.namespace.list_xattr(*ino).expect("the inode exists");
            let xattrs: BTreeMap<Vec<u8>, Vec<u8>> = names
                .iter()
                .map(|name| {
                    (
                        name.to_vec(),
                        self.namespace.get_xattr(*ino, name).expect("it is listed").to_vec(),
                    )
                })
                .collect();
            assert_eq!(xattrs, node.xattrs);
            let target = self.namespace.read_link(*ino);
            assert_eq!(target.map_or(Vec::new(), Vec::from), node.target);
            assert_eq!(self.listing(*ino), self.reference.list(*ino));
        }
    }

    /// Reads in steps of two, each from the end of the last one.
    fn listing(&self, dir: Ino) -> Result<Vec<(Name, Ino)>, FsError> {
        let (mut names, mut after) = (Vec::new(), Cookie::START);
        loop {
            let (entries, end) = self.namespace.read_dir(dir, after, 2)?;
            for (entry, attr) in entries {
                assert!(entry.cookie > after && entry.cookie >= FIRST_COOKIE);
                assert_eq!((entry.ino, entry.kind), (attr.ino, attr.kind));
                after = entry.cookie;
                names.push((entry.name, entry.ino));
            }
            if end {
                return Ok(names);
            }
        }
    }
}

fn unversioned(attr: Attr) -> Attr {
    Attr { version: Version(0), ..attr }
}

fn name(dice: &mut Dice) -> Name {
    Name::new(dice.of(&[b"a", b"b", b"c"])).expect("a good name")
}

/// Mostly a valid ACL, of few users.
fn acl(dice: &mut Dice) -> Bytes {
    const TAGS: [u16; 6] = [1, 2, 4, 8, 16, 32];
    let shape = dice.below(8);
    let tags: &[u16] = match shape {
        0 => {
            return dice.of(&[
                Bytes::new(),
                Bytes::from_static(b"\x02\0\0\0"),
                Bytes::from_static(b"\x03\0\0\0"),
            ]);
        }
        1 => &[1, 4, 32],
        2 => &[1, 4, 16, 32],
        3 => &[1, 2, 2, 4, 16, 32],
        4 => &[1, 4, 8, 8, 16, 32],
        5 => &[1, 2, 4, 8, 16, 32],
        // Without the mask that named entries need.
        6 => &[1, 2, 4, 32],
        _ => &TAGS[dice.below(6)..],
    };
    let mut value = vec![2, 0, 0, 0];
    let (permissions, ids) = (dice.below(256), dice.below(256));
    for (at, tag) in tags.iter().enumerate() {
        let permissions = (permissions >> at | permissions << 3) % 8;
        let id = [1000, 1001, 1002, 2000][ids.wrapping_shr(2 * at as u32) % 4];
        value.extend(tag.to_le_bytes());
        value.extend((permissions as u16).to_le_bytes());
        value.extend(u32::to_le_bytes(id));
    }
    value.into()
}

fn set(dice: &mut Dice) -> SetAttr {
    let mut set = SetAttr::default();
    let times = [
        SetTime::Now,
        SetTime::To(Time { secs: -5, nanos: 7 }),
        SetTime::To(Time { secs: 0, nanos: 1_000_000_000 }),
        SetTime::Reading,
    ];
    match dice.below(9) {
        0 => set.mode = Some(dice.of(&MODES)),
        1 => set.uid = Some(dice.of(&[1000, 1001, 0, u32::MAX])),
        2 => set.gid = Some(dice.of(&[1000, 2000, 0, u32::MAX])),
        3 => {
            (set.uid, set.gid, set.drop_set_id) =
                (Some(1000), Some(dice.of(&[1000, 2000, 1001])), dice.of(&[false, true]))
        }
        4 => set.size_bytes = Some(dice.of(&SIZES)),
        5 => (set.atime, set.mtime) = (Some(dice.of(&times)), Some(dice.of(&times))),
        8 => set.atime = Some(SetTime::Reading),
        6 => (set.mtime, set.size_bytes) = (Some(dice.of(&times)), [None, Some(3)][dice.below(2)]),
        _ => set.drop_set_id = dice.of(&[true, false]),
    }
    set
}

/// Derives the state from the changes alone, as extents and backing do.
#[derive(Default)]
struct Follower {
    names: BTreeMap<(Ino, Name), Ino>,
    primary: BTreeMap<Ino, (Ino, Name)>,
    sizes: BTreeMap<Ino, u64>,
}

impl Follower {
    fn follow(&mut self, changes: &[Change], namespace: &Namespace) {
        for change in changes {
            match change.clone() {
                Change::Linked { parent, name, ino, primary, .. } => {
                    assert_eq!(self.names.insert((parent, name.clone()), ino), None);
                    if primary {
                        assert_eq!(self.primary.insert(ino, (parent, name)), None);
                    } else {
                        assert!(self.primary.contains_key(&ino));
                    }
                }
                Change::Unlinked { parent, name, ino, primary, .. } => {
                    let place = (parent, name);
                    assert_eq!(self.names.remove(&place), Some(ino));
                    assert_eq!(primary, self.primary.get(&ino) == Some(&place));
                    if primary {
                        self.primary.remove(&ino);
                        self.promote(ino, namespace, changes);
                    }
                }
                Change::Written { ino, offset, len_bytes, .. } => {
                    let size = self.sizes.entry(ino).or_default();
                    *size = (*size).max(offset + len_bytes);
                }
                Change::Resized { ino, old_bytes, new_bytes, .. } => {
                    assert_eq!(self.sizes.insert(ino, new_bytes).unwrap_or(0), old_bytes);
                }
                Change::Gone { ino, .. } => {
                    assert!(!self.primary.contains_key(&ino) && namespace.inode(ino).is_none());
                    self.sizes.remove(&ino);
                }
                Change::Zeroed { ino, range, .. } => {
                    let size = self.sizes.get(&ino).copied().unwrap_or(0);
                    assert!(range.start < size && range.end <= size.next_multiple_of(BLOCK_BYTES));
                }
                Change::Made { ino } | Change::Touched { ino, .. } => {
                    assert!(namespace.inode(ino).is_some())
                }
                Change::Forgotten { .. } => unreachable!("there is no bucket"),
            }
        }
        for (ino, (parent, name)) in &self.primary {
            let mut path =
                namespace.path_of(*ino).expect("an inode with a primary name has a path");
            assert_eq!(path.pop().as_ref(), Some(name));
            assert_eq!(namespace.dentry(*parent, name).map(|dentry| dentry.ino), Some(*ino));
        }
        for (ino, size) in &self.sizes {
            assert_eq!(namespace.attr(*ino).map(|attr| attr.size_bytes), Ok(*size));
        }
    }

    /// The oldest remaining name becomes primary, unless a later change names another one.
    fn promote(&mut self, ino: Ino, namespace: &Namespace, changes: &[Change]) {
        let renamed = changes
            .iter()
            .any(|change| matches!(change, Change::Linked { ino: other, .. } if *other == ino));
        let link = namespace.primary_link(ino);
        if let Some(link) = link
            && !renamed
        {
            let place = self.names.keys().find(|(parent, name)| {
                *parent == link.parent
                    && namespace
                        .dentry(*parent, name)
                        .is_some_and(|dentry| dentry.cookie == link.cookie)
            });
            self.primary.insert(ino, place.expect("the other names are known").clone());
        }
    }
}
