//! Store files that a node grants to mounts of other processes on its machine, so their kernel
//! reads the files past both (decision 19).
//!
//! A connection to the node's socket is one grant, and lasts as long: `version u8 | borrow u8 |
//! session u64 | inode u64`, little endian, answered with one byte, and with the descriptor if it
//! is granted. Only the user that runs the node can connect to the socket.

use ebb_cli::places::RunDir;
use ebb_client::{Grant, Grantee};
use ebb_model::{FsError, GrantRequest, Ino, RpcError, SessionId};
use ebb_node::Node;
use ebb_ports::PortFuture;
use std::cell::RefCell;
use std::fs::{File, Permissions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};

const VERSION: u8 = 1;

const ASK_BYTES: usize = 18;

/// Replies of a node.
const GRANTED: u8 = 0;
const NOT_GRANTED: u8 = 1;
const REFUSED: u8 = 2;
/// The node does not know the session.
const UNKNOWN: u8 = 3;
/// Not at the moment.
const BUSY: u8 = 4;
/// There is no such file, or the session does not have it open.
const GONE: u8 = 5;

/// Grants at one time, each of which takes a descriptor.
const MAX_GRANTS: usize = 256;

/// How long a connected process may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pause after a failed accept, so that running out of descriptors does not run hot.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often to check whether the node stops.
const LOOK: Duration = Duration::from_secs(1);

struct Ask {
    session: SessionId,
    ino: Ino,
    request: GrantRequest,
}

impl Ask {
    fn encode(&self) -> [u8; ASK_BYTES] {
        let mut bytes = [0; ASK_BYTES];
        bytes[0] = VERSION;
        let named = |(_, request): &&(u8, GrantRequest)| *request == self.request;
        bytes[1] = GRANT_REQUESTS.iter().find(named).expect("all are listed").0;
        bytes[2..10].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[10..].copy_from_slice(&self.ino.0.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; ASK_BYTES]) -> Option<Ask> {
        let number =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (_, request) = *GRANT_REQUESTS.iter().find(|(number, _)| *number == bytes[1])?;
        (bytes[0] == VERSION).then(|| Ask {
            session: SessionId(number(2)),
            ino: Ino(number(10)),
            request,
        })
    }
}

/// Daemons of earlier versions also send 1, which grants nothing.
const GRANT_REQUESTS: [(u8, GrantRequest); 4] = [
    (0, GrantRequest::Begin),
    (2, GrantRequest::Join),
    (3, GrantRequest::Expose),
    (4, GrantRequest::Resume),
];

/// Offers grants to mounts of this machine from here on.
pub fn offer(node: &Rc<Node>, run_dir: &RunDir) -> io::Result<()> {
    run_dir.sweep()?;
    let path = run_dir.loans_socket(node.run());
    // Bound under a draft name, so the final name never has other permissions than these.
    let draft = path.with_extension("new");
    let offered = Offered { listener: UnixListener::bind(&draft)?, path };
    std::fs::set_permissions(&draft, Permissions::from_mode(0o600))?;
    std::fs::rename(&draft, &offered.path)?;
    node.ports().spawn.spawn(Box::pin(accept(node.clone(), offered)));
    Ok(())
}

struct Offered {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Offered {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "{}", self.path.display());
        }
    }
}

async fn accept(node: Rc<Node>, offered: Offered) {
    let grants = Rc::new(());
    let mut failing = false;
    while !node.is_stopping() {
        let accepted = tokio::select! {
            accepted = offered.listener.accept() => accepted,
            () = tokio::time::sleep(LOOK) => continue,
        };
        let failed = accepted.is_err();
        match accepted {
            Ok((stream, _)) => {
                let (lender, slot) = (node.clone(), grants.clone());
                node.ports().spawn.spawn(Box::pin(async move {
                    let has_room = Rc::strong_count(&slot) <= MAX_GRANTS;
                    if let Err(error) = serve_grant(&lender, stream, has_room).await {
                        tracing::debug!(%error, "who wanted to borrow a file has gone");
                    }
                    drop(slot);
                }));
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "who wants to borrow a file cannot be heard");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        failing = failed;
    }
}

/// Without room no new passthrough begins.
async fn serve_grant(node: &Rc<Node>, mut stream: UnixStream, has_room: bool) -> io::Result<()> {
    // SAFETY: takes and gives plain integers.
    let own = unsafe { libc::geteuid() };
    if ![own, 0].contains(&stream.peer_cred()?.uid()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut bytes = [0; ASK_BYTES];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut bytes)).await??;
    let ask = Ask::decode(&bytes).filter(|ask| has_room || ask.request != GrantRequest::Begin);
    let Some(Ask { session, ino, request }) = ask else {
        return stream.write_all(&[NOT_GRANTED]).await;
    };
    match node.grant_to(session, ino, request).await {
        Ok(Some(file)) => {
            let told = tell(&stream, GRANTED, Some(&file)).await;
            drop(file);
            if told.is_ok() {
                // The client sends nothing more, and closes the connection some day.
                let _ = stream.read(&mut [0]).await;
            }
            node.take_back(ino);
            told
        }
        Ok(None) => tell(&stream, NOT_GRANTED, None).await,
        // The client attaches again, in the second case to the leader.
        Err(RpcError::SessionExpired | RpcError::NotLeader { .. }) => {
            tell(&stream, UNKNOWN, None).await
        }
        Err(RpcError::Retry) => tell(&stream, BUSY, None).await,
        Err(RpcError::Refused(FsError::NotFound | FsError::Stale | FsError::AccessDenied)) => {
            tell(&stream, GONE, None).await
        }
        Err(error) => {
            tracing::warn!(%ino, %error, "a file is not lent");
            tell(&stream, REFUSED, None).await
        }
    }
}

