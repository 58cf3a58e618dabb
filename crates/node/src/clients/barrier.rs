//! The commit barrier: an answer to a client on another machine leaves once a power cut of the
//! node can no longer take back what the answer shows.
//!
//! Laws:
//! - An answer waits for the objects that it shows, and for nothing else. A refused mutation waits
//!   for all commands so far, as any of them can be its reason.
//! - Bytes that another client has written are forced before they are shown. After that reading
//!   them costs nothing.
//! - The only client of a node repeats its own operations after a power cut. Its answers wait for
//!   the ids of found inodes alone, which it cannot repeat.
//! - A client in the node's process waits for nothing: a power cut ends it too.
//! - In a replicated volume every answer waits for the commit of what it shows or has done: it can
//!   be lost with the lead of this node.

use crate::Node;
use crate::clients::attachments::ConnectionId;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Where a request comes from.
#[derive(Clone, Copy)]
pub(crate) enum Origin {
    /// A client in the node's process.
    Process,
    /// A client on another machine, which survives a power cut of the node.
    Connection(ConnectionId),
}

/// What the answer to a request shows.
pub(crate) struct Shown {
    pub subject: Ino,
    /// Also bytes of the file.
    pub bytes: bool,
    /// A name that was looked up in the directory.
    pub name: Option<Name>,
}

impl Shown {
    /// `None` if the answer shows no state.
    pub(crate) fn of(request: &Request) -> Option<Shown> {
        let (subject, bytes) = match *request {
            Request::Lookup { parent: ino, .. }
            | Request::GetAttr { ino }
            | Request::Access { ino, .. }
            | Request::ReadLink { ino }
            | Request::ReadDir { dir: ino, .. }
            | Request::GetXattr { ino, .. }
            | Request::ListXattr { ino }
            | Request::Seek { ino, .. } => (ino, false),
            Request::Read { ino, .. } => (ino, true),
            _ => return None,
        };
        let name = match request {
            Request::Lookup { name, .. } => Some(name.clone()),
            _ => None,
        };
        Some(Shown { subject, bytes, name })
    }

    /// The objects that the answer shows. A command that gives a name to an inode changes the inode
    /// too, so a name that is found needs no look at its directory.
    fn objects(&self, answer: &Result<Reply, RpcError>) -> Vec<Ino> {
        let children: Vec<Ino> = match answer {
            _ if Planted::BarrierForgetsChildren.is_on() => Vec::new(),
            Ok(Reply::Attr(attr) | Reply::LeasedAttr(attr)) => return vec![attr.ino],
            Ok(Reply::Directory { entries, .. }) => {
                entries.iter().map(|(entry, _)| entry.ino).collect()
            }
            _ => Vec::new(),
        };
        let subject = Some(self.subject).filter(|_| !Planted::BarrierForgetsSubject.is_on());
        subject.into_iter().chain(children).collect()
    }
}

/// The clients that have written the bytes which are not forced yet. Of a file without an entry
/// they are not known.
#[derive(Default)]
pub(crate) struct UnforcedWriters {
    files: RefCell<BTreeMap<Ino, Writers>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writers {
    One(SessionId),
    Several,
}

impl UnforcedWriters {
    /// The session is about to write to the file. `all_forced`: all earlier bytes are forced.
    fn writes(&self, ino: Ino, session: SessionId, all_forced: bool) {
        let mut files = self.files.borrow_mut();
        let stays = all_forced || files.get(&ino) == Some(&Writers::One(session));
        files.insert(ino, if stays { Writers::One(session) } else { Writers::Several });
    }

    /// Bytes of the file are there whose writer is not known.
    pub(crate) fn unknown(&self, ino: Ino) {
        self.files.borrow_mut().remove(&ino);
    }

    fn is_only(&self, ino: Ino, session: Option<SessionId>) -> bool {
        let writers = self.files.borrow().get(&ino).copied();
        session.is_some_and(|session| writers == Some(Writers::One(session)))
    }

