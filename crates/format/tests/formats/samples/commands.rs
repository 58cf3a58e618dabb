//! Samples of log payloads.

use super::Draw;
use ebb_format::record::{Base, GroupId, GroupTail, Payload, Position, Start, Term};
use ebb_model::*;

impl Draw {
    fn install(&mut self, progress: LoadProgress) -> BackingCommand {
        let entries = self.installed_kinds().into_iter().map(|what| self.installed(what)).collect();
        let hidden = vec![self.text()];
        BackingCommand::Install {
            dir: self.ino(),
            epoch: self.u64(),
            entries,
            hidden,
            owner: (self.u32(), self.u32()),
            progress,
            stamp: self.stamp(),
        }
    }

    fn mutations(&mut self) -> Vec<Mutation> {
        let mut all = Vec::new();
        for what in self.makes() {
            all.push(Mutation::Make {
                parent: self.ino(),
                name: self.name(),
                ino: self.ino(),
                mode: self.u16(),
                what,
            });
        }
        let whiteout = RenameMode::Whiteout { keep_target: self.flag(), ino: Some(self.ino()) };
        for mode in [RenameMode::Replace, RenameMode::KeepTarget, RenameMode::Exchange, whiteout] {
            let (from, to) = (self.ino(), self.ino());
            all.push(Mutation::Rename {
                from,
                name: self.name(),
                to,
                new_name: self.name(),
                mode,
                holders: self.sessions(),
            });
        }
        for mode in [XattrMode::Set, XattrMode::Create, XattrMode::Replace] {
            all.push(Mutation::SetXattr {
                ino: self.ino(),
                name: self.bytes(),
                value: self.bytes(),
                mode,
            });
        }
        all.extend([
            Mutation::Link { ino: self.ino(), parent: self.ino(), name: self.name() },
            Mutation::Unlink { parent: self.ino(), name: self.name(), holders: self.sessions() },
            Mutation::Rmdir { parent: self.ino(), name: self.name(), holders: self.sessions() },
            Mutation::SetAttr { ino: self.ino(), set: self.set_attr() },
            Mutation::RemoveXattr { ino: self.ino(), name: self.bytes() },
            Mutation::WriteWhole {
                ino: self.ino(),
                offset: self.u64(),
                len_bytes: self.u64(),
                sums: self.list(Draw::u32),
                drop_set_id: self.flag(),
            },
        ]);
        all.push(Mutation::Tmpfile {
            parent: self.ino(),
            ino: self.ino(),
            mode: self.u16(),
            holder: self.session(),
        });
        for what in [Allocation::Reserve, Allocation::Zero] {
            all.push(Mutation::Fallocate {
                ino: self.ino(),
                offset: self.u64(),
                len_bytes: self.u64(),
                what,
                keep_size: self.flag(),
                edges: self.list(Draw::u64),
                drop_set_id: self.flag(),
            });
        }
        for class in [AclClass::Access, AclClass::Default] {
            all.push(Mutation::SetAcl {
                ino: self.ino(),
                class,
                value: self.bytes(),
                drop_set_gid: self.flag(),
            });
        }
        all.push(Mutation::WriteSummed {
            ino: self.ino(),
            offset: self.u64(),
            len_bytes: self.u64(),
            sums: self.list(|draw| draw.flag().then(|| draw.u32())),
            drop_set_id: self.flag(),
        });
        all.push(Mutation::WritePacked {
            ino: self.ino(),
            offset: self.u64(),
            len_bytes: self.u64(),
            sums: self.list(|draw| draw.flag().then(|| draw.u32())),
            drop_set_id: self.flag(),
            range: self.pack_range(),
        });
        all.push(Mutation::Write {
            ino: self.ino(),
            offset: self.u64(),
            len_bytes: self.u64(),
            drop_set_id: self.flag(),
        });
        all.push(Mutation::Truncate { ino: self.ino(), set: self.set_attr() });
        all
    }

