//! The addresses at which nodes of the volume listen, and the order in which they are tried.

use std::collections::{BTreeSet, VecDeque};

/// Addresses that a client remembers, and addresses that it tries in one round.
pub const MAX_NODES: usize = 64;

/// Longest address: a host name of 255 bytes, `:` and a port.
const MAX_ADDRESS_BYTES: usize = 261;

/// Addresses listed in the description of a failed round.
const MAX_DESCRIBED: usize = 8;

/// Whether `text` is `host:port`. Addresses of sockets on this machine are not: a node must not
/// direct a client to one.
pub fn is_node_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_printable = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let is_plain = is_printable && !host.contains(['/', ',']);
    !host.is_empty()
        && host != "unix"
        && !host.starts_with("unix:")
        && is_plain
        && text.len() <= MAX_ADDRESS_BYTES
        && port.bytes().all(|digit| digit.is_ascii_digit())
        && port.parse::<u16>().is_ok()
}

/// The known addresses. It is the only owner of the choice of the next address.
///
/// Laws:
/// - At most [`MAX_NODES`] addresses are known, each of them once.
/// - The given addresses stay known.
pub(crate) struct Routes {
    given: Vec<String>,
    /// From the last answer to an attach, without the given ones.
    learned: Vec<String>,
    /// The leader named by the node that lost the lead, until the next round.
    named: Option<String>,
    /// The address that served last, unless an attempt to use it again has failed.
    served: Option<String>,
    /// The position in the known addresses at which the next round begins otherwise.
    next: usize,
}

impl Routes {
    pub(crate) fn new(given: impl IntoIterator<Item = String>) -> Routes {
        let mut seen = BTreeSet::new();
        let given = given.into_iter().filter(|address| seen.insert(address.clone()));
        Routes {
            given: given.take(MAX_NODES).collect(),
            learned: Vec::new(),
            named: None,
            served: None,
            next: 0,
        }
    }

    fn known(&self) -> impl Iterator<Item = &String> {
        self.given.iter().chain(&self.learned)
    }

    /// Begins a round over all known addresses.
    pub(crate) fn round(&mut self) -> Round {
        let known: Vec<&String> = self.known().collect();
        let (before, from) = known.split_at(self.next.min(known.len()));
        let mut round = Round::default();
        for address in self.named.iter().chain(&self.served).chain(from.iter().copied()) {
            round.append(address);
        }
        before.iter().for_each(|address| round.append(address));
        self.named = None;
        round
    }

    /// An attempt to use the address begins. If the attempt ends without an answer, the next round
    /// begins with the address behind it.
    pub(crate) fn tries(&mut self, address: &str) {
        if self.served.as_deref() == Some(address) {
            self.served = None;
        }
        let at = self.known().position(|known| known == address);
        if let Some(at) = at {
            self.next = (at + 1) % self.known().count();
        }
    }

    /// The node at the address has accepted a request: the next round begins with it.
    pub(crate) fn serves(&mut self, address: &str) {
        self.served = Some(address.into());
    }

    /// The nodes of the volume, from the answer to an attach. They replace earlier ones.
    pub(crate) fn learn(&mut self, nodes: &[String]) {
        self.learned.clear();
        for node in nodes.iter().filter(|node| is_node_address(node)) {
            if self.known().count() < MAX_NODES && !self.known().any(|known| known == node) {
                self.learned.push(node.clone());
            }
        }
        self.next = 0;
    }

    /// The node in use has lost the lead.
    pub(crate) fn lead_lost(&mut self, leader: Option<&str>) {
        self.served = None;
        self.named = leader.filter(|leader| is_node_address(leader)).map(Into::into);
    }
}

/// One round over the addresses. Each address is returned once at most, so that two nodes that name
/// each other the leader end the round.
#[derive(Default)]
pub(crate) struct Round {
    left: VecDeque<String>,
    /// Those of `left`, and those that have been returned.
    seen: BTreeSet<String>,
    returned: BTreeSet<String>,
    /// By address.
    failures: Vec<(String, String)>,
}

impl Round {
    fn append(&mut self, address: &str) {
        if self.seen.insert(address.into()) {
            self.left.push_back(address.into());
        }
    }

    pub(crate) fn next(&mut self) -> Option<String> {
        let next = self.left.pop_front()?;
        self.returned.insert(next.clone());
        Some(next)
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.left.is_empty()
    }

    /// Only one address can be tried.
    pub(crate) fn has_one_address(&self) -> bool {
        self.seen.len() == 1
    }

    /// A node has named the leader: it is the next address, if it has not been tried yet.
    pub(crate) fn name(&mut self, leader: &str) {
        let is_known = self.seen.contains(leader);
        let has_room = is_known || self.seen.len() < MAX_NODES;
        if !is_node_address(leader) || !has_room || self.returned.contains(leader) {
            return;
        }
        self.left.retain(|address| address != leader);
        self.seen.insert(leader.into());
        self.left.push_front(leader.into());
    }

    /// `why` is for people.
    pub(crate) fn failed(&mut self, address: String, why: String) {
        self.failures.push((address, why));
    }

