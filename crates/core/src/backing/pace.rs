//! How far a listing comes through the keys with each part, if they go on as they have: where the
//! parts to come are likely to begin. Nobody relies on it.

use super::Listed;

/// What names count in, are drawn from or are hashes in, the smallest first.
const ALPHABETS: [&[u8]; 7] = [
    b"0123456789",
    b"0123456789ABCDEF",
    b"0123456789abcdef",
    b"abcdefghijklmnopqrstuvwxyz",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"0123456789abcdefghijklmnopqrstuvwxyz",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
];

/// Digits that are looked at from the first one on that differs, and before it, which may change by
/// a carry. As numbers they are below 2^108.
const MOST_BEHIND: usize = 12;
const MOST_BEFORE: usize = 6;

#[derive(Clone, Debug)]
pub struct Pace {
    /// What keys begin with before their digits.
    head: String,
    alphabet: &'static [u8],
    digits: usize,
    /// By how much the number grows from one part to the next.
    stride: u128,
}

impl Pace {
    /// Of a part that was listed behind `after`. `None` where nothing in the keys counts.
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

    /// Whether it counts what the other one does, about as fast.
    pub fn is_like(&self, other: &Pace) -> bool {
        let counts = |pace: &Pace| (pace.head.clone(), pace.alphabet, pace.digits);
        counts(self) == counts(other) && self.stride.abs_diff(other.stride) <= other.stride / 64
    }

    /// Where the part ends, about, that begins behind `key`. Rather too early, and more so if keys
    /// go on unsteadily: nothing is missing where one part overlaps the other.
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
        // Otherwise it would be beyond the last one with this beginning, or something that is no
        // digit is above all digits.
        Some(end).filter(|end| number == 0 && end.as_str() > key)
    }

    /// What a key has for a number. Digits that it has not are the lowest ones.
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

        /// Whatever keys there are: what is foretold is behind them, below the prefix, and no
        /// prefix of its own.
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
