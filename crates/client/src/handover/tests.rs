use super::*;
use crate::errors::Errors;
use crate::journal::{Journal, Operation};
use ebb_model::{Caller, ClientMutation, LogIndex, Name, Replay, Stamp, Time, TxId, Version};

/// Memory that records every store.
struct Recorded {
    words: RefCell<Vec<u64>>,
    stores: RefCell<Vec<(usize, u64)>>,
}

impl Recorded {
    fn of(words: Vec<u64>) -> Rc<Recorded> {
        Rc::new(Recorded { words: RefCell::new(words), stores: RefCell::default() })
    }

    fn new(open_files: usize) -> Rc<Recorded> {
        Recorded::of(vec![0; HandoverState::words_for(open_files)])
    }

    /// The contents of the memory if the process ends after each of its stores.
    fn ends(&self, before: &[u64]) -> Vec<Vec<u64>> {
        let mut words = before.to_vec();
        let mut ends = vec![words.clone()];
        for (at, word) in self.stores.borrow().iter() {
            words[*at] = *word;
            ends.push(words.clone());
        }
        ends
    }
}

impl SharedMemory for Recorded {
    fn count(&self) -> usize {
        self.words.borrow().len()
    }

    fn load(&self, at: usize) -> u64 {
        self.words.borrow()[at]
    }

    fn store(&self, at: usize, word: u64) {
        self.words.borrow_mut()[at] = word;
        self.stores.borrow_mut().push((at, word));
    }
}

fn open(request: u64, handle: u64) -> Open {
    Open { request, ino: Ino(handle * 10), handle, detail: handle * 100 }
}

fn successor(words: Vec<u64>) -> HandoverState {
    HandoverState::take(Recorded::of(words)).unwrap()
}

#[test]
fn handover_state_reaches_the_successor() {
    let memory = Recorded::new(8);
    let handover = HandoverState::take(memory.clone()).unwrap();
    assert_eq!((handover.session(), handover.generation(), handover.note(3)), (None, 1, 0));
    handover.begin(SessionId(7));
    handover.set_note(3, 9);
    handover.give_out(5, 1, Some(40));
    handover.give_out(5, 2, Some(40));
    handover.give_out(6, 1, None);
    for handle in 1..=3 {
        assert!(handover.opened(open(handle + 50, handle)));
    }
    assert_eq!(handover.closed(2), Some(open(52, 2)));
    assert_eq!(handover.closed(2), None);

    let next = successor(memory.words.borrow().clone());
    assert_eq!((next.session(), next.generation(), next.note(3)), (Some(SessionId(7)), 2, 9));
    assert_eq!((next.slot(5), next.slot(6), next.slot(7)), ((2, Some(40)), (1, None), (0, None)));
    assert_eq!(next.opens(), [open(51, 1), open(53, 3)]);
    // The request is repeated: it has one file open, not two.
    assert_eq!(next.opened_before(53), Some(open(53, 3)));
    assert!(next.opened(open(53, 4)));
    assert_eq!((next.opened_before(53), next.open(3)), (None, None));
    assert_eq!(next.opens(), [open(51, 1), open(53, 4)]);
    next.all_came();
    assert_eq!(next.opened_before(51), None);
}

#[test]
fn no_more_is_open_than_there_is_room_for() {
    let handover = HandoverState::take(Recorded::new(2)).unwrap();
    assert!(handover.opened(open(1, 1)) && handover.opened(open(2, 2)));
    assert!(!handover.opened(open(3, 3)));
    assert!(handover.closed(1).is_some());
    assert!(handover.opened(open(3, 3)) && !handover.opened(open(4, 4)));
}

