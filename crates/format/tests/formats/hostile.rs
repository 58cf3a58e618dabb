//! Bounds of the memory that a peer can make a process allocate. This binary counts its
//! allocations.

use crate::rpc::sealed;
use ebb_format::rpc::{self, MAX_MESSAGE_BYTES, MAX_REQUEST_HEADER_BYTES};
use ebb_model::{AdminRequest, Name, Request};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has no thread-locals any more; its allocations do not matter.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        PEAK.try_with(|peak| peak.set(peak.get().max(held.get())))
    });
}

// SAFETY: forwards every call unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak of bytes allocated by this thread during `work`, above the count before it.
fn peak_bytes<T>(work: impl FnOnce() -> T) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    drop(work());
    (PEAK.get() - before) as usize
}

/// Requests begin with their variant; the rest is arbitrary.
fn hostile_header() -> impl Strategy<Value = Vec<u8>> {
    let lengths = prop_oneof![
        Just(vec![0xff, 0xff, 0xff, 0x7f]),
        Just(vec![0xff; 9]),
        Just(vec![0x80, 0x80, 0x04]),
        Just(vec![0])
    ];
    (
        0..24u8,
        prop::collection::vec(any::<u8>(), 0..6),
        lengths,
        prop::collection::vec(any::<u8>(), 0..300),
    )
        .prop_map(|(variant, start, length, tail)| [vec![variant], start, length, tail].concat())
}

proptest! {
    /// A short frame that claims long lists costs at most the list's first allocation.
    #[test]
    fn claims_allocate_nothing(header in hostile_header(), kind in 1..5u8) {
        let frame = bytes::Bytes::from(sealed(kind, &header));
        let peak = peak_bytes(|| rpc::decode(frame));
        prop_assert!(peak <= 64 << 10, "{peak} bytes for a frame of {}", header.len() + 22);
    }

    #[test]
    fn any_frame_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(rpc::decode(bytes.into()).is_err());
    }
}

/// Situation: the worst possible request: a full header of the shortest names. Expectation:
/// allocation stays within a small multiple of the longest frame.
#[test]
fn a_full_request_allocates_a_bounded_amount() {
    let path = vec![Name::new(b"x").expect("x is a name"); (MAX_REQUEST_HEADER_BYTES - 8) / 2];
    let header = postcard::to_allocvec(&Request::Admin(AdminRequest::Flush { path }))
        .expect("it can be written");
    let frame = bytes::Bytes::from(sealed(1, &header));
    assert!(rpc::decode(frame.clone()).is_ok());
    let peak = peak_bytes(|| rpc::decode(frame));
    assert!(peak <= 3 * MAX_MESSAGE_BYTES, "{peak} bytes");
}
