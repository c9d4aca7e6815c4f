//! Numbers: which of them can be drawn, and their format.

use serde::{Serialize, Serializer};

/// Limit of the magnitude. Larger values count as missing, so sums and differences of the others stay finite.
pub const MAX_MAGNITUDE: f64 = 1e300;
/// Limit up to which whole numbers are exact in an `f64`.
const MAX_WHOLE: f64 = 1e15;

pub(crate) fn plottable(value: f64) -> bool {
    value.abs() <= MAX_MAGNITUDE
}

/// A finite number that is written with `DIGITS` significant digits to keep files small. Whole numbers are
/// written in full.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rounded<const DIGITS: usize>(pub f64);

/// A value with more digits than a chart or a reader can distinguish.
pub(crate) type Value = Rounded<5>;
/// A position on the horizontal axis, with more digits: times of long runs differ only in later digits.
pub(crate) type Position = Rounded<10>;

impl<const DIGITS: usize> Serialize for Rounded<DIGITS> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(value) = *self;
        if value.fract() == 0.0 && value.abs() < MAX_WHOLE {
            return serializer.serialize_i64(value as i64);
        }
        let digits = DIGITS - 1;
        serializer.serialize_f64(format!("{value:.digits$e}").parse().unwrap_or(value))
    }
}

/// Returns the number of digits after the decimal point for `significant` significant digits.
pub(crate) fn decimals(value: f64, significant: i32) -> usize {
    let magnitude = if value == 0.0 || !value.is_finite() { 0 } else { value.abs().log10().floor() as i32 };
    (significant - 1 - magnitude).clamp(0, 9).unsigned_abs() as usize
}

/// Returns the factor and the unit in which a time in seconds is easiest to read.
pub(crate) fn time_unit(seconds: f64) -> (f64, &'static str) {
    match seconds.abs() {
        ..1e-3 => (1e6, "µs"),
        ..1.0 => (1e3, "ms"),
        _ => (1.0, "s"),
    }
}

/// Formats a number with fixed digits after the decimal point, thousands separators and a minus sign
/// (U+2212).
pub(crate) fn fixed(value: f64, decimals: usize) -> String {
    let plain = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = plain.split_once('.').map_or((plain.as_str(), None), |(w, f)| (w, Some(f)));
    let is_zero = !plain.bytes().any(|digit| (b'1'..=b'9').contains(&digit));
    let mut text = String::new();
    if value < 0.0 && !is_zero {
        text.push('\u{2212}');
    }
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(value: f64) -> String {
        serde_json::to_string(&Rounded::<6>(value)).unwrap()
    }

    #[test]
    fn numbers_are_written_short() {
        assert_eq!(
            [1204.0, 0.1 + 0.2, -18.612_345_6, 1e-9].map(written),
            ["1204", "0.3", "-18.6123", "1e-9"]
        );
    }

    proptest! {
        #[test]
        fn printed_numbers_are_exact_to_the_last_digit(value in -1e300..1e300_f64) {
            let read: f64 = serde_json::from_str(&written(value)).unwrap();
            prop_assert!((read - value).abs() <= value.abs() * 1e-5, "{value} became {read}");
        }
    }
}