/// Situation: a process ends between any two stores of each of these steps. Expectation: the
/// earlier state is there, and the step is complete or has no effect.
#[test]
fn a_process_may_end_at_any_store() {
    type Step = fn(&HandoverState);
    let steps: [Step; 7] = [
        |handover| handover.begin(SessionId(7)),
        |handover| handover.give_out(0, 1, Some(40)),
        |handover| handover.give_out(0, 2, Some(40)),
        |handover| assert!(handover.opened(open(51, 1))),
        |handover| handover.free(0),
        |handover| handover.give_out(0, 3, Some(42)),
        |handover| assert!(handover.closed(1).is_some() && handover.opened(open(52, 2))),
    ];
    let memory = Recorded::new(4);
    let handover = HandoverState::take(memory.clone()).unwrap();
    for step in steps {
        let before = memory.words.borrow().clone();
        memory.stores.borrow_mut().clear();
        let (slot, opens) = (handover.slot(0), handover.opens());
        step(&handover);
        for words in memory.ends(&before) {
            let next = successor(words);
            assert!(
                next.session() == handover.session()
                    || slot == (0, None) && next.session().is_none()
            );
            let (sequence, request) = next.slot(0);
            assert!(sequence == slot.0 || sequence == handover.slot(0).0);
            // A request never gets the sequence number of another one, and keeps the slot that it
            // has.
            let possible = [slot, handover.slot(0), (slot.0, None), (handover.slot(0).0, None)];
            assert!(possible.contains(&(sequence, request)), "{sequence} {request:?}");
            assert!(slot.1 != handover.slot(0).1 || request == slot.1);
            assert!(
                next.opens()
                    .iter()
                    .all(|left| opens.contains(left) || handover.opens().contains(left))
            );
            let lost = opens.iter().filter(|left| !next.opens().contains(left)).count();
            assert!(lost == 0 || opens.iter().any(|left| handover.open(left.handle).is_none()));
        }
    }
}

/// The successor opens a file once more for a repeated request, and ends half-way.
#[test]
fn repeated_open_request_keeps_one_open_file() {
    let memory = Recorded::new(4);
    assert!(HandoverState::take(memory.clone()).unwrap().opened(open(50, 1)));
    memory.words.borrow_mut()[FORM] = CURRENT_FORM;
    let next = Recorded::of(memory.words.borrow().clone());
    let handover = HandoverState::take(next.clone()).unwrap();
    let before = next.words.borrow().clone();
    next.stores.borrow_mut().clear();
    assert!(handover.opened(open(50, 2)));
    for words in next.ends(&before) {
        let opens = successor(words).opens();
        assert!(opens == [open(50, 1)] || opens == [open(50, 2)], "{opens:?}");
    }
}

#[test]
fn invalid_handover_state_is_refused() {
    let damaged = |at: usize, word: u64| {
        let memory = Recorded::new(2);
        memory.store(FORM, CURRENT_FORM);
        memory.store(at, word);
        HandoverState::take(memory).err()
    };
    assert_eq!(damaged(FORM, 1), Some(HandoverError::Foreign));
    assert_eq!(damaged(USED_OPENS, 3), Some(HandoverError::Damaged("open files")));
    assert_eq!(damaged(USED_OPENS, u64::MAX), Some(HandoverError::Damaged("open files")));
    assert_eq!(damaged(GENERATIONS, u64::MAX), Some(HandoverError::Damaged("lives")));
    let memory = Recorded::new(2);
    let handover = HandoverState::take(memory.clone()).unwrap();
    handover.begin(SessionId(1));
    assert!(handover.opened(open(1, 1)) && handover.opened(open(2, 2)));
    memory.store(HandoverState::words_for(0) + 2 * OPEN_WORDS - 1, 1);
    assert_eq!(
        HandoverState::take(memory).err(),
        Some(HandoverError::Damaged("two open files of one number"))
    );
}

fn lock(owner: u64, start: u64, end: u64, mode: LockMode) -> Lock {
    let lock = Some(RangeLock { range: LockRange::new(start, end).unwrap(), mode });
    Lock { ino: Ino(9), owner: LockOwner::Flock(owner), lock, pid: 77 }
}

