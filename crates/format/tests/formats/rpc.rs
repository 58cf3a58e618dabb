use crate::golden::named;
use crate::samples::{self, Draw};
use bytes::Bytes;
use ebb_format::FormatError;
use ebb_format::rpc::{self, MAX_MESSAGE_BYTES, MAX_REQUEST_HEADER_BYTES, Message, RequestId};
use ebb_model::*;
use proptest::prelude::*;

fn parts(message: &Message) -> Result<Vec<Bytes>, FormatError> {
    match message {
        Message::Request { id, request } => rpc::encode_request(*id, request),
        Message::Reply { id, reply } => rpc::encode_reply(*id, reply),
        Message::Error { id, error } => rpc::encode_error(*id, error),
        Message::Notice(notice) => rpc::encode_notice(notice),
        Message::Peer { id, header, data } => {
            let number: u64 = rpc::read_peer(header)?;
            rpc::encode_peer(*id, &number, data.clone())
        }
    }
}

pub fn frame(message: &Message) -> Vec<u8> {
    parts(message).expect("samples fit").concat()
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    named(Draw(2).messages().iter().map(|message| (samples::message_name(message), frame(message))))
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let message = rpc::decode(Bytes::copy_from_slice(bytes)).ok()?;
    Some((format!("{message:?}"), frame(&message)))
}

