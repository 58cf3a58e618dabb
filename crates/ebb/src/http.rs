//! What is counted, over HTTP: `/metrics` for Prometheus, `/counters` for `ebb stats`.
//!
//! One GET a connection, from whoever reaches the address; nothing can be changed over it.

use crate::failure::Failure;
use ebb_cli::metrics;
use ebb_fuse::Counters;
use ebb_model::{AdminReply, AdminRequest, MountStats, Reply, Request};
use ebb_node::Node;
use std::cell::Cell;
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

/// Longest answer of a mount to `ebb stats`.
const MOST_ANSWER_BYTES: u64 = 4 << 20;

/// A connection that is not over by then is closed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after a failed accept, so that running out of descriptors does not run hot.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What this process can tell of.
#[derive(Clone)]
pub struct Told {
    pub mount: Option<Rc<Counters>>,
    pub node: Option<Rc<Node>>,
}

struct Page {
    kind: &'static str,
    body: String,
}

impl Told {
    async fn page(&self, path: &str) -> Option<Page> {
        match (path, &self.mount) {
            ("/metrics", _) => {
                let mount = self.mount.as_ref().map(|counters| counters.stats());
                let node = match &self.node {
                    Some(node) => counted_by(node).await,
                    None => None,
                };
                let node = node.as_ref().map(|(stats, status)| (stats, status));
                Some(Page { kind: metrics::CONTENT_TYPE, body: metrics::text(mount.as_ref(), node) })
            }
            ("/counters", Some(mount)) => {
                let body = serde_json::to_string(&mount.stats()).expect("numbers and names are always JSON");
                Some(Page { kind: "application/json", body })
            }
            _ => None,
        }
    }
}

async fn counted_by(node: &Rc<Node>) -> Option<(ebb_model::NodeStats, ebb_model::Status)> {
    let Ok(Reply::Admin(AdminReply::Stats(stats))) = node.handle(Request::Admin(AdminRequest::Stats)).await else { return None };
    let Ok(Reply::Admin(AdminReply::Status(status))) = node.handle(Request::Admin(AdminRequest::Status)).await else { return None };
    Some((stats, status))
}

pub enum Listener {
    Tcp(TcpListener),
    /// Its path is in a directory that nobody else may enter.
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
        let failed = |error: io::Error| Failure::of(format!("cannot answer for --metrics at {address}"), error);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        tracing::info!("metrics at http://{}/metrics", listener.local_addr().map_err(failed)?);
        Ok(Listener::Tcp(listener))
    }

    /// What a dead process left at the path is replaced.
    pub fn at_path(path: PathBuf) -> io::Result<Listener> {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        Ok(Listener::Unix { listener, _socket: Socket(path) })
    }

    /// Answers for as long as the process lives.
    pub fn answer(self, told: Told) {
        tokio::task::spawn_local(self.accept(told));
    }

    async fn accept(self, told: Told) {
        let open = Rc::new(Cell::new(0));
        loop {
            let accepted = match &self {
                Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| start(stream, &told, &open)),
                Listener::Unix { listener, .. } => listener.accept().await.map(|(stream, _)| start(stream, &told, &open)),
            };
            if let Err(error) = accepted {
                tracing::warn!(%error, "a connection for metrics could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn start(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, told: &Told, open: &Rc<Cell<usize>>) {
    if open.get() == MOST_CONNECTIONS {
        return;
    }
    open.set(open.get() + 1);
    let (told, open) = (told.clone(), open.clone());
    tokio::task::spawn_local(async move {
        match tokio::time::timeout(PATIENCE, exchange(stream, &told)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection for metrics was lost"),
            Err(_) => tracing::debug!("a connection for metrics took too long"),
        }
        open.set(open.get() - 1);
    });
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, told: &Told) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= MOST_HEAD_BYTES {
            return answer(&mut stream, "431 Request Header Fields Too Large", None, true).await;
        }
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    match asked(&head) {
        None => answer(&mut stream, "400 Bad Request", None, true).await,
        Some((method, path)) => match (method, told.page(path).await) {
            ("GET" | "HEAD", Some(page)) => answer(&mut stream, "200 OK", Some(&page), method == "GET").await,
            ("GET" | "HEAD", None) => answer(&mut stream, "404 Not Found", None, method == "GET").await,
            _ => answer(&mut stream, "405 Method Not Allowed", None, true).await,
        },
    }
}

/// Method and path of the first line, if it is one of HTTP/1.
fn asked(head: &[u8]) -> Option<(&str, &str)> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let well_formed = version.starts_with("HTTP/1.") && target.starts_with('/') && words.next().is_none();
    well_formed.then(|| (method, target.split('?').next().unwrap_or(target)))
}

async fn answer(stream: &mut (impl AsyncWrite + Unpin), status: &str, page: Option<&Page>, with_body: bool) -> io::Result<()> {
    let refusal = format!("{status}\n");
    let (kind, body) = page.map_or(("text/plain", refusal.as_str()), |page| (page.kind, page.body.as_str()));
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    if with_body {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await
}

/// Asks a mount for what it has counted.
pub async fn mount_stats(socket: &Path) -> io::Result<MountStats> {
    let asking = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(b"GET /counters HTTP/1.1\r\nHost: ebb\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.take(MOST_ANSWER_BYTES).read_to_end(&mut answer).await?;
        let body_at = answer.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4);
        match body_at {
            Some(at) if answer.starts_with(b"HTTP/1.1 200 ") => Ok(serde_json::from_slice(&answer[at..])?),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it gives another answer")),
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
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
