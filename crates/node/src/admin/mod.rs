//! Requests from people to a node: status, dirty files, flush, evict, warm, fsck, explain, quotas,
//! trash.

pub(crate) mod backup;
pub(crate) mod explain;
pub(crate) mod fsck;
pub(crate) mod restore;
pub(crate) mod stats;
pub(crate) mod troubles;

use crate::flush::FlushReport;
use crate::{Host, Node};
use ebb_model::*;
use stats::Counters;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use troubles::Troubles;

/// The counters and troubles of the node. All flows write them. Only retries of damaged and refused
/// objects depend on them.
pub(crate) struct Instruments {
    counters: Counters,
    troubles: Troubles,
}

impl Instruments {
    /// `asked` counts the requests to buckets.
    pub fn new(began: Duration, asked: Rc<RefCell<Tallies>>) -> Instruments {
        Instruments { counters: Counters::new(began, asked), troubles: Troubles::default() }
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }
}

impl Node {
    pub(crate) async fn admin(
        self: &Rc<Self>,
        request: AdminRequest,
    ) -> Result<AdminReply, RpcError> {
        match request {
            AdminRequest::Status => {
                self.end_troubles().await;
                Ok(AdminReply::Status(Box::new(self.status())))
            }
            AdminRequest::ListDirty { limit, after } => Ok(self.list_dirty(limit, after)),
            AdminRequest::Flush { path } => {
                self.expect_writable()?;
                let root = self.walk(&path).await?;
                let FlushReport { files, bytes, refused } = self.flush_below(root).await?;
                let renamed = self.redirected_below(root);
                Ok(AdminReply::Flushed { files, bytes, renamed, refused })
            }
            AdminRequest::Evict { path, from, limit_bytes } => {
                let root = self.walk(&path).await?;
                let (bytes, next) = self.evict_below(root, from, limit_bytes).await?;
                Ok(AdminReply::Evicted { bytes, next })
            }
            AdminRequest::Warm { ino, offset, len_bytes } => {
                let bytes = self.warm(ino, offset, len_bytes).await?;
                Ok(AdminReply::Warmed { bytes })
            }
            AdminRequest::Fsck => self.fsck().await.map(AdminReply::Fsck),
            AdminRequest::FsckBucket { from } => {
                Ok(AdminReply::FsckBatch(Box::new(self.fsck_bucket(from).await?)))
            }
            AdminRequest::Repair { remedy } => {
                self.repair(remedy).await.map(|()| AdminReply::Repaired)
            }
            AdminRequest::RollBack { path } => {
                let ino = self.walk(&path).await?;
                self.roll_back(ino).await
            }
            AdminRequest::Explain { path } => {
                let ino = self.walk(&path).await?;
                self.explain(ino).map(|explained| AdminReply::Explained(Box::new(explained)))
            }
            AdminRequest::SetQuota { path, limits } => self.set_quota(&path, limits).await,
            AdminRequest::Quotas { path } => self.quotas_of(&path).await,
            AdminRequest::ListQuotas { path } => self.list_quotas(&path).await,
            AdminRequest::ListTrash { path, from } => self.list_trash(&path, from).await,
            AdminRequest::Restore { ino, to } => self.restore(ino, &to).await,
            AdminRequest::EmptyTrash { path, until, from } => {
                self.empty_trash(&path, until, from).await
            }
            AdminRequest::Paths { inos } => Ok(AdminReply::Paths(self.paths(&inos))),
            AdminRequest::Snapshot => self.snapshot_for_backup().await,
            AdminRequest::Refresh { ino } => self.refresh(ino).await,
            AdminRequest::ListNodes => Ok(AdminReply::Nodes(self.nodes())),
            AdminRequest::RemoveNode { node } => {
                self.expect_host()?.remove(node).await?;
                Ok(AdminReply::Nodes(self.nodes()))
            }
            AdminRequest::PromoteNode { node } => {
                self.expect_host()?.promote(node).await?;
                Ok(AdminReply::Nodes(self.nodes()))
            }
            AdminRequest::Stats => Ok(AdminReply::Stats(Box::new(
                self.instruments.counters.stats(self.ports.clock.monotonic()),
            ))),
        }
    }

    fn nodes(&self) -> Vec<NodeState> {
        self.host().map(|host| host.nodes()).unwrap_or_default()
    }

    fn expect_host(&self) -> Result<Rc<Host>, RpcError> {
        self.host().ok_or_else(|| {
            RpcError::Denied("the volume has one node: it was not started with --voters".into())
        })
    }

