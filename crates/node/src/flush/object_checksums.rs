//! The checksums that an object carries (`docs/format/bucket.md`). They are recorded before the
//! upload begins and must be true, but bytes read afterwards may be damaged in transit or on the
//! disk. So all bytes that are sent are compared with them.

use crate::Node;
use ebb_core::extent::Block;
use ebb_format::sums::{Sums, sums_of_blocks};
use ebb_format::{SUM_OF_ZEROS, crc32c_of_blocks};
use ebb_model::*;
use ebb_ports::ETag;
use ebb_store::Mode;
use std::ops::Range;

pub(super) struct ObjectChecksums {
    pub sums: Sums,
    /// The checksums that the file's home carries; some of `sums` are from there.
    object: Option<(ETag, Sums)>,
    /// The checksums of the blocks that were written here.
    known: Vec<Option<u32>>,
}

/// Verifies the bytes sent of a file, part after part.
pub(super) struct UploadVerifier<'a> {
    checksums: Option<&'a ObjectChecksums>,
    /// The blocks' checksums, as far as they are known here.
    sent: Vec<Option<u32>>,
}

/// The bytes sent differ from the object's checksums.
pub(super) enum ChecksumMismatch {
    /// Other bytes were read.
    Other(Range<u64>),
    /// Some of the span was in the store, and some was read: the checksum of the store's part is
    /// not known here.
    Mixed,
}

impl<'a> UploadVerifier<'a> {
    pub fn of(checksums: Option<&'a ObjectChecksums>) -> UploadVerifier<'a> {
        UploadVerifier { checksums, sent: Vec::new() }
    }

    /// The next part is sent from here.
    pub fn read(&mut self, part: &Range<u64>, bytes: &[u8]) -> Result<(), ChecksumMismatch> {
        let Some(checksums) = self.checksums else { return Ok(()) };
        self.sent.extend(sums_of_blocks(bytes).into_iter().map(Some));
        self.check(checksums, part)
    }

    /// The store has the next part.
    pub fn stored(&mut self, part: &Range<u64>) -> Result<(), ChecksumMismatch> {
        let Some(checksums) = self.checksums else { return Ok(()) };
        self.sent.extend(
            checksums
                .known
                .iter()
                .skip(self.sent.len())
                .take((part.end - part.start).div_ceil(BLOCK_BYTES) as usize),
        );
        self.check(checksums, part)
    }

    fn check(
        &self,
        checksums: &ObjectChecksums,
        part: &Range<u64>,
    ) -> Result<(), ChecksumMismatch> {
        for (span, sum) in
            checksums.sums.spans_of(part.clone()).filter(|(span, _)| span.end <= part.end)
        {
            let sent = &self.sent
                [(span.start / BLOCK_BYTES) as usize..span.end.div_ceil(BLOCK_BYTES) as usize];
            match crc32c_of_blocks(span.end - span.start, sent.iter().copied()) {
                Some(sent) if sent == sum => {}
                Some(_) => return Err(ChecksumMismatch::Other(span)),
                // Then the home's checksum holds.
                None if sent.iter().all(Option::is_none) => {}
                None => return Err(ChecksumMismatch::Mixed),
            }
        }
        Ok(())
    }
}

impl Node {
    /// The checksums for the object of a file of this length. Blocks that were overwritten in place
    /// get theirs here.
    pub(super) async fn compute_checksums(
        &self,
        ino: Ino,
        len_bytes: u64,
    ) -> Result<Option<ObjectChecksums>, RpcError> {
        for start in (0..len_bytes).step_by(CHUNK_BYTES as usize) {
            let _guard = self.data.latches().hold(ino, Mode::Shared).await;
            let plan = self.replica.view().extents().plan_read(
                ino,
                start..(start + CHUNK_BYTES).min(len_bytes),
                len_bytes,
            );
            self.sum_void(ino, &plan, |_, _| !self.is_exposed(ino)).await?;
        }
        Ok(self.known_checksums(ino, len_bytes).await)
    }

    /// The same with the checksums that are known already.
    pub(super) async fn known_checksums(
        &self,
        ino: Ino,
        len_bytes: u64,
    ) -> Option<ObjectChecksums> {
        let checksums = self.checksums_of(ino, len_bytes, None)?;
        if checksums.sums.are_all_known() {
            return Some(checksums);
        }
        let object = self.sums_of_object(ino).await;
        self.checksums_of(ino, len_bytes, object).filter(|checksums| checksums.sums.is_any_known())
    }

    /// The same with the checksums known now, unless some have been lost.
    pub(super) fn revalidated_checksums(
        &self,
        ino: Ino,
        len_bytes: u64,
        checksums: ObjectChecksums,
    ) -> Option<ObjectChecksums> {
        let ObjectChecksums { sums, object, .. } = checksums;
        let now = self.checksums_of(ino, len_bytes, object).filter(|now| sums.are_in(&now.sums))?;
        Some(ObjectChecksums { sums, ..now })
    }

    async fn sums_of_object(&self, ino: Ino) -> Option<(ETag, Sums)> {
        let (key, etag, _) = self.object_of(ino)?;
        let meta =
            self.bucket_retry("head", &key, 0, || self.buckets.bucket().head(&key)).await.ok()?;
        let sums = Sums::decode(&meta.tags, meta.len_bytes)?;
        (meta.etag == etag).then_some((etag, sums))
    }

    /// The checksums of an object with the file's present content, as far as they are known: of
    /// blocks that were written here, and those of the home where its content is unchanged. A
    /// fetched block that was not checked may differ from the home, which the bucket may copy into
    /// the object.
    fn checksums_of(
        &self,
        ino: Ino,
        len_bytes: u64,
        object: Option<(ETag, Sums)>,
    ) -> Option<ObjectChecksums> {
        let state = self.replica.view();
        let extents = state.extents();
        if extents.is_exposed(ino) {
            return None;
        }
        let now = extents.object(ino);
        let valid_bytes = now.as_ref().map_or(0, |now| now.valid_bytes);
        let is_zero =
            |block: u64| block * BLOCK_BYTES >= valid_bytes || extents.is_hole(ino, block);
        let per_chunk = CHUNK_BYTES / BLOCK_BYTES;
        let mut known: Vec<Option<u32>> = Vec::new();
        for chunk in 0..len_bytes.div_ceil(CHUNK_BYTES) {
            let mut there = extents.chunk_blocks(ino, chunk).peekable();
            known.extend((chunk * per_chunk..(chunk + 1) * per_chunk).map(|block| {
                match there.next_if(|(next, _)| *next == block) {
                    Some((_, Block { version, sum, .. })) => sum.filter(|_| version > Version(0)),
                    None => is_zero(block).then_some(SUM_OF_ZEROS),
                }
            }));
        }
        let mut sums = Sums::of_blocks(len_bytes, known.iter().copied())?;
        if let Some((etag, of_object)) =
            object.as_ref().filter(|(etag, _)| now.is_some_and(|now| now.etag == etag.0))
        {
            let blocks =
                |span: &Range<u64>| span.start / BLOCK_BYTES..span.end.div_ceil(BLOCK_BYTES);
            let is_absent = |span: &Range<u64>| extents.resident_runs(ino, blocks(span)).is_empty();
            let is_right = |span: &Range<u64>, sum| {
                is_absent(span) || self.sum_of_cached(ino, etag, span) == Some(sum)
            };
            sums.take_over(of_object, |span, sum| {
                extents.is_as_in_object(ino, span.clone()) && is_right(span, sum)
            });
        }
        Some(ObjectChecksums { sums, object, known })
    }
}
