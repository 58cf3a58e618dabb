//! Streams of frames between machines, with the guarantees of TCP: ordered and reliable while the
//! connection lives, without a delivery report after it breaks.

mod port;

use crate::executor::{Executor, Owner};
use crate::faults::Faults;
use crate::rng::Rng;
use bytes::Bytes;
use ebb_ports::Net;
use port::{Half, ProcessNet, SimConnection};
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

/// The network between all machines. Scenarios break it here.
#[derive(Clone)]
pub struct Network {
    shared: Rc<Shared>,
}

struct Shared {
    executor: Executor,
    faults: Faults,
    rng: Rng,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    listeners: BTreeMap<String, Listening>,
    ends: BTreeMap<EndId, End>,
    /// Ways (from, to) on which nothing passes until then.
    blocked: BTreeMap<(String, String), Duration>,
    next_end: EndId,
    ports_given: u16,
}

struct Listening {
    owner: Owner,
    backlog: VecDeque<SimConnection>,
    waiting: Option<Waker>,
}

type EndId = u64;

/// One end of a connection. It stays in the table until its process closes both halves or dies;
/// frames for an end outside the table are answered with a reset, and its halves never complete
/// anything again.
struct End {
    owner: Owner,
    machine: String,
    peer: EndId,
    peer_machine: String,
    /// On the way here, each with the instant of its arrival, in the order in which it was sent.
    under_way: VecDeque<(Duration, Item)>,
    /// Whether an event for the next arrival is scheduled.
    expecting: bool,
    inbox: VecDeque<Bytes>,
    /// Bytes under way and in the inbox, which the sender's window counts.
    unread_bytes: usize,
    receiving: Receiving,
    broken: Option<&'static str>,
    receiver_waiting: Option<Waker>,
    /// Waits for room in the peer's window.
    sender_waiting: Option<Waker>,
    halves_open: u8,
}

enum Item {
    Frame(Bytes),
    Close,
    Reset(&'static str),
}

#[derive(PartialEq)]
enum Receiving {
    Open,
    /// The peer closed in good order.
    Closed,
}

/// How the connections of a process end with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The kernel closes them.
    Killed,
    /// The peers are not notified.
    PowerCut,
}

impl Network {
    pub(crate) fn new(executor: Executor, faults: Faults, rng: Rng) -> Network {
        Network { shared: Rc::new(Shared { executor, faults, rng, state: RefCell::default() }) }
    }

    /// Nothing passes between two machines, in either direction, until [`Network::heal`].
    pub fn partition(&self, a: &str, b: &str) {
        self.partition_one_way(a, b);
        self.partition_one_way(b, a);
    }

    /// Nothing passes from one machine to another until [`Network::heal`].
    pub fn partition_one_way(&self, from: &str, to: &str) {
        self.block(from, to, Duration::MAX);
    }

    /// Ends all partitions. Delayed data arrives with the next retransmission.
    pub fn heal(&self) {
        self.state().blocked.clear();
        self.shared.executor.note(self.shared.executor.world(), "net.heal", format_args!(""));
    }

    /// Breaks every connection between two machines; data in flight is lost.
    pub fn reset(&self, a: &str, b: &str) {
        let between = |end: &End| {
            (end.machine == a && end.peer_machine == b)
                || (end.machine == b && end.peer_machine == a)
        };
        let ends: Vec<EndId> =
            self.state().ends.iter().filter(|(_, end)| between(end)).map(|(id, _)| *id).collect();
        ends.into_iter().for_each(|id| self.break_end(id, RESET));
    }

    /// Connections with an end that a process still owns.
    pub fn open_ends(&self) -> usize {
        self.state().ends.len()
    }

    pub(crate) fn port(&self, owner: &Owner, machine: &str) -> Rc<dyn Net> {
        Rc::new(ProcessNet { net: self.clone(), owner: owner.clone(), machine: machine.to_owned() })
    }

    pub(crate) fn is_blocked(&self, from: &str, to: &str) -> bool {
        let now = self.shared.executor.now();
        self.state()
            .blocked
            .get(&(from.to_owned(), to.to_owned()))
            .is_some_and(|until| *until > now)
    }