    fn local(&mut self) -> [LocalCommand; 13] {
        [
            LocalCommand::Present {
                ino: self.ino(),
                etag: self.text(),
                first: self.u64(),
                sums: self.list(Draw::u32),
            },
            LocalCommand::Absent { ino: self.ino(), first: self.u64(), count: self.u64() },
            LocalCommand::Synced { scope: SyncScope::File(self.ino()), upto: self.position() },
            LocalCommand::Synced { scope: SyncScope::All, upto: self.position() },
            LocalCommand::Synced { scope: SyncScope::Written, upto: self.position() },
            LocalCommand::Summed {
                ino: self.ino(),
                version: self.version(),
                sums: self.list(|draw| (draw.u64(), draw.u32())),
            },
            LocalCommand::Unsynced { ino: self.ino(), first: self.u64(), count: self.u64() },
            LocalCommand::Packed { ino: self.ino(), range: Some(self.pack_range()) },
            LocalCommand::Packed { ino: self.ino(), range: None },
            LocalCommand::Exposed { ino: self.ino(), exposed: true },
            LocalCommand::Exposed { ino: self.ino(), exposed: false },
            LocalCommand::Staged {
                ino: self.ino(),
                version: self.version(),
                first: self.u64(),
                sums: self.list(|draw| draw.flag().then(|| draw.u32())),
                range: None,
            },
            LocalCommand::Staged {
                ino: self.ino(),
                version: self.version(),
                first: self.u64(),
                sums: self.list(|draw| draw.flag().then(|| draw.u32())),
                range: Some(self.pack_range()),
            },
        ]
    }

    fn commands(&mut self) -> Vec<Command> {
        let mut all = vec![
            Command::SessionOpen { session: self.session(), client: self.text(), replaces: None },
            Command::SessionOpen {
                session: self.session(),
                client: self.text(),
                replaces: Some(self.session()),
            },
            Command::SessionClose { session: self.session() },
            Command::Release { session: self.session(), ino: self.ino() },
        ];
        for mutation in self.mutations() {
            all.push(Command::Client {
                tx: self.tx(),
                caller: self.caller(),
                stamp: self.stamp(),
                mutation,
            });
        }
        all.extend(self.local().map(Command::Extent));
        let up_to = LoadProgress::UpTo(self.text());
        let (ino, dir) = (self.ino(), self.ino());
        let backing = [
            self.install(LoadProgress::Unchanged),
            self.install(up_to),
            self.install(LoadProgress::Complete),
            BackingCommand::UploadBegun { ino, key: self.text(), upload: None },
            BackingCommand::UploadBegun { ino, key: self.text(), upload: Some(self.text()) },
            BackingCommand::UploadAborted { ino },
            BackingCommand::Uploaded {
                ino,
                key: self.text(),
                etag: self.text(),
                len_bytes: self.u64(),
                version: self.version(),
            },
            BackingCommand::Moved { ino, key: self.text(), etag: self.text() },
            BackingCommand::Deleted { key: self.text() },
            BackingCommand::PageWritten { dir, version: self.version(), etag: self.text() },
            BackingCommand::Unredirect { dir },
            BackingCommand::Replaced {
                ino,
                etag: self.text(),
                len_bytes: self.u64(),
                modified: self.time(),
                stamp: self.stamp(),
            },
            BackingCommand::Vanished { parent: dir, name: self.name(), stamp: self.stamp() },
            BackingCommand::Revalidating { dir },
            BackingCommand::SendAgain { ino, stamp: self.stamp() },
            BackingCommand::RolledBack {
                ino,
                etag: self.text(),
                len_bytes: self.u64(),
                modified: self.time(),
                stamp: self.stamp(),
            },
            BackingCommand::Forget { dir, inos: self.list(Draw::ino) },
            BackingCommand::PiecesFound {
                dir,
                pieces: self.list(Draw::page_piece),
                end: None,
                now: self.time(),
            },
            BackingCommand::PiecesFound {
                dir,
                pieces: self.list(Draw::page_piece),
                end: Some(self.name()),
                now: self.time(),
            },
            BackingCommand::PiecesBegun { dir, ids: self.list(Draw::u64) },
            BackingCommand::PiecesReplaced {
                dir,
                gone: self.list(Draw::name),
                pieces: self.list(Draw::page_piece),
            },
            BackingCommand::PiecesWritten { dir, version: self.version(), etag: self.text() },
            BackingCommand::UploadLate { ino },
            BackingCommand::MakeWay { dir },
            BackingCommand::UploadedMapped {
                ino,
                key: self.text(),
                etag: self.text(),
                len_bytes: self.u64(),
                version: self.version(),
                changed: self.list(|draw| (draw.u64(), draw.u64())),
            },
            BackingCommand::VanishedKept {
                parent: dir,
                name: self.name(),
                kept: self.list(|draw| (draw.u64(), draw.u64())),
                stamp: self.stamp(),
            },
        ];
        all.extend(backing.map(Command::Backing));
        let mutation = Mutation::Link { ino: self.ino(), parent: self.ino(), name: self.name() };
        all.push(Command::Repeated {
            tx: self.tx(),
            caller: self.caller(),
            stamp: self.stamp(),
            mutation,
        });
        all.push(Command::Quota { dir, limits: Some(self.quota_limits()), stamp: self.stamp() });
        all.push(Command::Quota { dir, limits: None, stamp: self.stamp() });
        all.push(Command::Stored {
            ino,
            first: self.u64(),
            sums: self.list(Draw::u32),
            stamp: self.stamp(),
        });
        let mutation =
            Mutation::Unlink { parent: self.ino(), name: self.name(), holders: self.sessions() };
        let trash = TrashTarget { top: self.ino(), ino: self.ino(), keep_secs: self.u64() };
        let repeated = self.flag();
        all.push(Command::Discard {
            tx: self.tx(),
            caller: self.caller(),
            stamp: self.stamp(),
            mutation,
            trash,
            repeated,
        });
        all.push(Command::Found { ino, first: self.u64(), count: self.u64(), stamp: self.stamp() });
        all.push(Command::BytesRepeated { ino });
        let staged = self.local().into_iter().next_back();
        all.extend(staged.map(Command::Extent));
        all.push(Command::Restore { ino, to: dir, name: self.name(), stamp: self.stamp() });
        all.push(Command::Purge { ino, holders: self.sessions(), stamp: self.stamp() });
        all.push(Command::ReserveIds { upto: self.u32() });
        let node = NodeId(self.u64());
        let address = "node:7070".to_owned();
        all.push(Command::Nodes(NodesCommand::Serves { node, address }));
        all.push(Command::Nodes(NodesCommand::Removed { node }));
        all.push(Command::Nodes(NodesCommand::Leads { node }));
        all.push(Command::Nodes(NodesCommand::Brought { ino }));
        all.push(Command::Nodes(NodesCommand::Forced { upto: LogIndex(self.u64()) }));
        all
    }

