//! Mutations of clients, and their preparation by the node.

use super::world::{Dice, SESSION, Stored, World, names};
use bytes::Bytes;
use ebb_core::byte_map::{ByteOrigin, Edge, Fill};
use ebb_core::namespace::{trash_name, trashed_name, zero_span};
use ebb_model::*;

impl World {
    pub fn mutation(&mut self, dice: &mut Dice) {
        let dirs = self.directories();
        let names = names();
        let dir = dice.of(&dirs).unwrap();
        let name = dice.of(&names).unwrap();
        let holders = if dice.below(4) == 0 { vec![SESSION] } else { vec![] };
        let (there, there_name) = match dice.of(&self.dentries()) {
            Some((parent, name, _)) => (parent, name),
            None => (dir, name.clone()),
        };
        let entry = self.state.namespace().dentry(there, &there_name);
        let mode = [0o644, 0o600, 0o755][dice.below(3)];
        let make = |world: &World, what| {
            let ino = world.state.namespace().next_ino(dir.slot()).unwrap();
            Mutation::Make { parent: dir, name: name.clone(), ino, mode, what }
        };
        let mutation = match dice.below(16) {
            0 if dice.below(3) == 0 => {
                let ino = self.state.namespace().next_ino(dir.slot()).unwrap();
                if self.mutate(Mutation::Tmpfile { parent: dir, ino, mode, holder: SESSION }) {
                    self.write(ino, dice.below(25), dice.below(9) + 1);
                }
                return;
            }
            0 | 1 => make(self, Make::Regular),
            2 | 3 => make(self, Make::Directory),
            4 => make(self, Make::Symlink { target: Bytes::from_static(b"to/\xff") }),
            5 => make(self, Make::Special { kind: FileKind::Fifo, rdev: 0 }),
            6 if dice.below(2) == 0 => match dice.of(&self.orphans()) {
                Some(ino) => Mutation::Link { ino, parent: dir, name },
                None => return,
            },
            6 => match entry {
                Some(entry) => Mutation::Link { ino: entry.ino, parent: dir, name },
                None => return,
            },
            7 => Mutation::Unlink { parent: there, name: there_name, holders },
            8 => Mutation::Rmdir { parent: there, name: there_name, holders },
            9 | 10 => {
                let ino = self.state.namespace().next_ino(there.slot());
                let mode = dice
                    .of(&[
                        RenameMode::Replace,
                        RenameMode::Replace,
                        RenameMode::Whiteout { keep_target: false, ino },
                    ])
                    .unwrap();
                Mutation::Rename {
                    from: there,
                    name: there_name,
                    to: dir,
                    new_name: name,
                    mode,
                    holders,
                }
            }
            11 => match dice.of(&self.dentries()) {
                Some((to, new_name, _)) => Mutation::Rename {
                    from: there,
                    name: there_name,
                    to,
                    new_name,
                    mode: RenameMode::Exchange,
                    holders,
                },
                None => return,
            },
            12 => match entry {
                Some(entry) => {
                    let set = SetAttr {
                        mode: Some(mode),
                        mtime: Some(SetTime::To(Time { secs: 9, nanos: 9 })),
                        ..SetAttr::default()
                    };
                    Mutation::SetAttr { ino: entry.ino, set }
                }
                None => Mutation::SetAttr {
                    ino: Ino::ROOT,
                    set: SetAttr { mode: Some(mode), ..SetAttr::default() },
                },
            },
            13 => match entry {
                Some(entry) => {
                    let (name, value) =
                        (Bytes::from_static(b"user.k"), Bytes::from(vec![dice.below(256) as u8]));
                    Mutation::SetXattr { ino: entry.ino, name, value, mode: XattrMode::Set }
                }
                // New children of the directory get an ACL.
                None => {
                    let entries = [[1, 0, 7], [2, 0, 7], [4, 0, 5], [16, 0, 7], [32, 0, 0]];
                    let entries = entries
                        .into_iter()
                        .flat_map(|[tag, zero, mode]| [tag, zero, mode, zero, 9, zero, zero, zero]);
                    let value = [2, 0, 0, 0].into_iter().chain(entries).collect();
                    Mutation::SetAcl {
                        ino: Ino::ROOT,
                        class: AclClass::Default,
                        value,
                        drop_set_gid: false,
                    }
                }
            },
            14 => {
                if let Some(ino) = dice.of(&self.orphans()) {
                    self.apply(Command::Release { session: SESSION, ino });
                }
                return;
            }
            _ => match entry.filter(|entry| entry.kind == FileKind::Regular) {
                Some(entry) if dice.below(3) == 0 => {
                    let size = dice.below(30) as u64;
                    Mutation::SetAttr {
                        ino: entry.ino,
                        set: SetAttr { size_bytes: Some(size), ..SetAttr::default() },
                    }
                }
                Some(entry) if dice.below(3) == 0 => {
                    return self.zero(entry.ino, dice.below(25), dice.below(30) + 1);
                }
                Some(entry) => return self.write(entry.ino, dice.below(25), dice.below(9) + 1),
                None => return,
            },
        };
        let removes = matches!(
            mutation,
            Mutation::Unlink { .. } | Mutation::Rmdir { .. } | Mutation::Rename { .. }
        );
        match removes && dice.below(2) == 0 {
            true => self.discard(mutation),
            false => self.mutate(mutation),
        };
    }

