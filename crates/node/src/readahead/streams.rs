//! Detects sequential reads of files, and decides how far ahead of them to fetch (O-84).

use ebb_model::Ino;
use std::ops::Range;

/// The kernel sends the reads of one stream slightly out of order.
const SLACK_BYTES: u64 = 2 << 20;

/// The size of one request: small for the first bytes of a stream, so that they come
/// soon, then as large as still spreads a window over several connections.
const MIN_REQUEST_BYTES: u64 = 256 << 10;
pub const MAX_REQUEST_BYTES: u64 = 8 << 20;

/// The first read-ahead window of a stream.
const FIRST_WINDOW_BYTES: u64 = 1 << 20;

/// The most streams of all files. The least recently used one makes way.
const MAX_STREAMS: usize = 256;

/// The most streams of one file, so that random reads in it displace no other file's.
const MAX_OF_FILE: usize = 16;

/// So many equal steps from one read to the next are a pattern.
const LEAST_STEPS: u32 = 3;

/// The most reads that are fetched ahead of a reader with equal steps.
const MAX_STEPS: u64 = 64;

#[derive(Default)]
pub struct Streams {
    streams: Vec<Stream>,
    strides: Vec<Stride>,
    reads: u64,
}

/// Reads of one file with gaps between them, from each beginning to the next.
struct Stride {
    ino: Ino,
    last: u64,
    step: u64,
    /// How many times in a row the step was the same.
    run: u32,
    /// The last requested read begins here.
    ahead: u64,
    /// Number of the last read.
    used: u64,
}

impl Stride {
    /// The ranges to request after a read at another place.
    fn go_on(&mut self, wanted: &Range<u64>, most_bytes: u64) -> Vec<Range<u64>> {
        let step = wanted.start.saturating_sub(self.last);
        self.last = wanted.start;
        if step == 0 || step != self.step {
            (self.step, self.run, self.ahead) = (step, 1, wanted.start);
            return Vec::new();
        }
        self.run = self.run.saturating_add(1);
        let Some(beyond) = self.run.checked_sub(LEAST_STEPS) else { return Vec::new() };
        let len_bytes = wanted.end - wanted.start;
        let most_steps = (most_bytes / len_bytes.max(1)).max(u64::from(most_bytes > 0));
        let steps = (2u64 << beyond.min(5)).min(MAX_STEPS).min(most_steps);
        let from = self.ahead.max(wanted.start);
        let upto = wanted.start.saturating_add(steps.saturating_mul(step));
        // Refilled when half of it is used.
        if from > wanted.start.saturating_add((steps / 2).saturating_mul(step)) || upto <= from {
            return Vec::new();
        }
        self.ahead = upto;
        let starts = (1..=(upto - from) / step).map(|ahead| from + ahead * step);
        starts.map(|start| start..start.saturating_add(len_bytes)).collect()
    }
}

struct Stream {
    ino: Ino,
    /// Where the next read is expected.
    next: u64,
    window_bytes: u64,
    /// Requested up to here.
    ahead: u64,
    /// Number of the last read.
    used: u64,
}

impl Stream {
    /// The distance of this read from the expected next one, if it can be that. Random reads hardly
    /// ever follow each other, but many are near to each other.
    fn distance_of(&self, wanted: &Range<u64>) -> Option<u64> {
        let is_near = match self.window_bytes {
            0 => (self.next..=self.next.saturating_add(wanted.end - wanted.start))
                .contains(&wanted.start),
            window_bytes => wanted.start.abs_diff(self.next) <= SLACK_BYTES.min(window_bytes / 2),
        };
        is_near.then(|| wanted.start.abs_diff(self.next))
    }
}

impl Streams {
    /// Notes a read; returns the ranges that its stream, or a reader with equal steps, will want
    /// next, if it is time to request them. At most `most_bytes` are requested ahead of it.
    pub fn read(&mut self, ino: Ino, wanted: &Range<u64>, most_bytes: u64) -> Vec<Range<u64>> {
        self.reads += 1;
        match self.follow(ino, wanted, most_bytes) {
            Some(ahead) => ahead.into_iter().collect(),
            None => self.stride(ino, wanted, most_bytes),
        }
    }

