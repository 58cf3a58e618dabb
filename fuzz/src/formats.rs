//! Files, objects and frames: decoding and encoding again yields the same value.
//!
//! Each input is decoded twice: unchanged, and with its checksums recomputed, since a search hardly
//! ever passes a checksum.

use bytes::Bytes;
use ebb_core::partition::SnapshotItem;
use ebb_format::identity::Identity;
use ebb_format::sums::{self, Sums};
use ebb_format::versions::Versions;
use ebb_format::{backup, encryption, fuzz, head, identity, page, record, rpc, segment, snapshot};
use ebb_model::{LogIndex, Notice, Reply, Request};
use record::{Decoded, Record};

fn with_right_checksums(bytes: &[u8], mend: fn(&mut [u8]), read: fn(&[u8])) {
    read(bytes);
    let mut bytes = bytes.to_vec();
    mend(&mut bytes);
    read(&bytes);
}

fn with_right_checksum(bytes: &[u8], mend: fn(&[u8]) -> Option<Bytes>, read: fn(&[u8])) {
    read(bytes);
    if let Some(bytes) = mend(bytes) {
        read(&bytes);
    }
}

/// A segment from its first record on.
pub fn record(bytes: &[u8]) {
    with_right_checksums(bytes, fuzz::records, |bytes| {
        let mut rest = bytes;
        loop {
            read_record(rest);
            match record::decode(rest) {
                Decoded::Record(record) => rest = &rest[record.consumed..],
                Decoded::End | Decoded::Torn(_) | Decoded::Corrupt(_) => break,
            }
        }
    });
}

fn read_record(bytes: &[u8]) {
    if let Decoded::Record(record) = record::decode(bytes) {
        assert!(record.consumed <= bytes.len(), "more was read than there is");
        let mut again = Vec::new();
        record::encode(&record.header, &record.payload, &mut again)
            .expect("a decoded value encodes");
        assert_eq!(
            record::decode(&again),
            Decoded::Record(Box::new(Record { consumed: again.len(), ..*record.clone() }))
        );
        for header in record::later(bytes, record.header.generation, record.header.position) {
            assert!(header.position > record.header.position);
        }
    }
}

pub fn segment(bytes: &[u8]) {
    with_right_checksums(bytes, fuzz::segment, |bytes| {
        if let Ok(header) = segment::decode(bytes) {
            assert_eq!(segment::decode(&segment::encode(&header)), Ok(header));
        }
    });
}

/// The parts do not depend on how the stream is split into reads.
pub fn snapshot(bytes: &[u8]) {
    with_right_checksums(
        bytes,
        |bytes| fuzz::snapshot(bytes.get_mut(1..).unwrap_or_default()),
        |bytes| {
            let (cut, rest) = bytes
                .split_first()
                .map_or((1, bytes), |(first, rest)| (usize::from(*first).max(1), rest));
            let pieces = read_snapshot(rest.chunks(cut));
            assert_eq!(pieces, read_snapshot(std::iter::once(rest)));
        },
    );
}

fn read_snapshot<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<String>, bool) {
    let mut reader = snapshot::SnapshotReader::new();
    let mut parts = Vec::new();
    for piece in pieces {
        reader.push(piece);
        loop {
            match reader.next_part() {
                Ok(Some(part)) => {
                    parts.push(format!("{part:?}"));
                    if let snapshot::Part::Frame(frame) = &part {
                        parts.push(format!("{:?}", frame.value::<SnapshotItem>()));
                    }
                }
                Ok(None) => break,
                Err(_) => return (parts, false),
            }
        }
    }
    let whole = reader.finish().is_ok();
    (parts, whole)
}

pub fn page(bytes: &[u8]) {
    with_right_checksums(bytes, fuzz::page, |bytes| {
        if let Ok(page) = page::decode(bytes) {
            let again = page::encode(&page).expect("a decoded value encodes");
            assert_eq!(page::decode(&again), Ok(page));
        }
    });
}

pub fn page_piece(bytes: &[u8]) {
    with_right_checksums(bytes, fuzz::page, |bytes| {
        if let Ok(piece) = page::decode_piece(bytes) {
            let again = page::encode_piece(&piece).expect("a decoded value encodes");
            assert_eq!(page::decode_piece(&again), Ok(piece));
        }
    });
}

