//! Peers that do not speak the protocol, or stop in the middle of it.

use crate::net::listen;
use crate::{ports, run, temporary};
use ebb_format::rpc;
use ebb_ports::{MAX_FRAME_BYTES, NetError, Ports};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The receiver's result for a peer that sends `bytes` and closes if `close` is set.
async fn receive(bytes: &[u8], close: bool) -> Option<Result<Option<bytes::Bytes>, NetError>> {
    let Ports { net, .. } = ports(&temporary());
    let mut listener = listen(&*net).await;
    let mut peer = TcpStream::connect(listener.address()).await.expect("connected");
    let (_sender, mut receiver) = listener.accept().await.expect("accepted").split();
    peer.write_all(bytes).await.expect("sent");
    let kept = (!close).then_some(peer);
    let received = timeout(Duration::from_millis(200), receiver.receive()).await.ok();
    drop(kept);
    received
}

/// Danger: a length field makes the receiver allocate a gigabyte. Expectation: an error from the
/// length alone, before the receiver waits for the frame.
#[test]
fn a_length_beyond_all_frames_is_refused_at_once() {
    for len in [MAX_FRAME_BYTES as u32 + 1, u32::MAX] {
        let error = run(receive(&len.to_le_bytes(), false)).expect("it is answered at once");
        assert!(
            matches!(&error, Err(NetError::Protocol { what }) if what.contains(&len.to_string())),
            "{error:?}"
        );
    }
}

#[test]
fn another_protocol_is_refused() {
    let error = run(receive(b"GET / HTTP/1.1\r\n\r\n", false)).expect("it is answered at once");
    assert!(matches!(error, Err(NetError::Protocol { .. })), "{error:?}");
}

#[test]
fn half_a_frame_and_a_close_is_a_broken_connection() {
    for bytes in [&[9][..], &[9, 0, 0, 0], &[9, 0, 0, 0, 1, 2, 3]] {
        let error = run(receive(bytes, true)).expect("it is answered at once");
        assert!(
            matches!(&error, Err(NetError::Broken { what }) if what.contains("in the middle")),
            "{error:?}"
        );
    }
}

#[test]
fn half_a_frame_is_waited_for() {
    assert_eq!(run(receive(&[9, 0, 0, 0, 1, 2, 3], false)), None);
}

#[test]
fn a_close_without_a_word_is_good_order() {
    assert_eq!(run(receive(&[], true)), Some(Ok(None)));
}

/// The transport accepts a frame of garbage; rejecting it is the format's task.
#[test]
fn garbage_in_a_frame_is_the_formats_to_refuse() {
    let frame = run(receive(&[5, 0, 0, 0, 1, 2, 3, 4, 5], true))
        .expect("it arrived")
        .expect("it is a frame")
        .expect("it is there");
    assert!(rpc::decode(frame).is_err());
}
