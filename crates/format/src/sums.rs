//! Checksums of an object's spans, in a tag of the object, so a reader of any range can verify it
//! (`docs/format/bucket.md`).
//!
//! Laws:
//! - A span is a block (64 KiB), doubled until an object has at most 256 spans.
//! - The tag is bound to the object's length and its other tags, times among them. Tools that
//!   replace a body and keep its tags change at least the times, which invalidates this tag.

use crate::checksum::{crc32c, crc32c_in_block, crc32c_of, crc32c_of_blocks};
use ebb_model::BLOCK_BYTES;
use std::ops::Range;

/// Name of the tag.
pub const TAG: &str = "ebb-crc32c";

/// Limit of spans: stores limit the total size of all tags of an object.
const MAX_SPANS: u64 = 256;

/// Longer spans would hardly ever have a complete set of block checksums.
const MAX_SPAN_BYTES: u64 = 256 << 20;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Digit value by character; other characters map to [`NO_DIGIT`].
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < DIGITS.len() {
        values[DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    values
};

const NO_DIGIT: u8 = 64;

/// Digits of one checksum.
const WIDTH: usize = 6;

/// Encodes a missing checksum: larger than any CRC-32C.
const UNKNOWN: u64 = (1 << (6 * WIDTH)) - 1;

type Tags = [(String, String)];

/// The checksums of an object's spans, some of which can be missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sums {
    len_bytes: u64,
    span_bytes: u64,
    spans: Vec<Option<u32>>,
}

impl Sums {
    /// Calls `sum_of` for each span of an object of this length, in order. `None` if the object is
    /// too long.
    fn new(len_bytes: u64, sum_of: impl FnMut(Range<u64>) -> Option<u32>) -> Option<Sums> {
        let span_bytes = span_bytes(len_bytes)?;
        Some(Sums {
            len_bytes,
            span_bytes,
            spans: ranges(len_bytes, span_bytes).map(sum_of).collect(),
        })
    }

    pub fn of(content: &[u8]) -> Option<Sums> {
        Sums::new(content.len() as u64, |span| {
            Some(crc32c(&content[span.start as usize..span.end as usize]))
        })
    }

    /// Combines the checksums of the object's blocks, in order. The last block is padded with zeros
    /// to 64 KiB. A span with a missing block has no checksum.
    pub fn of_blocks(
        len_bytes: u64,
        mut blocks: impl Iterator<Item = Option<u32>>,
    ) -> Option<Sums> {
        let mut span: Vec<Option<u32>> = Vec::new();
        Sums::new(len_bytes, |range| {
            let span_bytes = range.end - range.start;
            span.clear();
            span.extend(blocks.by_ref().take(span_bytes.div_ceil(BLOCK_BYTES) as usize));
            crc32c_of_blocks(span_bytes, span.iter().copied())
        })
    }

    /// Copies checksums from `other` for the spans that are the `same` in both bodies.
    pub fn take_over(&mut self, other: &Sums, same: impl Fn(&Range<u64>, u32) -> bool) {
        if self.span_bytes != other.span_bytes {
            return;
        }
        let spans = ranges(self.len_bytes, self.span_bytes).zip(&mut self.spans);
        for ((span, sum), (known, other)) in
            spans.zip(ranges(other.len_bytes, other.span_bytes).zip(&other.spans))
        {
            *sum = sum.or_else(|| other.filter(|other| span == known && same(&span, *other)));
        }
    }

    pub fn is_any_known(&self) -> bool {
        self.spans.iter().any(Option::is_some)
    }

    pub fn are_all_known(&self) -> bool {
        self.spans.iter().all(Option::is_some)
    }

    /// Whether every checksum in `self` is equal to the one in `known`, for the same length.
    pub fn are_in(&self, known: &Sums) -> bool {
        let is_in = |(said, known): (&Option<u32>, &Option<u32>)| said.is_none() || said == known;
        self.len_bytes == known.len_bytes && self.spans.iter().zip(&known.spans).all(is_in)
    }

    /// Encodes the tag's value, for an object with the tags `others`.
    pub fn encode(&self, others: &Tags) -> String {
        let spans = self.spans.iter().map(|sum| sum.map_or(UNKNOWN, u64::from));
        let sums = [u64::from(self.bound_to(others))].into_iter().chain(spans);
        sums.flat_map(|sum| {
            (0..WIDTH).rev().map(move |place| DIGITS[(sum >> (6 * place) & 63) as usize] as char)
        })
        .collect()
    }

