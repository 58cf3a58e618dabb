//! Names and key segments (`docs/format/names.md`): a bijection, so that every object has
//! at most one name in its directory and every name one place in the bucket.

use ebb_model::{Ino, MAX_NAME_BYTES, Name};

/// Everything below it in the bucket is ebb's own.
pub const RESERVED: &str = ".ebb";

/// What the keys of parts begin with that are sent before their files are. Nothing tells of them.
pub const EARLY: &str = ".ebb/early/";

/// Of no inode, but of the volume itself.
pub(crate) fn is_of_the_volume(key: &str) -> bool {
    [".ebb/head", ".ebb/probe"].contains(&key)
        || [".ebb/uploads/", EARLY].iter().any(|own| key.starts_with(own))
}

/// Begins every name and every segment that stands for another.
const ESCAPE: &str = ".ebb%";

/// An object whose key is also a prefix shows under its name with this behind it.
const OBJECT_SUFFIX: &[u8] = b".ebb%object";

/// S3's limit of a key.
pub const MAX_KEY_BYTES: usize = 1024;

/// Longest segment: what a POSIX directory as bucket can hold, and what a name can show.
pub const MAX_SEGMENT_BYTES: usize = 255;

/// Longest prefix that a directory gets from its path: room for one longest segment below it.
const MAX_PREFIX_BYTES: usize = MAX_KEY_BYTES - MAX_SEGMENT_BYTES - 1;

/// The segment of a name. It may be longer than [`MAX_SEGMENT_BYTES`].
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

/// The name of a segment; `None` for those that are too long to be shown.
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

/// True for names that stand for segments which cannot be names. Such names are found in
/// a bucket, never made.
pub(super) fn is_borrowed(name: &Name) -> bool {
    let text = std::str::from_utf8(name.as_bytes()).ok();
    text.and_then(|text| text.strip_prefix(ESCAPE)).and_then(shown_segment).is_some()
}

/// The name of an object whose own name is its directory's. `None` if that is too long.
pub(super) fn name_of_shadowed(name: &Name) -> Option<Name> {
    Name::new(&[name.as_bytes(), OBJECT_SUFFIX].concat()).ok()
}

/// The inverse of [`name_of_shadowed`].
pub(super) fn shadowing(name: &Name) -> Option<Name> {
    Name::new(name.as_bytes().strip_suffix(OBJECT_SUFFIX)?).ok()
}

/// Where the object of `name` belongs, in a directory whose objects are below `prefix`. A key that
/// is too long, or would be the directory's own marker, is replaced by one from the inode id.
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

/// The prefix of the objects in the directory `name`. Long ones are cut short, which leaves
/// room for everything below.
pub fn own_prefix(parent: &str, name: &Name, dir: Ino) -> String {
    let segment = segment_of(name);
    if segment.len() > MAX_SEGMENT_BYTES || parent.len() + segment.len() > MAX_PREFIX_BYTES {
        return private_prefix(dir);
    }
    format!("{parent}{segment}/")
}

/// The prefix of a directory whose own is taken.
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

/// What the keys of all directories' pages begin with.
pub fn pages_prefix() -> String {
    format!("{RESERVED}/d/")
}

/// A piece of the page of a large directory.
pub fn piece_key(dir: Ino, id: u64) -> String {
    format!("{}{id:016x}", pieces_prefix(dir))
}

/// What the keys of all pieces of a directory's page begin with.
pub(super) fn pieces_prefix(dir: Ino) -> String {
    format!("{RESERVED}/e/{:x}-", dir.0)
}

/// The inverse of [`piece_key`].
pub fn piece_of(key: &str) -> Option<(Ino, u64)> {
    let (dir, id) = key.strip_prefix(RESERVED)?.strip_prefix("/e/")?.split_once('-')?;
    let (dir, id) = (Ino(u64::from_str_radix(dir, 16).ok()?), u64::from_str_radix(id, 16).ok()?);
    (piece_key(dir, id) == key).then_some((dir, id))
}

/// Where an object waits while another takes its place.
pub(super) fn waiting_key(ino: Ino) -> String {
    format!("{RESERVED}/tmp/{:x}", ino.0)
}

/// Where another's object is kept whose place is taken: what else stands beside it, and can be the
/// name of a file.
pub fn aside(key: &str, tag: u32, number: u32) -> String {
    let number = if number > 1 { format!("-{number}") } else { String::new() };
    let suffix = format!(".ebb-conflict-{tag:08x}{number}");
    let (prefix, segment) = split(key);
    let most = MAX_SEGMENT_BYTES
        .min(MAX_KEY_BYTES.saturating_sub(prefix.len()))
        .saturating_sub(suffix.len());
    format!("{prefix}{}{suffix}", &segment[..segment.floor_char_boundary(most)])
}

/// A key or prefix as the prefix of its directory and its last segment.
pub fn split(key: &str) -> (&str, &str) {
    let path = key.strip_suffix('/').unwrap_or(key);
    path.rfind('/').map_or(("", path), |at| path.split_at(at + 1))
}

/// The segment that a name after [`ESCAPE`] stands for, if it stands for one.
fn shown_segment(rest: &str) -> Option<String> {
    let segment = String::from_utf8(from_hex(rest)?).ok()?;
    (!segment.contains('/') && is_nameless(&segment)).then_some(segment)
}

/// Whether no name is its own segment here: it cannot be a name, or looks like an escape
/// that ebb would not write.
fn is_nameless(segment: &str) -> bool {
    let escape = segment.starts_with(ESCAPE);
    if escape {
        hidden_name(segment).is_none()
    } else {
        Name::new(segment.as_bytes()).is_err() && segment.len() <= MAX_NAME_BYTES
    }
}

/// The name that a segment hides because the name cannot be a segment. Every other spelling
/// of the same name is refused; the recursion ends because each level is shorter.
fn hidden_name(segment: &str) -> Option<Name> {
    let bytes = from_hex(segment.strip_prefix(ESCAPE)?.strip_prefix('x')?)?;
    let name = Name::new(&bytes).ok()?;
    (segment_of(&name) == segment).then_some(name)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lower case only: there is one spelling.
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
