//! The bytes that files had in the states of a history: an object of the bucket is one of these
//! versions, never a mixture.

use super::content::Content;
use std::collections::HashMap;
use std::time::Duration;

/// One version of an object of the bucket.
#[derive(Clone, Debug)]
pub struct StoredObject {
    pub at: Duration,
    pub key: String,
    pub content: Content,
}

/// The known versions, by size in bytes.
#[derive(Default)]
pub(super) struct Versions {
    by_size: HashMap<u64, Vec<Version>>,
}

struct Version {
    /// No file had this version earlier.
    since: Duration,
    content: Content,
    /// Each byte of the version comes from `content` or from one of these.
    others: Vec<Content>,
}

impl Versions {
    pub fn add(&mut self, since: Duration, content: &Content, others: &[Content]) {
        let known = self.by_size.entry(content.size()).or_default();
        match known.iter_mut().find(|known| known.content == *content && known.others == others) {
            Some(known) => known.since = known.since.min(since),
            None => {
                let (content, others) = (content.clone(), others.to_vec());
                known.push(Version { since, content, others });
            }
        }
    }

    pub fn explain(&self, object: &StoredObject) -> bool {
        let known = self.by_size.get(&object.content.size()).map_or(&[][..], Vec::as_slice);
        let (exact, mixed): (Vec<_>, Vec<_>) = known
            .iter()
            .filter(|version| version.since <= object.at)
            .partition(|version| version.others.is_empty());
        if exact.iter().chain(&mixed).any(|version| version.content == object.content) {
            return true;
        }
        if mixed.is_empty() {
            return false;
        }
        let bytes = object.content.read(0, object.content.size() as usize);
        mixed
            .iter()
            .any(|version| version.content.first_stranger(&version.others, 0, &bytes).is_none())
    }
}
