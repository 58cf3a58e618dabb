//! What this client has open. The node is told of the first open of an inode and of its
//! last close, so that an inode without a name lives as long as it is open somewhere.
//!
//! One task per inode brings what the node knows in line with what is open here, so that
//! an open and a close of one inode never overtake each other.

use crate::call::wrong_reply;
use crate::client::Shared;
use crate::gate::Gate;
use ebb_model::{FsError, Ino, Reply, Request};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Default)]
pub(crate) struct Holds {
    table: RefCell<BTreeMap<Ino, Hold>>,
    pub(crate) changed: Gate,
}

#[derive(Default)]
struct Hold {
    opens: u32,
    /// The node knows that it is open.
    declared: bool,
    /// A task is telling it.
    telling: bool,
    failures: u64,
    failure: Option<FsError>,
}

impl Shared {
    pub(crate) async fn open(self: &Rc<Shared>, ino: Ino) -> Result<(), FsError> {
        let failures = {
            let mut table = self.holds.table.borrow_mut();
            let hold = table.entry(ino).or_default();
            hold.opens += 1;
            if hold.declared {
                return Ok(());
            }
            hold.failures
        };
        let opened = Opened { shared: self, ino };
        self.tell(ino);
        let declared = || match self.holds.table.borrow().get(&ino) {
            Some(hold) if hold.declared => Some(Ok(())),
            Some(hold) if hold.failures == failures && !self.has_ended() => None,
            Some(Hold { failure: Some(error), .. }) => Some(Err(*error)),
            _ => Some(Err(FsError::Io)),
        };
        self.within(self.holds.changed.until(declared)).await?;
        std::mem::forget(opened);
        Ok(())
    }

    pub(crate) fn close(self: &Rc<Shared>, ino: Ino) {
        {
            let mut table = self.holds.table.borrow_mut();
            let Some(hold) = table.get_mut(&ino).filter(|hold| hold.opens > 0) else { return };
            hold.opens -= 1;
            if hold.opens > 0 {
                return;
            }
            if !hold.declared && !hold.telling {
                table.remove(&ino);
            }
        }
        self.errors.forget(ino);
        self.tell(ino);
    }

    /// A file was made open. `declared`: the node knows.
    pub(crate) fn made_open(self: &Rc<Shared>, ino: Ino, declared: bool) {
        {
            let mut table = self.holds.table.borrow_mut();
            let hold = table.entry(ino).or_default();
            hold.opens += 1;
            hold.declared |= declared;
        }
        self.tell(ino);
    }

    /// Brings the node in line with what is open here.
    fn tell(self: &Rc<Shared>, ino: Ino) {
        if let Some(hold) = self.holds.table.borrow_mut().get_mut(&ino)
            && !hold.telling
            && hold.declared != (hold.opens > 0)
        {
            hold.telling = true;
            let shared = self.clone();
            self.spawn(async move { shared.tell_all(ino).await });
        }
    }

    async fn tell_all(self: Rc<Shared>, ino: Ino) {
        let patience = Some(self.options.request_timeout);
        while let Some(step) = self.holds.next_step(ino) {
            let told = match step {
                Step::Open => self.ask_patiently(patience, |session| Request::Open { session, ino }).await,
                // All of them, whatever the node has counted: see `Request::Close`.
                Step::Close => self.ask_patiently(patience, |session| Request::Close { session, ino, count: u32::MAX }).await,
            };
            let told = told.and_then(|reply| if matches!(reply, Reply::Done) { Ok(()) } else { Err(wrong_reply()) });
            let failed = matches!(step, Step::Open) && told.is_err();
            self.holds.told(ino, step, told);
            if failed {
                // Those who wait take their opens back; whoever comes next asks again.
                return;
            }
        }
    }

    /// The node has been told by another task that the inode is open.
    pub(crate) fn declared(self: &Rc<Shared>, ino: Ino) {
        self.holds.table.borrow_mut().entry(ino).or_default().declared = true;
        self.holds.changed.changed();
        self.tell(ino);
    }
}

impl Holds {
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.table.borrow().get(&ino).is_some_and(|hold| hold.opens > 0)
    }

    /// The node knows nothing any more.
    pub(crate) fn undeclare(&self) {
        self.table.borrow_mut().retain(|_, hold| {
            hold.declared = false;
            hold.opens > 0 || hold.telling
        });
    }

    pub(crate) fn undeclared(&self) -> Vec<Ino> {
        self.table.borrow().iter().filter(|(_, hold)| hold.opens > 0 && !hold.declared).map(|(ino, _)| *ino).collect()
    }

    fn next_step(&self, ino: Ino) -> Option<Step> {
        let mut table = self.table.borrow_mut();
        let hold = table.get_mut(&ino)?;
        match (hold.opens > 0, hold.declared) {
            (true, false) => Some(Step::Open),
            (false, true) => {
                // From now on the node may not know it: whoever opens it waits.
                hold.declared = false;
                Some(Step::Close)
            }
            (true, true) => {
                hold.telling = false;
                None
            }
            (false, false) => {
                table.remove(&ino);
                None
            }
        }
    }

    fn told(&self, ino: Ino, step: Step, told: Result<(), FsError>) {
        if let Some(hold) = self.table.borrow_mut().get_mut(&ino) {
            match (step, told) {
                (Step::Open, Ok(())) => hold.declared = true,
                (Step::Open, Err(error)) => {
                    hold.failures += 1;
                    hold.failure = Some(error);
                    hold.telling = false;
                }
                // What cannot be closed is not open.
                (Step::Close, Ok(()) | Err(_)) => {}
            }
        }
        self.changed.changed();
    }
}

#[derive(Clone, Copy)]
enum Step {
    Open,
    Close,
}

/// Takes back an open that its caller does not wait for any more, or that failed.
struct Opened<'a> {
    shared: &'a Rc<Shared>,
    ino: Ino,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.shared.close(self.ino);
    }
}
