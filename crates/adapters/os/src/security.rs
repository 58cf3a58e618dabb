//! How connections over TCP are secured, and TLS over a connected socket.

use crate::net::{Connected, over_tls};
use ebb_certificates::{Credentials, explain};
use ebb_ports::NetError;

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Unix sockets are never encrypted: their permissions protect them.
#[derive(Clone, Default)]
pub enum Security {
    /// Without encryption, and for that reason to and from this machine only.
    #[default]
    LoopbackOnly,
    /// Without encryption to and from any machine.
    Insecure,
    /// TLS with certificates of both sides.
    Tls(Rc<Credentials>),
}

impl Security {
    /// The socket addresses of `host:port`. An error if this security does not allow one of them.
    pub async fn resolve(&self, address: &str) -> Result<Vec<SocketAddr>, NetError> {
        let failed = |what: String| NetError::Unreachable { address: address.into(), what };
        let found = lookup_host(address).await.map_err(|error| failed(error.to_string()))?;
        let found: Vec<SocketAddr> = found.collect();
        if found.is_empty() {
            return Err(failed("the host has no address".into()));
        }
        let is_remote = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
        match self {
            Security::LoopbackOnly if found.iter().any(is_remote) => Err(failed(
                "not a loopback address, which needs certificates: --tls DIR (see `ebb cert`), or \
                 --insecure for connections without encryption"
                    .into(),
            )),
            _ => Ok(found),
        }
    }
}

/// The handshake of a client. The node must be the host of `address`, which is `host:port`.
pub(crate) async fn connect(
    credentials: &Credentials,
    stream: TcpStream,
    address: &str,
) -> Result<Connected, NetError> {
    let failed = |what: String| NetError::Unreachable { address: address.into(), what };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| failed(format!("no certificate can be for {host:?}")))?;
    let handshake = TlsConnector::from(credentials.client()).connect(name, stream);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => Ok(over_tls(stream.into(), address.into())),
        Ok(Err(error)) => Err(failed(in_words(error))),
        Err(_) => Err(failed(late())),
    }
}

/// The handshake of a server. A peer that only connects and closes, as probes do, is
/// [`NetError::Broken`].
pub(crate) async fn accept(
    credentials: &Credentials,
    stream: TcpStream,
    peer: String,
) -> Result<Connected, NetError> {
    let failed = |peer: &dyn Display, what: String| NetError::Protocol {
        what: format!("{peer} is not accepted: {what}"),
    };
    let handshake = TlsAcceptor::from(credentials.server()).accept(stream);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => Ok(over_tls(stream.into(), peer)),
        Ok(Err(error)) if ENDS.contains(&error.kind()) => {
            Err(NetError::Broken { what: format!("{peer}: {error}") })
        }
        Ok(Err(error)) => Err(failed(&peer, in_words(error))),
        Err(_) => Err(failed(&peer, late())),
    }
}

fn in_words(error: io::Error) -> String {
    match explain(&error) {
        Some(what) => what,
        None if ENDS.contains(&error.kind()) => {
            "the peer has closed the connection during the TLS handshake: it may run without --tls"
                .into()
        }
        None => error.to_string(),
    }
}

/// How a peer without TLS ends the connection, which can lose its reason.
const ENDS: [io::ErrorKind; 3] =
    [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];

fn late() -> String {
    format!("no TLS handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())
}

/// First bytes of a record of TLS: alert or handshake, and a version. As the length of a frame they
/// would be 64 KiB at least.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 3, 1..=4, ..])
}

/// Far above a handshake over a slow network, which takes two round trips.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
