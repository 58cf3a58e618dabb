//! Clients attached to this node: their terms, their open files, and the notices to them. All of it
//! is volatile; the session table of the partition is not.

use ebb_model::{Ino, LogIndex, Name, Notice, Planted, SessionId};
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

#[derive(Default)]
pub struct Attachments {
    table: RefCell<BTreeMap<SessionId, Attachment>>,
    opens: RefCell<BTreeMap<Ino, BTreeMap<SessionId, u32>>>,
    /// Clients that are about to be admitted, by name, in the order in which they came. They count
    /// as attached from before the first change that they could see.
    entering: RefCell<BTreeMap<u64, String>>,
    /// The sessions that are awaited are one, whose client was the only one before the restart.
    awaits_sole: Cell<bool>,
    /// Sessions from an earlier run with clients that have yet to report their open files.
    to_tell: RefCell<BTreeSet<SessionId>>,
    /// Sessions for which bytes are being overwritten, and how often.
    overwriting: RefCell<BTreeMap<SessionId, u32>>,
    /// Reads that wait for a bucket, in the order in which they began to: since when.
    reads: RefCell<BTreeMap<u64, Duration>>,
    began_reads: Cell<u64>,
    connections: Cell<u64>,
    in_process: Cell<Option<SessionId>>,
}

/// A connection over which clients attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionId(u64);

struct Attachment {
    renewed: Duration,
    read_only: bool,
    /// The client has given up caching.
    shares: bool,
    /// When it was last asked to give up caching.
    asked_to_share: Option<Duration>,
    /// A session from before a restart: its client has not come back yet, or has yet to replay
    /// operations that the node may have lost.
    awaited: bool,
    /// It is about to be closed.
    ending: bool,
    /// The connection of the latest attach: requests over an earlier one are ignored.
    connection: Option<ConnectionId>,
    mailbox: Mailbox,
    listener: Option<oneshot::Sender<()>>,
    /// Processes that have taken up the session.
    lives: u64,
    /// Files that the previous process had open, and that its successor in the session has not
    /// reported yet.
    untold: BTreeSet<Ino>,
}

/// Notices that wait for delivery, each once. Their number is bounded by the inodes, names, leases
/// and awaited locks.
#[derive(Default)]
struct Mailbox {
    share: bool,
    /// Recalls of leases, oldest first.
    recalls: VecDeque<Notice>,
    invalid: BTreeSet<Ino>,
    relinked: BTreeSet<(Ino, Name)>,
    /// Lock requests whose waits have ended.
    locks: BTreeSet<u64>,
    durable: Option<LogIndex>,
    /// The last query: the node waits for no other.
    query: Option<(u64, Vec<Ino>)>,
    leaving: bool,
}

impl Mailbox {
    fn put(&mut self, notice: Notice) {
        match notice {
            Notice::DropCaches => self.share = true,
            Notice::Recall { .. } => self.recalls.push_back(notice),
            Notice::Invalidate { ino } => drop(self.invalid.insert(ino)),
            Notice::Relinked { dir, name } => drop(self.relinked.insert((dir, name))),
            Notice::Durable { durable } => self.durable = self.durable.max(Some(durable)),
            Notice::Leaving => self.leaving = true,
            Notice::Lock { wait } => drop(self.locks.insert(wait)),
            Notice::ReferenceQuery { query, inos } => self.query = Some((query, inos)),
        }
    }

    fn take(&mut self) -> Option<Notice> {
        if std::mem::take(&mut self.share) {
            return Some(Notice::DropCaches);
        }
        if let Some(recall) = self.recalls.pop_front() {
            return Some(recall);
        }
        if let Some(ino) = self.invalid.pop_first() {
            return Some(Notice::Invalidate { ino });
        }
        if let Some((dir, name)) = self.relinked.pop_first() {
            return Some(Notice::Relinked { dir, name });
        }
        // After the notices about the data that the lock protects.
        if let Some(wait) = self.locks.pop_first() {
            return Some(Notice::Lock { wait });
        }
        if let Some(durable) = self.durable.take() {
            return Some(Notice::Durable { durable });
        }
        if let Some((query, inos)) = self.query.take() {
            return Some(Notice::ReferenceQuery { query, inos });
        }
        std::mem::take(&mut self.leaving).then_some(Notice::Leaving)
    }
}

