//! Predicts the keys at which the next batches of a listing begin, from the progress of the
//! previous batches. Only an optimisation: a wrong prediction costs a request.

use super::Listed;

/// Alphabets of counters, random ids and hashes in names, smallest first.
const ALPHABETS: [&[u8]; 7] = [
    b"0123456789",
    b"0123456789ABCDEF",
    b"0123456789abcdef",
    b"abcdefghijklmnopqrstuvwxyz",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"0123456789abcdefghijklmnopqrstuvwxyz",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
];

/// Digits considered from the first differing one on, and before it, which a carry can change. As
/// numbers they are below 2^108.
const MOST_BEHIND: usize = 12;
const MOST_BEFORE: usize = 6;

#[derive(Clone, Debug)]
pub struct Pace {
    /// Common prefix of the keys before their digits.
    head: String,
    alphabet: &'static [u8],
    digits: usize,
    /// Growth of the number per batch.
    stride: u128,
}

impl Pace {
    /// Derives it from a batch listed after `after`. `None` if the keys contain no counter.
    pub fn of(prefix: &str, after: &str, entries: &[Listed]) -> Option<Pace> {
        let last = entries.last()?.key();
        let same = after.bytes().zip(last.bytes()).take_while(|(one, other)| one == other).count();
        if same < prefix.len() {
            return None;
        }
        let behind = |key: &str| {
            key.as_bytes()
                .get(same..)
                .unwrap_or_default()
                .iter()
                .take(MOST_BEHIND)
                .copied()
                .collect::<Vec<u8>>()
        };
        let are_digits = |bytes: Vec<u8>| bytes.into_iter().take_while(u8::is_ascii_alphanumeric);
        let seen: Vec<u8> = entries
            .iter()
            .map(Listed::key)
            .chain([after])
            .flat_map(|key| are_digits(behind(key)))
            .collect();
        let alphabet = ALPHABETS
            .into_iter()
            .find(|alphabet| seen.iter().all(|byte| alphabet.contains(byte)))?;
        let is_digit = |byte: &u8| alphabet.contains(byte);
        let before = last.as_bytes()[prefix.len()..same]
            .iter()
            .rev()
            .take(MOST_BEFORE)
            .take_while(|byte| is_digit(byte))
            .count();
        let behind = [after, last]
            .map(|key| behind(key).iter().take_while(|byte| is_digit(byte)).count())
            .into_iter()
            .max()?;
        let mut pace = Pace {
            head: last.get(..same - before)?.into(),
            alphabet,
            digits: before + behind,
            stride: 0,
        };
        pace.stride =
            pace.number(last)?.checked_sub(pace.number(after)?).filter(|stride| *stride > 0)?;
        Some(pace)
    }

    /// Whether both count the same digits at about the same rate.
    pub fn is_like(&self, other: &Pace) -> bool {
        let counts = |pace: &Pace| (pace.head.clone(), pace.alphabet, pace.digits);
        counts(self) == counts(other) && self.stride.abs_diff(other.stride) <= other.stride / 64
    }

    /// The approximate end of the batch that begins after `key`. It errs on the early side, more so
    /// for unsteady keys: overlapping batches miss nothing.
    pub fn end_behind(&self, key: &str, is_steady: bool) -> Option<String> {
        let overlap = self.stride / if is_steady { 32 } else { 8 };
        let mut number = self.number(key)? + self.stride - overlap;
        let base = self.alphabet.len() as u128;
        let mut digits = vec![0; self.digits];
        for digit in digits.iter_mut().rev() {
            *digit = self.alphabet[(number % base) as usize];
            number /= base;
        }
        let end = self.head.clone() + std::str::from_utf8(&digits).expect("digits are ASCII");
        // Otherwise it is beyond the last number with this prefix, or a non-digit sorts above all
        // digits.
        Some(end).filter(|end| number == 0 && end.as_str() > key)
    }

