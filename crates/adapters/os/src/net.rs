//! Frames over TCP and unix sockets: `length u32, little endian | frame` (`docs/protocol/rpc.md`).

use crate::descriptors;
use bytes::{Bytes, BytesMut};
use ebb_format::rpc::MAX_MESSAGE_BYTES;
use ebb_ports::{
    Connection, FrameReceiver, FrameSender, Listener, MAX_FRAME_BYTES, Net, NetError, PortFuture,
};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

// The transport must carry every message that the format allows.
const _: () = assert!(MAX_MESSAGE_BYTES == MAX_FRAME_BYTES);

/// Addresses are `host:port`, or `unix:/path` for sockets that only the listening user can reach.
pub struct OsNet;

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
            let stream =
                match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&address)).await {
                    Ok(result) => result.map_err(|error| unreachable(&address, error))?,
                    Err(_) => {
                        return Err(NetError::Unreachable {
                            address,
                            what: format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
                        });
                    }
                };
            over_tcp(stream, address)
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
            let listener =
                TcpListener::bind(&address).await.map_err(|error| unreachable(&address, error))?;
            let bound = listener.local_addr().map_err(|error| unreachable(&address, error))?;
            let listener: Box<dyn Listener> =
                Box::new(Accepting { listener, address: bound.to_string(), short: false });
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
                match over_tcp(stream, peer.to_string()) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => tracing::debug!("{error}"),
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

fn over_tcp(stream: TcpStream, peer: String) -> Result<Box<dyn Connection>, NetError> {
    tune(&stream).map_err(|error| broken(&peer, error))?;
    let (read, write) = stream.into_split();
    Ok(Box::new(Halves { read, write, peer }))
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
        (
            Box::new(sender),
            Box::new(Receiver { read: self.read, peer: self.peer, buffer: BytesMut::new() }),
        )
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
}

impl<R: AsyncRead + Unpin> FrameReceiver for Receiver<R> {
    fn receive(&mut self) -> PortFuture<'_, Result<Option<Bytes>, NetError>> {
        Box::pin(async {
            loop {
                let missing = match self.buffer.first_chunk() {
                    None => LENGTH_BYTES,
                    Some(&length) => {
                        let len = u32::from_le_bytes(length) as usize;
                        if len > MAX_FRAME_BYTES {
                            return Err(NetError::Protocol {
                                what: format!("{} sent {}", self.peer, too_long(len)),
                            });
                        }
                        if self.buffer.len() >= LENGTH_BYTES + len {
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
    NetError::Broken { what: format!("{peer}: {error}") }
}

fn too_long(len: usize) -> String {
    format!("a frame of {len} bytes, more than the {MAX_FRAME_BYTES} that are allowed")
}
