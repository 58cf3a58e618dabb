//! Sizes and times as people write them.

use ebb_model::shown_bytes;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Bytes: `4096`, `64K`, `20G`, `1.5T`; units are powers of 1024, `KiB` and `KB` are `K`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes(pub u64);

/// `90`, `250ms`, `5s`, `10m`, `1h`, `7d`; a bare number is seconds. At most a hundred years.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span(pub Duration);

/// A stand-in for "never": now plus this fits every time type, and its seconds fit 32 bits.
const LONGEST_DAYS: u64 = 36_500;

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let refused =
            || format!("{text:?} is no size: write bytes, or a number with K, M, G, T or P");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
        let power = match unit {
            "" => 0,
            "K" => 1,
            "M" => 2,
            "G" => 3,
            "T" => 4,
            "P" => 5,
            _ => return Err(refused()),
        };
        let scale = 1u64 << (10 * power);
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Bytes).ok_or_else(refused);
        }
        let number: f64 = number.parse().map_err(|_| refused())?;
        let bytes = number * scale as f64;
        if bytes.is_finite() && bytes < u64::MAX as f64 {
            Ok(Bytes(bytes as u64))
        } else {
            Err(refused())
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_bytes(self.0))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let refused =
            || format!("{text:?} is no time: write seconds, or a number with ms, s, m, h or d");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.parse().map_err(|_| refused())?;
        let scale = match unit.trim() {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(refused()),
        };
        if number * scale > (LONGEST_DAYS * 86_400) as f64 {
            return Err(format!("{text:?} is too long a time: {LONGEST_DAYS}d is the longest"));
        }
        Duration::try_from_secs_f64(number * scale).map(Span).map_err(|_| refused())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0 => write!(f, "{} ms", self.0.as_millis()),
            secs @ 1..60 => write!(f, "{secs} s"),
            secs @ 60..3600 => write!(f, "{} min {} s", secs / 60, secs % 60),
            secs => write!(f, "{} h {} min", secs / 3600, secs / 60 % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("1.5KiB", 1536),
            ("20G", 20 << 30),
            ("1 TB", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "-1", "G", "1X", "1..2", "99999999P", "1e400"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(Bytes(20 << 30).to_string(), "20 GiB");
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for (text, millis) in [
            ("5", 5000),
            ("250ms", 250),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(millis))), "{text}");
        }
        for text in ["", "-5s", "s", "5 days", "1e300h"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        assert_eq!("36500d".parse(), Ok(Span(Duration::from_secs(3_153_600_000))));
        for text in ["36501d", "9223372036854775807", "18446744073709549568", &"9".repeat(400)] {
            assert!(
                text.parse::<Span>().is_err_and(|why| why.contains("36500d is the longest")),
                "{text}"
            );
        }
    }
}
