//! Names and key segments (`docs/format/names.md`).
//!
//! Law: the mapping is a bijection. An object has at most one name in its directory, and a name has
//! one key.

use ebb_model::{Ino, MAX_NAME_BYTES, Name};

/// Reserved segment at the root of the bucket; ebb owns every key below it.
pub const RESERVED: &str = ".ebb";

/// Prefix of early parts, which are uploaded while their file still grows. No record refers to
/// them.
pub const EARLY: &str = ".ebb/early/";

/// Whether the key belongs to the volume itself and to no inode.
pub(crate) fn is_of_the_volume(key: &str) -> bool {
    [".ebb/head", ".ebb/probe"].contains(&key)
        || [".ebb/uploads/", EARLY].iter().any(|own| key.starts_with(own))
}

/// Prefix of every name and segment that encodes another one.
const ESCAPE: &str = ".ebb%";

/// Suffix of the name of an object whose key is also a prefix.
const OBJECT_SUFFIX: &[u8] = b".ebb%object";

/// S3's limit of a key.
pub const MAX_KEY_BYTES: usize = 1024;

/// Longest segment: the limit of a POSIX directory as bucket, and of a file name.
pub const MAX_SEGMENT_BYTES: usize = 255;

/// Longest prefix from a path: leaves space for one segment of maximum length.
const MAX_PREFIX_BYTES: usize = MAX_KEY_BYTES - MAX_SEGMENT_BYTES - 1;

/// The segment of a name. It can exceed [`MAX_SEGMENT_BYTES`].
pub(super) fn segment_of(name: &Name) -> String {
    let bytes = name.as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(text) => match text.strip_prefix(ESCAPE) {
            None => text.into(),
            Some(rest) => {
                shown_segment(rest).unwrap_or_else(|| format!("{ESCAPE}x{}", to_hex(bytes)))
            }
        },
        Err(_) => format!("{ESCAPE}x{}", to_hex(bytes)),
    }
}

/// The name of a segment; `None` if the segment is too long.
pub fn name_of(segment: &str) -> Option<Name> {
    if segment.len() > MAX_SEGMENT_BYTES {
        return None;
    }
    if let Some(name) = hidden_name(segment) {
        return Some(name);
    }
    if is_nameless(segment) {
        return Name::new(format!("{ESCAPE}{}", to_hex(segment.as_bytes())).as_bytes()).ok();
    }
    Name::new(segment.as_bytes()).ok()
}

/// Whether the name encodes a segment that cannot be a name. Listings yield such names; clients
/// cannot create them.
pub(super) fn is_escaped(name: &Name) -> bool {
    let text = std::str::from_utf8(name.as_bytes()).ok();
    text.and_then(|text| text.strip_prefix(ESCAPE)).and_then(shown_segment).is_some()
}

/// The name of an object beside a directory of the same name. `None` if that is too long.
pub(super) fn name_of_shadowed(name: &Name) -> Option<Name> {
    Name::new(&[name.as_bytes(), OBJECT_SUFFIX].concat()).ok()
}

/// The inverse of [`name_of_shadowed`].
pub(super) fn shadowing(name: &Name) -> Option<Name> {
    Name::new(name.as_bytes().strip_suffix(OBJECT_SUFFIX)?).ok()
}

/// The key of `name` in a directory with this prefix. A key that is too long, or equal to the
/// directory's marker, is replaced by one from the inode id.
pub fn own_key(prefix: &str, name: &Name, ino: Ino) -> String {
    let segment = segment_of(name);
    if segment.is_empty()
        || segment.len() > MAX_SEGMENT_BYTES
        || prefix.len() + segment.len() > MAX_KEY_BYTES
    {
        return long_key(ino);
    }
    format!("{prefix}{segment}")
}

fn long_key(ino: Ino) -> String {
    format!("{RESERVED}/long/{:x}", ino.0)
}

/// The inverse of [`long_key`].
pub(super) fn long_of(key: &str) -> Option<Ino> {
    of_inode(key.strip_prefix(RESERVED)?.strip_prefix("/long/")?, |ino| long_key(ino) == key)
}

fn of_inode(digits: &str, is_it: impl Fn(Ino) -> bool) -> Option<Ino> {
    Some(Ino(u64::from_str_radix(digits, 16).ok()?)).filter(|ino| is_it(*ino))
}

