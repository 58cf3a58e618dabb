//! The network as the code of one process sees it.

use super::{EndId, Item, Listening, Network, RESET, Receiving};
use crate::executor::Owner;
use crate::trace::fingerprint;
use bytes::{Bytes, BytesMut};
use ebb_ports::{
    Connection, FrameReceiver, FrameSender, Listener, MAX_FRAME_BYTES, Net, NetError, PortFuture,
};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

/// The network port of one process.
pub(super) struct ProcessNet {
    pub(super) net: Network,
    pub(super) owner: Owner,
    pub(super) machine: String,
}

impl ProcessNet {
    /// Machine and port; a machine also answers to the names of its loopback.
    fn resolve(&self, address: &str) -> Result<(String, u16), NetError> {
        let parsed =
            address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) =
            parsed.ok_or_else(|| unreachable_at(address, "not an address host:port"))?;
        let host = if LOOPBACK.contains(&host) { &self.machine } else { host };
        Ok((host.to_owned(), port))
    }
}

impl Net for ProcessNet {
    fn connect(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>> {
        let address = address.to_owned();
        Box::pin(async move {
            let (host, port) = self.resolve(&address)?;
            let executor = &self.net.shared.executor;
            let (net, owner, machine, target) =
                (self.net.clone(), self.owner.clone(), self.machine.clone(), host.clone());
            let dial = move || {
                if net.is_blocked(&machine, &target) || net.is_blocked(&target, &machine) {
                    return Err("timed out");
                }
                let listener = net
                    .state()
                    .listeners
                    .get(&format!("{target}:{port}"))
                    .map(|listening| (listening.owner.clone(), listening.backlog.len()));
                let Some((listener, _)) = listener.filter(|(_, waiting)| *waiting < BACKLOG) else {
                    return Err("connection refused");
                };
                let (here, there) = net.pair((&owner, &machine), (&listener, &target));
                if let Some(listening) = net.state().listeners.get_mut(&format!("{target}:{port}"))
                {
                    listening.backlog.push_back(there);
                    if let Some(waker) = listening.waiting.take() {
                        waker.wake();
                    }
                }
                Ok(here)
            };
            let result = executor.after(&self.owner, self.net.latency(), dial).await;
            executor.sleep(&self.owner, self.net.latency()).await;
            if result.as_ref().is_err_and(|why| *why == "timed out") {
                executor.sleep(&self.owner, CONNECT_PATIENCE).await;
            }
            executor.note(
                &self.owner,
                "net.connect",
                format_args!("{address}: {}", result.as_ref().err().unwrap_or(&"ok")),
            );
            match result {
                Ok(connection) => Ok(Box::new(connection) as Box<dyn Connection>),
                Err(what) => Err(unreachable_at(&address, what)),
            }
        })
    }

    fn listen(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Listener>, NetError>> {
        let address = address.to_owned();
        Box::pin(async move {
            self.owner.lives().await;
            let (host, mut port) = self.resolve(&address)?;
            if host != self.machine {
                return Err(unreachable_at(&address, "not an address of this machine"));
            }
            let mut state = self.net.state();
            while port == 0 {
                let candidate = FIRST_FREE_PORT + state.ports_given % (u16::MAX - FIRST_FREE_PORT);
                state.ports_given = state.ports_given.wrapping_add(1);
                port = if state.listeners.contains_key(&format!("{host}:{candidate}")) {
                    0
                } else {
                    candidate
                };
            }
            let bound = format!("{host}:{port}");
            if state.listeners.contains_key(&bound) {
                return Err(unreachable_at(&address, "address in use"));
            }
            state.listeners.insert(
                bound.clone(),
                Listening { owner: self.owner.clone(), backlog: VecDeque::new(), waiting: None },
            );
            self.net.shared.executor.note(&self.owner, "net.listen", format_args!("{bound}"));
            Ok(Box::new(SimListener {
                net: self.net.clone(),
                owner: self.owner.clone(),
                address: bound,
            }) as Box<dyn Listener>)
        })
    }
}

struct SimListener {
    net: Network,
    owner: Owner,
    address: String,
}

impl Listener for SimListener {
    fn accept(&mut self) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>> {
        Box::pin(poll_fn(|context| {
            let mut state = self.net.state();
            let Some(listening) = state
                .listeners
                .get_mut(&self.address)
                .filter(|listening| listening.owner == self.owner)
            else {
                return Poll::Pending;
            };
            match listening.backlog.pop_front() {
                Some(connection) => Poll::Ready(Ok(Box::new(connection) as Box<dyn Connection>)),
                None => {
                    listening.waiting = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        if self.owner.is_alive() {
            let listening = self.net.state().listeners.remove(&self.address);
            drop(listening);
        }
    }
}

pub(super) struct SimConnection {
    sender: SimSender,
    receiver: SimReceiver,
}

struct SimSender {
    net: Network,
    end: EndId,
}

struct SimReceiver {
    net: Network,
    end: EndId,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    Sender,
    Receiver,
}

impl SimConnection {
    pub(super) fn new(net: &Network, end: EndId) -> SimConnection {
        SimConnection {
            sender: SimSender { net: net.clone(), end },
            receiver: SimReceiver { net: net.clone(), end },
        }
    }
}

impl Connection for SimConnection {
    fn split(self: Box<Self>) -> (Box<dyn FrameSender>, Box<dyn FrameReceiver>) {
        (Box::new(self.sender), Box::new(self.receiver))
    }
}

impl FrameSender for SimSender {
    fn send(&mut self, parts: Vec<Bytes>) -> PortFuture<'_, Result<(), NetError>> {
        Box::pin(async move {
            let frame = join(parts);
            if frame.len() > MAX_FRAME_BYTES {
                return Err(NetError::Protocol {
                    what: format!("a frame of {} bytes is too long", frame.len()),
                });
            }
            poll_fn(|context| self.poll_window(frame.len(), context.waker())).await?;
            self.put(frame)
        })
    }
}

impl SimSender {
    /// Waits until the peer has read enough of the earlier frames.
    fn poll_window(&self, len: usize, waker: &Waker) -> Poll<Result<(), NetError>> {
        let mut state = self.net.state();
        let Some(end) = state.ends.get(&self.end) else { return Poll::Pending };
        if let Some(why) = end.broken {
            return Poll::Ready(Err(broken(why)));
        }
        let unread = state.ends.get(&end.peer).map_or(0, |peer| peer.unread_bytes);
        if unread == 0 || unread + len <= WINDOW_BYTES {
            return Poll::Ready(Ok(()));
        }
        if let Some(end) = state.ends.get_mut(&self.end) {
            end.sender_waiting = Some(waker.clone());
        }
        Poll::Pending
    }

    fn put(&self, frame: Bytes) -> Result<(), NetError> {
        let net = &self.net;
        let Some((owner, machine, peer, peer_machine)) =
            net.state().ends.get(&self.end).map(|end| {
                (end.owner.clone(), end.machine.clone(), end.peer, end.peer_machine.clone())
            })
        else {
            return Ok(());
        };
        net.shared.executor.note(
            &owner,
            "net.send",
            format_args!(
                "to {peer_machine} end {peer}: {} bytes {:016x}",
                frame.len(),
                fingerprint(&frame)
            ),
        );
        if net.draw_faults(&machine, &peer_machine) {
            net.break_end(self.end, RESET);
            net.send_reset(peer);
            return Err(broken(RESET));
        }
        let listening = match net.state().ends.get_mut(&peer) {
            Some(end) if end.broken.is_none() => {
                end.unread_bytes += frame.len();
                true
            }
            _ => false,
        };
        if listening {
            net.send_item(peer, Item::Frame(frame));
        } else if !net.is_blocked(&peer_machine, &machine) {
            net.send_item(self.end, Item::Reset(RESET));
        }
        Ok(())
    }
}

impl Drop for SimSender {
    fn drop(&mut self) {
        self.net.close_half(self.end, Half::Sender);
    }
}

impl FrameReceiver for SimReceiver {
    fn receive(&mut self) -> PortFuture<'_, Result<Option<Bytes>, NetError>> {
        Box::pin(poll_fn(|context| {
            let mut state = self.net.state();
            let Some(end) = state.ends.get_mut(&self.end) else { return Poll::Pending };
            if let Some(frame) = end.inbox.pop_front() {
                end.unread_bytes -= frame.len();
                let peer = end.peer;
                drop(state);
                self.net.wake_sender(peer);
                Poll::Ready(Ok(Some(frame)))
            } else if end.receiving == Receiving::Closed {
                Poll::Ready(Ok(None))
            } else if let Some(why) = end.broken {
                Poll::Ready(Err(broken(why)))
            } else {
                end.receiver_waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }))
    }
}

impl Drop for SimReceiver {
    fn drop(&mut self) {
        self.net.close_half(self.end, Half::Receiver);
    }
}

fn join(parts: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(parts) {
        Ok([only]) => only,
        Err(parts) => {
            let mut frame = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
            parts.iter().for_each(|part| frame.extend_from_slice(part));
            frame.freeze()
        }
    }
}

fn broken(what: &str) -> NetError {
    NetError::Broken { what: what.to_owned() }
}

fn unreachable_at(address: &str, what: &str) -> NetError {
    NetError::Unreachable { address: address.to_owned(), what: what.to_owned() }
}

const LOOPBACK: [&str; 4] = ["localhost", "127.0.0.1", "0.0.0.0", "[::1]"];

/// How long a connection attempt into silence takes to give up.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);

/// Limit of unread data in flight: four of the longest frames. Two ends that only send block each
/// other, as with real sockets.
const WINDOW_BYTES: usize = 4 * MAX_FRAME_BYTES;

/// Connections that wait to be accepted.
const BACKLOG: usize = 128;

/// Where the ports given for 0 begin, as in the range of dynamic ports.
const FIRST_FREE_PORT: u16 = 49152;
