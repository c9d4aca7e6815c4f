//! Amounts of time and of memory in options.

use std::ops::RangeInclusive;
use std::time::Duration;

use evenstep_server::config::duration;

/// Shortest and longest time after which data may be deleted, in seconds.
const KEEP_S: RangeInclusive<u64> = 60..=1000 * 31_536_000;
/// Smallest and largest limit of memory and of the store, in bytes.
const SIZE_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 60;
/// Units of sizes, in bytes.
const SIZE_UNITS: [(&str, u64); 5] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("B", 1)];

/// Parses an age of data or of a token.
///
/// # Errors
/// The rule.
pub fn keep_time(text: &str) -> Result<Duration, String> {
    let time = duration(text).filter(|time| KEEP_S.contains(&time.as_secs()));
    time.ok_or_else(|| "must be numbers followed by s, m, h, d, w or y, 60s to 1000y".to_owned())
}

/// Parses a size of memory or of the store, in bytes.
///
/// # Errors
/// The rule.
pub fn size(text: &str) -> Result<u64, String> {
    let bytes = SIZE_UNITS.iter().find_map(|(unit, factor)| {
        let digits =
            text.strip_suffix(unit).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse::<u64>().ok()?.checked_mul(*factor).filter(|bytes| SIZE_BYTES.contains(bytes))
    });
    bytes.ok_or_else(|| "must be a whole number followed by KiB, MiB, GiB or TiB, at least 1MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!(keep_time("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(keep_time("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(keep_time("1000y"), Ok(Duration::from_secs(1000 * 31_536_000)));
        for wrong in ["", "7", "d", "-1d", "59s", "0d", "99999999999999999999d", "9999y"] {
            assert!(keep_time(wrong).is_err(), "{wrong}");
        }
        assert_eq!((size("1MiB"), size("1048576B"), size("20GiB")), (Ok(1 << 20), Ok(1 << 20), Ok(20 << 30)));
        for wrong in ["", "1", "20GB", "1KiB", "0TiB", "99999999TiB", "1.5GiB", "-1GiB", "+1GiB", "GiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
