//! Checksums of an object's content in a tag of the object, so that whoever reads a range of it
//! sees whether that is what was written (`docs/format/bucket.md`).

use crate::checksum::{crc32c, crc32c_of};
use ebb_model::BLOCK_BYTES;

/// The tag's name.
pub const TAG: &str = "ebb-crc32c";

/// What stores allow for all tags of an object together has room for no more.
const MAX_BLOCKS: usize = 256;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Digits of one checksum.
const WIDTH: usize = 6;

type Tags = [(String, String)];

/// The checksums of an object's blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sums {
    len_bytes: u64,
    blocks: Vec<u32>,
}

impl Sums {
    /// `None` where a tag has no room for so many.
    pub fn of(content: &[u8]) -> Option<Sums> {
        let blocks = content.chunks(BLOCK_BYTES as usize).map(crc32c).collect::<Vec<u32>>();
        (blocks.len() <= MAX_BLOCKS).then_some(Sums { len_bytes: content.len() as u64, blocks })
    }

    /// The tag's value, for an object that has these `others`.
    pub fn encode(&self, others: &Tags) -> String {
        let sums = [self.bound_to(others)].into_iter().chain(self.blocks.iter().copied());
        sums.flat_map(|sum| (0..WIDTH).rev().map(move |place| DIGITS[(u64::from(sum) >> (6 * place) & 63) as usize] as char)).collect()
    }

    /// What the tags of an object of this length say. `None` where they say nothing, or what they say is of
    /// other content: some tools keep the tags of an object when they replace it, but for its times.
    pub fn decode(tags: &Tags, len_bytes: u64) -> Option<Sums> {
        let (_, value) = tags.iter().find(|(name, _)| name == TAG)?;
        let mut sums = value.as_bytes().chunks(WIDTH).map(from_digits);
        let bound = sums.next()??;
        let sums = Sums { len_bytes, blocks: sums.collect::<Option<_>>()? };
        let fits = sums.blocks.len() <= MAX_BLOCKS && sums.blocks.len() as u64 == len_bytes.div_ceil(BLOCK_BYTES);
        (fits && bound == sums.bound_to(tags)).then_some(sums)
    }

    /// Where the first block begins that is not what was written, of those that are whole in these bytes.
    pub fn damage(&self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let end = offset + bytes.len() as u64;
        let blocks = (0..).step_by(BLOCK_BYTES as usize).zip(&self.blocks).skip(offset.div_ceil(BLOCK_BYTES) as usize);
        let whole =
            blocks.map(|(start, sum)| (start..self.len_bytes.min(start + BLOCK_BYTES), *sum)).take_while(|(range, _)| range.end <= end);
        let damaged = |(range, sum): &(std::ops::Range<u64>, u32)| {
            crc32c(&bytes[(range.start - offset) as usize..(range.end - offset) as usize]) != *sum
        };
        whole.filter(damaged).map(|(range, _)| range.start).next()
    }

    /// The checksum of all that these are true of: the blocks', the length, and the other tags.
    fn bound_to(&self, tags: &Tags) -> u32 {
        let mut others: Vec<String> =
            tags.iter().filter(|(name, _)| name != TAG).map(|(name, value)| format!("{name}={value}\n")).collect();
        others.sort_unstable();
        let blocks: Vec<u8> = self.blocks.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        crc32c_of(&[&blocks, &self.len_bytes.to_le_bytes(), others.concat().as_bytes()])
    }
}

fn from_digits(digits: &[u8]) -> Option<u32> {
    if digits.len() != WIDTH {
        return None;
    }
    let value = digits.iter().try_fold(0u64, |value, digit| {
        let place = DIGITS.iter().position(|known| known == digit)?;
        Some(value << 6 | place as u64)
    });
    value?.try_into().ok()
}