    /// At least one payload of every kind.
    pub fn payloads(&mut self) -> Vec<Payload> {
        let boot_id = u128::from(self.u64()) << 64 | u128::from(self.u64());
        let mut groups = self.list(|draw| draw.group_tail(GroupId::LOCAL));
        groups.sort_by_key(|tail| tail.group);
        groups.dedup_by_key(|tail| tail.group);
        groups.insert(0, GroupTail { group: GroupId::LOCAL, ..self.group_tail(GroupId::LOCAL) });
        let mut all = vec![
            Payload::Forced { upto: Position(self.u64()) },
            Payload::Start(Start {
                boot_id,
                incarnation: Incarnation(self.u16().into()),
                forced: Position(self.u64()),
                cut: Position(self.u64()),
                groups,
            }),
        ];
        all.extend(self.local().map(Payload::Local));
        all.extend(self.commands().into_iter().map(Payload::Command));
        let group = self.group_tail(GroupId::LOCAL);
        let tails = [
            GroupTail { group: GroupId::LOCAL, ..self.group_tail(GroupId::LOCAL) },
            GroupTail { is_replicated: true, ..group },
        ];
        all.push(Payload::Start(Start {
            boot_id: self.u64().into(),
            incarnation: Incarnation(self.u16().into()),
            forced: Position(self.u64()),
            cut: Position(self.u64()),
            groups: tails.to_vec(),
        }));
        all.push(Payload::Promise(self.u64().to_le_bytes().to_vec()));
        all.push(Payload::Step(self.u64().to_le_bytes().to_vec()));
        for is_checkpoint in [false, true] {
            let content = self.u64().to_le_bytes().to_vec();
            all.push(Payload::Base(Base { is_checkpoint, content }));
        }
        all
    }

    /// Of a group above this one.
    fn group_tail(&mut self, above: GroupId) -> GroupTail {
        GroupTail {
            group: GroupId(above.0 + 1 + self.u32() / 2),
            term: Term(self.u64()),
            index: self.index(),
            is_replicated: false,
        }
    }
}