async fn tell(stream: &UnixStream, answer: u8, file: Option<&OwnedFd>) -> io::Result<()> {
    let file = file.map(AsFd::as_fd);
    stream
        .async_io(Interest::WRITABLE, || ebb_fuse::send_with_fd(stream.as_fd(), &[answer], file))
        .await
}

/// Requests grants from any run of a node on this machine.
pub fn grantee(
    run_dir: RunDir,
) -> impl Fn(Grantee, Ino, GrantRequest) -> PortFuture<'static, Result<Option<Grant>, RpcError>> {
    let found = Rc::new(RefCell::new(None));
    move |grantee, ino, request| {
        let (run_dir, found) = (run_dir.clone(), found.clone());
        Box::pin(async move {
            let known = found.borrow().clone().filter(|(run, _)| *run == grantee.run);
            let path = match known {
                Some((_, path)) => path,
                None => run_dir.lender(grantee.run).map_err(lost)?,
            };
            found.replace(Some((grantee.run, path.clone())));
            match path {
                None => Ok(None),
                Some(path) => ask(&path, Ask { session: grantee.session, ino, request }).await,
            }
        })
    }
}

fn lost(error: io::Error) -> RpcError {
    tracing::debug!(%error, "the node that lends files cannot be reached");
    RpcError::Lost
}

async fn ask(path: &Path, ask: Ask) -> Result<Option<Grant>, RpcError> {
    let mut stream = UnixStream::connect(path).await.map_err(lost)?;
    stream.write_all(&ask.encode()).await.map_err(lost)?;
    let mut answer = [0];
    let file = stream
        .async_io(Interest::READABLE, || {
            ebb_fuse::receive_with_fd(stream.as_fd(), &mut IoSliceMut::new(&mut answer))
        })
        .await;
    match (file.map_err(lost)?, answer) {
        (None, _) => Err(RpcError::Lost),
        (Some(Some(file)), [GRANTED]) => {
            let file = File::from(file);
            let metadata = file.metadata().map_err(lost)?;
            Ok(Some(
                Grant::new(file.into(), move || drop(stream))
                    .known_as(metadata.dev(), metadata.ino()),
            ))
        }
        (Some(None), [NOT_GRANTED]) => Ok(None),
        (Some(None), [UNKNOWN]) => Err(RpcError::SessionExpired),
        (Some(None), [BUSY]) => Err(RpcError::Retry),
        (Some(None), [GONE]) => Err(RpcError::Refused(FsError::Stale)),
        (Some(_), _) => Err(RpcError::Refused(FsError::Io)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_request_round_trips() {
        for (_, request) in GRANT_REQUESTS {
            let bytes =
                Ask { session: SessionId(0x0102_0304_0506_0708), ino: Ino(u64::MAX), request }
                    .encode();
            let ask = Ask::decode(&bytes).unwrap();
            assert_eq!(
                (ask.session, ask.ino, ask.request),
                (SessionId(0x0102_0304_0506_0708), Ino(u64::MAX), request)
            );
        }
    }

    #[test]
    fn grant_request_of_another_version_is_rejected() {
        let good =
            Ask { session: SessionId(1), ino: Ino(1), request: GrantRequest::Begin }.encode();
        for (at, wrong) in [(0, VERSION + 1), (0, 0), (1, 1), (1, 5), (1, u8::MAX)] {
            let mut bytes = good;
            bytes[at] = wrong;
            assert!(Ask::decode(&bytes).is_none());
        }
    }
}
