//! A node with sessions and a log and little else, behind a link that fails as scripted.

use crate::world::World;
use bytes::Bytes;
use ebb_client::{Client, Grant, Grantee, Link, LinkEvent, Options};
use ebb_core::locks::LockTable;
use ebb_model::*;
use ebb_ports::PortFuture;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

pub const TERM: Duration = Duration::from_secs(30);

/// A mutation, refused or not.
#[derive(Clone, PartialEq, Debug)]
pub struct Executed {
    tx: TxId,
    mutation: ClientMutation,
    answer: Result<Mutated, RpcError>,
}

/// Last sequence and its answer, by session and slot.
type Table = BTreeMap<SessionId, BTreeMap<u16, (u64, Result<Mutated, RpcError>)>>;

/// One record of the log.
#[derive(Clone, PartialEq, Debug)]
pub enum Record {
    Session(SessionId),
    Mutation(Box<Executed>),
    /// Of another client.
    Foreign,
}

/// The fates of the next matching requests, in order. All later ones meet faults as set in `chaos`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fate {
    Fine,
    LostRequest,
    LostReply,
    /// Executed, and never answered.
    Silence,
    Retry,
}

pub struct Node {
    pub world: World,
    pub log: RefCell<Vec<Record>>,
    pub durable: Cell<u64>,
    start: Cell<u64>,
    recovered: Cell<u64>,
    /// The session table of `log`.
    table: RefCell<Table>,
    pub opens: RefCell<BTreeMap<Ino, u32>>,
    /// Inodes that a dead process had open, and that its successor has not declared yet.
    untold: RefCell<BTreeSet<Ino>>,
    pub locks: RefCell<LockTable>,
    /// Sessions from before the restart that may reclaim locks.
    awaited: RefCell<BTreeSet<SessionId>>,
    pub sole: Cell<bool>,
    /// With a term the node grants leases with all attributes.
    pub lease_term_ms: Cell<u32>,
    pub incarnation: Cell<u64>,
    /// The node lives in the process of its client.
    pub local: Cell<bool>,
    /// The requests for passthrough grants, and the file that answers them: device and inode.
    pub grant_requests: RefCell<Vec<GrantRequest>>,
    pub passthrough: Cell<(u64, u64)>,
    /// All requests that arrived.
    pub seen: RefCell<Vec<Request>>,
    /// Fates of mutations, and of requests for locks.
    pub fates: RefCell<VecDeque<Fate>>,
    /// Fates of one kind of request, by its name in `kind_of`.
    pub fates_of: RefCell<BTreeMap<&'static str, VecDeque<Fate>>>,
    /// One in this number of requests meets a fault.
    pub chaos: Cell<Option<u64>>,
    /// The errors that refuse requests, by name of the request's kind in `kind_of`.
    pub refuse: RefCell<BTreeMap<&'static str, RpcError>>,
    pub refuse_replays: Cell<bool>,
    /// No request is answered.
    pub frozen: Cell<bool>,
    pub executing: Cell<usize>,
    pub most_executing: Cell<usize>,
    pub latency_ms: Cell<u64>,
    up: Cell<bool>,
    connection: Cell<u64>,
    connected: Cell<bool>,
    events: RefCell<VecDeque<LinkEvent>>,
    listener: RefCell<Option<Waker>>,
    next_session: Cell<u64>,
}

impl Node {
    pub fn new(world: &World) -> Rc<Node> {
        Rc::new(Node {
            world: world.clone(),
            log: RefCell::default(),
            durable: Cell::new(0),
            start: Cell::new(1),
            recovered: Cell::new(0),
            table: RefCell::default(),
            opens: RefCell::default(),
            untold: RefCell::default(),
            locks: RefCell::default(),
            awaited: RefCell::default(),
            sole: Cell::new(true),
            lease_term_ms: Cell::new(0),
            incarnation: Cell::new(1),
            local: Cell::new(false),
            seen: RefCell::default(),
            fates: RefCell::default(),
            fates_of: RefCell::default(),
            grant_requests: RefCell::default(),
            passthrough: Cell::new((1, 1)),
            chaos: Cell::new(None),
            refuse: RefCell::default(),
            refuse_replays: Cell::new(false),
            frozen: Cell::new(false),
            executing: Cell::new(0),
            most_executing: Cell::new(0),
            latency_ms: Cell::new(1),
            up: Cell::new(true),
            connection: Cell::new(0),
            connected: Cell::new(false),
            events: RefCell::default(),
            listener: RefCell::new(None),
            next_session: Cell::new(100),
        })
    }

