//! A proxy in front of an S3 server that injects faults. It records the effects of all requests, so
//! that leftovers can be found at the end.

use super::Fault;
use crate::Outcome;
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Delay of a late request.
const LATE: Duration = Duration::from_secs(2);

/// Polling interval of a silent connection.
const POLL: Duration = Duration::from_millis(100);

const MAX_HEAD_BYTES: u64 = 64 << 10;

#[derive(Clone)]
pub struct Proxy {
    server: String,
    state: Arc<Mutex<State>>,
}

struct State {
    fault: Option<Fault>,
    rng: Rng,
    seen: Seen,
    /// Listing replies from before the fault, by request.
    listings: BTreeMap<String, Vec<u8>>,
}

/// Totals of the requests that passed.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    pub requests: u64,
    /// Requests with an injected fault.
    pub spoiled: u64,
    /// Keys of existing objects.
    pub objects: BTreeSet<String>,
    /// Uploads that were neither completed nor aborted.
    pub uploads: BTreeSet<String>,
}

impl Proxy {
    /// Returns the endpoint to use in place of `endpoint`.
    pub fn before(endpoint: &str, seed: u64) -> Outcome<(Proxy, String)> {
        let server = endpoint.strip_prefix("http://").ok_or("the endpoint is not HTTP")?.to_owned();
        let state =
            State { fault: None, rng: Rng(seed), seen: Seen::default(), listings: BTreeMap::new() };
        let proxy = Proxy { server, state: Arc::new(Mutex::new(state)) };
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = format!("http://{}", listener.local_addr()?);
        let serving = proxy.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let proxy = serving.clone();
                // A disconnected client is no failure of the proxy.
                thread::spawn(move || proxy.serve(&client).ok());
            }
        });
        Ok((proxy, address))
    }

    pub fn set(&self, fault: Option<Fault>) {
        self.state().fault = fault;
    }

    pub fn seen(&self) -> Seen {
        self.state().seen.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards one request and its reply; the server closes the connection after it.
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        let Some(mut request) = Request::read(client)? else { return Ok(()) };
        let fault = self.draw(&request);
        // For the other faults this is decided on the reply.
        if fault.is_some_and(|fault| {
            !matches!(fault, Fault::Truncated | Fault::Garbled | Fault::StaleListings)
        }) {
            self.has_spoiled();
        }
        let answer = |bytes: &[u8]| {
            let mut client = client;
            client.write_all(bytes)
        };
        match fault {
            None => answer(&self.pass(&request)?),
            Some(Fault::InternalError) => answer(&refusal(500, "InternalError")),
            Some(Fault::SlowDown) => answer(&refusal(503, "SlowDown")),
            Some(Fault::ExpiredToken) => answer(&refusal(400, "ExpiredToken")),
            Some(Fault::ClockSkew) => answer(&refusal(403, "RequestTimeTooSkewed")),
            Some(Fault::ReadOnly) => answer(&refusal(403, "AccessDenied")),
            Some(Fault::LostUploads) => {
                self.state().seen.uploads.remove(request.query("uploadId").unwrap_or_default());
                answer(&refusal(404, "NoSuchUpload"))
            }
            Some(Fault::Gone) => Ok(()),
            Some(Fault::LostAnswers) => self.pass(&request).map(drop),
            Some(Fault::Silence) => {
                self.pass(&request)?;
                while self.state().fault == Some(Fault::Silence) {
                    thread::sleep(POLL);
                }
                Ok(())
            }
            Some(Fault::LateEffects) => {
                client.shutdown(Shutdown::Both)?;
                thread::sleep(LATE);
                self.pass(&request).map(drop)
            }
            Some(Fault::Truncated) => {
                let whole = self.pass(&request)?;
                let half = body_at(&whole).midpoint(whole.len());
                if half < whole.len() {
                    self.has_spoiled();
                }
                answer(&whole[..half])
            }
            Some(Fault::Garbled) => {
                let mut whole = self.pass(&request)?;
                let body = body_at(&whole);
                if let Some(byte) = whole
                    .len()
                    .checked_sub(body + 1)
                    .and_then(|last| whole.get_mut(body + last / 2))
                {
                    *byte ^= 1;
                    self.has_spoiled();
                }
                answer(&whole)
            }
            Some(Fault::StaleListings) => {
                let kept = self.state().listings.get(&request.target).cloned();
                let fresh = self.pass(&request)?;
                let Some(kept) = kept else { return answer(&fresh) };
                if kept[body_at(&kept)..] != fresh[body_at(&fresh)..] {
                    self.has_spoiled();
                }
                answer(&kept)
            }
            Some(Fault::Unconditional) => {
                request.conditions.clear();
                answer(&self.pass(&request)?)
            }
            Some(Fault::ConditionsRefused) => answer(&refusal(501, "NotImplemented")),
        }
    }

    /// Draws a fault for this request.
    fn draw(&self, request: &Request) -> Option<Fault> {
        let mut state = self.state();
        state.seen.requests += 1;
        let fault = state.fault.filter(|fault| fault.concerns(request))?;
        (state.rng.below(100) < fault.percent()).then_some(fault)
    }

    fn has_spoiled(&self) {
        self.state().seen.spoiled += 1;
    }

    /// The server's whole reply.
    fn pass(&self, request: &Request) -> io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(&self.server)?;
        server.write_all(
            &[&request.head[..], &request.conditions, b"Connection: close\r\n\r\n", &request.body]
                .concat(),
        )?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer)?;
        self.state().follow(request, &answer);
        Ok(answer)
    }
}

