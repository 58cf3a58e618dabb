//! Counters over HTTP: `/metrics` for Prometheus, `/healthz` and `/readyz` for orchestrators, and
//! for the user of the mount `/counters` for `ebb stats` and `/profile` for `ebb profile`.
//!
//! One GET per connection, open to every process that can reach the address; nothing can be changed
//! over it.

use crate::failure::Failure;
use ebb_cli::metrics;
use ebb_fuse::{Counters, ProfileUnderWay};
use ebb_model::{AdminReply, AdminRequest, MountStats, Profile, Reply, Request};
use ebb_node::{Host, Node};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// Connections at one time; more are closed at once.
const MOST_CONNECTIONS: usize = 16;

/// Longest head of a request.
const MOST_HEAD_BYTES: usize = 8 << 10;

/// Longest answer of a mount: that of a profile has most.
const MOST_ANSWER_BYTES: u64 = 32 << 20;

/// A connection that takes longer to send its request or to read the reply is closed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after a failed accept, so that running out of descriptors does not run hot.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The sources of counters in this process.
#[derive(Clone)]
pub struct Metrics {
    pub mount: Option<Rc<Counters>>,
    pub node: Option<Rc<Node>>,
    /// A node of a replicated volume.
    pub host: Option<Rc<Host>>,
}

struct Page {
    kind: &'static str,
    body: String,
}

/// The origin of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// Every process that can reach the address of `--metrics`.
    Address,
    /// The user of the mount.
    Socket,
}

enum Answer {
    Page(Page),
    /// Operations from the time of the request on.
    Profile(Rc<Counters>),
    Unready,
    Nothing,
}

impl Answer {
    fn ok() -> Answer {
        Answer::Page(Page { kind: "text/plain", body: "ok\n".into() })
    }
}

impl Metrics {
    async fn page(&self, path: &str, from: From) -> Answer {
        match (path, from, &self.mount) {
            ("/metrics", ..) => {
                let mount = self.mount.as_ref().map(|counters| counters.stats());
                let leading = self.host.as_ref().and_then(|host| host.leading());
                let node = match self.node.clone().or(leading) {
                    Some(node) => counted_by(&node).await,
                    None => None,
                };
                let node = node.as_ref().map(|(stats, status)| (stats, status));
                let replica = self.host.as_ref().map(|host| host.stats());
                Answer::Page(Page {
                    kind: metrics::CONTENT_TYPE,
                    body: metrics::text(mount.as_ref(), node, replica.as_ref()),
                })
            }
            ("/healthz", ..) => Answer::ok(),
            ("/readyz", ..) => match &self.host {
                Some(host) if !host.stats().has_leader => Answer::Unready,
                _ => Answer::ok(),
            },
            ("/counters", From::Socket, Some(mount)) => {
                Answer::Page(Page { kind: "application/json", body: json(&mount.stats()) })
            }
            ("/profile", From::Socket, Some(mount)) => Answer::Profile(mount.clone()),
            _ => Answer::Nothing,
        }
    }
}

async fn counted_by(node: &Rc<Node>) -> Option<(ebb_model::NodeStats, ebb_model::Status)> {
    let Ok(Reply::Admin(AdminReply::Stats(stats))) =
        node.handle(Request::Admin(AdminRequest::Stats)).await
    else {
        return None;
    };
    let Ok(Reply::Admin(AdminReply::Status(status))) =
        node.handle(Request::Admin(AdminRequest::Status)).await
    else {
        return None;
    };
    Some((*stats, *status))
}

pub enum Listener {
    Tcp(TcpListener),
    /// Its path is in a directory that only this user may enter.
    Unix {
        listener: UnixListener,
        _socket: Socket,
    },
}

/// The name of a socket, which goes with it.
pub struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!("{}: {error}", self.0.display());
        }
    }
}

