//! Kills and stops daemons while a history runs.

use crate::Outcome;
use crate::rig::Rig;
use crate::rng::Rng;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// SIGKILL for the daemon of a mount that has joined.
    Kill,
    /// SIGSTOP for any daemon, and SIGCONT.
    Stop,
    /// SIGKILL for the daemon of the first mount, which serves the others.
    Restart,
}

/// The events of a run, and the times that they keep.
pub struct Chaos {
    events: Vec<Event>,
    rng: Rng,
    killed_at: Vec<Option<Instant>>,
    done: u64,
}

/// A supervisor gives a mount up if many daemons in a row live less than 10 s.
const BETWEEN_KILLS: Duration = Duration::from_secs(11);

/// Within the term of a session.
const LONGEST_STOP_MS: u64 = 500;

/// The time until an event, in which a history has begun.
const LONGEST_DELAY_US: u64 = 20_000;

impl Chaos {
    pub fn new(events: Vec<Event>, mounts: usize, seed: u64) -> Chaos {
        Chaos { events, rng: Rng(seed), killed_at: vec![None; mounts], done: 0 }
    }

    pub fn is_calm(&self) -> bool {
        self.events.is_empty()
    }

    /// The number of events so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Causes one event in every second call, with the first mount as `rigs[0]`. A daemon that is
    /// being replaced is spared.
    pub fn strike(&mut self, rigs: &[Rig]) -> Outcome<()> {
        if self.is_calm() || self.rng.below(2) == 0 {
            return Ok(());
        }
        let event = self.events[self.rng.below(self.events.len() as u64) as usize];
        let joined = 1 + self.rng.below(rigs.len() as u64 - 1) as usize;
        let victim = match event {
            Event::Kill => joined,
            Event::Restart => 0,
            Event::Stop => self.rng.below(rigs.len() as u64) as usize,
        };
        std::thread::sleep(Duration::from_micros(self.rng.below(LONGEST_DELAY_US)));
        if event == Event::Stop {
            let Ok(stopped) = rigs[victim].signal_daemon(libc::SIGSTOP) else { return Ok(()) };
            let pause = Duration::from_millis(self.rng.below(LONGEST_STOP_MS));
            std::thread::sleep(pause);
            crate::tool::signal(stopped, libc::SIGCONT)?;
        } else {
            let killed_at = &mut self.killed_at[victim];
            if killed_at.is_some_and(|at| at.elapsed() < BETWEEN_KILLS) {
                return Ok(());
            }
            if rigs[victim].signal_daemon(libc::SIGKILL).is_err() {
                return Ok(());
            }
            *killed_at = Some(Instant::now());
        }
        self.done += 1;
        Ok(())
    }
}
