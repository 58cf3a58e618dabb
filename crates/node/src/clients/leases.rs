//! Leases: rights of clients to cache names and attributes (O-48, O-50).
//!
//! A lease is of the attributes of an inode, or of one name in a directory, which may be absent.
//! Several clients can have one of the same subject. A client that changes a subject under its own
//! lease *has written* under it: until the answer is there its caches are older than the state.
//!
//! Laws:
//! - A lease is recorded in the step that reads the state which is shown under it.
//! - Before a mutation is applied, every other client has returned its leases of the subjects that
//!   it changes, or has been silent for the lease term. From the choice of the mutation until it is
//!   applied an intent keeps new leases away, those of its author too.
//! - A lease under which its holder has written is returned before another client is shown its
//!   subject.
//! - While a subject is being recalled from a client, that client gets no lease of it. So a client
//!   that answers a recall loses no lease that it was granted since.
//! - No latch is held while waiting for a recall.

use ebb_model::{Ino, Name, Notice, Planted, SessionId};
use ebb_ports::Signal;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The attributes of an inode, or a name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Subject {
    ino: Ino,
    name: Option<Name>,
}

impl Subject {
    pub(crate) fn attributes(ino: Ino) -> Subject {
        Subject { ino, name: None }
    }

    pub(crate) fn name(dir: Ino, name: &Name) -> Subject {
        Subject { ino: dir, name: Some(name.clone()) }
    }
}

/// The subjects that one mutation changes, or one answer shows.
pub(crate) type Subjects = SmallVec<[Subject; 4]>;

pub(crate) struct Leases {
    table: RefCell<Table>,
    /// A lease has ended.
    ended: Signal,
}

#[derive(Default)]
struct Table {
    holders: BTreeMap<Subject, SmallVec<[Lease; 2]>>,
    /// Leases under which their holders have written.
    written: usize,
    /// Mutations that are about to change the subject.
    intents: BTreeMap<Subject, u32>,
    sessions: BTreeMap<SessionId, Holder>,
    /// Subjects that were recalled a short time ago: until when nobody gets a lease of them.
    cooling: BTreeMap<Subject, Duration>,
    /// Grants and recalls are numbered, from a number on that no earlier run has used.
    numbers: u64,
    /// Leases of sessions that have ended without returning them may last until then.
    abandoned_until: Duration,
}

#[derive(Clone, Copy)]
struct Lease {
    session: SessionId,
    number: u64,
    written: bool,
}

/// The leases that stand in the way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InWay {
    /// Of a mutation: all.
    Any,
    /// Of a mutation that was answered before a restart: all of this run.
    Granted,
    /// Of an answer: those under which their holders have written.
    Written,
}

impl Lease {
    fn is(&self, way: InWay) -> bool {
        way != InWay::Written || self.written && !Planted::WrittenShown.is_on()
    }
}

#[derive(Default)]
struct Holder {
    /// Its leases, oldest first.
    granted: BTreeMap<u64, Subject>,
    /// Recalls without an answer, and since when.
    recalls: BTreeMap<u64, (Duration, Vec<Subject>)>,
    recalled: BTreeSet<Subject>,
    /// Since then it has yet to return leases of an earlier run of the node, which are not known.
    unknown: Option<Duration>,
    /// Its leases have ended without its answer. It gets new ones when it has dropped everything.
    lapsed: bool,
}

/// A mutation that is about to change subjects, until this is dropped.
pub(crate) struct Intent<'a> {
    leases: &'a Leases,
    subjects: Subjects,
}

impl Intent<'_> {
    pub(crate) fn subjects(&self) -> &[Subject] {
        &self.subjects
    }
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        let intents = &mut self.leases.table.borrow_mut().intents;
        for subject in &self.subjects {
            if let Some(count) = intents.get_mut(subject) {
                *count -= 1;
                if *count == 0 {
                    intents.remove(subject);
                }
            }
        }
    }
}

impl Leases {
    /// For the run of a node with this random id.
    pub(crate) fn new(run: u64) -> Leases {
        let numbers = u64::from(run as u32) << 32;
        let table = RefCell::new(Table { numbers, ..Table::default() });
        Leases { table, ended: Signal::default() }
    }

    /// Sessions of an earlier run of the node may have any lease until they return all.
    pub(crate) fn are_unknown(&self, sessions: &[SessionId], now: Duration) {
        let mut table = self.table.borrow_mut();
        for session in sessions {
            table.sessions.entry(*session).or_default().unknown = Some(now);
        }
    }

