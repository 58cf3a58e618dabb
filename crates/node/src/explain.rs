//! `ebb explain`: where the bytes of one inode are, and what would be lost with what.

use crate::Node;
use crate::admin::path_bytes;
use crate::store;
use bytes::Bytes;
use ebb_core::namespace::Namespace;
use ebb_model::*;

/// Runs of dirty bytes that are listed one by one.
const MAX_RUNS: usize = 256;

impl Node {
    pub(crate) fn explain(&self, ino: Ino) -> Result<Explained, RpcError> {
        let state = self.replica.view();
        let (namespace, extents, backing) = (state.namespace(), state.extents(), state.backing());
        let attr = namespace.attr(ino)?;
        let cached_bytes = extents.resident_bytes_of(ino);
        let dirty = extents.dirty_runs(ino, 0..u64::MAX);
        let log = self.replica.log();
        Ok(Explained {
            path: path_bytes(&namespace.path_of(ino).unwrap_or_default()),
            ino,
            kind: attr.kind,
            size_bytes: attr.size_bytes,
            store_file: (cached_bytes > 0).then(|| store::place(&state, ino).path()),
            cached_bytes,
            dirty_bytes: extents.dirty_bytes_of(ino),
            dirty_runs: dirty
                .into_iter()
                .take(MAX_RUNS)
                .map(|run| (run.start * BLOCK_BYTES, (run.end - run.start) * BLOCK_BYTES))
                .collect(),
            dirty_since: backing.dirty(ino).map(|dirty| dirty.since),
            page_since: backing.page_since(namespace, ino),
            forced: self.store.is_forced(ino) && !extents.is_exposed(ino),
            unforced_operations: log.written().0.saturating_sub(log.durable().0),
            bucket: self.bucket.is_some().then(|| self.describe(self.side_of(ino))),
            object: backing.home(namespace, ino).map(|(key, home)| ExplainedObject {
                key,
                etag: home.etag.clone(),
                len_bytes: home.len_bytes,
            }),
            quota: self.innermost_quota(namespace, ino),
            exposed: extents.is_exposed(ino),
            kept: self.kept(namespace, ino),
            pinned_by: namespace.pin_of(ino).and_then(|pin| namespace.path_of(pin)).map(|path| path_bytes(&path)),
        })
    }

    /// For how long what is removed from a directory is kept, or something itself, and what says so.
    fn kept(&self, namespace: &Namespace, ino: Ino) -> Option<(Bytes, u64)> {
        let dir = namespace.parent_of(ino).map(|_| ino).or_else(|| namespace.primary_link(ino).map(|link| link.parent))?;
        let (by, keep_secs) = namespace.keep_of(dir)?;
        Some((path_bytes(&namespace.path_of(by)?), keep_secs))
    }
}
