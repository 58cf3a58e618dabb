//! Samples of messages.

use super::Draw;
use bytes::Bytes;
use ebb_format::rpc::{Message, RequestId};
use ebb_model::*;

impl Draw {
    fn client_mutations(&mut self) -> Vec<ClientMutation> {
        let mut all = Vec::new();
        for what in self.makes() {
            let mode = NewMode { mode: self.u16(), umask: self.u16() };
            all.push(ClientMutation::Make {
                parent: self.ino(),
                name: self.name(),
                mode,
                what,
                open: self.flag(),
            });
        }
        let whiteout = RenameMode::Whiteout { keep_target: self.flag(), ino: None };
        for mode in [RenameMode::Replace, RenameMode::KeepTarget, RenameMode::Exchange, whiteout] {
            all.push(ClientMutation::Rename {
                from: self.ino(),
                name: self.name(),
                to: self.ino(),
                new_name: self.name(),
                mode,
            });
        }
        for mode in [XattrMode::Set, XattrMode::Create, XattrMode::Replace] {
            all.push(ClientMutation::SetXattr {
                ino: self.ino(),
                name: self.bytes(),
                value: self.bytes(),
                mode,
            });
        }
        all.extend([
            ClientMutation::Link { ino: self.ino(), parent: self.ino(), name: self.name() },
            ClientMutation::Unlink { parent: self.ino(), name: self.name() },
            ClientMutation::Rmdir { parent: self.ino(), name: self.name() },
            ClientMutation::SetAttr { ino: self.ino(), set: self.set_attr() },
            ClientMutation::RemoveXattr { ino: self.ino(), name: self.bytes() },
            ClientMutation::Write {
                ino: self.ino(),
                offset: self.u64(),
                data: self.bytes(),
                drop_set_id: self.flag(),
            },
            ClientMutation::Append {
                ino: self.ino(),
                data: self.bytes(),
                drop_set_id: self.flag(),
            },
        ]);
        all.extend([
            ClientMutation::Copy {
                from: self.ino(),
                from_offset: self.u64(),
                ino: self.ino(),
                offset: self.u64(),
                len_bytes: self.u64(),
                drop_set_id: self.flag(),
            },
            ClientMutation::Tmpfile {
                parent: self.ino(),
                mode: NewMode { mode: self.u16(), umask: self.u16() },
            },
        ]);
        for what in [Allocation::Reserve, Allocation::Zero] {
            all.push(ClientMutation::Fallocate {
                ino: self.ino(),
                offset: self.u64(),
                len_bytes: self.u64(),
                what,
                keep_size: self.flag(),
                drop_set_id: self.flag(),
            });
        }
        for class in [AclClass::Access, AclClass::Default] {
            all.push(ClientMutation::SetAcl {
                ino: self.ino(),
                class,
                value: self.bytes(),
                drop_set_gid: self.flag(),
            });
        }
        all
    }

