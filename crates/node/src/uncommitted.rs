//! The objects that a power cut could take back to an earlier state.
//!
//! Laws:
//! - An object is recorded from the command that changed it until the log is forced up to there.
//! - The record belongs to the state that the commands are applied to, so it is changed in the same
//!   step.

use ebb_model::{Ino, LogIndex};
use std::collections::{BTreeMap, VecDeque};

/// The last change of each object, for objects with changes that are not forced.
#[derive(Default)]
pub struct Uncommitted {
    last: BTreeMap<Ino, LogIndex>,
    /// All changes, oldest first.
    changes: VecDeque<(LogIndex, Ino)>,
}

impl Uncommitted {
    /// The command at `index` has changed these objects. All up to `durable` are forced.
    pub fn changed(
        &mut self,
        index: LogIndex,
        objects: impl IntoIterator<Item = Ino>,
        durable: LogIndex,
    ) {
        while let Some((_, ino)) = self.changes.pop_front_if(|(index, _)| *index <= durable) {
            if self.last_change(ino) <= durable {
                self.last.remove(&ino);
            }
        }
        for ino in objects {
            self.last.insert(ino, index);
            self.changes.push_back((index, ino));
        }
    }

    /// The command that changed the object last, or 0 if that has been forced for long.
    pub fn last_change(&self, ino: Ino) -> LogIndex {
        self.last.get(&ino).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compared with all changes ever made.
        #[test]
        fn every_object_has_its_last_change_until_it_is_forced(
            steps in prop::collection::vec((prop::collection::vec(0..6u64, 0..4), 0..8u64), 0..60)
        ) {
            let (mut uncommitted, mut all, mut durable) = (Uncommitted::default(), vec![], 0);
            for (index, (objects, behind)) in (1u64..).zip(steps) {
                durable = durable.max((index - 1).saturating_sub(behind));
                all.extend(objects.iter().map(|object| (index, Ino(*object))));
                let objects = objects.into_iter().map(Ino);
                uncommitted.changed(LogIndex(index), objects, LogIndex(durable));
                for ino in (0..6).map(Ino) {
                    let last = all.iter().rev().find(|(_, changed)| *changed == ino);
                    let expected = last.map_or(0, |(index, _)| *index);
                    let shown = uncommitted.last_change(ino).0;
                    prop_assert!(shown == expected || expected <= durable && shown == 0);
                }
            }
            uncommitted.changed(LogIndex(u64::MAX), [], LogIndex(u64::MAX));
            prop_assert!(uncommitted.last.is_empty() && uncommitted.changes.is_empty());
        }
    }
}
