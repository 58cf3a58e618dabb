//! Key conflicts in stores where a key and the keys below it exclude each other, like file and
//! directory.
//!
//! Names exclude each other, too. So a conflicting object is always on its way elsewhere: it is
//! about to be deleted, has not followed its file yet, or is below a redirect. Files that exchange
//! names would wait for each other in a cycle, unless one moves to a temporary key.

use super::*;
use crate::tree::Value;
use std::ops::Bound;

impl Backing {
    /// The step required before an object is written to `key` for `ino`, after the store refused
    /// the key because of a key above or below it. `None`: no object of this volume conflicts.
    pub fn resolve_key_conflict(
        &self,
        namespace: &Namespace,
        ino: Ino,
        key: &str,
    ) -> Option<FlushStep> {
        let above = || key.match_indices('/').map(|(at, _)| &key[..at]);
        let below = (!key.ends_with('/')).then(|| format!("{key}/"));
        let is_below = |other: &str| below.as_ref().is_some_and(|below| other.starts_with(below));
        let in_the_way = |other: &str| is_below(other) || above().any(|above| above == other);

        if let Some(key) = above().map(str::to_owned).find(|above| self.deletes.contains_key(above))
        {
            return Some(FlushStep::AwaitDelete { key });
        }
        let sent = self.uploads.iter().find(|(_, upload)| upload.keys().any(in_the_way));
        if let Some((other, _)) = sent {
            return Some(FlushStep::AwaitUpload { ino: *other });
        }
        if let Some((from, occupant)) =
            above().find_map(|above| Some((above, self.explicit_keys.get(&above.to_owned())?)))
        {
            return self.move_aside(occupant, from);
        }
        if let Some((from, occupant)) = first_below(&self.explicit_keys, below.as_ref()) {
            // The refused file moves aside first: the conflicting one may wait for that, and
            // otherwise moves by itself.
            return match self.explicit_key(ino).filter(|object| *object != keys::waiting_key(ino)) {
                Some(own) => self.move_aside(ino, &own),
                None => self.move_aside(occupant, &from),
            };
        }
        if let Some((key, _)) = first_below(&self.deletes, below.as_ref()) {
            return Some(FlushStep::AwaitDelete { key });
        }
        if let Some((_, dir)) = first_below(&self.redirects, below.as_ref()) {
            return Some(FlushStep::MakeWay { dir });
        }
        // A file whose name became a directory's, with a redirect that contains the key.
        let file = above().find(|above| self.owner(namespace, above).is_some())?;
        let mut below_it = above().filter(|above| above.len() >= file.len());
        below_it
            .find_map(|above| self.redirects.get(&format!("{above}/")))
            .map(|dir| FlushStep::MakeWay { dir })
    }

    /// Whether a delete below the prefix is pending.
    pub fn has_deletes_below(&self, prefix: &str) -> bool {
        let next =
            self.deletes.range((Bound::Excluded(prefix.to_owned()), Bound::Unbounded)).next();
        next.is_some_and(|(key, _)| key.starts_with(prefix))
    }

    /// Copies an object to its temporary key.
    fn move_aside(&self, occupant: Ino, from: &str) -> Option<FlushStep> {
        self.evict(occupant, from, keys::waiting_key(occupant))
    }
}

fn first_below<V: Value<String>>(
    tree: &Tree<String, V>,
    prefix: Option<&String>,
) -> Option<(String, V)> {
    let prefix = prefix?;
    tree.range(prefix.clone()..).next().filter(|(key, _)| key.starts_with(prefix))
}
