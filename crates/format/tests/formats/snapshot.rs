use ebb_format::FormatError;
use ebb_format::record::{GroupId, Position, Term};
use ebb_format::segment::VolumeId;
use ebb_format::snapshot::{MAX_FRAME_BYTES, Part, SnapshotHeader, SnapshotReader, SnapshotWriter};
use ebb_model::{LogIndex, Version};
use proptest::prelude::*;

fn header() -> SnapshotHeader {
    SnapshotHeader {
        volume: VolumeId(0x0a0b << 100 | 5),
        group: GroupId(1),
        term: Term(2),
        index: LogIndex(300),
        position: Position(320),
        version: Version(4000),
    }
}

/// The stream's byte strings: header, frames, end.
fn pieces(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (mut writer, first) = SnapshotWriter::new(&header());
    let mut pieces = vec![first.to_vec()];
    pieces.extend(frames.iter().map(|frame| writer.frame(frame).expect("samples fit").to_vec()));
    pieces.push(writer.end().to_vec());
    pieces
}

fn read(stream: &[u8], step: usize) -> Result<Vec<Part>, FormatError> {
    let mut reader = SnapshotReader::new();
    let mut parts = Vec::new();
    for bytes in stream.chunks(step) {
        reader.push(bytes);
        while let Some(part) = reader.next_part()? {
            parts.push(part);
        }
    }
    reader.finish()?;
    Ok(parts)
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    vec![
        ("empty".into(), pieces(&[]).concat()),
        ("two-frames".into(), pieces(&[vec![1, 2, 3], Vec::new()]).concat()),
    ]
}

pub fn meaning(bytes: &[u8]) -> Option<String> {
    read(bytes, bytes.len()).ok().map(|parts| format!("{parts:?}"))
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let parts = read(bytes, bytes.len()).ok()?;
    let contents = parts.iter().filter_map(|part| match part {
        Part::Frame(frame) => Some(frame.content.to_vec()),
        Part::Header(_) | Part::End { .. } => None,
    });
    Some((format!("{parts:?}"), pieces(&contents.collect::<Vec<_>>()).concat()))
}

fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6)
}

proptest! {
    /// The parts do not depend on how the stream is split into reads.
    #[test]
    fn a_stream_is_read_as_it_was_written(frames in frames(), step in 1..200usize) {
        let parts = read(&pieces(&frames).concat(), step).expect("the stream is whole");
        prop_assert_eq!(&parts[0], &Part::Header(header()));
        prop_assert_eq!(parts.last(), Some(&Part::End { frames: frames.len() as u64 }));
        let contents = parts.iter().filter_map(|part| match part { Part::Frame(frame) => Some(frame.content.to_vec()), _ => None });
        prop_assert_eq!(contents.collect::<Vec<_>>(), frames);
    }

    #[test]
    fn a_flipped_bit_is_noticed(frames in frames(), bit: prop::sample::Index) {
        let mut stream = pieces(&frames).concat();
        let bit = bit.index(stream.len() * 8);
        stream[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(read(&stream, 64).is_err());
    }

    #[test]
    fn a_short_stream_is_noticed(frames in frames(), cut: prop::sample::Index) {
        let stream = pieces(&frames).concat();
        let cut = cut.index(stream.len());
        let error = read(&stream[..cut], 64).expect_err("it is short");
        prop_assert!(matches!(error, FormatError::Truncated { offset, .. } if offset == cut as u64), "{error}");
    }

    /// Frames with valid checksums that are lost, repeated or reordered.
    #[test]
    fn another_order_is_noticed(frames in frames(), from: prop::sample::Index, to: prop::sample::Index, how in 0..3) {
        let whole = pieces(&frames);
        let (from, to) = (from.index(whole.len()), to.index(whole.len()));
        let mut altered = whole.clone();
        match how {
            0 => altered.swap(from, to),
            1 => altered.insert(to, whole[from].clone()),
            _ => { altered.remove(from); }
        }
        prop_assume!(altered != whole);
        prop_assert!(read(&altered.concat(), 64).is_err());
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read(&bytes, 16).is_err());
    }
}

#[test]
fn a_frame_carries_a_value() {
    let (mut writer, first) = SnapshotWriter::new(&header());
    let frame = writer.value(&("name", 7u64)).expect("it fits");
    let stream = [first, frame, writer.end()].concat();
    let parts = read(&stream, 1000).expect("the stream is whole");
    let Part::Frame(frame) = &parts[1] else { panic!("the second part is the frame") };
    assert_eq!(frame.value::<(String, u64)>(), Ok(("name".into(), 7)));
    assert!(matches!(frame.value::<String>(), Err(FormatError::Invalid { offset: 76, .. })));
}

/// Situation: the length of a frame is damaged to four gigabytes. Danger: the reader waits for them
/// for ever. Expectation: an error at the frame, and the same error on the next call.
#[test]
fn a_length_beyond_all_frames_is_an_error_at_once() {
    let mut stream = pieces(&[vec![1; 10]]).concat();
    stream[68..72].copy_from_slice(&(MAX_FRAME_BYTES as u32 + 1).to_le_bytes());
    let mut reader = SnapshotReader::new();
    reader.push(&stream);
    assert!(matches!(reader.next_part(), Ok(Some(Part::Header(_)))));
    let error = reader.next_part().expect_err("the length cannot be");
    assert!(matches!(error, FormatError::Invalid { offset: 68, .. }));
    assert_eq!(reader.next_part(), Err(error.clone()));
    assert_eq!(reader.finish(), Err(error));
}

#[test]
fn a_frame_that_is_too_long_is_refused() {
    let (mut writer, _) = SnapshotWriter::new(&header());
    assert!(matches!(
        writer.frame(&vec![0; MAX_FRAME_BYTES + 1]),
        Err(FormatError::TooLong { .. })
    ));
}
