use super::*;
use crate::notify::tests::held;
use ebb_model::{FileKind, Time};
use futures_util::poll;
use std::pin::pin;

const FILE: Ino = Ino(7);

fn attr(version: u64, size_bytes: u64) -> Attr {
    let time = Time::from_secs(0);
    Attr {
        ino: FILE,
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes,
        hole_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: Version(version),
    }
}

/// Situation: the notification of a longer length is queued behind another file's while the file is
/// truncated. Danger: it is written after the reply to the SETATTR, and the kernel takes the empty
/// file for 100 bytes. Expectation: it is dropped; one of a later growth is written.
#[tokio::test]
async fn longer_length_is_dropped_once_the_file_is_truncated() {
    let (notifier, _queue, mut jobs) = held();
    let lengths = Lengths::new(notifier);
    lengths.show(&attr(1, 10), false, true).await;
    {
        let grown = attr(2, 100);
        let mut showing = pin!(lengths.show(&grown, true, true));
        assert!(poll!(&mut showing).is_pending());
        let job = jobs.recv().await.unwrap();
        lengths.set(&attr(3, 0), true);
        job.perform(|notification| panic!("{notification:?} is older than the truncation"));
        showing.await;
    }
    assert!(!lengths.is_cut(&attr(3, 0)));
    let grown = attr(4, 50);
    let mut showing = pin!(lengths.show(&grown, true, true));
    assert!(poll!(&mut showing).is_pending());
    let mut written = None;
    jobs.recv().await.unwrap().perform(|notification| {
        written = Some(notification.clone());
        Ok(())
    });
    showing.await;
    assert_eq!(written, Some(Notification::Longer { ino: FILE, len_bytes: 50 }));
    assert!(lengths.is_cut(&attr(5, 49)) && !lengths.is_cut(&attr(5, 50)));
}

/// Situation: an open file of which nothing was noted is truncated before an older reply is shown.
/// Expectation: the kernel is not notified of the older length.
#[tokio::test]
async fn longer_length_is_not_sent_after_a_truncation_of_an_unknown_file() {
    let (notifier, _queue, mut jobs) = held();
    let lengths = Lengths::new(notifier);
    lengths.set(&attr(2, 0), true);
    lengths.show(&attr(1, 100), true, true).await;
    assert!(jobs.try_recv().is_err());
}
