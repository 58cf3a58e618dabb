use crate::{ports, run, temporary};
use bytes::Bytes;
use ebb_ports::{FrameReceiver, FrameSender, Listener, MAX_FRAME_BYTES, Net, NetError, Ports};
use std::time::Duration;
use tokio::time::timeout;

type Ends = (Box<dyn FrameSender>, Box<dyn FrameReceiver>);

pub async fn listen(net: &dyn Net) -> Box<dyn Listener> {
    net.listen("127.0.0.1:0").await.expect("a port is free")
}

async fn pair() -> (Ends, Ends) {
    let Ports { net, .. } = ports(&temporary());
    let mut listener = listen(&*net).await;
    let address = listener.address();
    let (ours, theirs) = tokio::join!(net.connect(&address), listener.accept());
    (ours.expect("connected").split(), theirs.expect("accepted").split())
}

fn pattern(len: usize, seed: usize) -> Bytes {
    (0..len).map(|at| (at * 31 + seed) as u8).collect::<Vec<u8>>().into()
}

/// Frames of all sizes, in several buffers, in both directions at once, arrive whole and in order.
#[test]
fn frames_arrive_as_they_were_sent() {
    run(async {
        let ((mut a_send, mut a_receive), (mut b_send, mut b_receive)) = pair().await;
        let sizes = [0, 1, 100, 5000, MAX_FRAME_BYTES, 3, 300_000, 0, MAX_FRAME_BYTES - 1];
        async fn send(sender: &mut dyn FrameSender, sizes: &[usize]) {
            for (seed, &size) in sizes.iter().enumerate() {
                let frame = pattern(size, seed);
                let parts = vec![
                    frame.slice(..size / 3),
                    Bytes::new(),
                    frame.slice(size / 3..size / 2),
                    frame.slice(size / 2..),
                ];
                sender.send(parts).await.expect("sent");
            }
        }
        async fn receive(receiver: &mut dyn FrameReceiver, sizes: &[usize]) {
            for (seed, &size) in sizes.iter().enumerate() {
                assert_eq!(receiver.receive().await, Ok(Some(pattern(size, seed))));
            }
        }
        tokio::join!(
            send(&mut *a_send, &sizes),
            receive(&mut *b_receive, &sizes),
            send(&mut *b_send, &sizes),
            receive(&mut *a_receive, &sizes),
        );
        drop(a_send);
        assert_eq!(b_receive.receive().await, Ok(None), "closed in good order");
        assert_eq!(b_receive.receive().await, Ok(None), "and so again");
    });
}

/// Situation: a receive is one branch of a `select`, and another branch wins. Danger: the received
/// part of the frame is lost. Expectation: the next receive returns the frame.
#[test]
fn a_dropped_receive_loses_nothing() {
    run(async {
        let ((mut sender, _a), (_b, mut receiver)) = pair().await;
        let frame = pattern(MAX_FRAME_BYTES, 1);
        let mut got = None;
        let sending = async { sender.send(vec![frame.clone()]).await.expect("sent") };
        let receiving = async {
            while got.is_none() {
                if let Ok(received) = timeout(Duration::from_micros(50), receiver.receive()).await {
                    got = received.expect("the connection stands");
                }
            }
        };
        tokio::join!(sending, receiving);
        assert_eq!(got, Some(frame));
    });
}

/// Situation: a send is cancelled half way, since the peer does not read. Danger: the peer reads
/// the next frame as the rest of the first. Expectation: the sender refuses to continue.
#[test]
fn a_dropped_send_ends_the_connection() {
    run(async {
        let ((mut sender, _a), (_b, mut receiver)) = pair().await;
        let mut sent = 0;
        while timeout(Duration::from_millis(100), sender.send(vec![pattern(MAX_FRAME_BYTES, sent)]))
            .await
            .is_ok()
        {
            sent += 1;
        }
        let error = sender.send(vec![Bytes::from_static(b"next")]).await;
        assert!(
            matches!(&error, Err(NetError::Broken { what }) if what.contains("only in part")),
            "{error:?}"
        );
        drop(sender);
        for seed in 0..sent {
            assert_eq!(receiver.receive().await, Ok(Some(pattern(MAX_FRAME_BYTES, seed))));
        }
        let error = receiver.receive().await;
        assert!(
            matches!(&error, Err(NetError::Broken { what }) if what.contains("in the middle of a \
                frame")),
            "{error:?}"
        );
    });
}