    /// Like [`World::mutate`], for a removal with retention.
    fn discard(&mut self, mutation: Mutation) -> bool {
        let (dir, name) = match &mutation {
            Mutation::Unlink { parent, name, .. } | Mutation::Rmdir { parent, name, .. } => {
                (*parent, name)
            }
            Mutation::Rename { to, new_name, .. } => (*to, new_name),
            _ => unreachable!("it removes nothing"),
        };
        self.resolve(dir, name);
        self.resolve(Ino::ROOT, &trash_name());
        let trash = self.state.namespace().trash_of(Ino::ROOT);
        if let Some((trash, victim)) = trash.zip(self.state.namespace().dentry(dir, name)) {
            self.resolve(trash, &trashed_name(victim.ino));
        }
        self.mutate_to(mutation, true)
    }

    /// Restores or purges an inode in the trash.
    pub fn empty_trash(&mut self, dice: &mut Dice) {
        let Some(entry) = dice.of(&self.trashed()) else { return };
        let (to, name) = (dice.of(&self.directories()).unwrap(), dice.of(&names()).unwrap());
        let stamp = self.stamp();
        if dice.below(2) == 0 {
            let holders = if dice.below(2) == 0 { vec![SESSION] } else { vec![] };
            self.apply(Command::Purge { ino: entry.ino, holders, stamp });
            assert!(self.trashed().iter().all(|other| other.ino != entry.ino));
            return;
        }
        self.resolve(to, &name);
        if self.state.may_restore(entry.ino, to, &name).is_ok() {
            self.apply(Command::Restore {
                ino: entry.ino,
                to,
                name: name.clone(),
                stamp: self.stamp(),
            });
            assert_eq!(
                self.state.namespace().dentry(to, &name).map(|dentry| dentry.ino),
                Some(entry.ino)
            );
        }
    }

    fn orphans(&self) -> Vec<Ino> {
        self.state.namespace().orphans().map(|(ino, _)| ino).collect()
    }

    /// First loads the names and completes the directories that the mutation needs, as a node does.
    pub fn mutate(&mut self, mutation: Mutation) -> bool {
        self.mutate_to(mutation, false)
    }

