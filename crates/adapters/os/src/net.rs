//! Frames over TCP and unix sockets: `length u32, little endian | frame` (`docs/protocol/rpc.md`).

use crate::descriptors;
use crate::security::{self, Security, is_tls};
use bytes::{Bytes, BytesMut};
use ebb_certificates::{Credentials, explain};
use ebb_format::rpc::MAX_MESSAGE_BYTES;
use ebb_ports::{
    Connection, FrameReceiver, FrameSender, Listener, MAX_FRAME_BYTES, Net, NetError, PortFuture,
};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

// The transport must carry every message that the format allows.
const _: () = assert!(MAX_MESSAGE_BYTES == MAX_FRAME_BYTES);

/// Addresses are `host:port`, or `unix:/path` for sockets that only the listening user can reach.
#[derive(Clone, Default)]
pub struct OsNet {
    security: Security,
}

impl OsNet {
    pub fn new(security: Security) -> OsNet {
        OsNet { security }
    }
}

pub(crate) type Connected = Box<dyn Connection>;

impl Net for OsNet {
    fn connect(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>> {
        let address = address.to_string();
        Box::pin(async move {
            if let Some(path) = address.strip_prefix(UNIX) {
                let stream = UnixStream::connect(path)
                    .await
                    .map_err(|error| unreachable(&address, error))?;
                return Ok(over_unix(stream, address));
            }
            let found = self.security.resolve(&address).await?;
            let connect = TcpStream::connect(&found[..]);
            let stream = match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
                Ok(result) => result.map_err(|error| unreachable(&address, error))?,
                Err(_) => {
                    return Err(NetError::Unreachable {
                        address,
                        what: format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
                    });
                }
            };
            tune(&stream).map_err(|error| broken(&address, error))?;
            match &self.security {
                Security::LoopbackOnly | Security::Insecure => Ok(over_tcp(stream, address)),
                Security::Tls(credentials) => {
                    security::connect(credentials, stream, &address).await
                }
            }
        })
    }

    fn listen(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Listener>, NetError>> {
        let address = address.to_string();
        Box::pin(async move {
            if let Some(path) = address.strip_prefix(UNIX) {
                let listener =
                    listen_at(Path::new(path)).map_err(|error| unreachable(&address, error))?;
                let listener: Box<dyn Listener> =
                    Box::new(AcceptingLocally { listener, path: path.into(), short: false });
                return Ok(listener);
            }
            if let Security::Tls(credentials) = &self.security {
                credentials.check_serves().map_err(|error| NetError::Unreachable {
                    address: address.clone(),
                    what: error.to_string(),
                })?;
            }
            let found = self.security.resolve(&address).await?;
            let listener = TcpListener::bind(&found[..])
                .await
                .map_err(|error| unreachable(&address, error))?;
            let bound = listener.local_addr().map_err(|error| unreachable(&address, error))?;
            let (address, short) = (bound.to_string(), false);
            let listener: Box<dyn Listener> = match &self.security {
                Security::LoopbackOnly | Security::Insecure => {
                    Box::new(Accepting { listener, address, short })
                }
                Security::Tls(credentials) => Box::new(AcceptingTls {
                    listener,
                    address,
                    short,
                    credentials: credentials.clone(),
                    handshakes: JoinSet::new(),
                }),
            };
            Ok(listener)
        })
    }
}

/// Prefix of a unix socket's address.
const UNIX: &str = "unix:";

/// Binds a socket that only its owner can connect to, and replaces the socket of a dead process at
/// the path.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let draft = path.with_extension("new");
    for old in [&draft, path] {
        match std::fs::remove_file(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // The socket gets its name only after its permissions, so no client finds it with other ones.
    let listener = UnixListener::bind(&draft)?;
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&draft, path)?;
    Ok(listener)
}

struct Accepting {
    listener: TcpListener,
    address: String,
    /// The last connection was accepted with a descriptor of the reserve.
    short: bool,
}

impl Listener for Accepting {
    fn accept(&mut self) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>> {
        Box::pin(async {
            loop {
                let (stream, peer) = accept(&self.address, &mut self.short, |context| {
                    self.listener.poll_accept(context)
                })
                .await?;
                match tune(&stream) {
                    Ok(()) => return Ok(over_tcp(stream, peer.to_string())),
                    Err(error) => tracing::debug!("{peer}: {error}"),
                }
            }
        })
    }

