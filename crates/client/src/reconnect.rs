//! Keeps the session: attach, renewal, attach again with replay, and the tasks that receive the
//! node's notices.

use crate::backoff::Backoff;
use crate::call::Failure;
use crate::client::{AttachError, Attachment, ClientPorts, Identity, Options, Shared};
use crate::handover::Served;
use crate::journal::Operation;
use crate::leases::{NAME_TERM, Recall};
use crate::link::{Link, LinkEvent};
use crate::mutate::Unanswered;
use crate::references::answer_reference_queries;
use crate::session::Slots;
use ebb_model::{
    Attached, ClientMutation, ClusterId, FsError, LogIndex, Mutate, Notice, Planted, Reply,
    Request, RpcError, SessionId,
};
use futures_util::future::{Either, join_all, select};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Attaches for the first time, to the session that an earlier process has `left`, if any. Returns
/// the time at which the answered request was sent.
pub(crate) async fn first_attach(
    link: &dyn Link,
    ports: &ClientPorts,
    options: &Options,
    left: Option<SessionId>,
) -> Result<(Attached, Duration), AttachError> {
    let began = ports.clock.monotonic();
    let mut deadline = ports.clock.sleep(options.attach_timeout);
    let mut backoff = Backoff::new();
    loop {
        let sent = ports.clock.monotonic();
        let answer =
            match select(link.call(attach_request(options, left, None)), &mut deadline).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => return Err(AttachError::TimedOut(options.attach_timeout)),
            };
        let error = match answer {
            Ok(Reply::Attached(attached)) => return Ok((attached, sent)),
            Ok(_) => return Err(AttachError::Protocol),
            Err(RpcError::Denied(why)) => return Err(AttachError::Denied(why)),
            Err(RpcError::Refused(error)) => return Err(AttachError::Denied(error.to_string())),
            Err(RpcError::Lost) => AttachError::Unreachable(link.trouble()),
            Err(RpcError::NotLeader { .. }) => AttachError::NoLeader(link.trouble()),
            Err(error) => AttachError::Unreachable(error.to_string()),
        };
        if ports.clock.monotonic().saturating_sub(began) >= CONNECT_PATIENCE {
            return Err(error);
        }
        backoff.pause(ports).await;
    }
}

/// A session's term, but never so short that the client would do nothing but renew it.
pub(crate) fn term(attached: &Attached) -> Duration {
    Duration::from_millis(u64::from(attached.session_term_ms)).max(SHORTEST_TERM)
}

/// Zero if the node grants no leases.
pub(crate) fn lease_term(attached: &Attached) -> Duration {
    Duration::from_millis(attached.lease_term_ms.into())
}

pub(crate) fn cache_term(attached: &Attached) -> Option<Duration> {
    (attached.cache_term_ms > 0).then(|| Duration::from_millis(attached.cache_term_ms.into()))
}

/// Resumes the session of a dead process, in the state that it has `left`. Declares to the node the
/// open files, and the locks if the node has restarted since.
pub(crate) async fn take_up(shared: &Rc<Shared>, left: Served) -> Result<(), AttachError> {
    let Identity { session, start, incarnation, .. } = shared.identity.get();
    // A node in this process has always restarted, but has everything that it answered: only its
    // process died, not the machine.
    let restarted = shared.link.is_local() || left.start != start;
    // A request without an answer may be in the log without its bytes. Only a process that has the
    // bytes could repeat it in time.
    let owed = left.undurable || shared.has_inherited_requests();
    if restarted && !shared.link.is_local() && (owed || left.incarnation != incarnation) {
        return Err(AttachError::Lost(
            "its node has started anew, and may have lost what it had answered",
        ));
    }
    let told = async {
        call_until_accepted(shared, Request::ResumeSession { session }).await?;
        declare_opens(shared, session, IfRefused::Stale).await?;
        if restarted {
            shared.locks.forgotten();
            reclaim_locks(shared, session).await?;
        } else if let Reply::Forced { durable } =
            call_until_accepted(shared, Request::SyncFs { session }).await?
        {
            // Answers to the previous process cannot be repeated, so they had to be forced.
            shared.journal.durable(durable);
            shared.journal.begin();
        }
        shared.allow_handover(start, incarnation);
        call_until_accepted(shared, Request::Renew { session }).await
    };
    match told.await {
        Ok(_) => Ok(()),
        Err(Failure::Rpc(error @ RpcError::Denied(_))) => {
            tracing::error!(%error, "the session of the process before cannot be taken up");
            Err(AttachError::Lost("the node does not let it go on"))
        }
        Err(Failure::Silent | Failure::Rpc(RpcError::Lost)) => {
            Err(AttachError::Unreachable(shared.link.trouble()))
        }
        // The session may be gone, or another connection may have it. The next attach gets the
        // exact error.
        Err(Failure::Rpc(error)) => Err(AttachError::Unreachable(error.to_string())),
    }
}

