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

/// A file on the node's disk that its reader accesses directly, past the node.
pub struct Grant {
    pub file: OwnedFd,
    pub held: GrantHandle,
    known: Option<FileId>,
}

/// Device and inode.
type FileId = (u64, u64);

/// While this exists the node knows that the file is read. Mappings may outlive it.
pub struct GrantHandle(Rc<GiveBack>);

struct GiveBack(RefCell<Option<Box<dyn FnOnce()>>>);

/// The client that requests a grant.
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

    /// Adds the identity of the file, by device and inode. It is needed if the node can restart
    /// without its grantees, to detect that the node has another file.
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

/// The grants of a node in another process. The node forgets them when it dies.
#[derive(Default)]
pub(crate) struct PassthroughGrants(RefCell<Vec<Rc<One>>>);

struct One {
    ino: Ino,
    /// The file that the kernel reads.
    file: Option<FileId>,
    /// The node has replaced the file by another one.
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

    /// The kernel still reads a file that the node has replaced.
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
        // The kernel has no grant for the file yet. If the node did not offer one at the open, the
        // file is read through the node, without a request.
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

    /// After a restart of the node, requests the grants of the files in the kernel again. That
    /// completes before other clients can change the files, unless it takes long.
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
                // The caller may have stopped waiting.
                let (Ok(()) | Err(())) = tell.send(());
            });
            told
        });
        let patience = self.ports.clock.sleep(reconnect::within_term(self));
        if let Either::Right(_) = select(pin!(join_all(renewed)), patience).await {
            tracing::warn!("the node takes its time to lend again what the kernel reads");
        }
    }

    /// Repeats the request until it is granted, the file is no longer used, or the node has
    /// restarted.
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
    /// The file on this machine's disk that has all bytes of an open inode, if its reader can
    /// access it directly. Writes of other clients go to the same file.
    pub async fn grant(&self, ino: Ino, request: GrantRequest) -> Result<Option<Grant>, FsError> {
        let shared = &self.shared;
        let granted = async {
            let (mut backoff, mut lost) = (Backoff::new(), 0);
            loop {
                let attachment = shared.attached().await?;
                match shared.request_grant(ino, request).await {
                    Ok(grant) => return Ok(grant),
                    // The caller reads through the node instead.
                    Err(RpcError::Lost | RpcError::NotLeader { .. } | RpcError::Retry)
                        if request == GrantRequest::Begin =>
                    {
                        return Ok(None);
                    }
                    // The node may be gone, which its connection reports, or about to be replaced.
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

/// Attempts to get a grant while the node cannot be reached: some ten seconds.
const ATTEMPTS: u32 = 20;
