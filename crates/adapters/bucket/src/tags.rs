//! Valid tags of objects: those that the most restrictive store keeps unchanged.

use ebb_ports::{BucketError, ObjectTags};

/// The tags in order, or why no store takes them: lower-case names, one value each,
/// printable ASCII without blanks at the ends, 2 KiB in all.
pub(crate) fn checked(mut tags: ObjectTags) -> Result<ObjectTags, BucketError> {
    let refused = |what: String| Err(BucketError::Refused { what });
    for (name, value) in &tags {
        let good_name = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        let good_value =
            value.bytes().all(|b| b.is_ascii_graphic() || b == b' ') && value.trim() == value;
        if !good_name || !good_value {
            return refused(format!("{name:?}: a tag is a lower-case name and a short ASCII text"));
        }
    }
    tags.sort();
    if tags.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return refused("a tag is given twice".into());
    }
    if tags.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_TAGS_BYTES {
        return refused(format!("tags hold at most {MAX_TAGS_BYTES} bytes"));
    }
    Ok(tags)
}

/// S3's bound on user metadata.
const MAX_TAGS_BYTES: usize = 2048;