    fn mutate_to(&mut self, mutation: Mutation, keeps: bool) -> bool {
        match &mutation {
            Mutation::Make { parent, name, .. } | Mutation::Link { parent, name, .. } => {
                self.resolve(*parent, name)
            }
            Mutation::Rename { to, new_name, .. } => self.resolve(*to, new_name),
            _ => {}
        }
        for _ in 0..3 {
            self.sequence += 1;
            let tx = TxId { session: SESSION, slot: 0, sequence: self.sequence };
            let stamp = self.stamp();
            let (caller, mutation) = (Caller::ROOT, self.with_findings(mutation.clone()));
            let trash = TrashTarget {
                top: Ino::ROOT,
                ino: self.state.namespace().next_ino(Ino::ROOT.slot()).unwrap(),
                keep_secs: 9,
            };
            let command = match keeps {
                true => Command::Discard {
                    tx,
                    caller,
                    stamp,
                    mutation: mutation.clone(),
                    trash,
                    repeated: false,
                },
                false => Command::Client { tx, caller, stamp, mutation: mutation.clone() },
            };
            match self.apply(command).answer.expect("a client's command is answered") {
                Ok(_) => {
                    if let Mutation::SetAttr { ino, set: SetAttr { size_bytes: Some(size), .. } }
                    | Mutation::Truncate { ino, set: SetAttr { size_bytes: Some(size), .. } } =
                        &mutation
                    {
                        self.truth.entry(*ino).or_default().resize(*size as usize, 0);
                    }
                    return true;
                }
                Err(RpcError::Refused(FsError::Busy)) => self.prepare(&mutation),
                Err(_) => return false,
            }
        }
        panic!("{mutation:?} stays refused as busy");
    }

    /// A node says whether it has the block that a truncated file ends in.
    fn with_findings(&self, mutation: Mutation) -> Mutation {
        match mutation {
            Mutation::SetAttr { ino, set } if self.state.extents().has_edge(ino, &set) => {
                Mutation::Truncate { ino, set }
            }
            mutation => mutation,
        }
    }

    pub fn prepare(&mut self, mutation: &Mutation) {
        let find = |dir: &Ino, name: &Name| {
            self.state.namespace().dentry(*dir, name).map(|dentry| dentry.ino)
        };
        let inos: Vec<Option<Ino>> = match mutation {
            Mutation::Make { .. } | Mutation::Tmpfile { .. } => vec![],
            Mutation::Link { ino, .. } => vec![Some(*ino)],
            Mutation::Unlink { parent, name, .. } | Mutation::Rmdir { parent, name, .. } => {
                vec![find(parent, name)]
            }
            Mutation::Rename { from, name, to, new_name, .. } => {
                vec![find(from, name), find(to, new_name)]
            }
            Mutation::SetAttr { ino, .. }
            | Mutation::Truncate { ino, .. }
            | Mutation::Write { ino, .. }
            | Mutation::WriteSummed { ino, .. }
            | Mutation::WriteWhole { ino, .. }
            | Mutation::WritePacked { ino, .. }
            | Mutation::Fallocate { ino, .. } => vec![Some(*ino)],
            Mutation::SetXattr { ino, .. }
            | Mutation::SetAcl { ino, .. }
            | Mutation::RemoveXattr { ino, .. } => vec![Some(*ino)],
        };
        for ino in inos.into_iter().flatten() {
            while self.load_next(ino) {}
            for (dir, name) in self.state.backing().unresolved_links(ino).to_vec() {
                self.reach(dir);
                self.resolve(dir, &name);
                if self.state.namespace().dentry(dir, &name).is_none() {
                    panic!("{name} of {ino} in {dir} is on record and not there");
                }
            }
        }
    }

    /// Loads a directory from its inode id alone.
    pub fn reach(&mut self, dir: Ino) {
        if self.state.namespace().inode(dir).is_none() {
            let (parent, name) =
                self.head_at(dir).expect("a directory on record has a page").page.parent.unwrap();
            self.reach(parent);
            self.resolve(parent, &name);
        }
    }

