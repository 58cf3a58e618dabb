//! Encoding of keys and values in leaves.

use ebb_model::{Cookie, Ino, Name, PackId, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;

const PACKED_HERE: &str = "a tree decodes only its own encoding";

/// A packed key, mostly without a heap allocation: one change packs about a hundred.
pub type KeyBytes = SmallVec<[u8; 36]>;

/// A key. Law: packed keys sort like the keys.
pub trait Key: Clone + PartialEq {
    fn pack(&self, out: &mut KeyBytes);
    fn unpack(bytes: &[u8]) -> Self;
}

/// A key with a packed length common to its type, so it can be the first part of a tuple.
pub trait FixedKey: Key {
    const BYTES: usize;
}

/// A value. Its encoding can omit anything that the key implies. Law: unpacking yields the packed
/// value; a value without an encoding is never inserted.
pub trait Value<K>: Clone + PartialEq {
    fn pack(&self, key: &K, out: &mut Vec<u8>);
    fn unpack(key: &K, bytes: &[u8]) -> Self;
}

/// Appends the serde encoding of `what`.
pub fn pack<T: Serialize>(what: &T, out: &mut Vec<u8>) {
    postcard::to_io(what, out).expect("encoding to memory cannot fail");
}

/// Decodes the output of [`pack`].
pub fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> T {
    postcard::from_bytes(bytes).expect(PACKED_HERE)
}

/// Decodes the next value of several written by [`pack`].
pub fn take<T: DeserializeOwned>(bytes: &mut &[u8]) -> T {
    let (next, rest) = postcard::take_from_bytes(bytes).expect(PACKED_HERE);
    *bytes = rest;
    next
}

/// Implements [`Value`] by the serde encoding.
macro_rules! values {
    ($($value:ty),+ $(,)?) => {$(
        impl<K> $crate::tree::Value<K> for $value {
            fn pack(&self, _: &K, out: &mut Vec<u8>) {
                $crate::tree::pack(self, out);
            }

            fn unpack(_: &K, bytes: &[u8]) -> Self {
                $crate::tree::unpack(bytes)
            }
        }
    )+};
}
pub(crate) use values;

values!((), u32, u64, Ino, (u64, Ino), Option<String>);

/// Implements [`Key`] for numbers.
macro_rules! numbers {
    ($($key:ty: $number:ty, $to:expr, $from:expr;)+) => {$(
        impl Key for $key {
            fn pack(&self, out: &mut KeyBytes) {
                let to: fn($key) -> $number = $to;
                out.extend_from_slice(&to(*self).to_be_bytes());
            }

            fn unpack(bytes: &[u8]) -> Self {
                let from: fn($number) -> $key = $from;
                from(<$number>::from_be_bytes(bytes.try_into().expect(PACKED_HERE)))
            }
        }

        impl FixedKey for $key {
            const BYTES: usize = size_of::<$number>();
        }
    )+};
}

numbers! {
    bool: u8, u8::from, |number| number != 0;
    u32: u32, |number| number, |number| number;
    Ino: u64, |ino| ino.0, Ino;
    Cookie: u64, |cookie| cookie.0, Cookie;
    PackId: u64, |pack| pack.0, PackId;
}

/// Variable length, led by the number of bytes: counters are mostly small.
impl Key for u64 {
    fn pack(&self, out: &mut KeyBytes) {
        let zeros = self.leading_zeros() as usize / 8;
        out.push((8 - zeros) as u8);
        out.extend_from_slice(&self.to_be_bytes()[zeros..]);
    }

    fn unpack(bytes: &[u8]) -> Self {
        bytes[1..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// Makes seconds before the epoch sort first.
const SIGN: u64 = 1 << 63;

impl Key for Time {
    fn pack(&self, out: &mut KeyBytes) {
        out.extend_from_slice(&(self.secs as u64 ^ SIGN).to_be_bytes());
        Key::pack(&self.nanos, out);
    }

    fn unpack(bytes: &[u8]) -> Self {
        let (secs, nanos) = bytes.split_at(8);
        let secs = u64::from_be_bytes(secs.try_into().expect(PACKED_HERE)) ^ SIGN;
        Time { secs: secs as i64, nanos: Key::unpack(nanos) }
    }
}

impl FixedKey for Time {
    const BYTES: usize = 12;
}

impl Key for String {
    fn pack(&self, out: &mut KeyBytes) {
        out.extend_from_slice(self.as_bytes());
    }

    fn unpack(bytes: &[u8]) -> Self {
        std::str::from_utf8(bytes).expect(PACKED_HERE).into()
    }
}

impl Key for Name {
    fn pack(&self, out: &mut KeyBytes) {
        out.extend_from_slice(self.as_bytes());
    }

    fn unpack(bytes: &[u8]) -> Self {
        Name::new(bytes).expect(PACKED_HERE)
    }
}

impl<A: FixedKey, B: Key> Key for (A, B) {
    fn pack(&self, out: &mut KeyBytes) {
        self.0.pack(out);
        self.1.pack(out);
    }

    fn unpack(bytes: &[u8]) -> Self {
        let (first, second) = bytes.split_at(A::BYTES);
        (A::unpack(first), B::unpack(second))
    }
}

impl<A: FixedKey, B: FixedKey> FixedKey for (A, B) {
    const BYTES: usize = A::BYTES + B::BYTES;
}

impl<A: FixedKey, B: FixedKey, C: Key> Key for (A, B, C) {
    fn pack(&self, out: &mut KeyBytes) {
        self.0.pack(out);
        self.1.pack(out);
        self.2.pack(out);
    }

    fn unpack(bytes: &[u8]) -> Self {
        let ((first, second), third) =
            (<(A, B)>::unpack(&bytes[..A::BYTES + B::BYTES]), &bytes[A::BYTES + B::BYTES..]);
        (first, second, C::unpack(third))
    }
}