    pub fn options() -> Options {
        Options { request_timeout: Duration::from_secs(30), ..Options::new("volume", "test") }
    }

    pub fn attach(self: &Rc<Node>) -> Client {
        self.attach_with(Node::options())
    }

    pub fn attach_with(self: &Rc<Node>, options: Options) -> Client {
        let (link, ports) = (self.clone(), self.world.ports());
        self.world.run(async move { Client::attach(link, ports, options).await.expect("attaches") })
    }

    pub fn disconnect(&self) {
        self.connected.set(false);
        self.connection.set(self.connection.get() + 1);
        self.say(LinkEvent::Lost);
    }

    pub fn say(&self, event: LinkEvent) {
        self.events.borrow_mut().push_back(event);
        if let Some(listener) = self.listener.take() {
            listener.wake();
        }
    }

    /// SIGKILL: the written log stays.
    pub fn kill(&self) {
        self.up.set(false);
        self.opens.borrow_mut().clear();
        self.untold.take();
        self.locks.take();
        self.disconnect();
    }

    /// The log is lost beyond its forced part.
    pub fn cut_power(&self) {
        self.log.borrow_mut().truncate(self.durable.get() as usize);
        self.kill();
    }

    pub fn restart(&self) {
        self.start.set(self.start.get() + 1);
        self.recovered.set(self.log.borrow().len() as u64);
        let mut table = BTreeMap::new();
        for record in self.log.borrow().iter() {
            note(&mut table, record);
        }
        self.awaited.replace(table.keys().copied().collect());
        self.table.replace(table);
        self.up.set(true);
    }

    pub fn expire_sessions(&self) {
        let sessions = self.table.take();
        sessions.into_keys().for_each(|session| self.locks.borrow_mut().end(session));
        self.opens.borrow_mut().clear();
    }

    pub fn force(&self) {
        self.durable.set(self.log.borrow().len() as u64);
        self.say(LinkEvent::Notice(Notice::Durable { durable: LogIndex(self.durable.get()) }));
    }

    pub fn append(&self, record: Record) -> LogIndex {
        note(&mut self.table.borrow_mut(), &record);
        self.log.borrow_mut().push(record);
        LogIndex(self.log.borrow().len() as u64)
    }

    /// Mutations in the log that were not refused, with their answers.
    pub fn executed(&self) -> Vec<(ClientMutation, Mutated)> {
        let log = self.log.borrow();
        let done = log.iter().filter_map(|record| match record {
            Record::Mutation(done) => {
                done.answer.as_ref().ok().map(|mutated| (done.mutation.clone(), mutated.clone()))
            }
            Record::Session(_) | Record::Foreign => None,
        });
        done.collect()
    }

    /// The next request of this kind meets this fate.
    pub fn meet(&self, kind: &'static str, fate: Fate) {
        self.fates_of.borrow_mut().entry(kind).or_default().push_back(fate);
    }

    pub fn count(&self, kind: &str) -> usize {
        self.seen.borrow().iter().filter(|request| kind_of(request) == kind).count()
    }