    /// The number in a key. Missing digits count as the lowest one.
    fn number(&self, key: &str) -> Option<u128> {
        let digits = key
            .as_bytes()
            .strip_prefix(self.head.as_bytes())?
            .iter()
            .map_while(|byte| self.alphabet.iter().position(|digit| digit == byte));
        let digits = digits.chain(std::iter::repeat(0)).take(self.digits);
        Some(digits.fold(0, |number, digit| number * self.alphabet.len() as u128 + digit as u128))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listed(keys: impl IntoIterator<Item = String>) -> Vec<Listed> {
        keys.into_iter().map(|key| Listed::Prefix { key }).collect()
    }

    fn next(prefix: &str, after: &str, keys: &[&str], is_steady: bool) -> Option<String> {
        let entries = listed(keys.iter().map(|key| (*key).to_owned()));
        Pace::of(prefix, after, &entries)?.end_behind(keys.last()?, is_steady)
    }

    #[test]
    fn keys_that_count_go_on_counting() {
        assert_eq!(next("d/", "d/f00999", &["d/f01000", "d/f01999"], true).unwrap(), "d/f02968");
        assert_eq!(
            next("d/", "d/f00999.jpg", &["d/f01000.jpg", "d/f01999.jpg"], true).unwrap(),
            "d/f02968"
        );
        assert_eq!(next("", "08999", &["09000", "09999"], true).unwrap(), "10968");
        assert_eq!(next("", "a/08999/", &["a/09000/", "a/09999/"], true).unwrap(), "a/10968");
        assert_eq!(
            next("", "fe", &["ff0", "ffe"], true),
            None,
            "there is no other of three digits"
        );
    }

    #[test]
    fn what_is_drawn_goes_on_as_fast_and_rather_too_slowly() {
        assert_eq!(next("", "0010aa", &["0018", "0020aa"], false).unwrap(), "002eaa");
        assert_eq!(next("", "v-00f0", &["v-00f8", "v-0170"], true).unwrap(), "v-01ec");
    }

    #[test]
    fn parts_of_about_the_same_size_are_alike() {
        let pace =
            |after: &str, last: &str| Pace::of("d/", after, &listed([last.to_owned()])).unwrap();
        assert!(pace("d/02000", "d/03000").is_like(&pace("d/00999", "d/01998")));
        assert!(!pace("d/02000", "d/03000").is_like(&pace("d/00000", "d/01100")));
        assert!(!pace("d/e2000", "d/e3000").is_like(&pace("d/x2000", "d/x3000")));
    }

    #[test]
    fn what_does_not_count_is_not_foretold() {
        assert_eq!(next("", "a", &[], true), None);
        assert_eq!(next("", "a-", &["a.", "a~"], true), None);
        assert_eq!(next("", "x09", &["x1~"], true), None, "x11 is before that");
        assert_eq!(next("d/", "c", &["d/a"], true), None, "behind another prefix");
        let entries = listed(["x1".to_owned(), "x3".to_owned()]);
        assert_eq!(Pace::of("", "x0", &entries).unwrap().end_behind("y3", true), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        /// For any keys, the prediction is after them, below the prefix, and not a prefix itself.
        #[test]
        fn foretold_keys_are_behind(mut keys in prop::collection::btree_set("[0-2a-cZ.~é/-]{0,30}", 2..20), is_steady in any::<bool>()) {
            let prefix = "p/";
            let after = format!("{prefix}{}", keys.pop_first().unwrap());
            let entries = listed(keys.iter().map(|key| format!("{prefix}{key}")));
            let last = entries.last().unwrap().key();
            if let Some(end) = Pace::of(prefix, &after, &entries).and_then(|pace| pace.end_behind(last, is_steady)) {
                prop_assert!(end.starts_with(prefix), "{}", end);
                prop_assert!(end.as_str() > last, "{} {}", last, end);
            }
        }
    }
}
