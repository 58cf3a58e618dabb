//! XTS-AES-256 (IEEE 1619, NIST SP 800-38E) over data units of 4 KiB. Any run of whole blocks of a
//! unit can be encrypted independently.

use crate::key::DataKey;
use aes::Aes256;
use aes::cipher::{Array, Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

pub const BLOCK_BYTES: usize = 16;

const UNIT_BYTES: u64 = 4096;

/// Blocks per call of the cipher, which pipelines them.
const BATCH: usize = 32;

/// Zeroed on drop.
pub struct Xts {
    contents: Aes256,
    tweaks: Aes256,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Encrypt,
    Decrypt,
}

impl Xts {
    pub fn new(key: &DataKey) -> Xts {
        let (contents, tweaks) = key.0.split_at(key.0.len() / 2);
        let cipher = |key: &[u8]| Aes256::new_from_slice(key).expect("half of two keys is one");
        Xts { contents: cipher(contents), tweaks: cipher(tweaks) }
    }

    /// Encrypts whole blocks at `offset` of a file whose first unit is `first_unit`.
    pub fn encrypt(&self, first_unit: u128, offset: u64, bytes: &mut [u8]) {
        self.run(first_unit, offset, bytes, Direction::Encrypt);
    }

    /// Decrypts whole blocks. An all-zero block was never written or was punched: it stays zero.
    /// Ciphertext is all zeros with a probability of 2^-128 per block.
    pub fn decrypt(&self, first_unit: u128, offset: u64, bytes: &mut [u8]) {
        self.run(first_unit, offset, bytes, Direction::Decrypt);
    }

    fn run(&self, first_unit: u128, offset: u64, bytes: &mut [u8], direction: Direction) {
        assert!(
            offset.is_multiple_of(BLOCK_BYTES as u64) && bytes.len().is_multiple_of(BLOCK_BYTES),
            "blocks are whole"
        );
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let within = at % UNIT_BYTES;
            let (part, more) = rest.split_at_mut(rest.len().min((UNIT_BYTES - within) as usize));
            let mut tweak = self.tweak(first_unit.wrapping_add(u128::from(at / UNIT_BYTES)));
            (0..within / BLOCK_BYTES as u64).for_each(|_| tweak = next(tweak));
            for batch in part.chunks_mut(BATCH * BLOCK_BYTES) {
                let (blocks, _) = Block::<Aes256>::slice_as_chunks_mut(batch);
                tweak = self.batch(blocks, tweak, direction);
            }
            at += part.len() as u64;
            rest = more;
        }
    }

    fn tweak(&self, unit: u128) -> u128 {
        let mut block = Array(unit.to_le_bytes());
        self.tweaks.encrypt_block(&mut block);
        u128::from_le_bytes(block.0)
    }

    /// Returns the tweak of the next block.
    fn batch(&self, blocks: &mut [Block<Aes256>], mut tweak: u128, direction: Direction) -> u128 {
        let mut tweaks = [0; BATCH];
        let mut untouched = [false; BATCH];
        for (at, block) in blocks.iter_mut().enumerate() {
            let value = u128::from_le_bytes(block.0);
            untouched[at] = direction == Direction::Decrypt && value == 0;
            tweaks[at] = tweak;
            block.0 = (value ^ tweak).to_le_bytes();
            tweak = next(tweak);
        }
        match direction {
            Direction::Encrypt => self.contents.encrypt_blocks(blocks),
            Direction::Decrypt => self.contents.decrypt_blocks(blocks),
        }
        for (at, block) in blocks.iter_mut().enumerate() {
            let value = u128::from_le_bytes(block.0) ^ tweaks[at];
            block.0 = if untouched[at] { 0 } else { value }.to_le_bytes();
        }
        tweak
    }
}

/// Multiplies by the primitive element of GF(2^128).
fn next(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    fn xts(key: [u8; 64]) -> Xts {
        Xts::new(&DataKey(Zeroizing::new(key)))
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    }

    /// Vector 10 of IEEE 1619; its unit is an eighth of one here.
    #[test]
    fn the_published_example() {
        let key = bytes(
            "27182818284590452353602874713526624977572470936999595749669676273141592653589793238462643383279502884197169399375105820974944592",
        );
        let plain: Vec<u8> = (0..512).map(|at| at as u8).collect();
        let mut run = plain.clone();
        let xts = xts(key.try_into().unwrap());
        xts.encrypt(0xff, 0, &mut run);
        assert_eq!(
            run[..32],
            bytes("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b")
        );
        assert_eq!(run[496..], bytes("c4f36ffda9fcea70b9c6e693e148c151"));
        xts.decrypt(0xff, 0, &mut run);
        assert_eq!(run, plain);
    }

    /// Several units match OpenSSL's output, and any part of them encrypts alike on its own.
    #[test]
    fn a_part_is_encrypted_as_it_is_in_the_whole() {
        let first_unit = (1 << 64) + 7;
        let xts = xts(std::array::from_fn(|at| at as u8));
        let plain: Vec<u8> = (0..10240usize).map(|at| (at * 7 + at / 256) as u8).collect();
        let mut whole = plain.clone();
        xts.encrypt(first_unit, 0, &mut whole);
        assert_eq!(whole[..16], bytes("0f451678ef62b723f1325f3042768fdf"));
        assert_eq!(whole[4096..4112], bytes("4199d7c21b3d6f94b629363c2f388892"));
        assert_eq!(whole[10224..], bytes("4e38416f5315f74eaef91fb961085805"));
        for (from, to) in
            [(0, 16), (16, 48), (4080, 4112), (512, 10240), (8176, 8192), (4096, 8192)]
        {
            let mut part = plain[from..to].to_vec();
            xts.encrypt(first_unit, from as u64, &mut part);
            assert_eq!(part, whole[from..to], "{from}..{to}");
            xts.decrypt(first_unit, from as u64, &mut part);
            assert_eq!(part, plain[from..to], "{from}..{to}");
        }
    }

    /// Written zeros are not zeros on the disk; zeros on the disk were never written.
    #[test]
    fn holes_are_zeros() {
        let xts = xts([7; 64]);
        let mut run = [0; 64];
        xts.encrypt(1, 0, &mut run[16..48]);
        assert!(run[16..48].chunks(16).all(|block| block != [0; 16]));
        xts.decrypt(1, 0, &mut run[16..48]);
        assert_eq!(run, [0; 64]);
        xts.decrypt(1, 0, &mut run);
        assert_eq!(run, [0; 64]);
    }
}
