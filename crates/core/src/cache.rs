//! The eviction order of chunks when the disk budget is exceeded: S3-FIFO (Yang et al., SOSP '23)
//! weighted by bytes. New chunks enter a small queue; chunks used again there move to the main
//! queue. A ghost queue records the chunks evicted from the small queue: if they return they enter
//! the main queue at once. So a scan of a file larger than the cache evicts mostly itself.
//!
//! [`Eviction::Lru`] (H-30) uses only the main queue, in order of last use, and no ghost.
//!
//! A chunk is read by many requests. Uses count as one while few bytes are inserted between them;
//! otherwise every scan would look like a working set. (LRU considers only the last use.)
//!
//! Laws:
//! - An entry is in exactly one queue.
//! - Bytes of the queues are the sums of their entries' weights.
//! - The ghost records at most as many bytes as are in the cache, and no key that is in it.
//!
//! Each step of [`Cache::victims`] evicts an entry, promotes it once, or consumes one of at most
//! [`MAX_CREDITS`] credits from uses: amortised O(1) steps, each O(log n).

use ebb_model::Ino;
use std::collections::BTreeMap;

/// A chunk of a file.
pub type Key = (Ino, u64);

/// The eviction policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Eviction {
    /// Chunks used repeatedly survive scans.
    #[default]
    S3Fifo,
    /// Evicts the least recently used chunk.
    Lru,
}

/// The eviction order. It holds no data, and is rebuilt at every start.
#[derive(Default)]
pub struct Cache {
    eviction: Eviction,
    /// Read-ahead inserts up to this many bytes between uses of a chunk that count as one.
    least_burst_bytes: u64,
    entries: BTreeMap<Key, Entry>,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    /// Turns ascend; each queue is sorted by them.
    last_turn: u64,
    /// Total of inserted bytes: the clock that separates uses.
    inserted_bytes: u64,
}

struct Entry {
    bytes: u64,
    /// Uses since its last consideration for eviction.
    credits: u8,
    /// Value of `inserted_bytes` at the last counted use.
    used_at: u64,
    promoted: bool,
    turn: u64,
}

#[derive(Default)]
struct Queue {
    order: BTreeMap<u64, Key>,
    bytes: u64,
}

#[derive(Default)]
struct Ghost {
    order: BTreeMap<u64, Key>,
    /// Turn and bytes.
    keys: BTreeMap<Key, (u64, u64)>,
    bytes: u64,
}

const MAX_CREDITS: u8 = 3;

/// The small queue has 1 / this of all bytes.
const SMALL_SHARE: u64 = 10;

/// Uses within the insertion of 1 / this of all bytes count as one: a quarter of the small queue.
const BURST_SHARE: u64 = 40;

impl Cache {
    /// Uses within `least_burst_bytes` of insertions count as one, however small the cache is.
    pub fn new(eviction: Eviction, least_burst_bytes: u64) -> Cache {
        Cache { eviction, least_burst_bytes, ..Cache::default() }
    }

    /// The chunk has `bytes` evictable bytes. An existing entry gets the new weight.
    pub fn insert(&mut self, key: Key, bytes: u64) {
        if let Some(mut entry) = self.take(key) {
            self.inserted_bytes =
                self.inserted_bytes.saturating_add(bytes.saturating_sub(entry.bytes));
            entry.bytes = bytes;
            let turn = entry.turn;
            self.put(key, entry, turn);
            return;
        }
        self.inserted_bytes = self.inserted_bytes.saturating_add(bytes);
        let promoted = self.ghost.remove(key) || self.eviction == Eviction::Lru;
        let entry = Entry { bytes, credits: 0, used_at: self.inserted_bytes, promoted, turn: 0 };
        self.put_last(key, entry);
    }

    /// The chunk was used. A chunk that is not in the cache is ignored.
    pub fn touch(&mut self, key: Key) {
        if self.eviction == Eviction::Lru {
            if let Some(entry) = self.take(key) {
                self.put_last(key, entry);
            }
            return;
        }
        let burst = (self.bytes() / BURST_SHARE).max(self.least_burst_bytes);
        let now = self.inserted_bytes;
        if let Some(entry) = self.entries.get_mut(&key)
            && now - entry.used_at > burst
        {
            entry.used_at = now;
            entry.credits = (entry.credits + 1).min(MAX_CREDITS);
        }
    }

    /// The chunk was requested explicitly (warm): it counts as used again, unlike one read once.
    pub fn prefer(&mut self, key: Key) {
        let Some(mut entry) = self.take(key) else { return };
        entry.promoted = true;
        if self.eviction == Eviction::S3Fifo {
            entry.credits = entry.credits.max(1);
        }
        self.put_last(key, entry);
    }

