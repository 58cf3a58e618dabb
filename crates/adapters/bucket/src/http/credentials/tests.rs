use super::*;
use futures_util::future::join_all;
use std::sync::atomic::{AtomicU32, Ordering};

/// Takes its time, and then has nothing.
struct Silent {
    asked: AtomicU32,
}

#[derive(Clone, PartialEq)]
struct Found {
    expires_secs: i64,
}

impl Source for Silent {
    type Found = Found;

    fn is_anonymous(&self) -> bool {
        false
    }

    async fn find(&self, _: &Transport) -> Result<Found, CredentialError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(ASK_AGAIN * 2).await;
        Err(CredentialError::Unavailable("no answer".into()))
    }

    fn expires_secs(found: &Found) -> Option<i64> {
        Some(found.expires_secs)
    }
}

fn provider(credentials: Option<Found>) -> Provider<Silent> {
    let provider = Provider::new(Silent { asked: AtomicU32::new(0) });
    provider.cached.try_lock().unwrap().credentials = credentials;
    provider
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Many requests need credentials that are not cached, from a service that is silent. Each would
/// wait for all before it: instead all get the first one's result together.
#[test]
fn a_silent_source_is_waited_for_once() {
    let (provider, transport) =
        (provider(None), Transport::new(1, &(Arc::new(|_: &str| None) as _), None).unwrap());
    let started = Instant::now();
    let answers = wait(join_all((0..20).map(|_| provider.current(&transport))));
    assert!(answers.iter().all(
        |answer| matches!(answer, Err(CredentialError::Unavailable(what)) if what == "no answer")
    ));
    assert_eq!(provider.source.asked.load(Ordering::Relaxed), 1);
    assert!(started.elapsed() < ASK_AGAIN * 4, "{:?}", started.elapsed());
    // The source is queried again after the interval.
    std::thread::sleep(ASK_AGAIN);
    assert!(wait(provider.current(&transport)).is_err());
    assert_eq!(provider.source.asked.load(Ordering::Relaxed), 2);
}

/// The same while the old credentials are still valid: one request waits, and the others do not
/// wait after it.
#[test]
fn a_silent_source_is_asked_once_while_the_old_ones_are_good() {
    let old = Found { expires_secs: now_secs() + 200 };
    let (provider, transport) = (
        provider(Some(old.clone())),
        Transport::new(1, &(Arc::new(|_: &str| None) as _), None).unwrap(),
    );
    let answers = wait(join_all((0..20).map(|_| provider.current(&transport))));
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Some(_)))));
    assert_eq!(provider.source.asked.load(Ordering::Relaxed), 1);
    let others = wait(join_all((0..20).map(|_| provider.other_than(&old, &transport))));
    assert!(others.iter().all(Option::is_none));
    assert!(provider.source.asked.load(Ordering::Relaxed) <= 2);
}
