//! Parsers of flag values with bounds.

/// Returns a parser of whole numbers in a range.
pub fn between(least: u64, most: u64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(least..=most)
}

/// Parses a share in (0, 1).
pub fn share(written: &str) -> Result<f64, String> {
    let share: Option<f64> = written.parse().ok();
    share.filter(|share| *share > 0.0 && *share < 1.0).ok_or_else(|| "must be a share between 0 and 1".into())
}

/// Parses a finite number of at least 0.
pub fn not_negative(written: &str) -> Result<f64, String> {
    let number: Option<f64> = written.parse().ok();
    number.filter(|number| number.is_finite() && *number >= 0.0).ok_or_else(|| "must be at least 0".into())
}

/// Parses a finite number greater than 0.
pub fn positive(written: &str) -> Result<f64, String> {
    let number: Option<f64> = written.parse().ok();
    number.filter(|number| number.is_finite() && *number > 0.0).ok_or_else(|| "must be greater than 0".into())
}