    /// `None` where it belongs to no known stream.
    fn follow(
        &mut self,
        ino: Ino,
        wanted: &Range<u64>,
        most_bytes: u64,
    ) -> Option<Option<Range<u64>>> {
        let used = self.reads;
        let of_file = self.streams.iter_mut().filter(|stream| stream.ino == ino);
        let followed = of_file
            .filter_map(|stream| Some((stream.distance_of(wanted)?, stream)))
            .min_by_key(|(distance, _)| *distance);
        let Some((_, stream)) = followed else {
            // One read is no stream yet: a reader of the beginnings of many files waits for those
            // alone.
            self.begin(Stream { ino, next: wanted.end, window_bytes: 0, ahead: wanted.end, used });
            return None;
        };
        stream.used = used;
        stream.next = stream.next.max(wanted.end);
        // Refilled when half of it is used, so that requests stay large.
        if stream.ahead > stream.next.saturating_add(stream.window_bytes / 2) {
            return Some(None);
        }
        stream.window_bytes = (stream.window_bytes * 2).max(FIRST_WINDOW_BYTES).min(most_bytes);
        let begin = stream.ahead.max(wanted.start);
        let upto = stream.next.saturating_add(stream.window_bytes);
        // Large requests end where an object's spans do; the small ones of a slow line would become
        // too large.
        let step = request_bytes(stream.window_bytes);
        let whole = upto - upto % step;
        stream.ahead = if step > MIN_REQUEST_BYTES && whole > begin { whole } else { upto };
        Some(Some(begin..stream.ahead))
    }

    fn stride(&mut self, ino: Ino, wanted: &Range<u64>, most_bytes: u64) -> Vec<Range<u64>> {
        let used = self.reads;
        if let Some(stride) = self.strides.iter_mut().find(|stride| stride.ino == ino) {
            stride.used = used;
            return stride.go_on(wanted, most_bytes);
        }
        let begun = Stride { ino, last: wanted.start, step: 0, run: 0, ahead: 0, used };
        if self.strides.len() < MAX_STREAMS {
            self.strides.push(begun);
        } else if let Some(oldest) = self.strides.iter_mut().min_by_key(|other| other.used) {
            *oldest = begun;
        }
        Vec::new()
    }

    /// The largest read-ahead window of the file's streams.
    fn window_bytes(&self, ino: Ino) -> u64 {
        self.streams
            .iter()
            .filter(|stream| stream.ino == ino)
            .map(|stream| stream.window_bytes)
            .max()
            .unwrap_or(0)
    }

    /// The size of one request of the file.
    pub fn request_bytes(&self, ino: Ino) -> u64 {
        request_bytes(self.window_bytes(ino))
    }

    pub fn forget(&mut self, ino: Ino) {
        self.streams.retain(|stream| stream.ino != ino);
        self.strides.retain(|stride| stride.ino != ino);
    }

    fn begin(&mut self, stream: Stream) {
        let of_file = self.streams.iter().filter(|other| other.ino == stream.ino).count();
        let only = (of_file >= MAX_OF_FILE).then_some(stream.ino);
        if only.is_none() && self.streams.len() < MAX_STREAMS {
            self.streams.push(stream);
            return;
        }
        let candidates =
            self.streams.iter_mut().filter(|other| only.is_none_or(|only| other.ino == only));
        if let Some(oldest) = candidates.min_by_key(|other| other.used) {
            *oldest = stream;
        }
    }
}

