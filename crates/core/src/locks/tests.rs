//! The table compared with a naive model of single bytes.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a file that the model distinguishes; the last stands for all that follow.
const BYTES: usize = 12;
const SEEDS: u64 = 300;
const STEPS: u64 = 300;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

type Bytes = [Option<LockMode>; BYTES];

#[derive(Default)]
struct Model {
    held: BTreeMap<(Ino, Party), Bytes>,
    /// In order of arrival.
    waits: Vec<Waiting>,
}

#[derive(Clone, Copy)]
struct Waiting {
    ino: Ino,
    party: Party,
    id: u64,
    lock: RangeLock,
    keep: bool,
    detect: bool,
    standing: Standing,
}

fn bytes(range: LockRange) -> std::ops::RangeInclusive<usize> {
    (range.start() as usize).min(BYTES - 1)..=(range.end() as usize).min(BYTES - 1)
}

fn painted(lock: RangeLock) -> Bytes {
    let mut painted = Bytes::default();
    bytes(lock.range).for_each(|byte| painted[byte] = Some(lock.mode));
    painted
}

impl Model {
    fn in_the_way(&self, ino: Ino, party: Party, lock: RangeLock) -> BTreeSet<Party> {
        let reserved = self.waits.iter().filter(|wait| wait.standing == Standing::Reserved);
        let reserved = reserved.map(|wait| (wait.ino, wait.party, painted(wait.lock)));
        let held = self.held.iter().map(|((ino, party), bytes)| (*ino, *party, *bytes));
        let same_kind = |other: &Party| {
            matches!(party.1, LockOwner::Flock(_)) == matches!(other.1, LockOwner::Flock(_))
        };
        let shuts_out = |bytes: &Bytes| {
            painted(lock)
                .iter()
                .zip(bytes)
                .any(|pair| matches!(pair, (Some(a), Some(b)) if *a == LockMode::Exclusive || *b == LockMode::Exclusive))
        };
        let others = held.chain(reserved).filter(|(of, other, bytes)| {
            *of == ino && *other != party && same_kind(other) && shuts_out(bytes)
        });
        others.map(|(_, other, _)| other).collect()
    }

    /// Every party that `party` would wait for, directly or through others.
    fn waits_for(&self, ino: Ino, party: Party, lock: RangeLock) -> BTreeSet<Party> {
        let mut reached = self.in_the_way(ino, party, lock);
        loop {
            let queued = self.waits.iter().filter(|wait| {
                wait.detect && wait.standing == Standing::Queued && reached.contains(&wait.party)
            });
            let further: BTreeSet<Party> =
                queued.flat_map(|wait| self.in_the_way(wait.ino, wait.party, wait.lock)).collect();
            if further.is_subset(&reached) {
                return reached;
            }
            reached.extend(further);
        }
    }

    fn knows(&self, ino: Ino, session: SessionId) -> bool {
        self.held.keys().any(|(of, party)| *of == ino && party.0 == session)
            || self.waits.iter().any(|wait| wait.ino == ino && wait.party.0 == session)
    }

    fn paint(&mut self, ino: Ino, party: Party, range: LockRange, mode: Option<LockMode>) {
        let held = self.held.entry((ino, party)).or_default();
        bytes(range).for_each(|byte| held[byte] = mode);
        if held.iter().all(Option::is_none) {
            self.held.remove(&(ino, party));
        }
    }

    fn grant(&mut self, ino: Ino, party: Party, lock: RangeLock, keep: bool) {
        let held = self.held.entry((ino, party)).or_default();
        for byte in bytes(lock.range) {
            if !(keep && held[byte] == Some(LockMode::Exclusive)) {
                held[byte] = Some(lock.mode);
            }
        }
    }

    fn ask(
        &mut self,
        session: SessionId,
        ask: &LockAsk,
        wait: Option<LockWait>,
    ) -> Result<LockAnswer, FsError> {
        let (ino, party) = (ask.ino, (session, ask.owner));
        let Some(mode) = ask.mode else {
            self.paint(ino, party, ask.range, None);
            return Ok(LockAnswer::Granted);
        };
        let lock = RangeLock { range: ask.range, mode };
        if let Some(at) = wait.and_then(|wait| {
            self.waits.iter().position(|known| (known.party.0, known.id) == (session, wait.id))
        }) {
            let Waiting { keep, standing, .. } = self.waits[at];
            if standing != Standing::Queued {
                self.waits.remove(at);
            }
            return match standing {
                Standing::Queued => Ok(LockAnswer::Waiting),
                Standing::Circle => Err(FsError::Deadlock),
                Standing::Reserved => {
                    self.grant(ino, party, lock, keep);
                    Ok(LockAnswer::Granted)
                }
            };
        }
        let flock = matches!(ask.owner, LockOwner::Flock(_));
        if flock && self.held.get(&(ino, party)).is_some_and(|bytes| bytes[0] != Some(mode)) {
            self.paint(ino, party, LockRange::WHOLE, None);
        }
        if self.in_the_way(ino, party, lock).is_empty() {
            self.grant(ino, party, lock, ask.keep);
            return Ok(LockAnswer::Granted);
        }
        let Some(wait) = wait else { return Err(FsError::WouldBlock) };
        let detect = wait.detect && !flock;
        if detect && self.waits_for(ino, party, lock).contains(&party) {
            return Err(FsError::Deadlock);
        }
        self.waits.push(Waiting {
            ino,
            party,
            id: wait.id,
            lock,
            keep: ask.keep,
            detect,
            standing: Standing::Queued,
        });
        Ok(LockAnswer::Waiting)
    }