    /// Closes all ends of a dead process.
    pub(crate) fn end_of_process(&self, owner: &Owner, ending: Ending) {
        let (listeners, ends) = {
            let mut state = self.state();
            let listeners: Vec<Listening> = state
                .listeners
                .extract_if(.., |_, listening| listening.owner == *owner)
                .map(|(_, listening)| listening)
                .collect();
            let ends: Vec<End> = state
                .ends
                .extract_if(.., |_, end| end.owner == *owner)
                .map(|(_, end)| end)
                .collect();
            (listeners, ends)
        };
        drop(listeners);
        for end in ends {
            self.wake_sender(end.peer);
            match ending {
                Ending::PowerCut => {}
                Ending::Killed if end.broken.is_some() => {}
                Ending::Killed if self.shared.rng.below(2) == 0 => {
                    self.send_item(end.peer, Item::Close)
                }
                Ending::Killed => self.send_reset(end.peer),
            }
        }
    }

    /// Drops connections that wait to be accepted: they and the network reference each other.
    pub(crate) fn shut_down(&self) {
        let listeners = std::mem::take(&mut self.state().listeners);
        drop(listeners);
    }

    fn state(&self) -> RefMut<'_, State> {
        self.shared.state.borrow_mut()
    }

    fn latency(&self) -> Duration {
        self.shared.faults.plan().net.slow.latency(&self.shared.rng, LATENCY_MIN, LATENCY_MAX)
    }

    fn block(&self, from: &str, to: &str, until: Duration) {
        if from != to {
            let mut state = self.state();
            let blocked = state.blocked.entry((from.to_owned(), to.to_owned())).or_default();
            *blocked = until.max(*blocked);
            self.shared.executor.note(
                self.shared.executor.world(),
                "net.partition",
                format_args!("{from} to {to} until {until:?}"),
            );
        }
    }

    /// Draws the faults that one frame meets. True if its connection breaks.
    fn draw_faults(&self, from: &str, to: &str) -> bool {
        let (rng, plan) = (&self.shared.rng, self.shared.faults.plan().net);
        if rng.chance(plan.partition) {
            let until =
                self.shared.executor.now() + rng.duration(Duration::ZERO, plan.partition_limit);
            let ways = rng.below(3);
            if ways != 0 {
                self.block(from, to, until);
            }
            if ways != 1 {
                self.block(to, from, until);
            }
        }
        rng.chance(plan.reset)
    }

    /// A connection under construction: both ends are in the table, and close when their halves are
    /// dropped.
    fn pair(
        &self,
        dialler: (&Owner, &str),
        acceptor: (&Owner, &str),
    ) -> (SimConnection, SimConnection) {
        let mut state = self.state();
        let (a, b) = (state.next_end, state.next_end + 1);
        state.next_end += 2;
        state.ends.insert(a, End::new(dialler, b, acceptor.1));
        state.ends.insert(b, End::new(acceptor, a, dialler.1));
        (SimConnection::new(self, a), SimConnection::new(self, b))
    }

    /// Sets an item on its way to `to`, behind all that is on that way already.
    fn send_item(&self, to: EndId, item: Item) {
        let due = self.shared.executor.now() + self.latency();
        let mut state = self.state();
        let Some(end) = state.ends.get_mut(&to) else { return };
        let due = end.under_way.back().map_or(due, |(last, _)| due.max(*last));
        end.under_way.push_back((due, item));
        if !std::mem::replace(&mut end.expecting, true) {
            drop(state);
            self.expect_at(to, due);
        }
    }

    /// Notifies an end that its peer has no such connection. Data in flight is lost.
    fn send_reset(&self, to: EndId) {
        if let Some(end) = self.state().ends.get_mut(&to) {
            end.under_way.clear();
        }
        self.send_item(to, Item::Reset(RESET));
    }

    fn expect_at(&self, id: EndId, at: Duration) {
        let net = self.clone();
        self.shared.executor.schedule(self.shared.executor.world(), at, move || net.arrive(id));
    }

    /// Delivers arrived data to an end, and schedules an event for the rest.
    fn arrive(&self, id: EndId) {
        let now = self.shared.executor.now();
        let Some((from, to)) =
            self.state().ends.get(&id).map(|end| (end.peer_machine.clone(), end.machine.clone()))
        else {
            return;
        };
        let blocked = self.is_blocked(&from, &to);
        let mut state = self.state();
        let Some(end) = state.ends.get_mut(&id) else { return };
        end.expecting = false;
        while !blocked && end.under_way.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, item)) = end.under_way.pop_front() {
                end.take_in(item);
            }
        }
        let Some((due, item)) = end.under_way.front() else { return };
        let (next, peer) = (if blocked { now + RETRANSMIT } else { *due }, end.peer);
        if blocked && matches!(item, Item::Reset(_)) {
            // A reset is not retransmitted: this end stays half-open until it sends.
            end.under_way.clear();
        } else if blocked && now >= *due + SENDER_PATIENCE {
            end.under_way.clear();
            drop(state);
            self.break_end(peer, "timed out");
        } else {
            end.expecting = true;
            drop(state);
            self.expect_at(id, next);
        }
    }

    /// One end learns of the break at once, the other when it next sends.
    fn break_end(&self, id: EndId, why: &'static str) {
        let mut state = self.state();
        let Some(end) = state.ends.get_mut(&id) else { return };
        end.under_way.clear();
        end.take_in(Item::Reset(why));
        self.shared.executor.note(&end.owner, "net.broken", format_args!("end {id}: {why}"));
    }

    /// The window of an end grew, or the end went and takes all: its peer may send again.
    fn wake_sender(&self, peer: EndId) {
        if let Some(waker) =
            self.state().ends.get_mut(&peer).and_then(|end| end.sender_waiting.take())
        {
            waker.wake();
        }
    }

    fn close_half(&self, id: EndId, half: Half) {
        let mut state = self.state();
        let Some(end) = state.ends.get_mut(&id).filter(|end| end.owner.is_alive()) else { return };
        let peer = end.peer;
        end.halves_open -= 1;
        // A broken end must not send a close, which would look like a clean end.
        let broken = end.broken.is_some();
        let gone = if end.halves_open == 0 { state.ends.remove(&id) } else { None };
        drop(state);
        if half == Half::Sender && !broken {
            self.send_item(peer, Item::Close);
        }
        if gone.is_some() {
            self.wake_sender(peer);
        }
        if gone.is_some_and(|end| !broken && (end.unread_bytes > 0 || !end.under_way.is_empty())) {
            self.send_item(peer, Item::Reset(RESET));
        }
    }
}