impl Attachment {
    fn new(renewed: Duration, read_only: bool, shares: bool) -> Attachment {
        let (connection, mailbox, listener, untold) =
            (None, Mailbox::default(), None, BTreeSet::new());
        Attachment {
            renewed,
            read_only,
            shares,
            asked_to_share: None,
            awaited: false,
            ending: false,
            connection,
            mailbox,
            listener,
            lives: 0,
            untold,
        }
    }
}

/// A client that is about to be admitted.
pub struct Entering<'a> {
    attachments: &'a Attachments,
    number: u64,
}

impl Entering<'_> {
    /// No client of the same name has come since.
    pub fn is_latest(&self) -> bool {
        let entering = self.attachments.entering.borrow();
        let name = entering.get(&self.number);
        entering.range(self.number + 1..).all(|(_, other)| Some(other) != name)
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.attachments.entering.borrow_mut().remove(&self.number);
    }
}

/// A read that waits for a bucket.
pub struct ReadWait<'a> {
    attachments: &'a Attachments,
    number: u64,
}

impl Drop for ReadWait<'_> {
    fn drop(&mut self) {
        self.attachments.reads.borrow_mut().remove(&self.number);
    }
}

/// Keeps a session from ending while its bytes are overwritten.
pub struct Overwrite<'a> {
    attachments: &'a Attachments,
    session: SessionId,
}

impl Drop for Overwrite<'_> {
    fn drop(&mut self) {
        let mut overwriting = self.attachments.overwriting.borrow_mut();
        let Some(count) = overwriting.get_mut(&self.session) else { return };
        *count -= 1;
        if *count == 0 {
            overwriting.remove(&self.session);
        }
    }
}

impl Attachments {
    pub fn insert(&self, session: SessionId, now: Duration, read_only: bool, shares: bool) {
        self.enter(session, Attachment::new(now, read_only, shares));
    }

    /// Sessions from before a restart: their clients have their term to come back. Several clients
    /// cached nothing. A single one counts until then as one that caches.
    pub fn await_return(&self, sessions: &[SessionId], now: Duration) {
        let shares = sessions.len() > 1;
        for session in sessions {
            self.has_to_tell(*session);
            let attachment = Attachment::new(now, false, shares);
            self.enter(*session, Attachment { awaited: true, ..attachment });
        }
        self.awaits_sole.set(!shares);
    }