    /// Returns the waits for a file that end, in order of arrival.
    fn settle(&mut self, changed: Ino) -> Vec<(SessionId, u64)> {
        let mut ended = Vec::new();
        for at in 0..self.waits.len() {
            let Waiting { ino, party, id, lock, detect, standing, .. } = self.waits[at];
            if ino != changed || standing != Standing::Queued {
                continue;
            }
            if self.in_the_way(ino, party, lock).is_empty() {
                self.waits[at].standing = Standing::Reserved;
                ended.push((party.0, id));
            } else if detect && self.waits_for(ino, party, lock).contains(&party) {
                self.waits[at].standing = Standing::Circle;
                ended.push((party.0, id));
            }
        }
        ended
    }
}

fn same(table: &LockTable, model: &Model, story: &str) {
    let mut held: BTreeMap<(Ino, Party), Bytes> = BTreeMap::new();
    for (ino, file) in &table.files {
        assert!(
            !file.held.is_empty() || !file.waits.is_empty(),
            "{story}: {ino} is kept for nothing"
        );
        for (party, of) in &file.held {
            let bytes = held.entry((*ino, *party)).or_default();
            let mut last: Option<RangeLock> = None;
            for lock in of.ranges.iter() {
                if let Some(last) = last {
                    let gap = lock.range.start() - last.range.end();
                    assert!(
                        gap > 1 || gap == 1 && lock.mode != last.mode,
                        "{story}: {last:?} and {lock:?} are one"
                    );
                }
                painted(lock)
                    .iter()
                    .zip(bytes.iter_mut())
                    .filter(|(mode, _)| mode.is_some())
                    .for_each(|(mode, byte)| *byte = *mode);
                last = Some(lock);
            }
        }
    }
    assert_eq!(held, model.held, "{story}");
    assert_eq!(table.check(), Vec::<String>::new(), "{story}");
}

