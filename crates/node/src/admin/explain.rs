//! `ebb explain`: where the bytes of one inode are, and which of them would be lost with each
//! place.

use crate::Node;
use crate::admin::path_bytes;
use crate::admin::troubles::Subject;
use crate::data::packs;
use bytes::Bytes;
use ebb_core::backing::{PageStatus, page_key};
use ebb_core::namespace::Namespace;
use ebb_core::state::State;
use ebb_journal::LOG_DIR;
use ebb_model::*;
use std::ops::Range;

/// Runs of bytes, and pages, that are listed one by one.
const MAX_RUNS: usize = 256;
const MAX_PAGES: usize = 16;

impl Node {
    pub(crate) fn explain(&self, ino: Ino) -> Result<Explained, RpcError> {
        let state = self.replica.view();
        let (namespace, extents, backing) = (state.namespace(), state.extents(), state.backing());
        let attr = namespace.attr(ino)?;
        // Bytes behind the end of the file are left out.
        let in_bytes = |blocks: Vec<Range<u64>>| -> Vec<(u64, u64)> {
            let runs = blocks
                .into_iter()
                .map(|run| run.start * BLOCK_BYTES..(run.end * BLOCK_BYTES).min(attr.size_bytes));
            runs.filter(|run| !run.is_empty()).map(|run| (run.start, run.end - run.start)).collect()
        };
        let sum = |runs: &[(u64, u64)]| runs.iter().map(|(_, len_bytes)| len_bytes).sum();
        let first = |runs: Vec<(u64, u64)>| runs.into_iter().take(MAX_RUNS).collect();
        let cached_bytes = sum(&in_bytes(extents.resident_runs(ino, 0..u64::MAX)));
        let dirty = in_bytes(extents.dirty_runs(ino, 0..u64::MAX));
        let damaged = self.damaged_blocks(ino).into_iter().map(|block| block..block + 1).collect();
        let missing = self.missing_object(&state, ino);
        let keys = backing.backing_object(namespace, ino).map(|(key, _)| key);
        let pages = backing.pages_of(namespace, ino).into_iter().take(MAX_PAGES);
        let keys: Vec<String> =
            keys.into_iter().chain(pages.map(|page| page_key(page.dir))).collect();
        let refused = keys
            .iter()
            .flat_map(|key| self.instruments.troubles.refusals(key))
            .chain(self.flusher.refused_reason(ino))
            .chain(self.unlistable_reason(ino))
            .collect();
        Ok(Explained {
            path: path_bytes(&namespace.path_of(ino).unwrap_or_default()),
            ino,
            kind: attr.kind,
            size_bytes: attr.size_bytes,
            store_file: (cached_bytes > 0)
                .then(|| self.store.path_of(&packs::location(&state, ino))),
            cached_bytes,
            dirty_bytes: sum(&dirty),
            dirty_runs: first(dirty),
            damaged_runs: first(in_bytes(damaged)),
            dirty_since: backing.dirty(ino).map(|dirty| dirty.since),
            sent_bytes: backing.upload(ino).map(|_| self.flusher.sent_bytes_of(ino)),
            page_since: backing.page_since(namespace, ino),
            pages: backing
                .pages_of(namespace, ino)
                .into_iter()
                .take(MAX_PAGES)
                .map(explained_page)
                .collect(),
            log: LOG_DIR.into(),
            forced: self.store.is_forced(ino) && !extents.is_exposed(ino),
            force_failed: self.store.failure_of(ino).map(|error| error.to_string()),
            unforced_operations: self.replica.written().0.saturating_sub(self.replica.durable().0),
            bucket: self.buckets.is_some().then(|| self.buckets.describe(self.bucket_of(ino))),
            object: backing
                .backing_object(namespace, ino)
                .filter(|_| missing != Some(MissingObject::Lost))
                .map(|(key, home)| ExplainedObject {
                    key,
                    etag: home.etag,
                    len_bytes: home.len_bytes,
                }),
            prefix: backing.redirect_of(ino),
            not_shown: self.names.not_shown_in(ino),
            missing,
            refused,
            open: self.attachments.is_open(ino),
            quota: self.names.innermost_quota(&state, ino),
            exposed: extents.is_exposed(ino),
            kept: self.kept(namespace, ino),
            pinned_by: namespace
                .pin_of(ino)
                .and_then(|pin| namespace.path_of(pin))
                .map(|path| path_bytes(&path)),
        })
    }

    fn missing_object(&self, state: &State, ino: Ino) -> Option<MissingObject> {
        if state.backing().is_lost(ino) {
            return Some(MissingObject::Lost);
        }
        let etag = state.extents().object(ino)?.etag;
        self.instruments
            .troubles
            .has(&Subject::NoObject { ino, etag })
            .then_some(MissingObject::Removed)
    }

    /// For how long the trash keeps a removed entry of a directory, or a removed inode itself, and
    /// the path of the directory that sets the period.
    fn kept(&self, namespace: &Namespace, ino: Ino) -> Option<(Bytes, u64)> {
        let dir = namespace
            .parent_of(ino)
            .map(|_| ino)
            .or_else(|| namespace.primary_link(ino).map(|link| link.parent))?;
        let (by, keep_secs) = namespace.keep_of(dir)?;
        Some((path_bytes(&namespace.path_of(by)?), keep_secs))
    }
}

fn explained_page(page: PageStatus) -> ExplainedPage {
    ExplainedPage {
        key: page_key(page.dir),
        there: page.stored,
        etag: page.etag,
        since: page.since,
    }
}