    fn shortage(&mut self) -> Option<String> {
        descriptors::shortage(self.short)
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

/// Clients shake hands beside each other, so a slow one holds up itself alone.
struct AcceptingTls {
    listener: TcpListener,
    address: String,
    /// The last connection was accepted with a descriptor of the reserve.
    short: bool,
    credentials: Rc<Credentials>,
    /// At most [`MAX_HANDSHAKES`], each with the value of `short` for its connection.
    handshakes: JoinSet<(Result<Connected, NetError>, bool)>,
}

impl Listener for AcceptingTls {
    fn accept(&mut self) -> PortFuture<'_, Result<Connected, NetError>> {
        Box::pin(async {
            let AcceptingTls { listener, address, short, credentials, handshakes } = self;
            loop {
                let mut is_short = false;
                let has_room = handshakes.len() < MAX_HANDSHAKES;
                tokio::select! {
                    Some(done) = handshakes.join_next() => match done {
                        Ok((Ok(connection), was_short)) => {
                            *short = was_short;
                            return Ok(connection);
                        }
                        Ok((Err(error @ NetError::Broken { .. }), _)) => {
                            tracing::debug!("{error}")
                        }
                        Ok((Err(error), _)) => tracing::warn!("{error}"),
                        Err(error) => tracing::error!(%error, "a TLS handshake"),
                    },
                    accepted = accept(address, &mut is_short, |context| {
                        listener.poll_accept(context)
                    }), if has_room => {
                        let (stream, peer) = accepted?;
                        if let Err(error) = tune(&stream) {
                            tracing::debug!("{peer}: {error}");
                            continue;
                        }
                        let credentials = credentials.clone();
                        handshakes.spawn_local(async move {
                            let peer = peer.to_string();
                            (security::accept(&credentials, stream, peer).await, is_short)
                        });
                    }
                }
            }
        })
    }

    fn shortage(&mut self) -> Option<String> {
        descriptors::shortage(self.short)
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

struct AcceptingLocally {
    listener: UnixListener,
    path: PathBuf,
    short: bool,
}

impl Listener for AcceptingLocally {
    fn accept(&mut self) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>> {
        Box::pin(async {
            let address = self.address();
            let (stream, _) =
                accept(&address, &mut self.short, |context| self.listener.poll_accept(context))
                    .await?;
            Ok(over_unix(stream, address))
        })
    }

    fn shortage(&mut self) -> Option<String> {
        descriptors::shortage(self.short)
    }

    fn address(&self) -> String {
        format!("{UNIX}{}", self.path.display())
    }
}

impl Drop for AcceptingLocally {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!("{}: {error}", self.path.display());
        }
    }
}

/// The next connection. If the process has no descriptor left, it accepts with one of the reserve
/// and sets `short`, so that `ebb status` still gets a reply.
async fn accept<T>(
    address: &str,
    short: &mut bool,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>,
) -> Result<T, NetError> {
    loop {
        let mut result = poll_fn(&mut poll).await;
        *short = matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EMFILE));
        if *short {
            match poll_fn(|context| Poll::Ready(descriptors::beyond(|| poll(context)))).await {
                Poll::Ready(beyond) => result = beyond,
                Poll::Pending => continue,
            }
        }
        match result {
            Ok(connection) => return Ok(connection),
            Err(error) => pass_over(address, error).await?,
        }
    }
}

