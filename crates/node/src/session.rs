//! Clients attached to this node: their terms, what they hold open, and what they are
//! told unasked. All of it is volatile; the session table of the partition is not.

use ebb_model::{Ino, Notice, SessionId};
use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Default)]
pub struct Attachments {
    table: RefCell<BTreeMap<SessionId, Attachment>>,
    opens: RefCell<BTreeMap<Ino, BTreeMap<SessionId, u32>>>,
}

struct Attachment {
    renewed: Duration,
    read_only: bool,
    /// The client has given up caching.
    shares: bool,
    /// It has been asked to.
    asked_to_share: bool,
    /// Of a session of before a restart: its client has not come back yet.
    awaited: bool,
    mailbox: VecDeque<Notice>,
    listener: Option<oneshot::Sender<()>>,
}

impl Attachment {
    fn new(renewed: Duration, read_only: bool, shares: bool) -> Attachment {
        let (mailbox, listener) = (VecDeque::new(), None);
        Attachment { renewed, read_only, shares, asked_to_share: false, awaited: false, mailbox, listener }
    }
}

impl Attachments {
    pub fn insert(&self, session: SessionId, now: Duration, read_only: bool, shares: bool) {
        self.enter(session, Attachment::new(now, read_only, shares));
    }

    /// A session of before a restart, whose client has its term to come back. Until then it
    /// counts as one that caches.
    pub fn await_return(&self, session: SessionId, now: Duration) {
        self.enter(session, Attachment { awaited: true, ..Attachment::new(now, false, false) });
    }

    fn enter(&self, session: SessionId, attachment: Attachment) {
        self.table.borrow_mut().insert(session, attachment);
    }

    /// Clients of before a restart may still have operations to replay, which come before
    /// new ones of others.
    pub fn awaits_any(&self) -> bool {
        self.table.borrow().values().any(|attachment| attachment.awaited)
    }

    /// Forgets the session and gives the inodes that it had open.
    pub fn remove(&self, session: SessionId) {
        self.table.borrow_mut().remove(&session);
        self.opens.borrow_mut().retain(|_, holders| {
            holders.remove(&session);
            !holders.is_empty()
        });
    }

    pub fn contains(&self, session: SessionId) -> bool {
        self.table.borrow().contains_key(&session)
    }

    /// No session other than this one is attached.
    pub fn is_alone(&self, session: SessionId) -> bool {
        self.table.borrow().keys().all(|id| *id == session)
    }

    pub fn renew(&self, session: SessionId, now: Duration) -> bool {
        match self.table.borrow_mut().get_mut(&session) {
            Some(attachment) => {
                attachment.renewed = now;
                true
            }
            None => false,
        }
    }

    pub fn read_only(&self, session: SessionId) -> bool {
        self.table.borrow().get(&session).is_some_and(|attachment| attachment.read_only)
    }

    pub fn expired(&self, now: Duration, term: Duration) -> Vec<SessionId> {
        let table = self.table.borrow();
        table.iter().filter(|(_, attachment)| now.saturating_sub(attachment.renewed) > term).map(|(id, _)| *id).collect()
    }

    /// Asks every session other than `except` that caches to give that up; false once none does.
    pub fn ask_to_share(&self, except: SessionId) -> bool {
        let (mut any, mut unasked) = (false, Vec::new());
        for (id, attachment) in self.table.borrow_mut().iter_mut() {
            if *id != except && !attachment.shares {
                any = true;
                if !std::mem::replace(&mut attachment.asked_to_share, true) {
                    unasked.push(*id);
                }
            }
        }
        for session in unasked {
            self.notify(session, Notice::Share);
        }
        any
    }

    pub fn set_shares(&self, session: SessionId) {
        if let Some(attachment) = self.table.borrow_mut().get_mut(&session) {
            attachment.shares = true;
        }
    }

    pub fn notify(&self, session: SessionId, notice: Notice) {
        if let Some(attachment) = self.table.borrow_mut().get_mut(&session) {
            // A notice that waits already says it all: the box is bounded by the inodes there are.
            if let (Notice::Durable { .. }, Some(Notice::Durable { .. })) = (&notice, attachment.mailbox.back()) {
                attachment.mailbox.pop_back();
            }
            if !attachment.mailbox.contains(&notice) {
                attachment.mailbox.push_back(notice);
            }
            if let Some(listener) = attachment.listener.take() {
                // A listener that has gone finds the notice when it comes back.
                let (Ok(()) | Err(())) = listener.send(());
            }
        }
    }

    pub fn notify_others(&self, except: Option<SessionId>, notice: &Notice) {
        let sessions: Vec<SessionId> = self.table.borrow().keys().copied().filter(|id| Some(*id) != except).collect();
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
                if let Some(notice) = attachment.mailbox.pop_front() {
                    return Some(notice);
                }
                let (sender, receiver) = oneshot::channel();
                attachment.listener = Some(sender);
                receiver
            };
            // Cancelled where the session ends or another listener took over.
            arrival.await.ok()?;
        }
    }

    pub fn open(&self, session: SessionId, ino: Ino) {
        *self.opens.borrow_mut().entry(ino).or_default().entry(session).or_insert(0) += 1;
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

    pub fn holders(&self, ino: Ino) -> Vec<SessionId> {
        self.opens.borrow().get(&ino).map(|holders| holders.keys().copied().collect()).unwrap_or_default()
    }

    pub fn holds(&self, session: SessionId, ino: Ino) -> bool {
        self.opens.borrow().get(&ino).is_some_and(|holders| holders.contains_key(&session))
    }

    pub fn open_files(&self, session: SessionId) -> u64 {
        self.opens.borrow().values().filter(|holders| holders.contains_key(&session)).count() as u64
    }
}