    fn handle(&self, request: Request) -> Result<Reply, RpcError> {
        self.seen.borrow_mut().push(request.clone());
        if let Some(error) = self.refuse.borrow().get(kind_of(&request)) {
            return Err(error.clone());
        }
        let known = |session: SessionId| match self.table.borrow().contains_key(&session) {
            true => Ok(()),
            false => Err(RpcError::SessionExpired),
        };
        match request {
            Request::Attach { previous, read_only, .. } => {
                let old = previous.filter(|session| self.table.borrow().contains_key(session));
                let session = old.unwrap_or_else(|| {
                    let session = SessionId(self.next_session.replace(self.next_session.get() + 1));
                    self.append(Record::Session(session));
                    session
                });
                Ok(Reply::Attached(Attached {
                    session,
                    cluster: ClusterId(7),
                    incarnation: Incarnation(self.incarnation.get()),
                    start: self.start.get(),
                    fresh: old.is_none(),
                    recovered: LogIndex(self.recovered.get()),
                    sole: self.sole.get(),
                    read_only,
                    cache_term_ms: 0,
                    session_term_ms: TERM.as_millis() as u32,
                    lease_term_ms: self.lease_term_ms.get(),
                    nodes: Vec::new(),
                }))
            }
            Request::LeasesReturned { session, .. }
            | Request::CachesDropped { session }
            | Request::ReferenceQueryReply { session, .. }
            | Request::Detach { session } => known(session).map(|()| Reply::Done),
            Request::Renew { session } => {
                known(session)?;
                self.awaited.borrow_mut().remove(&session);
                Ok(Reply::Done)
            }
            Request::ResumeSession { session } => {
                known(session)?;
                self.untold.replace(self.opens.borrow().keys().copied().collect());
                self.locks.borrow_mut().end_waits(session);
                self.tell_of_locks();
                Ok(Reply::Done)
            }
            Request::OpensDeclared { session } => {
                known(session)?;
                for ino in self.untold.take() {
                    self.opens.borrow_mut().remove(&ino);
                }
                Ok(Reply::Done)
            }
            Request::Open { session, ino } => {
                known(session)?;
                let counted = if self.untold.borrow_mut().remove(&ino) {
                    0
                } else {
                    self.opens.borrow().get(&ino).copied().unwrap_or(0)
                };
                self.opens.borrow_mut().insert(ino, counted + 1);
                Ok(Reply::Opened { passthrough: false })
            }
            Request::Close { session, ino, count } => {
                known(session)?;
                let mut opens = self.opens.borrow_mut();
                let left = opens.get(&ino).copied().unwrap_or(0).saturating_sub(count);
                match left {
                    0 => drop(opens.remove(&ino)),
                    left => drop(opens.insert(ino, left)),
                }
                Ok(Reply::Done)
            }
            Request::Fsync { session, .. } | Request::SyncFs { session } => {
                known(session)?;
                self.durable.set(self.log.borrow().len() as u64);
                Ok(Reply::Forced { durable: LogIndex(self.durable.get()) })
            }
            Request::Mutate(mutate) => self.mutate(*mutate),
            Request::Lock { tx, ask, wait } => {
                known(tx.session)?;
                let answer = self.locks.borrow_mut().ask(tx, &ask, wait);
                self.tell_of_locks();
                answer.map(Reply::Lock)
            }
            Request::EndWait { session, wait } => {
                known(session)?;
                self.locks.borrow_mut().end_wait(session, wait);
                self.tell_of_locks();
                Ok(Reply::Done)
            }
            Request::Reclaim { session, ino, owner, pid, locks } => {
                known(session)?;
                if !self.awaited.borrow().contains(&session) {
                    return Err(FsError::Stale.into());
                }
                self.locks.borrow_mut().reclaim(session, ino, owner, pid, &locks)?;
                Ok(Reply::Done)
            }
            Request::GetAttr { ino } if self.lease_term_ms.get() > 0 => {
                Ok(Reply::LeasedAttr(Box::new(attr(ino))))
            }
            Request::GetAttr { ino } => Ok(Reply::Attr(Box::new(attr(ino)))),
            Request::Read { offset, len_bytes, .. } => {
                // A file of 3 MiB.
                let end = (3 << 20).min(offset.saturating_add(u64::from(len_bytes)));
                Ok(Reply::Data(Bytes::from(vec![7; end.saturating_sub(offset) as usize])))
            }
            _ => Err(RpcError::Refused(FsError::NotSupported)),
        }
    }

    /// Sends lock news to the only client. Other sessions exist in the table alone.
    pub fn tell_of_locks(&self) {
        for (_, wait) in self.locks.borrow_mut().take_ended() {
            self.say(LinkEvent::Notice(Notice::Lock { wait }));
        }
    }