    pub fn write(&mut self, ino: Ino, offset: usize, len: usize) {
        for fill in self.state.extents().missing_for_write(ino, offset as u64, len as u64) {
            self.fill(ino, fill);
        }
        let data = vec![self.time as u8; len];
        let mutation = Mutation::Write {
            ino,
            offset: offset as u64,
            len_bytes: len as u64,
            drop_set_id: false,
        };
        // The bytes are in the store file before the record.
        let before = self.stores.get(&ino).cloned();
        put(self.stores.entry(ino).or_default(), offset, &data);
        if self.mutate(mutation) {
            put(self.truth.entry(ino).or_default(), offset, &data);
        } else if let Some(before) = before {
            self.stores.insert(ino, before);
        }
    }

    /// Zeros to the end of the file are a hole; others are written into its only block.
    pub fn zero(&mut self, ino: Ino, offset: usize, len: usize) {
        let size = self.state.namespace().inode(ino).map_or(0, |inode| inode.attr.size_bytes);
        let span = zero_span(offset as u64, len as u64, size);
        let inside = (offset as u64) < size;
        if inside && let Some(Edge::Missing(fill)) = self.state.extents().edges(ino, &span).pop() {
            self.fill(ino, fill);
            let etag = self.home(ino).etag.clone();
            self.apply(Command::Extent(LocalCommand::Present {
                ino,
                etag,
                first: fill.block,
                sums: vec![0],
            }));
        }
        let before = self.stores.get(&ino).cloned();
        let mut edges = vec![];
        if inside && let Some(Edge::Present { .. }) = self.state.extents().edges(ino, &span).pop() {
            edges.push(0);
            let end = (offset + len).min(size as usize);
            put(self.stores.entry(ino).or_default(), offset, &vec![0; end - offset]);
        }
        let (offset, len_bytes) = (offset as u64, len as u64);
        let mutation = Mutation::Fallocate {
            ino,
            offset,
            len_bytes,
            what: Allocation::Zero,
            keep_size: true,
            edges,
            drop_set_id: false,
        };
        if self.mutate(mutation) {
            let truth = self.truth.entry(ino).or_default();
            truth.resize(truth.len().max(size as usize), 0);
            let end = ((offset + len_bytes) as usize).min(truth.len());
            truth[(offset as usize).min(end)..end].fill(0);
        } else if let Some(before) = before {
            self.stores.insert(ino, before);
        }
    }

    pub fn fill(&mut self, ino: Ino, fill: Fill) {
        let from_object = if fill.object_bytes > 0 {
            let object = self.home(ino);
            object.body[..(fill.object_bytes as usize).min(object.body.len())].to_vec()
        } else {
            Vec::new()
        };
        self.stores.insert(ino, from_object);
    }

    pub fn home(&self, ino: Ino) -> &Stored {
        let key = self
            .state
            .backing()
            .object_key(self.state.namespace(), ino)
            .expect("bytes of an object have one");
        let object =
            self.bucket.get(&key).unwrap_or_else(|| panic!("the object of {ino} is not at {key}"));
        assert_eq!(
            self.state.extents().object(ino).unwrap().etag,
            object.etag,
            "the object at {key} is another"
        );
        object
    }

    pub fn read(&self, ino: Ino) -> Vec<u8> {
        let size = self.state.namespace().inode(ino).unwrap().attr.size_bytes;
        let mut content = vec![0; size as usize];
        for segment in self.state.extents().plan_read(ino, 0..size, size) {
            let range = segment.range.start as usize..segment.range.end as usize;
            match segment.origin {
                ByteOrigin::Zero => {}
                ByteOrigin::Remote => {
                    content[range.clone()].copy_from_slice(&self.home(ino).body[range])
                }
                ByteOrigin::Local => {
                    let store = &self.stores[&ino];
                    let end = range.end.min(store.len()).max(range.start);
                    content[range.start..end].copy_from_slice(&store[range.start..end]);
                }
            }
        }
        content
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if bytes.len() < offset + data.len() {
        bytes.resize(offset + data.len(), 0);
    }
    bytes[offset..offset + data.len()].copy_from_slice(data);
}
