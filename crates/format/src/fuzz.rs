//! Recomputes checksums for the fuzz targets, so decoding of a mutated input passes the checksums
//! and reaches the decoder behind them.

use crate::body::u32_at;
use crate::checksum::crc32c_of;
use crate::{
    backup, crc32c, encryption, head, identity, json, page, record, rpc, segment, snapshot,
};
use bytes::Bytes;

pub fn encrypted_file(bytes: &mut [u8]) {
    put_behind(bytes, encryption::CRC_AT);
}

pub fn segment(bytes: &mut [u8]) {
    put_behind(bytes, segment::CRC_AT);
}

/// Directory pages and their pieces.
pub fn page(bytes: &mut [u8]) {
    if let Some(at) = bytes.len().checked_sub(page::CRC_BYTES) {
        put_behind(bytes, at);
    }
}

/// Reseals every frame whose length is within the stream.
pub fn snapshot(bytes: &mut [u8]) {
    put_behind(bytes, snapshot::HEADER_CRC_AT);
    let Some((header, mut rest)) = bytes.split_at_mut_checked(snapshot::HEADER_BYTES) else {
        return;
    };
    let mut crc = u32_at(header, snapshot::HEADER_CRC_AT);
    while let Some((prefix, behind)) = rest.split_at_mut_checked(snapshot::FRAME_PREFIX_BYTES) {
        let length = u32_at(prefix, 0);
        let Some((content, next)) = behind.split_at_mut_checked(snapshot::content_bytes(length))
        else {
            return;
        };
        crc = snapshot::chained(crc, &prefix[..4], content);
        prefix[4..].copy_from_slice(&crc.to_le_bytes());
        rest = next;
    }
}

/// Reseals consecutive records, as far as their lengths are within the segment.
pub fn records(bytes: &mut [u8]) {
    let mut rest = bytes;
    while let Some((head, behind)) = rest.split_at_mut_checked(record::LINE_BYTES) {
        let lines =
            record::record_bytes(u32_at(head, record::LENGTH_AT) as usize) - record::LINE_BYTES;
        let Some((lines, next)) = behind.split_at_mut_checked(lines) else { return };
        if !record::is_zeros(head) {
            head[record::PAYLOAD_CRC_AT..record::KIND_AT]
                .copy_from_slice(&crc32c(lines).to_le_bytes());
            let crc = crc32c(&head[record::LENGTH_AT..]);
            head[..record::LENGTH_AT].copy_from_slice(&crc.to_le_bytes());
        }
        rest = next;
    }
}

pub fn rpc(bytes: &mut [u8]) {
    let Some((prefix, rest)) = bytes.split_at_mut_checked(rpc::PREFIX_BYTES) else { return };
    let Some((header, bulk)) =
        rest.split_at_checked(u32_at(prefix, rpc::HEADER_LENGTH_AT) as usize)
    else {
        return;
    };
    prefix[rpc::BULK_CRC_AT..rpc::HEADER_CRC_AT].copy_from_slice(&crc32c(bulk).to_le_bytes());
    let crc = crc32c_of(&[&prefix[..rpc::HEADER_CRC_AT], header]);
    prefix[rpc::HEADER_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
}

pub fn versions(bytes: &mut [u8]) {
    let Some((versions, crc)) = bytes.split_at_mut_checked(crate::versions::LEN_BYTES - 4) else {
        return;
    };
    if let Some(crc) = crc.first_chunk_mut() {
        *crc = crc32c(versions).to_le_bytes();
    }
}

pub fn head(bytes: &[u8]) -> Option<Bytes> {
    json::resealed::<head::Content>(bytes)
}

pub fn identity(bytes: &[u8]) -> Option<Bytes> {
    json::resealed::<identity::Content>(bytes)
}

pub fn backup(bytes: &[u8]) -> Option<Bytes> {
    json::resealed::<backup::Content>(bytes)
}

pub fn wrapped_key(bytes: &[u8]) -> Option<Bytes> {
    json::resealed::<encryption::Content>(bytes)
}

/// Writes the checksum of `bytes[..at]` to `bytes[at..at + 4]`.
fn put_behind(bytes: &mut [u8], at: usize) {
    if let Some((before, crc)) = bytes.split_at_mut_checked(at)
        && let Some(crc) = crc.get_mut(..4)
    {
        crc.copy_from_slice(&crc32c(before).to_le_bytes());
    }
}
