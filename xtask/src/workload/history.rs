//! The states that a power cut may leave after the work of one mount whose machine is also the
//! node's (docs/semantics/durability.md, S-2 and S-4): names, lengths and modes of one moment at or
//! after the last force; each written byte that was not forced is old, new or zero; all other bytes
//! are unchanged. The kernel splits a write(2) that begins within a page into a request for that
//! page and one for the rest, so the first request may be all that is left.
//!
//! For names any fsync(2) of the mount is a force; for bytes, one of the file or of the mount's
//! root directory. Forces by the node itself are not visible here.

#[cfg(test)]
mod tests;

use super::{File, Files, Operation, apply};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The forced prefix of each worker's operations.
pub struct Forces(Vec<Progress>);

#[derive(Default)]
struct Progress {
    answered: AtomicU64,
    /// Namespace operations.
    named: AtomicU64,
    /// Bytes of all files.
    kept: AtomicU64,
}

/// The forced prefix of one worker.
#[derive(Clone, Copy)]
pub struct Forced {
    named: u64,
    kept: u64,
}

impl Forces {
    pub fn of(workers: usize) -> Forces {
        Forces((0..workers).map(|_| Progress::default()).collect())
    }

    /// Acknowledged operations before an operation that may be a force.
    pub fn begin(&self) -> Vec<u64> {
        self.0.iter().map(|progress| progress.answered.load(Ordering::SeqCst)).collect()
    }

    /// Records the acknowledgement of a worker's last operation, which began at `before`.
    pub fn ended(&self, worker: usize, history: &History, mut before: Vec<u64>) {
        let total = history.total();
        self.0[worker].answered.store(total, Ordering::SeqCst);
        before[worker] = total;
        let (named, kept) = match history.operations.last() {
            Some(Operation::ForceAll) => (true, true),
            Some(
                Operation::Force { .. }
                | Operation::ForceNames
                | Operation::Write { sync: true, .. },
            ) => (true, false),
            _ => return,
        };
        for (progress, upto) in self.0.iter().zip(before) {
            if named {
                progress.named.fetch_max(upto, Ordering::SeqCst);
            }
            if kept {
                progress.kept.fetch_max(upto, Ordering::SeqCst);
            }
        }
    }

    pub fn of_worker(&self, worker: usize) -> Forced {
        let progress = &self.0[worker];
        Forced {
            named: progress.named.load(Ordering::SeqCst),
            kept: progress.kept.load(Ordering::SeqCst),
        }
    }
}

/// One worker's operations in order, from a forced state on.
#[derive(Default)]
pub struct History {
    base: Files,
    /// Operations before that state.
    first: u64,
    operations: Vec<Operation>,
}

impl History {
    pub fn add(&mut self, operation: Operation) {
        self.operations.push(operation);
    }

    fn total(&self) -> u64 {
        self.first + self.operations.len() as u64
    }

