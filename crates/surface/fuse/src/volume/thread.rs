//! What the kernel says of a thread of this machine.

/// Whether it sleeps for something else than an answer of a file system, or has ended. One that
/// runs, or could, does not tell.
///
/// Nothing else in `/proc` says so and can be read here: all that shows the thread's state holds
/// its memory for that long, and whoever is the last to do so writes what it has mapped to the file
/// system, which is this one.
pub(super) fn is_elsewhere(thread: u32) -> bool {
    match std::fs::read(format!("/proc/{thread}/wchan")) {
        Ok(function) => !waits_for_answer_or_runs(&function),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// `0` of one that runs, and where the kernel does not say in which function it sleeps.
fn waits_for_answer_or_runs(function: &[u8]) -> bool {
    matches!(function, b"" | b"0")
        || function.starts_with(b"request_wait_answer")
        || function.windows(4).any(|part| part == b"fuse")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn who_waits_for_an_answer_is_not_elsewhere() {
        for (function, is_here) in [
            ("do_wait", false),
            ("request_wait_answer", true),
            ("__fuse_simple_request", true),
            ("fuse", true),
            ("0", true),
            ("", true),
        ] {
            assert_eq!(waits_for_answer_or_runs(function.as_bytes()), is_here, "{function}");
        }
    }

    #[test]
    fn who_runs_does_not_tell_and_who_sleeps_or_has_ended_does() {
        // SAFETY: takes nothing.
        let this = || unsafe { libc::gettid() } as u32;
        assert!(!is_elsewhere(this()));
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            tell.send(this()).unwrap();
            ended.recv().ok();
        });
        let (thread, began) = (told.recv().unwrap(), Instant::now());
        while !is_elsewhere(thread) {
            assert!(began.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        drop(end);
        sleeper.join().unwrap();
        while !is_elsewhere(thread) {
            assert!(began.elapsed() < Duration::from_secs(10));
        }
    }
}
