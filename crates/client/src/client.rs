//! The client and its parts.

use crate::caching::{CacheRule, Caching, Change};
use crate::errors::Errors;
use crate::gate::Gate;
use crate::handover::HandoverState;
use crate::journal::Journal;
use crate::leases::{Lease, Leases, NAME_TERM, Recall};
use crate::link::Link;
use crate::locks::Locks;
use crate::mutate::Unanswered;
use crate::open_table::OpenTable;
use crate::passthrough::PassthroughGrants;
use crate::reconnect;
use crate::references::ReferenceQueries;
use crate::session::{Requested, Slots};
use ebb_model::{
    Attached, ClusterId, FsError, Incarnation, Ino, Planted, Request, SessionId, TxId,
};
use ebb_ports::{Clock, Entropy, PortFuture, Ports, Spawn};
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;
use thiserror::Error;

/// The ports that a client gets beside its link.
#[derive(Clone)]
pub struct ClientPorts {
    pub clock: Rc<dyn Clock>,
    pub entropy: Rc<dyn Entropy>,
    pub spawn: Rc<dyn Spawn>,
}

impl From<&Ports> for ClientPorts {
    fn from(ports: &Ports) -> ClientPorts {
        ClientPorts {
            clock: ports.clock.clone(),
            entropy: ports.entropy.clone(),
            spawn: ports.spawn.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub volume: String,
    /// Host, process and mount point, for people. The name must be unique: a node treats a new
    /// client as the successor of an attached one with the same name.
    pub name: String,
    pub read_only: bool,
    /// A node in this process admits other clients too.
    pub others: bool,
    /// The expected volume, if more of it is known than its name.
    pub cluster: Option<ClusterId>,
    /// The limit for the first attach. If another client died without detaching, the attach waits
    /// until that session expires.
    pub attach_timeout: Duration,
    /// Over the wire, a request without an answer is sent again unchanged after this time. It must
    /// be longer than any wait inside the node (space, its bucket), or the answer never arrives.
    /// Renewals detect sooner that the node is silent.
    pub request_timeout: Duration,
    /// How long an operation waits for a node that does not answer before its caller gets
    /// [`FsError::TimedOut`]. `None`: for ever, as a hard mount of NFS does.
    pub unavailable_timeout: Option<Duration>,
}

impl Options {
    pub fn new(volume: impl Into<String>, name: impl Into<String>) -> Options {
        Options {
            volume: volume.into(),
            name: name.into(),
            read_only: false,
            others: false,
            cluster: None,
            attach_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(120),
            unavailable_timeout: None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AttachError {
    /// The node refuses this client, and will refuse it again.
    #[error("the node refuses: {0}")]
    Denied(String),
    /// There is no node, or none that serves the volume now.
    #[error("the node cannot be reached: {0}")]
    Unreachable(String),
    /// Nodes of the volume answer, and none of them leads it now.
    #[error("no node of the volume leads at present: {0}")]
    NoLeader(String),
    /// The node is there and does not answer.
    #[error("the node has not answered for {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The peer is not a node of this version.
    #[error("the node broke the protocol")]
    Protocol,
    /// There is no session that a successor could resume.
    #[error("nobody can succeed to the process before: {0}")]
    Lost(&'static str),
}

/// One attached client of a volume. Clones are the same client. After the last clone is dropped the
/// client sends nothing more. Without a detach its session stays at the node until it expires.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Rc<Shared>,
    /// The user's request behind the operations of this clone, if that request may be repeated.
    pub(crate) requested: Option<Rc<Requested>>,
    _alive: Rc<Alive>,
}

/// A client for use in its own handlers: it does not keep the client alive.
#[derive(Clone)]
pub struct WeakClient(Weak<Alive>);

impl WeakClient {
    pub fn upgrade(&self) -> Option<Client> {
        let alive = self.0.upgrade()?;
        Some(Client { shared: alive.shared.clone(), requested: None, _alive: alive })
    }
}

impl Client {
    pub fn weak(&self) -> WeakClient {
        WeakClient(Rc::downgrade(&self._alive))
    }

    /// Attaches to a volume.
    pub async fn attach(
        link: Rc<dyn Link>,
        ports: ClientPorts,
        options: Options,
    ) -> Result<Client, AttachError> {
        Client::attach_with(link, ports, options, None).await
    }

    /// Like [`Client::attach`], but records the state for a successor in `handover`. If an earlier
    /// process left state there, this client resumes it: the same session with its open files, its
    /// locks and its requests in progress. A node in this process has to wait for it.
    pub async fn attach_resumed(
        link: Rc<dyn Link>,
        ports: ClientPorts,
        options: Options,
        handover: Rc<HandoverState>,
    ) -> Result<Client, AttachError> {
        Client::attach_with(link, ports, options, Some(handover)).await
    }

    async fn attach_with(
        link: Rc<dyn Link>,
        ports: ClientPorts,
        options: Options,
        handover: Option<Rc<HandoverState>>,
    ) -> Result<Client, AttachError> {
        let left = handover.as_ref().and_then(|handover| handover.session());
        if let (Some(_), Some(why)) =
            (left, handover.as_ref().and_then(|handover| handover.unfit()))
        {
            return Err(AttachError::Lost(why));
        }
        let (attached, heard) = reconnect::first_attach(&*link, &ports, &options, left).await?;
        let taken_up = Client::go_on(
            link.clone(),
            ports.clone(),
            options,
            handover,
            (attached.clone(), heard),
            left,
        )
        .await;
        if let Err(AttachError::Lost(_)) = taken_up {
            // Other clients need not wait for the session to expire.
            let detached = link.call(Request::Detach { session: attached.session });
            drop(select(detached, ports.clock.sleep(LAST_WORD)).await);
        }
        taken_up
    }

    /// Continues with the node's answer to the attach, received for the session that was `left` or
    /// for a new one, as of the given time.
    async fn go_on(
        link: Rc<dyn Link>,
        ports: ClientPorts,
        options: Options,
        handover: Option<Rc<HandoverState>>,
        (attached, heard): (Attached, Duration),
        left: Option<SessionId>,
    ) -> Result<Client, AttachError> {
        if left.is_some_and(|left| left != attached.session || attached.fresh) {
            return Err(AttachError::Lost("the node does not know its session any more"));
        }
        let damaged = |_| AttachError::Lost("what it has left is damaged");
        let locks = Locks::new(attached.session, handover.clone()).map_err(damaged)?;
        let served = handover.as_ref().map(|handover| handover.served());
        let (slots, requests, open_table) = match &handover {
            Some(handover) => {
                if left.is_none() {
                    handover.serves(attached.start, attached.incarnation);
                    handover.begin(attached.session);
                }
                let (slots, requests) = Slots::left(attached.session, handover.clone());
                (
                    slots,
                    requests,
                    OpenTable::left(handover.opens().into_iter().map(|open| open.ino)),
                )
            }
            None => (Rc::new(Slots::new(attached.session)), BTreeMap::new(), OpenTable::default()),
        };
        let shared = Rc::new(Shared {
            link,
            ports,
            standing: RefCell::new(Standing::Attached(Attachment {
                session: attached.session,
                generation: 1,
            })),
            standing_changed: Gate::default(),
            generation: Cell::new(1),
            identity: Cell::new(Identity::of(&attached)),
            term: Cell::new(reconnect::term(&attached)),
            last_ack_at: Cell::new(heard),
            cache_term: Cell::new(reconnect::cache_term(&attached)),
            read_only: attached.read_only,
            slots: RefCell::new(slots),
            journal: Journal::new(handover.clone()),
            granted: PassthroughGrants::default(),
            errors: Errors::new(handover.clone()),
            handover,
            taken_up: Gate::default(),
            inherited: RefCell::new(left.map(|_| Inherited {
                unanswered: requests.keys().copied().collect(),
                all_came: false,
            })),
            requests: RefCell::new(requests),
            unanswered: RefCell::default(),
            unanswered_resolved_for: Cell::new(attached.start),
            opens_declared_to: Cell::new((attached.session, attached.start)),
            open_table,
            locks,
            caching: Caching::new(attached.sole),
            leases: Leases::default(),
            references: ReferenceQueries::default(),
            mutations: Cell::new(0),
            in_flight: Cell::new(0),
            idle: Gate::default(),
            options,
        });
        let client =
            Client { _alive: Rc::new(Alive { shared: shared.clone() }), shared, requested: None };
        client.shared.leases.set_term(reconnect::lease_term(&attached));
        client.shared.hears_of_node(heard);
        reconnect::start_listening(&client.shared);
        if let (Some(_), Some(served)) = (left, served) {
            if client.shared.others() {
                client.shared.caching.distrust();
                reconnect::end_leases(&client.shared);
            }
            reconnect::take_up(&client.shared, served).await?;
        }
        reconnect::start(&client.shared);
        Ok(client)
    }

    /// The state for a successor, if the client can have one.
    pub fn handover(&self) -> Option<&Rc<HandoverState>> {
        self.shared.handover.as_ref()
    }

    /// This client on behalf of one request of its user. The request may be repeated to a
    /// successor, and makes one change at most. Request numbers are never 0 and never reused. The
    /// resources that make the change exactly once stay reserved until [`Client::answered`] is
    /// called for the request.
    pub fn on_behalf_of(&self, request: u64) -> Client {
        if self.shared.handover.is_none() {
            return self.clone();
        }
        let mut requests = self.shared.requests.borrow_mut();
        let requested = requests.entry(request).or_insert_with(|| Rc::new(Requested::new(request)));
        Client { requested: Some(requested.clone()), ..self.clone() }
    }

    /// The request has its answer and is not repeated.
    pub fn answered(&self, request: u64) {
        let requested = self.shared.requests.borrow_mut().remove(&request);
        if let Some(requested) = requested {
            requested.is_answered();
        }
        self.inherit(|inherited| {
            inherited.unanswered.remove(&request);
        });
    }

    /// When no inherited request is in progress or can be repeated, inodes that are not open are
    /// closed.
    fn inherit(&self, change: impl FnOnce(&mut Inherited)) {
        let is_over = |left: &mut Inherited| {
            change(left);
            left.all_came && left.unanswered.is_empty()
        };
        if self.shared.inherited.borrow_mut().as_mut().is_some_and(is_over) {
            self.shared.inherited.take();
            self.shared.taken_up.changed();
            reconnect::report_closed(&self.shared);
        }
    }

    /// Of the requests of earlier generations exactly these were repeated. No further one follows.
    pub fn all_came(&self, again: &BTreeSet<u64>) {
        let mut gone = Vec::new();
        self.shared.requests.borrow_mut().retain(|request, requested| {
            let comes = !requested.is_of_before() || again.contains(request);
            if !comes {
                requested.gone();
                gone.push(requested.clone());
            }
            comes
        });
        drop(gone);
        if let Some(handover) = &self.shared.handover {
            handover.all_came();
        }
        self.inherit(|inherited| {
            inherited.unanswered.retain(|request| again.contains(request));
            inherited.all_came = true;
        });
    }

    /// Waits for operations in progress, forces everything and ends the session, for at most
    /// `patience`. Afterwards every operation fails. `TimedOut` means that the node did not answer:
    /// data that it had not forced may be lost if its machine goes down before it forces by itself.
    /// Other errors are those of [`Client::sync_fs`].
    pub async fn detach(&self, patience: Duration) -> Result<(), FsError> {
        let deadline = self.shared.ports.clock.sleep(patience);
        let result = match select(pin!(self.leave()), deadline).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(FsError::TimedOut),
        };
        self.shared.end();
        result
    }

    async fn leave(&self) -> Result<(), FsError> {
        self.shared.no_mutations().await;
        let result = self.sync_fs().await;
        let session = self.shared.attached().await?.session;
        // The node reports the end of the session before it answers. No task attaches again then.
        self.shared.end();
        if let Err(failure) = self
            .shared
            .send(Request::Detach { session }, Some(self.shared.options.request_timeout))
            .await
        {
            tracing::info!(?failure, "the session is left to expire");
        }
        result
    }

    /// The node lives in this process: its answers are never lost while this client lives.
    pub fn is_local(&self) -> bool {
        self.shared.link.is_local()
    }

    pub fn is_read_only(&self) -> bool {
        self.shared.read_only
    }

    /// The rule for caching answers. Ask for it when an answer is passed on to a cache, not before.
    pub fn cache_rule(&self) -> CacheRule {
        self.shared.caching.rule()
    }

    /// How long [`CacheRule::Sole`] lets names and attributes be cached. `None`: without term.
    pub fn cache_term(&self) -> Option<Duration> {
        self.shared.cache_term.get()
    }

    /// Calls `handler` for every change that the user's caches cannot detect, with the rule at that
    /// time. Calls do not overlap: the next one starts when the future of the last one has
    /// completed. When another client attaches, the rule is [`CacheRule::Shared`] before
    /// [`Change::All`] is passed, and the other client waits until that call has completed. The
    /// future may wait for other operations of this client.
    pub fn on_change(
        &self,
        handler: impl Fn(Change, CacheRule) -> PortFuture<'static, ()> + 'static,
    ) {
        self.shared.caching.set_handler(Rc::new(handler));
    }

    /// Whether the user may cache the attributes of an answer that came with this lease, until they
    /// are recalled. Ask for it when the answer is passed on, not before.
    pub fn may_cache(&self, lease: Lease) -> bool {
        self.lease_lasts(lease, Duration::ZERO)
    }

    /// The same for a name, for [`crate::NAME_TERM`] at most.
    pub fn may_cache_name(&self, lease: Lease) -> bool {
        self.lease_lasts(lease, NAME_TERM)
    }

    fn lease_lasts(&self, lease: Lease, time: Duration) -> bool {
        let shared = &self.shared;
        let lasts = || {
            shared.link.is_local()
                || Planted::LeaseOutlivesTerm.is_on()
                || shared.ports.clock.monotonic() + time < reconnect::leased_until(shared)
        };
        shared.leases.stands(lease) && lasts()
    }

    /// Calls `handler` for every recall of leases. Another client is about to change the recalled
    /// subjects, and waits until the call has completed. The handler must not wait for operations
    /// of this client. A client without a handler caches nothing under leases.
    pub fn on_lease_recall(&self, handler: impl Fn(Recall) -> PortFuture<'static, ()> + 'static) {
        self.shared.leases.set_handler(Rc::new(handler));
    }

    /// Calls `handler` with inodes that the node wants to evict. The handler gives up the inodes
    /// that it can, and completes with those that the user still references. The user references
    /// every inode that it got in an answer, until it gives it up. An inode without reference may
    /// get another id when it is found again. A client without a handler references everything.
    pub fn on_reference_query(
        &self,
        handler: impl Fn(Vec<Ino>) -> PortFuture<'static, Vec<Ino>> + 'static,
    ) {
        self.shared.references.set_handler(Rc::new(handler));
    }

    /// The error of the inode that came up after its operations were answered: an operation lost in
    /// a crash of the node could not be repeated, or its outcome stays unknown. While the error
    /// stands, every change of the inode's bytes fails with it, and so does fsync. It ends with the
    /// last close of the inode, or when it is [taken](Client::take_error).
    pub fn error(&self, ino: Ino) -> Option<FsError> {
        self.shared.errors.get(ino)
    }

    /// Like [`Client::error`], and removes the error.
    pub fn take_error(&self, ino: Ino) -> Option<FsError> {
        self.shared.errors.take(ino)
    }
}

/// How long a client that gives up a session waits for the node to acknowledge it.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Ends the client's tasks with its last clone.
struct Alive {
    shared: Rc<Shared>,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// Requests that a resumed client must wait for before it reports closed files. The creation of a
/// file without a name may be among those that are still to be repeated.
struct Inherited {
    /// Requests of earlier generations that asked for a change.
    unanswered: BTreeSet<u64>,
    all_came: bool,
}

/// The state shared by all tasks of a client.
pub(crate) struct Shared {
    pub(crate) link: Rc<dyn Link>,
    pub(crate) ports: ClientPorts,
    pub(crate) options: Options,
    standing: RefCell<Standing>,
    standing_changed: Gate,
    /// Of the last attachment.
    generation: Cell<u64>,
    /// From the last answer to an attach.
    pub(crate) identity: Cell<Identity>,
    pub(crate) term: Cell<Duration>,
    /// When the last attach or renewal was sent that has been answered.
    pub(crate) last_ack_at: Cell<Duration>,
    pub(crate) cache_term: Cell<Option<Duration>>,
    pub(crate) read_only: bool,
    /// Of the present session.
    pub(crate) slots: RefCell<Rc<Slots>>,
    pub(crate) handover: Option<Rc<HandoverState>>,
    /// Requests of the user that have asked for a change and have no answer, by number.
    pub(crate) requests: RefCell<BTreeMap<u64, Rc<Requested>>>,
    inherited: RefCell<Option<Inherited>>,
    /// Changes when no inherited request is in progress or can be repeated.
    pub(crate) taken_up: Gate,
    pub(crate) journal: Journal,
    pub(crate) granted: PassthroughGrants,
    /// Mutations that were sent and have no answer.
    pub(crate) unanswered: RefCell<BTreeMap<TxId, Unanswered>>,
    /// The run of the node that was asked for the mutations that earlier runs left without an
    /// answer.
    pub(crate) unanswered_resolved_for: Cell<u64>,
    /// The session and the run of the node to which open files and passthrough grants were
    /// declared.
    pub(crate) opens_declared_to: Cell<(SessionId, u64)>,
    pub(crate) open_table: OpenTable,
    pub(crate) locks: Locks,
    pub(crate) errors: Errors,
    pub(crate) caching: Caching,
    pub(crate) leases: Leases,
    pub(crate) references: ReferenceQueries,
    /// Mutations that have been asked for and are not settled.
    pub(crate) mutations: Cell<usize>,
    /// Mutations whose answer may come any moment.
    pub(crate) in_flight: Cell<usize>,
    /// Changes when either of them becomes zero.
    pub(crate) idle: Gate,
}

/// The identity of the client's session and of the node's run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) session: SessionId,
    pub(crate) cluster: ClusterId,
    pub(crate) start: u64,
    pub(crate) incarnation: Incarnation,
}

impl Identity {
    pub(crate) fn of(attached: &Attached) -> Identity {
        let Attached { session, cluster, start, incarnation, .. } = *attached;
        Identity { session, cluster, start, incarnation }
    }
}

#[derive(Clone, Copy)]
enum Standing {
    Attached(Attachment),
    /// The client is attaching again.
    Broken,
    Ended,
}

/// One period of being attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attachment {
    pub(crate) session: SessionId,
    /// Grows with every attach.
    pub(crate) generation: u64,
}

impl Shared {
    /// Waits until requests can be sent.
    pub(crate) async fn attached(&self) -> Result<Attachment, FsError> {
        self.standing_changed
            .until(|| match *self.standing.borrow() {
                Standing::Attached(attachment) => Some(Ok(attachment)),
                Standing::Broken => None,
                Standing::Ended => Some(Err(FsError::Io)),
            })
            .await
    }

    pub(crate) fn attachment(&self) -> Option<Attachment> {
        match *self.standing.borrow() {
            Standing::Attached(attachment) => Some(attachment),
            Standing::Broken | Standing::Ended => None,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(*self.standing.borrow(), Standing::Ended)
    }

    /// Waits until requests can no longer be sent.
    pub(crate) async fn interrupted(&self) {
        self.standing_changed.until(|| self.attachment().is_none().then_some(())).await;
    }

    pub(crate) async fn ended(&self) {
        self.standing_changed.until(|| self.has_ended().then_some(())).await;
    }

    /// `attachment` turned out to be over.
    pub(crate) fn broken(&self, attachment: Attachment) {
        if self.attachment() == Some(attachment) {
            self.set_standing(Standing::Broken);
        }
    }

    pub(crate) fn set_attached(&self, session: SessionId) {
        if !self.has_ended() {
            let generation = self.generation.get() + 1;
            self.generation.set(generation);
            self.set_standing(Standing::Attached(Attachment { session, generation }));
            self.locks.attached();
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Makes every further operation fail, and ends every task.
    pub(crate) fn end(&self) {
        self.set_standing(Standing::Ended);
        self.slots.borrow().end();
        self.locks.end();
        self.journal.room.changed();
    }

    fn set_standing(&self, standing: Standing) {
        *self.standing.borrow_mut() = standing;
        self.standing_changed.changed();
    }

    pub(crate) fn spawn(self: &Rc<Shared>, task: impl Future<Output = ()> + 'static) {
        self.ports.spawn.spawn(Box::pin(task));
    }

    /// The node answered a request sent at `sent`. It keeps this session for one term from that
    /// time.
    pub(crate) fn hears_of_node(&self, sent: Duration) {
        self.last_ack_at.set(sent);
        if let Some(handover) = self.handover.as_ref().filter(|_| !self.link.is_local()) {
            handover.set_sure_until(self.sure_until());
        }
    }

    /// The end of the time in which the user's caches are valid without an answer of the node.
    fn sure_until(&self) -> Duration {
        let sole = self.caching.rule() == CacheRule::Sole || self.leases.term().is_zero();
        if sole { reconnect::sure_until(self) } else { reconnect::leased_until(self) }
    }

    pub(crate) fn is_taking_up(&self) -> bool {
        self.inherited.borrow().is_some()
    }

    /// Other clients may be attached to the volume too, now or later.
    pub(crate) fn others(&self) -> bool {
        self.options.others || !self.link.is_local()
    }

    /// An earlier process was asked for changes that have no answer.
    pub(crate) fn has_inherited_requests(&self) -> bool {
        self.inherited.borrow().as_ref().is_some_and(|left| !left.unanswered.is_empty())
    }

    /// The handover state belongs to a session that has ended.
    pub(crate) fn forbid_handover(&self) {
        if let Some(handover) = &self.handover {
            handover.session_has_ended();
        }
    }

    /// Every answered operation has been repeated to this run of the node.
    pub(crate) fn allow_handover(&self, start: u64, incarnation: Incarnation) {
        if let Some(handover) = &self.handover {
            handover.serves(start, incarnation);
        }
    }

    /// Polls a task once, and spawns it if it is not complete. A request to a node in this process
    /// usually completes at once, so it waits for no turn of the executor. The task runs inside the
    /// caller, so the caller must hold no borrow that the task needs.
    pub(crate) fn begin(self: &Rc<Shared>, task: impl Future<Output = ()> + 'static) {
        let mut task = Box::pin(task);
        if (&mut task).now_or_never().is_none() {
            self.ports.spawn.spawn(task);
        }
    }

    /// Bounds how long a caller waits for a node that does not answer: the limit of its retries
    /// (C-15). A mutation that was sent is settled all the same.
    pub(crate) async fn within<T>(
        &self,
        operation: impl Future<Output = Result<T, FsError>> + Unpin,
    ) -> Result<T, FsError> {
        let Some(limit) = self.options.unavailable_timeout else { return operation.await };
        match select(operation, self.ports.clock.sleep(limit)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(FsError::TimedOut),
        }
    }
}
