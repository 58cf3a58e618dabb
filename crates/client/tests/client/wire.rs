//! The link over a connection, against a scripted peer.

use crate::node::{Node, TERM};
use crate::process::{Process, nothing_left};
use crate::world::World;
use bytes::{Bytes, BytesMut};
use ebb_client::{EVENTS_WAITING, Link, LinkEvent, REQUESTS_UNDER_WAY, WireLink};
use ebb_format::rpc::{self, Message, RequestId};
use ebb_format::versions::Versions;
use ebb_model::*;
use ebb_ports::{Connection, FrameReceiver, FrameSender, Listener, Net, NetError, PortFuture};
use futures_channel::mpsc;
use futures_util::StreamExt;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

pub type Frame = Result<Option<Bytes>, NetError>;

/// Accepts every connection, unless it is down.
#[derive(Default)]
struct Peer {
    down: Cell<bool>,
    /// Packets vanish in transit.
    mute: Cell<bool>,
    /// The first frame that the peer sends on each connection; its versions by default.
    first: RefCell<Option<Frame>>,
    connections: RefCell<Vec<End>>,
}

/// The peer's end of a connection.
struct End {
    received: mpsc::UnboundedReceiver<Bytes>,
    say: mpsc::UnboundedSender<Frame>,
}

pub struct ClientEnd(pub mpsc::UnboundedSender<Bytes>, pub mpsc::UnboundedReceiver<Frame>);
struct Sender(mpsc::UnboundedSender<Bytes>);
struct Receiver(mpsc::UnboundedReceiver<Frame>);

impl Net for Peer {
    fn connect(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>> {
        let address = address.to_string();
        Box::pin(async move {
            if self.mute.get() {
                std::future::pending::<()>().await;
            }
            if self.down.get() {
                return Err(NetError::Unreachable { address, what: "connection refused".into() });
            }
            let (to_peer, received) = mpsc::unbounded();
            let (say, from_peer) = mpsc::unbounded();
            let first = self.first.borrow().clone();
            let first = first.unwrap_or_else(|| Ok(Some(Versions::OWN.encode())));
            say.unbounded_send(first).expect("the client reads it");
            self.connections.borrow_mut().push(End { received, say });
            Ok(Box::new(ClientEnd(to_peer, from_peer)) as Box<dyn Connection>)
        })
    }

    fn listen(&self, _address: &str) -> PortFuture<'_, Result<Box<dyn Listener>, NetError>> {
        unreachable!("a client does not listen")
    }
}

impl Connection for ClientEnd {
    fn split(self: Box<Self>) -> (Box<dyn FrameSender>, Box<dyn FrameReceiver>) {
        (Box::new(Sender(self.0)), Box::new(Receiver(self.1)))
    }
}

impl FrameSender for Sender {
    fn send(&mut self, parts: Vec<Bytes>) -> PortFuture<'_, Result<(), NetError>> {
        let frame = join(parts);
        Box::pin(async {
            self.0.unbounded_send(frame).map_err(|_| NetError::Broken { what: "gone".into() })
        })
    }
}

impl FrameReceiver for Receiver {
    fn receive(&mut self) -> PortFuture<'_, Frame> {
        Box::pin(async { self.0.next().await.unwrap_or(Ok(None)) })
    }
}

pub fn join(parts: Vec<Bytes>) -> Bytes {
    parts
        .iter()
        .fold(BytesMut::new(), |mut all, part| {
            all.extend_from_slice(part);
            all
        })
        .freeze()
}

impl Peer {
    /// The requests that have arrived on the last connection since the last call.
    fn requests(&self) -> Vec<(RequestId, Request)> {
        let mut connections = self.connections.borrow_mut();
        let mut requests = Vec::new();
        while let Ok(frame) = connections.last_mut().expect("a connection").received.try_recv() {
            if frame == Versions::OWN.encode() {
                continue;
            }
            match rpc::decode(frame).expect("a frame of the client can be read") {
                Message::Request { id, request } => requests.push((id, request)),
                other => panic!("a client sends requests, not {other:?}"),
            }
        }
        requests
    }

    fn say(&self, frame: Frame) {
        // A connection that the client has given up receives nothing.
        drop(self.connections.borrow().last().expect("a connection").say.unbounded_send(frame));
    }