    fn requests(&mut self) -> Vec<Request> {
        let (ino, session) = (self.ino(), self.session());
        let mut all = vec![
            Request::Attach {
                volume: self.text(),
                client: self.text(),
                previous: None,
                read_only: self.flag(),
                cluster: None,
            },
            Request::Attach {
                volume: self.text(),
                client: self.text(),
                previous: Some(session),
                read_only: self.flag(),
                cluster: Some(self.cluster()),
            },
            Request::Detach { session },
            Request::Renew { session },
            Request::CachesDropped { session },
            Request::LeasesReturned { session, recall: Some(self.u64()) },
            Request::ResumeSession { session },
            Request::OpensDeclared { session },
            Request::ReferenceQueryReply {
                session,
                query: self.u64(),
                referenced: self.list(Draw::ino),
            },
            Request::Lookup { parent: ino, name: self.name() },
            Request::GetAttr { ino },
            Request::ReadLink { ino },
            Request::ReadDir { dir: ino, after: Cookie(self.u64()), limit: self.u32() },
            Request::GetXattr { ino, name: self.bytes() },
            Request::ListXattr { ino },
            Request::Access { caller: self.caller(), ino, access: Access::READ | Access::EXECUTE },
            Request::StatFs { ino },
            Request::Open { session, ino },
            Request::Close { session, ino, count: self.u32() },
            Request::Read { ino, offset: self.u64(), len_bytes: self.u32() },
            Request::Fsync { session, ino },
            Request::SyncFs { session },
            Request::Admin(AdminRequest::Status),
            Request::Admin(AdminRequest::ListDirty {
                limit: self.u32(),
                after: self.option(Draw::dirty_point),
            }),
            Request::Admin(AdminRequest::Flush { path: self.list(Draw::name) }),
            Request::Admin(AdminRequest::Evict {
                path: self.list(Draw::name),
                from: (ino, self.u64()),
                limit_bytes: self.u64(),
            }),
            Request::Admin(AdminRequest::Fsck),
            Request::Seek { ino, offset: self.u64(), to: Seek::Data },
            Request::Seek { ino, offset: self.u64(), to: Seek::Hole },
            Request::Admin(AdminRequest::Explain { path: self.list(Draw::name) }),
            Request::Lock { tx: self.tx(), ask: self.lock_ask(ino), wait: None },
            Request::Lock {
                tx: self.tx(),
                ask: self.lock_ask(ino),
                wait: Some(LockWait { id: self.u64(), detect: self.flag() }),
            },
            Request::EndWait { session, wait: self.u64() },
            Request::TestLock {
                session,
                ino,
                owner: LockOwner::Fcntl(self.u64()),
                lock: self.range_lock(),
            },
            Request::Reclaim {
                session,
                ino,
                owner: LockOwner::Flock(self.u64()),
                pid: self.u32(),
                locks: self.list(Draw::range_lock),
            },
        ];
        for mutation in self.client_mutations() {
            let (tx, caller, replay) = (self.tx(), self.caller(), self.option(Draw::replay));
            all.push(Request::Mutate(Box::new(Mutate { tx, caller, mutation, replay })));
        }
        all.extend([
            Request::Admin(AdminRequest::SetQuota {
                path: self.list(Draw::name),
                limits: Some(self.quota_limits()),
            }),
            Request::Admin(AdminRequest::SetQuota { path: self.list(Draw::name), limits: None }),
            Request::Admin(AdminRequest::Quotas { path: self.list(Draw::name) }),
            Request::Admin(AdminRequest::ListQuotas { path: self.list(Draw::name) }),
            Request::Admin(AdminRequest::Stats),
            Request::Admin(AdminRequest::Paths { inos: self.list(Draw::ino) }),
            Request::Admin(AdminRequest::Warm { ino, offset: self.u64(), len_bytes: self.u64() }),
            Request::Admin(AdminRequest::FsckBucket { from: FsckPoint::Directories { from: ino } }),
            Request::Admin(AdminRequest::FsckBucket {
                from: FsckPoint::Reserved { after: self.text() },
            }),
            Request::Admin(AdminRequest::Repair {
                remedy: Remedy::Refetch { ino, block: self.u64() },
            }),
            Request::Admin(AdminRequest::RollBack { path: self.list(Draw::name) }),
            Request::Admin(AdminRequest::ListTrash {
                path: self.list(Draw::name),
                from: self.trash_point(),
            }),
            Request::Admin(AdminRequest::Restore { ino, to: self.list(Draw::name) }),
            Request::Admin(AdminRequest::EmptyTrash {
                path: self.list(Draw::name),
                until: self.time(),
                from: self.trash_point(),
            }),
            Request::Admin(AdminRequest::Snapshot),
            Request::Admin(AdminRequest::Refresh { ino: self.ino() }),
            Request::Admin(AdminRequest::ListNodes),
            Request::Admin(AdminRequest::RemoveNode { node: NodeId(self.u64()) }),
            Request::Admin(AdminRequest::PromoteNode { node: NodeId(self.u64()) }),
        ]);
        all
    }