fn request_bytes(window_bytes: u64) -> u64 {
    (window_bytes / 8).next_power_of_two().clamp(MIN_REQUEST_BYTES, MAX_REQUEST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u64 = 128 << 10;
    const MOST: u64 = 64 << 20;
    const GIB: u64 = 1 << 30;

    fn read(streams: &mut Streams, ino: u64, at: u64) -> Option<Range<u64>> {
        let ahead = streams.read(Ino(ino), &(at..at + READ), MOST);
        assert!(ahead.len() < 2, "{ahead:?}");
        ahead.into_iter().next()
    }

    #[test]
    fn a_stream_is_run_ahead_of_from_its_second_read_on() {
        let mut streams = Streams::default();
        assert_eq!(read(&mut streams, 1, 0), None);
        assert_eq!(streams.window_bytes(Ino(1)), 0);
        assert_eq!(read(&mut streams, 1, READ), Some(READ..2 * READ + FIRST_WINDOW_BYTES));
        let mut ahead = 2 * READ + FIRST_WINDOW_BYTES;
        for at in (2..4000).map(|read| read * READ) {
            if let Some(range) = read(&mut streams, 1, at) {
                assert_eq!(range.start, ahead, "nothing is left out and nothing asked for twice");
                let step = streams.request_bytes(Ino(1));
                assert!(
                    range.end <= at + READ + MOST
                        && (step == MIN_REQUEST_BYTES || range.end.is_multiple_of(step))
                );
                ahead = range.end;
            }
            assert!(ahead > at + READ, "{at}: the reader has caught up");
        }
        assert_eq!(streams.window_bytes(Ino(1)), MOST);
    }

    #[test]
    fn readahead_of_zero_requests_nothing_ahead() {
        let mut streams = Streams::default();
        for at in (0..100).map(|read| read * READ) {
            let ahead = streams.read(Ino(1), &(at..at + READ), 0);
            assert!(ahead.iter().all(|range| range.end <= at + READ));
        }
    }

    #[test]
    fn readahead_follows_strided_reads() {
        const STEP: u64 = 5 << 20;
        let mut streams = Streams::default();
        let mut asked = Vec::new();
        for read in 0..500 {
            let at = 7 + read * STEP;
            asked.extend(streams.read(Ino(1), &(at..at + READ), MOST));
            assert!(
                read < 4 || asked.iter().any(|range: &Range<u64>| range.start > at),
                "{read}: the reader has caught up"
            );
        }
        let first = 7 + 4 * STEP;
        assert!(
            asked
                .iter()
                .zip(0..)
                .all(|(range, step)| *range == (first + step * STEP..first + step * STEP + READ))
        );
        assert!(asked.len() < 500 + MAX_STEPS as usize);
        let elsewhere = streams.read(Ino(1), &(3..3 + READ), MOST);
        assert_eq!(elsewhere, []);
    }

    #[test]
    fn steps_of_any_length_ask_for_nothing_that_cannot_be() {
        let mut streams = Streams::default();
        let step = u64::MAX / 8;
        for at in (0..8).map(|read| read * step).chain([u64::MAX - 1, u64::MAX]) {
            let ahead = streams.read(Ino(1), &(at..at.saturating_add(READ)), MOST);
            assert!(
                ahead.iter().all(|range| at <= range.start && range.start <= range.end),
                "{ahead:?}"
            );
            streams.read(Ino(2), &(at..at), MOST);
        }
    }

    #[test]
    fn each_of_several_readers_of_a_file_is_run_ahead_of() {
        let mut streams = Streams::default();
        let mut asked = [0; 8];
        for at in (0..400).map(|read| read * READ) {
            for reader in 0..8 {
                let at = reader * GIB + at;
                let ahead = streams.read(Ino(1), &(at..at + READ), MOST);
                asked[reader as usize] +=
                    ahead.iter().map(|range| range.end - range.start).sum::<u64>();
            }
        }
        assert!(asked.iter().all(|bytes| *bytes >= 400 * READ), "{asked:?}");
    }

    #[test]
    fn reads_anywhere_displace_no_reader_of_another_file_and_are_not_run_ahead_of() {
        let mut streams = Streams::default();
        let mut asked = 0;
        for round in 0..400 {
            let ahead = read(&mut streams, 2, round * READ);
            asked += ahead.map_or(0, |range| range.end - range.start);
            for random in 0..10 {
                let at = (round * 10 + random).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                assert_eq!(read(&mut streams, 1, at), None);
            }
        }
        assert!(asked >= 400 * READ, "{asked}");
        assert_eq!(streams.streams.len(), MAX_OF_FILE + 1);
    }

    #[test]
    fn reads_anywhere_in_a_file_are_hardly_ever_taken_for_a_stream() {
        let mut streams = Streams::default();
        let (reads, mut asked, mut random) = (4000, 0, 1u64);
        for _ in 0..reads {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let ahead = read(&mut streams, 1, (random >> 33) % (GIB / 2 / READ) * READ);
            asked += ahead.map_or(0, |range| range.end - range.start);
        }
        assert!(asked * 10 < reads * READ, "{asked} bytes ahead of {}", reads * READ);
    }

    #[test]
    fn many_files_take_bounded_memory() {
        let mut streams = Streams::default();
        for ino in 0..10_000 {
            read(&mut streams, ino, 0);
        }
        assert_eq!(streams.streams.len(), MAX_STREAMS);
        assert!(read(&mut streams, 9_999, READ).is_some() && read(&mut streams, 0, READ).is_none());
        streams.forget(Ino(9_999));
        assert_eq!(streams.window_bytes(Ino(9_999)), 0);
    }
}