/// The value of the tag of an object with two other tags.
pub fn sums(bytes: &[u8]) {
    let others = vec![("mode".to_owned(), "33188".to_owned()), ("uid".to_owned(), "0".to_owned())];
    let value = String::from_utf8_lossy(bytes).into_owned();
    let tags = [&others[..], &[(sums::TAG.to_owned(), value.clone())]].concat();
    for len_bytes in [9, 1 << 30, u64::MAX] {
        if let Some(sums) = Sums::decode(&tags, len_bytes) {
            assert_eq!(sums.encode(&others), value);
        }
    }
}

pub fn head(bytes: &[u8]) {
    with_right_checksum(bytes, fuzz::head, |bytes| {
        if let Ok(head) = head::decode(bytes) {
            assert_eq!(head::decode(&head::encode(&head)), Ok(head));
        }
    });
}

pub fn identity(bytes: &[u8]) {
    with_right_checksum(bytes, fuzz::identity, |bytes| {
        if let Ok(identity) = identity::decode(bytes) {
            let again = identity::decode(&identity::encode(&identity));
            assert_eq!(again, Ok(Identity { is_of_0_1_0: false, ..identity }));
        }
    });
}

pub fn backup(bytes: &[u8]) {
    with_right_checksum(bytes, fuzz::backup, |bytes| {
        if let Ok(backup) = backup::decode(bytes) {
            assert_eq!(backup::decode(&backup::encode(&backup)), Ok(backup));
        }
    });
}

pub fn wrapped_key(bytes: &[u8]) {
    with_right_checksum(bytes, fuzz::wrapped_key, |bytes| {
        if let Ok(key) = encryption::decode_key(bytes) {
            assert_eq!(encryption::decode_key(&encryption::encode_key(&key)), Ok(key));
        }
    });
}

pub fn encrypted_file(bytes: &[u8]) {
    with_right_checksums(bytes, fuzz::encrypted_file, |bytes| {
        if let Ok(header) = encryption::decode_header(bytes) {
            assert_eq!(encryption::decode_header(&encryption::encode_header(&header)), Ok(header));
        }
    });
}

pub fn rpc(bytes: &[u8]) {
    with_right_checksums(bytes, fuzz::rpc, read_message);
}

/// The first message of a connection.
pub fn versions(bytes: &[u8]) {
    with_right_checksums(bytes, fuzz::versions, |bytes| {
        if let Ok(versions) = Versions::decode(bytes) {
            assert_eq!(Versions::decode(&versions.encode()), Ok(versions));
            if let Some(common) = versions.common(Versions::OWN) {
                assert_eq!(Versions::OWN.common(versions), Some(common));
            }
        }
    });
}

fn read_message(bytes: &[u8]) {
    let frame = Bytes::copy_from_slice(bytes);
    if let Ok(message) = rpc::decode(frame) {
        let parts = match &message {
            rpc::Message::Request { id, request } => rpc::encode_request(*id, request),
            rpc::Message::Reply { id, reply } => rpc::encode_reply(*id, reply),
            rpc::Message::Error { id, error } => rpc::encode_error(*id, error),
            rpc::Message::Notice(notice) => rpc::encode_notice(notice),
            // Its header is read by the node.
            rpc::Message::Peer { .. } => return,
        };
        let again = Bytes::from(parts.expect("a decoded value encodes").concat());
        assert_eq!(rpc::decode(again), Ok(message));
    }
}

/// Every type that messages and other binary formats contain.
pub fn message(bytes: &[u8]) {
    fn reads<T: for<'a> serde::Deserialize<'a> + serde::Serialize + PartialEq + std::fmt::Debug>(
        bytes: &[u8],
    ) {
        if let Ok(value) = postcard::from_bytes::<T>(bytes) {
            let again = postcard::to_stdvec(&value).expect("a decoded value encodes");
            assert_eq!(postcard::from_bytes::<T>(&again), Ok(value));
        }
    }
    reads::<Request>(bytes);
    reads::<Reply>(bytes);
    reads::<Notice>(bytes);
    reads::<ebb_model::Command>(bytes);
    reads::<ebb_model::DirectoryPage>(bytes);
    reads::<ebb_model::PageHead>(bytes);
    reads::<ebb_model::PieceBody>(bytes);
    reads::<LogIndex>(bytes);
}