impl Listener {
    pub async fn at_address(address: &str) -> Result<Listener, Failure> {
        let failed = |error: io::Error| {
            Failure::of(format!("cannot answer for --metrics at {address}"), error)
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        tracing::info!("metrics at http://{}/metrics", listener.local_addr().map_err(failed)?);
        Ok(Listener::Tcp(listener))
    }

    /// Replaces a socket that a dead process left at the path.
    pub fn at_path(path: PathBuf) -> io::Result<Listener> {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        Ok(Listener::Unix { listener, _socket: Socket(path) })
    }

    /// Answers for as long as the process lives.
    pub fn answer(self, told: Metrics) {
        tokio::task::spawn_local(self.accept(told));
    }

    async fn accept(self, told: Metrics) {
        let open = Rc::new(Cell::new(0));
        let mut failing = false;
        loop {
            let accepted = match &self {
                Listener::Tcp(listener) => listener
                    .accept()
                    .await
                    .map(|(stream, _)| start(stream, &told, &open, From::Address)),
                Listener::Unix { listener, .. } => listener
                    .accept()
                    .await
                    .map(|(stream, _)| start(stream, &told, &open, From::Socket)),
            };
            let failed = accepted.is_err();
            if let Err(error) = accepted {
                if !failing {
                    tracing::warn!(%error, "connections for metrics cannot be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            failing = failed;
        }
    }
}

fn start(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    told: &Metrics,
    open: &Rc<Cell<usize>>,
    from: From,
) {
    if open.get() == MOST_CONNECTIONS {
        return;
    }
    open.set(open.get() + 1);
    let (told, open) = (told.clone(), open.clone());
    tokio::task::spawn_local(async move {
        if let Err(error) = exchange(stream, &told, from).await {
            tracing::debug!(%error, "a connection for metrics was lost");
        }
        open.set(open.get() - 1);
    });
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    told: &Metrics,
    from: From,
) -> io::Result<()> {
    let mut head = Vec::new();
    if !in_time(read_head(&mut stream, &mut head)).await? {
        return Ok(());
    }
    let (status, page, with_body) = match asked(&head) {
        _ if head_end(&head).is_none() => ("431 Request Header Fields Too Large", None, true),
        None => ("400 Bad Request", None, true),
        Some((method, path)) => match (method, told.page(path, from).await) {
            ("GET", Answer::Profile(counters)) => return profile(&mut stream, &counters).await,
            ("GET" | "HEAD", Answer::Page(page)) => ("200 OK", Some(page), method == "GET"),
            ("GET" | "HEAD", Answer::Unready) => ("503 Service Unavailable", None, method == "GET"),
            ("GET" | "HEAD", Answer::Nothing) => ("404 Not Found", None, method == "GET"),
            _ => ("405 Method Not Allowed", None, true),
        },
    };
    in_time(answer(&mut stream, status, page, with_body)).await
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Reads up to the end of the head, or until it is too long; false if the other side has closed
/// before.
async fn read_head(stream: &mut (impl AsyncRead + Unpin), head: &mut Vec<u8>) -> io::Result<bool> {
    while head_end(head).is_none() && head.len() < MOST_HEAD_BYTES {
        if stream.read_buf(head).await? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The start of the body.
fn head_end(message: &[u8]) -> Option<usize> {
    message.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4)
}

/// Takes a profile from now until the other side closes its half of the connection, or is gone.
async fn profile(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    counters: &Rc<Counters>,
) -> io::Result<()> {
    let Some(under_way) = ProfileUnderWay::begin(counters) else {
        return in_time(answer(stream, "409 Conflict", None, true)).await;
    };
    in_time(stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n",
    ))
    .await?;
    let mut more = [0; 64];
    while stream.read(&mut more).await? > 0 {}
    let body = json(&under_way.end());
    in_time(async {
        stream.write_all(body.as_bytes()).await?;
        stream.shutdown().await
    })
    .await
}

fn json(told: &impl serde::Serialize) -> String {
    serde_json::to_string(told).expect("numbers and names are always JSON")
}

/// Method and path of the first line, if it is one of HTTP/1.
fn asked(head: &[u8]) -> Option<(&str, &str)> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let well_formed =
        version.starts_with("HTTP/1.") && target.starts_with('/') && words.next().is_none();
    well_formed.then(|| (method, target.split('?').next().unwrap_or(target)))
}

async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    status: &str,
    page: Option<Page>,
    with_body: bool,
) -> io::Result<()> {
    let Page { kind, body } =
        page.unwrap_or_else(|| Page { kind: "text/plain", body: format!("{status}\n") });
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    if with_body {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await
}

/// Requests a mount's counters.
pub async fn mount_stats(socket: &Path) -> io::Result<MountStats> {
    in_time(async { read_json(ask(socket, "/counters").await?).await }).await
}

/// A profile that a mount takes.
pub struct Profiling(UnixStream);

impl Profiling {
    /// The profile has begun when this returns.
    pub async fn begin(socket: &Path) -> io::Result<Profiling> {
        in_time(ask(socket, "/profile")).await.map(Profiling)
    }

    pub async fn end(mut self) -> io::Result<Profile> {
        in_time(async {
            self.0.shutdown().await?;
            read_json(self.0).await
        })
        .await
    }
}

/// Sends a request, and returns the connection once the head of a good answer has arrived.
async fn ask(socket: &Path, path: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).await?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nHost: ebb\r\nConnection: close\r\n\r\n").as_bytes(),
        )
        .await?;
    // Byte by byte: bytes behind the head must not be consumed.
    let mut head = Vec::new();
    while head_end(&head).is_none() && head.len() <= MOST_HEAD_BYTES {
        head.push(stream.read_u8().await?);
    }
    match head.get(..b"HTTP/1.1 200".len()) {
        Some(b"HTTP/1.1 200") => Ok(stream),
        Some(b"HTTP/1.1 409") => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "a profile of it is being taken already",
        )),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it gives another answer")),
    }
}

async fn read_json<T: serde::de::DeserializeOwned>(stream: UnixStream) -> io::Result<T> {
    let mut body = Vec::new();
    stream.take(MOST_ANSWER_BYTES).read_to_end(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_requests_are_understood() {
        assert_eq!(asked(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Some(("GET", "/metrics")));
        assert_eq!(asked(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), Some(("GET", "/metrics")));
        for odd in [
            &b"\r\n\r\n"[..],
            b"GET\r\n\r\n",
            b"GET /\r\n\r\n",
            b"GET / HTTP/2\r\n\r\n",
            b"GET / / HTTP/1.1\r\n\r\n",
            b"\xff / HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(asked(odd), None, "{odd:?}");
        }
    }
}