    /// Grants leases of all these subjects, or of none.
    pub(crate) fn grant(&self, session: SessionId, subjects: &[Subject], now: Duration) -> bool {
        let table = &mut *self.table.borrow_mut();
        let holder = table.sessions.entry(session).or_default();
        let is_free = |subject: &Subject| {
            (!table.intents.contains_key(subject) || Planted::IntentIgnored.is_on())
                && !holder.recalled.contains(subject)
                && table.cooling.get(subject).is_none_or(|until| *until <= now)
        };
        if holder.lapsed
            || holder.unknown.is_some()
            || holder.granted.len() >= MOST_LEASES * 2
            || !subjects.iter().all(is_free)
        {
            return false;
        }
        for subject in subjects {
            let holders = table.holders.entry(subject.clone()).or_default();
            if holders.iter().all(|lease| lease.session != session) {
                table.numbers += 1;
                holders.push(Lease { session, number: table.numbers, written: false });
                holder.granted.insert(table.numbers, subject.clone());
            }
        }
        true
    }

    /// No new leases of these subjects until the guard is dropped.
    pub(crate) fn intend(&self, subjects: Subjects) -> Intent<'_> {
        let intents = &mut self.table.borrow_mut().intents;
        for subject in &subjects {
            *intents.entry(subject.clone()).or_default() += 1;
        }
        Intent { leases: self, subjects }
    }

    /// The author's mutation of these subjects has been applied.
    pub(crate) fn wrote(&self, author: SessionId, subjects: &[Subject]) {
        let table = &mut *self.table.borrow_mut();
        for subject in subjects {
            for lease in table.holders.get_mut(subject).into_iter().flatten() {
                if lease.session == author && !lease.written {
                    lease.written = true;
                    table.written += 1;
                }
            }
        }
    }

    /// The author's rename has been applied. Its cache moves the name with it, and keeps it for as
    /// long.
    pub(crate) fn moved(&self, author: SessionId, from: &Subject, to: &Subject) {
        let table = &mut *self.table.borrow_mut();
        let has = |subject: &Subject| {
            let leases = table.holders.get(subject).into_iter().flatten();
            leases.into_iter().any(|lease| lease.session == author)
        };
        if !has(from) || has(to) || Planted::MovedNameForgotten.is_on() {
            return;
        }
        let Some(holder) = table.sessions.get_mut(&author) else { return };
        table.numbers += 1;
        let lease = Lease { session: author, number: table.numbers, written: true };
        table.holders.entry(to.clone()).or_default().push(lease);
        holder.granted.insert(table.numbers, to.clone());
        table.written += 1;
    }

    /// Whether there is a lease under which its holder has written.
    pub(crate) fn has_written(&self) -> bool {
        self.table.borrow().written > 0
    }

    /// Names in the directory that the holders of their leases have changed.
    pub(crate) fn written_names(&self, dir: Ino) -> Subjects {
        let table = self.table.borrow();
        let of_dir = table.holders.range(Subject::attributes(dir)..);
        of_dir
            .take_while(|(subject, _)| subject.ino == dir)
            .filter(|(_, leases)| leases.iter().any(|lease| lease.written))
            .map(|(subject, _)| subject.clone())
            .collect()
    }

    /// Whether a client other than `except` may have a lease of one of these that is in the way.
    pub(crate) fn conflicts(
        &self,
        except: Option<SessionId>,
        subjects: &[Subject],
        way: InWay,
        now: Duration,
    ) -> bool {
        let table = self.table.borrow();
        let is_abandoned = || way != InWay::Written && now < table.abandoned_until;
        is_abandoned() || table.in_way(except, subjects, way).next().is_some()
    }

    /// Clients other than `except` that may have a lease of one of these that is in the way.
    pub(crate) fn in_way(
        &self,
        except: Option<SessionId>,
        subjects: &[Subject],
        way: InWay,
    ) -> BTreeSet<SessionId> {
        let table = self.table.borrow();
        table.in_way(except, subjects, way).map(|(session, _)| session).collect()
    }

    /// Recalls the leases of these subjects that are in the way from all clients but `except`: the
    /// notices that are not sent yet.
    pub(crate) fn recall(
        &self,
        except: Option<SessionId>,
        subjects: &[Subject],
        way: InWay,
        now: Duration,
    ) -> Vec<(SessionId, Notice)> {
        let table = &mut *self.table.borrow_mut();
        let mut by_session: BTreeMap<SessionId, Vec<Subject>> = BTreeMap::new();
        for (session, subject) in table.in_way(except, subjects, way) {
            by_session.entry(session).or_default().extend(subject.cloned());
        }
        if !by_session.is_empty() {
            table.cooling.retain(|_, until| now < *until);
        }
        let mut notices = Vec::new();
        for (session, subjects) in by_session {
            table.cooling.extend(subjects.iter().map(|subject| (subject.clone(), now + COOLING)));
            notices.extend(table.recall(session, subjects, now).map(|notice| (session, notice)));
        }
        notices
    }

    /// Recalls the oldest leases of a client that has too many.
    pub(crate) fn trim(&self, session: SessionId, now: Duration) -> Option<Notice> {
        let table = &mut *self.table.borrow_mut();
        let holder = table.sessions.get(&session)?;
        if holder.granted.len() <= MOST_LEASES || !holder.recalls.is_empty() {
            return None;
        }
        let oldest = holder.granted.values().take(MOST_LEASES / 8).cloned().collect();
        table.recall(session, oldest, now)
    }

    /// The client has dropped the subjects of this recall, or everything.
    pub(crate) fn returned(&self, session: SessionId, recall: Option<u64>) {
        let table = &mut *self.table.borrow_mut();
        match recall {
            Some(recall) => table.release_recalled(session, recall),
            None => table.forget(session),
        }
        self.ended.raise();
    }

    /// A session was ended because its client renews but does not answer a recall. The client
    /// notices the end within this time.
    pub(crate) fn abandoned_until(&self, until: Duration) {
        self.table.borrow_mut().abandoned_until = until;
    }

    /// The session has ended.
    pub(crate) fn remove(&self, session: SessionId) {
        self.table.borrow_mut().forget(session);
        self.ended.raise();
    }

    /// The client has been silent for the lease term: it has dropped everything by itself.
    pub(crate) fn lapse(&self, session: SessionId) {
        let table = &mut *self.table.borrow_mut();
        table.forget(session);
        table.sessions.entry(session).or_default().lapsed = true;
        self.ended.raise();
    }

    /// Completes when a lease has ended after this call.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.ended.wait()
    }

    /// Leases of a client, and the recalls that it has not answered.
    pub(crate) fn held_by(&self, session: SessionId) -> (u64, u64) {
        let table = self.table.borrow();
        let holder = table.sessions.get(&session);
        holder.map_or((0, 0), |holder| (holder.granted.len() as u64, holder.recalls.len() as u64))
    }

    /// Clients that have not answered a recall, or returned unknown leases, for longer than this.
    pub(crate) fn overdue(&self, now: Duration, term: Duration) -> Vec<SessionId> {
        let is_over = |since: &Duration| now.saturating_sub(*since) > term;
        let table = self.table.borrow();
        let overdue = |holder: &Holder| {
            let recalls = holder.recalls.values().map(|(since, _)| since);
            recalls.chain(&holder.unknown).any(is_over)
        };
        let sessions = table.sessions.iter().filter(|(_, holder)| overdue(holder));
        sessions.map(|(session, _)| *session).collect()
    }
}

