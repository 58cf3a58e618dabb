//! Messages between clients and nodes (`docs/protocol/rpc.md`). File data follows the header
//! unencoded: the encoder returns it as a buffer of its own, the decoder as a slice of the frame.
//! Neither copies it.

use crate::body::{self, u32_at, u64_at};
use crate::checksum::crc32c_of;
use crate::{Format, FormatError, crc32c};
use bytes::Bytes;
use ebb_model::{MAX_IO_BYTES, Notice, Reply, Request, RpcError};
use serde::Serialize;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    Request {
        id: RequestId,
        request: Request,
    },
    Reply {
        id: RequestId,
        reply: Reply,
    },
    /// The reply to a request that failed. The id is [`RequestId::NONE`] if the request could not
    /// be decoded.
    Error {
        id: RequestId,
        error: RpcError,
    },
    Notice(Notice),
    /// Between nodes. The header is [`encode_peer`]'s value, for [`read_peer`].
    Peer {
        id: RequestId,
        header: Bytes,
        data: Bytes,
    },
}

/// Matches a reply to its request. The client chooses it, unique among its outstanding requests on
/// a connection and never [`RequestId::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

impl RequestId {
    pub const NONE: RequestId = RequestId(0);
}

/// Each encoder returns the buffers of one frame, to be sent in order.
pub fn encode_request(id: RequestId, request: &Request) -> Result<Vec<Bytes>, FormatError> {
    match request {
        Request::Mutate(mutate) if mutate.mutation.data().is_some() => {
            let mut header = mutate.clone();
            let data = header.mutation.data_mut().map(std::mem::take).unwrap_or_default();
            encode(REQUEST, id, &Request::Mutate(header), data)
        }
        _ => encode(REQUEST, id, request, Bytes::new()),
    }
}

pub fn encode_reply(id: RequestId, reply: &Reply) -> Result<Vec<Bytes>, FormatError> {
    match reply {
        Reply::Data(data) => encode(REPLY, id, &Reply::Data(Bytes::new()), data.clone()),
        _ => encode(REPLY, id, reply, Bytes::new()),
    }
}

pub fn encode_error(id: RequestId, error: &RpcError) -> Result<Vec<Bytes>, FormatError> {
    encode(ERROR, id, error, Bytes::new())
}

pub fn encode_notice(notice: &Notice) -> Result<Vec<Bytes>, FormatError> {
    encode(NOTICE, RequestId::NONE, notice, Bytes::new())
}

/// A message between nodes, with data behind it.
pub fn encode_peer<T: Serialize>(
    id: RequestId,
    header: &T,
    data: Bytes,
) -> Result<Vec<Bytes>, FormatError> {
    encode(PEER, id, header, data)
}

/// The value of a message between nodes.
pub fn read_peer<'a, T: serde::Deserialize<'a>>(header: &'a [u8]) -> Result<T, FormatError> {
    read(header)
}

pub fn decode(frame: Bytes) -> Result<Message, FormatError> {
    let format = Format::Message;
    let truncated = |what| FormatError::Truncated { format, offset: frame.len() as u64, what };
    if frame.len() > MAX_MESSAGE_BYTES {
        return Err(FormatError::TooLong {
            format,
            len_bytes: frame.len() as u64,
            max_bytes: MAX_MESSAGE_BYTES as u64,
        });
    }
    // The version comes first: only the first byte has the same meaning in every version.
    match frame.first() {
        None => return Err(truncated("the prefix")),
        Some(&VERSION) => {}
        Some(&found) => return Err(FormatError::Version { format, found, known: VERSION }),
    }
    if frame.len() < PREFIX_BYTES {
        return Err(truncated("the prefix"));
    }
    let header_bytes = u32_at(&frame, HEADER_LENGTH_AT) as usize;
    if header_bytes > frame.len() - PREFIX_BYTES {
        return Err(truncated("the header"));
    }
    let header = frame.slice(PREFIX_BYTES..PREFIX_BYTES + header_bytes);
    let bulk = frame.slice(PREFIX_BYTES + header_bytes..);
    if crc32c_of(&[&frame[..HEADER_CRC_AT], &header]) != u32_at(&frame, HEADER_CRC_AT) {
        return Err(FormatError::Checksum { format, offset: 0, what: "the header" });
    }
    if crc32c(&bulk) != u32_at(&frame, BULK_CRC_AT) {
        return Err(FormatError::Checksum {
            format,
            offset: (PREFIX_BYTES + header_bytes) as u64,
            what: "the file data",
        });
    }
    let id = RequestId(u64_at(&frame, ID_AT));
    let (mut message, bulk) = match frame[KIND_AT] {
        REQUEST if header_bytes > MAX_REQUEST_HEADER_BYTES => {
            return Err(FormatError::TooLong {
                format,
                len_bytes: header_bytes as u64,
                max_bytes: MAX_REQUEST_HEADER_BYTES as u64,
            });
        }
        REQUEST if id == RequestId::NONE => {
            return Err(invalid(ID_AT, "a request without an id".into()));
        }
        REQUEST => (Message::Request { id, request: read(&header)? }, bulk),
        REPLY => (Message::Reply { id, reply: read(&header)? }, bulk),
        ERROR => (Message::Error { id, error: read(&header)? }, bulk),
        NOTICE if id != RequestId::NONE => {
            return Err(invalid(ID_AT, "a notice with a request id".into()));
        }
        NOTICE => (Message::Notice(read(&header)?), bulk),
        PEER => return Ok(Message::Peer { id, header, data: bulk }),
        kind => return Err(invalid(KIND_AT, format!("message kind {kind} is not supported"))),
    };
    match data_of(&mut message) {
        Some(data) if !data.is_empty() => {
            return Err(invalid(PREFIX_BYTES, "file data in the header".into()));
        }
        Some(_) if bulk.len() > MAX_IO_BYTES => {
            return Err(FormatError::TooLong {
                format,
                len_bytes: bulk.len() as u64,
                max_bytes: MAX_IO_BYTES as u64,
            });
        }
        Some(data) => *data = bulk,
        None if bulk.is_empty() => {}
        None => {
            return Err(invalid(
                PREFIX_BYTES + header_bytes,
                "data behind a message that has none".into(),
            ));
        }
    }
    Ok(message)
}

