//! CRC-32C, whole and combined from blocks without reading their bytes again.

use crc_fast::{CrcAlgorithm, Digest};
use ebb_model::BLOCK_BYTES;

/// CRC-32C (Castagnoli), used by every format and for the blocks of cached files.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32C of the concatenation of `parts`.
pub(crate) fn crc32c_of(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

/// CRC-32C of a block of zeros (64 KiB).
pub const SUM_OF_ZEROS: u32 = 0x72C0_C4A4;

/// CRC-32C of a block with `bytes` at offset `at` and zeros elsewhere.
pub fn crc32c_in_block(at: usize, bytes: &[u8]) -> u32 {
    crc32c_with(SUM_OF_ZEROS, at, bytes)
}

/// CRC-32C of a block after `bytes` replace zeros at offset `at`; `sum` is the checksum before. The
/// cost depends on `bytes.len()` alone: the rest of the block is not read.
pub fn crc32c_with(sum: u32, at: usize, bytes: &[u8]) -> u32 {
    if bytes.len() as u64 == BLOCK_BYTES {
        return crc32c(bytes);
    }
    // CRC is linear apart from its initial value, which is the only contribution of a run of zeros.
    let added = crc32c(bytes) ^ !followed_by(!0, bytes.len() as u64);
    sum ^ followed_by(added, BLOCK_BYTES - (at + bytes.len()) as u64)
}

/// CRC-32C of `len_bytes` bytes, combined from the checksums of their blocks in order. The last
/// block is padded with zeros; `None` if the checksum of any block is missing.
pub fn crc32c_of_blocks(
    len_bytes: u64,
    blocks: impl IntoIterator<Item = Option<u32>>,
) -> Option<u32> {
    let all = blocks.into_iter().try_fold(0, |sum, block| {
        Some(times(SQUARES[BLOCK_BYTES.ilog2() as usize], sum) ^ block?)
    })?;
    let zeros = len_bytes.next_multiple_of(BLOCK_BYTES) - len_bytes;
    Some(!followed_by(!all, PERIOD - zeros))
}

/// Multiplying a remainder by x^(8 n) for n = `PERIOD` is the identity, so `PERIOD - n` removes n
/// zeros.
const PERIOD: u64 = (1 << 31) - 1;

/// The remainder after `zeros` zero bytes are appended.
fn followed_by(remainder: u32, zeros: u64) -> u32 {
    let powers = (0..).zip(SQUARES).filter(|(bit, _)| zeros >> bit & 1 == 1);
    powers.fold(remainder, |remainder, (_, power)| times(power, remainder))
}

/// Castagnoli's polynomial, bit-reversed: the highest power is the last bit.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// x to the power of 8, 16, 32, ...: one factor for each bit of a count of zeros below `PERIOD`.
const SQUARES: [u32; 31] = {
    let mut squares = [1 << 23; 31];
    let mut at = 1;
    while at < squares.len() {
        squares[at] = times(squares[at - 1], squares[at - 1]);
        at += 1;
    }
    squares
};

/// Product of two remainders modulo the polynomial.
const fn times(a: u32, mut b: u32) -> u32 {
    let (mut product, mut power) = (0, 1 << 31);
    while power != 0 {
        if a & power != 0 {
            product ^= b;
        }
        b = (b >> 1) ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
        power >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_with_adds_bytes_to_a_block_of_zeros() {
        let mut block = [0; BLOCK_BYTES as usize];
        assert_eq!(crc32c(&block), SUM_OF_ZEROS);
        let mut sum = SUM_OF_ZEROS;
        for (at, bytes) in
            [(0, &b"first"[..]), (5, b"second"), (4000, &[7; 5000]), (65_535, b"x"), (70, b"")]
        {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            sum = crc32c_with(sum, at, bytes);
            assert_eq!(sum, crc32c(&block), "{at}");
        }
        assert_eq!(crc32c_in_block(3, b"abc"), crc32c_with(SUM_OF_ZEROS, 3, b"abc"));
    }

    #[test]
    fn crc32c_of_blocks_equals_crc32c_of_the_bytes() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES as u32 + 7)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        for len in [0, 1, 65_535, 65_536, 65_537, 196_608, bytes.len()] {
            let blocks = bytes[..len]
                .chunks(BLOCK_BYTES as usize)
                .map(|block| Some(crc32c_in_block(0, block)));
            assert_eq!(crc32c_of_blocks(len as u64, blocks), Some(crc32c(&bytes[..len])), "{len}");
        }
        assert_eq!(crc32c_of_blocks(2 * BLOCK_BYTES, [Some(1), None]), None);
    }
}