/// The prefix of the directory `name`. A long one is replaced by one from the inode id, so there is
/// always space for keys below it.
pub fn own_prefix(parent: &str, name: &Name, dir: Ino) -> String {
    let segment = segment_of(name);
    if segment.len() > MAX_SEGMENT_BYTES || parent.len() + segment.len() > MAX_PREFIX_BYTES {
        return private_prefix(dir);
    }
    format!("{parent}{segment}/")
}

/// The prefix of a directory whose path's prefix is in use.
pub(super) fn private_prefix(dir: Ino) -> String {
    format!("{RESERVED}/p/{:x}/", dir.0)
}

/// The inverse of [`private_prefix`].
pub(super) fn private_of(prefix: &str) -> Option<Ino> {
    of_inode(prefix.strip_prefix(RESERVED)?.strip_prefix("/p/")?.strip_suffix('/')?, |dir| {
        private_prefix(dir) == prefix
    })
}

pub fn page_key(dir: Ino) -> String {
    format!("{}{:x}", pages_prefix(), dir.0)
}

/// Prefix of the keys of all directory pages.
pub fn pages_prefix() -> String {
    format!("{RESERVED}/d/")
}

/// Key of a piece of a large directory's page.
pub fn piece_key(dir: Ino, id: u64) -> String {
    format!("{}{id:016x}", pieces_prefix(dir))
}

/// Prefix of the keys of all pieces of a directory's page.
pub(super) fn pieces_prefix(dir: Ino) -> String {
    format!("{RESERVED}/e/{:x}-", dir.0)
}

/// The inverse of [`piece_key`].
pub fn piece_of(key: &str) -> Option<(Ino, u64)> {
    let (dir, id) = key.strip_prefix(RESERVED)?.strip_prefix("/e/")?.split_once('-')?;
    let (dir, id) = (Ino(u64::from_str_radix(dir, 16).ok()?), u64::from_str_radix(id, 16).ok()?);
    (piece_key(dir, id) == key).then_some((dir, id))
}

/// Temporary key of an object while another one takes its key.
pub(super) fn waiting_key(ino: Ino) -> String {
    format!("{RESERVED}/tmp/{:x}", ino.0)
}

/// Key for a foreign object whose key is needed: beside the original, and valid as a file name.
pub fn conflict_key(key: &str, tag: u32, number: u32) -> String {
    let number = if number > 1 { format!("-{number}") } else { String::new() };
    let suffix = format!(".ebb-conflict-{tag:08x}{number}");
    let (prefix, segment) = split(key);
    let most = MAX_SEGMENT_BYTES
        .min(MAX_KEY_BYTES.saturating_sub(prefix.len()))
        .saturating_sub(suffix.len());
    format!("{prefix}{}{suffix}", &segment[..segment.floor_char_boundary(most)])
}

/// Splits a key or prefix into the prefix of its directory and its last segment.
pub fn split(key: &str) -> (&str, &str) {
    let path = key.strip_suffix('/').unwrap_or(key);
    path.rfind('/').map_or(("", path), |at| path.split_at(at + 1))
}

/// The segment that a name encodes, given its part after [`ESCAPE`].
fn shown_segment(rest: &str) -> Option<String> {
    let segment = String::from_utf8(from_hex(rest)?).ok()?;
    (!segment.contains('/') && is_nameless(&segment)).then_some(segment)
}

/// Whether the segment is not its own name: it cannot be a name, or looks like an escape that ebb
/// does not write.
fn is_nameless(segment: &str) -> bool {
    let escape = segment.starts_with(ESCAPE);
    if escape {
        hidden_name(segment).is_none()
    } else {
        Name::new(segment.as_bytes()).is_err() && segment.len() <= MAX_NAME_BYTES
    }
}

/// The name that a segment encodes since the name cannot be a segment. Any other spelling of the
/// name is rejected. The recursion ends: each level is shorter.
fn hidden_name(segment: &str) -> Option<Name> {
    let bytes = from_hex(segment.strip_prefix(ESCAPE)?.strip_prefix('x')?)?;
    let name = Name::new(&bytes).ok()?;
    (segment_of(&name) == segment).then_some(name)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lower case only, so each value has one spelling.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2)
        || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    {
        return None;
    }
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
