//! Latches by key, shared and exclusive, first come, first served: they keep flows of this node
//! apart. Clients take locks, not latches.
//!
//! A latch exists only while it is held or awaited. Order where several are taken: the latch of an
//! inode, or of a directory that is loaded and then of its head, before the turn of the replica; of
//! two inodes the smaller id first.

use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

pub struct Latches<K: Ord + Clone> {
    table: Rc<RefCell<BTreeMap<K, State>>>,
}

#[derive(Default)]
struct State {
    holders: Holders,
    waiting: VecDeque<(Mode, oneshot::Sender<()>)>,
}

#[derive(Default, PartialEq, Eq)]
enum Holders {
    #[default]
    None,
    Shared(usize),
    Exclusive,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Shared,
    Exclusive,
}

/// Holds a latch until it is dropped.
pub struct Guard<K: Ord + Clone> {
    table: Rc<RefCell<BTreeMap<K, State>>>,
    key: K,
    mode: Mode,
}

impl<K: Ord + Clone> Default for Latches<K> {
    fn default() -> Self {
        Latches { table: Rc::default() }
    }
}

impl State {
    fn admits(&self, mode: Mode) -> bool {
        match (&self.holders, mode) {
            (Holders::None, _) | (Holders::Shared(_), Mode::Shared) => true,
            (Holders::Shared(_), Mode::Exclusive) | (Holders::Exclusive, _) => false,
        }
    }

    fn enter(&mut self, mode: Mode) {
        self.holders = match (&self.holders, mode) {
            (Holders::None, Mode::Shared) => Holders::Shared(1),
            (Holders::Shared(count), Mode::Shared) => Holders::Shared(count + 1),
            (Holders::None, Mode::Exclusive) => Holders::Exclusive,
            _ => unreachable!("a lock is entered only where it admits"),
        };
    }

    fn leave(&mut self, mode: Mode) {
        self.holders = match (&self.holders, mode) {
            (Holders::Shared(count), Mode::Shared) if *count > 1 => Holders::Shared(count - 1),
            _ => Holders::None,
        };
    }
}

impl<K: Ord + Clone> Latches<K> {
    /// `None` if it is held or awaited.
    pub fn try_hold(&self, key: K, mode: Mode) -> Option<Guard<K>> {
        if self.is_taken(&key) {
            return None;
        }
        let mut table = self.table.borrow_mut();
        table.entry(key.clone()).or_default().enter(mode);
        Some(Guard { table: self.table.clone(), key, mode })
    }

    /// Whether it is held or awaited.
    pub fn is_taken(&self, key: &K) -> bool {
        self.table.borrow().contains_key(key)
    }

    pub async fn hold(&self, key: K, mode: Mode) -> Guard<K> {
        let turn = {
            let mut table = self.table.borrow_mut();
            let state = table.entry(key.clone()).or_default();
            if state.waiting.is_empty() && state.admits(mode) {
                state.enter(mode);
                None
            } else {
                let (sender, receiver) = oneshot::channel();
                state.waiting.push_back((mode, sender));
                Some(receiver)
            }
        };
        // The latch is held here, or will be once `turn` resolves; the guard gives it back even if
        // this future is dropped in between.
        match turn {
            None => Guard { table: self.table.clone(), key, mode },
            Some(turn) => {
                Waiting { table: self.table.clone(), key, mode, turn: Some(turn) }.enter().await
            }
        }
    }
}

struct Waiting<K: Ord + Clone> {
    table: Rc<RefCell<BTreeMap<K, State>>>,
    key: K,
    mode: Mode,
    turn: Option<oneshot::Receiver<()>>,
}

impl<K: Ord + Clone> Waiting<K> {
    async fn enter(mut self) -> Guard<K> {
        if let Some(turn) = self.turn.as_mut() {
            turn.await.expect("a waiter is dropped only after it was let in");
        }
        self.turn = None;
        Guard { table: self.table.clone(), key: self.key.clone(), mode: self.mode }
    }
}

impl<K: Ord + Clone> Drop for Waiting<K> {
    fn drop(&mut self) {
        // Granted and dropped before it could take the guard: give the latch back.
        if let Some(mut turn) = self.turn.take()
            && let Ok(Some(())) = turn.try_recv()
        {
            release(&self.table, &self.key, self.mode);
        }
    }
}

impl<K: Ord + Clone> Drop for Guard<K> {
    fn drop(&mut self) {
        release(&self.table, &self.key, self.mode);
    }
}

fn release<K: Ord + Clone>(table: &Rc<RefCell<BTreeMap<K, State>>>, key: &K, mode: Mode) {
    let mut table = table.borrow_mut();
    let state = table.get_mut(key).expect("a held lock is in the table");
    state.leave(mode);
    while let Some((next, _)) = state.waiting.front() {
        let next = *next;
        if !state.admits(next) {
            break;
        }
        let (_, sender) = state.waiting.pop_front().expect("the front was there");
        // A waiter that has gone away is passed over.
        if sender.send(()).is_ok() {
            state.enter(next);
        }
    }
    if state.holders == Holders::None && state.waiting.is_empty() {
        table.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::Future;
    use std::pin::Pin;

    type Pending = Pin<Box<dyn Future<Output = Guard<u8>>>>;

    fn ask(latches: &Rc<Latches<u8>>, mode: Mode) -> Pending {
        let latches = latches.clone();
        Box::pin(async move { latches.hold(1, mode).await })
    }

    /// A writer that waits is not overtaken by readers that come later, and a waiter is let in when
    /// it can be; a waiter that gives up leaves nothing behind.
    #[test]
    fn first_come_first_served() {
        let latches = Rc::new(Latches::default());
        let reader = ask(&latches, Mode::Shared).now_or_never().expect("free");
        let other = ask(&latches, Mode::Shared).now_or_never().expect("shared");
        let mut writer = ask(&latches, Mode::Exclusive);
        assert!((&mut writer).now_or_never().is_none());
        let mut late = ask(&latches, Mode::Shared);
        assert!((&mut late).now_or_never().is_none());
        let mut gone = ask(&latches, Mode::Exclusive);
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        drop(reader);
        assert!((&mut writer).now_or_never().is_none());
        drop(other);
        let writing = (&mut writer).now_or_never().expect("its turn");
        assert!((&mut late).now_or_never().is_none());
        drop(writing);
        let reading = (&mut late).now_or_never().expect("its turn");
        drop(reading);
        assert!(latches.table.borrow().is_empty());
    }

    /// A waiter was granted the latch and dropped before it ran: the next one gets it.
    #[test]
    fn a_turn_given_to_the_dead_passes_on() {
        let latches = Rc::new(Latches::default());
        let writer = ask(&latches, Mode::Exclusive).now_or_never().expect("free");
        let mut dying = ask(&latches, Mode::Exclusive);
        assert!((&mut dying).now_or_never().is_none());
        let mut next = ask(&latches, Mode::Shared);
        assert!((&mut next).now_or_never().is_none());
        drop(writer);
        drop(dying);
        assert!((&mut next).now_or_never().is_some());
    }
}
