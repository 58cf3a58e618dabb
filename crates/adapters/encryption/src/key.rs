//! The owner's key, and the data key that it wraps.

use aes_kw::{KeyInit, KwAes256};
use ebb_format::encryption::{WRAPPED_KEY_BYTES, WrappedKey};
use ebb_ports::Entropy;
use std::fmt;
use thiserror::Error;
use zeroize::Zeroizing;

const KEY_BYTES: usize = 32;

pub(crate) const DATA_KEY_BYTES: usize = 64;

/// The owner's key. Never printed; zeroed on drop.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; KEY_BYTES]>);

/// Reports the length of the input and none of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "a key is {KEY_BYTES} random bytes, or {} hexadecimal digits and white space, and {len_bytes} \
     bytes were given that are neither",
    2 * KEY_BYTES
)]
pub struct KeyError {
    len_bytes: usize,
}

impl Key {
    /// Parses the bytes of a key file or the output of a key command.
    pub fn parse(given: &[u8]) -> Result<Key, KeyError> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let text = given.trim_ascii();
        // Printable input of 32 bytes is a password, with far less entropy than a key.
        let is_text =
            given.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
        if given.len() == KEY_BYTES && !is_text {
            key.copy_from_slice(given);
        } else if text.len() == 2 * KEY_BYTES && text.iter().all(u8::is_ascii_hexdigit) {
            for (byte, digits) in key.iter_mut().zip(text.chunks(2)) {
                *byte = digits.iter().fold(0, |byte, digit| {
                    byte << 4 | char::from(*digit).to_digit(16).unwrap_or_default() as u8
                });
            }
        } else {
            return Err(KeyError { len_bytes: given.len() });
        }
        Ok(Key(key))
    }

    /// Wraps by RFC 3394.
    pub(crate) fn wrap(&self, key: &DataKey) -> WrappedKey {
        let mut wrapped = [0; WRAPPED_KEY_BYTES];
        KwAes256::new(&(*self.0).into())
            .wrap_key(&*key.0, &mut wrapped)
            .expect("its length is that of a wrapped key");
        WrappedKey(wrapped)
    }

    /// `None` if another key wrapped it.
    pub(crate) fn unwrap(&self, wrapped: &WrappedKey) -> Option<DataKey> {
        let mut key = Zeroizing::new([0; DATA_KEY_BYTES]);
        KwAes256::new(&(*self.0).into()).unwrap_key(&wrapped.0, &mut *key).ok()?;
        Some(DataKey(key))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Encrypts the files of a data directory: two AES-256 keys for XTS.
pub(crate) struct DataKey(pub Zeroizing<[u8; DATA_KEY_BYTES]>);

impl DataKey {
    pub fn draw(entropy: &dyn Entropy) -> DataKey {
        let mut key = Zeroizing::new([0; DATA_KEY_BYTES]);
        key.chunks_mut(8).for_each(|part| part.copy_from_slice(&entropy.next_u64().to_le_bytes()));
        DataKey(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &[u8] = b"6465666768696a6b6c6d6e6f707172737475767778797A7B7C7D7E7F80818283\n";

    /// The expected bytes come from OpenSSL.
    #[test]
    fn only_the_key_that_wrapped_unwraps() {
        let key = Key::parse(HEX).unwrap();
        let data_key = DataKey(Zeroizing::new(std::array::from_fn(|at| at as u8)));
        let wrapped = key.wrap(&data_key);
        assert_eq!(wrapped.0[..8], [0x0f, 0xd1, 0x49, 0x10, 0x7c, 0x44, 0x0a, 0xa8]);
        assert_eq!(wrapped.0[64..], [0xb7, 0xc4, 0xdd, 0x5d, 0x8f, 0xcf, 0xfe, 0x73]);
        assert_eq!(*key.unwrap(&wrapped).unwrap().0, *data_key.0);
        for bit in [0, 255] {
            let mut other = key.clone();
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert!(other.unwrap(&wrapped).is_none());
        }
        let mut damaged = wrapped;
        damaged.0[40] ^= 1;
        assert!(key.unwrap(&damaged).is_none());
    }

    #[test]
    fn a_key_is_bytes_or_digits_and_never_printed() {
        let key: [u8; KEY_BYTES] = std::array::from_fn(|at| at as u8 + 100);
        assert_eq!(*Key::parse(HEX).unwrap().0, key);
        assert_eq!(*Key::parse(&key).unwrap().0, key);
        assert_eq!(format!("{:?}", Key::parse(&key).unwrap()), "Key(…)");
        for wrong in [
            &b""[..],
            b"short",
            &HEX[1..],
            &HEX[..32],
            b"correct horse battery staple 31\n",
            &[0; 33],
            "g".repeat(64).as_bytes(),
        ] {
            let error = Key::parse(wrong).unwrap_err();
            assert_eq!(error.len_bytes, wrong.len());
        }
        assert!(!Key::parse(b"hunter2").unwrap_err().to_string().contains("hunter2"));
    }
}
