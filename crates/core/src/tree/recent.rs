//! The last accessed entries of a tree, unpacked. A request accesses the same few keys repeatedly,
//! and a comparison costs a fraction of a search through a leaf.

/// Entries: a file, its directory, and the other inodes of a rename or link.
const KEPT: usize = 4;

/// Longer entries are not cached.
const MOST_BYTES: usize = 128;

pub(super) struct Recent<K, V> {
    /// `None` caches the absence of a value.
    kept: [Option<(K, Option<V>)>; KEPT],
    /// Index of the next entry to replace.
    oldest: usize,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Recent { kept: [const { None }; KEPT], oldest: 0 }
    }
}

impl<K: Clone + PartialEq, V> Recent<K, V> {
    /// The cached result for the key.
    pub fn get(&self, key: &K) -> Option<Option<&V>> {
        let (_, value) = self.kept.iter().flatten().find(|(known, _)| known == key)?;
        Some(value.as_ref())
    }

    pub fn known(&self) -> impl Iterator<Item = &(K, Option<V>)> {
        self.kept.iter().flatten()
    }

    /// Caches the tree's new result for the key. `bytes` is the length of the longer of key and
    /// value.
    pub fn note(&mut self, key: &K, value: Option<V>, bytes: usize) {
        let at = self
            .kept
            .iter()
            .position(|known| known.as_ref().is_some_and(|(known, _)| known == key));
        if bytes > MOST_BYTES {
            at.into_iter().for_each(|at| self.kept[at] = None);
            return;
        }
        let at = at.unwrap_or(self.oldest);
        if at == self.oldest {
            self.oldest = (self.oldest + 1) % KEPT;
        }
        self.kept[at] = Some((key.clone(), value));
    }
}
