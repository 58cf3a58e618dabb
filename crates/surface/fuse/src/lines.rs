//! Where requests come from and their answers go: the device, or slots of a ring.

use crate::abi;
use crate::device::{Device, Received};
use crate::ring::{Ring, Taken};
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem::size_of;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// All of a session.
pub(crate) struct Lines {
    ring: Option<Rc<Ring>>,
    device: Rc<Device>,
    /// Messages taken from the ring since the device was looked at.
    in_a_row: Cell<u32>,
}

/// That of one request.
#[derive(Clone)]
pub(crate) enum Line {
    Device(Rc<Device>),
    Slot(Rc<Ring>, usize),
}

pub(crate) enum Came {
    /// A message of this length.
    Message(Line, usize),
    /// There is no message; [`Lines::readable`] waits for one.
    Nothing,
    /// The mount is gone.
    Gone,
}

impl Lines {
    pub fn new(device: Rc<Device>, ring: Option<Ring>) -> Lines {
        Lines { ring: ring.map(Rc::new), device, in_a_row: Cell::new(0) }
    }

    pub fn device(&self) -> Line {
        Line::Device(self.device.clone())
    }

    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Came> {
        let ring = self.ring.as_ref().filter(|_| self.in_a_row.get() < IN_A_ROW);
        if let Some(ring) = ring
            && let Some(Taken { slot, len }) = ring.take(buffer)?
        {
            self.in_a_row.set(self.in_a_row.get() + 1);
            return Ok(Came::Message(Line::Slot(ring.clone(), slot), len));
        }
        let looks_again = self.in_a_row.replace(0) >= IN_A_ROW;
        match self.device.receive(buffer)? {
            Received::Message(len) => Ok(Came::Message(self.device(), len)),
            Received::Nothing if looks_again => self.receive(buffer),
            Received::Nothing => Ok(Came::Nothing),
            Received::Gone => Ok(Came::Gone),
        }
    }

    /// To be called before anything is awaited: until then answers may wait here.
    pub fn send(&self) -> io::Result<()> {
        self.ring.as_ref().map_or(Ok(()), |ring| ring.submit())
    }

    /// To be awaited after [`Came::Nothing`]: completes when something has come since.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.ring {
            None => self.device.readable().await,
            Some(ring) => tokio::select! {
                ready = self.device.readable() => ready,
                ready = ring.readable() => ready,
            },
        }
    }
}

impl Line {
    pub fn answer(&self, error: i32, unique: u64, body: &[u8]) -> io::Result<()> {
        match self {
            Line::Slot(ring, slot) => ring.answer(*slot, error, unique, body),
            Line::Device(device) => {
                let header = abi::OutHeader {
                    len: (size_of::<abi::OutHeader>() + body.len()) as u32,
                    error,
                    unique,
                };
                let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body)];
                device.write(if body.is_empty() { &parts[..1] } else { &parts[..] })
            }
        }
    }
}

/// So many requests at most are taken while something that only informs waits in the device.
const IN_A_ROW: u32 = 64;
