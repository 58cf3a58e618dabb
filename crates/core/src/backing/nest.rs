//! Stores in which a key and the keys below it exclude each other, as file and directory do.
//!
//! Names exclude each other too, so what is in the way is on its way elsewhere: it waits to be deleted, has not
//! followed its file, or is below the prefix that a directory has kept. Files that change places wait for each
//! other in a circle unless one of them goes aside.

use super::*;
use crate::tree::Value;

impl Backing {
    /// What must happen before anything can be put to `key` for `ino`, where the store has refused that because of
    /// what is above or below it. `None`: nothing of this volume's is.
    pub fn way_to(&self, ino: Ino, key: &str) -> Option<FlushStep> {
        let above = || key.match_indices('/').map(|(at, _)| &key[..at]);
        let below = (!key.ends_with('/')).then(|| format!("{key}/"));
        let is_below = |other: &str| below.as_ref().is_some_and(|below| other.starts_with(below));
        let in_the_way = |other: &str| is_below(other) || above().any(|above| above == other);

        let deleted_above = above().map(str::to_owned).find(|above| self.deletes.contains_key(above));
        if let Some(key) = deleted_above.or_else(|| first_below(&self.deletes, below.as_ref()).map(|(key, _)| key)) {
            return Some(FlushStep::AwaitDelete { key });
        }
        let sent = self.uploads.iter().find(|(_, upload)| upload.keys().any(in_the_way));
        if let Some((other, _)) = sent {
            return Some(FlushStep::AwaitUpload { ino: *other });
        }
        if let Some((from, occupant)) = above().find_map(|above| Some((above, self.homes.get(&above.to_owned())?))) {
            return self.aside(occupant, from);
        }
        if let Some((from, occupant)) = first_below(&self.homes, below.as_ref()) {
            // Whoever is refused goes aside first: what is in its way may wait for that, and else goes by itself.
            return match self.home_before(ino).filter(|home| *home != keys::waiting_key(ino)) {
                Some(own) => self.aside(ino, &own),
                None => self.aside(occupant, &from),
            };
        }
        let redirected_above = above().find_map(|above| self.redirects.get(&format!("{above}/")));
        let redirected = redirected_above.or_else(|| first_below(&self.redirects, below.as_ref()).map(|(_, dir)| dir))?;
        let is_private = self.dirs.get(&redirected)?.prefix? == keys::private_prefix(redirected);
        (!is_private).then_some(FlushStep::MakeWay { dir: redirected })
    }

    /// Copies an object out of the way.
    fn aside(&self, occupant: Ino, from: &str) -> Option<FlushStep> {
        self.evict(occupant, from, keys::waiting_key(occupant))
    }
}

fn first_below<V: Value<String>>(tree: &Tree<String, V>, prefix: Option<&String>) -> Option<(String, V)> {
    let prefix = prefix?;
    tree.range(prefix.clone()..).next().filter(|(key, _)| key.starts_with(prefix))
}