/// Longest message, and so longest frame: file data and a header.
pub const MAX_MESSAGE_BYTES: usize = MAX_IO_BYTES + (64 << 10);

/// Longest header of a request: the value of an extended attribute, a link's target and names fit.
/// It bounds the memory that a hostile client can make a node allocate, since decoding can grow a
/// header about thirtyfold (a list of empty byte strings).
pub const MAX_REQUEST_HEADER_BYTES: usize = 128 << 10;

/// `version u8 | kind u8 | request id u64 | header length u32 | crc32c u32 of the bulk |
/// crc32c u32 of all before it and the header`
pub(crate) const PREFIX_BYTES: usize = 22;
const KIND_AT: usize = 1;
const ID_AT: usize = 2;
pub(crate) const HEADER_LENGTH_AT: usize = 10;
pub(crate) const BULK_CRC_AT: usize = 14;
pub(crate) const HEADER_CRC_AT: usize = 18;

/// Version of the protocol and of every type in it. Peers agree on it by their [first
/// messages](crate::versions).
pub const VERSION: u8 = 17;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ERROR: u8 = 3;
const NOTICE: u8 = 4;
const PEER: u8 = 5;

fn encode<T: Serialize>(
    kind: u8,
    id: RequestId,
    header: &T,
    bulk: Bytes,
) -> Result<Vec<Bytes>, FormatError> {
    let format = Format::Message;
    let too_long = |len: usize, max: usize| FormatError::TooLong {
        format,
        len_bytes: len as u64,
        max_bytes: max as u64,
    };
    if bulk.len() > MAX_IO_BYTES {
        return Err(too_long(bulk.len(), MAX_IO_BYTES));
    }
    let mut out = Vec::with_capacity(TYPICAL_HEAD_BYTES);
    out.extend_from_slice(&[VERSION, kind]);
    out.extend_from_slice(&id.0.to_le_bytes());
    out.resize(PREFIX_BYTES, 0);
    body::append(format, header, &mut out)?;
    let header_bytes = out.len() - PREFIX_BYTES;
    if kind == REQUEST && header_bytes > MAX_REQUEST_HEADER_BYTES {
        return Err(too_long(header_bytes, MAX_REQUEST_HEADER_BYTES));
    }
    if out.len() + bulk.len() > MAX_MESSAGE_BYTES {
        return Err(too_long(out.len() + bulk.len(), MAX_MESSAGE_BYTES));
    }
    out[HEADER_LENGTH_AT..BULK_CRC_AT].copy_from_slice(&(header_bytes as u32).to_le_bytes());
    out[BULK_CRC_AT..HEADER_CRC_AT].copy_from_slice(&crc32c(&bulk).to_le_bytes());
    let crc = crc32c_of(&[&out[..HEADER_CRC_AT], &out[PREFIX_BYTES..]]);
    out[HEADER_CRC_AT..PREFIX_BYTES].copy_from_slice(&crc.to_le_bytes());
    let mut parts = vec![Bytes::from(out)];
    if !bulk.is_empty() {
        parts.push(bulk);
    }
    Ok(parts)
}

/// Initial capacity: most prefixes and headers fit without growing.
const TYPICAL_HEAD_BYTES: usize = 256;

fn read<'a, T: serde::Deserialize<'a>>(header: &'a [u8]) -> Result<T, FormatError> {
    body::read(Format::Message, PREFIX_BYTES as u64, header)
}

/// The field of a message that holds its file data.
fn data_of(message: &mut Message) -> Option<&mut Bytes> {
    match message {
        Message::Request { request: Request::Mutate(mutate), .. } => mutate.mutation.data_mut(),
        Message::Reply { reply: Reply::Data(data), .. } => Some(data),
        _ => None,
    }
}

fn invalid(offset: usize, what: String) -> FormatError {
    FormatError::Invalid { format: Format::Message, offset: offset as u64, what }
}