    fn notice(&self, notice: &Notice) {
        self.say(Ok(Some(join(rpc::encode_notice(notice).expect("encodes")))));
    }

    fn reply(&self, id: RequestId, reply: Reply) {
        self.say(Ok(Some(join(rpc::encode_reply(id, &reply).expect("encodes")))));
    }
}

pub fn attach_request() -> Request {
    Request::Attach {
        volume: "volume".into(),
        client: "test".into(),
        previous: None,
        read_only: false,
        cluster: None,
    }
}

type Answer = Rc<RefCell<Option<Result<Reply, RpcError>>>>;

struct Setting {
    world: World,
    peer: Rc<Peer>,
    link: Rc<WireLink>,
}

impl Setting {
    /// A link with a connection.
    fn new() -> Setting {
        let world = World::new(1);
        let peer = Rc::new(Peer::default());
        let link = Rc::new(WireLink::new(peer.clone(), world.ports(), ["node:1".into()]));
        let setting = Setting { world, peer, link };
        assert_eq!(
            setting.call(Request::StatFs { ino: Ino::ROOT }).take(),
            Some(Err(RpcError::Lost)),
            "nothing is connected before an attach"
        );
        setting.attach();
        setting
    }

    fn attach(&self) {
        let attached = self.call(attach_request());
        let (id, _) = self.peer.requests().pop().expect("the attach arrives");
        self.peer.reply(id, Reply::Done);
        self.settle();
        assert_eq!(attached.take(), Some(Ok(Reply::Done)));
    }

    fn call(&self, request: Request) -> Answer {
        let link = self.link.clone();
        let answer = self.world.start(async move { link.call(request).await });
        self.settle();
        answer
    }

    fn settle(&self) {
        self.world.pass(Duration::from_millis(1));
    }

    fn events(&self) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        let heard = Rc::new(RefCell::new(Vec::new()));
        let (link, notes) = (self.link.clone(), heard.clone());
        let listening = self.world.start(async move {
            let stop = async {};
            futures_util::pin_mut!(stop);
            loop {
                match futures_util::future::select(link.event(), &mut stop).await {
                    futures_util::future::Either::Left((event, _)) => {
                        notes.borrow_mut().push(event)
                    }
                    futures_util::future::Either::Right(_) => return,
                }
            }
        });
        self.settle();
        assert!(listening.borrow().is_some());
        events.append(&mut heard.borrow_mut());
        events
    }
}

/// Many requests at once, answered in another order, one with an error: each gets its own.
#[test]
fn answers_find_their_requests() {
    let setting = Setting::new();
    let calls: Vec<Answer> =
        (0..10).map(|ino| setting.call(Request::ReadLink { ino: Ino(ino) })).collect();
    for (id, request) in setting.peer.requests().into_iter().rev() {
        match request {
            Request::ReadLink { ino: Ino(5) } => {
                let error = RpcError::Refused(FsError::NotFound);
                setting.peer.say(Ok(Some(join(rpc::encode_error(id, &error).expect("encodes")))));
            }
            Request::ReadLink { ino } => {
                setting.peer.reply(id, Reply::Link(Bytes::from(ino.0.to_string())))
            }
            other => panic!("{other:?}"),
        }
    }
    setting.peer.reply(RequestId(999), Reply::Done);
    setting.settle();
    for (ino, call) in calls.iter().enumerate() {
        let expected = match ino {
            5 => Err(RpcError::Refused(FsError::NotFound)),
            _ => Ok(Reply::Link(Bytes::from(ino.to_string()))),
        };
        assert_eq!(call.take(), Some(expected));
    }
}

/// More requests than may be in progress: the rest is sent in order as answers come. Requests that
/// keep the session go at once, and a dropped call makes room.
#[test]
fn requests_under_way_are_bounded() {
    let setting = Setting::new();
    let calls: Vec<Answer> = (0..REQUESTS_UNDER_WAY as u64 + 3)
        .map(|ino| setting.call(Request::GetAttr { ino: Ino(ino) }))
        .collect();
    let renewal = setting.call(Request::Renew { session: SessionId(1) });
    let mut sent = setting.peer.requests();
    assert_eq!(sent.len(), REQUESTS_UNDER_WAY + 1);
    let (id, request) = sent.pop().expect("sent");
    assert_eq!(request, Request::Renew { session: SessionId(1) });
    setting.peer.reply(id, Reply::Done);
    setting.peer.reply(sent[7].0, Reply::Done);
    setting.settle();
    assert!(
        renewal.borrow().is_some() && calls[7].borrow().is_some() && calls[8].borrow().is_none()
    );
    let next: Vec<_> = setting.peer.requests().into_iter().map(|(_, request)| request).collect();
    assert_eq!(next, [Request::GetAttr { ino: Ino(REQUESTS_UNDER_WAY as u64) }]);
    setting.peer.say(Ok(None));
    setting.settle();
    assert!(calls.iter().all(|call| call.borrow().is_some()), "nobody is left waiting");
}