/// Reports that every inode that was not declared open is closed.
pub(crate) fn report_closed(shared: &Rc<Shared>) {
    spawn_until_ended(shared, {
        let shared = shared.clone();
        async move {
            let patience = Some(within_term(&shared));
            if let Err(error) =
                shared.ask_patiently(patience, |session| Request::OpensDeclared { session }).await
            {
                tracing::warn!(%error, "files without a name that were being closed are kept until \
                    the mount ends");
            }
        }
    });
}

/// Starts to receive notices. Answers may be queued behind them.
pub(crate) fn start_listening(shared: &Rc<Shared>) {
    spawn_until_ended(shared, listen(shared.clone()));
}

/// Starts the other tasks of a client. All end with it.
pub(crate) fn start(shared: &Rc<Shared>) {
    spawn_until_ended(shared, keep(shared.clone()));
    spawn_until_ended(shared, drop_caches(shared.clone(), shared.is_taking_up()));
    spawn_until_ended(shared, answer_reference_queries(shared.clone()));
    if shared.others() {
        spawn_until_ended(shared, return_leases(shared.clone(), shared.is_taking_up()));
    }
    if !shared.link.is_local() {
        spawn_until_ended(shared, watch_term(shared.clone()));
        spawn_until_ended(shared, watch_lease_term(shared.clone()));
    }
}

fn spawn_until_ended(shared: &Rc<Shared>, task: impl Future<Output = ()> + 'static) {
    let owner = shared.clone();
    shared.spawn(async move {
        select(pin!(task), pin!(owner.ended())).await;
    });
}

/// Renews the session, and attaches again whenever a renewal or another request fails.
async fn keep(shared: Rc<Shared>) {
    // A node in this process may answer at once, for ever, so the end is checked here too.
    while !shared.has_ended() {
        match shared.attachment() {
            Some(attachment) => {
                let due = (shared.last_ack_at.get() + renewal_interval(&shared))
                    .saturating_sub(shared.ports.clock.monotonic());
                if let Either::Left(_) =
                    select(shared.ports.clock.sleep(due), pin!(shared.interrupted())).await
                {
                    renew(&shared, attachment).await;
                }
            }
            None => attach_again(&shared).await,
        }
    }
}

fn renewal_interval(shared: &Shared) -> Duration {
    match shared.leases.term() {
        lease_term if lease_term.is_zero() || shared.link.is_local() => shared.term.get() / 3,
        lease_term => shared.term.get().min(lease_term) / 3,
    }
}

async fn renew(shared: &Shared, attachment: Attachment) {
    let sent = shared.ports.clock.monotonic();
    match shared
        .send(Request::Renew { session: attachment.session }, Some(within_term(shared)))
        .await
    {
        Ok(_) => {
            shared.hears_of_node(sent);
            shared.caching.heard();
        }
        Err(Failure::Rpc(RpcError::Retry)) => {
            shared.ports.clock.sleep(shared.term.get() / 12).await
        }
        Err(failure) => {
            tracing::info!(?failure, "the session could not be renewed");
            shared.broken(attachment);
        }
    }
}