proptest! {
    #[test]
    fn a_message_is_read_as_it_was_written(seed: u64) {
        for message in Draw(seed).messages() {
            prop_assert_eq!(rpc::decode(frame(&message).into()), Ok(message));
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed(seed: u64, pick: prop::sample::Index, bit: prop::sample::Index) {
        let messages = Draw(seed).messages();
        let mut bytes = frame(pick.get(&messages));
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(rpc::decode(bytes.into()).is_err());
    }

    #[test]
    fn a_short_frame_is_noticed(seed: u64, pick: prop::sample::Index, cut: prop::sample::Index) {
        let messages = Draw(seed).messages();
        let bytes = frame(pick.get(&messages));
        prop_assert!(rpc::decode(Bytes::copy_from_slice(&bytes[..cut.index(bytes.len())])).is_err());
    }
}

/// Situation: a write and a read of file data. Danger: a copy of a megabyte on each hop.
/// Expectation: the encoder's buffer and the decoder's slice share the caller's memory.
#[test]
fn file_data_is_never_copied() {
    let data = Bytes::from(vec![7; MAX_IO_BYTES]);
    let reply = rpc::encode_reply(RequestId(1), &Reply::Data(data.clone())).expect("it fits");
    assert_eq!(reply[1].as_ptr(), data.as_ptr());

    let mutation =
        ClientMutation::Write { ino: Ino(9), offset: 0, data: data.clone(), drop_set_id: false };
    let tx = TxId { session: SessionId(1), slot: 2, sequence: 3 };
    let request =
        Request::Mutate(Box::new(Mutate { tx, caller: Caller::ROOT, mutation, replay: None }));
    let parts = rpc::encode_request(RequestId(1), &request).expect("it fits");
    assert_eq!(parts[1].as_ptr(), data.as_ptr());

    let frame = Bytes::from(parts.concat());
    let range = frame.as_ptr_range();
    let Ok(Message::Request { request: Request::Mutate(read), .. }) = rpc::decode(frame.clone())
    else {
        panic!("the request is read")
    };
    let got = read.mutation.data().expect("a write has data");
    assert_eq!(*got, data);
    assert!(range.contains(&got.as_ptr()));
}

#[test]
fn the_limits_hold_on_both_sides() {
    let large = |len| Reply::Data(vec![0; len].into());
    assert!(rpc::encode_reply(RequestId(1), &large(MAX_IO_BYTES)).is_ok());
    assert!(matches!(
        rpc::encode_reply(RequestId(1), &large(MAX_IO_BYTES + 1)),
        Err(FormatError::TooLong { .. })
    ));
    let request = Request::GetXattr { ino: Ino(1), name: vec![0; MAX_REQUEST_HEADER_BYTES].into() };
    assert!(matches!(
        rpc::encode_request(RequestId(1), &request),
        Err(FormatError::TooLong { .. })
    ));
    let reply = Reply::Link(vec![0; MAX_MESSAGE_BYTES].into());
    assert!(matches!(rpc::encode_reply(RequestId(1), &reply), Err(FormatError::TooLong { .. })));
    assert!(matches!(
        rpc::decode(vec![3; MAX_MESSAGE_BYTES + 1].into()),
        Err(FormatError::TooLong { .. })
    ));
}

/// The largest attribute that Linux allows, with the longest names, fits.
#[test]
fn the_largest_header_that_a_kernel_can_ask_for_fits() {
    let value = Bytes::from(vec![0xff; MAX_XATTR_VALUE_BYTES]);
    let mutation = ClientMutation::SetXattr {
        ino: Ino(u64::MAX),
        name: vec![1; 255].into(),
        value,
        mode: XattrMode::Replace,
    };
    let caller =
        Caller { uid: u32::MAX, gid: u32::MAX, groups: vec![u32::MAX; 8192], checked: true };
    let tx = TxId { session: SessionId(u64::MAX), slot: 63, sequence: u64::MAX };
    let request = Request::Mutate(Box::new(Mutate { tx, caller, mutation, replay: None }));
    assert!(rpc::encode_request(RequestId(1), &request).is_ok());
}

/// Situation: peers of different versions. Expectation: the error names both versions, for any rest
/// of the frame.
#[test]
fn another_version_is_named() {
    const NEXT: u8 = rpc::VERSION + 1;
    assert!(matches!(
        rpc::decode(vec![NEXT].into()),
        Err(FormatError::Version { found: NEXT, known: rpc::VERSION, .. })
    ));
    assert!(matches!(rpc::decode(Bytes::new()), Err(FormatError::Truncated { offset: 0, .. })));
}

/// Situation: a frame with valid checksums and impossible contents. Expectation: rejected, with a
/// reason.
#[test]
fn impossible_messages_are_refused() {
    let reply = Message::Reply { id: RequestId(4), reply: Reply::Done };
    let with_tail = with_bulk(frame(&reply), b"tail");
    assert!(matches!(rpc::decode(with_tail.into()), Err(FormatError::Invalid { .. })));

    let mut unknown = frame(&reply);
    unknown[1] = 77;
    assert!(matches!(
        rpc::decode(resealed(unknown).into()),
        Err(FormatError::Invalid { offset: 1, .. })
    ));

    let mut notice = frame(&Message::Notice(Notice::DropCaches));
    notice[2] = 1;
    assert!(matches!(
        rpc::decode(resealed(notice).into()),
        Err(FormatError::Invalid { offset: 2, .. })
    ));

    let mut request =
        frame(&Message::Request { id: RequestId(1), request: Request::StatFs { ino: Ino::ROOT } });
    request[2] = 0;
    assert!(matches!(
        rpc::decode(resealed(request).into()),
        Err(FormatError::Invalid { offset: 2, .. })
    ));

    // File data inside the header, where decoding would copy it.
    let inside = postcard::to_allocvec(&Reply::Data(Bytes::from_static(b"data")))
        .expect("it can be written");
    assert!(matches!(rpc::decode(sealed(2, &inside).into()), Err(FormatError::Invalid { .. })));

    // An invalid name.
    let mut lookup = postcard::to_allocvec(&Request::Lookup {
        parent: Ino(1),
        name: Name::new(b"ab").expect("a name"),
    })
    .expect("it can be written");
    *lookup.last_mut().expect("it is not empty") = b'/';
    assert!(matches!(rpc::decode(sealed(1, &lookup).into()), Err(FormatError::Invalid { .. })));
}

/// A frame with this header and valid checksums.
pub fn sealed(kind: u8, header: &[u8]) -> Vec<u8> {
    let mut bytes = vec![rpc::VERSION, kind];
    bytes.extend(if kind == 4 { 0u64 } else { 1 }.to_le_bytes());
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(header);
    resealed(bytes)
}

fn with_bulk(mut bytes: Vec<u8>, bulk: &[u8]) -> Vec<u8> {
    bytes[14..18].copy_from_slice(&ebb_format::crc32c(bulk).to_le_bytes());
    let mut bytes = resealed(bytes);
    bytes.extend(bulk);
    bytes
}

fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = ebb_format::crc32c(&[&bytes[..18], &bytes[22..]].concat());
    bytes[18..22].copy_from_slice(&crc.to_le_bytes());
    bytes
}
