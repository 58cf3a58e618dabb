//! Inodes that the kernel has references to, and how many.
//!
//! A successor knows at least all references that exist: each is recorded before the kernel
//! receives it, and deleted after the kernel has dropped it.

use ebb_client::{HandoverState, RecordIndex};
use ebb_model::Ino;
use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) struct KernelReferences {
    inodes: BTreeMap<Ino, References>,
    handover: Option<Rc<HandoverState>>,
}

struct References {
    count: u64,
    /// Their record in the handover state.
    place: Option<RecordIndex>,
}

impl KernelReferences {
    /// Starts with the references that a previous process has left. The kernel always has the root.
    pub fn new(handover: Option<Rc<HandoverState>>) -> KernelReferences {
        let mut inodes = BTreeMap::from([(Ino::ROOT, References { count: 1, place: None })]);
        for (place, ino, count) in handover.iter().flat_map(|handover| handover.inodes()) {
            inodes.insert(ino, References { count, place: Some(place) });
        }
        KernelReferences { inodes, handover }
    }

    /// The kernel is about to receive one more reference to it.
    pub fn refer(&mut self, ino: Ino) {
        let references = self.inodes.entry(ino).or_insert(References { count: 0, place: None });
        references.count = references.count.saturating_add(1);
        match (&self.handover, references.place) {
            (Some(handover), Some(place)) => handover.set_inode(place, references.count),
            (Some(handover), None) => references.place = handover.put_inode(ino, references.count),
            (None, _) => {}
        }
    }

    /// The kernel has dropped `count` references. True if it has none any more.
    pub fn forget(&mut self, ino: Ino, count: u64) -> bool {
        let Some(references) = self.inodes.get_mut(&ino) else { return false };
        references.count = references.count.saturating_sub(count);
        let left = references.count;
        if let (Some(handover), Some(place)) = (&self.handover, references.place) {
            handover.set_inode(place, left);
        }
        if left == 0 {
            self.inodes.remove(&ino);
        }
        left == 0
    }

    pub fn has(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino)
    }

    pub fn all(&self) -> Vec<Ino> {
        self.inodes.keys().copied().collect()
    }
}