/// Returns `Ok` if the listener can continue after a failed accept.
async fn pass_over(address: &str, error: io::Error) -> Result<(), NetError> {
    match error.raw_os_error() {
        // Errors of a connection that went away while it was queued; accept(2) lists them.
        Some(
            libc::ECONNABORTED
            | libc::ECONNRESET
            | libc::EINTR
            | libc::EPERM
            | libc::EPROTO
            | libc::ENETDOWN
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ENONET
            | libc::ENOPROTOOPT,
        ) => Ok(()),
        // Shortages of this process. Stopping the listener would turn a shortage into an outage.
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            tracing::debug!("{address}: cannot accept a connection: {error}; trying again");
            tokio::time::sleep(SHORTAGE_PAUSE).await;
            Ok(())
        }
        _ => Err(NetError::Broken { what: format!("{address}: {error}") }),
    }
}

fn over_tcp(stream: TcpStream, peer: String) -> Connected {
    let (read, write) = stream.into_split();
    Box::new(Halves { read, write, peer })
}

pub(crate) fn over_tls(stream: TlsStream<TcpStream>, peer: String) -> Connected {
    let (read, write) = tokio::io::split(stream);
    Box::new(Halves { read, write: TlsWrite(write), peer })
}

/// Dropping it closes its direction, as dropping the half of a socket does.
struct TlsWrite(WriteHalf<TlsStream<TcpStream>>);

impl Drop for TlsWrite {
    fn drop(&mut self) {
        // If the socket takes no more bytes, the peer sees a broken connection instead of a close.
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(Err(error)) = Pin::new(&mut self.0).poll_shutdown(&mut context) {
            tracing::debug!(%error, "a TLS connection was not closed");
        }
    }
}

impl AsyncWrite for TlsWrite {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

fn over_unix(stream: UnixStream, peer: String) -> Box<dyn Connection> {
    let (read, write) = stream.into_split();
    Box::new(Halves { read, write, peer })
}

/// A connection over a byte stream. Dropping `write` must close that direction.
struct Halves<R, W> {
    read: R,
    write: W,
    peer: String,
}

impl<R: AsyncRead + Unpin + 'static, W: AsyncWrite + Unpin + 'static> Connection for Halves<R, W> {
    fn split(self: Box<Self>) -> (Box<dyn FrameSender>, Box<dyn FrameReceiver>) {
        let sender = Sender { write: self.write, peer: self.peer.clone(), whole: true };
        (Box::new(sender), Box::new(Receiver::new(self.read, self.peer)))
    }
}

/// Dropping it signals the end of the frames to the peer.
struct Sender<W> {
    write: W,
    peer: String,
    /// The last frame was sent completely. A failed or dropped send can leave half a frame on the
    /// wire, and the peer would read any later bytes as its rest.
    whole: bool,
}

impl<W: AsyncWrite + Unpin> FrameSender for Sender<W> {
    fn send(&mut self, parts: Vec<Bytes>) -> PortFuture<'_, Result<(), NetError>> {
        Box::pin(async move {
            let len: usize = parts.iter().map(Bytes::len).sum();
            if len > MAX_FRAME_BYTES {
                return Err(NetError::Protocol {
                    what: format!("not sent to {}: {}", self.peer, too_long(len)),
                });
            }
            if !self.whole {
                return Err(NetError::Broken {
                    what: format!("{}: an earlier frame was sent only in part", self.peer),
                });
            }
            self.whole = false;
            let length = (len as u32).to_le_bytes();
            let mut slices = vec![IoSlice::new(&length)];
            slices.extend(
                parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)),
            );
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                match self.write.write_vectored(rest).await {
                    Ok(0) => return Err(broken(&self.peer, io::ErrorKind::WriteZero.into())),
                    Ok(written) => IoSlice::advance_slices(&mut rest, written),
                    Err(error) => return Err(broken(&self.peer, error)),
                }
            }
            // TLS buffers the bytes that the socket does not take at once.
            self.write.flush().await.map_err(|error| broken(&self.peer, error))?;
            self.whole = true;
            Ok(())
        })
    }
}

pub(crate) struct Receiver<R> {
    pub(crate) read: R,
    pub(crate) peer: String,
    /// Received bytes of the next frames. They are kept here and not in the future, so a dropped
    /// receive loses nothing.
    pub(crate) buffer: BytesMut,
    /// No frame has arrived yet. The first frame is short, and the first bytes of TLS would be a
    /// large frame length: so a peer that speaks TLS is recognised.
    first: bool,
}

