//! Entry points for the fuzz targets.

use crate::memory;
use crate::net::Receiver;
use crate::security::is_tls;
use ebb_ports::{FrameReceiver, MAX_FRAME_BYTES, NetError};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, ReadBuf};

/// Feeds a stream of frames in reads of `piece` bytes and checks that the same frames come out as
/// from the whole stream.
pub fn frames(stream: &[u8], piece: usize) {
    let pieces = Pieces { rest: stream, piece: piece.max(1) };
    let mut receiver = Receiver::new(pieces, "peer".into());
    let mut rest = stream;
    loop {
        let Poll::Ready(received) =
            pin!(receiver.receive()).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("a complete frame is pending");
        };
        let len = rest.first_chunk().map(|length| u32::from_le_bytes(*length) as usize);
        match (received, len) {
            (Ok(Some(frame)), Some(len)) => {
                assert_eq!(frame, rest[4..4 + len]);
                rest = &rest[4 + len..];
                continue;
            }
            (Ok(None), None) => assert!(rest.is_empty()),
            (Err(NetError::Protocol { .. }), Some(len)) => {
                let begins_with_tls = rest.len() == stream.len() && is_tls(stream);
                assert!(len > MAX_FRAME_BYTES || begins_with_tls);
            }
            (Err(NetError::Broken { .. }), None) => assert!(!rest.is_empty()),
            (Err(NetError::Broken { .. }), Some(len)) => assert!(rest.len() < 4 + len),
            (received, len) => panic!("{received:?} where {} bytes begin with {len:?}", rest.len()),
        }
        return;
    }
}

struct Pieces<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, rest) = self.rest.split_at(self.piece.min(self.rest.len()).min(into.remaining()));
        into.put_slice(now);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

/// Parses possible contents of files of `/proc` and `/sys` about memory.
pub fn memory(told: &str) {
    memory::of_machine(told);
    let (groups, limit) = told.split_once("\n\n").unwrap_or((told, ""));
    let limits = memory::limits(groups, |path| {
        assert!(!path.starts_with('/'), "{path} is not below the control groups");
        Some(limit.to_owned())
    });
    limits.for_each(drop);
}
