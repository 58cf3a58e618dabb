//! Handover state with arbitrary words: the resumed client rejects it, or takes it over and can
//! leave it to the next generation.

use ebb_client::{HandoverState, Locker, Open};
use ebb_model::Ino;
use ebb_ports::SharedMemory;
use std::cell::RefCell;
use std::rc::Rc;

const OPEN_FILES: usize = 4;

struct Memory(RefCell<Vec<u64>>);

impl SharedMemory for Memory {
    fn count(&self) -> usize {
        self.0.borrow().len()
    }

    fn load(&self, at: usize) -> u64 {
        self.0.borrow()[at]
    }

    fn store(&self, at: usize, word: u64) {
        self.0.borrow_mut()[at] = word;
    }
}

/// Input: pairs of a position and a non-zero word.
pub fn run(bytes: &[u8]) {
    let Ok(words) = postcard::from_bytes::<Vec<(u16, u64)>>(bytes) else { return };
    let mut memory = vec![0; HandoverState::words_for(OPEN_FILES)];
    for (at, word) in words {
        let at = usize::from(at) % memory.len();
        memory[at] = word;
    }
    let memory = Rc::new(Memory(RefCell::new(memory)));
    HandoverState::unfit_in(&*memory);
    HandoverState::sure_until_in(&*memory);
    HandoverState::inodes_in(&*memory);
    let Ok(handover) = HandoverState::take(memory.clone()) else { return };
    let mut opens = handover.opens();
    let handle = opens.iter().map(|open| open.handle).fold(0, u64::max);
    if let Some(handle) = handle.checked_add(1) {
        let open = Open { request: 77, ino: Ino(1), handle, detail: 0 };
        let before = handover.opened_before(open.request);
        if handover.opened(open) {
            opens.retain(|other| Some(*other) != before);
            opens.push(open);
        }
    }
    if let Some(closed) = opens.first().copied() {
        assert_eq!(handover.closed(closed.handle), Some(closed));
        opens.remove(0);
    }
    let locker = handover.put_locker(Locker { ino: Ino(1), owner: 1, handle });
    let inode = handover.put_inode(Ino(1), 2);
    let (lockers, inodes): (Vec<_>, Vec<_>) = (handover.lockers(), handover.inodes().collect());
    assert!(locker.is_none_or(|place| handle == 0 || lockers.iter().any(|(at, _)| *at == place)));
    assert!(inode.is_none_or(|place| inodes.iter().any(|(at, ..)| *at == place)));
    let generation = handover.generation();
    let Ok(next) = HandoverState::take(memory) else {
        return assert_eq!(generation, u64::MAX, "a state is taken over repeatedly");
    };
    let mut left = next.opens();
    opens.sort_by_key(|open| open.handle);
    left.sort_by_key(|open| open.handle);
    // Of two opens by one request, the first is kept.
    assert!(left.iter().all(|open| opens.contains(open)), "{left:?} of {opens:?}");
    assert_eq!((next.lockers(), next.inodes().collect()), (lockers, inodes));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let memory = Rc::new(Memory(RefCell::new(vec![0; HandoverState::words_for(OPEN_FILES)])));
    let handover = HandoverState::take(memory.clone()).expect("nothing was left");
    for request in [1, 2] {
        assert!(handover.opened(Open { request, ino: Ino(9), handle: request, detail: 3 }));
    }
    handover.put_locker(Locker { ino: Ino(9), owner: 5, handle: 1 });
    handover.put_inode(Ino(9), 2);
    // The layout version, and a session.
    memory.store(0, 0x6562_6202);
    memory.store(1, 7);
    let words = memory.0.borrow();
    let left: Vec<(u16, u64)> = words
        .iter()
        .enumerate()
        .filter(|(_, word)| **word != 0)
        .map(|(at, word)| (at as u16, *word))
        .collect();
    vec![postcard::to_stdvec(&left).expect("words have an encoding")]
}