async fn attach_again(shared: &Rc<Shared>) {
    let mut backoff = Backoff::new();
    tracing::info!(why = shared.link.trouble(), "not attached any more: attaching again");
    loop {
        let known = shared.identity.get();
        let sent = shared.ports.clock.monotonic();
        // A client that returns in time is admitted at once. A new session is not: the node waits
        // until the sessions of clients that died without detaching expire.
        let in_time = sent < shared.last_ack_at.get() + shared.term.get();
        let patience =
            if in_time { within_term(shared) } else { shared.term.get() + CONNECT_PATIENCE };
        let answer = shared
            .send(
                attach_request(&shared.options, Some(known.session), Some(known.cluster)),
                Some(patience),
            )
            .await;
        let outcome = match answer {
            Ok(Reply::Attached(attached)) => adopt(shared, attached, sent).await,
            Ok(_) => Err(Failure::Rpc(RpcError::NotServing("a reply of the wrong kind".into()))),
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok(()) => return,
            Err(Failure::Rpc(RpcError::Denied(why))) => {
                tracing::error!(%why, "the node refuses to let this client attach again: every \
                    operation fails from now on");
                return shared.end();
            }
            Err(failure) => {
                tracing::debug!(?failure, why = shared.link.trouble(), "attaching again failed")
            }
        }
        backoff.pause(&shared.ports).await;
    }
}

/// Resumes work under the node's answer to an attach: first the operations that the node may have
/// lost, then everything else.
async fn adopt(shared: &Rc<Shared>, attached: Attached, sent: Duration) -> Result<(), Failure> {
    if !shared.link.is_local() {
        shared.quiet().await;
    }
    let before = shared.identity.get();
    let now = Identity::of(&attached);
    let fresh = attached.fresh || now.session != before.session;
    let restarted = now.start != before.start;
    shared.identity.set(now);
    shared.term.set(term(&attached));
    shared.cache_term.set(cache_term(&attached));
    shared.leases.set_term(lease_term(&attached));
    end_leases(shared);

    let mut doubtful = Vec::new();
    if now.incarnation != before.incarnation {
        doubtful = shared.journal.clear();
    } else if restarted {
        shared.journal.rewind();
    }
    if fresh {
        let slots = Rc::new(Slots::new(attached.session));
        doubtful.append(&mut shared.journal.renumber(attached.recovered, || slots.for_replay()));
        shared.slots.replace(slots).end();
        // Other clients may have held the locks since, and changed the protected data.
        let lost = shared.lose_locks(attached.session);
        let locked = |operation: &Operation| {
            operation.locked || operation.mutation.rewrites().is_some_and(|ino| lost.contains(&ino))
        };
        doubtful.append(&mut shared.journal.withdraw(locked));
    } else if restarted {
        shared.locks.forgotten();
        // The log has kept this session, and earlier sessions precede it there. Their bytes need
        // not have been forced, and cannot be sent again under those sessions.
        let earlier = shared.journal.withdraw(|operation| operation.tx.session != now.session);
        doubtful.extend(
            earlier.into_iter().filter(|operation| operation.mutation.rewrites().is_some()),
        );
    }
    for operation in &doubtful {
        shared.blame(&operation.mutation, operation.replay.ino, FsError::Io);
    }
    if fresh || restarted {
        shared.open_table.undeclare();
    }
    shared.caching.attached(attached.sole);
    shared.hears_of_node(sent);
    tracing::info!(
        session = attached.session.0,
        fresh,
        restarted,
        unanswered = doubtful.len(),
        to_replay = shared.journal.lost(),
        "attached again"
    );

    // Before the replay, so that open inodes survive an unlink. After it, for inodes that it has
    // created.
    declare_opens(shared, now.session, IfRefused::Later).await?;
    replay(shared, now.session, attached.recovered).await?;
    reclaim_locks(shared, now.session).await?;
    if shared.unanswered_resolved_for.get() != now.start {
        resolve_unanswered(shared, now.session).await?;
        shared.unanswered_resolved_for.set(now.start);
    }
    declare_opens(shared, now.session, IfRefused::Stale).await?;
    let told = shared.opens_declared_to.get();
    if told != (now.session, now.start) {
        if told.1 != now.start {
            shared.renew_grants().await;
        }
        if !shared.is_taking_up() {
            // According to its log the node may still have files open that were closed since.
            call_until_accepted(shared, Request::OpensDeclared { session: now.session }).await?;
        }
        shared.opens_declared_to.set((now.session, now.start));
    }
    match fresh {
        true => shared.forbid_handover(),
        false => shared.allow_handover(now.start, now.incarnation),
    }
    // Other clients wait until everything is repeated.
    call_until_accepted(shared, Request::Renew { session: now.session }).await?;
    shared.set_attached(now.session);
    Ok(())
}