    /// The failures of the round, for people.
    pub(crate) fn failures(&self) -> String {
        if let [(_, why)] = &self.failures[..] {
            return why.clone();
        }
        let shown = self.failures.iter().take(MAX_DESCRIBED).map(|(address, why)| {
            match why.starts_with(address) {
                true => why.clone(),
                false => format!("{address}: {why}"),
            }
        });
        let mut shown: Vec<String> = shown.collect();
        let more = self.failures.len() - shown.len();
        if more > 0 {
            shown.push(format!("and {more} more"));
        }
        shown.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut round: Round) -> Vec<String> {
        std::iter::from_fn(|| round.next()).collect()
    }

    fn routes(given: &[&str]) -> Routes {
        Routes::new(given.iter().map(ToString::to_string))
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn node_address_is_host_and_port() {
        for good in ["h:1", "h.example:65535", "10.0.0.1:7170", "[::1]:7170", "[fe80::1%2]:1"] {
            assert!(is_node_address(good), "{good}");
        }
        let long = format!("{}:1", "h".repeat(260));
        for bad in [
            "",
            ":",
            ":1",
            "h",
            "h:",
            "h:x",
            "h:65536",
            "h:-1",
            "h:+1",
            "h:1 ",
            " h:1",
            "h\n:1",
            "a/b:1",
            "a:1,b:2",
            "unix:1",
            "unix:/run/x:1",
            &long,
        ] {
            assert!(!is_node_address(bad), "{bad}");
        }
    }

    /// The round begins with the address that served last, and goes on behind the last one tried.
    #[test]
    fn round_begins_with_the_last_server() {
        let mut routes = routes(&["a:1", "b:1", "c:1", "a:1"]);
        assert_eq!(all(routes.round()), ["a:1", "b:1", "c:1"]);
        routes.tries("a:1");
        assert_eq!(all(routes.round()), ["b:1", "c:1", "a:1"]);
        routes.tries("b:1");
        routes.serves("b:1");
        assert_eq!(all(routes.round()), ["b:1", "c:1", "a:1"]);
        routes.tries("b:1");
        assert_eq!(all(routes.round()), ["c:1", "a:1", "b:1"]);
    }

    /// A leader that the former one names comes first once, even if it was unknown.
    #[test]
    fn named_leader_comes_first_once() {
        let mut routes = routes(&["a:1", "b:1"]);
        routes.serves("b:1");
        routes.lead_lost(Some("x:1"));
        assert_eq!(all(routes.round()), ["x:1", "a:1", "b:1"]);
        assert_eq!(all(routes.round()), ["a:1", "b:1"]);
        routes.lead_lost(Some("unix:/run/socket:1"));
        assert_eq!(all(routes.round()), ["a:1", "b:1"]);
    }

    #[test]
    fn round_tries_each_address_once() {
        let mut round = routes(&["a:1", "b:1", "c:1"]).round();
        assert_eq!(round.next().as_deref(), Some("a:1"));
        round.name("c:1");
        assert_eq!(round.next().as_deref(), Some("c:1"));
        round.name("a:1");
        round.name("no address");
        assert_eq!(round.next().as_deref(), Some("b:1"));
        round.name("c:1");
        assert!(round.is_at_end() && round.next().is_none());
    }

    /// Danger: a node that lists or names ever new addresses keeps a client busy or grows its
    /// memory.
    #[test]
    fn addresses_are_bounded() {
        let mut routes = routes(&["a:1", "b:1"]);
        let many: Vec<String> = (0..1000).map(|number| format!("n{number}:1")).collect();
        routes.learn(&many);
        routes.learn(&many);
        let known = all(routes.round());
        assert_eq!((known.len(), &known[..3]), (MAX_NODES, &strings(&["a:1", "b:1", "n0:1"])[..]));
        let mut round = routes.round();
        many.iter().for_each(|address| round.name(address));
        assert_eq!(all(round).len(), MAX_NODES);
    }

    #[test]
    fn learned_addresses_are_those_of_the_last_answer() {
        let mut routes = routes(&["a:1"]);
        routes.learn(&strings(&["b:1", "a:1", "unix:/x:1", "b:1", "c:1"]));
        assert_eq!(all(routes.round()), ["a:1", "b:1", "c:1"]);
        routes.learn(&strings(&["d:1"]));
        assert_eq!(all(routes.round()), ["a:1", "d:1"]);
        routes.learn(&[]);
        assert_eq!(all(routes.round()), ["a:1"]);
    }

    #[test]
    fn description_of_a_round_is_bounded() {
        let mut round = Round::default();
        round.failed("a:1".into(), "closed".into());
        assert_eq!(round.failures(), "closed");
        (0..9).for_each(|_| round.failed("b:1".into(), "b:1: refused".into()));
        let failures = round.failures();
        assert!(failures.starts_with("a:1: closed, b:1: refused, "), "{failures}");
        assert!(failures.ends_with(", b:1: refused, and 2 more"), "{failures}");
    }
}
