//! A client of a scripted node.

use ebb_client::{Client, ClientPorts, LocalLink, Options};
use ebb_model::*;
use ebb_ports::{Clock, Entropy, PortFuture, Spawn};
use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, mpsc};

struct World(Instant, Cell<u64>);

impl Clock for World {
    fn wall(&self) -> Time {
        Time::from_secs(0)
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> PortFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

impl Entropy for World {
    fn next_u64(&self) -> u64 {
        self.1.set(self.1.get() + 1);
        self.1.get()
    }
}

impl Spawn for World {
    fn spawn(&self, task: PortFuture<'static, ()>) {
        drop(tokio::task::spawn_local(task));
    }
}

/// The first reply.
pub fn attached() -> Reply {
    Reply::Attached(Attached {
        session: SessionId(1),
        cluster: ClusterId(1),
        incarnation: Incarnation(1),
        start: 1,
        fresh: true,
        recovered: LogIndex(0),
        sole: false,
        cache_term_ms: 0,
        read_only: false,
        session_term_ms: 60_000,
        lease_term_ms: 0,
        nodes: Vec::new(),
    })
}

/// In a local set of tokio.
pub async fn client(answer: impl Fn(Request) -> Result<Reply, RpcError> + 'static) -> Client {
    slow_client(|_| Duration::ZERO, answer).await
}

/// Of a node that delays each reply by `pause`.
pub async fn slow_client(
    pause: impl Fn(&Request) -> Duration + 'static,
    answer: impl Fn(Request) -> Result<Reply, RpcError> + 'static,
) -> Client {
    notified_client(mpsc::unbounded_channel().1, pause, answer).await
}

/// The same, of a node that sends these notices.
pub async fn notified_client(
    notices: mpsc::UnboundedReceiver<Notice>,
    pause: impl Fn(&Request) -> Duration + 'static,
    answer: impl Fn(Request) -> Result<Reply, RpcError> + 'static,
) -> Client {
    let (notices, answer) = (Rc::new(Mutex::new(notices)), Rc::new(answer));
    let world = Rc::new(World(Instant::now(), Cell::new(0)));
    let ports = ClientPorts { clock: world.clone(), entropy: world.clone(), spawn: world };
    let link = LocalLink::new(
        move |request| {
            let (answer, pause) = (answer.clone(), pause(&request));
            Box::pin(async move {
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
                answer(request)
            })
        },
        move |_| {
            let notices = notices.clone();
            Box::pin(async move {
                let next = notices.lock().await.recv().await;
                // The session lasts beyond its last notice.
                if next.is_none() { pending().await } else { next }
            })
        },
    );
    Client::attach(Rc::new(link), ports, Options::new("ebb", "scripted")).await.unwrap()
}