/// Repeats, in the order of the log, the operations that the node may have lost. The session table
/// tells which of them it has.
async fn replay(
    shared: &Rc<Shared>,
    session: SessionId,
    recovered: LogIndex,
) -> Result<(), Failure> {
    let mut closed = Vec::new();
    if Planted::LostNotRepeated.is_on() {
        shared.journal.clear();
    }
    while let Some(operation) = shared.journal.first_lost() {
        let mut mutation = operation.mutation.clone();
        // A caller without an answer still needs the file open, even if another answer has shown
        // the file.
        let is_open = |ino, asked| {
            shared.open_table.is_promised(ino)
                || asked && shared.unanswered.borrow().contains_key(&operation.tx)
        };
        match (&mut mutation, operation.replay.ino) {
            (ClientMutation::Make { open, .. }, Some(ino)) => *open = is_open(ino, *open),
            // A later operation may give the file its name.
            (ClientMutation::Tmpfile { .. }, Some(ino)) if !is_open(ino, true) => closed.push(ino),
            _ => {}
        }
        let request = Request::Mutate(Box::new(Mutate {
            tx: operation.tx,
            caller: operation.caller,
            mutation,
            replay: Some(operation.replay),
        }));
        let refused = match call_until_accepted(shared, request).await {
            Ok(Reply::Mutated(mutated, _)) => {
                shared.journal.first_done(recovered, Some(&mutated));
                continue;
            }
            // The slot has carried this operation and a later one, so nothing of it is missing.
            Err(Failure::Rpc(RpcError::Misordered)) => {
                shared.journal.first_done(recovered, None);
                continue;
            }
            Ok(_) => "a reply of the wrong kind".into(),
            Err(Failure::Rpc(RpcError::Refused(error))) => error.to_string(),
            Err(Failure::Rpc(RpcError::Denied(why))) => why,
            Err(failure) => return Err(failure),
        };
        tracing::error!(
            error = refused,
            "an operation that the node had lost could not be repeated"
        );
        shared.blame(&operation.mutation, operation.replay.ino, FsError::Io);
        shared.journal.first_refused();
    }
    for ino in closed {
        call_until_accepted(shared, Request::Close { session, ino, count: 1 }).await?;
    }
    Ok(())
}