#[test]
fn handover_keeps_locks_and_known_inodes() {
    let memory = Recorded::new(2);
    let handover = HandoverState::take(memory.clone()).unwrap();
    handover.begin(SessionId(7));
    let held = lock(1, 5, 9, LockMode::Exclusive);
    let unanswered = Lock { ino: Ino(4), owner: LockOwner::Fcntl(u64::MAX), lock: None, pid: 0 };
    let first = handover.put_lock(held).unwrap();
    handover.put_lock(unanswered).unwrap();
    let locker = Locker { ino: Ino(9), owner: 3, handle: 8 };
    let noted = handover.put_locker(locker).unwrap();
    let (known, other) =
        (handover.put_inode(Ino(9), 1).unwrap(), handover.put_inode(Ino(10), 1).unwrap());
    handover.set_inode(known, 3);
    handover.set_inode(other, 0);
    assert_eq!(other, handover.put_inode(Ino(11), 1).unwrap(), "places are used again");

    let next = successor(memory.words.borrow().clone());
    let locks = |handover: &HandoverState| {
        handover.locks().unwrap().into_iter().map(|(_, lock)| lock).collect::<Vec<_>>()
    };
    assert_eq!(locks(&next), [held, unanswered]);
    assert_eq!(next.lockers(), [(noted, locker)]);
    assert_eq!(
        next.inodes().map(|(_, ino, count)| (ino, count)).collect::<Vec<_>>(),
        [(Ino(9), 3), (Ino(11), 1)]
    );
    next.clear_lock(first);
    next.clear_locker(noted);
    assert_eq!((locks(&next), next.lockers()), (vec![unanswered], vec![]));
    assert_eq!(next.unfit(), None);
    assert!(next.put_lock(held).is_some() && next.put_lock(held).is_none());
    assert!(next.unfit().is_some(), "a lock that found no room is not held by a successor");
}

/// The successor reports the errors that programs have not received yet.
#[test]
fn a_successor_has_errors_that_stand() {
    let memory = Recorded::new(2);
    let handover = Rc::new(HandoverState::take(memory.clone()).unwrap());
    handover.begin(SessionId(7));
    let errors = Errors::new(Some(handover));
    errors.set(Ino(3), FsError::Io);
    errors.set(Ino(4), FsError::Stale);
    errors.set(Ino(5), FsError::Io);
    errors.forget(Ino(5));
    let next = Errors::new(Some(Rc::new(successor(memory.words.borrow().clone()))));
    assert_eq!(
        [3, 4, 5].map(|ino| next.take(Ino(ino))),
        [Some(FsError::Io), Some(FsError::Stale), None]
    );
    assert_eq!((next.take_unsynced(), next.take_unsynced()), (Some(FsError::Io), None));
    (0..=INODES_WITH_ERRORS as u64).for_each(|ino| errors.set(Ino(ino), FsError::Io));
    let handover = Rc::new(successor(memory.words.borrow().clone()));
    assert_eq!(
        (handover.unfit(), Errors::new(Some(handover.clone())).get(Ino(u64::MAX))),
        (None, Some(FsError::Io))
    );
}

/// Answered operations may be missing in another run of the node until the log is durable up to
/// them. The successor of a successor knows that too, whichever log position the node reports in
/// between.
#[test]
fn handover_keeps_undurable_answers() {
    let memory = Recorded::new(2);
    let handover = Rc::new(HandoverState::take(memory.clone()).unwrap());
    handover.serves(5, Incarnation(3));
    let journal = Journal::new(Some(handover));
    let left = || Rc::new(successor(memory.words.borrow().clone()));
    assert_eq!(left().served(), Served { start: 5, incarnation: Incarnation(3), undurable: false });
    journal.keep(operation(LogIndex(10)));
    journal.durable(LogIndex(9));
    let (first, second) = (left(), left());
    assert!(first.served().undurable);
    let next = Journal::new(Some(second.clone()));
    next.durable(LogIndex(10));
    assert!(second.served().undurable);
    next.begin();
    assert!(!second.served().undurable);
    journal.durable(LogIndex(10));
    assert!(!left().served().undurable);
}

fn operation(index: LogIndex) -> Operation {
    let mutation = ClientMutation::Unlink { parent: Ino::ROOT, name: Name::new(b"name").unwrap() };
    let replay = Replay {
        stamp: Stamp { time: Time::default(), version: Version(1) },
        ino: None,
        offset: None,
        len_bytes: None,
    };
    let tx = TxId { session: SessionId(7), slot: 0, sequence: 1 };
    Operation {
        tx,
        caller: Caller { uid: 0, gid: 0, groups: vec![], checked: false },
        mutation,
        locked: false,
        replay,
        index,
        kept_until: index,
    }
}