#[test]
fn a_frame_that_is_too_long_is_not_sent() {
    run(async {
        let ((mut sender, _a), (_b, mut receiver)) = pair().await;
        let refused =
            sender.send(vec![pattern(MAX_FRAME_BYTES, 0), Bytes::from_static(b"x")]).await;
        assert!(matches!(refused, Err(NetError::Protocol { .. })));
        sender.send(vec![Bytes::from_static(b"fits")]).await.expect("the connection is as it was");
        assert_eq!(receiver.receive().await, Ok(Some(Bytes::from_static(b"fits"))));
    });
}

#[test]
fn a_peer_that_is_gone_is_noticed_by_both_directions() {
    run(async {
        let ((mut sender, mut receiver), theirs) = pair().await;
        drop(theirs);
        assert_eq!(receiver.receive().await, Ok(None));
        let mut outcome = Ok(());
        while outcome.is_ok() {
            outcome = sender.send(vec![pattern(1000, 0)]).await;
        }
        assert!(matches!(outcome, Err(NetError::Broken { .. })));
    });
}

#[test]
fn network_errors_name_the_address() {
    run(async {
        let Ports { net, .. } = ports(&temporary());
        let listener = listen(&*net).await;
        let taken = listener.address();
        let error = net.listen(&taken).await.map(|_| ()).expect_err("it is taken");
        assert!(error.to_string().starts_with(&taken), "{error}");
        drop(listener);
        let addresses =
            [taken.as_str(), "no-such-host.invalid:1", "127.0.0.1", "", "127.0.0.1:99999"];
        for address in addresses {
            let error = net.connect(address).await.map(|_| ()).expect_err("no listener");
            assert!(
                matches!(&error, NetError::Unreachable { address: named, .. } if named == address),
                "{error}"
            );
        }
    });
}

/// A unix socket carries the same frames, and only its owner can connect.
#[test]
fn a_local_socket_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    run(async {
        let dir = temporary();
        let Ports { net, .. } = ports(&dir);
        let path = dir.path().join("node.sock");
        let address = format!("unix:{}", path.display());
        std::fs::write(&path, "left by a crash").unwrap();
        let mut listener = net.listen(&address).await.expect("a stale socket is replaced");
        assert_eq!(listener.address(), address);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (ours, theirs) = tokio::join!(net.connect(&address), listener.accept());
        let ((mut a_send, _a), (mut b_send, mut b_receive)) =
            (ours.expect("connected").split(), theirs.expect("accepted").split());
        let (sent, received) =
            tokio::join!(a_send.send(vec![pattern(300_000, 1)]), b_receive.receive());
        assert_eq!((sent, received), (Ok(()), Ok(Some(pattern(300_000, 1)))));
        drop((a_send, _a));
        assert_eq!(b_receive.receive().await, Ok(None));
        let mut outcome = Ok(());
        while outcome.is_ok() {
            outcome = b_send.send(vec![pattern(1000, 0)]).await;
        }
        drop(listener);
        assert!(!path.exists(), "it goes with its listener");
        let error = net.connect(&address).await.map(|_| ()).expect_err("no listener");
        assert!(
            matches!(&error, NetError::Unreachable { address: named, .. } if *named == address),
            "{error}"
        );
        assert!(
            net.listen(&format!("unix:/{}", "x".repeat(200))).await.is_err(),
            "longer than a socket's path may be"
        );
    });
}