    /// The chunk has no evictable bytes any more.
    pub fn remove_chunk(&mut self, key: Key) {
        self.take(key);
    }

    /// The file is gone: removes its chunks also from the ghost.
    pub fn remove(&mut self, ino: Ino) {
        let chunks: Vec<Key> =
            self.entries.range((ino, 0)..=(ino, u64::MAX)).map(|(key, _)| *key).collect();
        for key in chunks {
            self.take(key);
        }
        let ghosts: Vec<Key> =
            self.ghost.keys.range((ino, 0)..=(ino, u64::MAX)).map(|(key, _)| *key).collect();
        for key in ghosts {
            self.ghost.remove(key);
        }
    }

    /// Removes chunks of at least `bytes` in total, or all, and returns them. The caller inserts a
    /// chunk again that it could not evict.
    pub fn victims(&mut self, bytes: u64) -> Vec<Key> {
        let mut victims = Vec::new();
        let mut freed_bytes = 0u64;
        while freed_bytes < bytes {
            let from_small =
                self.main.order.is_empty() || self.small.bytes > self.bytes() / SMALL_SHARE;
            let queue =
                if from_small && !self.small.order.is_empty() { &self.small } else { &self.main };
            let Some((_, &key)) = queue.order.first_key_value() else { break };
            let mut entry = self.take(key).expect("a queued chunk has an entry");
            if entry.credits == 0 {
                freed_bytes += entry.bytes;
                if !entry.promoted {
                    self.last_turn += 1;
                    self.ghost.add(self.last_turn, key, entry.bytes);
                }
                victims.push(key);
                continue;
            }
            entry.credits = if entry.promoted { entry.credits - 1 } else { 0 };
            entry.promoted = true;
            self.put_last(key, entry);
        }
        self.ghost.shrink(self.bytes());
        victims
    }

    /// Weight of all entries.
    pub fn bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn take(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        let queue = self.queue_of(&entry);
        queue.order.remove(&entry.turn);
        queue.bytes -= entry.bytes;
        Some(entry)
    }

    fn put_last(&mut self, key: Key, entry: Entry) {
        self.last_turn += 1;
        self.put(key, entry, self.last_turn);
    }

    fn put(&mut self, key: Key, mut entry: Entry, turn: u64) {
        entry.turn = turn;
        let queue = self.queue_of(&entry);
        queue.order.insert(turn, key);
        queue.bytes += entry.bytes;
        self.entries.insert(key, entry);
    }

    fn queue_of(&mut self, entry: &Entry) -> &mut Queue {
        if entry.promoted { &mut self.main } else { &mut self.small }
    }

    /// Descriptions of broken laws.
    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let (mut small, mut main) = (0, 0);
        for (key, entry) in &self.entries {
            let (queue, sum) =
                if entry.promoted { (&self.main, &mut main) } else { (&self.small, &mut small) };
            *sum += entry.bytes;
            if queue.order.get(&entry.turn) != Some(key) {
                problems.push(format!("{key:?} is not in its queue"));
            }
            if self.ghost.keys.contains_key(key) {
                problems.push(format!("{key:?} is in the cache and in the ghost"));
            }
        }
        if (small, main) != (self.small.bytes, self.main.bytes) {
            problems.push("bytes of the queues are miscounted".into());
        }
        if self.small.order.len() + self.main.order.len() > self.entries.len() {
            problems.push("the queues have more positions than entries".into());
        }
        if self.ghost.bytes != self.ghost.keys.values().map(|(_, bytes)| bytes).sum::<u64>()
            || self.ghost.order.len() != self.ghost.keys.len()
        {
            problems.push("the ghost is miscounted".into());
        }
        problems
    }
}

impl Ghost {
    fn add(&mut self, turn: u64, key: Key, bytes: u64) {
        // Otherwise a chunk of weight 0 would never leave the ghost.
        let bytes = bytes.max(1);
        self.order.insert(turn, key);
        self.keys.insert(key, (turn, bytes));
        self.bytes += bytes;
    }

    fn remove(&mut self, key: Key) -> bool {
        let Some((turn, bytes)) = self.keys.remove(&key) else { return false };
        self.order.remove(&turn);
        self.bytes -= bytes;
        true
    }

    fn shrink(&mut self, limit_bytes: u64) {
        while self.bytes > limit_bytes
            && let Some((_, &key)) = self.order.first_key_value()
        {
            self.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