impl<R> Receiver<R> {
    pub(crate) fn new(read: R, peer: String) -> Receiver<R> {
        Receiver { read, peer, buffer: BytesMut::new(), first: true }
    }
}

impl<R: AsyncRead + Unpin> FrameReceiver for Receiver<R> {
    fn receive(&mut self) -> PortFuture<'_, Result<Option<Bytes>, NetError>> {
        Box::pin(async {
            loop {
                let missing = match self.buffer.first_chunk() {
                    None => LENGTH_BYTES,
                    Some(length) if self.first && is_tls(length) => {
                        return Err(NetError::Protocol {
                            what: format!(
                                "{} uses TLS, this end does not: --tls is missing here",
                                self.peer
                            ),
                        });
                    }
                    Some(&length) => {
                        let len = u32::from_le_bytes(length) as usize;
                        if len > MAX_FRAME_BYTES {
                            return Err(NetError::Protocol {
                                what: format!("{} sent {}", self.peer, too_long(len)),
                            });
                        }
                        if self.buffer.len() >= LENGTH_BYTES + len {
                            self.first = false;
                            let mut frame = self.buffer.split_to(LENGTH_BYTES + len);
                            return Ok(Some(frame.split_off(LENGTH_BYTES).freeze()));
                        }
                        LENGTH_BYTES + len - self.buffer.len()
                    }
                };
                self.buffer.reserve(missing.max(READ_BYTES));
                match self.read.read_buf(&mut self.buffer).await {
                    Ok(0) if self.buffer.is_empty() => return Ok(None),
                    Ok(0) => {
                        return Err(NetError::Broken {
                            what: format!("{} closed in the middle of a frame", self.peer),
                        });
                    }
                    Ok(_) => {}
                    Err(error) => return Err(broken(&self.peer, error)),
                }
            }
        })
    }
}

const LENGTH_BYTES: usize = 4;

/// Capacity for one read of many small frames.
const READ_BYTES: usize = 16 << 10;

/// Timeout of one connection attempt. The caller decides how long to retry.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Handshakes at one time; further clients wait in the queue of the socket. Each takes less than
/// 64 KiB and ends after [`security::HANDSHAKE_TIMEOUT`].
const MAX_HANDSHAKES: usize = 1024;

/// Long enough not to spin, short enough for a client not to notice.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// TCP keep-alive: a probe after 15 s of silence, then 3 probes every 5 s. A vanished host is
/// detected after about 30 s, below any session's term.
const KEEP_ALIVE_IDLE_SECS: i32 = 15;
const KEEP_ALIVE_INTERVAL_SECS: i32 = 5;
const KEEP_ALIVE_PROBES: i32 = 3;

/// The same limit for bytes that are sent and never acknowledged.
const UNACKNOWLEDGED_MS: i32 = 30_000;

fn tune(stream: &TcpStream) -> io::Result<()> {
    // A frame is always written whole: waiting for more bytes only adds 40 ms (Nagle's algorithm
    // with delayed acknowledgements).
    stream.set_nodelay(true)?;
    let fd = stream.as_raw_fd();
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEP_ALIVE_IDLE_SECS)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEP_ALIVE_INTERVAL_SECS)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEP_ALIVE_PROBES)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
}

fn set_option(fd: i32, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of `value`.
    let result = unsafe {
        libc::setsockopt(
            fd,
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn unreachable(address: &str, error: io::Error) -> NetError {
    NetError::Unreachable { address: address.into(), what: error.to_string() }
}

fn broken(peer: &str, error: io::Error) -> NetError {
    let what = explain(&error).unwrap_or_else(|| error.to_string());
    NetError::Broken { what: format!("{peer}: {what}") }
}

fn too_long(len: usize) -> String {
    format!("a frame of {len} bytes, more than the {MAX_FRAME_BYTES} that are allowed")
}
