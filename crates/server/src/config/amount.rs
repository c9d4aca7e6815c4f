//! Amounts of time.

use std::str::FromStr;
use std::time::Duration;

/// Names of units, and their seconds. A year has 365 days.
const UNITS: [(&[&str], f64); 9] = [
    (&["ns", "nsec", "nanos"], 1e-9),
    (&["us", "\u{b5}s", "usec"], 1e-6),
    (&["ms", "msec", "millis"], 1e-3),
    (&["s", "sec", "secs", "second", "seconds"], 1.0),
    (&["m", "min", "mins", "minute", "minutes"], 60.0),
    (&["h", "hr", "hrs", "hour", "hours"], 3600.0),
    (&["d", "day", "days"], 86_400.0),
    (&["w", "wk", "wks", "week", "weeks"], 604_800.0),
    (&["y", "yr", "yrs", "year", "years"], 31_536_000.0),
];

/// Parses a duration: one or more numbers, each with a unit, such as `20ms`, `7d` or `1m 30s`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut seconds = 0.0;
    loop {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let after = after.trim_start();
        let (unit, after) = after.split_at(after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len()));
        let (_, factor) = UNITS.iter().find(|(names, _)| names.contains(&unit))?;
        seconds += number.parse::<f64>().ok()? * factor;
        rest = after.trim_start();
        if rest.is_empty() {
            return Duration::try_from_secs_f64(seconds).ok();
        }
    }
}

/// Parses a whole number that is at least 1.
///
/// # Errors
/// The rule.
pub fn at_least_1<T: FromStr + Default + PartialOrd>(text: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| *number > T::default());
    number.ok_or_else(|| "must be a whole number, at least 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, seconds) in [
            ("20ms", 0.02),
            ("1us", 1e-6),
            ("60s", 60.0),
            ("1m 30s", 90.0),
            ("1min30sec", 90.0),
            ("1.5 h", 5400.0),
            ("7d", 604_800.0),
            ("2w", 1_209_600.0),
            ("1000y", 31_536_000_000.0),
        ] {
            assert_eq!(duration(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for wrong in
            ["", " ", "7", "d", "-1d", "1d 2", "1 d,", "1.2.3s", ".s", "1e3s", "1M", &"9".repeat(400)]
        {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
        assert_eq!(duration(&format!("{}y", "9".repeat(400))), None);
    }

    #[test]
    fn numbers_are_at_least_1() {
        assert_eq!(at_least_1::<u64>("1"), Ok(1));
        for wrong in ["0", "-1", "1.5", "", "18446744073709551616"] {
            assert!(at_least_1::<u64>(wrong).is_err(), "{wrong}");
        }
    }
}