/// Every way in which a connection ends: all waiting calls fail, the user learns of it once, and
/// the next attach begins another connection.
#[test]
fn ended_connection_fails_pending_calls() {
    let garbage = || Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n");
    let request = join(
        rpc::encode_request(RequestId(1), &Request::StatFs { ino: Ino::ROOT }).expect("encodes"),
    );
    let unread = join(rpc::encode_error(RequestId::NONE, &RpcError::Retry).expect("encodes"));
    let mut flipped =
        join(rpc::encode_reply(RequestId(2), &Reply::Done).expect("encodes")).to_vec();
    flipped[9] ^= 1;
    let endings: [Frame; 7] = [
        Ok(None),
        Err(NetError::Broken { what: "reset".into() }),
        Ok(Some(Bytes::new())),
        Ok(Some(garbage())),
        Ok(Some(request)),
        Ok(Some(unread)),
        Ok(Some(Bytes::from(flipped))),
    ];
    for ending in endings {
        let setting = Setting::new();
        setting.events();
        let call = setting.call(Request::StatFs { ino: Ino::ROOT });
        setting.peer.say(ending.clone());
        setting.settle();
        assert_eq!(call.take(), Some(Err(RpcError::Lost)), "{ending:?}");
        assert_eq!(setting.events(), [LinkEvent::Lost], "{ending:?}");
        assert!(!setting.link.trouble().is_empty());
        assert_eq!(
            setting.call(Request::StatFs { ino: Ino::ROOT }).take(),
            Some(Err(RpcError::Lost))
        );
        setting.attach();
        assert_eq!(setting.peer.connections.borrow().len(), 2);
    }
}

/// The peer does not listen: the attach fails with the reason, and works when the node is there.
#[test]
fn an_unreachable_node_is_told_with_its_reason() {
    let setting = Setting::new();
    setting.peer.down.set(true);
    assert_eq!(setting.call(attach_request()).take(), Some(Err(RpcError::Lost)));
    assert_eq!(setting.link.trouble(), "node:1: connection refused");
    setting.peer.mute.set(true);
    let attaching = setting.call(attach_request());
    setting.world.pass(Duration::from_secs(6));
    assert_eq!(attaching.take(), Some(Err(RpcError::Lost)));
    assert_eq!(setting.link.trouble(), "node:1: no connection within 5 s");
    setting.peer.mute.set(false);
    setting.peer.down.set(false);
    setting.attach();
}

/// Situation: the peer speaks other versions, is a node of release 0.1.0 that refuses the first
/// message, or is another program. Danger: requests are sent in a version that it misreads, or the
/// user learns nothing. Expectation: no request is sent, and one line names both ranges; with a
/// common version the link works.
#[test]
fn versions_are_agreed_on_before_the_first_request() {
    let both = "install the same release of ebb on both machines";
    let newer = Versions::new(18, 20).unwrap().encode();
    let refusal = rpc::encode_error(RequestId::NONE, &RpcError::Denied("version 0".into()));
    let mut of_0_1_0 = join(refusal.unwrap()).to_vec();
    of_0_1_0[0] = 16;
    let setting = Setting::new();
    for (first, why) in [
        (
            Ok(Some(newer)),
            format!("the peer speaks protocol version 18 to 20, and this ebb 17: {both}"),
        ),
        (
            Ok(Some(of_0_1_0.into())),
            format!("the peer speaks protocol version 16, and this ebb 17: {both}"),
        ),
        (Ok(Some(Bytes::from_static(b"\0HTTP"))), "not protocol versions of a peer".into()),
        (Ok(None), "the node has closed the connection".into()),
        (Err(NetError::Broken { what: "reset".into() }), "connection lost: reset".into()),
    ] {
        setting.peer.first.replace(Some(first));
        assert_eq!(setting.call(attach_request()).take(), Some(Err(RpcError::Lost)));
        assert_eq!(setting.link.trouble(), why);
        assert_eq!(setting.peer.requests(), []);
    }
    for (lowest, highest) in [(17, 17), (1, 17), (17, 99), (3, 200)] {
        let versions = Versions::new(lowest, highest).unwrap();
        setting.peer.first.replace(Some(Ok(Some(versions.encode()))));
        setting.attach();
    }
}