    fn status(&self) -> Status {
        let state = self.replica.view();
        let dirt = state.backing().dirt();
        let sessions = state.sessions().iter().map(|(session, known)| {
            let (leases, recalls) = self.leases.held_by(session);
            SessionStatus {
                session,
                client: known.client.clone(),
                open_files: self.attachments.open_files(session),
                leases,
                recalls,
            }
        });
        Status {
            volume: self.options.volume.clone(),
            backing: self.buckets.all().map_or_else(|| "none".into(), |bucket| bucket.describe()),
            version: env!("CARGO_PKG_VERSION").into(),
            incarnation: self.run.incarnation,
            read_only: self.read_only() || self.buckets.lost_to().is_some(),
            sessions: sessions.collect(),
            inodes: state.namespace().len() as u64,
            log_index: self.replica.written(),
            durable_index: self.replica.durable(),
            metadata_bytes: state.memory_bytes(),
            metadata_limit_bytes: self.options.metadata_bytes,
            cached_bytes: state.extents().resident_bytes(),
            cache_limit_bytes: self.options.cache_bytes,
            dirty_bytes: state.extents().dirty_bytes() - state.orphan_bytes(),
            dirty_files: dirt.files + self.renamed_due(Ino::ROOT).len() as u64,
            dirty_since: dirt.since,
            sent_bytes: self.flusher.sent_bytes(),
            pending_deletes: dirt.deletes,
            renamed_dirs: self.redirected_below(Ino::ROOT),
            download_bytes_per_sec: self.options.download_bytes_per_sec,
            upload_bytes_per_sec: self.options.upload_bytes_per_sec,
            packs: self.pack_status(),
            scrub: self.data.scrub_status(),
            encrypted: self.options.encrypted,
            troubles: self
                .instruments
                .troubles
                .list()
                .into_iter()
                .chain(self.refused_work().troubles())
                .chain(self.names.not_shown_troubles(&self.replica.view()))
                .collect(),
        }
    }

    fn list_dirty(&self, limit: u32, after: Option<DirtyPoint>) -> AdminReply {
        let state = self.replica.view();
        let (mut items, mut room, mut next) = (Vec::new(), MAX_LIST_BYTES, after);
        for point in state.backing().dirty_after(after).take(limit.min(MAX_DIRTY_ITEMS) as usize) {
            let DirtyPoint { since, ino, .. } = point;
            let mut path = path_bytes(&state.namespace().path_of(ino).unwrap_or_default());
            // A path without room in a frame is cut to its beginning.
            path.truncate(MAX_LIST_BYTES);
            let Some(left) = room.checked_sub(path.len()) else { break };
            room = left;
            next = Some(point);
            items.push(DirtyItem {
                path,
                ino,
                since,
                dirty_bytes: state.extents().dirty_bytes_of(ino),
            });
        }
        let left_out = state.backing().dirty_after(next).count() as u64;
        AdminReply::Dirty { items, left_out, next: next.filter(|_| left_out > 0) }
    }

    /// Names can be nested deeper than the longest usable path: a longer path is left out.
    fn paths(&self, inos: &[Ino]) -> Vec<Option<bytes::Bytes>> {
        let state = self.replica.view();
        let mut room = MAX_LIST_BYTES;
        let path = |ino: &Ino| {
            let path = path_bytes(&state.namespace().path_of(*ino)?);
            room = room.checked_sub(path.len())?;
            Some(path)
        };
        inos.iter().take(MAX_PATHS).map(path).collect()
    }

    /// The inode at a path from the root.
    pub(crate) async fn walk(self: &Rc<Self>, path: &[Name]) -> Result<Ino, RpcError> {
        let mut at = Ino::ROOT;
        for name in path {
            if name.as_bytes() == TRASH {
                return Err(FsError::NotFound.into());
            }
            self.resolve(at, name).await?;
            at = self.replica.view().namespace().lookup(at, name)?.ino;
        }
        Ok(at)
    }

    /// By its first name, as keys are.
    pub(crate) fn is_below(&self, ino: Ino, root: Ino) -> bool {
        let state = self.replica.view();
        let mut at = ino;
        while at != root {
            match state.namespace().primary_link(at) {
                Some(link) => at = link.parent,
                // The root of the volume, or an inode without a name.
                None => return false,
            }
        }
        true
    }
}

/// The most items listed in one answer, so that it fits a frame.
const MAX_DIRTY_ITEMS: u32 = 8192;
const MAX_LIST_BYTES: usize = 512 << 10;

pub(crate) fn path_bytes(path: &[Name]) -> bytes::Bytes {
    path.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/').into()
}
