use crate::Client;
use crate::backoff::Backoff;
use crate::call::Failure;
use crate::client::Shared;
use crate::reconnect;
use ebb_model::{FsError, GrantRequest, Ino, RpcError, SessionId};
use futures_channel::oneshot;
use futures_util::future::{Either, join_all, select};
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::{Rc, Weak};

/// A file of the node's disk, for whoever reads it past the node.
pub struct Grant {
    pub file: OwnedFd,
    pub held: GrantHandle,
    known: Option<FileId>,
}

/// Device and inode.
type FileId = (u64, u64);

/// As long as this lives the node knows that the file is read. Mappings may go on afterwards.
pub struct GrantHandle(Rc<GiveBack>);

struct GiveBack(RefCell<Option<Box<dyn FnOnce()>>>);

/// To whom a node lends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grantee {
    /// The run of the node that it knows: [`ebb_model::Attached::start`].
    pub run: u64,
    pub session: SessionId,
}

impl Grant {
    pub fn new(file: OwnedFd, give_back: impl FnOnce() + 'static) -> Grant {
        Grant {
            file,
            held: GrantHandle(Rc::new(GiveBack(RefCell::new(Some(Box::new(give_back)))))),
            known: None,
        }
    }

    /// Of a node that can start anew without its borrowers: which file it is, by device and inode,
    /// so that it is told from another one.
    pub fn known_as(self, device: u64, inode: u64) -> Grant {
        Grant { known: Some((device, inode)), ..self }
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
pub(crate) struct PassthroughGrants(RefCell<Vec<Rc<One>>>);

struct One {
    ino: Ino,
    /// What the kernel reads.
    file: Option<FileId>,
    /// The node has another file in its place by now.
    is_lost: Cell<bool>,
    held: Weak<GiveBack>,
}

impl PassthroughGrants {
    fn add(&self, ino: Ino, grant: &Grant) {
        let one = One {
            ino,
            file: grant.known,
            is_lost: Cell::new(false),
            held: Rc::downgrade(&grant.held.0),
        };
        let mut granted = self.0.borrow_mut();
        granted.retain(|one| one.held.strong_count() > 0);
        granted.push(Rc::new(one));
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
    async fn request_grant(
        &self,
        ino: Ino,
        request: GrantRequest,
    ) -> Result<Option<Grant>, RpcError> {
        if self.link.is_local() {
            return self.link.grant(self.grantee(), ino, request).await;
        }
        if self.granted.is_lost(ino) {
            return Err(FsError::Stale.into());
        }
        // Nobody has it natively: it is read through the node if there is nothing to be had, for
        // which it is not asked anew.
        if request == GrantRequest::Begin && !self.open_table.passthrough(ino) {
            return Ok(None);
        }
        let grant = self.request_grant_in_time(ino, request).await?;
        if let Some(grant) = &grant {
            self.granted.add(ino, grant);
        }
        Ok(grant)
    }

    async fn request_grant_in_time(
        &self,
        ino: Ino,
        request: GrantRequest,
    ) -> Result<Option<Grant>, RpcError> {
        let patience = self.ports.clock.sleep(self.options.request_timeout);
        match select(self.link.grant(self.grantee(), ino, request), patience).await {
            Either::Left((granted, _)) => granted,
            Either::Right(_) => Err(RpcError::Lost),
        }
    }

    fn grantee(&self) -> Grantee {
        let identity = self.identity.get();
        Grantee { run: identity.start, session: identity.session }
    }

    /// What the kernel reads past a node that has started anew is lent once more, before others
    /// change it if that does not take long.
    pub(crate) async fn renew_grants(self: &Rc<Shared>) {
        let granted: Vec<Rc<One>> = self
            .granted
            .0
            .borrow()
            .iter()
            .filter(|one| one.held.strong_count() > 0)
            .cloned()
            .collect();
        let renewed = granted.into_iter().map(|one| {
            let (tell, told) = oneshot::channel();
            let shared = self.clone();
            self.spawn(async move {
                shared.renew(&one).await;
                // Nobody may wait for it any more.
                let (Ok(()) | Err(())) = tell.send(());
            });
            told
        });
        let patience = self.ports.clock.sleep(reconnect::within_term(self));
        if let Either::Right(_) = select(pin!(join_all(renewed)), patience).await {
            tracing::warn!("the node takes its time to lend again what the kernel reads");
        }
    }

    /// Goes on until it is lent, or nobody has it, or the node is another one.
    async fn renew(&self, one: &One) {
        let run = self.identity.get().start;
        let mut backoff = Backoff::new();
        while !self.has_ended() && self.identity.get().start == run && one.held.strong_count() > 0 {
            let again = self.request_grant_in_time(one.ino, GrantRequest::Resume).await;
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
    pub async fn grant(&self, ino: Ino, request: GrantRequest) -> Result<Option<Grant>, FsError> {
        let shared = &self.shared;
        let granted = async {
            let (mut backoff, mut lost) = (Backoff::new(), 0);
            loop {
                let attachment = shared.attached().await?;
                match shared.request_grant(ino, request).await {
                    Ok(grant) => return Ok(grant),
                    // It reads through the node.
                    Err(RpcError::Lost | RpcError::Retry) if request == GrantRequest::Begin => {
                        return Ok(None);
                    }
                    // The node may be gone, which its connection says, or about to be another one.
                    Err(RpcError::Lost) if lost < ATTEMPTS => {
                        lost += 1;
                        backoff.pause(&shared.ports).await;
                    }
                    Err(RpcError::Lost) => return Err(FsError::Io),
                    Err(error) => {
                        shared
                            .backoff_or_fail(Failure::Rpc(error), attachment, &mut backoff)
                            .await?
                    }
                }
            }
        };
        shared.within(pin!(granted)).await
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
