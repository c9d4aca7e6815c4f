//! Amounts with units: `7d`, `90m`, `20GiB`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const SPANS: [(&str, u64); 6] =
    [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("w", 604_800), ("y", 31_536_000)];
const SIZES: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// A duration in whole seconds: `90s`, `15m`, `12h`, `7d`, `2w`, `1y`. From 60 seconds to 1,000 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(u64);

/// A size in bytes: `500MiB`, `20GiB`, `1TiB`. At least 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size(u64);

impl Span {
    /// A duration of `days` days.
    pub const fn days(days: u64) -> Self {
        Self(days * 86_400)
    }

    /// The duration in seconds.
    pub fn seconds(self) -> u64 {
        self.0
    }
}

impl Size {
    /// A size of `gib` GiB.
    pub const fn gib(gib: u64) -> Self {
        Self(gib << 30)
    }

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = parse(text, &SPANS).filter(|seconds| (60..=1000 * 31_536_000).contains(seconds));
        let rule = "must be a whole number followed by s, m, h, d, w or y, at least 60s";
        seconds.map(Self).ok_or_else(|| format!("{text:?} {rule}"))
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse(text, &SIZES).filter(|bytes| (1 << 20..=1 << 60).contains(bytes));
        let rule = "must be a whole number followed by KiB, MiB, GiB or TiB, at least 1MiB";
        bytes.map(Self).ok_or_else(|| format!("{text:?} {rule}"))
    }
}

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Writes an amount in the largest unit that divides it exactly.
fn write(amount: u64, units: &[(&str, u64)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match units.iter().rev().find(|(_, factor)| amount.is_multiple_of(*factor)) {
        Some((name, factor)) => write!(f, "{}{name}", amount / factor),
        None => write!(f, "{amount}"),
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(self.0, &SPANS, f)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(self.0, &SIZES, f)
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

impl From<Size> for String {
    fn from(size: Size) -> Self {
        size.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn written_tables_round_trip(seconds in 60u64..40_000_000, bytes in 1u64 << 20..1 << 50) {
            prop_assert_eq!(Span(seconds).to_string().parse(), Ok(Span(seconds)));
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
    }

    #[test]
    fn units_are_human_readable() {
        assert_eq!("7d".parse(), Ok(Span::days(7)));
        assert_eq!(Span(5400).to_string(), "90m");
        assert_eq!("20GiB".parse(), Ok(Size(20 << 30)));
        for wrong in ["", "7", "d", "7 d", "-1d", "1.5d", "59s", "0d", "99999999999999999999d", "9999y"] {
            assert!(wrong.parse::<Span>().is_err_and(|error| error.contains("must be")), "{wrong}");
        }
        for wrong in ["1", "20GB", "1KiB", "0TiB", "99999999TiB"] {
            assert!(wrong.parse::<Size>().is_err_and(|error| error.contains("must be")), "{wrong}");
        }
    }
}