    fn status(&mut self) -> Status {
        Status {
            volume: self.text(),
            backing: self.text(),
            version: self.text(),
            incarnation: Incarnation(self.u16().into()),
            read_only: self.flag(),
            sessions: self.list(|draw| SessionStatus {
                session: draw.session(),
                client: draw.text(),
                open_files: draw.u64(),
                leases: draw.u64(),
                recalls: draw.u64(),
            }),
            inodes: self.u64(),
            log_index: self.index(),
            durable_index: self.index(),
            metadata_bytes: self.u64(),
            metadata_limit_bytes: self.u64(),
            cached_bytes: self.u64(),
            cache_limit_bytes: self.u64(),
            dirty_bytes: self.u64(),
            dirty_files: self.u64(),
            dirty_since: self.option(Draw::time),
            sent_bytes: self.u64(),
            pending_deletes: self.u64(),
            renamed_dirs: self.u64(),
            download_bytes_per_sec: self.option(Draw::u64),
            upload_bytes_per_sec: self.option(Draw::u64),
            packs: PackStatus { packs: self.u64(), files: self.u64(), used_bytes: self.u64() },
            scrub: ScrubStatus {
                blocks: self.u64(),
                dropped: self.u64(),
                damaged: self.u64(),
                round_ended: self.option(Draw::time),
            },
            encrypted: self.flag(),
            troubles: self.list(|draw| Trouble { since: draw.time(), what: draw.text() }),
        }
    }

    fn cluster(&mut self) -> ClusterId {
        ClusterId(u128::from(self.u64()) << 64 | u128::from(self.u64()))
    }

    fn explained(&mut self) -> Explained {
        Explained {
            path: self.bytes(),
            ino: self.ino(),
            kind: self.kind(),
            size_bytes: self.u64(),
            store_file: self.option(|draw| (draw.text(), draw.u64())),
            cached_bytes: self.u64(),
            dirty_bytes: self.u64(),
            dirty_runs: self.list(|draw| (draw.u64(), draw.u64())),
            damaged_runs: self.list(|draw| (draw.u64(), draw.u64())),
            dirty_since: self.option(Draw::time),
            sent_bytes: self.option(Draw::u64),
            page_since: self.option(Draw::time),
            pages: self.list(|draw| ExplainedPage {
                key: draw.text(),
                there: draw.flag(),
                etag: draw.option(Draw::text),
                since: draw.option(Draw::time),
            }),
            log: self.text(),
            forced: self.flag(),
            force_failed: self.option(Draw::text),
            unforced_operations: self.u64(),
            bucket: self.option(Draw::text),
            object: self.option(|draw| ExplainedObject {
                key: draw.text(),
                etag: draw.text(),
                len_bytes: draw.u64(),
            }),
            prefix: self.option(Draw::text),
            not_shown: (self.u64(), self.list(Draw::text)),
            missing: self.option(|draw| {
                if draw.flag() { MissingObject::Lost } else { MissingObject::Removed }
            }),
            open: self.flag(),
            quota: self.option(Draw::quota_status),
            pinned_by: self.option(Draw::bytes),
            exposed: self.flag(),
            kept: self.option(|draw| (draw.bytes(), draw.u64())),
            refused: self.list(Draw::text),
        }
    }

    fn trash_point(&mut self) -> TrashPoint {
        TrashPoint { bucket: self.u32(), after: self.u64() }
    }

    fn trash_entry(&mut self) -> TrashEntry {
        let trashed = Trashed {
            path: self.bytes(),
            at: self.time(),
            until_secs: self.time().secs,
            uid: self.u32(),
        };
        TrashEntry { ino: self.ino(), kind: FileKind::Fifo, size_bytes: self.u64(), trashed }
    }

    fn quota_status(&mut self) -> QuotaStatus {
        QuotaStatus {
            path: self.bytes(),
            ino: self.ino(),
            limits: self.quota_limits(),
            used: Usage { bytes: self.u64(), inodes: self.u64() },
            counted: self.flag(),
        }
    }

    fn dirty_point(&mut self) -> DirtyPoint {
        DirtyPoint { since: self.time(), is_dir: self.flag(), ino: self.ino() }
    }

    fn dirty_item(&mut self) -> DirtyItem {
        DirtyItem {
            path: self.bytes(),
            ino: self.ino(),
            since: self.time(),
            dirty_bytes: self.u64(),
        }
    }

    fn dir_entry(&mut self) -> (DirEntry, Attr) {
        (
            DirEntry {
                name: self.name(),
                ino: self.ino(),
                kind: self.kind(),
                cookie: Cookie(self.u64()),
            },
            self.attr(),
        )
    }

