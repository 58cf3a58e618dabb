//! The three spellings of time that stores use, in whole seconds since the epoch.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn now_secs() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// `20261121T214625Z`, as requests are signed with.
pub(crate) fn basic_iso(secs: i64) -> String {
    let (days, rest) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// `Sat, 21 Nov 2026 21:46:25 GMT`, the format of headers.
pub(crate) fn http_date(secs: i64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(secs.max(0) as u64))
}

/// `2026-11-21T21:46:25.000Z`, the format of listings and credentials.
pub(crate) fn parse_iso(text: &str) -> Option<i64> {
    let (date, time) = text.trim().split_once('T')?;
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let time = time.strip_suffix('Z').or_else(|| time.strip_suffix("+00:00"))?;
    clock(time.split('.').next()?).and_then(|clock| Some(days(year, month, day)? * 86_400 + clock))
}

/// `Sat, 21 Nov 2026 21:46:25 GMT`, the format of `Last-Modified`.
pub(crate) fn parse_http(text: &str) -> Option<i64> {
    let since = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

fn clock(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, ':').map(number);
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}

fn number(text: &str) -> Option<i64> {
    // At most four digits occur, so nothing below overflows.
    (!text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())?
}

/// Days from the epoch to a date of the proleptic Gregorian calendar. Years begin in
/// March, so that the leap day is the last of its year.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// The inverse of [`days`].
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_spellings_name_the_same_second() {
        assert_eq!(parse_iso("2026-11-21T21:46:25.123Z"), Some(1_795_297_585));
        assert_eq!(parse_http("Sat, 21 Nov 2026 21:46:25 GMT"), Some(1_795_297_585));
        assert_eq!(basic_iso(1_795_297_585), "20261121T214625Z");
        assert_eq!(http_date(1_795_297_585), "Sat, 21 Nov 2026 21:46:25 GMT");
        for secs in (0..4_000_000_000).step_by(86_400 * 7 + 3_661) {
            let text = basic_iso(secs);
            let iso = format!(
                "{}-{}-{}T{}:{}:{}Z",
                &text[0..4],
                &text[4..6],
                &text[6..8],
                &text[9..11],
                &text[11..13],
                &text[13..15]
            );
            assert_eq!(parse_iso(&iso), Some(secs));
            assert_eq!(parse_http(&http_date(secs)), Some(secs));
        }
    }

    #[test]
    fn nonsense_is_no_time() {
        for text in [
            "",
            "T",
            "2026-11-21",
            "2026-13-21T00:00:00Z",
            "2026-11-21T25:00:00Z",
            "99999-01-01T00:00:00Z",
            "-1-01-01T0:0:0Z",
            "é",
        ] {
            assert_eq!(parse_iso(text), None, "{text}");
            assert_eq!(parse_http(text), None, "{text}");
        }
    }
}
