use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C (Castagnoli), of every format and of the blocks of cached files.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32C of the parts one after the other.
pub(crate) fn crc32c_of(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}
