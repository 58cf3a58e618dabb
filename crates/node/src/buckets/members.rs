//! Takes over the member buckets of a volume (O-24): their directories must be free in the root
//! bucket, this node must own each for writing, and a data directory continues only with the
//! members that it knows.

use crate::buckets::ask::ask;
use crate::buckets::head::{Candidate, Continues, HeadError, HeadLease, TakeOver, get};
use crate::buckets::side_by_side::Member;
use crate::names::pages::{EntryError, LARGE_PAGE_BYTES, entry_of};
use crate::recover::OpenError;
use ebb_core::backing::page_key;
use ebb_format::{crc32c, head, page};
use ebb_model::{Ino, InstalledKind};
use ebb_ports::{Bucket, BucketError, ListRequest, Ports, Signal};
use futures_util::future::{join_all, select, try_join_all};
use std::cell::Cell;
use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// The members in the order of their directories, which must differ.
pub(crate) fn in_order(mut members: Vec<Member>) -> Result<Vec<Member>, OpenError> {
    members.sort_by(|a, b| a.dir().cmp(b.dir()));
    match members.windows(2).find(|pair| pair[0].dir() == pair[1].dir()) {
        Some(pair) => Err(OpenError::TwiceAt { dir: pair[0].dir().clone() }),
        None => Ok(members),
    }
}

pub(crate) fn describe(members: &[Member]) -> Vec<String> {
    members.iter().map(Member::describe).collect()
}

/// Holds the members for writing, all at once: each may have to be waited for.
pub(crate) async fn hold(
    members: &mut [Member],
    ports: &Ports,
    candidate: &Candidate,
    take_over: TakeOver,
    volume: &str,
) -> Result<(), OpenError> {
    let waiting = Cell::new(members.len());
    let settled = Signal::default();
    let (waiting, settled) = (&waiting, &settled);
    let claims = members.iter().map(|member| {
        // A different one for each member, so that two directories over one bucket are told apart.
        let node =
            candidate.node ^ (1 << 127 | u128::from(crc32c(member.dir().as_str().as_bytes())));
        let owner = format!("{}, as {} of {volume}", candidate.owner, member.dir());
        // A member alone is not a volume that other nodes could join.
        let candidate = Candidate {
            node,
            owner,
            address: String::new(),
            members: Vec::new(),
            continues: Continues::Member,
            ..candidate.clone()
        };
        async move {
            let held =
                HeadLease::acquire(member.bucket().clone(), ports.clone(), candidate, take_over)
                    .await;
            waiting.set(waiting.get() - 1);
            settled.raise();
            if let Ok(head_lease) = &held {
                // Another bucket may take longer than the term of this one.
                select(pin!(head_lease.keep()), pin!(none_left(waiting, settled))).await;
            }
            held
        }
    });
    let held = join_all(claims).await;
    let mut refused = None;
    for (member, held) in members.iter_mut().zip(held) {
        match held {
            Ok(head_lease) => member.hold(Rc::new(head_lease)),
            Err(error) => {
                refused = refused
                    .or(Some(OpenError::Member { dir: member.dir().clone(), error: error.into() }))
            }
        }
    }
    match refused {
        None => Ok(()),
        Some(error) => {
            release(members).await;
            Err(error)
        }
    }
}

async fn none_left(waiting: &Cell<usize>, settled: &Signal) {
    while waiting.get() > 0 {
        settled.wait().await;
    }
}

/// Gives back the members that are held.
pub(crate) async fn release(members: &[Member]) {
    join_all(members.iter().filter_map(|member| {
        let head_lease = member.head_lease()?;
        Some(async move {
            if let Err(error) = head_lease.release(None).await {
                tracing::warn!(dir = %member.dir(), %error, "a bucket could not be given back: the \
                    next node waits for its term to end");
            }
        })
    }))
    .await;
}

/// Renews the heads of all members until it is dropped.
pub(crate) async fn keep(members: &[Member]) -> Infallible {
    let keeping: Vec<Infallible> =
        join_all(members.iter().filter_map(|member| Some(member.head_lease()?.keep()))).await;
    match keeping.into_iter().next() {
        Some(never) => match never {},
        None => std::future::pending().await,
    }
}

/// Refuses a new member if the root bucket has objects below the member's directory: they would no
/// longer be shown.
pub(crate) async fn check_free(
    ports: &Ports,
    patience: Duration,
    root: &dyn Bucket,
    members: &[Member],
) -> Result<(), OpenError> {
    let failed = |error| OpenError::Head(HeadError::Store { backing: root.describe(), error });
    let known = match get(ports, patience, root).await {
        // An unreadable head is refused later, by the node that takes the member over.
        Ok(object) => head::decode(&object.body).map_or_else(|_| Vec::new(), |head| head.members),
        Err(BucketError::NotFound { .. }) => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    let new: Vec<&Member> =
        members.iter().filter(|member| !known.contains(&member.describe())).collect();
    if new.is_empty() {
        return Ok(());
    }
    let key = page_key(Ino::ROOT);
    let head = match ask(ports, patience, LARGE_PAGE_BYTES, || root.get(&key, None, None)).await {
        Ok(object) => Some(page::decode(&object.body).map_err(|error| OpenError::Root {
            key: page_key(Ino::ROOT),
            what: error.to_string(),
        })?),
        Err(BucketError::NotFound { .. }) => None,
        Err(error) => return Err(failed(error)),
    };
    let looks = new.into_iter().map(|member| {
        let head = &head;
        async move {
            let below = ListRequest {
                prefix: member.prefix().into(),
                by_directory: false,
                after: None,
                limit: 1,
            };
            let object = match ask(ports, patience, 0, || root.head(member.dir().as_str())).await {
                Ok(_) => true,
                Err(BucketError::NotFound { .. }) => false,
                Err(error) => return Err(failed(error)),
            };
            let recorded = match head {
                Some(head) => {
                    let entry = entry_of((ports, patience), root, head, member.dir().name())
                        .await
                        .map_err(|error| match error {
                            EntryError::Bucket(error) => failed(error),
                            EntryError::Damage { key, what } => OpenError::Root { key, what },
                        })?;
                    // An empty directory may have been the member's before it was taken out for a
                    // while.
                    let other = |kind: &InstalledKind| {
                        !matches!(kind, InstalledKind::Directory { prefix: None, .. })
                    };
                    entry.is_some_and(|entry| other(&entry.what))
                        || head.page.hidden.iter().any(|segment| segment == member.dir().as_str())
                }
                None => false,
            };
            let listed =
                async || ask(ports, patience, 0, || root.list(below.clone())).await.map_err(failed);
            match object || recorded || !listed().await?.entries.is_empty() {
                true => {
                    Err(OpenError::NotFree { dir: member.dir().clone(), root: root.describe() })
                }
                false => Ok(()),
            }
        }
    });
    try_join_all(looks).await.map(drop)
}
