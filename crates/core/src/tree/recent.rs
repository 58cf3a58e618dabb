//! What was looked for last. A request asks for the same few keys again and again, and to compare
//! with them costs a fraction of a search through a leaf.

/// How many keys: a file, its directory, and what else a rename or a link concerns.
const KEPT: usize = 4;

/// What is longer is looked for each time.
const MOST_BYTES: usize = 128;

pub(super) struct Recent<K, V> {
    /// `None` where the tree has no value.
    kept: [Option<(K, Option<V>)>; KEPT],
    /// The one that goes next.
    oldest: usize,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Recent { kept: [const { None }; KEPT], oldest: 0 }
    }
}

impl<K: Clone + PartialEq, V> Recent<K, V> {
    /// What the tree has for the key, if that is known here.
    pub fn get(&self, key: &K) -> Option<Option<&V>> {
        let (_, value) = self.kept.iter().flatten().find(|(known, _)| known == key)?;
        Some(value.as_ref())
    }

    pub fn known(&self) -> impl Iterator<Item = &(K, Option<V>)> {
        self.kept.iter().flatten()
    }

    /// What the tree has for the key from now on. The longer of the two has so many bytes.
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