impl Table {
    /// Leases in the way, by session. Of a session with unknown leases the subject is not known.
    fn in_way<'a>(
        &'a self,
        except: Option<SessionId>,
        subjects: &'a [Subject],
        way: InWay,
    ) -> impl Iterator<Item = (SessionId, Option<&'a Subject>)> {
        let leases = |subject: &'a Subject| {
            let leases = self.holders.get(subject).into_iter().flatten();
            leases.map(move |lease| (lease, subject))
        };
        let granted = subjects
            .iter()
            .flat_map(leases)
            .filter(move |(lease, _)| lease.is(way))
            .map(|(lease, subject)| (lease.session, Some(subject)));
        let counts = way == InWay::Any && !Planted::LeasesForgotten.is_on();
        let unknown =
            self.sessions.iter().filter(move |(_, holder)| counts && holder.unknown.is_some());
        let unknown = unknown.map(|(session, _)| (*session, None));
        granted.chain(unknown).filter(move |(session, _)| Some(*session) != except)
    }

    fn recall(
        &mut self,
        session: SessionId,
        subjects: Vec<Subject>,
        now: Duration,
    ) -> Option<Notice> {
        let holder = self.sessions.entry(session).or_default();
        let is_new = |subject: &Subject| holder.recalled.insert(subject.clone());
        let subjects: Vec<Subject> = subjects.into_iter().filter(is_new).collect();
        if subjects.is_empty() {
            return None;
        }
        self.numbers += 1;
        let recall = self.numbers;
        let (mut inos, mut names) = (Vec::new(), Vec::new());
        for Subject { ino, name } in &subjects {
            match name {
                Some(_) if Planted::NamesNotRecalled.is_on() => {}
                Some(name) => names.push((*ino, name.clone())),
                None => inos.push(*ino),
            }
        }
        holder.recalls.insert(recall, (now, subjects));
        Some(Notice::Recall { recall, inos, names })
    }

    fn release_recalled(&mut self, session: SessionId, recall: u64) {
        let Some(holder) = self.sessions.get_mut(&session) else { return };
        let Some((_, subjects)) = holder.recalls.remove(&recall) else { return };
        for subject in &subjects {
            holder.recalled.remove(subject);
        }
        for subject in subjects {
            self.release(session, &subject);
        }
    }

    fn release(&mut self, session: SessionId, subject: &Subject) {
        let Some(holders) = self.holders.get_mut(subject) else { return };
        if let Some(at) = holders.iter().position(|lease| lease.session == session) {
            let Lease { number, written, .. } = holders.swap_remove(at);
            self.written -= usize::from(written);
            if let Some(holder) = self.sessions.get_mut(&session) {
                holder.granted.remove(&number);
            }
        }
        if self.holders.get(subject).is_some_and(SmallVec::is_empty) {
            self.holders.remove(subject);
        }
    }

    fn forget(&mut self, session: SessionId) {
        let Some(holder) = self.sessions.remove(&session) else { return };
        for subject in holder.granted.into_values() {
            self.release(session, &subject);
        }
    }
}