/// Notices of an earlier connection are not delivered after a new one has begun.
#[test]
fn a_new_connection_starts_with_a_clean_slate() {
    let setting = Setting::new();
    let notice = Notice::Durable { durable: LogIndex(7) };
    setting.peer.notice(&notice);
    setting.settle();
    setting.attach();
    assert_eq!(setting.events(), []);
    setting.peer.notice(&notice);
    setting.settle();
    assert_eq!(setting.events(), [LinkEvent::Notice(notice)]);
}

/// A node that sends without end while the client does not read fills no memory. All its notices
/// are delivered later.
#[test]
fn notices_that_nobody_hears_are_bounded() {
    let setting = Setting::new();
    let all = EVENTS_WAITING as u64 * 3;
    for ino in 0..all {
        let notice = Notice::Invalidate { ino: Ino(ino) };
        setting.peer.notice(&notice);
    }
    let behind = setting.call(Request::StatFs { ino: Ino::ROOT });
    let (id, _) = setting.peer.requests().pop().expect("sent");
    setting.peer.reply(id, Reply::Done);
    setting.settle();
    assert_eq!(behind.take(), None, "the connection is read no further");
    let mut heard = 0;
    while heard < all {
        let events = setting.events();
        assert!(!events.is_empty());
        heard += events.len() as u64;
    }
    assert_eq!(behind.take(), Some(Ok(Reply::Done)));
}

/// Situation: a process dies, and the node has more notices for its session than a link keeps. It
/// sends them as soon as the successor is attached. Danger: the answers to the take-over are queued
/// behind the notices, which nobody reads before the take-over is done. Expectation: it takes over
/// at once.
#[test]
fn an_heir_hears_answers_behind_notices() {
    let world = World::new(9);
    let (peer, left) = (Rc::new(Peer::default()), nothing_left());
    for fresh in [true, false] {
        let link = WireLink::new(peer.clone(), world.ports(), ["node:1".into()]);
        let process = Process::new(&world, Rc::new(link), &left);
        let attached = process.start_attach(Node::options());
        for _ in 0..20 {
            world.pass(Duration::from_millis(1));
            for (id, request) in peer.requests() {
                let is_attach = matches!(request, Request::Attach { .. });
                peer.reply(id, answer(request, fresh));
                if is_attach && !fresh {
                    (0..EVENTS_WAITING as u64 * 3)
                        .for_each(|ino| peer.notice(&Notice::Invalidate { ino: Ino(ino) }));
                }
            }
        }
        match attached.take() {
            Some(Ok(_)) => {}
            other => panic!("fresh: {fresh}: {:?}", other.map(|attached| attached.map(drop))),
        }
        process.kill();
    }
}

/// The answers of a minimal node.
fn answer(request: Request, fresh: bool) -> Reply {
    match request {
        Request::Attach { .. } => Reply::Attached(Attached {
            session: SessionId(7),
            cluster: ClusterId(7),
            incarnation: Incarnation(1),
            start: 1,
            fresh,
            recovered: LogIndex(0),
            sole: true,
            read_only: false,
            cache_term_ms: 0,
            session_term_ms: TERM.as_millis() as u32,
            lease_term_ms: 0,
            nodes: Vec::new(),
        }),
        Request::SyncFs { .. } => Reply::Forced { durable: LogIndex(0) },
        _ => Reply::Done,
    }
}

/// The link is dropped: its tasks end, and the peer sees the connection end.
#[test]
fn a_dropped_link_leaves_nothing_running() {
    let Setting { world, peer, link } = Setting::new();
    drop(link);
    world.pass(Duration::from_millis(1));
    assert_eq!(world.tasks(), 0);
    assert!(peer.connections.borrow().last().is_some_and(|end| end.say.is_closed()));
}