    /// Finds the moment that the disk returned to and continues from there; returns the number of
    /// lost operations. At most one of `unanswered` has happened. The error describes an impossible
    /// state.
    pub fn explain(
        &mut self,
        found: &Files,
        unanswered: Vec<Operation>,
        forced: Forced,
    ) -> Result<u64, String> {
        let least = forced.named.saturating_sub(self.first) as usize;
        let kept = forced.kept.saturating_sub(self.first) as usize;
        let mut moments = Vec::new();
        let mut walk = Walk::from(&self.base);
        for done in 0..=self.operations.len() {
            if let Some(last) = done.checked_sub(1) {
                walk.step(&self.operations[last], true);
            }
            if done == kept {
                walk.all_forced();
            }
            if done < least {
                continue;
            }
            if walk.has_shape(found) {
                moments.push((done, None));
            }
            let begun = self.operations.get(done).and_then(beginning);
            moments.extend(
                begun
                    .filter(|begun| walk.has_shape_after(begun, found))
                    .map(|begun| (done, Some(begun))),
            );
        }
        let happened = unanswered.iter().filter(|operation| walk.has_shape_after(operation, found));
        moments.extend(happened.map(|operation| (self.operations.len(), Some(operation.clone()))));
        unanswered.iter().for_each(|operation| walk.wrote(operation));

        let mut why = format!(
            "names, lengths and modes are those of no moment from operation {least} to {}",
            self.operations.len()
        );
        if moments.is_empty() {
            why.push_str(&format!(" of {}: {}", self.operations.len(), self.nearest(found, least)));
        }
        for (done, last) in moments.iter().rev() {
            let done = *done;
            let mut then = Walk::from(&self.base);
            self.operations[..done]
                .iter()
                .chain(last)
                .for_each(|operation| then.step(operation, false));
            match then.stranger(found, &walk.unforced) {
                Some(stranger) => {
                    why = format!(
                        "after operation {done} of {}, forced up to {least}: {stranger}",
                        self.operations.len()
                    )
                }
                None => {
                    let lost = (self.operations.len() - done) as u64;
                    *self = History {
                        base: found.clone(),
                        first: self.total(),
                        operations: Vec::new(),
                    };
                    return Ok(lost);
                }
            }
        }
        Err(why)
    }

    /// The possible state that is nearest to the result.
    fn nearest(&self, found: &Files, least: usize) -> String {
        let mut files = self.base.clone();
        let mut nearest: Option<(usize, Vec<String>)> = None;
        for (done, operation) in (1..).zip(&self.operations) {
            apply(&mut files, operation);
            let names: std::collections::BTreeSet<u64> =
                files.keys().chain(found.keys()).copied().collect();
            let shape = |file: Option<&File>| file.map(|file| (file.mode, file.content.len()));
            let differ =
                names.into_iter().filter(|name| shape(files.get(name)) != shape(found.get(name)));
            let differ: Vec<String> = differ
                .map(|name| {
                    format!(
                        "name {name} is {:?}, not {:?}",
                        shape(found.get(&name)),
                        shape(files.get(&name))
                    )
                })
                .collect();
            if done >= least && nearest.as_ref().is_none_or(|(_, known)| differ.len() < known.len())
            {
                nearest = Some((done, differ));
            }
        }
        nearest.map_or_else(String::new, |(done, differ)| {
            format!("nearest is {done}, but (mode, length) of {}", differ.join(", "))
        })
    }
}

/// The first request of a write, if the kernel splits it.
fn beginning(operation: &Operation) -> Option<Operation> {
    let Operation::Write { name, offset, data, .. } = operation else { return None };
    let data = data
        .get(..offset.next_multiple_of(PAGE_BYTES) - offset)
        .filter(|part| !part.is_empty() && part.len() < data.len())?;
    Some(Operation::Write { name: *name, offset: *offset, data: data.to_vec(), sync: false })
}

const PAGE_BYTES: usize = 4096;

/// A replay of a history.
#[derive(Clone)]
struct Walk<'a> {
    files: BTreeMap<u64, Tracked>,
    last: u64,
    /// Per file, by an id that survives renames.
    unforced: BTreeMap<u64, Unforced<'a>>,
}

#[derive(Clone)]
struct Tracked {
    id: u64,
    file: File,
}

/// A file's forced state, and the writes since.
#[derive(Clone, Default)]
struct Unforced<'a> {
    forced: Vec<u8>,
    writes: Vec<(usize, &'a [u8])>,
}