impl State {
    fn follow(&mut self, request: &Request, answer: &[u8]) {
        let done = answer.get(9..10) == Some(b"2");
        let body = String::from_utf8_lossy(&answer[body_at(answer)..]);
        if !done || body.contains("<Error>") {
            return;
        }
        let upload = request.query("uploadId");
        match (request.method.as_str(), upload) {
            ("GET", _) if request.is_listing() && self.fault.is_none() => {
                self.listings.insert(request.target.clone(), answer.to_vec());
            }
            ("POST", None) if request.query("uploads").is_some() => {
                let id = body.split("<UploadId>").nth(1).and_then(|rest| rest.split('<').next());
                self.seen.uploads.extend(id.map(str::to_owned));
            }
            ("POST", Some(upload)) => {
                self.seen.uploads.remove(upload);
                self.seen.objects.insert(request.key());
            }
            ("DELETE", Some(upload)) => {
                self.seen.uploads.remove(upload);
            }
            ("PUT", None) => {
                self.seen.objects.insert(request.key());
            }
            ("DELETE", None) => {
                self.seen.objects.remove(&request.key());
            }
            _ => {}
        }
    }
}

/// An HTTP/1.1 request with Content-Length, as ebb sends them.
pub struct Request {
    method: String,
    /// Path and query.
    target: String,
    /// The request line, and all headers that have no field here.
    head: Vec<u8>,
    /// Conditional headers.
    conditions: Vec<u8>,
    body: Vec<u8>,
}

impl Request {
    /// `None` at the end of the connection.
    fn read(client: &TcpStream) -> io::Result<Option<Request>> {
        let mut reader = BufReader::new(client.take(MAX_HEAD_BYTES));
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(None);
        }
        let mut words = first.split(' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let (method, target) = (method.to_owned(), target.to_owned());
        let (mut head, mut conditions, mut body, mut len) =
            (first.into_bytes(), Vec::new(), Vec::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? <= 2 {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    len = value.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?
                }
                "connection" => continue,
                "if-match" | "if-none-match" => {
                    conditions.extend_from_slice(line.as_bytes());
                    continue;
                }
                _ => {}
            }
            head.extend_from_slice(line.as_bytes());
        }
        reader.get_mut().set_limit(len);
        reader.take(len).read_to_end(&mut body)?;
        Ok(Some(Request { method, target, head, conditions, body }))
    }

    fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query.split('&').find_map(|pair| match pair.split_once('=') {
            Some((key, value)) => (key == name).then_some(value),
            None => (pair == name).then_some(""),
        })
    }

    pub fn is_listing(&self) -> bool {
        self.method == "GET" && self.query("list-type").is_some()
    }

    /// Downloads an object's bytes.
    pub fn is_download(&self) -> bool {
        self.method == "GET" && !self.is_listing()
    }

    pub fn is_change(&self) -> bool {
        self.method != "GET" && self.method != "HEAD"
    }

    pub fn is_conditional_change(&self) -> bool {
        self.is_change() && !self.conditions.is_empty()
    }

    /// Creates an object, by a put or by completing an upload.
    pub fn is_effect(&self) -> bool {
        match self.method.as_str() {
            "PUT" => self.query("uploadId").is_none(),
            "POST" => self.query("uploadId").is_some(),
            _ => false,
        }
    }

    /// Continues an unfinished upload.
    pub fn is_of_upload(&self) -> bool {
        matches!(self.method.as_str(), "PUT" | "POST") && self.query("uploadId").is_some()
    }

    /// The key without the bucket.
    fn key(&self) -> String {
        let path = self.target.split('?').next().unwrap_or_default().trim_start_matches('/');
        let (_, key) = path.split_once('/').unwrap_or_default();
        let mut bytes = Vec::new();
        let mut rest = key.as_bytes();
        while let [first, after @ ..] = rest {
            let escaped = after
                .get(..2)
                .filter(|_| *first == b'%')
                .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
            bytes.push(escaped.unwrap_or(*first));
            rest = if escaped.is_some() { &after[2..] } else { after };
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn body_at(answer: &[u8]) -> usize {
    answer.windows(4).position(|window| window == b"\r\n\r\n").map_or(answer.len(), |at| at + 4)
}

fn refusal(status: u16, code: &str) -> Vec<u8> {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>as \
         planned</Message></Error>"
    );
    let head = format!(
        "HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: \
         {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}