    /// Forgets the files that this does not hold for.
    pub(crate) fn retain(&self, is_unforced: impl Fn(Ino) -> bool) {
        self.files.borrow_mut().retain(|ino, _| is_unforced(*ino));
    }
}

impl Node {
    /// Waits until a power cut cannot take back what this answer shows.
    pub(crate) async fn commit_shown(
        &self,
        connection: ConnectionId,
        shown: Option<Shown>,
        answer: &Result<Reply, RpcError>,
    ) -> Result<(), RpcError> {
        let tells = match answer {
            Ok(_) => shown.is_some(),
            Err(error) => matches!(error, RpcError::Refused(_)),
        };
        // Over a connection the node of a single mount gets commands of its owner alone.
        if !tells || self.options.embedded {
            return Ok(());
        }
        if !self.attachments.is_shared() && self.replica.own_node().is_none() {
            if self.replica.durable() < self.names.found() {
                self.force_log().await?;
            }
            return Ok(());
        }
        if let Some(Shown { subject, bytes: true, .. }) = shown
            && answer.is_ok()
            && self.force_bytes_of_others(subject, self.attachments.session_of(connection)).await?
        {
            return Ok(());
        }
        let can_be_lost = match &shown {
            Some(shown) => self.replica.shows_uncommitted(shown.objects(answer)),
            None => self.replica.durable() < self.replica.written(),
        };
        if can_be_lost {
            self.force_log().await?;
        }
        Ok(())
    }

    /// Forces the file, and the log, if it has unforced bytes of other clients. Returns whether it
    /// had.
    pub(crate) async fn force_bytes_of_others(
        &self,
        ino: Ino,
        session: Option<SessionId>,
    ) -> Result<bool, RpcError> {
        let shows = self.store.has_unforced_writes(ino)
            && !self.unforced_writers.is_only(ino, session)
            && !Planted::UnforcedBytesShown.is_on();
        if shows {
            self.fsync(ino).await?;
        }
        Ok(shows)
    }

    /// Waits until a mutation can be answered. `must_force`: the mutation cannot be replayed.
    pub(crate) async fn commit_mutation(
        &self,
        origin: Origin,
        session: SessionId,
        must_force: bool,
    ) -> Result<(), RpcError> {
        // Another client would act on the change, or the client would replay it too late.
        let is_shared = !self.attachments.is_alone(session) && !Planted::SharedNotForced.is_on();
        match origin {
            _ if self.options.ack_durable => self.force_all().await.map(drop),
            // Another node may lead next, and has what is committed.
            _ if self.replica.own_node().is_some() => self.force_log().await.map(drop),
            Origin::Connection(_) if is_shared || must_force || self.has_firm_under_way() => {
                self.force_log().await.map(drop)
            }
            Origin::Connection(_) | Origin::Process => Ok(()),
        }
    }

    /// The session is about to write bytes of the file.
    pub(crate) fn note_writer(&self, ino: Ino, session: SessionId) {
        if !self.options.embedded {
            self.unforced_writers.writes(ino, session, !self.store.has_unforced_writes(ino));
        }
    }

    /// Whether the node may lack bytes of the file that a client has yet to repeat. They are shown,
    /// changed and uploaded once it has come back, or its session has ended.
    pub(crate) fn lacks_bytes(&self, ino: Ino) -> bool {
        let unforced = self.unforced.borrow();
        self.attachments.awaits_any()
            && unforced.writers(ino).any(|session| self.attachments.awaits(session))
            && !Planted::LackingBytesShown.is_on()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(5);
    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    /// Danger: bytes of another client are taken for the reader's own, which it would repeat.
    #[test]
    fn only_own_bytes_are_read_without_a_force() {
        let writers = UnforcedWriters::default();
        assert!(!writers.is_only(FILE, Some(A)), "bytes of an earlier run have no known writer");
        writers.writes(FILE, A, false);
        assert!(!writers.is_only(FILE, Some(A)), "bytes of an earlier run are there still");
        writers.writes(FILE, A, true);
        assert!(writers.is_only(FILE, Some(A)) && !writers.is_only(FILE, Some(B)));
        assert!(!writers.is_only(FILE, None));
        writers.writes(FILE, B, false);
        assert!(!writers.is_only(FILE, Some(A)) && !writers.is_only(FILE, Some(B)));
        writers.writes(FILE, B, false);
        assert!(!writers.is_only(FILE, Some(B)), "the bytes of the other are still not forced");
        writers.writes(FILE, B, true);
        assert!(writers.is_only(FILE, Some(B)));
        writers.writes(FILE, B, false);
        assert!(writers.is_only(FILE, Some(B)));
        writers.unknown(FILE);
        writers.writes(FILE, B, false);
        assert!(!writers.is_only(FILE, Some(B)), "stores that were found are there still");
        writers.retain(|_| false);
        assert!(!writers.is_only(FILE, Some(B)));
    }
}