    /// Decodes the tag of an object of this length. `None` without a tag, or if the tag is bound to
    /// other tags or another length: some tools keep the tags of an object that they replace,
    /// except its times.
    pub fn decode(tags: &Tags, len_bytes: u64) -> Option<Sums> {
        let (_, value) = tags.iter().find(|(name, _)| name == TAG)?;
        let mut sums = value.as_bytes().chunks(WIDTH).map(from_digits);
        let bound = sums.next()??;
        let known =
            |sum| if sum == UNKNOWN { Some(None) } else { u32::try_from(sum).ok().map(Some) };
        let sums = Sums {
            len_bytes,
            span_bytes: span_bytes(len_bytes)?,
            spans: sums.map(|sum| known(sum?)).collect::<Option<_>>()?,
        };
        let fits = sums.spans.len() as u64 == len_bytes.div_ceil(sums.span_bytes);
        (fits && bound == u64::from(sums.bound_to(tags))).then_some(sums)
    }

    /// The spans that overlap `range` and have a checksum, with it.
    pub fn spans_of(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, u32)> {
        let first = range.start / self.span_bytes;
        let spans = ranges(self.len_bytes, self.span_bytes).zip(&self.spans).skip(first as usize);
        spans
            .take_while(move |(span, _)| span.start < range.end)
            .filter_map(|(span, sum)| Some((span, (*sum)?)))
    }

    /// The spans of `spans_of` that are only partly within `range`.
    pub fn cut_spans(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u32)> {
        self.spans_of(range.clone())
            .filter(|(span, _)| span.start < range.start || range.end < span.end)
    }

    /// The first damaged span among those that lie completely within these bytes.
    pub fn damage(&self, offset: u64, bytes: &[u8]) -> Option<Range<u64>> {
        let start = offset.next_multiple_of(BLOCK_BYTES);
        let bytes = bytes.get((start - offset) as usize..)?;
        self.damage_of_blocks(start, bytes.len() as u64, &sums_of_blocks(bytes))
    }

    /// Like `damage`, from the checksums of the blocks of `len_bytes` bytes; `start` is the start
    /// of a block.
    pub fn damage_of_blocks(
        &self,
        start: u64,
        len_bytes: u64,
        blocks: &[u32],
    ) -> Option<Range<u64>> {
        let all = start..start + len_bytes;
        let is_damaged = |(span, sum): &(Range<u64>, u32)| {
            let first = (span.start - start) / BLOCK_BYTES;
            let len_bytes = span.end - span.start;
            let blocks =
                blocks.iter().skip(first as usize).take(len_bytes.div_ceil(BLOCK_BYTES) as usize);
            crc32c_of_blocks(len_bytes, blocks.copied().map(Some)) != Some(*sum)
        };
        let mut whole = self
            .spans_of(all.clone())
            .filter(|(span, _)| all.start <= span.start && span.end <= all.end);
        whole.find(is_damaged).map(|(span, _)| span)
    }

    /// CRC-32C of the spans' checksums, the length and the other tags.
    fn bound_to(&self, tags: &Tags) -> u32 {
        let mut others: Vec<String> = tags
            .iter()
            .filter(|(name, _)| name != TAG)
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        others.sort_unstable();
        let spans: Vec<u8> =
            self.spans.iter().flat_map(|sum| sum.unwrap_or(u32::MAX).to_le_bytes()).collect();
        crc32c_of(&[&spans, &self.len_bytes.to_le_bytes(), others.concat().as_bytes()])
    }
}

/// The checksums of the blocks of `bytes`, which start at a block. The last block is padded with
/// zeros.
pub fn sums_of_blocks(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(BLOCK_BYTES as usize).map(|block| crc32c_in_block(0, block)).collect()
}

/// Length of a span of an object of this length: a block, doubled until `MAX_SPANS` suffice. `None`
/// above `MAX_SPAN_BYTES`.
fn span_bytes(len_bytes: u64) -> Option<u64> {
    let span_bytes = len_bytes.div_ceil(MAX_SPANS).next_power_of_two().max(BLOCK_BYTES);
    (span_bytes <= MAX_SPAN_BYTES).then_some(span_bytes)
}

fn ranges(len_bytes: u64, span_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    (0..len_bytes.div_ceil(span_bytes))
        .map(move |span| span * span_bytes..len_bytes.min((span + 1) * span_bytes))
}

fn from_digits(digits: &[u8]) -> Option<u64> {
    let append = |sum, digit: &u8| {
        let value = VALUES[*digit as usize];
        (value != NO_DIGIT).then_some(sum << 6 | u64::from(value))
    };
    if digits.len() == WIDTH { digits.iter().try_fold(0, append) } else { None }
}
