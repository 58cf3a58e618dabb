//! Keys of the bucket that cannot be names here. They are counted, reported by `ebb status` and
//! `ebb explain`, and keep the directory that they are in from being removed.

use crate::Node;
use crate::admin::{path_bytes, troubles};
use ebb_core::state::State;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Keys of one directory that are reported one by one.
const MOST_KEYS: usize = 16;

/// By directory, as its listing was last read in this run.
#[derive(Default)]
pub(crate) struct NotShown {
    dirs: RefCell<BTreeMap<Ino, Keys>>,
}

struct Keys {
    since: Time,
    count: u64,
    first: Vec<String>,
}

impl NotShown {
    /// A part of a listing was read. `begins`: it is the first one.
    pub fn found(&self, dir: Ino, begins: bool, keys: &[String], now: Time) {
        let mut dirs = self.dirs.borrow_mut();
        let before = dirs.get(&dir).map(|keys| (keys.since, keys.count));
        if begins && keys.is_empty() {
            dirs.remove(&dir);
            return;
        }
        if keys.is_empty() {
            return;
        }
        let since = before.map_or(now, |(since, _)| since);
        let known = dirs.entry(dir).or_insert(Keys { since, count: 0, first: Vec::new() });
        if begins {
            *known = Keys { since, count: 0, first: Vec::new() };
        }
        known.count += keys.len() as u64;
        let room = MOST_KEYS - known.first.len();
        known.first.extend(keys.iter().take(room).cloned());
        if before.is_none_or(|(_, count)| count != known.count) {
            let (not_shown, key) = (known.count, &known.first[0]);
            tracing::warn!(%dir, not_shown, key, "keys of the bucket cannot be names and are not \
                shown");
        }
    }

    pub fn has(&self, dir: Ino) -> bool {
        self.dirs.borrow().contains_key(&dir)
    }

    /// How many there are, and the first of them.
    pub fn of(&self, dir: Ino) -> (u64, Vec<String>) {
        self.dirs
            .borrow()
            .get(&dir)
            .map_or((0, Vec::new()), |keys| (keys.count, keys.first.clone()))
    }

    pub fn troubles(&self, state: &State) -> Vec<Trouble> {
        let mut dirs = self.dirs.borrow_mut();
        dirs.retain(|dir, _| state.namespace().inode(*dir).is_some());
        let troubles: Vec<Trouble> = dirs
            .iter()
            .map(|(dir, keys)| {
                let path = state.namespace().path_of(*dir).unwrap_or_default();
                let path = shown_path(&path_bytes(&path));
                let count = keys.count;
                let what = format!(
                    "directory /{path} of the volume: {count} keys of the bucket cannot be names \
                     and are not shown; `ebb explain` of it lists up to {MOST_KEYS} of them"
                );
                Trouble { since: keys.since, what }
            })
            .collect();
        troubles::told(troubles.iter())
    }
}

impl Node {
    /// Refuses to remove a directory in which the bucket has keys that are not shown: to whoever
    /// looks into the bucket it is not empty. The directory is known to have no names.
    pub(crate) async fn expect_nothing_hidden(self: &Rc<Self>, dir: Ino) -> Result<(), RpcError> {
        if self.buckets.is_none() {
            return Ok(());
        }
        if self.names.not_shown.has(dir) {
            // They may have gone since.
            Box::pin(self.list_again(dir)).await?;
        } else {
            self.revalidate_once(dir).await;
        }
        if self.names.not_shown.has(dir) { Err(FsError::NotEmpty.into()) } else { Ok(()) }
    }
}
