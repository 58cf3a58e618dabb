//! Checksums of an object's content in a tag of the object, so that whoever reads a range of it
//! sees whether that is what was written (`docs/format/bucket.md`).

use crate::checksum::{crc32c, crc32c_in_block, crc32c_of, crc32c_of_blocks};
use ebb_model::BLOCK_BYTES;
use std::ops::Range;

/// The tag's name.
pub const TAG: &str = "ebb-crc32c";

/// What stores allow for all tags of an object together has room for no more.
const MAX_SPANS: u64 = 256;

/// Of longer ones nobody would ever have all.
const MAX_SPAN_BYTES: u64 = 256 << 20;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// By character. No digit is [`NO_DIGIT`].
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

/// In the place of one that is not known: all digits the last one, which no checksum has.
const UNKNOWN: u64 = (1 << (6 * WIDTH)) - 1;

type Tags = [(String, String)];

/// The checksums of an object's spans.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sums {
    len_bytes: u64,
    span_bytes: u64,
    spans: Vec<Option<u32>>,
}

impl Sums {
    /// Of an object of this length, whose content's checksums are asked for in order. `None` where
    /// it is too long.
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

    /// From those of its blocks, in order, each of which is of 64 KiB with zeros behind the end, as
    /// far as they are known.
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

    /// Takes over what `other` says of spans that are the `same` in both contents.
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

    /// What these say is true of content of which those are all that is known.
    pub fn are_in(&self, known: &Sums) -> bool {
        let is_in = |(said, known): (&Option<u32>, &Option<u32>)| said.is_none() || said == known;
        self.len_bytes == known.len_bytes && self.spans.iter().zip(&known.spans).all(is_in)
    }

    /// The tag's value, for an object that has these `others`.
    pub fn encode(&self, others: &Tags) -> String {
        let spans = self.spans.iter().map(|sum| sum.map_or(UNKNOWN, u64::from));
        let sums = [u64::from(self.bound_to(others))].into_iter().chain(spans);
        sums.flat_map(|sum| {
            (0..WIDTH).rev().map(move |place| DIGITS[(sum >> (6 * place) & 63) as usize] as char)
        })
        .collect()
    }

    /// What the tags of an object of this length say. `None` where they say nothing, or what they
    /// say is of other content: some tools keep the tags of an object when they replace it, but for
    /// its times.
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

    /// The spans that have something of this range and a checksum, which is given with each.
    pub fn spans_of(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, u32)> {
        let first = range.start / self.span_bytes;
        let spans = ranges(self.len_bytes, self.span_bytes).zip(&self.spans).skip(first as usize);
        spans
            .take_while(move |(span, _)| span.start < range.end)
            .filter_map(|(span, sum)| Some((span, (*sum)?)))
    }

    /// Those that are in it only in part.
    pub fn cut_spans(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u32)> {
        self.spans_of(range.clone())
            .filter(|(span, _)| span.start < range.start || range.end < span.end)
    }

    /// The first span that is not what was written, of those that are whole in these bytes.
    pub fn damage(&self, offset: u64, bytes: &[u8]) -> Option<Range<u64>> {
        let start = offset.next_multiple_of(BLOCK_BYTES);
        let bytes = bytes.get((start - offset) as usize..)?;
        self.damage_of_blocks(start, bytes.len() as u64, &sums_of_blocks(bytes))
    }

    /// The same by the checksums of the blocks of so many bytes, from the beginning of a block on.
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

    /// The checksum of all that these are true of: the spans', the length, and the other tags.
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

/// The checksums of the blocks of bytes that begin with one. The last one may have zeros behind the
/// end.
pub fn sums_of_blocks(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(BLOCK_BYTES as usize).map(|block| crc32c_in_block(0, block)).collect()
}

/// How much of an object of this length one checksum is of: a block, doubled until there is room
/// for all.
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