/// Random requests of three sessions with two owners of each kind: every reply, every lock and
/// every end of a wait matches the model; a repeated request changes nothing.
#[test]
fn the_table_is_as_the_model() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let (mut table, mut model) = (LockTable::default(), Model::default());
        for step in 0..STEPS {
            let session = SessionId(1 + random.below(3));
            let id = random.below(2);
            let owner =
                if random.below(4) == 0 { LockOwner::Flock(id) } else { LockOwner::Fcntl(id) };
            let ino = Ino(10 + random.below(2));
            let start = random.below(BYTES as u64);
            let end = start + random.below(BYTES as u64 - start);
            let end = if end == BYTES as u64 - 1 { MAX_LOCK_OFFSET } else { end };
            let range = LockRange::new(start, end).unwrap();
            let range = if matches!(owner, LockOwner::Flock(_)) { LockRange::WHOLE } else { range };
            let mode =
                [None, Some(LockMode::Shared), Some(LockMode::Exclusive)][random.below(3) as usize];
            let ask = LockAsk { ino, owner, range, mode, keep: random.below(3) == 0, pid: 1 };
            let wait =
                (random.below(2) == 0).then(|| LockWait { id: step, detect: random.below(4) != 0 });
            let mut story = format!("seed {seed}, step {step}: {session:?} {ask:?} {wait:?}");
            let tx = TxId { session, slot: 0, sequence: step + 1 };
            let mut changed = vec![ino];
            let last = match random.below(10) {
                0 => {
                    story = format!("seed {seed}, step {step}: {session:?} ends");
                    table.end(session);
                    changed = [10, 11]
                        .map(Ino)
                        .into_iter()
                        .filter(|ino| model.knows(*ino, session))
                        .collect();
                    model.held.retain(|(_, party), _| party.0 != session);
                    model.waits.retain(|wait| wait.party.0 != session);
                    None
                }
                // A wait is repeated.
                1..4 if !model.waits.is_empty() => {
                    let Waiting { ino, party, id, lock, keep, detect, .. } =
                        model.waits[random.below(model.waits.len() as u64) as usize];
                    let ask = LockAsk {
                        ino,
                        owner: party.1,
                        range: lock.range,
                        mode: Some(lock.mode),
                        keep,
                        pid: 1,
                    };
                    let wait = Some(LockWait { id, detect });
                    let tx = TxId { session: party.0, ..tx };
                    changed = vec![ino];
                    story = format!(
                        "seed {seed}, step {step}: {party:?} asks again for {lock:?} of {ino}"
                    );
                    let answer = table.ask(tx, &ask, wait);
                    assert_eq!(
                        answer,
                        model.ask(party.0, &ask, wait).map_err(RpcError::Refused),
                        "{story}"
                    );
                    Some((tx, ask, wait, answer))
                }
                4 if !model.waits.is_empty() => {
                    let at = random.below(model.waits.len() as u64) as usize;
                    let Waiting { ino, party, id, .. } = model.waits.remove(at);
                    changed = vec![ino];
                    story = format!("seed {seed}, step {step}: {party:?} waits no longer");
                    table.end_wait(party.0, id);
                    None
                }
                _ => {
                    let expected = mode.and_then(|mode| {
                        let lock = RangeLock { range, mode };
                        (!model.in_the_way(ino, (session, owner), lock).is_empty()).then_some(())
                    });
                    if let Some(mode) = mode {
                        let found = table.test(session, ino, owner, RangeLock { range, mode });
                        assert_eq!(found.map(|_| ()), expected, "{story}");
                    }
                    let answer = table.ask(tx, &ask, wait);
                    assert_eq!(
                        answer,
                        model.ask(session, &ask, wait).map_err(RpcError::Refused),
                        "{story}"
                    );
                    Some((tx, ask, wait, answer))
                }
            };
            let ended: BTreeSet<_> = table.take_ended().into_iter().collect();
            let expected: BTreeSet<_> =
                changed.into_iter().flat_map(|ino| model.settle(ino)).collect();
            assert_eq!(ended, expected, "{story}");
            same(&table, &model, &story);
            if let Some((tx, ask, wait, answer)) = &last {
                assert_eq!(table.ask(*tx, ask, *wait), *answer, "{story}: again");
                same(&table, &model, &format!("{story}: again"));
            }
        }
    }
}

fn range(start: u64, end: u64) -> LockRange {
    LockRange::new(start, end).unwrap()
}

fn lock(start: u64, end: u64, mode: LockMode) -> RangeLock {
    RangeLock { range: range(start, end), mode }
}

struct Client(SessionId, u64);

impl Client {
    fn ask(
        &mut self,
        table: &mut LockTable,
        owner: u64,
        start: u64,
        end: u64,
        mode: Option<LockMode>,
    ) -> Result<LockAnswer, RpcError> {
        self.ask_waiting(table, owner, (start, end), mode, None)
    }

    fn ask_waiting(
        &mut self,
        table: &mut LockTable,
        owner: u64,
        (start, end): (u64, u64),
        mode: Option<LockMode>,
        wait: Option<u64>,
    ) -> Result<LockAnswer, RpcError> {
        self.1 += 1;
        let tx = TxId { session: self.0, slot: 3, sequence: self.1 };
        let ask = LockAsk {
            ino: Ino(5),
            owner: LockOwner::Fcntl(owner),
            range: range(start, end),
            mode,
            keep: false,
            pid: 7,
        };
        table.ask(tx, &ask, wait.map(|id| LockWait { id, detect: true }))
    }
}

const GRANTED: Result<LockAnswer, RpcError> = Ok(LockAnswer::Granted);
const WAITING: Result<LockAnswer, RpcError> = Ok(LockAnswer::Waiting);

/// Three processes wait for each other in a cycle, the last of them on another machine: it gets
/// EDEADLK, and after its unlock the others proceed in turn.
#[test]
fn a_circle_is_found_across_sessions() {
    let mut table = LockTable::default();
    let (mut here, mut there) = (Client(SessionId(1), 0), Client(SessionId(2), 0));
    let exclusive = Some(LockMode::Exclusive);
    assert_eq!(here.ask(&mut table, 1, 1, 1, exclusive), GRANTED);
    assert_eq!(here.ask(&mut table, 2, 2, 2, exclusive), GRANTED);
    assert_eq!(there.ask(&mut table, 1, 3, 3, exclusive), GRANTED);
    assert_eq!(here.ask_waiting(&mut table, 1, (2, 2), exclusive, Some(1)), WAITING);
    assert_eq!(here.ask_waiting(&mut table, 2, (3, 3), exclusive, Some(2)), WAITING);
    assert_eq!(
        there.ask_waiting(&mut table, 1, (1, 1), exclusive, Some(1)),
        Err(RpcError::Refused(FsError::Deadlock))
    );
    assert_eq!(table.take_ended(), []);
    assert_eq!(there.ask(&mut table, 1, 3, 3, None), GRANTED);
    assert_eq!(table.take_ended(), [(SessionId(1), 2)]);
    assert_eq!(here.ask_waiting(&mut table, 2, (3, 3), exclusive, Some(2)), GRANTED);
}

