//! What was looked for last. A request asks for the same few keys again and again, and to compare with them costs a tenth of a
//! search through a leaf.

use super::KeyBytes;
use smallvec::SmallVec;

/// How many keys: a file, its directory, and what else a rename or a link concerns.
const KEPT: usize = 4;

/// What is longer is looked for each time.
const MOST_BYTES: usize = 128;

#[derive(Default)]
pub(super) struct Recent {
    kept: [Option<Known>; KEPT],
    /// The one that goes next.
    oldest: usize,
}

struct Known {
    key: KeyBytes,
    /// `None` where the tree has none.
    value: Option<SmallVec<[u8; 64]>>,
}

impl Recent {
    /// What the tree has for the key, if that is known here.
    pub fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let known = self.kept.iter().flatten().find(|known| known.key[..] == *key)?;
        Some(known.value.as_deref())
    }

    #[cfg(test)]
    pub fn known(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.kept.iter().flatten().map(|known| (&known.key[..], known.value.as_deref()))
    }

    /// What the tree has for the key from now on.
    pub fn note(&mut self, key: &[u8], value: Option<&[u8]>) {
        let at = self.kept.iter().position(|known| known.as_ref().is_some_and(|known| known.key[..] == *key));
        if key.len().max(value.map_or(0, <[u8]>::len)) > MOST_BYTES {
            at.into_iter().for_each(|at| self.kept[at] = None);
            return;
        }
        let known = Known { key: key.into(), value: value.map(SmallVec::from_slice) };
        let at = at.unwrap_or(self.oldest);
        if at == self.oldest {
            self.oldest = (self.oldest + 1) % KEPT;
        }
        self.kept[at] = Some(known);
    }
}
