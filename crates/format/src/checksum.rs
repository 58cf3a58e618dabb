use crc_fast::{CrcAlgorithm, Digest};
use ebb_model::BLOCK_BYTES;

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

static ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// Of a block of zeros.
const SUM_OF_ZEROS: u32 = 0x72C0_C4A4;

/// CRC-32C of a block that has `bytes` at `at`, and zeros elsewhere.
pub fn crc32c_in_block(at: usize, bytes: &[u8]) -> u32 {
    let end = at + bytes.len();
    crc32c_of(&[&ZEROS[..at], bytes, &ZEROS[end..]])
}

/// What the CRC-32C of a block becomes when `bytes` are put to `at`, where it has zeros.
pub fn crc32c_with(sum: u32, at: usize, bytes: &[u8]) -> u32 {
    // It is linear but for what it begins with, which is all that there is of zeros.
    sum ^ crc32c_in_block(at, bytes) ^ SUM_OF_ZEROS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_beside_zeros_changes_a_checksum_by_itself() {
        assert_eq!(crc32c(&ZEROS), SUM_OF_ZEROS);
        let mut block = ZEROS;
        let mut sum = SUM_OF_ZEROS;
        for (at, bytes) in [(0, &b"first"[..]), (5, b"second"), (4000, &[7; 5000]), (65_535, b"x"), (70, b"")] {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            sum = crc32c_with(sum, at, bytes);
            assert_eq!(sum, crc32c(&block), "{at}");
        }
        assert_eq!(crc32c_in_block(3, b"abc"), crc32c_with(SUM_OF_ZEROS, 3, b"abc"));
    }
}