/// A reserved lock excludes other owners until its owner requests it again or is gone.
#[test]
fn a_reservation_is_as_good_as_a_lock() {
    let mut table = LockTable::default();
    let (mut holder, mut waiter) = (Client(SessionId(1), 0), Client(SessionId(2), 0));
    let exclusive = Some(LockMode::Exclusive);
    assert_eq!(holder.ask(&mut table, 1, 0, 9, exclusive), GRANTED);
    assert_eq!(waiter.ask_waiting(&mut table, 1, (5, 20), exclusive, Some(1)), WAITING);
    assert_eq!(holder.ask(&mut table, 1, 0, 9, None), GRANTED);
    assert_eq!(table.take_ended(), [(SessionId(2), 1)]);
    assert_eq!(
        holder.ask(&mut table, 1, 0, 9, exclusive),
        Err(RpcError::Refused(FsError::WouldBlock))
    );
    let conflict =
        table.test(SessionId(1), Ino(5), LockOwner::Fcntl(1), lock(0, 9, LockMode::Shared));
    assert_eq!(conflict, Some(LockConflict { lock: lock(5, 20, LockMode::Exclusive), pid: 0 }));
    assert_eq!(holder.ask_waiting(&mut table, 1, (0, 9), exclusive, Some(4)), WAITING);
    table.end(SessionId(2));
    assert_eq!(table.take_ended(), [(SessionId(1), 4)]);
}

/// Locks and waits per session are limited; unlocking always succeeds.
#[test]
fn nobody_takes_all_there_is() {
    let mut table = LockTable::default();
    let (mut client, mut other) = (Client(SessionId(1), 0), Client(SessionId(2), 0));
    let (shared, exclusive) = (Some(LockMode::Shared), Some(LockMode::Exclusive));
    for at in 0..LOCKS_PER_SESSION as u64 {
        assert_eq!(client.ask(&mut table, 1, at * 10, at * 10 + 4, shared), GRANTED);
    }
    let refused = Err(RpcError::Refused(FsError::NoLocks));
    assert_eq!(client.ask(&mut table, 1, 5, 5, shared), refused);
    assert_eq!(client.ask(&mut table, 1, 2, 2, None), refused);
    assert_eq!(client.ask(&mut table, 1, 0, 4, None), GRANTED);
    assert_eq!(client.ask(&mut table, 1, 0, 4, exclusive), GRANTED);
    for id in 0..LOCK_WAITS as u64 {
        assert_eq!(other.ask_waiting(&mut table, id, (0, 0), exclusive, Some(id)), WAITING);
    }
    assert_eq!(other.ask_waiting(&mut table, 1, (1, 1), exclusive, Some(1 << 40)), refused);
    assert_eq!(
        other.ask_waiting(&mut table, 1, (1, 1), exclusive, Some(1)),
        Err(RpcError::Refused(FsError::Invalid))
    );
    assert_eq!(client.ask(&mut table, 1, 0, MAX_LOCK_OFFSET, None), GRANTED);
    assert_eq!(table.take_ended(), [(SessionId(2), 0)]);
}

/// After a restart every owner gets its locks again, and no other owner gets one in between.
#[test]
fn held_locks_are_reclaimed_after_a_restart() {
    let mut table = LockTable::default();
    let owner = LockOwner::Fcntl(1);
    let held = [lock(0, 4, LockMode::Shared), lock(5, 9, LockMode::Exclusive)];
    assert_eq!(table.reclaim(SessionId(1), Ino(5), owner, 7, &held), Ok(()));
    assert_eq!(table.reclaim(SessionId(1), Ino(5), owner, 7, &held), Ok(()));
    assert_eq!(
        table.reclaim(SessionId(2), Ino(5), owner, 7, &[lock(3, 4, LockMode::Shared)]),
        Ok(())
    );
    assert_eq!(
        table.reclaim(SessionId(2), Ino(5), owner, 7, &[lock(0, 0, LockMode::Shared), held[1]]),
        Err(FsError::WouldBlock)
    );
    let first = table.test(SessionId(3), Ino(5), owner, lock(0, 0, LockMode::Exclusive));
    assert_eq!(first, Some(LockConflict { lock: held[0], pid: 0 }));
    assert_eq!(table.check(), Vec::<String>::new());
}