impl End {
    fn new((owner, machine): (&Owner, &str), peer: EndId, peer_machine: &str) -> End {
        End {
            owner: owner.clone(),
            machine: machine.to_owned(),
            peer,
            peer_machine: peer_machine.to_owned(),
            under_way: VecDeque::new(),
            expecting: false,
            inbox: VecDeque::new(),
            unread_bytes: 0,
            receiving: Receiving::Open,
            broken: None,
            receiver_waiting: None,
            sender_waiting: None,
            halves_open: 2,
        }
    }

    fn take_in(&mut self, item: Item) {
        match item {
            Item::Frame(frame) => self.inbox.push_back(frame),
            Item::Close => self.receiving = Receiving::Closed,
            Item::Reset(why) => {
                self.broken = self.broken.or(Some(why));
                if let Some(waker) = self.sender_waiting.take() {
                    waker.wake();
                }
            }
        }
        if let Some(waker) = self.receiver_waiting.take() {
            waker.wake();
        }
    }
}

const RESET: &str = "reset by peer";

/// One way within a data centre.
const LATENCY_MIN: Duration = Duration::from_micros(50);
const LATENCY_MAX: Duration = Duration::from_millis(1);

/// Retransmission interval of a delayed stream, and the time until its sender gives up.
const RETRANSMIT: Duration = Duration::from_millis(200);
const SENDER_PATIENCE: Duration = Duration::from_secs(20);
