//! Leases at work: granted with answers, recalled before mutations.

use crate::Node;
use crate::clients::barrier::{Origin, Shown};
use crate::clients::leases::{InWay, Intent, Subject, Subjects};
use ebb_core::state::State;
use ebb_model::*;
use futures_util::future::select;
use std::pin::pin;
use std::time::Duration;

/// The inodes and names that a mutation changes, and the file that it reads.
#[derive(Default)]
pub(crate) struct Touched {
    inodes: Vec<Ino>,
    names: Vec<(Ino, Name)>,
    read: Option<Ino>,
    linked: Option<Ino>,
    renames: bool,
}

impl Touched {
    pub(crate) fn by(mutation: &ClientMutation) -> Touched {
        let read = match *mutation {
            ClientMutation::Copy { from, .. } => Some(from),
            _ => None,
        };
        let linked = match *mutation {
            ClientMutation::Link { ino, .. } => Some(ino),
            _ => None,
        };
        Touched {
            linked,
            inodes: mutation.directories().chain(mutation.inode()).collect(),
            names: mutation.changed_names().map(|(dir, name)| (dir, name.clone())).collect(),
            read,
            renames: matches!(mutation, ClientMutation::Rename { .. }),
        }
    }

    fn subjects(&self, state: &State) -> Subjects {
        let named =
            |(dir, name): &(Ino, Name)| Some(state.namespace().lookup(*dir, name).ok()?.ino);
        let named = self.names.iter().filter_map(named);
        let names = self.names.iter().map(|(dir, name)| Subject::name(*dir, name));
        self.inodes.iter().copied().chain(named).map(Subject::attributes).chain(names).collect()
    }
}

/// How often one that waits looks whether the holders of leases are still heard of.
const RECALL_POLL: Duration = Duration::from_millis(50);

impl Node {
    fn session_of(&self, origin: Origin) -> Option<SessionId> {
        match origin {
            Origin::Process => self.attachments.in_process(),
            Origin::Connection(connection) => self.attachments.session_of(connection),
        }
    }

    /// Whether answers may have to wait for the recall of a lease under which its holder has
    /// written.
    pub(crate) fn may_wait_for_writers(&self) -> bool {
        !self.options.embedded && self.leases.has_written()
    }

    /// Waits until no other client's caches are older than the answer. Returns whether
    /// it had to: the answer may be out of date.
    pub(crate) async fn recall_written(
        &self,
        origin: Origin,
        shown: &Shown,
        answer: &Result<Reply, RpcError>,
    ) -> bool {
        let (reader, mut subjects) = (self.session_of(origin), subjects_of(shown, answer));
        if let Ok(Reply::Directory { .. }) = answer {
            subjects.extend(self.leases.written_names(shown.subject));
        }
        let now = self.ports.clock.monotonic();
        let must_wait = self.leases.conflicts(reader, &subjects, InWay::Written, now);
        if must_wait {
            self.recall_from_others(reader, &subjects, InWay::Written).await;
        }
        must_wait
    }

    /// Makes of the answer one with leases, if the client can have them. In the step in which the
    /// answer was made of the state.
    pub(crate) fn with_leases(
        &self,
        origin: Origin,
        shown: &Shown,
        answer: Result<Reply, RpcError>,
    ) -> Result<Reply, RpcError> {
        let is_absent = answer == Err(RpcError::Refused(FsError::NotFound)) && shown.name.is_some();
        if self.options.embedded || !(is_absent || matches!(answer, Ok(Reply::Attr(_)))) {
            return answer;
        }
        let (subjects, now) = (subjects_of(shown, &answer), self.ports.clock.monotonic());
        // A client that is the only one caches everything without leases.
        let session = self.session_of(origin).filter(|session| self.attachments.shares(*session));
        let Some(session) = session.filter(|session| self.leases.grant(*session, &subjects, now))
        else {
            return answer;
        };
        if let Some(notice) = self.leases.trim(session, now) {
            self.attachments.notify(session, notice);
        }
        match answer {
            Ok(Reply::Attr(attr)) => Ok(Reply::LeasedAttr(attr)),
            _ => Ok(Reply::LeasedAbsent),
        }
    }