    fn mutate(&self, Mutate { tx, mutation, replay, .. }: Mutate) -> Result<Reply, RpcError> {
        match self.table.borrow().get(&tx.session).map(|slots| slots.get(&tx.slot)) {
            None => return Err(RpcError::SessionExpired),
            Some(Some((sequence, answer))) if *sequence == tx.sequence => {
                return answer.clone().map(|mutated| Reply::Mutated(Box::new(mutated), vec![]));
            }
            Some(Some((sequence, _))) if *sequence > tx.sequence => {
                return Err(RpcError::Misordered);
            }
            _ => {}
        }
        let index = LogIndex(self.log.borrow().len() as u64 + 1);
        let stamp = Stamp { time: self.world.ports().clock.wall(), version: Version(index.0) };
        let (mut exists, mut last_ino, mut end) = (false, 1000, 0);
        for record in self.log.borrow().iter() {
            let Record::Mutation(done) = record else { continue };
            let Ok(mutated) = &done.answer else { continue };
            last_ino = last_ino.max(mutated.replay.ino.map_or(0, |ino| ino.0));
            match (&done.mutation, &mutation) {
                (ClientMutation::Make { name, .. }, ClientMutation::Make { name: wanted, .. }) => {
                    exists |= name == wanted
                }
                (ClientMutation::Append { data, .. }, _) => end += data.len(),
                _ => {}
            }
        }
        let answer = match &mutation {
            ClientMutation::Make { .. } if exists => Err(FsError::Exists),
            _ if replay.is_some() && self.refuse_replays.get() => Err(FsError::NotFound),
            ClientMutation::Make { open, .. } => {
                // Replays come first and bring their ids back.
                let ino = Ino(last_ino + 1);
                if *open {
                    *self
                        .opens
                        .borrow_mut()
                        .entry(replay.and_then(|replay| replay.ino).unwrap_or(ino))
                        .or_default() += 1;
                }
                Ok(replay.unwrap_or(Replay {
                    stamp,
                    ino: Some(ino),
                    offset: None,
                    len_bytes: None,
                }))
            }
            ClientMutation::Append { .. } => Ok(replay.unwrap_or(Replay {
                stamp,
                ino: None,
                offset: Some(end as u64),
                len_bytes: None,
            })),
            ClientMutation::Write { offset, .. } => Ok(replay.unwrap_or(Replay {
                stamp,
                ino: None,
                offset: Some(*offset),
                len_bytes: None,
            })),
            _ => Ok(replay.unwrap_or(Replay { stamp, ino: None, offset: None, len_bytes: None })),
        };
        let answer = answer.map_err(RpcError::Refused).map(|replay| Mutated {
            attr: Some(attr(replay.ino.unwrap_or(Ino(7)))),
            index,
            replay,
        });
        self.append(Record::Mutation(Box::new(Executed { tx, mutation, answer: answer.clone() })));
        answer.map(|mutated| Reply::Mutated(Box::new(mutated), vec![]))
    }

    fn fate(&self, request: &Request) -> Fate {
        let of_its_kind =
            self.fates_of.borrow_mut().get_mut(kind_of(request)).and_then(VecDeque::pop_front);
        let scripted = match request {
            _ if of_its_kind.is_some() => of_its_kind,
            Request::Mutate(_) | Request::Lock { .. } => self.fates.borrow_mut().pop_front(),
            _ => None,
        };
        let chaotic = || match self.chaos.get() {
            Some(n) if self.world.one_in(n) => {
                let fates = [Fate::LostRequest, Fate::LostReply, Fate::Silence, Fate::Retry];
                fates[self.world.below(fates.len() as u64) as usize]
            }
            _ => Fate::Fine,
        };
        scripted.unwrap_or_else(chaotic)
    }

    async fn exchange(self: &Node, request: Request) -> Result<Reply, RpcError> {
        if let Request::Attach { .. } = request {
            self.world.sleep_ms(self.latency_ms.get()).await;
            if !self.up.get() {
                return Err(RpcError::Lost);
            }
            self.connection.set(self.connection.get() + 1);
            self.events.borrow_mut().clear();
            self.connected.set(true);
        }
        let connection = self.connection.get();
        let alive = || self.connected.get() && self.connection.get() == connection;
        if !alive() {
            return Err(RpcError::Lost);
        }
        let fate = self.fate(&request);
        let jitter = if self.chaos.get().is_some() { self.world.below(20) } else { 0 };
        self.world.sleep_ms(self.latency_ms.get() + jitter).await;
        if fate == Fate::LostRequest && alive() {
            self.disconnect();
        }
        while self.frozen.get() && alive() {
            self.world.sleep_ms(10).await;
        }
        if !alive() {
            return Err(RpcError::Lost);
        }
        if fate == Fate::Retry {
            return Err(RpcError::Retry);
        }
        let mutates = matches!(request, Request::Mutate(_));
        let _executing = mutates.then(|| Executing::new(self));
        let result = self.handle(request);
        if fate == Fate::LostReply {
            self.disconnect();
        }
        self.world.sleep_ms(self.latency_ms.get()).await;
        while fate == Fate::Silence && alive() {
            self.world.sleep_ms(1000).await;
        }
        if alive() { result } else { Err(RpcError::Lost) }
    }
}