impl<'a> Walk<'a> {
    fn from(base: &Files) -> Walk<'a> {
        let files: BTreeMap<u64, Tracked> = (1..)
            .zip(base)
            .map(|(id, (name, file))| (*name, Tracked { id, file: file.clone() }))
            .collect();
        let mut walk = Walk { last: files.len() as u64, files, unforced: BTreeMap::new() };
        walk.all_forced();
        walk
    }

    /// `counts`: the operation was acknowledged, so its force holds.
    fn step(&mut self, operation: &'a Operation, counts: bool) {
        self.wrote(operation);
        self.apply(operation);
        match operation {
            Operation::Force { name } | Operation::Write { name, sync: true, .. } if counts => {
                self.forced(*name)
            }
            Operation::ForceAll if counts => self.all_forced(),
            _ => {}
        }
    }

    /// As [`apply`], with file ids.
    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Rename { from, to } => {
                if let Some(file) = self.files.remove(from) {
                    self.files.insert(*to, file);
                }
            }
            Operation::Remove { name } => drop(self.files.remove(name)),
            Operation::Create { name }
            | Operation::Write { name, .. }
            | Operation::Truncate { name, .. }
            | Operation::Chmod { name, .. } => {
                let known = self.files.remove(name);
                let id = known.as_ref().map(|tracked| tracked.id).unwrap_or_else(|| {
                    self.last += 1;
                    self.last
                });
                let mut one: Files =
                    known.map(|tracked| (*name, tracked.file)).into_iter().collect();
                apply(&mut one, operation);
                self.files.extend(one.into_iter().map(|(name, file)| (name, Tracked { id, file })));
            }
            Operation::Force { .. } | Operation::ForceNames | Operation::ForceAll => {}
        }
    }

    fn wrote(&mut self, operation: &'a Operation) {
        if let Operation::Write { name, offset, data, .. } = operation
            && let Some(tracked) = self.files.get(name)
        {
            self.unforced.entry(tracked.id).or_default().writes.push((*offset, data));
        }
    }

    fn forced(&mut self, name: u64) {
        if let Some(Tracked { id, file }) = self.files.get(&name) {
            self.unforced
                .insert(*id, Unforced { forced: file.content.clone(), writes: Vec::new() });
        }
    }

    fn all_forced(&mut self) {
        let names: Vec<u64> = self.files.keys().copied().collect();
        names.into_iter().for_each(|name| self.forced(name));
    }

    fn has_shape(&self, found: &Files) -> bool {
        self.files.len() == found.len()
            && self.files.iter().zip(found).all(|((name, tracked), (other, file))| {
                name == other
                    && tracked.file.mode == file.mode
                    && tracked.file.content.len() == file.content.len()
            })
    }

    fn has_shape_after(&self, operation: &Operation, found: &Files) -> bool {
        let mut after =
            Walk { files: self.files.clone(), last: self.last, unforced: BTreeMap::new() };
        after.apply(operation);
        after.has_shape(found)
    }

    /// The first impossible byte. The names are equal.
    fn stranger(&self, found: &Files, unforced: &BTreeMap<u64, Unforced<'_>>) -> Option<String> {
        for (name, file) in found {
            let tracked = self.files.get(name)?;
            if tracked.file.content == file.content {
                continue;
            }
            let nothing = Unforced::default();
            let unforced = unforced.get(&tracked.id).unwrap_or(&nothing);
            let differs = tracked
                .file
                .content
                .iter()
                .zip(&file.content)
                .enumerate()
                .filter(|(_, (expected, found))| expected != found);
            for (at, (expected, found)) in differs {
                let mut writes = unforced
                    .writes
                    .iter()
                    .filter_map(|(offset, data)| data.get(at.checked_sub(*offset)?))
                    .peekable();
                let was_forced = writes.peek().is_none();
                let older = unforced.forced.get(at).copied().unwrap_or(0);
                if was_forced || *found != 0 && *found != older && writes.all(|byte| byte != found)
                {
                    let what = if was_forced {
                        "nobody wrote there since it was forced"
                    } else {
                        "it is neither old nor new nor zero"
                    };
                    return Some(format!(
                        "name {name} of {} bytes has {found:#04x} at byte {at}, not \
                         {expected:#04x}, and {what}",
                        file.content.len()
                    ));
                }
            }
        }
        None
    }
}