    /// Recalls other clients' leases of the subjects of the mutation, and waits until they have
    /// ended. Nothing new is granted until the intent is dropped.
    pub(crate) async fn recall(
        &self,
        author: SessionId,
        touched: &Touched,
        way: InWay,
    ) -> Option<Intent<'_>> {
        if self.options.embedded {
            return None;
        }
        let subjects = touched.subjects(&self.replica.view_without_backing());
        let intent = self.leases.intend(subjects.clone());
        self.recall_from_others(Some(author), &subjects, way).await;
        if let Some(ino) = touched.read.filter(|_| self.leases.has_written()) {
            let read = [Subject::attributes(ino)];
            self.recall_from_others(Some(author), &read, InWay::Written).await;
        }
        Some(intent)
    }

    async fn recall_from_others(
        &self,
        except: Option<SessionId>,
        subjects: &[Subject],
        way: InWay,
    ) {
        loop {
            let now = self.ports.clock.monotonic();
            if !self.leases.conflicts(except, subjects, way, now)
                || Planted::RecallNotAwaited.is_on()
            {
                return;
            }
            self.send_recalls(except, subjects, way);
            for session in self.leases.in_way(except, subjects, way) {
                if self.attachments.is_silent(session, now, self.options.lease_term) {
                    tracing::info!(session = session.0, "a silent client has lost its leases");
                    self.leases.lapse(session);
                }
            }
            select(pin!(self.leases.ended()), self.ports.clock.sleep(RECALL_POLL)).await;
        }
    }

    /// As [`Node::recall`], for the state on which the mutation is chosen. [`RpcError::Retry`] if
    /// leases have to be recalled that were not known of before.
    pub(crate) fn expect_recalled(
        &self,
        author: SessionId,
        touched: &Touched,
        way: InWay,
        state: &State,
    ) -> Result<Option<Intent<'_>>, RpcError> {
        if self.options.embedded {
            return Ok(None);
        }
        let (subjects, now) = (touched.subjects(state), self.ports.clock.monotonic());
        if self.leases.conflicts(Some(author), &subjects, way, now)
            && !Planted::RecallNotAwaited.is_on()
        {
            self.send_recalls(Some(author), &subjects, way);
            return Err(RpcError::Retry);
        }
        Ok(Some(self.leases.intend(subjects)))
    }

    /// The mutation of this intent has been applied.
    pub(crate) fn wrote(&self, author: SessionId, touched: &Touched, intent: Option<Intent<'_>>) {
        let Some(intent) = intent else { return };
        self.leases.wrote(author, intent.subjects());
        if let ([(from, name), (to, new_name)], true) = (&touched.names[..], touched.renames) {
            let (old, new) = (Subject::name(*from, name), Subject::name(*to, new_name));
            // An exchange moves both.
            self.leases.moved(author, &old, &new);
            self.leases.moved(author, &new, &old);
        }
        if let Some((dir, name)) = touched.linked.and_then(|ino| self.only_name_before(ino)) {
            self.attachments.notify(author, Notice::Relinked { dir, name });
        }
    }

    /// The name that the inode had when a second one was added. Clients do not cache names of files
    /// with several.
    fn only_name_before(&self, ino: Ino) -> Option<(Ino, Name)> {
        let state = self.replica.view_without_backing();
        let is_second = state.namespace().inode(ino)?.attr.nlink == 2;
        state.namespace().primary_name(ino).filter(|_| is_second)
    }

    /// A change that no client has made: the bucket's, the node's own. Nothing waits for it.
    pub(crate) fn recall_changed(&self, inodes: &[Ino], names: &[(Ino, Name)]) {
        if !self.options.embedded {
            let names = names.iter().map(|(dir, name)| Subject::name(*dir, name));
            let subjects: Subjects =
                inodes.iter().copied().map(Subject::attributes).chain(names).collect();
            self.send_recalls(None, &subjects, InWay::Granted);
        }
    }

    fn send_recalls(&self, except: Option<SessionId>, subjects: &[Subject], way: InWay) {
        let now = self.ports.clock.monotonic();
        for (session, notice) in self.leases.recall(except, subjects, way, now) {
            self.attachments.notify(session, notice);
        }
    }
}

/// The subjects that an answer shows, except the names of a listing.
fn subjects_of(shown: &Shown, answer: &Result<Reply, RpcError>) -> Subjects {
    let of_name = shown.name.as_ref().map(|name| Subject::name(shown.subject, name));
    let mut subjects: Subjects = match &of_name {
        Some(name) => [name.clone()].into_iter().collect(),
        None => [Subject::attributes(shown.subject)].into_iter().collect(),
    };
    match answer {
        Ok(Reply::Attr(attr)) if of_name.is_some() => {
            subjects.push(Subject::attributes(attr.ino));
        }
        Ok(Reply::Directory { entries, .. }) => {
            subjects.extend(entries.iter().map(|(entry, _)| Subject::attributes(entry.ino)));
        }
        _ => {}
    }
    subjects
}