    /// From here on until the guard is dropped a client more counts as attached.
    pub fn begin_to_enter(&self, client: &str) -> Entering<'_> {
        let number = self.new_connection().0;
        self.entering.borrow_mut().insert(number, client.to_owned());
        Entering { attachments: self, number }
    }

    /// Notices that the session has not received yet are kept for it.
    fn enter(&self, session: SessionId, mut attachment: Attachment) {
        let mut table = self.table.borrow_mut();
        if let Some(before) = table.remove(&session) {
            attachment.mailbox = before.mailbox;
            (attachment.lives, attachment.untold) = (before.lives, before.untold);
            attachment.awaited |= before.awaited;
        }
        table.insert(session, attachment);
    }

    /// Clients from before a restart have yet to come back, with locks and open files.
    pub fn awaits_any(&self) -> bool {
        self.table.borrow().values().any(|attachment| attachment.awaited)
    }

    /// The client of before the restart was the only one, and its answers were not forced. It may
    /// still have any operation to replay, which comes before new ones of other clients. Operations
    /// of several clients were forced before they were answered, but for bytes of files.
    pub fn awaits_sole(&self) -> bool {
        self.awaits_sole.get() && self.awaits_any()
    }

    /// The session is one of those, and may still replay its acknowledged operations.
    pub fn awaits(&self, session: SessionId) -> bool {
        self.table.borrow().get(&session).is_some_and(|attachment| attachment.awaited)
    }

    /// Readable bytes are about to be overwritten for the session. Until the guard is dropped it
    /// does not end: otherwise its mutation would be refused although its bytes are there. `None`
    /// if it has ended, or is about to.
    pub fn overwrite(&self, session: SessionId) -> Option<Overwrite<'_>> {
        if self.table.borrow().get(&session).is_none_or(|attachment| attachment.ending) {
            return None;
        }
        *self.overwriting.borrow_mut().entry(session).or_insert(0) += 1;
        Some(Overwrite { attachments: self, session })
    }

    /// The session is not renewed any more. False if another task is about to close it, or one of
    /// its operations is half done.
    pub fn begin_end(&self, session: SessionId) -> bool {
        if self.overwriting.borrow().contains_key(&session) {
            return false;
        }
        match self.table.borrow_mut().get_mut(&session) {
            Some(attachment) => !std::mem::replace(&mut attachment.ending, true),
            None => true,
        }
    }

    /// It could not be closed: it continues, and other clients wait for it as before.
    pub fn fail_end(&self, session: SessionId) {
        if let Some(attachment) = self.table.borrow_mut().get_mut(&session) {
            attachment.ending = false;
        }
    }

    pub fn is_ending(&self, session: SessionId) -> bool {
        self.table.borrow().get(&session).is_some_and(|attachment| attachment.ending)
    }

    /// Sessions that are about to be closed, or are closed and not removed yet.
    pub fn ending(&self) -> Vec<SessionId> {
        self.table
            .borrow()
            .iter()
            .filter(|(_, attachment)| attachment.ending)
            .map(|(session, _)| *session)
            .collect()
    }

    /// Removes the session.
    pub fn remove(&self, session: SessionId) {
        self.table.borrow_mut().remove(&session);
        self.to_tell.borrow_mut().remove(&session);
        self.opens.borrow_mut().retain(|_, holders| {
            holders.remove(&session);
            !holders.is_empty()
        });
    }

    pub fn contains(&self, session: SessionId) -> bool {
        self.table.borrow().contains_key(&session)
    }

    pub fn sessions(&self) -> Vec<SessionId> {
        self.table.borrow().keys().copied().collect()
    }

    pub fn new_connection(&self) -> ConnectionId {
        self.connections.set(self.connections.get() + 1);
        ConnectionId(self.connections.get())
    }

    /// The session has attached over this connection: requests over any other are refused.
    pub fn connect(&self, session: SessionId, connection: ConnectionId) {
        if let Some(attachment) = self.table.borrow_mut().get_mut(&session) {
            attachment.connection = Some(connection);
        }
    }

    /// The session that uses this connection.
    pub fn session_of(&self, connection: ConnectionId) -> Option<SessionId> {
        let table = self.table.borrow();
        let uses = |attachment: &Attachment| attachment.connection == Some(connection);
        table.iter().find(|(_, attachment)| uses(attachment)).map(|(session, _)| *session)
    }

    pub fn speaks_for(&self, connection: ConnectionId, session: SessionId) -> bool {
        self.table
            .borrow()
            .get(&session)
            .is_some_and(|attachment| attachment.connection == Some(connection))
    }

    fn entering(&self) -> usize {
        if Planted::EnteringNotCounted.is_on() { 0 } else { self.entering.borrow().len() }
    }

    /// Whether several sessions are attached.
    pub fn is_shared(&self) -> bool {
        self.table.borrow().len() + self.entering() > 1
    }

    /// Whether no session other than this one is attached.
    pub fn is_alone(&self, session: SessionId) -> bool {
        self.entering() == 0 && self.table.borrow().keys().all(|id| *id == session)
    }

    pub fn renew(&self, session: SessionId, now: Duration) -> bool {
        match self.table.borrow_mut().get_mut(&session) {
            Some(attachment) if !attachment.ending => {
                attachment.renewed = now;
                attachment.awaited = false;
                true
            }
            _ => false,
        }
    }

    /// The client is alive. It may still have operations to replay, which can last longer than a
    /// term.
    pub fn heard(&self, session: SessionId, now: Duration) {
        if let Some(attachment) = self.table.borrow_mut().get_mut(&session) {
            attachment.renewed = attachment.renewed.max(now);
        }
    }

    /// Nothing has come from the client for longer than this. One in the node's process is never
    /// silent.
    pub fn is_silent(&self, session: SessionId, now: Duration, term: Duration) -> bool {
        self.in_process.get() != Some(session)
            && self
                .table
                .borrow()
                .get(&session)
                .is_some_and(|attachment| now.saturating_sub(attachment.renewed) > term)
    }

    /// The session is that of the client in the node's process.
    pub fn is_in_process(&self, session: SessionId) {
        self.in_process.set(Some(session));
    }

    /// The session of the client in the node's process.
    pub fn in_process(&self) -> Option<SessionId> {
        self.in_process.get().filter(|session| self.contains(*session))
    }

    pub fn read_only(&self, session: SessionId) -> bool {
        self.table.borrow().get(&session).is_some_and(|attachment| attachment.read_only)
    }

    /// A read begins to wait for a bucket, until the guard is dropped.
    pub fn read_waits(&self, now: Duration) -> ReadWait<'_> {
        let number = self.began_reads.get();
        self.began_reads.set(number + 1);
        self.reads.borrow_mut().insert(number, now);
        ReadWait { attachments: self, number }
    }

    /// Sessions that have been silent, or kept another client waiting, for longer than the term. A
    /// kernel gives up no page that is being read: while a read has waited for a bucket for half a
    /// term, the sessions that are asked to share get a whole term, counted from this call.
    pub fn expired(&self, now: Duration, term: Duration) -> Vec<SessionId> {
        let first_read = self.reads.borrow().values().next().copied();
        if first_read.is_some_and(|began| now.saturating_sub(began) > term / 2) {
            for asked in self
                .table
                .borrow_mut()
                .values_mut()
                .filter_map(|attachment| attachment.asked_to_share.as_mut())
            {
                *asked = now;
            }
        }
        let table = self.table.borrow();
        let is_over = |since: Duration| now.saturating_sub(since) > term;
        let gone = |attachment: &Attachment| {
            is_over(attachment.renewed)
                || !attachment.shares && attachment.asked_to_share.is_some_and(is_over)
        };
        table
            .iter()
            .filter(|(_, attachment)| gone(attachment) && !attachment.ending)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Gives every session more time.
    pub fn postpone(&self, by: Duration) {
        for attachment in self.table.borrow_mut().values_mut() {
            attachment.renewed += by;
            attachment.asked_to_share = attachment.asked_to_share.map(|asked| asked + by);
        }
    }

    /// Asks every session that caches, but these, to give that up; false once none does.
    pub fn ask_to_share(&self, except: &[SessionId], now: Duration) -> bool {
        let (mut any, mut unasked) = (false, Vec::new());
        for (id, attachment) in self.table.borrow_mut().iter_mut() {
            if !except.contains(id) && !attachment.shares {
                any = true;
                if attachment.asked_to_share.is_none() {
                    attachment.asked_to_share = Some(now);
                    unasked.push(*id);
                }
            }
        }
        for session in unasked {
            self.notify(session, Notice::DropCaches);
        }
        any
    }

    pub fn shares(&self, session: SessionId) -> bool {
        self.table.borrow().get(&session).is_some_and(|attachment| attachment.shares)
    }

    pub fn set_shares(&self, session: SessionId) {
        if let Some(attachment) = self.table.borrow_mut().get_mut(&session) {
            attachment.shares = true;
        }
    }

    pub fn notify(&self, session: SessionId, notice: Notice) {
        if let Some(attachment) = self.table.borrow_mut().get_mut(&session) {
            attachment.mailbox.put(notice);
            if let Some(listener) = attachment.listener.take() {
                // A listener that has gone gets the notice when it comes back.
                let (Ok(()) | Err(())) = listener.send(());
            }
        }
    }

    pub fn notify_others(&self, except: Option<SessionId>, notice: &Notice) {
        let sessions: Vec<SessionId> =
            self.table.borrow().keys().copied().filter(|id| Some(*id) != except).collect();
        for session in sessions {
            self.notify(session, notice.clone());
        }
    }

    /// The next notice for a session; `None` once it is no longer attached.
    pub async fn next_notice(&self, session: SessionId) -> Option<Notice> {
        loop {
            let arrival = {
                let mut table = self.table.borrow_mut();
                let attachment = table.get_mut(&session)?;
                if let Some(notice) = attachment.mailbox.take() {
                    return Some(notice);
                }
                let (sender, receiver) = oneshot::channel();
                attachment.listener = Some(sender);
                receiver
            };
            // Cancelled if the session ends or another listener takes over.
            arrival.await.ok()?;
        }
    }

    /// Another process has taken up the session, and reports its open files. Its report may still
    /// be to come for inodes that were `made` open.
    pub fn take_up(&self, session: SessionId, made: impl Iterator<Item = Ino>) {
        if let Some(attachment) = self.table.borrow_mut().get_mut(&session) {
            let mut opens = self.opens.borrow_mut();
            for ino in made {
                opens.entry(ino).or_default().entry(session).or_insert(1);
            }
            attachment.untold = opens
                .iter()
                .filter(|(_, holders)| holders.contains_key(&session))
                .map(|(ino, _)| *ino)
                .collect();
            attachment.lives += 1;
        }
    }

    /// Processes that have taken up the session.
    pub fn lives(&self, session: SessionId) -> u64 {
        self.table.borrow().get(&session).map_or(0, |attachment| attachment.lives)
    }

    /// A file that this life of the session has not reported, after it has reported all its open
    /// ones.
    pub fn next_untold(&self, session: SessionId, life: u64) -> Option<Ino> {
        let mut table = self.table.borrow_mut();
        let attachment = table.get_mut(&session).filter(|attachment| attachment.lives == life)?;
        attachment.untold.pop_first()
    }

    /// As [`Attachments::open`], by an opening that may have been counted before.
    pub fn open_again(&self, session: SessionId, ino: Ino) {
        if !self.holds(session, ino) || self.is_untold(session, ino) {
            self.open(session, ino);
        }
    }

    fn is_untold(&self, session: SessionId, ino: Ino) -> bool {
        self.table.borrow().get(&session).is_some_and(|attachment| attachment.untold.contains(&ino))
    }

    /// Does nothing if the session has ended: no later event would undo it.
    pub fn open(&self, session: SessionId, ino: Ino) {
        if let Some(attachment) = self.table.borrow_mut().get_mut(&session) {
            let mut opens = self.opens.borrow_mut();
            let count = opens.entry(ino).or_default().entry(session).or_insert(0);
            // Opens of the previous process count no more.
            *count = if attachment.untold.remove(&ino) { 1 } else { count.saturating_add(1) };
        }
    }

    /// True if the session no longer has the inode open.
    pub fn close(&self, session: SessionId, ino: Ino, count: u32) -> bool {
        let mut opens = self.opens.borrow_mut();
        let Some(holders) = opens.get_mut(&ino) else { return true };
        if let Some(held) = holders.get_mut(&session) {
            *held = held.saturating_sub(count);
            if *held > 0 {
                return false;
            }
            holders.remove(&session);
        }
        if holders.is_empty() {
            opens.remove(&ino);
        }
        true
    }

    /// The client has files open that this node, or this session, has no record of yet.
    pub fn has_to_tell(&self, session: SessionId) {
        self.to_tell.borrow_mut().insert(session);
    }

    /// The client has reported all its open files.
    pub fn has_told(&self, session: SessionId) {
        self.to_tell.borrow_mut().remove(&session);
    }

    /// Sessions that have the inode open, or may have it open: a removal that is repeated after a
    /// restart keeps the inode for operations that were done to it without a name.
    pub fn holders(&self, ino: Ino) -> Vec<SessionId> {
        let (opens, to_tell) = (self.opens.borrow(), self.to_tell.borrow());
        let told = opens
            .get(&ino)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .filter(|session| !to_tell.contains(session));
        told.chain(&*to_tell).copied().collect()
    }

    /// Whether the session has it open, or may have.
    pub fn may_hold(&self, session: SessionId, ino: Ino) -> bool {
        self.to_tell.borrow().contains(&session) || self.holds(session, ino)
    }

    /// Whether any session has it open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.opens.borrow().contains_key(&ino)
    }

    pub fn holds(&self, session: SessionId, ino: Ino) -> bool {
        self.opens.borrow().get(&ino).is_some_and(|holders| holders.contains_key(&session))
    }

    pub fn open_files(&self, session: SessionId) -> u64 {
        self.opens.borrow().values().filter(|holders| holders.contains_key(&session)).count() as u64
    }
}
