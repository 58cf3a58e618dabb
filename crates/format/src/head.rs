//! Who serves a volume: the object `.ebb/head` (`docs/format/bucket.md`). JSON, so that
//! people can read it with the store's own tools when something went wrong.

use crate::{Format, FormatError, crc32c};
use bytes::Bytes;
use ebb_model::{Incarnation, Time};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    pub cluster: ClusterId,
    /// Grows with every take-over.
    pub incarnation: Incarnation,
    /// The data directory of the owner: a node that restarts finds its own.
    pub node: u128,
    /// One run of the owner's process: tells its own lost answer from a copied data directory.
    pub run: u64,
    /// For people: host, process and data directory of the owner.
    pub owner: String,
    /// When the owner took over, to the second.
    pub started: Time,
    /// The owner renews well within this time, or is gone.
    pub term_secs: u32,
    /// Counts renewals.
    pub beat: u64,
    /// The owner has flushed everything and gone: anybody may take over at once.
    pub released: bool,
}

/// Drawn at random when the volume is first served. Written as a UUID is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            id >> 96,
            id >> 80 & 0xffff,
            id >> 64 & 0xffff,
            id >> 48 & 0xffff,
            id & 0xffff_ffff_ffff
        )
    }
}

impl ClusterId {
    /// Reads what `Display` writes, and nothing else.
    pub fn parse(text: &str) -> Option<ClusterId> {
        let digits: String = text.split('-').collect();
        let id = ClusterId(u128::from_str_radix(&digits, 16).ok()?);
        (id.to_string() == text).then_some(id)
    }
}

pub fn encode(head: &Head) -> Bytes {
    let content = Content {
        format: FORMAT,
        cluster: head.cluster.to_string(),
        incarnation: head.incarnation.0,
        node: format!("{:032x}", head.node),
        run: format!("{:016x}", head.run),
        owner: head.owner.clone(),
        started_secs: head.started.secs,
        term_secs: head.term_secs,
        beat: head.beat,
        released: head.released,
    };
    let crc32c = content.checksum();
    let mut json = serde_json::to_vec_pretty(&Sealed { content, crc32c }).expect(ALWAYS_JSON);
    json.push(b'\n');
    json.into()
}

/// Members that are not known are skipped: a format that is not to be read by this
/// version has another `format`.
pub fn decode(bytes: &[u8]) -> Result<Head, FormatError> {
    let FormatOnly { format } = parse(bytes)?;
    if format != FORMAT {
        return Err(FormatError::Version { format: Format::Head, found: format, known: FORMAT });
    }
    let Sealed { content, crc32c } = parse(bytes)?;
    if content.checksum() != crc32c {
        return Err(FormatError::Checksum { format: Format::Head, offset: 0, what: "the members" });
    }
    let Some(cluster) = ClusterId::parse(&content.cluster) else {
        return Err(FormatError::Invalid { format: Format::Head, offset: 0, what: format!("{:?} is no cluster id", content.cluster) });
    };
    Ok(Head {
        cluster,
        node: from_hex("node id", &content.node, 32)?,
        run: from_hex("run id", &content.run, 16)? as u64,
        incarnation: Incarnation(content.incarnation),
        owner: content.owner,
        started: Time::from_secs(content.started_secs),
        term_secs: content.term_secs,
        beat: content.beat,
        released: content.released,
    })
}

const FORMAT: u8 = 1;

#[derive(Deserialize)]
struct FormatOnly {
    format: u8,
}

#[derive(Serialize, Deserialize)]
struct Content {
    format: u8,
    cluster: String,
    incarnation: u16,
    node: String,
    run: String,
    owner: String,
    started_secs: i64,
    term_secs: u32,
    beat: u64,
    released: bool,
}

impl Content {
    /// Of the members as JSON without white space, in the order of their declaration, so
    /// that it does not depend on how the text is laid out.
    fn checksum(&self) -> String {
        format!("{:08x}", crc32c(&serde_json::to_vec(self).expect(ALWAYS_JSON)))
    }
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    #[serde(flatten)]
    content: Content,
    crc32c: String,
}

const ALWAYS_JSON: &str = "strings, numbers and booleans are always JSON";

/// Exactly `digits` hexadecimal digits; at most 16 of them fit a `u64`.
fn from_hex(what: &str, text: &str, digits: usize) -> Result<u128, FormatError> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    number.ok_or_else(|| FormatError::Invalid { format: Format::Head, offset: 0, what: format!("{text:?} is no {what}") })
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, FormatError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let line_start: usize = bytes.split_inclusive(|&byte| byte == b'\n').take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let offset = (line_start + error.column().saturating_sub(1)) as u64;
        if error.is_eof() {
            FormatError::Truncated { format: Format::Head, offset: bytes.len() as u64, what: "the JSON text" }
        } else {
            FormatError::Invalid { format: Format::Head, offset, what: error.to_string() }
        }
    })
}
