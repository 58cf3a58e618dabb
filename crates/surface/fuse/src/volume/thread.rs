//! What the kernel says of a thread of this machine.

/// Whether it has come to run since the file system has answered whatever it had asked: it sleeps for something else. One that
/// runs, or could, does not tell.
pub(super) fn is_past_its_requests(thread: u32) -> bool {
    let said = |what: &str| std::fs::read_to_string(format!("/proc/{thread}/{what}")).ok();
    said("stat").and_then(|stat| state(&stat)) == Some(ASLEEP) && said("wchan").is_some_and(|place| is_elsewhere(&place))
}

/// The state is behind the name, in which anything can be.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

/// `0` where the kernel does not say in which function it sleeps.
fn is_elsewhere(place: &str) -> bool {
    !matches!(place, "" | "0" | "request_wait_answer") && !place.contains("fuse")
}

/// Until something comes or a signal does. To what an open still does in the kernel, once it is answered, no signal can come.
const ASLEEP: char = 'S';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_elsewhere_is_past() {
        assert_eq!(state("7 (a) R (b) S 1 2"), Some('S'));
        assert_eq!(state("7 (a"), None);
        for (place, is_past) in
            [("do_wait", true), ("request_wait_answer", false), ("__fuse_simple_request", false), ("0", false), ("", false)]
        {
            assert_eq!(is_elsewhere(place), is_past, "{place}");
        }
        assert!(!is_past_its_requests(u32::MAX));
    }

    #[test]
    fn who_runs_does_not_tell() {
        // SAFETY: takes nothing.
        let this = || unsafe { libc::gettid() } as u32;
        assert!(!is_past_its_requests(this()));
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                tell.send(this()).unwrap();
                ended.recv().ok();
            });
            let sleeper = told.recv().unwrap();
            while !is_past_its_requests(sleeper) {
                std::thread::yield_now();
            }
            drop(end);
        });
    }
}