/// After a recall the subject is not leased for this time. So a client that changes it steadily
/// waits for at most one recall in this time, however many clients look at it.
const COOLING: Duration = Duration::from_secs(1);

/// Leases of one client, beyond which the oldest are recalled, an eighth at a time. So many
/// attributes are dropped in a fraction of the lease term.
const MOST_LEASES: usize = if cfg!(test) { 64 } else { 1 << 16 };

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);
    const SECOND: Duration = Duration::from_secs(1);

    fn attributes(ino: u64) -> [Subject; 1] {
        [Subject::attributes(Ino(ino))]
    }

    fn number(notice: &Notice) -> u64 {
        match notice {
            Notice::Recall { recall, .. } => *recall,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_recalled_is_not_granted_until_it_is_returned_and_cooled() {
        let leases = Leases::new(0);
        let file = attributes(5);
        assert!(leases.grant(A, &file, SECOND));
        assert!(!leases.conflicts(Some(A), &file, InWay::Any, SECOND), "its own");
        assert!(leases.conflicts(Some(B), &file, InWay::Any, SECOND));
        let sent = leases.recall(Some(B), &file, InWay::Any, SECOND);
        assert_eq!(leases.recall(Some(B), &file, InWay::Any, SECOND), [], "it is sent once");
        assert_eq!(leases.held_by(A), (1, 1));
        assert!(!leases.grant(A, &file, 10 * SECOND), "it is on its way back");
        leases.returned(A, Some(number(&sent[0].1) + 1));
        assert!(leases.conflicts(Some(B), &file, InWay::Any, SECOND), "another recall");
        leases.returned(A, Some(number(&sent[0].1)));
        assert!(!leases.conflicts(Some(B), &file, InWay::Any, SECOND));
        assert!(!leases.grant(A, &file, SECOND + COOLING / 2));
        assert!(leases.grant(A, &file, SECOND + COOLING));
    }

    #[test]
    fn intents_keep_leases_away() {
        let leases = Leases::new(0);
        let name = [Subject::name(Ino(5), &Name::new(b"a".as_slice()).unwrap())];
        let (first, second) = (leases.intend(name[..].into()), leases.intend(name[..].into()));
        drop(first);
        assert!(!leases.grant(A, &name, SECOND));
        drop(second);
        assert!(leases.grant(A, &name, SECOND));
    }

    #[test]
    fn written_leases_are_in_the_way_of_answers() {
        let leases = Leases::new(0);
        let (file, other) = (attributes(5), attributes(6));
        leases.wrote(A, &file);
        assert!(!leases.has_written(), "it had no lease");
        assert!(leases.grant(A, &file, SECOND) && leases.grant(A, &other, SECOND));
        assert!(!leases.conflicts(Some(B), &file, InWay::Written, SECOND));
        leases.wrote(A, &file);
        leases.wrote(A, &file);
        assert!(leases.conflicts(Some(B), &file, InWay::Written, SECOND));
        assert!(!leases.conflicts(Some(A), &file, InWay::Written, SECOND));
        assert!(!leases.conflicts(Some(B), &other, InWay::Written, SECOND));
        leases.returned(A, None);
        assert!(!leases.has_written() && leases.grant(B, &file, SECOND));
    }

    #[test]
    fn a_name_is_moved_with_its_lease() {
        let leases = Leases::new(0);
        let name = |name: &'static [u8]| Subject::name(Ino(5), &Name::new(name).unwrap());
        let (old, new) = (name(b"old"), name(b"new"));
        leases.moved(A, &old, &new);
        assert!(!leases.has_written(), "it had no lease");
        assert!(leases.grant(A, std::slice::from_ref(&old), SECOND));
        leases.moved(A, &old, &new);
        let new = std::slice::from_ref(&new);
        assert!(leases.conflicts(Some(B), new, InWay::Written, SECOND));
        assert!(leases.conflicts(Some(B), new, InWay::Any, SECOND));
        leases.remove(A);
        assert!(!leases.conflicts(Some(B), new, InWay::Any, SECOND) && !leases.has_written());
    }

    #[test]
    fn clients_of_an_earlier_run_are_in_the_way_until_they_return_everything() {
        let leases = Leases::new(7);
        leases.are_unknown(&[A], SECOND);
        assert!(leases.conflicts(Some(B), &attributes(5), InWay::Any, SECOND));
        assert!(!leases.conflicts(Some(B), &attributes(5), InWay::Granted, SECOND));
        assert!(!leases.conflicts(Some(A), &attributes(5), InWay::Any, SECOND));
        assert!(!leases.grant(A, &attributes(5), SECOND));
        assert_eq!(leases.recall(Some(B), &attributes(5), InWay::Any, SECOND), []);
        assert_eq!(leases.overdue(2 * SECOND, SECOND), []);
        assert_eq!(leases.overdue(3 * SECOND, SECOND), [A], "the node waits for it without end");
        leases.returned(A, None);
        assert!(!leases.conflicts(Some(B), &attributes(5), InWay::Any, SECOND));
        assert!(leases.grant(A, &attributes(5), SECOND));
    }

    #[test]
    fn a_lapsed_client_gets_nothing_before_it_has_dropped_everything() {
        let leases = Leases::new(0);
        assert!(leases.grant(A, &attributes(5), SECOND));
        leases.lapse(A);
        assert!(!leases.conflicts(Some(B), &attributes(5), InWay::Any, SECOND));
        assert!(!leases.grant(A, &attributes(6), SECOND));
        leases.returned(A, None);
        assert!(leases.grant(A, &attributes(6), SECOND));
    }

    #[test]
    fn what_an_ended_session_may_have_is_waited_for() {
        let leases = Leases::new(0);
        assert!(leases.grant(A, &attributes(5), SECOND));
        leases.abandoned_until(3 * SECOND);
        leases.remove(A);
        assert!(leases.conflicts(Some(B), &attributes(5), InWay::Any, 2 * SECOND));
        assert!(!leases.conflicts(Some(B), &attributes(5), InWay::Any, 3 * SECOND));
    }

    #[test]
    fn the_oldest_leases_of_a_client_with_too_many_are_recalled() {
        let leases = Leases::new(0);
        for ino in 0..MOST_LEASES as u64 {
            assert!(leases.grant(A, &attributes(ino), SECOND));
            assert_eq!(leases.trim(A, SECOND), None);
        }
        assert!(leases.grant(A, &attributes(1000), SECOND));
        let Some(Notice::Recall { inos, .. }) = leases.trim(A, SECOND) else { panic!("none") };
        assert_eq!(inos, (0..MOST_LEASES as u64 / 8).map(Ino).collect::<Vec<_>>());
        assert_eq!(leases.trim(A, SECOND), None, "one at a time");
        let refused = (2000..).find(|ino| !leases.grant(A, &attributes(*ino), SECOND));
        assert_eq!(refused, Some(2000 + MOST_LEASES as u64 - 1));
    }
}
