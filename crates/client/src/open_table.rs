//! The inodes that this client has open. The node is notified of the first open of an inode and of
//! its last close, so that an inode without a name lives as long as a client has it open.
//!
//! One task for each inode keeps the node informed. It decides each step when it sends it, and only
//! after the previous step has ended. So an open and a close of one inode never overtake each
//! other, nor a restart of the node.

use crate::backoff::Backoff;
use crate::call::wrong_reply;
use crate::client::Shared;
use crate::gate::Gate;
use ebb_model::{FsError, Ino, Reply, Request};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

#[derive(Default)]
pub(crate) struct OpenTable {
    table: RefCell<BTreeMap<Ino, Hold>>,
    changed: Gate,
}

#[derive(Default)]
struct Hold {
    opens: u32,
    /// A caller has been told that the inode is open.
    promised: bool,
    declared: Declared,
    /// As the node answered to the open.
    passthrough: bool,
    /// A task is notifying the node.
    telling: bool,
    failures: u64,
    failure: Option<FsError>,
}

/// Whether the node knows that the inode is open.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Declared {
    #[default]
    No,
    Yes,
    /// The request is being sent, or was sent and has no answer.
    Unsure,
}

#[derive(Clone, Copy)]
enum Step {
    Open,
    Close,
}

impl Hold {
    fn next_step(&self) -> Option<Step> {
        match (self.opens > 0, self.declared) {
            (true, Declared::Yes) | (false, Declared::No) => None,
            (true, Declared::No | Declared::Unsure) => Some(Step::Open),
            (false, Declared::Yes | Declared::Unsure) => Some(Step::Close),
        }
    }
}

impl Shared {
    pub(crate) async fn open(self: &Rc<Shared>, ino: Ino) -> Result<(), FsError> {
        let failures = {
            let mut table = self.open_table.table.borrow_mut();
            let hold = table.entry(ino).or_default();
            hold.opens += 1;
            if hold.declared == Declared::Yes {
                hold.promised = true;
                return Ok(());
            }
            hold.failures
        };
        let opened = Opened { shared: self, ino };
        self.tell(ino);
        let declared = || match self.open_table.table.borrow_mut().get_mut(&ino) {
            Some(hold) if hold.declared == Declared::Yes => {
                hold.promised = true;
                Some(Ok(()))
            }
            Some(hold) if hold.failures == failures => None,
            Some(Hold { failure: Some(error), .. }) => Some(Err(*error)),
            _ => Some(Err(FsError::Io)),
        };
        self.within(pin!(self.open_table.changed.until(declared))).await?;
        std::mem::forget(opened);
        Ok(())
    }

    /// Does nothing unless an open was reported: a caller that waits for its open has nothing to
    /// close.
    pub(crate) fn close(self: &Rc<Shared>, ino: Ino) {
        if self.open_table.is_promised(ino) {
            self.take_back(ino);
        }
    }

    fn take_back(self: &Rc<Shared>, ino: Ino) {
        {
            let mut table = self.open_table.table.borrow_mut();
            let Some(hold) = table.get_mut(&ino).filter(|hold| hold.opens > 0) else { return };
            hold.opens -= 1;
            if hold.opens > 0 {
                return;
            }
            hold.promised = false;
            if hold.declared == Declared::No && !hold.telling {
                table.remove(&ino);
            }
        }
        self.errors.forget(ino);
        self.tell(ino);
    }

    /// A file was created open. `declared`: the node knows that it is open.
    pub(crate) fn made_open(self: &Rc<Shared>, ino: Ino, declared: bool) {
        {
            let mut table = self.open_table.table.borrow_mut();
            let hold = table.entry(ino).or_default();
            hold.opens += 1;
            hold.promised = true;
            // The answer to a create does not tell.
            hold.passthrough = true;
            hold.declared = if declared { Declared::Yes } else { Declared::Unsure };
        }
        self.tell(ino);
    }

    /// Another task has declared the open inode to a restarted node.
    pub(crate) fn declared(self: &Rc<Shared>, ino: Ino, passthrough: bool) {
        let mut table = self.open_table.table.borrow_mut();
        let hold = table.entry(ino).or_default();
        (hold.declared, hold.passthrough) = (Declared::Yes, passthrough);
        drop(table);
        self.open_table.changed.changed();
        self.tell(ino);
    }

    fn tell(self: &Rc<Shared>, ino: Ino) {
        {
            let mut table = self.open_table.table.borrow_mut();
            let Some(hold) =
                table.get_mut(&ino).filter(|hold| !hold.telling && hold.next_step().is_some())
            else {
                return;
            };
            hold.telling = true;
        }
        let shared = self.clone();
        self.begin(async move { shared.tell_all(ino).await });
    }

