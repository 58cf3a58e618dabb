use crate::Client;
use crate::backoff::Backoff;
use crate::call::Failure;
use crate::client::Shared;
use crate::keeper;
use ebb_model::{Borrow, FsError, Ino, RpcError, SessionId};
use futures_channel::oneshot;
use futures_util::future::{Either, join_all, select};
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::{Rc, Weak};

/// A file of the node's disk, for whoever reads it past the node.
pub struct Loan {
    pub file: OwnedFd,
    pub held: Held,
    known: Option<FileId>,
}

/// Device and inode.
type FileId = (u64, u64);

/// As long as this lives the node knows that the file is read. Mappings may go on afterwards.
pub struct Held(Rc<GiveBack>);

struct GiveBack(RefCell<Option<Box<dyn FnOnce()>>>);

/// To whom a node lends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Borrower {
    /// The run of the node that it knows: [`ebb_model::Attached::start`].
    pub run: u64,
    pub session: SessionId,
}

impl Loan {
    pub fn new(file: OwnedFd, give_back: impl FnOnce() + 'static) -> Loan {
        Loan {
            file,
            held: Held(Rc::new(GiveBack(RefCell::new(Some(Box::new(give_back)))))),
            known: None,
        }
    }

    /// Of a node that can start anew without its borrowers: which file it is, by device and inode,
    /// so that it is told from another one.
    pub fn known_as(self, device: u64, inode: u64) -> Loan {
        Loan { known: Some((device, inode)), ..self }
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        if let Some(give_back) = self.0.take() {
            give_back();
        }
    }
}

/// What is lent by a node in another process, which forgets that if it dies.
#[derive(Default)]
pub(crate) struct Lent(RefCell<Vec<Rc<One>>>);

struct One {
    ino: Ino,
    /// What the kernel reads.
    file: Option<FileId>,
    /// The node has another file in its place by now.
    is_lost: Cell<bool>,
    held: Weak<GiveBack>,
}

impl Lent {
    fn add(&self, ino: Ino, loan: &Loan) {
        let one = One {
            ino,
            file: loan.known,
            is_lost: Cell::new(false),
            held: Rc::downgrade(&loan.held.0),
        };
        let mut lent = self.0.borrow_mut();
        lent.retain(|one| one.held.strong_count() > 0);
        lent.push(Rc::new(one));
    }

    /// Who has it open reads what it was.
    fn is_lost(&self, ino: Ino) -> bool {
        self.0
            .borrow()
            .iter()
            .any(|one| one.ino == ino && one.is_lost.get() && one.held.strong_count() > 0)
    }
}

impl Shared {
    async fn borrow(&self, ino: Ino, borrow: Borrow) -> Result<Option<Loan>, RpcError> {
        if self.link.is_local() {
            return self.link.lend(self.borrower(), ino, borrow).await;
        }
        if self.lent.is_lost(ino) {
            return Err(FsError::Stale.into());
        }
        // Nobody has it natively: it is read through the node if there is nothing to be had, for
        // which it is not asked anew.
        if borrow == Borrow::Begin && !self.holds.lends(ino) {
            return Ok(None);
        }
        let loan = self.borrow_in_time(ino, borrow).await?;
        if let Some(loan) = &loan {
            self.lent.add(ino, loan);
        }
        Ok(loan)
    }

    async fn borrow_in_time(&self, ino: Ino, borrow: Borrow) -> Result<Option<Loan>, RpcError> {
        let patience = self.ports.clock.sleep(self.options.request_timeout);
        match select(self.link.lend(self.borrower(), ino, borrow), patience).await {
            Either::Left((lent, _)) => lent,
            Either::Right(_) => Err(RpcError::Lost),
        }
    }

    fn borrower(&self) -> Borrower {
        let identity = self.identity.get();
        Borrower { run: identity.start, session: identity.session }
    }

    /// What the kernel reads past a node that has started anew is lent once more, before others
    /// change it if that does not take long.
    pub(crate) async fn borrow_again(self: &Rc<Shared>) {
        let lent: Vec<Rc<One>> = self
            .lent
            .0
            .borrow()
            .iter()
            .filter(|one| one.held.strong_count() > 0)
            .cloned()
            .collect();
        let renewed = lent.into_iter().map(|one| {
            let (tell, told) = oneshot::channel();
            let shared = self.clone();
            self.spawn(async move {
                shared.renew(&one).await;
                // Nobody may wait for it any more.
                let (Ok(()) | Err(())) = tell.send(());
            });
            told
        });
        let patience = self.ports.clock.sleep(keeper::within_term(self));
        if let Either::Right(_) = select(pin!(join_all(renewed)), patience).await {
            tracing::warn!("the node takes its time to lend again what the kernel reads");
        }
    }

    /// Goes on until it is lent, or nobody has it, or the node is another one.
    async fn renew(&self, one: &One) {
        let run = self.identity.get().start;
        let mut backoff = Backoff::new();
        while !self.has_ended() && self.identity.get().start == run && one.held.strong_count() > 0 {
            let again = self.borrow_in_time(one.ino, Borrow::Resume).await;
            match (again, one.held.upgrade()) {
                (_, None) => return,
                (Ok(Some(again)), Some(held)) if again.known == one.file => {
                    one.is_lost.set(false);
                    return held.0.swap(&again.held.0.0);
                }
                (Ok(_) | Err(RpcError::Refused(FsError::Stale)), Some(_)) => {
                    tracing::error!(ino = %one.ino, "the node has not what the kernel reads of a \
                        file any more: who has it open reads what it was");
                    return one.is_lost.set(true);
                }
                (Err(error), Some(_)) => {
                    tracing::warn!(ino = %one.ino, %error, "what the kernel reads of a file is not \
                        lent again yet");
                    backoff.pause(&self.ports).await;
                }
            }
        }
    }
}

impl Client {
    /// The file of this machine's disk that has all bytes of an open inode, where its reader may
    /// read it past this client: writes of others go on in just that file.
    pub async fn lend(&self, ino: Ino, borrow: Borrow) -> Result<Option<Loan>, FsError> {
        let shared = &self.shared;
        let lent = async {
            let (mut backoff, mut lost) = (Backoff::new(), 0);
            loop {
                let attachment = shared.attached().await?;
                match shared.borrow(ino, borrow).await {
                    Ok(loan) => return Ok(loan),
                    // It reads through the node.
                    Err(RpcError::Lost | RpcError::Retry) if borrow == Borrow::Begin => {
                        return Ok(None);
                    }
                    // The node may be gone, which its connection says, or about to be another one.
                    Err(RpcError::Lost) if lost < ATTEMPTS => {
                        lost += 1;
                        backoff.pause(&shared.ports).await;
                    }
                    Err(RpcError::Lost) => return Err(FsError::Io),
                    Err(error) => {
                        shared.weather(Failure::Rpc(error), attachment, &mut backoff).await?
                    }
                }
            }
        };
        shared.within(pin!(lent)).await
    }

    /// The run of the node that this client is attached to.
    pub fn run(&self) -> u64 {
        self.shared.identity.get().start
    }

    /// No other client can be attached to the volume, now or later.
    pub fn is_exclusive(&self) -> bool {
        !self.shared.others()
    }
}

/// Of borrowing where the node cannot be reached: some ten seconds.
const ATTEMPTS: u32 = 20;