    fn replies(&mut self) -> Vec<Reply> {
        vec![
            Reply::Attached(Attached {
                session: self.session(),
                cluster: self.cluster(),
                incarnation: Incarnation(self.u16().into()),
                fresh: self.flag(),
                recovered: self.index(),
                start: self.u64(),
                sole: self.flag(),
                cache_term_ms: self.u32(),
                read_only: self.flag(),
                session_term_ms: self.u32(),
                lease_term_ms: self.u32(),
                nodes: self.list(Draw::text),
            }),
            Reply::Done,
            Reply::Attr(Box::new(self.attr())),
            Reply::LeasedAttr(Box::new(self.attr())),
            Reply::LeasedAbsent,
            Reply::Link(self.bytes()),
            Reply::Directory { entries: self.list(Draw::dir_entry), end: self.flag() },
            Reply::Xattr(self.bytes()),
            Reply::Xattrs(self.list(Draw::bytes)),
            Reply::Stat(VolumeStat {
                total_bytes: self.u64(),
                free_bytes: self.u64(),
                available_bytes: self.u64(),
                files: self.u64(),
                free_files: self.u64(),
            }),
            Reply::Data(self.bytes()),
            Reply::Mutated(
                Box::new(Mutated {
                    attr: self.option(Draw::attr),
                    index: self.index(),
                    replay: self.replay(),
                }),
                self.list(|draw| Preceding {
                    tx: draw.tx(),
                    index: draw.index(),
                    replay: draw.replay(),
                }),
            ),
            Reply::Forced { durable: self.index() },
            Reply::Admin(AdminReply::Status(Box::new(self.status()))),
            Reply::Admin(AdminReply::Dirty {
                items: self.list(Draw::dirty_item),
                left_out: self.u64(),
                next: self.option(Draw::dirty_point),
            }),
            Reply::Admin(AdminReply::Flushed {
                files: self.u64(),
                bytes: self.u64(),
                renamed: self.u64(),
                refused: RefusedCounts {
                    writes: self.u64(),
                    deletes: self.u64(),
                    reasons: self.list(Draw::text),
                },
            }),
            Reply::Admin(AdminReply::Refreshed { changed: self.u64() }),
            Reply::Admin(AdminReply::Evicted {
                bytes: self.u64(),
                next: self.option(|draw| (draw.ino(), draw.u64())),
            }),
            Reply::Admin(AdminReply::Fsck(self.fsck_report())),
            Reply::Offset(self.u64()),
            Reply::Admin(AdminReply::Explained(Box::new(self.explained()))),
            Reply::Lock(LockAnswer::Granted),
            Reply::Lock(LockAnswer::Waiting),
            Reply::Opened { passthrough: self.flag() },
            Reply::Conflict(None),
            Reply::Conflict(Some(LockConflict { lock: self.range_lock(), pid: self.u32() })),
            Reply::Admin(AdminReply::Quotas(self.list(Draw::quota_status))),
            Reply::Admin(AdminReply::Stats(Box::new(NodeStats {
                uptime_ms: self.u64(),
                requests: self.list(Draw::counted),
                reads: ReadStats {
                    from_cache: self.u64(),
                    from_bucket: self.u64(),
                    cache_bytes: self.u64(),
                    bucket_bytes: self.u64(),
                    zero_bytes: self.u64(),
                },
                bucket: self.list(Draw::counted),
            }))),
            Reply::Admin(AdminReply::Paths(vec![None, Some(self.bytes())])),
            Reply::Admin(AdminReply::Warmed { bytes: self.u64() }),
            Reply::Admin(AdminReply::FsckBatch(Box::new(FsckBatch {
                report: self.fsck_report(),
                done: self.u64(),
                total: self.u64(),
                next: self.option(|draw| FsckPoint::Directories { from: draw.ino() }),
            }))),
            Reply::Admin(AdminReply::Repaired),
            Reply::Admin(AdminReply::RolledBack {
                before_bytes: self.u64(),
                lost_bytes: self.u64(),
                bytes: self.u64(),
            }),
            Reply::Admin(AdminReply::Trash {
                entries: self.list(Draw::trash_entry),
                next: self.option(Draw::trash_point),
            }),
            Reply::Admin(AdminReply::Restored),
            Reply::Admin(AdminReply::Emptied {
                entries: self.u64(),
                bytes: self.u64(),
                next: self.option(Draw::trash_point),
            }),
            Reply::Admin(AdminReply::Snapshot {
                cluster: self.cluster(),
                incarnation: Incarnation(self.u16().into()),
                index: self.index(),
                unloaded: self.u64(),
            }),
            Reply::Admin(AdminReply::Nodes(self.list(|draw| NodeState {
                node: NodeId(draw.u64()),
                address: draw.text(),
                is_leader: draw.flag(),
                votes: draw.flag(),
                held_files: draw.u64(),
                behind: draw.option(Draw::u64),
            }))),
        ]
    }