    async fn tell_all(self: Rc<Shared>, ino: Ino) {
        let mut backoff = Backoff::new();
        loop {
            let attachment = match self.attached().await {
                Ok(attachment) => attachment,
                Err(ended) => return self.open_table.failed(ino, ended),
            };
            let (session, identity) = (attachment.session, self.identity.get());
            let Some(step) = self.open_table.begin_step(ino) else { return };
            let request = match step {
                Step::Open => Request::Open { session, ino },
                // All of them, whatever number the node has counted.
                Step::Close => Request::Close { session, ino, count: u32::MAX },
            };
            let told = match self.send(request, Some(self.options.request_timeout)).await {
                // A node that has restarted since does not know the open any more.
                Ok(Reply::Opened { .. } | Reply::Done) if identity != self.identity.get() => {
                    continue;
                }
                Ok(Reply::Opened { passthrough }) => Ok(passthrough),
                Ok(Reply::Done) => Ok(false),
                Ok(_) => Err(wrong_reply()),
                Err(failure) => match self.backoff_or_fail(failure, attachment, &mut backoff).await
                {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
            };
            match (step, told) {
                (Step::Open, Ok(passthrough)) => {
                    self.open_table.set(ino, Declared::Yes, passthrough)
                }
                (Step::Open, Err(error)) => return self.open_table.failed(ino, error),
                // If a close fails, the node does not have the inode open.
                (Step::Close, Ok(_) | Err(_)) => self.open_table.set(ino, Declared::No, false),
            }
        }
    }
}

impl OpenTable {
    /// The inodes left open by an earlier process, one entry for each open. The present node has
    /// not been notified of them.
    pub(crate) fn left(opens: impl IntoIterator<Item = Ino>) -> OpenTable {
        let holds = OpenTable::default();
        for ino in opens {
            let mut table = holds.table.borrow_mut();
            let hold = table.entry(ino).or_default();
            hold.opens += 1;
            hold.promised = true;
        }
        holds
    }

    /// The node may grant passthrough for the open inode.
    pub(crate) fn passthrough(&self, ino: Ino) -> bool {
        self.table.borrow().get(&ino).is_some_and(|hold| hold.passthrough)
    }

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.table.borrow().get(&ino).is_some_and(|hold| hold.opens > 0)
    }

    /// A caller was told that the inode is open, and has not closed it.
    pub(crate) fn is_promised(&self, ino: Ino) -> bool {
        self.table.borrow().get(&ino).is_some_and(|hold| hold.promised)
    }

    /// The node no longer knows of any open inode.
    pub(crate) fn undeclare(&self) {
        self.table.borrow_mut().retain(|_, hold| {
            hold.declared = Declared::No;
            hold.opens > 0 || hold.telling
        });
    }

    /// The inodes to declare to the node now: only those that a caller was told are open. A caller
    /// that still waits for its open sends its own request after the replay. The node may execute
    /// the request even if its answer is lost.
    pub(crate) fn undeclared(&self) -> Vec<Ino> {
        let mut table = self.table.borrow_mut();
        let undeclared =
            table.iter_mut().filter(|(_, hold)| hold.promised && hold.declared != Declared::Yes);
        undeclared
            .map(|(ino, hold)| {
                hold.declared = Declared::Unsure;
                *ino
            })
            .collect()
    }

    /// `None` if the node is up to date, which ends the task.
    fn begin_step(&self, ino: Ino) -> Option<Step> {
        let mut table = self.table.borrow_mut();
        let hold = table.get_mut(&ino)?;
        let step = hold.next_step();
        match step {
            Some(_) => hold.declared = Declared::Unsure,
            None if hold.opens > 0 => hold.telling = false,
            None => drop(table.remove(&ino)),
        }
        step
    }

    fn set(&self, ino: Ino, declared: Declared, passthrough: bool) {
        if let Some(hold) = self.table.borrow_mut().get_mut(&ino) {
            (hold.declared, hold.passthrough) = (declared, passthrough);
        }
        self.changed.changed();
    }

    /// Ends the task. Waiting callers take their opens back, and the next caller asks again.
    fn failed(&self, ino: Ino, error: FsError) {
        let mut table = self.table.borrow_mut();
        if let Some(hold) = table.get_mut(&ino) {
            hold.declared = Declared::No;
            hold.telling = false;
            hold.failures += 1;
            hold.failure = Some(error);
            if hold.opens == 0 {
                table.remove(&ino);
            }
        }
        drop(table);
        self.changed.changed();
    }
}

/// Takes back an open that failed or whose caller has stopped waiting.
struct Opened<'a> {
    shared: &'a Rc<Shared>,
    ino: Ino,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.shared.take_back(self.ino);
    }
}