struct Executing<'a>(&'a Node);

impl Executing<'_> {
    fn new(node: &Node) -> Executing<'_> {
        node.executing.set(node.executing.get() + 1);
        node.most_executing.set(node.most_executing.get().max(node.executing.get()));
        Executing(node)
    }
}

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        self.0.executing.set(self.0.executing.get() - 1);
    }
}

impl Link for Node {
    fn call(&self, request: Request) -> PortFuture<'_, Result<Reply, RpcError>> {
        Box::pin(self.exchange(request))
    }

    fn event(&self) -> PortFuture<'_, LinkEvent> {
        Box::pin(poll_fn(|context| match self.events.borrow_mut().pop_front() {
            Some(event) => Poll::Ready(event),
            None => {
                self.listener.replace(Some(context.waker().clone()));
                Poll::Pending
            }
        }))
    }

    fn is_local(&self) -> bool {
        self.local.get()
    }

    fn grant(
        &self,
        _borrower: Grantee,
        _ino: Ino,
        request: GrantRequest,
    ) -> PortFuture<'_, Result<Option<Grant>, RpcError>> {
        self.grant_requests.borrow_mut().push(request);
        let (device, inode) = self.passthrough.get();
        let (file, _) = std::io::pipe().expect("a pipe");
        Box::pin(std::future::ready(Ok(Some(
            Grant::new(file.into(), || {}).known_as(device, inode),
        ))))
    }

    fn trouble(&self) -> String {
        "nobody listens".into()
    }
}

fn note(table: &mut Table, record: &Record) {
    match record {
        Record::Session(session) => drop(table.insert(*session, BTreeMap::new())),
        Record::Mutation(done) => {
            if let Some(slots) = table.get_mut(&done.tx.session) {
                slots.insert(done.tx.slot, (done.tx.sequence, done.answer.clone()));
            }
        }
        Record::Foreign => {}
    }
}

fn kind_of(request: &Request) -> &'static str {
    match request {
        Request::Attach { .. } => "attach",
        Request::Detach { .. } => "detach",
        Request::Renew { .. } => "renew",
        Request::CachesDropped { .. } => "caches-dropped",
        Request::LeasesReturned { .. } => "leases-returned",
        Request::Open { .. } => "open",
        Request::Close { .. } => "close",
        Request::Mutate(mutate) if mutate.replay.is_some() => "replay",
        Request::Mutate(_) => "mutate",
        Request::Fsync { .. } => "fsync",
        Request::SyncFs { .. } => "syncfs",
        Request::Read { .. } => "read",
        Request::Lock { .. } => "lock",
        Request::EndWait { .. } => "end-wait",
        Request::Reclaim { .. } => "reclaim",
        Request::ReferenceQueryReply { .. } => "reference-query-reply",
        Request::ResumeSession { .. } => "resume-session",
        Request::OpensDeclared { .. } => "opens-declared",
        _ => "other",
    }
}

pub fn attr(ino: Ino) -> Attr {
    let time = Time::from_secs(0);
    Attr {
        ino,
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes: 0,
        hole_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: Version(1),
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

/// Transaction ids that arrived, in order.
pub fn transactions(node: &Node) -> BTreeSet<(SessionId, u16, u64)> {
    let seen = node.seen.borrow();
    seen.iter()
        .filter_map(|request| {
            if let Request::Mutate(mutate) = request {
                Some((mutate.tx.session, mutate.tx.slot, mutate.tx.sequence))
            } else {
                None
            }
        })
        .collect()
}
