//! Load of the machine by other processes. Figures of a busy machine mean little and are not
//! published.

use crate::Outcome;
use std::fs;
use std::time::Duration;

/// Maximum share of processor time for other processes.
const MOST: f64 = 0.05;

/// Duration of one sample, taken while no workload runs.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Busy {
    /// One share per sample.
    parts: Vec<f64>,
}

impl Busy {
    pub fn look(&mut self) -> Outcome<()> {
        let before = Times::now()?;
        std::thread::sleep(LOOK);
        let after = Times::now()?;
        let all = (after.all - before.all).max(1);
        self.parts.push(1.0 - (after.idle - before.idle) as f64 / all as f64);
        Ok(())
    }

    pub fn worst(&self) -> f64 {
        self.parts.iter().copied().fold(0.0, f64::max)
    }

    pub fn is_busy(&self) -> bool {
        self.worst() > MOST
    }
}

/// Ticks of all processors since boot.
struct Times {
    all: u64,
    /// Includes I/O wait; time stolen by the hypervisor is not idle.
    idle: u64,
}

impl Times {
    fn now() -> Outcome<Times> {
        Times::parse(&fs::read_to_string("/proc/stat")?)
            .ok_or_else(|| "/proc/stat is not as it is documented".into())
    }

    fn parse(stat: &str) -> Option<Times> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks = line
            .split_whitespace()
            .map(|field| field.parse().ok())
            .collect::<Option<Vec<u64>>>()?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user.
        Some(Times { all: ticks.iter().take(8).sum(), idle: ticks.get(3)? + ticks.get(4)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_not_idle() {
        let times = Times::parse("cpu  10 20 30 400 50 1 2 7 5 0\ncpu0 1 2\n").unwrap();
        assert_eq!((times.all, times.idle), (520, 450));
        assert!(Times::parse("cpu  10 x\n").is_none());
        assert!(Times::parse("").is_none());
    }

    #[test]
    fn the_worst_look_counts() {
        assert!(!Busy { parts: vec![0.0, 0.04] }.is_busy());
        assert!(Busy { parts: vec![0.0, 0.3, 0.01] }.is_busy());
    }
}