/// Repeats the requests that an earlier run got and did not answer. If one was executed, its bytes
/// may be lost too, and must be back before other clients read the file. If it was not, it waits
/// together with all new mutations. Its caller gets the answer later.
async fn resolve_unanswered(shared: &Rc<Shared>, session: SessionId) -> Result<(), Failure> {
    let asked: Vec<_> =
        shared.unanswered.borrow().iter().map(|(tx, doubt)| (*tx, doubt.clone())).collect();
    for (tx, Unanswered { caller, mutation, .. }) in
        asked.into_iter().filter(|(tx, _)| tx.session == session)
    {
        let request = Request::Mutate(Box::new(Mutate { tx, caller, mutation, replay: None }));
        match shared.send(request, Some(within_term(shared))).await {
            Ok(Reply::Mutated(mutated, _)) => {
                if let Some(doubt) = shared.unanswered.borrow_mut().get_mut(&tx) {
                    doubt.kept_until = doubt.kept_until.max(mutated.index);
                }
            }
            Ok(_)
            | Err(Failure::Rpc(RpcError::Retry | RpcError::Refused(_) | RpcError::Misordered)) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// Reclaims the locks that were held before the node restarted. Other clients wait until that is
/// done.
async fn reclaim_locks(shared: &Rc<Shared>, session: SessionId) -> Result<(), Failure> {
    let reclaims = match Planted::LocksNotReclaimed.is_on() {
        true => Vec::new(),
        false => shared.reclaims(session),
    };
    for some in reclaims.chunks(RECLAIMS_AT_ONCE) {
        let answers =
            join_all(some.iter().map(|(_, request)| call_until_accepted(shared, request.clone())))
                .await;
        for ((party, request), answer) in some.iter().zip(answers) {
            match answer {
                Ok(_) => {}
                Err(Failure::Rpc(RpcError::Refused(error))) => {
                    tracing::error!(ino = %party.0, %error, "a lock is lost: it could not be \
                        reclaimed");
                    shared.lose_lock(*party, request);
                }
                Err(failure) => return Err(failure),
            }
        }
    }
    shared.locks.reclaimed();
    Ok(())
}

enum IfRefused {
    /// The replay may create the inode.
    Later,
    /// The inode is gone.
    Stale,
}

async fn declare_opens(
    shared: &Rc<Shared>,
    session: SessionId,
    if_refused: IfRefused,
) -> Result<(), Failure> {
    if Planted::OpensNotDeclared.is_on() {
        return Ok(());
    }
    for inodes in shared.open_table.undeclared().chunks(OPENS_AT_ONCE) {
        let answers = join_all(
            inodes
                .iter()
                .map(|ino| call_until_accepted(shared, Request::Open { session, ino: *ino })),
        )
        .await;
        for (ino, answer) in inodes.iter().zip(answers) {
            match (answer, &if_refused) {
                (Ok(reply), _) => {
                    shared.declared(*ino, matches!(reply, Reply::Opened { passthrough: true }))
                }
                (Err(Failure::Rpc(RpcError::Refused(_))), IfRefused::Later) => {}
                (Err(Failure::Rpc(RpcError::Refused(_))), IfRefused::Stale) => {
                    shared.errors.set(*ino, FsError::Stale)
                }
                (Err(failure), _) => return Err(failure),
            }
        }
    }
    Ok(())
}

/// How long requests that keep the session wait for an answer. A node that has vanished is tried
/// again while the session lives.
pub(crate) fn within_term(shared: &Shared) -> Duration {
    shared.options.request_timeout.min(shared.term.get() / 3)
}

/// Sends until the node accepts the request.
async fn call_until_accepted(shared: &Shared, request: Request) -> Result<Reply, Failure> {
    let mut backoff = Backoff::new();
    loop {
        match shared.send(request.clone(), Some(within_term(shared))).await {
            Err(Failure::Rpc(RpcError::Retry)) => backoff.pause(&shared.ports).await,
            answer => return answer,
        }
    }
}

/// Receives the node's notices. Waits for nothing else, because answers may be queued behind them.
async fn listen(shared: Rc<Shared>) {
    loop {
        match shared.link.event().await {
            LinkEvent::Notice(Notice::Durable { durable }) => {
                // While attaching again indices are about to change their meaning.
                if shared.attachment().is_some() {
                    shared.journal.durable(durable);
                }
            }
            LinkEvent::Notice(Notice::DropCaches) => {
                shared.caching.share();
                // Other terms count from here on.
                shared.hears_of_node(shared.last_ack_at.get());
            }
            LinkEvent::Notice(Notice::Recall { recall, inos, names }) => {
                shared.leases.recall(recall, Recall::Some { inos, names });
            }
            LinkEvent::Notice(Notice::Invalidate { ino }) => shared.caching.invalidate(ino),
            LinkEvent::Notice(Notice::Relinked { dir, name }) => shared.caching.relinked(dir, name),
            LinkEvent::Notice(Notice::Lock { wait }) => shared.lock_news(wait),
            LinkEvent::Notice(Notice::ReferenceQuery { query, inos }) => {
                shared.references.ask(query, inos)
            }
            LinkEvent::Notice(Notice::Leaving) => {
                tracing::info!("the node stops: waiting for it or its successor")
            }
            LinkEvent::Lost => {
                if let Some(attachment) = shared.attachment() {
                    shared.broken(attachment);
                }
            }
        }
    }
}

/// Has caches dropped, and reports it to a node that waits for it.
async fn drop_caches(shared: Rc<Shared>, of_before: bool) {
    if of_before {
        // The user's inherited requests are answered first. A user that gets a change notice before
        // the answer to the same change may take it for a foreign change.
        let answered = shared.taken_up.until(|| (!shared.is_taking_up()).then_some(()));
        select(pin!(answered), shared.ports.clock.sleep(ANSWERS_FIRST)).await;
        if shared.others() {
            // The user has caches, even if no handler that can drop them is registered yet.
            shared.caching.changed.until(|| shared.caching.handler()).await;
            shared.caching.drop_all();
        }
    }
    loop {
        let drops = shared.caching.changed.until(|| shared.caching.take()).await;
        if let Some(handler) = shared.caching.handler().filter(|_| !Planted::CachesKept.is_on()) {
            for change in drops.changes {
                handler(change, shared.caching.rule()).await;
            }
        }
        shared.caching.dropped();
        if drops.answer {
            let patience = Some(shared.options.request_timeout);
            if let Err(error) =
                shared.ask_patiently(patience, |session| Request::CachesDropped { session }).await
            {
                tracing::warn!(%error, "the node does not take that this client has given up \
                    caching");
            }
        }
    }
}

/// Drops recalled leases from the user's caches, and returns them. A task of its own: dropping
/// other caches waits for requests of the user, and such a request can wait for a recall.
async fn return_leases(shared: Rc<Shared>, of_before: bool) {
    if of_before {
        // The user has caches, even if no handler that can drop them is registered yet.
        shared.leases.handled().await;
    }
    loop {
        let (recall, what) = shared.leases.next().await;
        if let Some(handler) = shared.leases.handler().filter(|_| !Planted::ReturnedEarly.is_on()) {
            handler(what).await;
        }
        if recall.is_none() {
            let names_until = shared.leases.names_until();
            let left = names_until.saturating_sub(shared.ports.clock.monotonic());
            shared.ports.clock.sleep(left).await;
        }
        let patience = Some(within_term(&shared));
        let returned = |session| Request::LeasesReturned { session, recall };
        match shared.ask_patiently(patience, returned).await {
            Ok(_) if recall.is_none() => shared.leases.all_returned(),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the node does not take leases back");
                shared.ports.clock.sleep(RETURN_PAUSE).await;
            }
        }
    }
}

/// Ends leases of another attachment, or of an earlier process: names may be cached under them.
pub(crate) fn end_leases(shared: &Shared) {
    shared.leases.end_before(shared.ports.clock.monotonic() + NAME_TERM * 11 / 10);
}

/// Gives up leases when the node has not answered for the lease term: it takes them back then.
async fn watch_lease_term(shared: Rc<Shared>) {
    loop {
        let left = leased_until(&shared).saturating_sub(shared.ports.clock.monotonic());
        if left.is_zero() && !Planted::LeaseOutlivesTerm.is_on() {
            shared.leases.expire();
        }
        let pause = shared.leases.term().max(SHORTEST_TERM) / DRIFT;
        shared.ports.clock.sleep(if left.is_zero() { pause } else { left }).await;
    }
}

/// The time until which the node takes no lease of this client for ended.
pub(crate) fn leased_until(shared: &Shared) -> Duration {
    let term = shared.leases.term();
    shared.last_ack_at.get() + (term - term / DRIFT)
}

/// Gives up caching when the node has not answered for the session's term: it may admit other
/// clients after that.
async fn watch_term(shared: Rc<Shared>) {
    loop {
        let left = sure_until(&shared).saturating_sub(shared.ports.clock.monotonic());
        if left.is_zero() {
            shared.caching.fence();
        }
        shared.ports.clock.sleep(left.max(shared.term.get() / DRIFT)).await;
    }
}

/// The time until which the node admits no other client without asking this one.
pub(crate) fn sure_until(shared: &Shared) -> Duration {
    let term = shared.term.get();
    shared.last_ack_at.get() + (term - term / DRIFT)
}

fn attach_request(
    options: &Options,
    previous: Option<SessionId>,
    cluster: Option<ClusterId>,
) -> Request {
    Request::Attach {
        volume: options.volume.clone(),
        client: options.name.clone(),
        previous,
        read_only: options.read_only,
        cluster: cluster.or(options.cluster),
    }
}

/// Pause after leases could not be returned.
const RETURN_PAUSE: Duration = Duration::from_millis(100);

/// How long a resumed client keeps caches, so that inherited requests can be answered before the
/// drop.
const ANSWERS_FIRST: Duration = Duration::from_secs(1);

/// How long a first attach tries to find a node at all. No attach is given up sooner.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

const SHORTEST_TERM: Duration = Duration::from_secs(1);

/// The part of the term that is left for clocks of different speed and for dropping caches.
const DRIFT: u32 = 8;

/// Opens that are declared side by side after a restart.
const OPENS_AT_ONCE: usize = 64;

/// The same for locks that are reclaimed.
const RECLAIMS_AT_ONCE: usize = 16;
