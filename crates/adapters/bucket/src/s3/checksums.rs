//! How a store detects that a body was damaged in transit.
//!
//! Every store checks the SHA-256 that a body is signed with, which is the most expensive part of
//! an upload. A store that has proved that it checks CRC-32C too gets that instead, in a signed
//! header. It gets that for puts if it refused a wrong one when it was opened; for parts if it
//! named the algorithm when their upload began, and refused a wrong one in the first such upload.

use super::S3;
use super::sign::{CONTENT_SHA256, UNSIGNED};
use crate::http::base64::crc32c;
use crate::http::client::{Call, Outcome};
use bytes::Bytes;
use ebb_ports::{BucketError, ETag, UploadId};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const CRC32C: &str = "x-amz-checksum-crc32c";
/// Header of a request that begins an upload, and of its answer.
pub(super) const ALGORITHM: (&str, &str) = ("x-amz-checksum-algorithm", "CRC32C");

#[derive(Default)]
pub(super) struct Checksums {
    puts: AtomicBool,
    uploads: AtomicBool,
    parts: AtomicBool,
    copies: AtomicBool,
    begun: Mutex<HashSet<UploadId>>,
}

impl Checksums {
    pub fn of_puts(&self) -> bool {
        self.puts.load(Relaxed)
    }

    /// Whether uploads must be begun with checksums.
    pub fn of_uploads(&self) -> bool {
        self.uploads.load(Relaxed)
    }

    /// Whether the store is known to tell those of the parts that it copies.
    pub fn of_copies(&self) -> bool {
        self.copies.load(Relaxed)
    }

    pub fn gave_one_of_a_copy(&self) {
        self.copies.store(true, Relaxed);
    }

    /// Whether this one was begun so.
    pub fn of_upload(&self, upload: &UploadId) -> bool {
        self.begun.lock().unwrap().contains(upload)
    }

    pub fn begun(&self, upload: &UploadId) {
        self.begun.lock().unwrap().insert(upload.clone());
    }

    pub fn ended(&self, upload: &UploadId) {
        self.begun.lock().unwrap().remove(upload);
    }

    /// The store may have rejected the checksums: the next attempt is without.
    pub fn refused(&self, upload: &UploadId, error: &BucketError) {
        if matches!(error, BucketError::Refused { .. }) && self.of_upload(upload) {
            self.leave_uploads();
        }
    }

    /// The store checks puts, and not all that an upload can consist of.
    pub fn leave_uploads(&self) {
        if self.uploads.swap(false, Relaxed) {
            tracing::info!(
                "from now on the bucket is given the SHA-256 of parts: an upload with their \
                 CRC-32C did not do"
            );
        }
    }
}

impl S3 {
    /// Puts an object with a wrong checksum, which the store must refuse, then one with the right
    /// one.
    pub(super) async fn learn_checksums(&self, key: &str) -> Result<(), BucketError> {
        let body = Bytes::from_static(b"ebb");
        let put = |crc: String| by_crc32c(self.making("PUT", key, body.clone()), Some(&crc));
        // Any other failure is left to the next put to report.
        let checks = self.refuses(&put(crc32c(b""))).await?
            && matches!(self.try_call(&put(crc32c(&body))).await?, Outcome::Done(_));
        self.service.checksums.puts.store(checks, Relaxed);
        self.service.checksums.uploads.store(checks, Relaxed);
        Ok(())
    }

    /// Whether the store checks the parts of an upload that it has begun so.
    pub(super) async fn checks_parts(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> Result<bool, BucketError> {
        if !self.service.checksums.parts.load(Relaxed) {
            let part = self.part(key, upload, 1, Bytes::from_static(b"ebb"))?;
            let checks = self.refuses(&by_crc32c(part, Some(&crc32c(b"")))).await?;
            self.service.checksums.parts.store(checks, Relaxed);
        }
        Ok(self.service.checksums.parts.load(Relaxed))
    }

    /// Whether a body is refused for its checksum.
    async fn refuses(&self, call: &Call<'_>) -> Result<bool, BucketError> {
        let Outcome::Refused(refusal) = self.try_call(call).await? else { return Ok(false) };
        if refusal.is_of_damage() {
            return Ok(true);
        }
        // A busy store proves nothing.
        match self.error(call, &refusal) {
            error if error.is_silence() => Err(error),
            _ => Ok(false),
        }
    }
}

/// With a checksum the store checks the call's body by it, and the signature does not hash the
/// body.
pub(super) fn by_crc32c<'a>(call: Call<'a>, crc: Option<&str>) -> Call<'a> {
    match crc {
        Some(crc) => call.header(CRC32C, crc).header(CONTENT_SHA256, UNSIGNED),
        None => call,
    }
}

/// A part's tag, and its CRC-32C if the upload requires it. Tags have no blanks.
pub(super) fn receipt(etag: ETag, crc: Option<&str>) -> String {
    match crc {
        Some(crc) => format!("{etag} {crc}"),
        None => etag.0,
    }
}

pub(super) fn of_receipt(receipt: &str) -> (&str, Option<&str>) {
    match receipt.split_once(' ') {
        Some((etag, crc)) => (etag, Some(crc)),
        None => (receipt, None),
    }
}