    fn fsck_report(&mut self) -> FsckReport {
        FsckReport {
            inodes: self.u64(),
            blocks: self.u64(),
            objects: self.u64(),
            pages: self.u64(),
            waiting: self.u64(),
            undecided: self.u64(),
            problems: self.list(Draw::problem),
            others: self.list(Draw::text),
        }
    }

    fn problem(&mut self) -> Problem {
        let remedy = match self.u64() % 6 {
            0 => None,
            1 => Some(Remedy::Refetch { ino: self.ino(), block: self.u64() }),
            2 => Some(Remedy::SendAgain { ino: self.ino() }),
            3 => Some(Remedy::Delete { key: self.text(), etag: self.text() }),
            4 => Some(Remedy::Remove { path: self.text() }),
            _ => Some(Remedy::Snapshot),
        };
        Problem { what: self.text(), remedy }
    }

    fn counted(&mut self) -> Counted {
        let mut tally = Tally::default();
        for _ in 0..3 {
            tally.record(
                std::time::Duration::from_nanos(self.u64()),
                self.flag(),
                u64::from(self.u32()),
            );
        }
        Counted { name: self.text(), tally }
    }

    fn errors(&mut self) -> Vec<RpcError> {
        use FsError::*;
        let mut all: Vec<RpcError> = [
            NotFound,
            Exists,
            NotDirectory,
            IsDirectory,
            NotEmpty,
            AccessDenied,
            NotPermitted,
            Invalid,
            NameTooLong,
            TooManyLinks,
            TooLarge,
            NoAttribute,
            ValueTooLarge,
            Range,
            NoSpace,
            ReadOnly,
            NotSupported,
            CrossDevice,
            Busy,
            Stale,
            Io,
            TimedOut,
            NoData,
            WouldBlock,
            Deadlock,
            NoLocks,
            Interrupted,
            QuotaExceeded,
            NoMemory,
        ]
        .map(RpcError::Refused)
        .into();
        all.extend([
            RpcError::SessionExpired,
            RpcError::Misordered,
            RpcError::Retry,
            RpcError::Lost,
        ]);
        all.extend([RpcError::NotServing(self.text()), RpcError::Denied(self.text())]);
        all.extend([None, Some(self.text())].map(|leader| RpcError::NotLeader { leader }));
        all
    }

    /// At least one message of every kind.
    pub fn messages(&mut self) -> Vec<Message> {
        let mut all = Vec::new();
        for request in self.requests() {
            all.push(Message::Request { id: RequestId(self.u64().max(1)), request });
        }
        for reply in self.replies() {
            all.push(Message::Reply { id: RequestId(self.u64()), reply });
        }
        for error in self.errors() {
            all.push(Message::Error { id: RequestId(self.u64()), error });
        }
        let notices = [
            Notice::Durable { durable: self.index() },
            Notice::DropCaches,
            Notice::Recall {
                recall: self.u64(),
                inos: vec![self.ino()],
                names: vec![(self.ino(), self.name())],
            },
            Notice::Invalidate { ino: self.ino() },
            Notice::Leaving,
            Notice::Lock { wait: self.u64() },
            Notice::ReferenceQuery { query: self.u64(), inos: self.list(Draw::ino) },
            Notice::Relinked { dir: self.ino(), name: self.name() },
        ];
        all.extend(notices.map(Message::Notice));
        let header = postcard::to_stdvec(&self.u64()).expect("a number has an encoding");
        let (id, data) = (RequestId(self.u64()), Bytes::from_static(b"bytes"));
        all.push(Message::Peer { id, header: header.into(), data });
        all
    }
}
