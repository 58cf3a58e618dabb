//! SIGTERM and SIGINT, and SIGHUP for commands at a terminal: the first requests a clean end, the
//! second an end now.

use crate::failure::Failure;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// A sender that signals all processes of a mount reaches the supervisor too, which passes the
/// signal on.
const ECHO: Duration = Duration::from_millis(500);

pub struct Signals {
    ask: mpsc::UnboundedSender<()>,
    asked: mpsc::UnboundedReceiver<()>,
}

impl Signals {
    /// On the threads of a `LocalSet`.
    pub fn listen() -> Result<Signals, Failure> {
        Signals::of(None)
    }

    /// Also for the end of the terminal, unless SIGHUP is ignored, as under nohup(1).
    pub fn at_terminal() -> Result<Signals, Failure> {
        // SAFETY: sigaction is plain data, for which zeros are a value.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call only reads the disposition, and `before` is valid to write.
        let asked = unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut before) };
        let heeded = asked == -1 || before.sa_sigaction != libc::SIG_IGN;
        Signals::of(heeded.then(SignalKind::hangup))
    }

    fn of(more: Option<SignalKind>) -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::of("signals", error));
        let (mut terminate, mut interrupt) =
            (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let mut more = more.map(listen).transpose()?;
        let (ask, asked) = mpsc::unbounded_channel();
        let heard = ask.clone();
        // An echo is recognised by the time of its arrival, which can be long before the next
        // signal is waited for.
        tokio::task::spawn_local(async move {
            let mut last: Option<Instant> = None;
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = heard_of(&mut more) => {}
                }
                let is_echo =
                    last.replace(Instant::now()).is_some_and(|last| last.elapsed() < ECHO);
                if !is_echo && heard.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(Signals { ask, asked })
    }

    /// For events that count as a signal.
    pub fn ask(&self) -> impl FnOnce() + use<> {
        let ask = self.ask.clone();
        move || {
            // An error means that signals are no longer waited for.
            ask.send(()).ok();
        }
    }

    /// Completes with the next of them.
    pub async fn next(&mut self) {
        if self.asked.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

async fn heard_of(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
